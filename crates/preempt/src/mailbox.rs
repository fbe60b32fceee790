//! Handing contexts between a dispatcher and one worker: a cache line each way.
//!
//! The handles themselves travel: what was sent is no longer the sender's, so no context can be in
//! two places. A word holds the context's address, its number, and what it is; see `slots` for the
//! protocol.
//!
//! ```text
//!   63       48 47                      7  6  5     0
//!   ┌──────────┬─────────────────────────┬───┬───────┐
//!   │ number   │ address (128-aligned)   │lap│ state │
//!   └──────────┴─────────────────────────┴───┴───────┘
//! ```
//!
//! Neither side allocates, locks or calls the kernel.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::Cycles;
use crate::compiled::CompiledProbes;
use crate::context::{
    ContextId, Generation, Handle, Head, Idle, InAndOut, Ready, Runnable, Suspended,
};
use crate::slots::{Answers, DEPTH, LAP, Slots, Turn};

/// Most contexts that one worker can have been given and not answered (JBSQ's bound).
pub const MAX_DEPTH: usize = DEPTH;

const READY: u64 = 1;
const SUSPENDED: u64 = 2;
const IDLE: u64 = 3;
const STATE: u64 = LAP - 1;
const ADDRESS: u64 = 0x0000_ffff_ffff_ff80;

static MAILBOXES: AtomicU64 = AtomicU64::new(0);

struct Lines {
    to_worker: Slots,
    from_worker: Answers,
}

/// Makes the two ends. At most `depth` contexts (1 to [`MAX_DEPTH`]) are out at a time.
///
/// # Panics
/// If `depth` is out of range.
#[must_use]
pub fn mailbox<T, R>(depth: usize) -> (Sender<T, R>, Receiver<T, R>) {
    assert!(
        (1..=MAX_DEPTH).contains(&depth),
        "a mailbox is 1 to {MAX_DEPTH} deep, not {depth}"
    );
    let lines = Arc::new(Lines {
        to_worker: Slots::new(),
        from_worker: Answers::new(),
    });
    let sender = Sender {
        lines: Arc::clone(&lines),
        put: Turn::default(),
        take: Turn::default(),
        depth,
        out: 0,
        // Contexts pass through several mailboxes: the upper bits keep their generations apart.
        generation: MAILBOXES.fetch_add(1, Ordering::Relaxed) << 48,
        carries: PhantomData,
    };
    (
        sender,
        Receiver {
            lines,
            take: Turn::default(),
            put: Turn::default(),
            open: 0,
            carries: PhantomData,
        },
    )
}

fn encode<T, R>(handle: Handle<T, R>, state: u64) -> u64 {
    let address = std::ptr::from_ref(handle.head()).expose_provenance() as u64;
    debug_assert_eq!(
        address & !ADDRESS,
        0,
        "user addresses have 47 bits, heads are 128-byte aligned"
    );
    u64::from(handle.head().id.get().0) << 48 | address | state
}

/// # Safety
/// `word` must come from [`encode`] with the same types, and be decoded once.
unsafe fn decode<T, R>(word: u64) -> (Handle<T, R>, u64) {
    // SAFETY: the word comes from `encode`; the handle that was encoded is gone, so this is the one
    // again.
    (unsafe { Handle::new(head_of(word)) }, word & STATE)
}

/// The head that a word names.
///
/// # Safety
/// `word` must come from [`encode`].
unsafe fn head_of(word: u64) -> &'static Head {
    // SAFETY: the address of a head, and heads are never freed.
    unsafe { &*std::ptr::with_exposed_provenance::<Head>((word & ADDRESS) as usize) }
}

/// The dispatcher's end.
pub struct Sender<T, R> {
    lines: Arc<Lines>,
    put: Turn,
    take: Turn,
    depth: usize,
    out: usize,
    generation: u64,
    /// Invariant, as the handles are.
    carries: InAndOut<T, R>,
}

/// The worker's end.
///
/// What comes out is just what went in, not something that borrows for longer:
/// ```compile_fail
/// use shinjuku_preempt::Receiver;
///
/// fn longer(receiver: Receiver<fn(&'static str), ()>) -> Receiver<fn(&str), ()> {
///     receiver
/// }
/// ```
pub struct Receiver<T, R> {
    lines: Arc<Lines>,
    take: Turn,
    put: Turn,
    /// Taken and not answered.
    open: usize,
    /// Invariant, as the handles are.
    carries: InAndOut<T, R>,
}

impl<T, R> std::fmt::Debug for Sender<T, R> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Sender({} of {} out)", self.out, self.depth)
    }
}

impl<T, R> std::fmt::Debug for Receiver<T, R> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Receiver")
    }
}

/// Tells whether a worker has answered for everything that it was sent, where the [`Sender`] is not
/// at hand. Reads one word of the mailbox, and takes nothing.
pub struct LastAnswer {
    lines: Arc<Lines>,
    /// Where that answer will be; `None`: nothing is out.
    turn: Option<Turn>,
}

impl std::fmt::Debug for LastAnswer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("LastAnswer")
    }
}

impl LastAnswer {
    /// Whether the last answer is there that was due at [`Sender::expect`]; where none was, it is.
    /// Once that answer was taken and others were sent, this says nothing any more.
    #[inline]
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.turn
            .is_none_or(|turn| self.lines.from_worker.is_there(turn))
    }
}

/// A dispatch that was sent: the right to ask for its preemption.
pub struct Dispatched {
    head: &'static Head,
    /// Noted here: the head may serve another context by now.
    id: ContextId,
    generation: Generation,
}

impl std::fmt::Debug for Dispatched {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "Dispatched(context {}, {:?})",
            self.id.0, self.generation
        )
    }
}

/// What looks for the end of a quantum, besides the probes that the code has itself.
#[derive(Clone, Copy, Debug)]
pub enum QuantumEnd {
    /// Nothing.
    Probes,
    /// The worker's [`DeadlineTimer`](crate::DeadlineTimer), which stops the code where it stands.
    Timer,
    /// The same timer, which raises the gate of compiled probes: the code gives way at its next
    /// function entry. The gate comes down when the dispatch is over.
    Entries(CompiledProbes),
}

impl Dispatched {
    /// Asks the context to give way. A probe finds it; a [`Mechanism`](crate::Mechanism) makes it
    /// be found sooner. Once the dispatch is over, by its end or by preemption, this does nothing.
    #[inline]
    pub fn request(&self) {
        self.head.request(self.generation, Cycles(0));
    }

    /// As [`request`](Self::request), and compiled probes may take it.
    #[inline]
    pub(crate) fn request_at_entries(&self) {
        self.head.permit_entries(self.generation);
        self.request();
    }

    /// As [`request`](Self::request), but the code may go on until the TSC reaches `moment`: a
    /// deadline that its own probes look at. For a dispatcher that is the worker's own thread, and
    /// does not run meanwhile. Until then the probes count down to readings of the TSC, about two
    /// a microsecond: the code gives way about that late, or later, once, when its probes become
    /// much rarer (see `stride`). A request that replaces this one is found as late.
    #[inline]
    pub fn request_at(&self, moment: Cycles) {
        self.head.request(self.generation, moment);
    }

    /// As [`request_at`](Self::request_at), at the end of a quantum from `start` on, which is time
    /// on the CPU. When it seems to be over, the context asks the kernel, and goes on for as long
    /// as the worker's thread was away from its CPU. Of quanta below some 50 us it asks only if
    /// they seem to have been over for 10 us. An interrupt stops the context all the same if the
    /// thread waited in the kernel. `end` says what looks for the end besides probes.
    #[inline]
    pub fn request_after(&self, start: Cycles, quantum: Cycles, end: QuantumEnd) {
        let generation = self.generation;
        (self.head).request_after(generation, start, quantum, end);
    }

    /// Whether the worker has begun this dispatch and no later one of the context. A look at what
    /// the worker writes, a cache line away.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.head.running.generation.load(Ordering::Relaxed) == self.generation.0
    }

    /// The context's number.
    #[must_use]
    pub fn id(&self) -> ContextId {
        self.id
    }
}

/// What a worker answered. The context's number comes first, at no cost of a cache miss.
#[must_use = "dropping the handle leaks the context"]
#[derive(Debug)]
pub enum Completion<T, R> {
    /// The job is over and its result was taken.
    Finished(Idle<T, R>),
    /// It was preempted.
    Preempted(Suspended<T, R>),
}

impl<T, R> Completion<T, R> {
    /// Notes for how long the worker's thread was away from its CPU in this dispatch.
    #[inline]
    pub fn note_away(&mut self, away: Cycles) {
        self.head().running.away.set(away.0);
    }

    /// What the worker has noted of the dispatch; 0 if nothing.
    #[inline]
    #[must_use]
    pub fn away(&self) -> Cycles {
        Cycles(self.head().running.away.get())
    }

    fn head(&self) -> &'static Head {
        let (Self::Finished(Idle(handle)) | Self::Preempted(Suspended(handle))) = self;
        handle.head()
    }
}

impl<T: Send, R: Send> Sender<T, R> {
    /// Whether another context can be sent.
    #[inline]
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.out < self.depth
    }

    /// Contexts sent, and neither answered nor recalled.
    #[inline]
    #[must_use]
    pub fn out(&self) -> usize {
        self.out
    }

    /// For this mailbox, with nothing to expect yet.
    #[must_use]
    pub fn last_answer(&self) -> LastAnswer {
        LastAnswer {
            lines: Arc::clone(&self.lines),
            turn: None,
        }
    }

    /// What is out by now is what `last` tells of from now on. It must be of this mailbox.
    #[inline]
    pub fn expect(&self, last: &mut LastAnswer) {
        debug_assert!(Arc::ptr_eq(&self.lines, &last.lines), "another mailbox");
        let before = self.out.checked_sub(1);
        last.turn = before.map(|before| self.take.ahead(before));
    }

    /// Sends a context to the worker.
    ///
    /// # Errors
    /// Gives the context back if [`has_room`](Self::has_room) is false.
    #[inline]
    pub fn send(&mut self, runnable: Runnable<T, R>) -> Result<Dispatched, Runnable<T, R>> {
        if !self.has_room() {
            return Err(runnable);
        }
        let state = match runnable {
            Runnable::Ready(_) => READY,
            Runnable::Suspended(_) => SUSPENDED,
        };
        let handle = runnable.into_handle();
        let head = handle.head();
        let id = head.id.get();
        self.generation += 1;
        let generation = Generation(self.generation);
        self.lines
            .to_worker
            .put(&mut self.put, encode(handle, state), generation.0);
        self.out += 1;
        Ok(Dispatched {
            head,
            id,
            generation,
        })
    }

    /// The worker goes on with another job on the context of its last dispatch, see
    /// [`Worker::run_on`]: a dispatch like any other, that needs no way to the worker. `dispatched`
    /// is the new one from now on.
    ///
    /// [`Worker::run_on`]: crate::Worker::run_on
    #[inline]
    #[must_use]
    pub fn renew(&mut self, dispatched: &mut Dispatched) -> Generation {
        self.generation += 1;
        dispatched.generation = Generation(self.generation);
        dispatched.generation
    }

    /// Takes back the context sent last, unless the worker has it already.
    pub fn recall(&mut self) -> Option<Runnable<T, R>> {
        if self.out == 0 {
            return None;
        }
        let word = self.lines.to_worker.recall(&mut self.put)?;
        self.out -= 1;
        // SAFETY: `send` encoded it with these types, and the compare-and-swap in `recall` gives it
        // to one side only.
        Some(match unsafe { decode(word) } {
            (handle, READY) => Runnable::Ready(Ready(handle)),
            (handle, _) => Runnable::Suspended(Suspended(handle)),
        })
    }

    /// Whether [`poll`](Self::poll) has an answer.
    #[inline]
    #[must_use]
    pub fn has_answer(&self) -> bool {
        self.lines.from_worker.is_there(self.take)
    }

    /// The next answer of the worker, in the order in which it took the contexts.
    #[inline]
    pub fn poll(&mut self) -> Option<(ContextId, Completion<T, R>)> {
        let word = self.lines.from_worker.take(&mut self.take)?;
        self.out -= 1;
        // SAFETY: `answer` encoded it with these types, and each word is taken once.
        let completion = match unsafe { decode(word) } {
            (handle, IDLE) => Completion::Finished(Idle(handle)),
            (handle, _) => Completion::Preempted(Suspended(handle)),
        };
        Some((ContextId((word >> 48) as u16), completion))
    }
}

impl<T: Send, R: Send> Receiver<T, R> {
    /// The next context to run, if one was sent.
    #[inline]
    pub fn poll(&mut self) -> Option<(Runnable<T, R>, Generation)> {
        let (word, generation) = self.lines.to_worker.take(&mut self.take)?;
        self.open += 1;
        // What lies behind it comes near while this one runs.
        let next = self.lines.to_worker.peek(self.take);
        if next != 0 {
            // SAFETY: words in a mailbox come from `encode`. It may be recalled meanwhile, but a
            // head stays a head.
            unsafe { head_of(next) }.prefetch();
        }
        // SAFETY: `send` encoded it with these types, and the compare-and-swap in `take` gives it
        // to one side only.
        let runnable = match unsafe { decode(word) } {
            (handle, READY) => Runnable::Ready(Ready(handle)),
            (handle, _) => Runnable::Suspended(Suspended(handle)),
        };
        Some((runnable, Generation(generation)))
    }

    /// Whether a context waits here.
    #[inline]
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.lines.to_worker.peek(self.take) != 0
    }

    /// Brings what is staged here near, without waiting: the dispatcher wrote it while the last one
    /// ran, and it is taken next. A hint.
    #[inline]
    pub fn prefetch(&self) {
        self.lines.to_worker.prefetch_to_take();
    }

    /// Answers for a context that was taken: each is answered once, in the order taken.
    ///
    /// # Panics
    /// If every context that was taken has been answered for.
    #[inline]
    pub fn answer(&mut self, completion: Completion<T, R>) {
        // Or the sender's count, on which the slots rely, would be wrong.
        assert!(self.open > 0, "an answer to nothing");
        self.open -= 1;
        let word = match completion {
            Completion::Finished(Idle(handle)) => encode(handle, IDLE),
            Completion::Preempted(Suspended(handle)) => encode(handle, SUSPENDED),
        };
        self.lines.from_worker.put(&mut self.put, word);
    }
}
