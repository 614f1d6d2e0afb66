//! The superblock: its fields, its version, and its MAC.

use crate::error::{IntegrityError, InvalidField, check};
use crate::stores::Stores;
use crate::tags::{MAX_TAG_LEN, SALT_LEN, TagHash};
use inlock_engine::store::{read_all, write_all};
use subtle::ConstantTimeEq;

/// Length of the superblock in bytes. Only the first 512 are in use.
pub const SUPERBLOCK_LEN: usize = 4096;
/// Largest logarithm of the blocks for a bit of the bitmap.
pub(crate) const MAX_LOG2_BITMAP: u8 = 31;
/// Length of the superblock in sectors.
pub(crate) const SUPERBLOCK_SECTORS: u64 = 8;
/// Bytes that have the fields; a MAC is at the end of the first 512.
const FIELDS_LEN: usize = 64;
const MAGIC: &[u8; 8] = b"integrt\0";

/// Flags of a superblock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u32);

impl Flags {
    /// Sections of the journal have a MAC.
    pub const JOURNAL_MAC: Self = Self(1);
    /// The tags from `recalc_sector` on are still to be computed, unless that is the end of the volume.
    pub const RECALCULATING: Self = Self(2);
    /// The bitmap is in use; regions that are set may have wrong tags.
    pub const DIRTY_BITMAP: Self = Self(4);
    /// Tag areas are padded to 4096 bytes instead of 131072.
    pub const FIXED_PADDING: Self = Self(8);
    /// Hashes start with the salt, and MACs cover the superblock and the number of a section.
    pub const FIXED_HMAC: Self = Self(16);
    /// The tags are in the device's own metadata.
    pub const INLINE: Self = Self(32);
    const ALL: u32 = 63;

    /// Returns the flags of these bits, known or not.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// Returns the bits.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether all of `flags` are set.
    pub const fn has(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Sets or clears `flags`.
    pub const fn set(&mut self, flags: Self, on: bool) {
        if on { self.0 |= flags.0 } else { self.0 &= !flags.0 }
    }
}

/// Fields of a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Version as stored, 1 to 6. Computed when the superblock is encoded.
    pub version: u8,
    /// Logarithm of the number of data sectors between two tag areas; 0 with a metadata device.
    pub log2_interleave_sectors: u8,
    /// Length of a tag in bytes.
    pub tag_size: u16,
    /// Number of sections of the journal; 0 if inline.
    pub journal_sections: u32,
    /// Number of data sectors that the volume has.
    pub provided_data_sectors: u64,
    /// Flags.
    pub flags: Flags,
    /// Logarithm of the number of sectors in a block, 0 to 3.
    pub log2_sectors_per_block: u8,
    /// Logarithm of the number of blocks for each bit of the bitmap.
    pub log2_blocks_per_bitmap_bit: u8,
    /// First sector whose tag is still to be computed.
    pub recalc_sector: u64,
    /// Salt of hashes, with [`Flags::FIXED_HMAC`].
    pub salt: [u8; SALT_LEN],
}

/// Returns the bytes from `at`.
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("the slice has this length")
}

impl Superblock {
    /// Whether `bytes` start with the magic of a superblock.
    pub fn is_present(bytes: &[u8]) -> bool {
        bytes.starts_with(MAGIC)
    }

    /// Decodes a superblock and checks each field by itself.
    ///
    /// # Errors
    ///
    /// Names the first field that is not possible.
    ///
    /// # Panics
    ///
    /// Panics if `bytes` are fewer than 512.
    pub fn decode(bytes: &[u8]) -> Result<Self, InvalidField> {
        let magic = u64::from_le_bytes(array(bytes, 0));
        check(Self::is_present(bytes), "magic", magic, "this is no superblock")?;
        let superblock = Self {
            version: bytes[8],
            log2_interleave_sectors: bytes[9],
            tag_size: u16::from_le_bytes(array(bytes, 10)),
            journal_sections: u32::from_le_bytes(array(bytes, 12)),
            provided_data_sectors: u64::from_le_bytes(array(bytes, 16)),
            flags: Flags(u32::from_le_bytes(array(bytes, 24))),
            log2_sectors_per_block: bytes[28],
            log2_blocks_per_bitmap_bit: bytes[29],
            recalc_sector: u64::from_le_bytes(array(bytes, 32)),
            salt: array(bytes, 48),
        };
        superblock.check()?;
        Ok(superblock)
    }

    fn check(&self) -> Result<(), InvalidField> {
        let version = u64::from(self.version);
        check((1..=6).contains(&self.version), "version", version, "only versions 1 to 6 are supported")?;
        check(self.version >= self.needed_version(false), "version", version, "the flags need a later version")?;
        self.check_fields()
    }

    /// Checks everything but the version.
    pub(crate) fn check_fields(&self) -> Result<(), InvalidField> {
        let flags = u64::from(self.flags.0);
        check(self.flags.0 & !Flags::ALL == 0, "flags", flags, "unknown flags are set")?;
        let inline = self.flags.has(Flags::INLINE);
        let conflict = Flags::JOURNAL_MAC.0 | Flags::DIRTY_BITMAP.0;
        check(!inline || self.flags.0 & conflict == 0, "flags", flags, "inline tags have no journal and no bitmap")?;
        let tag_size = usize::from(self.tag_size);
        let tag_reason = "a tag has 1 to 255 bytes";
        check((1..=MAX_TAG_LEN).contains(&tag_size), "integrity_tag_size", tag_size as u64, tag_reason)?;
        let block = u64::from(self.log2_sectors_per_block);
        check(block <= 3, "log2_sectors_per_block", block, "a block has 512 to 4096 bytes")?;
        let sections = u64::from(self.journal_sections);
        check(inline == (sections == 0), "journal_sections", sections, "only inline tags need no journal")?;
        let log2 = u64::from(self.log2_interleave_sectors);
        let interleave_reason = "it is 3 to 31, or 0 with a metadata device";
        check(log2 == 0 || (3..=31).contains(&log2), "log2_interleave_sectors", log2, interleave_reason)?;
        let provided = self.provided_data_sectors;
        check(provided > 0, "provided_data_sectors", provided, "the volume has no data")?;
        check(provided < 1 << 55, "provided_data_sectors", provided, "no device is this long")?;
        let aligned = provided.is_multiple_of(1 << block);
        check(aligned, "provided_data_sectors", provided, "it is not a multiple of the block")?;
        let bitmap = self.log2_blocks_per_bitmap_bit;
        check(bitmap <= MAX_LOG2_BITMAP, "log2_blocks_per_bitmap_bit", bitmap.into(), "it is at most 31")?;
        if self.flags.has(Flags::RECALCULATING) {
            let recalc = self.recalc_sector;
            check(recalc <= provided, "recalc_sector", recalc, "it is behind the end of the volume")?;
            check(recalc.is_multiple_of(1 << block), "recalc_sector", recalc, "it is not a multiple of the block")?;
        }
        Ok(())
    }

    /// Returns the version that the flags need; in bitmap mode at least 3.
    fn needed_version(&self, bitmap_mode: bool) -> u8 {
        let has = |flag| self.flags.has(flag);
        if has(Flags::INLINE) {
            6
        } else if has(Flags::FIXED_HMAC) {
            5
        } else if has(Flags::FIXED_PADDING) {
            4
        } else if bitmap_mode || has(Flags::DIRTY_BITMAP) {
            3
        } else if self.log2_interleave_sectors == 0 || has(Flags::RECALCULATING) {
            2
        } else {
            1
        }
    }

    /// Encodes the superblock, with the version that its fields need and the MAC of `journal_mac` if the flags ask for
    /// it.
    pub fn encode(&self, journal_mac: Option<&TagHash>, bitmap_mode: bool) -> Box<[u8; SUPERBLOCK_LEN]> {
        let mut bytes = Box::new([0; SUPERBLOCK_LEN]);
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, MAGIC);
        put(8, &[self.needed_version(bitmap_mode), self.log2_interleave_sectors]);
        put(10, &self.tag_size.to_le_bytes());
        put(12, &self.journal_sections.to_le_bytes());
        put(16, &self.provided_data_sectors.to_le_bytes());
        put(24, &self.flags.0.to_le_bytes());
        put(28, &[self.log2_sectors_per_block, self.log2_blocks_per_bitmap_bit]);
        put(32, &self.recalc_sector.to_le_bytes());
        put(48, &self.salt);
        if let Some((at, mac)) = self.mac(&bytes[..], journal_mac) {
            bytes[at..512].copy_from_slice(&mac[..512 - at]);
        }
        bytes
    }

    /// Returns position and value of the MAC over the superblock in `bytes`, if it has one.
    fn mac(&self, bytes: &[u8], journal_mac: Option<&TagHash>) -> Option<(usize, [u8; TagHash::MAX_LEN])> {
        let hash = journal_mac.filter(|_| self.flags.has(Flags::FIXED_HMAC))?;
        let at = 512 - hash.len();
        debug_assert!(at >= FIELDS_LEN);
        Some((at, hash.digest(&[&bytes[..at]])))
    }

    /// Checks the MAC of the superblock that was decoded from `bytes`.
    ///
    /// # Errors
    ///
    /// Fails if the MAC does not match.
    pub fn check_mac(&self, bytes: &[u8], journal_mac: Option<&TagHash>) -> Result<(), InvalidField> {
        let Some((at, mac)) = self.mac(bytes, journal_mac) else { return Ok(()) };
        let stored = u64::from_le_bytes(array(bytes, 504));
        check(bytes[at..512].ct_eq(&mac[..512 - at]).into(), "mac", stored, "it does not match")
    }

    /// Reads the superblock of a volume.
    ///
    /// # Errors
    ///
    /// Fails if there is none, if a field is not possible, or if the store fails.
    pub fn read(stores: &Stores) -> Result<(Self, Box<[u8; SUPERBLOCK_LEN]>), IntegrityError> {
        let bytes = read_bytes(stores)?;
        if !Self::is_present(&bytes[..]) {
            let empty = bytes.iter().all(|byte| *byte == 0);
            return Err(if empty { IntegrityError::NoSuperblock } else { IntegrityError::OtherData });
        }
        Ok((Self::decode(&bytes[..])?, bytes))
    }

    /// Returns the number of bytes in a block.
    pub fn block_len(&self) -> usize {
        512 << self.log2_sectors_per_block
    }

    /// Whether tags are still to be computed. The kernel leaves the flag set when the last one is done.
    pub fn is_recalculating(&self) -> bool {
        self.flags.has(Flags::RECALCULATING) && self.recalc_sector < self.provided_data_sectors
    }

    /// Returns the salt that hashes start with, if they do.
    pub fn hash_salt(&self) -> Option<[u8; SALT_LEN]> {
        self.flags.has(Flags::FIXED_HMAC).then_some(self.salt)
    }
}

/// Reads the bytes in the superblock's place.
pub(crate) fn read_bytes(stores: &Stores) -> Result<Box<[u8; SUPERBLOCK_LEN]>, IntegrityError> {
    let len = stores.metadata().geometry().len;
    let short = IntegrityError::option("start", "the device ends before the superblock does");
    let end = stores.superblock_at().and_then(|at| at.checked_add(SUPERBLOCK_LEN as u64));
    let Some(at) = end.filter(|end| *end <= len).map(|end| end - SUPERBLOCK_LEN as u64) else { return Err(short) };
    let mut bytes = Box::new([0; SUPERBLOCK_LEN]);
    read_all(stores.metadata(), &mut bytes[..], at).map_err(IntegrityError::io("read the superblock"))?;
    Ok(bytes)
}

/// Writes the superblock.
pub(crate) fn write_bytes(stores: &Stores, bytes: &[u8; SUPERBLOCK_LEN]) -> Result<(), inlock_engine::Errno> {
    write_all(stores.metadata(), bytes, stores.start * 512)
}
