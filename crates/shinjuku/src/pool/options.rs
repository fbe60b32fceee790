//! How a closure is to be treated.

use std::time::Duration;

use shinjuku_policy::ClassId;
use tracing::Span;

/// A class of a pool, looked up by [`Pool::class`](crate::Pool::class) once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Class(pub(crate) ClassId);

/// How a closure is to be treated. Where a pool takes options, a class by its name or by [`Class`]
/// does as well.
///
/// ```
/// use shinjuku::{Pool, RunOptions};
/// use std::time::Duration;
///
/// let pool = Pool::new(["interactive", "batch"])?;
/// let batch = pool.class("batch").unwrap();
/// let urgent = RunOptions::new(batch).priority(7).deadline(Duration::from_secs(60));
/// assert_eq!(pool.run(urgent, || 6 * 7).wait()?, 42);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct RunOptions<'a> {
    pub(crate) class: ClassKey<'a>,
    pub(crate) priority: u8,
    pub(crate) deadline: Option<Duration>,
    pub(crate) span: Option<Span>,
}

/// A class by name or by number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ClassKey<'a> {
    Name(&'a str),
    Number(ClassId),
}

impl<'a> RunOptions<'a> {
    /// Options for a closure of this class: a name, a [`Class`], or a [`ClassId`].
    pub fn new(class: impl Into<RunOptions<'a>>) -> Self {
        class.into()
    }

    /// Sets the priority. Closures with a higher one start before others of their class, and those
    /// with the same one in the order in which they came. Once started, a closure is preempted as
    /// the policy says, whatever its priority. Default 0.
    pub fn priority(self, priority: u8) -> Self {
        Self { priority, ..self }
    }

    /// Sets how long after its submission the closure is refused if it has not started, with
    /// [`Refusal::DeadlinePassed`](crate::net::Refusal::DeadlinePassed). Default: the class's
    /// `deadline_us`.
    ///
    /// Under the policy `edf` it also orders the queue, in the place of the class's `slo_us`: the
    /// earliest deadline is next. The default deadline does not, and no other policy looks at it.
    pub fn deadline(self, deadline: Duration) -> Self {
        Self {
            deadline: Some(deadline),
            ..self
        }
    }

    /// The closure runs within `span`, whichever worker it goes on at. If the span has these fields
    /// they are recorded: `queue_us`, for how long the closure waited for its start, in
    /// microseconds, `preemptions`, how often it was preempted, and `arrived_ns`, by which
    /// [timelines](crate::timeline::Slice::arrived_nanos) know it. Default: no span.
    ///
    /// ```
    /// use shinjuku::{Pool, RunOptions};
    /// use tracing::field::Empty;
    ///
    /// let pool = Pool::new(["search"])?;
    /// let span = tracing::info_span!("search", queue_us = Empty, preemptions = Empty);
    /// let hits = pool.run(RunOptions::new("search").span(span), || 3).wait()?;
    /// # assert_eq!(hits, 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn span(self, span: Span) -> Self {
        Self {
            span: Some(span),
            ..self
        }
    }

    fn of(class: ClassKey<'a>) -> Self {
        Self {
            class,
            priority: 0,
            deadline: None,
            span: None,
        }
    }
}

impl<'a> From<&'a str> for RunOptions<'a> {
    fn from(name: &'a str) -> Self {
        Self::of(ClassKey::Name(name))
    }
}

impl<'a> From<&'a String> for RunOptions<'a> {
    fn from(name: &'a String) -> Self {
        Self::of(ClassKey::Name(name))
    }
}

impl From<Class> for RunOptions<'_> {
    fn from(class: Class) -> Self {
        Self::of(ClassKey::Number(class.0))
    }
}

impl From<ClassId> for RunOptions<'_> {
    fn from(class: ClassId) -> Self {
        Self::of(ClassKey::Number(class))
    }
}
