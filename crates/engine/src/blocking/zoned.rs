//! A blocking device's writes to sequential zones, appends and orders to zones.
//!
//! Who writes one zone from several threads waits for one write to return before the next begins: only then is one
//! after the other.

use super::{BlockingDevice, Scratch, locate};
use crate::buffer::BufferPool;
use crate::request::{Operation, RequestError};
use crate::stats::{Account, Phase};
use crate::store;
use crate::target::{Ciphertext, CryptTarget, Extent};
use crate::worker::zoned::{moved, ranges_of};
use crate::zoned::ZoneAction;
use crate::zoned::order::{Admission, Manner, Settled, TicketId, Waiter, ZoneOrder};
use rustix::io::Errno;

impl BlockingDevice {
    /// Writes `from` where the write pointer of the zone that starts at `zone` is, in one piece of at most 1 MiB; says where
    /// that was.
    ///
    /// # Errors
    ///
    /// `EIO` where the zone has no room for it or is not sequential, and where `zone` is not its start; `EINVAL` for what is too
    /// long or not whole data units.
    pub fn append(&self, zone: u64, from: &[u8]) -> Result<u64, RequestError> {
        let target = &*self.device().pass()?;
        let operation = Operation::Append { durable: false };
        self.permit(target, operation, zone, from.len() as u64)?;
        let mut account = self.account(operation, from.len() as u64);
        let written = self.append_in(target, zone, from, &mut account);
        account.end(written.map(|_| ()))?;
        written
    }

    fn append_in(
        &self,
        target: &CryptTarget,
        zone: u64,
        from: &[u8],
        account: &mut Account<'_>,
    ) -> Result<u64, RequestError> {
        let zones = self.device().zones().ok_or(RequestError::Unsupported)?;
        if from.len() > BufferPool::LARGEST_PIECE {
            return Err(RequestError::Io(Errno::INVAL));
        }
        let extent = locate(target, zone, from.len())?;
        if extent.len != from.len() || extent.is_partial() {
            return Err(RequestError::Io(Errno::INVAL));
        }
        let scratch = self.take_scratch();
        let (position, len) = (extent.store_offset, extent.cover_len as u64);
        let placed = match zones.admit(position, len, Manner::Append, false, Waiter::Thread) {
            Ok(Admission::Placed(ticket, position)) => {
                let turn = Turn { zones, ticket };
                moved(target, &extent, position).inspect_err(|_| turn.give_up()).map(|placed| (turn, placed))
            }
            Ok(Admission::Free | Admission::Held(_)) => unreachable!("an append is placed or refused"),
            Err(error) => Err(error),
        };
        match placed {
            Ok((turn, placed)) => self.write_in_turn(target, placed, Some(from), turn, scratch, account),
            Err(error) => {
                self.give_scratch(scratch);
                Err(error)
            }
        }
    }

    /// Does `action` to the zones of the range, whole zones, after what was written to them before.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a range that is not whole zones, and those of the store.
    pub fn manage_zones(&self, action: ZoneAction, offset: u64, len: u64) -> Result<(), RequestError> {
        let target = &*self.device().pass()?;
        let operation = Operation::Zones(action);
        self.permit(target, operation, 0, 0)?;
        let mut account = self.account(operation, 0);
        let managed = self.device().zones().ok_or(RequestError::Unsupported).and_then(|zones| {
            let ranges = ranges_of(target, action, zones.limits().zone_len, offset, len)?;
            let order = zones.admit_action_blocking(action, ranges);
            Ok(zones.carry_out(order)?)
        });
        account.lap(Phase::Store);
        account.end(managed)
    }

    /// Writes the whole cover of `extent`, zeroes where there is no `plain`, as its zone asks for. False: no order is asked for,
    /// and nothing was written.
    pub(super) fn write_in_zone(
        &self,
        target: &CryptTarget,
        extent: &Extent,
        plain: Option<&[u8]>,
        account: &mut Account<'_>,
    ) -> Result<bool, RequestError> {
        if self.device().zones().is_none() {
            return Ok(false);
        }
        // First the memory: who has it may be waiting in the queue behind whoever waits for it.
        let scratch = self.take_scratch();
        match self.turn_of(extent) {
            Ok(Some(turn)) => self.write_in_turn(target, *extent, plain, turn, scratch, account).map(|_| true),
            other => {
                self.give_scratch(scratch);
                other.map(|_| false)
            }
        }
    }

    /// The place of a write in the queue of its zone; `None` where no order is asked for.
    fn turn_of(&self, extent: &Extent) -> Result<Option<Turn<'_>>, RequestError> {
        let Some(zones) = self.device().zones() else { return Ok(None) };
        if extent.is_partial() && zones.is_sequential(extent.store_offset, extent.cover_len as u64)? {
            return Err(RequestError::Io(Errno::INVAL));
        }
        match zones.admit(extent.store_offset, extent.cover_len as u64, Manner::Write, false, Waiter::Thread)? {
            Admission::Free => Ok(None),
            Admission::Placed(ticket, _) => Ok(Some(Turn { zones, ticket })),
            Admission::Held(_) => unreachable!("threads do not wait for those before them"),
        }
    }

    /// Encrypts and writes the whole cover of `extent`; where it was written to.
    fn write_in_turn(
        &self,
        target: &CryptTarget,
        mut extent: Extent,
        plain: Option<&[u8]>,
        turn: Turn<'_>,
        scratch: Scratch,
        account: &mut Account<'_>,
    ) -> Result<u64, RequestError> {
        account.lap(Phase::Queue);
        let Scratch { mut buffer, spare } = scratch;
        let mut ciphertext = match plain {
            Some(plain) => target.encrypt_from(&extent, plain, buffer),
            None => {
                buffer.data_mut()[..extent.cover_len].fill(0);
                target.encrypt(&extent, buffer)
            }
        };
        account.ciphered(1, extent.cover_len, extent.granule);
        turn.zones.ready_blocking(turn.ticket);
        let mut position = turn.zones.position(turn.ticket);
        let written = loop {
            if position != extent.store_offset {
                (extent, ciphertext) = match again(target, &extent, position, ciphertext) {
                    Ok(placed) => placed,
                    Err((error, data)) => {
                        turn.give_up();
                        ciphertext = data;
                        break Err(error);
                    }
                };
                account.ciphered(2, 2 * extent.cover_len, extent.granule);
            }
            let store = &*self.device().stores()[extent.store as usize];
            let result = store::write_all(store, &ciphertext.bytes()[..extent.cover_len], position);
            match turn.zones.settle(turn.ticket, result.is_ok(), None) {
                Settled::Again(elsewhere) => position = elsewhere,
                Settled::Gone { .. } => break result.map_err(RequestError::Io),
            }
        };
        account.lap(Phase::Store);
        self.give_scratch(Scratch { buffer: ciphertext.into_buffer(), spare });
        written.map(|()| extent.offset)
    }
}

/// The same data, encrypted for another place.
fn again(
    target: &CryptTarget,
    extent: &Extent,
    position: u64,
    data: Ciphertext,
) -> Result<(Extent, Ciphertext), (RequestError, Ciphertext)> {
    match moved(target, extent, position) {
        Ok(placed) => Ok((placed, target.encrypt(&placed, target.decrypt(extent, data)))),
        Err(error) => Err((error, data)),
    }
}

/// A place in the queue of a zone.
struct Turn<'a> {
    zones: &'a ZoneOrder,
    ticket: TicketId,
}

impl Turn<'_> {
    fn give_up(&self) {
        let _ = self.zones.leave(self.ticket, None);
    }
}
