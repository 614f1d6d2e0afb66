//! Recalculation: tags are computed from the present data, region by region.

use super::IntegrityDevice;
use super::bitmap::Bits;
use crate::superblock::Flags;
use crate::verify::Pending;
use inlock_engine::Errno;
use std::sync::PoisonError;

/// Blocks between two updates of the superblock.
const BLOCKS_PER_STEP: u64 = 256;

/// Progress of a recalculation.
pub(super) struct Recalculation {
    /// Blocks from here on are still to be computed, if their bit is set.
    pub(super) next: u64,
    /// Regions to compute. `None`: all.
    pub(super) bits: Option<Bits>,
}

impl IntegrityDevice {
    /// Whether the tag of a block is still to be computed.
    pub(super) fn pending(&self, block: u64) -> Pending {
        let state = self.recalculation.read().unwrap_or_else(PoisonError::into_inner);
        match state.as_ref().filter(|state| block >= state.next).map(|state| &state.bits) {
            Some(None) => Pending::Everything,
            Some(Some(bits)) if bits.is_set(block) => Pending::Region,
            _ => Pending::No,
        }
    }

    /// Whether tags are still to be computed.
    pub fn is_recalculating(&self) -> bool {
        self.recalculation.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Computes the next tags of a recalculation. Returns whether it is finished. Blocks the caller.
    ///
    /// # Errors
    ///
    /// The store's error. The recalculation can be continued, also after the volume was opened again.
    pub fn recalculate_step(&self) -> Result<bool, Errno> {
        let Some(verifier) = &self.verifier else { return Ok(true) };
        let _one = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self.recalculation.read().unwrap_or_else(PoisonError::into_inner);
        let Some((first, by_bitmap)) = state.as_ref().map(|state| (state.next, state.bits.is_some())) else {
            return Ok(true);
        };
        drop(state);
        self.check_writable()?;
        let layout = &self.core.layout;
        // The device may have become shorter.
        let end = (first + BLOCKS_PER_STEP).min(self.core.blocks());
        let count = end.saturating_sub(first);
        let locks = self.core.stripes.write(first, count);
        let mut data = vec![0; count as usize * layout.block_len()];
        let mut tags = vec![0; count as usize * layout.journal.tag_size];
        self.core.read(first, &mut data, &mut tags)?;
        let mut scratch = self.scratch.take();
        let fresh = self.tags_of(&verifier.tagger, first, &data, &mut scratch.tags);
        let pairs = tags.chunks_exact_mut(layout.journal.tag_size).zip(fresh.chunks_exact(layout.journal.tag_size));
        for (n, (tag, fresh)) in pairs.enumerate() {
            let block = first + n as u64;
            if verifier.is_pending(block * layout.sectors_per_block(), tag, self.pending(block)) {
                tag.copy_from_slice(fresh);
            }
        }
        self.core.write_tags(first, &tags)?;
        drop(locks);
        self.core.write_back()?;
        let finished = end == self.core.blocks();
        if !by_bitmap || finished {
            self.update_superblock(|superblock| {
                // A resize may not have stored its length yet.
                let reached = end * layout.sectors_per_block();
                superblock.recalc_sector = reached.min(superblock.provided_data_sectors);
                superblock.flags.set(Flags::RECALCULATING, !finished);
            })?;
        }
        let mut state = self.recalculation.write().unwrap_or_else(PoisonError::into_inner);
        match state.as_mut().filter(|_| !finished) {
            Some(state) => state.next = end,
            None => *state = None,
        }
        Ok(finished)
    }
}
