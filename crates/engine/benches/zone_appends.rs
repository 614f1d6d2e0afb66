//! How fast appends are: to one zone and to eight, on the raw store, on ours, and on ours with one append of a zone at
//! a time.
//!
//! The last is how a zone append is emulated where the position of one has to be known before the next can begin; here
//! they are placed, and so encrypted, many at a time. Every round measures all ways in turn; the medians are printed as
//! a table.
//!
//! `cargo bench -p inlock-engine --bench zone_appends [-- DIRECTORY | BLOCK-DEVICE [MIB]]`: a file with zones is made
//! in the directory (a file system in memory, where there is one), or the zones of a host-managed block device are
//! used, **whose content is lost**. MIB, 128 otherwise: what a measurement appends, which a zone has to have room for.

#![allow(missing_docs, clippy::unwrap_used)]

use inlock_cipher::{CipherSpec, DataUnitSize, Segment, VolumeKey};
use inlock_engine::buffer::{Buffer, BufferClass, BufferPool};
use inlock_engine::request::Operation;
use inlock_engine::ring::{Completion, Ring, Wait};
use inlock_engine::store::file::IoMode;
use inlock_engine::store::zoned_device::ZonedDevice;
use inlock_engine::worker::{Context, Finished, Flow, Frontend, Request, Worker};
use inlock_engine::zoned::{Zone, ZoneAction, ZoneKind};
use inlock_engine::{Access, BackingStore, Device, Offload, OffloadOptions, OffloadPolicy};
use inlock_zoned_file::{ZonedFile, ZonedLayout};
use rustix::fs::OFlags;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier};
use std::time::Instant;

const DEFAULT_TOTAL: u64 = 128 << 20;
const ZONES: usize = 8;
const SIZES: [u64; 3] = [4 << 10, 64 << 10, 256 << 10];
const ROUNDS: usize = 5;
/// Appends in flight over all workers.
const DEPTH: usize = 32;
/// Pages in memory for what is written, so that nothing is gained by writing the same all the time.
const SOURCES: usize = 64;

#[derive(Clone, Copy)]
struct Way {
    name: &'static str,
    encrypted: bool,
    all_workers: bool,
    offloaded: bool,
    serialised: bool,
}

const RAW: Way = Way { name: "raw", encrypted: false, all_workers: true, offloaded: false, serialised: false };
const WAYS: [Way; 6] = [
    RAW,
    Way { name: "one worker", encrypted: true, all_workers: false, ..RAW },
    Way { name: "workers", encrypted: true, ..RAW },
    Way { name: "workers, pool", encrypted: true, offloaded: true, ..RAW },
    Way { name: "serialised", encrypted: true, serialised: true, ..RAW },
    Way { name: "serialised, pool", encrypted: true, serialised: true, offloaded: true, ..RAW },
];

/// Frontend that appends to its zones in turn.
struct Appends {
    zones: Vec<u64>,
    busy: Vec<usize>,
    /// Number of appends in flight per zone, and in total.
    of_a_zone: usize,
    depth: usize,
    under_way: usize,
    turn: usize,
    len: u64,
    left: u64,
}

impl Frontend for Appends {
    type Message = ();

    fn on_message(&mut self, _cx: &mut Context<'_>, (): ()) {}
    fn on_completion(&mut self, _cx: &mut Context<'_>, _done: Completion) {}

    fn on_finished(&mut self, cx: &mut Context<'_>, done: Finished) {
        done.result.unwrap();
        let (_, buffer) = done.data.unwrap();
        cx.pool.give(buffer);
        self.busy[done.id as usize] -= 1;
        self.under_way -= 1;
        self.ask(cx);
    }

    fn end_turn(&mut self, cx: &mut Context<'_>) -> (Flow, Wait) {
        self.ask(cx);
        let over = self.left == 0 && self.under_way == 0;
        (if over { Flow::Stop } else { Flow::Continue }, Wait::Forever)
    }
}

impl Appends {
    fn ask(&mut self, cx: &mut Context<'_>) {
        while self.left > 0 && self.under_way < self.depth {
            let zones = self.zones.len();
            let mut turns = (0..zones).map(|n| (self.turn + n) % zones);
            let Some(index) = turns.find(|index| self.busy[*index] < self.of_a_zone) else { return };
            self.turn = index + 1;
            self.left -= 1;
            self.under_way += 1;
            self.busy[index] += 1;
            let (offset, len) = (self.zones[index], self.len);
            let mapped = cx.mapping.locate(offset, len, 2 << 20).unwrap();
            let buffer = cx.pool.take(mapped.aligned_len, mapped.aligned_len).unwrap();
            let operation = Operation::Append { durable: false };
            let data = Some((mapped, buffer));
            cx.requests.push_back(Request { id: index as u64, operation, offset, len, data, spare: None });
        }
    }
}

struct Bench {
    store: Arc<dyn BackingStore>,
    /// The zones that are appended to.
    starts: Vec<u64>,
    workers: usize,
    /// Bytes that a measurement appends.
    total: u64,
}

impl Bench {
    /// Returns MiB per second.
    fn measure(&self, way: Way, zones: usize, len: u64) -> f64 {
        let zoned = self.store.zoned().unwrap();
        let zone_len = zoned.limits().zone_len;
        self.starts.iter().for_each(|start| zoned.manage(ZoneAction::Reset, *start, zone_len).unwrap());
        let starts = &self.starts[..zones];
        let seconds = if way.encrypted { self.ours(way, starts, len) } else { self.raw(starts, len) };
        let mut found = 0;
        for start in starts {
            let mut zone = [Zone::UNKNOWN];
            zoned.report(*start, &mut zone).unwrap();
            found += zone[0].write_pointer.unwrap() - start;
        }
        assert_eq!(found, self.total, "all was appended");
        self.total as f64 / seconds / f64::from(1 << 20)
    }

    /// A thread for some of the zones, at most as many as there would be workers.
    fn raw(&self, starts: &[u64], len: u64) -> f64 {
        let threads = self.workers.min(starts.len());
        let go = Barrier::new(threads + 1);
        std::thread::scope(|scope| {
            for zones in starts.chunks(starts.len().div_ceil(threads)) {
                let go = &go;
                scope.spawn(move || {
                    let buffers: Vec<_> = (0..SOURCES).map(|_| filled(len)).collect();
                    go.wait();
                    for n in 0..self.total / starts.len() as u64 / len {
                        for start in zones {
                            let bytes = &buffers[n as usize % SOURCES].data()[..len as usize];
                            assert_eq!(self.store.write_at(bytes, start + n * len), Ok(bytes.len()));
                        }
                    }
                    go.wait();
                });
            }
            go.wait();
            let begin = Instant::now();
            go.wait();
            begin.elapsed().as_secs_f64()
        })
    }

    fn ours(&self, way: Way, starts: &[u64], len: u64) -> f64 {
        let segment = Segment::whole(Some(CipherSpec::AES_XTS_PLAIN64), DataUnitSize::new(4096).unwrap());
        let key = VolumeKey::new(&(0..64).collect::<Vec<u8>>());
        let device = Arc::new(Device::new(&[segment], &key, Arc::clone(&self.store), Access::default()).unwrap());
        let mut options = OffloadOptions::default();
        (options.policy, options.threads) = (OffloadPolicy::Writes, self.workers);
        let pool = if way.offloaded { Offload::start(&device, &options).unwrap() } else { None };
        // With one append of a zone in flight at a time, several workers would slow each other down.
        let most = if way.serialised { starts.len() } else { DEPTH };
        let workers = if way.all_workers { self.workers.min(most) } else { 1 };
        let go = Barrier::new(workers + 1);
        std::thread::scope(|scope| {
            for number in 0..workers {
                let (device, pool, go) = (&device, pool.clone(), &go);
                let mine: Vec<u64> = match way.serialised {
                    true => starts.iter().skip(number).step_by(workers).copied().collect(),
                    false => starts.to_vec(),
                };
                scope.spawn(move || {
                    let depth = DEPTH / workers;
                    let buffers = BufferPool::new(&[BufferClass { capacity: len as usize, count: depth }]);
                    let front = Appends {
                        busy: vec![0; mine.len()],
                        of_a_zone: if way.serialised { 1 } else { usize::MAX },
                        depth,
                        under_way: 0,
                        turn: number,
                        len,
                        left: self.total / len / workers as u64,
                        zones: mine,
                    };
                    let ring = Ring::new(IoMode::Auto).unwrap();
                    let mut worker = Worker::new(Arc::clone(device), ring, buffers, front).with_offload(pool);
                    go.wait();
                    worker.run().unwrap();
                    go.wait();
                });
            }
            go.wait();
            let begin = Instant::now();
            go.wait();
            begin.elapsed().as_secs_f64()
        })
    }
}

fn filled(len: u64) -> Buffer {
    let mut buffer = Buffer::new(len as usize);
    buffer.data_mut().iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 7) as u8);
    buffer
}

/// A store at `path`, with at least eight zones for appends.
fn open(path: &Path, zone_len: u64) -> Arc<dyn BackingStore> {
    if path.is_dir() {
        let file = path.join(format!("inlock-bench-{}.zoned", std::process::id()));
        ZonedFile::create(&file, &ZonedLayout::new(ZONES as u64 * zone_len, zone_len)).unwrap();
        let store = ZonedFile::open(&file).unwrap();
        let _ = std::fs::remove_file(&file);
        let _ = std::fs::remove_file(file.with_extension("zoned.zones"));
        return Arc::new(store);
    }
    let direct = OFlags::DIRECT.bits() as i32;
    let device = File::options().read(true).write(true).custom_flags(direct).open(path).unwrap();
    Arc::new(ZonedDevice::new(device, IoMode::Auto).unwrap())
}

fn main() {
    let mut given = std::env::args().skip(1).filter(|argument| !argument.starts_with('-'));
    let (path, mib) = (given.next().map(PathBuf::from), given.next().map(|mib| mib.parse::<u64>().unwrap()));
    let total = mib.map_or(DEFAULT_TOTAL, |mib| mib << 20);
    let memory = Path::new("/dev/shm");
    let elsewhere = || if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let store = open(&path.unwrap_or_else(elsewhere), total.next_power_of_two());
    let zoned = store.zoned().unwrap();
    let mut zones = vec![Zone::UNKNOWN; zoned.limits().zones as usize];
    let count = zoned.report(0, &mut zones).unwrap();
    let wanted = |zone: &&Zone| zone.kind == ZoneKind::SequentialRequired && zone.capacity >= total;
    let starts: Vec<u64> = zones[..count].iter().filter(wanted).take(ZONES).map(|zone| zone.start).collect();
    assert_eq!(starts.len(), ZONES, "there are eight sequential zones of at least {} MiB", total >> 20);
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(ZONES);
    let bench = Bench { store, starts, workers, total };
    println!(
        "Appends, MiB/s, medians of {ROUNDS}; {workers} workers, {DEPTH} appends in flight, AES-XTS, units of 4 KiB\n"
    );
    let names: Vec<_> = WAYS.iter().map(|way| way.name).collect();
    println!("| zones | bytes | {} | best of ours : raw | best : best serialised |", names.join(" | "));
    println!("|{}", "---:|".repeat(WAYS.len() + 4));
    for zones in [1, ZONES] {
        for len in SIZES {
            let mut results = vec![Vec::new(); WAYS.len()];
            for round in 0..ROUNDS {
                for n in 0..WAYS.len() {
                    let which = (round + n) % WAYS.len();
                    results[which].push(bench.measure(WAYS[which], zones, len));
                }
            }
            results.iter_mut().for_each(|of_way| of_way.sort_by(f64::total_cmp));
            let medians: Vec<f64> = results.iter().map(|of_way| of_way[ROUNDS / 2]).collect();
            let best = |from: &[f64]| from.iter().copied().fold(0.0, f64::max);
            let (ours, serialised) = (best(&medians[1..4]), best(&medians[4..]));
            let shown: Vec<_> = medians.iter().map(|rate| format!("{rate:.0}")).collect();
            let shown = shown.join(" | ");
            println!("| {zones} | {len} | {shown} | {:.2} | {:.2} |", ours / medians[0], ours / serialised);
        }
    }
}
