//! A device as a backing store of the engine: reads return verified bytes only.

use crate::cache::Cache;
use crate::error::{Area, Corruption, VerityError};
use crate::fec::Fec;
use crate::hasher::Hasher;
use crate::layout::Layout;
use crate::tree::{Stores, check_root, verify};
use inlock_engine::store::read_all;
use inlock_engine::{BackingStore, Errno, Geometry, StoreProfile};
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a request that are read at a time.
const MAX_LEN: usize = 1 << 20;
/// Bytes of digests that are computed at a time, on the stack.
const DIGESTS_LEN: usize = 4096;
/// Longest digest of a hash.
const MAX_DIGEST_LEN: usize = 64;
/// Bad blocks that are remembered, and as many that were rebuilt.
const MAX_REMEMBERED: usize = 1024;

/// Called with a bad block when it is found first. Behind the first 1024 blocks it is called with the first, second,
/// fourth, eighth... read of a further one, and the number of reads of bad blocks so far. Blocks that were rebuilt are
/// counted apart. Called on the thread of the request.
pub type OnCorruption = Box<dyn Fn(&Corruption, Option<u64>) + Send + Sync>;

/// How a device is opened.
pub struct OpenOptions {
    /// Length in bytes of the cache of tree blocks. At least four blocks are cached.
    pub cache_len: usize,
    /// Bad blocks are reported and counted, and returned as they are. So are those whose digests are in a bad block.
    pub ignore_corruption: bool,
    /// A block whose digest is that of zeroes reads as zeroes, also if other bytes are stored.
    pub ignore_zero_blocks: bool,
    /// Receives bad blocks.
    pub on_corruption: Option<OnCorruption>,
    /// Rebuilds bad blocks, and those that cannot be read.
    pub fec: Option<Fec>,
}

impl Default for OpenOptions {
    /// Caches up to 32 MiB, and fails reads of bad blocks.
    fn default() -> Self {
        Self {
            cache_len: 32 << 20,
            ignore_corruption: false,
            ignore_zero_blocks: false,
            on_corruption: None,
            fec: None,
        }
    }
}

/// Counters of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Blocks of data that were compared with their digests.
    pub data_blocks: u64,
    /// Blocks of the tree that were read and verified.
    pub hash_blocks: u64,
    /// Bad blocks that were not rebuilt, as often as they were read.
    pub corrupted: u64,
    /// Blocks that were rebuilt from the parity, as often as they were read.
    pub repaired: u64,
    /// Wrong bytes in them.
    pub repaired_bytes: u64,
}

#[derive(Default)]
struct Counters {
    data_blocks: AtomicU64,
    hash_blocks: AtomicU64,
    corrupted: AtomicU64,
    repaired: AtomicU64,
    repaired_bytes: AtomicU64,
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
    /// Blocks that were not rebuilt, and those that were.
    reported: [Mutex<Reported>; 2],
}

/// Bad blocks that were reported.
#[derive(Default)]
struct Reported {
    blocks: HashSet<(Area, u64)>,
    /// Reads of blocks that are not among them.
    further: u64,
}

impl Reported {
    /// Whether a read of a bad block is reported. `Some(true)`: as one of many.
    fn report(&mut self, area: Area, block: u64) -> Option<bool> {
        if self.blocks.contains(&(area, block)) {
            return None;
        }
        if self.blocks.len() < MAX_REMEMBERED {
            self.blocks.insert((area, block));
            return Some(false);
        }
        self.further += 1;
        self.further.is_power_of_two().then_some(true)
    }
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
        options.fec.as_ref().map_or(Ok(()), |fec| fec.check(stores))?;
        let zero_digest = options.ignore_zero_blocks.then(|| hasher.digest(&vec![0; layout.data_block_len()]));
        let this = Self {
            cache: Cache::new(options.cache_len, layout.hash_block_len(), layout.tree_blocks()),
            stores: stores.clone(),
            layout: layout.clone(),
            root: root.to_vec(),
            hasher,
            options,
            zero_digest,
            counters: Counters::default(),
            reported: Default::default(),
        };
        this.check_topmost()?;
        Ok(this)
    }

    /// Compares the topmost block with the root hash.
    fn check_topmost(&self) -> Result<(), VerityError> {
        let area = Area::below(self.layout.levels().len() as u32);
        let mut block = vec![0; area.block_len(&self.layout)];
        let position = self.stores.position(&self.layout, area, 0);
        let read = read_all(self.stores.store(area), &mut block, position);
        if read.is_ok() && self.hasher.digest(&block) == self.root {
            return Ok(());
        }
        if self.is_repaired(area, 0, &self.root, &mut block) {
            if let Area::Level(level) = area {
                self.cache.insert(self.layout.levels()[level as usize].start_block, &block);
            }
            return Ok(());
        }
        read.map_err(VerityError::io("read the topmost block"))?;
        Err(self.stores.corruption(&self.layout, area, 0).into())
    }

    /// Returns the places of the levels.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the options it was opened with.
    pub fn options(&self) -> &OpenOptions {
        &self.options
    }

    /// Returns the error correction.
    pub fn fec(&self) -> Option<&Fec> {
        self.options.fec.as_ref()
    }

    /// Returns the counters.
    pub fn snapshot(&self) -> Snapshot {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Snapshot {
            data_blocks: value(&self.counters.data_blocks),
            hash_blocks: value(&self.counters.hash_blocks),
            corrupted: value(&self.counters.corrupted),
            repaired: value(&self.counters.repaired),
            repaired_bytes: value(&self.counters.repaired_bytes),
        }
    }

    fn corrupt(&self, area: Area, block: u64) -> ReadError {
        ReadError::Corrupt(self.stores.corruption(&self.layout, area, block))
    }

    /// Counts a bad block, and reports it unless it was or there are too many.
    fn report(&self, corruption: &Corruption) {
        let counter = if corruption.is_repaired { &self.counters.repaired } else { &self.counters.corrupted };
        let count = counter.fetch_add(1, Ordering::Relaxed) + 1;
        let Some(on_corruption) = &self.options.on_corruption else { return };
        // Many blocks that were rebuilt must not hide one that was not.
        let reported = &self.reported[usize::from(corruption.is_repaired)];
        let mut reported = reported.lock().unwrap_or_else(PoisonError::into_inner);
        let is_reported = reported.report(corruption.area, corruption.block);
        drop(reported);
        if let Some(is_one_of_many) = is_reported {
            on_corruption(corruption, is_one_of_many.then_some(count));
        }
    }

    /// Rebuilds a block whose digest must be `expected`; counts and reports it. Returns whether it succeeded.
    fn is_repaired(&self, area: Area, block: u64, expected: &[u8], bytes: &mut [u8]) -> bool {
        let Some(fec) = &self.options.fec else { return false };
        let number = fec.number(&self.layout, area, block);
        let rebuild = |erased: &[usize]| {
            fec.rebuild(&self.stores, number, erased).filter(|rebuilt| self.hasher.digest(rebuilt) == expected)
        };
        // With the places of the wrong blocks known, twice as many are corrected; but finding them takes longer.
        let Some(rebuilt) = rebuild(&[]).or_else(|| rebuild(&self.bad_symbols(fec, number))) else { return false };
        let wrong = rebuilt.iter().zip(&*bytes).filter(|(right, byte)| right != byte).count();
        self.counters.repaired_bytes.fetch_add(wrong as u64, Ordering::Relaxed);
        bytes.copy_from_slice(&rebuilt);
        self.report(&Corruption { is_repaired: true, ..self.stores.corruption(&self.layout, area, block) });
        true
    }

    /// Returns the symbols of the blocks in the round of a block that do not match their digests.
    fn bad_symbols(&self, fec: &Fec, number: u64) -> Vec<usize> {
        let mut bytes = vec![0; self.layout.data_block_len()];
        let mut is_bad = |other: u64| {
            let Some((area, block)) = fec.area_of(&self.layout, other) else { return false };
            if fec.read(&self.stores, other, 0, &mut bytes).is_err() {
                return true;
            }
            let digest = self.hasher.digest(&bytes);
            let mut matches = true;
            // A block whose digest is not known may be right.
            let _ = self.with_digests(area, block, false, &mut |expected| matches = expected.starts_with(&digest));
            !matches
        };
        let symbols = fec.round_of(number).enumerate();
        symbols.filter(|(_, other)| is_bad(*other)).map(|(symbol, _)| symbol).take(fec.roots() + 1).collect()
    }

    /// Calls `read` with a block of the tree, rebuilt if `repairs`. Returns whether it is verified, which only a store
    /// that ignores corruption does not need.
    fn with_hash_block(
        &self,
        level: u32,
        block: u64,
        repairs: bool,
        read: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, ReadError> {
        let number = self.layout.levels()[level as usize].start_block + block;
        if self.cache.with(number, &mut *read).is_some() {
            return Ok(true);
        }
        let area = Area::Level(level);
        let mut bytes = vec![0; self.layout.hash_block_len()];
        let result = read_all(&*self.stores.hash, &mut bytes, self.stores.position(&self.layout, area, block));
        if self.options.fec.is_none() || !repairs {
            result?;
        }
        let digest = self.hasher.digest(&bytes);
        self.counters.hash_blocks.fetch_add(1, Ordering::Relaxed);
        let mut expected = [0; MAX_DIGEST_LEN];
        let expected = &mut expected[..digest.len()];
        let mut take = |found: &[u8]| expected.copy_from_slice(&found[..expected.len()]);
        let is_verified = self.with_digests(area, block, repairs, &mut take)?;
        let matches = *expected == digest || repairs && self.is_repaired(area, block, expected, &mut bytes);
        if matches {
            read(&bytes);
            // A digest in a bad block confirms nothing.
            if is_verified {
                self.cache.insert(number, &bytes);
            }
            return Ok(is_verified);
        }
        result?;
        if !self.options.ignore_corruption || !repairs {
            return Err(self.corrupt(area, block));
        }
        read(&bytes);
        self.report(&self.stores.corruption(&self.layout, area, block));
        Ok(false)
    }

    /// Calls `read` with the digest of a block, and those behind it in the same block of the tree. Returns whether that
    /// block is verified.
    fn with_digests(
        &self,
        area: Area,
        block: u64,
        repairs: bool,
        read: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, ReadError> {
        let level = area.level_above();
        if level as usize == self.layout.levels().len() {
            read(&self.root);
            return Ok(true);
        }
        let at = (block & (self.layout.per_block() - 1)) as usize * self.layout.stride();
        self.with_hash_block(level, block >> self.layout.per_block_bits(), repairs, &mut |bytes| read(&bytes[at..]))
    }

    /// Reads whole blocks from block `first` on. Returns the number of those before a bad one, with its error.
    fn read_blocks(&self, first: u64, data: &mut [u8]) -> Result<(), (usize, ReadError)> {
        let len = self.layout.data_block_len();
        self.read_data(first, data).map_err(|error| (0, error.into()))?;
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

    /// Reads blocks that are not verified. With error correction those that cannot be read are zeroes, to be rebuilt,
    /// unless corruption is ignored: then they would be returned.
    fn read_data(&self, first: u64, data: &mut [u8]) -> Result<(), Errno> {
        let len = self.layout.data_block_len();
        let position = |block: u64| self.stores.position(&self.layout, Area::Data, block);
        let read = read_all(&*self.stores.data, data, position(first));
        if read.is_ok() || self.options.fec.is_none() || self.options.ignore_corruption {
            return read;
        }
        for (block, bytes) in (first..).zip(data.chunks_exact_mut(len)) {
            if read_all(&*self.stores.data, bytes, position(block)).is_err() {
                bytes.fill(0);
            }
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
        // Handled when the block of the tree is no longer locked in the cache.
        let mut wrong: Vec<(usize, Vec<u8>)> = Vec::new();
        let mut compare = |expected: &[u8]| {
            if expected.starts_with(digests) {
                return;
            }
            for (at, (expected, computed)) in expected.chunks(stride).zip(digests.chunks(stride)).enumerate() {
                if expected[..digest_len] != computed[..digest_len] {
                    wrong.push((at, expected[..digest_len].to_vec()));
                }
            }
        };
        let is_verified = self.with_digests(Area::Data, first, true, &mut compare).map_err(|error| (0, error))?;
        for (at, expected) in wrong {
            let (block, bytes) = (first + at as u64, &mut data[at * len..][..len]);
            if self.zero_digest.as_ref() == Some(&expected) {
                bytes.fill(0);
            } else if self.is_repaired(Area::Data, block, &expected, bytes) {
                // Counted.
            } else if !self.options.ignore_corruption {
                return Err((at, self.corrupt(Area::Data, block)));
            } else if is_verified {
                self.report(&self.stores.corruption(&self.layout, Area::Data, block));
            }
        }
        let unverified = if is_verified { 0..0 } else { first..first + count as u64 };
        for block in unverified {
            let corruption = self.stores.corruption(&self.layout, Area::Data, block);
            self.report(&Corruption { is_below_corrupted: true, ..corruption });
        }
        Ok(())
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
        // A repair reads hundreds of blocks, and decodes them.
        let repairs = self.options.fec.is_some();
        profile.in_memory = !repairs && [&self.stores.data, &self.stores.hash].iter().all(|s| s.profile().in_memory);
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

/// Compares the tree with the root hash and the data with the tree, as [`verify()`]; if something does not match, all
/// data are read through error correction, on one thread. Writes nothing. Returns the number of wrong bytes that were
/// corrected.
///
/// # Errors
///
/// [`VerityError::Corrupt`] names the first block that cannot be rebuilt; otherwise the stores' errors.
pub fn verify_repairing(
    stores: &Stores,
    layout: &Layout,
    root: &[u8],
    fec: &Fec,
    threads: usize,
) -> Result<u64, VerityError> {
    fec.check(stores)?;
    let found = match verify(stores, layout, root, threads) {
        Ok(()) => return Ok(0),
        Err(error @ (VerityError::Corrupt(_) | VerityError::Io { .. })) => error,
        Err(error) => return Err(error),
    };
    let bad = Arc::new(Mutex::new(None));
    let first = Arc::clone(&bad);
    let on_corruption: OnCorruption = Box::new(move |corruption, _| {
        if !corruption.is_repaired {
            first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(*corruption);
        }
    });
    let options = OpenOptions { fec: Some(fec.clone()), on_corruption: Some(on_corruption), ..OpenOptions::default() };
    let store = VerityStore::open(stores, layout, root, options)?;
    let mut piece = vec![0; MAX_LEN.next_multiple_of(layout.data_block_len())];
    let mut at = 0;
    while at < layout.data_len() {
        match store.read_at(&mut piece, at) {
            Ok(len) => at += len as u64,
            Err(errno) => {
                let bad = bad.lock().unwrap_or_else(PoisonError::into_inner).take();
                return Err(bad.map_or(VerityError::Io { action: "read the device", source: errno }, Into::into));
            }
        }
    }
    // Unused bytes of the tree, with their digest, have none to be compared with.
    let counters = store.snapshot();
    if counters.repaired > 0 { Ok(counters.repaired_bytes) } else { Err(found) }
}
