//! Blocking access to a device: for programs that link the library, for tools, and for FUSE.
//!
//! It uses the same mapping, locks and read-modify-write as the worker, on the caller's thread and without a ring. Any
//! number of threads may share one `BlockingDevice`. Calls wait while the device is suspended.

use crate::buffer::{Buffer, BufferPool};
use crate::crypt_mapping::{CryptMapping, MappedRange};
use crate::device::Device;
use crate::errno::Errno;
use crate::holes;
use crate::locks::{LockId, Purpose};
use crate::pieces::{DestinationPieces, SourcePieces};
use crate::request::{Operation, RequestError};
use crate::rmw;
use crate::stats::{Account, Phase};
use crate::store;
use inlock_cipher::TargetType;
use std::io::{IoSlice, IoSliceMut};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

mod cursor;
mod zoned;

pub use cursor::DeviceCursor;

/// Device whose calls block until they are complete.
#[derive(Clone)]
pub struct BlockingDevice {
    shared: Arc<Shared>,
}

struct Shared {
    device: Arc<Device>,
    /// Calls that there is memory for.
    calls: usize,
    scratch: Mutex<Scratches>,
    returned: Condvar,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.device.stats().unreserve(self.calls);
        self.device.locks().unreserve(self.calls);
    }
}

/// Memory for calls that need some. A call that finds none waits for another call to return.
struct Scratches {
    free: Vec<Scratch>,
    /// Number of calls that wait for memory.
    waiting: usize,
}

/// Default number of calls that have memory at a time.
const CALLS: usize = 32;

/// Memory for one call: for a piece, and for the data units at its edges. Untouched pages take no memory.
struct Scratch {
    buffer: Buffer,
    spare: Buffer,
}

impl BlockingDevice {
    /// Returns blocking access to `device`, with memory for 32 calls at a time.
    pub fn new(device: Arc<Device>) -> Self {
        Self::with_calls(device, CALLS)
    }

    /// Returns blocking access to `device`, with memory for `calls` calls at a time, at least one; each takes a little
    /// over 1 MiB. More calls wait for one of them to return.
    pub fn with_calls(device: Arc<Device>, calls: usize) -> Self {
        let calls = calls.max(1);
        device.locks().reserve(calls);
        device.stats().reserve(calls);
        device.zones().inspect(|zones| zones.reserve(calls));
        let edges = 2 * device.unit_len();
        let scratch = || Scratch { buffer: Buffer::new(BufferPool::LARGEST_PIECE + edges), spare: Buffer::new(edges) };
        let free = std::iter::repeat_with(scratch).take(calls).collect();
        let scratch = Mutex::new(Scratches { free, waiting: 0 });
        Self { shared: Arc::new(Shared { device, calls, scratch, returned: Condvar::new() }) }
    }

    /// Returns the device.
    pub fn device(&self) -> &Arc<Device> {
        &self.shared.device
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.device().len()
    }

    /// Returns whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.device().is_empty()
    }

    /// Fills `into` from byte `offset`. Reads nothing if the range exceeds the device. Blocks.
    ///
    /// # Errors
    ///
    /// [`RequestError::OutOfRange`] if the range exceeds the device; otherwise the error of the store.
    pub fn read_at(&self, into: &mut [u8], offset: u64) -> Result<(), RequestError> {
        self.read_vectored_at(&mut [IoSliceMut::new(into)], offset)
    }

    /// Fills `pieces`, one after the other, from byte `offset`: one request, not one for each piece. Blocks.
    ///
    /// Pieces may begin and end anywhere, also within a data unit, and may be empty. Whole data units are decrypted
    /// from the device's buffer straight into their piece, in one cipher call for each MiB. Copied are data units that
    /// lie in several pieces, runs of units that are too short for a call, and ranges that are not whole data units.
    ///
    /// # Errors
    ///
    /// As [`BlockingDevice::read_at`] with the length of all pieces.
    pub fn read_vectored_at(&self, pieces: &mut [IoSliceMut<'_>], offset: u64) -> Result<(), RequestError> {
        self.read(DestinationPieces::new(pieces), offset)
    }

    fn read(&self, mut into: DestinationPieces<'_, '_>, mut offset: u64) -> Result<(), RequestError> {
        let target = &*self.device().enter()?;
        self.permit(target, Operation::Read, offset, into.len() as u64)?;
        while into.len() > 0 {
            let mut mapped = locate(target, offset, into.len())?;
            let mut account = self.account(Operation::Read, mapped.len as u64);
            let first = into.first(mapped.len);
            let result = self.read_extent(target, &mut mapped, first, &mut account);
            account.end(result)?;
            into.advance(mapped.len);
            offset += mapped.len as u64;
        }
        Ok(())
    }

    /// Writes `from` at byte `offset`. The data is on stable storage after the next [`BlockingDevice::flush`]. Blocks.
    ///
    /// # Errors
    ///
    /// [`RequestError::OutOfRange`] if the range exceeds the device, and [`RequestError::ReadOnly`] if the device is
    /// read-only: nothing is written. After another error the content of the range is undefined.
    pub fn write_at(&self, from: &[u8], offset: u64) -> Result<(), RequestError> {
        self.write_vectored_at(&[IoSlice::new(from)], offset)
    }

    /// Writes `pieces`, one after the other, at byte `offset`: one request, not one for each piece. Blocks.
    ///
    /// Pieces may begin and end anywhere, also within a data unit, and may be empty. Whole data units are encrypted
    /// straight from their piece into the device's buffer, in one cipher call for each MiB. Copied are data units that
    /// lie in several pieces, runs of units that are too short for a call, and ranges that are not whole data units,
    /// whose units are read and merged.
    ///
    /// ```
    /// use inlock_engine::{Access, BlockingDevice, Device, store::memory::MemoryStore};
    /// use std::io::{IoSlice, IoSliceMut};
    /// use std::sync::Arc;
    ///
    /// let device = Device::raw(Arc::new(MemoryStore::new(vec![0; 4096])), Access::default());
    /// let volume = BlockingDevice::new(Arc::new(device));
    /// volume.write_vectored_at(&[IoSlice::new(b"one, "), IoSlice::new(b"two")], 1000)?;
    /// let (mut first, mut second) = ([0; 3], [0; 5]);
    /// volume.read_vectored_at(&mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)], 1000)?;
    /// assert_eq!((&first, &second), (b"one", b", two"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`BlockingDevice::write_at`] with the length of all pieces.
    pub fn write_vectored_at(&self, pieces: &[IoSlice<'_>], offset: u64) -> Result<(), RequestError> {
        let from = SourcePieces::new(pieces);
        self.write(offset, from.len() as u64, Some(from))
    }

    /// Makes the range, in bytes, read as zeroes: it stores encrypted zeroes, never a hole. Blocks.
    ///
    /// # Errors
    ///
    /// As [`BlockingDevice::write_at`].
    pub fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), RequestError> {
        self.write(offset, len, None)
    }

    /// Puts every write that has returned on stable storage. After a flush has failed, every later one fails. Blocks.
    ///
    /// # Errors
    ///
    /// The error of the store, and `EIO` after an earlier flush has failed: writes may be lost.
    pub fn flush(&self) -> Result<(), RequestError> {
        let _pass = self.device().enter()?;
        let mut account = self.account(Operation::Flush, 0);
        let result = self.device().sync_blocking();
        account.lap(Phase::Store);
        account.end(result)
    }

    /// Deallocates the storage of whole data units. Refused unless the device allows discards. Blocks.
    ///
    /// # Errors
    ///
    /// [`RequestError::Unsupported`] if the device does not allow discards, or in a sequential zone; otherwise as
    /// [`BlockingDevice::write_at`].
    pub fn discard(&self, offset: u64, len: u64) -> Result<(), RequestError> {
        let target = &*self.device().enter()?;
        let operation = Operation::Discard { durable: false };
        self.permit(target, operation, 0, 0)?;
        let mut account = self.account(operation, len);
        let result = self.discard_all(target, offset, len);
        account.lap(Phase::Store);
        account.end(result)
    }

    fn discard_all(&self, target: &CryptMapping, offset: u64, len: u64) -> Result<(), RequestError> {
        let device = self.device();
        let mut done = 0;
        while done < len {
            let (range, place) = target.discardable(offset + done, len - done)?;
            match place.kind {
                TargetType::Crypt | TargetType::Linear if device.is_sequential(&place)? => {
                    return Err(RequestError::Unsupported);
                }
                TargetType::Crypt | TargetType::Linear if !range.is_empty() => {
                    let piece = target.discard_lock(&range, &place);
                    let _lock = piece.map(|piece| Locked::new(device, &piece, Purpose::Write));
                    if piece.is_some_and(|piece| !target.is_current(&piece)) {
                        continue;
                    }
                    device.stores()[place.store as usize].discard(range.start, range.end - range.start)?;
                }
                TargetType::Crypt | TargetType::Linear | TargetType::Zero => {}
                TargetType::Error => return Err(RequestError::Io(Errno::IO)),
            }
            done += place.len;
        }
        Ok(())
    }

    /// Locks a range if it has to be. Maps it again, perhaps only its first bytes, if the boundary of a re-encryption
    /// has passed it meanwhile.
    fn lock(
        &self,
        target: &CryptMapping,
        mapped: &mut MappedRange,
        purpose: Purpose,
        account: &mut Account<'_>,
    ) -> Result<Option<Locked<'_>>, RequestError> {
        let lock = loop {
            let lock = target.needs_lock(mapped).then(|| Locked::new(self.device(), mapped, purpose));
            if target.is_current(mapped) {
                break lock;
            }
            drop(lock);
            *mapped = locate(target, mapped.offset, mapped.len)?;
            if mapped.kind == TargetType::Error {
                return Err(RequestError::Io(Errno::IO));
            }
            account.set_len(mapped.len as u64);
        };
        account.lap(Phase::Queue);
        Ok(lock)
    }

    /// Reads the first bytes of a range into those of `into`, and sets `mapped` to the bytes read.
    fn read_extent(
        &self,
        target: &CryptMapping,
        mapped: &mut MappedRange,
        mut into: DestinationPieces<'_, '_>,
        account: &mut Account<'_>,
    ) -> Result<(), RequestError> {
        match mapped.kind {
            TargetType::Crypt | TargetType::Linear => {}
            TargetType::Zero => {
                into.zero();
                return Ok(());
            }
            TargetType::Error => return Err(RequestError::Io(Errno::IO)),
        }
        let _lock = loop {
            let lock = self.lock(target, mapped, Purpose::Read, account)?;
            if target.read_zone(mapped, |plaintext| into.first(mapped.len).copy_from(plaintext)) {
                return Ok(());
            }
            // The zone may have been released in between.
            if target.is_current(mapped) {
                break lock;
            }
        };
        into = into.limited(mapped.len);
        // The caller's memory may be unaligned; the scratch buffer has the alignment that every store accepts.
        let alignment = self.device().stores()[mapped.store as usize].profile().memory_alignment;
        if !mapped.is_partial()
            && let Some(into) = into.contiguous().filter(|into| into.as_ptr().addr().is_multiple_of(alignment))
        {
            read_all(self.device(), mapped, into, mapped.store_offset)?;
            account.lap(Phase::Store);
            target.decrypt_in_place(mapped, 0, into);
            account.ciphered(1, mapped.aligned_len, mapped.unit_len);
            return Ok(());
        }
        let mut scratch = self.take_scratch();
        let cover = &mut scratch.buffer.data_mut()[..mapped.aligned_len];
        let result = read_all(self.device(), mapped, cover, mapped.store_offset);
        account.lap(Phase::Store);
        if result.is_ok() {
            if mapped.is_partial() {
                target.decrypt_in_place(mapped, 0, cover);
                into.copy_from(&cover[mapped.requested()]);
            } else {
                target.decrypt_pieces(mapped, cover, into);
            }
            account.ciphered(1, mapped.aligned_len, mapped.unit_len);
        }
        self.give_scratch(scratch);
        result
    }

    fn write(&self, offset: u64, len: u64, mut from: Option<SourcePieces<'_>>) -> Result<(), RequestError> {
        let durable = false;
        let operation = if from.is_some() { Operation::Write { durable } } else { Operation::WriteZeroes { durable } };
        let target = &*self.device().enter()?;
        self.permit(target, operation, offset, len)?;
        if let Some(zones) = self.device().zones().filter(|_| len > 0)
            && zones.crosses(target.place(offset, len)?.store_offset, len)?
        {
            return self.account(operation, 0).end(Err(RequestError::Io(Errno::IO)));
        }
        let mut done = 0;
        while done < len {
            let rest = usize::try_from(len - done).unwrap_or(usize::MAX);
            let mut mapped = locate(target, offset + done, rest)?;
            let mut account = self.account(operation, mapped.len as u64);
            let result = self.write_extent(target, &mut mapped, from, &mut account);
            account.end(result)?;
            from.iter_mut().for_each(|from| from.advance(mapped.len));
            done += mapped.len as u64;
        }
        Ok(())
    }

    /// Writes the first bytes of `from`, or zeroes, to those of a range, and sets `mapped` to the bytes written.
    fn write_extent(
        &self,
        target: &CryptMapping,
        mapped: &mut MappedRange,
        from: Option<SourcePieces<'_>>,
        account: &mut Account<'_>,
    ) -> Result<(), RequestError> {
        match mapped.kind {
            TargetType::Crypt | TargetType::Linear => {}
            TargetType::Zero => return Ok(()),
            TargetType::Error => return Err(RequestError::Io(Errno::IO)),
        }
        if self.write_in_zone(target, mapped, from.map(|from| from.first(mapped.len)), account)? {
            return Ok(());
        }
        let _lock = self.lock(target, mapped, Purpose::Write, account)?;
        let plain = from.map(|from| from.first(mapped.len));
        let Scratch { mut buffer, mut spare } = self.take_scratch();
        let whole = plain.filter(|_| !mapped.is_partial());
        if whole.is_none() {
            let into = &mut buffer.data_mut()[mapped.requested()];
            match plain {
                Some(plain) => plain.copy_to(into),
                None => into.fill(0),
            }
            if let Err(error) = self.merge_edges(target, mapped, &mut buffer, &mut spare, account) {
                self.give_scratch(Scratch { buffer, spare });
                return Err(error);
            }
        }
        let ciphertext = match whole {
            Some(plain) => target.encrypt_pieces(mapped, plain, buffer),
            None => target.encrypt(mapped, buffer),
        };
        account.ciphered(1, mapped.aligned_len, mapped.unit_len);
        let bytes = &ciphertext.bytes()[..mapped.aligned_len];
        let result = holes::check_write(target, mapped, bytes)
            .and_then(|()| write_all(self.device(), mapped, bytes, mapped.store_offset));
        account.lap(Phase::Store);
        self.give_scratch(Scratch { buffer: ciphertext.into_buffer(), spare });
        result
    }

    fn merge_edges(
        &self,
        target: &CryptMapping,
        mapped: &MappedRange,
        buffer: &mut Buffer,
        spare: &mut Buffer,
        account: &mut Account<'_>,
    ) -> Result<(), RequestError> {
        if !mapped.is_partial() {
            return Ok(());
        }
        let mut edges = 0;
        for edge in rmw::edges(mapped).into_iter().flatten() {
            edges += 1;
            let unit = &mut spare.data_mut()[edge.spare_offset..edge.spare_offset + edge.len];
            read_all(self.device(), mapped, unit, edge.store_offset)?;
        }
        account.lap(Phase::Store);
        rmw::merge_edges(target, mapped, spare.data_mut(), buffer.data_mut());
        account.ciphered(edges, edges * mapped.unit_len, mapped.unit_len);
        Ok(())
    }

    fn account(&self, operation: Operation, len: u64) -> Account<'_> {
        Account::new(self.device().shared_stats(), operation, len)
    }

    /// Checks a request, and counts it as failed if it is refused.
    fn permit(&self, target: &CryptMapping, operation: Operation, offset: u64, len: u64) -> Result<(), RequestError> {
        let access = self.device().access();
        let refused = match operation {
            _ if operation.modifies() && access.read_only => RequestError::ReadOnly,
            Operation::Discard { .. } if !access.allow_discards => RequestError::Unsupported,
            _ if offset.checked_add(len).is_none_or(|end| end > target.len()) => RequestError::OutOfRange,
            _ => return Ok(()),
        };
        self.account(operation, 0).end(Err(refused))
    }

    fn take_scratch(&self) -> Scratch {
        let mut scratches = self.shared.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(scratch) = scratches.free.pop() {
                return scratch;
            }
            scratches.waiting += 1;
            scratches = self.shared.returned.wait(scratches).unwrap_or_else(PoisonError::into_inner);
            scratches.waiting -= 1;
        }
    }

    fn give_scratch(&self, scratch: Scratch) {
        let mut scratches = self.shared.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        scratches.free.push(scratch);
        // Notify every time: a waiter that was notified before may not have run yet.
        let awaited = scratches.waiting > 0;
        drop(scratches);
        if awaited {
            self.shared.returned.notify_one();
        }
    }
}

fn locate(target: &CryptMapping, offset: u64, len: usize) -> Result<MappedRange, RequestError> {
    target.locate(offset, len as u64, BufferPool::LARGEST_PIECE + 2 * target.unit_len())
}

fn read_all(device: &Device, mapped: &MappedRange, into: &mut [u8], offset: u64) -> Result<(), RequestError> {
    Ok(store::read_all(&*device.stores()[mapped.store as usize], into, offset)?)
}

fn write_all(device: &Device, mapped: &MappedRange, from: &[u8], offset: u64) -> Result<(), RequestError> {
    Ok(store::write_all(&*device.stores()[mapped.store as usize], from, offset)?)
}

/// Lock on an aligned range, held until dropped.
struct Locked<'a> {
    device: &'a Device,
    id: LockId,
}

impl<'a> Locked<'a> {
    fn new(device: &'a Device, mapped: &MappedRange, purpose: Purpose) -> Self {
        Self { device, id: device.locks().lock_blocking(mapped, purpose) }
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.device.locks().unlock(self.id);
    }
}
