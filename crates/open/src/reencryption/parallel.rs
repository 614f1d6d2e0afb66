//! Work on several threads.

use std::sync::{Mutex, PoisonError};
use std::thread;

use inlock_cipher::scrub_stack;

use crate::error::Result;

/// Most threads that work.
const THREADS: usize = 8;

/// Bytes of stack that the ciphers of one thread may use.
const STACK: usize = 64 << 10;

/// Calls `work` with each item, on as many threads as there are CPUs. Returns the first error, after which no item is
/// begun.
pub(super) fn for_each<T: Send>(
    items: impl ExactSizeIterator<Item = T> + Send,
    work: impl Fn(T) -> Result<()> + Sync,
) -> Result<()> {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS).min(items.len());
    let items = Mutex::new(Some(items));
    let run = || {
        loop {
            let next = items.lock().unwrap_or_else(PoisonError::into_inner).as_mut().and_then(Iterator::next);
            let Some(item) = next else { break Ok(()) };
            let done = work(item);
            scrub_stack::<STACK>();
            if done.is_err() {
                *items.lock().unwrap_or_else(PoisonError::into_inner) = None;
                break done;
            }
        }
    };
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(run)).collect();
        let own = run();
        let join = |thread: thread::ScopedJoinHandle<'_, Result<()>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        others.into_iter().map(join).fold(own, Result::and)
    })
}
