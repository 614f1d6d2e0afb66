//! Options of opening a volume, compared with its superblock before anything is written.

use crate::error::IntegrityError;
use crate::journal_cipher::JournalCipher;
use crate::superblock::{Flags, Superblock};
use crate::tags::TagHash;
use std::sync::Arc;

/// Way in which data and tags are kept together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// `J`: data and tags go to the journal first, and a power cut leaves both or none.
    Journal,
    /// `B`: a bitmap tells the regions whose tags are computed again after a power cut.
    Bitmap,
    /// `D`: a power cut may leave blocks that do not match their tags.
    Direct,
    /// `R`: read-only, without replay and without checks.
    Recovery,
}

/// Sectors of the longest journal that is opened without [`OpenOptions::long_journal`]: 1 GiB. A longer one is more
/// likely a superblock that makes an open read or write what the device does not really have, as in a sparse file.
pub const MAX_JOURNAL_SECTORS: u64 = 1 << 21;

/// Options of opening a volume.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Mode.
    pub mode: Mode,
    /// Hash of internal tags. `None`: the caller supplies the tags.
    pub internal_hash: Option<Arc<TagHash>>,
    /// MAC of the journal.
    pub journal_mac: Option<Arc<TagHash>>,
    /// Cipher of the journal.
    pub journal_cipher: Option<Arc<JournalCipher>>,
    /// Expected bytes of a tag. `None`: those that the superblock has; with a key not less than the hash has.
    pub tag_size: Option<usize>,
    /// Expected bytes of a block.
    pub block_len: Option<usize>,
    /// Sectors for each bit of the bitmap, if the volume has no bitmap in use.
    pub sectors_per_bit: Option<u32>,
    /// Whether discards are allowed. Blocks that others have marked as discarded read as zeroes if the hash has a key,
    /// otherwise as they are; without discards they do not match their tags.
    pub allow_discards: bool,
    /// Whether all tags are to be computed from the present data.
    pub recalculate: bool,
    /// Whether tags with a key may be computed from present data although an attacker could have changed them: of all
    /// blocks, if the superblock has no MAC, or of the regions of a bitmap.
    pub legacy_recalculate: bool,
    /// Whether the volume is read-only.
    pub read_only: bool,
    /// Whether a [damaged](crate::JournalDamage) journal is used without what is damaged in it. Otherwise the volume
    /// is not opened.
    pub salvage_journal: bool,
    /// Whether a journal may be longer than [`MAX_JOURNAL_SECTORS`].
    pub long_journal: bool,
}

impl OpenOptions {
    /// Returns the options of a mode, without hash, MAC and cipher.
    pub fn new(mode: Mode) -> Self {
        Self {
            mode,
            internal_hash: None,
            journal_mac: None,
            journal_cipher: None,
            tag_size: None,
            block_len: None,
            sectors_per_bit: None,
            allow_discards: false,
            recalculate: false,
            legacy_recalculate: false,
            read_only: false,
            salvage_journal: false,
            long_journal: false,
        }
    }

    /// Checks the options by themselves and against a superblock.
    pub(crate) fn check(&self, sb: &Superblock) -> Result<(), IntegrityError> {
        let require = |good: bool, option: &'static str, reason: &'static str| {
            if good { Ok(()) } else { Err(IntegrityError::option(option, reason)) }
        };
        let inline = sb.flags.has(Flags::INLINE);
        require(!inline, "mode", "the tags are in the device's own metadata, which this store cannot access")?;
        let tag_size = usize::from(sb.tag_size);
        require(self.tag_size.is_none_or(|size| size == tag_size), "tag-size", "the superblock has another one")?;
        let block_len = sb.block_len();
        require(self.block_len.is_none_or(|len| len == block_len), "sector-size", "the superblock has another one")?;
        if self.mode != Mode::Recovery {
            match (sb.flags.has(Flags::JOURNAL_MAC), self.journal_mac.is_some()) {
                (true, false) => return Err(IntegrityError::NoJournalMac),
                (has_mac, given) => {
                    require(has_mac == given, "journal-integrity", "the volume's journal has no MAC")?;
                }
            }
        }
        let internal = self.internal_hash.is_some();
        require(self.mode != Mode::Bitmap || internal, "mode", "a bitmap needs an internal hash")?;
        require(!self.allow_discards || internal, "allow-discards", "discards need an internal hash")?;
        require(!self.recalculate || internal, "integrity-recalculate", "there is no internal hash")?;
        require(self.sectors_per_bit != Some(0), "bitmap-sectors-per-bit", "it is at least 1")
    }
}
