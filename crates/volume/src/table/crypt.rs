//! Lines of the target `crypt`.

use super::error::{TableError, TableFault};
use super::options::{Arguments, CryptOptions};
use super::words::Words;
use inlock_cipher::{Cipher, CipherError, CipherSpec, DataUnitSize, IvMode, Sector, VolumeKey, new_sector_cipher};
use std::fmt;

/// More than any cipher needs: 65 keys of 32 bytes, the maximum of the IV mode `lmk`.
const MAX_KEY_LEN: usize = 65 * 32;

/// An encrypted line: `cipher key iv_offset device offset [count options]`.
#[derive(Debug)]
#[non_exhaustive]
pub struct CryptLine {
    /// The cipher.
    pub cipher: CipherSpec,
    /// The cipher as it was written, in either of dm-crypt's notations.
    pub cipher_name: String,
    /// The key.
    pub key: VolumeKey,
    /// Added to the number of each sector to get its IV.
    pub iv_offset: Sector,
    /// The device: a path or `MAJ:MIN`.
    pub device: String,
    /// Start of the ciphertext on it.
    pub offset: Sector,
    /// Size of a data unit (`sector_size`).
    pub unit: DataUnitSize,
    /// Whether IVs count data units (`iv_large_sectors`).
    pub large_iv: bool,
    /// Optional arguments.
    pub options: CryptOptions,
}

/// A reason why the Linux kernel refuses a line that Inlock accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KernelRefusal {
    /// It allows at most 4096 bytes.
    SectorSize(DataUnitSize),
    /// It requires an IV offset in whole data units.
    IvOffset(Sector),
    /// It requires an offset in whole data units.
    Offset(Sector),
    /// It accepts no key for `cipher_null`.
    NullKey,
    /// It has no IV mode of SPDK's kind.
    SpdkTweak,
}

impl fmt::Display for KernelRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SectorSize(unit) => write!(f, "sector_size:{} is more than its 4096", unit.bytes()),
            Self::IvOffset(offset) => write!(f, "iv_offset {} is not a multiple of the sector size", offset.0),
            Self::Offset(offset) => write!(f, "offset {} is not a multiple of the sector size", offset.0),
            Self::NullKey => f.write_str("cipher_null takes no key"),
            Self::SpdkTweak => f.write_str("no IV mode of its own gives SPDK's tweak"),
        }
    }
}

impl CryptLine {
    pub(super) fn parse(words: &mut Words, sectors: u64) -> Result<Self, TableError> {
        let cipher_name = words.next("cipher")?.to_owned();
        let cipher = cipher_name.parse::<CipherSpec>().map_err(TableFault::Cipher);
        let cipher = cipher.map_err(|fault| words.fault(fault))?;
        let key = words.next_secret("key")?;
        let key = parse_key(&cipher, key).map_err(|fault| words.fault(fault))?;
        let iv_offset = Sector(words.number("iv_offset")?);
        let device = words.next("device")?.to_owned();
        let offset = Sector(words.offset("offset", sectors)?);
        let Arguments { options, unit, large_iv, .. } = Arguments::parse(words)?;
        let line = Self { cipher, cipher_name, key, iv_offset, device, offset, unit, large_iv, options };
        line.check(sectors).map_err(|(word, name, fault)| words.fault_at(word, name, fault))?;
        Ok(line)
    }

    /// Checks the line as a whole. An error comes with the number and name of the wrong word.
    fn check(&self, sectors: u64) -> Result<(), (usize, &'static str, TableFault)> {
        let unit = self.unit.sectors();
        let misaligned = TableFault::Misaligned { sectors: unit };
        if !sectors.is_multiple_of(unit) {
            return Err((2, "length", misaligned));
        }
        if !self.iv_offset.0.is_multiple_of(unit) {
            return Err((6, "iv_offset", misaligned));
        }
        if !self.offset.0.is_multiple_of(unit) {
            return Err((8, "offset", misaligned));
        }
        match new_sector_cipher(&self.cipher, self.key.as_bytes(), self.unit, self.large_iv.into()) {
            Ok(_) => Ok(()),
            Err(error @ CipherError::KeyLength { .. }) => Err((5, "key", TableFault::Unfit(error))),
            Err(error) => Err((4, "cipher", TableFault::Unfit(error))),
        }
    }

    /// Returns the reason if the kernel refuses the line.
    pub fn kernel_refuses(&self) -> Option<KernelRefusal> {
        if self.cipher.iv == IvMode::SpdkUpper {
            Some(KernelRefusal::SpdkTweak)
        } else if self.unit > DataUnitSize::LUKS_MAX {
            Some(KernelRefusal::SectorSize(self.unit))
        } else if !self.iv_offset.0.is_multiple_of(self.unit.sectors()) {
            Some(KernelRefusal::IvOffset(self.iv_offset))
        } else if !self.offset.0.is_multiple_of(self.unit.sectors()) {
            Some(KernelRefusal::Offset(self.offset))
        } else if self.cipher.cipher == Cipher::Null && !self.key.is_empty() {
            Some(KernelRefusal::NullKey)
        } else {
            None
        }
    }
}

fn parse_key(cipher: &CipherSpec, word: &str) -> Result<VolumeKey, TableFault> {
    let key = parse_key_digits(word)?;
    if cipher.cipher == Cipher::Null && !key.is_empty() {
        return Err(TableFault::NullKey);
    }
    Ok(key)
}

/// Parses a key in hexadecimal, or `-` for none.
pub(super) fn parse_key_digits(word: &str) -> Result<VolumeKey, TableFault> {
    if let Some(rest) = word.strip_prefix(':') {
        return Err(if is_keyring_form(rest) { TableFault::Keyring } else { TableFault::KeyringForm });
    }
    let digits = if word == "-" { "" } else { word };
    if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(TableFault::KeyHex);
    }
    if !digits.len().is_multiple_of(2) {
        return Err(TableFault::KeyOdd);
    }
    if digits.len() / 2 > MAX_KEY_LEN {
        return Err(TableFault::KeyTooLong);
    }
    let mut key = VolumeKey::zeroed(digits.len() / 2);
    let nibble = |digit: u8| (digit & 0xf) + if digit.is_ascii_alphabetic() { 9 } else { 0 };
    for (byte, pair) in key.as_mut_bytes().iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
        *byte = nibble(pair[0]) << 4 | nibble(pair[1]);
    }
    Ok(key)
}

/// Whether `rest` has the form `size:type:description`.
fn is_keyring_form(rest: &str) -> bool {
    let mut parts = rest.splitn(3, ':');
    let size = parts.next().and_then(super::words::number).is_some();
    let kind = parts.next().is_some_and(|kind| matches!(kind, "logon" | "user" | "encrypted" | "trusted"));
    size && kind && parts.next().is_some_and(|description| !description.is_empty())
}
