//! One flipped bit in a journal with flushed data: they are all there, or the volume is refused and not written to.

use crate::sealed::{gcm, with_tags_of};
use crate::support::{fill, formatted, hash, memory, open_options};
use inlock_cipher::VolumeKey;
use inlock_engine::store::{memory::MemoryStore, read_all, write_all};
use inlock_engine::{BackingStore, Errno};
use inlock_integrity::{
    FormatOptions, IntegrityDevice, IntegrityError, IntegrityStore, JournalCipher, JournalDamage, MAX_JOURNAL_SECTORS,
    Mode, OpenOptions, Stores,
};
use std::sync::Arc;

const BLOCKS: u64 = 20;
const OLD: u8 = 1;
const NEW: u8 = 2;

fn base(tag_size: usize) -> FormatOptions {
    FormatOptions {
        tag_size: Some(tag_size),
        interleave_sectors: 64,
        journal_sectors: Some(64),
        salt: Some([5; 16]),
        ..FormatOptions::default()
    }
}

fn shapes() -> Vec<(&'static str, FormatOptions)> {
    let (crc, hmac) = (Some(hash("crc32c")), Some(hash("hmac-sha256")));
    let cipher = Some(Arc::new(JournalCipher::new("ctr(aes)", &VolumeKey::new(&[9; 32])).unwrap()));
    vec![
        ("crc32c", FormatOptions { internal_hash: crc.clone(), ..base(240) }),
        ("blocks of 1024 bytes", FormatOptions { internal_hash: crc.clone(), block_len: 1024, ..base(240) }),
        ("HMAC, MAC", FormatOptions { internal_hash: hmac.clone(), journal_mac: hmac.clone(), ..base(240) }),
        ("encrypted", FormatOptions { internal_hash: crc, journal_cipher: cipher.clone(), ..base(240) }),
        ("AES-GCM", base(240)),
        ("AES-GCM, MAC, encrypted", FormatOptions { journal_mac: hmac, journal_cipher: cipher, ..base(240) }),
    ]
}

/// Opens a volume as a store of plaintext.
fn open(
    bytes: &Arc<MemoryStore>,
    format: &FormatOptions,
    options: OpenOptions,
) -> Result<IntegrityStore, IntegrityError> {
    let stores = Stores::interleaved(bytes.clone());
    if format.internal_hash.is_some() {
        return Ok(IntegrityStore::new(Arc::new(IntegrityDevice::open(stores, options)?)).unwrap());
    }
    let sealing = with_tags_of(240, &gcm(), format.block_len as u32, 1);
    let device = IntegrityDevice::open_sealed(stores, options, &sealing)?;
    Ok(IntegrityStore::sealed(Arc::new(device), sealing).unwrap())
}

fn block(store: &IntegrityStore, format: &FormatOptions, block: u64) -> Result<Vec<u8>, Errno> {
    let mut data = vec![0; format.block_len];
    read_all(store, &mut data, block * format.block_len as u64)?;
    Ok(data)
}

/// Returns a volume whose journal has the new values, flushed.
fn crashed(format: &FormatOptions) -> Vec<u8> {
    let bytes = memory(formatted(format, 192 << 10, None).0);
    for value in [OLD, NEW] {
        let store = open(&bytes, format, open_options(Mode::Journal, format)).unwrap();
        let data = (0..BLOCKS).flat_map(|block| fill(block, value, format.block_len));
        for (data, at) in data.collect::<Vec<u8>>().chunks(format.block_len).zip((0u64..).step_by(format.block_len)) {
            write_all(&store, data, at).unwrap();
        }
        if value == NEW { store.sync().unwrap() } else { store.device().close().unwrap() }
    }
    bytes.contents()
}

#[test]
fn flipped_bit_drops_no_flushed_data() {
    let (mut refused, mut whole) = (0, 0);
    for (name, format) in shapes() {
        let image = crashed(&format);
        let options = open_options(Mode::Journal, &format);
        let layout = open(&memory(image.clone()), &format, options.clone()).unwrap().device().layout();
        let journal = layout.journal_at() as usize;
        // Entry, data position, displaced bytes, tag, MAC, commit id; a few bytes of data.
        let bytes = [0, 3, 7, 8, 15, 16, 24, 32, 40, 200, 271, 300, 496, 503, 504, 507, 511];
        for sector in 0..layout.journal.sectors() as usize {
            for (n, byte) in bytes.iter().enumerate() {
                let mut damaged = image.clone();
                damaged[journal + sector * 512 + byte] ^= 1 << ((n + sector) % 8);
                for read_only in [false, true] {
                    let store = memory(damaged.clone());
                    let options = OpenOptions { read_only, ..options.clone() };
                    match open(&store, &format, options) {
                        Ok(volume) => {
                            for at in 0..BLOCKS {
                                let found = block(&volume, &format, at);
                                let is_new = found.is_ok_and(|found| found == fill(at, NEW, format.block_len));
                                assert!(is_new, "{name}: byte {byte} of sector {sector} changes block {at}");
                            }
                            whole += 1;
                        }
                        Err(IntegrityError::Journal(_)) => {
                            assert!(store.contents() == damaged, "{name}: byte {byte} of sector {sector}: written to");
                            refused += 1;
                        }
                        Err(error) => panic!("{name}: byte {byte} of sector {sector}: {error}"),
                    }
                }
            }
            let mut damaged = image.clone();
            damaged[journal + sector * 512 + 504] ^= 0x10;
            let error = open(&memory(damaged), &format, options.clone()).map(|_| ()).unwrap_err();
            let section = (sector / layout.journal.section_sectors) as u32;
            let sector = sector % layout.journal.section_sectors;
            let is_named = matches!(&error, IntegrityError::Journal(JournalDamage::CommitId { section: s, sector: n })
                if (*s, *n) == (section, sector));
            assert!(is_named || format.journal_cipher.is_some(), "{name}: {error}");
        }
    }
    println!("COUNT integrity_flipped_bits_of_journals {}", refused + whole);
    assert!(refused > 1000 && whole > 1000, "{refused} refused, {whole} whole");
}

#[test]
fn salvaged_journal_loses_only_what_is_damaged() {
    for (name, format) in shapes() {
        let image = crashed(&format);
        let options = open_options(Mode::Journal, &format);
        let layout = open(&memory(image.clone()), &format, options.clone()).unwrap().device().layout();
        let per_section = layout.journal.entries as u64;
        for (section, byte) in (0..layout.journal.sections).flat_map(|section| [(section, 40), (section, 504)]) {
            let mut damaged = image.clone();
            damaged[layout.section_at(section) as usize + byte] ^= 1;
            let store = memory(damaged);
            let Err(_) = open(&store, &format, options.clone()) else { continue };
            for read_only in [true, false, false] {
                let options = OpenOptions { read_only, salvage_journal: true, ..options.clone() };
                let salvaged = open(&store, &format, options).unwrap();
                let values = (0..BLOCKS).map(|at| {
                    let found = block(&salvaged, &format, at).unwrap();
                    [OLD, NEW].into_iter().find(|value| found == fill(at, *value, format.block_len)).expect(name)
                });
                let lost = values.filter(|value| *value == OLD).count() as u64;
                assert!(lost <= if byte == 504 { per_section } else { 1 }, "{name}: {lost} blocks");
            }
            // It is whole from then on.
            open(&store, &format, options.clone()).unwrap();
        }
    }
}

#[test]
fn journal_of_foreign_sectors_is_refused_unless_it_was_never_written() {
    let (name, format) = shapes().remove(0);
    let image = crashed(&format);
    let options = open_options(Mode::Journal, &format);
    let layout = open(&memory(image.clone()), &format, options.clone()).unwrap().device().layout();
    let journal = layout.journal_at() as usize..layout.tags_at() as usize;
    for (fill, is_opened) in [(0, true), (0x5a, false)] {
        let mut changed = image.clone();
        changed[journal.clone()].fill(fill);
        let store = memory(changed.clone());
        let opened = open(&store, &format, options.clone());
        assert_eq!(opened.is_ok(), is_opened, "{name}: {fill}");
        assert!(is_opened || store.contents() == changed);
    }
    let mut changed = image;
    changed[journal.start..layout.section_at(1) as usize].fill(0);
    assert!(open(&memory(changed), &format, options).is_err(), "one section of zeroes");
}

#[test]
fn long_journal_is_refused_without_its_option() {
    let format = base(4);
    let hash = Some(hash("crc32c"));
    let format = FormatOptions { internal_hash: hash, journal_sectors: Some(4 << 20), ..format };
    let sizes = inlock_integrity::DeviceSizes { data: 8 << 20, meta: None, start: 0 };
    assert!(matches!(format.superblock(&sizes), Err(IntegrityError::LongJournal { .. })));
    assert!(FormatOptions { long_journal: true, ..format.clone() }.superblock(&sizes).is_ok());
    // One that exists, of sections of 64 sectors.
    let format = FormatOptions { tag_size: Some(56), long_journal: true, ..format };
    for (sectors, is_long) in [(MAX_JOURNAL_SECTORS, false), (MAX_JOURNAL_SECTORS + 64, true)] {
        let sizes = inlock_integrity::DeviceSizes { data: sectors + (1 << 12), ..sizes };
        let format = FormatOptions { journal_sectors: Some(sectors), ..format.clone() };
        let superblock = format.superblock(&sizes).unwrap();
        // Pages that are not written to take no memory.
        let mut bytes = vec![0; (sizes.data * 512) as usize];
        bytes[..4096].copy_from_slice(&superblock.encode(None, false)[..]);
        let stores = Stores::interleaved(memory(bytes));
        for (mode, long_journal) in
            [(Mode::Journal, false), (Mode::Direct, false), (Mode::Direct, true), (Mode::Recovery, false)]
        {
            let options = OpenOptions { long_journal, ..open_options(mode, &format) };
            let is_refused = is_long && !long_journal && mode != Mode::Recovery;
            match inlock_integrity::load(&stores, &options) {
                Ok(_) => assert!(!is_refused, "{sectors} {mode:?}"),
                Err(error) => assert!(is_refused && matches!(error, IntegrityError::LongJournal { .. }), "{error}"),
            }
        }
    }
}

/// A journal of zeroes takes no space yet, and an open writes it: not more than 64 MiB without being asked.
#[test]
fn long_journal_that_was_never_written_is_refused_by_its_length() {
    // Sections of 64 sectors. The first sector of the one that is read after 64 MiB decides.
    let format = FormatOptions { internal_hash: Some(hash("crc32c")), ..base(56) };
    for (sections, was_written, is_opened) in [(2049, false, true), (2050, false, false), (2050, true, true)] {
        let format = FormatOptions { journal_sectors: Some(sections * 64), ..format.clone() };
        let store = memory(formatted(&format, 68 << 20, None).0);
        let mut options = open_options(Mode::Journal, &format);
        options.read_only = true;
        let layout = inlock_integrity::load(&Stores::interleaved(store.clone()), &options).unwrap().1;
        assert_eq!((layout.journal.section_sectors, u64::from(layout.journal.sections)), (64, sections));
        if !was_written {
            let zeroes = vec![0; (layout.journal.sectors() * 512) as usize];
            write_all(&*store, &zeroes, layout.journal_at()).unwrap();
        }
        let opened = IntegrityDevice::open(Stores::interleaved(store), options).map(drop);
        assert_eq!(opened.is_ok(), is_opened, "{sections} {was_written}");
        let is_told = matches!(opened, Ok(()) | Err(IntegrityError::Journal(JournalDamage::NeverWritten)));
        assert!(is_told, "{opened:?}");
    }
}
