//! What contexts do: a request's handler, its panics caught, and the reply prepared; and how much
//! stack that takes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use shinjuku_net::{Failure, Transport};
use shinjuku_preempt::{Pool, PoolConfig, current_context};

use crate::config::Config;
use crate::handler::{PerCoreStates, RequestContext, RequestHandler};
use crate::layout::Layout;
use crate::request::{Done, Job};
use crate::start_error::StartError;
use crate::started::Started;

/// The contexts, each of which does `entry` with a request.
pub(crate) fn start_pool<Tr: Transport>(
    config: &Config,
    layout: &Layout,
    entry: impl Fn(Job<Tr>) -> Done<Tr> + Send + Sync + 'static,
) -> Result<Pool<Job<Tr>, Done<Tr>>, StartError> {
    let tells_itself = layout.inline || config.context_kind.is_kernel_thread();
    let contexts = PoolConfig::default()
        .contexts(config.contexts)
        .stack_size(config.stack_bytes() + between_requests::<Tr>(tells_itself))
        .name("shinjuku-context")
        .kind(config.context_kind.into());
    Ok(Pool::new(contexts, entry)?)
}

/// What every context does with a request.
pub(crate) fn entry<H, Tr>(
    handler: Arc<H>,
    states: Arc<PerCoreStates<H::PerCore>>,
    started: Arc<Started>,
) -> impl Fn(Job<Tr>) -> Done<Tr> + Send + Sync + 'static
where
    H: RequestHandler<Request = Tr::Request, Reply = Tr::Reply>,
    Tr: Transport,
{
    move |job| {
        let Job {
            mut meta,
            request,
            route,
        } = job;
        let number = current_context();
        if let Some(number) = number {
            started.begins(number, meta);
        }
        let context = RequestContext {
            class: meta.class,
            arrival: AtomicU64::new(meta.arrival.0),
            per_core: &states,
        };
        let result = catch_unwind(AssertUnwindSafe(|| {
            handler.handle_request(request, &context)
        }));
        let result = result.map_err(|payload| {
            if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                std::mem::forget(second);
            }
            Failure::Panicked
        });
        if let Some(number) = number {
            started.ends(number);
        }
        meta.arrival = context.arrival();
        let failed = match &result {
            Ok(reply) => handler.is_failure(reply),
            Err(_) => true,
        };
        Done {
            meta,
            outgoing: Tr::conclude(route, result),
            failed,
        }
    }
}

/// What contexts' stacks have to have on top of what was promised to handlers, in bytes, where they
/// send their replies themselves: inline, and as kernel threads. Inline the next request is taken
/// from the dispatcher there, too, and moved some times on its way.
fn between_requests<Tr: Transport>(tells_itself: bool) -> usize {
    const CALLS: usize = 16 * 1024;
    // An unoptimised build has a place on the stack for each move.
    const MOVES: usize = if cfg!(debug_assertions) { 24 } else { 6 };
    if tells_itself {
        CALLS + MOVES * (size_of::<Job<Tr>>() + size_of::<Done<Tr>>())
    } else {
        0
    }
}
