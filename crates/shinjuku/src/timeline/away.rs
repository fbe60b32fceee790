//! When a thread was away from its core within a slice. The recording thread finds that out; no
//! worker writes any of it.
//!
//! ```text
//!   a slice          ▕ get ─────────────────────────────────▏ finished
//!   looked at, 1 ms      runs   runs   blocked  blocked   runs
//!   becomes          ▕ get ───────────▏ blocked      ▕ get ──▏ finished
//! ```
//!
//! A blocked request runs no code that could record that. So the recording thread asks the kernel
//! about each thread that runs a request, every millisecond. It mostly misses shorter blocks. The
//! kernel tells in units of 10 ms how much time the hypervisor took from the machine.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::time::Duration;

use shinjuku_preempt::{ContextId, Cycles};

use super::{Event, Stop};

/// For each slice, by its thread's lane and its start: from when to when the thread was blocked.
#[derive(Debug, Default)]
pub(super) struct Blocks(HashMap<(usize, u64), Vec<Block>>);

/// A thread was found blocked at `from` and, at the last look before it was not, at `until`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Block {
    from: Cycles,
    until: Cycles,
    is_over: bool,
}

impl Blocks {
    /// Looks at all threads, at the moment `now`: at what each runs, and whether it is blocked.
    pub(super) fn look(
        &mut self,
        now: Cycles,
        running: impl Fn() -> Vec<Option<(ContextId, Cycles)>>,
        is_blocked: impl Fn(usize) -> bool,
    ) {
        let before = running();
        let runs = before.iter().enumerate();
        let runs = runs.filter_map(|(lane, slice)| Some((lane, (*slice)?.1)));
        let found: Vec<_> = runs
            .map(|(lane, start)| (lane, start, is_blocked(lane)))
            .collect();
        let after = running();
        for (lane, start, is_blocked) in found {
            // If the thread runs another slice by then, the look may have been at that.
            if before[lane] == after[lane] {
                self.note(lane, start, now, is_blocked);
            }
        }
    }

    fn note(&mut self, lane: usize, start: Cycles, now: Cycles, is_blocked: bool) {
        let blocks = match self.0.get_mut(&(lane, start.0)) {
            None if !is_blocked => return,
            None => self.0.entry((lane, start.0)).or_default(),
            Some(blocks) => blocks,
        };
        match blocks.last_mut() {
            Some(last) if !last.is_over && is_blocked => last.until = now,
            Some(last) if !is_blocked => last.is_over = true,
            _ => blocks.push(Block {
                from: now,
                until: now,
                is_over: false,
            }),
        }
    }

    /// A thread's slice without the times for which it was blocked.
    pub(super) fn cut(&self, lane: usize, slice: Event) -> Vec<Event> {
        let Some(blocks) = self.0.get(&(lane, slice.start.0)) else {
            return vec![slice];
        };
        let within = |moment: Cycles| moment.max(slice.start).min(slice.end);
        let mut parts = Vec::with_capacity(blocks.len() + 1);
        let mut rest = slice;
        for block in blocks {
            parts.push(Event {
                end: within(block.from),
                stop: Stop::Blocked,
                ..rest
            });
            rest = Event {
                start: within(block.until),
                taken_from: None,
                ..rest
            };
        }
        let is_blocked_still = blocks.last().is_some_and(|last| !last.is_over);
        if slice.stop != Stop::Running || !is_blocked_still {
            parts.push(rest);
        }
        parts
    }
}

/// The time that the hypervisor has taken from all of this machine's cores together, since the
/// machine's start; 0 where the kernel does not tell. The call takes some tens of microseconds.
pub(super) fn taken_by_hypervisor() -> Duration {
    let mut text = [0; 256];
    let read = File::open("/proc/stat").and_then(|mut file| file.read(&mut text));
    let text = String::from_utf8_lossy(&text[..read.unwrap_or(0)]);
    steal(&text).unwrap_or_default()
}

/// The eighth number of the first line of `/proc/stat`, in hundredths of a second.
fn steal(stat: &str) -> Option<Duration> {
    let all_cores = stat.lines().next()?.strip_prefix("cpu ")?;
    let hundredths: u64 = all_cores.split_whitespace().nth(7)?.parse().ok()?;
    Some(Duration::from_millis(10 * hundredths))
}

#[cfg(test)]
mod tests {
    use shinjuku_policy::{ClassId, Nanos};

    use super::*;

    const LANE: usize = 1;

    fn slice(stop: Stop) -> Event {
        Event {
            start: Cycles(100),
            end: Cycles(900),
            context: ContextId(7),
            stop,
            class: ClassId(0),
            arrival: Nanos(50),
            taken_from: Some(0),
        }
    }

    /// Looks at 200, 300, and so on at a thread that runs the slice, with these results.
    fn looks(found: &[bool]) -> Blocks {
        let mut blocks = Blocks::default();
        for (look, is_blocked) in found.iter().enumerate() {
            let running = || vec![None, Some((ContextId(7), Cycles(100)))];
            let now = Cycles(200 + 100 * look as u64);
            blocks.look(now, running, |lane| *is_blocked && lane == LANE);
        }
        blocks
    }

    fn parts(found: &[bool], stop: Stop) -> Vec<(u64, u64, Stop)> {
        let parts = looks(found).cut(LANE, slice(stop));
        let taken: Vec<_> = parts.iter().map(|part| part.taken_from.is_some()).collect();
        assert!(
            taken[0] && taken[1..].iter().all(|taken| !taken),
            "{parts:?}"
        );
        let part = |part: &Event| (part.start.0, part.end.0, part.stop);
        parts.iter().map(part).collect()
    }

    #[test]
    fn a_slice_stops_where_its_thread_blocks_and_goes_on_after() {
        let blocked = parts(&[false, true, true, false], Stop::Probe);
        assert_eq!(
            blocked,
            [(100, 300, Stop::Blocked), (400, 900, Stop::Probe)]
        );
        let twice = parts(&[true, false, true, false], Stop::Finished);
        let stops: Vec<_> = twice.iter().map(|part| part.2).collect();
        assert_eq!(stops, [Stop::Blocked, Stop::Blocked, Stop::Finished]);
        let computes = parts(&[false; 4], Stop::Finished);
        assert_eq!(computes, [(100, 900, Stop::Finished)]);
    }

    #[test]
    fn what_is_blocked_at_the_end_does_not_run_then() {
        let blocked = parts(&[false, true, true], Stop::Running);
        assert_eq!(blocked, [(100, 300, Stop::Blocked)]);
        let is_back = parts(&[false, true, true, false], Stop::Running);
        assert_eq!(is_back.last(), Some(&(400, 900, Stop::Running)));
        // The request ended right after the last look.
        let ended = parts(&[true, true], Stop::Finished);
        assert_eq!(ended.last(), Some(&(300, 900, Stop::Finished)));
    }

    #[test]
    fn what_changes_during_a_look_is_not_known() {
        let mut blocks = Blocks::default();
        let looks = std::cell::Cell::new(0);
        let running = || {
            looks.set(looks.get() + 1);
            vec![Some((ContextId(7), Cycles(100 * looks.get())))]
        };
        blocks.look(Cycles(500), running, |_| true);
        assert!(blocks.0.is_empty(), "{blocks:?}");
    }

    #[test]
    fn the_hypervisors_part_is_the_eighth_number() {
        let stat = "cpu  1 2 3 4 5 6 7 80 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(steal(stat), Some(Duration::from_millis(800)));
        assert_eq!((steal("cpu  1 2 3\n"), steal("")), (None, None));
        let before = taken_by_hypervisor();
        assert!(taken_by_hypervisor() >= before);
    }
}
