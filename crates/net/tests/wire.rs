//! Shinjuku's request format: known bytes, every request, and arbitrary bytes.
#![forbid(unsafe_code)]

use proptest::prelude::*;
use shinjuku_net::wire::{ShinjukuRequest, WrongLength};

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
}
