//! Helper threads: cipher work, long copies and zone management that a worker does not do itself.
//!
//! A kind of job has a queue and threads of its own, so that a zone management operation, which a drive may take long over,
//! delays no copy. All kinds have the loop in this file: take a task, run it, catch a panic, overwrite what the cipher may
//! have left on the stack, take the task back, and post the event of the job's request once no key is held for it. A worker
//! never waits for a helper. A queue that is full or closed refuses the job, and the worker does the work inline.

pub(crate) mod copy;
pub(crate) mod crypt;
mod loan;
pub(crate) mod zone_mgmt;

use crate::crypt_mapping::CALL_STACK;
use inlock_cipher::scrub_stack;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// The jobs of one kind.
pub(crate) trait JobQueue: Send + 'static {
    /// Unit of work of one thread: a job, or a part of one.
    type Task: Send;
    /// A job that is done.
    type Done;

    /// Takes the next task.
    fn next(&mut self) -> Option<Self::Task>;

    /// Does the work. May panic.
    fn run(task: &mut Self::Task);

    /// Takes a task back that was run. Returns its job if this was the last of it.
    fn take_back(&mut self, task: Self::Task, panicked: bool) -> Option<Self::Done>;

    /// Drops the keys of a job and posts the event of its request.
    fn complete(done: Self::Done);
}

/// Threads that work off a queue of jobs. Dropping them finishes what is queued, and joins them.
pub(crate) struct Threads<Q: JobQueue> {
    shared: Arc<Shared<Q>>,
    handles: Vec<JoinHandle<()>>,
}

struct Shared<Q> {
    state: Mutex<State<Q>>,
    /// A job was queued, or the queue was closed.
    changed: Condvar,
}

struct State<Q> {
    queue: Q,
    /// Threads that wait for a job.
    idle: usize,
    closed: bool,
}

impl<Q: JobQueue> Threads<Q> {
    /// Starts a thread for each name.
    pub(crate) fn start(queue: Q, names: impl Iterator<Item = String>) -> io::Result<Self> {
        let mut threads = Self::without_threads(queue);
        for name in names {
            let shared = Arc::clone(&threads.shared);
            // The threads that were started so far end when this is dropped.
            threads.handles.push(std::thread::Builder::new().name(name).spawn(move || shared.work())?);
        }
        Ok(threads)
    }

    fn without_threads(queue: Q) -> Self {
        let state = Mutex::new(State { queue, idle: 0, closed: false });
        Self { shared: Arc::new(Shared { state, changed: Condvar::new() }), handles: Vec::new() }
    }

    /// Queues a job by `push`, which returns the number of tasks in it, or the job if there is no room.
    pub(crate) fn post<J>(&self, job: J, push: impl FnOnce(&mut Q, J) -> Result<usize, J>) -> Result<(), J> {
        let mut state = self.shared.state();
        if state.closed {
            return Err(job);
        }
        let tasks = push(&mut state.queue, job)?;
        let idle = state.idle;
        drop(state);
        match tasks {
            _ if idle == 0 => {}
            1 => self.shared.changed.notify_one(),
            _ => self.shared.changed.notify_all(),
        }
        Ok(())
    }

    /// Whether a thread waits for a job.
    pub(crate) fn has_idle(&self) -> bool {
        self.shared.state().idle > 0
    }

    /// Takes no more jobs. Those that are queued are finished.
    pub(crate) fn close(&self) {
        self.shared.state().closed = true;
        self.shared.changed.notify_all();
    }
}

impl<Q: JobQueue> Drop for Threads<Q> {
    fn drop(&mut self) {
        self.close();
        for handle in self.handles.drain(..) {
            // Panics are caught inside the thread; join cannot fail.
            let _ = handle.join();
        }
    }
}

impl<Q: JobQueue> Shared<Q> {
    fn state(&self) -> MutexGuard<'_, State<Q>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs tasks until the queue is closed and empty.
    fn work(&self) {
        while let Some(mut task) = self.next() {
            // A panic must not end the thread: the job's request waits for its buffer.
            let panicked = std::panic::catch_unwind(AssertUnwindSafe(|| Q::run(&mut task))).is_err();
            scrub_stack::<CALL_STACK>();
            let done = self.state().queue.take_back(task, panicked);
            if let Some(done) = done {
                Q::complete(done);
            }
        }
    }

    fn next(&self) -> Option<Q::Task> {
        let mut state = self.state();
        loop {
            if let Some(task) = state.queue.next() {
                return Some(task);
            }
            if state.closed {
                return None;
            }
            state.idle += 1;
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }
}
