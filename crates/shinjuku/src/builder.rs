//! Configuring and starting a runtime.

use shinjuku_net::Transport;
use shinjuku_policy::Policy;
use shinjuku_preempt::HardPreemption;

use crate::config::{ClassConfig, Config, CoresConfig, LayoutKind, PolicyConfig, PreemptionConfig};
use crate::handler::RequestHandler;
use crate::runtime::{Runtime, Server};
use crate::start_error::StartError;

/// Configures a runtime; see [`Runtime::builder`]. Each key of the configuration file is a method of the same name;
/// [`start`](Self::start) and [`serve`](Self::serve) check all values at once.
#[must_use = "a builder does nothing until `start` or `serve`"]
pub struct Builder<H: RequestHandler> {
    pub(crate) handler: H,
    pub(crate) config: Config,
    pub(crate) policy: Option<Box<dyn Policy>>,
    pub(crate) token: Option<HardPreemption>,
}

impl<H: RequestHandler> std::fmt::Debug for Builder<H> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Builder({:?})", self.config)
    }
}

/// A method for each key, which stands in [`Config`] with its unit, range and default.
macro_rules! keys {
    ($($key:ident: $type:ty => $value:expr;)*) => {
        $(
            #[doc = concat!("Sets [`Config::", stringify!($key), "`].")]
            pub fn $key(mut self, $key: $type) -> Self {
                self.config.$key = $value;
                self
            }
        )*
    };
}

impl<H: RequestHandler> Builder<H> {
    pub(crate) fn new(handler: H) -> Self {
        Self {
            handler,
            config: Config::default(),
            policy: None,
            token: None,
        }
    }

    /// Takes a whole configuration, from a file or made in code. What was set before is gone.
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    keys! {
        workers: usize => Some(workers);
        contexts: usize => contexts;
        stack_kib: usize => stack_kib;
        queue: usize => queue;
        depth: usize => depth;
        spare_workers: usize => Some(spare_workers);
        rescue_after_ms: f64 => rescue_after_ms;
        idle_backoff_us: f64 => idle_backoff_us;
        realtime_priority: i32 => Some(realtime_priority);
        strict: bool => strict;
        layout: LayoutKind => layout;
        cores: CoresConfig => cores;
        policy: PolicyConfig => policy;
        class: Vec<ClassConfig> => class;
        preemption: PreemptionConfig => preemption;
    }

    /// A policy of your own, in place of the configuration's. It must have been built for
    /// [`Config::task_capacity`] task slots.
    pub fn own_policy(mut self, policy: Box<dyn Policy>) -> Self {
        self.policy = Some(policy);
        self
    }

    /// Lets mechanisms that interrupt handlers at any instruction be used, besides probes.
    pub fn allow_hard_preemption(mut self, token: HardPreemption) -> Self {
        self.token = Some(token);
        self
    }

    /// Starts a runtime that is given its requests in this process, through [`Runtime::handle`].
    ///
    /// # Errors
    /// [`StartError`] says what is in the way; nothing keeps running then.
    pub fn start(self) -> Result<Runtime<H>, StartError> {
        Runtime::start(self)
    }

    /// Starts a runtime that serves a transport.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn serve<Tr>(self, transport: Tr) -> Result<Server<H, Tr>, StartError>
    where
        Tr: Transport<Request = H::Request, Reply = H::Reply>,
    {
        Server::start(self, transport)
    }
}
