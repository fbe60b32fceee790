//! What is not as it should be: nothing of it changes, and all of it is counted.

use std::time::Instant;

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use shinjuku_net::wire::RackSchedMessage;
use shinjuku_rack::datapath::{Action, Program};
use shinjuku_rack::tables::Cause;

use crate::frames::{
    CLIENT_PORT, datagram, ip_offset, reply, request, shinjuku_reply, shinjuku_request, udp_offset,
};
use crate::{CLIENT, RACK, RACKSCHED_PORT, SHINJUKU_PORT, Switch};

const SERVERS: [u8; 2] = [2, 5];

#[test]
fn packets_cut_at_each_byte_are_the_kernels() {
    let test = "packets_cut_at_each_byte_are_the_kernels";
    let Some(mut switch) = Switch::new(test, "power-of-2", "int1", &SERVERS) else {
        return;
    };
    let to = (RACK, RACKSCHED_PORT);
    let message = RackSchedMessage::request(3, 1, 1000, 5).to_bytes();
    let tagged = datagram((CLIENT, CLIENT_PORT), to, &[1; 8], 2, &message);
    for whole in [request(1), reply(2, 1, 9), shinjuku_request(), tagged] {
        let header_end = udp_offset(&whole);
        // The kernel runs no program on less than an Ethernet header.
        for length in 14..whole.len() {
            let expected = match length {
                _ if length < ip_offset(&whole) + 20 => Cause::NotOurs,
                _ => Cause::BadLength,
            };
            switch.passes(&whole[..length], expected);
        }
        assert!(header_end + 8 < whole.len());
    }
}

#[test]
fn wrong_lengths_are_the_kernels() {
    let test = "wrong_lengths_are_the_kernels";
    let Some(mut switch) = Switch::new(test, "power-of-2", "int1", &SERVERS) else {
        return;
    };
    for whole in [request(1), reply(2, 1, 9)] {
        let (ip, udp) = (ip_offset(&whole), udp_offset(&whole));
        let payload = (whole.len() - udp - 8) as u16;
        let mut with = |at: usize, value: u16, cause| {
            let mut frame = whole.clone();
            frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
            switch.passes(&frame, cause);
        };
        // The IPv4 packet is shorter than its headers, than its datagram, or longer than the frame.
        for length in [0, 19, 27, 28 + payload - 1, 28 + payload + 1, u16::MAX] {
            with(ip + 2, length, Cause::BadLength);
        }
        for length in [0, 7, 8 + payload + 1, u16::MAX] {
            with(udp + 4, length, Cause::BadLength);
        }
        for length in [8, 8 + payload - 1] {
            with(udp + 4, length, Cause::NotTheFormat);
        }
        for words in 0..5 {
            let mut frame = whole.clone();
            frame[ip] = 0x40 | words;
            switch.passes(&frame, Cause::BadLength);
        }
        let mut frame = whole.clone();
        frame[ip] = 0x65;
        switch.passes(&frame, Cause::NotOurs);
    }
    // A datagram that ends before its packet does, and a frame with padding, are nothing wrong.
    let mut padded = request(2);
    padded.resize(100, 0);
    assert_eq!(switch.run(&padded).0, Action::Redirect);
}

#[test]
fn fragments_are_the_kernels() {
    let test = "fragments_are_the_kernels";
    let Some(mut switch) = Switch::new(test, "power-of-2", "int1", &SERVERS) else {
        return;
    };
    for whole in [request(1), reply(2, 1, 9), shinjuku_reply(2)] {
        let at = ip_offset(&whole) + 6;
        for flags in [[0x20, 0], [0x20, 1], [0, 1], [0x1f, 0xff]] {
            let mut frame = whole.clone();
            frame[at..at + 2].copy_from_slice(&flags);
            switch.passes(&frame, Cause::Fragment);
        }
    }
    // "Do not fragment" is no fragment.
    let mut frame = request(3);
    let at = ip_offset(&frame) + 6;
    frame[at] = 0x40;
    assert_eq!(switch.run(&frame).0, Action::Redirect);
}

#[test]
fn other_formats_are_the_kernels() {
    let test = "other_formats_are_the_kernels";
    let Some(mut switch) = Switch::new(test, "power-of-2", "int1", &SERVERS) else {
        return;
    };
    let request = request(1);
    let kind = udp_offset(&request) + 8;
    let mut reply = reply(2, 1, 9);
    for number in 0..=255 {
        let mut frame = request.clone();
        frame[kind] = number;
        if !matches!(number, 1 | 2) {
            switch.passes(&frame, Cause::NotTheFormat);
        }
        reply[kind] = number;
        if number != 0 {
            switch.passes(&reply, Cause::NotTheFormat);
        }
    }
    for length in (0..64).filter(|length| *length != 16) {
        let to = (RACK, SHINJUKU_PORT);
        let frame = datagram((CLIENT, CLIENT_PORT), to, &[], 0, &vec![0; length]);
        switch.passes(&frame, Cause::NotTheFormat);
    }
}

#[test]
fn what_is_for_others_is_the_kernels() {
    let test = "what_is_for_others_is_the_kernels";
    let Some(mut switch) = Switch::new(test, "power-of-2", "int1", &SERVERS) else {
        return;
    };
    let whole = request(1);
    let (ip, udp) = (ip_offset(&whole), udp_offset(&whole));
    let mut with = |at: usize, value: u8| {
        let mut frame = whole.clone();
        frame[at] = value;
        switch.passes(&frame, Cause::NotOurs);
    };
    // Another address, another port, TCP, and ARP.
    with(ip + 19, 77);
    with(udp + 3, 0);
    with(ip + 9, 6);
    with(13, 6);
    // A third tag is more than it reads.
    let mut frame = whole.clone();
    for _ in 0..3 {
        frame.splice(12..12, [0x81, 0, 0, 5]);
    }
    switch.passes(&frame, Cause::NotOurs);
}

#[test]
fn random_packets_are_all_counted() {
    random_packets("random_packets_are_all_counted", 60_000);
}

/// The same, many times: a step of `cargo xtask test`, `--only rack-packets`.
#[test]
#[ignore = "takes a minute or two"]
fn ten_million_random_packets_are_all_counted() {
    random_packets("ten_million_random_packets_are_all_counted", 10_000_000);
}

/// Any bytes where a packet has been cut, changed and lengthened: the program ends, counts each
/// frame, drops none, and changes none that it passes.
fn random_packets(test: &str, frames: u32) {
    let Some(switch) = Switch::new(test, "power-of-2", "int1", &SERVERS) else {
        return;
    };
    let mut random = Xoshiro256PlusPlus::seed_from_u64(42);
    let mut redirected = 0;
    let start = Instant::now();
    for number in 0..frames {
        if number > 0 && number % 1_000_000 == 0 {
            println!("{test}: {number} of {frames} after {:.0?}", start.elapsed());
        }
        let mut frame = match number % 4 {
            0 => request(number),
            1 => reply(2, number, 9),
            2 => shinjuku_request(),
            _ => shinjuku_reply(5),
        };
        for _ in 0..random.random_range(0..3) {
            let at = random.random_range(12..frame.len());
            frame[at] = random.random();
        }
        if random.random_range(0..4) == 0 {
            let length = random.random_range(14..120);
            frame.resize(length, random.random());
        }
        let verdict = switch.datapath.run(Program::Rack, &frame, 1).unwrap();
        match verdict.action {
            Action::Redirect => {
                redirected += 1;
                assert_eq!(verdict.frame.len(), frame.len());
                assert_eq!(
                    verdict.frame[udp_offset(&frame) + 8..],
                    frame[udp_offset(&frame) + 8..]
                );
            }
            action => {
                assert_eq!(action, Action::Pass, "{frame:02x?}");
                assert_eq!(verdict.frame, frame);
            }
        }
    }
    let counted = switch.datapath.causes().unwrap();
    let of = |cause: Cause| counted[cause as usize];
    let ends = &Cause::ALL[..=Cause::NoPort as usize];
    let all: u64 = ends.iter().map(|cause| of(*cause)).sum();
    assert_eq!(all, u64::from(frames));
    assert_eq!(of(Cause::Request) + of(Cause::Reply), redirected);
    assert!(redirected > 0 && of(Cause::BadLength) > 0 && of(Cause::NotTheFormat) > 0);
    let counted = Cause::ALL
        .iter()
        .map(|cause| format!("{} {}", of(*cause), cause.name()));
    println!("{test}: {}", counted.collect::<Vec<_>>().join(", "));
}
