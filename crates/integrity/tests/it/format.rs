//! New volumes, and where their parts are.

use crate::crash::state;
use crate::support::{Numbers, fill, formatted, hash, memory, open_options};
use inlock_integrity::{
    DeviceSizes, Flags, FormatOptions, IntegrityDevice, IntegrityError, Layout, MAX_JOURNAL_SECTORS, Marks, Mode,
    Stores, Superblock, format,
};
use inlock_testing::Log;
use std::sync::Arc;

fn options(block_len: usize, tag: usize) -> FormatOptions {
    FormatOptions { block_len, tag_size: Some(tag), internal_hash: Some(hash("crc32c")), ..FormatOptions::default() }
}

/// Every tag and every block of a volume has bytes of its own, inside its device, in the order of the format.
#[test]
fn tags_and_data_do_not_overlap() {
    for block_len in [512, 1024, 2048, 4096] {
        for tag in [1, 4, 10, 64, 255] {
            for fix_padding in [false, true] {
                for meta in [None, Some(4096)] {
                    let new = FormatOptions { fix_padding, interleave_sectors: 512, ..options(block_len, tag) };
                    let sizes = DeviceSizes { data: 4096, meta, start: 0 };
                    let Ok(superblock) = new.superblock(&sizes) else { panic!("{block_len} {tag} {meta:?}") };
                    let layout = Layout::new(&superblock, &sizes).unwrap();
                    let mut uses = [vec![false; 4096 * 512], vec![false; 4096 * 512]];
                    let mut take = |device: usize, at: u64, len: usize| {
                        for byte in &mut uses[device][at as usize..][..len] {
                            assert!(!std::mem::replace(byte, true), "{block_len} {tag} {meta:?}: {at} is used twice");
                        }
                    };
                    let metadata = usize::from(meta.is_some());
                    take(metadata, 0, (layout.initial_sectors * 512) as usize);
                    for block in 0..layout.blocks() {
                        take(0, layout.data_position(block).0, block_len);
                        take(metadata, layout.tag_position(block).0, tag);
                    }
                }
            }
        }
    }
}

/// The numbers were computed by hand from the format's description.
#[test]
fn positions_are_those_of_the_format() {
    let sizes = DeviceSizes { data: 1 << 21, meta: None, start: 0 };
    let superblock = options(512, 4).superblock(&sizes).unwrap();
    let layout = Layout::new(&superblock, &sizes).unwrap();
    // An entry has 8 + 8 + 4 bytes, padded to 24; 504 / 24 = 21 in a sector, 168 in a section of 8 + 168 sectors.
    assert_eq!((layout.journal.entry_len, layout.journal.entries, layout.journal.section_sectors), (24, 168, 176));
    // 2^21 / 128 = 16384 sectors are 93 sections.
    assert_eq!((superblock.journal_sections, layout.initial_sectors), (93, 8 + 93 * 176));
    // 32768 tags of 4 bytes are 256 sectors.
    assert_eq!(layout.metadata_run, 256);
    let first = 8 + 93 * 176;
    assert_eq!(layout.data_position(0), ((first + 256) * 512, 32768));
    assert_eq!(layout.data_position(32768 + 5), ((first + 2 * 256 + 32768 + 5) * 512, 32763));
    assert_eq!(layout.tag_position(32768 + 5), ((first + 256 + 32768) * 512 + 20, 32763));
    // The largest number that fits: areas of 33024 sectors.
    let fits = |provided: u64| first + provided.div_ceil(32768) * 256 + provided <= 1 << 21;
    assert!(fits(superblock.provided_data_sectors) && !fits(superblock.provided_data_sectors + 8));
    // 32768 >> 3 tags of 32 bytes are 256 sectors too; without fixed padding areas are multiples of 256 sectors.
    let new = FormatOptions { fix_padding: false, ..options(4096, 33) };
    let superblock = new.superblock(&sizes).unwrap();
    assert_eq!(Layout::new(&superblock, &sizes).unwrap().metadata_run, 512);
}

#[test]
fn version_is_the_first_that_has_the_flags() {
    let version = |meta: Option<u64>, change: &dyn Fn(&mut FormatOptions), bitmap| {
        let mut new = FormatOptions { fix_padding: false, fix_hmac: false, ..options(512, 4) };
        change(&mut new);
        let superblock = new.superblock(&DeviceSizes { data: 1 << 16, meta, start: 0 }).unwrap();
        superblock.encode(None, bitmap)[8]
    };
    assert_eq!(version(None, &|_| (), false), 1);
    assert_eq!(version(Some(1 << 16), &|_| (), false), 2);
    assert_eq!(version(None, &|new| new.recalculate = true, false), 2);
    assert_eq!(version(None, &|_| (), true), 3);
    assert_eq!(version(None, &|new| new.fix_padding = true, true), 4);
    assert_eq!(version(None, &|new| new.fix_hmac = true, false), 5);
}

#[test]
fn superblock_keeps_its_fields() {
    let new = FormatOptions { journal_mac: Some(hash("hmac-sha512")), recalculate: true, ..options(4096, 10) };
    let (data, _) = formatted(&new, 1 << 20, None);
    let superblock = Superblock::decode(&data).unwrap();
    assert_eq!((superblock.tag_size, superblock.version, superblock.block_len()), (10, 5, 4096));
    assert!(superblock.flags.has(Flags::RECALCULATING) && superblock.salt != [0; 16]);
    superblock.check_mac(&data, new.journal_mac.as_deref()).unwrap();
    assert_eq!(superblock.encode(new.journal_mac.as_deref(), false)[..], data[..4096]);
}

#[test]
fn present_data_is_overwritten_only_on_request() {
    let mut bytes = vec![0; 1 << 20];
    bytes[4095] = 1;
    let store = memory(bytes.clone());
    let stores = Stores::interleaved(store.clone());
    assert!(matches!(format(&stores, &options(512, 4)), Err(IntegrityError::OtherData)));
    assert!(store.contents() == bytes);
    format(&stores, &FormatOptions { overwrite: true, ..options(512, 4) }).unwrap();
    assert!(Superblock::is_present(&store.contents()));
}

/// A power cut while a volume is made over another one leaves the old volume, none, or the new one.
#[test]
fn cut_format_leaves_the_old_volume_none_or_the_new_one() {
    let old =
        FormatOptions { interleave_sectors: 64, salt: Some([1; 16]), journal_sectors: Some(200), ..options(512, 9) };
    let new = FormatOptions { overwrite: true, salt: Some([2; 16]), journal_sectors: Some(300), ..old.clone() };
    let store = memory(formatted(&old, 192 << 10, None).0);
    let device = IntegrityDevice::open(Stores::interleaved(store.clone()), open_options(Mode::Journal, &old)).unwrap();
    (0..30).for_each(|block| device.write(block, &fill(block, 1, 512), &[]).unwrap());
    device.flush().unwrap();
    let before = store.contents();
    let log = Log::<()>::default();
    let made = format(&Stores::interleaved(Arc::new(log.store(memory(before.clone()), false))), &new).unwrap();
    let (log, mut random, mut found) = (log.steps().clone(), Numbers(77), [0; 3]);
    let open = |bytes: Vec<u8>, format| {
        IntegrityDevice::open(Stores::interleaved(memory(bytes)), open_options(Mode::Journal, format)).unwrap()
    };
    for cut in 0..=log.len() {
        for _ in 0..16 {
            let bytes = state(&before, &log, cut, &mut random);
            match Superblock::read(&Stores::interleaved(memory(bytes.clone()))) {
                Ok((superblock, _)) if superblock == made => {
                    assert!(open(bytes, &new).read(0, &mut [0; 512], &mut []).is_err(), "no block was written");
                    found[2] += 1;
                }
                Ok(_) => {
                    let device = open(bytes, &old);
                    for block in 0..30 {
                        let mut data = [0; 512];
                        device.read(block, &mut data, &mut []).unwrap();
                        assert!(data[..] == fill(block, 1, 512), "{cut}: block {block}");
                    }
                    found[0] += 1;
                }
                Err(error) => {
                    assert!(matches!(error, IntegrityError::NoSuperblock | IntegrityError::OtherData), "{error}");
                    assert!(cut < log.len(), "the new volume is durable");
                    found[1] += 1;
                }
            }
        }
    }
    assert!(found.iter().all(|count| *count > 8), "{found:?}");
}

#[test]
fn boundaries_of_a_new_volume_are_possible() {
    // The superblock ends where the device does.
    let error = Superblock::read(&Stores::interleaved(memory(vec![0; 4096]))).unwrap_err();
    assert!(matches!(error, IntegrityError::NoSuperblock), "{error}");
    assert_eq!(Superblock::decode(&[0; 4096]).unwrap_err().field, "magic");
    // No device has 2^55 sectors.
    for (data, is_possible) in [((1 << 55) - 8, true), (1 << 55, false)] {
        let sizes = DeviceSizes { data, meta: Some(u64::MAX), start: 0 };
        let made = options(512, 8).superblock(&sizes);
        assert_eq!(made.is_ok(), is_possible, "{made:?}");
    }
    // Sections of 64 sectors.
    let sizes = DeviceSizes { data: 4 << 20, meta: None, start: 0 };
    let of_sectors = |sectors| FormatOptions { journal_sectors: Some(sectors), ..options(512, 56) }.superblock(&sizes);
    assert_eq!(of_sectors(MAX_JOURNAL_SECTORS).unwrap().journal_sections, 1 << 15);
    assert!(matches!(of_sectors(MAX_JOURNAL_SECTORS + 64), Err(IntegrityError::LongJournal { .. })));
}

/// A mark that is shorter, by the tag or by the hash, could be guessed.
#[test]
fn marks_have_16_bytes_at_least() {
    for (name, tag_size, is_possible) in
        [("hmac-sha256", 15, false), ("hmac-sha256", 16, true), ("hmac-sha256", 8, false), ("crc32c", 32, false)]
    {
        let marks = Marks::of_hash(hash(name), None, tag_size, 512);
        assert_eq!(marks.is_ok(), is_possible, "{name} {tag_size}");
    }
}
