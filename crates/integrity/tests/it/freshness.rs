//! Records of freshness: the newest state is accepted after every power cut, and an older one is refused.

use crate::sealed::{gcm, with_tags_of};
use crate::support::{Numbers, fill, formatted, memory, open_options, tuple};
use inlock_cipher::VolumeKey;
use inlock_engine::store::write_all;
use inlock_engine::{BackingStore, Errno};
use inlock_integrity::{
    Digest, FormatOptions, Freshness, FreshnessRecord, IntegrityDevice, IntegrityError, IntegrityStore, JournalCipher,
    Layout, Mode, OpenOptions, RecordedState, Stores, empties_journal, stored_section, tag_root,
};
use inlock_testing::{self as testing, Log};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

const LEN: usize = 192 << 10;
const TAG: usize = 240;
const HEADER: Digest = [5; 32];

/// A step of the store, with the records between.
type Step = testing::Step<FreshnessRecord>;

/// Returns the store when the power fails behind these steps: writes since the last sync are there, or not, or in part.
fn cut(before: &[u8], log: &[Step], random: &mut Numbers) -> Vec<u8> {
    let durable = log.iter().rposition(|step| matches!(step, Step::Sync)).unwrap_or(0);
    let (mut bytes, style) = (before.to_vec(), random.below(3));
    for (n, step) in log.iter().enumerate() {
        let Step::Write { at, data } = step else { continue };
        for (sector, part) in data.chunks(512).enumerate() {
            if n < durable || style == 0 || (style == 1 && random.below(2) == 0) {
                bytes[at + sector * 512..][..part.len()].copy_from_slice(part);
            }
        }
    }
    bytes
}

fn options(journal_sectors: u64) -> FormatOptions {
    FormatOptions {
        tag_size: Some(TAG),
        interleave_sectors: 64,
        journal_sectors: Some(journal_sectors),
        salt: Some([5; 16]),
        ..FormatOptions::default()
    }
}

fn stores(bytes: &[u8]) -> Stores {
    Stores::interleaved(memory(bytes.to_vec()))
}

fn open(stores: Stores) -> IntegrityDevice {
    IntegrityDevice::open(stores, OpenOptions::new(Mode::Journal)).unwrap()
}

fn write(device: &IntegrityDevice, block: u64, value: u8) {
    let unit = fill(block, value, 512);
    device.write(block, &unit, &tuple(&unit, TAG)).unwrap();
}

fn record(state: RecordedState, section: Option<(u32, Digest)>) -> FreshnessRecord {
    FreshnessRecord { number: 1, state, volume: [0; 32], header: HEADER, section, tags: None }
}

fn compare(record: &FreshnessRecord, bytes: &[u8]) -> Freshness {
    record.compare(&stores(bytes), &OpenOptions::new(Mode::Journal), &HEADER).unwrap()
}

fn newest(device: &IntegrityDevice, stores: &Stores) -> (u32, Digest) {
    let number = device.newest_section().unwrap();
    let stored = stored_section(stores, &OpenOptions::new(Mode::Journal), number).unwrap().unwrap();
    (number, stored.digest)
}

/// Opens a volume, records its commits, and returns the device with the log of its store.
fn open_recorded(bytes: &[u8]) -> (IntegrityDevice, Log<FreshnessRecord>) {
    let log = Log::default();
    let store = Arc::new(log.store(memory(bytes.to_vec()), false));
    let stores = Stores::interleaved(store);
    let device = open(stores.clone());
    let first = record(RecordedState::Open, Some(newest(&device, &stores)));
    log.mark(first);
    let records = log.clone();
    let push = move |section, digest| {
        let next = record(RecordedState::Open, Some((section, digest)));
        records.mark(next);
        Ok(())
    };
    device.record_commits(push).unwrap();
    (device, log)
}

#[test]
fn newest_state_is_accepted_after_every_power_cut_and_older_ones_are_not() {
    let (mut accepted, mut refused) = (0, 0);
    for (seed, journal_sectors) in [(1, 32), (2, 64), (3, 64), (4, 128), (5, 32), (6, 160)] {
        let mut random = Numbers(seed * 7919);
        let (image, _) = formatted(&options(journal_sectors), LEN, None);
        let first = Stores::interleaved(memory(image));
        let device = open(first.clone());
        (0..24).for_each(|block| write(&device, block, 1));
        device.close().unwrap();
        let mut before = vec![0; LEN];
        first.data.read_at(&mut before, 0).unwrap();
        let closed = record(RecordedState::Closed, Some(newest(&open(stores(&before)), &first)));
        assert_eq!(compare(&closed, &before), Freshness::Newest);
        let opening = FreshnessRecord { state: RecordedState::Opening, ..closed };
        let (device, log) = open_recorded(&before);
        for n in 0..60 {
            match random.below(8) {
                0..6 => (0..1 + random.below(5)).for_each(|_| write(&device, random.below(24), 2 + n)),
                6 => device.flush().unwrap(),
                _ => device.maintain().unwrap(),
            }
        }
        device.flush().unwrap();
        let log = log.steps().clone();
        let records = |log: &[Step]| -> Vec<FreshnessRecord> {
            log.iter().filter_map(|step| if let Step::Mark(record) = step { Some(*record) } else { None }).collect()
        };
        let last = *records(&log).last().unwrap();
        assert!(records(&log).len() > 4);
        // Behind this step, what the last record tells is being written.
        let is_record = |step: &Step| matches!(step, Step::Mark(_));
        let end = log.iter().rposition(is_record).unwrap();
        let end = log[..end].iter().rposition(is_record).unwrap();
        for at in 0..=log.len() {
            let known = records(&log[..at]);
            let newest = known.last().copied().unwrap_or(opening);
            let bytes = cut(&before, &log[..at], &mut random);
            assert_eq!(compare(&newest, &bytes), Freshness::Newest, "seed {seed}, step {at} of {}", log.len());
            accepted += 1;
            // An interrupted write of the record leaves the one before it.
            if let (Some(Step::Mark(_)), [.., earlier, _]) = (log.get(at.wrapping_sub(1)), &known[..]) {
                assert_eq!(compare(earlier, &bytes), Freshness::Newest, "seed {seed}, step {at}");
            }
            // Everything that is older than the last record is refused.
            if at <= end {
                assert_eq!(compare(&last, &bytes), Freshness::Older, "seed {seed}, step {at}");
                refused += 1;
            }
            // The power fails again while the volume is opened, which empties the journal.
            if at % 5 == 0 {
                let (_, log) = open_recorded(&bytes);
                let log = log.steps().clone();
                let empties = empties_journal(&stores(&bytes), &OpenOptions::new(Mode::Journal)).unwrap();
                let state = if empties { RecordedState::Opening } else { newest.state };
                let opening = FreshnessRecord { state, ..newest };
                for again in 0..log.len() {
                    let bytes = cut(&bytes, &log[..again], &mut random);
                    let found = compare(records(&log[..again]).last().unwrap_or(&opening), &bytes);
                    assert_eq!(found, Freshness::Newest, "seed {seed}, step {at}, then {again}");
                    accepted += 1;
                }
            }
        }
        assert_eq!(compare(&last, &before), Freshness::Older);
    }
    println!("COUNT integrity_fresh_states_accepted {accepted}");
    println!("COUNT integrity_older_states_refused {refused}");
    assert!(accepted > 2000 && refused > 300, "{accepted} {refused}");
}

#[test]
fn root_of_tags_detects_old_blocks_under_a_new_journal() {
    let (image, _) = formatted(&options(64), LEN, None);
    let store = memory(image);
    let device = open(Stores::interleaved(store.clone()));
    (0..24).for_each(|block| write(&device, block, 1));
    device.close().unwrap();
    let old = store.contents();
    write(&device, 7, 2);
    device.close().unwrap();
    let (new, layout) = (store.contents(), device.layout());
    let section = newest(&open(stores(&new)), &stores(&new));
    let root = |bytes: &[u8]| tag_root(&stores(bytes), &OpenOptions::new(Mode::Journal)).unwrap();
    let without = record(RecordedState::Closed, Some(section));
    let with = FreshnessRecord { tags: Some(root(&new)), ..without };
    assert_eq!((compare(&with, &new), compare(&with, &old)), (Freshness::Newest, Freshness::Older));
    // The block of an older copy, with its tag: all else is of the newest one.
    let mut spliced = new.clone();
    let data = layout.data_position(7).0 as usize;
    let tag = layout.tag_position(7).0 as usize;
    for range in [data..data + 512, tag..tag + TAG] {
        spliced[range.clone()].copy_from_slice(&old[range]);
    }
    assert_eq!((compare(&without, &spliced), compare(&with, &spliced)), (Freshness::Newest, Freshness::Older));
    // Every byte of every tag counts.
    for at in (0..layout.blocks()).flat_map(|block| [0, TAG as u64 - 1].map(|n| layout.tag_position(block).0 + n)) {
        let mut changed = new.clone();
        changed[at as usize] ^= 1;
        assert_ne!(root(&changed), root(&new), "byte {at}");
    }
    let states = [RecordedState::Open, RecordedState::Opening];
    for record in states.map(|state| FreshnessRecord { state, ..with }) {
        assert_eq!(compare(&record, &new), Freshness::NewestWithoutTags);
        assert_eq!(compare(&FreshnessRecord { section: None, ..record }, &new), Freshness::Unknown);
    }
    assert_eq!(compare(&FreshnessRecord { section: None, ..with }, &new), Freshness::Newest);
    assert_eq!(compare(&FreshnessRecord { header: [6; 32], ..with }, &new), Freshness::OtherHeader);
    let missing = FreshnessRecord { section: Some((1 << 20, section.1)), ..with };
    assert_eq!(compare(&missing, &new), Freshness::Older, "the journal has no such section");
}

/// Returns `bytes` with the entries of journal section `from` in section `to`, which keeps its commit ids.
fn planted(bytes: &[u8], layout: &Layout, from: usize, to: usize) -> Vec<u8> {
    let at = (layout.start + layout.initial_sectors - layout.journal.sectors()) as usize * 512;
    let len = layout.journal.section_len();
    let mut bytes = bytes.to_vec();
    for sector in (0..len).step_by(512) {
        bytes.copy_within(at + from * len + sector..at + from * len + sector + 504, at + to * len + sector);
    }
    bytes
}

#[test]
fn root_of_tags_detects_entries_that_were_planted_in_the_journal() {
    let (image, _) = formatted(&options(160), LEN, None);
    let store = memory(image);
    let device = open(Stores::interleaved(store.clone()));
    for (block, value) in [(7, 1), (7, 2), (9, 1)] {
        write(&device, block, value);
        device.flush().unwrap();
    }
    device.close().unwrap();
    let (new, layout) = (store.contents(), device.layout());
    let (number, digest) = newest(&open(stores(&new)), &stores(&new));
    assert_eq!((number, layout.journal.sections > 3), (2, true), "one section for each flush");
    // The newest section and all tags in their places are as they were; a replay brings the old block back.
    let spliced = planted(&new, &layout, 0, 1);
    let block_7 = |bytes: &[u8]| {
        let (mut data, mut tag) = (vec![0; 512], vec![0; TAG]);
        open(stores(bytes)).read(7, &mut data, &mut tag).unwrap();
        data
    };
    assert_eq!((block_7(&new), block_7(&spliced)), (fill(7, 2, 512), fill(7, 1, 512)));
    for (mode, section) in [(Mode::Journal, Some((number, digest))), (Mode::Direct, None)] {
        let options = OpenOptions::new(mode);
        let root = tag_root(&stores(&new), &options).unwrap();
        let record = FreshnessRecord { tags: Some(root), ..record(RecordedState::Closed, section) };
        let compare = |bytes: &[u8]| record.compare(&stores(bytes), &options, &HEADER).unwrap();
        assert_eq!((compare(&new), compare(&spliced)), (Freshness::Newest, Freshness::Older));
    }
}

#[test]
fn one_changed_byte_does_not_take_back_acknowledged_flushes_unnoticed() {
    let (image, _) = formatted(&options(160), LEN, None);
    let store = memory(image);
    let volume = Stores::interleaved(store.clone());
    let device = open(volume.clone());
    let last = Arc::new(Mutex::new(None));
    let seen = Arc::clone(&last);
    let recorder = move |number, digest| {
        *seen.lock().unwrap() = Some((number, digest));
        Ok(())
    };
    device.record_commits(recorder).unwrap();
    for block in 0..3 {
        write(&device, block, 1);
        device.flush().unwrap();
    }
    let (bytes, layout, last) = (store.contents(), device.layout(), last.lock().unwrap().unwrap());
    assert_eq!(last.0, 2, "one section for each flush");
    let open = record(RecordedState::Open, Some(last));
    assert_eq!(compare(&open, &bytes), Freshness::Newest);
    let len = layout.journal.section_len();
    for id in (0..3 * len).step_by(512).skip(1).map(|sector| layout.journal_at() as usize + sector + 504) {
        if id == layout.section_at(2) as usize + 504 {
            // The sector that the digest covers.
            continue;
        }
        // An id of no lap, and that of the lap before: the replay ends there, or does not begin.
        for change in [0x80, 0x33] {
            let mut changed = bytes.clone();
            changed[id..id + 8].iter_mut().for_each(|byte| *byte ^= change);
            assert_eq!(compare(&open, &changed), Freshness::Older, "byte {id}, {change:#x}");
        }
    }
}

#[test]
fn sections_with_the_same_entries_have_different_digests() {
    for tag_size in [TAG, 232] {
        sections_with_the_same_entries_differ(tag_size);
    }
}

/// With tags of 232 bytes the entries of a sector leave the eight bytes before the commit id, and no more.
fn sections_with_the_same_entries_differ(tag_size: usize) {
    let (image, _) = formatted(&FormatOptions { tag_size: Some(tag_size), ..options(64) }, LEN, None);
    let digest_of_a_flush = || {
        let (device, log) = open_recorded(&image);
        let unit = fill(7, 1, 512);
        device.write(7, &unit, &tuple(&unit, tag_size)).unwrap();
        device.flush().unwrap();
        let log = log.steps();
        let Some(Step::Mark(FreshnessRecord { section: Some(section), .. })) = log.last() else { panic!("no record") };
        *section
    };
    let (first, second) = (digest_of_a_flush(), digest_of_a_flush());
    assert_eq!(first.0, second.0);
    assert_ne!(first.1, second.1, "{tag_size}");
}

/// The root is of the tags of the volume's blocks and of nothing behind them.
#[test]
fn root_of_tags_ends_with_the_last_block() {
    let format = options(64);
    let store = memory(formatted(&format, LEN, None).0);
    // The last area is used in part.
    inlock_integrity::resize(&Stores::interleaved(store.clone()), &OpenOptions::new(Mode::Journal), Some(40)).unwrap();
    let mut image = store.contents();
    let root = |image: &[u8]| tag_root(&stores(image), &OpenOptions::new(Mode::Journal)).unwrap();
    let layout = open(stores(&image)).layout();
    let (before, last) = (root(&image), layout.blocks() - 1);
    let (at, left) = layout.tag_position(last);
    assert!(left > 1);
    image[at as usize + TAG] ^= 1;
    assert_eq!(root(&image), before, "the tag behind the last one");
    image[at as usize + TAG - 1] ^= 1;
    assert_ne!(root(&image), before, "the last byte of the last one");
}

/// A commit of several sections records the last of them, as it is stored.
#[test]
fn digest_of_a_commit_is_that_of_its_last_section() {
    let cipher = || Some(Arc::new(JournalCipher::new("ctr(aes)", &VolumeKey::new(&[9; 32])).unwrap()));
    for journal_cipher in [None, cipher()] {
        let format = FormatOptions { journal_cipher, ..options(512) };
        let stores = Stores::interleaved(memory(formatted(&format, 1 << 20, None).0));
        let options = open_options(Mode::Journal, &format);
        let device = IntegrityDevice::open(stores.clone(), options.clone()).unwrap();
        let (recorded, commits) = (Arc::new(Mutex::new(None)), Arc::new(AtomicUsize::new(0)));
        let (record, count) = (Arc::clone(&recorded), Arc::clone(&commits));
        let push = move |section, digest| {
            count.fetch_add(1, Ordering::Relaxed);
            *record.lock().unwrap() = Some((section, digest));
            Ok(())
        };
        device.record_commits(push).unwrap();
        let entries = device.layout().journal.entries as u64;
        assert!(device.layout().journal.sections > 16);
        let check = |number: usize| {
            let (section, digest) = recorded.lock().unwrap().unwrap();
            assert_eq!(commits.load(Ordering::Relaxed), number, "all in one commit");
            assert_eq!(stored_section(&stores, &options, section).unwrap().unwrap().digest, digest, "{format:?}");
        };
        (0..2 * entries).for_each(|n| write(&device, n % 24, n as u8));
        device.flush().unwrap();
        check(1);
        // Sections of a long write.
        let store = IntegrityStore::sealed(Arc::new(device), with_tags_of(TAG, &gcm(), 512, 1)).unwrap();
        write_all(&store, &vec![7; 24 * 512], 0).unwrap();
        store.sync().unwrap();
        check(2);
    }
}

#[test]
fn journals_that_an_open_leaves_as_they_are_are_told() {
    let (image, _) = formatted(&options(64), LEN, None);
    let store = memory(image);
    let device = open(Stores::interleaved(store.clone()));
    let empties = |bytes: &[u8], mode| {
        let told = empties_journal(&stores(bytes), &OpenOptions::new(mode)).unwrap();
        let (opened, layout) = (memory(bytes.to_vec()), device.layout());
        let _ = IntegrityDevice::open(Stores::interleaved(opened.clone()), OpenOptions::new(mode)).unwrap();
        let journal = layout.journal_at() as usize..layout.tags_at() as usize;
        assert_eq!(told, opened.contents()[journal.clone()] != bytes[journal], "{mode:?}");
        told
    };
    let new = store.contents();
    assert!(!empties(&new, Mode::Journal) && !empties(&new, Mode::Direct));
    write(&device, 1, 1);
    device.close().unwrap();
    let used = store.contents();
    assert!(!empties(&used, Mode::Journal) && empties(&used, Mode::Direct));
    let mut torn = used.clone();
    torn[device.layout().section_at(0) as usize + 1016] ^= 0x80;
    for mode in [Mode::Journal, Mode::Direct] {
        let told = empties_journal(&stores(&torn), &OpenOptions::new(mode));
        assert!(matches!(told, Err(IntegrityError::Journal(_))), "{told:?}");
    }
    torn.copy_from_slice(&used);
    torn[device.layout().section_at(0) as usize + 1016..][..8].iter_mut().for_each(|byte| *byte ^= 0x33);
    assert!(empties(&torn, Mode::Journal) && empties(&torn, Mode::Direct));
}

#[test]
fn flush_fails_if_its_record_does_and_a_journal_of_one_section_is_refused() {
    let (image, _) = formatted(&options(64), LEN, None);
    let device = open(stores(&image));
    device.record_commits(|_, _| Err(Errno::NOSPC)).unwrap();
    assert_eq!(device.record_commits(|_, _| Ok(())), Err(Errno::INVAL), "there is one");
    write(&device, 1, 1);
    assert_eq!(device.flush(), Err(Errno::NOSPC));
    assert_eq!(device.flush(), Err(Errno::IO));
    let unit = fill(1, 1, 512);
    assert_eq!(device.write(1, &unit, &tuple(&unit, TAG)), Err(Errno::IO));
    let (image, _) = formatted(&options(1), LEN, None);
    assert_eq!(open(stores(&image)).record_commits(|_, _| Ok(())), Err(Errno::OPNOTSUPP));
    let direct = IntegrityDevice::open(stores(&image), OpenOptions::new(Mode::Direct)).unwrap();
    assert_eq!((direct.newest_section(), direct.record_commits(|_, _| Ok(()))), (None, Err(Errno::INVAL)));
}
