//! Nothing is allocated for a request, and everything goes on where there is no memory to be had.
//!
//! Two workers and two callers of a blocking device share one device. Each slot of each has bytes of its own, with
//! borders inside data units, so that requests of different threads meet in the locks; what is read is compared with a
//! model.

#![allow(missing_docs, clippy::unwrap_used)]

mod allocator;
#[path = "../it/zoned/memory.rs"]
#[allow(dead_code)] // The other program uses all of it.
mod memory;
mod zoned;

use allocator::Mode;
use inlock_cipher::{CipherSpec, DataUnitSize, Sector, Segment, VolumeKey};
use inlock_engine::buffer::{BufferClass, BufferPool};
use inlock_engine::request::Operation;
use inlock_engine::ring::{Completion, Ring, Wait};
use inlock_engine::rmw;
use inlock_engine::store::file::{FileStore, IoMode};
use inlock_engine::worker::{Context, CopyOptions, Finished, Flow, Frontend, Request, Worker};
use inlock_engine::{Access, BlockingDevice, Device, Offload, OffloadOptions, OffloadPolicy, RequestError};
use std::io::{IoSlice, IoSliceMut};
use std::sync::{Arc, Barrier, Mutex, MutexGuard};

/// Number of requests that a worker has in flight.
const SLOTS: usize = 48;
/// Bytes of a slot: borders lie within data units.
const SLOT_LEN: u64 = 50_000;
const WORKERS: usize = 2;
const CALLERS: usize = 2;
/// Discards go here, and nothing else: what they leave is not defined.
const DISCARDED: u64 = (WORKERS * SLOTS + CALLERS) as u64 * SLOT_LEN;
const LEN: u64 = DISCARDED + (1 << 20);

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % limit
    }
}

/// Range of the device that one thread has to itself, and its content.
struct Slot {
    start: u64,
    model: Vec<u8>,
    random: Random,
}

impl Slot {
    fn new(number: usize) -> Self {
        let random = Random(number as u64 * 0x9e37_79b9 + 12_345);
        Self { start: number as u64 * SLOT_LEN, model: vec![0; SLOT_LEN as usize], random }
    }

    /// The next operation, its place in the device and its length.
    fn next(&mut self) -> (Operation, u64, u64) {
        let longest = if self.random.below(50) == 0 { SLOT_LEN } else { 6000 };
        let at = self.random.below(SLOT_LEN);
        let len = 1 + self.random.below(longest.min(SLOT_LEN - at));
        // A third begins and ends with data units, where there is room for that.
        let (start, end) = (self.start + at, self.start + at + len);
        let (whole, whole_end) = (start.next_multiple_of(4096), end / 4096 * 4096);
        let aligned = self.random.below(3) == 0 && whole < whole_end;
        let (offset, len) = if aligned { (whole, whole_end - whole) } else { (start, len) };
        let durable = self.random.below(64) == 0;
        match self.random.below(32) {
            0 => (Operation::Flush, 0, 0),
            1 => {
                (Operation::Discard { durable }, DISCARDED + self.random.below(1 << 19), 1 + self.random.below(1 << 19))
            }
            2 => (Operation::Prefetch, offset, len),
            3..=5 => (Operation::WriteZeroes { durable }, offset, len),
            6..=17 => (Operation::Write { durable }, offset, len),
            _ => (Operation::Read, offset, len),
        }
    }

    fn part(&mut self, offset: u64, len: u64) -> &mut [u8] {
        &mut self.model[(offset - self.start) as usize..][..len as usize]
    }

    /// Changes the model as the operation changes the device; new bytes are put where they are to be written from.
    fn apply(&mut self, operation: Operation, offset: u64, len: u64, bytes: &mut [u8]) {
        let fill = self.random.below(255) as u8 + 1;
        match operation {
            Operation::Write { .. } => {
                bytes.iter_mut().enumerate().for_each(|(i, byte)| *byte = fill.wrapping_add(i as u8));
                self.part(offset, len).copy_from_slice(bytes);
            }
            Operation::WriteZeroes { .. } => self.part(offset, len).fill(0),
            _ => {}
        }
    }
}

/// A frontend that makes its requests up.
struct Busy {
    slots: Vec<Slot>,
    idle: Vec<usize>,
    left: usize,
    /// Place and length of what each slot has asked for.
    asked: Vec<(Operation, u64, u64)>,
}

impl Frontend for Busy {
    type Message = ();

    fn on_message(&mut self, _cx: &mut Context<'_>, (): ()) {}
    fn on_completion(&mut self, _cx: &mut Context<'_>, _done: Completion) {}

    fn on_finished(&mut self, cx: &mut Context<'_>, done: Finished) {
        let index = done.id as usize;
        done.result.expect("nothing fails here");
        let (operation, offset, len) = self.asked[index];
        if let Some((mapped, buffer)) = done.data {
            let expected = self.slots[index].part(offset, len);
            assert!(operation != Operation::Read || buffer.data()[mapped.requested()] == *expected, "a wrong read");
            cx.pool.give(buffer);
        }
        if let Some(spare) = done.spare {
            cx.pool.give(spare);
        }
        self.idle.push(index);
    }

    fn end_turn(&mut self, cx: &mut Context<'_>) -> (Flow, Wait) {
        while self.left > 0
            && let Some(index) = self.idle.pop()
        {
            self.left -= 1;
            let slot = &mut self.slots[index];
            let (operation, offset, len) = slot.next();
            self.asked[index] = (operation, offset, len);
            let mut request = Request { id: index as u64, operation, offset, len, data: None, spare: None };
            if matches!(operation, Operation::Read | Operation::Write { .. } | Operation::WriteZeroes { .. }) {
                let mapped = cx.mapping.locate(offset, len, usize::MAX / 2).expect("within the device");
                let mut buffer = cx.pool.take(mapped.aligned_len, mapped.aligned_len).expect("enough for all slots");
                slot.apply(operation, offset, len, &mut buffer.data_mut()[mapped.requested()]);
                let spare = if operation.modifies() { rmw::spare_len(&mapped) } else { 0 };
                request.spare = (spare > 0).then(|| cx.pool.take(spare, spare).expect("enough for all slots"));
                request.data = Some((mapped, buffer));
            }
            cx.requests.push_back(request);
        }
        let over = self.idle.len() == self.slots.len();
        (if over { Flow::Stop } else { Flow::Continue }, Wait::Forever)
    }
}

fn run_worker(
    device: &Arc<Device>,
    mode: IoMode,
    number: usize,
    requests: usize,
    pool: Option<Arc<Offload>>,
    go: &Barrier,
) {
    let capacity = SLOT_LEN as usize + 2 * device.unit_len();
    let buffers =
        [BufferClass { capacity, count: SLOTS }, BufferClass { capacity: 2 * device.unit_len(), count: 2 * SLOTS }];
    let front = Busy {
        slots: (0..SLOTS).map(|slot| Slot::new(number * SLOTS + slot)).collect(),
        idle: (0..SLOTS).collect(),
        left: requests,
        asked: vec![(Operation::Flush, 0, 0); SLOTS],
    };
    let ring = Ring::new(mode).expect("a ring");
    let mut worker = Worker::new(Arc::clone(device), ring, BufferPool::new(&buffers), front).with_offload(pool);
    if mode == IoMode::Auto {
        let mut options = CopyOptions::default();
        (options.min_len, options.chunk_len) = (5000, 4096);
        worker = worker.with_copy_thread(&options).expect("a thread");
    }
    go.wait();
    go.wait();
    worker.run().expect("a worker that runs");
    assert_eq!(worker.pool().outstanding(), 0);
    go.wait();
    go.wait();
}

/// Returns options for a pool of two threads.
fn offload_options(policy: OffloadPolicy) -> OffloadOptions {
    let mut options = OffloadOptions::default();
    (options.policy, options.threads) = (policy, 2);
    options
}

fn in_pieces(device: &BlockingDevice, operation: Operation, offset: u64, bytes: &mut [u8]) -> Result<(), RequestError> {
    let (front, rest) = bytes.split_at_mut(bytes.len() / 3);
    let (middle, back) = rest.split_at_mut(rest.len() / 2);
    match operation {
        Operation::Read => device.read_vectored_at(&mut [front, middle, back].map(IoSliceMut::new), offset),
        _ => device.write_vectored_at(&[&*front, middle, back].map(IoSlice::new), offset),
    }
}

fn run_caller(device: &BlockingDevice, number: usize, requests: usize, go: &Barrier) {
    let mut slot = Slot::new(WORKERS * SLOTS + number);
    let mut bytes = vec![0; SLOT_LEN as usize];
    go.wait();
    go.wait();
    for _ in 0..requests {
        let (operation, offset, len) = slot.next();
        let bytes = &mut bytes[..len.min(SLOT_LEN) as usize];
        slot.apply(operation, offset, len, bytes);
        match operation {
            // One in four as three pieces.
            Operation::Read | Operation::Write { .. } if offset % 4 == 0 => in_pieces(device, operation, offset, bytes),
            Operation::Read => device.read_at(bytes, offset),
            Operation::Write { .. } => device.write_at(bytes, offset),
            Operation::WriteZeroes { .. } => device.write_zeroes(offset, len),
            Operation::Flush => device.flush(),
            Operation::Discard { .. } => device.discard(offset, len),
            Operation::Prefetch => Ok(()),
            _ => unreachable!("not drawn"),
        }
        .expect("nothing fails here");
        assert!(operation != Operation::Read || bytes == slot.part(offset, len), "a wrong read");
    }
    go.wait();
    go.wait();
}

fn device(mode: IoMode) -> Arc<Device> {
    let unit = DataUnitSize::new(4096).unwrap();
    let mut segment = Segment::whole(Some(CipherSpec::AES_XTS_PLAIN64), unit);
    segment.data_offset = Sector(3);
    let file = tempfile::tempfile().unwrap();
    file.set_len(3 * 512 + LEN.next_multiple_of(4096)).unwrap();
    let store = Arc::new(FileStore::new(file, mode).unwrap());
    let access = Access { read_only: false, allow_discards: true };
    let device = Arc::new(Device::new(&[segment], &VolumeKey::new(&[7; 64]), store, access).unwrap());
    BlockingDevice::new(Arc::clone(&device)).write_zeroes(0, DISCARDED).unwrap();
    device
}

/// Exits the process on a panic, because the other threads would wait at the barrier forever.
fn or_exit(work: impl FnOnce()) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err() {
        std::process::exit(101);
    }
}

/// One test at a time: they all watch the same allocator.
fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Carries `requests` out, a sixth of them by blocking calls, and gives back how many allocations they came to.
fn carry_out(io: IoMode, policy: OffloadPolicy, requests: usize, mode: Mode) -> u64 {
    let device = device(io);
    let blocking = BlockingDevice::new(Arc::clone(&device));
    let pool = Offload::start(&device, &offload_options(policy)).unwrap();
    let before = device.stats().snapshot();
    let go = Barrier::new(WORKERS + CALLERS + 1);
    let allocations = std::thread::scope(|scope| {
        let start = |name: String| std::thread::Builder::new().name(name);
        for number in 0..WORKERS {
            let (device, pool, go) = (&device, pool.clone(), &go);
            let work = move || or_exit(|| run_worker(device, io, number, requests * 5 / 12, pool, go));
            start(format!("inlock-w{number}")).spawn_scoped(scope, work).unwrap();
        }
        for number in 0..CALLERS {
            let (blocking, go) = (&blocking, &go);
            let work = move || or_exit(|| run_caller(blocking, number, requests / 12, go));
            start(format!("inlock-wc{number}")).spawn_scoped(scope, work).unwrap();
        }
        go.wait();
        let copy_threads = if io == IoMode::Auto { WORKERS } else { 0 };
        let threads = WORKERS + CALLERS + copy_threads + pool.as_ref().map_or(0, |p| p.threads());
        allocator::watch(mode, threads);
        go.wait();
        go.wait();
        let allocations = allocator::unwatch();
        go.wait();
        allocations
    });
    let done = device.stats().snapshot().since(&before);
    let moved = done.reads + done.writes + done.write_zeroes;
    println!("{io:?}, {policy}: {requests} requests, {} of them offloaded, {allocations} allocations", done.offloaded);
    assert_eq!(done.errors, 0);
    assert!(moved as usize > requests * 3 / 4);
    assert_eq!(done.offloaded > 0, policy != OffloadPolicy::None);
    allocations
}

fn ways() -> Vec<(IoMode, OffloadPolicy)> {
    let mut ways = Vec::new();
    for io in [IoMode::Sync, IoMode::Uring, IoMode::Auto] {
        if Ring::new(io).is_ok() {
            ways.extend([OffloadPolicy::None, OffloadPolicy::Both].map(|policy| (io, policy)));
        } else {
            println!("SKIPPED: no io_uring here, only plain system calls are tested");
        }
    }
    ways
}

#[test]
fn million_requests_allocate_nothing() {
    let _alone = alone();
    let ways = ways();
    let each = 1_000_000 / ways.len() + 1;
    for (io, policy) in ways {
        assert_eq!(carry_out(io, policy, each, Mode::Count), 0, "{io:?}, {policy}");
    }
}

#[test]
fn without_memory_everything_goes_on() {
    let _alone = alone();
    for (io, policy) in ways() {
        assert_eq!(carry_out(io, policy, 60_000, Mode::Refuse), 0, "{io:?}, {policy}");
    }
}

/// The negative control: what a watched thread allocates is seen.
#[test]
fn allocation_is_found() {
    let _alone = alone();
    let go = Barrier::new(2);
    std::thread::scope(|scope| {
        let work = || {
            go.wait();
            go.wait();
            drop(std::hint::black_box(vec![0u8; 100]));
            go.wait();
        };
        std::thread::Builder::new().name("inlock-w0".into()).spawn_scoped(scope, work).unwrap();
        go.wait();
        allocator::watch(Mode::Count, 1);
        drop(std::hint::black_box(vec![0u8; 100]));
        go.wait();
        go.wait();
        assert_eq!(allocator::unwatch(), 1);
    });
}
