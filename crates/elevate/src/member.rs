//! A scheduled thread, and what it is to get back.

use std::io;

use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};
use shinjuku_preempt::SchedulingClass;

use crate::target::born;

/// A thread with the class and the cores that it had before it was scheduled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Member {
    pub(crate) tid: u32,
    born: u64,
    class: [u64; 7],
    pub(crate) cores: Vec<usize>,
}

impl Member {
    /// The thread as it is now; `None` if it has ended.
    pub(crate) fn of(tid: u32) -> io::Result<Option<Self>> {
        let Some(born) = born(tid)? else {
            return Ok(None);
        };
        let class = match unless_ended(SchedulingClass::of(tid))? {
            Some(class) => class.to_words(),
            None => return Ok(None),
        };
        let set = sched_getaffinity(pid(tid)).map_err(io::Error::from);
        let Some(set) = unless_ended(set)? else {
            return Ok(None);
        };
        let cores = (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core));
        Ok(Some(Self {
            tid,
            born,
            class,
            cores: cores.collect(),
        }))
    }

    /// Of a thread that was begun by one bound to `core`: it inherited that, and is to get what the
    /// other one had before.
    pub(crate) fn is_born_on(&mut self, core: usize, before: &[usize]) {
        if self.cores == [core] {
            self.cores = before.to_vec();
        }
    }

    /// Whether this very thread is there: its number may be another's by now.
    pub(crate) fn is_there(&self) -> io::Result<bool> {
        Ok(born(self.tid)? == Some(self.born))
    }

    /// Binds it to a core. Whether it is there.
    pub(crate) fn pin(&self, core: usize) -> io::Result<bool> {
        let mut set = CpuSet::new();
        set.set(core);
        let answer = sched_setaffinity(pid(self.tid), &set).map_err(io::Error::from);
        unless_ended(answer).map(|answer| answer.is_some())
    }

    /// Gives it a class. Whether it is there.
    pub(crate) fn give(&self, class: &SchedulingClass) -> io::Result<bool> {
        unless_ended(class.give_to(self.tid)).map(|answer| answer.is_some())
    }

    /// Gives it its class and its cores back, unless it has ended.
    pub(crate) fn give_back(&self) -> io::Result<()> {
        if !self.is_there()? {
            return Ok(());
        }
        let class = SchedulingClass::from_words(self.class);
        let class = unless_ended(class.give_back_to(self.tid));
        let mut set = CpuSet::new();
        self.cores.iter().for_each(|core| set.set(*core));
        let cores = sched_setaffinity(pid(self.tid), &set).map_err(io::Error::from);
        // One may be refused, and the other not.
        class.and(unless_ended(cores)).map(|_| ())
    }
}

fn pid(tid: u32) -> Option<Pid> {
    Pid::from_raw(tid.cast_signed())
}

/// `None` if the thread has ended.
fn unless_ended<T>(answer: io::Result<T>) -> io::Result<Option<T>> {
    match answer {
        Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => Ok(None),
        answer => answer.map(Some),
    }
}

/// Binds the calling thread to a core.
pub(crate) fn pin_current(core: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    if core >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn another_thread_with_its_number_is_left_alone() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let own = Member::of(child.id()).unwrap().unwrap();
        let other = Member {
            born: own.born + 1,
            cores: vec![own.cores[0]],
            // The kernel refuses it.
            class: [99, 0, 0, 0, 0, 0, 0],
            ..own.clone()
        };
        let (is_there, given) = (other.is_there(), other.give_back());
        let refused = Member {
            born: own.born,
            ..other.clone()
        };
        let refused = refused.give_back();
        own.give_back().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_there.unwrap());
        given.unwrap();
        assert!(refused.is_err());
    }
}
