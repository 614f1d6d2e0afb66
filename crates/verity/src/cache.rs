//! Verified blocks of a tree, in a bounded number.

use std::sync::{PoisonError, RwLock};

/// Blocks of a set, one of which makes room for a new one.
const WAYS: usize = 4;
/// Parts of a cache, each with a lock of its own. Threads that read cached blocks do not wait for each other.
const PARTS: usize = 16;

/// Cache of blocks by their number in the tree. Its memory is taken at the start, and resident where blocks were added.
pub(crate) struct Cache {
    parts: Vec<RwLock<Part>>,
    sets: u64,
    block_len: usize,
}

/// Every [`PARTS`]th set.
struct Part {
    /// Number of the block at each place.
    numbers: Vec<Option<u64>>,
    /// Place in each set that the next block takes.
    next: Vec<u8>,
    blocks: Vec<u8>,
}

/// Set of a block.
struct Set {
    part: usize,
    /// Number in the part.
    set: usize,
}

impl Cache {
    /// Makes a cache of up to `max_len` bytes, or of one set if that is less, for a tree of `tree_blocks` blocks.
    pub(crate) fn new(max_len: usize, block_len: usize, tree_blocks: u64) -> Self {
        let of_tree = usize::try_from(tree_blocks.div_ceil(WAYS as u64)).unwrap_or(usize::MAX);
        let sets = (max_len / block_len / WAYS).min(of_tree).max(1);
        let part = |part: usize| {
            let sets = sets.saturating_sub(part).div_ceil(PARTS);
            let places = sets * WAYS;
            let part = Part { numbers: vec![None; places], next: vec![0; sets], blocks: vec![0; places * block_len] };
            RwLock::new(part)
        };
        Self { parts: (0..PARTS.min(sets)).map(part).collect(), sets: sets as u64, block_len }
    }

    fn set(&self, number: u64) -> Set {
        let set = (number % self.sets) as usize;
        Set { part: set % PARTS, set: set / PARTS }
    }

    /// Calls `read` with a block if it is cached.
    pub(crate) fn with<R>(&self, number: u64, read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let set = self.set(number);
        let part = self.parts[set.part].read().unwrap_or_else(PoisonError::into_inner);
        let place = part.place(&set, number)?;
        Some(read(&part.blocks[place * self.block_len..][..self.block_len]))
    }

    /// Adds a verified block.
    pub(crate) fn insert(&self, number: u64, block: &[u8]) {
        let set = self.set(number);
        let mut part = self.parts[set.part].write().unwrap_or_else(PoisonError::into_inner);
        if part.place(&set, number).is_some() {
            return;
        }
        let way = part.next[set.set];
        part.next[set.set] = (way + 1) % WAYS as u8;
        let place = set.set * WAYS + usize::from(way);
        part.numbers[place] = Some(number);
        part.blocks[place * self.block_len..][..self.block_len].copy_from_slice(block);
    }
}

impl Part {
    /// Returns the place of a block of a set.
    fn place(&self, set: &Set, number: u64) -> Option<usize> {
        let first = set.set * WAYS;
        let way = self.numbers[first..first + WAYS].iter().position(|other| *other == Some(number))?;
        Some(first + way)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of cached blocks, and of places.
    fn filled(cache: &Cache) -> (usize, usize) {
        let count = |part: &RwLock<Part>| {
            let part = part.read().unwrap();
            assert_eq!(part.blocks.len(), part.numbers.len() * cache.block_len);
            (part.numbers.iter().flatten().count(), part.numbers.len())
        };
        cache.parts.iter().map(count).fold((0, 0), |all, more| (all.0 + more.0, all.1 + more.1))
    }

    #[test]
    fn cache_keeps_the_last_blocks_within_its_length() {
        for places in [4, 12, 64, 68, 100] {
            let cache = Cache::new(places * 512 + 511, 512, 1 << 40);
            for number in 0..10_000u64 {
                cache.insert(number, &[number as u8; 512]);
                cache.insert(number, &[0xff; 512]);
                assert_eq!(cache.with(number, |block| block[511]), Some(number as u8));
            }
            assert_eq!(filled(&cache), (places, places));
            let last = 10_000 - places as u64..10_000;
            assert!(last.into_iter().all(|number| cache.with(number, |block| block[0]) == Some(number as u8)));
            assert!(cache.with(0, |_| ()).is_none());
        }
    }

    #[test]
    fn cache_is_no_larger_than_the_tree() {
        assert_eq!(filled(&Cache::new(1 << 40, 512, 9)), (0, 12));
        assert_eq!(filled(&Cache::new(0, 512, 9)), (0, 4));
        assert_eq!(filled(&Cache::new(1 << 20, 512, 65)), (0, 68));
    }

    /// A thread that reads a block while another one reads it too would wait forever for an exclusive lock.
    #[test]
    fn readers_of_a_block_do_not_wait_for_each_other() {
        let cache = Cache::new(0, 512, 4);
        cache.insert(3, &[3; 512]);
        let both = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| cache.with(3, |_| both.wait()));
            }
        });
    }
}
