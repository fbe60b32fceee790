//! `shinjuku top`: what happened since the last look, as a screen.
//!
//! ```text
//!   first look ──▶ draw ──▶ a key? ── q, Esc, Ctrl-C, a signal ──▶ the terminal as it was
//!                   ▲         │ none, until the time is over
//!                   └── look ◀┘   (the screen says that a server is gone, and asks it again;
//!                                   keys end the program meanwhile, too)
//! ```
//!
//! A signal that ends the program does so once the terminal is restored.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Block, Cell, Gauge, Paragraph, Row, Table, Wrap};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::SignalOnly;
use signal_hook::low_level::emulate_default_handler;

use super::snapshot::{Class, Snapshot};

/// How long each wait for a key takes while the server is asked.
const GLANCE: Duration = Duration::from_millis(50);
/// A signal is looked after within this, or the terminal is gone.
const LOOKED_AFTER: Duration = Duration::from_millis(500);

/// Shows the server until a key ends the program, even while the server does not answer.
///
/// # Errors
/// If there is no server at first, or no terminal.
pub fn top(socket: &Path, every: Duration) -> Result<()> {
    ensure!(
        std::io::stdout().is_terminal() && std::io::stdin().is_terminal(),
        "top takes a terminal; `shinjuku statistics` does without"
    );
    let mut last = Snapshot::of(socket)?;
    let mut shown = Shown {
        since: last.clone(),
        gone: None,
    };
    let signals = Signals::take()?;
    let mut terminal = ratatui::try_init()?;
    let outcome = loop {
        let drawn = terminal.draw(|frame| draw(frame, &shown));
        let looked = drawn.map_err(Into::into).and_then(|_| {
            let is_left = is_left(every, &signals)?;
            if is_left {
                Ok(None)
            } else {
                look(socket, &signals)
            }
        });
        match looked {
            Ok(None) => break Ok(()),
            Ok(Some(Ok(now))) => {
                shown = Shown {
                    since: now.since(&last),
                    gone: None,
                };
                last = now;
            }
            Ok(Some(Err(error))) => shown.gone = Some(format!("{error:#}")),
            Err(error) => break Err(error),
        }
    };
    // It shows the cursor again.
    drop(terminal);
    let restored = ratatui::try_restore();
    signals.end_by_what_came()?;
    restored?;
    outcome
}

/// Signals that would end the program with the terminal as the screen needs it.
struct Signals(Arc<AtomicI32>);

impl Signals {
    /// Notes them from now on. Where nobody has looked after a while, the program ends all the
    /// same: who reads keys from a terminal that was hung up may never come back.
    fn take() -> Result<Self> {
        let came = Arc::new(AtomicI32::new(0));
        let noted = Arc::clone(&came);
        let mut signals = SignalsInfo::<SignalOnly>::new([SIGTERM, SIGHUP, SIGINT])?;
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                for signal in &mut signals {
                    noted.store(signal, Ordering::Relaxed);
                    std::thread::sleep(LOOKED_AFTER);
                    let _ = ratatui::try_restore();
                    let _ = emulate_default_handler(signal);
                }
            })?;
        Ok(Self(came))
    }

    fn have_come(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// If one came, ends the program as it would have.
    fn end_by_what_came(&self) -> Result<()> {
        match self.0.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => Ok(emulate_default_handler(signal)?),
        }
    }
}

/// Asks the server, and looks for keys meanwhile; `None`: one says that it is enough. What is asked
/// then is left to itself: its time is bounded.
fn look(socket: &Path, signals: &Signals) -> Result<Option<Result<Snapshot>>> {
    let (tell, told) = mpsc::channel();
    let socket = socket.to_owned();
    std::thread::spawn(move || drop(tell.send(Snapshot::of(&socket))));
    loop {
        match told.recv_timeout(Duration::from_millis(1)) {
            Ok(answer) => return Ok(Some(answer)),
            Err(RecvTimeoutError::Timeout) if is_left(GLANCE, signals)? => return Ok(None),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => bail!("asking the server has panicked"),
        }
    }
}

/// Waits for `time`, or until a key or a signal says that it is enough; tells whether one did.
fn is_left(time: Duration, signals: &Signals) -> Result<bool> {
    let begin = Instant::now();
    while let Some(left) = time.checked_sub(begin.elapsed()) {
        if signals.have_come() {
            return Ok(true);
        }
        if !event::poll(left.min(GLANCE))? {
            continue;
        }
        let Event::Key(key) = event::read()? else {
            continue;
        };
        let is_interrupt = key.modifiers.contains(KeyModifiers::CONTROL);
        let ends = match key.code {
            KeyCode::Char('q') | KeyCode::Esc => true,
            KeyCode::Char('c') => is_interrupt,
            _ => false,
        };
        if key.kind == KeyEventKind::Press && ends {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What the screen shows.
struct Shown {
    /// Since the last look; at first, since the server's start.
    since: Snapshot,
    /// Why the server does not answer.
    gone: Option<String>,
}

/// A table's frame and heads, without which its rows say nothing.
const AROUND_ROWS: u16 = 3;

/// How high the tables of threads and of requests are in so many lines: what they have to tell, or
/// what there is room for, of which the threads leave half if they have to.
fn heights(room: u16, threads: usize, requests: usize) -> [u16; 2] {
    let height = |rows| {
        u16::try_from(rows)
            .unwrap_or(u16::MAX)
            .saturating_add(AROUND_ROWS)
    };
    let fit = |height: u16, room| match room {
        0..=AROUND_ROWS => 0,
        _ => height.min(room),
    };
    let left = room.saturating_sub(height(requests)).max(room / 2);
    let threads = fit(height(threads), left);
    [threads, fit(height(requests), room - threads)]
}

fn draw(frame: &mut Frame<'_>, shown: &Shown) {
    let since = &shown.since;
    let classes = u16::try_from(since.classes.len()).unwrap_or(u16::MAX);
    let classes = classes.saturating_add(AROUND_ROWS);
    // What the others leave, and nothing where that is not even a row.
    let room = (frame.area().height).saturating_sub(classes.saturating_add(5 + 4 + 5));
    let [threads, requests] = heights(room, since.threads.len(), since.oldest.len());
    let [head, numbers, table, at_threads, oldest, rest] = Layout::vertical([
        Constraint::Length(5),
        Constraint::Length(4),
        Constraint::Length(classes),
        Constraint::Length(threads),
        Constraint::Length(requests),
        Constraint::Min(5),
    ])
    .areas(frame.area());
    frame.render_widget(title(shown), head);
    draw_numbers(frame, since, numbers);
    frame.render_widget(class_table(since), table);
    frame.render_widget(thread_table(since), at_threads);
    frame.render_widget(oldest_requests(since), oldest);
    frame.render_widget(preemptions(since), rest);
}

/// The numbers, and beside them how busy the dispatcher is, where a thread only dispatches.
fn draw_numbers(frame: &mut Frame<'_>, since: &Snapshot, area: Rect) {
    let Some(busy) = since.dispatcher_occupancy else {
        return frame.render_widget(numbers_now(since), area);
    };
    let [numbers, dispatcher] =
        Layout::horizontal([Constraint::Min(40), Constraint::Length(30)]).areas(area);
    frame.render_widget(numbers_now(since), numbers);
    let gauge = Gauge::default()
        .block(Block::bordered().title("dispatcher, since its start"))
        .gauge_style(Style::new().fg(Color::Cyan))
        .ratio(busy.clamp(0.0, 1.0));
    frame.render_widget(gauge, dispatcher);
}

fn title(shown: &Shown) -> Paragraph<'_> {
    let status = match &shown.gone {
        Some(why) => Line::from(why.as_str()).red(),
        None => Line::from(shown.since.description.as_str()),
    };
    let time = format!("in the last {:.1} s; q ends", shown.since.uptime_seconds);
    Paragraph::new(status)
        .wrap(Wrap { trim: true })
        .block(Block::bordered().title("shinjuku").title_bottom(time))
}

fn numbers_now(since: &Snapshot) -> Paragraph<'_> {
    let now = format!(
        "{} waiting   {} started   {} running   {:.0} requests/s",
        since.waiting,
        since.started,
        since.running,
        since.rate(since.received)
    );
    let causes = since.refused.iter().filter(|&(_, &count)| count > 0);
    let refused: Vec<_> = causes
        .map(|(cause, count)| format!("{count} {cause}"))
        .collect();
    let refused = match refused[..] {
        [] => Line::from("none refused"),
        _ => Line::from(format!("refused: {}", refused.join(", "))).yellow(),
    };
    Paragraph::new(vec![Line::from(now), refused]).block(Block::bordered().title("requests"))
}

fn class_table(since: &Snapshot) -> Table<'_> {
    let columns = [
        ("class", Constraint::Min(8)),
        ("waiting", Constraint::Length(7)),
        ("per s", Constraint::Length(6)),
        ("p50", Constraint::Length(8)),
        ("p99", Constraint::Length(8)),
        ("p99.9", Constraint::Length(8)),
        ("p99 queued", Constraint::Length(10)),
        ("p99 slowed", Constraint::Length(10)),
        ("cores", Constraint::Length(5)),
        ("preempt/s", Constraint::Length(9)),
        ("failed", Constraint::Length(6)),
    ];
    let rows = since.classes.iter().map(|class| class_row(since, class));
    table("classes", columns, rows)
}

/// A table of columns with these heads and widths.
fn table<'a, const COLUMNS: usize>(
    title: &'a str,
    columns: [(&'a str, Constraint); COLUMNS],
    rows: impl Iterator<Item = Row<'a>>,
) -> Table<'a> {
    Table::new(rows, columns.map(|(_, width)| width))
        .header(Row::new(columns.map(|(head, _)| head)).bold())
        .block(Block::bordered().title(title))
}

fn class_row<'a>(since: &Snapshot, class: &'a Class) -> Row<'a> {
    let latency = |quantile| {
        class
            .latency_nanos
            .quantile(quantile)
            .map_or_else(dash, time)
    };
    let queued = class.queue_nanos.quantile(0.99).map_or_else(dash, time);
    let slowdown = class.slowdown_thousandths.quantile(0.99);
    let cores = class.service_nanos as f64 / 1e9 / since.uptime_seconds.max(1e-9);
    Row::new([
        Cell::from(class.name.as_str()),
        Cell::from((class.never_ran + class.preempted).to_string()),
        Cell::from(format!("{:.0}", since.rate(class.finished))),
        Cell::from(latency(0.5)),
        Cell::from(latency(0.99)),
        Cell::from(latency(0.999)),
        Cell::from(queued),
        Cell::from(slowdown.map_or_else(dash, |slowdown| format!("{:.1}", slowdown as f64 / 1e3))),
        Cell::from(format!("{cores:.2}")),
        Cell::from(format!("{:.0}", since.rate(class.preemptions))),
        Cell::from(class.failed.to_string()),
    ])
}

/// What runs where, and what waits there.
fn thread_table(since: &Snapshot) -> Table<'_> {
    let rows = since.threads.iter().map(|thread| {
        let (class, runs_for) = match &thread.class {
            Some(class) => (class.as_str(), time(thread.runs_for_nanos)),
            None => ("-", dash()),
        };
        let waiting = thread
            .waiting
            .map_or_else(dash, |number| number.to_string());
        Row::new([
            Cell::from(thread.name.as_str()),
            Cell::from(class),
            Cell::from(runs_for),
            Cell::from(waiting),
        ])
    });
    let columns = [
        ("thread", Constraint::Min(12)),
        ("runs", Constraint::Length(30)),
        ("in one go for", Constraint::Length(14)),
        ("waiting there", Constraint::Length(14)),
    ];
    table("threads now", columns, rows)
}

/// What has not ended, however short a while ago it came.
fn oldest_requests(since: &Snapshot) -> Table<'_> {
    let rows = since.oldest.iter().map(|request| {
        let (place, runs_for) = match &request.thread {
            Some(thread) => (thread.as_str(), time(request.runs_for_nanos)),
            None if request.never_ran => ("waits, never ran", dash()),
            None => ("waits, preempted", dash()),
        };
        Row::new([
            Cell::from(request.class.as_str()),
            Cell::from(time(request.age_nanos)),
            Cell::from(place),
            Cell::from(runs_for),
        ])
    });
    let columns = [
        ("class", Constraint::Min(12)),
        ("age", Constraint::Length(10)),
        ("runs at", Constraint::Length(18)),
        ("in one go for", Constraint::Length(14)),
    ];
    table("oldest requests now", columns, rows)
}

fn preemptions(since: &Snapshot) -> Paragraph<'_> {
    let rate = |count| format!("{:.0}", since.rate(count));
    let mut lines = vec![Line::from(format!(
        "{}/s: {} at probes, {} at compiled probes, {} by interrupt, {} at guards; {} migrated, {} helped",
        rate(since.preempted()),
        rate(since.preempted_by_probe),
        rate(since.preempted_by_compiled_probe),
        rate(since.preempted_by_interrupt),
        rate(since.preempted_at_guard),
        rate(since.migrations),
        rate(since.helped)
    ))];
    if let Some(quanta) = &since.quantum_in_force {
        lines.push(Line::from(format!("in force: {quanta}")));
    }
    for (count, what) in [
        (since.workers_blocked, "times a worker was found blocked"),
        (since.rescued, "requests went to a spare"),
        (
            since.spares_exhausted,
            "times no spare was left: raise `spare_workers`",
        ),
        (
            since.stalls_computing,
            "times a request computed for too long without giving way: the log says where",
        ),
        (
            since.stalls_blocked,
            "times a request blocked its worker for too long: the log says where",
        ),
        (since.lost, "requests were lost in the transport's code"),
        (
            u64::from(since.policy_set_aside),
            "policy set aside: first come, first served",
        ),
    ] {
        if count > 0 {
            lines.push(Line::from(format!("{count} {what}")).yellow());
        }
    }
    Paragraph::new(lines).block(Block::bordered().title("preemptions"))
}

fn dash() -> String {
    "-".to_owned()
}

/// Nanoseconds with three digits and a unit.
fn time(nanos: u64) -> String {
    let nanos = nanos as f64;
    match nanos {
        ..1e3 => format!("{nanos:.0} ns"),
        ..1e6 => format!("{:.1} us", nanos / 1e3),
        ..1e9 => format!("{:.1} ms", nanos / 1e6),
        _ => format!("{:.2} s", nanos / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::snapshot::tests::told;

    fn text_of(shown: &Shown, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, shown)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn the_screen_has_what_happened_since_the_last_look() {
        let since = told(12, 300).since(&told(10, 100));
        let shown = Shown { since, gone: None };
        let text = text_of(&shown, 110, 32);
        for part in [
            "threads, probe",
            "4 waiting",
            "100 requests/s",
            "refused: 2 QueueFull",
            "get",
            "1.0 us",
            "2.0 ms",
            "700 ns",
            "1.5",
            "1/s: 1 at probes",
            "25%",
            "loop-1",
            "7.0 ms",
            "19",
            "waits, never ran",
            "waits, preempted",
            "no quantum below 5.0 us",
            "2 times a request computed for too long",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }

    #[test]
    fn there_is_no_dispatcher_where_every_thread_serves() {
        let mut since = told(1, 10);
        let text = |since: &Snapshot| {
            let since = since.clone();
            text_of(&Shown { since, gone: None }, 110, 32)
        };
        assert!(text(&since).contains("dispatcher"));
        since.dispatcher_occupancy = None;
        assert!(!text(&since).contains("dispatcher"));
    }

    #[test]
    fn threads_leave_room_for_requests() {
        assert_eq!(heights(40, 4, 8), [7, 11]);
        assert_eq!(heights(20, 64, 8), [10, 10]);
        assert_eq!(heights(20, 64, 2), [15, 5]);
        assert_eq!(heights(6, 2, 8), [0, 6]);
        assert_eq!([heights(3, 2, 8), heights(0, 0, 0)], [[0, 0]; 2]);
    }

    #[test]
    fn a_server_that_is_gone_is_said() {
        let shown = Shown {
            since: told(1, 0),
            gone: Some("no server can be reached".to_owned()),
        };
        let text = text_of(&shown, 110, 20);
        assert!(text.contains("no server can be reached"), "{text}");
        assert!(text.contains(" - "), "{text}");
    }

    #[test]
    fn any_size_of_a_terminal_will_do() {
        let shown = Shown {
            since: told(1, 10),
            gone: None,
        };
        for (width, height) in [(1, 1), (10, 3), (40, 10), (300, 100)] {
            text_of(&shown, width, height);
        }
    }

    #[test]
    fn times_have_units() {
        assert_eq!(
            [0, 999, 1_000, 1_500_000, 2_000_000_000].map(time),
            ["0 ns", "999 ns", "1.0 us", "1.5 ms", "2.00 s"]
        );
    }
}
