//! How far a device's zones were answered, kept in a file in memory for the process that comes after this one.
//!
//! A zone is written in order, but a queue may come to answer what it has written there after another queue has answered what
//! lies behind. So what is kept is an end for each zone, and the gaps below.

use super::appends::written;
use inlock_engine::zoned::{Zone, ZoneKind};
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of a position in the file: the device's mark, the ends, the gaps by their two ends.
const WORD: usize = size_of::<u64>();

/// Gaps that are kept. With more, one is forgotten: it counts as answered.
const GAPS: usize = 256;

/// The end of a zone that may be written anywhere, of which nothing is to be known.
const ANYWHERE: u64 = u64::MAX;

/// How far zones were answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reach {
    ends: Vec<u64>,
    gaps: Vec<Range<u64>>,
}

impl Reach {
    /// Everything that is written was answered.
    pub(super) fn whole(zones: &[Zone]) -> Self {
        let end = |zone: &Zone| if zone.kind == ZoneKind::Conventional { ANYWHERE } else { written(zone) };
        Self { ends: zones.iter().map(end).collect(), gaps: Vec::with_capacity(GAPS) }
    }

    /// What was written to each of `zones` and not answered.
    pub(super) fn unanswered(&self, zones: &[Zone]) -> impl Iterator<Item = Range<u64>> {
        self.ends.iter().zip(zones).flat_map(|(end, zone)| {
            let last = (*end).clamp(zone.start, written(zone))..written(zone);
            let gaps = self.gaps.iter().filter(move |gap| (zone.start..last.start).contains(&gap.start));
            let gaps = gaps.map({
                let most = last.start;
                move |gap| gap.start..gap.end.min(most)
            });
            std::iter::once(last).chain(gaps).filter(|range| !range.is_empty())
        })
    }

    /// `range` was answered, in this zone. True: the gaps are others now.
    fn answer(&mut self, zone: usize, range: Range<u64>) -> bool {
        let Some(end) = self.ends.get_mut(zone).filter(|end| **end != ANYWHERE) else { return false };
        if *end <= range.start {
            let gap = *end..range.start;
            *end = range.end;
            return self.keep(gap);
        }
        *end = range.end.max(*end);
        let Some(gap) = self.gaps.iter().position(|gap| gap.start < range.end && range.start < gap.end) else {
            return false;
        };
        let gap = self.gaps.swap_remove(gap);
        self.keep(gap.start..range.start);
        self.keep(range.end..gap.end);
        true
    }

    fn keep(&mut self, gap: Range<u64>) -> bool {
        if gap.is_empty() {
            return false;
        }
        if self.gaps.len() == GAPS {
            self.gaps.swap_remove(0);
        }
        self.gaps.push(gap);
        true
    }
}

/// The file, and what it says.
pub(super) struct Answered {
    file: File,
    reach: Mutex<Reach>,
    zone_len: u64,
}

impl Answered {
    /// Begins with zones of `zone_len` bytes, in the file of the device with this mark.
    pub(super) fn create(path: &Path, mark: u64, zone_len: u64, reach: Reach) -> io::Result<Self> {
        let words = std::iter::once(&mark).chain(&reach.ends);
        let mut bytes: Vec<u8> = words.flat_map(|word| word.to_ne_bytes()).collect();
        bytes.extend_from_slice(&bytes_of(&reach.gaps));
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(true).mode(0o600).open(path)?;
        file.write_all_at(&bytes, 0)?;
        Ok(Self { file, reach: Mutex::new(reach), zone_len })
    }

    /// What a process has left of the device with this mark, of as many zones; `None`: that is not in the file.
    pub(super) fn left(path: &Path, mark: u64, zones: usize) -> Option<Reach> {
        let bytes = std::fs::read(path).ok()?;
        let words = bytes.chunks_exact(WORD).map(|word| u64::from_ne_bytes(word.try_into().expect("a whole word")));
        let words: Vec<u64> = words.collect();
        let (own, words) = words.split_first()?;
        if *own != mark || words.len() != zones + 2 * GAPS {
            return None;
        }
        let (ends, gaps) = words.split_at(zones);
        let mut reach = Reach { ends: ends.to_vec(), gaps: Vec::with_capacity(GAPS) };
        reach.gaps.extend(gaps.chunks_exact(2).map(|gap| gap[0]..gap[1]).filter(|gap| !gap.is_empty()));
        Some(reach)
    }

    /// These were written and answered; each lies in one zone.
    pub(super) fn wrote(&self, ranges: impl Iterator<Item = Range<u64>>) {
        let mut reach = self.reach();
        let mut unsaved = None;
        for range in ranges {
            let zone = (range.start / self.zone_len) as usize;
            if reach.answer(zone, range) {
                // First, or somebody who finds the end would take the gap for answered.
                self.save_gaps(&reach);
            }
            if let Some(other) = unsaved.replace(zone).filter(|other| *other != zone) {
                self.save_end(&reach, other);
            }
        }
        if let Some(zone) = unsaved {
            self.save_end(&reach, zone);
        }
    }

    /// The zones of the range were reset or finished: their ends are where `to` says.
    pub(super) fn changed(&self, offset: u64, len: u64, to: impl Fn(u64) -> u64) {
        let mut reach = self.reach();
        let gaps = reach.gaps.len();
        reach.gaps.retain(|gap| !(offset..offset + len).contains(&gap.start));
        if reach.gaps.len() != gaps {
            self.save_gaps(&reach);
        }
        let first = (offset / self.zone_len) as usize;
        let last = (first + len.div_ceil(self.zone_len) as usize).min(reach.ends.len());
        for zone in first..last {
            if reach.ends[zone] != ANYWHERE {
                reach.ends[zone] = to(zone as u64 * self.zone_len);
                self.save_end(&reach, zone);
            }
        }
    }

    /// A file that does not take it is none the next process will believe more of than is true.
    fn save_end(&self, reach: &Reach, zone: usize) {
        if let Some(end) = reach.ends.get(zone) {
            let _ = self.file.write_all_at(&end.to_ne_bytes(), ((zone + 1) * WORD) as u64);
        }
    }

    fn save_gaps(&self, reach: &Reach) {
        let _ = self.file.write_all_at(&bytes_of(&reach.gaps), ((reach.ends.len() + 1) * WORD) as u64);
    }

    fn reach(&self) -> MutexGuard<'_, Reach> {
        self.reach.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn bytes_of(gaps: &[Range<u64>]) -> [u8; 2 * GAPS * WORD] {
    let mut bytes = [0; 2 * GAPS * WORD];
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
        let zone = |index: u64| Zone {
            start: index * ZONE,
            len: ZONE,
            capacity: 6144,
            write_pointer: (index > 0).then_some(index * ZONE + [0, 0, 1024, ZONE][index as usize]),
            kind: if index == 0 { ZoneKind::Conventional } else { ZoneKind::SequentialRequired },
            condition: ZoneCondition::Closed,
        };
        (0..4).map(zone).collect()
    }

    /// From 512 bytes on in a zone to 512 bytes.
    fn sectors(zone: u64, range: Range<u64>) -> Range<u64> {
        zone * ZONE + range.start * 512..zone * ZONE + range.end * 512
    }

    fn unanswered(reach: &Reach) -> Vec<Range<u64>> {
        // Everything is written meanwhile.
        let mut zones = zones();
        zones[1..].iter_mut().for_each(|zone| zone.write_pointer = Some(zone.start + 6144));
        reach.unanswered(&zones).collect()
    }

    #[test]
    fn the_file_says_how_far_zones_were_answered() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("zones");
        let answered = Answered::create(&path, 7, ZONE, Reach::whole(&zones())).unwrap();
        let left = |mark| Answered::left(&path, mark, 4).map(|reach| unanswered(&reach));
        assert_eq!(left(7), Some(vec![sectors(1, 0..12), sectors(2, 2..12)]));
        answered.wrote([sectors(2, 2..4), sectors(1, 0..1), sectors(0, 3..4), sectors(2, 4..5)].into_iter());
        assert_eq!(left(7), Some(vec![sectors(1, 1..12), sectors(2, 5..12)]));
        // A write that came again.
        answered.wrote([sectors(2, 2..4)].into_iter());
        assert_eq!(left(7), Some(vec![sectors(1, 1..12), sectors(2, 5..12)]));
        answered.changed(0, 4 * ZONE, |start| start);
        assert_eq!(left(7), Some((1..4).map(|zone| sectors(zone, 0..12)).collect()));
        assert_eq!((left(8), Answered::left(&path, 7, 5)), (None, None));
        assert_eq!(Answered::left(&folder.path().join("none"), 7, 4), None);
    }

    #[test]
    fn what_is_answered_late_is_not_taken_for_answered_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("zones");
        let answered = Answered::create(&path, 7, ZONE, Reach::whole(&zones())).unwrap();
        let left = || Answered::left(&path, 7, 4).unwrap();
        // Another queue was faster, twice.
        answered.wrote([sectors(1, 4..5), sectors(1, 6..12)].into_iter());
        let others = sectors(2, 2..12);
        assert_eq!(unanswered(&left()), [sectors(1, 0..4), sectors(1, 5..6), others.clone()]);
        // What the next process keeps.
        assert_eq!(Answered::create(&path, 7, ZONE, left()).map(|_| left()).unwrap(), left());
        answered.wrote([sectors(1, 1..2)].into_iter());
        assert_eq!(unanswered(&left()), [sectors(1, 5..6), sectors(1, 0..1), sectors(1, 2..4), others.clone()]);
        answered.wrote([sectors(1, 0..1), sectors(1, 2..4), sectors(1, 5..6)].into_iter());
        assert_eq!(unanswered(&left()), [others]);
        // Gaps go with their zone.
        answered.wrote([sectors(2, 11..12)].into_iter());
        answered.changed(2 * ZONE, ZONE, |start| start + ZONE);
        assert_eq!(unanswered(&left()), []);
    }

    #[test]
    fn gaps_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("zones");
        let answered = Answered::create(&path, 7, 1 << 30, Reach { ends: vec![0], gaps: Vec::with_capacity(GAPS) });
        let ranges = (0..1000).map(|index| 8192 * index + 4096..8192 * index + 8192);
        answered.unwrap().wrote(ranges);
        let Reach { ends, gaps } = Answered::left(&path, 7, 1).unwrap();
        assert_eq!((ends, gaps.len()), (vec![8192 * 1000], GAPS));
        assert!(gaps.iter().all(|gap| gap.end - gap.start == 4096));
    }
}
