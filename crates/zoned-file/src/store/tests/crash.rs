//! Kills and power cuts, and the states found after them.
//!
//! A machine has two disks (data and sidecar) behind a cache. A kill keeps the cache; a power cut leaves of each sector
//! any version since the last sync, or a mixture of two. A file is used at random in several lives on such a machine,
//! and each life must find a state that the previous one may have left. In half of the lives another thread syncs the
//! file concurrently.

use super::*;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::mpsc;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

const SECTOR: usize = 512;
const TINY_ZONE: u64 = 8 * SECTOR as u64;
const CONVENTIONAL: usize = 0;
const ZONES: usize = 7;

fn tiny() -> ZonedLayout {
    ZonedLayout {
        capacity: 6 * SECTOR as u64,
        conventional: 1,
        max_open: 2,
        max_active: 4,
        write_granularity: SECTOR as u32,
        ..ZonedLayout::new(ZONES as u64 * TINY_ZONE, TINY_ZONE)
    }
}

/// A request that has reached the cache.
enum Event {
    Write { disk: usize, offset: usize, bytes: Vec<u8> },
    Sync { disk: usize },
}

struct Machine {
    /// Contents of the disks at power-on.
    disks: [Vec<u8>; 2],
    cache: [Vec<u8>; 2],
    log: Vec<Event>,
    /// A disk that ignores syncs: the negative control.
    lying: Option<usize>,
    /// Another thread that syncs the file.
    beside: Option<Beside>,
}

/// A thread that syncs the file on request, as seen by the main thread.
struct Beside {
    user: ThreadId,
    ask: mpsc::Sender<u64>,
    asked: u64,
    done: Arc<AtomicU64>,
    random: Random,
}

impl Beside {
    /// Requests a sync with a chance of one in `one_in`, and returns its number.
    fn ask(&mut self, one_in: u64) -> Option<u64> {
        if std::thread::current().id() != self.user || self.random.below(one_in) != 0 {
            return None;
        }
        self.asked += 1;
        self.ask.send(self.asked).ok().map(|()| self.asked)
    }
}

struct Disk {
    machine: Arc<Mutex<Machine>>,
    number: usize,
}

impl Disk {
    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap()
    }

    /// Occasionally starts a sync in the other thread.
    fn begin_sync_beside(&self) {
        self.machine().beside.as_mut().and_then(|beside| beside.ask(64));
    }

    /// Occasionally runs a sync in the other thread, and waits until it ends, unless the sync waits for the caller.
    fn sync_beside(&self) {
        let asked = self.machine().beside.as_mut().and_then(|beside| Some((beside.ask(2)?, beside.done.clone())));
        let begun = Instant::now();
        while asked.as_ref().is_some_and(|(number, done)| done.load(Ordering::Acquire) < *number)
            && begun.elapsed() < Duration::from_millis(20)
        {
            std::thread::yield_now();
        }
    }
}

impl BackingStore for Disk {
    fn geometry(&self) -> Geometry {
        Geometry::new(self.machine().cache[self.number].len() as u64)
    }

    fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let machine = self.machine();
        data.copy_from_slice(&machine.cache[self.number][offset as usize..][..data.len()]);
        Ok(data.len())
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        self.begin_sync_beside();
        let mut machine = self.machine();
        machine.cache[self.number][offset as usize..][..data.len()].copy_from_slice(data);
        machine.log.push(Event::Write { disk: self.number, offset: offset as usize, bytes: data.to_vec() });
        Ok(data.len())
    }

    fn sync(&self) -> Result<(), Errno> {
        self.begin_sync_beside();
        let mut machine = self.machine();
        if machine.lying != Some(self.number) {
            machine.log.push(Event::Sync { disk: self.number });
        }
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), Errno> {
        self.sync_beside();
        self.write_at(&vec![0; len as usize], offset).map(drop)
    }
}

impl Machine {
    /// Drops everything after the first `events`, when the process was killed.
    fn kill(&mut self, events: usize) {
        self.log.truncate(events);
        self.cache = self.disks.clone();
        for event in &self.log {
            if let Event::Write { disk, offset, bytes } = event {
                self.cache[*disk][*offset..][..bytes.len()].copy_from_slice(bytes);
            }
        }
    }

    /// Returns the number of events of this life, at least `first`: all, any number, a number just before a sync, or
    /// just after one.
    fn end_after(&self, first: usize, steps: &[Step], random: &mut Random) -> usize {
        let is_sync = |at: &usize| matches!(self.log[*at], Event::Sync { .. });
        let syncs: Vec<usize> = (first..self.log.len()).filter(is_sync).collect();
        let ended: Vec<usize> = steps.iter().filter_map(|step| step.safe_from).filter(|at| *at >= first).collect();
        let kind = random.below(4);
        let mut one_of = |ends: &[usize]| ends[random.below(ends.len() as u64) as usize];
        match kind {
            0 => self.log.len(),
            1 if !syncs.is_empty() => one_of(&syncs),
            2 if !ended.is_empty() => one_of(&ended),
            _ => first + random.below((self.log.len() - first) as u64 + 1) as usize,
        }
    }

    /// Like [`Machine::kill`], and drops from the cache what a power cut may lose.
    fn cut_power(&mut self, events: usize, random: &mut Random) {
        self.log.truncate(events);
        for disk in 0..2 {
            let (mut now, mut safe) = (self.disks[disk].clone(), self.disks[disk].clone());
            let mut versions: HashMap<usize, Vec<Vec<u8>>> = HashMap::new();
            for event in &self.log {
                match event {
                    Event::Sync { disk: of } if *of == disk => {
                        safe.clone_from(&now);
                        versions.clear();
                    }
                    Event::Write { disk: of, offset, bytes } if *of == disk => {
                        now[*offset..][..bytes.len()].copy_from_slice(bytes);
                        for sector in offset / SECTOR..(offset + bytes.len()).div_ceil(SECTOR) {
                            let version = |of: &[u8]| of[sector * SECTOR..][..SECTOR].to_vec();
                            versions.entry(sector).or_insert_with(|| vec![version(&safe)]).push(version(&now));
                        }
                    }
                    _ => {}
                }
            }
            let taste = random.below(4);
            let mut versions: Vec<_> = versions.into_iter().collect();
            versions.sort_by_key(|(sector, _)| *sector);
            for (sector, versions) in versions {
                let last = versions.len() - 1;
                let chosen = match taste {
                    0 => 0,
                    1 => last,
                    _ => random.below(versions.len() as u64) as usize,
                };
                let mut content = versions[chosen].clone();
                if chosen < last && taste == 3 {
                    // Tearing equal versions would show nothing.
                    let next = &versions[chosen + 1];
                    let differ = |at: &usize| content[*at..*at + 8] != next[*at..*at + 8];
                    let places: Vec<usize> = (0..SECTOR).step_by(8).filter(differ).collect();
                    if !places.is_empty() {
                        let torn_at = places[random.below(places.len() as u64) as usize];
                        content[..torn_at].copy_from_slice(&next[..torn_at]);
                    }
                }
                safe[sector * SECTOR..][..SECTOR].copy_from_slice(&content);
            }
            self.cache[disk].clone_from(&safe);
            self.disks[disk] = safe;
        }
        self.log.clear();
    }
}

/// Contents of a zone: a number for each sector, and its condition.
#[derive(Clone, Debug, PartialEq)]
struct Held {
    sectors: Vec<u64>,
    condition: ZoneCondition,
}

type Content = Vec<Held>;

/// Reads everything back. Bytes beyond the write pointers must be zero.
fn content(file: &ZonedFile) -> Result<Content, String> {
    let mut content = Content::new();
    for zone in 0..ZONES {
        let State { written, condition, .. } = file.states().get(zone as u32);
        let mut bytes = vec![0xee; TINY_ZONE as usize];
        if condition != ZoneCondition::Offline {
            read_all(file, &mut bytes, zone as u64 * TINY_ZONE).map_err(|e| format!("zone {zone}: {e}"))?;
        }
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes[..8].try_into().unwrap());
        let (below, beyond) = bytes.split_at(if zone == CONVENTIONAL { bytes.len() } else { written as usize });
        if condition != ZoneCondition::Offline && beyond != vec![0; beyond.len()] {
            return Err(format!("zone {zone}: bytes beyond the pointer"));
        }
        let sectors = if zone == CONVENTIONAL {
            below.chunks(8).map(word).collect()
        } else {
            if below.chunks(SECTOR).any(|sector| *sector != sector[..8].repeat(SECTOR / 8)) {
                return Err(format!("zone {zone}: torn sectors below the pointer"));
            }
            below.chunks(SECTOR).map(word).collect()
        };
        content.push(Held { sectors, condition });
    }
    Ok(content)
}

fn after_power_off(held: &Held) -> Held {
    let condition = match held.condition {
        open if open.is_open() && held.sectors.is_empty() => ZoneCondition::Empty,
        open if open.is_open() => ZoneCondition::Closed,
        other => other,
    };
    Held { condition, ..held.clone() }
}

/// State after an operation.
struct Step {
    /// Number of events then.
    events: usize,
    content: Content,
    /// Number of events when a sync had ended that promised all of it.
    safe_from: Option<usize>,
}

/// Checks that each zone of `found` is as in one of `allowed`.
fn check(found: &Content, allowed: &[Content]) -> Result<(), String> {
    for (zone, found) in found.iter().enumerate() {
        let one_of_them = if zone == CONVENTIONAL {
            let word = |(number, word): (usize, &u64)| allowed.iter().any(|held| held[zone].sectors[number] == *word);
            found.sectors.iter().enumerate().all(word)
        } else {
            allowed.iter().any(|held| held[zone] == *found)
        };
        if !one_of_them {
            let allowed: Vec<_> = allowed.iter().map(|held| &held[zone]).collect();
            return Err(format!("zone {zone} is {found:?}, and may be one of {allowed:?}"));
        }
    }
    Ok(())
}

/// Runs a random operation, valid or invalid. Returns whether it promised everything.
fn operate(file: &ZonedFile, random: &mut Random, tag: &mut u64, beside: bool) -> bool {
    let zone = random.below(ZONES as u64);
    let start = zone * TINY_ZONE;
    let state = file.states().get(zone as u32);
    match random.below(16) {
        0..=8 => {
            *tag += 1;
            let sectors = 1 + random.below(4);
            let at = if zone == CONVENTIONAL as u64 { random.below(5) * SECTOR as u64 } else { state.written };
            let fill = |sector: u64| (*tag << 8 | sector).to_le_bytes().repeat(SECTOR / 8);
            let bytes: Vec<u8> = (0..sectors).flat_map(fill).collect();
            let durable = !beside && random.below(8) == 0 && zone != CONVENTIONAL as u64;
            file.write_at(&bytes, start + at).is_ok() && durable && file.sync().is_ok()
        }
        9..=13 => {
            let actions = [ZoneAction::Open, ZoneAction::Close, ZoneAction::Finish, ZoneAction::Reset];
            // With concurrent syncs, resets are the operations of interest.
            let kinds = if beside { 16 } else { 4 };
            let action = actions[random.below(kinds).min(3) as usize];
            let zones = if action == ZoneAction::Reset { 1 + random.below(ZONES as u64 - zone) } else { 1 };
            let _ = file.manage(action, start, zones * TINY_ZONE);
            false
        }
        14 if random.below(8) == 0 => {
            file.manage(ZoneAction::ResetAll, 0, 0).unwrap();
            false
        }
        15 if random.below(200) == 0 => {
            let _ = file.retire(zone as u32, ZoneCondition::ReadOnly);
            false
        }
        // The other thread syncs.
        _ if beside => false,
        _ => file.sync().is_ok(),
    }
}

/// Counters of the kinds of events.
#[derive(Default, Debug)]
struct Counts {
    kills: u32,
    cuts: u32,
    closes: u32,
    /// Promises torn by a power cut.
    torn: u32,
    /// Zones rolled back by a power cut.
    rolled_back: u32,
    /// Syncs of another thread.
    beside: usize,
}

/// A completed sync of another thread.
struct SyncBeside {
    /// Number of steps that had ended before it started: it promises the last of them.
    steps: usize,
    /// Number of events when it had ended.
    events: usize,
}

/// Runs up to 24 operations, and returns the state after each.
fn live(
    file: &ZonedFile,
    machine: &Mutex<Machine>,
    steps: &mut Vec<Step>,
    random: &mut Random,
    tag: &mut u64,
    ended: Option<&AtomicUsize>,
) -> Result<(), String> {
    for _ in 0..random.below(25) {
        let synced = operate(file, random, tag, ended.is_some());
        let content = content(file)?;
        let events = machine.lock().unwrap().log.len();
        steps.push(Step { events, content, safe_from: synced.then_some(events) });
        if let Some(ended) = ended {
            ended.store(steps.len(), Ordering::Release);
        }
    }
    Ok(())
}

/// Like [`live`], while another thread syncs the file. The steps record which states it promised.
fn live_beside_syncs(
    file: &ZonedFile,
    machine: &Mutex<Machine>,
    steps: &mut Vec<Step>,
    random: &mut Random,
    tag: &mut u64,
    counts: &mut Counts,
) -> Result<(), String> {
    let (ended, done, (ask, asked)) = (AtomicUsize::new(steps.len()), Arc::default(), mpsc::channel());
    let sync_when_asked = |done: &AtomicU64| {
        let mut syncs = Vec::new();
        for number in asked {
            let steps = ended.load(Ordering::Acquire);
            file.sync().unwrap();
            syncs.push(SyncBeside { steps, events: machine.lock().unwrap().log.len() });
            done.store(number, Ordering::Release);
        }
        syncs
    };
    let (user, seed) = (std::thread::current().id(), random.next());
    machine.lock().unwrap().beside =
        Some(Beside { user, ask, asked: 0, done: Arc::clone(&done), random: Random::new(seed) });
    let (result, syncs) = std::thread::scope(|scope| {
        let syncing = scope.spawn(|| sync_when_asked(&done));
        let result = live(file, machine, steps, random, tag, Some(&ended));
        machine.lock().unwrap().beside = None;
        (result, syncing.join().unwrap())
    });
    counts.beside += syncs.len();
    for SyncBeside { steps: ended, events } in syncs {
        let safe_from = &mut steps[ended - 1].safe_from;
        *safe_from = Some(safe_from.map_or(events, |earlier: usize| earlier.min(events)));
    }
    result
}

/// Runs several lives of a file; `beside`: while another thread syncs it.
fn lives(seed: u64, beside: bool, lying: Option<usize>, counts: &mut Counts) -> Result<(), String> {
    let mut random = Random::new(seed);
    let (mut boot, mut tag) = (1, 0);
    let (data, sidecar) = stores(&tiny());
    let disks = [data.contents(), sidecar.contents()];
    let machine = Machine { cache: disks.clone(), disks, log: Vec::new(), lying, beside: None };
    let machine = Arc::new(Mutex::new(machine));
    let disk = |number| Arc::new(Disk { machine: machine.clone(), number });
    let events = || machine.lock().unwrap().log.len();
    let mut steps: Vec<Step> = Vec::new();
    let mut allowed: Vec<Content> = Vec::new();
    for life in 0..6 {
        let loaded = sidecar::load(disk(1), boot).map_err(|e| format!("life {life}: {e}"))?;
        let is_torn = |(table, _): &&(records::Table, u32)| *table != records::Table::Answered;
        counts.torn += loaded.torn.iter().filter(is_torn).count() as u32;
        let before = events();
        let file = ZonedFile::over(disk(0), disk(1), boot).map_err(|e| format!("life {life}: {e}"))?;
        let found = content(&file).map_err(|e| format!("life {life}: {e}"))?;
        if life > 0 {
            check(&found, &allowed).map_err(|e| format!("life {life}: {e}"))?;
        }
        // After a power cut, as at first, the whole state is durable.
        let safe_from = steps.is_empty().then_some(before);
        steps.push(Step { events: before, content: found, safe_from });
        if beside {
            live_beside_syncs(&file, &machine, &mut steps, &mut random, &mut tag, counts)?;
        } else {
            live(&file, &machine, &mut steps, &mut random, &mut tag, None)?;
        }
        if random.below(4) == 0 {
            counts.closes += 1;
            let content = content(&file)?;
            file.close().map_err(|e| e.to_string())?;
            steps.push(Step { events: events(), content, safe_from: Some(events()) });
        } else {
            std::mem::forget(file);
        }
        let end = machine.lock().unwrap().end_after(before, &steps, &mut random);
        let ended = steps.iter().take_while(|step| step.events <= end).count();
        steps.truncate(ended + 1);
        if random.below(2) == 0 {
            counts.kills += 1;
            machine.lock().unwrap().kill(end);
            allowed = steps[ended - 1..].iter().map(|step| step.content.clone()).collect();
            steps.truncate(ended);
            // A sync that would have ended later does not count.
            steps.iter_mut().for_each(|step| step.safe_from = step.safe_from.filter(|events| *events <= end));
        } else {
            counts.cuts += 1;
            let last = steps[ended - 1].content.clone();
            let is_safe = |step: &Step| step.safe_from.is_some_and(|events| events <= end);
            let synced = steps[..ended].iter().rposition(is_safe).expect("the first step is safe");
            let may_be = steps[synced..].iter().map(|step| step.content.iter().map(after_power_off).collect());
            allowed = may_be.collect();
            machine.lock().unwrap().cut_power(end, &mut random);
            boot += 1;
            steps.clear();
            let safe = ZonedFile::over(disk(0), disk(1), boot).map_err(|e| format!("after life {life}: {e}"))?;
            let lost = content(&safe)?.iter().zip(&last).filter(|(now, then)| now.sectors != then.sectors).count();
            counts.rolled_back += lost as u32;
            std::mem::forget(safe);
            machine.lock().unwrap().kill(0);
        }
    }
    Ok(())
}

#[test]
fn crash_leaves_only_possible_states() {
    let mut counts = Counts::default();
    for seed in 0..600 {
        lives(seed, false, None, &mut counts).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    println!("{counts:?}");
    assert!(counts.kills > 1000 && counts.cuts > 1000 && counts.closes > 500, "{counts:?}");
    assert!(counts.torn > 10 && counts.rolled_back > 1000, "{counts:?}");
    let mut counts = Counts::default();
    for seed in 0..600 {
        lives(seed, true, None, &mut counts)
            .unwrap_or_else(|error| panic!("seed {seed}, with concurrent syncs: {error}"));
    }
    println!("with concurrent syncs: {counts:?}");
    assert!(counts.kills > 1000 && counts.cuts > 1000 && counts.beside > 2000, "{counts:?}");
}

#[test]
fn crash_check_detects_disks_that_ignore_syncs() {
    for lying in [0, 1] {
        let noticed = (0..300).any(|seed| lives(seed, false, Some(lying), &mut Counts::default()).is_err());
        assert!(noticed, "nothing is lost though disk {lying} never syncs");
    }
}
