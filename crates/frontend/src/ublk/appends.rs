//! Appends that come again after a process has died: which of them had landed.
//!
//! The driver asks once more for what was not answered, and does not know how far it came. A write says where it belongs. An
//! append does not, and carried out twice it takes room that whoever appends believes to be free. So a file in memory,
//! which outlives the process, says up to where each zone was answered ([`Answered`]). What lies between there and the write
//! pointer has landed without an answer ([`Landed`]); an append with these bytes is answered with their place.

use inlock_engine::zoned::Zone;
use inlock_engine::{BlockingDevice, RequestError};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of a position in the file. The first is the device's mark.
const WORD: usize = size_of::<u64>();

/// What can be written is a multiple of this.
const SECTOR: usize = 512;

/// Up to where each zone is answered.
pub(super) struct Answered {
    file: File,
    ends: Vec<AtomicU64>,
    zone_len: u64,
}

impl Answered {
    /// Begins with the zones of `zone_len` bytes answered up to `ends`.
    pub(super) fn create(path: &Path, mark: u64, zone_len: u64, ends: &[u64]) -> io::Result<Self> {
        let bytes: Vec<u8> = std::iter::once(&mark).chain(ends).flat_map(|word| word.to_ne_bytes()).collect();
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(true).mode(0o600).open(path)?;
        file.write_all_at(&bytes, 0)?;
        Ok(Self { file, ends: ends.iter().copied().map(AtomicU64::new).collect(), zone_len })
    }

    /// What a process has left of the device with this mark, of as many zones; `None`: that is not in the file.
    pub(super) fn left(path: &Path, mark: u64, zones: usize) -> Option<Vec<u64>> {
        let bytes = std::fs::read(path).ok()?;
        let mut words = bytes.chunks_exact(WORD).map(|word| u64::from_ne_bytes(word.try_into().expect("a whole word")));
        (bytes.len() == (zones + 1) * WORD && words.next() == Some(mark)).then(|| words.collect())
    }

    /// Everything up to `end` was written and answered.
    pub(super) fn wrote(&self, end: u64) {
        let zone = (end.saturating_sub(1) / self.zone_len) as usize;
        if let Some(known) = self.ends.get(zone) {
            known.fetch_max(end, Ordering::AcqRel);
            self.save(zone);
        }
    }

    /// The zones of the range were reset or finished: their ends are where `to` says.
    pub(super) fn changed(&self, offset: u64, len: u64, to: impl Fn(u64) -> u64) {
        let first = (offset / self.zone_len) as usize;
        let count = len.div_ceil(self.zone_len) as usize;
        for (zone, known) in self.ends.iter().enumerate().skip(first).take(count) {
            known.store(to(zone as u64 * self.zone_len), Ordering::Release);
            self.save(zone);
        }
    }

    /// Whoever writes last has written what is known then: others may have been faster.
    fn save(&self, zone: usize) {
        let mut end = self.ends[zone].load(Ordering::Acquire);
        loop {
            // A file that does not take it is none the next process will believe more of than is true.
            let _ = self.file.write_all_at(&end.to_ne_bytes(), ((zone + 1) * WORD) as u64);
            match self.ends[zone].load(Ordering::Acquire) {
                now if now == end => return,
                now => end = now,
            }
        }
    }
}

/// What has landed without an answer.
#[derive(Default)]
pub(super) struct Landed {
    stretches: Mutex<HashMap<u64, Vec<Stretch>>>,
    /// How many there are: mostly none.
    count: AtomicUsize,
    zone_len: u64,
}

struct Stretch {
    offset: u64,
    bytes: Vec<u8>,
}

impl Landed {
    /// Reads what of `zones` lies beyond where they were `answered`: at most `most` bytes in all, as many as can have been
    /// under way. They are on stable storage then.
    pub(super) fn find(
        device: &BlockingDevice,
        zones: &[Zone],
        answered: &[u64],
        most: u64,
    ) -> Result<Self, RequestError> {
        let mut found = Self { zone_len: zones.first().map_or(1, |zone| zone.len), ..Self::default() };
        let mut room = most;
        for (zone, answered) in zones.iter().zip(answered) {
            let end = written(zone);
            let start = (*answered).clamp(zone.start, end).max(end.saturating_sub(room));
            if start < end {
                room -= end - start;
                let mut bytes = vec![0; (end - start) as usize];
                device.read_at(&mut bytes, start)?;
                found.keep(start, bytes);
            }
        }
        if *found.count.get_mut() > 0 {
            device.flush()?;
        }
        Ok(found)
    }

    fn keep(&mut self, offset: u64, bytes: Vec<u8>) {
        let stretches = self.stretches.get_mut().unwrap_or_else(PoisonError::into_inner);
        stretches.entry(offset / self.zone_len).or_default().push(Stretch { offset, bytes });
        *self.count.get_mut() += 1;
    }

    /// Where `bytes` have landed in the zone that starts at `zone`; once.
    pub(super) fn take(&self, zone: u64, bytes: &[u8]) -> Option<u64> {
        if bytes.is_empty() || self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut stretches = self.lock();
        let there = stretches.get_mut(&(zone / self.zone_len))?;
        let (index, range) = there.iter().enumerate().find_map(|(index, s)| Some((index, s.find(bytes)?)))?;
        let Stretch { offset, bytes } = there.swap_remove(index);
        let at = offset + range.start as u64;
        let rest = [(offset, &bytes[..range.start]), (offset + range.end as u64, &bytes[range.end..])];
        let rest = rest.into_iter().filter(|(_, bytes)| !bytes.is_empty());
        there.extend(rest.map(|(offset, bytes)| Stretch { offset, bytes: bytes.to_vec() }));
        self.count.store(stretches.values().map(Vec::len).sum(), Ordering::Release);
        Some(at)
    }

    /// The zones of the range hold something else now.
    pub(super) fn forget(&self, offset: u64, len: u64) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let gone = offset / self.zone_len..(offset + len).div_ceil(self.zone_len);
        let mut stretches = self.lock();
        stretches.retain(|zone, _| !gone.contains(zone));
        self.count.store(stretches.values().map(Vec::len).sum(), Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Vec<Stretch>>> {
        self.stretches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stretch {
    fn find(&self, bytes: &[u8]) -> Option<Range<usize>> {
        let last = self.bytes.len().checked_sub(bytes.len())?;
        let at = (0..=last).step_by(SECTOR).find(|at| self.bytes[*at..].starts_with(bytes))?;
        Some(at..at + bytes.len())
    }
}

/// Up to where a zone is written; its start where it does not matter.
pub(super) fn written(zone: &Zone) -> u64 {
    zone.write_pointer.map_or(zone.start, |pointer| pointer.min(zone.start + zone.capacity))
}

#[cfg(test)]
mod tests {
    use super::*;
    use inlock_engine::zoned::{ZoneCondition, ZoneKind};

    const ZONE: u64 = 8192;

    fn zones() -> Vec<Zone> {
        let zone = |index: u64| Zone {
            start: index * ZONE,
            len: ZONE,
            capacity: 6144,
            write_pointer: (index > 0).then_some(index * ZONE + [0, 0, 1024, ZONE][index as usize]),
            kind: ZoneKind::SequentialRequired,
            condition: ZoneCondition::Closed,
        };
        (0..4).map(zone).collect()
    }

    fn sector(value: u8) -> Vec<u8> {
        vec![value; SECTOR]
    }

    #[test]
    fn the_file_says_how_far_zones_were_answered() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("zones");
        let ends: Vec<u64> = zones().iter().map(written).collect();
        let answered = Answered::create(&path, 7, ZONE, &ends).unwrap();
        let left = |mark| Answered::left(&path, mark, 4);
        assert_eq!(left(7), Some(vec![0, ZONE, 2 * ZONE + 1024, 3 * ZONE + 6144]));
        answered.wrote(2 * ZONE + 2048);
        // An answer that is late.
        answered.wrote(2 * ZONE + 1536);
        answered.wrote(2 * ZONE);
        assert_eq!(left(7), Some(vec![0, 2 * ZONE, 2 * ZONE + 2048, 3 * ZONE + 6144]));
        answered.changed(2 * ZONE, 2 * ZONE, |start| start);
        assert_eq!(left(7), Some(vec![0, 2 * ZONE, 2 * ZONE, 3 * ZONE]));
        assert_eq!((left(8), Answered::left(&path, 7, 5)), (None, None));
        assert_eq!(Answered::left(&folder.path().join("none"), 7, 4), None);
    }

    #[test]
    fn what_has_landed_is_found_once() {
        let mut landed = Landed { zone_len: ZONE, ..Landed::default() };
        landed.keep(ZONE + 512, [sector(1), sector(2), sector(3), sector(2)].concat());
        assert_eq!(landed.take(2 * ZONE, &sector(2)), None, "another zone");
        assert_eq!(landed.take(ZONE, &sector(4)), None);
        assert_eq!(landed.take(ZONE, &[sector(2), sector(3)].concat()), Some(ZONE + 1024));
        assert_eq!(landed.take(ZONE, &sector(3)), None, "it was taken");
        assert_eq!(landed.take(ZONE, &sector(2)), Some(ZONE + 2048));
        assert_eq!(landed.take(ZONE, &sector(2)), None);
        assert_eq!(landed.take(ZONE, &sector(1)), Some(ZONE + 512));
        assert_eq!(landed.count.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_zone_that_was_reset_is_forgotten() {
        let mut landed = Landed { zone_len: ZONE, ..Landed::default() };
        landed.keep(ZONE, sector(1));
        landed.keep(3 * ZONE, sector(1));
        landed.forget(0, 2 * ZONE);
        assert_eq!((landed.take(ZONE, &sector(1)), landed.take(3 * ZONE, &sector(1))), (None, Some(3 * ZONE)));
    }
}
