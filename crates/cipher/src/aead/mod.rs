//! Authenticated encryption of data units, as dm-crypt does above a device with metadata for each unit.
//!
//! This file has what all algorithms share: tuples, IVs, additional data, and the comparison of tags. An algorithm is a
//! [`Sealer`] in a file of its own: it works on a batch of units with finished IVs, and computes whole tags.

mod aegis;
mod authenc;
mod bad_units;
mod ccm;
mod chacha20_poly1305;
mod gcm;
#[cfg(test)]
mod tests;

pub use bad_units::BadUnits;

use crate::aes::{AdditionalBlocks, AesKernel, MAX_BATCH};
use crate::block_cipher::Block;
use crate::iv::{IvGenerator, IvKeys};
use crate::unit::MAX_AEAD_UNITS;
use crate::{AeadAlgorithm, AeadError, AeadIv, AeadSpec, DataUnitSize, InOut, IvNumbering, Sector};
use subtle::ConstantTimeEq;

/// Room for the longest tag.
type Tag = [u8; 64];

/// The additional data of a unit: its sector, LE64, and its IV. The second half is zero after an IV of 8 bytes.
type AdditionalData = [u8; 24];

/// The units of one call of a [`Sealer`], at most [`MAX_BATCH`].
struct Units<'a> {
    /// Size of a data unit.
    unit: DataUnitSize,
    /// Sector of the first unit.
    first: Sector,
    /// One for each unit; zero after the algorithm's IV length.
    ivs: &'a [Block],
}

impl Units<'_> {
    /// Returns the additional data of unit `at` as two blocks. The bytes after the IV are zero.
    fn additional_blocks(&self, at: usize) -> AdditionalBlocks {
        let mut blocks = [[0; 16]; 2];
        blocks.as_flattened_mut()[..24].copy_from_slice(&self.additional_data(at));
        blocks
    }

    /// Returns the additional data of unit `at`, of which the algorithm uses 8 bytes and as many as an IV has.
    fn additional_data(&self, at: usize) -> AdditionalData {
        let mut data = [0; 24];
        let sector = self.first.0.wrapping_add(at as u64 * self.unit.sectors());
        data[..8].copy_from_slice(&sector.to_le_bytes());
        data[8..].copy_from_slice(&self.ivs[at]);
        data
    }
}

/// An algorithm of authenticated encryption under a key.
trait Sealer: Send + Sync {
    /// Encrypts every unit of `data` and writes the tag of each to the start of one of `tags`.
    fn seal(&self, units: &Units<'_>, data: InOut<'_>, tags: &mut [Tag]);
    /// Decrypts every unit of `data` and writes the tag that its ciphertext must have to one of `tags`.
    fn open(&self, units: &Units<'_>, data: InOut<'_>, tags: &mut [Tag]);
    /// Returns the name of the kernel, as [`SectorCipher::kernel`](crate::SectorCipher::kernel).
    fn kernel(&self) -> &'static str;
}

/// An authenticated cipher over runs of whole data units, each of which has a tuple of metadata: the tag, the IV if it
/// is random, and zeroes up to [`Aead::tuple_len`].
///
/// ```
/// use inlock_cipher::{Aead, AeadSpec, DataUnitSize, InOut, IvNumbering, Sector};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let spec: AeadSpec = "capi:gcm(aes)-random".parse()?;
/// let aead = Aead::new(&spec, &[7; 32], DataUnitSize::LUKS_MAX, IvNumbering::Sectors, Sector(0))?;
///
/// let mut data = [0; 8192]; // two data units
/// let mut tuples = vec![0; 2 * aead.tuple_len()];
/// aead.seal(Sector(2048), InOut::InPlace(&mut data), &mut tuples)?;
/// data[4096] ^= 1;
/// let bad = aead.open(Sector(2048), InOut::InPlace(&mut data), &tuples)?;
/// assert_eq!(bad.iter().collect::<Vec<_>>(), [1]);
/// assert_eq!(data, [0; 8192]); // the first unit was zeroes, the second one is wiped
/// # Ok(())
/// # }
/// ```
pub struct Aead {
    spec: AeadSpec,
    unit: DataUnitSize,
    tuple_len: usize,
    sealer: Box<dyn Sealer>,
    /// Makes the IVs, unless they are random.
    ivs: Option<NumberedIvs>,
}

/// IVs made of sector numbers.
struct NumberedIvs {
    generator: IvGenerator,
    offset: Sector,
    numbering: IvNumbering,
}

impl Aead {
    /// Maximum number of units in a call.
    pub const MAX_UNITS: usize = MAX_AEAD_UNITS;

    /// Makes the cipher of `spec` under `key`, on the fastest kernel that this CPU has and `INLOCK_CPU` allows.
    /// `iv_offset` and `numbering` are those of IVs made of sector numbers; random ones do not depend on them.
    ///
    /// # Errors
    ///
    /// Fails if the specification does not accept the key's length, if data units are larger than 4096 bytes, or if
    /// `INLOCK_CPU` has an unknown value.
    pub fn new(
        spec: &AeadSpec,
        key: &[u8],
        unit: DataUnitSize,
        numbering: IvNumbering,
        iv_offset: Sector,
    ) -> Result<Self, AeadError> {
        Self::new_on(AesKernel::best()?, spec, key, unit, numbering, iv_offset)
    }

    /// Makes the cipher on `kernel`, as one of [`AesKernel::available`]: for tests and benchmarks.
    ///
    /// # Errors
    ///
    /// As [`Aead::new`], except for `INLOCK_CPU`.
    pub fn new_on(
        kernel: AesKernel,
        spec: &AeadSpec,
        key: &[u8],
        unit: DataUnitSize,
        numbering: IvNumbering,
        iv_offset: Sector,
    ) -> Result<Self, AeadError> {
        if !spec.can_use_key_len(key.len()) {
            return Err(AeadError::KeyLength { spec: *spec, len: key.len() });
        }
        if unit > DataUnitSize::LUKS_MAX {
            return Err(AeadError::Unit { unit });
        }
        let sealer: Box<dyn Sealer> = match spec.algorithm() {
            AeadAlgorithm::Gcm => gcm::new(kernel, key, unit),
            AeadAlgorithm::Ccm => Box::new(ccm::Ccm::new(kernel, key, spec.tag_len())),
            AeadAlgorithm::ChaCha20Poly1305 => Box::new(chacha20_poly1305::ChaCha20Poly1305::new(key)),
            AeadAlgorithm::Aegis128 => aegis::new(kernel, key),
            AeadAlgorithm::Authenc { mac, .. } => authenc::new(kernel, spec, mac, key)?,
        };
        let ivs = spec.inner().filter(|_| spec.iv() != AeadIv::Random).map(|inner| {
            // ESSIV hashes the whole key, with that of the MAC.
            let keys = IvKeys { own: key, first: key, extra: &[] };
            let generator = IvGenerator::new(&inner, &keys, unit, numbering, kernel);
            NumberedIvs { generator, offset: iv_offset, numbering }
        });
        Ok(Self { spec: *spec, unit, tuple_len: spec.metadata_len(), sealer, ivs })
    }

    /// Sets the length of a tuple to `len`, for a device with longer ones: the bytes after tag and IV are zero.
    ///
    /// # Errors
    ///
    /// Fails if `len` is shorter than the specification's metadata.
    pub fn with_tuple_len(mut self, len: usize) -> Result<Self, AeadError> {
        if len < self.spec.metadata_len() {
            return Err(AeadError::TupleLength { spec: self.spec, len });
        }
        self.tuple_len = len;
        Ok(self)
    }

    /// Returns the specification.
    pub fn spec(&self) -> &AeadSpec {
        &self.spec
    }

    /// Returns the size of a data unit.
    pub fn unit(&self) -> DataUnitSize {
        self.unit
    }

    /// Returns the length of a unit's tuple in bytes.
    pub fn tuple_len(&self) -> usize {
        self.tuple_len
    }

    /// Returns the name of the kernel of the AES part: `vaes512`, `vaes256`, `aesni` or `portable`.
    pub fn kernel(&self) -> &'static str {
        self.sealer.kernel()
    }

    /// Encrypts every unit of `data`, and writes its tuple to `tuples`. `first` is the sector of the first unit,
    /// relative to the start of the target and without IV offset. Random IVs of all units come from one call of the
    /// system's generator. Allocates nothing; blocks until the system's generator is seeded.
    ///
    /// # Errors
    ///
    /// Fails before it writes a byte if the data is not 1 to [`Aead::MAX_UNITS`] whole units or the tuples do not fit
    /// it. Fails without a change of the destination's data, but perhaps of `tuples`, if the system has no random
    /// bytes.
    pub fn seal(&self, first: Sector, data: InOut<'_>, tuples: &mut [u8]) -> Result<(), AeadError> {
        self.seal_with(first, data, tuples, |ivs| getrandom::fill(ivs).map_err(AeadError::Random))
    }

    fn seal_with(
        &self,
        first: Sector,
        data: InOut<'_>,
        tuples: &mut [u8],
        random: impl FnOnce(&mut [u8]) -> Result<(), AeadError>,
    ) -> Result<(), AeadError> {
        let units = self.check(&data, tuples.len())?;
        let iv_len = self.spec.stored_iv_len();
        if iv_len > 0 {
            // The bytes of all IVs arrive at the front, and each IV moves back to its tuple, the last one first, so
            // that none is overwritten.
            random(&mut tuples[..units * iv_len])?;
            for at in (0..units).rev() {
                tuples.copy_within(at * iv_len..(at + 1) * iv_len, at * self.tuple_len + self.spec.tag_len());
            }
        }
        self.seal_with_stored_ivs(first, data, tuples)
    }

    /// As [`Aead::seal`], but random IVs are in `tuples` already, after the tag: for tests and benchmarks. An IV that
    /// comes twice under a key reveals plaintext and, with GCM and ChaCha20-Poly1305, lets others make tags.
    ///
    /// # Errors
    ///
    /// As [`Aead::seal`].
    pub fn seal_with_stored_ivs(&self, first: Sector, data: InOut<'_>, tuples: &mut [u8]) -> Result<(), AeadError> {
        const SMALL: usize = 8;
        if self.check(&data, tuples.len())? <= SMALL {
            self.seal_batches::<SMALL>(first, data, tuples);
        } else {
            self.seal_batches::<MAX_BATCH>(first, data, tuples);
        }
        Ok(())
    }

    #[inline(always)]
    fn seal_batches<const N: usize>(&self, mut first: Sector, mut left: InOut<'_>, tuples: &mut [u8]) {
        let (mut ivs, mut tags) = ([[0; 16]; N], [[0; 64]; N]);
        for tuples in tuples.chunks_mut(N * self.tuple_len) {
            let count = tuples.len() / self.tuple_len;
            let (data, rest) = left.split_at(count << self.unit.log2());
            self.fill_ivs(first, tuples, &mut ivs[..count]);
            let units = Units { unit: self.unit, first, ivs: &ivs[..count] };
            self.sealer.seal(&units, data, &mut tags[..count]);
            let metadata_len = self.spec.metadata_len();
            for (tuple, tag) in tuples.chunks_exact_mut(self.tuple_len).zip(&tags) {
                let tag_len = self.spec.tag_len();
                tuple[..tag_len].copy_from_slice(&tag[..tag_len]);
                tuple[metadata_len..].fill(0);
            }
            left = rest;
            first = self.advance(first, count);
        }
    }

    /// Verifies and decrypts every unit of `data`. A unit with a wrong tag is zeroes afterwards, and in the result.
    /// `first` is as in [`Aead::seal`]. Bytes of `tuples` after tag and IV are ignored. Allocates nothing.
    ///
    /// # Errors
    ///
    /// Fails before it writes a byte if the data is not 1 to [`Aead::MAX_UNITS`] whole units or the tuples do not fit
    /// it.
    pub fn open(&self, first: Sector, data: InOut<'_>, tuples: &[u8]) -> Result<BadUnits, AeadError> {
        const SMALL: usize = 8;
        let mut bad = BadUnits::default();
        if self.check(&data, tuples.len())? <= SMALL {
            self.open_batches::<SMALL>(first, data, tuples, &mut bad);
        } else {
            self.open_batches::<MAX_BATCH>(first, data, tuples, &mut bad);
        }
        Ok(bad)
    }

    #[inline(always)]
    fn open_batches<const N: usize>(&self, mut first: Sector, mut left: InOut<'_>, tuples: &[u8], bad: &mut BadUnits) {
        let (mut ivs, mut tags) = ([[0; 16]; N], [[0; 64]; N]);
        for (batch, tuples) in tuples.chunks(N * self.tuple_len).enumerate() {
            let count = tuples.len() / self.tuple_len;
            let (mut data, rest) = left.split_at(count << self.unit.log2());
            self.fill_ivs(first, tuples, &mut ivs[..count]);
            let units = Units { unit: self.unit, first, ivs: &ivs[..count] };
            self.sealer.open(&units, data.reborrow(), &mut tags[..count]);
            let mut failed = 0u64;
            for (at, (tuple, tag)) in tuples.chunks_exact(self.tuple_len).zip(&tags).enumerate() {
                let tag_len = self.spec.tag_len();
                let differs = !tuple[..tag_len].ct_eq(&tag[..tag_len]);
                failed |= u64::from(differs.unwrap_u8()) << at;
            }
            zero_failed_units(failed, self.unit, data.destination());
            bad.add(batch * N, failed);
            left = rest;
            first = self.advance(first, count);
        }
    }

    /// Returns the number of units.
    fn check(&self, data: &InOut<'_>, tuples_len: usize) -> Result<usize, AeadError> {
        let (len, unit) = (data.len(), self.unit);
        let same = !matches!(data, InOut::Copy { src, dst } if src.len() != dst.len());
        if !same || len == 0 || !len.is_multiple_of(unit.bytes()) || len / unit.bytes() > Self::MAX_UNITS {
            return Err(AeadError::DataLength { len, unit });
        }
        let units = len / unit.bytes();
        if tuples_len != units * self.tuple_len {
            return Err(AeadError::TuplesLength { len: tuples_len, units, tuple_len: self.tuple_len });
        }
        Ok(units)
    }

    fn advance(&self, first: Sector, units: usize) -> Sector {
        Sector(first.0.wrapping_add(units as u64 * self.unit.sectors()))
    }

    /// Fills `ivs` from the tuples, or from the sector numbers from `first` on.
    #[inline(always)]
    fn fill_ivs(&self, first: Sector, tuples: &[u8], ivs: &mut [Block]) {
        match &self.ivs {
            None => {
                let (start, len) = (self.spec.tag_len(), self.spec.iv_len());
                for (tuple, iv) in tuples.chunks_exact(self.tuple_len).zip(ivs) {
                    iv[..len].copy_from_slice(&tuple[start..start + len]);
                }
            }
            Some(NumberedIvs { generator, offset, numbering }) => {
                let sector = first.0.wrapping_add(offset.0);
                let number = match numbering {
                    IvNumbering::Sectors => sector,
                    IvNumbering::DataUnits => sector / self.unit.sectors(),
                };
                generator.fill(number, ivs);
            }
        }
    }
}

impl std::fmt::Debug for Aead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Aead({}, {:?}, {})", self.spec, self.unit, self.kernel())
    }
}

/// Overwrites the units of which `failed` has a bit. The only branch on the result of a comparison, which is no secret.
#[inline(never)]
fn zero_failed_units(failed: u64, unit: DataUnitSize, data: &mut [u8]) {
    let mut left = failed;
    while left != 0 {
        let start = left.trailing_zeros() as usize * unit.bytes();
        data[start..start + unit.bytes()].fill(0);
        left &= left - 1;
    }
}
