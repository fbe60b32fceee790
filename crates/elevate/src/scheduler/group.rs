//! One of the scheduled: threads that may run together, or not.

use shinjuku_preempt::SchedulingClass;

use crate::member::Member;
use crate::supervisor::Supervisor;
use crate::{ElevateError, Target};

/// The threads of a target.
pub(super) struct Group {
    target: Target,
    members: Vec<Member>,
    /// The member that is raised first: another one each time.
    first: usize,
    /// The cores of its first thread before it was taken: later threads inherit those.
    cores: Vec<usize>,
}

impl Group {
    /// As the target is now.
    pub(super) fn of(target: Target) -> Result<Self, ElevateError> {
        let mut group = Self {
            target,
            members: Vec::new(),
            first: 0,
            cores: Vec::new(),
        };
        group.members = group.strangers()?;
        let Some(first) = group.members.first() else {
            let target = target.to_string();
            return Err(ElevateError::Nothing { target });
        };
        group.cores.clone_from(&first.cores);
        Ok(group)
    }

    /// A thread that is in both.
    pub(super) fn shares_with(&self, other: &Self) -> Option<u32> {
        let tids = self.members.iter().map(|member| member.tid);
        let mut both = tids.filter(|tid| other.members.iter().any(|member| member.tid == *tid));
        both.next()
    }

    /// Whether all its threads are of process `pid`.
    pub(super) fn is_of(&self, pid: u32) -> std::io::Result<bool> {
        let own = Target::Process(pid).threads()?;
        Ok(self.members.iter().all(|member| own.contains(&member.tid)))
    }

    /// The target's threads that are no members.
    fn strangers(&self) -> Result<Vec<Member>, ElevateError> {
        let look = || {
            let mut strangers = Vec::new();
            for tid in self.target.threads()? {
                if self.members.iter().all(|member| member.tid != tid) {
                    strangers.extend(Member::of(tid)?);
                }
            }
            Ok(strangers)
        };
        look().map_err(ElevateError::system(format!("look at {:?}", self.target)))
    }

    /// Takes all members: tells the supervisor, binds them to the core, gives them the class.
    pub(super) fn take(
        &mut self,
        supervisor: Option<&mut Supervisor>,
        core: usize,
        class: &SchedulingClass,
    ) -> Result<(), ElevateError> {
        take(&self.members, supervisor, core, class)
    }

    /// Looks for new threads, which get `class`, and for threads that have ended. Answers whether
    /// any is there.
    pub(super) fn look_again(
        &mut self,
        supervisor: Option<&mut Supervisor>,
        core: usize,
        class: &SchedulingClass,
    ) -> Result<bool, ElevateError> {
        // A thread that cannot be looked at is still to get back what it had.
        self.members
            .retain(|member| member.is_there().unwrap_or(true));
        // One thread that is given can only go.
        if !matches!(self.target, Target::Thread(_)) {
            let known = self.members.len();
            let mut strangers = self.strangers()?;
            for stranger in &mut strangers {
                stranger.is_born_on(core, &self.cores);
            }
            // Members first: what fails halfway is given back, too.
            self.members.extend(strangers);
            take(&self.members[known..], supervisor, core, class)?;
        }
        Ok(!self.members.is_empty())
    }

    /// Raises all its threads, beginning with another one each time. Whether any is there.
    pub(super) fn raise(&mut self, class: &SchedulingClass) -> Result<bool, ElevateError> {
        self.first = (self.first + 1) % self.members.len().max(1);
        self.give(class)
    }

    /// Another one of its threads, all of them raised, runs. Whether any is there.
    pub(super) fn rotate(
        &mut self,
        low: &SchedulingClass,
        raised: &SchedulingClass,
    ) -> Result<bool, ElevateError> {
        if let [_, _, ..] = self.members[..]
            && let Some(front) = self.members.get(self.first)
        {
            // Raised once more, it is behind the others.
            front.give(low).map_err(ElevateError::class)?;
            return self.raise(raised);
        }
        Ok(true)
    }

    /// Gives all its threads a class. Whether any is there.
    pub(super) fn give(&self, class: &SchedulingClass) -> Result<bool, ElevateError> {
        let (before, from) = self.members.split_at(self.first.min(self.members.len()));
        let mut any = false;
        for member in from.iter().chain(before) {
            any |= member.give(class).map_err(ElevateError::class)?;
        }
        Ok(any)
    }

    /// Gives all of them back what they had.
    pub(super) fn give_back(&self) -> Result<(), ElevateError> {
        let given = self.members.iter().map(|member| {
            let tid = member.tid;
            let given = member.give_back();
            given.map_err(|cause| ElevateError::NotGivenBack { tid, cause })
        });
        // One may be refused, and the others not.
        given.fold(Ok(()), Result::and)
    }
}

fn take(
    members: &[Member],
    mut supervisor: Option<&mut Supervisor>,
    core: usize,
    class: &SchedulingClass,
) -> Result<(), ElevateError> {
    for member in members {
        if let Some(supervisor) = supervisor.as_deref_mut() {
            supervisor.elevated(member)?;
        }
        member
            .pin(core)
            .map_err(|cause| ElevateError::Core { core, cause })?;
        member.give(class).map_err(ElevateError::class)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn who_came_later_is_given_back_even_if_taking_it_failed() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let target = Target::Process(child.id());
        // Of a process whose threads have all come later.
        let Group { members, .. } = Group::of(target).unwrap();
        let mut group = Group {
            target,
            members: Vec::new(),
            first: 0,
            cores: members[0].cores.clone(),
        };
        // It is bound to the core, but then the kernel refuses the class.
        let core = *members[0].cores.last().unwrap();
        let refused = group.look_again(None, core, &SchedulingClass::fifo(100));
        let bound = Member::of(child.id()).unwrap().unwrap();
        let given = group.give_back();
        let after = Member::of(child.id()).unwrap().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(refused.is_err());
        assert_eq!(bound.cores, [core]);
        given.unwrap();
        assert_eq!([after], members[..]);
    }
}
