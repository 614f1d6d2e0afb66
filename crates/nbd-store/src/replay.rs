//! Writes since the last flush, to be made again after a lost connection.

use std::collections::VecDeque;
use std::sync::Arc;

/// An acknowledged write.
pub(crate) struct Entry {
    /// Its number among the acknowledged writes.
    pub(crate) number: u64,
    pub(crate) offset: u64,
    pub(crate) data: Box<[u8]>,
}

/// Writes in the order of their acknowledgements, of at most `limit` bytes together.
pub(crate) struct ReplayLog {
    entries: VecDeque<Arc<Entry>>,
    bytes: u64,
    pub(crate) limit: u64,
}

impl ReplayLog {
    pub(crate) fn new(limit: u64) -> Self {
        Self { entries: VecDeque::new(), bytes: 0, limit }
    }

    /// Returns the number of bytes held.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn get(&self, index: usize) -> Option<&Arc<Entry>> {
        self.entries.get(index)
    }

    /// Returns whether a write in the log shares bytes with the range.
    pub(crate) fn has_overlap(&self, offset: u64, len: u64) -> bool {
        let end = offset.saturating_add(len);
        self.entries.iter().any(|entry| entry.offset < end && offset < entry.offset + entry.data.len() as u64)
    }

    pub(crate) fn add(&mut self, number: u64, offset: u64, data: &[u8]) {
        self.bytes += data.len() as u64;
        self.entries.push_back(Arc::new(Entry { number, offset, data: data.into() }));
    }

    /// Removes the writes up to this number, which a flush has put on stable storage.
    pub(crate) fn trim(&mut self, covered: u64) {
        while let Some(entry) = self.entries.front().filter(|entry| entry.number <= covered) {
            self.bytes -= entry.data.len() as u64;
            self.entries.pop_front();
        }
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_that_only_adjoin_do_not_overlap() {
        let mut log = ReplayLog::new(2048);
        log.add(1, 512, &[0; 512]);
        for (offset, len, expected) in
            [(0, 512, false), (0, 513, true), (1023, 1, true), (1024, 1, false), (600, 1, true), (0, u64::MAX, true)]
        {
            assert_eq!(log.has_overlap(offset, len), expected, "{len} bytes at {offset}");
        }
    }

    #[test]
    fn flush_removes_what_it_covers() {
        let mut log = ReplayLog::new(100);
        (1..=5).for_each(|number| log.add(number, number * 512, &[0; 10]));
        assert_eq!((log.bytes(), log.len()), (50, 5));
        log.trim(3);
        assert_eq!((log.bytes(), log.len(), log.get(0).unwrap().offset), (20, 2, 4 * 512));
        log.trim(2);
        assert_eq!(log.len(), 2);
        log.clear();
        assert_eq!((log.bytes(), log.len()), (0, 0));
    }
}
