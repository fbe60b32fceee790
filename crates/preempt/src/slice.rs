//! How long Linux lets a thread run at a time, where it shares its core with others.

use std::time::Duration;

/// The kernel's `struct sched_attr` in its first version.
#[repr(C)]
#[derive(Debug, Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

const SIZE: u32 = size_of::<Attributes>() as u32;

/// Asks Linux to let the calling thread run for `slice` at a time (0.1 to 100 ms), under ordinary
/// scheduling. Its share of the core stays the same; the shorter the slice, the sooner it runs
/// after it was woken, and the sooner others do. From Linux 6.12 on; before that nothing changes.
///
/// # Errors
/// The kernel's, if it does not grant it.
pub fn request_slice(slice: Duration) -> std::io::Result<()> {
    let mut attributes = attributes_of_current()?;
    attributes.runtime = u64::try_from(slice.as_nanos()).unwrap_or(u64::MAX);
    // SAFETY: changes the calling thread's scheduling only; the kernel reads `size` bytes of
    // `attributes`, which is as large.
    let answer = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    match answer {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn attributes_of_current() -> std::io::Result<Attributes> {
    let mut attributes = Attributes::default();
    // SAFETY: reads the calling thread's scheduling; the kernel writes at most `SIZE` bytes to
    // `attributes`, which is as large.
    let answer = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, SIZE, 0) };
    match answer {
        0 => Ok(attributes),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE: Duration = Duration::from_micros(200);

    #[test]
    fn the_slice_changes_and_nothing_else() {
        // On a thread of its own, whose slice matters to nobody.
        let (before, after) = std::thread::spawn(|| {
            let before = attributes_of_current().unwrap();
            request_slice(SLICE).unwrap();
            (before, attributes_of_current().unwrap())
        })
        .join()
        .unwrap();
        assert_eq!((after.policy, after.nice), (before.policy, before.nice));
        if u128::from(after.runtime) != SLICE.as_nanos() {
            eprintln!("SKIPPED the_slice_changes_and_nothing_else: this kernel has one slice");
        }
    }
}
