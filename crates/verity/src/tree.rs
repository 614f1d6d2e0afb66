//! Making a hash tree, and comparing data with one.
//!
//! Threads take blocks of a level one after the other, each with the blocks below it. They need memory for a piece of
//! data and a block of the tree each, for devices of any length.

use crate::error::{Area, Corruption, VerityError, check};
use crate::hasher::Hasher;
use crate::layout::Layout;
use inlock_engine::BackingStore;
use inlock_engine::store::{read_all, write_all};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes that are read and hashed at a time, unless a block is longer. They stay in the caches of a CPU.
pub(crate) const PIECE_LEN: usize = 128 << 10;

/// Stores of a device.
#[derive(Clone)]
pub struct Stores {
    /// Store of the data, from its first byte.
    pub data: Arc<dyn BackingStore>,
    /// Store of the tree; it may be the same.
    pub hash: Arc<dyn BackingStore>,
    /// First byte of the tree.
    pub tree_offset: u64,
}

impl Stores {
    /// Describes a device.
    pub fn new(data: Arc<dyn BackingStore>, hash: Arc<dyn BackingStore>, tree_offset: u64) -> Self {
        Self { data, hash, tree_offset }
    }

    /// Checks that the data and the tree are on their devices.
    ///
    /// # Errors
    ///
    /// Names what is too long.
    pub fn check(&self, layout: &Layout) -> Result<(), VerityError> {
        let blocks = layout.parameters().data_blocks;
        let fits = layout.data_len() <= self.data.geometry().len;
        check(fits, "data_blocks", blocks, "the data device ends before the data do")?;
        let hash_len = self.hash.geometry().len;
        let end = self.tree_offset.checked_add(layout.tree_len());
        let fits = layout.tree_blocks() == 0 || end.is_some_and(|end| end <= hash_len);
        check(fits, "data_blocks", blocks, "the hash device ends before the tree does")?;
        Ok(())
    }

    /// Returns the first byte of a block.
    pub(crate) fn position(&self, layout: &Layout, area: Area, block: u64) -> u64 {
        match area {
            Area::Data => block * layout.data_block_len() as u64,
            Area::Level(level) => {
                let start = layout.levels()[level as usize].start_block;
                self.tree_offset + (start + block) * layout.hash_block_len() as u64
            }
        }
    }

    pub(crate) fn corruption(&self, layout: &Layout, area: Area, block: u64) -> Corruption {
        let topmost = layout.levels().len() as u32;
        let is_root = topmost == area.level_above();
        Corruption {
            area,
            block,
            position: self.position(layout, area, block),
            is_root,
            is_spare: false,
            is_repaired: false,
            is_below_corrupted: false,
        }
    }

    pub(crate) fn store(&self, area: Area) -> &dyn BackingStore {
        match area {
            Area::Data => &*self.data,
            Area::Level(_) => &*self.hash,
        }
    }
}

impl Area {
    /// Returns the level with the digests of this part.
    pub(crate) fn level_above(self) -> u32 {
        match self {
            Self::Data => 0,
            Self::Level(level) => level + 1,
        }
    }

    /// Returns the part whose digests a level has.
    pub(crate) fn below(level: u32) -> Self {
        level.checked_sub(1).map_or(Self::Data, Self::Level)
    }

    pub(crate) fn block_len(self, layout: &Layout) -> usize {
        match self {
            Self::Data => layout.data_block_len(),
            Self::Level(_) => layout.hash_block_len(),
        }
    }

    pub(crate) fn blocks(self, layout: &Layout) -> u64 {
        match self {
            Self::Data => layout.parameters().data_blocks,
            Self::Level(level) => layout.levels()[level as usize].blocks,
        }
    }
}

/// Makes the tree of the data, on `threads` threads, and returns the root hash. The caller writes the superblock and
/// syncs the store.
///
/// # Errors
///
/// A tree over the data of the same store, which is not written to; the stores' errors.
pub fn create(stores: &Stores, layout: &Layout, threads: usize) -> Result<Vec<u8>, VerityError> {
    stores.check(layout)?;
    let apart = !Arc::ptr_eq(&stores.data, &stores.hash) || stores.tree_offset >= layout.data_len();
    check(apart || layout.tree_blocks() == 0, "hash_offset", stores.tree_offset, "the tree would overwrite the data")?;
    let hasher = Hasher::new(layout.parameters())?;
    for level in 0..layout.levels().len() as u32 {
        let walk = Walk { stores, layout, hasher: &hasher, level };
        walk.run(threads, |block, digests| {
            let position = stores.position(layout, Area::Level(level), block);
            write_all(&*stores.hash, digests, position).map_err(VerityError::io("write the hash tree"))
        })?;
    }
    root_of(stores, layout, &hasher)
}

/// Compares the tree with the root hash and the data with the tree, from the top to the bottom, on `threads` threads.
/// Of several blocks that do not match one is reported, the first that a thread finds.
///
/// # Errors
///
/// [`VerityError::Corrupt`] names the block; otherwise the stores' errors.
pub fn verify(stores: &Stores, layout: &Layout, root: &[u8], threads: usize) -> Result<(), VerityError> {
    stores.check(layout)?;
    check_root(layout, root)?;
    let hasher = Hasher::new(layout.parameters())?;
    let topmost = Area::below(layout.levels().len() as u32);
    if root_of(stores, layout, &hasher)? != root {
        return Err(stores.corruption(layout, topmost, 0).into());
    }
    for level in (0..layout.levels().len() as u32).rev() {
        let walk = Walk { stores, layout, hasher: &hasher, level };
        walk.run(threads, |block, digests| walk.compare(block, digests))?;
    }
    Ok(())
}

/// Checks the length of a root hash.
pub(crate) fn check_root(layout: &Layout, root: &[u8]) -> Result<(), VerityError> {
    let good = root.len() == layout.parameters().hash.len();
    Ok(check(good, "root_hash", root.len() as u64, "it has not the length of the hash's digests")?)
}

/// Returns the digest of the topmost block, or of the only block of data.
pub(crate) fn root_of(stores: &Stores, layout: &Layout, hasher: &Hasher) -> Result<Vec<u8>, VerityError> {
    let area = Area::below(layout.levels().len() as u32);
    let mut block = vec![0; area.block_len(layout)];
    let position = stores.position(layout, area, 0);
    read_all(stores.store(area), &mut block, position).map_err(VerityError::io("read the topmost block"))?;
    Ok(hasher.digest(&block))
}

/// Runs `work` on up to `threads` threads, at most one for each job. A thread that fails sets the flag, and the others
/// end with their jobs. Returns the first error.
pub(crate) fn on_threads(
    threads: usize,
    jobs: u64,
    work: impl Fn(&AtomicBool) -> Result<(), VerityError> + Sync,
) -> Result<(), VerityError> {
    let (failed, first) = (AtomicBool::new(false), Mutex::new(None));
    let work = || {
        if let Err(error) = work(&failed) {
            failed.store(true, Ordering::Relaxed);
            first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    };
    let threads = threads.clamp(1, usize::try_from(jobs.max(1)).unwrap_or(usize::MAX));
    std::thread::scope(|scope| {
        // Fewer threads do the same work if the system has no more.
        let named = || std::thread::Builder::new().name("inlock-verity".to_owned());
        let _others: Vec<_> = (1..threads).map_while(|_| named().spawn_scoped(scope, work).ok()).collect();
        work();
    });
    first.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// A pass over one level of a tree.
struct Walk<'a> {
    stores: &'a Stores,
    layout: &'a Layout,
    hasher: &'a Hasher,
    level: u32,
}

impl Walk<'_> {
    /// Computes each block of the level from the blocks below, and passes it to `done`. Ends at the first error.
    fn run(
        &self,
        threads: usize,
        done: impl Fn(u64, &[u8]) -> Result<(), VerityError> + Sync,
    ) -> Result<(), VerityError> {
        let blocks = self.layout.levels()[self.level as usize].blocks;
        let next = AtomicU64::new(0);
        on_threads(threads, blocks, |failed| {
            let mut piece = vec![0; PIECE_LEN.max(Area::below(self.level).block_len(self.layout))];
            let mut digests = vec![0; self.layout.hash_block_len()];
            loop {
                let block = next.fetch_add(1, Ordering::Relaxed);
                if block >= blocks || failed.load(Ordering::Relaxed) {
                    return Ok(());
                }
                self.compute(block, &mut piece, &mut digests)?;
                done(block, &digests)?;
            }
        })
    }

    /// Fills `digests` with block `block` of the level.
    fn compute(&self, block: u64, piece: &mut [u8], digests: &mut [u8]) -> Result<(), VerityError> {
        let (layout, area) = (self.layout, Area::below(self.level));
        let (len, stride) = (area.block_len(layout), layout.stride());
        let first = block << layout.per_block_bits();
        let count = (area.blocks(layout) - first).min(layout.per_block()) as usize;
        digests.fill(0);
        let at_a_time = piece.len() / len;
        let mut at = 0;
        while at < count {
            let blocks = at_a_time.min(count - at);
            let piece = &mut piece[..blocks * len];
            let position = self.stores.position(layout, area, first + at as u64);
            let action = if area == Area::Data { "read the data" } else { "read the hash tree" };
            read_all(self.stores.store(area), piece, position).map_err(VerityError::io(action))?;
            self.hasher.digest_blocks(piece, len, stride, &mut digests[at * stride..][..blocks * stride]);
            at += blocks;
        }
        Ok(())
    }

    /// Compares a computed block of the level with the stored one, which is known to be right except for spare bytes.
    fn compare(&self, block: u64, digests: &[u8]) -> Result<(), VerityError> {
        let mut stored = vec![0; digests.len()];
        let position = self.stores.position(self.layout, Area::Level(self.level), block);
        read_all(&*self.stores.hash, &mut stored, position).map_err(VerityError::io("read the hash tree"))?;
        if stored == digests {
            return Ok(());
        }
        let (stride, len) = (self.layout.stride(), self.hasher.len());
        let differs = (0..self.layout.per_block()).zip(stored.chunks(stride).zip(digests.chunks(stride)));
        let below = Area::below(self.level);
        let count = below.blocks(self.layout) - (block << self.layout.per_block_bits());
        let mut used = differs.take_while(|(at, _)| *at < count);
        if let Some((at, _)) = used.find(|(_, (stored, computed))| stored[..len] != computed[..len]) {
            let block = (block << self.layout.per_block_bits()) + at;
            return Err(self.stores.corruption(self.layout, below, block).into());
        }
        let corruption = self.stores.corruption(self.layout, Area::Level(self.level), block);
        Err(Corruption { is_root: false, is_spare: true, ..corruption }.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn threads_are_as_many_as_wanted_and_no_more_than_jobs() {
        for (threads, jobs, expected) in [(4, 10, 4), (4, 4, 4), (4, 2, 2), (4, 0, 1), (1, 10, 1), (0, 10, 1)] {
            let count = AtomicUsize::new(0);
            let work = |_: &AtomicBool| {
                count.fetch_add(1, Ordering::Relaxed);
                Ok(())
            };
            on_threads(threads, jobs, work).unwrap();
            assert_eq!(count.into_inner(), expected, "{threads} threads, {jobs} jobs");
        }
    }

    #[test]
    fn thread_that_fails_ends_the_others() {
        let calls = AtomicUsize::new(0);
        let begun = std::time::Instant::now();
        let failed = on_threads(2, 2, |failed| {
            if calls.fetch_add(1, Ordering::Relaxed) == 0 {
                return Err(VerityError::NoSuperblock);
            }
            while !failed.load(Ordering::Relaxed) {
                assert!(begun.elapsed().as_secs() < 60, "nothing tells of the failure");
                std::thread::yield_now();
            }
            Ok(())
        });
        assert!(matches!(failed, Err(VerityError::NoSuperblock)));
    }
}
