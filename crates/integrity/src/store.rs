//! A volume with internal tags as a backing store of the engine.

use crate::device::{IntegrityDevice, ReadError};
use crate::options::Mode;
use inlock_engine::{BackingStore, Errno, Geometry};
use std::sync::{Arc, PoisonError, RwLock};

/// Blocks of a partial request that are read and written at a time.
const MAX_BLOCKS: usize = 256;

/// Backing store over a device with an internal hash. It takes requests of any bytes: a block that is written in part
/// is read and verified first.
pub struct IntegrityStore {
    device: Arc<IntegrityDevice>,
    read_only: bool,
    /// Held exclusively while a block is read, changed and written.
    partial: RwLock<()>,
}

impl IntegrityStore {
    /// Returns the store of a device.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the tags are the caller's.
    pub fn new(device: Arc<IntegrityDevice>) -> Result<Self, Errno> {
        if !device.has_internal_tags() {
            return Err(Errno::INVAL);
        }
        let read_only = device.options().read_only || device.options().mode == Mode::Recovery;
        Ok(Self { device, read_only, partial: RwLock::new(()) })
    }

    /// Returns the device.
    pub fn device(&self) -> &IntegrityDevice {
        &self.device
    }

    fn len(&self) -> u64 {
        self.device.layout().provided_data_sectors * 512
    }

    /// Returns the whole blocks around bytes, as many as are carried out at a time: first byte and length.
    fn aligned(&self, offset: u64, len: usize) -> (u64, usize) {
        let block = self.device.layout().block_len();
        let head = (offset % block as u64) as usize;
        let len = len.min((self.len() - offset.min(self.len())) as usize);
        (offset - head as u64, (head + len).next_multiple_of(block).min(MAX_BLOCKS * block))
    }
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
        let mut blocks = vec![0; len];
        let head = (offset - start) as usize;
        let available = match self.device.read(start / 512, &mut blocks, &mut []) {
            Ok(()) => len,
            // The bytes before the first bad block are valid; the error is returned when the caller asks for the rest.
            Err(ReadError::Mismatch(bad)) => (bad[0] * 512 - start) as usize,
            Err(ReadError::Io(error)) => return Err(error),
        };
        let count = available.saturating_sub(head).min(data.len());
        if count == 0 {
            return Err(Errno::ILSEQ);
        }
        data[..count].copy_from_slice(&blocks[head..head + count]);
        Ok(count)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        if offset >= self.len() && !data.is_empty() {
            return Err(Errno::NOSPC);
        }
        let (start, len) = self.aligned(offset, data.len());
        let head = (offset - start) as usize;
        let count = data.len().min(len - head);
        let block_len = self.device.layout().block_len();
        if head == 0 && count.is_multiple_of(block_len) {
            let _shared = self.partial.read().unwrap_or_else(PoisonError::into_inner);
            self.device.write(start / 512, &data[..count], &[])?;
            return Ok(count);
        }
        let _exclusive = self.partial.write().unwrap_or_else(PoisonError::into_inner);
        let mut blocks = vec![0; len];
        for edge in [0, len - block_len] {
            let block = &mut blocks[edge..edge + block_len];
            self.device.read((start + edge as u64) / 512, block, &mut []).map_err(|error| error.errno())?;
        }
        blocks[head..head + count].copy_from_slice(&data[..count]);
        self.device.write(start / 512, &blocks, &[])?;
        Ok(count)
    }

    fn sync(&self) -> Result<(), Errno> {
        self.device.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), Errno> {
        let block = self.device.layout().block_len() as u64;
        let (start, end) = (offset.next_multiple_of(block), (offset + len) / block * block);
        if start < end { self.device.discard(start / 512, (end - start) / 512) } else { Ok(()) }
    }
}
