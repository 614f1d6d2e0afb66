//! A load that only a power cut ends, and the check afterwards: flushed data are there, and no data that were never
//! written.
//!
//! Several threads write their zones at the write pointers, or append to them, reset them and start over, and write
//! blocks of a conventional zone repeatedly. All bytes of a zone between two resets, or of one write of a block, have
//! one seed, their *life*; lives count up. A log device records, each in a durable sector of its own: the lives that
//! are about to begin, and after each flush the lives and ends that it covered.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::Mutex;

use anyhow::{Context, Result, bail, ensure};

use super::aligned::{self, Aligned, BLOCK};
use super::ioctl::{self, Action, CONVENTIONAL, Zone};
use super::passthrough::{Appends, Namespace};
use super::text;

const THREADS: usize = 4;
/// Maximum length of a write or read, in blocks.
const LONGEST: u64 = 32;
/// Number of blocks written in the first conventional zone.
const FREE_BLOCKS: u64 = 16;
/// Maximum number of writes before a flush.
const WRITES: u64 = 12;
/// Length of a record on the log device, and number of bytes read at a time.
const RECORD: usize = 512;
const RECORDS: usize = 256;

/// Known state of a zone, or of a block of a conventional one, by its first byte.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Known {
    /// The last life that was about to begin.
    begun: u64,
    /// Life and end that the last flush covered.
    life: u64,
    end: u64,
}

/// A log on a device.
struct Log {
    device: File,
    /// Number of records, and memory to write one.
    next: Mutex<(u64, Aligned)>,
}

impl Log {
    /// Opens the log, and returns it with its contents.
    fn open(path: &str) -> Result<(Self, BTreeMap<u64, Known>)> {
        let device = aligned::open(Path::new(path), true).with_context(|| format!("cannot open {path}"))?;
        let mut known = BTreeMap::new();
        let mut bytes = Aligned::new(RECORDS * RECORD);
        let mut count = 0;
        'all: loop {
            aligned::read(&device, bytes.get_mut(), count * RECORD as u64).context("the log is full")?;
            for record in bytes.get().chunks(RECORD) {
                let text = std::str::from_utf8(record)?.trim_end_matches('\0');
                if text.is_empty() {
                    break 'all;
                }
                learn(&mut known, text)?;
                count += 1;
            }
        }
        Ok((Self { device, next: Mutex::new((count, Aligned::new(RECORD))) }, known))
    }

    /// Appends records, which are durable when this returns.
    fn add(&self, records: &[String]) -> Result<()> {
        let mut next = self.next.lock().expect("a thread that writes does not panic");
        let (count, bytes) = &mut *next;
        for record in records {
            bytes.get_mut().fill(0);
            bytes.get_mut()[..record.len()].copy_from_slice(record.as_bytes());
            aligned::write(&self.device, bytes.get(), *count * RECORD as u64).context("cannot write the log")?;
            *count += 1;
        }
        Ok(self.device.sync_data()?)
    }
}

/// Applies a record: `begin PLACE LIFE`, or `flushed PLACE LIFE END`.
fn learn(known: &mut BTreeMap<u64, Known>, record: &str) -> Result<()> {
    let (verb, rest) = record.split_once(' ').unwrap_or((record, ""));
    let numbers: Vec<u64> =
        rest.split(' ').map(str::parse).collect::<Result<_, _>>().with_context(|| record.to_owned())?;
    match (verb, &numbers[..]) {
        ("begin", &[place, life]) => known.entry(place).or_default().begun = life,
        ("flushed", &[place, life, end]) => {
            let known = known.entry(place).or_default();
            (known.life, known.end) = (life, end);
        }
        _ => bail!("the log says '{record}'"),
    }
    Ok(())
}

/// State of a zone, or of a block of a conventional one, as a thread writes it.
struct Track {
    start: u64,
    len: u64,
    capacity: u64,
    life: u64,
    at: u64,
    is_free: bool,
    /// Whether the zone is written by appends.
    appends: bool,
    /// Whether it was changed after the last flush.
    is_new: bool,
}

/// Writes until the power is cut. Half of the zones are appended to through `space`, an NVMe namespace of the device's
/// sequential zones. With `claims`, nothing is flushed and no life begins, but `claims` records false flushes.
pub(super) fn load(device: &str, space: &str, log: &str, seed: u64, claims: Option<&str>) -> Result<()> {
    let device = aligned::open(Path::new(device), true).with_context(|| format!("cannot open {device}"))?;
    let space = Namespace::open(Path::new(space))?;
    let (log, known) = Log::open(log)?;
    let claims = claims.map(Log::open).transpose()?.map(|(claims, _)| claims);
    let tracks = tracks(&device, &known)?;
    let space_start = tracks.iter().find(|track| !track.is_free).context("there is no sequential zone")?.start;
    let mut threads = Vec::new();
    for n in 0..THREADS as u64 {
        threads.push(Writer {
            device: &device,
            appends: Appends::new(&space, 1, (LONGEST * BLOCK) as usize)?,
            space_start,
            log: &log,
            claims: claims.as_ref(),
            tracks: Vec::new(),
            random: seed << 8 | n,
            bytes: Aligned::new((LONGEST * BLOCK) as usize),
        });
    }
    for (n, track) in tracks.into_iter().enumerate() {
        threads[n % THREADS].tracks.push(track);
    }
    std::thread::scope(|scope| {
        let threads: Vec<_> = threads.iter_mut().map(|writer| scope.spawn(|| writer.run())).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a thread that writes does not panic"))
    })
}

/// Returns the current state of everything that is written.
fn tracks(device: &File, known: &BTreeMap<u64, Known>) -> Result<Vec<Track>> {
    let mut tracks = Vec::new();
    let mut bytes = Aligned::new(BLOCK as usize);
    let zones = ioctl::all_zones(device)?;
    let mut track = |start, len, capacity, at: u64, is_free: bool| {
        let Known { begun, life, .. } = known.get(&start).copied().unwrap_or_default();
        let mut life = life.max(begun);
        if at > 0 {
            aligned::read(device, bytes.get_mut(), start)?;
            life = aligned::seed_of(bytes.get(), start).unwrap_or(0).max(life);
        }
        // Alternately in groups of the number of threads.
        let appends = !is_free && (tracks.len() / THREADS).is_multiple_of(2);
        tracks.push(Track { start, len, capacity, life, at, is_free, appends, is_new: false });
        anyhow::Ok(())
    };
    for zone in zones.iter().filter(|zone| zone.is_usable()) {
        track(zone.start * 512, zone.len * 512, zone.capacity * 512, written(zone), false)?;
    }
    if let Some(free) = zones.iter().find(|zone| zone.kind == CONVENTIONAL) {
        for block in 0..FREE_BLOCKS.min(free.len * 512 / BLOCK) {
            track(free.start * 512 + block * BLOCK, BLOCK, BLOCK, BLOCK, true)?;
        }
    }
    Ok(tracks)
}

/// Returns the number of written bytes of a zone.
fn written(zone: &Zone) -> u64 {
    512 * if zone.letters() == "fu" { zone.capacity } else { zone.write_pointer - zone.start }
}

/// One of the writing threads.
struct Writer<'a> {
    device: &'a File,
    appends: Appends<'a>,
    /// Start of the namespace on the device.
    space_start: u64,
    log: &'a Log,
    claims: Option<&'a Log>,
    tracks: Vec<Track>,
    random: u64,
    bytes: Aligned,
}

impl Writer<'_> {
    fn run(&mut self) -> Result<()> {
        loop {
            for _ in 0..1 + self.below(WRITES) {
                self.write()?;
            }
            if self.claims.is_none() {
                self.device.sync_data().context("cannot flush")?;
            }
            let covered = self.tracks.iter_mut().filter(|track| track.is_new);
            let records: Vec<String> = covered
                .map(|track| {
                    track.is_new = false;
                    format!("flushed {} {} {}", track.start, track.life, track.at)
                })
                .collect();
            self.claims.unwrap_or(self.log).add(&records)?;
            println!("{} covered", records.len());
        }
    }

    fn write(&mut self) -> Result<()> {
        let blocks = 1 + self.below(LONGEST);
        let which = self.below(self.tracks.len() as u64) as usize;
        let track = &mut self.tracks[which];
        if track.is_free {
            (track.life, track.at) = (track.life + 1, 0);
        } else if track.at == track.capacity || track.life == 0 {
            if self.claims.is_some() {
                return Ok(());
            }
            self.log.add(&[format!("begin {} {}", track.start, track.life + 1)])?;
            ioctl::act(self.device, Action::Reset, track.start / 512, track.len / 512)?;
            (track.life, track.at) = (track.life + 1, 0);
        }
        ensure!(track.life < 1 << 16, "there are no more lives");
        let len = (blocks * BLOCK).min(track.capacity - track.at);
        let place = track.start + track.at;
        (track.at, track.is_new) = (track.at + len, true);
        if track.appends {
            let (start, life) = (track.start, track.life);
            return self.append(start, place, len, life);
        }
        let part = &mut self.bytes.get_mut()[..len as usize];
        aligned::stamp(part, place, track.life);
        if let Err(errno) = aligned::write(self.device, part, place) {
            bail!("{} at byte {place}", text::name(errno));
        }
        Ok(())
    }

    /// Appends to the zone at `start`, to which no other thread appends: the data must land at `place`.
    fn append(&mut self, start: u64, place: u64, len: u64, life: u64) -> Result<()> {
        self.appends.begin(start - self.space_start, len, 0, |part| aligned::stamp(part, place, life))?;
        for done in self.appends.wait()? {
            match done.result {
                Ok(at) => ensure!(at + self.space_start == place, "an append landed at byte {at}, not {place}"),
                Err(status) => bail!("an append at byte {place}: {status}"),
            }
        }
        Ok(())
    }

    /// Returns a number below `end`: the upper bits of a linear congruential generator.
    fn below(&mut self, end: u64) -> u64 {
        self.random = self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.random >> 33) % end
    }
}

/// Checks a device against the logs, of which later ones continue earlier ones.
pub(super) fn check(device: &str, logs: &[&str]) -> Result<()> {
    let device = aligned::open(Path::new(device), false).with_context(|| format!("cannot open {device}"))?;
    let mut known = BTreeMap::<u64, Known>::new();
    for log in logs {
        for (place, later) in Log::open(log)?.1 {
            let known = known.entry(place).or_default();
            known.begun = later.begun.max(known.begun);
            (known.life, known.end) = (known.life, known.end).max((later.life, later.end));
        }
    }
    ensure!(known.values().any(|known| known.end > 0), "nothing was flushed");
    let (mut flushed, mut stored, mut blocks, mut reset) = (0, 0, 0, 0);
    let mut bytes = Aligned::new((LONGEST * BLOCK) as usize);
    let zones = ioctl::all_zones(&device)?;
    for zone in zones.iter().filter(|zone| zone.is_usable()) {
        let start = zone.start * 512;
        let known = known.remove(&start).unwrap_or_default();
        let found = check_zone(&device, start, written(zone), known, &mut bytes);
        reset += u32::from(found.with_context(|| format!("the zone at {start}"))?);
        (flushed, stored) = (flushed + known.end, stored + written(zone));
    }
    for (place, Known { life, .. }) in known {
        let bytes = &mut bytes.get_mut()[..BLOCK as usize];
        aligned::read(&device, bytes, place)?;
        let found = aligned::seed_of(bytes, place).with_context(|| format!("other bytes in the block at {place}"))?;
        ensure!(found >= life, "the block at {place} is as in life {found}, and {life} was flushed");
        blocks += 1;
    }
    println!("{flushed} bytes in zones and {blocks} blocks flushed, {stored} bytes there, {reset} zones reset since");
    Ok(())
}

/// Checks a zone that is written up to `end`. Returns whether it was reset after the last flush.
fn check_zone(device: &File, start: u64, end: u64, known: Known, bytes: &mut Aligned) -> Result<bool> {
    let Known { begun, life, end: flushed } = known;
    if end == 0 {
        ensure!(flushed == 0 || begun > life, "it is empty, and {flushed} bytes were flushed");
        return Ok(flushed > 0);
    }
    let mut found = None;
    for at in (0..end).step_by((LONGEST * BLOCK) as usize) {
        let part = &mut bytes.get_mut()[..(end - at).min(LONGEST * BLOCK) as usize];
        aligned::read(device, part, start + at)?;
        let seed = aligned::seed_of(part, start + at).with_context(|| format!("other bytes at byte {at}"))?;
        let first = *found.get_or_insert(seed);
        ensure!(seed == first, "life {seed} at byte {at} behind life {first}");
    }
    let found = found.unwrap_or_default();
    ensure!((life..=begun).contains(&found), "it is as in life {found}, not {life} to {begun}");
    ensure!(found > life || end >= flushed, "it ends at {end}, and {flushed} bytes were flushed");
    Ok(found > life && flushed > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flush_log_has_last_lives() {
        let mut known = BTreeMap::new();
        for record in ["begin 4096 1", "flushed 4096 1 8192", "begin 4096 2", "begin 4096 3", "flushed 0 7 4096"] {
            learn(&mut known, record).unwrap();
        }
        assert_eq!(known[&4096], Known { begun: 3, life: 1, end: 8192 });
        assert_eq!(known[&0], Known { begun: 0, life: 7, end: 4096 });
        for record in ["", "begin", "begin 1", "begin 1 2 3", "flushed 1 2", "flushed a b c", "ended 1 2"] {
            assert!(learn(&mut known, record).is_err(), "{record}");
        }
    }

    /// Returns the result of the check for a zone of four blocks with these lives.
    fn verdict(lives: &[u64], begun: u64, life: u64, end: u64) -> Result<bool> {
        let file = tempfile::tempfile().unwrap();
        for (n, life) in lives.iter().enumerate() {
            let mut block = [0; BLOCK as usize];
            aligned::stamp(&mut block, n as u64 * BLOCK, *life);
            std::os::unix::fs::FileExt::write_all_at(&file, &block, n as u64 * BLOCK).unwrap();
        }
        let known = Known { begun, life, end: end * BLOCK };
        check_zone(&file, 0, lives.len() as u64 * BLOCK, known, &mut Aligned::new((LONGEST * BLOCK) as usize))
    }

    #[test]
    fn check_of_a_zone_accepts_only_what_a_cut_may_leave() {
        for (lives, begun, life, end) in [
            (&[3, 3][..], 3, 3, 2),
            // More was written than flushed; lives were about to begin, but did not; nothing was flushed.
            (&[3, 3, 3], 3, 3, 2),
            (&[3, 3], 5, 3, 2),
            (&[], 3, 3, 0),
        ] {
            assert!(!verdict(lives, begun, life, end).unwrap(), "{lives:?} {begun} {life} {end}");
        }
        for (lives, begun, life, end) in [(&[4][..], 4, 3, 2), (&[5], 5, 3, 2), (&[], 4, 3, 2)] {
            assert!(verdict(lives, begun, life, end).unwrap(), "{lives:?} {begun} {life} {end}");
        }
        for (lives, begun, life, end) in [
            // Flushed bytes or whole zones are lost; an old life, one that never began, two at once.
            (&[3][..], 3, 3, 2),
            (&[], 3, 3, 2),
            (&[2, 2], 3, 3, 2),
            (&[4, 4], 3, 3, 2),
            (&[3, 4], 4, 3, 1),
        ] {
            assert!(verdict(lives, begun, life, end).is_err(), "{lives:?} {begun} {life} {end}");
        }
    }
}
