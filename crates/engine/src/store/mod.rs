//! Backing stores: files, block devices and memory that hold ciphertext.
//!
//! A store moves bytes and knows nothing of ciphers. The worker's ring drives a store that has a descriptor, and an
//! [asynchronous] store completes operations by itself; the worker calls any other store inline, as it
//! does with a store that answers from memory. A [threaded] store makes an asynchronous one of a store whose calls
//! take long.

pub mod asynchronous;
pub(crate) mod block_device;
pub mod direct;
pub mod file;
pub mod memory;
mod operation;
pub mod threaded;
pub mod zoned_device;

use crate::errno::Errno;
use crate::zoned::ZonedStore;
use asynchronous::AsyncStore;
use std::io::IoSlice;
use std::num::NonZeroU64;
use std::os::fd::BorrowedFd;

pub use block_device::is_read_only;
pub use operation::StoreOperation;

/// Length and access of a store when it is opened.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Length in bytes.
    pub len: u64,
    /// Whether writes are refused.
    pub read_only: bool,
}

impl Geometry {
    /// Describes a store of `len` bytes that can be written.
    pub const fn new(len: u64) -> Self {
        Self { len, read_only: false }
    }

    /// Describes a store of `len` bytes that refuses writes.
    pub const fn new_read_only(len: u64) -> Self {
        Self { len, read_only: true }
    }
}

/// Properties of a store that decide how the engine accesses it.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreProfile {
    /// Whether reads and writes are copies that never wait for a device, as on tmpfs. Short ones are calls of the
    /// worker, also of an asynchronous store.
    pub in_memory: bool,
    /// Length in bytes of the longest read that the worker makes by a call, though the store is asynchronous and not in
    /// memory: it seldom waits for long.
    pub inline_read_len: usize,
    /// Length in bytes of the longest such write.
    pub inline_write_len: usize,
    /// Whether the descriptor is that of a block device.
    pub is_block_device: bool,
    /// Whether the failure of a FUA write concerns that write alone, as with a disk's own FUA. For other stores the
    /// engine writes and then syncs, because a FUA write could be given another write's error, and a later sync would
    /// then succeed.
    pub has_native_fua: bool,
    /// Alignment in bytes of memory that the store reads into or writes from: a power of two, at most
    /// [`crate::Buffer::ALIGNMENT`].
    pub memory_alignment: usize,
    /// Length in bytes of the ranges, aligned to it, that a discard makes holes exactly, if every hole reads as zero
    /// bytes, and [`BackingStore::block_status`] reports none that is not one. `None`: holes may read as anything.
    pub hole_len: Option<NonZeroU64>,
}

impl Default for StoreProfile {
    /// Describes a store that waits for a device, accepts unaligned memory, and has no native FUA and no exact holes.
    fn default() -> Self {
        Self {
            in_memory: false,
            inline_read_len: 0,
            inline_write_len: 0,
            is_block_device: false,
            has_native_fua: false,
            memory_alignment: 1,
            hole_len: None,
        }
    }
}

/// Range of a store that is either allocated or a hole.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockStatus {
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Whether the range is a hole.
    pub hole: bool,
}

impl BlockStatus {
    /// Describes `len` allocated bytes from `offset`.
    pub const fn allocated(offset: u64, len: u64) -> Self {
        Self { offset, len, hole: false }
    }

    /// Describes a hole of `len` bytes from `offset`.
    pub const fn hole(offset: u64, len: u64) -> Self {
        Self { offset, len, hole: true }
    }
}

/// Fills `into` from byte `offset`. Blocks.
///
/// # Errors
///
/// `EIO` at the end of the store; otherwise the store's error.
pub fn read_all(store: &dyn BackingStore, mut into: &mut [u8], mut offset: u64) -> Result<(), Errno> {
    while !into.is_empty() {
        match store.read_at(into, offset) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => {
                into = &mut into[n..];
                offset += n as u64;
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes all of `from` at byte `offset`. Blocks.
///
/// # Errors
///
/// `EIO` if the store accepts no more bytes; otherwise the store's error.
pub fn write_all(store: &dyn BackingStore, mut from: &[u8], mut offset: u64) -> Result<(), Errno> {
    while !from.is_empty() {
        match store.write_at(from, offset) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => {
                from = &from[n..];
                offset += n as u64;
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes all of `parts` one after the other from byte `offset`; changes the slices. Blocks.
///
/// # Errors
///
/// As [`write_all`].
pub fn write_all_vectored(
    store: &dyn BackingStore,
    mut parts: &mut [IoSlice<'_>],
    mut offset: u64,
) -> Result<(), Errno> {
    // Empty parts at the start go.
    IoSlice::advance_slices(&mut parts, 0);
    while !parts.is_empty() {
        match store.write_vectored_at(parts, offset) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => {
                IoSlice::advance_slices(&mut parts, n);
                offset += n as u64;
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns up to `most` bytes of `parts` one after the other, for a store without vectored writes on which one long
/// write takes less time than several short ones.
pub fn gathered(parts: &[IoSlice<'_>], most: usize) -> Vec<u8> {
    let total: usize = parts.iter().map(|part| part.len()).sum();
    let mut bytes = vec![0; total.min(most)];
    gather(parts, &mut bytes);
    bytes
}

/// Copies `parts` one after the other to `into`, up to its end, and returns the number of bytes.
pub fn gather(parts: &[IoSlice<'_>], into: &mut [u8]) -> usize {
    let mut at = 0;
    for part in parts {
        let count = part.len().min(into.len() - at);
        into[at..at + count].copy_from_slice(&part[..count]);
        at += count;
    }
    at
}

/// Storage for ciphertext, addressed by byte. A call may transfer fewer bytes than asked for, as system calls do; the
/// engine then asks for the rest. A read at the end returns 0. Calls block.
pub trait BackingStore: Send + Sync {
    /// Returns length and access.
    fn geometry(&self) -> Geometry;

    /// Reads the current length in bytes and makes [`BackingStore::geometry`] report it.
    ///
    /// # Errors
    ///
    /// The error of the file or device; the length is unchanged.
    fn revalidate_len(&self) -> Result<u64, Errno> {
        Ok(self.geometry().len)
    }

    /// Returns whether a write up to byte `end` would lengthen the store, or one before would have: its end has moved,
    /// and bytes between would read as if they had been written.
    fn is_cut_before(&self, _end: u64) -> bool {
        false
    }

    /// Returns the descriptor for the ring. `None`: the store is asynchronous, or the worker calls the methods below
    /// inline.
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Returns the interface of a store without a descriptor that completes operations later. Callers that block use
    /// the methods below.
    fn asynchronous(&self) -> Option<&dyn AsyncStore> {
        None
    }

    /// Returns the properties that decide how the engine accesses the store.
    fn profile(&self) -> StoreProfile {
        StoreProfile::default()
    }

    /// Reads at byte `offset` and returns the number of bytes read.
    ///
    /// # Errors
    ///
    /// The error of the file or device. The engine calls again after `EINTR` and `EAGAIN`.
    fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno>;

    /// Writes at byte `offset` and returns the number of bytes written. They are on stable storage after the next
    /// [`BackingStore::sync`].
    ///
    /// # Errors
    ///
    /// The error of the file or device. The engine calls again after `EINTR` and `EAGAIN`.
    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno>;

    /// Writes as [`BackingStore::write_at`], with force unit access (FUA): the bytes are on stable storage before this
    /// returns. Called only on a store with [`StoreProfile::has_native_fua`].
    ///
    /// # Errors
    ///
    /// As [`BackingStore::write_at`]; `EOPNOTSUPP` unless the store overrides this.
    fn write_fua_at(&self, _data: &[u8], _offset: u64) -> Result<usize, Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// Writes `parts` one after the other from byte `offset` and returns the number of bytes written. A store with a
    /// vectored write overrides this, so that the drive too receives a single write.
    ///
    /// # Errors
    ///
    /// As [`BackingStore::write_at`].
    fn write_vectored_at(&self, parts: &[IoSlice<'_>], offset: u64) -> Result<usize, Errno> {
        let mut done = 0;
        for part in parts {
            match self.write_at(part, offset + done as u64) {
                Ok(more) if more == part.len() => done += more,
                Ok(more) => return Ok(done + more),
                Err(error) if done == 0 => return Err(error),
                // The error recurs when the rest is written.
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Puts all earlier writes on stable storage. The engine never runs two calls at a time, and makes none after a
    /// failure.
    ///
    /// # Errors
    ///
    /// The error of the file or device: earlier writes may be lost.
    fn sync(&self) -> Result<(), Errno>;

    /// Deallocates a range in bytes. Its content is undefined afterwards.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` if the store cannot deallocate; otherwise the error of the file or device.
    fn discard(&self, offset: u64, len: u64) -> Result<(), Errno>;

    /// Asks the store to cache a range in bytes. Best effort: it cannot fail.
    fn prefetch(&self, _offset: u64, _len: u64) {}

    /// Returns the zoned interface, or `None` for a store without zones. The caller writes to a sequential zone in
    /// order, one write at a time ([`crate::zoned`]).
    fn zoned(&self) -> Option<&dyn ZonedStore> {
        None
    }

    /// Returns the allocated range or hole that starts at `offset`, at most `len` bytes long. A hole reads as zero
    /// bytes. A store that cannot tell reports all bytes as allocated.
    ///
    /// # Errors
    ///
    /// The error of the file or device.
    fn block_status(&self, offset: u64, len: u64) -> Result<BlockStatus, Errno> {
        Ok(BlockStatus { offset, len, hole: false })
    }
}
