//! Writes to sequential zones, appends and orders to zones, on their way through a worker.
//!
//! Such a write takes no lock of units: it has none in part, and its place in the zone's queue keeps others away. It is
//! encrypted as soon as its position is known, and written when it is its turn ([`crate::zoned::order`]).

use super::{FrontEnd, Step, Worker};
use crate::buffer::Buffer;
use crate::layout::Layout;
use crate::request::{Operation, RequestError};
use crate::stats::Phase;
use crate::store;
use crate::target::{Ciphertext, Extent};
use crate::zoned::ZoneAction;
use crate::zoned::keeper::{Keeper, Order};
use crate::zoned::order::{Admission, Manner, Settled, Waiter};
use rustix::io::Errno;
use std::ops::Range;
use std::sync::Arc;

/// The place in the device of an append that lands at `position` of its store.
pub(crate) fn moved(layout: &Layout, extent: &Extent, position: u64) -> Result<Extent, RequestError> {
    // It may move towards the beginning, and the store begin before the device.
    let offset = extent.offset.wrapping_add(position.wrapping_sub(extent.store_offset));
    let placed = layout.locate(offset, extent.len as u64, extent.cover_len.max(2 * extent.granule))?;
    // Where sectors' numbers start over, a write that is not to be split has no place.
    if placed.cover_len == extent.cover_len { Ok(placed) } else { Err(RequestError::Io(Errno::IO)) }
}

/// The stretches of the store that an order to the zones of a range means.
pub(crate) fn ranges_of(
    layout: &Layout,
    action: ZoneAction,
    zone_len: u64,
    offset: u64,
    len: u64,
) -> Result<Vec<Range<u64>>, RequestError> {
    let whole = action == ZoneAction::ResetAll;
    let (offset, len) = if whole { (0, layout.len) } else { (offset, len) };
    let end = offset.checked_add(len).filter(|end| *end <= layout.len).ok_or(RequestError::OutOfRange)?;
    let at_border = |position: u64| position.is_multiple_of(zone_len);
    if !at_border(offset) || !(at_border(end) || end == layout.len) || len == 0 {
        return Err(RequestError::Io(Errno::INVAL));
    }
    let mut ranges = Vec::new();
    let mut at = offset;
    while at < end {
        let place = layout.place(at, end - at)?;
        ranges.push(place.store_offset..place.store_offset + place.len);
        at += place.len;
    }
    Ok(ranges)
}

impl<F: FrontEnd> Worker<F>
where
    F::Message: 'static,
{
    /// Whether a write was taken on as one to a sequential zone. False: no order is asked for.
    pub(super) fn begin_in_zone(&mut self, index: u32, extent: &Extent) -> Result<bool, RequestError> {
        let device = Arc::clone(&self.device);
        let flight = self.flight(index);
        let part = flight.parent.is_some();
        let manner = match flight.operation {
            Operation::Append { .. } => Manner::Append,
            Operation::WriteAgain { .. } => Manner::Again,
            _ => Manner::Write,
        };
        let append = manner == Manner::Append;
        let Some(zones) = device.zones() else {
            return if append { Err(RequestError::Unsupported) } else { Ok(false) };
        };
        if extent.is_partial() && zones.is_sequential(extent.store_offset, extent.cover_len as u64)? {
            return Err(RequestError::Io(Errno::INVAL));
        }
        let waiter = Waiter::Message(Arc::clone(&self.queued), index.into());
        // A part is not held: it could not be taken back, since it is no request of the front end's.
        let admission = zones.admit(extent.store_offset, extent.cover_len as u64, manner, !part, waiter)?;
        let flight = self.flight(index);
        match admission {
            Admission::Free => return Ok(false),
            Admission::Held(ticket) => {
                flight.ticket = Some(ticket);
                flight.step = Step::Held;
            }
            Admission::Placed(ticket, position) => {
                flight.ticket = Some(ticket);
                if append {
                    let placed = moved(&self.layout, extent, position)?;
                    self.flight(index).extent = Some(placed);
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
        let ticket = flight.ticket.expect("only writes with a ticket wait for a turn");
        let extent = flight.extent.expect("a write has an extent");
        let joins = !flight.operation.durable() && !matches!(flight.operation, Operation::WriteAgain { .. });
        if let Some(data) = zones.ready(ticket, extent.store_offset, data, joins) {
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
        let ticket = flight.ticket.expect("only writes with a ticket wait for a turn");
        self.write_in_turn(index, zones.claim(ticket));
    }

    fn write_in_turn(&mut self, index: u32, data: Ciphertext) {
        let device = Arc::clone(&self.device);
        let Some(zones) = device.zones() else { return };
        let flight = self.flight(index);
        flight.lap(Phase::Queue);
        let ticket = flight.ticket.expect("only writes with a ticket have turns");
        let again = matches!(flight.operation, Operation::WriteAgain { .. });
        match self.placed_at(index, zones.position(ticket), data) {
            Ok(data) if again => self.write_what_is_missing(index, data),
            Ok(data) => self.write_gathered(index, ticket, data),
            Err(error) => self.finish(index, Err(error)),
        }
    }

    /// The data of a write, encrypted for `position`, which it may not have been.
    pub(super) fn placed_at(
        &mut self,
        index: u32,
        position: u64,
        data: Ciphertext,
    ) -> Result<Ciphertext, RequestError> {
        let extent = self.flight(index).extent.expect("a write has an extent");
        if extent.store_offset == position {
            return Ok(data);
        }
        let placed = match moved(&self.layout, &extent, position) {
            Ok(placed) => placed,
            Err(error) => {
                self.flight(index).buffer = Some(data.into_buffer());
                return Err(error);
            }
        };
        let plain = self.target().decrypt(&extent, data);
        let data = self.target().encrypt(&placed, plain);
        let flight = self.flight(index);
        flight.extent = Some(placed);
        flight.ciphered(2, 2 * extent.cover_len);
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
        let extent = self.flight(index).extent.expect("a write has an extent");
        let store = Arc::clone(&self.device.stores()[extent.store as usize]);
        let written = self.device.zones().map_or(Ok(0), |zones| zones.written(extent.store_offset));
        let there = written.map(|w| (w.saturating_sub(extent.store_offset) as usize).min(extent.cover_len));
        let mut stored = Buffer::new(extent.cover_len);
        let same = there.and_then(|there| {
            store::read_all(&*store, &mut stored.data_mut()[..there], extent.store_offset)?;
            Ok((there, stored.data()[..there] == data.bytes()[..there]))
        });
        match same {
            // The drive says what is wrong.
            Ok((_, false)) | Ok((0, true)) => self.write_now(index, data),
            Ok((there, true)) if there == extent.cover_len => {
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

    /// Takes note of how a write with a ticket ended. False: it goes on.
    pub(super) fn settle(&mut self, index: u32, outcome: Result<bool, Errno>, data: &mut Option<Ciphertext>) -> bool {
        let device = Arc::clone(&self.device);
        let Some(ticket) = self.flight(index).ticket else { return true };
        let zones = device.zones().expect("tickets are those of zones");
        match zones.settle(ticket, outcome.is_ok(), Some(&self.queued)) {
            Settled::Gone { next, landed } => {
                let flight = self.flight(index);
                flight.ticket = None;
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
            Settled::Again(position) => {
                let given = data.take().expect("a write gives its data back");
                match self.placed_at(index, position, given) {
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
        let ranges = ranges_of(&self.layout, action, zones.limits().zone_len, offset, len)?;
        if self.keeper.is_none() {
            self.keeper = Some(Keeper::start().map_err(RequestError::from)?);
        }
        let waiter = Waiter::Message(Arc::clone(&self.queued), index.into());
        let (action, now) = zones.admit_action(action, ranges, waiter);
        let flight = self.flight(index);
        flight.action = Some(action);
        flight.step = Step::Turn;
        if now {
            self.its_turn(index);
        }
        Ok(())
    }

    fn order_zones(&mut self, index: u32, action: crate::zoned::order::ActionId) {
        let (device, to) = (Arc::clone(&self.device), Arc::clone(&self.managed));
        let keeper = self.keeper.as_ref().expect("started before the order was queued");
        keeper.post(Order { device, action, to, token: index.into() });
    }

    /// An order was carried out.
    pub(super) fn zones_managed(&mut self, index: u32, result: Result<(), Errno>) {
        let flight = self.flight(index);
        flight.lap(Phase::Store);
        flight.action = None;
        self.finish(index, result.map_err(RequestError::Io));
    }

    /// Takes back the writes that wait for those before them: these wait as well now.
    pub(super) fn take_held_back(&mut self) {
        let device = Arc::clone(&self.device);
        let Some(zones) = device.zones().filter(|zones| zones.has_held()) else { return };
        for index in 0..self.in_flight.len() {
            let held = self.in_flight[index].as_ref().filter(|flight| flight.step == Step::Held);
            if let Some(ticket) = held.and_then(|flight| flight.ticket)
                && zones.unhold(ticket)
            {
                self.put_back(index as u32);
            }
        }
    }
}

impl<F: FrontEnd> Worker<F> {
    /// Gives up what a worker that ends has in the queues. Nothing of it is with the store any more.
    pub(super) fn leave_zones(&mut self) {
        self.keeper = None;
        let Some(zones) = self.device.zones() else { return };
        for flight in self.in_flight.iter_mut().flatten() {
            if let Some(ticket) = flight.ticket.take() {
                let _ = zones.leave(ticket, None);
            }
            // One that the keeper had is done.
            if let Some(action) = flight.action.take().filter(|_| flight.step == Step::Turn) {
                zones.leave_action(action);
            }
        }
        zones.leave_seat(self.zone_seat);
        zones.unreserve(self.lock_room);
    }
}
