//! `INFO`: about the server, and the runtime's statistics by class.

use std::fmt::{Display, Write};

use shinjuku::without_preemption;

use crate::call::{Call, Outcome};
use crate::server::{Kv, REDIS_VERSION};

type WriteSection = fn(&Kv, &mut Section);

/// The sections, in the order in which they are shown.
const SECTIONS: [(&str, WriteSection); 7] = [
    ("Server", server),
    ("Clients", clients),
    ("Memory", memory),
    ("Stats", stats),
    ("Classes", classes),
    ("Preemption", preemption),
    ("Keyspace", keyspace),
];

/// `INFO [section ...]`
pub fn info(kv: &Kv, call: &mut Call<'_>) -> Outcome {
    let mut wanted = Vec::new();
    let mut all = call.left() == 0;
    while let Some(name) = call.take() {
        let name = name.to_ascii_lowercase();
        all |= [&b"all"[..], b"default", b"everything"].contains(&&name[..]);
        wanted.push(name);
    }
    let mut text = Section(String::new());
    for (name, write) in SECTIONS {
        let is_wanted = |wanted: &Vec<u8>| wanted.eq_ignore_ascii_case(name.as_bytes());
        if all || wanted.iter().any(is_wanted) {
            text.begin(name);
            write(kv, &mut text);
        }
    }
    Ok(call.reply.text(text.0.as_bytes())?)
}

struct Section(String);

impl Section {
    fn begin(&mut self, name: &str) {
        let gap = if self.0.is_empty() { "" } else { "\r\n" };
        // Writing to a string does not fail.
        let _ = write!(self.0, "{gap}# {name}\r\n");
    }

    fn say(&mut self, what: &str, value: impl Display) {
        let _ = write!(self.0, "{what}:{value}\r\n");
    }
}

fn server(kv: &Kv, section: &mut Section) {
    section.say("redis_version", REDIS_VERSION);
    section.say("redis_mode", "standalone");
    section.say("server_name", "shinjuku-kv");
    section.say("shinjuku_version", env!("CARGO_PKG_VERSION"));
    section.say("process_id", std::process::id());
    section.say("tcp_port", kv.settings.port);
    section.say("uptime_in_seconds", kv.settings.started.elapsed().as_secs());
    section.say("engine", kv.store.engine());
}

fn clients(kv: &Kv, section: &mut Section) {
    section.say(
        "connected_clients",
        without_preemption(|| kv.settings.counters.read()).open,
    );
    section.say("maxclients", kv.settings.connections);
}

fn memory(kv: &Kv, section: &mut Section) {
    // In pages: the second number of the line.
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    let resident = pages.unwrap_or(0) * rustix::param::page_size();
    section.say("used_memory", resident);
    section.say("used_memory_rss", resident);
    let replies = without_preemption(|| kv.settings.counters.read()).reply_memory;
    section.say("long_replies_memory", replies);
}

fn stats(kv: &Kv, section: &mut Section) {
    let counts = without_preemption(|| kv.settings.counters.read());
    section.say("total_connections_received", counts.accepted);
    section.say("rejected_connections", counts.rejected);
    section.say("total_commands_processed", counts.answered);
    section.say("total_net_input_bytes", counts.bytes_in);
    section.say("total_net_output_bytes", counts.bytes_out);
    section.say("expired_keys", kv.store.expired());
    section.say("connections_open", counts.open);
    section.say("connections_closed_by_peer", counts.closed_by_peer);
    section.say("connections_closed_by_server", counts.closed_by_server);
    section.say("connections_closed_broken", counts.closed_broken);
    section.say("connections_closed_idle", counts.closed_idle);
    section.say(
        "connections_closed_half_request",
        counts.closed_half_request,
    );
    section.say("connections_closed_slow_reader", counts.closed_slow_reader);
    section.say("connections_closed_too_long", counts.closed_too_long);
    section.say("connections_closed_failed", counts.closed_failed);
    section.say("requests_received", counts.received);
    section.say("requests_answered", counts.answered);
    section.say("requests_refused", counts.refused);
    section.say("requests_failed", counts.failed);
    section.say("requests_misdirected", counts.misdirected);
    section.say("requests_kept", counts.kept);
    section.say("requests_cut_off", counts.cut_off);
}

fn classes(kv: &Kv, section: &mut Section) {
    let Some(statistics) = kv.statistics() else {
        return;
    };
    for class in &statistics.classes {
        let micros = |quantile| class.latency(quantile).as_secs_f64() * 1e6;
        section.say(
            &format!("class_{}", class.name),
            format_args!(
                "finished={},failed={},preemptions={},p50_us={:.1},p99_us={:.1},p999_us={:.1},slowdown_p99={:.1}",
                class.finished,
                class.failed,
                class.preemptions,
                micros(0.5),
                micros(0.99),
                micros(0.999),
                class.slowdown(0.99),
            ),
        );
    }
}

fn preemption(kv: &Kv, section: &mut Section) {
    let Some(statistics) = kv.statistics() else {
        return;
    };
    let preemptions = statistics.preemptions;
    section.say("requests_waiting", statistics.waiting);
    section.say("requests_started", statistics.started);
    section.say("preemptions_requested", preemptions.requested);
    section.say("preemptions_by_probe", preemptions.by_probe);
    section.say(
        "preemptions_by_compiled_probe",
        preemptions.by_compiled_probe,
    );
    section.say("preemptions_by_interrupt", preemptions.by_interrupt);
    section.say("preemptions_at_guard", preemptions.at_guard);
    section.say("migrations", preemptions.migrations);
    section.say("workers_blocked", statistics.workers_blocked);
}

fn keyspace(kv: &Kv, section: &mut Section) {
    let (keys, expires) = (kv.store.len(), kv.store.volatile());
    if keys > 0 {
        let line = format_args!("keys={keys},expires={expires},avg_ttl=0");
        section.say("db0", line);
    }
}
