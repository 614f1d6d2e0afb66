//! Completion log: how far the requests of each zone were completed, in a file for the process that recovers the
//! device.
//!
//! A zone is written in order, but one queue may complete a write after another queue has completed the write behind
//! it. So the log has an end for each zone, and the gaps below it. The file should be on tmpfs: it need not survive the
//! kernel.

use inlock_engine::zoned::{Zone, ZoneKind};
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of a number in the file: the device cookie, then the ends, then start and end of each gap.
const WORD: usize = size_of::<u64>();

/// Maximum number of gaps. A further one replaces another, which then counts as completed.
const MAX_GAPS: usize = 256;

/// End of a conventional zone, which is not logged.
const NOT_LOGGED: u64 = u64::MAX;

/// Positions up to which the writes of each zone were completed, except for gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CompletedUpTo {
    ends: Vec<u64>,
    gaps: Vec<Range<u64>>,
}

impl CompletedUpTo {
    /// Takes everything that is written for completed.
    pub(super) fn written(zones: &[Zone]) -> Self {
        let end = |zone: &Zone| if zone.kind == ZoneKind::Conventional { NOT_LOGGED } else { written_end(zone) };
        Self { ends: zones.iter().map(end).collect(), gaps: Vec::with_capacity(MAX_GAPS) }
    }

    /// Returns the ranges of `zones` that were written and not completed.
    pub(super) fn uncompleted(&self, zones: &[Zone]) -> impl Iterator<Item = Range<u64>> {
        self.ends.iter().zip(zones).flat_map(|(end, zone)| {
            let last = (*end).clamp(zone.start, written_end(zone))..written_end(zone);
            let gaps = self.gaps.iter().filter(move |gap| (zone.start..last.start).contains(&gap.start));
            let gaps = gaps.map({
                let max_end = last.start;
                move |gap| gap.start..gap.end.min(max_end)
            });
            std::iter::once(last).chain(gaps).filter(|range| !range.is_empty())
        })
    }

    /// Adds a completed range of a zone. Returns whether the gaps have changed.
    fn complete(&mut self, zone: usize, range: Range<u64>) -> bool {
        let Some(end) = self.ends.get_mut(zone).filter(|end| **end != NOT_LOGGED) else { return false };
        if *end <= range.start {
            let gap = *end..range.start;
            *end = range.end;
            return self.add_gap(gap);
        }
        *end = range.end.max(*end);
        let Some(gap) = self.gaps.iter().position(|gap| gap.start < range.end && range.start < gap.end) else {
            return false;
        };
        let gap = self.gaps.swap_remove(gap);
        self.add_gap(gap.start..range.start);
        self.add_gap(range.end..gap.end);
        true
    }

    fn add_gap(&mut self, gap: Range<u64>) -> bool {
        if gap.is_empty() {
            return false;
        }
        if self.gaps.len() == MAX_GAPS {
            self.gaps.swap_remove(0);
        }
        self.gaps.push(gap);
        true
    }
}

/// The file, and what is in it.
pub(super) struct CompletionLog {
    file: File,
    completed: Mutex<CompletedUpTo>,
    zone_len: u64,
}

impl CompletionLog {
    /// Creates the log of a device with zones of `zone_len` bytes.
    pub(super) fn create(path: &Path, device_cookie: u64, zone_len: u64, completed: CompletedUpTo) -> io::Result<Self> {
        let words = std::iter::once(&device_cookie).chain(&completed.ends);
        let mut bytes: Vec<u8> = words.flat_map(|word| word.to_ne_bytes()).collect();
        bytes.extend_from_slice(&gap_bytes(&completed.gaps));
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(true).mode(0o600).open(path)?;
        file.write_all_at(&bytes, 0)?;
        Ok(Self { file, completed: Mutex::new(completed), zone_len })
    }

    /// Reads the log of a process that died. `None`: the file is not the log of this device.
    pub(super) fn read(path: &Path, device_cookie: u64, zones: usize) -> Option<CompletedUpTo> {
        let bytes = std::fs::read(path).ok()?;
        let words = bytes.chunks_exact(WORD).map(|word| u64::from_ne_bytes(word.try_into().expect("a whole word")));
        let words: Vec<u64> = words.collect();
        let (own, words) = words.split_first()?;
        if *own != device_cookie || words.len() != zones + 2 * MAX_GAPS {
            return None;
        }
        let (ends, gaps) = words.split_at(zones);
        let mut completed = CompletedUpTo { ends: ends.to_vec(), gaps: Vec::with_capacity(MAX_GAPS) };
        completed.gaps.extend(gaps.chunks_exact(2).map(|gap| gap[0]..gap[1]).filter(|gap| !gap.is_empty()));
        Some(completed)
    }

    /// Logs completed writes, each in one zone.
    pub(super) fn add_writes(&self, ranges: impl Iterator<Item = Range<u64>>) {
        let mut completed = self.completed();
        let mut unsaved = None;
        for range in ranges {
            let zone = (range.start / self.zone_len) as usize;
            if completed.complete(zone, range) {
                // Saved before the end, or a reader of the new end would take the gap for completed.
                self.save_gaps(&completed);
            }
            if let Some(other) = unsaved.replace(zone).filter(|other| *other != zone) {
                self.save_end(&completed, other);
            }
        }
        if let Some(zone) = unsaved {
            self.save_end(&completed, zone);
        }
    }

    /// Logs a completed reset or finish of the zones in a range; `end_of` maps the start of a zone to its end.
    pub(super) fn set_ends(&self, offset: u64, len: u64, end_of: impl Fn(u64) -> u64) {
        let mut completed = self.completed();
        let gaps = completed.gaps.len();
        completed.gaps.retain(|gap| !(offset..offset + len).contains(&gap.start));
        if completed.gaps.len() != gaps {
            self.save_gaps(&completed);
        }
        let first = (offset / self.zone_len) as usize;
        let last = (first + len.div_ceil(self.zone_len) as usize).min(completed.ends.len());
        for zone in first..last {
            if completed.ends[zone] != NOT_LOGGED {
                completed.ends[zone] = end_of(zone as u64 * self.zone_len);
                self.save_end(&completed, zone);
            }
        }
    }

    /// Saves the end of a zone. If that fails, the next process believes that less was completed than is true.
    fn save_end(&self, completed: &CompletedUpTo, zone: usize) {
        if let Some(end) = completed.ends.get(zone) {
            let _ = self.file.write_all_at(&end.to_ne_bytes(), ((zone + 1) * WORD) as u64);
        }
    }

    fn save_gaps(&self, completed: &CompletedUpTo) {
        let _ = self.file.write_all_at(&gap_bytes(&completed.gaps), ((completed.ends.len() + 1) * WORD) as u64);
    }

    fn completed(&self) -> MutexGuard<'_, CompletedUpTo> {
        self.completed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the end of what is written in a zone; the start of a conventional zone.
fn written_end(zone: &Zone) -> u64 {
    zone.write_pointer.map_or(zone.start, |pointer| pointer.min(zone.start + zone.capacity))
}

fn gap_bytes(gaps: &[Range<u64>]) -> [u8; 2 * MAX_GAPS * WORD] {
    let mut bytes = [0; 2 * MAX_GAPS * WORD];
    let words = gaps.iter().flat_map(|gap| [gap.start, gap.end]);
    bytes.chunks_exact_mut(WORD).zip(words).for_each(|(place, word)| place.copy_from_slice(&word.to_ne_bytes()));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use inlock_engine::zoned::ZoneCondition;

    const ZONE: u64 = 8192;

    /// A conventional zone, an empty one, one that holds 1024 bytes, one that is full.
    fn zones() -> Vec<Zone> {
        let zone = |index: u64| {
            let mut zone = Zone::new(index * ZONE, ZONE);
            zone.capacity = 6144;
            zone.write_pointer = (index > 0).then_some(index * ZONE + [0, 0, 1024, ZONE][index as usize]);
            zone.kind = if index == 0 { ZoneKind::Conventional } else { ZoneKind::SequentialRequired };
            zone.condition = ZoneCondition::Closed;
            zone
        };
        (0..4).map(zone).collect()
    }

    /// A range of sectors in a zone, in bytes.
    fn sectors(zone: u64, range: Range<u64>) -> Range<u64> {
        zone * ZONE + range.start * 512..zone * ZONE + range.end * 512
    }

    fn uncompleted(completed: &CompletedUpTo) -> Vec<Range<u64>> {
        // Everything was written meanwhile.
        let mut zones = zones();
        zones[1..].iter_mut().for_each(|zone| zone.write_pointer = Some(zone.start + 6144));
        completed.uncompleted(&zones).collect()
    }

    #[test]
    fn log_of_device_says_how_far_zones_were_completed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("zones");
        let log = CompletionLog::create(&path, 7, ZONE, CompletedUpTo::written(&zones())).unwrap();
        let left = |cookie| CompletionLog::read(&path, cookie, 4).map(|completed| uncompleted(&completed));
        assert_eq!(left(7), Some(vec![sectors(1, 0..12), sectors(2, 2..12)]));
        log.add_writes([sectors(2, 2..4), sectors(1, 0..1), sectors(0, 3..4), sectors(2, 4..5)].into_iter());
        assert_eq!(left(7), Some(vec![sectors(1, 1..12), sectors(2, 5..12)]));
        // A write that was reissued.
        log.add_writes([sectors(2, 2..4)].into_iter());
        assert_eq!(left(7), Some(vec![sectors(1, 1..12), sectors(2, 5..12)]));
        log.set_ends(0, 4 * ZONE, |start| start);
        assert_eq!(left(7), Some((1..4).map(|zone| sectors(zone, 0..12)).collect()));
        assert_eq!((left(8), CompletionLog::read(&path, 7, 5)), (None, None));
        assert_eq!(CompletionLog::read(&directory.path().join("none"), 7, 4), None);
    }

    #[test]
    fn write_completed_late_leaves_gap_until_then() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("zones");
        let log = CompletionLog::create(&path, 7, ZONE, CompletedUpTo::written(&zones())).unwrap();
        let left = || CompletionLog::read(&path, 7, 4).unwrap();
        // Another queue completed its writes first, twice.
        log.add_writes([sectors(1, 4..5), sectors(1, 6..12)].into_iter());
        let others = sectors(2, 2..12);
        assert_eq!(uncompleted(&left()), [sectors(1, 0..4), sectors(1, 5..6), others.clone()]);
        // The log of the next process.
        assert_eq!(CompletionLog::create(&path, 7, ZONE, left()).map(|_| left()).unwrap(), left());
        log.add_writes([sectors(1, 1..2)].into_iter());
        assert_eq!(uncompleted(&left()), [sectors(1, 5..6), sectors(1, 0..1), sectors(1, 2..4), others.clone()]);
        log.add_writes([sectors(1, 0..1), sectors(1, 2..4), sectors(1, 5..6)].into_iter());
        assert_eq!(uncompleted(&left()), [others]);
        // Gaps go with their zone.
        log.add_writes([sectors(2, 11..12)].into_iter());
        log.set_ends(2 * ZONE, ZONE, |start| start + ZONE);
        assert_eq!(uncompleted(&left()), []);
    }

    #[test]
    fn gaps_beyond_maximum_are_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("zones");
        let log = CompletionLog::create(
            &path,
            7,
            1 << 30,
            CompletedUpTo { ends: vec![0], gaps: Vec::with_capacity(MAX_GAPS) },
        );
        let ranges = (0..1000).map(|index| 8192 * index + 4096..8192 * index + 8192);
        log.unwrap().add_writes(ranges);
        let CompletedUpTo { ends, gaps } = CompletionLog::read(&path, 7, 1).unwrap();
        assert_eq!((ends, gaps.len()), (vec![8192 * 1000], MAX_GAPS));
        assert!(gaps.iter().all(|gap| gap.end - gap.start == 4096));
    }
}
