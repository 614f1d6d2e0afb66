//! Positions of journal, bitmap, tags and data.
//!
//! An interleaved volume is superblock, journal, and then pairs of a tag area and a data area. With a metadata device
//! all tags follow the journal there, and the data are on the data device from its first sector.

use crate::error::{IntegrityError, InvalidField, check};
use crate::stores::DeviceSizes;
use crate::superblock::{Flags, MAX_LOG2_BITMAP, SUPERBLOCK_SECTORS, Superblock};

/// Metadata sectors at the start of a section.
pub(crate) const SECTION_METADATA_SECTORS: usize = 8;
/// Bytes of a tag area are a multiple of this, and of 131072 without `FIXED_PADDING`.
const PADDING: u64 = 4096;
const LEGACY_PADDING: u64 = 131_072;
/// Default number of sectors for each bit of the bitmap.
pub(crate) const DEFAULT_SECTORS_PER_BIT: u32 = 32768;
/// Largest and smallest logarithm of the sectors of a tag buffer: the end of the tags is rounded up to one.
pub(crate) const MAX_LOG2_BUFFER: u8 = 7;
const MIN_LOG2_BUFFER: u8 = 3;

/// Sizes of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalLayout {
    /// Number of sections.
    pub sections: u32,
    /// Bytes of an entry.
    pub entry_len: usize,
    /// Entries in a metadata sector.
    pub entries_per_sector: usize,
    /// Entries in a section.
    pub entries: usize,
    /// Sectors of a section.
    pub section_sectors: usize,
    /// Sectors of a block.
    pub sectors_per_block: usize,
    /// Bytes of a tag.
    pub tag_size: usize,
    /// Whether metadata sectors have a part of the section's MAC.
    pub has_mac: bool,
}

impl JournalLayout {
    /// Returns the sizes that a superblock describes.
    pub fn new(superblock: &Superblock) -> Self {
        let sectors_per_block = 1usize << superblock.log2_sectors_per_block;
        let tag_size = usize::from(superblock.tag_size);
        let entry_len = (8 + 8 * sectors_per_block + tag_size).next_multiple_of(8);
        let has_mac = superblock.flags.has(Flags::JOURNAL_MAC);
        let entries_per_sector = (if has_mac { 496 } else { 504 }) / entry_len;
        let entries = entries_per_sector * SECTION_METADATA_SECTORS;
        Self {
            sections: superblock.journal_sections,
            entry_len,
            entries_per_sector,
            entries,
            section_sectors: SECTION_METADATA_SECTORS + entries * sectors_per_block,
            sectors_per_block,
            tag_size,
            has_mac,
        }
    }

    /// Returns the bytes of a section.
    pub fn section_len(&self) -> usize {
        self.section_sectors * 512
    }

    /// Returns the sectors of the journal.
    pub fn sectors(&self) -> u64 {
        self.section_sectors as u64 * u64::from(self.sections)
    }
}

/// Positions of a volume's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Sizes of the journal.
    pub journal: JournalLayout,
    /// Number of data sectors that the volume has.
    pub provided_data_sectors: u64,
    /// Sectors of superblock and journal.
    pub initial_sectors: u64,
    /// Logarithm of the data sectors in a data area; `None` with a metadata device.
    pub log2_interleave_sectors: Option<u8>,
    /// Sectors of a tag area; 0 with a metadata device.
    pub metadata_run: u64,
    /// First sector of the volume.
    pub start: u64,
    log2_sectors_per_block: u8,
}

impl Layout {
    /// Returns the layout of a volume on devices of these lengths.
    ///
    /// # Errors
    ///
    /// Names the field of the superblock that does not match the devices.
    pub fn new(superblock: &Superblock, sizes: &DeviceSizes) -> Result<Self, InvalidField> {
        Self::with_buffer(superblock, sizes, MIN_LOG2_BUFFER)
    }

    /// Returns the layout, with the end of the tags rounded up to a buffer.
    pub(crate) fn with_buffer(sb: &Superblock, sizes: &DeviceSizes, log2_buffer: u8) -> Result<Self, InvalidField> {
        let journal = JournalLayout::new(sb);
        let sections = u64::from(sb.journal_sections);
        let room = sizes.superblock_device().saturating_sub(sizes.start);
        let initial_sectors = SUPERBLOCK_SECTORS + journal.sectors();
        // The kernel counts the journal's sectors in 32 bits, and wants room for one more buffer.
        let fits = initial_sectors + 8 < room && initial_sectors <= u64::from(u32::MAX);
        check(fits, "journal_sections", sections, "the journal does not fit the device")?;
        let log2 = sb.log2_interleave_sectors;
        let separate = sizes.meta.is_some();
        let reason = if separate { "with a metadata device it is 0" } else { "the tags are on a metadata device" };
        check(separate == (log2 == 0), "log2_interleave_sectors", log2.into(), reason)?;
        let mut layout = Self {
            journal,
            provided_data_sectors: sb.provided_data_sectors,
            initial_sectors,
            log2_interleave_sectors: (!separate).then_some(log2),
            metadata_run: 0,
            start: sizes.start,
            log2_sectors_per_block: sb.log2_sectors_per_block,
        };
        let provided = sb.provided_data_sectors;
        let too_long = |fits| check(fits, "provided_data_sectors", provided, "the device is too small");
        if separate {
            too_long(provided <= sizes.data)?;
            let tags = (provided >> sb.log2_sectors_per_block) * journal.tag_size as u64;
            let tags = tags.div_ceil(512 << log2_buffer) << log2_buffer;
            let reason = "the metadata device is too small for the tags";
            check(initial_sectors + tags <= room, "provided_data_sectors", provided, reason)?;
        } else {
            let padding = if sb.flags.has(Flags::FIXED_PADDING) { PADDING } else { LEGACY_PADDING };
            let tags = (journal.tag_size as u64) << (log2.saturating_sub(sb.log2_sectors_per_block));
            layout.metadata_run = tags.next_multiple_of(padding) / 512;
            // No sum overflows: sectors are below 2^55, a tag area is at most as long as 2^39 bytes.
            let areas = ((provided - 1) >> log2) + 1;
            let end = u128::from(areas) * u128::from(layout.metadata_run) + u128::from(initial_sectors + provided);
            too_long(end <= u128::from(room))?;
        }
        Ok(layout)
    }

    /// Returns the number of sectors in a block.
    pub fn sectors_per_block(&self) -> u64 {
        1 << self.log2_sectors_per_block
    }

    /// Returns the number of bytes in a block.
    pub fn block_len(&self) -> usize {
        512 << self.log2_sectors_per_block
    }

    /// Returns the number of blocks of the volume.
    pub fn blocks(&self) -> u64 {
        self.provided_data_sectors >> self.log2_sectors_per_block
    }

    /// Returns the byte of the data store at which `block` starts, and the number of blocks from there that follow each
    /// other on the store, also behind the end of the volume.
    pub fn data_position(&self, block: u64) -> (u64, u64) {
        let sector = block << self.log2_sectors_per_block;
        let Some(log2) = self.log2_interleave_sectors else { return (sector * 512, u64::MAX - block) };
        let (area, offset) = (sector >> log2, sector & ((1 << log2) - 1));
        let at = self.start + self.initial_sectors + (area + 1) * self.metadata_run + (area << log2) + offset;
        (at * 512, ((1 << log2) - offset) >> self.log2_sectors_per_block)
    }

    /// Returns the byte of the metadata store at which the tag of `block` starts, and the number of tags from there
    /// that follow each other on the store, also behind the end of the volume.
    pub fn tag_position(&self, block: u64) -> (u64, u64) {
        let tags = self.tags_at();
        let tag_size = self.journal.tag_size as u64;
        let Some(log2) = self.log2_interleave_sectors else { return (tags + block * tag_size, u64::MAX - block) };
        let log2_blocks = log2 - self.log2_sectors_per_block;
        let (area, offset) = (block >> log2_blocks, block & ((1 << log2_blocks) - 1));
        let area_at = area * (self.metadata_run + (1 << log2)) * 512;
        (tags + area_at + offset * tag_size, (1 << log2_blocks) - offset)
    }

    /// Returns the byte of the metadata store at which the first tag area starts.
    pub fn tags_at(&self) -> u64 {
        (self.start + self.initial_sectors) * 512
    }

    /// Returns the byte of the metadata store at which the journal, or the bitmap, starts.
    pub fn journal_at(&self) -> u64 {
        (self.start + SUPERBLOCK_SECTORS) * 512
    }

    /// Returns the byte of the metadata store at which a section starts.
    pub fn section_at(&self, section: u32) -> u64 {
        self.journal_at() + u64::from(section) * self.journal.section_len() as u64
    }

    /// Returns the logarithm of the blocks for each bit of a new bitmap: for `sectors`, or the kernel's default,
    /// rounded down to a power of two; more if the bitmap would not fit the journal's place.
    pub(crate) fn log2_blocks_per_bit(&self, sectors: Option<u32>) -> u8 {
        let sectors = sectors.unwrap_or(DEFAULT_SECTORS_PER_BIT).max(1);
        let mut log2 = (sectors.ilog2() as u8).saturating_sub(self.log2_sectors_per_block);
        while log2 < MAX_LOG2_BITMAP && self.bitmap_len(log2).is_err() {
            log2 += 1;
        }
        log2
    }

    /// Returns the bytes of the bitmap, whole blocks of 4096.
    ///
    /// # Errors
    ///
    /// Fails if the bitmap does not fit the journal's place.
    pub fn bitmap_len(&self, log2_blocks_per_bit: u8) -> Result<usize, InvalidField> {
        let len = bitmap_len(self.blocks(), log2_blocks_per_bit);
        let (field, value) = ("log2_blocks_per_bitmap_bit", u64::from(log2_blocks_per_bit));
        check(len <= self.journal.sectors() * 512, field, value, "the bitmap does not fit the journal's place")?;
        Ok(len as usize)
    }
}

/// Returns the bytes of a bitmap, whole blocks of 4096.
pub(crate) fn bitmap_len(blocks: u64, log2_blocks_per_bit: u8) -> u64 {
    blocks.div_ceil(1 << log2_blocks_per_bit).div_ceil(4096 * 8) * 4096
}

/// Finds the largest number of data sectors that fits, from the highest bit down, as the kernel does.
pub(crate) fn largest_interleaved(superblock: &Superblock, sizes: &DeviceSizes) -> u64 {
    let mut provided = 0;
    for bit in (3..55).rev() {
        let next = provided | 1 << bit;
        let trial = Superblock { provided_data_sectors: next, ..*superblock };
        if next <= sizes.data && Layout::new(&trial, sizes).is_ok() {
            provided = next;
        }
    }
    provided
}

/// Returns the number of sectors that a volume can be given: `sectors`, or as many as fit its devices.
pub(crate) fn fitting_len(
    superblock: &Superblock,
    sizes: &DeviceSizes,
    sectors: Option<u64>,
) -> Result<u64, IntegrityError> {
    let fits = |provided| {
        let mut trial = *superblock;
        trial.provided_data_sectors = provided;
        // Where a recalculation is does not limit the length.
        trial.recalc_sector = trial.recalc_sector.min(provided);
        trial.check_fields().is_ok() && Layout::new(&trial, sizes).is_ok()
    };
    let blocks = sizes.data >> superblock.log2_sectors_per_block << superblock.log2_sectors_per_block;
    let wanted = match sectors {
        Some(sectors) => sectors,
        None if sizes.meta.is_some() && fits(blocks) => blocks,
        None => largest_interleaved(superblock, sizes),
    };
    if fits(wanted) {
        return Ok(wanted);
    }
    Err(IntegrityError::option("size", "the devices have no room for it, or it is not whole blocks"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::FormatOptions;

    /// Returns a superblock with sections of 64 sectors.
    fn superblock(sections: u32, provided: u64, meta: bool, block_len: usize) -> Superblock {
        let tag_size = Some(56);
        let options = FormatOptions { tag_size, block_len, interleave_sectors: 64, ..FormatOptions::default() };
        let sizes = DeviceSizes { data: 1 << 20, meta: meta.then_some(1 << 20), start: 0 };
        let superblock = options.superblock(&sizes).unwrap();
        Superblock { journal_sections: sections, provided_data_sectors: provided, ..superblock }
    }

    /// Returns the field that does not match devices of these sectors.
    fn field(superblock: &Superblock, data: u64, meta: Option<u64>, start: u64) -> Option<&'static str> {
        Layout::new(superblock, &DeviceSizes { data, meta, start }).err().map(|error| error.field)
    }

    #[test]
    fn volume_fits_its_devices_to_the_last_sector() {
        for start in [0, 7] {
            for provided in [8, 64, 72, 640] {
                let interleaved = superblock(2, provided, false, 512);
                let sizes = DeviceSizes { data: 1 << 20, meta: None, start };
                let layout = Layout::new(&interleaved, &sizes).unwrap();
                let end = layout.data_position(layout.blocks() - 1).0 / 512 + 1;
                assert_eq!(field(&interleaved, end, None, start), None);
                assert_eq!(field(&interleaved, end - 1, None, start), Some("provided_data_sectors"));
                let separate = superblock(2, provided, true, 512);
                assert_eq!(field(&separate, provided, Some(1 << 20), start), None);
                assert_eq!(field(&separate, provided - 1, Some(1 << 20), start), Some("provided_data_sectors"));
                // Tags are rounded up to 8 sectors, and behind the journal there is room for one more.
                let tags = (provided * 56).div_ceil(4096) * 8;
                let end = start + 8 + 2 * 64 + tags.max(9);
                assert_eq!(field(&separate, provided, Some(end), start), None);
                assert!(field(&separate, provided, Some(end - 1), start).is_some());
                let end = start + 8 + 2 * 64 + 8;
                assert_eq!(field(&separate, provided, Some(end), start), Some("journal_sections"));
            }
        }
        // 2^32 - 1 sectors of superblock and journal at most: sections of 64 sectors do not reach it.
        let most = u32::MAX / 64;
        assert_eq!(field(&superblock(most, 8, true, 512), 8, Some(1 << 40), 0), None);
        assert_eq!(field(&superblock(most + 1, 8, true, 512), 8, Some(1 << 40), 0), Some("journal_sections"));
    }

    #[test]
    fn bitmap_fills_the_journals_place_at_most() {
        // The place has 32768 bytes, 8 times 32768 bits.
        for (blocks, log2) in [(8 << 15, 0), ((8 << 15) + 1, 1), (16 << 15, 1)] {
            let superblock = superblock(1, blocks, true, 512);
            let layout =
                Layout::new(&superblock, &DeviceSizes { data: blocks, meta: Some(1 << 30), start: 0 }).unwrap();
            assert_eq!(layout.log2_blocks_per_bit(Some(1)), log2, "{blocks}");
            assert_eq!(layout.bitmap_len(0).ok(), (log2 == 0).then_some(32768));
        }
        let blocks = (1 << 54) + 8;
        let superblock = superblock(1, blocks, true, 512);
        let mut layout =
            Layout::new(&superblock, &DeviceSizes { data: blocks, meta: Some(1 << 60), start: 0 }).unwrap();
        assert_eq!(layout.log2_blocks_per_bit(None), MAX_LOG2_BITMAP);
        layout.journal.sections = 65;
        assert_eq!(layout.log2_blocks_per_bit(None), MAX_LOG2_BITMAP - 1);
    }

    #[test]
    fn bits_stand_for_sectors_however_long_a_block_is() {
        for (block_len, sectors, log2) in
            [(512, 8, 3), (4096, 8, 0), (4096, 63, 2), (4096, 4, 0), (1024, 64, 5), (512, 0, 0)]
        {
            let superblock = superblock(1, 4096, true, block_len);
            let layout = Layout::new(&superblock, &DeviceSizes { data: 4096, meta: Some(4096), start: 0 }).unwrap();
            assert_eq!(layout.log2_blocks_per_bit(Some(sectors)), log2, "{block_len} {sectors}");
        }
    }
}
