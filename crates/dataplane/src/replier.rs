//! The worker's side: headers and checksums written in place, and the frame handed to the
//! networker.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rtrb::{Producer, PushError};
use shinjuku_net::Replier;
use shinjuku_net::wire::{RackSchedLoad, RackSchedMessage};

use crate::counters::TransportCounters;
use crate::datagram::Notes;
use crate::in_flight::Lent;
use crate::{Buffer, DatagramReply, Offload};

/// What a worker sends when a handler is done.
#[derive(Debug)]
pub struct Outgoing<B: Buffer> {
    pub(crate) answer: Answer<B>,
    pub(crate) class: u16,
}

/// How a request was answered.
#[derive(Debug)]
pub(crate) enum Answer<B: Buffer> {
    Reply(DatagramReply<B>),
    /// It was made of another request's buffer.
    Foreign(DatagramReply<B>),
    None,
}

/// A worker's way to the networker: a ring of its own.
pub struct DataplaneReplier<B: Buffer> {
    pub(crate) ring: Producer<Lent<B, Notes>>,
    /// The ring's, among those of the transport.
    pub(crate) number: usize,
    /// The networker looks at the ring.
    pub(crate) announced: bool,
    pub(crate) offload: Offload,
    /// Where replies tell it.
    pub(crate) load: Option<RackSchedLoad>,
    pub(crate) counters: Arc<TransportCounters>,
}

impl<B: Buffer> Replier for DataplaneReplier<B> {
    type Outgoing = Outgoing<B>;

    fn send(&mut self, Outgoing { answer, class }: Outgoing<B>) {
        let queue_length = self.load.as_ref().map(|load| load.left(class));
        let mut reply = match answer {
            Answer::Reply(reply) => reply,
            Answer::Foreign(reply) => {
                drop(reply);
                return self.counters.workers.unsendable.count_shared();
            }
            Answer::None => return self.counters.workers.unanswered.count_shared(),
        };
        if let Some(queue_length) = queue_length {
            RackSchedMessage::stamp(&mut reply, queue_length);
        }
        let (buffer, notes) = reply.0.parts_mut();
        let headers = notes.delivery.headers;
        let length = headers.length() + notes.length;
        buffer.set_length(length);
        let Some(checksums) = headers.reply(buffer.frame_mut(), self.offload) else {
            return self.counters.workers.unsendable.count_shared();
        };
        notes.checksums = checksums;
        buffer.finish(length);
        if !std::mem::replace(&mut self.announced, true) {
            let in_use = &self.counters.repliers_in_use;
            in_use.fetch_max(self.number + 1, Ordering::Release);
        }
        if let Err(PushError::Full(reply)) = self.ring.push(reply.0) {
            reply.give_back();
        }
    }
}

impl<B: Buffer> std::fmt::Debug for DataplaneReplier<B> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("DataplaneReplier")
            .field("room", &self.ring.slots())
            .finish_non_exhaustive()
    }
}
