//! A store in memory, for tests and benchmarks.

use super::{BackingStore, BlockStatus, Geometry, StoreProfile};
use crate::errno::Errno;
use std::num::NonZeroU64;
use std::sync::{Mutex, PoisonError, RwLock};

/// Backing store in memory.
#[derive(Debug)]
pub struct MemoryStore {
    bytes: RwLock<Vec<u8>>,
    len: u64,
    holes: Option<ExactHoles>,
}

/// Holes that read as zeroes, and the discards that made them.
#[derive(Debug)]
struct ExactHoles {
    len: NonZeroU64,
    discards: Mutex<Vec<(u64, u64)>>,
}

impl MemoryStore {
    /// Creates a store that holds `bytes`.
    pub fn new(bytes: Vec<u8>) -> Self {
        let len = bytes.len() as u64;
        Self { bytes: RwLock::new(bytes), len, holes: None }
    }

    /// Gives the store exact holes of `len` bytes ([`StoreProfile::hole_len`]): those that are zeroes.
    #[must_use]
    pub fn with_exact_holes(self, len: NonZeroU64) -> Self {
        Self { holes: Some(ExactHoles { len, discards: Mutex::default() }), ..self }
    }

    /// Returns offset and length of each discard since the last call, if the store has exact holes.
    pub fn take_discards(&self) -> Vec<(u64, u64)> {
        let discards = self.holes.as_ref().map(|holes| &holes.discards);
        discards.map_or_else(Vec::new, |discards| {
            std::mem::take(&mut *discards.lock().unwrap_or_else(PoisonError::into_inner))
        })
    }

    /// Returns a copy of the content.
    pub fn contents(&self) -> Vec<u8> {
        self.bytes.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl BackingStore for MemoryStore {
    fn geometry(&self) -> Geometry {
        Geometry { len: self.len, read_only: false }
    }

    fn profile(&self) -> StoreProfile {
        StoreProfile { hole_len: self.holes.as_ref().map(|holes| holes.len), ..StoreProfile::default() }
    }

    fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let bytes = self.bytes.read().unwrap_or_else(PoisonError::into_inner);
        let start = offset.min(self.len) as usize;
        let len = data.len().min(bytes.len() - start);
        data[..len].copy_from_slice(&bytes[start..start + len]);
        Ok(len)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        let mut bytes = self.bytes.write().unwrap_or_else(PoisonError::into_inner);
        if offset >= self.len {
            return Err(Errno::NOSPC);
        }
        let start = offset as usize;
        let len = data.len().min(bytes.len() - start);
        bytes[start..start + len].copy_from_slice(&data[..len]);
        Ok(len)
    }

    fn sync(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), Errno> {
        let mut bytes = self.bytes.write().unwrap_or_else(PoisonError::into_inner);
        let start = offset.min(self.len) as usize;
        let end = offset.saturating_add(len).min(self.len) as usize;
        bytes[start..end].fill(0);
        if let Some(holes) = &self.holes {
            holes.discards.lock().unwrap_or_else(PoisonError::into_inner).push((offset, len));
        }
        Ok(())
    }

    fn block_status(&self, offset: u64, len: u64) -> Result<BlockStatus, Errno> {
        let Some(holes) = &self.holes else { return Ok(BlockStatus::allocated(offset, len)) };
        // The part of one hole.
        let len = len.min(holes.len.get() - offset % holes.len);
        let bytes = self.bytes.read().unwrap_or_else(PoisonError::into_inner);
        let (start, end) = (offset.min(self.len) as usize, (offset + len).min(self.len) as usize);
        let is_hole = bytes[start..end].iter().all(|byte| *byte == 0);
        Ok(if is_hole { BlockStatus::hole(offset, len) } else { BlockStatus::allocated(offset, len) })
    }
}
