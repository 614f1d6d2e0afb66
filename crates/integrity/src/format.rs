//! Making a volume.

use crate::error::IntegrityError;
use crate::journal_cipher::JournalCipher;
use crate::journal_codec::JournalCodec;
use crate::layout::{DEFAULT_SECTORS_PER_BIT, JournalLayout, Layout, MAX_LOG2_BUFFER, largest_interleaved};
use crate::options::MAX_JOURNAL_SECTORS;
use crate::stores::{DeviceSizes, Stores};
use crate::superblock::{Flags, SUPERBLOCK_LEN, Superblock, read_bytes, write_bytes};
use crate::tags::{MAX_TAG_LEN, SALT_LEN, TagHash};
use inlock_engine::store::write_all;
use std::sync::Arc;

/// Default number of sectors of a data area.
pub(crate) const DEFAULT_INTERLEAVE_SECTORS: u32 = 32768;
pub(crate) const MAX_DEFAULT_JOURNAL_SECTORS: u64 = 131_072;

/// Options of a new volume. The defaults are those of integritysetup.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// Bytes of a tag; by default those of the internal hash.
    pub tag_size: Option<usize>,
    /// Bytes of a block: 512, 1024, 2048 or 4096.
    pub block_len: usize,
    /// Hash of internal tags. `None`: the user of the device supplies the tags.
    pub internal_hash: Option<Arc<TagHash>>,
    /// MAC of the journal and, with `fix_hmac`, of the superblock.
    pub journal_mac: Option<Arc<TagHash>>,
    /// Cipher of the journal.
    pub journal_cipher: Option<Arc<JournalCipher>>,
    /// Sectors of a data area, 8 to 2^31, rounded down to a power of two.
    pub interleave_sectors: u32,
    /// Sectors of the journal; by default 1/128 of the device, at most 131072.
    pub journal_sectors: Option<u64>,
    /// Sectors for each bit of the bitmap, rounded down to a power of two.
    pub sectors_per_bit: u32,
    /// Whether to pad tag areas to 4096 bytes only.
    pub fix_padding: bool,
    /// Whether hashes start with a salt, and MACs cover superblock and section numbers.
    pub fix_hmac: bool,
    /// Whether the volume's tags are to be computed from the present data.
    pub recalculate: bool,
    /// Whether the journal may be longer than [`MAX_JOURNAL_SECTORS`](crate::MAX_JOURNAL_SECTORS).
    pub long_journal: bool,
    /// Whether to replace what is in the superblock's place. Otherwise it must be zero.
    pub overwrite: bool,
    /// Salt; random by default.
    pub salt: Option<[u8; SALT_LEN]>,
}

impl Default for FormatOptions {
    fn default() -> Self {
        Self {
            tag_size: None,
            block_len: 512,
            internal_hash: None,
            journal_mac: None,
            journal_cipher: None,
            interleave_sectors: DEFAULT_INTERLEAVE_SECTORS,
            journal_sectors: None,
            sectors_per_bit: DEFAULT_SECTORS_PER_BIT,
            fix_padding: true,
            fix_hmac: true,
            recalculate: false,
            long_journal: false,
            overwrite: false,
            salt: None,
        }
    }
}

impl FormatOptions {
    /// Returns the superblock of a new volume on devices of these lengths. Writes nothing.
    ///
    /// # Errors
    ///
    /// Names the option that is not possible.
    pub fn superblock(&self, sizes: &DeviceSizes) -> Result<Superblock, IntegrityError> {
        let option = IntegrityError::option;
        if !matches!(self.block_len, 512 | 1024 | 2048 | 4096) {
            return Err(option("sector-size", "a block has 512, 1024, 2048 or 4096 bytes"));
        }
        let tag_size = self.tag_size.or(self.internal_hash.as_ref().map(|hash| hash.len()));
        let tag_size = tag_size.ok_or(option("tag-size", "it is needed without an internal hash"))?;
        if !(1..=MAX_TAG_LEN).contains(&tag_size) {
            return Err(option("tag-size", "a tag has 1 to 255 bytes"));
        }
        if !(8..=1 << 31).contains(&self.interleave_sectors) {
            return Err(option("interleave-sectors", "it is 8 to 2^31"));
        }
        if self.recalculate && self.internal_hash.is_none() {
            return Err(option("integrity-recalculate", "there is no internal hash"));
        }
        let log2_sectors_per_block = self.block_len.ilog2() as u8 - 9;
        if self.sectors_per_bit == 0 {
            return Err(option("bitmap-sectors-per-bit", "it is at least 1"));
        }
        let log2_bit = (self.sectors_per_bit.ilog2() as u8).saturating_sub(log2_sectors_per_block);
        let mut flags = Flags::default();
        flags.set(Flags::JOURNAL_MAC, self.journal_mac.is_some());
        flags.set(Flags::RECALCULATING, self.recalculate);
        flags.set(Flags::FIXED_PADDING, self.fix_padding && sizes.meta.is_none());
        let has_hash = self.internal_hash.is_some() || self.journal_mac.is_some();
        flags.set(Flags::FIXED_HMAC, self.fix_hmac && has_hash);
        let mut superblock = Superblock {
            version: 0,
            log2_interleave_sectors: if sizes.meta.is_some() { 0 } else { self.interleave_sectors.ilog2() as u8 },
            tag_size: tag_size as u16,
            journal_sections: 1,
            provided_data_sectors: 0,
            flags,
            log2_sectors_per_block,
            log2_blocks_per_bitmap_bit: log2_bit,
            recalc_sector: 0,
            salt: [0; SALT_LEN],
        };
        let default_journal = || (sizes.data >> 7).min(MAX_DEFAULT_JOURNAL_SECTORS);
        let journal_sectors = self.journal_sectors.unwrap_or_else(default_journal);
        let sections = (journal_sectors / JournalLayout::new(&superblock).section_sectors as u64).max(1);
        let too_long = option("journal-size", "the journal is too long");
        let sections = u32::try_from(sections).map_err(|_| too_long)?;
        let too_small = option("device", "it is too small");
        if sizes.meta.is_some() {
            superblock.provided_data_sectors = sizes.data >> log2_sectors_per_block << log2_sectors_per_block;
            if superblock.provided_data_sectors == 0 {
                return Err(too_small);
            }
            let too_small = option("data-device", "the metadata device is too small for the tags");
            superblock.journal_sections = most_sections(&superblock, sections, sizes).ok_or(too_small)?;
        } else {
            superblock.journal_sections = sections;
            superblock.provided_data_sectors = largest_interleaved(&superblock, sizes);
        }
        if superblock.provided_data_sectors == 0 {
            return Err(too_small);
        }
        let sectors = JournalLayout::new(&superblock).sectors();
        if sectors > MAX_JOURNAL_SECTORS && !self.long_journal {
            return Err(IntegrityError::LongJournal { sectors });
        }
        superblock.check_fields()?;
        Ok(superblock)
    }
}

/// Returns the largest number of sections that fits the metadata device with all tags, as the kernel finds it: with the
/// largest buffer that leaves room for one section.
fn most_sections(superblock: &Superblock, wanted: u32, sizes: &DeviceSizes) -> Option<u32> {
    let fits = |sections, buffer| {
        let trial = Superblock { journal_sections: sections, ..*superblock };
        Layout::with_buffer(&trial, sizes, buffer).is_ok()
    };
    (3..=MAX_LOG2_BUFFER).rev().find_map(|buffer| {
        let mut most = 0;
        for bit in (0..32).rev() {
            let next = most | 1 << bit;
            if next <= wanted && fits(next, buffer) {
                most = next;
            }
        }
        (most > 0).then_some(most)
    })
}

/// Formats a volume: an empty journal, then the superblock. The tags are not written; see the wipe, or
/// [`FormatOptions::recalculate`]. Returns the superblock.
///
/// A power cut leaves the old volume, none, or the new one.
///
/// # Errors
///
/// Fails before anything is written if an option is not possible, or if the superblock's place is not zero and
/// [`FormatOptions::overwrite`] is not set; later if a store fails.
pub fn format(stores: &Stores, options: &FormatOptions) -> Result<Superblock, IntegrityError> {
    let sizes = stores.sizes();
    let present = read_bytes(stores)?;
    let is_empty = present.iter().all(|byte| *byte == 0);
    if !is_empty && !options.overwrite {
        return Err(IntegrityError::OtherData);
    }
    let mut superblock = options.superblock(&sizes)?;
    if superblock.flags.has(Flags::FIXED_HMAC) {
        match options.salt {
            Some(salt) => superblock.salt = salt,
            None => getrandom::fill(&mut superblock.salt).map_err(IntegrityError::Random)?,
        }
    }
    let layout = Layout::new(&superblock, &sizes)?;
    let failed = |action| IntegrityError::io(action);
    if !is_empty {
        write_bytes(stores, &[0; SUPERBLOCK_LEN]).map_err(failed("clear the superblock"))?;
        stores.metadata().sync().map_err(failed("clear the superblock"))?;
    }
    let (cipher, mac) = (options.journal_cipher.clone(), options.journal_mac.clone());
    let codec = JournalCodec::new(layout.journal, cipher, mac, superblock.hash_salt());
    clear_journal(stores, &layout, &codec, 0).map_err(failed("clear the journal"))?;
    let bytes = superblock.encode(options.journal_mac.as_deref(), false);
    write_bytes(stores, &bytes).map_err(failed("write the superblock"))?;
    stores.metadata().sync().map_err(failed("write the superblock"))?;
    Ok(Superblock::decode(&bytes[..])?)
}

/// Writes sections without entries over the whole journal and syncs.
pub(crate) fn clear_journal(
    stores: &Stores,
    layout: &Layout,
    codec: &JournalCodec,
    sequence: u8,
) -> Result<(), inlock_engine::Errno> {
    let empty = codec.empty_section();
    for section in 0..layout.journal.sections {
        let mut image = empty.clone();
        codec.seal(section, sequence, &mut image);
        write_all(stores.metadata(), &image, layout.section_at(section))?;
    }
    stores.metadata().sync()
}
