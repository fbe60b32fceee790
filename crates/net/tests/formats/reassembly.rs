//! Requests of several packets in RackSched's format: every way of arriving, every lie, and bytes
//! at random.

use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;
use shinjuku_net::wire::{
    Added, RackSchedKind, RackSchedMessage, Reassembly, ReassemblyConfig, Rejected,
};

const HEADER: usize = RackSchedMessage::LENGTH;

fn small() -> ReassemblyConfig {
    ReassemblyConfig::default()
        .requests(3)
        .packets(4)
        .max_request(100)
        .timeout(Duration::from_nanos(1000))
}

fn reassembly(config: ReassemblyConfig) -> Reassembly<u8> {
    Reassembly::new(config).unwrap()
}

/// The packets of a request with these payloads.
fn packets(client: u16, request: u32, payloads: &[&[u8]]) -> Vec<Vec<u8>> {
    let total = payloads.iter().map(|payload| HEADER + payload.len()).sum();
    (0..payloads.len())
        .map(|at| packet(client, request, at as u16, total, payloads[at]))
        .collect()
}

fn packet(client: u16, request: u32, sequence: u16, total: usize, payload: &[u8]) -> Vec<u8> {
    let message = RackSchedMessage {
        kind: if sequence == 0 {
            RackSchedKind::Request
        } else {
            RackSchedKind::Follow
        },
        sequence,
        total_length: total as u32,
        ..RackSchedMessage::request(client, request, 5, 6)
    };
    [&message.to_bytes()[..], payload].concat()
}

/// What a packet came to: a request put together, if it did.
fn add(
    reassembly: &mut Reassembly<u8>,
    now: u64,
    peer: u8,
    packet: &[u8],
) -> Result<Option<Vec<u8>>, Rejected> {
    Ok(match reassembly.add(now, peer, packet)? {
        Added::Whole => Some(packet.to_vec()),
        Added::Held => None,
        Added::Complete(assembled) => {
            let mut buffer = vec![0xee; assembled.length() + 3];
            assembled.copy_to(&mut buffer);
            assert_eq!(buffer.split_off(assembled.length()), [0xee; 3]);
            Some(buffer)
        }
    })
}

/// The request that these packets make.
fn expected(packets: &[Vec<u8>]) -> Vec<u8> {
    let mut request = packets[0].clone();
    packets[1..]
        .iter()
        .for_each(|packet| request.extend_from_slice(&packet[HEADER..]));
    request
}

#[test]
fn one_packet_is_a_request_by_itself() {
    let mut reassembly = reassembly(small());
    let original = RackSchedMessage::request(1, 2, 3, 4).to_bytes();
    assert_eq!(reassembly.add(0, 0, &original), Ok(Added::Whole));
    let long = packet(1, 2, 0, HEADER + 1000, &[7; 1000]);
    assert_eq!(
        reassembly.add(0, 0, &long),
        Ok(Added::Whole),
        "it is not copied"
    );
    assert_eq!(reassembly.counters().read().whole, 2);
}

#[test]
fn packets_may_come_in_any_order_and_between_others() {
    let (one, other) = (
        packets(1, 1, &[b"", b"abc", b"de"]),
        packets(1, 2, &[b"0", b"", b"12", b"3"]),
    );
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        let mut reassembly = reassembly(small());
        for at in [3, 2, 1] {
            assert_eq!(add(&mut reassembly, 0, 0, &other[at]), Ok(None));
        }
        let [first, second, third] = order;
        assert_eq!(add(&mut reassembly, 0, 0, &one[first]), Ok(None));
        // The same numbers of another peer are another request.
        assert_eq!(add(&mut reassembly, 0, 1, &one[first]), Ok(None));
        assert_eq!(add(&mut reassembly, 0, 0, &one[second]), Ok(None));
        assert_eq!(
            add(&mut reassembly, 0, 0, &one[third]),
            Ok(Some(expected(&one))),
            "{order:?}"
        );
        assert_eq!(
            add(&mut reassembly, 0, 0, &other[0]),
            Ok(Some(expected(&other)))
        );
        let counts = reassembly.counters().read();
        assert_eq!((counts.assembled, counts.joined, counts.held), (2, 5, 1));
        assert_eq!(counts.dropped(), 0);
    }
}

#[test]
fn the_originals_packets_without_payloads_are_put_together() {
    let mut reassembly = reassembly(ReassemblyConfig::default());
    let packets = packets(9, 1 << 25, &[b"".as_slice(); 8]);
    assert_eq!(packets[0][21..25], 328_u32.to_le_bytes());
    for packet in &packets[..7] {
        assert_eq!(add(&mut reassembly, 0, 0, packet), Ok(None));
    }
    let request = add(&mut reassembly, 0, 0, &packets[7]).unwrap().unwrap();
    assert_eq!(request, packets[0]);
}

#[test]
fn a_packet_that_comes_twice_counts_once() {
    let mut reassembly = reassembly(small());
    let packets = packets(1, 1, &[b"a", b"b"]);
    for packet in [&packets[1], &packets[0]] {
        assert!(add(&mut reassembly, 0, 0, packet).is_ok());
        let again = add(&mut reassembly, 0, 0, packet);
        if std::ptr::eq(packet, &packets[1]) {
            assert_eq!(again, Err(Rejected::Duplicate));
        } else {
            // The request was complete: this begins another one, which will not be.
            assert_eq!(again, Ok(None));
        }
    }
    let counts = reassembly.counters().read();
    assert_eq!((counts.assembled, counts.duplicate, counts.held), (1, 1, 1));
}

#[test]
fn what_does_not_come_in_time_is_dropped() {
    let mut reassembly = reassembly(small());
    let late = packets(1, 1, &[b"a", b"b", b"c"]);
    assert_eq!(add(&mut reassembly, 100, 0, &late[0]), Ok(None));
    assert_eq!(add(&mut reassembly, 1100, 0, &late[1]), Ok(None), "in time");
    assert_eq!(
        add(&mut reassembly, 1101, 0, &late[2]),
        Ok(None),
        "too late"
    );
    let counts = reassembly.counters().read();
    assert_eq!((counts.expired, counts.held, counts.assembled), (2, 1, 0));
    reassembly.expire(2102);
    let counts = reassembly.counters().read();
    assert_eq!((counts.expired, counts.held), (3, 0));
}

#[test]
fn the_oldest_request_makes_room_for_a_new_one() {
    let mut reassembly = reassembly(small());
    let requests: Vec<_> = (0..4)
        .map(|request| packets(1, request, &[b"a", b"b"]))
        .collect();
    for request in &requests {
        assert_eq!(add(&mut reassembly, 0, 0, &request[0]), Ok(None));
    }
    let counts = reassembly.counters().read();
    assert_eq!((counts.evicted, counts.held), (1, 3));
    // Those that came later are untouched. The first one's rest begins it anew, for which another
    // makes room.
    for request in &requests[1..] {
        assert_eq!(
            add(&mut reassembly, 0, 0, &request[1]),
            Ok(Some(expected(request)))
        );
    }
    assert_eq!(add(&mut reassembly, 0, 0, &requests[0][1]), Ok(None));
}

#[test]
fn what_cannot_be_is_dropped_under_its_cause_and_harms_no_other_packet() {
    let good = packets(1, 1, &[b"a", b"b"]);
    let reply = RackSchedMessage::request(1, 1, 0, 0).reply(0).to_bytes();
    let mut not_first = packet(1, 1, 1, 2 * HEADER, b"");
    not_first[0] = RackSchedKind::Request as u8;
    let mut first_follows = packet(1, 1, 0, 2 * HEADER, b"");
    first_follows[0] = RackSchedKind::Follow as u8;
    let total = 2 * HEADER + 2;
    for (lie, cause) in [
        (vec![], Rejected::NotARequest),
        (good[1][..HEADER - 1].to_vec(), Rejected::NotARequest),
        (vec![3; HEADER], Rejected::NotARequest),
        (reply.to_vec(), Rejected::NotARequest),
        (not_first, Rejected::Sequence),
        (first_follows, Rejected::Sequence),
        (packet(1, 1, 4, total, b""), Rejected::Sequence),
        (packet(1, 1, u16::MAX, total, b""), Rejected::Sequence),
        // Shorter than the packet, or too short for another one.
        (packet(1, 1, 0, 0, b""), Rejected::Length),
        (packet(1, 1, 0, HEADER, b"x"), Rejected::Length),
        (packet(1, 1, 0, 2 * HEADER, b"x"), Rejected::Length),
        (packet(1, 1, 1, HEADER, b""), Rejected::Length),
        // Others of the request say another length.
        (packet(1, 1, 1, total + 1, b"b"), Rejected::Length),
        // Together with what is there, more than they say; as much, but with a gap.
        (packet(1, 1, 1, total, b"bc"), Rejected::Length),
        (packet(1, 1, 3, total, b"b"), Rejected::Length),
        (
            packet(1, 2, 0, 100 + 3 * HEADER + 1, b""),
            Rejected::TooLong,
        ),
        (packet(1, 2, 0, u32::MAX as usize, b""), Rejected::TooLong),
        (packet(1, 2, 1, 200, &[0; 101]), Rejected::TooLong),
    ] {
        let mut reassembly = reassembly(small());
        assert_eq!(add(&mut reassembly, 0, 0, &good[0]), Ok(None));
        assert_eq!(add(&mut reassembly, 0, 0, &lie), Err(cause), "{lie:?}");
        let counts = reassembly.counters().read();
        assert_eq!((counts.dropped(), counts.held), (1, 1));
        let by_cause = match cause {
            Rejected::NotARequest => counts.not_a_request,
            Rejected::Sequence => counts.sequence,
            Rejected::Length => counts.length,
            _ => counts.too_long,
        };
        assert_eq!(by_cause, 1, "{cause}");
        assert_eq!(
            add(&mut reassembly, 0, 0, &good[1]),
            Ok(Some(expected(&good)))
        );
    }
}

#[test]
fn a_request_longer_than_allowed_is_noticed_whatever_it_says() {
    let mut reassembly = reassembly(small());
    // With four packets it could be short enough, but two of them have it all.
    let total = 2 * HEADER + 80;
    assert_eq!(
        add(&mut reassembly, 0, 0, &packet(1, 1, 0, total, &[1; 40])),
        Ok(None)
    );
    assert_eq!(
        add(&mut reassembly, 0, 0, &packet(1, 1, 1, total, &[2; 40])),
        Err(Rejected::TooLong)
    );
}

#[test]
fn bounds_out_of_range_are_named() {
    let error = Reassembly::<u8>::new(small().packets(1)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "reassembly's packets is 1, but must be between 2 and 1024"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Several requests at once, their packets shuffled and some doubled: each comes out once, as
    /// it was sent.
    #[test]
    fn whatever_the_order_every_request_comes_out_as_it_was_sent(
        requests in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..10), 2..5), 1..4),
        order in any::<u64>(),
        doubled in any::<u64>(),
    ) {
        let sent: Vec<_> = requests
            .iter()
            .enumerate()
            .map(|(at, payloads)| {
                let payloads: Vec<_> = payloads.iter().map(Vec::as_slice).collect();
                packets(at as u16, 7, &payloads)
            })
            .collect();
        let mut wire: Vec<_> = sent
            .iter()
            .enumerate()
            .flat_map(|(at, packets)| packets.iter().map(move |packet| (at, packet)))
            .collect();
        let mut random = order | 1;
        for at in (1..wire.len()).rev() {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            wire.swap(at, random as usize % (at + 1));
        }
        let mut reassembly = reassembly(small());
        let mut complete = HashMap::new();
        for (number, (at, packet)) in wire.into_iter().enumerate() {
            if let Some(request) = add(&mut reassembly, 0, 0, packet).unwrap() {
                prop_assert_eq!(&request, &expected(&sent[at]));
                prop_assert!(complete.insert(at, request).is_none());
            } else if doubled >> (number % 64) & 1 == 1 {
                prop_assert_eq!(add(&mut reassembly, 0, 0, packet), Err(Rejected::Duplicate));
            }
        }
        prop_assert_eq!(complete.len(), sent.len());
        prop_assert_eq!(reassembly.counters().read().held, 0);
    }

    /// Packets with any numbers, near to what makes sense: no panic, no request longer than
    /// allowed, all counted.
    #[test]
    fn every_packet_is_accounted_for(
        wire in prop::collection::vec(
            (0..4_u8, 0..6_u16, 0..3_u32, 0..300_u32, 0..60_usize, 0..600_u64, any::<bool>()),
            0..80,
        ),
    ) {
        let mut reassembly = reassembly(small());
        let (mut now, mut requests) = (0, 0);
        for (kind, sequence, request, total, payload, pause, honest) in &wire {
            let total = if *honest { (HEADER + payload) as u32 * 2 } else { *total };
            let message = RackSchedMessage {
                sequence: *sequence,
                total_length: total,
                ..RackSchedMessage::request(0, *request, 0, 0)
            };
            let mut packet = message.to_bytes().to_vec();
            packet[0] = *kind;
            packet.resize(HEADER + payload, 1);
            now += pause;
            if let Ok(Some(bytes)) = add(&mut reassembly, now, 0, &packet) {
                prop_assert!(bytes.len() <= packet.len().max(100));
                requests += 1;
            }
        }
        let counts = reassembly.counters().read();
        prop_assert_eq!(counts.whole + counts.assembled, requests);
        prop_assert_eq!(requests + counts.absorbed(), wire.len() as u64, "{:?}", counts);
    }
}
