//! Wiping: the first tags of a new volume.

use super::IntegrityDevice;
use crate::marks::Marks;
use crate::options::Mode;
use inlock_engine::Errno;
use std::ops::ControlFlow;

/// Bytes of data that a thread writes at a time.
const CHUNK: u64 = 1 << 20;
/// Bytes of data whose tags alone a thread writes at a time.
const MARKED_CHUNK: u64 = 32 << 20;
/// Bytes of data between two syncs at most. When a wipe is cut off, some of them are wiped, in any order.
pub(crate) const MAX_STEP: u64 = 128 << 20;

impl IntegrityDevice {
    /// Writes data and tags of all blocks from sector `from`, with `threads` threads, and returns the sector that
    /// follows the last durable block. Blocks the caller.
    ///
    /// `fill` is given a sector and zeroed buffers for data and tags; the tags are empty with an internal hash. After
    /// each step `progress` is given the sector that was reached, and can stop the wipe. Pass the returned sector as
    /// `from` to continue it.
    ///
    /// # Errors
    ///
    /// `EINVAL` unless `from` is a block's first sector, `EROFS` if the device is read-only; otherwise the store's
    /// error.
    pub fn wipe(
        &self,
        from: u64,
        threads: usize,
        fill: impl Fn(u64, &mut [u8], &mut [u8]) -> Result<(), Errno> + Sync,
        progress: impl FnMut(u64) -> ControlFlow<()>,
    ) -> Result<u64, Errno> {
        let layout = &self.core.layout;
        let wipe = |sector: u64, blocks: u64| {
            let mut data = vec![0; blocks as usize * layout.block_len()];
            let tags = if self.verifier.is_some() { 0 } else { blocks as usize * layout.journal.tag_size };
            let mut tags = vec![0; tags];
            fill(sector, &mut data, &mut tags)?;
            self.write(sector, &data, &tags)
        };
        self.in_chunks(from, threads, CHUNK, wipe, progress)
    }

    /// Marks all blocks from sector `from` as never written: they read as zeroes until they are written. Only tags are
    /// written. `marks` are those of the AEAD; a device with an internal hash has its own. The rest is as for
    /// [`IntegrityDevice::wipe`].
    ///
    /// # Errors
    ///
    /// As [`IntegrityDevice::wipe`]; `EINVAL` also unless the device was opened in [`Mode::Direct`], if there are no
    /// marks, or if they have another length than the tags.
    pub fn mark_never_written(
        &self,
        from: u64,
        threads: usize,
        marks: Option<&Marks>,
        progress: impl FnMut(u64) -> ControlFlow<()>,
    ) -> Result<u64, Errno> {
        let mark = |sector: u64, blocks: u64| self.mark_blocks(sector, blocks, marks);
        self.in_chunks(from, threads, MARKED_CHUNK, mark, progress)
    }

    /// Marks some blocks.
    pub(crate) fn mark_blocks(&self, sector: u64, blocks: u64, marks: Option<&Marks>) -> Result<(), Errno> {
        self.check_writable()?;
        let layout = &self.core.layout;
        // With a journal an entry that is written later would be lost.
        let is_direct = self.options.mode == Mode::Direct;
        let own = match &self.verifier {
            Some(verifier) => verifier.marks.as_ref(),
            None => marks,
        };
        let marks = own.filter(|marks| is_direct && marks.tag_size() == layout.journal.tag_size).ok_or(Errno::INVAL)?;
        let mut tags = vec![0; blocks as usize * layout.journal.tag_size];
        for (n, tag) in tags.chunks_exact_mut(layout.journal.tag_size).enumerate() {
            marks.mark(sector + n as u64 * layout.sectors_per_block(), tag);
        }
        let first = sector / layout.sectors_per_block();
        let _locks = self.core.stripes.write(first, blocks);
        self.core.write_tags(first, &tags)
    }

    /// Calls `write` with first sector and number of the blocks of each chunk of at most `chunk` bytes, and syncs.
    fn in_chunks(
        &self,
        from: u64,
        threads: usize,
        chunk: u64,
        write: impl Fn(u64, u64) -> Result<(), Errno> + Sync,
        mut progress: impl FnMut(u64) -> ControlFlow<()>,
    ) -> Result<u64, Errno> {
        self.check_writable()?;
        let layout = &self.core.layout;
        if !from.is_multiple_of(layout.sectors_per_block()) {
            return Err(Errno::INVAL);
        }
        let (mut block, blocks) = (from / layout.sectors_per_block(), self.core.blocks());
        let threads = (threads as u64).clamp(1, MAX_STEP / chunk);
        let chunk = chunk / layout.block_len() as u64;
        let write = &|first: u64, end: u64| write(first * layout.sectors_per_block(), chunk.min(end - first));
        while block < blocks {
            let end = (block + chunk * threads).min(blocks);
            std::thread::scope(|scope| {
                let starts = (block..end).step_by(chunk as usize);
                let running: Vec<_> = starts.map(|first| scope.spawn(move || write(first, end))).collect();
                // A thread that panicked has not written its chunk.
                running.into_iter().try_for_each(|thread| thread.join().unwrap_or(Err(Errno::IO)))
            })?;
            self.flush()?;
            block = end;
            if progress(block * layout.sectors_per_block()).is_break() {
                break;
            }
        }
        Ok(block * layout.sectors_per_block())
    }
}
