//! Requests that promise stable storage: they wait for a sync of the stores, which one of all workers carries out at a time
//! ([`crate::flush`]).

use super::{Frontend, OWN, Step, Worker};
use crate::flush::{SyncNumber, Turn};
use crate::request::RequestError;
use crate::ring::{self, Completion, Token};
use crate::stats::Phase;
use rustix::io::Errno;
use std::collections::VecDeque;

/// The sync that this worker carries out, whichever requests it is for.
pub(super) const TOKEN: Token = Token(OWN | 1 << 62);

/// A worker's part in the syncs of its device.
pub(super) struct Syncs {
    member: u64,
    /// Requests that wait, in the order of their arrival, each with the sync that it needs.
    pub(super) waiting: VecDeque<(SyncNumber, u32)>,
    /// The store that is being synced, while this worker carries a sync out.
    store: Option<usize>,
}

impl Syncs {
    /// For `most` requests at a time.
    pub(super) fn new(member: u64, most: usize) -> Self {
        Self { member, waiting: VecDeque::with_capacity(most), store: None }
    }
}

impl<F: Frontend> Worker<F>
where
    F::Message: 'static,
{
    /// Ends a request when all that was answered before now is on stable storage.
    pub(super) fn await_sync(&mut self, index: u32) {
        self.flight(index).step = Step::Sync;
        if self.stores.is_empty() {
            // A table of lines that store nothing.
            return self.synced(index);
        }
        let (number, turn) = self.device.syncs().request(self.syncs.member);
        self.syncs.waiting.push_back((number, index));
        if turn == Turn::Lead {
            self.sync_store(0);
        }
    }

    /// Ends a durable write whose bytes are written, or were refused.
    pub(super) fn make_durable(&mut self, index: u32, outcome: Result<(), Errno>) {
        let flight = self.flight(index);
        let mapped = flight.mapped.expect("a write has an mapped");
        let lock = flight.lock.take();
        let native = self.device.stores()[mapped.store as usize].has_native_fua();
        // The bytes are in the store: a sync holds up nobody who wants to read them.
        lock.into_iter().for_each(|lock| self.device.locks().unlock(lock));
        match outcome {
            Ok(()) if native => {
                let result = self.device.check_flush();
                self.finish(index, result);
            }
            Ok(()) => self.await_sync(index),
            // No room for these bytes: whether others are lost as well is known to the store only.
            Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) if native => {
                self.flight(index).failed = Some(error);
                self.await_sync(index);
            }
            Err(error) => {
                // The disk may have failed to empty its cache.
                if native {
                    self.device.syncs().note_lost_writes();
                }
                self.finish(index, Err(RequestError::Io(error)));
            }
        }
    }

    fn sync_store(&mut self, store: usize) {
        self.syncs.store = Some(store);
        self.submit_as(TOKEN, store as u32, ring::Operation::Sync);
    }

    /// A store was synced, as part of the sync that this worker carries out. Never tried again, whatever the error is: the
    /// kernel may have reported a lost write with it, and would not do so twice.
    pub(super) fn store_synced(&mut self, result: Result<usize, Errno>) {
        let next = self.syncs.store.map_or(0, |store| store + 1);
        if result.is_ok() && next < self.stores.len() {
            return self.sync_store(next);
        }
        self.syncs.store = None;
        self.device.syncs().end(result.map(|_| ()));
        self.look_at_syncs();
    }

    /// Ends the requests whose sync has ended, and carries out the next one where no other worker does.
    pub(super) fn look_at_syncs(&mut self) {
        while let Some(&(number, index)) = self.syncs.waiting.front() {
            match self.device.syncs().look(self.syncs.member, number) {
                Turn::Done => {
                    self.syncs.waiting.pop_front();
                    self.synced(index);
                }
                Turn::Lead => return self.sync_store(0),
                Turn::Wait => return,
            }
        }
    }

    fn synced(&mut self, index: u32) {
        let synced = self.device.check_flush();
        let flight = self.flight(index);
        flight.lap(Phase::Store);
        let result = flight.failed.map_or(synced, |error| Err(RequestError::Io(error)));
        self.finish(index, result);
    }
}

impl<F: Frontend> Worker<F> {
    /// Gives up the sync that a worker that ends has begun. `ended`: the last completions of its ring.
    pub(super) fn leave_syncs<'a>(&mut self, ended: impl IntoIterator<Item = &'a Completion>) {
        let leading = self.syncs.store.take().map(|_| {
            let sync = ended.into_iter().find(|done| done.token == TOKEN);
            sync.map_or(Err(Errno::IO), |done| done.result.map(|_| ()))
        });
        self.device.syncs().leave(self.syncs.member, leading);
    }
}
