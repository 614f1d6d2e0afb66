//! A cipher engine that is late, loses jobs, fails them, lies about their length, and refuses some.

use crate::scripted::{self, Ask};
use crate::support::{DATA_OFFSET, Random, independent_plaintext, key, segment};
use inlock_cipher::{InOut, SectorCipher, VolumeKey, new_sector_cipher};
use inlock_engine::store::file::{FileStore, IoMode};
use inlock_engine::store::memory::MemoryStore;
use inlock_engine::{
    Access, BackingStore, BlockingDevice, CipherEngine, CipherJob, Content, ControlError, CryptMapping, Device,
    Direction, EngineKey, EngineKeySpec, Errno, MoveDirection, RequestError, Sides, Target, TargetError,
};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex};

/// Share of jobs with a fault, in thousandths.
#[derive(Clone, Copy, Default)]
struct Faults {
    refused: u64,
    late: u64,
    lost: u64,
    short: u64,
    failed: u64,
}

/// Outcome of an accepted job.
#[derive(Clone, Copy)]
enum Fate {
    Done,
    Late,
    Lost,
    Short,
    Failed,
}

/// An engine behind a thread, with the ciphers of the software.
struct ThreadEngine {
    min_len: usize,
    sender: Mutex<Sender<Task>>,
    faults: Arc<Mutex<(Random, Faults)>>,
    keys: Arc<AtomicUsize>,
}

struct Task {
    key: Arc<Key>,
    job: CipherJob,
    fate: Fate,
}

/// A key that is counted while it exists.
struct Key {
    cipher: Box<dyn SectorCipher>,
    keys: Arc<AtomicUsize>,
}

struct Handle {
    key: Arc<Key>,
    min_len: usize,
    sender: Sender<Task>,
    faults: Arc<Mutex<(Random, Faults)>>,
}

impl Drop for Key {
    fn drop(&mut self) {
        self.keys.fetch_sub(1, Ordering::SeqCst);
    }
}

impl ThreadEngine {
    fn new(min_len: usize, faults: Faults) -> Arc<Self> {
        let (sender, receiver) = channel();
        std::thread::spawn(move || work(&receiver));
        let faults = Arc::new(Mutex::new((Random::new(56), faults)));
        Arc::new(Self { min_len, sender: Mutex::new(sender), faults, keys: Arc::default() })
    }
}

impl CipherEngine for ThreadEngine {
    fn open_key(&self, spec: &EngineKeySpec<'_>) -> Option<Box<dyn EngineKey>> {
        let cipher = new_sector_cipher(spec.cipher, spec.key.as_bytes(), spec.unit, spec.large_iv.into()).ok()?;
        self.keys.fetch_add(1, Ordering::SeqCst);
        let key = Arc::new(Key { cipher, keys: Arc::clone(&self.keys) });
        let (sender, faults) = (self.sender.lock().unwrap().clone(), Arc::clone(&self.faults));
        Some(Box::new(Handle { key, min_len: self.min_len, sender, faults }))
    }
}

impl EngineKey for Handle {
    fn submit(&self, mut job: CipherJob) -> Result<(), CipherJob> {
        assert!(job.data_mut().len() >= self.min_len, "{job:?} is shorter than any that the engine is for");
        let (random, faults) = &mut *self.faults.lock().unwrap();
        let mut left = random.below(1000);
        let mut falls = |share: u64| {
            let falls = left < share;
            left = left.wrapping_sub(share);
            falls
        };
        if falls(faults.refused) {
            return Err(job);
        }
        let fates = [
            (faults.late, Fate::Late),
            (faults.lost, Fate::Lost),
            (faults.short, Fate::Short),
            (faults.failed, Fate::Failed),
        ];
        let fate = fates.into_iter().find(|(share, _)| falls(*share)).map_or(Fate::Done, |(_, fate)| fate);
        self.sender.send(Task { key: Arc::clone(&self.key), job, fate }).map_err(|unsent| unsent.0.job)
    }
}

/// Completes the jobs; late ones in reverse order, when there are no others.
fn work(receiver: &Receiver<Task>) {
    let mut late: Vec<Task> = Vec::new();
    loop {
        let task = if late.is_empty() {
            receiver.recv().ok()
        } else {
            match receiver.try_recv() {
                Ok(task) => Some(task),
                Err(TryRecvError::Empty) => {
                    late.drain(..).rev().for_each(complete);
                    continue;
                }
                Err(TryRecvError::Disconnected) => None,
            }
        };
        match task {
            None => return,
            Some(task @ Task { fate: Fate::Late, .. }) => late.push(task),
            Some(task) => complete(task),
        }
    }
}

fn complete(Task { key, mut job, fate }: Task) {
    let (first, direction) = (job.first(), job.direction());
    let data = job.data_mut();
    let len = data.len();
    match (fate, direction) {
        (Fate::Done | Fate::Late, Direction::Encrypt) => key.cipher.encrypt(first, InOut::InPlace(data)),
        (Fate::Done | Fate::Late, Direction::Decrypt) => key.cipher.decrypt(first, InOut::InPlace(data)),
        // Neither plaintext nor ciphertext.
        _ => data[..len / 2].fill(0xee),
    }
    drop(key);
    match fate {
        Fate::Done | Fate::Late => job.complete(Ok(len)),
        Fate::Lost => drop(job),
        Fate::Short => job.complete(Ok(len - 512)),
        Fate::Failed => job.complete(Err(Errno::IO)),
    }
}

fn device(store: Arc<dyn BackingStore>, engine: &Arc<ThreadEngine>) -> Arc<Device> {
    let device = Device::new(&[segment(UNIT)], &key(), store, Access::default()).unwrap();
    Arc::new(device.with_engine(Arc::clone(engine) as _, engine.min_len, &[&key()]).unwrap())
}

const UNIT: u32 = 4096;
/// Part of the device with at most one request at a time.
const SLOT: u64 = 16 << 10;
const SLOTS: u64 = 100;
const ROUNDS: u64 = 1000;

/// A request within each slot, and the bytes that it writes.
fn script(random: &mut Random) -> Vec<Ask> {
    let ask = |slot| {
        let (offset, len) = random.range(SLOT, UNIT.into());
        let offset = slot * SLOT + offset;
        match random.below(8) {
            0 => Ask::Zeroes { offset, len },
            1..4 => Ask::Write { offset, data: vec![random.next() as u8; len as usize], durable: false },
            _ => Ask::Read { offset, len },
        }
    };
    (0..SLOTS).map(ask).collect()
}

/// Compares the answers with the model, and puts the bytes of successful writes there. Returns the number of errors.
fn compare(model: &mut [u8], script: Vec<Ask>, answers: Vec<scripted::Answer>) -> u64 {
    let mut errors = 0;
    for (ask, answer) in script.into_iter().zip(answers) {
        let bytes = match answer {
            Ok(bytes) => bytes,
            Err(error) => {
                assert_eq!(error, RequestError::Io(Errno::IO));
                errors += 1;
                continue;
            }
        };
        let range = |offset: u64, len: usize| offset as usize..offset as usize + len;
        match ask {
            Ask::Read { offset, .. } => assert!(bytes == model[range(offset, bytes.len())], "read at {offset}"),
            Ask::Write { offset, data, .. } => model[range(offset, data.len())].copy_from_slice(&data),
            Ask::Zeroes { offset, len } => model[range(offset, len as usize)].fill(0),
            _ => unreachable!("the script has no such request"),
        }
    }
    errors
}

/// Ends the other thread, also when this one panics.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Fails the requests of a suspended device if this thread panics, so that they do not wait for ever.
struct EndOnPanic<'a>(&'a Device);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.end();
        }
    }
}

/// Suspends the device, and looks for keys in the engine meanwhile, until `over`, and a hundred times at
/// least. Returns how often.
fn wipe_keys(device: &Device, engine: &ThreadEngine, over: &AtomicBool) -> u64 {
    let _end = EndOnPanic(device);
    let mut wiped = 0;
    while wiped < 100 || !over.load(Ordering::Relaxed) {
        device.suspend().unwrap();
        assert_eq!(engine.keys.load(Ordering::SeqCst), 1);
        device.wipe_key().unwrap();
        assert_eq!(engine.keys.load(Ordering::SeqCst), 0, "a key is left in the engine");
        device.set_key(&key()).unwrap();
        device.resume().unwrap();
        wiped += 1;
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    wiped
}

#[test]
fn requests_of_a_faulty_engine_are_right_or_fail() {
    let faults = Faults { refused: 100, late: 200, lost: 20, short: 20, failed: 20 };
    let engine = ThreadEngine::new(8192, faults);
    let file = tempfile::tempfile().unwrap();
    file.set_len(DATA_OFFSET as u64 + SLOTS * SLOT).unwrap();
    let store = Arc::new(FileStore::new(file.try_clone().unwrap(), IoMode::Auto).unwrap());
    let device = device(store, &engine);
    let mut model = vec![0; (SLOTS * SLOT) as usize];
    let zeroes = Ask::Zeroes { offset: 0, len: SLOTS * SLOT };
    crate::faults::run_blocking(&inlock_engine::BlockingDevice::new(Arc::clone(&device)), &[zeroes]);
    let over = AtomicBool::new(false);
    let (mut requests, mut errors) = (0, 0);
    let wiped = std::thread::scope(|scope| {
        let wiper = scope.spawn(|| wipe_keys(&device, &engine, &over));
        let ends = SetOnDrop(&over);
        let mut random = Random::new(17);
        for _ in 0..ROUNDS {
            let script = script(&mut random);
            let answers = scripted::run_with(&device, IoMode::Auto, 16, script.clone(), None);
            requests += answers.len();
            errors += compare(&mut model, script, answers);
        }
        drop(ends);
        wiper.join().unwrap()
    });
    let stats = device.engine_stats().unwrap();
    assert_eq!(errors, stats.failed, "a failed job fails its request, and nothing else does");
    assert!(stats.refused > 0 && stats.accepted > 10 * stats.failed, "{stats:?}");
    let image = std::fs::read(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file))).unwrap();
    assert!(independent_plaintext(&image, UNIT) == model);
    device.suspend().unwrap();
    device.wipe_key().unwrap();
    assert_eq!(engine.keys.load(Ordering::SeqCst), 0);
    println!("COUNT engine_requests {requests}");
    println!("COUNT engine_jobs_failed {errors}");
    println!("COUNT engine_jobs_refused {}", stats.refused);
    println!("COUNT engine_key_wipes {}", wiped + 1);
}

#[test]
fn engine_gets_long_requests_only() {
    let engine = ThreadEngine::new(8192, Faults::default());
    let store = Arc::new(MemoryStore::new(vec![0; DATA_OFFSET + (64 << 10)]));
    let device = device(Arc::clone(&store) as _, &engine);
    let write = |offset, len| Ask::Write { offset, data: vec![7; len], durable: false };
    let script = vec![write(0, 4096), write(4096, 8192), write(12_288, 4095), Ask::Read { offset: 1, len: 4096 }];
    for answer in scripted::run_with(&device, IoMode::Auto, 1, script, None) {
        answer.unwrap();
    }
    let stats = device.engine_stats().unwrap();
    assert_eq!((stats.accepted, stats.refused, stats.failed), (2, 0, 0), "of 8192 bytes, and of two units");
    let snapshot = device.stats().snapshot();
    assert_eq!((snapshot.offloaded, snapshot.inline), (2, 2));
    assert!(independent_plaintext(&store.contents(), UNIT)[..12_288 + 4095].iter().all(|b| *b == 7));
}

#[test]
fn engine_has_the_keys_of_both_sides_of_a_re_encryption() {
    const LEN: u64 = 64 << 10;
    let engine = ThreadEngine::new(1, Faults::default());
    let store = Arc::new(MemoryStore::new(vec![0; DATA_OFFSET + LEN as usize]));
    let device = device(Arc::clone(&store) as _, &engine);
    let (old, new, segment) = (key(), VolumeKey::new(&[0x29; 64]), segment(UNIT));
    let target = |key| Target { segment: &segment, content: Content::Crypt(key), store: 0 };
    let (direction, boundary) = (MoveDirection::Forward, LEN / 2);
    let sides = Sides { old: target(&old), new: target(&new), direction, boundary, len: LEN };
    let moving = || CryptMapping::moving(&sides, &[store.geometry().len]).unwrap();
    let refused = device.reload_with_keys(moving(), &[&old]);
    assert!(matches!(refused, Err(ControlError::Target(TargetError::KeyCount { given: 1, expected: 2 }))));
    device.reload_with_keys(moving(), &[&old, &new]).unwrap();
    assert_eq!(device.engine_stats().unwrap().keys, 2);
    let halves = [0, boundary].map(|offset| Ask::Write { offset, data: vec![7; LEN as usize / 2], durable: false });
    for answer in scripted::run_with(&device, IoMode::Auto, 1, halves.to_vec(), None) {
        answer.unwrap();
    }
    assert_eq!(device.engine_stats().unwrap().accepted, 2);
    let mut bytes = vec![0; LEN as usize];
    for (key, half) in [(&new, 0..LEN / 2), (&old, LEN / 2..LEN)] {
        let alone = Device::new(&[segment], key, Arc::clone(&store) as _, Access::default()).unwrap();
        let into = &mut bytes[half.start as usize..half.end as usize];
        BlockingDevice::new(Arc::new(alone)).read_at(into, half.start).unwrap();
    }
    assert!(bytes.iter().all(|byte| *byte == 7));
    device.reload(moving()).unwrap();
    assert_eq!(device.engine_stats().unwrap().keys, 0, "another table is for software only");
}

#[test]
fn jobs_refused_by_engine_are_done_inline() {
    let engine = ThreadEngine::new(1, Faults { refused: 1000, ..Faults::default() });
    let store = Arc::new(MemoryStore::new(vec![0; DATA_OFFSET + (64 << 10)]));
    let device = device(Arc::clone(&store) as _, &engine);
    let script =
        vec![Ask::Write { offset: 0, data: vec![9; 16_384], durable: false }, Ask::Read { offset: 3, len: 16_000 }];
    let answers = scripted::run_with(&device, IoMode::Auto, 1, script, None);
    assert!(answers[1].as_ref().unwrap() == &[9; 16_000]);
    let stats = device.engine_stats().unwrap();
    assert_eq!((stats.accepted, stats.refused, stats.failed), (0, 2, 0));
    assert_eq!((device.stats().snapshot().offloaded, device.stats().snapshot().inline), (0, 2));
    assert!(independent_plaintext(&store.contents(), UNIT)[..16_384].iter().all(|b| *b == 9));
}
