//! Cost of keeping counters, and of a cipher engine for longer requests: requests of 4 KiB in memory, with and without,
//! batches of both in turn.
//!
//! Every batch is compared with the one before it, so that what else the machine does falls on both; the median of the
//! ratios is printed. Nothing shorter than this is ever asked, so the share is at its largest here.

#![allow(missing_docs, clippy::unwrap_used)]

use inlock_cipher::{CipherSpec, DataUnitSize, Segment, VolumeKey};
use inlock_engine::buffer::{BufferClass, BufferPool};
use inlock_engine::request::Operation;
use inlock_engine::ring::{Completion, Ring, Wait};
use inlock_engine::store::file::IoMode;
use inlock_engine::store::memory::MemoryStore;
use inlock_engine::worker::{Context, Finished, Flow, Frontend, Request, Worker};
use inlock_engine::{Access, BlockingDevice, CipherEngine, CipherJob, Device, EngineKey, EngineKeySpec, StatsLevel};
use std::sync::Arc;
use std::time::Instant;

const LEN: u64 = 8 << 20;
const BLOCK: u64 = 4096;
const BATCH: u64 = 4000;
const ROUNDS: usize = 401;
const DEPTH: u64 = 16;

/// An engine that gets no request.
struct Unused;

impl CipherEngine for Unused {
    fn open_key(&self, _spec: &EngineKeySpec<'_>) -> Option<Box<dyn EngineKey>> {
        Some(Box::new(Self))
    }
}

impl EngineKey for Unused {
    fn submit(&self, job: CipherJob) -> Result<(), CipherJob> {
        panic!("{job:?} is shorter than any for the engine");
    }
}

fn key() -> VolumeKey {
    VolumeKey::new(&(0..64).collect::<Vec<u8>>())
}

fn with_engine() -> Arc<Device> {
    let device = Arc::into_inner(device(StatsLevel::On)).unwrap();
    Arc::new(device.with_engine(Arc::new(Unused), 128 << 10, &[&key()]).unwrap())
}

fn device(level: StatsLevel) -> Arc<Device> {
    let segment = Segment::whole(Some(CipherSpec::AES_XTS_PLAIN64), DataUnitSize::new(4096).unwrap());
    let store = Arc::new(MemoryStore::new(vec![1; LEN as usize]));
    let device = Device::new(&[segment], &key(), store, Access::default());
    Arc::new(device.unwrap().with_stats(level))
}

fn offset(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (LEN / BLOCK) * BLOCK
}

/// A frontend that reads, `DEPTH` requests at a time.
struct Reads {
    left: u64,
    free: u64,
}

impl Frontend for Reads {
    type Message = ();

    fn on_message(&mut self, _cx: &mut Context<'_>, (): ()) {}
    fn on_completion(&mut self, _cx: &mut Context<'_>, _done: Completion) {}

    fn on_finished(&mut self, cx: &mut Context<'_>, done: Finished) {
        if let Some((_, buffer)) = done.data {
            cx.pool.give(buffer);
        }
        self.free += 1;
    }

    fn end_turn(&mut self, cx: &mut Context<'_>) -> (Flow, Wait) {
        while self.left > 0 && self.free > 0 {
            self.left -= 1;
            self.free -= 1;
            let offset = offset(self.left);
            let mapped = cx.mapping.locate(offset, BLOCK, 1 << 20).unwrap();
            let buffer = cx.pool.take(mapped.aligned_len, mapped.aligned_len).unwrap();
            let data = Some((mapped, buffer));
            cx.requests.push_back(Request { id: 0, operation: Operation::Read, offset, len: BLOCK, data, spare: None });
        }
        (if self.left == 0 && self.free == DEPTH { Flow::Stop } else { Flow::Continue }, Wait::No)
    }
}

fn by_worker(device: &Arc<Device>) -> f64 {
    let pool = BufferPool::new(&[BufferClass { capacity: 16_384, count: DEPTH as usize }]);
    let front = Reads { left: BATCH, free: DEPTH };
    let mut worker = Worker::new(Arc::clone(device), Ring::new(IoMode::Sync).unwrap(), pool, front);
    let start = Instant::now();
    worker.run().unwrap();
    start.elapsed().as_secs_f64()
}

fn by_calls(device: &BlockingDevice, writes: bool) -> f64 {
    let mut bytes = [7; BLOCK as usize];
    let start = Instant::now();
    for n in 0..BATCH {
        match writes {
            true => device.write_at(&bytes, offset(n)).unwrap(),
            false => device.read_at(&mut bytes, offset(n)).unwrap(),
        }
    }
    start.elapsed().as_secs_f64()
}

fn compare(name: &str, mut batch: impl FnMut(usize) -> f64) {
    batch(0);
    batch(1);
    let mut ratios = Vec::new();
    let mut without = Vec::new();
    for round in 0..ROUNDS {
        // The second batch may find a warmer cache.
        let first = round % 2;
        let (a, b) = (batch(first), batch(1 - first));
        let (off, on) = if first == 0 { (a, b) } else { (b, a) };
        ratios.push(on / off);
        without.push(off / BATCH as f64 * 1e9);
    }
    ratios.sort_by(f64::total_cmp);
    without.sort_by(f64::total_cmp);
    let (ratio, without) = (ratios[ROUNDS / 2], without[ROUNDS / 2]);
    println!(
        "{name}: {without:.0} ns a request without, {:+.2} % with (median of {ROUNDS} pairs)",
        (ratio - 1.0) * 100.0
    );
}

fn main() {
    let devices = [StatsLevel::Off, StatsLevel::On].map(device);
    let blocking = [0, 1].map(|n: usize| BlockingDevice::new(Arc::clone(&devices[n])));
    compare("read_at, 4 KiB", |n| by_calls(&blocking[n], false));
    compare("write_at, 4 KiB", |n| by_calls(&blocking[n], true));
    compare("worker, reads of 4 KiB, 16 at a time", |n| by_worker(&devices[n]));
    let engine = [device(StatsLevel::On), with_engine()];
    compare("worker, reads of 4 KiB, 16 at a time, an engine", |n| by_worker(&engine[n]));
    let same = [device(StatsLevel::On), device(StatsLevel::On)];
    compare("worker, reads of 4 KiB, 16 at a time, no difference", |n| by_worker(&same[n]));
}
