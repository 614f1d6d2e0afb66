//! Power cuts at every step of random work: what is on the store then is opened, and every block is read.
//!
//! Writes before the last completed sync are there. Each later one is there, or not, or only some of its sectors are.

use crate::sealed::{gcm, with_tags_of};
use crate::support::{Numbers, fill, formatted, hash, memory, open_options, tuple};
use inlock_cipher::VolumeKey;
use inlock_engine::BackingStore;
use inlock_engine::store::{read_all, write_all};
use inlock_integrity::{FormatOptions, IntegrityDevice, IntegrityStore, JournalCipher, Mode, OpenOptions, Stores};
use inlock_testing::{self as testing, Log};
use std::sync::Arc;

const LEN: usize = 192 << 10;
/// Blocks that are in use.
pub(crate) const BLOCKS: u64 = 24;

/// A step of the store. The mark: a request was acknowledged.
pub(crate) type Step = testing::Step<()>;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Request {
    Write { block: u64, count: u64, value: u8 },
    Flush,
    Maintain,
}

/// Returns the state of the store when the power fails after `cut` steps.
pub(crate) fn state(before: &[u8], log: &[Step], cut: usize, random: &mut Numbers) -> Vec<u8> {
    let durable = log[..cut].iter().rposition(|step| matches!(step, Step::Sync)).unwrap_or(0);
    let mut bytes = before.to_vec();
    let style = random.below(4);
    for (n, step) in log[..cut].iter().enumerate() {
        let Step::Write { at, data } = step else { continue };
        let whole = n < durable || style == 0 || (style < 3 && random.below(2) == 0);
        for (sector, part) in data.chunks(512).enumerate() {
            if whole || (style >= 2 && random.below(2) == 0) {
                bytes[at + sector * 512..][..part.len()].copy_from_slice(part);
            }
        }
    }
    bytes
}

/// Runs random requests and cuts the power after each step. Returns the states and the number of violations.
fn cuts(format: &FormatOptions, mode: Mode, seed: u64, swallow_syncs: bool) -> (usize, usize) {
    let external = format.internal_hash.is_none();
    let mut random = Numbers(seed);
    let (image, _) = formatted(format, LEN, None);
    // Every block has a value before the first step.
    let first = memory(image);
    let device = IntegrityDevice::open(Stores::interleaved(first.clone()), open_options(mode, format)).unwrap();
    for block in 0..BLOCKS {
        write(&device, block, 1, 1, external);
    }
    device.close().unwrap();
    let before = first.contents();
    let log = Log::default();
    let store = Arc::new(log.store(memory(before.clone()), swallow_syncs));
    let device = IntegrityDevice::open(Stores::interleaved(store.clone()), open_options(mode, format)).unwrap();
    let mut script = Vec::new();
    for n in 0..40 {
        let request = match random.below(10) {
            0..=6 => {
                let block = random.below(BLOCKS);
                Request::Write { block, count: 1 + random.below(6).min(BLOCKS - block - 1), value: 2 + n as u8 }
            }
            7 | 8 => Request::Flush,
            _ => Request::Maintain,
        };
        match request {
            Request::Write { block, count, value } => write(&device, block, count, value, external),
            Request::Flush => device.flush().unwrap(),
            Request::Maintain => device.maintain().unwrap(),
        }
        log.mark(());
        script.push(request);
    }
    let log = log.steps().clone();
    let (mut states, mut violations) = (0, 0);
    for (cut, allowed) in each_cut(&log, &script) {
        for _ in 0..2 {
            let bytes = state(&before, &log, cut, &mut random);
            // Of a keyed bitmap; journals need no such option.
            let legacy_recalculate = mode == Mode::Bitmap;
            let options = OpenOptions { legacy_recalculate, ..open_options(mode, format) };
            violations += violations_of(bytes, &allowed, &options, external);
            states += 1;
        }
    }
    (states, violations)
}

/// Returns the places where the power can fail, each with the values that each block may have then.
fn each_cut(log: &[Step], script: &[Request]) -> impl Iterator<Item = (usize, Vec<Vec<u8>>)> {
    (0..=log.len()).map(|cut| {
        let acknowledged = log[..cut].iter().filter(|step| matches!(step, Step::Mark(()))).count();
        (cut, allowed(script, acknowledged))
    })
}

pub(crate) fn write(device: &IntegrityDevice, block: u64, count: u64, value: u8, external: bool) {
    let layout = device.layout();
    let (mut data, mut tuples) = (Vec::new(), Vec::new());
    for block in block..block + count {
        let unit = fill(block, value, layout.block_len());
        if external {
            tuples.extend(tuple(&unit, layout.journal.tag_size));
        }
        data.extend(unit);
    }
    device.write(block * layout.sectors_per_block(), &data, &tuples).unwrap();
}

/// Returns the values that each block may have.
pub(crate) fn allowed(script: &[Request], acknowledged: usize) -> Vec<Vec<u8>> {
    let mut allowed = vec![vec![1]; BLOCKS as usize];
    for (n, request) in script.iter().enumerate().take(acknowledged + 1) {
        match request {
            Request::Write { block, count, value } => {
                (*block..block + count).for_each(|block| allowed[block as usize].push(*value));
            }
            _ if n < acknowledged => {
                for values in &mut allowed {
                    values.drain(..values.len() - 1);
                }
            }
            _ => {}
        }
    }
    allowed
}

/// Opens a store and counts the blocks that cannot be read, or have a value that they must not have.
fn violations_of(bytes: Vec<u8>, allowed: &[Vec<u8>], options: &OpenOptions, external: bool) -> usize {
    let store = memory(bytes);
    let Ok(device) = IntegrityDevice::open(Stores::interleaved(store.clone()), options.clone()) else { return 1 };
    let found = bad_blocks(&device, allowed, external);
    while !device.recalculate_step().unwrap() {}
    let again = bad_blocks(&device, allowed, external);
    device.close().unwrap();
    // A second open must not find anything else.
    let device = IntegrityDevice::open(Stores::interleaved(store), options.clone()).unwrap();
    found + again + bad_blocks(&device, allowed, external)
}

pub(crate) fn bad_blocks(device: &IntegrityDevice, allowed: &[Vec<u8>], external: bool) -> usize {
    let layout = device.layout();
    let is_bad = |(block, values): (usize, &Vec<u8>)| {
        let (mut data, mut tuples) = (vec![0; layout.block_len()], vec![]);
        tuples.resize(if external { layout.journal.tag_size } else { 0 }, 0);
        let read = device.read(block as u64 * layout.sectors_per_block(), &mut data, &mut tuples);
        let torn = |data: &[u8]| {
            data.chunks(512).all(|part| values.iter().any(|value| part[..] == fill(block as u64, *value, 512)))
        };
        let known = values.iter().any(|value| data == fill(block as u64, *value, layout.block_len()));
        // Without a journal, sectors of a block that was being written may be of several writes.
        let known = known || (device.superblock().flags.bits() & 4 != 0 && torn(&data));
        let sealed = !external || tuples == tuple(&data, layout.journal.tag_size);
        read.is_err() || !known || !sealed
    };
    allowed.iter().enumerate().filter(|(block, values)| is_bad((*block, values))).count()
}

pub(crate) fn base(tag_size: Option<usize>, internal: Option<&str>) -> FormatOptions {
    FormatOptions {
        tag_size,
        internal_hash: internal.map(hash),
        interleave_sectors: 64,
        journal_sectors: Some(64),
        sectors_per_bit: 8,
        salt: Some([5; 16]),
        ..FormatOptions::default()
    }
}

fn shapes() -> Vec<FormatOptions> {
    let cipher = |name| Some(Arc::new(JournalCipher::new(name, &VolumeKey::new(&[9; 32])).unwrap()));
    let mac = || Some(hash("hmac-sha256"));
    vec![
        // Sections have 8 entries, so that the journal is full often.
        FormatOptions { block_len: 512, ..base(Some(240), Some("crc32c")) },
        FormatOptions { block_len: 4096, ..base(Some(240), Some("sha256")) },
        FormatOptions { journal_mac: mac(), ..base(Some(240), None) },
        FormatOptions { journal_mac: mac(), journal_cipher: cipher("ctr(aes)"), ..base(Some(200), Some("hmac-sha1")) },
        FormatOptions { journal_cipher: cipher("cbc(aes)"), block_len: 1024, ..base(Some(240), None) },
        FormatOptions { journal_sectors: Some(1), ..base(Some(240), Some("xxhash64")) },
    ]
}

#[test]
fn journal_survives_power_cuts() {
    let (mut states, mut violations) = (0, 0);
    for (n, format) in shapes().iter().enumerate() {
        for seed in 1..6 {
            let (more, bad) = cuts(format, Mode::Journal, seed * 31 + n as u64, false);
            assert_eq!(bad, 0, "shape {n}, seed {seed}");
            (states, violations) = (states + more, violations + bad);
        }
    }
    println!("COUNT integrity_journal_states {states}");
    assert!(states >= 2000 && violations == 0, "{states} states");
}

#[test]
fn bitmap_survives_power_cuts() {
    let mut states = 0;
    for (n, format) in shapes().iter().enumerate().filter(|(_, format)| format.internal_hash.is_some()) {
        for seed in 1..8 {
            let format = FormatOptions { fix_hmac: true, ..format.clone() };
            let (more, bad) = cuts(&format, Mode::Bitmap, seed * 17 + n as u64, false);
            assert_eq!(bad, 0, "shape {n}, seed {seed}");
            states += more;
        }
    }
    println!("COUNT integrity_bitmap_states {states}");
    assert!(states >= 2000, "{states} states");
}

/// Writes of an AEAD that are as long as a section of the journal, or longer, make sections of their own. Some of their
/// blocks are in the section that short writes are filling at the time, too.
#[test]
fn sections_of_long_writes_survive_power_cuts() {
    const UNIT: usize = 512;
    let mac = || Some(hash("hmac-sha256"));
    let cipher = Some(Arc::new(JournalCipher::new("ctr(aes)", &VolumeKey::new(&[9; 32])).unwrap()));
    let shapes = [
        base(Some(240), None),
        FormatOptions { journal_mac: mac(), ..base(Some(240), None) },
        FormatOptions { journal_mac: mac(), journal_cipher: cipher, ..base(Some(240), None) },
        FormatOptions { journal_sectors: Some(1), ..base(Some(240), None) },
    ];
    let open = |store: Arc<dyn BackingStore>, format: &FormatOptions| {
        let device = IntegrityDevice::open(Stores::interleaved(store), open_options(Mode::Journal, format)).unwrap();
        IntegrityStore::sealed(Arc::new(device), with_tags_of(240, &gcm(), UNIT as u32, 1)).unwrap()
    };
    let write = |store: &IntegrityStore, first: u64, count: u64, value: u8| {
        let data: Vec<u8> = (first..first + count).flat_map(|block| fill(block, value, UNIT)).collect();
        write_all(store, &data, first * UNIT as u64).unwrap();
    };
    let mut states = 0;
    for (format, seed) in shapes.iter().flat_map(|format| (1..9).map(move |seed| (format, seed))) {
        let mut random = Numbers(seed * 7919);
        let first = memory(formatted(format, LEN, None).0);
        let store = open(first.clone(), format);
        assert_eq!(store.device().layout().journal.entries, 8);
        write(&store, 0, BLOCKS, 1);
        store.device().close().unwrap();
        let before = first.contents();
        let log = Log::default();
        let recorder = Arc::new(log.store(memory(before.clone()), false));
        let store = open(recorder.clone(), format);
        let mut script = Vec::new();
        for n in 0..30 {
            let request = match random.below(10) {
                // Short ones, and those of up to three sections.
                at @ 0..=7 => {
                    let block = random.below(BLOCKS);
                    let most = if at < 4 { 4 } else { 24 };
                    Request::Write { block, count: (1 + random.below(most)).min(BLOCKS - block), value: 2 + n }
                }
                _ => Request::Flush,
            };
            match request {
                Request::Write { block, count, value } => write(&store, block, count, value),
                _ => store.sync().unwrap(),
            }
            log.mark(());
            script.push(request);
        }
        let log = log.steps().clone();
        for (cut, allowed) in each_cut(&log, &script) {
            let opened = open(memory(state(&before, &log, cut, &mut random)), format);
            for (block, values) in allowed.iter().enumerate() {
                let mut data = vec![0; UNIT];
                read_all(&opened, &mut data, (block * UNIT) as u64).unwrap();
                let known = values.iter().any(|value| data == fill(block as u64, *value, UNIT));
                assert!(known, "block {block} after {cut} steps of {}, seed {seed}: {script:?}", log.len());
            }
            states += 1;
        }
    }
    println!("COUNT integrity_long_write_states {states}");
    assert!(states >= 2000, "{states} states");
}

/// Power cuts while a volume is opened in another mode than it was last used in: it can be opened in both, and what
/// was flushed is there.
#[test]
fn power_cut_while_modes_change_leaves_no_damaged_journal() {
    let mut states = 0;
    let formats = shapes().into_iter().filter(|format| format.internal_hash.is_some());
    for (format, seed) in formats.flat_map(|format| (1..4).map(move |seed| (format.clone(), seed))) {
        let mut random = Numbers(seed * 104_729);
        for (from, to, recalculate) in [
            (Mode::Bitmap, Mode::Journal, false),
            (Mode::Bitmap, Mode::Direct, false),
            (Mode::Journal, Mode::Bitmap, false),
            (Mode::Journal, Mode::Bitmap, true),
            (Mode::Direct, Mode::Bitmap, true),
        ] {
            let recalculate = recalculate && !format.internal_hash.as_ref().unwrap().algorithm().is_keyed();
            let first = memory(formatted(&format, LEN, None).0);
            let device =
                IntegrityDevice::open(Stores::interleaved(first.clone()), open_options(from, &format)).unwrap();
            for block in 0..BLOCKS {
                write(&device, block, 1, 1, false);
            }
            device.flush().unwrap();
            // It is not closed.
            let before = first.contents();
            let log = Log::default();
            let store = Arc::new(log.store(memory(before.clone()), false));
            let options = OpenOptions { recalculate, legacy_recalculate: true, ..open_options(to, &format) };
            drop(IntegrityDevice::open(Stores::interleaved(store.clone()), options).unwrap());
            let log = log.steps().clone();
            let allowed = vec![vec![1]; BLOCKS as usize];
            for cut in 0..=log.len() {
                let bytes = state(&before, &log, cut, &mut random);
                for mode in [from, to] {
                    let options = OpenOptions { legacy_recalculate: true, ..open_options(mode, &format) };
                    let violations = violations_of(bytes.clone(), &allowed, &options, false);
                    assert_eq!(violations, 0, "{from:?} to {to:?}, {mode:?} after {cut} steps, seed {seed}");
                }
                states += 1;
            }
        }
    }
    assert!(states > 500, "{states}");
}

/// The negative controls: a store that loses syncs, and the mode that promises nothing.
#[test]
fn power_cut_check_finds_lost_syncs_and_direct_mode() {
    let format = &shapes()[0];
    assert!((1..6).map(|seed| cuts(format, Mode::Journal, seed, true).1).sum::<usize>() > 0, "lost syncs");
    assert!((1..6).map(|seed| cuts(format, Mode::Bitmap, seed, true).1).sum::<usize>() > 0, "lost syncs");
    assert!((1..6).map(|seed| cuts(format, Mode::Direct, seed, false).1).sum::<usize>() > 0, "direct mode");
}
