//! Locks of blocks: a read of data and tags sees both before or both after a write.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

const STRIPES: usize = 256;
/// Blocks that share a lock side by side.
const GROUP: u64 = 64;

/// Table of locks. Blocks share them, so that the table has a fixed length.
pub(super) struct Stripes(Vec<RwLock<()>>);

impl Default for Stripes {
    fn default() -> Self {
        Self((0..STRIPES).map(|_| RwLock::new(())).collect())
    }
}

impl Stripes {
    /// Locks blocks shared. Blocks until no writer holds one.
    pub(super) fn read(&self, block: u64, count: u64) -> Vec<RwLockReadGuard<'_, ()>> {
        let lock = |n: usize| self.0[n].read().unwrap_or_else(PoisonError::into_inner);
        Self::numbers(block, count).into_iter().map(lock).collect()
    }

    /// Locks blocks exclusively. Blocks until no other thread holds one.
    pub(super) fn write(&self, block: u64, count: u64) -> Vec<RwLockWriteGuard<'_, ()>> {
        let lock = |n: usize| self.0[n].write().unwrap_or_else(PoisonError::into_inner);
        Self::numbers(block, count).into_iter().map(lock).collect()
    }

    /// Returns the locks of a range, each once and in ascending order, so that no two threads wait for each other.
    fn numbers(block: u64, count: u64) -> Vec<usize> {
        let groups = block / GROUP..=(block + count.max(1) - 1) / GROUP;
        let mut numbers: Vec<usize> = groups.take(STRIPES).map(|group| (group % STRIPES as u64) as usize).collect();
        numbers.sort_unstable();
        numbers
    }
}
