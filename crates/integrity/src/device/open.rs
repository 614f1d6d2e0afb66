//! Opening a device: replay, or the start of a recalculation.

use super::IntegrityDevice;
use super::bitmap::{Bitmap, Bits};
use super::core::Core;
use super::journal::Journal;
use super::recalculate::Recalculation;
use super::replay::{EntryCheck, StoredSections};
use super::stored_journal::StoredJournal;
use crate::error::{IntegrityError, ReplayError};
use crate::journal_codec::JournalCodec;
use crate::layout::Layout;
use crate::load::load;
use crate::options::{Mode, OpenOptions};
use crate::scratch::{MAX_LEN, ScratchPool};
use crate::stores::Stores;
use crate::superblock::{Flags, Superblock};
use crate::verify::Verifier;
use inlock_engine::Errno;
use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, RwLock};

impl IntegrityDevice {
    /// Opens a volume. Replays the journal, which is only read if the volume is opened read-only, or starts the
    /// recalculation of regions that the bitmap names; continue it with [`IntegrityDevice::recalculate_step`].
    ///
    /// # Errors
    ///
    /// Fails as [`load`] does before anything is written, or if a store fails.
    pub fn open(stores: Stores, options: OpenOptions) -> Result<Self, IntegrityError> {
        Self::open_with(stores, options, None)
    }

    /// Opens a volume. Entries of the journal have to pass `sealed`, unless the tags are computed here.
    pub(crate) fn open_with(
        stores: Stores,
        options: OpenOptions,
        sealed: Option<EntryCheck<'_>>,
    ) -> Result<Self, IntegrityError> {
        let (superblock, layout) = load(&stores, &options)?;
        let verifier = Verifier::new(&options, &superblock, layout.block_len());
        let device = Self {
            core: Core::new(stores, layout),
            options,
            verifier,
            journal: None,
            stored_journal: None,
            bitmap: None,
            superblock: Mutex::new(superblock),
            recalculation: RwLock::new(None),
            steps: Mutex::new(()),
            resizing: Mutex::new(()),
            writes: RwLock::new(()),
            flushes: Mutex::new(()),
            scratch: ScratchPool::new(0, MAX_LEN / layout.block_len(), layout.journal.tag_size),
        };
        if device.options.mode == Mode::Recovery {
            return Ok(device);
        }
        device.prepare(superblock, layout, sealed).map_err(ReplayError::during("replay the journal"))
    }

    fn prepare(
        mut self,
        mut superblock: Superblock,
        layout: Layout,
        sealed: Option<EntryCheck<'_>>,
    ) -> Result<Self, ReplayError> {
        let salt = superblock.hash_salt();
        let (cipher, mac) = (self.options.journal_cipher.clone(), self.options.journal_mac.clone());
        let codec = JournalCodec::new(layout.journal, cipher, mac, salt);
        let was_dirty = superblock.flags.has(Flags::DIRTY_BITMAP);
        if self.options.mode == Mode::Bitmap && !was_dirty {
            let log2 = layout.log2_blocks_per_bit(self.options.sectors_per_bit);
            superblock.log2_blocks_per_bitmap_bit = log2;
            self.lock_superblock().log2_blocks_per_bitmap_bit = log2;
        }
        let log2 = superblock.log2_blocks_per_bitmap_bit;
        let dirty_bits = match layout.bitmap_len(log2) {
            Ok(len) if was_dirty && self.options.mode == Mode::Bitmap => Some(Bits::read(&self.core, len, log2)?),
            _ => None,
        };
        let tagger = self.verifier.as_ref().map(|verifier| &verifier.tagger);
        let internal =
            tagger.map(|tagger| move |sector: u64, data: &mut [u8], tag: &[u8]| tagger.is_tag_of(sector, data, tag));
        let check = internal.as_ref().map(|check| check as EntryCheck<'_>).or(sealed);
        // Tags that are to be computed again need not match.
        let check = check.filter(|_| !self.options.recalculate);
        let sections = StoredSections::new(&self.core, &codec, &superblock);
        let sections = StoredSections { check, recalculates: self.options.recalculate, ..sections }
            .salvaging(self.options.salvage_journal);
        if self.options.read_only {
            // With a bitmap in its place there is no journal.
            let entries = if was_dirty { HashMap::new() } else { StoredJournal::load(&sections)? };
            self.stored_journal = StoredJournal::new(codec, entries);
            return Ok(self);
        }
        let keep = self.options.mode == Mode::Journal;
        let position = if was_dirty { None } else { Some(sections.replay(keep)?) };
        self.start_recalculation(&superblock, was_dirty, dirty_bits.clone());
        let restart = was_dirty || self.options.recalculate;
        match self.options.mode {
            Mode::Bitmap => {
                let everything = self.options.recalculate || (!was_dirty && superblock.is_recalculating());
                let len = layout.bitmap_len(log2).map_err(|_| Errno::INVAL)?;
                let bits = dirty_bits.unwrap_or_else(|| Bits::empty(len, log2));
                self.start_bitmap(bits, codec, everything)?;
                Ok(self)
            }
            mode => {
                if restart {
                    // The bitmap may be read until the superblock says that everything is recalculated.
                    self.mark(restart)?;
                }
                let (next, sequence) = match position {
                    Some(position) => position,
                    None => {
                        crate::format::clear_journal(&self.core.stores, &layout, &codec, 0)?;
                        (0, 1)
                    }
                };
                if mode == Mode::Journal {
                    self.journal = Some(Journal::new(&self.core, codec, next, sequence));
                }
                Ok(self)
            }
        }
    }

    /// Puts a bitmap in the journal's place; `everything` is to be computed.
    fn start_bitmap(&mut self, mut bits: Bits, codec: JournalCodec, everything: bool) -> Result<(), Errno> {
        if everything {
            // Durable before the flag, with which the bits replace the place where the recalculation is.
            bits.set_all();
            bits.write_start(&self.core)?;
            bits.write(&self.core)?;
            self.core.sync(false)?;
        }
        self.bitmap = Some(Bitmap { bits: Mutex::new(bits), journal: codec, closed: AtomicBool::new(false) });
        // The bits tell what is to be computed. With the flag, a volume with a key could not be opened again.
        self.mark(self.options.recalculate)?;
        if let Some(bitmap) = self.bitmap.as_ref().filter(|_| !everything) {
            // After the flag: the kernel fails a volume without it that has other bytes than a journal.
            bitmap.write(&self.core)?;
        }
        Ok(())
    }

    /// Stores the flags of the session's start.
    fn mark(&self, restart: bool) -> Result<(), Errno> {
        let internal = self.verifier.is_some();
        self.update_superblock(|superblock| {
            superblock.flags.set(Flags::DIRTY_BITMAP, self.bitmap.is_some());
            if restart && internal {
                superblock.flags.set(Flags::RECALCULATING, true);
                superblock.recalc_sector = 0;
            }
        })
    }

    fn start_recalculation(&self, superblock: &Superblock, was_dirty: bool, dirty: Option<Bits>) {
        let continues = superblock.is_recalculating();
        let everything = self.options.recalculate || (was_dirty && dirty.is_none());
        let state = match (everything, was_dirty, continues) {
            (true, ..) => Recalculation { next: 0, bits: None },
            // The bits of an unfinished recalculation are set too.
            (false, true, _) => Recalculation { next: 0, bits: dirty },
            (false, false, true) => {
                Recalculation { next: superblock.recalc_sector / self.core.layout.sectors_per_block(), bits: None }
            }
            (false, false, false) => return,
        };
        if self.verifier.is_some() {
            *self.recalculation.write().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(state);
        }
    }
}
