//! Locks of blocks: a read of data and tags sees both before or both after a write.

use smallvec::SmallVec;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

const STRIPES: usize = 256;
/// Blocks that share a lock side by side.
const GROUP: u64 = 64;
/// A request of 2048 blocks holds at most 33 locks. More than these are kept in allocated memory.
const INLINE: usize = 36;

/// Table of locks. Blocks share them, so that the table has a fixed length.
pub(super) struct Stripes(Vec<RwLock<()>>);

impl Default for Stripes {
    fn default() -> Self {
        Self((0..STRIPES).map(|_| RwLock::new(())).collect())
    }
}

impl Stripes {
    /// Locks blocks shared. Blocks until no writer holds one.
    pub(super) fn read(&self, block: u64, count: u64) -> SmallVec<[RwLockReadGuard<'_, ()>; INLINE]> {
        let lock = |n: usize| self.0[n].read().unwrap_or_else(PoisonError::into_inner);
        Self::numbers(block, count).map(lock).collect()
    }

    /// Locks blocks exclusively. Blocks until no other thread holds one.
    pub(super) fn write(&self, block: u64, count: u64) -> SmallVec<[RwLockWriteGuard<'_, ()>; INLINE]> {
        let lock = |n: usize| self.0[n].write().unwrap_or_else(PoisonError::into_inner);
        Self::numbers(block, count).map(lock).collect()
    }

    /// Returns the locks of a range, each once and in ascending order, so that no two threads wait for each other.
    fn numbers(block: u64, count: u64) -> impl Iterator<Item = usize> {
        let (first, last) = (block / GROUP, (block + count.max(1) - 1) / GROUP);
        let len = (last - first + 1).min(STRIPES as u64) as usize;
        let start = (first % STRIPES as u64) as usize;
        // Those behind the end of the table are at its start.
        let around = (start + len).saturating_sub(STRIPES);
        (0..around).chain(start..(start + len).min(STRIPES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_has_its_lock_once_and_in_order() {
        for block in (0..3 * STRIPES as u64 * GROUP).step_by(1000) {
            for count in [0, 1, 63, 64, 65, 2048, 5000, 16_321, 16_384, 20_000, 100_000] {
                let numbers: Vec<usize> = Stripes::numbers(block, count).collect();
                assert!(numbers.is_sorted_by(|a, b| a < b), "{block}, {count}: {numbers:?}");
                let groups = block / GROUP..=(block + count.max(1) - 1) / GROUP;
                let expected = groups.map(|group| (group % STRIPES as u64) as usize);
                let expected: std::collections::BTreeSet<usize> = expected.collect();
                assert!(numbers.iter().eq(&expected), "{block}, {count}: {numbers:?}");
            }
        }
    }

    #[test]
    fn locks_of_a_request_of_2048_blocks_are_held_without_allocation() {
        let stripes = Stripes::default();
        assert!(!stripes.read(63, 2048).spilled());
        assert!(!stripes.write(1, 2048).spilled());
        assert_eq!(stripes.write(0, STRIPES as u64 * GROUP).len(), STRIPES);
    }
}
