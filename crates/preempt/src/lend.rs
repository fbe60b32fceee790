//! Work that borrows, lent to code that takes only what lives for ever.
//!
//! [`lend`] is to any pool of threads what `std::thread::scope` is to threads. Work is lent as a
//! [`Lent`], which has no lifetime; `lend` returns once every `Lent` is run or dropped. So what the
//! work borrows outlives the work, and to forget a `Lent` makes `lend` wait for ever, which is safe
//! (docs/unsafe.md, "Work that borrows").

use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, Thread};

use crate::current::give_way_until;

/// Work that can be lent.
pub trait Work: Send + Sync {
    /// Does it. Called once at most.
    fn run(&self);
}

/// Gives `body` a [`Lender`], and returns what `body` returns once all that was lent has come back,
/// also if `body` panics. Waiting blocks the calling thread; a context gives way first.
///
/// # Panics
/// With the panic of `body`; or if [`Lender::fail`] was called.
///
/// ```
/// use shinjuku_preempt::{Lent, Work, lend};
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use std::sync::Arc;
///
/// struct Add<'a>(&'a AtomicU64);
/// impl Work for Add<'_> {
///     fn run(&self) {
///         self.0.fetch_add(1, Ordering::Relaxed);
///     }
/// }
/// let count = AtomicU64::new(0);
/// lend(|lender| {
///     for _ in 0..3 {
///         let lent: Lent = lender.lend(Arc::new(Add(&count)));
///         std::thread::spawn(move || lent.run());
///     }
/// });
/// assert_eq!(count.into_inner(), 3);
/// ```
/// What is lent may borrow from outside of `lend`, not from within `body`:
/// ```compile_fail,E0373
/// # use shinjuku_preempt::{Work, lend};
/// struct Call<F>(F);
/// impl<F: Fn() + Send + Sync> Work for Call<F> {
///     fn run(&self) {
///         (self.0)();
///     }
/// }
/// lend(|lender| {
///     let local = 5;
///     drop(lender.lend(std::sync::Arc::new(Call(|| println!("{local}")))));
/// });
/// ```
/// A lender stays within:
/// ```compile_fail
/// # use shinjuku_preempt::lend;
/// let lender = lend(|lender| lender);
/// ```
pub fn lend<'env, Out>(body: impl for<'lend> FnOnce(&'lend Lender<'lend, 'env>) -> Out) -> Out {
    let lender = Lender {
        state: Arc::new(State {
            out: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
            owner: thread::current(),
        }),
        lend: PhantomData,
        env: PhantomData,
    };
    let result = catch_unwind(AssertUnwindSafe(|| body(&lender)));
    lender.state.wait();
    match result {
        Err(payload) => resume_unwind(payload),
        Ok(_) if lender.state.failed.load(Ordering::Relaxed) => {
            panic!("what was lent has failed, and no one looked")
        }
        Ok(out) => out,
    }
}

/// Lends work; see [`lend`]. Invariant in both lifetimes, as `std::thread::Scope` is.
pub struct Lender<'lend, 'env: 'lend> {
    state: Arc<State>,
    lend: PhantomData<&'lend mut &'lend ()>,
    env: PhantomData<&'env mut &'env ()>,
}

struct State {
    /// How many are lent.
    out: AtomicUsize,
    failed: AtomicBool,
    owner: Thread,
}

impl State {
    fn wait(&self) {
        let is_back = || self.out.load(Ordering::Acquire) == 0;
        give_way_until(None, || is_back().then_some(()));
        while !is_back() {
            thread::park();
        }
    }
}

impl<'lend> Lender<'lend, '_> {
    /// Makes something of `work` that can go anywhere. Does not allocate.
    #[must_use = "what is dropped is not run"]
    pub fn lend(&'lend self, work: Arc<dyn Work + 'lend>) -> Lent {
        // Before there is a `Lent`: counted whatever becomes of it.
        self.state.out.fetch_add(1, Ordering::Relaxed);
        let out = Out(Arc::clone(&self.state));
        // SAFETY: the two types differ in their lifetime alone. The reference stays within the
        // `Lent`, whose only use of it is `Work::run`, which borrows it, and which drops it before
        // its `Out`. Until `Out` is dropped `lend` does not return (it waits on every way out), and
        // `'lend` is a lifetime that `body` cannot name, hence one that holds until `lend` returns.
        let work =
            unsafe { std::mem::transmute::<Arc<dyn Work + 'lend>, Arc<dyn Work + 'static>>(work) };
        Lent { work, _out: out }
    }

    /// Something failed that no one will look at: [`lend`] panics at its end.
    pub fn fail(&self) {
        self.state.failed.store(true, Ordering::Relaxed);
    }
}

impl fmt::Debug for Lender<'_, '_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Lender({:?} out)", self.state.out)
    }
}

/// Work that was lent. Run or dropped, it is given back.
pub struct Lent {
    // In this order: what it borrows is held until the work is gone, whatever its drop does.
    work: Arc<dyn Work>,
    _out: Out,
}

impl Lent {
    /// Does the work, and gives it back, also if the work panics.
    pub fn run(self) {
        self.work.run();
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Lent")
    }
}

struct Out(Arc<State>);

impl Drop for Out {
    fn drop(&mut self) {
        // Release: all that the work did and dropped comes before `lend` returns.
        if self.0.out.fetch_sub(1, Ordering::Release) == 1 {
            self.0.owner.unpark();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use super::*;

    /// Calls a closure, once.
    struct Call<F>(Mutex<Option<F>>);

    impl<F: FnOnce() + Send> Work for Call<F> {
        fn run(&self) {
            let body = self.0.lock().unwrap().take();
            body.unwrap()();
        }
    }

    fn call<F: FnOnce() + Send>(body: F) -> Arc<Call<F>> {
        Arc::new(Call(Mutex::new(Some(body))))
    }

    #[test]
    fn waits_for_all_that_was_lent() {
        let mut numbers = vec![0; 16];
        lend(|lender| {
            for (at, number) in numbers.iter_mut().enumerate() {
                let lent = lender.lend(call(move || {
                    thread::sleep(Duration::from_millis(5));
                    *number = at;
                }));
                thread::spawn(move || lent.run());
            }
        });
        assert!(numbers.into_iter().eq(0..16));
    }

    #[test]
    fn waits_when_the_body_panics() {
        let done = AtomicBool::new(false);
        let result = catch_unwind(AssertUnwindSafe(|| {
            lend(|lender| {
                let lent = lender.lend(call(|| {
                    thread::sleep(Duration::from_millis(20));
                    done.store(true, Ordering::Relaxed);
                }));
                thread::spawn(move || lent.run());
                panic!("on purpose: the body");
            })
        }));
        assert!(result.is_err());
        assert!(done.into_inner());
    }

    #[test]
    fn work_that_panics_or_is_dropped_comes_back() {
        let dropped = AtomicUsize::new(0);
        struct Counts<'a>(&'a AtomicUsize);
        impl Drop for Counts<'_> {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        lend(|lender| {
            let counts = Counts(&dropped);
            let panics = lender.lend(call(move || {
                let _counts = counts;
                panic!("on purpose: work");
            }));
            assert!(thread::spawn(move || panics.run()).join().is_err());
            let counts = Counts(&dropped);
            drop(lender.lend(call(move || drop(counts))));
        });
        assert_eq!(dropped.into_inner(), 2);
    }

    #[test]
    fn a_failure_that_nobody_looked_at_is_a_panic_at_the_end() {
        assert!(catch_unwind(|| lend(|lender| lender.fail())).is_err());
    }
}
