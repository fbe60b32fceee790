//! Every state of the tables.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use shinjuku_net::wire::{RackSchedKind, RackSchedMessage};
use shinjuku_rack::datapath::{Action, Program};
use shinjuku_rack::tables::{
    Activity, Cause, Loads, Members, ServerEntry, TICK_NANOS, TYPES, WAYS,
};

use crate::frames::{
    CLIENT_PORT, datagram, following, racksched, racksched_from, readdressed, reply, request,
    shinjuku_reply, shinjuku_request, to_client, udp_offset,
};
use crate::{
    AGE_TICKS, CLIENT, NOW, OTHER_PORT, RACK, RACKSCHED_PORT, Switch, address, entry, station,
};

const SERVERS: [u8; 4] = [2, 5, 9, 40];

/// The first server of the list, drawn for sure.
const FIRST: u32 = 0;
/// The last.
const LAST: u32 = u32::MAX;

#[test]
fn a_request_and_its_reply_go_there_and_back() {
    let test = "a_request_and_its_reply_go_there_and_back";
    let Some(mut switch) = Switch::new(test, "power-of-1", "int1", &SERVERS) else {
        return;
    };
    switch.inject(NOW, &[LAST]);
    assert_eq!(switch.serves(&request(1)), 40);
    assert_eq!(switch.datapath.client(CLIENT).unwrap(), Some(to_client()));
    assert_eq!((switch.outstanding(40), switch.entries()), (1, 1));
    let sent = Activity {
        sent: 1,
        waiting_since: NOW,
        ..Activity::default()
    };
    assert_eq!(switch.datapath.activity(40).unwrap()[0], sent);

    switch.answers(&reply(40, 1, 17));
    assert_eq!((switch.outstanding(40), switch.entries()), (0, 0));
    assert_eq!(switch.datapath.loads(0).unwrap().load[40], 17);
    let [activity, ..] = switch.datapath.activity(40).unwrap();
    assert_eq!((activity.replies, activity.unanswered()), (1, 0));
    // Once more, as a network may do.
    switch.answers(&reply(40, 1, 17));
    assert_eq!(switch.outstanding(40), 0);
}

/// Another processor may have seen an older request unanswered, and so told no time of its own.
#[test]
fn a_silence_begins_with_the_last_reply_or_the_request_after_it() {
    let test = "a_silence_begins_with_the_last_reply_or_the_request_after_it";
    let Some(mut switch) = Switch::new(test, "power-of-1", "counters", &[2]) else {
        return;
    };
    let known = |switch: &Switch| {
        let of_type = switch.datapath.activity(2).unwrap()[1];
        (of_type.unanswered(), of_type.waiting_since - NOW)
    };
    let requests = [(1, true), (2, true), (3, false), (4, false), (6, true)];
    let expected = [(1, 1), (2, 1), (0, 3), (0, 4), (1, 6)];
    for ((after, is_request), expected) in requests.into_iter().zip(expected) {
        switch.inject(NOW + after, &[]);
        match is_request {
            true => assert_eq!(switch.serves(&shinjuku_request()), 2),
            false => switch.answers(&shinjuku_reply(2)),
        }
        assert_eq!(known(&switch), expected, "after {after} ns");
    }
    switch.inject(NOW + 7, &[]);
    switch.datapath.excuse(2).unwrap();
    assert_eq!(known(&switch), (0, 7));
}

#[test]
fn shinjukus_format_counts_what_is_outstanding() {
    let test = "shinjukus_format_counts_what_is_outstanding";
    let Some(mut switch) = Switch::new(test, "shortest", "counters", &SERVERS) else {
        return;
    };
    switch.inject(NOW, &[LAST; 32]);
    let served: Vec<_> = (0..4).map(|_| switch.serves(&shinjuku_request())).collect();
    let mut sorted = served.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, SERVERS);
    switch.answers(&shinjuku_reply(9));
    assert_eq!(
        SERVERS.map(|server| switch.outstanding(server)),
        [1, 1, 0, 1]
    );
    assert_eq!(switch.serves(&shinjuku_request()), 9);
    // More replies than requests do not make a server look busy.
    for _ in 0..9 {
        switch.answers(&shinjuku_reply(5));
    }
    assert_eq!(switch.serves(&shinjuku_request()), 5);
}

#[test]
fn all_packets_of_a_request_go_to_one_server_in_any_order() {
    let test = "all_packets_of_a_request_go_to_one_server_in_any_order";
    let Some(mut switch) = Switch::new(test, "power-of-1", "int1", &SERVERS) else {
        return;
    };
    switch.inject(NOW, &[FIRST, LAST, FIRST, LAST]);
    assert_eq!(switch.serves(&request(1)), 2);
    for _ in 0..3 {
        assert_eq!(
            switch.serves_counting(&following(1)),
            (2, vec![Cause::Affine])
        );
    }
    // Doubled: the same, and it does not count as another request.
    assert_eq!(
        switch.serves_counting(&request(1)),
        (2, vec![Cause::Affine])
    );
    assert_eq!(switch.outstanding(2), 1);
    // The later packet first: a hash chooses.
    for number in 2..50 {
        let (server, causes) = switch.serves_counting(&following(number));
        assert_eq!(causes, []);
        assert_eq!(
            switch.serves_counting(&request(number)),
            (server, vec![Cause::Affine])
        );
    }
    assert_eq!(switch.entries(), 49);
}

#[test]
fn clients_requests_and_types_are_told_apart() {
    let test = "clients_requests_and_types_are_told_apart";
    let Some(mut switch) = Switch::new(test, "round-robin", "int1", &SERVERS) else {
        return;
    };
    let message = RackSchedMessage::request(3, 1, 1000, 5);
    let other_client = RackSchedMessage::request(4, 1, 1000, 5);
    let from = (CLIENT, CLIENT_PORT);
    let frames = [
        racksched(message),
        datagram(from, (RACK, OTHER_PORT), &[], 0, &message.to_bytes()),
        racksched(other_client),
        racksched(RackSchedMessage::request(3, 2, 1000, 5)),
        racksched_from((CLIENT, CLIENT_PORT + 1), message),
        racksched_from((Ipv4Addr::new(10, 9, 0, 8), CLIENT_PORT), message),
    ];
    for frame in &frames {
        assert_eq!(switch.serves_counting(frame).1, []);
    }
    assert_eq!(switch.entries(), frames.len());
    for frame in &frames {
        assert_eq!(switch.serves_counting(frame).1, [Cause::Affine]);
    }
}

/// All entries of the bucket are taken: a hash chooses, the same for all packets.
#[test]
fn a_full_table_is_counted_and_a_hash_chooses() {
    let test = "a_full_table_is_counted_and_a_hash_chooses";
    let Some(mut switch) = Switch::new(test, "random", "int1", &SERVERS) else {
        return;
    };
    let tick = (NOW / TICK_NANOS) & 0xff_ffff;
    let taken: [u64; WAYS] = std::array::from_fn(|way| (way as u64 + 1) << 32 | tick << 8 | 5);
    for number in 0..1024 {
        switch.datapath.set_bucket(number, &taken).unwrap();
    }
    let mut chosen = Vec::new();
    for number in 1..60_u32 {
        switch.inject(NOW, &[number.wrapping_mul(0x9E37_79B9)]);
        let (server, causes) = switch.serves_counting(&request(number));
        assert_eq!(causes, [Cause::TableFull]);
        assert_eq!(
            switch.serves_counting(&following(number)),
            (server, vec![Cause::TableFull])
        );
        chosen.push(server);
    }
    assert!(SERVERS.iter().all(|server| chosen.contains(server)));
    assert_eq!(SERVERS.map(|server| switch.outstanding(server)), [0; 4]);
    switch.answers(&reply(2, 1, 0));
    // An entry becomes free before a later packet comes: still the same server.
    for number in 0..1024 {
        switch.datapath.set_bucket(number, &[0; WAYS]).unwrap();
    }
    for (number, server) in (1..).zip(&chosen) {
        assert_eq!(
            switch.serves_counting(&following(number)),
            (*server, vec![])
        );
    }
}

#[test]
fn entries_age_and_lost_replies_leak_nothing() {
    let test = "entries_age_and_lost_replies_leak_nothing";
    let Some(mut switch) = Switch::new(test, "power-of-1", "counters", &SERVERS) else {
        return;
    };
    assert_eq!(switch.serves(&request(1)), 2);
    switch.inject(NOW + (AGE_TICKS - 1) * TICK_NANOS, &[LAST]);
    assert_eq!(
        switch.serves_counting(&request(1)),
        (2, vec![Cause::Affine])
    );
    switch.inject(NOW + AGE_TICKS * TICK_NANOS, &[LAST]);
    assert_eq!(switch.serves_counting(&request(1)), (40, vec![Cause::Aged]));
    assert_eq!((switch.outstanding(2), switch.outstanding(40)), (0, 1));
    // The clock of the table starts again at zero every five hours.
    let wrap = (1 << 24) * TICK_NANOS;
    switch.inject(wrap - TICK_NANOS, &[FIRST]);
    assert_eq!(switch.serves(&request(7)), 2);
    switch.inject(wrap + TICK_NANOS, &[LAST]);
    assert_eq!(
        switch.serves_counting(&request(7)),
        (2, vec![Cause::Affine])
    );
    switch.inject(wrap + AGE_TICKS * TICK_NANOS, &[LAST]);
    assert_eq!(switch.serves_counting(&request(7)), (40, vec![Cause::Aged]));
}

/// Another processor's clock was later, or it noted the entry after this one had asked for the
/// time.
#[test]
fn an_entry_of_the_next_tick_is_not_old() {
    let test = "an_entry_of_the_next_tick_is_not_old";
    let Some(mut switch) = Switch::new(test, "power-of-1", "counters", &SERVERS) else {
        return;
    };
    let wrap = (1 << 24) * TICK_NANOS;
    for (number, now) in [(1, NOW), (2, wrap - TICK_NANOS)] {
        switch.inject(now + TICK_NANOS, &[FIRST]);
        assert_eq!(switch.serves(&request(number)), 2);
        switch.inject(now, &[LAST]);
        switch.datapath.sweep(1024).unwrap();
        assert_eq!(
            switch.serves_counting(&request(number)),
            (2, vec![Cause::Affine])
        );
        switch.answers(&reply(2, number, 0));
    }
}

#[test]
fn a_server_that_drains_keeps_its_requests_and_gets_no_others() {
    let test = "a_server_that_drains_keeps_its_requests_and_gets_no_others";
    let Some(mut switch) = Switch::new(test, "power-of-1", "int1", &SERVERS) else {
        return;
    };
    switch.inject(NOW, &[FIRST; 9]);
    assert_eq!(switch.serves(&request(1)), 2);
    switch.open(&SERVERS[1..]);
    assert_eq!(switch.serves(&following(1)), 2);
    assert_eq!(switch.serves(&request(2)), 5);
    switch.answers(&reply(2, 1, 0));
}

#[test]
fn the_last_server_of_a_type_keeps_its_requests_when_it_drains() {
    let test = "the_last_server_of_a_type_keeps_its_requests_when_it_drains";
    let Some(mut switch) = Switch::new(test, "power-of-1", "int1", &[2]) else {
        return;
    };
    assert_eq!(switch.serves(&request(1)), 2);
    switch.open(&[]);
    for frame in [following(1), request(1)] {
        assert_eq!(switch.serves_counting(&frame), (2, vec![Cause::Affine]));
    }
    for frame in [request(2), following(3), shinjuku_request()] {
        switch.passes(&frame, Cause::NoServer);
    }
    switch.answers(&reply(2, 1, 0));
    switch.passes(&following(1), Cause::NoServer);
    assert_eq!((switch.outstanding(2), switch.entries()), (0, 0));

    // One that has been removed keeps none.
    switch.open(&[2]);
    assert_eq!(switch.serves(&request(4)), 2);
    switch.open(&[]);
    let none = ServerEntry::default();
    switch.datapath.set_server(2, &none).unwrap();
    switch.passes(&following(4), Cause::NoServer);
    assert_eq!((switch.outstanding(2), switch.entries()), (0, 0));
}

#[test]
fn a_removed_servers_requests_go_to_another() {
    let test = "a_removed_servers_requests_go_to_another";
    let Some(mut switch) = Switch::new(test, "power-of-1", "counters", &SERVERS) else {
        return;
    };
    switch.inject(NOW, &[FIRST; 9]);
    assert_eq!(switch.serves(&request(1)), 2);
    switch.open(&SERVERS[1..]);
    let none = ServerEntry::default();
    switch.datapath.set_server(2, &none).unwrap();
    assert_eq!(switch.serves(&request(1)), 5);
    assert_eq!(
        switch.serves_counting(&following(1)),
        (5, vec![Cause::Affine])
    );
    assert_eq!((switch.outstanding(2), switch.outstanding(5)), (0, 1));
    // A late reply of the server's is none of the rack's.
    switch.passes(&reply(2, 1, 0), Cause::NotOurs);
    // Its number can be another's.
    let other = ServerEntry {
        address: [10, 1, 77, 2],
        ..entry(2)
    };
    switch.datapath.set_server(2, &other).unwrap();
    switch.passes(&reply(2, 1, 0), Cause::NotOurs);
}

#[test]
fn without_a_server_requests_are_the_kernels() {
    let test = "without_a_server_requests_are_the_kernels";
    let Some(mut switch) = Switch::new(test, "shortest", "int1", &[]) else {
        return;
    };
    switch.passes(&request(1), Cause::NoServer);
    switch.passes(&shinjuku_request(), Cause::NoServer);
    assert_eq!(switch.entries(), 0);
}

/// A switch that was started anew: its tables are empty, its servers have requests.
#[test]
fn a_restarted_switch_learns_from_the_next_request() {
    let test = "a_restarted_switch_learns_from_the_next_request";
    let Some(mut switch) = Switch::new(test, "power-of-1", "int1", &SERVERS) else {
        return;
    };
    switch.passes(&reply(2, 1, 3), Cause::UnknownClient);
    assert_eq!(switch.datapath.loads(0).unwrap().load[2], 3);
    switch.inject(NOW, &[LAST]);
    let server = switch.serves(&following(1));
    assert_eq!(switch.serves(&following(1)), server);
    switch.answers(&reply(2, 1, 3));
}

/// ECMP before two switches may move a flow from one to the other in mid-request.
#[test]
fn two_switches_side_by_side_share_nothing_but_the_hash() {
    let test = "two_switches_side_by_side_share_nothing_but_the_hash";
    let start = || Switch::new(test, "power-of-1", "counters", &SERVERS);
    let (Some(mut one), Some(mut other)) = (start(), start()) else {
        return;
    };
    one.inject(NOW, &[LAST; 9]);
    assert_eq!(one.serves(&request(1)), 40);
    // The reply comes back by the other one: it does not know the client, until a request of the
    // client's comes by there. The first one counts the request until its entry has aged.
    other.passes(&reply(40, 1, 0), Cause::UnknownClient);
    other.serves(&request(2));
    other.answers(&reply(40, 1, 0));
    assert_eq!((one.outstanding(40), other.outstanding(40)), (1, 0));
    // Later packets find no entry there, and may part from the first one. But those that only the
    // hash has sent stay together.
    for number in 10..40 {
        let server = one.serves(&following(number));
        assert_eq!(other.serves(&following(number)), server);
        assert_eq!(one.serves(&request(number)), server);
        assert_eq!(other.serves(&request(number)), server);
    }
}

#[test]
fn a_client_that_moves_gets_its_replies_where_it_is() {
    let test = "a_client_that_moves_gets_its_replies_where_it_is";
    let Some(mut switch) = Switch::new(test, "power-of-1", "int1", &SERVERS) else {
        return;
    };
    switch.serves(&request(1));
    let mut elsewhere = request(2);
    elsewhere[6..12].copy_from_slice(&[2, 0, 0, 0, 9, 77]);
    switch.serves(&elsewhere);
    let (action, frame, _) = switch.run(&reply(2, 1, 0));
    assert_eq!(action, Action::Redirect);
    assert_eq!(frame[..6], [2, 0, 0, 0, 9, 77]);
}

/// The table of clients has room for 65,536.
#[test]
fn a_full_table_of_clients_forgets_the_oldest_and_drops_nothing() {
    const CLIENTS: u32 = 80_000;
    let test = "a_full_table_of_clients_forgets_the_oldest_and_drops_nothing";
    let Some(switch) = Switch::new(test, "power-of-1", "counters", &[2]) else {
        return;
    };
    let client = |number: u32| (Ipv4Addr::from(0x0b00_0000 + number), CLIENT_PORT);
    let message = |number| RackSchedMessage::request(3, number, 1000, 5);
    let action = |frame: &[u8]| switch.datapath.run(Program::Rack, frame, 1).unwrap().action;
    let asks = |number| action(&racksched_from(client(number), message(number)));
    let is_answered = |number| {
        let from = (address(2), RACKSCHED_PORT);
        let reply = message(number).reply(0).to_bytes();
        action(&datagram(from, client(number), &[], 0, &reply)) == Action::Redirect
    };
    assert!((0..CLIENTS).all(|number| asks(number) == Action::Redirect));
    let answered = (0..CLIENTS).filter(|number| is_answered(*number)).count();
    assert!((30_000..=65_536).contains(&answered), "{answered}");
    assert!((CLIENTS - 1000..CLIENTS).all(is_answered));
    let counted = switch.datapath.causes().unwrap();
    let unknown = u64::from(CLIENTS) - answered as u64;
    assert_eq!(counted[Cause::UnknownClient as usize], unknown);
    assert_eq!(counted[Cause::NoPort as usize], 0);
    // Its next request makes a client known again.
    assert!(!is_answered(0));
    assert_eq!(asks(0), Action::Redirect);
    assert!(is_answered(0));
}

#[test]
fn a_server_behind_no_interface_of_the_racks_is_counted() {
    let test = "a_server_behind_no_interface_of_the_racks_is_counted";
    let Some(mut switch) = Switch::new(test, "power-of-1", "int1", &SERVERS) else {
        return;
    };
    let mut nowhere = entry(2);
    nowhere.station.interface = 4_000_000;
    switch.datapath.set_server(2, &nowhere).unwrap();
    let (action, _, causes) = switch.run(&request(1));
    assert_eq!((action, &*causes), (Action::Drop, &[Cause::NoPort][..]));
}

#[test]
fn int2_keeps_the_least_loaded_server_alone() {
    let test = "int2_keeps_the_least_loaded_server_alone";
    let Some(mut switch) = Switch::new(test, "shortest", "int2", &SERVERS) else {
        return;
    };
    switch.serves(&request(1));
    let least = |switch: &Switch| {
        let least = switch.datapath.loads(0).unwrap().least;
        ((least >> 32) as u8 - 1, least as u32)
    };
    for (server, load, expected) in [
        (5, 7, (5, 7)),
        (9, 8, (5, 7)),
        (9, 6, (9, 6)),
        (9, 20, (9, 20)),
        // As many: the last one.
        (2, 20, (2, 20)),
        (5, 21, (2, 20)),
        (40, 19, (40, 19)),
    ] {
        switch.answers(&reply(server, 1, load));
        assert_eq!(least(&switch), expected);
    }
    // One in four goes anywhere, or no other would ever become known.
    let draws = [FIRST, LAST / 2, LAST / 4, FIRST, LAST / 4 + 1, LAST];
    switch.inject(NOW, &draws);
    let served = [2, 3, 4, 5].map(|number| switch.serves(&request(number)));
    assert_eq!(served, [5, 2, 40, 40]);
    switch.datapath.forget(9).unwrap();
    assert_eq!(least(&switch), (40, 19));
    switch.datapath.forget(40).unwrap();
    assert_eq!(switch.datapath.loads(0).unwrap().least, 0);
}

/// A closed server's load would hide all others', as it is never corrected.
#[test]
fn int2_knows_none_that_is_closed() {
    let test = "int2_knows_none_that_is_closed";
    let Some(mut switch) = Switch::new(test, "shortest", "int2", &SERVERS) else {
        return;
    };
    switch.serves(&request(1));
    switch.answers(&reply(9, 1, 0));
    let least = |switch: &Switch| (switch.datapath.loads(0).unwrap().least >> 32) as u8 - 1;
    assert_eq!(least(&switch), 9);
    switch.open(&[2, 5, 40]);
    switch.answers(&reply(5, 1, 7));
    assert_eq!(least(&switch), 5);
    switch.inject(NOW, &[LAST]);
    assert_eq!(switch.serves(&request(2)), 5);
    // It answers what it has.
    switch.answers(&reply(9, 1, 0));
    assert_eq!(least(&switch), 5);
}

#[test]
fn further_packets_of_a_reply_go_back_and_report_nothing() {
    let test = "further_packets_of_a_reply_go_back_and_report_nothing";
    let Some(mut switch) = Switch::new(test, "power-of-1", "int1", &SERVERS) else {
        return;
    };
    switch.serves(&request(1));
    let message = RackSchedMessage {
        kind: RackSchedKind::Reply,
        sequence: 1,
        queue_lengths: [99, 0, 0],
        ..RackSchedMessage::request(3, 1, 1000, 5)
    };
    let from = (address(2), RACKSCHED_PORT);
    let frame = datagram(from, (CLIENT, CLIENT_PORT), &[], 0, &message.to_bytes());
    switch.answers(&frame);
    assert_eq!(switch.datapath.loads(0).unwrap().load[2], 0);
    assert_eq!(switch.datapath.activity(2).unwrap()[0].replies, 0);
}

#[test]
fn tags_options_and_payloads_stay_as_they_are() {
    let test = "tags_options_and_payloads_stay_as_they_are";
    let Some(mut switch) = Switch::new(test, "power-of-1", "int1", &SERVERS) else {
        return;
    };
    let header = RackSchedMessage::request(3, 1, 1000, 5).to_bytes();
    for tags in 0..3 {
        for options in [0, 4, 20, 40] {
            for payload in [0, 1, 2, 700] {
                let bytes = [&header[..], &vec![7; payload]].concat();
                let to = (RACK, RACKSCHED_PORT);
                let mut frame =
                    datagram((CLIENT, CLIENT_PORT), to, &vec![1; options], tags, &bytes);
                switch.serves(&frame);
                let udp = udp_offset(&frame);
                frame[udp + 6..udp + 8].fill(0);
                switch.serves(&frame);
            }
        }
    }
}

/// A UDP checksum of zero would say that there is none: the other form of zero stands for it.
#[test]
fn a_checksum_that_comes_out_as_zero_is_sent_as_all_ones() {
    let test = "a_checksum_that_comes_out_as_zero_is_sent_as_all_ones";
    let Some(mut switch) = Switch::new(test, "power-of-1", "int1", &[2]) else {
        return;
    };
    let of = |generated| racksched(RackSchedMessage::request(3, 1, 1000, generated));
    let sum = |frame: &[u8]| {
        let (sent, at) = (
            readdressed(frame, &station(2), None, Some(address(2))),
            udp_offset(frame) + 6,
        );
        u16::from_be_bytes([sent[at], sent[at + 1]])
    };
    // That field's bytes lie so that its value adds to the sum as it is.
    let frame = of(u64::from(sum(&of(0))));
    assert_eq!(sum(&frame), 0xffff);
    assert_eq!(switch.serves(&frame), 2);
}

/// The control forgot a failed server's load; then the entries of its old requests age.
#[test]
fn counters_do_not_fall_below_zero() {
    let test = "counters_do_not_fall_below_zero";
    let Some(mut switch) = Switch::new(test, "power-of-1", "counters", &[2]) else {
        return;
    };
    for number in 0..5 {
        switch.serves(&request(number));
    }
    assert_eq!(switch.outstanding(2), 5);
    switch.datapath.forget(2).unwrap();
    let [activity, ..] = switch.datapath.activity(2).unwrap();
    assert_eq!((activity.sent, activity.unanswered()), (5, 0));
    for number in 0..5 {
        switch.answers(&reply(2, number, 0));
    }
    assert_eq!(switch.outstanding(2), 0);
    switch.serves(&request(9));
    assert_eq!(switch.outstanding(2), 1);
}

/// One dead port of two: what the other one answers says nothing of it.
#[test]
fn activity_is_by_server_and_type() {
    let test = "activity_is_by_server_and_type";
    let Some(mut switch) = Switch::new(test, "power-of-1", "counters", &[2]) else {
        return;
    };
    for number in 0..3 {
        switch.serves(&request(number));
        switch.serves(&shinjuku_request());
        switch.answers(&reply(2, number, 0));
    }
    let unanswered = |switch: &Switch| {
        let activity = switch.datapath.activity(2).unwrap();
        [0, 1, 2].map(|of_type: usize| activity[of_type].unanswered())
    };
    assert_eq!(unanswered(&switch), [0, 3, 0]);
    // It is tried again for that type: the other one's load stays, and what is outstanding.
    switch.answers(&reply(2, 2, 7));
    for (of_type, load) in [(0, 70), (1, 71)] {
        let mut loads = switch.datapath.loads(of_type).unwrap();
        loads.load[2] = load;
        switch.datapath.set_loads(of_type, &loads).unwrap();
    }
    switch.datapath.forget_type(2, 1).unwrap();
    assert_eq!((unanswered(&switch), switch.outstanding(2)), ([0; 3], 3));
    let loads = [0, 1].map(|of_type| switch.datapath.loads(of_type).unwrap().load[2]);
    assert_eq!(loads, [70, 0]);
    // One that was drained is opened again: its silence counts no longer, its load does.
    switch.serves(&shinjuku_request());
    switch.datapath.excuse(2).unwrap();
    assert_eq!((unanswered(&switch), switch.outstanding(2)), ([0; 3], 4));
    assert_eq!(switch.datapath.loads(0).unwrap().load[2], 70);
    // Some have been lost; more than are out are none.
    switch.datapath.write_off(2, 3).unwrap();
    assert_eq!(switch.outstanding(2), 1);
    switch.datapath.write_off(2, 3).unwrap();
    assert_eq!(switch.outstanding(2), 0);
    switch.serves(&shinjuku_request());
    assert_eq!(switch.outstanding(2), 1);
}

/// No packet visits the buckets any more.
#[test]
fn a_sweep_frees_old_entries_and_no_others() {
    let test = "a_sweep_frees_old_entries_and_no_others";
    let Some(mut switch) = Switch::new(test, "power-of-1", "counters", &SERVERS) else {
        return;
    };
    for number in 0..40 {
        switch.serves(&request(number));
    }
    switch.inject(NOW + (AGE_TICKS - 1) * TICK_NANOS, &[LAST; 9]);
    for number in 100..105 {
        switch.serves(&request(number));
    }
    // The table has 1024 buckets; a sweep goes on where the one before ended.
    switch.datapath.sweep(1024).unwrap();
    assert_eq!((switch.outstanding(2), switch.entries()), (40, 45));
    switch.inject(NOW + AGE_TICKS * TICK_NANOS, &[]);
    switch.datapath.sweep(700).unwrap();
    assert!((6..45).contains(&switch.entries()), "{}", switch.entries());
    switch.datapath.sweep(324).unwrap();
    assert_eq!((switch.outstanding(2), switch.outstanding(40)), (0, 5));
    assert_eq!(switch.entries(), 5);
    let causes = switch.datapath.causes().unwrap();
    assert_eq!(causes[Cause::Aged as usize], 40);
}

/// The control sweeps every 20 ms. It once took as long, for the kernel waited for all cores.
#[test]
fn a_sweep_takes_no_time_of_the_kernels_own() {
    let test = "a_sweep_takes_no_time_of_the_kernels_own";
    let Some(mut switch) = Switch::new(test, "power-of-1", "counters", &SERVERS) else {
        return;
    };
    let mut times: Vec<_> = (0..21)
        .map(|_| {
            let begun = Instant::now();
            switch.datapath.sweep(4096).unwrap();
            begun.elapsed()
        })
        .collect();
    times.sort();
    assert!(times[10] < Duration::from_millis(6), "{times:?}");
}

/// Locality: a type is served by some servers only.
#[test]
fn each_type_has_servers_of_its_own() {
    let test = "each_type_has_servers_of_its_own";
    let Some(mut switch) = Switch::new(test, "random", "int1", &SERVERS) else {
        return;
    };
    let mut members = [shinjuku_rack::tables::Members::default(); TYPES];
    members[0] = shinjuku_rack::tables::Members::new(&[(2, 1), (5, 1)]);
    members[1] = shinjuku_rack::tables::Members::new(&[(9, 1)]);
    switch.datapath.set_members(&members).unwrap();
    for number in 0..64 {
        switch.inject(NOW, &[number << 26, number << 26]);
        assert!([2, 5].contains(&switch.serves(&request(number))));
        assert_eq!(switch.serves(&shinjuku_request()), 9);
    }
}

/// A server with three times the workers takes three times as much: of draws, and of load.
#[test]
fn servers_count_by_their_workers() {
    let test = "servers_count_by_their_workers";
    let Some(mut switch) = Switch::new(test, "round-robin", "int1", &[2, 5]) else {
        return;
    };
    let members = [shinjuku_rack::tables::Members::new(&[(2, 1), (5, 3)]); TYPES];
    switch.datapath.set_members(&members).unwrap();
    let served: Vec<_> = (0..40)
        .map(|number| switch.serves(&request(number)))
        .collect();
    assert_eq!(served.iter().filter(|server| **server == 5).count(), 30);

    let Some(mut switch) = Switch::new(test, "shortest", "int1", &[2, 5]) else {
        return;
    };
    switch.datapath.set_members(&members).unwrap();
    for (of_two, of_five, chosen) in [(2, 5, 5), (2, 7, 2), (0, 1, 2), (1, 2, 5)] {
        let mut load = [0; 64];
        (load[2], load[5]) = (of_two, of_five);
        let loads = Loads {
            load,
            least: 0,
            turn: 0,
        };
        switch.datapath.set_loads(0, &loads).unwrap();
        assert_eq!(switch.serves(&request(1000 + of_five)), chosen);
    }
}

/// By INT2, too, a load is of the workers that it is shared by.
#[test]
fn int2_compares_by_workers() {
    let test = "int2_compares_by_workers";
    let Some(mut switch) = Switch::new(test, "shortest", "int2", &[2, 5]) else {
        return;
    };
    let members = [Members::new(&[(2, 1), (5, 3)]); TYPES];
    switch.datapath.set_members(&members).unwrap();
    switch.serves(&request(1));
    for (server, load, least) in [(2, 9, 2), (5, 28, 2), (5, 27, 5), (2, 10, 5), (2, 9, 2)] {
        switch.answers(&reply(server, 1, load));
        let known = switch.datapath.loads(0).unwrap().least >> 32;
        assert_eq!(known as u8 - 1, least, "{server}: {load}");
    }
}

/// INT3 in nanoseconds: up to 4.29 s of outstanding work, which is more than a signed number holds.
#[test]
fn outstanding_work_compares_without_a_sign_and_by_workers() {
    let test = "outstanding_work_compares_without_a_sign_and_by_workers";
    let Some(mut switch) = Switch::new(test, "shortest", "int3", &SERVERS) else {
        return;
    };
    switch.serves(&request(1)); // now the client is known
    for (server, nanos) in [
        (2, u32::MAX),
        (5, 3_000_000_001),
        (9, 3_000_000_000),
        (40, u32::MAX),
    ] {
        switch.answers(&reply(server, 1, nanos));
        assert_eq!(
            switch.datapath.loads(0).unwrap().load[usize::from(server)],
            nanos
        );
    }
    switch.inject(NOW, &[LAST; 32]);
    assert_eq!(switch.serves(&request(100)), 9);
    // Of eight workers, the largest load there is counts as 0.54 s.
    let servers = SERVERS.map(|server| (server, if server == 40 { 8 } else { 1 }));
    let members = [Members::new(&servers); TYPES];
    switch.datapath.set_members(&members).unwrap();
    assert_eq!(switch.serves(&request(101)), 40);
}
