//! A store whose calls block for long, such as a volume of dm-integrity on an NBD server, as an asynchronous one:
//! threads carry out its operations, and no worker waits for them. With a time limit, an operation that no thread has
//! begun by then fails.

use super::asynchronous::{AsyncOperation, AsyncStore, Pending};
use super::{BackingStore, BlockStatus, Geometry, StoreProfile, read_range, write_range};
use crate::errno::Errno;
use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Operations that the queue has memory for from the start.
const CAPACITY: usize = 4096;

/// A store with threads of its own.
///
/// Dropping it waits for the operations in progress, and fails those that wait.
pub struct ThreadedStore {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Lengths in bytes of the longest read and the longest write that are calls of the worker.
    inline: (usize, usize),
}

struct Shared {
    store: Arc<dyn BackingStore>,
    queue: Mutex<Queue>,
    filled: Condvar,
    /// Is notified when the threads end.
    ended: Condvar,
}

/// An operation that waits for a thread.
struct Waiting {
    pending: Pending,
    since: Instant,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    /// Threads that wait for operations, and were not woken.
    idle: usize,
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
        let threads = threads.max(1);
        let queue = Queue { waiting: VecDeque::with_capacity(CAPACITY), ..Queue::default() };
        let (filled, ended) = (Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { store, queue: Mutex::new(queue), filled, ended });
        // Dropped if a thread cannot be started, which ends the others.
        let mut this = Self { shared, threads: Vec::with_capacity(threads), inline: (0, 0) };
        for number in 0..threads {
            let shared = Arc::clone(&this.shared);
            let thread = std::thread::Builder::new().name(format!("inlock-s{number}"));
            this.threads.push(thread.spawn(move || shared.run())?);
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
    pub fn with_wait_limit(mut self, limit: Duration) -> io::Result<Self> {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("inlock-s-limit".to_owned());
        self.threads.push(thread.spawn(move || shared.expire(limit))?);
        Ok(self)
    }
}

impl Drop for ThreadedStore {
    fn drop(&mut self) {
        self.shared.queue().is_ended = true;
        self.shared.close();
        self.shared.filled.notify_all();
        self.shared.ended.notify_all();
        for thread in self.threads.drain(..) {
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

    /// Carries out operations until the store is dropped.
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
                    queue = self.filled.wait(queue).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Fails what waits for too long, until the store is dropped. The queue is in the order of arrival, so that nothing
    /// has to wake this thread: what arrives while it sleeps has its limit later.
    fn expire(&self, limit: Duration) {
        let mut queue = self.queue();
        while !queue.is_ended {
            let rest = queue.waiting.front().map_or(limit, |first| limit.saturating_sub(first.since.elapsed()));
            if rest.is_zero() {
                let late = queue.waiting.pop_front();
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
        let call = || match pending.operation_mut() {
            AsyncOperation::Read { offset, buffer, range } => read_range(&*self.store, buffer, range, *offset),
            AsyncOperation::Write { offset, data, range, durable } => {
                write_range(&*self.store, data, range, *offset, *durable)
            }
            AsyncOperation::Sync => self.store.sync().map(|()| 0),
            AsyncOperation::Discard { offset, len } => self.store.discard(*offset, *len).map(|()| 0),
        };
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
        // Waking costs a system call; a busy thread takes the operation later.
        let is_idle = queue.idle > 0;
        queue.idle = queue.idle.saturating_sub(1);
        drop(queue);
        if is_idle {
            self.shared.filled.notify_one();
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
