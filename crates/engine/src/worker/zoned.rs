//! Writes to sequential zones, appends and orders to zones, on their way through a worker.
//!
//! Such a write takes no lock of units: it has none in part, and its place in the zone's queue keeps others away. It is
//! encrypted as soon as its position is known, and written when it is its turn ([`crate::zoned::queue`]).

use super::{Frontend, Step, Worker};
use crate::buffer::Buffer;
use crate::crypt_mapping::{Ciphertext, MappedRange};
use crate::mapping::Mapping;
use crate::request::{Operation, RequestError};
use crate::stats::Phase;
use crate::store;
use crate::zoned::ZoneAction;
use crate::zoned::mgmt_thread::{Order, ZoneMgmtThread};
use crate::zoned::queue::{Enqueued, Waiter, WriteKind, WriteOutcome};
use rustix::io::Errno;
use std::ops::Range;
use std::sync::Arc;

/// The place in the device of an append that lands at `position` of its store.
pub(crate) fn moved(mapping: &Mapping, mapped: &MappedRange, position: u64) -> Result<MappedRange, RequestError> {
    // It may move towards the beginning, and the store begin before the device.
    let offset = mapped.offset.wrapping_add(position.wrapping_sub(mapped.store_offset));
    let placed = mapping.locate(offset, mapped.len as u64, mapped.aligned_len.max(2 * mapped.unit_len))?;
    // Where sectors' numbers start over, a write that is not to be split has no place.
    if placed.aligned_len == mapped.aligned_len { Ok(placed) } else { Err(RequestError::Io(Errno::IO)) }
}

/// The stretches of the store that an order to the zones of a range means.
pub(crate) fn ranges_of(
    mapping: &Mapping,
    action: ZoneAction,
    zone_len: u64,
    offset: u64,
    len: u64,
) -> Result<Vec<Range<u64>>, RequestError> {
    let whole = action == ZoneAction::ResetAll;
    let (offset, len) = if whole { (0, mapping.len) } else { (offset, len) };
    let end = offset.checked_add(len).filter(|end| *end <= mapping.len).ok_or(RequestError::OutOfRange)?;
    let at_border = |position: u64| position.is_multiple_of(zone_len);
    if !at_border(offset) || !(at_border(end) || end == mapping.len) || len == 0 {
        return Err(RequestError::Io(Errno::INVAL));
    }
    let mut ranges = Vec::new();
    let mut at = offset;
    while at < end {
        let place = mapping.place(at, end - at)?;
        ranges.push(place.store_offset..place.store_offset + place.len);
        at += place.len;
    }
    Ok(ranges)
}

impl<F: Frontend> Worker<F>
where
    F::Message: 'static,
{
    /// Whether a write was taken on as one to a sequential zone. False: no order is asked for.
    pub(super) fn begin_in_zone(&mut self, index: u32, mapped: &MappedRange) -> Result<bool, RequestError> {
        let device = Arc::clone(&self.device);
        let flight = self.flight(index);
        let part = flight.parent.is_some();
        let kind_of_write = match flight.operation {
            Operation::Append { .. } => WriteKind::Append,
            Operation::WriteReissued { .. } => WriteKind::Reissued,
            _ => WriteKind::Data,
        };
        let append = kind_of_write == WriteKind::Append;
        let Some(zones) = device.zones() else {
            return if append { Err(RequestError::Unsupported) } else { Ok(false) };
        };
        if mapped.is_partial() && zones.is_sequential(mapped.store_offset, mapped.aligned_len as u64)? {
            return Err(RequestError::Io(Errno::INVAL));
        }
        let waiter = Waiter::Message(Arc::clone(&self.queued), index.into());
        // A part is not held: it could not be taken back, since it is no request of the frontend's.
        let enqueued = zones.enqueue(mapped.store_offset, mapped.aligned_len as u64, kind_of_write, !part, waiter)?;
        let flight = self.flight(index);
        match enqueued {
            Enqueued::Free => return Ok(false),
            Enqueued::Deferred(write) => {
                flight.write = Some(write);
                flight.step = Step::Held;
            }
            Enqueued::Placed(write, position) => {
                flight.write = Some(write);
                if append {
                    let placed = moved(&self.mapping, mapped, position)?;
                    self.flight(index).mapped = Some(placed);
                }
                self.in_its_zone(index);
            }
        }
        Ok(true)
    }

    /// The write is in its zone's queue: its cipher work may begin.
    pub(super) fn in_its_zone(&mut self, index: u32) {
        self.flight(index).lap(Phase::Queue);
        self.encrypt_and_write(index);
    }

    /// The write is encrypted, and goes to the store when it is its turn.
    pub(super) fn await_turn(&mut self, index: u32, data: Ciphertext) {
        let device = Arc::clone(&self.device);
        let Some(zones) = device.zones() else { return };
        let flight = self.flight(index);
        flight.step = Step::Turn;
        let write = flight.write.expect("only writes with a write wait for a turn");
        let mapped = flight.mapped.expect("a write has an mapped");
        let can_merge = !flight.operation.durable() && !matches!(flight.operation, Operation::WriteReissued { .. });
        if let Some(data) = zones.ready(write, mapped.store_offset, data, can_merge) {
            self.write_in_turn(index, data);
        }
    }

    /// It is the turn of a write or of an order.
    pub(super) fn its_turn(&mut self, index: u32) {
        let device = Arc::clone(&self.device);
        let Some(zones) = device.zones() else { return };
        let flight = self.flight(index);
        if let Some(action) = flight.action {
            flight.step = Step::Zones;
            return self.order_zones(index, action);
        }
        let write = flight.write.expect("only writes with a write wait for a turn");
        self.write_in_turn(index, zones.take_data(write));
    }

    fn write_in_turn(&mut self, index: u32, data: Ciphertext) {
        let device = Arc::clone(&self.device);
        let Some(zones) = device.zones() else { return };
        let flight = self.flight(index);
        flight.lap(Phase::Queue);
        let write = flight.write.expect("only writes with a write have turns");
        let again = matches!(flight.operation, Operation::WriteReissued { .. });
        match self.reassign(index, zones.position(write), data) {
            Ok(data) if again => self.write_what_is_missing(index, data),
            Ok(data) => self.write_gathered(index, write, data),
            Err(error) => self.finish(index, Err(error)),
        }
    }

    /// The data of a write, encrypted for `position`, which it may not have been.
    pub(super) fn reassign(&mut self, index: u32, position: u64, data: Ciphertext) -> Result<Ciphertext, RequestError> {
        let mapped = self.flight(index).mapped.expect("a write has an mapped");
        if mapped.store_offset == position {
            return Ok(data);
        }
        let placed = match moved(&self.mapping, &mapped, position) {
            Ok(placed) => placed,
            Err(error) => {
                self.flight(index).buffer = Some(data.into_buffer());
                return Err(error);
            }
        };
        let plain = self.target().decrypt(&mapped, data);
        let data = self.target().encrypt(&placed, plain);
        let flight = self.flight(index);
        flight.mapped = Some(placed);
        flight.ciphered(2, 2 * mapped.aligned_len);
        Ok(data)
    }

    pub(super) fn write_now(&mut self, index: u32, data: Ciphertext) {
        let flight = self.flight(index);
        flight.step = Step::Write;
        flight.progress = 0;
        self.store_write(index, data);
    }

    /// Writes what a process that died has not written; what it has must be the same. Blocks: it is rare.
    fn write_what_is_missing(&mut self, index: u32, data: Ciphertext) {
        let mapped = self.flight(index).mapped.expect("a write has an mapped");
        let store = Arc::clone(&self.device.stores()[mapped.store as usize]);
        let written = self.device.zones().map_or(Ok(0), |zones| zones.written(mapped.store_offset));
        let there = written.map(|w| (w.saturating_sub(mapped.store_offset) as usize).min(mapped.aligned_len));
        let mut stored = Buffer::new(mapped.aligned_len);
        let same = there.and_then(|there| {
            store::read_all(&*store, &mut stored.data_mut()[..there], mapped.store_offset)?;
            Ok((there, stored.data()[..there] == data.bytes()[..there]))
        });
        match same {
            // The drive says what is wrong.
            Ok((_, false)) | Ok((0, true)) => self.write_now(index, data),
            Ok((there, true)) if there == mapped.aligned_len => {
                let flight = self.flight(index);
                flight.buffer = Some(data.into_buffer());
                if flight.operation.durable() { self.await_sync(index) } else { self.finish(index, Ok(())) }
            }
            Ok((there, true)) => {
                let flight = self.flight(index);
                flight.step = Step::Write;
                flight.progress = there;
                self.store_write(index, data);
            }
            Err(error) => {
                self.flight(index).buffer = Some(data.into_buffer());
                self.finish(index, Err(RequestError::Io(error)));
            }
        }
    }

    /// Takes note of how a write with a write ended. False: it goes on.
    pub(super) fn complete_write(
        &mut self,
        index: u32,
        outcome: Result<bool, Errno>,
        data: &mut Option<Ciphertext>,
    ) -> bool {
        let device = Arc::clone(&self.device);
        let Some(write) = self.flight(index).write else { return true };
        let zones = device.zones().expect("entries are those of zones");
        match zones.complete_write(write, outcome.is_ok(), Some(&self.queued)) {
            WriteOutcome::Left { next, landed } => {
                let flight = self.flight(index);
                flight.write = None;
                let refused = outcome.err().filter(|_| !landed && flight.operation.durable());
                if let Some(error) = refused {
                    // In the wrong place, say, which tells nothing of other writes. Only the store knows of those.
                    flight.failed = Some(error);
                    flight.buffer = data.take().map(Ciphertext::into_buffer);
                }
                self.turns.extend(next.map(|token| token as u32));
                if refused.is_some() {
                    self.await_sync(index);
                }
                refused.is_none()
            }
            WriteOutcome::Reassigned(position) => {
                let given = data.take().expect("a write gives its data back");
                match self.reassign(index, position, given) {
                    Ok(given) => self.write_now(index, given),
                    Err(error) => self.finish(index, Err(error)),
                }
                false
            }
        }
    }

    /// Puts an order to zones into their queues.
    pub(super) fn begin_order(&mut self, index: u32, action: ZoneAction) -> Result<(), RequestError> {
        let device = Arc::clone(&self.device);
        let zones = device.zones().ok_or(RequestError::Unsupported)?;
        let flight = self.flight(index);
        let (offset, len) = (flight.offset, flight.len);
        let ranges = ranges_of(&self.mapping, action, zones.limits().zone_len, offset, len)?;
        if self.mgmt_thread.is_none() {
            self.mgmt_thread = Some(ZoneMgmtThread::start().map_err(RequestError::from)?);
        }
        let waiter = Waiter::Message(Arc::clone(&self.queued), index.into());
        let (action, now) = zones.enqueue_mgmt(action, ranges, waiter);
        let flight = self.flight(index);
        flight.action = Some(action);
        flight.step = Step::Turn;
        if now {
            self.its_turn(index);
        }
        Ok(())
    }

    fn order_zones(&mut self, index: u32, action: crate::zoned::queue::ZoneMgmtId) {
        let (device, to) = (Arc::clone(&self.device), Arc::clone(&self.managed));
        let mgmt_thread = self.mgmt_thread.as_ref().expect("started before the order was queued");
        mgmt_thread.post(Order { device, action, to, token: index.into() });
    }

    /// An order was carried out.
    pub(super) fn zones_managed(&mut self, index: u32, result: Result<(), Errno>) {
        let flight = self.flight(index);
        flight.lap(Phase::Store);
        flight.action = None;
        self.finish(index, result.map_err(RequestError::Io));
    }

    /// Takes back the writes that wait for those before them: these wait as well now.
    pub(super) fn take_back_deferred(&mut self) {
        let device = Arc::clone(&self.device);
        let Some(zones) = device.zones().filter(|zones| zones.has_deferred()) else { return };
        for index in 0..self.in_flight.len() {
            let held = self.in_flight[index].as_ref().filter(|flight| flight.step == Step::Held);
            if let Some(write) = held.and_then(|flight| flight.write)
                && zones.take_back(write)
            {
                self.put_back(index as u32);
            }
        }
    }
}

impl<F: Frontend> Worker<F> {
    /// Gives up what a worker that ends has in the queues. Nothing of it is with the store any more.
    pub(super) fn leave_zones(&mut self) {
        self.mgmt_thread = None;
        let Some(zones) = self.device.zones() else { return };
        for flight in self.in_flight.iter_mut().flatten() {
            if let Some(write) = flight.write.take() {
                let _ = zones.leave(write, None);
            }
            // One that the mgmt_thread had is done.
            if let Some(action) = flight.action.take().filter(|_| flight.step == Step::Turn) {
                zones.leave_mgmt(action);
            }
        }
        zones.leave_worker(self.zone_worker);
        zones.unreserve(self.lock_room);
    }
}
