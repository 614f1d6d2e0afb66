//! Volumes in bitmap mode: what the bits say after a power cut, and what a discard leaves.

use crate::support::{fill, formatted, hash, memory, open_options};
use inlock_engine::Errno;
use inlock_integrity::{FormatOptions, IntegrityDevice, Mode, OpenOptions, ReadError, Stores};
use inlock_testing::{Call, Log, ScriptedStore, Step, Verdict};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const LEN: usize = 1 << 20;

fn options(hash_name: &str) -> FormatOptions {
    FormatOptions {
        internal_hash: Some(hash(hash_name)),
        interleave_sectors: 256,
        sectors_per_bit: 16,
        ..FormatOptions::default()
    }
}

fn write(device: &IntegrityDevice, block: u64, value: u8) {
    device.write(block, &fill(block, value, 512), &[]).unwrap();
}

/// Returns what a store has synced.
fn synced(before: &[u8], log: &[Step<()>]) -> Vec<u8> {
    let mut bytes = before.to_vec();
    let end = log.iter().rposition(|step| *step == Step::Sync).unwrap_or(0);
    for step in &log[..end] {
        if let Step::Write { at, data } = step {
            bytes[*at..][..data.len()].copy_from_slice(data);
        }
    }
    bytes
}

/// Only regions that were written since the last maintenance are computed again: elsewhere changed data is noticed.
#[test]
fn maintenance_leaves_no_region_to_be_computed_again() {
    let format = options("crc32c");
    let (before, _) = formatted(&format, LEN, None);
    let log = Log::default();
    let store = Arc::new(log.store(memory(before.clone()), false));
    let options = open_options(Mode::Bitmap, &format);
    let device = IntegrityDevice::open(Stores::interleaved(store), options.clone()).unwrap();
    write(&device, 3, 1);
    write(&device, 40, 1);
    device.maintain().unwrap();
    for (is_written_again, expected) in [(false, Err(ReadError::Mismatch(vec![3]))), (true, Ok(()))] {
        if is_written_again {
            write(&device, 3, 1);
        }
        let mut cut = synced(&before, &log.steps());
        cut[device.layout().data_position(3).0 as usize] ^= 1;
        let cut = IntegrityDevice::open(Stores::interleaved(memory(cut)), options.clone()).unwrap();
        assert_eq!(cut.read(3, &mut [0; 512], &mut []), expected);
        assert_eq!(cut.read(40, &mut [0; 512], &mut []), Ok(()));
    }
}

/// The last block alone of those that are discarded is in the journal: it is discarded, too.
#[test]
fn discard_reaches_each_block_that_is_in_the_journal() {
    let format = options("hmac-sha256");
    for in_journal in [5, 6, 7] {
        let store = memory(formatted(&format, LEN, None).0);
        let options = OpenOptions { allow_discards: true, ..open_options(Mode::Journal, &format) };
        let device = IntegrityDevice::open(Stores::interleaved(store), options).unwrap();
        write(&device, in_journal, 1);
        device.discard(5, 3).unwrap();
        let mut data = [1; 512];
        device.read(in_journal, &mut data, &mut []).unwrap();
        assert_eq!(data, [0; 512], "block {in_journal}");
    }
}

/// A device that is read-only is not written to, nor synced, and no wipe of it begins.
#[test]
fn read_only_device_makes_no_call_but_reads() {
    let format = options("hmac-sha256");
    let image = memory(formatted(&format, LEN, None).0);
    for (mode, read_only) in
        [(Mode::Journal, true), (Mode::Bitmap, true), (Mode::Direct, true), (Mode::Recovery, false)]
    {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let store = Arc::new(ScriptedStore::new(image.clone(), move |call| {
            counted.fetch_add(usize::from(!matches!(call, Call::Read { .. })), Ordering::SeqCst);
            Verdict::Pass
        }));
        let options = OpenOptions { allow_discards: true, read_only, ..open_options(mode, &format) };
        let device = IntegrityDevice::open(Stores::interleaved(store), options).unwrap();
        let end = device.layout().provided_data_sectors;
        let go_on = |_| std::ops::ControlFlow::Continue(());
        assert_eq!(device.discard(0, 8), Err(Errno::ROFS));
        assert_eq!(device.write(0, &[1; 512], &[]), Err(Errno::ROFS));
        for from in [0, end] {
            let filled = |_: u64, _: &mut [u8], _: &mut [u8]| panic!("it is asked for what is not written");
            assert_eq!(device.wipe(from, 1, filled, go_on), Err(Errno::ROFS));
            assert_eq!(device.mark_never_written(from, 1, None, go_on), Err(Errno::ROFS));
        }
        assert_eq!((device.flush(), device.close()), (Ok(()), Ok(())));
        assert_eq!(device.maintain(), Ok(()));
        assert_eq!(device.write_tags_back(), Ok(()));
        assert!(!device.has_unprotected_tags());
        let store = inlock_integrity::IntegrityStore::new(Arc::new(device)).unwrap();
        if mode != Mode::Recovery {
            for fill in [inlock_integrity::Fill::Zeroes, inlock_integrity::Fill::Marks] {
                assert_eq!(store.fill_unreadable(fill, 1, go_on), Err(Errno::ROFS), "{mode:?}");
            }
        }
        assert_eq!(calls.load(Ordering::SeqCst), 0, "{mode:?}");
    }
}

/// Blocks of the same section of a journal that is only read: the section is read once.
#[test]
fn read_only_device_reads_a_section_once() {
    let format = options("crc32c");
    let image = memory(formatted(&format, LEN, None).0);
    let device =
        IntegrityDevice::open(Stores::interleaved(image.clone()), open_options(Mode::Journal, &format)).unwrap();
    (0..20).for_each(|block| write(&device, block, 1));
    device.flush().unwrap();
    let (journal, calls) = (device.layout().journal_at()..device.layout().tags_at(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&calls);
    let store = Arc::new(ScriptedStore::new(image, move |call| {
        let is_counted = matches!(call, Call::Read { offset, .. } if journal.contains(&offset));
        counted.fetch_add(usize::from(is_counted), Ordering::SeqCst);
        Verdict::Pass
    }));
    let options = OpenOptions { read_only: true, ..open_options(Mode::Journal, &format) };
    let device = IntegrityDevice::open(Stores::interleaved(store), options).unwrap();
    let before = calls.load(Ordering::SeqCst);
    for block in 0..20 {
        let mut data = [0; 512];
        device.read(block, &mut data, &mut []).unwrap();
        assert!(data[..] == fill(block, 1, 512));
    }
    assert_eq!(calls.load(Ordering::SeqCst) - before, 1);
}

/// A superblock may ask for more bits than the journal's place has room for: the volume is refused, by the field.
#[test]
fn bitmap_that_is_longer_than_its_place_is_refused() {
    // A section of 16 sectors has room for 2^16 bits.
    let format = FormatOptions { tag_size: Some(240), journal_sectors: Some(16), ..options("crc32c") };
    for (blocks, is_possible) in [(1 << 16, true), ((1 << 16) + 8, false)] {
        let (data, meta) = formatted(&format, blocks * 512, Some(17 << 20));
        let mut meta = meta.unwrap();
        // DIRTY_BITMAP, of one bit for each block.
        meta[24] |= 4;
        meta[29] = 0;
        let stores = Stores::separate(memory(data), memory(meta));
        let loaded = inlock_integrity::load(&stores, &open_options(Mode::Bitmap, &format));
        assert_eq!(loaded.as_ref().map(|(superblock, _)| superblock.journal_sections).unwrap_or(1), 1);
        let error = loaded.err().map(|error| format!("{error:?}"));
        assert_eq!(error.is_none(), is_possible, "{error:?}");
        assert!(error.is_none_or(|error| error.contains("log2_blocks_per_bitmap_bit")));
    }
}
