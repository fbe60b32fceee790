//! The views and their checksums, beside plainer ways to the same numbers and beside `etherparse`.

use etherparse::checksum::u32_16bit_word;
use proptest::prelude::*;
use shinjuku_dataplane::packet::checksum::{Sum, updated};
use shinjuku_dataplane::packet::{Ipv4, MacAddr, MacAddrError, ParseError, ipv4, udp};
use zerocopy::IntoBytes;

/// RFC 1071's definition, word by word.
fn plain_sum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)));
    words.fold(0, |sum, word| {
        let sum = sum + word;
        (sum & 0xffff) + (sum >> 16)
    }) as u16
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_sum_is_the_definitions(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let sum = Sum::new().bytes(&bytes);
        prop_assert_eq!(sum.folded(), plain_sum(&bytes));
        let oracle = u32_16bit_word::add_slice(0, &bytes);
        prop_assert_eq!(sum.checksum(), u32_16bit_word::ones_complement(oracle).to_be());
    }

    #[test]
    fn the_sum_does_not_mind_in_how_many_parts(bytes in prop::collection::vec(any::<u8>(), 0..300), cut in any::<prop::sample::Index>()) {
        let even = cut.index(bytes.len() + 1) & !1;
        let (front, back) = bytes.split_at(even);
        let whole = Sum::new().bytes(&bytes).folded();
        prop_assert_eq!(Sum::new().bytes(front).bytes(back).folded(), whole);
        let words = front.chunks(2).fold(Sum::new(), |sum, word| sum.word(u16::from_be_bytes([word[0], word[1]])));
        prop_assert_eq!(words.bytes(back).folded(), whole);
    }

    #[test]
    fn an_updated_checksum_is_the_one_computed_anew(mut bytes in prop::collection::vec(any::<u8>(), 4..60), new in any::<u16>()) {
        let old = u16::from_be_bytes([bytes[2], bytes[3]]);
        let checksum = Sum::new().bytes(&bytes).checksum();
        bytes[2..4].copy_from_slice(&new.to_be_bytes());
        let anew = Sum::new().bytes(&bytes);
        let update = updated(checksum, old, new);
        prop_assert!(anew.word(update).is_right());
        // Zero has two forms.
        prop_assert!(update == anew.checksum() || (update ^ anew.checksum() == 0xffff && update.wrapping_add(1) < 2));
    }

    #[test]
    fn addresses_are_parsed_as_they_are_written(bytes in any::<[u8; 6]>()) {
        let mac = MacAddr(bytes);
        prop_assert_eq!(mac.to_string().parse(), Ok(mac));
        prop_assert_eq!(mac.to_string().to_uppercase().parse(), Ok(mac));
    }

    #[test]
    fn other_texts_are_no_addresses(text in "[0-9a-fA-F:+ ]{0,20}") {
        if let Ok(mac) = text.parse::<MacAddr>() {
            prop_assert_eq!(mac.to_string(), text.to_lowercase());
        }
    }
}

#[test]
fn texts_that_are_nearly_addresses() {
    for text in [
        "",
        "02:00:00:00:00",
        "02:00:00:00:00:01:",
        "02:00:00:00:00:001",
        "+2:00:00:00:00:01",
        "02-00-00-00-00-01",
    ] {
        assert_eq!(text.parse::<MacAddr>(), Err(MacAddrError), "{text}");
    }
    assert!(!MacAddr::BROADCAST.is_station() && !MacAddr::ZERO.is_station());
    assert!(MacAddr([2, 0, 0, 0, 0, 1]).is_station());
}

#[test]
fn a_header_with_its_checksum_is_right_and_any_bit_makes_it_wrong() {
    let [us, them] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(Into::into);
    let header = ipv4::Header::new(ipv4::UDP, us, them, 20).with_checksum();
    let bytes = header.as_bytes();
    assert_eq!(Ipv4::parse(bytes).unwrap().verify(), Ok(()));
    for bit in 0..160 {
        let mut wrong = bytes.to_vec();
        wrong[bit / 8] ^= 1 << (bit % 8);
        let read = Ipv4::parse(&wrong).and_then(|packet| packet.verify());
        assert!(read.is_err(), "bit {bit}");
    }
    let short = &bytes[..19];
    assert_eq!(Ipv4::parse(short).unwrap_err(), ParseError::Truncated);
}

#[test]
fn a_udp_checksum_of_zero_is_sent_as_all_ones() {
    let [us, them] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(Into::into);
    let header = ipv4::Header::new(ipv4::UDP, us, them, 30);
    let mut found = false;
    for word in 0..=u16::MAX {
        let mut datagram = [0; 10];
        datagram[8..].copy_from_slice(&word.to_be_bytes());
        udp::write(&mut datagram, &header, 1, 2, false).unwrap();
        assert_ne!(datagram[6..8], [0, 0], "that would mean none");
        found |= datagram[6..8] == [0xff, 0xff];
    }
    assert!(found);
}

#[test]
fn what_is_too_short_to_be_written_to_is_left_alone() {
    let [us, them] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(Into::into);
    let header = ipv4::Header::new(ipv4::UDP, us, them, 20);
    assert!(udp::write(&mut [0; 7], &header, 1, 2, false).is_none());
    assert!(udp::write(&mut vec![0; 65_536], &header, 1, 2, false).is_none());
    assert!(ipv4::turn_round(&mut [0x45; 19], 20, 0, true).is_none());
    assert!(ipv4::turn_round(&mut [0x46; 23], 24, 0, true).is_none());
    assert!(ipv4::turn_round(&mut [0x45; 40], 24, 0, true).is_none());
    assert!(ipv4::turn_round(&mut [0x45; 40], 20, 65_516, true).is_none());
    assert!(ipv4::turn_round(&mut [0x40; 40], 0, 0, true).is_none());
}
