//! Devices of several lines: each with its own content, key and store.

use crate::scripted::{self, Ask};
use crate::support::with;
use crate::support::{Random, key};
use inlock_cipher::{CipherSpec, DataUnitSize, Sector, Segment, VolumeKey};
use inlock_engine::Errno;
use inlock_engine::store::{BackingStore, file::IoMode, memory::MemoryStore};
use inlock_engine::{Access, BlockingDevice, Content, CryptMapping, Device, RequestError, Target, TargetError};
use inlock_testing::{Call, ScriptedStore, Verdict};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) fn segment(start: u64, sectors: u64, data_offset: u64, unit: u32) -> Segment {
    with!(
        Segment::whole(Some(CipherSpec::AES_XTS_PLAIN64), DataUnitSize::new(unit).expect("tests use valid units"));
        start: Sector(start),
        sectors: Some(sectors),
        data_offset: Sector(data_offset),
    )
}

/// Crypt, linear, zero and crypt again, over two stores and two keys; the second crypt line starts on an odd sector.
const BORDERS: [u64; 5] = [0, 64, 99, 131, 195];

struct Stack {
    device: Arc<Device>,
    stores: [Arc<MemoryStore>; 2],
    segments: [Segment; 4],
    keys: [VolumeKey; 2],
}

fn stack() -> Stack {
    let segments =
        [segment(0, 64, 8, 4096), segment(64, 35, 3, 512), segment(99, 32, 0, 512), segment(131, 64, 40, 4096)];
    let keys = [key(), VolumeKey::new(&[0x3c; 64])];
    let stores = [Arc::new(MemoryStore::new(vec![0xff; 128 * 512])), Arc::new(MemoryStore::new(vec![0xff; 128 * 512]))];
    let lines = [
        Target { segment: &segments[0], content: Content::Crypt(&keys[0]), store: 0 },
        Target { segment: &segments[1], content: Content::Linear, store: 1 },
        Target { segment: &segments[2], content: Content::Zero, store: 9 },
        Target { segment: &segments[3], content: Content::Crypt(&keys[1]), store: 1 },
    ];
    let shared = stores.iter().map(|s| Arc::clone(s) as Arc<dyn BackingStore>).collect();
    let access = Access { read_only: false, allow_discards: true };
    let device = Arc::new(Device::stacked(&lines, shared, access).unwrap());
    Stack { device, stores, segments, keys }
}

/// Reads a line of the stack through a device of that line alone.
fn alone(stack: &Stack, line: usize, store: usize, key: &VolumeKey) -> Vec<u8> {
    let segment = with!(stack.segments[line]; start: Sector(0));
    let store = Arc::clone(&stack.stores[store]) as _;
    let device = Device::new(&[segment], key, store, Access::default()).unwrap();
    let mut bytes = vec![0; device.len() as usize];
    BlockingDevice::new(Arc::new(device)).read_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn each_line_has_its_own_content_key_and_store() {
    for mode in [None, Some(IoMode::Sync), Some(IoMode::Auto)] {
        let stack = stack();
        let len = stack.device.len() as usize;
        assert_eq!(len, 195 * 512);
        let blocking = BlockingDevice::new(Arc::clone(&stack.device));
        let mut model = vec![0; len];
        let mut random = Random::new(41);
        blocking.write_zeroes(0, len as u64).unwrap();
        for _ in 0..300 {
            let (offset, size) = random.range(len as u64, 512);
            let data = random.bytes(size as usize);
            model[offset as usize..][..size as usize].copy_from_slice(&data);
            match mode {
                None => blocking.write_at(&data, offset).unwrap(),
                // The script stays within one segment.
                Some(mode) => {
                    let end = offset + size;
                    let cut = |border: &u64| (border * 512).clamp(offset, end);
                    let cuts: Vec<u64> = BORDERS.iter().map(cut).chain([offset, end]).collect();
                    let mut cuts = cuts;
                    cuts.sort_unstable();
                    cuts.dedup();
                    let piece = |w: &[u64]| Ask::Write {
                        offset: w[0],
                        data: data[(w[0] - offset) as usize..(w[1] - offset) as usize].to_vec(),
                        durable: false,
                    };
                    let script = cuts.windows(2).map(piece).collect();
                    scripted::run(&stack.device, mode, 4, script).into_iter().for_each(|a| drop(a.unwrap()));
                }
            }
        }
        model[99 * 512..131 * 512].fill(0);
        let mut read = vec![1; len];
        blocking.read_at(&mut read, 0).unwrap();
        assert!(read == model, "{mode:?}");
        let part = |line: usize| &model[BORDERS[line] as usize * 512..BORDERS[line + 1] as usize * 512];
        assert!(alone(&stack, 0, 0, &stack.keys[0]) == part(0));
        assert!(stack.stores[1].contents()[3 * 512..38 * 512] == *part(1), "linear is stored as it is");
        assert!(alone(&stack, 3, 1, &stack.keys[1]) == part(3));
        let (first, second) = (stack.stores[0].contents(), stack.stores[1].contents());
        assert!(first[..8 * 512].iter().chain(&first[72 * 512..]).all(|b| *b == 0xff), "no byte outside its range");
        assert!(second[..3 * 512].iter().chain(&second[104 * 512..]).all(|b| *b == 0xff));
    }
}

#[test]
fn discard_keeps_to_whole_units_of_each_line() {
    let stack = stack();
    let before = [stack.stores[0].contents(), stack.stores[1].contents()];
    // From the last line's second sector on: its first unit is only touched.
    let offset = 132 * 512;
    let ask = Ask::Discard { offset, len: 195 * 512 - offset };
    scripted::run(&stack.device, IoMode::Auto, 1, vec![ask]).remove(0).unwrap();
    let after = stack.stores[1].contents();
    assert!(after[..48 * 512] == before[1][..48 * 512] && after[104 * 512..] == before[1][104 * 512..]);
    assert!(after[48 * 512..104 * 512].iter().all(|b| *b == 0));
    // Over all borders, by both ways of asking.
    for worker in [true, false] {
        let stack = self::stack();
        let len = stack.device.len();
        if worker {
            scripted::run(&stack.device, IoMode::Sync, 1, vec![Ask::Discard { offset: 0, len }]).remove(0).unwrap();
        } else {
            BlockingDevice::new(Arc::clone(&stack.device)).discard(0, len).unwrap();
        }
        assert!(stack.stores[0].contents()[8 * 512..72 * 512].iter().all(|b| *b == 0));
        assert!(stack.stores[1].contents()[3 * 512..38 * 512].iter().all(|b| *b == 0));
        assert!(stack.stores[1].contents()[40 * 512..104 * 512].iter().all(|b| *b == 0));
    }
    let run = stack.device.block_status(100 * 512, 95 * 512).unwrap();
    assert_eq!((run.len, run.hole), (31 * 512, true), "what reads as zeroes is a hole, up to its border");
}

#[test]
fn error_line_fails_every_operation_and_its_neighbours_none() {
    let segments = [segment(0, 8, 0, 512), segment(8, 8, 0, 512)];
    let key = key();
    let lines = [
        Target { segment: &segments[0], content: Content::Crypt(&key), store: 0 },
        Target { segment: &segments[1], content: Content::Error, store: 0 },
    ];
    let store = Arc::new(MemoryStore::new(vec![0; 8 * 512]));
    let access = Access { read_only: false, allow_discards: true };
    let device = Arc::new(Device::stacked(&lines, vec![store], access).unwrap());
    let blocking = BlockingDevice::new(Arc::clone(&device));
    let eio = Err(RequestError::Io(Errno::IO));
    assert_eq!(blocking.write_at(&[1; 600], 4096), eio);
    assert_eq!(blocking.read_at(&mut [1; 600], 4000), eio, "part of it lies there");
    assert_eq!(blocking.discard(4096, 512), eio);
    assert_eq!(blocking.write_at(&[1; 4096], 0), Ok(()));
    let asks = vec![
        Ask::Read { offset: 4096, len: 10 },
        Ask::Write { offset: 8000, data: vec![1], durable: true },
        Ask::Zeroes { offset: 4096, len: 4096 },
        Ask::Discard { offset: 0, len: 8192 },
        Ask::Flush,
        Ask::Read { offset: 0, len: 4096 },
    ];
    let answers = scripted::run(&device, IoMode::Auto, 6, asks);
    assert_eq!(answers.iter().map(Result::is_ok).collect::<Vec<_>>(), [false, false, false, false, true, true]);
}

#[test]
fn lines_that_do_not_fit_are_refused() {
    let key = key();
    let (a, b) = (segment(0, 8, 0, 512), segment(8, 8, 0, 512));
    let open = with!(a; sectors: None);
    let no_cipher = with!(a; cipher: None);
    let try_lines = |lines: &[Target<'_>]| CryptMapping::stacked(lines, &[4096, 2048]).map(|t| t.len());
    let line = |segment, content, store| Target { segment, content, store };
    assert_eq!(try_lines(&[line(&a, Content::Crypt(&key), 0), line(&b, Content::Error, 7)]).unwrap(), 8192);
    assert!(matches!(try_lines(&[line(&a, Content::Crypt(&key), 1)]), Err(TargetError::BeyondStore { .. })));
    assert!(matches!(try_lines(&[line(&a, Content::Linear, 2)]), Err(TargetError::NoStore(0))));
    assert!(matches!(try_lines(&[line(&no_cipher, Content::Crypt(&key), 0)]), Err(TargetError::NoCipher(0))));
    assert!(matches!(try_lines(&[line(&open, Content::Zero, 0)]), Err(TargetError::OpenEnd(0))));
    assert!(matches!(try_lines(&[line(&b, Content::Zero, 0)]), Err(TargetError::Gap(0))));
}

#[test]
fn flush_reaches_every_store_and_fails_with_any() {
    let (a, b) = (segment(0, 8, 0, 512), segment(8, 8, 0, 512));
    for failing in [false, true] {
        for worker in [false, true] {
            let syncs: [_; 2] = Default::default();
            let store = |syncs: &Arc<AtomicUsize>, fails: bool| -> Arc<dyn BackingStore> {
                let syncs = Arc::clone(syncs);
                Arc::new(ScriptedStore::new(Arc::new(MemoryStore::new(vec![0; 4096])), move |call| {
                    syncs.fetch_add(usize::from(call == Call::Sync), Ordering::Relaxed);
                    if fails && call == Call::Sync { Verdict::Fail(Errno::IO) } else { Verdict::Pass }
                }))
            };
            let shared = vec![store(&syncs[0], false), store(&syncs[1], failing)];
            let lines = [
                Target { segment: &a, content: Content::Linear, store: 0 },
                Target { segment: &b, content: Content::Linear, store: 1 },
            ];
            let device = Arc::new(Device::stacked(&lines, shared, Access::default()).unwrap());
            let flush = || match worker {
                true => scripted::run(&device, IoMode::Auto, 1, vec![Ask::Flush]).remove(0).map(drop),
                false => BlockingDevice::new(Arc::clone(&device)).flush(),
            };
            let expected = if failing { Err(RequestError::Io(Errno::IO)) } else { Ok(()) };
            assert_eq!(flush(), expected);
            assert_eq!(syncs.each_ref().map(|syncs| syncs.load(Ordering::Relaxed)), [1, 1]);
            assert_eq!(flush(), expected, "a failed flush is remembered");
        }
    }
}

#[test]
fn table_of_zero_and_error_needs_no_store() {
    let (zero, error) = (segment(0, 8, 0, 512), segment(8, 8, 0, 512));
    let lines = [
        Target { segment: &zero, content: Content::Zero, store: 0 },
        Target { segment: &error, content: Content::Error, store: 0 },
    ];
    let access = Access { read_only: false, allow_discards: true };
    let device = Arc::new(Device::stacked(&lines, Vec::new(), access).unwrap());
    let asks = vec![
        Ask::Flush,
        Ask::Write { offset: 0, data: vec![7; 512], durable: true },
        Ask::Discard { offset: 0, len: 4096 },
        Ask::Read { offset: 0, len: 4 },
        Ask::Read { offset: 4096, len: 4 },
    ];
    let answers = scripted::run(&device, IoMode::Auto, 1, asks);
    assert!(answers[..3].iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(answers[3], Ok(vec![0; 4]));
    assert_eq!(answers[4], Err(RequestError::Io(Errno::IO)));
    BlockingDevice::new(Arc::clone(&device)).flush().unwrap();
    device.suspend().unwrap();
    device.set_keys(&[]).unwrap();
    device.resume().unwrap();
}
