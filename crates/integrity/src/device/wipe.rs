//! Wiping: the first tags of a new volume.

use super::IntegrityDevice;
use crate::options::Mode;
use inlock_engine::Errno;
use std::ops::ControlFlow;

/// Bytes that a thread writes at a time.
const CHUNK: u64 = 1 << 20;

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
    /// `EINVAL` unless the device was opened in [`Mode::Direct`] and `from` is a block's first sector, `EROFS` if it is
    /// read-only; otherwise the store's error.
    pub fn wipe(
        &self,
        from: u64,
        threads: usize,
        fill: impl Fn(u64, &mut [u8], &mut [u8]) -> Result<(), Errno> + Sync,
        mut progress: impl FnMut(u64) -> ControlFlow<()>,
    ) -> Result<u64, Errno> {
        self.check_writable()?;
        let layout = &self.core.layout;
        if self.options.mode != Mode::Direct || !from.is_multiple_of(layout.sectors_per_block()) {
            return Err(Errno::INVAL);
        }
        let (mut block, blocks) = (from / layout.sectors_per_block(), layout.blocks());
        let chunk = CHUNK / layout.block_len() as u64;
        let wipe = &|first: u64| {
            let count = chunk.min(blocks - first) as usize;
            let mut data = vec![0; count * layout.block_len()];
            let mut tags = vec![0; if self.tagger.is_some() { 0 } else { count * layout.journal.tag_size }];
            let sector = first * layout.sectors_per_block();
            fill(sector, &mut data, &mut tags)?;
            self.write(sector, &data, &tags)
        };
        while block < blocks {
            let end = (block + chunk * threads.max(1) as u64).min(blocks);
            std::thread::scope(|scope| {
                let starts = (block..end).step_by(chunk as usize);
                let running: Vec<_> = starts.map(|first| scope.spawn(move || wipe(first))).collect();
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
