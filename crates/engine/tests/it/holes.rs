//! Holes that read as zeroes: against a model, in every way to a store, and against writes at the same time.

use crate::asynchronous::ThreadStore;
use crate::scripted::{self, Ask};
use crate::support::{Random, independent_plaintext_at, key, with};
use inlock_cipher::{CipherSpec, DataUnitSize, Sector, Segment};
use inlock_engine::fault_injection::{Call, Fault, Injector};
use inlock_engine::store::BackingStore;
use inlock_engine::store::file::IoMode;
use inlock_engine::store::memory::MemoryStore;
use inlock_engine::{
    Access, BlockingDevice, ControlError, CryptMapping, Device, Errno, RequestError, TargetError, Zeroing,
};
use std::io::IoSliceMut;
use std::num::NonZeroU64;
use std::sync::Arc;

/// Length of what a discard makes a hole, as an object of Ceph.
const HOLE: u64 = 64 << 10;
/// Start of the data; not at a hole's.
const DATA: u64 = HOLE + 4096;
const LEN: u64 = 5 * HOLE;

/// Memory with exact holes.
fn memory() -> MemoryStore {
    MemoryStore::new(image()).with_exact_holes(NonZeroU64::new(HOLE).unwrap())
}

fn segment(unit: u32) -> Segment {
    let unit = DataUnitSize::new(unit).unwrap();
    with!(Segment::whole(Some(CipherSpec::AES_XTS_PLAIN64), unit); data_offset: Sector(DATA / 512))
}

fn noisy(store: Arc<dyn BackingStore>, unit: u32) -> Device {
    let access = Access { read_only: false, allow_discards: true };
    Device::new(&[segment(unit)], &key(), store, access).unwrap()
}

fn device(store: Arc<dyn BackingStore>, unit: u32) -> Arc<Device> {
    Arc::new(noisy(store, unit).with_zero_holes().unwrap())
}

fn image() -> Vec<u8> {
    vec![0; (DATA + LEN) as usize]
}

/// Decrypts by code that is not the engine's.
fn plaintext(image: &[u8], unit: u32) -> Vec<u8> {
    let mut plain = independent_plaintext_at(image, DATA as usize, 0, unit);
    let units = image[DATA as usize..].chunks(unit as usize).zip(plain.chunks_mut(unit as usize));
    units.filter(|(stored, _)| stored.iter().all(|byte| *byte == 0)).for_each(|(_, plain)| plain.fill(0));
    plain
}

fn script(random: &mut Random, count: usize) -> Vec<Ask> {
    let mut ask = |_| {
        let (offset, len) = random.range(LEN, 4096);
        match random.below(9) {
            0..=3 => Ask::Read { offset, len: len.min(scripted::MAX_LEN) },
            4 => Ask::Zeroes { offset, len: len.min(9000) },
            5 if len >= HOLE => Ask::Discard { offset, len },
            _ => Ask::Write { offset, data: random.bytes(len.min(9000) as usize), durable: false },
        }
    };
    (0..count).map(&mut ask).collect()
}

/// Discards a range in the model: whole holes of the store become zeroes.
fn discard(model: &mut [u8], offset: u64, len: u64) {
    let (start, end) = ((DATA + offset).next_multiple_of(HOLE), (DATA + offset + len) / HOLE * HOLE);
    if start < end {
        model[(start - DATA) as usize..(end - DATA) as usize].fill(0);
    }
}

fn agrees(store: Arc<dyn BackingStore>, unit: u32, seed: u64, contents: impl Fn() -> Vec<u8>) {
    let device = device(store, unit);
    let mut random = Random::new(seed);
    let script = script(&mut random, 80);
    let mut model = vec![0; LEN as usize];
    for (ask, answer) in script.iter().zip(scripted::run(&device, IoMode::Auto, 1, script.clone())) {
        let answer = answer.unwrap();
        match ask {
            Ask::Read { offset, len } => {
                assert!(answer == model[*offset as usize..][..*len as usize], "seed {seed}: {offset}+{len}");
            }
            Ask::Write { offset, data, .. } => model[*offset as usize..][..data.len()].copy_from_slice(data),
            Ask::Zeroes { offset, len } => model[*offset as usize..][..*len as usize].fill(0),
            Ask::Discard { offset, len } => discard(&mut model, *offset, *len),
            other => unreachable!("{other:?}"),
        }
    }
    assert!(plaintext(&contents(), unit) == model, "seed {seed}, data units of {unit}");
    let blocking = BlockingDevice::new(Arc::clone(&device));
    for (offset, len) in [(3, 5), (HOLE + 1, 4096), (4096, 8192), (100, HOLE)] {
        let data = random.bytes(len as usize);
        blocking.write_at(&data, offset).unwrap();
        model[offset as usize..][..len as usize].copy_from_slice(&data);
        blocking.discard(offset, LEN - offset).unwrap();
        discard(&mut model, offset, LEN - offset);
        for (offset, len) in [(0, LEN as usize), (7, 4000)] {
            let mut found = vec![1; len];
            blocking.read_at(&mut found, offset).unwrap();
            assert!(found == model[offset as usize..][..len], "a caller that blocks, seed {seed}");
            let mut pieces = vec![1; len];
            let (first, second) = pieces.split_at_mut(1000);
            blocking.read_vectored_at(&mut [IoSliceMut::new(first), IoSliceMut::new(second)], offset).unwrap();
            assert!(pieces == found, "pieces, seed {seed}");
        }
    }
}

/// Holes read as zeroes, and what surrounds a write into one too, however the store is accessed.
#[test]
fn holes_read_as_zeroes_and_writes_into_them_change_no_other_byte() {
    for (seed, unit) in [(1, 512), (2, 4096), (3, 4096), (4, 1024)] {
        let store = Arc::new(memory());
        agrees(Arc::clone(&store) as _, unit, seed, || store.contents());
        let none = |_: Call| None;
        let store = Arc::new(ThreadStore::over(memory(), Arc::new(none)));
        agrees(Arc::clone(&store) as _, unit, seed + 10, || store.contents());
        scripted::offloaded(|| {
            let store = Arc::new(memory());
            agrees(Arc::clone(&store) as _, unit, seed + 20, || store.contents());
        });
    }
}

/// Without the option the same image reads as in dm-crypt.
#[test]
fn holes_are_noise_unless_asked_for() {
    let store = Arc::new(memory());
    let mut noise = vec![0; 4096];
    BlockingDevice::new(Arc::new(noisy(Arc::clone(&store) as _, 4096))).read_at(&mut noise, 0).unwrap();
    assert!(noise.iter().filter(|byte| **byte == 0).count() < 64, "a hole decrypts to noise");
    let refused = noisy(Arc::new(MemoryStore::new(image())), 4096).with_zero_holes();
    assert!(matches!(refused, Err(TargetError::Holes(0))), "{refused:?}");
}

/// Bytes that could not be read again are not written.
#[test]
fn write_whose_ciphertext_is_a_hole_fails() {
    let store = Arc::new(memory());
    let mut noise = vec![0; 8192];
    BlockingDevice::new(Arc::new(noisy(Arc::clone(&store) as _, 4096))).read_at(&mut noise, 8192).unwrap();
    let device = device(Arc::clone(&store) as _, 4096);
    let write = |offset, data: &[u8]| Ask::Write { offset, data: data.to_vec(), durable: false };
    let script = vec![write(4096, &[&[7; 4096], &noise[..4096]].concat()), write(4096, &[7; 4096])];
    let refused = Err(RequestError::Io(Errno::IO));
    for run in [true, false] {
        let ask = || scripted::run(&device, IoMode::Auto, 1, script.clone());
        let mut answers = Vec::new();
        if run {
            answers = ask()
        } else {
            scripted::offloaded(|| answers = ask())
        }
        assert_eq!(answers[0].clone().map(|_| ()), refused);
        assert!(answers[1].is_ok());
    }
    let blocking = BlockingDevice::new(device);
    assert_eq!(blocking.write_at(&noise, 8192), refused);
    let mut found = vec![1; 12288];
    blocking.read_at(&mut found, 4096).unwrap();
    assert_eq!(found, [vec![7; 4096], vec![0; 8192]].concat());
    // Without a cipher zeroes are stored as zeroes.
    let null = with!(segment(512); cipher: Some("cipher_null-ecb".parse().unwrap()));
    let access = Access::default();
    let device = Device::new(&[null], &inlock_cipher::VolumeKey::new(&[]), Arc::clone(&store) as _, access).unwrap();
    let blocking = BlockingDevice::new(Arc::new(device.with_zero_holes().unwrap()));
    blocking.write_at(&[0; 1024], 512).unwrap();
}

#[test]
fn zeroing_divides_a_range_at_whole_holes() {
    let store = Arc::new(memory());
    let mapping = device(Arc::clone(&store) as _, 4096).mapping();
    let first = HOLE - 4096;
    for (offset, len, expected) in [
        (0, LEN, Zeroing::Write(first)),
        (first, LEN - first, Zeroing::Deallocate(4 * HOLE)),
        (first, 2 * HOLE - 1, Zeroing::Deallocate(HOLE)),
        (first + 1, 2 * HOLE - 1, Zeroing::Write(HOLE - 1)),
        (first + 1, 2 * HOLE - 2, Zeroing::Write(2 * HOLE - 2)),
        (first + HOLE, HOLE - 1, Zeroing::Write(HOLE - 1)),
        (LEN - 4096, 4096, Zeroing::Write(4096)),
    ] {
        assert_eq!(mapping.zeroing(offset, len, u64::MAX), Some(expected), "{offset}+{len}");
    }
    assert_eq!(mapping.zeroing(first, 4 * HOLE, HOLE * 2 + 1), Some(Zeroing::Deallocate(2 * HOLE)));
    assert_eq!(mapping.zeroing(first, 4 * HOLE, 1), Some(Zeroing::Deallocate(HOLE)));
    assert_eq!(mapping.zeroing(LEN, 1, u64::MAX), None, "beyond the end");
    assert!(mapping.can_zero_fast(first, 3 * HOLE) && !mapping.can_zero_fast(first, HOLE + 4096));
    assert!(!mapping.can_zero_fast(first, 0) && !mapping.can_zero_fast(0, HOLE) && mapping.has_zero_holes());
    let noisy = noisy(Arc::clone(&store) as _, 4096).mapping();
    assert_eq!(noisy.zeroing(first, 2 * HOLE, u64::MAX), None);
    assert!(!noisy.can_zero_fast(first, HOLE) && !noisy.has_zero_holes());
    // Units that are not counted from the start of the store lie across its holes.
    let shifted = with!(segment(4096); data_offset: Sector(3), sectors: Some(512));
    let access = Access { read_only: false, allow_discards: true };
    let device = Device::new(&[shifted], &key(), Arc::clone(&store) as _, access).unwrap().with_zero_holes().unwrap();
    assert_eq!(device.mapping().zeroing(0, 4 * HOLE, u64::MAX), Some(Zeroing::Write(4 * HOLE)));
}

/// A write that has read the unit before a discard, and writes it afterwards, would bring old bytes back.
#[test]
fn discard_waits_for_writes_of_parts_of_its_units() {
    for blocks in [false, true] {
        let slow_reads = |call: Call| matches!(call, Call::Read).then_some(Fault::Delay(30));
        let faults: Arc<dyn Injector> = Arc::new(slow_reads);
        let store = Arc::new(ThreadStore::over(memory(), faults));
        let device = device(Arc::clone(&store) as _, 4096);
        let (start, len) = (2 * HOLE - DATA, HOLE);
        let fill = Ask::Write { offset: start, data: vec![5; len as usize], durable: false };
        assert!(scripted::run(&device, IoMode::Auto, 1, vec![fill])[0].is_ok());
        let part = Ask::Write { offset: start + 10, data: vec![6; 10], durable: false };
        let discard = Ask::DurableDiscard { offset: start, len };
        let script = if blocks { vec![part] } else { vec![part, discard] };
        let caller = Arc::clone(&device);
        let blocking = std::thread::spawn(move || {
            if blocks {
                std::thread::sleep(std::time::Duration::from_millis(5));
                BlockingDevice::new(caller).discard(start, len).unwrap();
            }
        });
        assert!(scripted::run(&device, IoMode::Auto, 2, script).iter().all(Result::is_ok));
        blocking.join().unwrap();
        let plain = plaintext(&store.contents(), 4096);
        let found = &plain[start as usize..(start + len) as usize];
        // Either order is right; the bytes around those of the write are zeroes in both.
        assert!(found[..10].iter().chain(&found[20..]).all(|byte| *byte == 0), "bytes from before the discard");
    }
}

#[test]
fn holes_stay_zero_with_another_key_table_or_length() {
    let store = Arc::new(memory());
    let device = device(Arc::clone(&store) as _, 4096);
    let is_zero = || {
        let mut found = vec![1; 8192];
        BlockingDevice::new(Arc::clone(&device)).read_at(&mut found, 4096).unwrap();
        found.iter().all(|byte| *byte == 0)
    };
    device.suspend().unwrap();
    device.wipe_key().unwrap();
    device.set_key(&key()).unwrap();
    device.resume().unwrap();
    assert!(is_zero());
    device.reload(CryptMapping::new(&[segment(512)], &key(), DATA + LEN).unwrap()).unwrap();
    assert!(is_zero());
    device.set_len(2 * HOLE).unwrap();
    assert!(is_zero());
    let grown: Result<u64, ControlError> = device.grow();
    assert!(grown.is_ok() && is_zero());
}
