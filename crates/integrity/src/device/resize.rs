//! Another length of an open device.

use super::IntegrityDevice;
use super::journal::Part;
use super::recalculate::Recalculation;
use crate::error::IntegrityError;
use crate::layout::{Layout, fitting_len};
use crate::superblock::{Flags, Superblock};
use crate::verify::check_superblock;
use inlock_engine::Errno;
use std::ops::ControlFlow;
use std::sync::PoisonError;

/// Threads that wipe new blocks.
const THREADS: usize = 2;

/// Content of the blocks that a device gains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NewBlocks {
    /// Their tags are computed from the present data, by [`IntegrityDevice::recalculate_step`]. Until then they are
    /// read unverified.
    Recalculate,
    /// They are zeroed.
    Wipe,
}

impl IntegrityDevice {
    /// Returns the number of sectors that [`IntegrityDevice::resize`] would give the device.
    ///
    /// # Errors
    ///
    /// Fails before anything is written if the device is read-only or its tags are the caller's, if the stores have no
    /// room, or if the tags of `new_blocks` may not be computed.
    pub fn planned_len(&self, sectors: Option<u64>, new_blocks: NewBlocks) -> Result<u64, IntegrityError> {
        self.plan(sectors, new_blocks).map(|resized| resized.provided_data_sectors)
    }

    /// Gives the device a length of `sectors`, or as many as fit its stores, and returns the length. Blocks the caller.
    ///
    /// No request may run beyond a new end. Requests beyond the old end may begin when this function has returned. A
    /// power cut leaves the old or the new length.
    ///
    /// # Errors
    ///
    /// As [`IntegrityDevice::planned_len`]; later if a store fails.
    pub fn resize(&self, sectors: Option<u64>, new_blocks: NewBlocks) -> Result<u64, IntegrityError> {
        let _one = self.resizing.lock().unwrap_or_else(PoisonError::into_inner);
        let resized = self.plan(sectors, new_blocks)?;
        let (old, new) = (self.core.provided(), resized.provided_data_sectors);
        let failed = IntegrityError::io("resize the volume");
        let changed = match new.cmp(&old) {
            std::cmp::Ordering::Less => self.shrink(new),
            std::cmp::Ordering::Equal => Ok(()),
            std::cmp::Ordering::Greater => self.grow(old, &resized, new_blocks),
        };
        changed.map_err(failed)?;
        Ok(new)
    }

    /// Returns the superblock of another length.
    fn plan(&self, sectors: Option<u64>, new_blocks: NewBlocks) -> Result<Superblock, IntegrityError> {
        self.check_writable().map_err(IntegrityError::io("resize the volume"))?;
        if self.verifier.is_none() {
            return Err(IntegrityError::option("size", "the tags are not those of a hash"));
        }
        for store in [Some(&self.core.stores.data), self.core.stores.meta.as_ref()].into_iter().flatten() {
            store.revalidate_len().map_err(IntegrityError::io("resize the volume"))?;
        }
        let (superblock, sizes) = (self.superblock(), self.core.stores.sizes());
        let old = superblock.provided_data_sectors;
        let mut resized =
            Superblock { provided_data_sectors: fitting_len(&superblock, &sizes, sectors)?, ..superblock };
        if sectors.is_none() && resized.provided_data_sectors < old {
            return Err(IntegrityError::option("size", "the devices have become shorter; give the length"));
        }
        if resized.provided_data_sectors > old && new_blocks == NewBlocks::Recalculate {
            resized.flags.set(Flags::RECALCULATING, true);
            // After a power cut the volume is to be opened with the same options.
            if check_superblock(&self.options, &resized).is_err() {
                let reason = "tags with a key are computed for new blocks only if the superblock has a MAC with a key, \
                              and there is no bitmap: the new blocks have to be wiped";
                return Err(IntegrityError::option("size", reason));
            }
        }
        if self.bitmap.is_some() {
            Layout::new(&resized, &sizes)?.bitmap_len(resized.log2_blocks_per_bitmap_bit)?;
        }
        Ok(resized)
    }

    fn shrink(&self, sectors: u64) -> Result<(), Errno> {
        {
            let _no_step = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
            self.core.set_provided(sectors);
            let mut state = self.recalculation.write().unwrap_or_else(PoisonError::into_inner);
            if let Some(state) = state.as_mut() {
                // Blocks that come later are to be computed, too.
                state.next = state.next.min(self.core.blocks());
            }
        }
        // Nothing is written behind the new end later: neither entries of the journal nor cached tags.
        match &self.journal {
            Some(journal) => journal.checkpoint(&self.core, Part::All)?,
            None => self.flush()?,
        }
        self.update_superblock(|superblock| {
            superblock.provided_data_sectors = sectors;
            superblock.recalc_sector = superblock.recalc_sector.min(sectors);
        })
    }

    fn grow(&self, old: u64, resized: &Superblock, new_blocks: NewBlocks) -> Result<(), Errno> {
        let blocks = |sectors: u64| sectors / self.core.layout.sectors_per_block();
        let (first, end) = (blocks(old), blocks(resized.provided_data_sectors));
        let recalculates = new_blocks == NewBlocks::Recalculate;
        {
            let _no_step = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
            let due = if recalculates { first..end } else { end..end };
            let bits = self.bitmap.as_ref().map(|bitmap| bitmap.grow(&self.core, end, due)).transpose()?;
            let mut state = self.recalculation.write().unwrap_or_else(PoisonError::into_inner);
            match state.as_mut() {
                Some(state) => {
                    if let Some((old, new)) = state.bits.as_mut().zip(bits) {
                        old.add(&new);
                    }
                }
                None if recalculates => *state = Some(Recalculation { next: first, bits }),
                None => {}
            }
            drop(state);
            self.core.set_provided(resized.provided_data_sectors);
        }
        if new_blocks == NewBlocks::Wipe {
            let wiped = self.wipe(old, THREADS, |_, _, _| Ok(()), |_| ControlFlow::Continue(()));
            if let Err(error) = wiped {
                self.core.set_provided(old);
                return Err(error);
            }
        }
        self.update_superblock(|superblock| {
            superblock.provided_data_sectors = resized.provided_data_sectors;
            if recalculates && self.bitmap.is_none() && !superblock.is_recalculating() {
                superblock.flags.set(Flags::RECALCULATING, true);
                superblock.recalc_sector = old;
            }
        })
    }
}
