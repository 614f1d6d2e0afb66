//! A store whose calls block for long, such as a volume of dm-integrity on an NBD server, as an asynchronous one:
//! threads carry out its operations, and no worker waits for them. With a time limit, an operation that no thread has
//! begun by then fails.

use super::asynchronous::{AsyncStore, Pending};
use super::{BackingStore, BlockStatus, Geometry, StoreOperation, StoreProfile};
use crate::errno::Errno;
use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Operations that the queue has memory for from the start.
const CAPACITY: usize = 4096;
/// Time without operations after which a thread ends.
const IDLE_LIMIT: Duration = Duration::from_secs(3);

/// A store with threads of its own. Those that have had nothing to do for some seconds end, except for one, and start
/// again when all others are busy.
///
/// Dropping it waits for the operations in progress, and fails those that wait.
pub struct ThreadedStore {
    shared: Arc<Shared>,
    /// Lengths in bytes of the longest read and the longest write that are calls of the worker.
    inline: (usize, usize),
}

struct Shared {
    store: Arc<dyn BackingStore>,
    queue: Mutex<Queue>,
    filled: Condvar,
    /// Is notified when the threads end.
    ended: Condvar,
    max_threads: usize,
    idle_limit: Duration,
}

/// An operation that waits for a thread.
struct Waiting {
    pending: Pending,
    since: Instant,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    /// Threads that wait for operations, and those of them that were woken.
    idle: usize,
    woken: usize,
    /// Threads that have not ended.
    running: usize,
    threads: Vec<JoinHandle<()>>,
    /// No operation is carried out any longer.
    is_closed: bool,
    /// The threads end.
    is_ended: bool,
}

impl ThreadedStore {
    /// Starts `threads` threads for `store`, at least one.
    ///
    /// # Errors
    ///
    /// A thread cannot be started.
    pub fn start(store: Arc<dyn BackingStore>, threads: usize) -> io::Result<Self> {
        Self::with_idle_limit(store, threads, IDLE_LIMIT)
    }

    fn with_idle_limit(store: Arc<dyn BackingStore>, threads: usize, idle_limit: Duration) -> io::Result<Self> {
        let max_threads = threads.max(1);
        let queue = Queue {
            waiting: VecDeque::with_capacity(CAPACITY),
            threads: Vec::with_capacity(max_threads),
            ..Queue::default()
        };
        let (queue, filled, ended) = (Mutex::new(queue), Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { store, queue, filled, ended, max_threads, idle_limit });
        // Dropped if a thread cannot be started, which ends the others.
        let this = Self { shared, inline: (0, 0) };
        for _ in 0..max_threads {
            this.shared.start_thread(&mut this.shared.queue())?;
        }
        Ok(this)
    }

    /// Leaves reads of up to `reads` bytes and writes of up to `writes` bytes to the worker: they take less time than
    /// waking a thread, if they seldom wait for a device.
    #[must_use]
    pub fn with_inline(mut self, reads: usize, writes: usize) -> Self {
        self.inline = (reads, writes);
        self
    }

    /// Fails operations that have waited for a thread as long as `limit`: all threads may wait for a server that does
    /// not answer. What a thread has begun ends with its calls. Starts one more thread.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub fn with_wait_limit(self, limit: Duration) -> io::Result<Self> {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("inlock-s-limit".to_owned());
        let thread = thread.spawn(move || shared.expire(limit))?;
        self.shared.queue().threads.push(thread);
        Ok(self)
    }
}

impl Drop for ThreadedStore {
    fn drop(&mut self) {
        let mut queue = self.shared.queue();
        queue.is_ended = true;
        let threads = std::mem::take(&mut queue.threads);
        drop(queue);
        self.shared.close();
        self.shared.filled.notify_all();
        self.shared.ended.notify_all();
        for thread in threads {
            // It has no panic to report: those of operations are caught.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails the operations that wait, and all later ones.
    fn close(&self) {
        let mut queue = self.queue();
        queue.is_closed = true;
        let failed = std::mem::take(&mut queue.waiting);
        drop(queue);
        drop(failed);
    }

    /// Starts one more thread.
    fn start_thread(self: &Arc<Self>, queue: &mut Queue) -> io::Result<()> {
        // Those that were idle for long have ended.
        queue.threads.retain(|thread| !thread.is_finished());
        let shared = Arc::clone(self);
        let thread = std::thread::Builder::new().name(format!("inlock-s{}", queue.running));
        queue.threads.push(thread.spawn(move || shared.run())?);
        queue.running += 1;
        Ok(())
    }

    /// Carries out operations until the store is dropped, or the thread was idle for long and is not the last one.
    fn run(&self) {
        let mut queue = self.queue();
        while !queue.is_ended {
            match queue.waiting.pop_front() {
                Some(Waiting { pending, .. }) => {
                    drop(queue);
                    self.carry_out(pending);
                    queue = self.queue();
                }
                None => {
                    queue.idle += 1;
                    let waited = self.filled.wait_timeout(queue, self.idle_limit);
                    let (after, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
                    queue = after;
                    queue.idle -= 1;
                    // It may have been woken, and have timed out before that.
                    queue.woken = queue.woken.saturating_sub(1);
                    if timeout.timed_out() && queue.waiting.is_empty() && queue.running > 1 {
                        break;
                    }
                }
            }
        }
        queue.running -= 1;
    }

    /// Fails what waits for too long, until the store is dropped. The queue is in the order of arrival, so that nothing
    /// has to wake this thread: what arrives while it sleeps has its limit later.
    fn expire(&self, limit: Duration) {
        // A sync that fails makes all later ones fail, so it stays: the next free thread finds it in front.
        let is_limited = |waiting: &Waiting| !matches!(waiting.pending.operation(), StoreOperation::Sync);
        let mut queue = self.queue();
        while !queue.is_ended {
            let first = queue.waiting.iter().position(is_limited);
            let rest = first.map_or(limit, |at| limit.saturating_sub(queue.waiting[at].since.elapsed()));
            if rest.is_zero() {
                let late = first.and_then(|at| queue.waiting.remove(at));
                drop(queue);
                // What is dropped has failed.
                drop(late);
                queue = self.queue();
            } else {
                queue = self.ended.wait_timeout(queue, rest).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    fn carry_out(&self, mut pending: Pending) {
        let call = || pending.operation_mut().execute(&*self.store);
        // A thread that ended would carry out no more operations.
        let result = catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(Errno::IO));
        pending.complete(result);
    }
}

impl AsyncStore for ThreadedStore {
    fn start(&self, pending: Pending) {
        let mut queue = self.shared.queue();
        if queue.is_closed {
            drop(queue);
            return pending.complete(Err(Errno::IO));
        }
        queue.waiting.push_back(Waiting { pending, since: Instant::now() });
        if queue.woken < queue.idle {
            queue.woken += 1;
            drop(queue);
            self.shared.filled.notify_one();
        } else if queue.running < self.shared.max_threads {
            // Without one more thread the others take the operation later.
            let _ = self.shared.start_thread(&mut queue);
        }
    }

    fn abort(&self) {
        self.shared.close();
        if let Some(below) = self.shared.store.asynchronous() {
            below.abort();
        }
    }
}

impl BackingStore for ThreadedStore {
    fn geometry(&self) -> Geometry {
        self.shared.store.geometry()
    }

    fn revalidate_len(&self) -> Result<u64, Errno> {
        self.shared.store.revalidate_len()
    }

    fn asynchronous(&self) -> Option<&dyn AsyncStore> {
        Some(self)
    }

    fn is_cut_before(&self, end: u64) -> bool {
        self.shared.store.is_cut_before(end)
    }

    fn profile(&self) -> StoreProfile {
        let (inline_read_len, inline_write_len) = self.inline;
        StoreProfile { inline_read_len, inline_write_len, ..self.shared.store.profile() }
    }

    fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
        self.shared.store.read_at(data, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        self.shared.store.write_at(data, offset)
    }

    fn write_fua_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        self.shared.store.write_fua_at(data, offset)
    }

    fn sync(&self) -> Result<(), Errno> {
        self.shared.store.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), Errno> {
        self.shared.store.discard(offset, len)
    }

    fn prefetch(&self, offset: u64, len: u64) {
        self.shared.store.prefetch(offset, len);
    }

    fn block_status(&self, offset: u64, len: u64) -> Result<BlockStatus, Errno> {
        self.shared.store.block_status(offset, len)
    }
}

#[cfg(test)]
mod tests {
    use super::super::asynchronous::{read_at, write_at};
    use super::super::memory::MemoryStore;
    use super::*;
    use std::sync::Barrier;

    /// Memory whose writes wait for one another.
    struct Together {
        memory: MemoryStore,
        barrier: Barrier,
    }

    impl BackingStore for Together {
        fn geometry(&self) -> Geometry {
            self.memory.geometry()
        }

        fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
            self.memory.read_at(data, offset)
        }

        fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
            self.barrier.wait();
            self.memory.write_at(data, offset)
        }

        fn sync(&self) -> Result<(), Errno> {
            Ok(())
        }

        fn discard(&self, offset: u64, len: u64) -> Result<(), Errno> {
            self.memory.discard(offset, len)
        }
    }

    #[test]
    fn idle_threads_end_and_start_again() {
        const THREADS: usize = 4;
        let memory = Together { memory: MemoryStore::new(vec![0; 4096]), barrier: Barrier::new(THREADS) };
        let limit = Duration::from_millis(5);
        let store = ThreadedStore::with_idle_limit(Arc::new(memory), THREADS, limit).unwrap();
        for round in 1..20 {
            while store.shared.queue().running > 1 {
                std::thread::yield_now();
            }
            // The last one stays.
            let mut found = [0; 1];
            assert_eq!(read_at(&store, &mut found, 0), Ok(1));
            std::thread::sleep(2 * limit);
            assert_eq!(store.shared.queue().running, 1);
            // None of these ends unless all run at the same time.
            std::thread::scope(|scope| {
                for number in 0..THREADS as u64 {
                    let store = &store;
                    scope.spawn(move || assert_eq!(write_at(store, &[round], number, false), Ok(1)));
                }
            });
            let queue = store.shared.queue();
            let (running, handles) = (queue.running, queue.threads.len());
            drop(queue);
            assert!(running <= THREADS && handles <= 2 * THREADS, "{running} threads, {handles} of them not forgotten");
        }
    }

    #[test]
    fn no_operation_is_forgotten_by_threads_that_end() {
        let store = Arc::new(MemoryStore::new(vec![0; 4096]));
        // Threads are about to end whenever an operation comes.
        let store = ThreadedStore::with_idle_limit(store, 3, Duration::from_micros(50)).unwrap();
        std::thread::scope(|scope| {
            for number in 0..2 {
                let store = &store;
                scope.spawn(move || {
                    for round in 0..3000 {
                        assert_eq!(write_at(store, &[round as u8], number, false), Ok(1));
                        (0..round % 100).for_each(|_| std::hint::spin_loop());
                    }
                });
            }
        });
        let queue = store.shared.queue();
        assert!(queue.woken <= queue.idle && queue.idle <= queue.running && queue.running <= 3);
    }
}
