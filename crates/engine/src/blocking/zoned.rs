//! A blocking device's writes to sequential zones, appends and orders to zones.
//!
//! Who writes one zone from several threads waits for one write to return before the next begins: only then is one
//! after the other.

use super::{BlockingDevice, Scratch, locate};
use crate::buffer::BufferPool;
use crate::crypt_mapping::{Ciphertext, CryptMapping, MappedRange};
use crate::request::{Operation, RequestError};
use crate::stats::{Account, Phase};
use crate::store;
use crate::zone_mapping::{moved, ranges_of};
use crate::zone_queue::{Enqueued, Waiter, WriteId, WriteKind, WriteOutcome, ZoneWriteQueues};
use crate::zoned::ZoneAction;
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
        let target = &*self.device().enter()?;
        let operation = Operation::Append { durable: false };
        self.permit(target, operation, zone, from.len() as u64)?;
        let mut account = self.account(operation, from.len() as u64);
        let written = self.append_in(target, zone, from, &mut account);
        account.end(written.map(|_| ()))?;
        written
    }

    fn append_in(
        &self,
        target: &CryptMapping,
        zone: u64,
        from: &[u8],
        account: &mut Account<'_>,
    ) -> Result<u64, RequestError> {
        let zones = self.device().zones().ok_or(RequestError::Unsupported)?;
        if from.len() > BufferPool::LARGEST_PIECE {
            return Err(RequestError::Io(Errno::INVAL));
        }
        let mapped = locate(target, zone, from.len())?;
        if mapped.len != from.len() || mapped.is_partial() {
            return Err(RequestError::Io(Errno::INVAL));
        }
        let scratch = self.take_scratch();
        let (position, len) = (mapped.store_offset, mapped.aligned_len as u64);
        let placed = match zones.enqueue(position, len, WriteKind::Append, false, Waiter::Thread) {
            Ok(Enqueued::Placed(write, position)) => {
                let turn = Turn { zones, write };
                moved(target, &mapped, position).inspect_err(|_| turn.give_up()).map(|placed| (turn, placed))
            }
            Ok(Enqueued::Free | Enqueued::Deferred(_)) => unreachable!("an append is placed or refused"),
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
        let target = &*self.device().enter()?;
        let operation = Operation::Zones(action);
        self.permit(target, operation, 0, 0)?;
        let mut account = self.account(operation, 0);
        let managed = self.device().zones().ok_or(RequestError::Unsupported).and_then(|zones| {
            let ranges = ranges_of(target, action, zones.limits().zone_len, offset, len)?;
            let order = zones.enqueue_mgmt_blocking(action, ranges);
            Ok(zones.carry_out(order)?)
        });
        account.lap(Phase::Store);
        account.end(managed)
    }

    /// Writes the whole aligned range of `mapped`, zeroes where there is no `plain`, as its zone asks for. False: no order is asked for,
    /// and nothing was written.
    pub(super) fn write_in_zone(
        &self,
        target: &CryptMapping,
        mapped: &MappedRange,
        plain: Option<&[u8]>,
        account: &mut Account<'_>,
    ) -> Result<bool, RequestError> {
        if self.device().zones().is_none() {
            return Ok(false);
        }
        // First the memory: who has it may be waiting in the queue behind whoever waits for it.
        let scratch = self.take_scratch();
        match self.turn_of(mapped) {
            Ok(Some(turn)) => self.write_in_turn(target, *mapped, plain, turn, scratch, account).map(|_| true),
            other => {
                self.give_scratch(scratch);
                other.map(|_| false)
            }
        }
    }

    /// The place of a write in the queue of its zone; `None` where no order is asked for.
    fn turn_of(&self, mapped: &MappedRange) -> Result<Option<Turn<'_>>, RequestError> {
        let Some(zones) = self.device().zones() else { return Ok(None) };
        if mapped.is_partial() && zones.is_sequential(mapped.store_offset, mapped.aligned_len as u64)? {
            return Err(RequestError::Io(Errno::INVAL));
        }
        match zones.enqueue(mapped.store_offset, mapped.aligned_len as u64, WriteKind::Data, false, Waiter::Thread)? {
            Enqueued::Free => Ok(None),
            Enqueued::Placed(write, _) => Ok(Some(Turn { zones, write })),
            Enqueued::Deferred(_) => unreachable!("threads do not wait for those before them"),
        }
    }

    /// Encrypts and writes the whole aligned range of `mapped`; where it was written to.
    fn write_in_turn(
        &self,
        target: &CryptMapping,
        mut mapped: MappedRange,
        plain: Option<&[u8]>,
        turn: Turn<'_>,
        scratch: Scratch,
        account: &mut Account<'_>,
    ) -> Result<u64, RequestError> {
        account.lap(Phase::Queue);
        let Scratch { mut buffer, spare } = scratch;
        let mut ciphertext = match plain {
            Some(plain) => target.encrypt_from(&mapped, plain, buffer),
            None => {
                buffer.data_mut()[..mapped.aligned_len].fill(0);
                target.encrypt(&mapped, buffer)
            }
        };
        account.ciphered(1, mapped.aligned_len, mapped.unit_len);
        turn.zones.ready_blocking(turn.write);
        let mut position = turn.zones.position(turn.write);
        let written = loop {
            if position != mapped.store_offset {
                (mapped, ciphertext) = match again(target, &mapped, position, ciphertext) {
                    Ok(placed) => placed,
                    Err((error, data)) => {
                        turn.give_up();
                        ciphertext = data;
                        break Err(error);
                    }
                };
                account.ciphered(2, 2 * mapped.aligned_len, mapped.unit_len);
            }
            let store = &*self.device().stores()[mapped.store as usize];
            let result = store::write_all(store, &ciphertext.bytes()[..mapped.aligned_len], position);
            match turn.zones.complete_write(turn.write, result.is_ok(), None) {
                WriteOutcome::Reassigned(elsewhere) => position = elsewhere,
                WriteOutcome::Left { .. } => break result.map_err(RequestError::Io),
            }
        };
        account.lap(Phase::Store);
        self.give_scratch(Scratch { buffer: ciphertext.into_buffer(), spare });
        written.map(|()| mapped.offset)
    }
}

/// The same data, encrypted for another place.
fn again(
    target: &CryptMapping,
    mapped: &MappedRange,
    position: u64,
    data: Ciphertext,
) -> Result<(MappedRange, Ciphertext), (RequestError, Ciphertext)> {
    match moved(target, mapped, position) {
        Ok(placed) => Ok((placed, target.encrypt(&placed, target.decrypt(mapped, data)))),
        Err(error) => Err((error, data)),
    }
}

/// A place in the queue of a zone.
struct Turn<'a> {
    zones: &'a ZoneWriteQueues,
    write: WriteId,
}

impl Turn<'_> {
    fn give_up(&self) {
        let _ = self.zones.leave(self.write, None);
    }
}
