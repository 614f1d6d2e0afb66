//! Loading the superblock of a volume: everything that is checked before the journal is read.

use crate::error::IntegrityError;
use crate::layout::Layout;
use crate::options::{MAX_JOURNAL_SECTORS, Mode, OpenOptions};
use crate::stores::Stores;
use crate::superblock::{Flags, Superblock};
use crate::verify::check_superblock;

/// Reads the superblock and checks it against the devices and the options. Writes nothing.
///
/// # Errors
///
/// Names the field or option that is not possible.
pub fn load(stores: &Stores, options: &OpenOptions) -> Result<(Superblock, Layout), IntegrityError> {
    let (superblock, bytes) = Superblock::read(stores)?;
    options.check(&superblock)?;
    check_superblock(options, &superblock)?;
    if options.mode != Mode::Recovery {
        superblock.check_mac(&bytes[..], options.journal_mac.as_deref())?;
    }
    let layout = Layout::new(&superblock, &stores.sizes())?;
    let sectors = layout.journal.sectors();
    if sectors > MAX_JOURNAL_SECTORS && !options.long_journal && options.mode != Mode::Recovery {
        return Err(IntegrityError::LongJournal { sectors });
    }
    if options.mode == Mode::Bitmap && superblock.flags.has(Flags::DIRTY_BITMAP) {
        layout.bitmap_len(superblock.log2_blocks_per_bitmap_bit)?;
    }
    Ok((superblock, layout))
}
