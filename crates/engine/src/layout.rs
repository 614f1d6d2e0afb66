//! The layout of a target: which segment and which data units a range covers, and where they are stored.
//!
//! A target without its keys, so a front end may cut requests to pieces while the keys are out of memory. Nothing in it
//! changes after it was made. A device whose table is replaced gets a layout of the next generation; an extent remembers
//! the generation it was located in, so that nobody mistakes it for one of another table.

use crate::request::RequestError;
use inlock_cipher::{CipherSpec, DataUnitSize, IvNumber, SECTOR_SIZE};

/// The segments of a target.
#[derive(Clone, Debug)]
pub struct Layout {
    pub(crate) parts: Vec<Part>,
    pub(crate) len: u64,
    pub(crate) generation: u32,
}

/// One segment, in bytes.
#[derive(Clone, Debug)]
pub(crate) struct Part {
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
pub struct Extent {
    pub(crate) part: u32,
    pub(crate) generation: u32,
    pub(crate) first: IvNumber,
    /// Where the requested bytes start in the device.
    pub offset: u64,
    /// What the segment does with the bytes.
    pub kind: Kind,
    /// Which store holds the cover.
    pub store: u32,
    /// Where the cover starts in the store, in bytes.
    pub store_offset: u64,
    /// Length of the cover in bytes: whole data units.
    pub cover_len: usize,
    /// Bytes of the cover before the requested ones.
    pub skip: usize,
    /// How many bytes were requested.
    pub len: usize,
    /// Bytes in a data unit (1 where there is no cipher).
    pub granule: usize,
}

impl Extent {
    /// Whether only part of the first data unit is requested.
    pub fn partial_head(&self) -> bool {
        self.skip != 0
    }

    /// Whether only part of the last data unit is requested.
    pub fn partial_tail(&self) -> bool {
        self.skip + self.len != self.cover_len
    }

    /// Whether a write of this extent has to read first.
    pub fn is_partial(&self) -> bool {
        self.partial_head() || self.partial_tail()
    }

    /// The requested bytes within the cover.
    pub fn requested(&self) -> std::ops::Range<usize> {
        self.skip..self.skip + self.len
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
    pub granule: usize,
}

impl Layout {
    /// Length of the device in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the device has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether any part of the device is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.parts.iter().any(|p| p.kind == Kind::Crypt)
    }

    /// The largest data unit in bytes, 1 where nothing is encrypted.
    pub fn granule(&self) -> usize {
        self.parts.iter().map(Part::granule).max().unwrap_or(1)
    }

    /// How many keys the target was made with.
    pub fn keys(&self) -> usize {
        self.parts.iter().filter_map(|p| p.crypt.as_ref()).map(|c| c.key + 1).max().unwrap_or(0)
    }

    /// Where the first `len` bytes from `offset` lie, or as many of them as one segment holds and `max_cover` bytes of
    /// whole data units can carry. `max_cover` is at least two data units. An empty range has no place.
    pub fn locate(&self, offset: u64, len: u64, max_cover: usize) -> Result<Extent, RequestError> {
        let index = self.part_at(offset, len)?;
        let part = &self.parts[index];
        let granule = part.granule();
        assert!(max_cover >= 2 * granule, "a buffer that cannot hold two data units");
        let within = offset - part.start;
        let skip = (within % granule as u64) as usize;
        let cover_start = within - skip as u64;
        let number = (cover_start / SECTOR_SIZE).wrapping_add(part.iv_offset);
        let mut longest = (max_cover / granule * granule) as u64;
        if part.large_iv {
            // The sectors' number starts over at 2^64, and that of data units with it, which is earlier than a cipher call
            // would let it: so none goes across.
            let units = ((u64::MAX - number) / part.unit.sectors()).saturating_add(1);
            longest = longest.min(units.saturating_mul(granule as u64));
        }
        let len = len.min(part.len - within).min(longest - skip as u64) as usize;
        let shift = if part.large_iv { part.unit.log2() - 9 } else { 0 };
        Ok(Extent {
            part: index as u32,
            generation: self.generation,
            first: IvNumber(number >> shift),
            offset,
            kind: part.kind,
            store: part.store,
            store_offset: part.store_offset + cover_start,
            cover_len: (skip + len).next_multiple_of(granule),
            skip,
            len,
            granule,
        })
    }

    /// Where the first bytes of a range lie, without a cover: for what moves no data.
    pub fn place(&self, offset: u64, len: u64) -> Result<Place, RequestError> {
        let part = &self.parts[self.part_at(offset, len)?];
        let within = offset - part.start;
        Ok(Place {
            kind: part.kind,
            store: part.store,
            store_offset: part.store_offset + within,
            within,
            len: len.min(part.len - within),
            granule: part.granule(),
        })
    }

    /// The bytes of the store that a discard of the range may give back, and how far that goes: whole data units only,
    /// since a unit that is only touched keeps its content. The bytes may be none.
    pub fn discardable(&self, offset: u64, len: u64) -> Result<(std::ops::Range<u64>, Place), RequestError> {
        let place = self.place(offset, len)?;
        let granule = place.granule as u64;
        // The data area starts on a sector, not always on a multiple of the unit: count from the segment's start.
        let start = place.store_offset - place.within + place.within.next_multiple_of(granule);
        let end = place.store_offset - place.within + (place.within + place.len) / granule * granule;
        Ok((start..end.max(start), place))
    }

    /// The segment of the first byte of a range that lies within the device.
    fn part_at(&self, offset: u64, len: u64) -> Result<usize, RequestError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len && len > 0 => {}
            _ => return Err(RequestError::OutOfRange),
        }
        Ok(self.parts.partition_point(|p| p.start + p.len <= offset))
    }
}

impl Part {
    pub(crate) fn granule(&self) -> usize {
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
