//! Requests that come while a zone of a re-encryption is locked.

use super::*;
use crate::crypt_mapping::{Content, Sides, Target};
use crate::{BlockingDevice, MoveDirection, rmw};
use inlock_cipher::{CipherSpec, DataUnitSize, Sector, Segment, VolumeKey};
use inlock_tests::wait::{eventually, spawn_until_it_waits};
use std::ops::Range;

const LEN: u64 = 128 << 10;
/// A zone has the offsets of the requests below.
const ZONE: u64 = 32 << 10;
/// First byte of the zone and end of it.
const START: u64 = 32 << 10;
const END: u64 = START + ZONE;

/// How one side stores the device.
#[derive(Clone, Copy, Debug)]
struct Side {
    /// Bytes in a data unit; 1: unencrypted.
    unit: u32,
    /// First byte in the store.
    at: u64,
    key: u8,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    old: Side,
    new: Side,
    direction: MoveDirection,
    /// Whether the boundary moves; otherwise the zone stays old.
    moves: bool,
}

fn key(side: Side) -> VolumeKey {
    VolumeKey::new(&(0..64).map(|byte| byte ^ side.key).collect::<Vec<u8>>())
}

fn segment(side: Side) -> Segment {
    let size = DataUnitSize::new(side.unit.max(512)).unwrap();
    let mut segment = Segment::whole((side.unit > 1).then_some(CipherSpec::AES_XTS_PLAIN64), size);
    (segment.sectors, segment.data_offset) = (Some(LEN / 512), Sector(side.at / 512));
    segment
}

/// Returns a device of one side alone.
fn alone(side: Side, store: &Arc<dyn BackingStore>) -> Device {
    let access = Access { read_only: false, allow_discards: true };
    Device::new(&[segment(side)], &key(side), Arc::clone(store), access).unwrap()
}

fn read_alone(side: Side, store: &Arc<dyn BackingStore>, range: Range<u64>) -> Vec<u8> {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    BlockingDevice::with_calls(Arc::new(alone(side, store)), 1).read_at(&mut bytes, range.start).unwrap();
    bytes
}

fn write_alone(side: Side, store: &Arc<dyn BackingStore>, offset: u64, bytes: &[u8]) {
    BlockingDevice::with_calls(Arc::new(alone(side, store)), 1).write_at(bytes, offset).unwrap();
}

/// A device in the middle of its re-encryption, with its content.
struct Moving {
    case: Case,
    store: Arc<dyn BackingStore>,
    device: Arc<Device>,
    model: Vec<u8>,
}

impl Moving {
    fn new(case: Case, store: Arc<dyn BackingStore>) -> Self {
        let boundary = if case.direction == MoveDirection::Forward { START } else { END };
        let model: Vec<u8> = (0..LEN).map(|at| (at ^ at >> 8 ^ 0x35) as u8).collect();
        let (before, behind) = model.split_at(boundary as usize);
        let [first, second] = if case.direction == MoveDirection::Forward { [1, 0] } else { [0, 1] };
        let sides = [case.old, case.new];
        // Old bytes last: the place of new ones may be that of old ones that are re-encrypted already.
        let mut parts = [(first, 0, before), (second, boundary, behind)];
        parts.sort_by_key(|(side, ..)| std::cmp::Reverse(*side));
        parts.iter().for_each(|(side, offset, bytes)| write_alone(sides[*side], &store, *offset, bytes));
        let device = alone(case.old, &store);
        let (segments, keys) = (sides.map(segment), sides.map(key));
        let target = |side: usize| {
            let content = if sides[side].unit > 1 { Content::Crypt(&keys[side]) } else { Content::Linear };
            Target { segment: &segments[side], content, store: 0 }
        };
        let sides = Sides { old: target(0), new: target(1), direction: case.direction, boundary, len: LEN };
        device.reload(CryptMapping::moving(&sides, &[store.geometry().len]).unwrap()).unwrap();
        Self { case, store, device: Arc::new(device), model }
    }

    /// Puts garbage into the old place of the zone.
    fn spoil(&self) {
        write_alone(Side { unit: 1, ..self.case.old }, &self.store, START, &[0xee; ZONE as usize]);
    }

    /// Re-encrypts the zone, with garbage in its old place on the way, and moves the boundary.
    fn re_encrypt(&self, zone: crate::ZoneLock<'_>) {
        let zone_of_model = &self.model[START as usize..END as usize];
        if !self.case.moves {
            write_alone(self.case.old, &self.store, START, zone_of_model);
            return;
        }
        self.spoil();
        write_alone(self.case.new, &self.store, START, zone_of_model);
        zone.move_boundary();
    }

    /// Serves reads of the zone from memory, with garbage in its old place.
    fn serve_reads(&self, zone: &crate::ZoneLock<'_>) {
        self.spoil();
        zone.serve_reads(Arc::new(self.model[START as usize..END as usize].to_vec()));
    }

    fn check(&self) {
        let mut bytes = vec![0; LEN as usize];
        let device = BlockingDevice::with_calls(Arc::clone(&self.device), 1);
        // In parts: the memory of a zone never has all.
        for (at, part) in bytes.chunks_mut(4096).enumerate() {
            device.read_at(part, at as u64 * 4096).unwrap();
        }
        assert!(bytes == self.model, "{:?}", self.case);
        let side = if self.case.moves { self.case.new } else { self.case.old };
        let zone = read_alone(side, &self.store, START..END);
        assert!(zone == self.model[START as usize..END as usize], "{:?}: the zone", self.case);
    }
}

/// A request: its offset and length, and whether it reads.
type Ask = (u64, u64, bool);

/// In the zone, and across its border to the old bytes.
fn in_zone(case: &Case) -> Vec<Ask> {
    let (across, near) = if is_forward(case) { (END, END - 1300) } else { (START, START + 500) };
    vec![
        (START + 4096, 4096, true),
        (START + 8192 + 512, 512, true),
        (START + 12288 + 300, 1000, true),
        (START + 16384, 4096, false),
        (START + 20480 + 100, 700, false),
        (START + 20480 + 1536, 512, false),
        (START + 24576 + 1, 1, false),
        (across - 700, 1200, false),
        (near, 600, true),
    ]
}

/// The first of those, whose bytes no other one writes.
const UNDISTURBED: usize = 3;

/// New bytes and old ones, at the zone and far from it.
const OUTSIDE: [Ask; 6] = [
    (0, 4096, false),
    (START - 8192, 3000, true),
    (START - 4096 - 1000, 1000, false),
    (END + 4096, 512, false),
    (END + 5000, 5000, true),
    (LEN - 1, 1, true),
];

fn data_of((offset, len, _): Ask) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + offset / 3) as u8 | 0x80).collect()
}

/// A frontend that keeps what it is told.
#[derive(Default)]
struct Keeping(Vec<(u64, Result<Vec<u8>, RequestError>)>);

impl Frontend for Keeping {
    type Message = ();
    fn on_message(&mut self, _cx: &mut Context<'_>, (): ()) {}
    fn on_completion(&mut self, _cx: &mut Context<'_>, _done: Completion) {}
    fn on_finished(&mut self, cx: &mut Context<'_>, done: Finished) {
        let mut bytes = Vec::new();
        if let Some((range, buffer)) = done.data {
            bytes = buffer.data()[range.requested()].to_vec();
            cx.pool.give(buffer);
        }
        done.spare.into_iter().for_each(|spare| cx.pool.give(spare));
        self.0.push((done.id, done.result.map(|()| bytes)));
    }
    fn end_turn(&mut self, _cx: &mut Context<'_>) -> (Flow, Wait) {
        (Flow::Continue, Wait::No)
    }
}

fn push(worker: &mut Worker<Keeping>, id: u64, ask: Ask) {
    let (offset, len, reads) = ask;
    let operation = if reads { Operation::Read } else { Operation::Write { durable: false } };
    let range = worker.volume.mapping.locate(offset, len, 1 << 20).unwrap();
    assert_eq!(range.len as u64, len);
    let mut buffer = worker.pool.take(range.aligned_len, range.aligned_len).unwrap();
    if !reads {
        buffer.data_mut()[range.requested()].copy_from_slice(&data_of(ask));
    }
    let spare_len = if reads { 0 } else { rmw::spare_len(&range) };
    let spare = (spare_len > 0).then(|| worker.pool.take(spare_len, spare_len).unwrap());
    worker.requests.push_back(Request { id, operation, offset, len, data: Some((range, buffer)), spare });
    worker.run_queue();
}

/// Runs turns until `count` requests have ended.
fn run_until(worker: &mut Worker<Keeping>, count: usize) {
    while worker.front().0.len() < count {
        worker.turn().unwrap();
    }
}

fn file_store(mode: IoMode) -> Arc<dyn BackingStore> {
    let file = tempfile::tempfile().unwrap();
    file.set_len(LEN + 2 * ZONE).unwrap();
    Arc::new(FileStore::new(file, mode).unwrap())
}

fn memory_store() -> Arc<dyn BackingStore> {
    Arc::new(MemoryStore::new(vec![0; (LEN + 2 * ZONE) as usize]))
}

fn is_forward(case: &Case) -> bool {
    case.direction == MoveDirection::Forward
}

fn cases() -> Vec<Case> {
    let units = [[512, 512], [512, 4096], [4096, 512], [1, 4096], [1, 512], [4096, 1]];
    let mut cases = Vec::new();
    for direction in [MoveDirection::Forward, MoveDirection::Backward] {
        for [old, new] in units {
            for shift in [0, 4096, ZONE] {
                let ats = if direction == MoveDirection::Forward { [shift, 0] } else { [0, shift] };
                let side = |unit, at, key| Side { unit, at: 1536 + at, key };
                let (old, new) = (side(old, ats[0], 0x40), side(new, ats[1], 0xc0));
                cases.extend([true, false].map(|moves| Case { old, new, direction, moves }));
            }
        }
    }
    cases
}

fn check_worker(case: Case, store: Arc<dyn BackingStore>, mode: IoMode, serves_reads: bool) {
    let mut moving = Moving::new(case, store);
    let device = Arc::clone(&moving.device);
    let mut worker = new_worker(&device, mode);
    let zone = device.lock_zone(START..END).unwrap();
    let mut asks: Vec<Ask> = in_zone(&case).into_iter().chain(OUTSIDE).collect();
    asks.iter().enumerate().for_each(|(id, ask)| push(&mut worker, id as u64, *ask));
    // What is outside goes on, and what touches the zone waits.
    run_until(&mut worker, OUTSIDE.len());
    (0..10).for_each(|_| assert!(worker.turn().is_ok()));
    let waiting = in_zone(&case).len();
    assert!(worker.front().0.iter().all(|(id, _)| *id as usize >= waiting), "{case:?}");
    assert_eq!(device.locks().waiting(), waiting);
    if serves_reads {
        moving.serve_reads(&zone);
        // Bytes without a cipher have no units that a write changes in part.
        let served: &[usize] = if case.old.unit == 1 { &[0, 1, 2, 8] } else { &[0, 1, 2] };
        run_until(&mut worker, OUTSIDE.len() + served.len());
        // One that comes now does not wait, unless not all of it is in the zone.
        let late = [(START + 8192 + 1024, 700, true), (if is_forward(&case) { END } else { START } - 300, 600, true)];
        for ask in late {
            push(&mut worker, asks.len() as u64, ask);
            asks.push(ask);
        }
        run_until(&mut worker, OUTSIDE.len() + served.len() + 1);
        (0..10).for_each(|_| assert!(worker.turn().is_ok()));
        let mut ended: Vec<_> = worker.front().0.iter().map(|(id, _)| *id as usize).collect();
        ended.retain(|id| !(waiting..waiting + OUTSIDE.len()).contains(id));
        ended.sort_unstable();
        assert_eq!(ended, [served, &[asks.len() - 2]].concat(), "{case:?}");
    }
    moving.re_encrypt(zone);
    run_until(&mut worker, asks.len());
    for (id, result) in &worker.front().0 {
        let ask = asks[*id as usize];
        let range = ask.0 as usize..(ask.0 + ask.1) as usize;
        let bytes = result.as_ref().unwrap_or_else(|error| panic!("{case:?} {ask:?}: {error}"));
        // The last one that comes late reads what was written before.
        if ask.2 && *id as usize != waiting + OUTSIDE.len() + 1 {
            assert!(*bytes == moving.model[range], "{case:?} {ask:?}");
        }
    }
    for ask in asks.into_iter().filter(|ask| !ask.2) {
        moving.model[ask.0 as usize..][..ask.1 as usize].copy_from_slice(&data_of(ask));
    }
    assert_eq!((worker.table.len(), worker.pool.outstanding()), (0, 0));
    drop(worker);
    assert_eq!(device.locks().waiting(), 0);
    moving.check();
}

#[test]
fn requests_of_a_worker_wait_for_the_zone_and_go_where_it_is_then() {
    for case in cases() {
        check_worker(case, memory_store(), IoMode::Auto, false);
        check_worker(case, file_store(IoMode::Uring), IoMode::Uring, false);
        check_worker(case, file_store(IoMode::Sync), IoMode::Sync, false);
    }
}

#[test]
fn reads_of_a_worker_are_served_from_the_memory_of_the_zone() {
    for case in cases() {
        check_worker(case, memory_store(), IoMode::Auto, true);
        check_worker(case, file_store(IoMode::Uring), IoMode::Uring, true);
    }
}

#[test]
fn blocking_reads_are_served_from_the_memory_of_the_zone() {
    for case in cases() {
        let moving = Moving::new(case, memory_store());
        let device = BlockingDevice::new(Arc::clone(&moving.device));
        let zone = moving.device.lock_zone(START..END).unwrap();
        let asks = in_zone(&case)[..UNDISTURBED].to_vec();
        let run = |ask| (ask, run_blocking(&device, ask));
        let ended = on_waiting_threads(&moving.device, asks, run, || {
            moving.serve_reads(&zone);
            let waiting = || moving.device.locks().waiting();
            eventually("reads of the zone", waiting, |waiting| *waiting == 0);
            let whole = run_blocking(&device, (START, ZONE, true));
            assert!(whole == moving.model[START as usize..END as usize], "{case:?}");
            moving.re_encrypt(zone);
        });
        for (ask, bytes) in ended {
            assert!(bytes == moving.model[ask.0 as usize..][..ask.1 as usize], "{case:?} {ask:?}");
        }
        moving.check();
    }
}

fn new_worker(device: &Arc<Device>, mode: IoMode) -> Worker<Keeping> {
    let pool = BufferPool::new(&[BufferClass { capacity: 32 << 10, count: 40 }]);
    let mut worker = Worker::new(Arc::clone(device), Ring::new(mode).unwrap(), pool, Keeping::default());
    worker.turn().unwrap();
    worker
}

fn run_blocking(device: &BlockingDevice, ask: Ask) -> Vec<u8> {
    let mut bytes = if ask.2 { vec![0; ask.1 as usize] } else { data_of(ask) };
    if ask.2 {
        device.read_at(&mut bytes, ask.0).unwrap();
    } else {
        device.write_at(&bytes, ask.0).unwrap();
    }
    bytes
}

/// Runs `work` on a thread for each of `items`, calls `meanwhile` when all wait for a lock, and returns their results.
fn on_waiting_threads<T: Send, R: Send>(
    device: &Device,
    items: Vec<T>,
    work: impl Fn(T) -> R + Sync,
    meanwhile: impl FnOnce(),
) -> Vec<R> {
    std::thread::scope(|scope| {
        let count = items.len();
        let work = &work;
        let threads: Vec<_> = items.into_iter().map(|item| scope.spawn(move || work(item))).collect();
        let look = || (device.locks().waiting(), threads.iter().any(|thread| thread.is_finished()));
        let (_, has_ended) = eventually("threads that wait", look, |(waiting, ended)| *waiting == count || *ended);
        if has_ended {
            // It has the lock that others may wait for.
            drop(meanwhile);
            panic!("a request that does not wait for the zone");
        }
        meanwhile();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn blocking_calls_wait_for_the_zone_and_go_where_it_is_then() {
    for case in cases() {
        let mut moving = Moving::new(case, memory_store());
        let device = BlockingDevice::new(Arc::clone(&moving.device));
        let zone = moving.device.lock_zone(START..END).unwrap();
        let asks = in_zone(&case);
        let run = |ask| (ask, run_blocking(&device, ask));
        let ended = on_waiting_threads(&moving.device, asks.clone(), run, || {
            for ask in OUTSIDE {
                let bytes = run_blocking(&device, ask);
                assert!(!ask.2 || bytes == moving.model[ask.0 as usize..][..ask.1 as usize], "{case:?} {ask:?}");
            }
            moving.re_encrypt(zone);
        });
        for (ask, bytes) in ended.into_iter().filter(|(ask, _)| ask.2) {
            assert!(bytes == moving.model[ask.0 as usize..][..ask.1 as usize], "{case:?} {ask:?}");
        }
        for ask in asks.into_iter().chain(OUTSIDE).filter(|ask| !ask.2) {
            moving.model[ask.0 as usize..][..ask.1 as usize].copy_from_slice(&data_of(ask));
        }
        moving.check();
    }
}

/// Checks that a discard over the far border of the zone deallocates the whole units of both sides, where they are.
fn check_discard(case: Case, is_blocking: bool) {
    const REACH: u64 = 8192;
    let moving = Moving::new(case, memory_store());
    let across = if case.direction == MoveDirection::Forward { END } else { START };
    let device = Arc::clone(&moving.device);
    let zone = device.lock_zone(START..END).unwrap();
    if is_blocking {
        let blocking = BlockingDevice::new(Arc::clone(&device));
        let discard = |offset| blocking.discard(offset, 2 * REACH).unwrap();
        on_waiting_threads(&device, vec![across - REACH], discard, || moving.re_encrypt(zone));
    } else {
        let mut worker = new_worker(&device, IoMode::Auto);
        let operation = Operation::Discard { durable: false };
        let (offset, len) = (across - REACH, 2 * REACH);
        worker.requests.push_back(Request { id: 0, operation, offset, len, data: None, spare: None });
        worker.run_queue();
        assert_eq!((device.locks().waiting(), worker.front().0.len()), (1, 0));
        moving.re_encrypt(zone);
        run_until(&mut worker, 1);
        assert_eq!(worker.front().0, [(0, Ok(Vec::new()))]);
    }
    let side = if case.moves { case.new } else { case.old };
    let [zone_part, old_part] = match case.direction {
        MoveDirection::Forward => [END - REACH..END, END..END + REACH],
        MoveDirection::Backward => [START..START + REACH, START - REACH..START],
    };
    let stored = |side: Side, range| read_alone(Side { unit: 1, ..side }, &moving.store, range);
    assert!(stored(side, zone_part).iter().all(|byte| *byte == 0), "{case:?}: the zone's part");
    // The part that is old yet may be in the place of new bytes if the boundary has moved by less than the shift.
    assert!(stored(case.old, old_part).iter().all(|byte| *byte == 0), "{case:?}: the old part");
    let rest = if case.direction == MoveDirection::Forward { START..END - REACH } else { START + REACH..END };
    let plain = read_alone(side, &moving.store, rest.clone());
    assert!(plain == moving.model[rest.start as usize..rest.end as usize], "{case:?}: the rest of the zone");
    assert_eq!(device.locks().waiting(), 0);
}

#[test]
fn discard_waits_for_the_zone_and_goes_where_it_is_then() {
    for case in cases() {
        check_discard(case, false);
        check_discard(case, true);
    }
}

/// Unencrypted data are locked, too.
#[test]
fn zone_lock_waits_for_requests_in_flight() {
    let (end, into) = rustix::pipe::pipe().unwrap();
    let store: Arc<dyn BackingStore> = Arc::new(Pipe::new(end, false));
    let device = Device::raw(store, Access::default());
    let segment = Segment::whole(None, DataUnitSize::SECTOR);
    let target = Target { segment: &segment, content: Content::Linear, store: 0 };
    let sides = Sides { old: target, new: target, direction: MoveDirection::Forward, boundary: 0, len: 4096 };
    device.reload(CryptMapping::moving(&sides, &[4096]).unwrap()).unwrap();
    let device = Arc::new(device);
    let mut worker = new_worker(&device, IoMode::Auto);
    // Closed before the worker waits for its read if this fails.
    let into = into;
    push(&mut worker, 3, (0, 512, true));
    assert!(worker.front().0.is_empty());
    let lock = |()| device.lock_zone(0..4096).unwrap().move_boundary();
    on_waiting_threads(&device, vec![()], lock, || {
        assert_eq!(device.boundary(), Some(0));
        rustix::io::write(&into, &[7; 512]).unwrap();
        run_until(&mut worker, 1);
    });
    assert_eq!(worker.front().0, [(3, Ok(vec![7; 512]))]);
    assert_eq!(device.boundary(), Some(4096));
}

#[test]
fn zones_come_one_after_the_other() {
    for direction in [MoveDirection::Forward, MoveDirection::Backward] {
        let moving = Moving::new(Case { direction, ..cases()[0] }, memory_store());
        let device = &moving.device;
        assert_eq!(device.lock_zone(0..512).err(), Some(RequestError::OutOfRange));
        let zone = device.lock_zone(START..END).unwrap();
        // The second one finds the boundary elsewhere.
        let lock = |()| device.lock_zone(START..END).err();
        let second = on_waiting_threads(device, vec![()], lock, || moving.re_encrypt(zone));
        assert_eq!(second, [Some(RequestError::OutOfRange)]);
        assert_eq!(device.boundary(), Some(if direction == MoveDirection::Forward { END } else { START }));
        assert_eq!(device.locks().waiting(), 0);
    }
    let raw = Device::raw(memory_store(), Access::default());
    assert_eq!((raw.boundary(), raw.lock_zone(0..512).err()), (None, Some(RequestError::Unsupported)));
}

#[test]
fn suspend_waits_for_the_zone() {
    let moving = Moving::new(cases()[0], memory_store());
    let zone = moving.device.lock_zone(START..END).unwrap();
    std::thread::scope(|scope| {
        let suspending = spawn_until_it_waits(scope, || moving.device.suspend());
        assert!(!suspending.is_finished());
        moving.re_encrypt(zone);
        suspending.join().unwrap().unwrap();
        let waiting = spawn_until_it_waits(scope, || moving.device.lock_zone(END..END + 4096).map(|_| ()));
        assert!(!waiting.is_finished(), "no zone of a suspended device");
        moving.device.resume().unwrap();
        waiting.join().unwrap().unwrap();
    });
    moving.check();
}
