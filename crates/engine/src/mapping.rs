//! Mapping from ranges of a device to segments, data units and positions in the stores.
//!
//! A mapping has no keys, so that a frontend can split requests while the keys are wiped. It is immutable, except for
//! the boundary of a device that is re-encrypted ([`crate::boundary`]). A device whose table is replaced gets a mapping
//! of the next generation; a mapped range records its generation, so that it cannot be used with another table.

use crate::boundary::{Boundary, OLD};
use crate::request::RequestError;
use inlock_cipher::{CipherSpec, DataUnitSize, IvNumber, SECTOR_SIZE, TargetType};
use std::ops::Range;
use std::sync::Arc;

/// Segments of a device, in order.
#[derive(Clone, Debug)]
pub struct Mapping {
    pub(crate) targets: Vec<MappedTarget>,
    pub(crate) len: u64,
    pub(crate) generation: u32,
    /// Boundary between the two sides of a device that is re-encrypted. The targets are the sides then, each over the
    /// whole length.
    pub(crate) boundary: Option<Arc<Boundary>>,
}

/// One segment, in bytes.
#[derive(Clone, Debug)]
pub(crate) struct MappedTarget {
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) store: u32,
    pub(crate) store_offset: u64,
    /// Whether the segment extends to the end of its store.
    pub(crate) open_end: bool,
    pub(crate) iv_offset: u64,
    pub(crate) unit: DataUnitSize,
    pub(crate) large_iv: bool,
    pub(crate) kind: TargetType,
    /// Length in bytes of the ranges of the store that a discard makes holes, if holes read as zeroes; otherwise 0.
    pub(crate) hole_len: u64,
    /// Parameters to create the cipher again with another key; set for an encrypted segment.
    pub(crate) crypt: Option<Crypt>,
}

/// Parameters of a segment's cipher, without the key.
#[derive(Clone, Debug)]
pub(crate) struct Crypt {
    pub(crate) spec: CipherSpec,
    pub(crate) key_len: usize,
    /// Index among the table's keys, in the order of first use.
    pub(crate) key: usize,
}

/// Position of one piece of a request: the requested bytes and the whole data units around them.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedRange {
    pub(crate) target: u32,
    pub(crate) generation: u32,
    pub(crate) first: IvNumber,
    /// First requested byte in the device.
    pub offset: u64,
    /// Type of the segment.
    pub kind: TargetType,
    /// Index of the store that holds the aligned range.
    pub store: u32,
    /// Start of the aligned range in the store, in bytes.
    pub store_offset: u64,
    /// Length of the aligned range in bytes: whole data units.
    pub aligned_len: usize,
    /// Bytes of the aligned range before the requested ones.
    pub head_len: usize,
    /// Length of the request in bytes.
    pub len: usize,
    /// Bytes in a data unit (1 if unencrypted).
    pub unit_len: usize,
}

impl MappedRange {
    /// Returns whether only a part of the first data unit is requested.
    pub fn has_partial_head(&self) -> bool {
        self.head_len != 0
    }

    /// Returns whether only a part of the last data unit is requested.
    pub fn has_partial_tail(&self) -> bool {
        self.head_len + self.len != self.aligned_len
    }

    /// Returns whether a write of this range has to read first.
    pub fn is_partial(&self) -> bool {
        self.has_partial_head() || self.has_partial_tail()
    }

    /// Returns the position of the requested bytes in the aligned range.
    pub fn requested(&self) -> std::ops::Range<usize> {
        self.head_len..self.head_len + self.len
    }
}

/// Position of the first bytes of a range, up to the end of their segment.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub(crate) target: u32,
    /// Type of the segment.
    pub kind: TargetType,
    /// Index of the store that holds the bytes.
    pub store: u32,
    /// Position in the store, in bytes.
    pub store_offset: u64,
    /// Position in the segment, in bytes.
    pub within: u64,
    /// Length in bytes.
    pub len: u64,
    /// Bytes in a data unit (1 if unencrypted).
    pub unit_len: usize,
}

impl Mapping {
    /// Returns the length of the device in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether any segment is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.targets.iter().any(|p| p.kind == TargetType::Crypt)
    }

    /// Returns the largest data unit in bytes, 1 if nothing is encrypted.
    pub fn unit_len(&self) -> usize {
        self.targets.iter().map(MappedTarget::unit_len).max().unwrap_or(1)
    }

    /// Returns the number of keys that the table uses.
    pub fn keys(&self) -> usize {
        self.targets.iter().filter_map(|p| p.crypt.as_ref()).map(|c| c.key + 1).max().unwrap_or(0)
    }

    /// Returns the boundary between new and old bytes of a device that is re-encrypted, in bytes of the device.
    pub fn boundary(&self) -> Option<u64> {
        self.boundary.as_deref().map(Boundary::position)
    }

    /// Returns whether a range is still mapped as it was: by this table and, in a device that is re-encrypted, to the
    /// side that it is on. That can change until the range is locked ([`Mapping::needs_lock`]).
    pub(crate) fn is_current(&self, range: &MappedRange) -> bool {
        range.generation == self.generation
            && self.boundary.as_deref().is_none_or(|boundary| {
                let (side, end) = boundary.side_at(range.offset, u64::MAX);
                let is_on_side = side == range.target as usize && range.offset.saturating_add(range.len as u64) <= end;
                is_on_side && !boundary.has_failed()
            })
    }

    /// Calls `take` with the plaintext of a range that is in the zone of a re-encryption, if memory has it. Returns
    /// whether it has. If not, a range that is locked and current afterwards can be read from the store.
    pub(crate) fn read_zone(&self, range: &MappedRange, take: impl FnOnce(&[u8])) -> bool {
        let bytes = range.offset..range.offset.saturating_add(range.len as u64);
        self.boundary.as_deref().is_some_and(|boundary| boundary.read(bytes, take))
    }

    /// Returns whether a request that moves the data of a range has to lock it: data units are locked for those that
    /// change them in part, and any data for the boundary.
    pub(crate) fn needs_lock(&self, range: &MappedRange) -> bool {
        range.kind == TargetType::Crypt || self.boundary.is_some()
    }

    /// Returns the store and the range in it of the old bytes of `zone`, which is the next to be new, in bytes of the
    /// device.
    ///
    /// # Errors
    ///
    /// [`RequestError::Unsupported`] if the device is not re-encrypted; [`RequestError::OutOfRange`] if the zone is
    /// empty, does not begin at the boundary, or does not end at a data unit of both sides within the device.
    pub(crate) fn old_place(&self, zone: &Range<u64>) -> Result<(u32, Range<u64>), RequestError> {
        let boundary = self.boundary.as_deref().ok_or(RequestError::Unsupported)?;
        let is_whole = |target: &MappedTarget| {
            [zone.start, zone.end].iter().all(|border| border.is_multiple_of(target.unit_len() as u64))
        };
        let is_in_device = zone.start < zone.end && zone.end <= self.len;
        if !is_in_device || !self.targets.iter().all(is_whole) || boundary.behind(zone).is_none() {
            return Err(RequestError::OutOfRange);
        }
        let MappedTarget { store, store_offset, .. } = self.targets[OLD];
        Ok((store, store_offset + zone.start..store_offset + zone.end))
    }

    /// Maps the first bytes of a range: at most `len` bytes from `offset`, within one segment and within
    /// `max_aligned_len` bytes of whole data units. `max_aligned_len` is at least two data units.
    ///
    /// # Errors
    ///
    /// [`RequestError::OutOfRange`] for an empty range, and for one beyond the end of the device.
    pub fn locate(&self, offset: u64, len: u64, max_aligned_len: usize) -> Result<MappedRange, RequestError> {
        let (index, end) = self.target_at(offset, len)?;
        let target = &self.targets[index];
        let unit_len = target.unit_len();
        assert!(max_aligned_len >= 2 * unit_len, "a buffer that cannot hold two data units");
        let within = offset - target.start;
        let head_len = (within % unit_len as u64) as usize;
        let aligned_start = within - head_len as u64;
        let number = (aligned_start / SECTOR_SIZE).wrapping_add(target.iv_offset);
        let mut longest = (max_aligned_len / unit_len * unit_len) as u64;
        if target.large_iv {
            // Sector numbers wrap at 2^64, and large IVs, which count data units, wrap with them. A cipher call counts
            // on instead, so no mapped range crosses that point.
            let units = ((u64::MAX - number) / target.unit.sectors()).saturating_add(1);
            longest = longest.min(units.saturating_mul(unit_len as u64));
        }
        let len = len.min(end - offset).min(longest - head_len as u64) as usize;
        let shift = if target.large_iv { target.unit.log2() - 9 } else { 0 };
        Ok(MappedRange {
            target: index as u32,
            generation: self.generation,
            first: IvNumber(number >> shift),
            offset,
            kind: self.kind_of(target),
            store: target.store,
            store_offset: target.store_offset + aligned_start,
            aligned_len: (head_len + len).next_multiple_of(unit_len),
            head_len,
            len,
            unit_len,
        })
    }

    /// Returns the position of the first bytes of a range without an aligned range, for operations that move no data.
    ///
    /// # Errors
    ///
    /// As [`Mapping::locate`].
    pub fn place(&self, offset: u64, len: u64) -> Result<Place, RequestError> {
        let (index, end) = self.target_at(offset, len)?;
        let target = &self.targets[index];
        let within = offset - target.start;
        Ok(Place {
            target: index as u32,
            kind: self.kind_of(target),
            store: target.store,
            store_offset: target.store_offset + within,
            within,
            len: len.min(end - offset),
            unit_len: target.unit_len(),
        })
    }

    /// Returns the bytes of the store that a discard of the range may deallocate, possibly none, and the length of the
    /// range that this handles. Only whole data units are deallocated; a unit that the range touches in part keeps its
    /// content. If holes read as zeroes, only what becomes a hole exactly is.
    ///
    /// # Errors
    ///
    /// As [`Mapping::locate`].
    pub fn discardable(&self, offset: u64, len: u64) -> Result<(std::ops::Range<u64>, Place), RequestError> {
        let place = self.place(offset, len)?;
        let unit_len = place.unit_len as u64;
        // The data area starts at a sector, which need not be a multiple of the unit: count from the segment's start.
        let start = place.store_offset - place.within + place.within.next_multiple_of(unit_len);
        let end = place.store_offset - place.within + (place.within + place.len) / unit_len * unit_len;
        Ok((self.exact_hole(start..end.max(start), &place), place))
    }

    /// Returns the segment of a place.
    pub(crate) fn target(&self, place: &Place) -> &MappedTarget {
        &self.targets[place.target as usize]
    }

    /// Returns the type of a segment, that of one that fails if a zone of the device is neither old nor new.
    fn kind_of(&self, target: &MappedTarget) -> TargetType {
        let has_failed = self.boundary.as_deref().is_some_and(Boundary::has_failed);
        if has_failed { TargetType::Error } else { target.kind }
    }

    /// Returns the index of the segment that contains the first byte of a range within the device, and where that
    /// segment ends in the device.
    fn target_at(&self, offset: u64, len: u64) -> Result<(usize, u64), RequestError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len && len > 0 => {}
            _ => return Err(RequestError::OutOfRange),
        }
        if let Some(boundary) = &self.boundary {
            return Ok(boundary.side_at(offset, self.len));
        }
        let index = self.targets.partition_point(|p| p.start + p.len <= offset);
        Ok((index, self.targets[index].start + self.targets[index].len))
    }
}

impl MappedTarget {
    pub(crate) fn unit_len(&self) -> usize {
        if self.kind == TargetType::Crypt { self.unit.bytes() } else { 1 }
    }

    /// Returns the end of the segment in its store in bytes; 0 without a store.
    pub(crate) fn store_end(&self) -> u64 {
        match self.kind {
            TargetType::Crypt | TargetType::Linear => self.store_offset.saturating_add(self.len),
            TargetType::Zero | TargetType::Error => 0,
        }
    }
}
