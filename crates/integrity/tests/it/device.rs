//! Reads and writes through a device.

use crate::support::{fill, formatted, hash, memory, open_options, tuple};
use inlock_cipher::VolumeKey;
use inlock_engine::Errno;
use inlock_integrity::{
    FormatOptions, IntegrityDevice, IntegrityError, JournalCipher, JournalDamage, Mode, OpenOptions, ReadError, Stores,
};
use inlock_testing::{Call, ScriptedStore, Verdict};
use std::sync::{Arc, Mutex};

const MODES: [Mode; 3] = [Mode::Journal, Mode::Bitmap, Mode::Direct];

fn options(block_len: usize, internal: bool) -> FormatOptions {
    FormatOptions {
        block_len,
        tag_size: Some(if internal { 10 } else { 28 }),
        internal_hash: internal.then(|| hash("hmac-sha256")),
        interleave_sectors: 64,
        salt: Some([5; 16]),
        ..FormatOptions::default()
    }
}

/// Each mode reads the blocks of the one before it, from one store and from two.
#[test]
fn blocks_and_tags_read_back_in_every_mode() {
    for internal in [true, false] {
        for block_len in [512, 4096] {
            for meta in [None, Some(1 << 20)] {
                let format = options(block_len, internal);
                let (data, meta) = formatted(&format, 1 << 20, meta);
                let (data, meta) = (memory(data), meta.map(memory));
                let stores = || Stores { data: data.clone(), meta: meta.clone().map(|meta| meta as _), start: 0 };
                let modes = MODES.into_iter().filter(|mode| internal || *mode != Mode::Bitmap);
                for (n, mode) in modes.enumerate() {
                    let device = IntegrityDevice::open(stores(), open_options(mode, &format)).unwrap();
                    let layout = device.layout();
                    let tag_size = if internal { 0 } else { 28 };
                    if n > 0 {
                        check(&device, n as u8, tag_size);
                    }
                    for block in 0..layout.blocks() {
                        let unit = fill(block, n as u8 + 1, block_len);
                        let tag = tuple(&unit, tag_size);
                        device.write(block * layout.sectors_per_block(), &unit, &tag).unwrap();
                    }
                    check(&device, n as u8 + 1, tag_size);
                    device.flush().unwrap();
                    check(&device, n as u8 + 1, tag_size);
                    device.close().unwrap();
                    assert_eq!(device.metrics().mismatches, 0);
                }
            }
        }
    }
}

fn check(device: &IntegrityDevice, value: u8, tag_size: usize) {
    let layout = device.layout();
    let blocks = layout.blocks();
    let mut data = vec![0; blocks as usize * layout.block_len()];
    let mut tags = vec![0; blocks as usize * tag_size];
    device.read(0, &mut data, &mut tags).unwrap();
    for (block, unit) in data.chunks(layout.block_len()).enumerate() {
        let expected = fill(block as u64, value, layout.block_len());
        assert!(unit == expected, "block {block}");
        assert!(tags[block * tag_size..][..tag_size] == tuple(&expected, tag_size)[..], "tag of block {block}");
    }
}

#[test]
fn mismatch_names_its_block_and_leaves_the_neighbours() {
    let format = options(512, true);
    let store = memory(formatted(&format, 1 << 20, None).0);
    let open =
        || IntegrityDevice::open(Stores::interleaved(store.clone()), open_options(Mode::Direct, &format)).unwrap();
    let device = open();
    device.write(8, &[7; 4096], &[]).unwrap();
    device.close().unwrap();
    let at = device.layout().data_position(11).0;
    inlock_engine::store::write_all(&*store, &[8], at + 100).unwrap();
    let device = open();
    let mut data = vec![1; 4096];
    let error = device.read(8, &mut data, &mut []).unwrap_err();
    assert_eq!((error.errno(), &error), (Errno::ILSEQ, &ReadError::Mismatch(vec![11])));
    assert!(data[..3 * 512].iter().chain(&data[4 * 512..]).all(|byte| *byte == 7), "neighbours");
    assert!(data[3 * 512..4 * 512].iter().all(|byte| *byte == 0), "refused data is not returned");
    assert_eq!(device.metrics().mismatches, 1);
    device.write(11, &[9; 512], &[]).unwrap();
    device.read(8, &mut data, &mut []).unwrap();
}

#[test]
fn discarded_blocks_are_not_checked() {
    for mode in MODES {
        let format = options(512, true);
        let store = memory(formatted(&format, 1 << 20, None).0);
        let mut open = open_options(mode, &format);
        let device = IntegrityDevice::open(Stores::interleaved(store.clone()), open.clone()).unwrap();
        assert!(device.read(0, &mut [0; 512], &mut []).is_err(), "tags of a new volume are not written");
        assert_eq!(device.discard(0, 8), Err(Errno::OPNOTSUPP));
        device.close().unwrap();
        open.allow_discards = true;
        let device = IntegrityDevice::open(Stores::interleaved(store.clone()), open).unwrap();
        device.write(0, &[1; 512], &[]).unwrap();
        device.discard(0, 8).unwrap();
        device.read(0, &mut [0; 4096], &mut []).unwrap();
        assert!(device.read(8, &mut [0; 512], &mut []).is_err());
        device.write(0, &[1; 8 * 512], &[]).unwrap();
        // More blocks than the journal has, and fewer.
        device.discard(5, 100).unwrap();
        device.write(0, &[1; 5 * 512], &[]).unwrap();
        device.discard(3, 2).unwrap();
        let end = device.layout().provided_data_sectors;
        device.discard(end - 1, 1).unwrap();
        assert_eq!(device.discard(end, 1), Err(Errno::INVAL));
        device.close().unwrap();
        // Nothing of the journal was copied over the mark of a discard.
        let (layout, bytes) = (device.layout(), store.contents());
        let is_discarded = |block: u64| {
            let at = layout.tag_position(block).0 as usize;
            bytes[at..at + layout.journal.tag_size].iter().all(|byte| *byte == 0xf6)
        };
        let discarded: Vec<u64> = (0..120).filter(|block| is_discarded(*block)).collect();
        assert_eq!(discarded, (3..105).collect::<Vec<_>>(), "{mode:?}");
    }
}

#[test]
fn recalculation_is_continued() {
    let format = FormatOptions { recalculate: true, internal_hash: Some(hash("sha1")), ..options(512, true) };
    let store = memory(formatted(&format, 1 << 20, None).0);
    let mut steps = 0;
    loop {
        let stores = Stores::interleaved(store.clone());
        let device = IntegrityDevice::open(stores, open_options(Mode::Journal, &format)).unwrap();
        device.read(0, &mut vec![0; 1 << 18], &mut []).unwrap();
        steps += 1;
        if device.recalculate_step().unwrap() {
            assert!(device.superblock().flags.bits() & 2 == 0 && steps > 2, "{steps}");
            break;
        }
    }
    let device = IntegrityDevice::open(Stores::interleaved(store), open_options(Mode::Journal, &format)).unwrap();
    let blocks = device.layout().blocks() as usize;
    device.read(0, &mut vec![0; blocks * 512], &mut []).unwrap();
}

/// Threads write, read and flush blocks of their own side by side, in small steps of a shared journal.
#[test]
fn threads_see_their_own_writes() {
    for mode in MODES {
        let format = FormatOptions { journal_sectors: Some(600), ..options(512, true) };
        let store = memory(formatted(&format, 1 << 20, None).0);
        let open = || IntegrityDevice::open(Stores::interleaved(store.clone()), open_options(mode, &format)).unwrap();
        let device = Arc::new(open());
        let workers: Vec<_> = (0..4u64)
            .map(|worker| {
                let device = Arc::clone(&device);
                std::thread::spawn(move || {
                    for round in 0..60u8 {
                        for block in (worker..80).step_by(4) {
                            device.write(block, &fill(block, round, 512), &[]).unwrap();
                        }
                        for block in (worker..80).step_by(4) {
                            let mut data = [0; 512];
                            device.read(block, &mut data, &mut []).unwrap();
                            assert!(data[..] == fill(block, round, 512), "{mode:?} {worker} {round} {block}");
                        }
                        device.flush().unwrap();
                    }
                })
            })
            .collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        device.close().unwrap();
        let again = open();
        for block in 0..80 {
            let mut data = [0; 512];
            again.read(block, &mut data, &mut []).unwrap();
            assert!(data[..] == fill(block, 59, 512));
        }
    }
}

/// The bits of the bitmap tell which tags are computed again, not a flag with which a keyed volume would be refused.
#[test]
fn keyed_bitmap_volume_is_opened_after_two_power_cuts() {
    let format = FormatOptions { internal_hash: Some(hash("hmac-sha256")), sectors_per_bit: 8, ..options(512, true) };
    let store = memory(formatted(&format, 1 << 20, None).0);
    let options = OpenOptions { legacy_recalculate: true, ..open_options(Mode::Bitmap, &format) };
    let open = || IntegrityDevice::open(Stores::interleaved(store.clone()), options.clone()).unwrap();
    for value in 1..4u8 {
        let device = open();
        device.recalculate_step().unwrap();
        device.write(u64::from(value) * 64, &fill(0, value, 512), &[]).unwrap();
    }
    let device = open();
    let mut data = [0; 512];
    device.read(3 * 64, &mut data, &mut []).unwrap();
    assert!(data[..] == fill(0, 3, 512));
    while !device.recalculate_step().unwrap() {}
    device.close().unwrap();
    assert_eq!(open().superblock().flags.bits() & 2, 0);
}

/// The kernel fails a volume that is not in bitmap mode and has other bytes in the journal's place.
#[test]
fn closed_bitmap_volume_has_an_empty_journal() {
    let format = options(512, true);
    let (formatted, _) = formatted(&format, 1 << 20, None);
    let store = memory(formatted.clone());
    let open =
        || IntegrityDevice::open(Stores::interleaved(store.clone()), open_options(Mode::Bitmap, &format)).unwrap();
    let device = open();
    let journal = device.layout().journal_at() as usize..device.layout().tags_at() as usize;
    device.write(0, &[1; 512], &[]).unwrap();
    assert!(store.contents()[journal.clone()] != formatted[journal.clone()]);
    device.close().unwrap();
    assert!(store.contents()[journal.clone()] == formatted[journal]);
    // The place is no longer a bitmap.
    assert_eq!(device.write(0, &[2; 512], &[]), Err(inlock_engine::Errno::ROFS));
    device.maintain().unwrap();
    device.read(0, &mut [0; 512], &mut []).unwrap();
    open().read(0, &mut [0; 512], &mut []).unwrap();
}

/// The kernel leaves the flag set when all tags are computed.
#[test]
fn finished_recalculation_is_not_refused_and_not_repeated() {
    let format = FormatOptions { internal_hash: Some(hash("hmac-sha256")), fix_hmac: false, ..options(512, true) };
    let (mut bytes, _) = formatted(&format, 1 << 20, None);
    let provided: [u8; 8] = bytes[16..24].try_into().unwrap();
    bytes[24] |= 2;
    bytes[32..40].copy_from_slice(&provided);
    let open = |bytes: &[u8], mode| {
        IntegrityDevice::open(Stores::interleaved(memory(bytes.to_vec())), open_options(mode, &format))
    };
    for mode in MODES {
        let device = open(&bytes, mode).unwrap();
        device.read(0, &mut [0; 512], &mut []).unwrap_err();
        assert!(device.recalculate_step().unwrap());
    }
    bytes[32..40].copy_from_slice(&(u64::from_le_bytes(provided) - 1).to_le_bytes());
    assert!(open(&bytes, Mode::Journal).is_err());
}

/// A recalculation that is asked for after one that has finished, or that was interrupted, begins with the first block,
/// also if the volume is opened once more before its first step.
#[test]
fn recalculation_that_is_asked_for_again_begins_with_the_first_block() {
    let format = FormatOptions { internal_hash: Some(hash("crc32c")), recalculate: true, ..options(512, true) };
    for (mode, steps) in [Mode::Journal, Mode::Direct].into_iter().flat_map(|mode| [(mode, 1), (mode, usize::MAX)]) {
        let stores = Stores::interleaved(memory(formatted(&format, 1 << 20, None).0));
        let open = |recalculate| {
            let options = OpenOptions { recalculate, ..open_options(mode, &format) };
            IntegrityDevice::open(stores.clone(), options).unwrap()
        };
        let device = open(false);
        let is_finished = (0..steps).any(|_| device.recalculate_step().unwrap());
        assert_eq!(is_finished, steps > 1);
        drop((device, open(true)));
        let device = open(false);
        assert!(device.is_recalculating());
        assert_eq!(device.superblock().recalc_sector, 0, "{mode:?} after {steps} steps");
    }
}

/// A volume that was not closed has its newest blocks in the journal only.
#[test]
fn read_only_device_returns_what_the_journal_has_and_writes_nothing() {
    for internal in [true, false] {
        for cipher in [None, Some("ctr-aes")] {
            let mut format = FormatOptions { journal_sectors: Some(600), ..options(512, internal) };
            format.journal_cipher =
                cipher.map(|name| Arc::new(JournalCipher::new(name, &VolumeKey::new(&[3; 32])).unwrap()));
            let tag_size = if internal { 0 } else { 28 };
            let store = memory(formatted(&format, 1 << 20, None).0);
            let open = |read_only| {
                let options = OpenOptions { read_only, ..open_options(Mode::Journal, &format) };
                IntegrityDevice::open(Stores::interleaved(store.clone()), options).unwrap()
            };
            let write = |device: &IntegrityDevice, block: u64, value| {
                let unit = fill(block, value, 512);
                device.write(block, &unit, &tuple(&unit, tag_size)).unwrap();
            };
            let read = |device: &IntegrityDevice, block: u64, value| {
                let (mut unit, mut tag) = (vec![0; 512], vec![0; tag_size]);
                device.read(block, &mut unit, &mut tag).unwrap();
                assert!(unit == fill(block, value, 512) && tag == tuple(&unit, tag_size), "block {block}");
            };
            let device = open(false);
            (0..9).for_each(|block| write(&device, block, 1));
            device.close().unwrap();
            let device = open(false);
            assert!(device.layout().journal.sections >= 3);
            (3..6).for_each(|block| write(&device, block, 2));
            write(&device, 4, 3);
            device.flush().unwrap();
            // In a section of its own.
            write(&device, 7, 4);
            device.flush().unwrap();
            drop(device);

            let before = store.contents();
            let device = open(true);
            for (block, value) in [(2, 1), (3, 2), (7, 4), (4, 3), (5, 2), (6, 1)] {
                read(&device, block, value);
            }
            let (mut units, mut tags) = (vec![0; 512 * 9], vec![0; 9 * tag_size]);
            device.read(0, &mut units, &mut tags).unwrap();
            assert_eq!(units[4 * 512..5 * 512], fill(4, 3, 512));
            device.close().unwrap();
            assert!(store.contents() == before, "a read-only device wrote");

            let device = open(false);
            read(&device, 4, 3);
        }
    }
}

/// An entry of the journal is no more trustworthy than a block in its place.
#[test]
fn changed_block_in_the_journal_is_refused_read_only() {
    let format = options(512, true);
    let store = memory(formatted(&format, 1 << 20, None).0);
    let open = |read_only| {
        let options = OpenOptions { read_only, ..open_options(Mode::Journal, &format) };
        IntegrityDevice::open(Stores::interleaved(store.clone()), options)
    };
    let device = open(false).unwrap();
    let unit: Vec<u8> = (0..512).map(|at| (at % 251) as u8).collect();
    device.write(8, &unit, &[]).unwrap();
    device.flush().unwrap();
    drop(device);
    // Its only copy on the store, without the bytes that a commit id replaces.
    let at = store.contents().windows(400).position(|bytes| *bytes == unit[..400]).unwrap();
    let opened_before = open(true).unwrap();
    inlock_engine::store::write_all(&*store, &[unit[100] ^ 1], at as u64 + 100).unwrap();
    let mut data = vec![0; 512];
    assert_eq!(opened_before.read(8, &mut data, &mut []), Err(ReadError::Mismatch(vec![8])));
    for read_only in [true, false] {
        assert!(matches!(open(read_only), Err(IntegrityError::Journal(JournalDamage::Tag { .. }))));
    }
}

#[test]
fn tags_that_are_written_back_match_what_a_killed_process_leaves() {
    let format = FormatOptions { internal_hash: Some(hash("crc32c")), ..FormatOptions::default() };
    let store = memory(formatted(&format, 1 << 20, None).0);
    let open = |store| IntegrityDevice::open(Stores::interleaved(store), open_options(Mode::Direct, &format)).unwrap();
    let device = open(store.clone());
    let found = || {
        let (mut data, left) = (vec![0; 512], open(memory(store.contents())));
        left.read(8, &mut data, &mut []).is_ok().then_some(data)
    };
    device.write(8, &fill(8, 1, 512), &[]).unwrap();
    device.flush().unwrap();
    assert_eq!(found(), Some(fill(8, 1, 512)));
    for value in 2..4 {
        device.write(8, &fill(8, value, 512), &[]).unwrap();
        assert_eq!(found(), None, "its tag is in the memory of the process");
        device.write_tags_back().unwrap();
        assert_eq!(found(), Some(fill(8, value, 512)));
    }
}

#[test]
fn requests_are_for_whole_blocks_of_the_volume() {
    for internal in [true, false] {
        let format = options(4096, internal);
        let stores = Stores::interleaved(memory(formatted(&format, 1 << 20, None).0));
        let device = IntegrityDevice::open(stores, open_options(Mode::Direct, &format)).unwrap();
        let (end, tag) = (device.layout().provided_data_sectors, if internal { 0 } else { 28 });
        device.write(end - 8, &[1; 4096], &vec![1; tag]).unwrap();
        for (sector, len, tags) in [
            (end, 4096, tag),
            (end - 8, 8192, 2 * tag),
            (u64::MAX - 7, 4096, tag),
            (4, 4096, tag),
            (0, 2048, tag),
            (0, 4096, tag + 1),
        ] {
            let (mut data, mut tuples) = (vec![1; len], vec![1; tags]);
            assert_eq!(device.write(sector, &data, &tuples), Err(Errno::INVAL), "{sector} {len} {tags}");
            let read = device.read(sector, &mut data, &mut tuples);
            assert_eq!(read, Err(ReadError::Io(Errno::INVAL)), "{sector} {len} {tags}");
        }
    }
}

/// A block with several entries in the journal is copied to its place once; tags are written back early only where
/// nothing else keeps them; a journal that is not damaged stays as it is.
#[test]
fn no_more_is_written_than_has_to_be() {
    let format = FormatOptions { tag_size: Some(32), ..options(512, true) };
    for mode in MODES {
        let image = memory(formatted(&format, 1 << 20, None).0);
        let writes = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&writes);
        let store = Arc::new(ScriptedStore::new(image.clone(), move |call| {
            seen.lock().unwrap().extend(matches!(call, Call::Write { .. }).then(|| call.range()).flatten());
            Verdict::Pass
        }));
        let device = IntegrityDevice::open(Stores::interleaved(store), open_options(mode, &format)).unwrap();
        let (tag, at) = (device.layout().tag_position(3).0, device.layout().data_position(3).0);
        let count = |at: u64| writes.lock().unwrap().iter().filter(|range| range.contains(&at)).count();
        (1..=5).for_each(|value| device.write(3, &fill(3, value, 512), &[]).unwrap());
        device.write_tags_back().unwrap();
        assert_eq!(count(tag), usize::from(mode == Mode::Direct), "{mode:?}");
        device.flush().unwrap();
        if mode == Mode::Journal {
            let left = memory(image.contents());
            let options = OpenOptions { salvage_journal: true, ..open_options(mode, &format) };
            let salvaged = IntegrityDevice::open(Stores::interleaved(left.clone()), options).unwrap();
            let journal = salvaged.layout().journal_at() as usize..salvaged.layout().tags_at() as usize;
            assert!(left.contents()[journal.clone()] == image.contents()[journal], "it is emptied");
        }
        device.close().unwrap();
        assert_eq!(count(at), if mode == Mode::Journal { 1 } else { 5 }, "{mode:?}");
    }
}
