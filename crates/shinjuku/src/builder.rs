//! Configuring and starting a runtime.

use shinjuku_net::Transport;
use shinjuku_policy::{Learner, ParameterError, Parameters, Policy, registry};
use shinjuku_preempt::HardPreemption;

use crate::config::{
    ClassConfig, Config, ConfigError, ContextKind, CoresConfig, DispatcherConfig, Help, LayoutKind,
    PolicyConfig, PreemptionConfig, StallsConfig, config_keys,
};
use crate::handler::RequestHandler;
use crate::runtime::{Runtime, Server};
use crate::start_error::StartError;

/// Configures a runtime; see [`Runtime::builder`]. Each key of the configuration file is a method
/// of the same name; [`start`](Self::start) and [`serve`](Self::serve) check all values at once.
///
/// ```
/// use shinjuku::{ClassConfig, PolicyConfig, Runtime, handler_fn};
///
/// let builder = Runtime::builder(handler_fn(|name: String| format!("Hello, {name}!")))
///     .workers(1)
///     .queue(1000)
///     .policy(PolicyConfig::new("c-pre-mq").quantum_us(10.0))
///     .class([ClassConfig::new("greeting").slo_us(100.0)]);
/// let runtime = builder.start()?;
/// println!("{}", runtime.description());
///
/// // What is wrong is said by key, value, range and advice.
/// let error = Runtime::builder(handler_fn(|n: u64| n)).depth(9).start().unwrap_err();
/// assert!(error.to_string().starts_with("`depth` is 9, but must be"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a builder does nothing until `start` or `serve`"]
pub struct Builder<H: RequestHandler> {
    pub(crate) handler: H,
    pub(crate) config: Config,
    pub(crate) own_policies: Vec<OwnPolicy>,
    pub(crate) token: Option<HardPreemption>,
}

/// A policy that [`Builder::policy_with`] names.
pub(crate) struct OwnPolicy {
    name: String,
    build: Box<BuildPolicy>,
}

type BuildPolicy = dyn FnMut(&Parameters) -> Result<Box<dyn Policy>, ParameterError>;

impl<H: RequestHandler> std::fmt::Debug for Builder<H> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Builder({:?})", self.config)
    }
}

/// A method for each key, which has its unit, range and default at [`Config`]'s field.
macro_rules! builder_setters {
    ($config:ident: $($key:ident: $type:ty => $value:expr;)*) => {
        $(
            #[doc = concat!("Sets [`Config::", stringify!($key), "`](field@Config::", stringify!($key), ").")]
            pub fn $key(mut self, $key: $type) -> Self {
                self.config = self.config.$key($key);
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
            own_policies: Vec::new(),
            token: None,
        }
    }

    /// Takes a whole configuration, from a file or made in code. What was set before is gone.
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    config_keys!(builder_setters);

    /// Makes a policy of your own known under `name`. It is used if `policy.kind` names it, in a
    /// configuration file or by [`PolicyConfig::new`]. `build` gets the configuration's parameters
    /// and the room that the runtime needs. It is called once for each dispatcher: several times in
    /// the layout `symmetric`.
    ///
    /// `examples/custom_policy.rs` has a whole policy.
    pub fn policy_with(
        mut self,
        name: impl Into<String>,
        build: impl FnMut(&Parameters) -> Result<Box<dyn Policy>, ParameterError> + 'static,
    ) -> Self {
        self.own_policies.push(OwnPolicy {
            name: name.into(),
            build: Box::new(build),
        });
        self
    }

    /// Checks all values at once.
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        let names: Vec<_> = self
            .own_policies
            .iter()
            .map(|own| own.name.as_str())
            .collect();
        for (at, name) in names.iter().enumerate() {
            if registry::named(name).is_ok() || names[..at].contains(name) {
                return Err(ConfigError::invalid(
                    "policy_with",
                    format!("{name:?}"),
                    "a name that no other policy has",
                    "choose another name",
                ));
            }
        }
        self.config.validate_with(&names)
    }

    /// Lets mechanisms that interrupt handlers at any instruction be used, besides probes.
    pub fn allow_hard_preemption(mut self, token: HardPreemption) -> Self {
        self.token = Some(token);
        self
    }

    /// Starts a runtime that is given its requests in this process, through [`Runtime::handle`].
    ///
    /// # Errors
    /// [`StartError`] says what is in the way. No thread of the runtime is left running then.
    pub fn start(self) -> Result<Runtime<H::Request, H::Reply>, StartError> {
        Runtime::start(self)
    }

    /// Starts a runtime that serves a transport.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn serve<Tr>(self, transport: Tr) -> Result<Server<Tr>, StartError>
    where
        Tr: Transport<Request = H::Request, Reply = H::Reply>,
    {
        Server::start(self, vec![transport])
    }

    /// As [`serve`](Self::serve), for the layout `symmetric`: a dispatcher for each of
    /// `transports`, which are parts of the network such as sockets of one port. Each transport has
    /// loops that serve it before any other. There can be as many transports as loops.
    ///
    /// # Errors
    /// As [`start`](Self::start); [`ConfigError::Invalid`] for more transports than dispatchers.
    pub fn serve_each<Tr>(
        self,
        transports: impl IntoIterator<Item = Tr>,
    ) -> Result<Server<Tr>, StartError>
    where
        Tr: Transport<Request = H::Request, Reply = H::Reply>,
    {
        Server::start(self, transports.into_iter().collect())
    }
}

/// The policy that the configuration names, with the room that `parameters` give.
pub(crate) fn build_policy(
    config: &Config,
    own: &mut [OwnPolicy],
    parameters: &Parameters,
) -> Result<Box<dyn Policy>, ConfigError> {
    let name = config.policy.kind.as_str();
    match own.iter_mut().find(|own| own.name == name) {
        Some(own) => Ok(parameters.build_with(&mut own.build)?),
        None => Ok(registry::named(name)
            .expect("`validate` has looked the name up")
            .build(parameters)?),
    }
}

/// What is learnt of what neither the configuration nor a policy of the program's own gives.
pub(crate) fn learner(
    config: &Config,
    own: &[OwnPolicy],
    parameters: &Parameters,
) -> Option<Learner> {
    let kind = &config.policy.kind;
    let is_own = own.iter().any(|own| own.name == kind.as_str());
    let registered = kind.registered().filter(|_| !is_own)?;
    Learner::new(registered, parameters)
}
