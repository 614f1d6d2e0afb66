//! Writes to sequential zones, appends and zone management of a blocking device.
//!
//! A program that writes to one zone from several threads must wait for each write to return before it starts the next;
//! otherwise their order is undefined.

use super::{BlockingDevice, Scratch, locate};
use crate::buffer::BufferPool;
use crate::crypt_mapping::{CryptMapping, MappedRange};
use crate::errno::Errno;
use crate::pieces::SourcePieces;
use crate::request::{Operation, RequestError};
use crate::stats::{Account, Phase};
use crate::store;
use crate::zone_mapping::{encrypt_elsewhere, moved, ranges_of};
use crate::zone_queue::{Enqueued, Waiter, WriteId, WriteKind, WriteOutcome, ZoneWriteQueues};
use crate::zoned::ZoneAction;
use std::io::IoSlice;

impl BlockingDevice {
    /// Writes `from` at the write pointer of the zone that starts at byte `zone`, in one piece of at most 1 MiB, and
    /// returns the position in bytes. Blocks.
    ///
    /// # Errors
    ///
    /// `EIO` if the zone has no room or is not sequential, and if `zone` is not its start; `EINVAL` if `from` is too
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
            Ok((turn, placed)) => {
                let from = &[IoSlice::new(from)];
                self.write_in_turn(target, placed, Some(SourcePieces::new(from)), turn, scratch, account)
            }
            Err(error) => {
                self.give_scratch(scratch);
                Err(error)
            }
        }
    }

    /// Applies `action` to the whole zones of the range, after earlier writes to them. Blocks.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a range that is not whole zones; otherwise the store's error.
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

    /// Writes the aligned range of `mapped` through its zone's queue, with zeroes if there is no `plain`. Returns
    /// false, with nothing written, if the range needs no order.
    pub(super) fn write_in_zone(
        &self,
        target: &CryptMapping,
        mapped: &MappedRange,
        plain: Option<SourcePieces<'_>>,
        account: &mut Account<'_>,
    ) -> Result<bool, RequestError> {
        if self.device().zones().is_none() {
            return Ok(false);
        }
        // Take memory before queueing: a call that has memory may be in the queue behind one that waits for memory.
        let scratch = self.take_scratch();
        match self.turn_of(mapped) {
            Ok(Some(turn)) => self.write_in_turn(target, *mapped, plain, turn, scratch, account).map(|_| true),
            other => {
                self.give_scratch(scratch);
                other.map(|_| false)
            }
        }
    }

    /// Enqueues a write in its zone. Returns `None` if it needs no order.
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

    /// Encrypts and writes the aligned range of `mapped`, and returns the range written.
    fn write_in_turn(
        &self,
        target: &CryptMapping,
        mut mapped: MappedRange,
        plain: Option<SourcePieces<'_>>,
        turn: Turn<'_>,
        scratch: Scratch,
        account: &mut Account<'_>,
    ) -> Result<u64, RequestError> {
        account.lap(Phase::Queue);
        let Scratch { mut buffer, spare } = scratch;
        let mut ciphertext = match plain {
            Some(plain) => target.encrypt_pieces(&mapped, plain, buffer),
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
                (mapped, ciphertext) = match encrypt_elsewhere(target, &mapped, position, ciphertext) {
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

/// Entry in the queue of a zone.
struct Turn<'a> {
    zones: &'a ZoneWriteQueues,
    write: WriteId,
}

impl Turn<'_> {
    fn give_up(&self) {
        let _ = self.zones.leave(self.write, None);
    }
}
