//! Syncs of a device's stores, one at a time for all users.
//!
//! The kernel reports a write-back error once per open file description. Of two concurrent syncs one would get the
//! error and the other would succeed, so there is only ever one. A request that arrives during a sync waits for the
//! next one, which covers every write completed before it begins, and shares it with all other waiting requests. A
//! failed sync is recorded before the next one can begin; every later flush fails.

use crate::errno::Errno;
use crate::request::RequestError;
use crate::ring::Waker;
use crate::sync::{AtomicBool, Condvar, Mutex, MutexGuard, Ordering, PoisonError};

/// Number of a sync. A request waits until a sync of this number or a later one has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SyncNumber(u64);

/// Next step of a user that requested a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The caller syncs the stores now, and calls [`SyncQueue::end`] with the result.
    Lead,
    /// Another user syncs the stores. The caller is woken when that sync has ended.
    Wait,
    /// The sync has ended.
    Done,
}

#[derive(Default)]
pub(crate) struct SyncQueue {
    state: Mutex<State>,
    stopped: Condvar,
    /// Set by the first failed sync: the kernel has dropped the dirty state, so that a later success would be wrong.
    lost_writes: AtomicBool,
}

#[derive(Default)]
struct State {
    running: bool,
    begun: u64,
    ended: u64,
    workers: Vec<Member>,
    next_member: u64,
}

/// Registered worker.
struct Member {
    id: u64,
    waker: Waker,
    /// Whether its requests wait.
    waits: bool,
}

impl SyncQueue {
    /// Registers a worker that `waker` wakes when it waits, and returns its number.
    pub(crate) fn join(&self, waker: Waker) -> u64 {
        let mut state = self.state();
        let id = state.next_member;
        state.next_member += 1;
        state.workers.push(Member { id, waker, waits: false });
        id
    }

    /// Deregisters a worker that ends. `leading`: the result of the sync that it leads; an error if that is unknown.
    pub(crate) fn leave(&self, member: u64, leading: Option<Result<(), Errno>>) {
        match leading {
            Some(Ok(())) => self.give_up(),
            Some(error) => self.end(error),
            None => {}
        }
        self.state().workers.retain(|worker| worker.id != member);
    }

    /// Requests a sync that begins after this call, for a worker.
    pub(crate) fn request(&self, member: u64) -> (SyncNumber, Turn) {
        let mut state = self.state();
        let number = SyncNumber(state.begun + 1);
        (number, state.take_turn(Some(member)))
    }

    /// Returns the next step for the requests of a worker that was woken and wait for `number`.
    pub(crate) fn look(&self, member: u64, number: SyncNumber) -> Turn {
        let mut state = self.state();
        if state.ended >= number.0 { Turn::Done } else { state.take_turn(Some(member)) }
    }

    /// Requests a sync that begins after this call and blocks until it has ended.
    ///
    /// # Errors
    ///
    /// `EIO` after a failed sync, this one or an earlier one.
    pub(crate) fn sync_blocking(&self, sync: impl FnOnce() -> Result<(), Errno>) -> Result<(), RequestError> {
        self.check()?;
        let state = self.state();
        let number = state.begun + 1;
        let runs = |state: &mut State| state.running && state.ended < number;
        let mut state = self.stopped.wait_while(state, runs).unwrap_or_else(PoisonError::into_inner);
        let leads = state.ended < number && state.take_turn(None) == Turn::Lead;
        drop(state);
        if leads {
            // A store that panics has not synced.
            let mut leader = Leader { queue: self, result: Err(Errno::IO) };
            leader.result = sync();
        }
        self.check()
    }

    /// Ends the sync that the caller leads.
    pub(crate) fn end(&self, result: Result<(), Errno>) {
        let mut state = self.state();
        if result.is_err() {
            self.note_lost_writes();
        }
        state.ended = state.begun;
        self.wake(state);
    }

    /// Withdraws a caller that does not finish its sync: none of its own requests remains, and others' proceed.
    fn give_up(&self) {
        self.wake(self.state());
    }

    fn wake(&self, mut state: MutexGuard<'_, State>) {
        state.running = false;
        for worker in state.workers.iter_mut().filter(|worker| worker.waits) {
            worker.waits = false;
            worker.waker.wake();
        }
        drop(state);
        self.stopped.notify_all();
    }

    /// Makes every later promise of stable storage fail.
    pub(crate) fn note_lost_writes(&self) {
        self.lost_writes.store(true, Ordering::Release);
    }

    pub(crate) fn has_lost_writes(&self) -> bool {
        self.lost_writes.load(Ordering::Acquire)
    }

    /// Fails if a flush has failed.
    pub(crate) fn check(&self) -> Result<(), RequestError> {
        if self.has_lost_writes() { Err(RequestError::Io(Errno::IO)) } else { Ok(()) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends a sync when it is dropped.
struct Leader<'a> {
    queue: &'a SyncQueue,
    result: Result<(), Errno>,
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        self.queue.end(self.result);
    }
}

impl State {
    fn take_turn(&mut self, member: Option<u64>) -> Turn {
        if !self.running {
            self.running = true;
            self.begun += 1;
            return Turn::Lead;
        }
        let waiting = self.workers.iter_mut().find(|worker| Some(worker.id) == member);
        waiting.into_iter().for_each(|worker| worker.waits = true);
        Turn::Wait
    }
}
