//! Holes that read as zeroes ([`crate::Device::with_zero_holes`]), as librbd's own encryption reads them.
//!
//! dm-crypt decrypts a hole of the store to noise. Here a data unit whose ciphertext is all zero bytes is a hole, and
//! its plaintext is zero. So the bytes of one read tell data from holes, and no write comes between the two. A hole
//! reads as zero bytes in every store that this is allowed for ([`StoreProfile::hole_len`]). No other unit is taken for
//! one: a write whose ciphertext would be all zero bytes fails.
//!
//! Only ranges that the store makes holes exactly are deallocated, and under the lock of their data units: a write of a
//! part of a unit would otherwise bring back bytes that it has read before.
//!
//! [`StoreProfile::hole_len`]: crate::StoreProfile::hole_len

use crate::mapping::{MappedRange, Mapping, Place};
use crate::request::RequestError;
use crate::store::BackingStore;
use inlock_cipher::{Cipher, IvNumber};
use std::ops::Range;
use std::sync::Arc;

/// Way to make the first bytes of a range read as zeroes.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zeroing {
    /// A discard of this many bytes.
    Deallocate(u64),
    /// Writing zeroes to this many bytes.
    Write(u64),
}

/// Returns whether a data unit of ciphertext is a hole.
fn is_hole(unit: &[u8]) -> bool {
    // Data ends this at the first chunk.
    unit.chunks(64).all(|chunk| chunk.iter().fold(0, |bits, byte| bits | byte) == 0)
}

/// Calls `each` with position and bytes of every run of data units that are no holes.
pub(crate) fn for_each_run(data: &mut [u8], unit_len: usize, mut each: impl FnMut(usize, &mut [u8])) {
    let mut at = 0;
    while at < data.len() {
        let units = data[at..].chunks(unit_len);
        let end = at + units.take_while(|unit| !is_hole(unit)).map(<[u8]>::len).sum::<usize>();
        if end > at {
            each(at, &mut data[at..end]);
        }
        // The unit there is a hole.
        at = end + unit_len;
    }
}

impl Mapping {
    /// Returns whether every encrypted segment reads holes of its store as zeroes.
    pub fn has_zero_holes(&self) -> bool {
        self.is_encrypted() && self.targets.iter().all(|target| target.crypt.is_none() || target.hole_len > 0)
    }

    /// Returns how to make the first bytes of a range read as zeroes; a discard has at most `max_len` bytes, or is as
    /// short as one can be. `None`: by writing zeroes, for every range.
    pub fn zeroing(&self, offset: u64, len: u64, max_len: u64) -> Option<Zeroing> {
        let (range, place) = self.discardable(offset, len).ok()?;
        let hole_len = self.target(&place).hole_len;
        if hole_len == 0 {
            return None;
        }
        Some(match range.start - place.store_offset.min(range.start) {
            _ if range.is_empty() => Zeroing::Write(place.len),
            0 => Zeroing::Deallocate((range.end - range.start).min((max_len / hole_len).max(1) * hole_len)),
            before => Zeroing::Write(before),
        })
    }

    /// Returns whether discards alone make a range read as zeroes.
    pub fn can_zero_fast(&self, offset: u64, len: u64) -> bool {
        let mut done = 0;
        while done < len {
            match self.zeroing(offset.saturating_add(done), len - done, u64::MAX) {
                Some(Zeroing::Deallocate(more)) => done += more,
                _ => return false,
            }
        }
        len > 0
    }

    /// Returns the part of a discardable range of the store that becomes a hole exactly.
    pub(crate) fn exact_hole(&self, range: Range<u64>, place: &Place) -> Range<u64> {
        let target = self.target(place);
        if target.hole_len == 0 {
            return range;
        }
        // Holes of whole data units: both are counted from the start of the store.
        let unit_len = target.unit_len() as u64;
        let fits = target.store_offset.is_multiple_of(unit_len) && target.hole_len.is_multiple_of(unit_len);
        let start = range.start.checked_next_multiple_of(target.hole_len).unwrap_or(u64::MAX);
        let end = range.end / target.hole_len * target.hole_len;
        if fits && start < end { start..end } else { range.start..range.start }
    }

    /// Returns the range to lock for a discard of a part of the store, if its data units must not be changed meanwhile,
    /// nor the boundary pass them.
    pub(crate) fn discard_lock(&self, range: &Range<u64>, place: &Place) -> Option<MappedRange> {
        let len = (range.end - range.start) as usize;
        let target = self.target(place);
        (target.hole_len > 0 || self.boundary.is_some()).then_some(MappedRange {
            target: place.target,
            generation: self.generation,
            first: IvNumber(0),
            offset: target.start + (range.start - target.store_offset),
            kind: place.kind,
            store: place.store,
            store_offset: range.start,
            aligned_len: len,
            head_len: 0,
            len,
            unit_len: place.unit_len,
        })
    }

    /// Returns the mapping with holes that read as zeroes.
    ///
    /// # Errors
    ///
    /// The index of a segment on a store whose holes need not.
    pub(crate) fn with_zero_holes(&self, stores: &[Arc<dyn BackingStore>]) -> Result<Self, usize> {
        let mut mapping = self.clone();
        for (index, target) in mapping.targets.iter_mut().enumerate().filter(|(_, target)| target.kind.is_stored()) {
            let store = stores.get(target.store as usize).ok_or(index)?;
            target.hole_len = store.profile().hole_len.ok_or(index)?.get();
        }
        Ok(mapping)
    }

    /// Whether the ciphertext of a range would read as zeroes in part, though it was encrypted from something else.
    pub(crate) fn has_false_hole(&self, range: &MappedRange, ciphertext: &[u8]) -> bool {
        let target = &self.targets[range.target as usize];
        // Without a cipher zeroes are zeroes.
        let is_encrypted = target.crypt.as_ref().is_some_and(|crypt| crypt.spec.cipher != Cipher::Null);
        target.hole_len > 0 && is_encrypted && ciphertext[..range.aligned_len].chunks(range.unit_len).any(is_hole)
    }

    /// Whether holes in this range read as zeroes.
    pub(crate) fn has_zero_holes_in(&self, range: &MappedRange) -> bool {
        self.targets[range.target as usize].hole_len > 0
    }
}

/// Fails a write that would read as zeroes.
pub(crate) fn check_write(mapping: &Mapping, range: &MappedRange, ciphertext: &[u8]) -> Result<(), RequestError> {
    if mapping.has_false_hole(range, ciphertext) { Err(RequestError::Io(crate::Errno::IO)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_the_units_with_any_byte() {
        let mut data = vec![0; 6 * 512];
        for byte in [511, 512, 3 * 512 + 77, 5 * 512] {
            data[byte] = 1;
        }
        let mut runs = Vec::new();
        for_each_run(&mut data, 512, |at, run| runs.push((at, run.len())));
        assert_eq!(runs, [(0, 1024), (3 * 512, 512), (5 * 512, 512)]);
        for_each_run(&mut [], 512, |at, run| unreachable!("{} bytes at {at}", run.len()));
        for_each_run(&mut [0; 1024], 512, |at, run| unreachable!("{} bytes at {at}", run.len()));
    }
}
