//! Broken journals: what is impossible is not replayed, and changed content is not returned.

use crate::support::{fill, formatted, hash, memory, open_options};
use inlock_cipher::VolumeKey;
use inlock_integrity::{FormatOptions, IntegrityDevice, IntegrityError, JournalCipher, Mode, Stores};
use std::sync::Arc;

/// Blocks with an entry in the first section, entry n for block n. Each had value 1 and gets value 2.
const BLOCKS: u64 = 6;
const OLD: u8 = 1;
const NEW: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Base {
    /// CRC-32C, blocks of 512 bytes.
    Plain,
    /// Blocks of 4096 bytes.
    Large,
    /// With a MAC of the journal.
    Mac,
    /// With an encrypted journal.
    Encrypted,
}

use Base::{Encrypted, Large, Mac, Plain};

/// Blocks as they are read after the journal was replayed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Expected {
    /// Every block has its new value.
    Replayed,
    /// Every block has its old value.
    Nothing,
    /// This block has its old value, the others the new one.
    Skipped(u64),
    /// The journal is called damaged, and nothing is written.
    Refused,
}

use Expected::{Nothing, Refused, Replayed, Skipped};

/// A change of the first section.
#[derive(Clone, Copy)]
enum Change {
    /// Sets the sector of an entry.
    Sector(usize, u64),
    /// Sets the sector of an entry to this many behind the last one of the volume.
    Behind(usize, u64),
    /// Flips a bit of a byte of the section.
    Flip(usize),
    /// Flips a bit of the first entry's tag.
    Tag,
    /// Flips a bit of a data sector.
    Data(usize, usize),
    /// Sets the commit id of a sector.
    Id(usize, u64),
    /// Gives a sector the commit id of this sector, so many laps and sections later.
    IdOf(usize, usize, u64, u64),
    /// Clears all commit ids.
    NoIds,
    /// Swaps two sectors.
    Swap(usize, usize),
    /// Fills the section.
    Fill(u8),
}

use Change::{Behind, Data, Fill, Flip, Id, IdOf, NoIds, Sector, Swap, Tag};

const JOURNALS: &[(&str, Base, Change, Expected)] = &[
    ("section of zeroes", Plain, Fill(0), Refused),
    ("entry right behind the volume", Plain, Behind(0, 0), Refused),
    ("entry one sector later", Plain, Behind(2, 1), Refused),
    ("entry at sector 2^31", Plain, Sector(0, 1 << 31), Refused),
    ("entry at sector 2^32", Plain, Sector(0, 1 << 32), Refused),
    ("entry at sector 2^54", Plain, Sector(5, 1 << 54), Refused),
    ("entry at sector 2^55", Plain, Sector(0, 1 << 55), Refused),
    ("entry at sector 2^63", Plain, Sector(0, 1 << 63), Refused),
    ("entry at the last sector that is no mark", Plain, Sector(3, 0xffff_fffd_ffff_ffff), Refused),
    ("entry that is not in use", Plain, Sector(0, u64::MAX), Skipped(0)),
    ("entry that is not in use, by its upper half", Plain, Sector(1, 0xffff_ffff_0000_0001), Skipped(1)),
    ("entry that was being filled", Plain, Sector(0, 0xffff_fffe_0000_0000), Skipped(0)),
    ("entry of another block", Plain, Sector(0, 20), Refused),
    ("entry of the volume's last block", Plain, Behind(0, u64::MAX), Refused),
    ("entry of a block with an entry", Plain, Sector(0, 4), Refused),
    ("sector of an entry, a bit", Plain, Flip(0), Refused),
    ("tag of an entry", Plain, Tag, Refused),
    ("last bytes of a sector, in an entry", Plain, Flip(8), Refused),
    ("data of the first entry", Plain, Data(0, 0), Refused),
    ("data of the last entry", Plain, Data(5, 503), Refused),
    ("data of an entry that is not in use", Plain, Data(6, 7), Replayed),
    ("padding of an entry", Plain, Flip(23), Replayed),
    ("entry that is not in use, its tag", Plain, Flip(7 * 512 + 17), Replayed),
    ("commit id of no lap", Plain, Id(0, 0x5555_5555_5555_5555), Refused),
    ("commit id 0", Plain, Id(7, 0), Refused),
    ("commit id of no lap, data", Plain, Id(8, 0x1234), Refused),
    ("commit id of no lap, last sector", Plain, Id(usize::MAX, 0x1234), Refused),
    ("commit id of the next lap", Plain, IdOf(3, 3, 1, 0), Nothing),
    ("commit id of the lap after it", Plain, IdOf(3, 3, 2, 0), Nothing),
    ("commit id of the lap before", Plain, IdOf(9, 9, 3, 0), Nothing),
    ("commit id of another sector", Plain, IdOf(3, 4, 0, 0), Refused),
    ("commit id of another section", Plain, IdOf(3, 3, 0, 1), Refused),
    ("no commit ids", Plain, NoIds, Refused),
    ("two metadata sectors swapped", Plain, Swap(0, 1), Refused),
    ("two data sectors swapped", Plain, Swap(8, 9), Refused),
    ("section of ones", Plain, Fill(0xff), Refused),
    ("entry between two blocks", Large, Sector(0, 4), Refused),
    ("entry one sector into a block", Large, Sector(1, 9), Refused),
    ("entry at the volume's last sector", Large, Behind(0, u64::MAX), Refused),
    ("last bytes of a block's second sector", Large, Flip(16), Refused),
    ("data of a block's last sector", Large, Data(7, 100), Refused),
    ("MAC, first byte", Mac, Flip(496), Refused),
    ("MAC, last byte", Mac, Flip(3 * 512 + 503), Refused),
    ("MAC: entry of another block", Mac, Sector(0, 20), Refused),
    ("MAC: entry behind the volume", Mac, Behind(0, 0), Refused),
    ("MAC: entry that is not in use", Mac, Sector(0, u64::MAX), Refused),
    ("MAC: entry that is in use now", Mac, Sector(6, 30), Refused),
    ("MAC does not cover data: they have tags", Mac, Data(2, 9), Refused),
    ("MAC: tag", Mac, Tag, Refused),
    ("encrypted: sector of an entry", Encrypted, Flip(1), Refused),
    ("encrypted: upper half of a sector", Encrypted, Flip(7), Refused),
    ("encrypted: tag", Encrypted, Tag, Refused),
    ("encrypted: commit id", Encrypted, Flip(504), Refused),
    ("encrypted: data", Encrypted, Data(1, 1), Refused),
    ("encrypted: section of zeroes", Encrypted, Fill(0), Refused),
    ("encrypted: commit id of a journal that is not encrypted", Encrypted, IdOf(0, 0, 0, 0), Refused),
];

fn options(base: Base) -> FormatOptions {
    let key = VolumeKey::new(&[9; 32]);
    FormatOptions {
        internal_hash: Some(hash(if base == Mac { "hmac-sha256" } else { "crc32c" })),
        journal_mac: (base == Mac).then(|| hash("hmac-sha256")),
        journal_cipher: (base == Encrypted).then(|| Arc::new(JournalCipher::new("ctr(aes)", &key).unwrap())),
        block_len: if base == Large { 4096 } else { 512 },
        journal_sectors: Some(2048),
        salt: Some([7; 16]),
        ..FormatOptions::default()
    }
}

/// Returns a volume whose journal has the new values, and the byte of the journal.
fn image(base: Base) -> (Vec<u8>, usize) {
    let format = options(base);
    let store = memory(formatted(&format, 4 << 20, None).0);
    let open = |mode| IntegrityDevice::open(Stores::interleaved(store.clone()), open_options(mode, &format)).unwrap();
    let direct = open(Mode::Direct);
    direct.wipe(0, 1, |_, _, _| Ok(()), |_| std::ops::ControlFlow::Continue(())).unwrap();
    direct.close().unwrap();
    let device = open(Mode::Journal);
    let (len, sectors) = (device.layout().block_len(), device.layout().sectors_per_block());
    for value in [OLD, NEW] {
        for block in 0..BLOCKS {
            device.write(block * sectors, &fill(block, value, len), &[]).unwrap();
        }
        if value == NEW {
            device.flush().unwrap();
            break;
        }
        device.close().unwrap();
    }
    (store.contents(), device.layout().journal_at() as usize)
}

/// The section with the new values.
struct Place {
    at: usize,
    section: u64,
    lap: u64,
}

fn apply(change: Change, image: &mut [u8], place: &Place, format: &FormatOptions, provided: u64) {
    let section = place.at;
    let sector_at = |sector: usize| section + sector * 512;
    let per_block = format.block_len / 512;
    let mut set = |at: usize, value: u64| image[at..at + 8].copy_from_slice(&value.to_le_bytes());
    match change {
        Sector(entry, sector) => set(sector_at(entry), sector),
        Behind(entry, more) => set(sector_at(entry), provided.wrapping_add(more)),
        Flip(at) => image[section + at] ^= 0x20,
        Tag => image[section + 8 + 8 * per_block] ^= 1,
        Data(sector, at) => image[sector_at(8 + sector) + at] ^= 1,
        Id(sector, id) => set(sector_at(if sector == usize::MAX { 8 } else { sector }) + 504, id),
        IdOf(sector, other, lap, number) => {
            let id = 0x1111_1111_1111_1111 * (1 + (place.lap + lap) % 4);
            set(sector_at(sector) + 504, id ^ ((place.section + number) << 32) ^ other as u64);
        }
        NoIds => (0..16).for_each(|sector| set(sector_at(sector) + 504, 0)),
        Swap(a, b) => (0..512).for_each(|at| image.swap(sector_at(a) + at, sector_at(b) + at)),
        Fill(byte) => image[section..section + 16 * 512].fill(byte),
    }
}

#[test]
fn broken_journals_change_no_block_unnoticed() {
    let mut judged = 0;
    for base in [Plain, Large, Mac, Encrypted] {
        let format = options(base);
        let (whole, journal) = image(base);
        judged += check(base, &format, &whole, journal);
    }
    println!("COUNT integrity_journals_judged {judged}");
    assert!(judged > 50, "{judged}");
}

fn check(base: Base, format: &FormatOptions, whole: &[u8], journal: usize) -> usize {
    let open = |bytes: &[u8]| {
        let store = memory(bytes.to_vec());
        match IntegrityDevice::open(Stores::interleaved(store.clone()), open_options(Mode::Journal, format)) {
            Err(IntegrityError::Journal(_)) => assert!(store.contents() == bytes, "written to"),
            opened => return Some(opened.unwrap()),
        }
        None
    };
    let device = open(whole).expect("by itself it is whole");
    let layout = device.layout();
    let (len, per_block) = (layout.block_len(), layout.sectors_per_block());
    let value = |device: &IntegrityDevice, block: u64| {
        let mut data = vec![0; len];
        device.read(block * per_block, &mut data, &mut []).ok()?;
        [OLD, NEW].into_iter().find(|value| data == fill(block, *value, len)).or(Some(0))
    };
    assert!((0..BLOCKS).all(|block| value(&device, block) == Some(NEW)), "{base:?}");
    let newest = device.newest_section().expect("it has a journal");
    let at = journal + newest as usize * layout.journal.section_len();
    let id = u64::from_le_bytes(whole[at + 504..at + 512].try_into().unwrap()) ^ (u64::from(newest) << 32);
    let place = Place { at, section: newest.into(), lap: (id / 0x1111_1111_1111_1111).wrapping_sub(1) % 4 };
    let rows = JOURNALS.iter().filter(|(_, of, ..)| *of == base);
    rows.map(|(name, _, change, expected)| {
        let mut broken = whole.to_vec();
        apply(*change, &mut broken, &place, format, layout.provided_data_sectors);
        let Some(device) = open(&broken) else {
            assert_eq!(*expected, Refused, "{name}");
            return 1;
        };
        let mismatches = device.metrics().mismatches;
        let found: Vec<Option<u8>> = (0..BLOCKS).map(|block| value(&device, block)).collect();
        let all_but = |block: u64, other: Option<u8>| -> Vec<Option<u8>> {
            (0..BLOCKS).map(|n| if n == block { other } else { Some(NEW) }).collect()
        };
        match expected {
            Replayed => assert!(found == all_but(BLOCKS, None) && mismatches == 0, "{name}: {found:?}"),
            Nothing => assert!(found == vec![Some(OLD); BLOCKS as usize], "{name}: {found:?}"),
            Skipped(block) => assert!(found == all_but(*block, Some(OLD)), "{name}: {found:?}"),
            Refused => panic!("{name}: opened, {found:?}"),
        }
        1
    })
    .sum()
}
