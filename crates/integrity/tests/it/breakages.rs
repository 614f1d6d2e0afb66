//! Broken superblocks and impossible options: each is refused with the name of the field, and nothing is written.

use crate::support::{formatted, hash, memory, open_options};
use inlock_integrity::{FormatOptions, Mode, OpenOptions, Stores, format, load};
use std::error::Error;

const LEN: usize = 1 << 20;

/// A volume of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Base {
    /// Interleaved, CRC-32C, tags padded to 4096 bytes: version 5.
    Plain,
    /// With metadata device.
    Separate,
    /// With a MAC of journal and superblock.
    Mac,
    /// Without salt: version 4.
    Unsalted,
}

fn format_options(base: Base) -> FormatOptions {
    FormatOptions {
        internal_hash: Some(hash(if base == Base::Mac { "hmac-sha256" } else { "crc32c" })),
        journal_mac: (base == Base::Mac).then(|| hash("hmac-sha256")),
        fix_hmac: base != Base::Unsalted,
        block_len: if base == Base::Separate { 4096 } else { 512 },
        interleave_sectors: 256,
        salt: Some([7; 16]),
        ..FormatOptions::default()
    }
}

/// Bytes of a little-endian number at an offset of the superblock.
type Patch = (usize, u64, usize);

const fn u8_at(at: usize, value: u8) -> Patch {
    (at, value as u64, 1)
}

const fn u16_at(at: usize, value: u16) -> Patch {
    (at, value as u64, 2)
}

const fn u32_at(at: usize, value: u32) -> Patch {
    (at, value as u64, 4)
}

const fn u64_at(at: usize, value: u64) -> Patch {
    (at, value, 8)
}

use Base::{Mac, Plain, Separate, Unsalted};

/// Name, volume, change of the superblock, and the words that the error has to have.
const SUPERBLOCKS: &[(&str, Base, Patch, &str)] = &[
    ("magic, first letter", Plain, u8_at(0, b'I'), "magic"),
    ("magic, no end", Plain, u8_at(7, 1), "magic"),
    ("magic, cleared but not the rest", Plain, u64_at(0, 0), "magic"),
    ("version 0", Plain, u8_at(8, 0), "version"),
    ("version 7", Plain, u8_at(8, 7), "version"),
    ("version 255", Plain, u8_at(8, 255), "version"),
    ("version 4 with a salt", Plain, u8_at(8, 4), "version"),
    ("version 1 with a salt", Plain, u8_at(8, 1), "version"),
    ("version 3 with fixed padding", Unsalted, u8_at(8, 3), "version"),
    ("version 1 with fixed padding", Unsalted, u8_at(8, 1), "version"),
    ("version 4 with a metadata device and salt", Separate, u8_at(8, 4), "version"),
    ("interleave 1", Plain, u8_at(9, 1), "log2_interleave_sectors"),
    ("interleave 2", Plain, u8_at(9, 2), "log2_interleave_sectors"),
    ("interleave 32", Plain, u8_at(9, 32), "log2_interleave_sectors"),
    ("interleave 64", Plain, u8_at(9, 64), "log2_interleave_sectors"),
    ("interleave 255", Plain, u8_at(9, 255), "log2_interleave_sectors"),
    ("interleave of a metadata device", Plain, u8_at(9, 0), "log2_interleave_sectors"),
    ("interleave with a metadata device", Separate, u8_at(9, 15), "log2_interleave_sectors"),
    ("smallest interleave with a metadata device", Separate, u8_at(9, 3), "log2_interleave_sectors"),
    ("tags of no bytes", Plain, u16_at(10, 0), "integrity_tag_size"),
    ("tags of 256 bytes", Plain, u16_at(10, 256), "integrity_tag_size"),
    ("tags of 4096 bytes", Plain, u16_at(10, 4096), "integrity_tag_size"),
    ("tags of 65535 bytes", Plain, u16_at(10, 65535), "integrity_tag_size"),
    ("tags longer than the areas", Plain, u16_at(10, 255), "provided_data_sectors"),
    ("tags of 257 bytes, metadata device", Separate, u16_at(10, 257), "integrity_tag_size"),
    ("no journal", Plain, u32_at(12, 0), "journal_sections"),
    ("no journal, metadata device", Separate, u32_at(12, 0), "journal_sections"),
    ("journal as long as the device", Plain, u32_at(12, 12), "journal_sections"),
    ("journal of 2^16 sections", Plain, u32_at(12, 1 << 16), "journal_sections"),
    ("journal of 2^31 sections", Plain, u32_at(12, 1 << 31), "journal_sections"),
    ("journal of 2^32 - 1 sections", Plain, u32_at(12, u32::MAX), "journal_sections"),
    ("journal longer than the metadata device", Separate, u32_at(12, 1000), "journal_sections"),
    ("MAC: longer journal", Mac, u32_at(12, 64), "mac"),
    ("no data", Plain, u64_at(16, 0), "provided_data_sectors"),
    ("no data, metadata device", Separate, u64_at(16, 0), "provided_data_sectors"),
    ("as much data as the device", Plain, u64_at(16, 2048), "provided_data_sectors"),
    ("one more group of data", Plain, u64_at(16, 1792 + 128), "provided_data_sectors"),
    ("more data than the data device", Separate, u64_at(16, 2048 + 8), "provided_data_sectors"),
    ("data of 2^32 sectors", Plain, u64_at(16, 1 << 32), "provided_data_sectors"),
    ("data of 2^54 sectors", Plain, u64_at(16, 1 << 54), "provided_data_sectors"),
    ("data of 2^54 sectors, metadata device", Separate, u64_at(16, 1 << 54), "provided_data_sectors"),
    ("data of 2^55 sectors", Plain, u64_at(16, 1 << 55), "provided_data_sectors"),
    ("data of 2^63 sectors", Plain, u64_at(16, 1 << 63), "provided_data_sectors"),
    ("data of 2^64 - 8 sectors", Plain, u64_at(16, u64::MAX - 7), "provided_data_sectors"),
    ("data of 2^64 - 1 sectors", Plain, u64_at(16, u64::MAX), "provided_data_sectors"),
    ("data that is no multiple of the block", Separate, u64_at(16, 1001), "provided_data_sectors"),
    ("data that is half a block", Separate, u64_at(16, 4), "provided_data_sectors"),
    ("flag 64", Plain, u32_at(24, 0x18 | 0x40), "flags"),
    ("flag 128", Plain, u32_at(24, 0x18 | 0x80), "flags"),
    ("flag 256", Plain, u32_at(24, 0x18 | 0x100), "flags"),
    ("flag 2^16", Plain, u32_at(24, 0x18 | 1 << 16), "flags"),
    ("flag 2^31", Plain, u32_at(24, 0x18 | 1 << 31), "flags"),
    ("all flags", Plain, u32_at(24, u32::MAX), "version"),
    ("inline with version 5", Plain, u32_at(24, 0x38), "version"),
    ("MAC of the journal by flag", Plain, u32_at(24, 0x19), "journal-integrity"),
    ("no MAC of the journal by flag", Mac, u32_at(24, 0x18), "journal-integrity"),
    ("padding of old volumes", Plain, u32_at(24, 0x10), "provided_data_sectors"),
    ("blocks of 8192 bytes", Plain, u8_at(28, 4), "log2_sectors_per_block"),
    ("blocks of 2^64 sectors", Plain, u8_at(28, 64), "log2_sectors_per_block"),
    ("blocks of 2^255 sectors", Plain, u8_at(28, 255), "log2_sectors_per_block"),
    ("bitmap of 2^32 blocks a bit", Plain, u8_at(29, 32), "log2_blocks_per_bitmap_bit"),
    ("bitmap of 2^64 blocks a bit", Plain, u8_at(29, 64), "log2_blocks_per_bitmap_bit"),
    ("bitmap of 2^255 blocks a bit", Plain, u8_at(29, 255), "log2_blocks_per_bitmap_bit"),
    ("MAC: salt", Mac, u8_at(48, 8), "mac"),
    ("MAC: recalc_sector", Mac, u8_at(32, 8), "mac"),
    ("MAC: bits of the bitmap", Mac, u8_at(29, 9), "mac"),
    ("MAC: padding", Mac, u8_at(40, 1), "mac"),
    ("MAC: unused byte", Mac, u8_at(300, 1), "mac"),
    ("MAC: first byte of itself", Mac, u8_at(480, 1), "mac"),
    ("MAC: cleared", Mac, u64_at(504, 0), "mac"),
    ("MAC: fewer data", Mac, u64_at(16, 8), "mac"),
    ("MAC: recalculation asked for", Mac, u32_at(24, 0x1b), "mac"),
];

/// Name, volume, two changes of the superblock, and the words that the error has to have.
const PAIRS: &[(&str, Base, [Patch; 2], &str)] = &[
    ("inline with a journal", Plain, [u8_at(8, 6), u32_at(24, 0x38)], "journal_sections"),
    ("inline with a bitmap", Plain, [u8_at(8, 6), u32_at(24, 0x3c)], "flags"),
    ("inline with a MAC", Plain, [u8_at(8, 6), u32_at(24, 0x39)], "flags"),
    ("inline without tuples", Plain, [u64_at(8, 0x0004_0806), u32_at(24, 0x38)], "option mode"),
    ("recalculation behind the end", Plain, [u32_at(24, 0x1a), u64_at(32, 1 << 40)], "recalc_sector"),
    ("recalculation at 2^64 - 1", Plain, [u32_at(24, 0x1a), u64_at(32, u64::MAX)], "recalc_sector"),
    ("recalculation inside a block", Separate, [u32_at(24, 0x12), u64_at(32, 9)], "recalc_sector"),
];

fn patched(image: &[u8], patches: &[Patch]) -> Vec<u8> {
    let mut image = image.to_vec();
    for (at, value, len) in patches {
        image[*at..at + len].copy_from_slice(&value.to_le_bytes()[..*len]);
    }
    image
}

fn chain(error: &dyn Error) -> String {
    error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {}", chain(source)))
}

/// Loads a broken volume, and returns the error after a look at the bytes.
fn refused(data: &[u8], meta: Option<&[u8]>, options: &OpenOptions) -> Option<String> {
    let (data_store, meta_store) = (memory(data.to_vec()), meta.map(|meta| memory(meta.to_vec())));
    let stores = Stores { data: data_store.clone(), meta: meta_store.clone().map(|meta| meta as _), start: 0 };
    let result = load(&stores, options);
    assert!(data_store.contents() == data && meta_store.map(|meta| meta.contents()).as_deref() == meta, "written to");
    result.err().map(|error| chain(&error))
}

#[test]
fn broken_superblocks_are_refused_by_field_unchanged() {
    let mut judged = 0;
    let rows = SUPERBLOCKS.iter().map(|(name, base, patch, word)| (*name, *base, vec![*patch], *word));
    let rows = rows.chain(PAIRS.iter().map(|(name, base, patches, word)| (*name, *base, patches.to_vec(), *word)));
    for (name, base, patches, word) in rows {
        let options = format_options(base);
        let (data, meta) = formatted(&options, LEN, (base == Separate).then_some(256 << 10));
        let open = open_options(Mode::Journal, &options);
        assert_eq!(refused(&data, meta.as_deref(), &open), None, "{base:?} by itself is whole");
        let image = patched(meta.as_deref().unwrap_or(&data), &patches);
        let error = match base {
            Separate => refused(&data, Some(&image), &open),
            _ => refused(&image, None, &open),
        };
        let error = error.unwrap_or_else(|| panic!("{name}: accepted"));
        assert!(error.contains(word), "{name}: {error}");
        judged += 1;
    }
    println!("COUNT integrity_superblocks_judged {judged}");
    assert!(judged >= 78, "{judged}");
}

#[test]
fn devices_of_wrong_lengths_are_refused() {
    let options = format_options(Separate);
    let (data, meta) = formatted(&options, LEN, Some(256 << 10));
    let (open, meta) = (open_options(Mode::Journal, &options), meta.unwrap());
    let mut judged = 0;
    let mut check = |data: &[u8], meta: Option<&[u8]>, word: &str| {
        let error = refused(data, meta, &open).unwrap_or_else(|| panic!("{} bytes: accepted", data.len()));
        assert!(error.contains(word), "{} bytes: {error}", data.len());
        judged += 1;
    };
    for len in [0, 511, 512, 4095] {
        check(&data, Some(&meta[..len]), "start");
    }
    for len in [4096, 8192, 32768] {
        check(&data, Some(&meta[..len]), "journal_sections");
    }
    for len in [0, 4096, LEN - 512] {
        check(&data[..len], Some(&meta), "provided_data_sectors");
    }
    // Opened without its data device.
    check(&meta, None, "log2_interleave_sectors");
    check(&vec![0; LEN], None, "no superblock");
    println!("COUNT integrity_superblocks_judged {judged}");
}

#[test]
fn options_that_do_not_match_are_refused_by_name() {
    let options = format_options(Plain);
    let (data, _) = formatted(&options, LEN, None);
    let open = |change: &dyn Fn(&mut OpenOptions)| {
        let mut open = open_options(Mode::Journal, &options);
        change(&mut open);
        refused(&data, None, &open).unwrap_or_else(|| panic!("{open:?} is accepted"))
    };
    assert!(open(&|open| open.tag_size = Some(8)).contains("tag-size"));
    assert!(open(&|open| open.block_len = Some(4096)).contains("sector-size"));
    assert!(open(&|open| open.journal_mac = Some(hash("hmac-sha256"))).contains("journal-integrity"));
    assert!(open(&|open| (open.mode, open.internal_hash) = (Mode::Bitmap, None)).contains("mode"));
    assert!(open(&|open| (open.allow_discards, open.internal_hash) = (true, None)).contains("allow-discards"));
    assert!(open(&|open| (open.recalculate, open.internal_hash) = (true, None)).contains("integrity-recalculate"));
    assert!(open(&|open| open.sectors_per_bit = Some(0)).contains("bitmap-sectors-per-bit"));
    let keyed = |open: &mut OpenOptions| (open.recalculate, open.internal_hash) = (true, Some(hash("hmac-sha256")));
    assert!(open(&keyed).contains("tag-size"));
    let asked = |open: &mut OpenOptions| (keyed(open), open.tag_size = Some(4)).0;
    assert!(open(&asked).contains("integrity-recalculate"));
}

#[test]
fn impossible_options_of_a_new_volume_are_refused_by_name() {
    let refused = |len: usize, meta: Option<usize>, change: &dyn Fn(&mut FormatOptions)| {
        let mut options = format_options(Plain);
        change(&mut options);
        let (data, meta) = (memory(vec![0; len]), meta.map(|len| memory(vec![0; len])));
        let stores = Stores { data: data.clone(), meta: meta.clone().map(|meta| meta as _), start: 0 };
        let error = chain(&format(&stores, &options).expect_err("accepted"));
        let metadata = meta.map(|meta| meta.contents()).unwrap_or_default();
        assert!(data.contents().iter().chain(&metadata).all(|byte| *byte == 0), "written to");
        error
    };
    for block_len in [0, 1, 256, 1000, 8192, 65536] {
        assert!(refused(LEN, None, &|o| o.block_len = block_len).contains("sector-size"));
    }
    for tag_size in [0, 256, 65536] {
        assert!(refused(LEN, None, &|o| o.tag_size = Some(tag_size)).contains("tag-size"));
    }
    assert!(refused(LEN, None, &|o| o.internal_hash = None).contains("tag-size"));
    for sectors in [0, 7, u32::MAX] {
        assert!(refused(LEN, None, &|o| o.interleave_sectors = sectors).contains("interleave-sectors"));
    }
    assert!(refused(LEN, None, &|o| o.sectors_per_bit = 0).contains("bitmap-sectors-per-bit"));
    assert!(refused(LEN, None, &|o| o.journal_sectors = Some(u64::MAX)).contains("journal-size"));
    assert!(refused(LEN, None, &|o| o.journal_sectors = Some(4096)).contains("too small"));
    assert!(
        refused(LEN, None, &|o| (o.recalculate, o.tag_size, o.internal_hash) = (true, Some(4), None))
            .contains("integrity-recalculate")
    );
    for len in [0, 4095] {
        assert!(refused(len, None, &|_| ()).contains("start"));
    }
    assert!(refused(32768, None, &|_| ()).contains("too small"));
    assert!(refused(LEN, Some(65536), &|_| ()).contains("metadata device is too small"));
    assert!(refused(0, Some(LEN), &|_| ()).contains("too small"));
}
