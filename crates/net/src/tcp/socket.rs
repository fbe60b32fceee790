//! Opening the listening socket, and the limit of descriptors.

use std::net::{SocketAddr, TcpListener};

use rustix::io::Errno;
use rustix::net::{SocketFlags, SocketType, sockopt};
use rustix::process::{Resource, Rlimit};

use super::config::{CONNECTIONS, TcpConfig, TcpError};
use crate::ListenError;
use crate::listen::{self, Options};

/// Descriptors left for everything else in the process.
const RESERVE: u64 = 256;

/// A listening socket, as `config` wants it. Accepted connections inherit its options.
pub(super) fn listen(config: &TcpConfig) -> Result<TcpListener, ListenError> {
    let listen = config.listen;
    let failed = |action| move |error: Errno| ListenError::system(action, listen, error.into());
    let options = Options {
        kind: SocketType::STREAM,
        flags: SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        reuse_port: config.reuse_port,
        busy_poll: config.busy_poll,
    };
    let socket = listen::bound(listen, options, |socket| {
        sockopt::set_socket_reuseaddr(socket, true).map_err(failed("set SO_REUSEADDR"))?;
        sockopt::set_tcp_nodelay(socket, true).map_err(failed("set TCP_NODELAY"))?;
        if let Some(after) = config.keep_alive {
            sockopt::set_socket_keepalive(socket, true).map_err(failed("set SO_KEEPALIVE"))?;
            sockopt::set_tcp_keepidle(socket, after).map_err(failed("set TCP_KEEPIDLE"))?;
        }
        Ok(())
    })?;
    let backlog = i32::try_from(config.backlog).expect("checked with the configuration");
    rustix::net::listen(&socket, backlog)
        .map_err(|error| ListenError::bind(listen, error.into()))?;
    Ok(TcpListener::from(socket))
}

/// How many connections there may be, after the limit of descriptors was raised as far as it goes.
pub(super) fn connections(config: &TcpConfig) -> Result<usize, TcpError> {
    let limit = raise_limit(config.listen)?;
    let most = usize::try_from(limit.saturating_sub(RESERVE)).unwrap_or(usize::MAX);
    match config.connections {
        Some(connections) if connections <= most => Ok(connections),
        None if most > 0 => Ok(most.min(CONNECTIONS)),
        wanted => Err(TcpError::TooFewDescriptors {
            connections: wanted.unwrap_or(1),
            limit,
            reserve: RESERVE,
        }),
    }
}

/// The limit that is in force then.
fn raise_limit(listen: SocketAddr) -> Result<u64, ListenError> {
    let Rlimit { current, maximum } = rustix::process::getrlimit(Resource::Nofile);
    if current != maximum {
        let raised = Rlimit {
            current: maximum,
            maximum,
        };
        rustix::process::setrlimit(Resource::Nofile, raised).map_err(|error| {
            ListenError::system("raise the limit of descriptors", listen, error.into())
        })?;
    }
    Ok(maximum.unwrap_or(u64::MAX))
}
