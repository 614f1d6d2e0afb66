//! Concurrent zone appends from several threads, a log of their positions, and the check of the log.
//!
//! Each append has a number, which its bytes encode ([`aligned::stamp`]), so that the data at a position identify their
//! append. The device is the block device of an NVMe namespace; the data can be checked through any device with the
//! same zones.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use super::aligned::{self, Aligned, BLOCK};
use super::fill::writable;
use super::ioctl::{self, Action, Zone};
use super::kill::Kill;
use super::passthrough::{Appends, Done, Namespace, Status};
use super::text;

const SECTOR: u64 = 512;
/// Maximum length of a read of appended data.
const READ_LEN: u64 = 1 << 20;
/// Distance between the first numbers of two threads.
const OF_A_JOB: u64 = 1 << 24;

/// Arguments in the form `NAME=NUMBER`.
struct Plan {
    seed: u64,
    /// Index of the first sequential zone, and number of zones.
    first: usize,
    zones: usize,
    /// Minimum and maximum length of an append.
    bytes: u64,
    most: u64,
    /// Appends in flight of each thread, and number of threads; all append to all zones.
    depth: usize,
    jobs: usize,
    /// Maximum number of bytes; by default until the zones are full.
    total: u64,
    /// Number of additional appends to each zone, which must fail for lack of space.
    over: u64,
    /// Whether to check the written data.
    verify: bool,
    kill: Option<Kill>,
}

impl Plan {
    fn parse(words: &[&str]) -> Result<Self> {
        let mut given = BTreeMap::new();
        let mut kill = None;
        for word in words {
            if let Some((after, pids)) = word.strip_prefix("kill=").and_then(|word| word.split_once(',')) {
                kill = Some(Kill::new(after.parse()?, &pids.split(',').collect::<Vec<_>>())?);
                continue;
            }
            let (name, number) = word.split_once('=').with_context(|| format!("not NAME=NUMBER: {word}"))?;
            given.insert(name, number.parse::<u64>().with_context(|| format!("not NAME=NUMBER: {word}"))?);
        }
        let mut take = |name: &str, usual: u64| given.remove(name).unwrap_or(usual);
        let bytes = take("bytes", BLOCK);
        let plan = Self {
            seed: take("seed", 1),
            first: take("first", 0) as usize,
            zones: take("zones", 1) as usize,
            bytes,
            most: take("most", bytes),
            depth: take("depth", 32) as usize,
            jobs: take("jobs", 4) as usize,
            total: take("total", u64::MAX),
            over: take("over", 0),
            verify: take("verify", 1) != 0,
            kill,
        };
        ensure!(given.is_empty(), "there is no {}", given.into_keys().collect::<Vec<_>>().join(", "));
        let whole = plan.bytes > 0 && plan.bytes.is_multiple_of(BLOCK) && plan.most.is_multiple_of(BLOCK);
        ensure!(whole && plan.bytes <= plan.most, "lengths are whole blocks of {BLOCK} bytes");
        ensure!(plan.over == 0 || plan.bytes == plan.most, "too many appends are counted of one length only");
        ensure!(plan.depth > 0 && plan.jobs > 0 && plan.zones > 0, "nothing is asked for");
        Ok(plan)
    }
}

/// An append that landed: its position, length and number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Landed {
    at: u64,
    len: u64,
    id: u64,
}

/// State shared by the threads.
struct Load<'a> {
    plan: &'a Plan,
    namespace: Namespace,
    /// Starts of zones, and the number of bytes still to append.
    zones: Vec<(u64, AtomicU64)>,
    left: AtomicU64,
    log: Option<File>,
    /// All threads start together.
    begin: Barrier,
}

/// Empties zones and appends to them, with a line `POSITION LENGTH NUMBER` in `log`, if given, for each append that
/// landed. Checks all reported positions.
pub(super) fn run(device: &Path, log: Option<&str>, words: &[&str]) -> Result<()> {
    let plan = Plan::parse(words)?;
    let block_device = aligned::open(device, true).with_context(|| format!("cannot open {}", device.display()))?;
    let mut zones = writable(&block_device)?;
    zones = zones.into_iter().skip(plan.first).take(plan.zones).collect();
    ensure!(zones.len() == plan.zones, "there are {} such zones", zones.len());
    for zone in zones.iter().filter(|zone| zone.letters() != "em") {
        ioctl::act(&block_device, Action::Reset, zone.start, zone.len).context("cannot reset a zone")?;
    }
    let log = log.map(|log| OpenOptions::new().create(true).append(true).open(log)).transpose()?;
    let room = |zone: &Zone| AtomicU64::new(zone.capacity * SECTOR + plan.over * plan.bytes);
    let load = Load {
        plan: &plan,
        namespace: Namespace::open(device)?,
        zones: zones.iter().map(|zone| (zone.start * SECTOR, room(zone))).collect(),
        left: AtomicU64::new(plan.total),
        log,
        begin: Barrier::new(plan.jobs + 1),
    };
    let (landed, refused, seconds) = load.run()?;
    let bytes: u64 = landed.iter().map(|landed| landed.len).sum();
    let zones: Vec<Zone> = writable(&block_device)?.into_iter().skip(plan.first).take(plan.zones).collect();
    let unknown = look(&landed, &written(&zones))?;
    ensure!(unknown == 0, "{unknown} bytes more than were appended");
    ensure!(
        refused.len() as u64 == plan.over * plan.zones as u64,
        "{} appends failed: {}",
        refused.len(),
        names(&refused)
    );
    if plan.verify {
        verify(&block_device, &landed, plan.seed)?;
    }
    let (appends, mib) = (landed.len() as f64, bytes as f64 / f64::from(1 << 20));
    println!("{appends} appends, {mib:.1} MiB, {:.0}/s, {:.2} MiB/s", appends / seconds, mib / seconds);
    if !refused.is_empty() {
        println!("{} refused: {}", refused.len(), names(&refused));
    }
    Ok(())
}

impl Load<'_> {
    /// Returns the appends that landed, the statuses of refused ones, and the seconds taken.
    fn run(&self) -> Result<(Vec<Landed>, Vec<Status>, f64)> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.plan.jobs).map(|job| scope.spawn(move || self.job(job))).collect();
            self.begin.wait();
            let begin = Instant::now();
            let (mut landed, mut refused) = (Vec::new(), Vec::new());
            for thread in threads {
                let (good, bad) = thread.join().expect("a thread that appends does not panic")?;
                landed.extend(good);
                refused.extend(bad);
            }
            let seconds = begin.elapsed().as_secs_f64();
            landed.sort_unstable();
            Ok((landed, refused, seconds))
        })
    }

    fn job(&self, job: usize) -> Result<(Vec<Landed>, Vec<Status>)> {
        let appends = Appends::new(&self.namespace, self.plan.depth, self.plan.most as usize);
        // A thread that cannot start must not block the others.
        self.begin.wait();
        let mut appends = appends?;
        let (mut landed, mut refused) = (Vec::new(), Vec::new());
        let mut next = job as u64 * OF_A_JOB;
        loop {
            while appends.has_room() {
                let Some((zone, len)) = self.reserve(next) else { break };
                let stamp = |bytes: &mut [u8]| {
                    if self.plan.verify {
                        aligned::stamp(bytes, place(next), self.plan.seed);
                    }
                };
                appends.begin(zone, len, next, stamp)?;
                next += 1;
            }
            if appends.in_flight() == 0 {
                return Ok((landed, refused));
            }
            for Done { id, len, result } in appends.wait()? {
                match result {
                    Ok(at) => {
                        landed.push(Landed { at, len, id });
                        if let Some(mut log) = self.log.as_ref() {
                            // One call, so that lines of several threads do not mix and none is partly written.
                            log.write_all(format!("{at} {len} {id}\n").as_bytes())?;
                        }
                        self.plan.kill.as_ref().map_or(Ok(()), Kill::count)?;
                    }
                    Err(status) => refused.push(status),
                }
            }
        }
    }

    /// Returns a zone with space for the append of this number, and its length. `None`: all is reserved.
    fn reserve(&self, id: u64) -> Option<(u64, u64)> {
        // Pseudo-random lengths, the same each time.
        let steps = (self.plan.most - self.plan.bytes) / BLOCK + 1;
        let len = self.plan.bytes + (id + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) % steps * BLOCK;
        let len = take(&self.left, len)?;
        let turns = (0..self.zones.len()).map(|n| (id as usize + n) % self.zones.len());
        turns.map(|n| &self.zones[n]).find_map(|(start, room)| Some((*start, take(room, len)?)))
    }
}

/// Takes as much as available, at most `wanted`. `None`: nothing is left.
fn take(from: &AtomicU64, wanted: u64) -> Option<u64> {
    let less = |left: u64| left.checked_sub(wanted.min(left));
    let before = from.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).unwrap_or_default();
    Some(wanted.min(before)).filter(|taken| *taken > 0)
}

/// Returns the number with which the bytes of an append are stamped, instead of a position.
fn place(id: u64) -> u64 {
    id << 24
}

fn names(refused: &[Status]) -> String {
    let names: BTreeSet<String> = refused.iter().map(Status::to_string).collect();
    names.into_iter().collect::<Vec<_>>().join(", ")
}

/// Start, end and write pointer of a zone, in bytes.
struct Written {
    start: u64,
    pointer: u64,
    end: u64,
}

fn written(zones: &[Zone]) -> Vec<Written> {
    let pointer = |zone: &Zone| if zone.letters() == "fu" { zone.start + zone.capacity } else { zone.write_pointer };
    let one = |zone: &Zone| (zone.start, pointer(zone), zone.start + zone.len);
    let bytes = |(start, pointer, end)| Written { start: start * SECTOR, pointer: pointer * SECTOR, end: end * SECTOR };
    zones.iter().map(one).map(bytes).collect()
}

/// Checks that appends, in the order of their positions, do not overlap and are in `zones` below the write pointers.
/// Returns the number of other bytes there.
fn look(landed: &[Landed], zones: &[Written]) -> Result<u64> {
    let mut unknown = 0;
    let mut all = landed.iter().peekable();
    for &Written { start, pointer: end, end: behind } in zones {
        let mut at = start;
        while let Some(one) = all.next_if(|one| one.at < behind) {
            ensure!(one.at >= start, "append {} landed at {}, in no zone", one.id, one.at);
            ensure!(one.at >= at, "append {} landed at {}, where another one lies until {at}", one.id, one.at);
            ensure!(one.at + one.len <= end, "append {} landed at {}, beyond the pointer at {end}", one.id, one.at);
            unknown += one.at - at;
            at = one.at + one.len;
        }
        unknown += end - at;
    }
    ensure!(all.next().is_none(), "an append landed in no zone");
    Ok(unknown)
}

/// Checks that each position has the bytes of the append that reported it.
fn verify(device: &File, landed: &[Landed], seed: u64) -> Result<()> {
    let mut bytes = Aligned::new(READ_LEN as usize);
    let mut rest = landed;
    while let Some(first) = rest.first() {
        // Consecutive appends are read together.
        let (mut count, mut end) = (0, first.at);
        while let Some(next) =
            rest.get(count).filter(|next| next.at == end && next.at + next.len - first.at <= READ_LEN)
        {
            (count, end) = (count + 1, end + next.len);
        }
        ensure!(count > 0, "an append of {} bytes is too long to be read", first.len);
        let part = &mut bytes.get_mut()[..(end - first.at) as usize];
        if let Err(errno) = aligned::read(device, part, first.at) {
            bail!("{} at byte {}", text::name(errno), first.at);
        }
        for one in &rest[..count] {
            let bytes = &part[(one.at - first.at) as usize..][..one.len as usize];
            ensure!(aligned::is_stamped(bytes, place(one.id), seed), "other bytes at {}, of append {}", one.at, one.id);
        }
        rest = &rest[count..];
    }
    Ok(())
}

/// Checks through `device` that all appends in `log` are there, and prints the number of other bytes below the write
/// pointers.
pub(super) fn check(device: &Path, log: &str, seed: u64) -> Result<()> {
    let device = aligned::open(device, false).with_context(|| format!("cannot open {}", device.display()))?;
    let log = std::fs::read_to_string(log).with_context(|| format!("cannot read {log}"))?;
    let mut landed = Vec::new();
    for line in log.lines() {
        let numbers = line.split(' ').map(str::parse).collect::<Result<Vec<u64>, _>>()?;
        let &[at, len, id] = &numbers[..] else { bail!("a line of the log is not whole: {line}") };
        landed.push(Landed { at, len, id });
    }
    ensure!(!landed.is_empty(), "nothing was acknowledged");
    landed.sort_unstable();
    let unknown = look(&landed, &written(&writable(&device)?))?;
    verify(&device, &landed, seed)?;
    let bytes: u64 = landed.iter().map(|landed| landed.len).sum();
    println!("{} appends of {bytes} bytes are there, and {unknown} bytes more", landed.len());
    Ok(())
}

/// Prints the results of impossible appends, one per line: to a zone with too little space, with none, and to a
/// finished one; and the positions of possible ones. `number` selects the sequential zone.
pub(super) fn refused(device: &Path, number: u64) -> Result<()> {
    let block_device = aligned::open(device, true).with_context(|| format!("cannot open {}", device.display()))?;
    let zone = *writable(&block_device)?.get(number as usize).context("there is no such zone")?;
    let namespace = Namespace::open(device)?;
    let mut appends = Appends::new(&namespace, 1, (2 * BLOCK) as usize)?;
    let start = zone.start * SECTOR;
    let act = |action| ioctl::act(&block_device, action, zone.start, zone.len).context("an order to a zone");
    let mut append = |what: &str, blocks: u64| -> Result<()> {
        appends.begin(start, blocks * BLOCK, 0, |bytes| bytes.fill(7))?;
        for done in appends.wait()? {
            match done.result {
                Ok(at) => println!("{what}: block {}", (at - start) / BLOCK),
                Err(status) => println!("{what}: {status}"),
            }
        }
        Ok(())
    };
    act(Action::Reset)?;
    let room = zone.capacity * SECTOR / BLOCK;
    // Fills all but one block by writes.
    let bytes = Aligned::new((64 * BLOCK) as usize);
    let mut at = 0;
    while at < room - 1 {
        let blocks = (room - 1 - at).min(64);
        let done = aligned::write(&block_device, &bytes.get()[..(blocks * BLOCK) as usize], start + at * BLOCK);
        ensure!(done.is_ok(), "a write at block {at}: {done:?}");
        at += blocks;
    }
    append("two blocks where one has room", 2)?;
    append("two blocks again", 2)?;
    // The kernel's emulation accepts no more requests until the write pointer is reported.
    ioctl::report(&block_device, zone.start, 1).context("no report")?;
    append("the last block", 1)?;
    append("a full zone", 1)?;
    act(Action::Reset)?;
    append("an empty zone", 1)?;
    act(Action::Close)?;
    append("a closed zone", 1)?;
    act(Action::Open)?;
    append("a zone that was opened", 2)?;
    act(Action::Finish)?;
    append("a finished zone", 1)?;
    act(Action::Reset)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a zone of 64 sectors.
    fn zone(start: u64, written: u64) -> Written {
        Written { start: start * SECTOR, pointer: (start + written) * SECTOR, end: (start + 64) * SECTOR }
    }

    fn landed(all: &[(u64, u64)]) -> Vec<Landed> {
        let all = all.iter().zip(0..);
        all.map(|(&(sector, sectors), id)| Landed { at: sector * SECTOR, len: sectors * SECTOR, id }).collect()
    }

    #[test]
    fn overlapping_or_misplaced_appends_are_detected() {
        let zones = [zone(0, 16), zone(64, 24)];
        assert_eq!(look(&landed(&[(0, 8), (8, 8), (64, 24)]), &zones).unwrap(), 0);
        assert_eq!(look(&landed(&[(0, 8), (72, 16)]), &zones).unwrap(), 16 * SECTOR);
        for wrong in
            [&[(0, 8), (0, 8)][..], &[(0, 16), (8, 8)], &[(8, 16)], &[(16, 8)], &[(64, 16), (80, 16)], &[(200, 8)]]
        {
            assert!(look(&landed(wrong), &zones).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn append_space_is_reserved_until_exhausted() {
        let room = AtomicU64::new(10);
        assert_eq!([take(&room, 4), take(&room, 4), take(&room, 4), take(&room, 4)], [Some(4), Some(4), Some(2), None]);
    }

    #[test]
    fn append_plan_is_parsed() {
        let plan = Plan::parse(&["zones=8", "bytes=4096", "most=65536", "verify=0"]).unwrap();
        assert_eq!((plan.zones, plan.most, plan.verify, plan.jobs), (8, 65536, false, 4));
        for wrong in ["zones", "zone=1", "zones=0", "bytes=512", "most=0"] {
            assert!(Plan::parse(&[wrong]).is_err(), "{wrong}");
        }
    }
}
