//! A volume as a backing store of the engine: with internal tags, or sealed by an AEAD as LUKS2 does it.

use crate::device::{IntegrityDevice, MAX_STEP, ReadError};
use crate::error::IntegrityError;
use crate::marks::Marks;
use crate::options::{Mode, OpenOptions};
use crate::scratch::{MAX_LEN, Scratch, ScratchPool, bytes_of};
use crate::stores::Stores;
use inlock_cipher::{Aead, InOut, SECTOR_SIZE, Sector, scrub_stack};
use inlock_engine::{BackingStore, Errno, Geometry};
use std::ops::ControlFlow;
use std::sync::{Arc, PoisonError, RwLock};

/// Bytes of stack that a call of the AEAD may use, which is wiped: the thread may wait in the next call when the key is
/// dropped.
const CIPHER_STACK: usize = 24 << 10;

/// Backing store over a device. It takes requests of any bytes: a block that is written in part is read and verified
/// first. All blocks of a call of up to 1 MiB are verified or sealed together; a bad block fails with `EILSEQ`, and
/// those before and behind it can still be read.
pub struct IntegrityStore {
    device: Arc<IntegrityDevice>,
    tags: Tags,
    read_only: bool,
    /// Held exclusively while a block is read, changed and written.
    partial: RwLock<()>,
    scratch: ScratchPool,
}

/// An AEAD, and the marks of blocks that were never written, under the same volume key.
pub struct Sealing {
    aead: Aead,
    /// `None`: the tags are too short for them.
    marks: Option<Marks>,
}

impl Sealing {
    /// Returns both for a device with tags of `tag_size` bytes; `key` is the volume key of `aead`.
    ///
    /// # Errors
    ///
    /// Fails if the tuples of `aead` are longer than the tags.
    pub fn new(aead: Aead, key: &[u8], tag_size: usize) -> Result<Self, IntegrityError> {
        let shorter = |_| IntegrityError::option("tag-size", "the tags are shorter than the tuples of the AEAD");
        let aead = aead.with_tuple_len(tag_size).map_err(shorter)?;
        let marks = Marks::of_volume_key(key, tag_size, aead.unit().bytes()).ok();
        Ok(Self { aead, marks })
    }

    /// Returns the marks. `None`: the tags are shorter than [`Marks::MIN_LEN`].
    pub fn marks(&self) -> Option<&Marks> {
        self.marks.as_ref()
    }

    /// Whether a block matches its tag. Overwrites it.
    fn is_match(&self, sector: u64, block: &mut [u8], tag: &[u8]) -> bool {
        self.aead.open(Sector(sector), InOut::InPlace(block), tag).is_ok_and(|bad| bad.is_empty())
    }

    /// Encrypts the blocks of `data` from `sector` in place and makes their tags, for
    /// [`IntegrityDevice::wipe`].
    ///
    /// # Errors
    ///
    /// `EIO` without random IVs.
    pub fn seal(&self, sector: u64, data: &mut [u8], tags: &mut [u8]) -> Result<(), Errno> {
        self.aead.seal(Sector(sector), InOut::InPlace(data), tags).map_err(|_| Errno::IO)
    }
}

/// Content that [`IntegrityStore::fill_unreadable`] gives a block that does not match its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Zeroes are written to it.
    Zeroes,
    /// It is marked as never written.
    Marks,
}

/// Result of [`IntegrityStore::fill_unreadable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Filled {
    /// Sector that was reached.
    pub reached: u64,
    /// Blocks that did not match their tags.
    pub blocks: u64,
}

impl IntegrityDevice {
    /// Opens a volume whose tags are those of `sealing`: entries of the journal that do not match are damage.
    ///
    /// # Errors
    ///
    /// As [`IntegrityDevice::open`].
    pub fn open_sealed(stores: Stores, options: OpenOptions, sealing: &Sealing) -> Result<Self, IntegrityError> {
        let check = |sector: u64, data: &mut [u8], tag: &[u8]| sealing.is_match(sector, data, tag);
        let device = Self::open_with(stores, options, Some(&check));
        scrub_stack::<CIPHER_STACK>();
        device
    }
}

/// Source of the tags.
enum Tags {
    /// The device computes them.
    Internal,
    /// The AEAD encrypts the blocks and makes their tuples. `None`: its key was wiped.
    Sealed(Box<RwLock<Option<Sealing>>>),
}

impl IntegrityStore {
    /// Returns the store of a device with internal tags.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the tags are the caller's.
    pub fn new(device: Arc<IntegrityDevice>) -> Result<Self, Errno> {
        if device.has_internal_tags() { Ok(Self::over(device, Tags::Internal)) } else { Err(Errno::INVAL) }
    }

    /// Returns the store of the plaintext of a device whose blocks are the data units of the AEAD and whose tags are
    /// its tuples. A block that was never written does not match its tuple, unless it is
    /// [marked](IntegrityDevice::mark_never_written).
    ///
    /// # Errors
    ///
    /// `EINVAL` if the device has internal tags, blocks of another length than the data units, or tags of another
    /// length than those of `sealing`.
    pub fn sealed(device: Arc<IntegrityDevice>, sealing: Sealing) -> Result<Self, Errno> {
        let sealing = fitting(&device, sealing)?;
        Ok(Self::over(device, Tags::Sealed(Box::new(RwLock::new(Some(sealing))))))
    }

    fn over(device: Arc<IntegrityDevice>, tags: Tags) -> Self {
        let read_only = device.options().read_only || device.options().mode == Mode::Recovery;
        let layout = device.layout();
        let scratch = ScratchPool::new(MAX_LEN, MAX_LEN / layout.block_len(), layout.journal.tag_size);
        Self { device, tags, read_only, partial: RwLock::new(()), scratch }
    }

    /// Drops the AEAD and the marks, which wipes their keys. Blocks until calls in progress return; later reads and
    /// writes fail with `ESHUTDOWN`, flushes do not. Does nothing if the tags are internal.
    pub fn wipe_key(&self) {
        if let Tags::Sealed(sealing) = &self.tags {
            *sealing.write().unwrap_or_else(PoisonError::into_inner) = None;
            self.scratch.clear();
        }
    }

    /// Sets AEAD and marks after [`IntegrityStore::wipe_key`].
    ///
    /// # Errors
    ///
    /// `EINVAL` as for [`IntegrityStore::sealed`].
    pub fn set_sealing(&self, sealing: Sealing) -> Result<(), Errno> {
        let Tags::Sealed(current) = &self.tags else { return Err(Errno::INVAL) };
        let sealing = fitting(&self.device, sealing)?;
        *current.write().unwrap_or_else(PoisonError::into_inner) = Some(sealing);
        Ok(())
    }

    /// Continues an interrupted wipe: finds the place where it stopped, and fills the blocks behind it that do not
    /// match their tags. Blocks that match are kept. Uses `threads` threads. Blocks the caller.
    ///
    /// The place is found by bisection, since all blocks before it match. The search may end anywhere in the step that
    /// was cut off, where blocks that match follow others, so the work begins a whole step before. A block that was
    /// changed since cannot be told from one that was never written, and is filled if the search meets it. After each
    /// step `progress` is given the sector that was reached, and can stop; the next call continues.
    ///
    /// # Errors
    ///
    /// The store's error; with [`Fill::Marks`] those of [`IntegrityDevice::mark_never_written`].
    pub fn fill_unreadable(
        &self,
        fill: Fill,
        threads: usize,
        mut progress: impl FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Filled, Errno> {
        let chunks = self.len().div_ceil(MAX_LEN as u64);
        let (mut low, mut high) = (0, chunks);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.unreadable(middle)?.is_empty() { low = middle + 1 } else { high = middle }
        }
        let step = MAX_STEP / MAX_LEN as u64;
        let (mut chunk, mut blocks) = (low.saturating_sub(step), 0);
        while chunk < chunks {
            let end = (chunk + (threads as u64).clamp(1, step)).min(chunks);
            blocks += std::thread::scope(|scope| {
                let running: Vec<_> =
                    (chunk..end).map(|chunk| scope.spawn(move || self.fill_chunk(fill, chunk))).collect();
                // A thread that panicked has not filled its chunk.
                let filled = running.into_iter().map(|thread| thread.join().unwrap_or(Err(Errno::IO)));
                filled.sum::<Result<u64, Errno>>()
            })?;
            self.device.flush()?;
            chunk = end;
            if progress(self.chunk_start(chunk) / SECTOR_SIZE).is_break() {
                break;
            }
        }
        Ok(Filled { reached: self.chunk_start(chunk) / SECTOR_SIZE, blocks })
    }

    fn chunk_start(&self, chunk: u64) -> u64 {
        (chunk * MAX_LEN as u64).min(self.len())
    }

    /// Returns the sectors of the blocks of a chunk of 1 MiB that do not match their tags. Does not count them.
    fn unreadable(&self, chunk: u64) -> Result<Vec<u64>, Errno> {
        let start = self.chunk_start(chunk);
        let mut data = vec![0; (self.chunk_start(chunk + 1) - start) as usize];
        match self.read_blocks(start, &mut data, &mut self.scratch.take().tags) {
            Ok(()) => Ok(Vec::new()),
            Err(ReadError::Mismatch(bad)) => Ok(bad),
            Err(ReadError::Io(error)) => Err(error),
        }
    }

    /// Fills the blocks of a chunk that do not match their tags, and returns their number.
    fn fill_chunk(&self, fill: Fill, chunk: u64) -> Result<u64, Errno> {
        let bad = self.unreadable(chunk)?;
        let sectors = self.device.layout().sectors_per_block();
        let mut scratch = self.scratch.take();
        for run in bad.chunk_by(|a, b| a + sectors == *b) {
            if fill == Fill::Marks {
                self.mark_blocks(run[0], run.len() as u64)?;
                continue;
            }
            let zeroes = vec![0; run.len() * self.device.layout().block_len()];
            let Scratch { sealed, tags, .. } = &mut *scratch;
            self.write_blocks(run[0] * SECTOR_SIZE, &zeroes, sealed, tags)?;
        }
        Ok(bad.len() as u64)
    }

    fn mark_blocks(&self, sector: u64, blocks: u64) -> Result<(), Errno> {
        match &self.tags {
            Tags::Internal => self.device.mark_blocks(sector, blocks, None),
            Tags::Sealed(sealing) => {
                let sealing = sealing.read().unwrap_or_else(PoisonError::into_inner);
                let sealing = sealing.as_ref().ok_or(Errno::SHUTDOWN)?;
                self.device.mark_blocks(sector, blocks, sealing.marks())
            }
        }
    }

    /// Returns the device.
    pub fn device(&self) -> &IntegrityDevice {
        &self.device
    }

    fn len(&self) -> u64 {
        self.device.layout().provided_data_sectors * SECTOR_SIZE
    }

    /// Returns the whole blocks around bytes, as many as are carried out at a time: first byte and length.
    fn aligned(&self, offset: u64, len: usize) -> (u64, usize) {
        let block = self.device.layout().block_len();
        let head = (offset % block as u64) as usize;
        let len = len.min((self.len() - offset.min(self.len())) as usize);
        (offset - head as u64, (head + len).next_multiple_of(block).min(MAX_LEN))
    }

    /// Returns the number of bytes of the tuples of whole blocks.
    fn tuples_len(&self, aead: &Aead, len: usize) -> usize {
        len / self.device.layout().block_len() * aead.tuple_len()
    }

    /// Reads whole blocks from byte `start`, and decrypts them; `memory` is for their tuples. Does not count
    /// mismatches.
    fn read_blocks(&self, start: u64, blocks: &mut [u8], memory: &mut Vec<u8>) -> Result<(), ReadError> {
        let sector = start / SECTOR_SIZE;
        let Tags::Sealed(sealing) = &self.tags else { return self.device.read_uncounted(sector, blocks, &mut []) };
        let sealing = sealing.read().unwrap_or_else(PoisonError::into_inner);
        let Sealing { aead, marks } = sealing.as_ref().ok_or(Errno::SHUTDOWN)?;
        let tuples = bytes_of(memory, self.tuples_len(aead, blocks.len()));
        self.device.read_uncounted(sector, blocks, tuples)?;
        let bad = aead.open(Sector(sector), InOut::InPlace(blocks), tuples).map_err(|_| Errno::INVAL);
        scrub_stack::<CIPHER_STACK>();
        let bad = bad?;
        // Bad units are zero by now, as blocks that were never written are.
        let sector_of = |unit: usize| sector + unit as u64 * aead.unit().sectors();
        let tuple = |unit: usize| &tuples[unit * aead.tuple_len()..][..aead.tuple_len()];
        let is_mark = |unit| marks.as_ref().is_some_and(|marks| marks.is_mark(sector_of(unit), tuple(unit)));
        let bad: Vec<u64> = bad.iter().filter(|unit| !is_mark(*unit)).map(sector_of).collect();
        if bad.is_empty() { Ok(()) } else { Err(ReadError::Mismatch(bad)) }
    }

    /// Encrypts whole blocks to sections of the journal, or to `sealed`, with tuples in `tags`, and writes them from
    /// byte `start`.
    fn write_blocks(&self, start: u64, blocks: &[u8], sealed: &mut Vec<u8>, tags: &mut Vec<u8>) -> Result<(), Errno> {
        let sector = start / SECTOR_SIZE;
        let Tags::Sealed(sealing) = &self.tags else { return self.device.write(sector, blocks, &[]) };
        let sealing = sealing.read().unwrap_or_else(PoisonError::into_inner);
        let aead = &sealing.as_ref().ok_or(Errno::SHUTDOWN)?.aead;
        let result = self.seal_and_write(aead, sector, blocks, sealed, tags);
        scrub_stack::<CIPHER_STACK>();
        result
    }

    fn seal_and_write(
        &self,
        aead: &Aead,
        mut sector: u64,
        mut blocks: &[u8],
        sealed: &mut Vec<u8>,
        tags: &mut Vec<u8>,
    ) -> Result<(), Errno> {
        // Nothing is written without random IVs.
        let seal = |sector: u64, src: &[u8], dst: &mut [u8], tuples: &mut [u8]| {
            aead.seal(Sector(sector), InOut::Copy { src, dst }, tuples).map_err(|_| Errno::IO)
        };
        while let Some(mut section) = self.device.take_section(blocks.len()) {
            let dst = section.blocks_mut();
            let (now, later) = blocks.split_at(dst.len());
            let tuples = bytes_of(tags, self.tuples_len(aead, now.len()));
            seal(sector, now, dst, tuples)?;
            self.device.write_section(sector, section, tuples)?;
            (sector, blocks) = (sector + now.len() as u64 / SECTOR_SIZE, later);
        }
        if blocks.is_empty() {
            return Ok(());
        }
        let (sealed, tuples) = (bytes_of(sealed, blocks.len()), bytes_of(tags, self.tuples_len(aead, blocks.len())));
        seal(sector, blocks, sealed, tuples)?;
        self.device.write(sector, sealed, tuples)
    }
}

/// Returns the number of bytes before the first bad block.
fn valid_len(result: &Result<(), ReadError>, start: u64, len: usize) -> usize {
    match result {
        Ok(()) => len,
        Err(ReadError::Mismatch(bad)) => (bad[0] * SECTOR_SIZE - start) as usize,
        Err(ReadError::Io(_)) => 0,
    }
}

/// Returns `sealing` if its data units are the blocks of the device, and its tuples are the tags.
fn fitting(device: &IntegrityDevice, sealing: Sealing) -> Result<Sealing, Errno> {
    let (block_len, tag_size) = (device.layout().block_len(), device.layout().journal.tag_size);
    let fits = sealing.aead.unit().bytes() == block_len && sealing.aead.tuple_len() == tag_size;
    if fits && !device.has_internal_tags() { Ok(sealing) } else { Err(Errno::INVAL) }
}

impl BackingStore for IntegrityStore {
    fn geometry(&self) -> Geometry {
        if self.read_only { Geometry::new_read_only(self.len()) } else { Geometry::new(self.len()) }
    }

    fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
        if offset >= self.len() || data.is_empty() {
            return Ok(0);
        }
        let (start, len) = self.aligned(offset, data.len());
        let head = (offset - start) as usize;
        let mut scratch = self.scratch.take();
        let Scratch { blocks, tags, .. } = &mut *scratch;
        let (result, count) = if head == 0 && len <= data.len() {
            let result = self.read_blocks(start, &mut data[..len], tags);
            let valid = valid_len(&result, start, len);
            (result, valid)
        } else {
            let blocks = bytes_of(blocks, len);
            let result = self.read_blocks(start, blocks, tags);
            let count = valid_len(&result, start, len).saturating_sub(head).min(data.len());
            data[..count].copy_from_slice(&blocks[head..head + count]);
            (result, count)
        };
        match result {
            Err(ReadError::Io(error)) => Err(error),
            // Mismatches are counted once, when the caller asks for the bad block.
            Err(ReadError::Mismatch(bad)) if count == 0 => {
                self.device.note_mismatches(&bad);
                Err(Errno::ILSEQ)
            }
            _ => Ok(count),
        }
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        if offset >= self.len() && !data.is_empty() {
            return Err(Errno::NOSPC);
        }
        let (start, len) = self.aligned(offset, data.len());
        let head = (offset - start) as usize;
        let count = data.len().min(len - head);
        let block_len = self.device.layout().block_len();
        let mut scratch = self.scratch.take();
        let Scratch { blocks, sealed, tags, .. } = &mut *scratch;
        if head == 0 && count.is_multiple_of(block_len) {
            let _shared = self.partial.read().unwrap_or_else(PoisonError::into_inner);
            self.write_blocks(start, &data[..count], sealed, tags)?;
            return Ok(count);
        }
        let _exclusive = self.partial.write().unwrap_or_else(PoisonError::into_inner);
        let blocks = bytes_of(blocks, len);
        let last = len - block_len;
        for edge in std::iter::once(0).chain((last > 0).then_some(last)) {
            let block = &mut blocks[edge..edge + block_len];
            self.read_blocks(start + edge as u64, block, tags).map_err(|error| {
                if let ReadError::Mismatch(bad) = &error {
                    self.device.note_mismatches(bad);
                }
                error.errno()
            })?;
        }
        blocks[head..head + count].copy_from_slice(&data[..count]);
        self.write_blocks(start, blocks, sealed, tags)?;
        Ok(count)
    }

    fn sync(&self) -> Result<(), Errno> {
        self.device.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), Errno> {
        let block = self.device.layout().block_len() as u64;
        let (start, end) = (offset.next_multiple_of(block), (offset + len) / block * block);
        if start < end { self.device.discard(start / SECTOR_SIZE, (end - start) / SECTOR_SIZE) } else { Ok(()) }
    }
}
