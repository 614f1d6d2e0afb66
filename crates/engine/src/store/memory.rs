//! A store in memory, for tests and benchmarks.

use super::{BackingStore, Geometry};
use crate::errno::Errno;
use std::sync::{PoisonError, RwLock};

/// Backing store in memory.
#[derive(Debug)]
pub struct MemoryStore {
    bytes: RwLock<Vec<u8>>,
    len: u64,
}

impl MemoryStore {
    /// Creates a store that holds `bytes`.
    pub fn new(bytes: Vec<u8>) -> Self {
        let len = bytes.len() as u64;
        Self { bytes: RwLock::new(bytes), len }
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
        Ok(())
    }
}
