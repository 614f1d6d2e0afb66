//! Performs the actions of steps: the only module that uses the ring, the locks, the queues and the helper threads.

use super::account::Account;
use super::action::{Action, Ending, Hold};
use super::path::{Order, Via};
use super::state::{Body, Origin};
use super::stores::StoreAccess;
use super::transfer::{Kind, StepContext};
use super::{ENGINE, Finished, Frontend, Worker};
use crate::buffer::Buffer;
use crate::cipher_engine::Direction;
use crate::ciphertext::Ciphertext;
use crate::events::{Event, ReplyTo, RequestId};
use crate::locks::Purpose;
use crate::mapping::MappedRange;
use crate::request::RequestError;
use crate::ring::{Completion, Returned, Token};
use crate::stats::Phase;
use crate::store::StoreOperation;
use crate::thread_pool::copy::CopyJob;
use std::ops::Range;
use std::sync::Arc;

impl<F: Frontend> Worker<F> {
    /// Advances a request by an event, and by those that follow at once, until it waits for another one or has ended.
    /// Drops an event for a request that has ended.
    pub(super) fn advance(&mut self, id: RequestId, mut event: Event) {
        while let Some(request) = self.table.get(id) {
            let crypt = self.volume.crypt.as_deref().expect("the keys are here while a request is in flight");
            if matches!(event, Event::Discarded(_) | Event::Synced(_) | Event::ZonesManaged(_)) {
                request.account.lap(Phase::Store);
            }
            let action = match &mut request.body {
                Body::Transfer(transfer) => {
                    let has_lost_writes = self.volume.device.has_lost_writes();
                    transfer.step(event, &mut request.account, &StepContext { crypt, has_lost_writes })
                }
                Body::Discard(discard) => discard.step(event, &self.volume.mapping),
                Body::ZoneMgmt(mgmt) => mgmt.step(event),
                Body::Remapped(remapped) => remapped.step(event),
                Body::Flush => match event {
                    Event::Synced(result) => Action::Finish(Ending::new(result, None)),
                    event => unreachable!("{event:?} of a flush"),
                },
            };
            match self.perform(id, action) {
                Some(next) => event = next,
                None => return,
            }
        }
    }

    /// Performs an action. Returns the event if it has happened already.
    pub(super) fn perform(&mut self, id: RequestId, action: Action) -> Option<Event> {
        match action {
            Action::Wait => None,
            Action::Lock => self.lock(id),
            Action::BeginAgain { data } => self.begin_again(id, data),
            Action::Read { via, offset, buffer, span } => self.read(id, via, offset, buffer, span),
            Action::Write { via, offset, data, span, fua } => self.write(id, via, offset, data, span, fua),
            Action::Crypt { direction, buffer } => self.post_crypt(id, direction, buffer),
            Action::Copy { writes, buffer } => self.post_copy(id, writes, buffer),
            Action::Queue { data, can_merge } => self.queue_write(id, data, can_merge),
            Action::Dispatch => self.dispatch(id),
            Action::Merge { data } => self.merge(id, data),
            Action::Compare { data } => self.compare(id, data),
            Action::Leave { data, succeeded } => self.leave(id, data, succeeded),
            Action::Sync => {
                // The bytes are in the store: reads of them need not wait for the sync.
                if let Some(hold) = self.table.hold(id).map(|hold| std::mem::replace(hold, Hold::None)) {
                    self.release(hold);
                }
                self.await_sync(id)
            }
            Action::Discard { store, range } => self.discard(id, store, range),
            Action::ZoneMgmt => self.manage_zones(id),
            Action::Child => self.start_child(id),
            Action::Finish(ending) => {
                self.finish(id, ending);
                None
            }
        }
    }

    fn lock(&mut self, id: RequestId) -> Option<Event> {
        let locks = self.volume.device.locks();
        let transfer = match &mut self.table.get(id)?.body {
            Body::Transfer(transfer) => transfer,
            Body::Discard(discard) => {
                if let Hold::Units(piece) = discard.hold {
                    locks.unlock(piece);
                }
                let range = discard.locking.as_ref().expect("a discard locks the piece that waits");
                let (lock, is_held) = locks.lock(range, Purpose::Write, || ReplyTo::new(&self.events, id));
                discard.hold = Hold::Units(lock);
                return is_held.then_some(Event::Locked);
            }
            _ => return None,
        };
        let all = if transfer.path.order == Order::AllShared { locks.try_lock_all_shared() } else { None };
        let (lock, is_held) = all.map_or_else(
            || {
                let purpose = if transfer.kind == Kind::Read { Purpose::Read } else { Purpose::Write };
                locks.lock(&transfer.range, purpose, || ReplyTo::new(&self.events, id))
            },
            |lock| (lock, true),
        );
        transfer.hold = Hold::Units(lock);
        is_held.then_some(Event::Locked)
    }

    fn read(&mut self, id: RequestId, via: Via, offset: u64, mut buffer: Buffer, span: Range<usize>) -> Option<Event> {
        let store = self.table.transfer(id)?.range.store as usize;
        match via {
            Via::Operation => {
                self.submit(store, StoreOperation::Read { offset, buffer, range: span }, token(id));
                None
            }
            Via::Inline => {
                let result = self.volume.device.stores()[store].read_at(&mut buffer.data_mut()[span], offset);
                Some(Event::Read { buffer, result })
            }
        }
    }

    fn write(
        &mut self,
        id: RequestId,
        via: Via,
        offset: u64,
        data: Ciphertext,
        span: Range<usize>,
        durable: bool,
    ) -> Option<Event> {
        let store = self.table.transfer(id)?.range.store as usize;
        match via {
            Via::Operation => {
                self.submit(store, StoreOperation::Write { offset, data, range: span, durable }, token(id));
                None
            }
            Via::Inline => {
                let (store, bytes) = (&self.volume.device.stores()[store], &data.bytes()[span]);
                let result = if durable { store.write_fua_at(bytes, offset) } else { store.write_at(bytes, offset) };
                Some(Event::Written { data, result })
            }
        }
    }

    fn discard(&mut self, id: RequestId, store: u32, range: Range<u64>) -> Option<Event> {
        let (store, offset, len) = (store as usize, range.start, range.end - range.start);
        if self.volume.access[store] == StoreAccess::Inline {
            return Some(Event::Discarded(self.volume.device.stores()[store].discard(offset, len)));
        }
        self.submit(store, StoreOperation::Discard { offset, len }, token(id));
        None
    }

    fn post_crypt(&mut self, id: RequestId, direction: Direction, buffer: Buffer) -> Option<Event> {
        let range = self.table.transfer(id)?.range;
        if let Some(crypt) = &self.volume.crypt
            && let Some(keys) = crypt.engine_for(&range)
        {
            let (whole, reply) = (Arc::clone(crypt), ReplyTo::new(&self.events, id));
            return keys.submit(whole, &range, direction, buffer, reply).err().map(Event::Refused);
        }
        let (Some(pool), Some(crypt)) = (&self.helpers.crypt, &self.volume.crypt) else {
            return Some(Event::Refused(buffer));
        };
        let reply = ReplyTo::new(&self.events, id);
        pool.post(crypt, &range, direction, buffer, reply).err().map(Event::Refused)
    }

    fn post_copy(&mut self, id: RequestId, writes: bool, buffer: Buffer) -> Option<Event> {
        let range = self.table.transfer(id)?.range;
        let (Some(copy), Some(crypt)) = (&self.helpers.copy, &self.volume.crypt) else {
            return Some(Event::Refused(buffer));
        };
        let (crypt, store) = (Arc::clone(crypt), Arc::clone(&self.volume.device.stores()[range.store as usize]));
        let job = CopyJob { crypt, store, range, buffer, writes, reply: ReplyTo::new(&self.events, id) };
        copy.post(job).err().map(|job| Event::Refused(job.buffer))
    }

    /// Handles the completion of an operation of the ring or of an asynchronous store.
    pub(super) fn store_completed(&mut self, done: Completion) {
        let Completion { token, result, returned } = done;
        let event = match returned {
            Returned::Segments(segments) => return self.merged_written(segments, result),
            _ if token == super::sync::TOKEN => return self.store_synced(result),
            Returned::Buffer(buffer) => Event::Read { buffer, result },
            Returned::Ciphertext(data) => Event::Written { data, result },
            Returned::Nothing | Returned::Outgoing(_) => Event::Discarded(result.map(|_| ())),
        };
        self.advance(request(token), event);
    }

    fn finish(&mut self, id: RequestId, ending: Ending) {
        let Some(request) = self.table.get(id) else { return };
        let Ending { result, data, lost_writes } = ending;
        let (hold, data, spare) = match &mut request.body {
            Body::Transfer(transfer) => {
                let hold = std::mem::replace(&mut transfer.hold, Hold::None);
                (hold, data.map(|data| (transfer.range, data)), transfer.spare.take())
            }
            Body::Remapped(remapped) => (Hold::None, data.map(|data| (remapped.whole, data)), remapped.spare.take()),
            Body::Discard(discard) => (std::mem::replace(&mut discard.hold, Hold::None), None, None),
            Body::Flush | Body::ZoneMgmt(_) => (Hold::None, None, None),
        };
        if lost_writes {
            self.volume.device.syncs().note_lost_writes();
        }
        self.release(hold);
        self.report(id, result, data, spare);
    }

    /// Counts a request that has ended, removes it, and tells the frontend or its parent.
    pub(super) fn report(
        &mut self,
        id: RequestId,
        result: Result<(), RequestError>,
        data: Option<(MappedRange, Buffer)>,
        spare: Option<Buffer>,
    ) {
        let Some(request) = self.table.get(id) else { return };
        match request.origin {
            Origin::Frontend(id) => {
                let Account { operation, timing, work } = &request.account;
                self.shard.recorder().finish(*operation, &result, work, timing.as_ref());
                self.finished.push_back(Finished { id, result, data, spare });
            }
            Origin::Parent(parent) => {
                let (range, buffer) = data.expect("a child request has a buffer");
                self.ready.push_back((parent, Event::Child { buffer, requested: range.requested(), result }));
            }
        }
        self.table.remove(id);
    }

    /// Gives up what a transfer holds.
    pub(super) fn release(&mut self, hold: Hold) {
        match hold {
            Hold::None => {}
            Hold::Units(lock) => self.volume.device.locks().unlock(lock),
            Hold::ZoneWrite(write) => self.leave_queue(write),
        }
    }
}

/// The token of a request's operation.
fn token(id: RequestId) -> Token {
    Token(ENGINE | u64::from(id.generation) << 32 | u64::from(id.index))
}

/// The request whose operation has this token.
fn request(token: Token) -> RequestId {
    RequestId { index: token.0 as u32, generation: (token.0 >> 32) as u32 & RequestId::GENERATIONS }
}
