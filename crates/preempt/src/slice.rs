//! How long Linux lets a thread run at a time, where it shares its core with others.

use std::time::Duration;

use crate::scheduling::Attributes;

/// Asks Linux to let the calling thread run for `slice` at a time (0.1 to 100 ms), under ordinary
/// scheduling. Its share of the core stays the same; the shorter the slice, the sooner it runs
/// after it was woken, and the sooner others do. From Linux 6.12 on; before that nothing changes.
///
/// # Errors
/// The kernel's, if it does not grant it.
pub fn request_slice(slice: Duration) -> std::io::Result<()> {
    let mut attributes = Attributes::of(0)?;
    attributes.runtime = u64::try_from(slice.as_nanos()).unwrap_or(u64::MAX);
    attributes.give_to(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE: Duration = Duration::from_micros(200);

    #[test]
    fn the_slice_changes_and_nothing_else() {
        // On a thread of its own, whose slice matters to no other test.
        let (before, after) = std::thread::spawn(|| {
            let before = Attributes::of(0).unwrap();
            request_slice(SLICE).unwrap();
            (before, Attributes::of(0).unwrap())
        })
        .join()
        .unwrap();
        assert_eq!((after.policy, after.nice), (before.policy, before.nice));
        if u128::from(after.runtime) != SLICE.as_nanos() {
            eprintln!("SKIPPED the_slice_changes_and_nothing_else: this kernel has one slice");
        }
    }
}
