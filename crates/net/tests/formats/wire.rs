//! The request formats: known bytes, every request, and arbitrary bytes.

use proptest::prelude::*;
use shinjuku_net::Classifier;
use shinjuku_net::wire::{
    ByPart, NotAPart, NotRackSched, PartHeader, PartKind, RackSchedKind, RackSchedMessage,
    ShinjukuRequest, WrongLength,
};

#[test]
fn fields_are_little_endian_and_in_the_clients_order() {
    let request = ShinjukuRequest {
        run_nanos: 0x0102,
        generated_nanos: 0xf000_0000_0000_000e,
    };
    let bytes = [2, 1, 0, 0, 0, 0, 0, 0, 0x0e, 0, 0, 0, 0, 0, 0, 0xf0];
    assert_eq!(request.to_bytes(), bytes);
    assert_eq!(ShinjukuRequest::parse(&bytes), Ok(request));
}

#[test]
fn a_wrong_length_is_named() {
    let error = ShinjukuRequest::parse(&[0; 41]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a request in Shinjuku's format has 16 bytes, not 41"
    );
}

/// Every field another number, and none of them the same backwards.
const MESSAGE: RackSchedMessage = RackSchedMessage {
    kind: RackSchedKind::Follow,
    sequence: 0x0102,
    queue_lengths: [0x0304_0506, 0x0708_090a, 0x0b0c_0d0e],
    client: 0x0f10,
    request: 0x1112_1314,
    total_length: 0x1516_1718,
    run_nanos: 0x191a_1b1c_1d1e_1f20,
    generated_nanos: 0x2122_2324_2526_2728,
};

#[test]
fn rackscheds_fields_are_where_its_packed_struct_has_them() {
    #[rustfmt::skip]
    let bytes = [
        2, // type
        0x02, 0x01, // seq_num
        0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0a, 0x0b, 0x0c, 0x0d, 0x0e, // queue_length, for the switch
        0x10, 0x0f, // client_id
        0x14, 0x13, 0x12, 0x11, // req_id
        0x18, 0x17, 0x16, 0x15, // pkts_length
        0x20, 0x1f, 0x1e, 0x1d, 0x1c, 0x1b, 0x1a, 0x19, // run_ns
        0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21, // gen_ns
    ];
    assert_eq!(MESSAGE.to_bytes(), bytes);
    assert_eq!(RackSchedMessage::parse(&bytes), Ok((MESSAGE, &[][..])));
}

#[test]
fn what_follows_the_header_is_the_payload() {
    let mut bytes = MESSAGE.to_bytes().to_vec();
    bytes.extend_from_slice(b"payload");
    assert_eq!(
        RackSchedMessage::parse(&bytes),
        Ok((MESSAGE, &b"payload"[..]))
    );
}

#[test]
fn a_reply_has_the_clients_numbers_and_the_queue_length() {
    let request = RackSchedMessage::request(7, 8, 9, 10);
    assert_eq!(request.total_length, 41);
    assert_eq!(
        RackSchedMessage {
            total_length: 82,
            ..request
        }
        .reply(3),
        RackSchedMessage {
            kind: RackSchedKind::Reply,
            queue_lengths: [3, 0, 0],
            ..request
        }
    );
    assert_eq!(request.reply(0x0102).to_bytes()[..7], [0, 0, 0, 0, 0, 1, 2]);
}

#[test]
fn what_is_not_rackscheds_is_named() {
    let error = RackSchedMessage::parse(&[1; 40]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a packet in RackSched's format has 41 bytes or more, not 40"
    );
    let error = RackSchedMessage::parse(&[3; 41]).unwrap_err();
    assert!(error.to_string().ends_with("not 3"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_request_comes_back_as_it_was(run_nanos: u64, generated_nanos: u64) {
        let request = ShinjukuRequest { run_nanos, generated_nanos };
        prop_assert_eq!(ShinjukuRequest::parse(&request.to_bytes()), Ok(request));
    }

    #[test]
    fn any_bytes_are_a_request_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        match ShinjukuRequest::parse(&bytes) {
            Ok(request) => prop_assert_eq!(&request.to_bytes()[..], &bytes[..]),
            Err(WrongLength { length }) => {
                prop_assert_eq!(length, bytes.len());
                prop_assert_ne!(length, ShinjukuRequest::LENGTH);
            }
        }
    }

    #[test]
    fn sixteen_bytes_of_anything_are_a_request(bytes: [u8; 16]) {
        prop_assert_eq!(ShinjukuRequest::parse(&bytes).map(ShinjukuRequest::to_bytes), Ok(bytes));
    }

    #[test]
    fn any_bytes_are_rackscheds_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..60), kind in 0..4_u8) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = kind;
        }
        match RackSchedMessage::parse(&bytes) {
            Ok((message, payload)) => {
                let mut again = message.to_bytes().to_vec();
                again.extend_from_slice(payload);
                prop_assert_eq!(again, bytes);
            }
            Err(NotRackSched::TooShort { length }) => {
                prop_assert_eq!(length, bytes.len());
                prop_assert!(length < RackSchedMessage::LENGTH);
            }
            Err(error) => {
                prop_assert_eq!(error, NotRackSched::Kind { kind: 3 });
                prop_assert_eq!(bytes[0], 3);
            }
        }
    }
}

/// Every byte of the numbers another.
const PART: PartHeader = PartHeader {
    class: 0x0102,
    number: 0x0304_0506_0708_090a,
    kind: PartKind::Request { budget_nanos: -2 },
};

#[test]
fn a_parts_fields_are_where_the_table_says() {
    #[rustfmt::skip]
    let bytes = [
        b'F', b'P', 1, 1, // mark, version, kind
        0x02, 0x01, 0, 0, // class, nothing
        0x0a, 0x09, 0x08, 0x07, 0x06, 0x05, 0x04, 0x03, // number
        0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, // budget
    ];
    assert_eq!(PART.to_bytes(), bytes);
    let sent = [&bytes[..], b"what"].concat();
    assert_eq!(PartHeader::parse(&sent), Ok((PART, &b"what"[..])));
    let peer = "127.0.0.1:1".parse().unwrap();
    assert_eq!(ByPart.classify(&sent, peer), Some(0x0102));
    assert_eq!(ByPart.budget_nanos(&sent), Some(-2));

    let mut reply = sent.clone();
    PartHeader::stamp(&mut reply, 77);
    let (header, payload) = PartHeader::parse(&reply).unwrap();
    assert_eq!((header, payload), (PART.reply(77), &b"what"[..]));
    // A reply is no request.
    assert_eq!(ByPart.classify(&reply, peer), None);
    assert_eq!(ByPart.budget_nanos(&reply), None);
}

#[test]
fn what_is_no_part_is_named() {
    let bytes = PART.to_bytes();
    for length in 0..PartHeader::LENGTH {
        let error = PartHeader::parse(&bytes[..length]);
        assert_eq!(error, Err(NotAPart::TooShort { length }));
    }
    let with = |at: usize, value: u8| {
        let mut bytes = bytes;
        bytes[at] = value;
        PartHeader::parse(&bytes).map(|_| ())
    };
    assert_eq!(with(0, b'f'), Err(NotAPart::Mark));
    assert_eq!(with(2, 2), Err(NotAPart::Version { version: 2 }));
    assert_eq!(with(3, 9), Err(NotAPart::Kind { kind: 9 }));
    // What is 0 in this version may be anything.
    assert_eq!(with(6, 9), Ok(()));
}
