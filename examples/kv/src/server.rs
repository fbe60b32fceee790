//! The request handler: from a frame to a reply.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use shinjuku::net::resp::{
    Arguments, ProtocolError, Resp, Writer, arguments_in_parts, arguments_of_checked,
};
use shinjuku::net::tcp::{Output, Reply, Request, TcpCounters};
use shinjuku::{Observer, RequestContext, RequestHandler, Statistics, preempt_point};

use crate::call::{Call, Fault, Outcome, Session};
use crate::commands;
use crate::elements::Bounds;
use crate::stop::Stopper;
use crate::store::Store;

/// The version of Redis whose replies these are, byte for byte.
pub const REDIS_VERSION: &str = "7.0.15";

/// How requests are framed and classified.
pub type Codec = Resp<fn(&[u8]) -> u16, Session>;

/// A name of Redis's configuration, and its value here.
pub type RedisSetting = (&'static str, String);

/// The state that commands work on.
#[derive(Debug)]
pub struct Kv {
    /// The database.
    pub store: Store,
    /// The part that does not change.
    pub settings: Settings,
    /// Ends the server, for SHUTDOWN.
    pub stop: Stopper,
    observer: OnceLock<Observer>,
}

/// What is decided at the start.
#[derive(Debug)]
pub struct Settings {
    /// The port where the server listens.
    pub port: u16,
    /// The most connections.
    pub connections: usize,
    /// The longest value, in bytes.
    pub longest_value: usize,
    /// The memory for replies of unknown length.
    pub gathered: Bounds,
    /// For `CONFIG GET`.
    pub redis: Vec<RedisSetting>,
    /// The transport's counters.
    pub counters: TcpCounters,
    /// When the server started.
    pub started: Instant,
}

impl Kv {
    /// A server's state, ready to serve.
    #[must_use]
    pub fn new(store: Store, settings: Settings, stop: Stopper) -> Self {
        Self {
            store,
            settings,
            stop,
            observer: OnceLock::new(),
        }
    }

    /// Makes the runtime's statistics visible in INFO from now on.
    pub fn observe(&self, observer: Observer) {
        let _ = self.observer.set(observer);
    }

    /// The runtime's statistics, once the runtime has started.
    #[must_use]
    pub fn statistics(&self) -> Option<Statistics> {
        self.observer.get().map(Observer::statistics)
    }

    /// Writes the reply to a request. Returns whether the connection shall close after it.
    fn answer(
        &self,
        arguments: Result<Arguments<'_>, ProtocolError>,
        output: &mut Output,
        session: &mut Session,
        connection: u64,
    ) -> bool {
        let (outcome, close) = match arguments {
            Ok(arguments) => {
                let mut call = Call {
                    arguments,
                    reply: Writer::new(output, session.protocol),
                    session,
                    connection,
                    close: false,
                };
                (self.execute(&mut call), call.close)
            }
            Err(error) => (Err(Fault::Protocol(error)), true),
        };
        if let Err(fault) = outcome {
            output.truncate(0);
            // If there is not even room for this error, the client gets no reply; the connection's
            // end tells it.
            return fault.write_to(output).is_err() || close;
        }
        close
    }

    fn execute(&self, call: &mut Call<'_>) -> Outcome {
        let name = call.argument()?;
        if let Some(command) = commands::find(&name) {
            return command.run(self, call);
        }
        // Like Redis, this protects against web pages that make a browser talk to the server.
        if name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:") {
            call.close = true;
            return Ok(());
        }
        Err(commands::unknown(&name, call))
    }
}

/// Serves a [`Kv`].
#[derive(Clone, Debug)]
pub struct Handler(pub Arc<Kv>);

impl RequestHandler for Handler {
    type Request = Request<Codec>;
    type Reply = Reply<Codec>;
    type PerCore = ();

    fn init_per_core(&self, _: usize) {}

    fn handle_request(
        &self,
        mut request: Request<Codec>,
        _: &RequestContext<'_, ()>,
    ) -> Reply<Codec> {
        let connection = request.connection().get();
        let is_well_formed = !request.is_last();
        let (frame, output, session) = request.parts();
        let arguments = if is_well_formed {
            arguments_of_checked(frame)
        } else {
            arguments_in_parts(frame, preempt_point)
        };
        let close = self.0.answer(arguments, output, session, connection);
        let reply = request.reply();
        if close { reply.close_after() } else { reply }
    }
}
