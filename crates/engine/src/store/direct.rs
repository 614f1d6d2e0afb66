//! Direct I/O on a block device, for callers whose memory and ranges are not aligned.

use super::{BackingStore, BlockStatus, Geometry, StoreProfile, gather};
use crate::buffer::Buffer;
use crate::errno::Errno;
use std::io::IoSlice;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// Length of a buffer in bytes.
const BUFFER_LEN: usize = 1 << 20;
/// Buffers that are kept.
const MAX_SPARE: usize = 16;

/// A block device that was opened with `O_DIRECT`, for requests of any bytes from and into any memory: what is not
/// aligned passes through a buffer.
pub struct DirectStore {
    device: Arc<dyn BackingStore>,
    block_len: usize,
    spare: Mutex<Vec<Buffer>>,
    /// Held exclusively while a part of a block is written, shared while whole blocks are.
    blocks: RwLock<()>,
}

impl DirectStore {
    /// Creates a store from that of a block device that was opened with `O_DIRECT`, with blocks of `block_len` bytes.
    /// That is a power of two.
    pub fn new(device: Arc<dyn BackingStore>, block_len: usize) -> Self {
        Self { device, block_len, spare: Mutex::default(), blocks: RwLock::default() }
    }

    /// Calls `run` with a buffer.
    fn with_buffer<T>(&self, run: impl FnOnce(&mut [u8]) -> T) -> T {
        let spare = || self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = spare().pop();
        let mut buffer = taken.unwrap_or_else(|| Buffer::new(BUFFER_LEN));
        let result = run(buffer.data_mut());
        let mut spare = spare();
        if spare.len() < MAX_SPARE {
            spare.push(buffer);
        }
        result
    }

    fn is_whole(&self, offset: u64, len: usize) -> bool {
        (offset | len as u64) & (self.block_len as u64 - 1) == 0
    }

    fn is_aligned(&self, memory: &[u8]) -> bool {
        memory.as_ptr().addr() & (self.device.profile().memory_alignment - 1) == 0
    }

    /// Returns the start of the block of `offset`, the bytes of the block before it, and how many of `len` bytes from
    /// it on a buffer of whole blocks holds.
    fn fit(&self, offset: u64, len: usize) -> (u64, usize, usize) {
        let before = (offset & (self.block_len as u64 - 1)) as usize;
        (offset - before as u64, before, len.min(BUFFER_LEN - before))
    }

    /// Writes `parts` through a buffer.
    fn write_buffered(&self, parts: &[IoSlice<'_>], offset: u64) -> Result<usize, Errno> {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let (start, before, len) = self.fit(offset, total);
        let blocks = (before + len).next_multiple_of(self.block_len);
        let fill = |buffer: &mut [u8]| gather(parts, &mut buffer[before..before + len]);
        self.with_buffer(|buffer| {
            let buffer = &mut buffer[..blocks];
            if blocks == len {
                fill(buffer);
                let _shared = self.blocks.read().unwrap_or_else(PoisonError::into_inner);
                return self.device.write_at(buffer, start);
            }
            let _exclusive = self.blocks.write().unwrap_or_else(PoisonError::into_inner);
            if self.device.read_at(buffer, start)? != blocks {
                return Err(Errno::IO);
            }
            fill(buffer);
            let written = self.device.write_at(buffer, start)?;
            Ok(written.saturating_sub(before).min(len))
        })
    }
}

impl std::fmt::Debug for DirectStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DirectStore").field("block_len", &self.block_len).finish_non_exhaustive()
    }
}

impl BackingStore for DirectStore {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn revalidate_len(&self) -> Result<u64, Errno> {
        self.device.revalidate_len()
    }

    fn is_cut_before(&self, end: u64) -> bool {
        self.device.is_cut_before(end)
    }

    fn profile(&self) -> StoreProfile {
        StoreProfile { memory_alignment: 1, has_native_fua: false, ..self.device.profile() }
    }

    fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
        if self.is_whole(offset, data.len()) && self.is_aligned(data) {
            return self.device.read_at(data, offset);
        }
        let (start, before, len) = self.fit(offset, data.len());
        let blocks = (before + len).next_multiple_of(self.block_len);
        self.with_buffer(|buffer| {
            let read = self.device.read_at(&mut buffer[..blocks], start)?.saturating_sub(before).min(len);
            data[..read].copy_from_slice(&buffer[before..before + read]);
            Ok(read)
        })
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        if self.is_whole(offset, data.len()) && self.is_aligned(data) {
            let _shared = self.blocks.read().unwrap_or_else(PoisonError::into_inner);
            return self.device.write_at(data, offset);
        }
        self.write_buffered(&[IoSlice::new(data)], offset)
    }

    fn write_vectored_at(&self, parts: &[IoSlice<'_>], offset: u64) -> Result<usize, Errno> {
        if parts.iter().all(|part| self.is_whole(offset, part.len()) && self.is_aligned(part)) {
            let _shared = self.blocks.read().unwrap_or_else(PoisonError::into_inner);
            return self.device.write_vectored_at(parts, offset);
        }
        self.write_buffered(parts, offset)
    }

    fn sync(&self) -> Result<(), Errno> {
        self.device.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), Errno> {
        self.device.discard(offset, len)
    }

    fn block_status(&self, offset: u64, len: u64) -> Result<BlockStatus, Errno> {
        self.device.block_status(offset, len)
    }
}
