//! A device over a volume: reads and writes blocks with their tags.

mod bitmap;
mod core;
mod journal;
mod journal_writer;
mod metrics;
mod mismatches;
mod open;
mod recalculate;
mod replay;
mod resize;
mod stored_journal;
mod stripes;
mod tag_cache;
mod wipe;

pub(crate) use core::Core;
pub use journal_writer::JournalWriter;
pub use metrics::MetricsSnapshot;
pub use mismatches::Mismatch;
pub(crate) use replay::StoredSections;
pub use resize::NewBlocks;
pub(crate) use wipe::MAX_STEP;

use crate::digest::Digest;
use crate::format::clear_journal;
use crate::layout::Layout;
use crate::options::{Mode, OpenOptions};
use crate::scratch::{Scratch, ScratchPool, bytes_of};
use crate::superblock::{Flags, Superblock};
use crate::tags::{DISCARD_FILLER, Tagger};
use crate::verify::{Verdict, Verifier};
use bitmap::Bitmap;
use inlock_engine::Errno;
use journal::{Journal, OwnSection, Part};
use recalculate::Recalculation;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use stored_journal::StoredJournal;

/// An open volume. Several threads may use it at once.
///
/// A *sector* is a logical sector of 512 bytes. Data are whole blocks; `tuples` are the tags of the same blocks one
/// after the other, and are empty with an internal hash.
pub struct IntegrityDevice {
    core: Core,
    options: OpenOptions,
    /// `None`: the tags are the caller's.
    verifier: Option<Verifier>,
    journal: Option<Journal>,
    /// The journal of a volume that is open read-only.
    stored_journal: Option<StoredJournal>,
    bitmap: Option<Bitmap>,
    superblock: Mutex<Superblock>,
    recalculation: RwLock<Option<Recalculation>>,
    /// Held during a step of the recalculation, and while its end changes.
    steps: Mutex<()>,
    /// Held during a resize.
    resizing: Mutex<()>,
    /// Held shared during a write in bitmap mode, and exclusively while bits are cleared.
    writes: RwLock<()>,
    flushes: Mutex<()>,
    scratch: ScratchPool,
}

/// A read failed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The request is not possible, or a store failed.
    #[error(transparent)]
    Io(#[from] Errno),
    /// Blocks at these sectors do not match their tags (`EILSEQ`). They are zero in the buffer; all others are valid.
    #[error("{} blocks do not match their tags, the first at sector {}", .0.len(), .0[0])]
    Mismatch(Vec<u64>),
}

impl ReadError {
    /// Returns the error number.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Io(errno) => *errno,
            Self::Mismatch(_) => Errno::ILSEQ,
        }
    }
}

impl IntegrityDevice {
    /// Returns the positions of the volume's parts.
    pub fn layout(&self) -> Layout {
        let mut layout = self.core.layout;
        layout.provided_data_sectors = self.core.provided();
        layout
    }

    /// Returns the superblock as it is stored, or will be at the next flush.
    pub fn superblock(&self) -> Superblock {
        *self.lock_superblock()
    }

    /// Returns the options of the open.
    pub fn options(&self) -> &OpenOptions {
        &self.options
    }

    /// Whether the tags are computed here.
    pub fn has_internal_tags(&self) -> bool {
        self.verifier.is_some()
    }

    /// Returns the counters.
    pub fn metrics(&self) -> MetricsSnapshot {
        self.core.metrics.snapshot(self.core.mismatches.get())
    }

    /// Returns the first sector of the block that was found first in each region of 1 MiB with mismatches, of at most
    /// 64 regions.
    pub fn mismatched_sectors(&self) -> Vec<u64> {
        self.core.mismatches.sectors()
    }

    /// Calls `observer` on the thread that reads, for the first mismatch of each MiB, in at most 64 regions.
    /// A device has one observer; later ones are ignored. Mismatches of the replay came before.
    pub fn observe_mismatches(&self, observer: impl Fn(Mismatch) + Send + Sync + 'static) {
        self.core.mismatches.observe(Box::new(observer));
    }

    /// Returns the section of the journal that was written last. `None` in modes without a journal. Only meaningful
    /// before the first write.
    pub fn newest_section(&self) -> Option<u32> {
        self.journal.as_ref().map(|journal| journal.newest_section(&self.core))
    }

    /// Calls `recorder` after each commit of the journal, with the number and the
    /// [digest](crate::StoredSection::digest) of the newest section, before the flush that waits for it returns. If it
    /// fails, the flush and all later writes fail.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` if the journal has a single section; `EINVAL` if there is a recorder, or no journal.
    pub fn record_commits(
        &self,
        recorder: impl Fn(u32, Digest) -> Result<(), Errno> + Send + Sync + 'static,
    ) -> Result<(), Errno> {
        self.journal.as_ref().ok_or(Errno::INVAL)?.record(Box::new(recorder))
    }

    /// Counts and reports blocks that do not match their tags.
    pub(crate) fn note_mismatches(&self, sectors: &[u64]) {
        sectors.iter().for_each(|sector| self.core.mismatches.note(*sector));
    }

    /// Reads blocks from `sector`. Blocks the caller.
    ///
    /// # Errors
    ///
    /// Names the blocks that do not match their tags; the others are in `data`.
    pub fn read(&self, sector: u64, data: &mut [u8], tuples: &mut [u8]) -> Result<(), ReadError> {
        let result = self.read_uncounted(sector, data, tuples);
        if let Err(ReadError::Mismatch(bad)) = &result {
            self.note_mismatches(bad);
        }
        result
    }

    /// Reads like [`IntegrityDevice::read`], but leaves it to the caller to count mismatches.
    pub(crate) fn read_uncounted(&self, sector: u64, data: &mut [u8], tuples: &mut [u8]) -> Result<(), ReadError> {
        let (first, count) = self.locate(sector, data.len(), tuples.len())?;
        if count == 0 {
            return Ok(());
        }
        let (block_len, tag_size) = (self.core.layout.block_len(), self.core.layout.journal.tag_size);
        let mut scratch = self.scratch.take();
        let Scratch { tags, journaled, .. } = &mut *scratch;
        let tags = if self.verifier.is_some() { bytes_of(tags, count as usize * tag_size) } else { tuples };
        // Without a journal all stay false; with one each is set.
        journaled.resize(count as usize, false);
        self.read_journal(first, data, tags, journaled)?;
        let mut at = 0;
        for run in journaled.chunk_by(|a, b| a == b) {
            let range = at..at + run.len();
            at = range.end;
            if !run[0] {
                let (start, len) = (first + range.start as u64, run.len() as u64);
                let _locks = self.core.stripes.read(start, len);
                let data = &mut data[range.start * block_len..range.end * block_len];
                self.core.read(start, data, &mut tags[range.start * tag_size..range.end * tag_size])?;
            }
        }
        let mismatches = self.verify(first, data, tags, journaled);
        if mismatches.is_empty() { Ok(()) } else { Err(ReadError::Mismatch(mismatches)) }
    }

    fn read_journal(&self, first: u64, data: &mut [u8], tags: &mut [u8], journaled: &mut [bool]) -> Result<(), Errno> {
        if self.journal.is_none() && self.stored_journal.is_none() {
            return Ok(());
        }
        let (block_len, tag_size) = (self.core.layout.block_len(), self.core.layout.journal.tag_size);
        let blocks = data.chunks_exact_mut(block_len).zip(tags.chunks_exact_mut(tag_size));
        for (n, (data, tag)) in blocks.enumerate() {
            let block = first + n as u64;
            journaled[n] = match (&self.journal, &self.stored_journal) {
                (Some(journal), _) => journal.has_read(block, data, tag),
                (None, Some(stored)) => stored.has_read(&self.core, block, data, tag)?,
                (None, None) => false,
            };
        }
        Ok(())
    }

    /// Compares blocks with their tags. Clears and returns those that do not match.
    fn verify(&self, first: u64, data: &mut [u8], tags: &[u8], journaled: &[bool]) -> Vec<u64> {
        let Some(verifier) = &self.verifier else { return vec![] };
        let (block_len, tag_size) = (self.core.layout.block_len(), self.core.layout.journal.tag_size);
        let mut mismatches = Vec::new();
        for (n, (data, tag)) in data.chunks_exact_mut(block_len).zip(tags.chunks_exact(tag_size)).enumerate() {
            let block = first + n as u64;
            let sector = block * self.core.layout.sectors_per_block();
            if journaled[n] && self.journal.is_some() {
                // From memory.
                continue;
            }
            match verifier.judge(sector, data, tag, || self.pending(block)) {
                Verdict::Verified | Verdict::Unverified | Verdict::Discarded => {}
                Verdict::Zeroes => data.fill(0),
                Verdict::Mismatch => {
                    data.fill(0);
                    mismatches.push(sector);
                }
            }
        }
        mismatches
    }

    /// Writes blocks from `sector`. They are durable after [`IntegrityDevice::flush`]. Blocks the caller.
    ///
    /// # Errors
    ///
    /// `EROFS` if the device is read-only, `EINVAL` if the range is not whole blocks of the volume, `EIO` after a store
    /// has failed.
    pub fn write(&self, sector: u64, data: &[u8], tuples: &[u8]) -> Result<(), Errno> {
        let (first, count) = self.locate(sector, data.len(), tuples.len())?;
        self.check_writable()?;
        if count == 0 {
            return Ok(());
        }
        self.core.metrics.count_client(data.len() as u64);
        let mut scratch = self.scratch.take();
        let tags = match &self.verifier {
            Some(verifier) => self.tags_of(&verifier.tagger, first, data, &mut scratch.tags),
            None => tuples,
        };
        if let Some(journal) = &self.journal {
            return journal.write(&self.core, first, data, tags);
        }
        let _write = self.writes.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(bitmap) = &self.bitmap {
            bitmap.set(&self.core, first, count)?;
        }
        let _locks = self.core.stripes.write(first, count);
        self.core.write(first, data, tags)
    }

    /// Returns a section of the journal for the first of `len` bytes of blocks with tags of the caller. `None`: they
    /// are to be [written](IntegrityDevice::write).
    pub(crate) fn take_section(&self, len: usize) -> Option<OwnSection> {
        let journal = self.journal.as_ref().filter(|_| self.verifier.is_none());
        journal.and_then(|journal| journal.take_section(&self.core, len))
    }

    /// Writes a section, whose blocks from `sector` the caller has filled in, like [`IntegrityDevice::write`].
    pub(crate) fn write_section(&self, sector: u64, mut section: OwnSection, tuples: &[u8]) -> Result<(), Errno> {
        let journal = self.journal.as_ref().ok_or(Errno::INVAL)?;
        let len = section.blocks_mut().len();
        let (first, _) = self.locate(sector, len, tuples.len())?;
        self.check_writable()?;
        self.core.metrics.count_client(len as u64);
        journal.add(&self.core, first, section, tuples)
    }

    /// Computes the tags of blocks, in `memory`.
    fn tags_of<'a>(&self, tagger: &Tagger, first: u64, data: &[u8], memory: &'a mut Vec<u8>) -> &'a [u8] {
        let layout = &self.core.layout;
        let blocks = data.chunks_exact(layout.block_len());
        let tags = bytes_of(memory, blocks.len() * layout.journal.tag_size);
        for (n, (block, tag)) in blocks.zip(tags.chunks_exact_mut(layout.journal.tag_size)).enumerate() {
            tagger.tag((first + n as u64) * layout.sectors_per_block(), block, tag);
        }
        tags
    }

    /// Makes all earlier writes durable. With a journal, one thread writes the entries of all that wait.
    ///
    /// # Errors
    ///
    /// `EIO` after a store has failed, now or earlier.
    pub fn flush(&self) -> Result<(), Errno> {
        if self.options.mode == Mode::Recovery || self.options.read_only {
            return Ok(());
        }
        match &self.journal {
            Some(journal) => journal.commit(&self.core),
            None => {
                let _one = self.flushes.lock().unwrap_or_else(PoisonError::into_inner);
                self.core.write_back()
            }
        }
    }

    /// Marks blocks as discarded: they are no longer checked, and their data are undefined.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` unless [`OpenOptions::allow_discards`] is set; otherwise as [`IntegrityDevice::write`].
    pub fn discard(&self, sector: u64, sectors: u64) -> Result<(), Errno> {
        if !self.options.allow_discards {
            return Err(Errno::OPNOTSUPP);
        }
        self.check_writable()?;
        let layout = &self.core.layout;
        let end = sector.checked_add(sectors).filter(|end| *end <= self.core.provided());
        let Some(end) = end.filter(|end| (sector | *end).is_multiple_of(layout.sectors_per_block())) else {
            return Err(Errno::INVAL);
        };
        let (mut first, end) = (sector / layout.sectors_per_block(), end / layout.sectors_per_block());
        if let Some(journal) = &self.journal
            && journal.has_any(first..end)
        {
            journal.checkpoint(&self.core, Part::All)?;
        }
        let _write = self.writes.read().unwrap_or_else(PoisonError::into_inner);
        let mut scratch = self.scratch.take();
        while first < end {
            let count = (end - first).min(1024);
            if let Some(bitmap) = &self.bitmap {
                bitmap.set(&self.core, first, count)?;
            }
            let _locks = self.core.stripes.write(first, count);
            let filler = bytes_of(&mut scratch.tags, count as usize * layout.journal.tag_size);
            filler.fill(DISCARD_FILLER);
            self.core.write_tags(first, filler)?;
            first += count;
        }
        Ok(())
    }

    /// Returns first block and number of blocks of a request.
    fn locate(&self, sector: u64, len: usize, tuples: usize) -> Result<(u64, u64), Errno> {
        let layout = &self.core.layout;
        let blocks = len / layout.block_len();
        let first = sector / layout.sectors_per_block();
        let whole = len.is_multiple_of(layout.block_len()) && sector.is_multiple_of(layout.sectors_per_block());
        let inside = first.checked_add(blocks as u64).is_some_and(|end| end <= self.core.blocks());
        let expected = if self.verifier.is_some() { 0 } else { blocks * layout.journal.tag_size };
        if whole && inside && tuples == expected { Ok((first, blocks as u64)) } else { Err(Errno::INVAL) }
    }

    fn check_writable(&self) -> Result<(), Errno> {
        if self.options.read_only || self.options.mode == Mode::Recovery { Err(Errno::ROFS) } else { self.core.check() }
    }

    /// Changes the superblock and makes it durable.
    fn update_superblock(&self, change: impl FnOnce(&mut Superblock)) -> Result<(), Errno> {
        let mut superblock = self.lock_superblock();
        change(&mut superblock);
        let bytes = superblock.encode(self.options.journal_mac.as_deref(), self.options.mode == Mode::Bitmap);
        self.core.write_metadata(&bytes[..], self.core.stores.start * 512)?;
        self.core.sync(false)
    }

    fn lock_superblock(&self) -> MutexGuard<'_, Superblock> {
        self.superblock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether changed tags are in the memory of this process only until they are
    /// [written back](IntegrityDevice::write_tags_back): neither a journal nor a bitmap tells of them.
    pub fn has_unprotected_tags(&self) -> bool {
        self.options.mode == Mode::Direct && !self.options.read_only
    }

    /// Writes changed tags to their places, without a sync, so that the end of this process leaves blocks that match
    /// them. To be called often, unless there are no [such tags](IntegrityDevice::has_unprotected_tags).
    ///
    /// # Errors
    ///
    /// As [`IntegrityDevice::flush`].
    pub fn write_tags_back(&self) -> Result<(), Errno> {
        let is_due = self.has_unprotected_tags() && self.core.tags.has_new_changes();
        if is_due { self.core.flush_tags() } else { Ok(()) }
    }

    /// Flushes, and clears the bits of the bitmap. To be called every few seconds, and when the device is idle.
    ///
    /// # Errors
    ///
    /// As [`IntegrityDevice::flush`].
    pub fn maintain(&self) -> Result<(), Errno> {
        let Some(bitmap) = &self.bitmap else { return self.flush() };
        let _no_writes = self.writes.write().unwrap_or_else(PoisonError::into_inner);
        // An empty journal may have replaced it.
        if bitmap.closed.load(Ordering::Acquire) { self.core.write_back() } else { self.clear_bits(bitmap).map(drop) }
    }

    /// Flushes and clears the bits of the bitmap, and returns whether it did: not during a recalculation. The caller
    /// holds `writes` exclusively.
    fn clear_bits(&self, bitmap: &Bitmap) -> Result<bool, Errno> {
        self.core.write_back()?;
        let recalculation = self.recalculation.read().unwrap_or_else(PoisonError::into_inner);
        if recalculation.is_some() {
            // Its regions are the set bits; they are cleared when all of them are done.
            return Ok(false);
        }
        let mut bits = bitmap.bits.lock().unwrap_or_else(PoisonError::into_inner);
        bits.clear();
        bits.write(&self.core)?;
        self.core.sync(false).map(|()| true)
    }

    /// Copies the journal to its places and marks the volume as clean. The device can still be used, with a bitmap for
    /// reading only; without a close a volume is replayed or recalculated when it is opened.
    ///
    /// # Errors
    ///
    /// As [`IntegrityDevice::flush`].
    pub fn close(&self) -> Result<(), Errno> {
        if self.options.mode == Mode::Recovery || self.options.read_only {
            return Ok(());
        }
        if let Some(journal) = &self.journal {
            return journal.checkpoint(&self.core, Part::All);
        }
        let Some(bitmap) = &self.bitmap else { return self.flush() };
        // Until it is marked as clean: the tags of a later write would not be flushed.
        let _no_writes = self.writes.write().unwrap_or_else(PoisonError::into_inner);
        if bitmap.closed.load(Ordering::Acquire) {
            return self.core.write_back();
        }
        if !self.clear_bits(bitmap)? {
            return Ok(());
        }
        // The kernel fails a volume whose journal has other bytes than sections. A power cut before the flag is
        // cleared leaves bits of regions that are computed again, to the tags that they have.
        bitmap.closed.store(true, Ordering::Release);
        self.core.note(clear_journal(&self.core.stores, &self.core.layout, &bitmap.journal, 0))?;
        self.update_superblock(|superblock| superblock.flags.set(Flags::DIRTY_BITMAP, false))
    }
}
