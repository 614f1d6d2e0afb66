//! Where ciphertext is kept: a file, a block device, memory.
//!
//! A store moves bytes and knows nothing of ciphers. Geometry is facts as data. A store that has a descriptor is driven
//! through the worker's ring; one that has none, or that answers from memory, is called on the worker's own thread.

pub(crate) mod block_device;
pub mod file;
pub mod memory;
pub mod zoned_device;

use crate::zoned::ZonedStore;
use rustix::io::Errno;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;

/// What is known of a store when it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Length in bytes.
    pub len: u64,
    /// Whether writes are refused.
    pub read_only: bool,
}

/// Facts about a store, from which the engine decides how to reach it.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreProfile {
    /// Whether reads and writes are copies that never wait for a device, as on tmpfs.
    pub in_memory: bool,
    /// Whether the descriptor is that of a block device.
    pub is_block_device: bool,
    /// Whether a FUA write reports nothing but its own failure, as with a disk's FUA. Elsewhere the engine writes and then
    /// syncs, since one FUA write could be told of an error of another one, which then succeeds.
    pub has_native_fua: bool,
    /// Alignment in bytes of memory that is read into or written from: a power of two, at most
    /// [`crate::Buffer::ALIGNMENT`].
    pub memory_alignment: usize,
}

impl Default for StoreProfile {
    /// A store that waits for a device, takes any memory, and has no FUA of its own.
    fn default() -> Self {
        Self { in_memory: false, is_block_device: false, has_native_fua: false, memory_alignment: 1 }
    }
}

/// A run of a store that is allocated or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockStatus {
    /// First byte.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
    /// Whether the store holds nothing here.
    pub hole: bool,
}

/// Reads all of `into`; the end of the store is an error, never zeroes.
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

/// Writes all of `from`.
pub fn write_all(store: &dyn BackingStore, mut from: &[u8], mut offset: u64) -> Result<(), Errno> {
    while !from.is_empty() {
        match store.write_at(from, offset, false) {
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

/// Storage for ciphertext, addressed by byte. Every call may transfer less than asked for, as the system calls do; the
/// engine asks again for the rest. Reading at the end gives 0.
pub trait BackingStore: Send + Sync {
    /// Length and access.
    fn geometry(&self) -> Geometry;

    /// Looks how long the store is now, which [`BackingStore::geometry`] says from then on.
    fn revalidate_len(&self) -> Result<u64, Errno> {
        Ok(self.geometry().len)
    }

    /// The descriptor through which a ring reaches the store; `None`: the worker calls the methods below inline.
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Facts that decide how the store is reached.
    fn profile(&self) -> StoreProfile {
        StoreProfile::default()
    }

    /// Reads at `offset`; the number of bytes read.
    fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno>;

    /// Writes at `offset`; the number of bytes written. `durable`, only with [`StoreProfile::has_native_fua`]: they are on
    /// stable storage before this returns.
    fn write_at(&self, data: &[u8], offset: u64, durable: bool) -> Result<usize, Errno>;

    /// Writes these one behind the other from `offset` on; the number of bytes written. A store that has one call for it sees to it
    /// that they are one write for a drive as well.
    fn write_vectored_at(&self, parts: &[IoSlice<'_>], offset: u64) -> Result<usize, Errno> {
        let mut done = 0;
        for part in parts {
            match self.write_at(part, offset + done as u64, false) {
                Ok(more) if more == part.len() => done += more,
                Ok(more) => return Ok(done + more),
                Err(error) if done == 0 => return Err(error),
                // It shows again when the rest is written.
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Puts everything that was written before on stable storage. The engine never calls it twice at a time, and not again
    /// after it has failed.
    fn sync(&self) -> Result<(), Errno>;

    /// Gives storage back. The bytes' content is undefined afterwards.
    fn discard(&self, offset: u64, len: u64) -> Result<(), Errno>;

    /// Brings a stretch nearer. Advice: it cannot fail.
    fn prefetch(&self, _offset: u64, _len: u64) {}

    /// Its zones, where it has some. What is written to a sequential one arrives in order, one write at a time: whoever calls
    /// sees to that ([`crate::zoned`]).
    fn zoned(&self) -> Option<&dyn ZonedStore> {
        None
    }

    /// The run of allocated bytes or hole that starts at `offset`, at most `len` long. A store that cannot tell says
    /// that everything is allocated.
    fn block_status(&self, offset: u64, len: u64) -> Result<BlockStatus, Errno> {
        Ok(BlockStatus { offset, len, hole: false })
    }
}
