//! Suspend, resume, other keys and other tables, under load and by hand.

use crate::scripted::{self, Ask};
use crate::stacked::segment;
use crate::support::with;
use crate::support::{Random, key};
use inlock_cipher::{Segment, VolumeKey};
use inlock_engine::Errno;
use inlock_engine::buffer::{BufferClass, BufferPool};
use inlock_engine::request::Operation;
use inlock_engine::ring::{Completion, Ring, Wait};
use inlock_engine::rmw;
use inlock_engine::store::file::{FileStore, IoMode};
use inlock_engine::store::{BackingStore, memory::MemoryStore};
use inlock_engine::worker::{Context, Finished, Flow, Frontend, Request, Worker};
use inlock_engine::{
    Access, BlockingDevice, Content, ControlError, CryptMapping, Device, RequestError, Target, TargetError,
};
use inlock_testing::{Call, ScriptedStore, Verdict};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// Memory that counts its reads and writes, and its syncs.
struct Counted {
    store: Arc<ScriptedStore>,
    calls: Arc<AtomicUsize>,
    syncs: Arc<AtomicUsize>,
}

impl Counted {
    fn new(len: usize) -> Self {
        let (calls, syncs) = <(Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
        let counters = (Arc::clone(&calls), Arc::clone(&syncs));
        let script = move |call: Call<'_>| {
            counters.0.fetch_add(usize::from(call.range().is_some()), Ordering::SeqCst);
            counters.1.fetch_add(usize::from(call == Call::Sync), Ordering::SeqCst);
            Verdict::Pass
        };
        Self { store: Arc::new(ScriptedStore::new(Arc::new(MemoryStore::new(vec![0; len])), script)), calls, syncs }
    }
}

fn whole(len: u64) -> Segment {
    with!(segment(0, len / 512, 0, 512); sectors: None)
}

fn device_on(store: &Counted) -> Arc<Device> {
    let shared = Arc::clone(&store.store) as _;
    Arc::new(Device::new(&[whole(store.store.geometry().len)], &key(), shared, Access::default()).unwrap())
}

/// Each thread's own part of the device.
const SHARE: u64 = 64 << 10;

/// Writes and reads its share, wholly and in part, and holds every answer against a model.
fn work_on(share: u64, rounds: usize, mut ask: impl FnMut(Vec<Ask>) -> Vec<scripted::Answer>) {
    let mut random = Random::new(share + 1);
    let mut model = vec![0; SHARE as usize];
    let base = share * SHARE;
    for _ in 0..rounds {
        let (offset, len) = random.range(SHARE, 512);
        let (start, end) = (offset as usize, (offset + len) as usize);
        let data = random.bytes(len as usize);
        model[start..end].copy_from_slice(&data);
        ask(vec![Ask::Write { offset: base + offset, data, durable: false }]).remove(0).unwrap();
        let read = ask(vec![Ask::Read { offset: base, len: SHARE }]).remove(0).unwrap();
        assert!(read == model, "share {share}");
    }
}

#[test]
fn requests_wait_while_suspended_and_none_is_lost() {
    let store = Counted::new(4 * SHARE as usize);
    let device = device_on(&store);
    BlockingDevice::new(Arc::clone(&device)).write_zeroes(0, 4 * SHARE).unwrap();
    let over = AtomicBool::new(false);
    let mut cycles = 0;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|share| {
                let device = Arc::clone(&device);
                scope.spawn(move || match share {
                    0 | 1 => {
                        let mode = if share == 0 { IoMode::Auto } else { IoMode::Sync };
                        work_on(share, 150, |script| scripted::run(&device, mode, 2, script));
                    }
                    _ => {
                        let device = BlockingDevice::new(device);
                        work_on(share, 600, |script| crate::faults::run_blocking(&device, &script));
                    }
                })
            })
            .collect();
        let (device, store, over) = (&device, &store, &over);
        let orders = scope.spawn(move || {
            let mut cycles = 0;
            while !over.load(Ordering::Relaxed) {
                device.suspend().unwrap();
                let (calls, before) = (store.calls.load(Ordering::SeqCst), store.store.inner().contents());
                if cycles % 2 == 0 {
                    device.wipe_key().unwrap();
                }
                std::thread::sleep(Duration::from_millis(1));
                assert_eq!(calls, store.calls.load(Ordering::SeqCst), "the store was asked while suspended");
                assert!(before == store.store.inner().contents());
                if cycles % 2 == 0 {
                    device.set_key(&key()).unwrap();
                }
                device.resume().unwrap();
                cycles += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            cycles
        });
        let ended: Vec<_> = workers.into_iter().map(|w| w.join()).collect();
        over.store(true, Ordering::Relaxed);
        cycles = orders.join().unwrap();
        assert!(ended.iter().all(Result::is_ok));
    });
    assert!(cycles > 3, "suspended {cycles} times");
}

#[test]
fn requests_during_suspend_complete_after_resume() {
    let store = Counted::new(4 * SHARE as usize);
    let device = device_on(&store);
    device.suspend().unwrap();
    assert!(device.is_suspended());
    assert_eq!(store.syncs.load(Ordering::SeqCst), 1, "suspending flushes");
    device.suspend().unwrap();
    let (tell, answered) = mpsc::channel();
    std::thread::scope(|scope| {
        for share in 0..4 {
            let (device, tell) = (Arc::clone(&device), tell.clone());
            scope.spawn(move || {
                let write = Ask::Write { offset: share * SHARE + 3, data: vec![share as u8; 1000], durable: false };
                let ok = match share % 2 {
                    0 => scripted::run(&device, IoMode::Auto, 2, vec![write, Ask::Flush]).iter().all(Result::is_ok),
                    _ => BlockingDevice::new(device).write_at(&[share as u8; 1000], share * SHARE + 3).is_ok(),
                };
                tell.send((share, ok)).unwrap();
            });
        }
        let early = answered.recv_timeout(Duration::from_millis(100));
        assert!(early.is_err(), "{early:?} was answered while suspended");
        assert_eq!(store.calls.load(Ordering::SeqCst), 0);
        device.resume().unwrap();
        let mut seen: Vec<_> = (0..4).map(|_| answered.recv().unwrap()).collect();
        seen.sort_unstable();
        assert_eq!(seen, [(0, true), (1, true), (2, true), (3, true)]);
    });
    let device = BlockingDevice::new(device);
    for share in 0..4u8 {
        let mut bytes = [0xff; 1000];
        device.read_at(&mut bytes, u64::from(share) * SHARE + 3).unwrap();
        assert_eq!(bytes, [share; 1000]);
    }
}

#[test]
fn orders_that_cannot_be_followed_are_refused() {
    let store = Counted::new(8192);
    let device = device_on(&store);
    let other = VolumeKey::new(&[9; 64]);
    assert!(matches!(device.wipe_key(), Err(ControlError::NotSuspended)));
    assert!(matches!(device.set_key(&other), Err(ControlError::NotSuspended)));
    device.resume().unwrap();
    let blocking = BlockingDevice::new(Arc::clone(&device));
    blocking.write_at(&[7; 8192], 0).unwrap();
    device.suspend().unwrap();
    device.wipe_key().unwrap();
    assert!(matches!(device.resume(), Err(ControlError::NoKey)));
    assert!(device.is_suspended());
    let short = VolumeKey::new(&[9; 32]);
    let refused = device.set_key(&short);
    assert!(matches!(refused, Err(ControlError::Target(TargetError::KeyLength { given: 32, expected: 64 }))));
    let refused = device.set_keys(&[&other, &other]);
    assert!(matches!(refused, Err(ControlError::Target(TargetError::KeyCount { given: 2, expected: 1 }))));
    assert!(matches!(device.resume(), Err(ControlError::NoKey)), "a refused key is no key");
    device.set_key(&other).unwrap();
    device.resume().unwrap();
    let mut bytes = [7; 512];
    blocking.read_at(&mut bytes, 0).unwrap();
    assert_ne!(bytes, [7; 512], "another key reads something else");
    let target = |segment: &Segment, len| CryptMapping::new(&[*segment], &other, len).unwrap();
    assert!(matches!(device.reload(target(&segment(0, 8, 0, 512), 8192)), Err(ControlError::Shorter { .. })));
    let long = target(&segment(0, 32, 0, 512), 16384);
    let refused = device.reload(long);
    assert!(matches!(refused, Err(ControlError::Target(TargetError::BeyondStore { .. }))));
    let big = CryptMapping::new(&[segment(0, 16, 0, 8192)], &other, 8192).unwrap();
    assert!(matches!(device.reload(big), Err(ControlError::LargerUnit { unit: 8192, most: 4096 })));
    let line = segment(0, 16, 0, 512);
    let elsewhere = CryptMapping::stacked(&[Target { segment: &line, content: Content::Linear, store: 1 }], &[0, 8192]);
    let refused = device.reload(elsewhere.unwrap());
    assert!(matches!(refused, Err(ControlError::Target(TargetError::NoStore(0)))));
    assert!(!device.is_suspended());
    blocking.read_at(&mut bytes, 0).unwrap();
}

#[test]
fn ended_device_fails_waiting_requests() {
    let store = Counted::new(8192);
    let device = device_on(&store);
    device.suspend().unwrap();
    let shutdown = RequestError::Io(Errno::SHUTDOWN);
    std::thread::scope(|scope| {
        let worker = Arc::clone(&device);
        let asks = vec![Ask::Read { offset: 0, len: 512 }, Ask::Flush];
        let worker = scope.spawn(move || scripted::run(&worker, IoMode::Auto, 2, asks));
        let blocking = BlockingDevice::new(Arc::clone(&device));
        let blocking = scope.spawn(move || blocking.read_at(&mut [0; 512], 0));
        std::thread::sleep(Duration::from_millis(20));
        device.end();
        assert_eq!(worker.join().unwrap(), [Err(shutdown), Err(shutdown)]);
        assert_eq!(blocking.join().unwrap(), Err(shutdown));
    });
    assert!(matches!(device.resume(), Err(ControlError::Ended)));
    // Only a suspended device is given up. A running one continues to its end, and refuses to be suspended, because
    // that would block the thread that stops it.
    let device = device_on(&store);
    device.end();
    assert!(matches!(device.suspend(), Err(ControlError::Ended)));
    BlockingDevice::new(device).write_at(&[1; 512], 0).unwrap();
}

/// Asks for a write of a part of a unit, and is finished at once.
struct Hasty {
    asked: bool,
}

impl Frontend for Hasty {
    type Message = ();

    fn on_message(&mut self, _cx: &mut Context<'_>, (): ()) {}
    fn on_completion(&mut self, _cx: &mut Context<'_>, _done: Completion) {}
    fn on_finished(&mut self, _cx: &mut Context<'_>, _done: Finished) {
        unreachable!("it does not stay for the answer");
    }
    fn end_turn(&mut self, cx: &mut Context<'_>) -> (Flow, Wait) {
        let mapped = cx.mapping.locate(100, 8, 4096).unwrap();
        let [buffer, spare] = [mapped.aligned_len, rmw::spare_len(&mapped)].map(|len| cx.pool.take(len, len));
        let operation = Operation::Write { durable: false };
        cx.requests.push_back(Request {
            id: 0,
            operation,
            offset: 100,
            len: 8,
            data: buffer.map(|b| (mapped, b)),
            spare,
        });
        self.asked = true;
        (Flow::Stop, Wait::No)
    }
}

/// As where its ring or its frontend fails.
#[test]
fn worker_that_ends_early_leaves_nothing_locked_or_in_flight() {
    for mode in [IoMode::Auto, IoMode::Sync] {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        // Through the ring, on any file system.
        let store: Arc<dyn BackingStore> = Arc::new(FileStore::new(file, IoMode::Uring).unwrap());
        let device = Arc::new(Device::new(&[whole(8192)], &key(), store, Access::default()).unwrap());
        let pool = BufferPool::new(&[BufferClass { capacity: 4096, count: 4 }]);
        let mut worker = Worker::new(Arc::clone(&device), Ring::new(mode).unwrap(), pool, Hasty { asked: false });
        worker.run().unwrap();
        assert!(worker.front().asked && worker.pool().outstanding() == 2);
        drop(worker);
        // It would wait for ever for the lock, and suspending for it.
        BlockingDevice::new(Arc::clone(&device)).write_at(&[1; 512], 0).unwrap();
        device.suspend().unwrap();
        device.wipe_key().unwrap();
    }
}

/// Locates its requests at once, and hands them over when it is told to.
struct Late {
    script: Vec<Ask>,
    ready: Vec<Request>,
    located: mpsc::Sender<()>,
    answers: Vec<(u64, scripted::Answer)>,
    expected: usize,
}

impl Frontend for Late {
    type Message = ();

    fn on_message(&mut self, cx: &mut Context<'_>, (): ()) {
        cx.requests.extend(self.ready.drain(..));
    }
    fn on_completion(&mut self, _cx: &mut Context<'_>, _done: Completion) {}
    fn on_finished(&mut self, _cx: &mut Context<'_>, done: Finished) {
        let bytes = done.data.map(|(mapped, buffer)| buffer.data()[mapped.requested()].to_vec()).unwrap_or_default();
        self.answers.push((done.id, done.result.map(|()| bytes)));
    }
    fn end_turn(&mut self, cx: &mut Context<'_>) -> (Flow, Wait) {
        for (id, ask) in self.script.drain(..).enumerate() {
            let (operation, offset, len) = match &ask {
                Ask::Read { offset, len } => (Operation::Read, *offset, *len),
                Ask::Write { offset, data, .. } => (Operation::Write { durable: true }, *offset, data.len() as u64),
                Ask::Zeroes { offset, len } => (Operation::WriteZeroes { durable: false }, *offset, *len),
                _ => unreachable!("only what moves data"),
            };
            let mapped = cx.mapping.locate(offset, len, usize::MAX / 2).unwrap();
            assert_eq!(mapped.len as u64, len);
            let mut buffer = cx.pool.take(mapped.aligned_len, mapped.aligned_len).unwrap();
            buffer.data_mut().fill(0xdd);
            if let Ask::Write { data, .. } = &ask {
                buffer.data_mut()[mapped.requested()].copy_from_slice(data);
            }
            let spare_len = if operation.modifies() { rmw::spare_len(&mapped) } else { 0 };
            let spare = (spare_len > 0).then(|| cx.pool.take(spare_len, spare_len).unwrap());
            let id = id as u64;
            self.ready.push(Request { id, operation, offset, len, data: Some((mapped, buffer)), spare });
        }
        let _ = self.located.send(());
        let over = self.answers.len() == self.expected;
        (if over { Flow::Stop } else { Flow::Continue }, Wait::Forever)
    }
}

/// Runs `script` on a worker that locates it before `reload` and carries it out after.
fn across(device: &Arc<Device>, script: Vec<Ask>, reload: impl FnOnce(&Device)) -> Vec<scripted::Answer> {
    let (located, seen) = mpsc::channel();
    let (tell, mailbox) = mpsc::channel();
    let expected = script.len();
    let device_of_worker = Arc::clone(device);
    let worker = std::thread::spawn(move || {
        let pool = BufferPool::new(&[BufferClass { capacity: 64 << 10, count: 64 }]);
        let front = Late { script, ready: Vec::new(), located, answers: Vec::new(), expected };
        let mut worker = Worker::new(device_of_worker, Ring::new(IoMode::Auto).unwrap(), pool, front);
        tell.send(worker.mailbox()).unwrap();
        worker.run().unwrap();
        let mut answers = worker.front().answers.clone();
        answers.sort_by_key(|(id, _)| *id);
        answers.into_iter().map(|(_, answer)| answer).collect()
    });
    let mailbox = mailbox.recv().unwrap();
    seen.recv().unwrap();
    reload(device);
    mailbox.post(());
    worker.join().unwrap()
}

/// The new table has other units, other borders, another key and another place; longer than the old one.
#[test]
fn requests_from_before_a_reload_are_carried_out_as_the_new_table_says() {
    for suspended in [false, true] {
        let store = Arc::new(MemoryStore::new(vec![0x11; 256 << 10]));
        let shared = Arc::clone(&store) as Arc<dyn BackingStore>;
        let before = segment(0, 128, 0, 512);
        let device = Arc::new(Device::new(&[before], &key(), shared, Access::default()).unwrap());
        let other = VolumeKey::new(&[0x77; 64]);
        let lines =
            [segment(0, 24, 200, 4096), segment(24, 9, 5, 512), segment(33, 31, 0, 512), segment(64, 96, 240, 4096)];
        let content = |at: usize| match at {
            0 => Content::Crypt(&other),
            1 => Content::Linear,
            2 => Content::Zero,
            _ => Content::Crypt(&other),
        };
        let lines: Vec<_> =
            lines.iter().enumerate().map(|(at, segment)| Target { segment, content: content(at), store: 0 }).collect();
        let target = || CryptMapping::stacked(&lines, &[256 << 10]).unwrap();
        let reload = |device: &Device| {
            if suspended {
                device.suspend().unwrap();
                device.wipe_key().unwrap();
            }
            device.reload(target()).unwrap();
            assert_eq!(device.is_suspended(), suspended);
            if suspended {
                device.resume().unwrap();
            }
        };
        let mut random = Random::new(5);
        let mut model = vec![0u8; 160 * 512];
        let mut script = Vec::new();
        for (offset, len) in
            [(100, 11_000), (12_000, 300), (12_288, 4096), (16_000, 900), (17_000, 30_000), (48_000, 17_000)]
        {
            let data = random.bytes(len);
            model[offset..offset + len].copy_from_slice(&data);
            script.push(Ask::Write { offset: offset as u64, data, durable: true });
        }
        script.push(Ask::Zeroes { offset: 65_100, len: 30 });
        model[65_100..65_130].fill(0);
        model[33 * 512..64 * 512].fill(0);
        // What is not written keeps what it was; the model takes that from the new table alone.
        let fresh = |store: &Arc<MemoryStore>| {
            let shared = Arc::clone(store) as Arc<dyn BackingStore>;
            BlockingDevice::new(Arc::new(Device::stacked(&lines, vec![shared], Access::default()).unwrap()))
        };
        fresh(&store).write_zeroes(0, 160 * 512).unwrap();
        for answer in across(&device, script, reload) {
            answer.unwrap();
        }
        assert_eq!(device.len(), 160 * 512);
        let mut bytes = vec![1; 160 * 512];
        fresh(&store).read_at(&mut bytes, 0).unwrap();
        assert!(bytes == model, "suspended: {suspended}");
        BlockingDevice::new(Arc::clone(&device)).read_at(&mut bytes, 0).unwrap();
        assert!(bytes == model);
        let asks = vec![Ask::Read { offset: 0, len: 40_000 }, Ask::Read { offset: 12_300, len: 5 }];
        // Back to the same lines: every request has the shape it had.
        let back =
            across(&device, vec![Ask::Read { offset: 12_300, len: 5 }], |device| device.reload(target()).unwrap());
        assert_eq!(back, [Ok(model[12_300..12_305].to_vec())]);
        let linear = segment(0, 160, 0, 512);
        let linear = [Target { segment: &linear, content: Content::Linear, store: 0 }];
        let whole = Arc::new(Device::stacked(&linear, vec![Arc::clone(&store) as _], Access::default()).unwrap());
        let answers = across(&whole, asks, |device| device.reload(target()).unwrap());
        assert!(answers[0].as_ref().unwrap() == &model[..40_000]);
        assert!(answers[1].as_ref().unwrap() == &model[12_300..12_305]);
    }
}
