//! The crypt target: which data units a range covers, where they are stored, and their encryption. No I/O, no lock.
//!
//! It is dm-crypt's table in user space: a list of segments, each with its cipher. Workers share one target; nothing in
//! it changes after it was made. Every buffer it is given holds a whole *cover*, the run of whole data units around the
//! requested bytes, so that one cipher call does all units of a request.

use crate::buffer::Buffer;
use crate::request::RequestError;
use inlock_cipher::{
    CipherError, DataUnitSize, InOut, IvNumber, SECTOR_SIZE, SectorCipher, Segment, VolumeKey, new_sector_cipher,
};

/// The segments of a volume with their ciphers.
pub struct CryptTarget {
    parts: Vec<Part>,
    len: u64,
}

/// One segment, in bytes.
struct Part {
    start: u64,
    len: u64,
    store_offset: u64,
    iv_offset: u64,
    unit: DataUnitSize,
    large_iv: bool,
    /// `None`: stored as it is, in granules of one byte.
    cipher: Option<Box<dyn SectorCipher>>,
}

/// Where one piece of a request lies: the requested bytes and the whole data units around them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    part: usize,
    first: IvNumber,
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

/// Where the first bytes of a range lie in the store, as many as one segment holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Position in the store, in bytes.
    pub store_offset: u64,
    /// How many bytes.
    pub len: u64,
    /// Bytes in a data unit (1 where there is no cipher).
    pub granule: usize,
}

/// Bytes that are allowed to reach a store: what a cipher call made, or what was read from a store.
#[derive(Debug)]
pub struct Ciphertext(Buffer);

impl Ciphertext {
    /// Marks what a store has just filled.
    pub(crate) fn from_store(buffer: Buffer) -> Self {
        Self(buffer)
    }

    /// What may be written.
    pub fn bytes(&self) -> &[u8] {
        self.0.data()
    }

    /// The buffer, for reuse.
    pub fn into_buffer(self) -> Buffer {
        self.0
    }
}

/// A target that cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// The cipher refused its specification or its key.
    #[error(transparent)]
    Cipher(#[from] CipherError),
    /// There is no segment, or segments leave a gap or overlap.
    #[error("segment {0} does not start where the one before it ends")]
    Gap(usize),
    /// An open-ended segment that is not the last.
    #[error("segment {0} has no end but is not the last")]
    OpenEnd(usize),
    /// The segment does not lie within the store.
    #[error("segment {index} needs {needed} bytes of a store of {store_len} bytes: the image is truncated")]
    BeyondStore {
        /// Which segment.
        index: usize,
        /// Where the segment ends in the store.
        needed: u64,
        /// Length of the store.
        store_len: u64,
    },
    /// The store is too short to hold any data.
    #[error("the store of {store_len} bytes ends before the data area at byte {data_offset}")]
    Empty {
        /// Length of the store.
        store_len: u64,
        /// Where the data should start.
        data_offset: u64,
    },
    /// The length is not a whole number of data units.
    #[error("the data area of {len} bytes is not a multiple of the data unit of {unit} bytes")]
    UnitLength {
        /// Length of the data area.
        len: u64,
        /// Bytes in a data unit.
        unit: usize,
    },
    /// An offset that does not fit 64 bits of bytes.
    #[error("segment {0} lies beyond 2^64 bytes")]
    Overflow(usize),
}

impl CryptTarget {
    /// A target over `segments` under `key`, on a store of `store_len` bytes. Everything is checked here, so that
    /// [`CryptTarget::locate`] only compares with the length.
    pub fn new(segments: &[Segment], key: &VolumeKey, store_len: u64) -> Result<Self, TargetError> {
        let mut parts = Vec::with_capacity(segments.len());
        let mut next = 0;
        for (index, segment) in segments.iter().enumerate() {
            let part = Part::new(index, segment, key, store_len)?;
            if part.start != next {
                return Err(TargetError::Gap(index));
            }
            if segment.sectors.is_none() && index + 1 != segments.len() {
                return Err(TargetError::OpenEnd(index));
            }
            next = part.start.checked_add(part.len).ok_or(TargetError::Overflow(index))?;
            parts.push(part);
        }
        if parts.is_empty() {
            return Err(TargetError::Gap(0));
        }
        Ok(Self { parts, len: next })
    }

    /// A target that stores everything as it is (`--type raw`).
    pub fn raw(len: u64) -> Self {
        let part = Part {
            start: 0,
            len,
            store_offset: 0,
            iv_offset: 0,
            unit: DataUnitSize::SECTOR,
            large_iv: false,
            cipher: None,
        };
        Self { parts: vec![part], len }
    }

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
        self.parts.iter().any(|p| p.cipher.is_some())
    }

    /// The largest data unit in bytes, 1 where nothing is encrypted.
    pub fn granule(&self) -> usize {
        self.parts.iter().map(Part::granule).max().unwrap_or(1)
    }

    /// Where the first `len` bytes from `offset` lie, or as many of them as one segment holds and `max_cover` bytes of
    /// whole data units can carry. `max_cover` is at least two data units. An empty range has no place.
    pub fn locate(&self, offset: u64, len: u64, max_cover: usize) -> Result<Extent, RequestError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len && len > 0 => {}
            _ => return Err(RequestError::OutOfRange),
        }
        let index = self.parts.partition_point(|p| p.start + p.len <= offset);
        let part = &self.parts[index];
        let granule = part.granule();
        assert!(max_cover >= 2 * granule, "a buffer that cannot hold two data units");
        let within = offset - part.start;
        let skip = (within % granule as u64) as usize;
        let cover_start = within - skip as u64;
        let longest = (max_cover / granule * granule - skip) as u64;
        let len = len.min(part.len - within).min(longest) as usize;
        let number = (cover_start / SECTOR_SIZE).wrapping_add(part.iv_offset);
        let shift = if part.large_iv { part.unit.log2() - 9 } else { 0 };
        Ok(Extent {
            part: index,
            first: IvNumber(number >> shift),
            store_offset: part.store_offset + cover_start,
            cover_len: (skip + len).next_multiple_of(granule),
            skip,
            len,
            granule,
        })
    }

    /// Where the first bytes of a range lie in the store, without a cover: for what moves no data.
    pub fn place(&self, offset: u64, len: u64) -> Result<Place, RequestError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len && len > 0 => {}
            _ => return Err(RequestError::OutOfRange),
        }
        let part = &self.parts[self.parts.partition_point(|p| p.start + p.len <= offset)];
        let within = offset - part.start;
        let store_offset = part.store_offset + within;
        Ok(Place { store_offset, len: len.min(part.len - within), granule: part.granule() })
    }

    /// The bytes of the store that a discard of the range may give back, and how far that goes: whole data units only,
    /// since a unit that is only touched keeps its content. The bytes may be none.
    pub fn discardable(&self, offset: u64, len: u64) -> Result<(std::ops::Range<u64>, Place), RequestError> {
        let place = self.place(offset, len)?;
        let granule = place.granule as u64;
        // The data area starts on a sector, not always on a multiple of the unit: count from the part's start.
        let part = &self.parts[self.parts.partition_point(|p| p.start + p.len <= offset)];
        let within = offset - part.start;
        let start = part.store_offset + within.next_multiple_of(granule);
        let end = part.store_offset + (within + place.len) / granule * granule;
        Ok((start..end.max(start), place))
    }

    /// Encrypts the whole cover in place: one cipher call.
    pub fn encrypt(&self, extent: &Extent, mut buffer: Buffer) -> Ciphertext {
        if let Some(cipher) = &self.parts[extent.part].cipher {
            cipher.encrypt(extent.first, InOut::InPlace(&mut buffer.data_mut()[..extent.cover_len]));
        }
        Ciphertext(buffer)
    }

    /// Encrypts a whole number of data units from `plain` into `buffer`; the cipher pass is the copy.
    pub fn encrypt_from(&self, extent: &Extent, plain: &[u8], mut buffer: Buffer) -> Ciphertext {
        let into = &mut buffer.data_mut()[..extent.cover_len];
        match &self.parts[extent.part].cipher {
            Some(cipher) => cipher.encrypt(extent.first, InOut::copy(plain, into)),
            None => into.copy_from_slice(plain),
        }
        Ciphertext(buffer)
    }

    /// Decrypts the whole cover in place: one cipher call.
    pub fn decrypt(&self, extent: &Extent, from: Ciphertext) -> Buffer {
        let mut buffer = from.0;
        self.decrypt_in_place(extent, 0, &mut buffer.data_mut()[..extent.cover_len]);
        buffer
    }

    /// Decrypts data units that start `byte` bytes into the cover of `extent`, in place.
    pub(crate) fn decrypt_in_place(&self, extent: &Extent, byte: usize, data: &mut [u8]) {
        let part = &self.parts[extent.part];
        if let Some(cipher) = &part.cipher {
            let step = if part.large_iv { 1 } else { part.unit.sectors() };
            let units = (byte / extent.granule) as u64;
            cipher.decrypt(IvNumber(extent.first.0.wrapping_add(units.wrapping_mul(step))), InOut::InPlace(data));
        }
    }
}

impl Part {
    fn new(index: usize, segment: &Segment, key: &VolumeKey, store_len: u64) -> Result<Self, TargetError> {
        let bytes = |sectors: u64| sectors.checked_mul(SECTOR_SIZE).ok_or(TargetError::Overflow(index));
        let start = bytes(segment.start.0)?;
        let store_offset = bytes(segment.data_offset.0)?;
        let len = match segment.sectors {
            Some(sectors) => bytes(sectors)?,
            None if store_len <= store_offset => {
                return Err(TargetError::Empty { store_len, data_offset: store_offset });
            }
            None => store_len - store_offset,
        };
        let needed = store_offset.checked_add(len).ok_or(TargetError::Overflow(index))?;
        if needed > store_len {
            return Err(TargetError::BeyondStore { index, needed, store_len });
        }
        let unit = segment.unit;
        let cipher = match &segment.cipher {
            Some(spec) => Some(new_sector_cipher(spec, key.as_bytes(), unit, segment.large_iv)?),
            None => None,
        };
        if cipher.is_some() && !len.is_multiple_of(unit.bytes() as u64) {
            return Err(TargetError::UnitLength { len, unit: unit.bytes() });
        }
        let iv_offset = segment.iv_offset.0;
        Ok(Self { start, len, store_offset, iv_offset, unit, large_iv: segment.large_iv, cipher })
    }

    fn granule(&self) -> usize {
        if self.cipher.is_some() { self.unit.bytes() } else { 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inlock_cipher::{CipherSpec, Sector};

    fn segment(start: u64, sectors: Option<u64>, data_offset: u64, unit: u32) -> Segment {
        Segment {
            start: Sector(start),
            sectors,
            data_offset: Sector(data_offset),
            iv_offset: Sector(8),
            unit: DataUnitSize::new(unit).unwrap(),
            large_iv: false,
            cipher: Some(CipherSpec::AES_XTS_PLAIN64),
        }
    }

    #[test]
    fn a_cover_is_the_whole_units_around_the_bytes() {
        let key = VolumeKey::new(&[7; 64]);
        let target = CryptTarget::new(&[segment(0, None, 16, 4096)], &key, 8192 + 65536).unwrap();
        assert_eq!(target.len(), 65536);
        let e = target.locate(5000, 10, 1 << 20).unwrap();
        assert_eq!((e.store_offset, e.cover_len, e.skip, e.len), (8192 + 4096, 4096, 904, 10));
        assert_eq!(e.first, IvNumber(16), "sector 8 of the segment plus an IV offset of 8");
        let e = target.locate(4095, 2, 1 << 20).unwrap();
        assert_eq!((e.cover_len, e.skip), (8192, 4095));
        let e = target.locate(0, 65536, 8192).unwrap();
        assert_eq!((e.cover_len, e.len, e.is_partial()), (8192, 8192, false));
        let e = target.locate(1, 65535, 8192).unwrap();
        assert_eq!((e.cover_len, e.len), (8192, 8191));
        for (offset, len) in [(65536, 1), (0, 65537), (u64::MAX, 2), (0, 0), (65535, 2)] {
            assert_eq!(target.locate(offset, len, 1 << 20), Err(RequestError::OutOfRange), "{offset}+{len}");
        }
    }

    #[test]
    fn a_range_over_two_segments_is_cut_at_the_border() {
        let key = VolumeKey::new(&[7; 64]);
        let linear = Segment { cipher: None, ..segment(0, Some(8), 0, 512) };
        let target = CryptTarget::new(&[linear, segment(8, None, 100, 512)], &key, 512 * 108).unwrap();
        let e = target.locate(4000, 200, 1 << 20).unwrap();
        assert_eq!((e.len, e.granule, e.store_offset), (96, 1, 4000));
        let e = target.locate(4096, 104, 1 << 20).unwrap();
        assert_eq!((e.len, e.granule, e.store_offset, e.cover_len), (104, 512, 51200, 512));
    }

    #[test]
    fn segments_that_do_not_fit_are_refused() {
        let key = VolumeKey::new(&[7; 64]);
        let new = |s: &[Segment], len| CryptTarget::new(s, &key, len).map(|t| t.len());
        assert!(matches!(new(&[], 4096), Err(TargetError::Gap(0))));
        assert!(matches!(new(&[segment(1, None, 0, 512)], 4096), Err(TargetError::Gap(0))));
        assert!(matches!(new(&[segment(0, None, 8, 512)], 4096), Err(TargetError::Empty { .. })));
        assert!(matches!(new(&[segment(0, Some(16), 8, 512)], 4096), Err(TargetError::BeyondStore { .. })));
        assert!(matches!(new(&[segment(0, None, 0, 4096)], 6144), Err(TargetError::UnitLength { .. })));
        assert!(matches!(new(&[segment(0, Some(u64::MAX), 0, 512)], 4096), Err(TargetError::Overflow(0))));
        let two = [segment(0, None, 0, 512), segment(8, None, 0, 512)];
        assert!(matches!(new(&two, 4096), Err(TargetError::OpenEnd(0))));
    }
}
