//! Plain volumes: without a header, all parameters are the caller's, and nothing can be verified.

use crate::pbkdf::Hash;
use crate::secret::Secret;
use inlock_cipher::{Cipher, CipherSpec, DataUnitSize, Sector, Segment, VolumeKey};
use std::fmt;
use std::str::FromStr;

/// A plain volume, as the options of `--type plain` describe it.
#[non_exhaustive]
#[derive(Clone, Copy, Debug)]
pub struct Plain {
    /// The cipher (`--cipher`).
    pub cipher: CipherSpec,
    /// Length of the volume key in bytes (`--key-size` / 8).
    pub key_len: usize,
    /// Conversion of a passphrase to the key (`--hash`); a key file is the key itself.
    pub hash: PlainHash,
    /// Start of the ciphertext on the device (`--offset`).
    pub offset: Sector,
    /// The IV number of the first sector (`--skip`).
    pub skip: Sector,
    /// Length in sectors (`--size`); `None`: to the end of the device.
    pub size: Option<u64>,
    /// Size of a data unit (`--sector-size`), up to 65536.
    pub unit: DataUnitSize,
    /// Whether IVs count data units (`--iv-large-sectors`).
    pub large_iv: bool,
}

impl Default for Plain {
    /// Returns the defaults of cryptsetup since version 2.7: `aes-xts-plain64`, 256 bits, `sha256`, units of 512 bytes.
    fn default() -> Self {
        Self {
            cipher: CipherSpec::AES_XTS_PLAIN64,
            key_len: 32,
            hash: PlainHash { hash: Some(Hash::Sha256), len: None },
            offset: Sector(0),
            skip: Sector(0),
            size: None,
            unit: DataUnitSize::SECTOR,
            large_iv: false,
        }
    }
}

/// Conversion of a passphrase to the key of a plain volume: `sha256`, `sha256:16`, `plain`, `plain:16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainHash {
    /// The hash; `None` (`plain`): the bytes of the passphrase are the key.
    pub hash: Option<Hash>,
    /// Number of bytes of the key that are made; the rest is zero. `None`: all.
    pub len: Option<usize>,
}

impl FromStr for PlainHash {
    type Err = PlainError;

    fn from_str(text: &str) -> Result<Self, PlainError> {
        let (name, len) = match text.split_once(':') {
            Some((name, len)) => {
                let digits = !len.is_empty() && len.bytes().all(|byte| byte.is_ascii_digit());
                let len = if digits { len.parse().ok() } else { None };
                (name, Some(len.ok_or(PlainError::HashLength)?))
            }
            None => (text, None),
        };
        let hash = if name == "plain" { None } else { Some(name.parse().map_err(|_| PlainError::UnknownHash)?) };
        Ok(Self { hash, len })
    }
}

/// Displays the form that it is parsed from.
impl fmt::Display for PlainHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.hash {
            Some(hash) => write!(f, "{hash}")?,
            None => f.write_str("plain")?,
        }
        self.len.map_or(Ok(()), |len| write!(f, ":{len}"))
    }
}

/// Options of a plain volume that do not fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlainError {
    /// The hash is not known.
    #[error("hash is not supported")]
    UnknownHash,
    /// The length after the hash's name is not a number, or exceeds the key.
    #[error("hash length is not a number from 0 to the length of the key")]
    HashLength,
    /// The cipher does not accept keys of this length.
    #[error("{cipher} does not take a key of {} bits", key_len * 8)]
    KeyLength {
        /// The cipher.
        cipher: CipherSpec,
        /// Length of the key, in bytes.
        key_len: usize,
    },
    /// The key file, or the passphrase under `plain`, has fewer bytes than the key.
    #[error("{len} bytes are too few for a key of {needed} bytes")]
    TooShort {
        /// Number of bytes given.
        len: usize,
        /// Number of bytes of the key.
        needed: usize,
    },
    /// An offset or a size is not a multiple of the data unit.
    #[error("{0} is not a multiple of the sector size")]
    Misaligned(&'static str),
    /// The volume ends beyond the device.
    #[error("offset and size exceed the device")]
    PastEnd,
}

impl Plain {
    /// Returns the key of a passphrase. Nothing can tell whether it is the right one.
    ///
    /// # Errors
    ///
    /// Fails if the cipher does not accept the length of the key, or if the passphrase is too short to be the key
    /// itself.
    pub fn key_from_passphrase(&self, passphrase: &Secret) -> Result<VolumeKey, PlainError> {
        self.check_key_len()?;
        let hashed = self.hash.len.unwrap_or(self.key_len);
        if hashed > self.key_len {
            return Err(PlainError::HashLength);
        }
        let mut key = VolumeKey::zeroed(self.key_len);
        let out = &mut key.as_mut_bytes()[..hashed];
        match self.hash.hash {
            Some(hash) => stretch(hash, passphrase.as_bytes(), out),
            None => out.copy_from_slice(first(passphrase.as_bytes(), hashed)?),
        }
        Ok(key)
    }

    /// Returns the key in a key file: its first [`Plain::key_len`] bytes.
    ///
    /// # Errors
    ///
    /// Fails if the cipher does not accept the length of the key, or if the file has fewer bytes.
    pub fn key_from_file(&self, content: &Secret) -> Result<VolumeKey, PlainError> {
        self.check_key_len()?;
        Ok(VolumeKey::new(first(content.as_bytes(), self.key_len)?))
    }

    /// Returns the only segment, on a device of `device_len` bytes. Without a size it has as many whole data units as
    /// fit.
    ///
    /// # Errors
    ///
    /// Fails if offset or size are not multiples of the data unit, or exceed the device.
    pub fn segments(&self, device_len: u64) -> Result<Vec<Segment>, PlainError> {
        let unit = self.unit.sectors();
        for (what, sectors) in [("skip", self.skip.0), ("size", self.size.unwrap_or(0))] {
            if !sectors.is_multiple_of(unit) {
                return Err(PlainError::Misaligned(what));
            }
        }
        let behind = (device_len / 512).checked_sub(self.offset.0).ok_or(PlainError::PastEnd)?;
        let sectors = self.size.unwrap_or(behind / unit * unit);
        if sectors > behind || self.size == Some(0) {
            return Err(PlainError::PastEnd);
        }
        let mut segment = Segment::whole(Some(self.cipher), self.unit);
        segment.sectors = Some(sectors);
        segment.data_offset = self.offset;
        segment.iv_offset = self.skip;
        segment.large_iv = self.large_iv;
        Ok(vec![segment])
    }

    fn check_key_len(&self) -> Result<(), PlainError> {
        let fits = self.cipher.can_use_key_len(self.key_len) || self.cipher.cipher == Cipher::Null;
        if fits && self.key_len <= VolumeKey::MAX_LEN {
            return Ok(());
        }
        Err(PlainError::KeyLength { cipher: self.cipher, key_len: self.key_len })
    }
}

fn first(bytes: &[u8], needed: usize) -> Result<&[u8], PlainError> {
    bytes.get(..needed).ok_or(PlainError::TooShort { len: bytes.len(), needed })
}

/// Fills the key with digests of the passphrase, prefixed by 0, 1, 2 ... letters `A`.
fn stretch(hash: Hash, passphrase: &[u8], key: &mut [u8]) {
    let letters = [b'A'; VolumeKey::MAX_LEN];
    for (round, chunk) in key.chunks_mut(hash.len()).enumerate() {
        let digest = hash.digest(&[&letters[..round], passphrase]);
        let len = chunk.len();
        chunk.copy_from_slice(&digest[..len]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn key(hash: &str, key_len: usize, passphrase: &str) -> Result<String, PlainError> {
        let plain = Plain { hash: hash.parse()?, key_len, ..Plain::default() };
        plain.key_from_passphrase(&Secret::new(passphrase.into())).map(|key| hex(key.as_bytes()))
    }

    /// The digests are those that `sha256sum`, `sha1sum` and `openssl ripemd160` print for `abc`, `Aabc`, `AAabc` ...
    #[test]
    fn passphrase_is_stretched_round_by_round() {
        let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(key("sha256", 32, "abc").unwrap(), sha256);
        assert!(key("sha256", 64, "abc").unwrap().starts_with(sha256));
        let second = key("sha256", 32, "Aabc").unwrap();
        assert_eq!(key("sha256", 64, "abc").unwrap()[64..], second);
        let sha1 = "a9993e364706816aba3e25717850c26c9cd0d89d";
        assert_eq!(key("sha1", 32, "abc").unwrap()[..40], *sha1);
        assert_eq!(key("sha1", 32, "abc").unwrap()[40..], key("sha1", 32, "Aabc").unwrap()[..24]);
        assert_eq!(key("ripemd160", 32, "abc").unwrap()[..40], *"8eb208f7e05d987a9b044a8e98c6b087f15a0bfc");
        assert_eq!(key("sha256:16", 32, "abc").unwrap(), format!("{}{}", &sha256[..32], "0".repeat(32)));
        assert_eq!(key("plain:4", 32, "abcdefgh").unwrap(), format!("61626364{}", "0".repeat(56)));
    }

    #[test]
    fn options_that_do_not_go_together_are_refused() {
        assert_eq!(key("sha256:33", 32, "abc"), Err(PlainError::HashLength));
        assert_eq!(key("sha256:+1", 32, "abc"), Err(PlainError::HashLength));
        assert_eq!(key("sha256:", 32, "abc"), Err(PlainError::HashLength));
        assert_eq!(key("md4", 32, "abc"), Err(PlainError::UnknownHash));
        assert_eq!(key("plain", 32, "abc"), Err(PlainError::TooShort { len: 3, needed: 32 }));
        assert!(matches!(key("sha256", 33, "abc"), Err(PlainError::KeyLength { key_len: 33, .. })));
        let file = Plain::default().key_from_file(&Secret::new(vec![7; 31]));
        assert_eq!(file.err(), Some(PlainError::TooShort { len: 31, needed: 32 }));
        assert_eq!(Plain::default().key_from_file(&Secret::new(vec![7; 40])).unwrap().as_bytes(), [7; 32]);
    }

    #[test]
    fn segments_stay_inside_the_device() {
        let plain = Plain { unit: DataUnitSize::new(65536).unwrap(), offset: Sector(8), ..Plain::default() };
        assert_eq!(plain.segments(1 << 20).unwrap()[0].sectors, Some(1920), "whole units only");
        assert_eq!(plain.segments(512), Err(PlainError::PastEnd));
        let sized = |size, skip| Plain { size: Some(size), skip: Sector(skip), ..plain }.segments(1 << 20);
        assert_eq!(sized(128, 256).unwrap()[0].iv_offset, Sector(256));
        assert_eq!(sized(127, 0), Err(PlainError::Misaligned("size")));
        assert_eq!(sized(128, 1), Err(PlainError::Misaligned("skip")));
        assert_eq!(sized(2048, 0), Err(PlainError::PastEnd));
        assert_eq!(sized(u64::MAX - 127, 0), Err(PlainError::PastEnd));
    }
}
