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
}

impl Group {
    /// As the target is now.
    pub(super) fn of(target: Target) -> Result<Self, ElevateError> {
        let mut group = Self {
            target,
            members: Vec::new(),
            first: 0,
        };
        group.members = group.strangers()?;
        if group.members.is_empty() {
            let target = format!("{target:?}");
            return Err(ElevateError::Nothing { target });
        }
        Ok(group)
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

    /// Looks for threads that have come, which get `class`, and for such that have gone.
    pub(super) fn look_again(
        &mut self,
        supervisor: Option<&mut Supervisor>,
        core: usize,
        class: &SchedulingClass,
    ) -> Result<(), ElevateError> {
        // One thread that is given can only go.
        self.members
            .retain(|member| member.is_there().unwrap_or(false));
        if !matches!(self.target, Target::Thread(_)) {
            let strangers = self.strangers()?;
            take(&strangers, supervisor, core, class)?;
            self.members.extend(strangers);
        }
        Ok(())
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

    /// Gives all of them back what they had. Whether that succeeded.
    pub(super) fn give_back(&self) -> bool {
        let given = self.members.iter().map(|member| member.give_back().is_ok());
        given.fold(true, |all, one| all & one)
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
