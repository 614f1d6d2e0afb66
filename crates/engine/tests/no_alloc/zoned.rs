//! Zoned requests without allocations: writes in order, writes that overtake each other between two workers, and
//! appends of all workers.

use super::memory::{MemoryZones, Shape};
use super::{Mode, allocator, alone, or_exit};
use inlock_cipher::{CipherSpec, DataUnitSize, Segment, VolumeKey};
use inlock_engine::buffer::{BufferClass, BufferPool};
use inlock_engine::request::Operation;
use inlock_engine::ring::{Completion, Ring, Wait};
use inlock_engine::store::file::IoMode;
use inlock_engine::worker::{Context, Finished, Flow, Frontend, Request, Worker};
use inlock_engine::zoned::Zone;
use inlock_engine::{Access, BlockingDevice, Device, Offload, OffloadPolicy};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

const SHAPE: Shape = Shape {
    zone_len: 64 << 20,
    capacity: 64 << 20,
    zones: 4,
    conventional: 0,
    max_open: 0,
    max_active: 0,
    granularity: 512,
};
const WORKERS: usize = 2;
const CALLERS: usize = 2;
const SLOTS: usize = 32;
const LONGEST: u64 = 4096;
/// Zones after one per worker: one that both write, one to which all append.
const SHARED: usize = WORKERS;
const APPENDED: usize = WORKERS + 1;

/// How far each zone is written, or will be.
type Ends = [AtomicU64; SHAPE.zones as usize];

struct Busy<'a> {
    ends: &'a Ends,
    number: usize,
    left: usize,
    under_way: usize,
    random: u64,
}

impl Busy<'_> {
    fn draw(&mut self, below: u64) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) % below
    }
}

impl Frontend for Busy<'_> {
    type Message = ();

    fn on_message(&mut self, _cx: &mut Context<'_>, (): ()) {}
    fn on_completion(&mut self, _cx: &mut Context<'_>, _done: Completion) {}

    fn on_finished(&mut self, cx: &mut Context<'_>, done: Finished) {
        done.result.expect("nothing fails here");
        let (_, buffer) = done.data.expect("all of these move data");
        cx.pool.give(buffer);
        self.under_way -= 1;
    }

    fn end_turn(&mut self, cx: &mut Context<'_>) -> (Flow, Wait) {
        while self.left > 0 && self.under_way < SLOTS {
            self.left -= 1;
            self.under_way += 1;
            let len = (1 + self.draw(LONGEST / 512)) * 512;
            let zone = [self.number, SHARED, APPENDED][self.draw(3) as usize];
            let end = self.ends[zone].fetch_add(len, Ordering::SeqCst);
            let start = zone as u64 * SHAPE.zone_len;
            let append = zone == APPENDED;
            let operation =
                if append { Operation::Append { durable: false } } else { Operation::Write { durable: false } };
            let offset = if append { start } else { start + end };
            let mapped = cx.mapping.locate(offset, len, usize::MAX / 2).expect("within the device");
            let buffer = cx.pool.take(mapped.aligned_len, mapped.aligned_len).expect("enough for all slots");
            cx.requests.push_back(Request { id: 0, operation, offset, len, data: Some((mapped, buffer)), spare: None });
        }
        let over = self.left == 0 && self.under_way == 0;
        (if over { Flow::Stop } else { Flow::Continue }, Wait::Forever)
    }
}

fn run_worker(device: &Arc<Device>, front: Busy<'_>, pool: Option<Arc<Offload>>, go: &Barrier) {
    let buffers = [BufferClass { capacity: LONGEST as usize, count: SLOTS }];
    let ring = Ring::new(IoMode::Auto).expect("a ring");
    let mut worker = Worker::new(Arc::clone(device), ring, BufferPool::new(&buffers), front).with_offload(pool);
    go.wait();
    go.wait();
    worker.run().expect("a worker that runs");
    go.wait();
    go.wait();
}

fn run_caller(device: &BlockingDevice, ends: &Ends, requests: usize, go: &Barrier) {
    let bytes = [7; 1024];
    go.wait();
    go.wait();
    for _ in 0..requests {
        device.append(APPENDED as u64 * SHAPE.zone_len, &bytes).expect("nothing fails here");
        ends[APPENDED].fetch_add(1024, Ordering::SeqCst);
    }
    go.wait();
    go.wait();
}

fn carry_out(policy: OffloadPolicy, requests: usize, mode: Mode) -> u64 {
    let segment = Segment::whole(Some(CipherSpec::AES_XTS_PLAIN64), DataUnitSize::new(512).unwrap());
    let store = Arc::new(MemoryZones::new(SHAPE));
    let device =
        Arc::new(Device::new(&[segment], &VolumeKey::new(&[7; 64]), store, Access::default()).expect("it fits"));
    let blocking = BlockingDevice::new(Arc::clone(&device));
    let pool = Offload::start(&device, &super::offload_options(policy)).unwrap();
    let ends = Ends::default();
    let go = Barrier::new(WORKERS + CALLERS + 1);
    let allocations = std::thread::scope(|scope| {
        let start = |name: String| std::thread::Builder::new().name(name);
        for number in 0..WORKERS {
            let (left, random) = (requests * 2 / 5, number as u64 + 99);
            let front = Busy { ends: &ends, number, left, under_way: 0, random };
            let (device, pool, go) = (&device, pool.clone(), &go);
            let work = move || or_exit(|| run_worker(device, front, pool, go));
            start(format!("inlock-w{number}")).spawn_scoped(scope, work).unwrap();
        }
        for number in 0..CALLERS {
            let (blocking, ends, go) = (&blocking, &ends, &go);
            let work = move || or_exit(|| run_caller(blocking, ends, requests / 10, go));
            start(format!("inlock-wc{number}")).spawn_scoped(scope, work).unwrap();
        }
        go.wait();
        allocator::watch(mode, WORKERS + CALLERS + pool.as_ref().map_or(0, |p| p.threads()));
        go.wait();
        go.wait();
        let allocations = allocator::unwatch();
        go.wait();
        allocations
    });
    let mut zones = [Zone::UNKNOWN; SHAPE.zones as usize];
    assert_eq!(device.report_zones(0, &mut zones), Ok(zones.len()));
    for (zone, end) in zones.iter().zip(ends) {
        assert_eq!(zone.write_pointer, Some(zone.start + end.into_inner()), "all was written");
    }
    println!("zones, {policy}: {requests} requests, {allocations} allocations");
    allocations
}

#[test]
fn writes_and_appends_to_zones_allocate_nothing() {
    let _alone = alone();
    for policy in [OffloadPolicy::None, OffloadPolicy::Both] {
        assert_eq!(carry_out(policy, 40_000, Mode::Count), 0, "{policy}");
        assert_eq!(carry_out(policy, 10_000, Mode::Refuse), 0, "{policy}, without memory");
    }
}
