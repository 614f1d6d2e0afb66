//! Bitmaps: regions that may have wrong tags after a power cut.

use super::core::Core;
use crate::journal_codec::JournalCodec;
use crate::layout::bitmap_len;
use inlock_engine::Errno;
use inlock_engine::store::read_all;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

const BLOCK: usize = 4096;

/// Bits of a volume, one for 2^`log2` blocks.
#[derive(Clone)]
pub(super) struct Bits {
    bytes: Vec<u8>,
    log2: u8,
}

impl Bits {
    pub(super) fn empty(len: usize, log2: u8) -> Self {
        Self { bytes: vec![0; len], log2 }
    }

    pub(super) fn read(core: &Core, len: usize, log2: u8) -> Result<Self, Errno> {
        let mut bits = Self::empty(len, log2);
        read_all(core.stores.metadata(), &mut bits.bytes, core.layout.journal_at())?;
        Ok(bits)
    }

    pub(super) fn set_all(&mut self) {
        self.bytes.fill(0xff);
    }

    pub(super) fn clear(&mut self) {
        self.bytes.fill(0);
    }

    /// Sets the bits of blocks.
    fn set(&mut self, blocks: Range<u64>) {
        if blocks.is_empty() {
            return;
        }
        for bit in blocks.start >> self.log2..=(blocks.end - 1) >> self.log2 {
            self.bytes[(bit / 8) as usize] |= 1 << (bit % 8);
        }
    }

    /// Sets all bits that are set in `other`, which has at least as many.
    pub(super) fn add(&mut self, other: &Self) {
        self.bytes.resize(other.bytes.len(), 0);
        self.bytes.iter_mut().zip(&other.bytes).for_each(|(byte, other)| *byte |= other);
    }

    pub(super) fn is_set(&self, block: u64) -> bool {
        let bit = block >> self.log2;
        self.bytes[(bit / 8) as usize] >> (bit % 8) & 1 == 1
    }

    pub(super) fn write(&self, core: &Core) -> Result<(), Errno> {
        core.write_metadata(&self.bytes, core.layout.journal_at())
    }

    /// Makes the first sector durable: by it a bitmap without its flag is told from a damaged journal.
    pub(super) fn write_start(&self, core: &Core) -> Result<(), Errno> {
        core.write_metadata(&self.bytes[..512], core.layout.journal_at())?;
        core.sync(false)
    }
}

/// The bitmap of an open device, in the journal's place. All its bits are durable.
pub(super) struct Bitmap {
    pub(super) bits: Mutex<Bits>,
    /// Writes the empty journal that a closed volume has.
    pub(super) journal: JournalCodec,
    /// Whether an empty journal has replaced it.
    pub(super) closed: AtomicBool,
}

impl Bitmap {
    /// Writes all bits and makes them durable.
    pub(super) fn write(&self, core: &Core) -> Result<(), Errno> {
        self.bits.lock().unwrap_or_else(PoisonError::into_inner).write(core)?;
        core.sync(false)
    }

    /// Makes room for the bits of a device of another number of blocks, sets those of the blocks `due`, and makes them
    /// durable. Returns bits with these set, and no others.
    pub(super) fn grow(&self, core: &Core, blocks: u64, due: Range<u64>) -> Result<Bits, Errno> {
        let mut bits = self.bits.lock().unwrap_or_else(PoisonError::into_inner);
        let len = bitmap_len(blocks, bits.log2) as usize;
        let mut added = Bits::empty(len.max(bits.bytes.len()), bits.log2);
        added.set(due);
        bits.add(&added);
        bits.write(core)?;
        core.sync(false)?;
        Ok(added)
    }

    /// Sets the bits of blocks, and makes them durable before it returns.
    pub(super) fn set(&self, core: &Core, first: u64, count: u64) -> Result<(), Errno> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Errno::ROFS);
        }
        let mut bits = self.bits.lock().unwrap_or_else(PoisonError::into_inner);
        let range = first >> bits.log2..=(first + count - 1) >> bits.log2;
        let (low, high) = ((range.start() / 8) as usize / BLOCK, (range.end() / 8) as usize / BLOCK);
        let mut changed = false;
        for bit in range {
            let (byte, mask) = ((bit / 8) as usize, 1 << (bit % 8));
            changed |= bits.bytes[byte] & mask == 0;
            bits.bytes[byte] |= mask;
        }
        if !changed {
            return Ok(());
        }
        let at = core.layout.journal_at() + (low * BLOCK) as u64;
        core.write_metadata(&bits.bytes[low * BLOCK..(high + 1) * BLOCK], at)?;
        core.sync(false)
    }
}
