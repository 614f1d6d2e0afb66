//! The n-th call of a store fails: no flush succeeds afterwards that does not hold, and the volume opens again.

use crate::sealed::{gcm, with_tags_of};
use crate::support::{fill, formatted, hash, memory, open_options};
use inlock_engine::store::{read_all, write_all};
use inlock_engine::{BackingStore, Errno};
use inlock_integrity::{Fill, FormatOptions, IntegrityDevice, IntegrityStore, JournalWriter, Mode, Stores, resize};
use inlock_testing::{Log, ScriptedStore, Step};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

fn options() -> FormatOptions {
    FormatOptions {
        tag_size: Some(200),
        internal_hash: Some(hash("sha256")),
        interleave_sectors: 64,
        journal_sectors: Some(64),
        salt: Some([5; 16]),
        ..FormatOptions::default()
    }
}

#[test]
fn nth_failure_of_a_store_loses_no_flushed_write() {
    let mut faults = 0;
    for (mode, has_thread) in [(Mode::Journal, false), (Mode::Journal, true), (Mode::Bitmap, false)] {
        let format = options();
        let (image, _) = formatted(&format, 192 << 10, None);
        for nth in 1.. {
            let bytes = memory(image.clone());
            let (failing, calls) = ScriptedStore::failing_at(bytes.clone(), nth, Errno::IO);
            let mut flushed = [0; 16];
            let mut written = [0; 16];
            if let Ok(device) = IntegrityDevice::open(Stores::interleaved(failing.clone()), open_options(mode, &format))
            {
                let device = Arc::new(device);
                let _writer = has_thread.then(|| JournalWriter::start(Arc::clone(&device)).unwrap().unwrap());
                for round in 1..12u8 {
                    for block in 0..16u64 {
                        if device.write(block, &fill(block, round, 512), &[]).is_ok() {
                            written[block as usize] = round;
                        }
                    }
                    if device.flush().is_ok() {
                        flushed = written;
                    }
                }
            }
            let device = IntegrityDevice::open(Stores::interleaved(bytes), open_options(mode, &format)).unwrap();
            for (block, value) in flushed.iter().enumerate().filter(|(_, value)| **value > 0) {
                let mut data = [0; 512];
                device.read(block as u64, &mut data, &mut []).unwrap();
                let newer = (*value..12).any(|value| data[..] == fill(block as u64, value, 512));
                assert!(newer, "{mode:?}: call {nth} failed, block {block} is older than {value}");
            }
            faults += 1;
            // No call failed: the end of the loop.
            if calls.load(Ordering::SeqCst) < nth {
                break;
            }
        }
    }
    println!("COUNT integrity_store_faults {faults}");
    assert!(faults > 150, "{faults}");
}

/// Two threads write with an AEAD, blocks of the section that all share and whole sections of the journal.
#[test]
fn nth_failure_of_a_store_loses_no_flushed_write_of_an_aead() {
    const BLOCKS: u64 = 24;
    let format = FormatOptions { tag_size: Some(240), internal_hash: None, ..options() };
    let (image, _) = formatted(&format, 192 << 10, None);
    let open = |store: Arc<dyn BackingStore>| {
        let device = IntegrityDevice::open(Stores::interleaved(store), open_options(Mode::Journal, &format));
        device.map(|device| IntegrityStore::sealed(Arc::new(device), with_tags_of(240, &gcm(), 512, 1)).unwrap())
    };
    let mut faults = 0;
    for nth in 1.. {
        let bytes = memory(image.clone());
        let (failing, calls) = ScriptedStore::failing_at(bytes.clone(), nth, Errno::IO);
        let flushed = open(failing.clone()).map_or(vec![[0; BLOCKS as usize]; 2], |store| {
            assert_eq!(store.device().layout().journal.entries, 8);
            let run = |number: u64| {
                let (mut written, mut flushed) = ([0; BLOCKS as usize], [0; BLOCKS as usize]);
                for round in 1..8u8 {
                    for (at, count) in [(3, 2), (0, 20), (7, 1), (6, 18)] {
                        let blocks = number * BLOCKS + at..number * BLOCKS + at + count;
                        let data: Vec<u8> = blocks.clone().flat_map(|block| fill(block, round, 512)).collect();
                        if write_all(&store, &data, blocks.start * 512).is_ok() {
                            written[at as usize..(at + count) as usize].fill(round);
                        }
                    }
                    if store.sync().is_ok() {
                        flushed = written;
                    }
                }
                flushed
            };
            std::thread::scope(|scope| {
                let running: Vec<_> = (0..2).map(|number| scope.spawn(move || run(number))).collect();
                running.into_iter().map(|thread| thread.join().unwrap()).collect()
            })
        });
        let store = open(bytes).unwrap();
        let values = flushed.iter().flatten().enumerate().filter(|(_, value)| **value > 0);
        for (block, value) in values {
            let mut data = [0; 512];
            read_all(&store, &mut data, block as u64 * 512).unwrap();
            let newer = (*value..8).any(|value| data[..] == fill(block as u64, value, 512));
            assert!(newer, "call {nth} failed, block {block} is older than {value}");
        }
        faults += 1;
        if calls.load(Ordering::SeqCst) < nth {
            break;
        }
    }
    println!("COUNT integrity_aead_faults {faults}");
    assert!(faults > 100, "{faults}");
}

#[test]
fn wipe_is_stopped_and_continued() {
    let format = options();
    let store = memory(formatted(&format, 8 << 20, None).0);
    let open =
        || IntegrityDevice::open(Stores::interleaved(store.clone()), open_options(Mode::Direct, &format)).unwrap();
    let nothing = |_: u64, _: &mut [u8], _: &mut [u8]| Ok(());
    let reached = open().wipe(0, 2, nothing, |_| ControlFlow::Break(())).unwrap();
    assert_eq!(reached, 2 * 2048);
    let device = open();
    device.read(reached - 1, &mut [0; 512], &mut []).unwrap();
    assert!(device.read(reached, &mut [0; 512], &mut []).is_err(), "not wiped yet");
    let mut steps = 0;
    let end = device.wipe(reached, 2, nothing, |_| {
        steps += 1;
        ControlFlow::Continue(())
    });
    assert_eq!(end, Ok(device.layout().provided_data_sectors));
    device.read(0, &mut vec![0; end.unwrap() as usize * 512], &mut []).unwrap();
    assert!(steps > 1, "{steps}");
}

/// A wipe is continued a step before the place where it stopped. What was changed further before stays unreadable.
#[test]
fn continued_wipe_leaves_what_was_changed_long_before_its_place() {
    let format = FormatOptions { block_len: 4096, ..options() };
    let image = memory(formatted(&format, 200 << 20, None).0);
    let device =
        IntegrityDevice::open(Stores::interleaved(image.clone()), open_options(Mode::Direct, &format)).unwrap();
    let stop = |sector| if sector < 160 * 2048 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
    let reached = device.wipe(0, 4, |_, _, _| Ok(()), stop).unwrap();
    for block in [0, 256 * 10] {
        image.write_at(&[1], device.layout().data_position(block).0).unwrap();
    }
    let last = reached / 8 - 1;
    image.write_at(&[1], device.layout().data_position(last).0).unwrap();
    let (blocks, store) = (device.layout().blocks(), IntegrityStore::new(Arc::new(device)).unwrap());
    let filled = store.fill_unreadable(Fill::Zeroes, 4, |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(filled.blocks, blocks - last, "what was not wiped, and the last block that was");
    let unreadable = |block: u64| store.read_at(&mut [0; 4096], block * 4096) == Err(Errno::ILSEQ);
    assert_eq!((0..blocks).filter(|block| unreadable(*block)).collect::<Vec<_>>(), [0, 256 * 10]);
}

/// The last chunk of a wipe has one block.
#[test]
fn wipe_reaches_the_last_block() {
    let format = options();
    let stores = Stores::interleaved(memory(formatted(&format, 4 << 20, None).0));
    resize(&stores, &open_options(Mode::Direct, &format), Some(2 * 2048 + 1)).unwrap();
    for threads in [1, 2, 3] {
        let device = IntegrityDevice::open(stores.clone(), open_options(Mode::Direct, &format)).unwrap();
        let value = |_: u64, data: &mut [u8], _: &mut [u8]| {
            data.fill(threads);
            Ok(())
        };
        let reached = device.wipe(0, threads.into(), value, |_| ControlFlow::Continue(()));
        assert_eq!(reached, Ok(2 * 2048 + 1));
        for block in [0, 2047, 2048, 2 * 2048] {
            let mut data = [0; 512];
            device.read(block, &mut data, &mut []).unwrap();
            assert_eq!(data, [threads; 512], "block {block}");
        }
    }
}

#[test]
fn wipe_is_for_whole_blocks() {
    let format = FormatOptions { block_len: 4096, internal_hash: Some(hash("hmac-sha256")), ..options() };
    let image = memory(formatted(&format, 1 << 20, None).0);
    let go_on = |_| ControlFlow::Continue(());
    for mode in [Mode::Direct, Mode::Journal, Mode::Bitmap] {
        let device = IntegrityDevice::open(Stores::interleaved(image.clone()), open_options(mode, &format)).unwrap();
        for from in [0, 1, 4, 8] {
            let end =
                |is_possible| if is_possible { Ok(device.layout().provided_data_sectors) } else { Err(Errno::INVAL) };
            let (wiped, marked) = (end(from % 8 == 0), end(from % 8 == 0 && mode == Mode::Direct));
            assert_eq!(device.wipe(from, 1, |_, _, _| Ok(()), go_on), wiped, "{mode:?} {from}");
            assert_eq!(device.mark_never_written(from, 1, None, go_on), marked, "{mode:?} {from}");
        }
    }
}

/// Blocks that are filled are durable when their step is told of: the memory of the process may be lost then.
#[test]
fn filled_blocks_are_durable_when_they_are_told_of() {
    let format = options();
    let image = memory(formatted(&format, 4 << 20, None).0);
    let open = |image| IntegrityDevice::open(Stores::interleaved(image), open_options(Mode::Direct, &format)).unwrap();
    let store = IntegrityStore::new(Arc::new(open(image.clone()))).unwrap();
    let mut steps = 0;
    store
        .fill_unreadable(Fill::Zeroes, 1, |reached| {
            let left = open(memory(image.contents()));
            left.read(reached - 1, &mut [0; 512], &mut []).unwrap();
            steps += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
    assert!(steps > 2, "{steps}");
}

/// An open that replays the journal and empties it makes the blocks and their tags durable first.
#[test]
fn replayed_blocks_are_durable_before_the_journal_is_emptied() {
    let format = options();
    let image = memory(formatted(&format, 192 << 10, None).0);
    let open = |store: Arc<dyn BackingStore>, mode| {
        IntegrityDevice::open(Stores::interleaved(store), open_options(mode, &format)).unwrap()
    };
    let device = open(image.clone(), Mode::Journal);
    (0..20).for_each(|block| device.write(block, &fill(block, 3, 512), &[]).unwrap());
    device.flush().unwrap();
    let (before, log) = (image.contents(), Log::<()>::default());
    let _ = open(Arc::new(log.store(memory(before.clone()), false)), Mode::Direct);
    let log = log.steps();
    for cut in 0..=log.len() {
        let mut bytes = before.clone();
        let end = log[..cut].iter().rposition(|step| *step == Step::Sync).unwrap_or(0);
        for step in &log[..end] {
            if let Step::Write { at, data } = step {
                bytes[*at..][..data.len()].copy_from_slice(data);
            }
        }
        let device = open(memory(bytes), Mode::Direct);
        for block in 0..20 {
            let mut data = [0; 512];
            device.read(block, &mut data, &mut []).unwrap();
            assert!(data[..] == fill(block, 3, 512), "block {block} after {cut} of {} steps", log.len());
        }
    }
}

#[test]
fn store_takes_requests_of_any_bytes() {
    let format = FormatOptions { block_len: 4096, ..options() };
    let bytes = memory(formatted(&format, 1 << 20, None).0);
    let device = IntegrityDevice::open(Stores::interleaved(bytes), open_options(Mode::Direct, &format)).unwrap();
    device.wipe(0, 1, |_, _, _| Ok(()), |_| ControlFlow::Continue(())).unwrap();
    let store = IntegrityStore::new(Arc::new(device)).unwrap();
    let mut model = vec![0; store.geometry().len as usize];
    for (n, (at, len)) in [(0, 1), (4095, 2), (5000, 9000), (8192, 4096), (100_000, 77)].into_iter().enumerate() {
        let data = vec![n as u8 + 1; len];
        inlock_engine::store::write_all(&store, &data, at as u64).unwrap();
        model[at..at + len].copy_from_slice(&data);
    }
    let mut read = vec![0; model.len()];
    inlock_engine::store::read_all(&store, &mut read, 0).unwrap();
    assert!(read == model);
    assert_eq!(store.write_at(&[1], model.len() as u64), Err(Errno::NOSPC));
    store.sync().unwrap();
}
