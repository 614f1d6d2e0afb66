//! Requests that promise stable storage: they wait for a sync of the stores, which only one worker at a time carries
//! out ([`crate::flush`]).

use super::stores::StoreAccess;
use super::{ENGINE, Frontend, Worker};
use crate::errno::Errno;
use crate::events::{Event, RequestId};
use crate::flush::{SyncNumber, Turn};
use crate::ring::{Completion, Token};
use crate::store::StoreOperation;
use std::collections::VecDeque;

/// Token of the sync that this worker carries out.
pub(super) const TOKEN: Token = Token(ENGINE | 1 << 62);

/// State of a worker in the syncs of its device.
pub(super) struct Syncs {
    member: u64,
    /// Waiting requests in order of arrival, each with the sync that it needs.
    pub(super) waiting: VecDeque<(SyncNumber, RequestId)>,
    /// Store in the process of being synced; `None` unless this worker carries out a sync.
    store: Option<usize>,
}

impl Syncs {
    /// Returns the state with memory for `capacity` requests.
    pub(super) fn new(member: u64, capacity: usize) -> Self {
        Self { member, waiting: VecDeque::with_capacity(capacity), store: None }
    }
}

impl<F: Frontend> Worker<F> {
    /// Queues the request for [`Event::Synced`], which it gets when all writes completed before now are on stable
    /// storage.
    pub(super) fn await_sync(&mut self, id: RequestId) -> Option<Event> {
        if self.volume.access.is_empty() {
            // The table has only targets that store nothing.
            return Some(Event::Synced(self.volume.device.check_flush()));
        }
        let (number, turn) = self.volume.device.syncs().request(self.syncs.member);
        self.syncs.waiting.push_back((number, id));
        if turn == Turn::Lead && self.sync_stores(0) {
            self.check_syncs();
        }
        None
    }

    /// Syncs the stores from `first` on, on behalf of all users. Returns whether the sync has ended, as it has if all
    /// of them are called inline; if not, a completion continues with the rest.
    fn sync_stores(&mut self, first: usize) -> bool {
        let mut result = Ok(());
        for store in first..self.volume.access.len() {
            if self.volume.access[store] != StoreAccess::Inline {
                self.syncs.store = Some(store);
                self.submit(store, StoreOperation::Sync, TOKEN);
                return false;
            }
            result = self.volume.device.stores()[store].sync();
            if result.is_err() {
                break;
            }
        }
        self.syncs.store = None;
        self.volume.device.syncs().end(result);
        true
    }

    /// Handles the completion of a store's sync. A sync is never retried after any error: the kernel may have reported
    /// a lost write with it, and reports that only once.
    pub(super) fn store_synced(&mut self, result: Result<usize, Errno>) {
        let next = self.syncs.store.take().map_or(0, |store| store + 1);
        match result {
            Ok(_) if !self.sync_stores(next) => return,
            Ok(_) => {}
            Err(error) => self.volume.device.syncs().end(Err(error)),
        }
        self.check_syncs();
    }

    /// Completes the requests whose sync has ended, and carries out the next sync if no other worker does.
    pub(super) fn check_syncs(&mut self) {
        while let Some(&(number, id)) = self.syncs.waiting.front() {
            match self.volume.device.syncs().look(self.syncs.member, number) {
                Turn::Done => {
                    self.syncs.waiting.pop_front();
                    self.ready.push_back((id, Event::Synced(self.volume.device.check_flush())));
                }
                Turn::Lead if self.sync_stores(0) => {}
                Turn::Lead | Turn::Wait => return,
            }
        }
    }

    /// Gives up the sync that a worker that ends carries out. `ended`: the last completions of its ring.
    pub(super) fn leave_syncs<'a>(&mut self, ended: impl IntoIterator<Item = &'a Completion>) {
        let leading = self.syncs.store.take().map(|_| {
            let sync = ended.into_iter().find(|done| done.token == TOKEN);
            sync.map_or(Err(Errno::IO), |done| done.result.map(|_| ()))
        });
        self.volume.device.syncs().leave(self.syncs.member, leading);
    }
}
