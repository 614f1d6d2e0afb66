//! Verified blocks of a tree, in a bounded number.

use std::sync::{Mutex, PoisonError};

/// Blocks of a set, one of which makes room for a new one.
const WAYS: usize = 4;

/// Cache of blocks by their number in the tree. Memory is allocated when blocks are added.
pub(crate) struct Cache {
    sets: Vec<Mutex<Set>>,
}

#[derive(Default)]
struct Set {
    blocks: [Option<(u64, Box<[u8]>)>; WAYS],
    next: usize,
}

impl Cache {
    /// Makes a cache of up to `max_len` bytes, or of one set if that is less, for a tree of `tree_blocks` blocks.
    pub(crate) fn new(max_len: usize, block_len: usize, tree_blocks: u64) -> Self {
        let of_tree = usize::try_from(tree_blocks.div_ceil(WAYS as u64)).unwrap_or(usize::MAX);
        let sets = (max_len / block_len / WAYS).min(of_tree).max(1);
        Self { sets: (0..sets).map(|_| Mutex::default()).collect() }
    }

    fn set(&self, number: u64) -> &Mutex<Set> {
        &self.sets[(number % self.sets.len() as u64) as usize]
    }

    /// Calls `read` with a block if it is cached. Others of its set wait meanwhile.
    pub(crate) fn with<R>(&self, number: u64, read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let set = self.set(number).lock().unwrap_or_else(PoisonError::into_inner);
        let found = set.blocks.iter().flatten().find(|(other, _)| *other == number);
        found.map(|(_, block)| read(block))
    }

    /// Adds a verified block.
    pub(crate) fn insert(&self, number: u64, block: Box<[u8]>) {
        let mut set = self.set(number).lock().unwrap_or_else(PoisonError::into_inner);
        if set.blocks.iter().flatten().any(|(other, _)| *other == number) {
            return;
        }
        let at = set.next;
        set.blocks[at] = Some((number, block));
        set.next = (at + 1) % WAYS;
    }

    /// Returns the number of cached blocks.
    #[cfg(test)]
    fn len(&self) -> usize {
        let blocks = |set: &Mutex<Set>| set.lock().unwrap().blocks.iter().flatten().count();
        self.sets.iter().map(blocks).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_keeps_the_last_blocks_within_its_length() {
        let cache = Cache::new(64 * 512, 512, 1 << 40);
        for number in 0..10_000u64 {
            cache.insert(number, vec![number as u8; 512].into());
            cache.insert(number, vec![0xff; 512].into());
            assert_eq!(cache.with(number, |block| block[511]), Some(number as u8));
        }
        assert_eq!(cache.len(), 64);
        assert!((10_000 - 64..10_000).all(|number| cache.with(number, |_| ()).is_some()));
        assert!(cache.with(0, |_| ()).is_none());
    }

    #[test]
    fn cache_is_no_larger_than_the_tree() {
        assert_eq!(Cache::new(1 << 40, 512, 9).sets.len(), 3);
        assert_eq!(Cache::new(0, 512, 9).sets.len(), 1);
    }
}
