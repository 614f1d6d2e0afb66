//! Writes to several zones concurrently with a log of acknowledged writes, and checks the log afterwards.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, bail, ensure};

use super::aligned::{self, Aligned, BLOCK};
use super::ioctl::{self, Action, Zone};
use super::kill::Kill;
use super::text;

/// Number of zones written concurrently.
const THREADS: usize = 4;
/// Maximum length of a write, in blocks.
const LONGEST: u64 = 32;

/// Resets the sequential zones, then writes `mib` MiB to them. After each write a line `START END`, in bytes, is added
/// to `log`: the zone's start, and the end of its data.
pub(super) fn write(device: &str, log: &str, seed: u64, mib: u64, kill: Option<Kill>) -> Result<()> {
    let device = aligned::open(Path::new(device), true).with_context(|| format!("cannot open {device}"))?;
    let log = OpenOptions::new().create(true).append(true).open(log).with_context(|| format!("cannot open {log}"))?;
    let zones = writable(&device)?;
    for zone in &zones {
        ioctl::act(&device, Action::Reset, zone.start, zone.len)?;
    }
    let left = AtomicU64::new(mib << 20);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let mine: Vec<Zone> = zones.iter().skip(thread).step_by(THREADS).copied().collect();
                let (device, log, left, kill) = (&device, &log, &left, kill.as_ref());
                scope.spawn(move || mine.iter().try_for_each(|zone| fill_zone(device, log, zone, seed, left, kill)))
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a thread that writes does not panic"))
    })?;
    println!("{} MiB", (mib << 20).saturating_sub(left.into_inner()) >> 20);
    Ok(())
}

/// Returns zones that are written at their write pointers, and can be.
pub(super) fn writable(device: &File) -> Result<Vec<Zone>> {
    let mut zones = ioctl::all_zones(device)?;
    zones.retain(Zone::is_usable);
    ensure!(!zones.is_empty(), "the device has no sequential zones");
    Ok(zones)
}

fn fill_zone(
    device: &File,
    mut log: &File,
    zone: &Zone,
    seed: u64,
    left: &AtomicU64,
    kill: Option<&Kill>,
) -> Result<()> {
    let start = zone.start * 512;
    let capacity = zone.capacity * 512;
    let mut bytes = Aligned::new((LONGEST * BLOCK) as usize);
    let mut at = 0;
    while at < capacity {
        // Pseudo-random lengths, the same each time.
        let blocks = 1 + (start ^ at ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) % LONGEST;
        let len = (blocks * BLOCK).min(capacity - at);
        if left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(len)).is_err() {
            return Ok(());
        }
        let part = &mut bytes.get_mut()[..len as usize];
        aligned::stamp(part, start + at, seed);
        if let Err(errno) = aligned::write(device, part, start + at) {
            bail!("{} at byte {at} of the zone at {start}", text::name(errno));
        }
        at += len;
        // One call, so that lines of several threads do not mix and none is partly written.
        log.write_all(format!("{start} {at}\n").as_bytes())?;
        kill.map_or(Ok(()), Kill::count)?;
    }
    Ok(())
}

/// Checks that every acknowledged byte in `log` is below its zone's write pointer, and that all bytes below it are as
/// written.
pub(super) fn check(device: &str, log: &str, seed: u64) -> Result<()> {
    let device = aligned::open(Path::new(device), false).with_context(|| format!("cannot open {device}"))?;
    let log = std::fs::read_to_string(log).with_context(|| format!("cannot read {log}"))?;
    let mut ends = std::collections::BTreeMap::<u64, u64>::new();
    for line in log.lines() {
        let (start, end) = line.split_once(' ').context("a line of the log is not whole")?;
        let end: u64 = end.parse()?;
        let known = ends.entry(start.parse()?).or_default();
        *known = end.max(*known);
    }
    ensure!(!ends.is_empty(), "nothing was acknowledged");
    let (mut acknowledged, mut stored) = (0, 0);
    let mut bytes = Aligned::new((LONGEST * BLOCK) as usize);
    for zone in writable(&device)? {
        let start = zone.start * 512;
        let end = if zone.letters() == "fu" { zone.capacity } else { zone.write_pointer - zone.start } * 512;
        let promised = ends.remove(&start).unwrap_or_default();
        ensure!(end >= promised, "the zone at {start} ends at {end}, and {promised} bytes were acknowledged");
        (acknowledged, stored) = (acknowledged + promised, stored + end);
        for at in (0..end).step_by((LONGEST * BLOCK) as usize) {
            let part = &mut bytes.get_mut()[..(end - at).min(LONGEST * BLOCK) as usize];
            if let Err(errno) = aligned::read(&device, part, start + at) {
                bail!("{} at byte {at} of the zone at {start}", text::name(errno));
            }
            ensure!(aligned::is_stamped(part, start + at, seed), "other bytes at byte {at} of the zone at {start}");
        }
    }
    ensure!(ends.is_empty(), "the log speaks of zones that are not there");
    println!("{acknowledged} bytes acknowledged, {stored} there");
    Ok(())
}
