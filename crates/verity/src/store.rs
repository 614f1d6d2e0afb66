//! A device as a backing store of the engine: reads return verified bytes only.

use crate::cache::Cache;
use crate::error::{Area, Corruption, VerityError};
use crate::hasher::Hasher;
use crate::layout::Layout;
use crate::tree::{Stores, check_root, root_of};
use inlock_engine::store::read_all;
use inlock_engine::{BackingStore, Errno, Geometry, StoreProfile};
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Bytes of a request that are read at a time.
const MAX_LEN: usize = 1 << 20;
/// Bytes of digests that are computed at a time, on the stack.
const DIGESTS_LEN: usize = 4096;
/// Bad blocks that are reported; more are only counted.
const MAX_REPORTED: usize = 1024;

/// Called with a bad block when it is found first. Called on the thread of the request.
pub type OnCorruption = Box<dyn Fn(&Corruption) + Send + Sync>;

/// How a device is opened.
pub struct OpenOptions {
    /// Length in bytes of the cache of tree blocks. At least four blocks are cached.
    pub cache_len: usize,
    /// Bad blocks are reported and counted, and returned as they are.
    pub ignore_corruption: bool,
    /// A block whose digest is that of zeroes reads as zeroes, also if other bytes are stored.
    pub ignore_zero_blocks: bool,
    /// Receives the first 1024 bad blocks.
    pub on_corruption: Option<OnCorruption>,
}

impl Default for OpenOptions {
    /// Caches up to 32 MiB, and fails reads of bad blocks.
    fn default() -> Self {
        Self { cache_len: 32 << 20, ignore_corruption: false, ignore_zero_blocks: false, on_corruption: None }
    }
}

/// Counters of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Blocks of data that were compared with their digests.
    pub data_blocks: u64,
    /// Blocks of the tree that were read and verified.
    pub hash_blocks: u64,
    /// Bad blocks, as often as they were read.
    pub corrupted: u64,
}

#[derive(Default)]
struct Counters {
    data_blocks: AtomicU64,
    hash_blocks: AtomicU64,
    corrupted: AtomicU64,
}

/// Backing store of the verified data of a device. All blocks of a call of up to 1 MiB are hashed together. A bad block
/// fails with `EIO`, and those before and behind it can still be read. The store is read-only.
pub struct VerityStore {
    stores: Stores,
    layout: Layout,
    root: Vec<u8>,
    hasher: Hasher,
    cache: Cache,
    options: OpenOptions,
    /// Digest of a block of zeroes, if such blocks are not verified.
    zero_digest: Option<Vec<u8>>,
    counters: Counters,
    /// Bad blocks that were reported.
    reported: Mutex<HashSet<(Area, u64)>>,
}

/// A read that failed.
enum ReadError {
    Corrupt(Corruption),
    Io(Errno),
}

impl From<Errno> for ReadError {
    fn from(error: Errno) -> Self {
        Self::Io(error)
    }
}

impl VerityStore {
    /// Opens a device whose topmost block has the digest `root`.
    ///
    /// # Errors
    ///
    /// Refuses devices that are too short, and another root hash ([`VerityError::Corrupt`]); otherwise the stores'
    /// errors.
    pub fn open(stores: &Stores, layout: &Layout, root: &[u8], options: OpenOptions) -> Result<Self, VerityError> {
        stores.check(layout)?;
        check_root(layout, root)?;
        let hasher = Hasher::new(layout.parameters())?;
        if root_of(stores, layout, &hasher)? != root {
            let topmost = Area::below(layout.levels().len() as u32);
            return Err(stores.corruption(layout, topmost, 0).into());
        }
        let zero_digest = options.ignore_zero_blocks.then(|| hasher.digest(&vec![0; layout.data_block_len()]));
        Ok(Self {
            cache: Cache::new(options.cache_len, layout.hash_block_len(), layout.tree_blocks()),
            stores: stores.clone(),
            layout: layout.clone(),
            root: root.to_vec(),
            hasher,
            options,
            zero_digest,
            counters: Counters::default(),
            reported: Mutex::default(),
        })
    }

    /// Returns the places of the levels.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the counters.
    pub fn snapshot(&self) -> Snapshot {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Snapshot {
            data_blocks: value(&self.counters.data_blocks),
            hash_blocks: value(&self.counters.hash_blocks),
            corrupted: value(&self.counters.corrupted),
        }
    }

    fn corrupt(&self, area: Area, block: u64) -> ReadError {
        ReadError::Corrupt(self.stores.corruption(&self.layout, area, block))
    }

    /// Counts a bad block, and reports it unless it was.
    fn report(&self, corruption: &Corruption) {
        self.counters.corrupted.fetch_add(1, Ordering::Relaxed);
        let Some(on_corruption) = &self.options.on_corruption else { return };
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = reported.len() < MAX_REPORTED && reported.insert((corruption.area, corruption.block));
        drop(reported);
        if is_new {
            on_corruption(corruption);
        }
    }

    /// Calls `read` with a block of the tree, verified.
    fn with_hash_block(&self, level: u32, block: u64, read: &mut dyn FnMut(&[u8])) -> Result<(), ReadError> {
        let number = self.layout.levels()[level as usize].start_block + block;
        if self.cache.with(number, &mut *read).is_some() {
            return Ok(());
        }
        let area = Area::Level(level);
        let mut bytes = vec![0; self.layout.hash_block_len()];
        read_all(&*self.stores.hash, &mut bytes, self.stores.position(&self.layout, area, block))?;
        let digest = self.hasher.digest(&bytes);
        self.counters.hash_blocks.fetch_add(1, Ordering::Relaxed);
        let mut matches = false;
        self.with_digests(area, block, &mut |expected| matches = expected.starts_with(&digest))?;
        if !matches && !self.options.ignore_corruption {
            return Err(self.corrupt(area, block));
        }
        read(&bytes);
        if matches {
            self.cache.insert(number, &bytes);
        } else {
            self.report(&self.stores.corruption(&self.layout, area, block));
        }
        Ok(())
    }

    /// Calls `read` with the digest of a block, and those behind it in the same block of the tree.
    fn with_digests(&self, area: Area, block: u64, read: &mut dyn FnMut(&[u8])) -> Result<(), ReadError> {
        let level = area.level_above();
        if level as usize == self.layout.levels().len() {
            read(&self.root);
            return Ok(());
        }
        let at = (block & (self.layout.per_block() - 1)) as usize * self.layout.stride();
        self.with_hash_block(level, block >> self.layout.per_block_bits(), &mut |bytes| read(&bytes[at..]))
    }

    /// Reads whole blocks from block `first` on. Returns the number of those before a bad one, with its error.
    fn read_blocks(&self, first: u64, data: &mut [u8]) -> Result<(), (usize, ReadError)> {
        let len = self.layout.data_block_len();
        let position = self.stores.position(&self.layout, Area::Data, first);
        read_all(&*self.stores.data, data, position).map_err(|error| (0, error.into()))?;
        let count = data.len() / len;
        let mut at = 0;
        while at < count {
            let block = first + at as u64;
            // Their digests are in one block of the tree.
            let together = self.layout.per_block() - (block & (self.layout.per_block() - 1));
            let at_a_time = (DIGESTS_LEN / self.layout.stride()).min(count - at);
            let blocks = usize::try_from(together).unwrap_or(at_a_time).min(at_a_time);
            let data = &mut data[at * len..][..blocks * len];
            self.verify(block, data).map_err(|(good, error)| (at + good, error))?;
            at += blocks;
        }
        Ok(())
    }

    /// Compares blocks with their digests, which are in one block of the tree.
    fn verify(&self, first: u64, data: &mut [u8]) -> Result<(), (usize, ReadError)> {
        let (len, stride, digest_len) = (self.layout.data_block_len(), self.layout.stride(), self.hasher.len());
        let count = data.len() / len;
        let mut digests = [0; DIGESTS_LEN];
        let digests = &mut digests[..count * stride];
        self.hasher.digest_blocks(data, len, stride, digests);
        self.counters.data_blocks.fetch_add(count as u64, Ordering::Relaxed);
        let mut compare = |expected: &[u8]| -> Result<(), usize> {
            if expected.starts_with(digests) {
                return Ok(());
            }
            let pairs = expected.chunks(stride).zip(digests.chunks(stride)).zip(data.chunks_exact_mut(len));
            for (at, ((expected, computed), block)) in pairs.enumerate() {
                let expected = &expected[..digest_len];
                if expected == &computed[..digest_len] {
                    continue;
                }
                if self.zero_digest.as_deref() == Some(expected) {
                    block.fill(0);
                } else if self.options.ignore_corruption {
                    self.report(&self.stores.corruption(&self.layout, Area::Data, first + at as u64));
                } else {
                    return Err(at);
                }
            }
            Ok(())
        };
        let mut compared = Ok(());
        self.with_digests(Area::Data, first, &mut |expected| compared = compare(expected))
            .map_err(|error| (0, error))?;
        compared.map_err(|at| (at, self.corrupt(Area::Data, first + at as u64)))
    }

    /// Reads whole blocks; returns the number of valid bytes before a bad block, and clears the rest. Reports a bad
    /// block if it is needed for the bytes from `head` on.
    fn read_valid(&self, start: u64, blocks: &mut [u8], head: usize) -> Result<usize, Errno> {
        let len = self.layout.data_block_len();
        let read = self.read_blocks(start / len as u64, blocks);
        if let Err((good, _)) = &read {
            blocks[good * len..].fill(0);
        }
        match read {
            Ok(()) => Ok(blocks.len()),
            // The caller asks for the rest, which begins with the bad block, once more.
            Err((good, _)) if good * len > head => Ok(good * len),
            Err((_, ReadError::Corrupt(corruption))) => {
                self.report(&corruption);
                Err(Errno::IO)
            }
            Err((_, ReadError::Io(error))) => Err(error),
        }
    }
}

impl BackingStore for VerityStore {
    fn geometry(&self) -> Geometry {
        Geometry::new_read_only(self.layout.data_len())
    }

    fn profile(&self) -> StoreProfile {
        let mut profile = StoreProfile::default();
        profile.in_memory = self.stores.data.profile().in_memory && self.stores.hash.profile().in_memory;
        profile
    }

    fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let end = self.layout.data_len();
        if offset >= end || data.is_empty() {
            return Ok(0);
        }
        let block_len = self.layout.data_block_len();
        let head = (offset % block_len as u64) as usize;
        let wanted = usize::try_from(end - offset).unwrap_or(usize::MAX).min(data.len());
        let len = (head + wanted.min(MAX_LEN)).next_multiple_of(block_len);
        let start = offset - head as u64;
        if head == 0 && len <= data.len() {
            return self.read_valid(start, &mut data[..len], 0);
        }
        let mut blocks = vec![0; len];
        let valid = self.read_valid(start, &mut blocks, head)?;
        let count = (valid - head).min(wanted);
        data[..count].copy_from_slice(&blocks[head..head + count]);
        Ok(count)
    }

    fn write_at(&self, _data: &[u8], _offset: u64) -> Result<usize, Errno> {
        Err(Errno::ROFS)
    }

    fn sync(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> Result<(), Errno> {
        Err(Errno::ROFS)
    }

    fn prefetch(&self, offset: u64, len: u64) {
        self.stores.data.prefetch(offset, len);
    }
}
