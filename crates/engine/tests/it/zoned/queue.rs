//! Writes reach the store in the order in which they were submitted, zone by zone, even if requests overtake each other
//! before.
//!
//! Requests go to the workers' queues by turns, so that those of one zone overtake each other; lengths differ by a
//! factor of 32, and with them the time that the cipher takes; the store takes longer over some writes. What came at
//! the store is checked afterwards, and so is what every zone holds before it is emptied again.

use super::memory::{MemoryZones, Shape};
use super::team::{Ask, Team};
use super::trouble::{Arrival, Trouble};
use super::{DATA_ZONES, segment};
use crate::scripted::offload_options;
use crate::support::with;
use crate::support::{Random, key};
use inlock_engine::zoned::ZoneAction;
use inlock_engine::{Access, BackingStore, BlockingDevice, Device, Offload, OffloadPolicy};
use std::sync::Arc;

const SHAPE: Shape = Shape {
    zone_len: 1 << 20,
    capacity: 960 << 10,
    zones: DATA_ZONES + 8,
    conventional: 1,
    max_open: 0,
    max_active: 0,
    granularity: 512,
};
const LONGEST: u64 = 16 << 10;
const DEPTH: usize = 32;

#[derive(Clone, Copy, Debug)]
struct Way {
    workers: usize,
    offloaded: bool,
    ordered: bool,
}

/// Sequential zone as seen by its writers.
#[derive(Clone, Copy, Default)]
struct Target {
    written: u64,
    under_way: usize,
    generation: u64,
    emptied: bool,
}

/// Fills `into` with the content of a zone from `at`, for the given generation of its data.
fn content(zone: u64, generation: u64, at: u64, into: &mut [u8]) {
    for (index, bytes) in into.chunks_exact_mut(8).enumerate() {
        let word = (at / 8 + index as u64) ^ zone << 56 ^ generation << 32;
        bytes.copy_from_slice(&word.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).to_le_bytes());
    }
}

struct Submitter<'a> {
    team: &'a Team,
    way: Way,
    random: Random,
    targets: Vec<Target>,
    /// Number of writes that each worker has in flight.
    loads: Vec<usize>,
    turn: usize,
}

const RESET: u64 = 1 << 62;

impl Submitter<'_> {
    /// Submits a write, if some zone has room for it and some worker.
    fn submit(&mut self) -> bool {
        let count = self.targets.len() as u64;
        let from = self.random.below(count);
        let room = |zone: &u64| self.targets[*zone as usize].written < SHAPE.capacity;
        let Some(zone) = (0..count).map(|n| (from + n) % count).find(room) else { return false };
        let workers = self.loads.len();
        let mut turns = (0..workers).map(|n| (self.turn + n) % workers);
        let Some(worker) = turns.find(|worker| self.loads[*worker] < DEPTH) else { return false };
        self.turn = worker + 1;
        let target = &mut self.targets[zone as usize];
        let short = self.random.below(3) > 0;
        let longest = if short { 2048 } else { LONGEST }.min(SHAPE.capacity - target.written);
        let mut data = vec![0; ((1 + self.random.below(longest / 512)) * 512) as usize];
        content(zone, target.generation, target.written, &mut data);
        let offset = zone * SHAPE.zone_len + target.written;
        target.written += data.len() as u64;
        target.under_way += 1;
        self.loads[worker] += 1;
        self.team.post(worker, zone << 8 | worker as u64, Ask::Write { offset, data, durable: false });
        true
    }

    /// Takes an answer, and empties the zone that is full and at rest, when its content is right.
    fn take(&mut self, reader: &BlockingDevice) -> Result<(), String> {
        let (id, answer) = self.team.next();
        let (zone, worker) = ((id & !RESET) >> 8, (id & 0xff) as usize);
        let target = &mut self.targets[zone as usize];
        if id & RESET != 0 {
            *target = Target { generation: target.generation + 1, ..Target::default() };
            return answer.map(drop).map_err(|error| format!("reset of zone {zone}: {error}"));
        }
        target.under_way -= 1;
        self.loads[worker] -= 1;
        answer.map_err(|error| format!("write to zone {zone}: {error}"))?;
        if target.written < SHAPE.capacity || target.under_way > 0 || target.emptied {
            return Ok(());
        }
        self.check(zone, reader)?;
        self.targets[zone as usize].emptied = true;
        let (action, offset, len) = (ZoneAction::Reset, zone * SHAPE.zone_len, SHAPE.zone_len);
        self.team.post(worker, RESET | zone << 8 | worker as u64, Ask::Zones { action, offset, len });
        Ok(())
    }

    fn check(&self, zone: u64, reader: &BlockingDevice) -> Result<(), String> {
        let Target { written, generation, .. } = self.targets[zone as usize];
        let mut expected = vec![0; written as usize];
        content(zone, generation, 0, &mut expected);
        let mut found = vec![0; written as usize];
        reader.read_at(&mut found, zone * SHAPE.zone_len).map_err(|error| error.to_string())?;
        if found == expected { Ok(()) } else { Err(format!("zone {zone} holds something else")) }
    }

    fn is_idle(&self) -> bool {
        self.targets.iter().all(|target| target.under_way == 0 && !target.emptied)
    }
}

/// Every write of a zone comes where the one before it ended, after that has ended.
fn check_order(arrivals: &[Arrival]) -> Result<u64, String> {
    let mut ends = vec![0; SHAPE.zones as usize];
    let mut writes = 0;
    for (number, Arrival { zone, at, len, requests, overlaps }) in arrivals.iter().enumerate() {
        let end = &mut ends[*zone as usize];
        match at {
            None => *end = 0,
            Some(_) if *overlaps => return Err(format!("arrival {number} before another of zone {zone} had ended")),
            Some(at) if at != end => return Err(format!("arrival {number} at {at} of zone {zone}, not at {end}")),
            Some(_) => {
                *end += len;
                writes += *requests as u64;
            }
        }
    }
    Ok(writes)
}

/// Submits so many writes. Returns how often several came at once, or what is wrong with how they came.
fn run(way: Way, writes: usize) -> Result<usize, String> {
    let inner: Arc<dyn BackingStore> = Arc::new(MemoryZones::new(SHAPE));
    let store = Arc::new(Trouble::new(Arc::clone(&inner)).delayed(64, 3).logged(writes + writes / 16));
    let cipher = if way.offloaded { "serpent-xts-plain64" } else { "aes-xts-plain64" };
    let segments = [with!(segment(SHAPE.zone_len, 512); cipher: Some(cipher.parse().unwrap()))];
    let open = |store| Device::new(&segments, &key(), store, Access::default()).unwrap();
    let mut device = open(Arc::clone(&store) as _);
    if !way.ordered {
        device = device.without_zone_write_queues();
    }
    let device = Arc::new(device);
    let reader = BlockingDevice::new(Arc::new(open(inner)));
    let policy = if way.offloaded { OffloadPolicy::Writes } else { OffloadPolicy::None };
    let pool = Offload::start(&device, &offload_options(policy, 3)).unwrap();
    let team = Team::start(&device, way.workers, pool.as_ref());
    let targets = vec![Target::default(); (SHAPE.zones - DATA_ZONES) as usize];
    let (random, loads) = (Random::new(7), vec![0; way.workers]);
    let mut submitter = Submitter { team: &team, way, random, targets, loads, turn: 0 };
    let mut left = writes;
    let mut verdict = Ok(());
    while !submitter.is_idle() || left > 0 && verdict.is_ok() {
        while left > 0 && verdict.is_ok() && submitter.submit() {
            left -= 1;
        }
        verdict = verdict.and(submitter.take(&reader));
    }
    let way = submitter.way;
    let order = check_order(&store.arrivals());
    for zone in 0..submitter.targets.len() as u64 {
        verdict = verdict.and_then(|()| submitter.check(zone, &reader));
    }
    let stats = device.stats().snapshot();
    assert_eq!(stats.offloaded > 0, way.offloaded, "the cipher work is where it was put");
    let came = order?;
    verdict?;
    let gathered = store.arrivals().iter().filter(|arrival| arrival.requests > 1).count();
    println!("{gathered} times several at once, {way:?}");
    assert!(gathered == 0 || way.workers > 1 || way.offloaded, "nothing waits on one worker");
    if came == writes as u64 { Ok(gathered) } else { Err(format!("{came} writes came of {writes}")) }
}

/// `cargo test --release -p inlock-engine --test it zoned::queue` submits a million in each way.
#[test]
fn writes_come_in_the_order_of_their_submission() {
    let writes = if cfg!(debug_assertions) { 5000 } else { 1_000_000 };
    let mut gathered = 0;
    for (workers, offloaded) in [(1, false), (4, false), (1, true), (4, true)] {
        let way = Way { workers, offloaded, ordered: true };
        let started = std::time::Instant::now();
        gathered += run(way, writes).unwrap_or_else(|error| panic!("{way:?}: {error}"));
        println!("{writes} writes in order, {way:?}: {:.1} s", started.elapsed().as_secs_f64());
    }
    assert!(gathered > 0, "what waits goes together");
}

/// The negative control: without the queues the same test fails.
#[test]
fn without_order_writes_come_out_of_order() {
    for (workers, offloaded) in [(4, false), (1, true), (4, true)] {
        let way = Way { workers, offloaded, ordered: false };
        // On busy CPUs one thread may do all the work for a while, which keeps an order by chance.
        let error = (0..100).find_map(|_| run(way, 20_000).err()).expect("no queue keeps the order");
        println!("{way:?}: {error}");
    }
}
