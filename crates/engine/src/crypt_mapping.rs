//! Crypt mapping: a mapping with its ciphers and keys. It does no I/O and takes no locks.
//!
//! It corresponds to a dm-crypt table: a list of targets, each a segment that is encrypted, stored unencrypted, reads
//! as zeroes, or fails. Workers share one crypt mapping, which is immutable. Every buffer passed in holds an *aligned
//! range*, the whole data units that the requested bytes touch, so that one cipher call handles all units of a request.

use crate::boundary::Boundary;
use crate::buffer::Buffer;
use crate::cipher_engine::{EngineKeys, EngineSlot};
use crate::ciphertext::Ciphertext;
use crate::holes;
use crate::mapping::{Crypt, MappedTarget, Mapping};
use crate::pieces::{DestinationPieces, SourcePieces};
use crate::store::BackingStore;
use inlock_cipher::{
    CipherError, DataUnitSize, InOut, IvNumber, SECTOR_SIZE, ScatterList, SectorCipher, Segment, TargetType, VolumeKey,
    new_sector_cipher, scrub_stack,
};
use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

pub(crate) use crate::mapping::MappedRange;

mod sides;

pub use sides::Sides;

/// Bytes of stack that the cipher calls of one worker turn may use.
pub(crate) const TURN_STACK: usize = 64 << 10;
/// Bytes of stack that one cipher call may use.
pub(crate) const CALL_STACK: usize = 8 << 10;

/// A mapping with its ciphers.
pub struct CryptMapping {
    mapping: Arc<Mapping>,
    /// Cipher of each segment; `None` for an unencrypted one.
    ciphers: Vec<Option<Box<dyn SectorCipher>>>,
    /// Cost of each cipher on this CPU, in picoseconds per byte; unset until measured.
    costs: OnceLock<Vec<u64>>,
    /// Keys in a cipher engine, if the device has one.
    engine: Option<EngineKeys>,
}

/// Content type of a target, with its key.
#[non_exhaustive]
#[derive(Clone, Copy, Debug)]
pub enum Content<'a> {
    /// Encrypts data with this key; the segment names the cipher.
    Crypt(&'a VolumeKey),
    /// Stores data unencrypted.
    Linear,
    /// Reads as zeroes and discards writes.
    Zero,
    /// Fails every read and write.
    Error,
}

/// One line of a table.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// Start, length and data unit size.
    pub segment: &'a Segment,
    /// Content type.
    pub content: Content<'a>,
    /// Index of the device's store; ignored if nothing is stored.
    pub store: usize,
}

/// Reason why a table is not valid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// The cipher refused its specification or its key.
    #[error(transparent)]
    Cipher(#[from] CipherError),
    /// The table is empty, or its segments leave a gap or overlap.
    #[error("segment {0} does not start where the one before it ends")]
    Gap(usize),
    /// An open-ended segment that is not the last.
    #[error("segment {0} has no end but is not the last")]
    OpenEnd(usize),
    /// The segment does not lie within the store.
    #[error("segment {index} needs {needed} bytes of a store of {store_len} bytes: the image is truncated")]
    BeyondStore {
        /// Index of the segment.
        index: usize,
        /// End of the segment in the store, in bytes.
        needed: u64,
        /// Length of the store in bytes.
        store_len: u64,
    },
    /// The store is too short to hold any data.
    #[error("the store of {store_len} bytes ends before the data area at byte {data_offset}")]
    Empty {
        /// Length of the store in bytes.
        store_len: u64,
        /// Start of the data area in bytes.
        data_offset: u64,
    },
    /// The device would end where its last segment begins, or before.
    #[error("segment {0} would be empty")]
    EmptySegment(usize),
    /// The length is not a whole number of data units.
    #[error("the data area of {len} bytes is not a multiple of the data unit of {unit} bytes")]
    UnitLength {
        /// Length of the data area in bytes.
        len: u64,
        /// Bytes in a data unit.
        unit: usize,
    },
    /// An offset in bytes exceeds 64 bits.
    #[error("segment {0} lies beyond 2^64 bytes")]
    Overflow(usize),
    /// The segment is encrypted and names no cipher.
    #[error("segment {0} names no cipher")]
    NoCipher(usize),
    /// The segment names a store that does not exist.
    #[error("segment {0} lies on a store that is not there")]
    NoStore(usize),
    /// The table lies on a zoned store and on another one.
    #[error("segment {0} does not lie on the zoned store: a table on one has no other targets")]
    NotZoned(usize),
    /// On a zoned store, the segment does not begin and end at zone boundaries.
    #[error(
        "segment {index} lies from byte {start} to byte {end} of a store with zones of {zone_len} bytes: it has to begin and \
         end where a zone does"
    )]
    CutsZone {
        /// Index of the segment.
        index: usize,
        /// Start in the store, in bytes.
        start: u64,
        /// End in the store, in bytes.
        end: u64,
        /// Distance between zone starts in bytes.
        zone_len: u64,
    },
    /// On a zoned store, data units do not divide the write granularity, so that a write could end within one.
    #[error(
        "data units of {unit} bytes do not divide the {granularity} bytes in which the zones are written: at most \
         {granularity} go"
    )]
    ZoneUnit {
        /// Bytes in a data unit.
        unit: usize,
        /// Write granularity of sequential zones in bytes.
        granularity: u32,
    },
    /// Holes are to read as zeroes, but those of the store need not.
    #[error("segment {0} lies on a store whose holes need not read as zeroes")]
    Holes(usize),
    /// A side of a device that is re-encrypted stores nothing.
    #[error("side {0} of a re-encryption stores nothing")]
    NotStored(usize),
    /// The boundary of a device that is re-encrypted is beyond its end, or within a data unit.
    #[error("the boundary at byte {boundary} of {len} is not one of data units of {unit} bytes")]
    Boundary {
        /// The boundary in bytes of the device.
        boundary: u64,
        /// Length of the device in bytes.
        len: u64,
        /// Bytes in a data unit.
        unit: usize,
    },
    /// A device on a zoned store, where a write cannot change what is stored, is to be re-encrypted while it is used.
    #[error("a device on a zoned store cannot be re-encrypted while it is used")]
    MovingZones,
    /// A device whose holes read as zeroes is to be re-encrypted while it is used, which would fill them.
    #[error("a device whose holes read as zeroes cannot be re-encrypted while it is used")]
    MovingHoles,
    /// The length of a device that is re-encrypted would change.
    #[error("a device keeps its length while it is re-encrypted")]
    MovingLen,
    /// The number of keys differs from that of the table.
    #[error("{given} keys for a table of {expected}")]
    KeyCount {
        /// Number of keys passed.
        given: usize,
        /// Number of keys of the table.
        expected: usize,
    },
    /// The key is not as long as the one before it.
    #[error("a key of {given} bytes where the one before had {expected}")]
    KeyLength {
        /// Length of the new key in bytes.
        given: usize,
        /// Length of the old key in bytes.
        expected: usize,
    },
}

impl CryptMapping {
    /// Creates a crypt mapping of `segments` with one `key`, on a store of `store_len` bytes.
    ///
    /// # Errors
    ///
    /// The segments leave a gap or do not fit the store or their data units, or the key does not fit a cipher.
    pub fn new(segments: &[Segment], key: &VolumeKey, store_len: u64) -> Result<Self, TargetError> {
        let content = |s: &Segment| if s.cipher.is_some() { Content::Crypt(key) } else { Content::Linear };
        let lines: Vec<Target<'_>> =
            segments.iter().map(|segment| Target { segment, content: content(segment), store: 0 }).collect();
        Self::stacked(&lines, &[store_len])
    }

    /// Creates a crypt mapping of several targets, in order and without gaps, on stores of these lengths in bytes.
    /// Checks everything, so that [`Mapping::locate`] has to compare with the length only.
    ///
    /// # Errors
    ///
    /// As [`CryptMapping::new`], and for a target on a store that does not exist.
    pub fn stacked(lines: &[Target<'_>], store_lens: &[u64]) -> Result<Self, TargetError> {
        let mut table = Table::default();
        let mut next = 0;
        for (index, line) in lines.iter().enumerate() {
            let part = map_target(index, line, store_lens)?;
            if part.start != next {
                return Err(TargetError::Gap(index));
            }
            if line.segment.sectors.is_none() && index + 1 != lines.len() {
                return Err(TargetError::OpenEnd(index));
            }
            next = part.start.checked_add(part.len).ok_or(TargetError::Overflow(index))?;
            table.add(index, line, part)?;
        }
        if lines.is_empty() {
            return Err(TargetError::Gap(0));
        }
        Ok(table.mapped(next, None))
    }

    /// Creates a mapping that stores everything unencrypted (`--type raw`).
    pub fn raw(len: u64) -> Self {
        let part = MappedTarget {
            start: 0,
            len,
            store: 0,
            store_offset: 0,
            open_end: true,
            iv_offset: 0,
            unit: DataUnitSize::SECTOR,
            large_iv: false,
            kind: TargetType::Linear,
            hole_len: 0,
            crypt: None,
        };
        let mapping = Arc::new(Mapping { targets: vec![part], len, generation: 0, boundary: None });
        Self { mapping, ciphers: vec![None], costs: OnceLock::new(), engine: None }
    }

    /// Creates a crypt mapping of `mapping` with other keys, as many as before and each as long as the one it replaces.
    pub(crate) fn with_keys(mapping: &Arc<Mapping>, keys: &[&VolumeKey]) -> Result<Self, TargetError> {
        if keys.len() != mapping.keys() {
            return Err(TargetError::KeyCount { given: keys.len(), expected: mapping.keys() });
        }
        let mut ciphers = Vec::with_capacity(mapping.targets.len());
        for part in &mapping.targets {
            ciphers.push(match &part.crypt {
                None => None,
                Some(crypt) => {
                    let key = keys[crypt.key];
                    if key.len() != crypt.key_len {
                        return Err(TargetError::KeyLength { given: key.len(), expected: crypt.key_len });
                    }
                    Some(new_sector_cipher(&crypt.spec, key.as_bytes(), part.unit, part.large_iv.into())?)
                }
            });
        }
        scrub_stack::<TURN_STACK>();
        Ok(Self { mapping: Arc::clone(mapping), ciphers, costs: OnceLock::new(), engine: None })
    }

    /// Passes the keys to the engine as well, as many as the table uses.
    pub(crate) fn with_engine(mut self, slot: &EngineSlot, keys: &[&VolumeKey]) -> Self {
        self.engine = Some(slot.open_keys(&self.mapping, keys));
        self
    }

    /// Returns the keys in the cipher engine if the cipher work of this range is for it.
    pub(crate) fn engine_for(&self, range: &MappedRange) -> Option<&EngineKeys> {
        // An engine knows no holes.
        self.engine.as_ref().filter(|keys| keys.is_for(range) && !self.mapping.has_zero_holes_in(range))
    }

    /// Returns `mapping` with a last segment without an end extended to the new end of its store, in whole data units.
    /// The sides of a device that is re-encrypted have an end.
    pub(crate) fn grown(mapping: &Mapping, store_lens: &[u64]) -> Mapping {
        let mut grown = mapping.clone();
        if let Some(last) = grown.targets.last_mut().filter(|part| part.open_end)
            && let Some(store_len) = store_lens.get(last.store as usize)
        {
            let room = store_len.saturating_sub(last.store_offset);
            last.len = last.len.max(room / last.unit_len() as u64 * last.unit_len() as u64);
            grown.len = last.start.saturating_add(last.len);
        }
        grown
    }

    /// Returns `mapping` with the end of its last segment moved so that the device has `len` bytes.
    ///
    /// # Errors
    ///
    /// [`TargetError`] if that segment would be empty or end within a data unit, or if the device is re-encrypted.
    /// Whether the segment fits its store is not checked.
    pub(crate) fn resized(mapping: &Mapping, len: u64) -> Result<Mapping, TargetError> {
        if mapping.boundary.is_some() {
            return Err(TargetError::MovingLen);
        }
        let mut resized = mapping.clone();
        let Some(last) = resized.targets.last_mut() else { return Err(TargetError::Gap(0)) };
        last.len = len.saturating_sub(last.start);
        resized.len = len;
        if last.len == 0 {
            return Err(TargetError::EmptySegment(mapping.targets.len() - 1));
        }
        if !last.len.is_multiple_of((last.unit_len() as u64).max(SECTOR_SIZE)) {
            return Err(TargetError::UnitLength { len: last.len, unit: last.unit_len() });
        }
        Ok(resized)
    }

    /// Replaces the mapping by one of the same segments with other lengths.
    pub(crate) fn with_lengths(mut self, mapping: Mapping) -> Self {
        self.mapping = Arc::new(mapping);
        self
    }

    /// Replaces the mapping by one with holes that read as zeroes.
    pub(crate) fn with_zero_holes(self, stores: &[Arc<dyn BackingStore>]) -> Result<Self, TargetError> {
        if self.mapping.boundary.is_some() {
            return Err(TargetError::MovingHoles);
        }
        let mapping = self.mapping.with_zero_holes(stores).map_err(TargetError::Holes)?;
        Ok(self.with_lengths(mapping))
    }

    /// Sets the generation.
    pub(crate) fn of_generation(mut self, generation: u32) -> Self {
        Arc::make_mut(&mut self.mapping).generation = generation;
        self
    }

    /// Measures the ciphers on this CPU, for [`CryptMapping::cipher_time`].
    pub(crate) fn measure(&self) {
        let cost = |cipher: &Option<Box<dyn SectorCipher>>| cipher.as_deref().map_or(0, picoseconds_per_byte);
        self.costs.get_or_init(|| self.ciphers.iter().map(cost).collect());
        scrub_stack::<CALL_STACK>();
    }

    /// Returns an estimate of the cipher time of `mapped` on one thread; zero before the measurement.
    pub(crate) fn cipher_time(&self, mapped: &MappedRange) -> Duration {
        let cost = self.costs.get().map_or(0, |costs| costs[mapped.target as usize]);
        Duration::from_nanos((mapped.aligned_len as u64).saturating_mul(cost) / 1000)
    }

    /// Returns the mapping without the ciphers.
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// Encrypts the aligned range of `mapped` in place with one cipher call.
    pub fn encrypt(&self, mapped: &MappedRange, mut buffer: Buffer) -> Ciphertext {
        if let Some(cipher) = self.cipher(mapped) {
            cipher.encrypt(mapped.first, InOut::InPlace(&mut buffer.data_mut()[..mapped.aligned_len]));
        }
        Ciphertext::encrypted(buffer)
    }

    /// Encrypts a whole number of data units from `plain` into `buffer`. The cipher call also copies.
    pub fn encrypt_from(&self, mapped: &MappedRange, plain: &[u8], mut buffer: Buffer) -> Ciphertext {
        let into = &mut buffer.data_mut()[..mapped.aligned_len];
        match self.cipher(mapped) {
            Some(cipher) => cipher.encrypt(mapped.first, InOut::copy(plain, into)),
            None => into.copy_from_slice(plain),
        }
        Ciphertext::encrypted(buffer)
    }

    /// Encrypts a whole number of data units from `plain` into `buffer`, as [`CryptMapping::encrypt_from`] does.
    pub(crate) fn encrypt_pieces(
        &self,
        mapped: &MappedRange,
        plain: SourcePieces<'_>,
        mut buffer: Buffer,
    ) -> Ciphertext {
        if let Some(plain) = plain.contiguous() {
            return self.encrypt_from(mapped, plain, buffer);
        }
        let dst = &mut buffer.data_mut()[..mapped.aligned_len];
        match self.cipher(mapped) {
            Some(cipher) => {
                let (src, skip) = plain.parts();
                cipher.encrypt_scattered(mapped.first, ScatterList::Gather { src, skip, dst });
            }
            None => plain.copy_to(dst),
        }
        Ciphertext::encrypted(buffer)
    }

    /// Decrypts a whole number of data units from `data` into `into`. The cipher call also copies. What `data` contains
    /// afterwards is undefined.
    pub(crate) fn decrypt_pieces(&self, mapped: &MappedRange, data: &mut [u8], mut into: DestinationPieces<'_, '_>) {
        let Some(cipher) = self.cipher(mapped) else { return into.copy_from(data) };
        if self.mapping.has_zero_holes_in(mapped) {
            self.decrypt_in_place(mapped, 0, data);
            return into.copy_from(data);
        }
        if let Some(into) = into.contiguous() {
            return cipher.decrypt(mapped.first, InOut::copy(data, into));
        }
        let (dst, skip) = into.parts();
        cipher.decrypt_scattered(mapped.first, ScatterList::Scatter { src: data, dst, skip });
    }

    /// Decrypts the aligned range of `mapped` in place with one cipher call.
    pub fn decrypt(&self, mapped: &MappedRange, from: Ciphertext) -> Buffer {
        let mut buffer = from.into_buffer();
        self.decrypt_in_place(mapped, 0, &mut buffer.data_mut()[..mapped.aligned_len]);
        buffer
    }

    /// Decrypts in place the data units that start `byte` bytes into the aligned range of `mapped`. Holes that read as
    /// zeroes are zeroes already.
    pub(crate) fn decrypt_in_place(&self, mapped: &MappedRange, byte: usize, data: &mut [u8]) {
        let Some(cipher) = self.cipher(mapped) else { return };
        if !self.mapping.has_zero_holes_in(mapped) {
            return cipher.decrypt(self.iv_number(mapped, byte), InOut::InPlace(data));
        }
        holes::for_each_run(data, mapped.unit_len, |at, run| {
            cipher.decrypt(self.iv_number(mapped, byte + at), InOut::InPlace(run));
        });
    }

    /// Encrypts in place the data units that start `byte` bytes into the aligned range of `mapped`.
    pub(crate) fn encrypt_in_place(&self, mapped: &MappedRange, byte: usize, data: &mut [u8]) {
        if let Some(cipher) = self.cipher(mapped) {
            cipher.encrypt(self.iv_number(mapped, byte), InOut::InPlace(data));
        }
    }

    /// Returns the IV number of the data unit that starts `byte` bytes into the aligned range of `mapped`.
    fn iv_number(&self, mapped: &MappedRange, byte: usize) -> IvNumber {
        let part = &self.mapping.targets[mapped.target as usize];
        let step = if part.large_iv { 1 } else { part.unit.sectors() };
        let units = (byte / mapped.unit_len) as u64;
        IvNumber(mapped.first.0.wrapping_add(units.wrapping_mul(step)))
    }

    fn cipher(&self, mapped: &MappedRange) -> Option<&dyn SectorCipher> {
        assert_eq!(mapped.generation, self.mapping.generation, "a range mapped by another table");
        self.ciphers[mapped.target as usize].as_deref()
    }
}

impl Deref for CryptMapping {
    type Target = Mapping;

    fn deref(&self) -> &Mapping {
        &self.mapping
    }
}

/// Returns the cost of decryption: the best of three runs, since other load on the CPU only slows a run down.
fn picoseconds_per_byte(cipher: &dyn SectorCipher) -> u64 {
    // A multiple of every data unit size.
    const LEN: usize = 64 << 10;
    let mut data = vec![0; LEN];
    let mut once = || {
        let start = Instant::now();
        cipher.decrypt(IvNumber(0), InOut::InPlace(&mut data));
        start.elapsed()
    };
    let best = (0..3).map(|_| once()).min().unwrap_or_default();
    best.as_nanos() as u64 * 1000 / LEN as u64
}

/// The targets of a table and their ciphers, in the making.
#[derive(Default)]
struct Table<'a> {
    targets: Vec<MappedTarget>,
    ciphers: Vec<Option<Box<dyn SectorCipher>>>,
    /// The keys in the order of first use.
    keys: Vec<&'a VolumeKey>,
}

impl<'a> Table<'a> {
    fn add(&mut self, index: usize, line: &Target<'a>, mut part: MappedTarget) -> Result<(), TargetError> {
        let Self { targets, ciphers, keys } = self;
        ciphers.push(match line.content {
            Content::Crypt(key) => {
                let spec = line.segment.cipher.as_ref().ok_or(TargetError::NoCipher(index))?;
                let number = keys.iter().position(|k| std::ptr::eq(*k, key)).unwrap_or_else(|| {
                    keys.push(key);
                    keys.len() - 1
                });
                part.crypt = Some(Crypt { spec: *spec, key_len: key.len(), key: number });
                Some(new_sector_cipher(spec, key.as_bytes(), part.unit, part.large_iv.into())?)
            }
            _ => None,
        });
        if !part.len.is_multiple_of(part.unit_len() as u64) {
            return Err(TargetError::UnitLength { len: part.len, unit: part.unit_len() });
        }
        targets.push(part);
        Ok(())
    }

    fn mapped(self, len: u64, boundary: Option<Arc<Boundary>>) -> CryptMapping {
        let mapping = Arc::new(Mapping { targets: self.targets, len, generation: 0, boundary });
        scrub_stack::<TURN_STACK>();
        CryptMapping { mapping, ciphers: self.ciphers, costs: OnceLock::new(), engine: None }
    }
}

fn map_target(index: usize, line: &Target<'_>, store_lens: &[u64]) -> Result<MappedTarget, TargetError> {
    let Target { segment, content, store } = line;
    let bytes = |sectors: u64| sectors.checked_mul(SECTOR_SIZE).ok_or(TargetError::Overflow(index));
    let kind = match content {
        Content::Crypt(_) => TargetType::Crypt,
        Content::Linear => TargetType::Linear,
        Content::Zero => TargetType::Zero,
        Content::Error => TargetType::Error,
    };
    let stored = kind.is_stored();
    let store_offset = if stored { bytes(segment.data_offset.0)? } else { 0 };
    let store_len = match store_lens.get(*store) {
        _ if !stored => 0,
        Some(len) => *len,
        None => return Err(TargetError::NoStore(index)),
    };
    let len = match segment.sectors {
        Some(sectors) => bytes(sectors)?,
        None if !stored => return Err(TargetError::OpenEnd(index)),
        None if store_len <= store_offset => {
            return Err(TargetError::Empty { store_len, data_offset: store_offset });
        }
        None => store_len - store_offset,
    };
    let needed = store_offset.checked_add(len).ok_or(TargetError::Overflow(index))?;
    if stored && needed > store_len {
        return Err(TargetError::BeyondStore { index, needed, store_len });
    }
    Ok(MappedTarget {
        start: bytes(segment.start.0)?,
        len,
        store: if stored { *store as u32 } else { 0 },
        store_offset,
        open_end: segment.sectors.is_none(),
        iv_offset: segment.iv_offset.0,
        unit: segment.unit,
        large_iv: segment.large_iv,
        kind,
        hole_len: 0,
        crypt: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::RequestError;
    use inlock_cipher::{CipherSpec, Sector};

    fn segment(start: u64, sectors: Option<u64>, data_offset: u64, unit: u32) -> Segment {
        let mut segment = Segment::whole(Some(CipherSpec::AES_XTS_PLAIN64), DataUnitSize::new(unit).unwrap());
        (segment.start, segment.sectors, segment.data_offset) = (Sector(start), sectors, Sector(data_offset));
        segment.iv_offset = Sector(8);
        segment
    }

    #[test]
    fn aligned_range_is_the_whole_units_around_the_bytes() {
        let key = VolumeKey::new(&[7; 64]);
        let target = CryptMapping::new(&[segment(0, None, 16, 4096)], &key, 8192 + 65536).unwrap();
        assert_eq!(target.len(), 65536);
        let e = target.locate(5000, 10, 1 << 20).unwrap();
        assert_eq!((e.store_offset, e.aligned_len, e.head_len, e.len), (8192 + 4096, 4096, 904, 10));
        assert_eq!(e.first, IvNumber(16), "sector 8 of the segment plus an IV offset of 8");
        let e = target.locate(4095, 2, 1 << 20).unwrap();
        assert_eq!((e.aligned_len, e.head_len), (8192, 4095));
        let e = target.locate(0, 65536, 8192).unwrap();
        assert_eq!((e.aligned_len, e.len, e.is_partial()), (8192, 8192, false));
        let e = target.locate(1, 65535, 8192).unwrap();
        assert_eq!((e.aligned_len, e.len), (8192, 8191));
        for (offset, len) in [(65536, 1), (0, 65537), (u64::MAX, 2), (0, 0), (65535, 2)] {
            assert_eq!(target.locate(offset, len, 1 << 20), Err(RequestError::OutOfRange), "{offset}+{len}");
        }
    }

    #[test]
    fn large_ivs_wrap_with_the_sector_number() {
        let key = VolumeKey::new(&[7; 64]);
        let mut large = segment(0, None, 0, 4096);
        (large.iv_offset, large.large_iv) = (Sector(u64::MAX - 15), true);
        let target = CryptMapping::new(&[large], &key, 65536).unwrap();
        let places = [(0, 8192), (8192, 8192), (100, 8092), (4096, 4096), (8000, 192)].map(|(offset, longest)| {
            let e = target.locate(offset, 16384, 1 << 20).unwrap();
            assert!(offset >= 8192 || e.len == longest, "from {offset}: {}", e.len);
            e.first
        });
        let last = (1 << 61) - 1;
        assert_eq!(places.map(|first| first.0), [last - 1, 0, last - 1, last, last]);
    }

    #[test]
    fn range_over_two_segments_is_split_at_the_boundary() {
        let key = VolumeKey::new(&[7; 64]);
        let mut linear = segment(0, Some(8), 0, 512);
        linear.cipher = None;
        let target = CryptMapping::new(&[linear, segment(8, None, 100, 512)], &key, 512 * 108).unwrap();
        let e = target.locate(4000, 200, 1 << 20).unwrap();
        assert_eq!((e.len, e.unit_len, e.store_offset), (96, 1, 4000));
        let e = target.locate(4096, 104, 1 << 20).unwrap();
        assert_eq!((e.len, e.unit_len, e.store_offset, e.aligned_len), (104, 512, 51200, 512));
    }

    #[test]
    fn segments_that_do_not_fit_are_refused() {
        let key = VolumeKey::new(&[7; 64]);
        let new = |s: &[Segment], len| CryptMapping::new(s, &key, len).map(|t| t.len());
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
