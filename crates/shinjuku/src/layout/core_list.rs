//! Lists of cores in the kernel's notation: `1-3,6`.

use std::fmt;

use super::CORES;

/// Reads a list; what does not read as such is left out.
pub(super) fn parse(text: &str) -> Vec<usize> {
    let cores = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let last: usize = last.parse().ok()?;
        Some(first.parse().ok()?..last.min(CORES - 1) + 1)
    };
    text.trim().split(',').filter_map(cores).flatten().collect()
}

/// Writes a list, in its own order.
pub(super) struct CoreList<'a>(pub(super) &'a [usize]);

impl fmt::Display for CoreList<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = self.0.chunk_by(|core, next| *next == core + 1);
        for (at, run) in runs.enumerate() {
            let comma = if at == 0 { "" } else { "," };
            match run {
                [first, .., last] => write!(formatter, "{comma}{first}-{last}")?,
                [core] => write!(formatter, "{comma}{core}")?,
                [] => {}
            }
        }
        Ok(())
    }
}
