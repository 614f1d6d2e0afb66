//! The mapping of a target: which segment and which data units a range covers, and where they are stored.
//!
//! A target without its keys, so a frontend may cut requests to pieces while the keys are out of memory. Nothing in it
//! changes after it was made. A device whose table is replaced gets a mapping of the next generation; an mapped remembers
//! the generation it was located in, so that nobody mistakes it for one of another table.

use crate::request::RequestError;
use inlock_cipher::{CipherSpec, DataUnitSize, IvNumber, SECTOR_SIZE};

/// The segments of a target.
#[derive(Clone, Debug)]
pub struct Mapping {
    pub(crate) targets: Vec<MappedTarget>,
    pub(crate) len: u64,
    pub(crate) generation: u32,
}

/// One segment, in bytes.
#[derive(Clone, Debug)]
pub(crate) struct MappedTarget {
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) store: u32,
    pub(crate) store_offset: u64,
    /// Goes to the end of its store, wherever that is.
    pub(crate) open_end: bool,
    pub(crate) iv_offset: u64,
    pub(crate) unit: DataUnitSize,
    pub(crate) large_iv: bool,
    pub(crate) kind: Kind,
    /// Of an encrypted segment: what it takes to make its cipher again under another key.
    pub(crate) crypt: Option<Crypt>,
}

/// What a segment's cipher was made from, but for the key.
#[derive(Clone, Debug)]
pub(crate) struct Crypt {
    pub(crate) spec: CipherSpec,
    pub(crate) key_len: usize,
    /// Which of the target's keys, in the order of their first use.
    pub(crate) key: usize,
}

/// What a segment does with its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Encrypts them and stores them.
    Crypt,
    /// Stores them as they are.
    Linear,
    /// Reads as zeroes; what is written is forgotten.
    Zero,
    /// Fails.
    Error,
}

/// Where one piece of a request lies: the requested bytes and the whole data units around them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedRange {
    pub(crate) target: u32,
    pub(crate) generation: u32,
    pub(crate) first: IvNumber,
    /// Where the requested bytes start in the device.
    pub offset: u64,
    /// What the segment does with the bytes.
    pub kind: Kind,
    /// Which store holds the aligned range.
    pub store: u32,
    /// Where the aligned range starts in the store, in bytes.
    pub store_offset: u64,
    /// Length of the aligned range in bytes: whole data units.
    pub aligned_len: usize,
    /// Bytes of the aligned range before the requested ones.
    pub head_len: usize,
    /// How many bytes were requested.
    pub len: usize,
    /// Bytes in a data unit (1 where there is no cipher).
    pub unit_len: usize,
}

impl MappedRange {
    /// Whether only target of the first data unit is requested.
    pub fn has_partial_head(&self) -> bool {
        self.head_len != 0
    }

    /// Whether only target of the last data unit is requested.
    pub fn has_partial_tail(&self) -> bool {
        self.head_len + self.len != self.aligned_len
    }

    /// Whether a write of this mapped has to read first.
    pub fn is_partial(&self) -> bool {
        self.has_partial_head() || self.has_partial_tail()
    }

    /// The requested bytes within the aligned range.
    pub fn requested(&self) -> std::ops::Range<usize> {
        self.head_len..self.head_len + self.len
    }
}

/// Where the first bytes of a range lie, as many as one segment holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// What the segment does with the bytes.
    pub kind: Kind,
    /// Which store holds them.
    pub store: u32,
    /// Position in the store, in bytes.
    pub store_offset: u64,
    /// Position in the segment, in bytes.
    pub within: u64,
    /// How many bytes.
    pub len: u64,
    /// Bytes in a data unit (1 where there is no cipher).
    pub unit_len: usize,
}

impl Mapping {
    /// Length of the device in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the device has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether any target of the device is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.targets.iter().any(|p| p.kind == Kind::Crypt)
    }

    /// The largest data unit in bytes, 1 where nothing is encrypted.
    pub fn unit_len(&self) -> usize {
        self.targets.iter().map(MappedTarget::unit_len).max().unwrap_or(1)
    }

    /// How many keys the target was made with.
    pub fn keys(&self) -> usize {
        self.targets.iter().filter_map(|p| p.crypt.as_ref()).map(|c| c.key + 1).max().unwrap_or(0)
    }

    /// Where the first `len` bytes from `offset` lie, or as many of them as one segment holds and `max_aligned_len` bytes of
    /// whole data units can carry. `max_aligned_len` is at least two data units. An empty range has no place.
    pub fn locate(&self, offset: u64, len: u64, max_aligned_len: usize) -> Result<MappedRange, RequestError> {
        let index = self.target_at(offset, len)?;
        let target = &self.targets[index];
        let unit_len = target.unit_len();
        assert!(max_aligned_len >= 2 * unit_len, "a buffer that cannot hold two data units");
        let within = offset - target.start;
        let head_len = (within % unit_len as u64) as usize;
        let aligned_start = within - head_len as u64;
        let number = (aligned_start / SECTOR_SIZE).wrapping_add(target.iv_offset);
        let mut longest = (max_aligned_len / unit_len * unit_len) as u64;
        if target.large_iv {
            // The sectors' number starts over at 2^64, and that of data units with it, which is earlier than a cipher call
            // would let it: so none goes across.
            let units = ((u64::MAX - number) / target.unit.sectors()).saturating_add(1);
            longest = longest.min(units.saturating_mul(unit_len as u64));
        }
        let len = len.min(target.len - within).min(longest - head_len as u64) as usize;
        let shift = if target.large_iv { target.unit.log2() - 9 } else { 0 };
        Ok(MappedRange {
            target: index as u32,
            generation: self.generation,
            first: IvNumber(number >> shift),
            offset,
            kind: target.kind,
            store: target.store,
            store_offset: target.store_offset + aligned_start,
            aligned_len: (head_len + len).next_multiple_of(unit_len),
            head_len,
            len,
            unit_len,
        })
    }

    /// Where the first bytes of a range lie, without a aligned range: for what moves no data.
    pub fn place(&self, offset: u64, len: u64) -> Result<Place, RequestError> {
        let target = &self.targets[self.target_at(offset, len)?];
        let within = offset - target.start;
        Ok(Place {
            kind: target.kind,
            store: target.store,
            store_offset: target.store_offset + within,
            within,
            len: len.min(target.len - within),
            unit_len: target.unit_len(),
        })
    }

    /// The bytes of the store that a discard of the range may give back, and how far that goes: whole data units only,
    /// since a unit that is only touched keeps its content. The bytes may be none.
    pub fn discardable(&self, offset: u64, len: u64) -> Result<(std::ops::Range<u64>, Place), RequestError> {
        let place = self.place(offset, len)?;
        let unit_len = place.unit_len as u64;
        // The data area starts on a sector, not always on a multiple of the unit: count from the segment's start.
        let start = place.store_offset - place.within + place.within.next_multiple_of(unit_len);
        let end = place.store_offset - place.within + (place.within + place.len) / unit_len * unit_len;
        Ok((start..end.max(start), place))
    }

    /// The segment of the first byte of a range that lies within the device.
    fn target_at(&self, offset: u64, len: u64) -> Result<usize, RequestError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len && len > 0 => {}
            _ => return Err(RequestError::OutOfRange),
        }
        Ok(self.targets.partition_point(|p| p.start + p.len <= offset))
    }
}

impl MappedTarget {
    pub(crate) fn unit_len(&self) -> usize {
        if self.kind == Kind::Crypt { self.unit.bytes() } else { 1 }
    }

    /// Where the segment ends in its store; 0 where it has none.
    pub(crate) fn store_end(&self) -> u64 {
        match self.kind {
            Kind::Crypt | Kind::Linear => self.store_offset + self.len,
            Kind::Zero | Kind::Error => 0,
        }
    }
}
