//! A running runtime: statistics, shutdown, and for requests of this process the handle.

use std::time::Duration;

use shinjuku_net::Transport;

use crate::builder::Builder;
use crate::handler::RequestHandler;
use crate::in_process::{Handle, InProcess, InProcessBounds, in_process};
use crate::layout::Layout;
use crate::observer::Observer;
use crate::shutdown::ShutdownReport;
use crate::start_error::StartError;
use crate::statistics::Statistics;
use crate::threads::{DROP_DEADLINE, Threads};

/// Submitted requests that the dispatcher has not looked at yet, at the most.
const INTAKE: usize = 4096;
/// How long a shutdown waits for the courier, which may be held up by a user's waker.
const COURIER_PATIENCE: Duration = Duration::from_secs(1);

/// A runtime that serves requests submitted in this process.
///
/// Dropping it shuts it down, with a deadline of one second.
pub struct Runtime<H: RequestHandler> {
    threads: Threads<InProcess<H::Request, H::Reply>>,
    handle: Handle<H::Request, H::Reply>,
}

impl<H: RequestHandler> std::fmt::Debug for Runtime<H> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Runtime({:?})", self.threads)
    }
}

impl<H: RequestHandler> Runtime<H> {
    /// Begins to configure a runtime for `handler`.
    pub fn builder(handler: H) -> Builder<H> {
        Builder::new(handler)
    }

    pub(crate) fn start(builder: Builder<H>) -> Result<Self, StartError> {
        builder.validate()?;
        let workers = Layout::plan(&builder.config)?.workers.len();
        let outstanding = builder.config.task_capacity(workers);
        let bounds = InProcessBounds {
            intake: INTAKE,
            outstanding,
        };
        let (handle, transport) = in_process(bounds).map_err(|cause| StartError::Thread {
            name: "shinjuku-courier".to_owned(),
            cause,
        })?;
        Ok(Self {
            threads: Threads::start(builder, transport)?,
            handle,
        })
    }

    /// Submits requests, from any thread.
    #[must_use]
    pub fn handle(&self) -> Handle<H::Request, H::Reply> {
        self.handle.clone()
    }

    /// What happened so far. What [`Handle::submit`](crate::Handle::submit) refused at once is among the refusals.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let mut statistics = self.threads.statistics();
        self.add_refusals_at_submit(&mut statistics);
        statistics
    }

    fn add_refusals_at_submit(&self, statistics: &mut Statistics) {
        let at_submit = self.handle.refusals();
        statistics.received += at_submit.total();
        statistics.refused += at_submit;
    }

    /// How the runtime preempts and why: the line that was logged at start.
    #[must_use]
    pub fn description(&self) -> &str {
        &self.threads.description
    }

    /// Stops intake, lets admitted requests finish for at most `deadline`, and ends all threads. What has started and not
    /// finished by then is reported and goes on in the background, where nobody waits for it: its context is leaked, with its
    /// donor thread and the handler.
    #[must_use = "the report says what did not finish"]
    pub fn shutdown(mut self, deadline: Duration) -> ShutdownReport {
        self.end(deadline)
    }

    fn end(&mut self, deadline: Duration) -> ShutdownReport {
        let mut report = self.threads.shutdown(deadline);
        if let Some(transport) = self.threads.transport.take() {
            transport.finish(COURIER_PATIENCE);
        }
        // Whoever still waits for a leaked request is told.
        self.handle.abandon();
        if let Some(statistics) = &mut report.statistics {
            self.add_refusals_at_submit(statistics);
        }
        report
    }
}

impl<H: RequestHandler> Drop for Runtime<H> {
    fn drop(&mut self) {
        if self.threads.is_running() {
            let _ = self.end(DROP_DEADLINE);
        }
    }
}

/// A runtime that serves a transport.
///
/// Dropping it shuts it down, with a deadline of one second.
pub struct Server<H: RequestHandler, Tr: Transport<Request = H::Request, Reply = H::Reply>> {
    threads: Threads<Tr>,
    handler: std::marker::PhantomData<fn() -> H>,
}

impl<H: RequestHandler, Tr: Transport<Request = H::Request, Reply = H::Reply>> std::fmt::Debug
    for Server<H, Tr>
{
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Server({})", self.threads.description)
    }
}

impl<H: RequestHandler, Tr: Transport<Request = H::Request, Reply = H::Reply>> Server<H, Tr> {
    pub(crate) fn start(builder: Builder<H>, transport: Tr) -> Result<Self, StartError> {
        builder.validate()?;
        Ok(Self {
            threads: Threads::start(builder, transport)?,
            handler: std::marker::PhantomData,
        })
    }

    /// What happened so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.threads.statistics()
    }

    /// A view of the statistics that handlers and other threads can keep.
    #[must_use]
    pub fn observer(&self) -> Observer {
        self.threads.observer()
    }

    /// How the runtime preempts and why: the line that was logged at start.
    #[must_use]
    pub fn description(&self) -> &str {
        &self.threads.description
    }

    /// As [`Runtime::shutdown`]; gives the transport back besides, unless the dispatcher itself was lost.
    #[must_use = "the report says what did not finish"]
    pub fn shutdown(mut self, deadline: Duration) -> (ShutdownReport, Option<Tr>) {
        let report = self.threads.shutdown(deadline);
        (report, self.threads.transport.take())
    }
}
