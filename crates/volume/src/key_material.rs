//! Key material in a keyslot area: split, encrypted under a key from a passphrase, and back. Used by LUKS1 and LUKS2.

use crate::af;
use crate::error::UnlockError;
use crate::header_device::HeaderDevice;
use crate::pbkdf::{Hash, KdfError, RandomError, random_bytes};
use inlock_cipher::{
    CipherError, CipherSpec, DataUnitSize, InOut, IvNumber, IvNumbering, VolumeKey, new_sector_cipher,
};
use zeroize::Zeroizing;

/// The longest key in a LUKS header, in bytes.
pub(crate) const MAX_KEY_LEN: usize = 512;

/// Anti-forensic stripes of every key; no other number is used in practice.
pub(crate) const STRIPES: u32 = 4000;

/// Location and protection of the key material of a keyslot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyMaterial {
    /// Start on the header device, in bytes.
    pub(crate) offset: u64,
    /// Length of the key that it holds, in bytes.
    pub(crate) key_len: usize,
    /// Anti-forensic stripes.
    pub(crate) stripes: u32,
    /// Hash of the anti-forensic splitter.
    pub(crate) hash: Hash,
    /// The cipher; its units are sectors of 512 bytes and IVs count from 0.
    pub(crate) cipher: CipherSpec,
}

/// Returns the length of key material in bytes, rounded up to whole sectors.
pub(crate) fn material_len(key_len: u64, stripes: u64) -> Option<u64> {
    key_len.checked_mul(stripes)?.checked_next_multiple_of(512)
}

/// Returns the length of the area that a key of this length needs, in bytes.
pub(crate) fn needed_area(key_len: u32) -> u64 {
    // The product of two 32-bit numbers fits.
    material_len(key_len.into(), STRIPES.into()).unwrap_or(u64::MAX)
}

impl KeyMaterial {
    /// Returns the length of the material in bytes. It is bounded, since callers have checked key length and stripes
    /// against the area.
    fn len(&self) -> usize {
        (self.key_len * self.stripes as usize).next_multiple_of(512)
    }

    /// Reads and decrypts the material with `area_key`, and merges it. The result is a candidate until a digest
    /// confirms it.
    pub(crate) fn open(&self, device: &dyn HeaderDevice, area_key: &[u8]) -> Result<VolumeKey, UnlockError> {
        let cipher = new_sector_cipher(&self.cipher, area_key, DataUnitSize::SECTOR, IvNumbering::Sectors)?;
        let mut material = Zeroizing::new(vec![0; self.len()]);
        device.read_exact_at(&mut material, self.offset)?;
        cipher.decrypt(IvNumber(0), InOut::InPlace(&mut material));
        let mut key = VolumeKey::zeroed(self.key_len);
        af::merge(&material[..self.key_len * self.stripes as usize], key.as_mut_bytes(), self.hash);
        Ok(key)
    }

    /// Splits `key` and encrypts it with `area_key`: the bytes to write at [`KeyMaterial::offset`].
    pub(crate) fn seal(&self, key: &VolumeKey, area_key: &[u8]) -> Result<Zeroizing<Vec<u8>>, SealError> {
        let cipher = new_sector_cipher(&self.cipher, area_key, DataUnitSize::SECTOR, IvNumbering::Sectors)?;
        let mut material = random_bytes(self.len())?;
        let split = self.key_len * self.stripes as usize;
        af::split(key.as_bytes(), &mut material[..split], self.hash);
        cipher.encrypt(IvNumber(0), InOut::InPlace(&mut material));
        Ok(material)
    }
}

/// Key material cannot be made.
#[derive(Debug)]
pub(crate) enum SealError {
    Cipher(CipherError),
    Kdf(KdfError),
    Random(RandomError),
}

impl From<CipherError> for SealError {
    fn from(error: CipherError) -> Self {
        Self::Cipher(error)
    }
}

impl From<KdfError> for SealError {
    fn from(error: KdfError) -> Self {
        Self::Kdf(error)
    }
}

impl From<RandomError> for SealError {
    fn from(error: RandomError) -> Self {
        Self::Random(error)
    }
}

impl From<SealError> for crate::error::FormatError {
    fn from(error: SealError) -> Self {
        match error {
            SealError::Cipher(error) => Self::Cipher(error),
            SealError::Kdf(error) => Self::Kdf(error),
            SealError::Random(error) => Self::Random(error),
        }
    }
}
