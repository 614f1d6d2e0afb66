//! Data and tags in their places.

use super::metrics::Metrics;
use super::mismatches::Mismatches;
use super::stripes::Stripes;
use super::tag_cache::TagCache;
use crate::layout::Layout;
use crate::stores::Stores;
use inlock_engine::Errno;
use inlock_engine::store::{read_all, write_all_vectored};
use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Stores of a device, with the cached tags and the locks of blocks.
pub(crate) struct Core {
    pub(super) stores: Stores,
    /// Where everything is; the length is that of the opening.
    pub(super) layout: Layout,
    /// Number of data sectors that the volume has now.
    provided: AtomicU64,
    pub(super) tags: TagCache,
    pub(super) stripes: Stripes,
    pub(super) metrics: Metrics,
    pub(super) mismatches: Mismatches,
    failed: AtomicBool,
    /// Held during a sync: stores rely on one at a time.
    sync: Mutex<()>,
}

impl Core {
    pub(crate) fn new(stores: Stores, layout: Layout) -> Self {
        Self {
            stores,
            layout,
            provided: AtomicU64::new(layout.provided_data_sectors),
            tags: TagCache::default(),
            stripes: Stripes::default(),
            metrics: Metrics::default(),
            mismatches: Mismatches::default(),
            failed: AtomicBool::new(false),
            sync: Mutex::new(()),
        }
    }

    /// Returns the number of data sectors.
    pub(super) fn provided(&self) -> u64 {
        self.provided.load(Ordering::Acquire)
    }

    /// Returns the number of blocks.
    pub(super) fn blocks(&self) -> u64 {
        self.provided() / self.layout.sectors_per_block()
    }

    pub(super) fn set_provided(&self, sectors: u64) {
        self.provided.store(sectors, Ordering::Release);
    }

    /// Fails if a write of metadata or a sync has failed: what is on the store is no longer known.
    pub(super) fn check(&self) -> Result<(), Errno> {
        if self.failed.load(Ordering::Acquire) { Err(Errno::IO) } else { Ok(()) }
    }

    /// Records a failure.
    pub(super) fn note<T>(&self, result: Result<T, Errno>) -> Result<T, Errno> {
        if result.is_err() {
            self.failed.store(true, Ordering::Release);
        }
        result
    }

    /// Reads blocks and their tags. The caller holds their locks.
    pub(super) fn read(&self, mut block: u64, mut data: &mut [u8], tags: &mut [u8]) -> Result<(), Errno> {
        self.metrics.count_stored(self.tags.read(&self.stores, &self.layout, block, tags)?);
        while !data.is_empty() {
            let (at, run) = self.layout.data_position(block);
            let count = run.min((data.len() / self.layout.block_len()) as u64);
            let (now, rest) = data.split_at_mut(count as usize * self.layout.block_len());
            read_all(&*self.stores.data, now, at)?;
            (block, data) = (block + count, rest);
        }
        Ok(())
    }

    /// Writes blocks and changes their cached tags. The caller holds their locks exclusively.
    pub(super) fn write(&self, mut block: u64, mut data: &[u8], mut tags: &[u8]) -> Result<(), Errno> {
        while !data.is_empty() {
            let run = self.layout.data_position(block).1;
            let count = run.min((data.len() / self.layout.block_len()) as u64);
            let (now, rest) = data.split_at(count as usize * self.layout.block_len());
            let (tags_now, tags_rest) = tags.split_at(count as usize * self.layout.journal.tag_size);
            self.write_run(block, &mut [IoSlice::new(now)], tags_now)?;
            (block, data, tags) = (block + count, rest, tags_rest);
        }
        Ok(())
    }

    /// Writes blocks that follow each other on the store, and changes their cached tags. The caller holds their locks
    /// exclusively.
    pub(super) fn write_run(&self, first: u64, parts: &mut [IoSlice<'_>], tags: &[u8]) -> Result<(), Errno> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        self.metrics.count_stored(len as u64);
        write_all_vectored(&*self.stores.data, parts, self.layout.data_position(first).0)?;
        self.write_tags(first, tags)
    }

    /// Changes the cached tags of blocks. The caller holds their locks exclusively.
    pub(super) fn write_tags(&self, first: u64, tags: &[u8]) -> Result<(), Errno> {
        self.metrics.count_stored(self.tags.write(&self.stores, &self.layout, first, tags)?);
        Ok(())
    }

    /// Writes the cached tags and syncs all stores.
    pub(super) fn write_back(&self) -> Result<(), Errno> {
        self.flush_tags()?;
        self.sync(true)
    }

    /// Writes the cached tags.
    pub(super) fn flush_tags(&self) -> Result<(), Errno> {
        self.check()?;
        let written = self.note(self.tags.flush(&self.stores, &self.layout))?;
        self.metrics.count_stored(written);
        Ok(())
    }

    /// Syncs the metadata store, and the data store too if `all`.
    pub(super) fn sync(&self, all: bool) -> Result<(), Errno> {
        let _one = self.sync.lock().unwrap_or_else(PoisonError::into_inner);
        self.check()?;
        let data = if all && self.stores.meta.is_some() { self.stores.data.sync() } else { Ok(()) };
        self.note(data.and_then(|()| self.stores.metadata().sync()))
    }

    /// Writes metadata.
    pub(super) fn write_metadata(&self, bytes: &[u8], at: u64) -> Result<(), Errno> {
        self.write_metadata_parts(&mut [IoSlice::new(bytes)], at)
    }

    /// Writes parts of metadata one after the other.
    pub(super) fn write_metadata_parts(&self, parts: &mut [IoSlice<'_>], at: u64) -> Result<(), Errno> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        self.metrics.count_stored(len as u64);
        self.note(write_all_vectored(self.stores.metadata(), parts, at))
    }
}
