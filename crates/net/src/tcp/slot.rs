//! What the networker knows of a connection, wherever its exchange is.
//!
//! ```text
//!           accept              a complete request
//!   (Free) ────────▶ (Reading) ───────────────────▶ (Away) ── another's reply, or none ──▶ (Apart)
//!     ▲                │  ▲ ▲                         │                                     │
//!     │    peer, idle, │  │ └─── reply: all sent ──────┤ reply: not all sent                 │ both
//!     │    half request│  │                            ▼                                     │ are
//!     │◀───────────────┘  └─────── all sent ─────── (Writing)                                │ back
//!     │◀───────────── nothing taken for write_timeout ─┘ │ all sent, to be closed            │
//!     │                                                  ▼                                   │
//!     │◀── peer has closed, or one second is over ── (Lingering)                             │
//!     └◀─────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//! From any state but Away and Apart a broken connection goes to Free. A slot is free only when its
//! exchange and its route are both back: so whatever handlers do with requests, a slot's next
//! connection cannot meet them.
//!
//! Lingering: the sending side is shut, and what the peer still sends is thrown away. Closing at
//! once would, with bytes unread, send a reset, which may overtake the last reply.

use std::sync::Arc;

use super::codec::Codec;
use super::counters::CloseReason;
use super::exchange::{Exchange, Place, Route};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Free,
    Reading,
    Away,
    Apart,
    Writing,
    Lingering,
}

pub(super) struct Slot<C: Codec> {
    pub(super) state: State,
    pub(super) exchange: Option<Box<Exchange<C>>>,
    pub(super) route: Option<Route<C>>,
    /// To look for what was parked there.
    pub(super) place: Arc<Place<C>>,
    /// Low half of the connection's id: tells events of earlier connections.
    pub(super) generation: u32,
    /// There may be bytes to read.
    pub(super) readable: bool,
    /// The peer has closed its side, or the connection is broken: reading goes on until it says so.
    pub(super) hung_up: bool,
    /// Reading said that nothing more comes.
    pub(super) ended: bool,
    /// In the networker's queue.
    pub(super) queued: bool,
    /// Waits for a large buffer.
    pub(super) hungry: bool,
    /// In the list of those that do, or did.
    pub(super) listed: bool,
    /// When the present wait began: for the next request, the rest of one, the peer to take bytes
    /// or to close.
    pub(super) since: u64,
    /// Why it is being closed.
    pub(super) cause: CloseReason,
}

impl<C: Codec> Slot<C> {
    pub(super) fn new(exchange: Exchange<C>) -> Self {
        let place = Arc::clone(&exchange.place);
        Self {
            state: State::Free,
            exchange: Some(Box::new(exchange)),
            route: Some(Route(Arc::clone(&place))),
            place,
            generation: 0,
            readable: false,
            hung_up: false,
            ended: false,
            queued: false,
            hungry: false,
            listed: false,
            since: 0,
            cause: CloseReason::Peer,
        }
    }
}

/// A slot's exchange, in the states in which it is there.
pub(super) fn present<C: Codec>(exchange: &mut Option<Box<Exchange<C>>>) -> &mut Exchange<C> {
    exchange
        .as_mut()
        .expect("only Away and Apart are without exchange")
}
