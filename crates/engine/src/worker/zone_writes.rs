//! Writes to sequential zones, appends and zone management in a worker.
//!
//! Such a write takes no lock of units: it has whole ones only, and its place in the zone's queue keeps others away. It
//! is encrypted as soon as its position is known, and written when it is dispatched ([`crate::zone_queue`]).

use super::action::Hold;
use super::state::{Body, InFlight, Origin};
use super::transfer::State;
use super::zone_mgmt::ZoneMgmt;
use super::{Frontend, Request, Worker};
use crate::buffer::Buffer;
use crate::ciphertext::Ciphertext;
use crate::errno::Errno;
use crate::events::{Event, ReplyTo, RequestId};
use crate::mapping::MappedRange;
use crate::request::{Operation, RequestError};
use crate::store;
use crate::thread_pool::zone_mgmt::{ZoneMgmtJob, ZoneMgmtThread};
use crate::zone_mapping::{moved, ranges_of};
use crate::zone_queue::{Enqueued, Waiter, WriteId, WriteKind, WriteOutcome};
use crate::zoned::ZoneAction;
use std::sync::Arc;

/// Position of a transfer that begins in the zone write queues.
pub(super) enum ZonePlace {
    /// In no queue: it needs no order.
    Free,
    /// In the queue of its zone; it may be encrypted for this range.
    Queued(Hold, MappedRange),
    /// Deferred until the writes before it arrive.
    Deferred(Hold),
}

impl<F: Frontend> Worker<F> {
    /// Puts a write to a sequential zone into the zone's queue. `is_child`: a child request is not deferred, since it
    /// could not be taken back.
    pub(super) fn enqueue(
        &mut self,
        request: RequestId,
        operation: Operation,
        range: &MappedRange,
        is_child: bool,
    ) -> Result<ZonePlace, RequestError> {
        let kind = match operation {
            Operation::Append { .. } => WriteKind::Append,
            Operation::WriteReissued { .. } => WriteKind::Reissued,
            _ => WriteKind::Data,
        };
        let Some(zones) = self.volume.device.zones() else {
            return if kind == WriteKind::Append { Err(RequestError::Unsupported) } else { Ok(ZonePlace::Free) };
        };
        let (position, len) = (range.store_offset, range.aligned_len as u64);
        if range.is_partial() && zones.is_sequential(position, len)? {
            return Err(RequestError::Io(Errno::INVAL));
        }
        let waiter = Waiter::Request(ReplyTo::new(&self.events, request));
        Ok(match zones.enqueue(position, len, kind, !is_child, waiter)? {
            Enqueued::Free => ZonePlace::Free,
            Enqueued::Deferred(write) => ZonePlace::Deferred(Hold::ZoneWrite(write)),
            Enqueued::Placed(write, _) if kind != WriteKind::Append => {
                ZonePlace::Queued(Hold::ZoneWrite(write), *range)
            }
            Enqueued::Placed(write, position) => match moved(&self.volume.mapping, range, position) {
                Ok(moved) => ZonePlace::Queued(Hold::ZoneWrite(write), moved),
                Err(error) => {
                    self.leave_queue(write);
                    return Err(error);
                }
            },
        })
    }

    /// The ciphertext is in its zone's queue, and is dispatched at once if it is the head.
    pub(super) fn queue_write(&mut self, request: RequestId, data: Ciphertext, can_merge: bool) -> Option<Event> {
        let transfer = self.table.transfer(request)?;
        let (Hold::ZoneWrite(write), offset) = (transfer.hold, transfer.range.store_offset) else { return None };
        let zones = self.volume.device.zones()?;
        let data = zones.ready(write, offset, data, can_merge)?;
        Some(Event::Dispatched { data, position: zones.position(write) })
    }

    /// Takes the ciphertext of a write that is the head of its zone's queue.
    pub(super) fn dispatch(&mut self, request: RequestId) -> Option<Event> {
        let Hold::ZoneWrite(write) = self.table.transfer(request)?.hold else { return None };
        let zones = self.volume.device.zones()?;
        Some(Event::Dispatched { data: zones.take_data(write), position: zones.position(write) })
    }

    /// Compares a reissued write with what its zone has of it. Blocks: it is rare.
    pub(super) fn compare(&mut self, request: RequestId, data: Ciphertext) -> Option<Event> {
        let range = self.table.transfer(request)?.range;
        let store = &*self.volume.device.stores()[range.store as usize];
        let written = self.volume.device.zones().map_or(Ok(0), |zones| zones.written(range.store_offset));
        let present = written.and_then(|written| {
            let present = (written.saturating_sub(range.store_offset) as usize).min(range.aligned_len);
            let mut stored = Buffer::new(range.aligned_len);
            store::read_all(store, &mut stored.data_mut()[..present], range.store_offset)?;
            // The data differs: the drive returns the right error.
            Ok(if stored.data()[..present] == data.bytes()[..present] { present } else { 0 })
        });
        Some(Event::Compared { data, present })
    }

    /// A write has ended, and leaves its zone's queue, unless it is to be written elsewhere.
    pub(super) fn leave(&mut self, request: RequestId, data: Ciphertext, succeeded: bool) -> Option<Event> {
        let Hold::ZoneWrite(write) = self.table.transfer(request)?.hold else { return None };
        let zones = self.volume.device.zones()?;
        Some(match zones.complete_write(write, succeeded, Some(&self.events)) {
            WriteOutcome::Left { next, landed } => {
                self.ready.extend(next.map(|next| (next, Event::Released)));
                Event::Left { data, landed }
            }
            WriteOutcome::Reassigned(position) => Event::Reassigned { data, position },
        })
    }

    /// Gives up an entry of a zone's write queue.
    pub(super) fn leave_queue(&mut self, write: WriteId) {
        if let Some(zones) = self.volume.device.zones() {
            let next = zones.leave(write, Some(&self.events));
            self.ready.extend(next.map(|next| (next, Event::Released)));
        }
    }

    /// Puts a zone management operation into the queues of its zones. True: it is the head of all.
    pub(super) fn enqueue_mgmt(
        &mut self,
        request: RequestId,
        action: ZoneAction,
        offset: u64,
        len: u64,
    ) -> Result<(ZoneMgmt, bool), RequestError> {
        let zones = self.volume.device.zones().ok_or(RequestError::Unsupported)?;
        let ranges = ranges_of(&self.volume.mapping, action, zones.limits().zone_len, offset, len)?;
        if self.helpers.zone_mgmt.is_none() {
            self.helpers.zone_mgmt = Some(ZoneMgmtThread::start().map_err(RequestError::from)?);
        }
        let (id, is_head) = zones.enqueue_mgmt(action, ranges, Waiter::Request(ReplyTo::new(&self.events, request)));
        Ok((ZoneMgmt { id, is_posted: false }, is_head))
    }

    /// Gives a zone management operation to the thread that carries it out.
    pub(super) fn manage_zones(&mut self, request: RequestId) -> Option<Event> {
        let Body::ZoneMgmt(mgmt) = &self.table.get(request)?.body else { return None };
        let (device, reply) = (Arc::clone(&self.volume.device), ReplyTo::new(&self.events, request));
        let thread = self.helpers.zone_mgmt.as_ref()?;
        thread.post(ZoneMgmtJob { device, id: mgmt.id, reply });
        None
    }

    /// Takes back the writes that are deferred. They wait with the other requests now.
    pub(super) fn take_back_deferred(&mut self) {
        let Some(zones) = self.volume.device.zones().filter(|zones| zones.has_deferred()) else { return };
        let is_back = |body: &Body| match body {
            Body::Transfer(transfer) => match (&transfer.state, transfer.hold) {
                (State::Deferred { .. }, Hold::ZoneWrite(write)) => zones.try_take_back(write),
                _ => false,
            },
            _ => false,
        };
        let back: Vec<_> =
            self.table.iter_mut().filter(|(_, request)| is_back(&request.body)).map(|(id, _)| id).collect();
        for id in back {
            self.put_back(id);
        }
    }

    /// Makes a deferred write a request again that has not begun.
    fn put_back(&mut self, id: RequestId) {
        let Some(InFlight { origin: Origin::Frontend(number), account, body: Body::Transfer(transfer) }) =
            self.table.get(id)
        else {
            return;
        };
        let State::Deferred { data } = std::mem::replace(&mut transfer.state, State::Stepping) else { return };
        self.requests.push_front(Request {
            id: *number,
            operation: account.operation,
            offset: transfer.range.offset,
            len: transfer.range.len as u64,
            data: Some((transfer.range, data)),
            spare: transfer.spare.take(),
        });
        self.table.remove(id);
    }

    /// Gives up the entries of a worker that ends, none of which is in flight.
    pub(super) fn leave_zones(&mut self) {
        self.helpers.zone_mgmt = None;
        let Some(zones) = self.volume.device.zones() else { return };
        for (_, request) in self.table.iter_mut() {
            match &mut request.body {
                Body::Transfer(transfer) => {
                    if let Hold::ZoneWrite(write) = std::mem::replace(&mut transfer.hold, Hold::None) {
                        let _ = zones.leave(write, None);
                    }
                }
                // An operation passed to the thread has ended.
                Body::ZoneMgmt(mgmt) if !mgmt.is_posted => zones.leave_mgmt(mgmt.id),
                _ => {}
            }
        }
        zones.leave_worker(self.volume.zone_worker);
        zones.unreserve(self.volume.lock_room);
    }
}
