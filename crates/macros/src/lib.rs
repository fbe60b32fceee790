//! The `#[preemptible]` attribute: puts preemption probes into the loops of a function.
//!
//! Users reach it as `shinjuku::preemptible`. A *probe* is a call of `preempt_point()`, which polls
//! the worker's cache line and hands the request back to the dispatcher when its quantum is over.
//! Placing probes at loop back edges bounds the time between two of them, so that a long request
//! gives way without an interrupt (the idea of compiler-placed probes is that of Concord, SOSP'23,
//! section 3.2).
//!
//! [`mod@arguments`] reads the parentheses, [`mod@expand`] checks the item, [`mod@instrument`]
//! finds the loops, [`mod@back_edge`] writes the probe into one loop.

#![forbid(unsafe_code)]
// The module links above are for readers of the source: a proc-macro crate has no public modules.
#![allow(rustdoc::private_intra_doc_links)]

mod arguments;
mod back_edge;
mod expand;
mod instrument;

use proc_macro::TokenStream;

/// Puts a preemption probe at the back edge of every loop of a function.
///
/// The attribute goes on functions and methods: free, inherent, of a trait's impl, default methods
/// of a trait; generic and `unsafe` ones too. What the function computes does not change: values,
/// drop order, how long temporaries live, labels and lint levels stay as written.
///
/// ```
/// # use shinjuku_macros::preemptible;
/// # mod probe { pub fn preempt_point() {} }
/// // A server writes `#[preemptible]`; here a module of our own stands in for the crate `shinjuku`.
/// #[preemptible(crate = crate::probe)]
/// fn longest_run(bytes: &[u8]) -> usize {
///     let (mut longest, mut run) = (0, 0);
///     for pair in bytes.windows(2) {
///         run = if pair[0] == pair[1] { run + 1 } else { 0 };
///         longest = longest.max(run + 1);
///     }
///     longest
/// }
/// # fn main() {
/// assert_eq!(longest_run(b"abbbc"), 3);
/// # }
/// ```
///
/// # Arguments
///
/// - `every = N` (a literal, 1 to 4294967295; default 1): probe once in `N` iterations of each
///   *innermost* loop. A loop that holds another loop is probed at each of its iterations whatever
///   `N`, or short inner loops could multiply the distance between two probes to `N * N`
///   iterations. Powers of two are cheapest.
/// - `crate = some::path` (default `::shinjuku`): call `some::path::preempt_point()`.
///
/// # What a probe costs, and when to ask for `every`
///
/// In a loop that waits for memory, a multiplication or a call, a probe costs nothing measurable.
/// Leave `every` alone there: a probe in each iteration keeps the quantum precise however expensive
/// the body is. A loop so cheap that the compiler vectorises it is no longer vectorised, and costs
/// two to four times as much. With `every = 64` such a `for` loop becomes a nest of strips of 64
/// iterations with the probe between them, and the compiler can vectorise a strip. Loops that store
/// to slices and loops over ranges gain most, sums over slices little. Other loops count their
/// iterations, which costs as much as a cheap probe: it pays only where `preempt_point` is
/// expensive.
/// `cargo bench -p shinjuku-benches --bench costs preemptible` measures it on your machine.
///
/// Keep `N` iterations well below a microsecond, for the quantum's sake.
///
/// # What it does not see
///
/// - Macro calls: loops inside the arguments or the expansion of a macro, `vec![..]` and
///   `assert!(..)` included.
/// - Callees, recursion, iterator chains (`iter().map(..).sum()`): annotate the callee, or call
///   `preempt_point()` by hand. For a reduction that must stay vectorised,
///   `for chunk in slice.chunks(4096)` around an iterator chain is the cheapest form.
/// - Functions and other items nested in the function: they take their own attribute.
/// - `async` blocks and closures (an await point is no place for a thread's probe) and `const`
///   blocks.
///
/// Closures inside an annotated function are instrumented with it. In stable Rust an attribute
/// cannot stand on a closure expression itself: write the closure inside an annotated function, or
/// let it call one.
///
/// In `while let` and `for`, temporaries of the head live during the body, probes included:
/// `while let Some(x) = queue.lock().pop()` holds the lock while it can be preempted.
///
/// # Errors
///
/// Each of these does not compile, and the message says what to do:
///
/// ```compile_fail
/// # use shinjuku_macros::preemptible;
/// # mod probe { pub fn preempt_point() {} }
/// #[preemptible(crate = crate::probe)]
/// async fn asynchronous() {}
/// # fn main() {}
/// ```
/// ```compile_fail
/// # use shinjuku_macros::preemptible;
/// # mod probe { pub fn preempt_point() {} }
/// #[preemptible(crate = crate::probe)]
/// const fn constant() {}
/// # fn main() {}
/// ```
/// ```compile_fail
/// # use shinjuku_macros::preemptible;
/// # mod probe { pub fn preempt_point() {} }
/// #[preemptible(crate = crate::probe)]
/// struct NotAFunction;
/// # fn main() {}
/// ```
/// ```compile_fail
/// # use shinjuku_macros::preemptible;
/// # mod probe { pub fn preempt_point() {} }
/// #[preemptible(crate = crate::probe, every = 0)]
/// fn never() {}
/// # fn main() {}
/// ```
/// ```compile_fail
/// # use shinjuku_macros::preemptible;
/// # mod probe { pub fn preempt_point() {} }
/// #[preemptible(crate = crate::probe, evry = 64)]
/// fn misspelt() {}
/// # fn main() {}
/// ```
/// ```compile_fail
/// # use shinjuku_macros::preemptible;
/// # mod probe { pub fn preempt_point() {} }
/// trait Scan {
///     #[preemptible(crate = crate::probe)]
///     fn scan(&self);
/// }
/// # fn main() {}
/// ```
#[proc_macro_attribute]
pub fn preemptible(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand::expand(arguments.into(), item.into()).into()
}
