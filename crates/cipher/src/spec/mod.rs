//! Cipher specifications such as dm-crypt's `aes-xts-plain64`, in parts.
//!
//! This file has the parts, their names, and the keys and data units that they accept. `parse` parses both of
//! dm-crypt's notations; `combine` knows the valid combinations, for parsing, for making ciphers, and for
//! [`known_specs`].

mod aead;
mod combine;
mod parse;
mod weak;

pub use aead::{AeadAlgorithm, AeadIv, AeadSpec, known_aead_specs};
pub use combine::{KeyParts, known_specs};
pub use parse::InvalidCipherSpec;

use crate::{DataUnitSize, Hash};
use std::fmt;

/// A block cipher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cipher {
    /// AES with 128-, 192- or 256-bit keys (FIPS 197).
    Aes,
    /// Serpent, keys of up to 256 bits.
    Serpent,
    /// Twofish with 128-, 192- or 256-bit keys.
    Twofish,
    /// Camellia with 128-, 192- or 256-bit keys (RFC 3713).
    Camellia,
    /// ARIA with 128-, 192- or 256-bit keys (RFC 5794).
    Aria,
    /// SM4 with a 128-bit key (GB/T 32907).
    Sm4,
    /// Triple DES with three keys, parity bits included (FIPS 46-3); 8-byte blocks.
    Des3,
    /// Blowfish, keys of 32 to 448 bits; 8-byte blocks.
    Blowfish,
    /// CAST-128, keys of 40 to 128 bits (RFC 2144); 8-byte blocks.
    Cast5,
    /// CAST-256, keys of 128 to 256 bits in steps of 32 (RFC 2612).
    Cast6,
    /// Adiantum: XChaCha, AES-256, NH and Poly1305 over a whole data unit; it is a mode as well.
    Adiantum {
        /// XChaCha's rounds: 12 or 20.
        rounds: u8,
    },
    /// `cipher_null`: no encryption at all. For comparison and tests; refused in keyslots.
    Null,
}

impl Cipher {
    /// Every block cipher that this crate has.
    pub const ALL: &[Self] = &[
        Self::Aes,
        Self::Serpent,
        Self::Twofish,
        Self::Camellia,
        Self::Aria,
        Self::Sm4,
        Self::Des3,
        Self::Blowfish,
        Self::Cast5,
        Self::Cast6,
        Self::Adiantum { rounds: 12 },
        Self::Adiantum { rounds: 20 },
        Self::Null,
    ];

    /// Returns the name in the Linux kernel, with which a specification starts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Aes => "aes",
            Self::Serpent => "serpent",
            Self::Twofish => "twofish",
            Self::Camellia => "camellia",
            Self::Aria => "aria",
            Self::Sm4 => "sm4",
            Self::Des3 => "des3_ede",
            Self::Blowfish => "blowfish",
            Self::Cast5 => "cast5",
            Self::Cast6 => "cast6",
            Self::Adiantum { rounds: 20 } => "xchacha20,aes",
            Self::Adiantum { .. } => "xchacha12,aes",
            Self::Null => "cipher_null",
        }
    }

    /// Returns the lengths in bytes of the cipher's own key, as the Linux kernel accepts them: XTS uses two such keys.
    pub fn key_lens(self) -> &'static [usize] {
        match self {
            Self::Aes | Self::Twofish | Self::Camellia | Self::Aria => &[16, 24, 32],
            Self::Serpent => &const { range::<33>(0) },
            Self::Sm4 => &[16],
            Self::Des3 => &[24],
            Self::Blowfish => &const { range::<53>(4) },
            Self::Cast5 => &const { range::<12>(5) },
            Self::Cast6 => &[16, 20, 24, 28, 32],
            Self::Adiantum { .. } => &[32],
            Self::Null => &[0, 16, 32, 64],
        }
    }

    /// Returns the number of bytes in a block: 8 or 16; 16 for Adiantum and the null cipher, which have no blocks.
    pub fn block_len(self) -> usize {
        if self.is_legacy() { 8 } else { 16 }
    }

    /// Whether the cipher has blocks of 8 bytes, which are too short for new volumes (birthday bound: a few GiB per
    /// key) and supported to read old ones.
    pub fn is_legacy(self) -> bool {
        matches!(self, Self::Des3 | Self::Blowfish | Self::Cast5)
    }
}

/// Returns `N` numbers from `first` on.
const fn range<const N: usize>(first: usize) -> [usize; N] {
    let mut lens = [0; N];
    let mut at = 0;
    while at < N {
        lens[at] = first + at;
        at += 1;
    }
    lens
}

/// How blocks of one data unit are chained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ChainMode {
    /// XEX with tweak and ciphertext stealing (IEEE 1619); the key is two keys of the cipher with the same length.
    Xts,
    /// Cipher block chaining, one chain per data unit.
    Cbc,
    /// Electronic codebook: no IV, equal blocks have equal ciphertexts. For comparison, and for old volumes.
    Ecb,
    /// Counter mode. The IV is the first counter, big-endian over the whole block. Rewriting a unit reveals the XOR of
    /// both plaintexts: for old volumes only.
    Ctr,
    /// Liskov-Rivest-Wagner (IEEE P1619's draft before XTS): the key is the cipher's and a tweak key of 16 bytes.
    Lrw,
    /// Adiantum's own: the whole data unit is one block.
    Adiantum,
}

impl ChainMode {
    /// Every mode that this crate has.
    pub const ALL: &[Self] = &[Self::Xts, Self::Cbc, Self::Ecb, Self::Ctr, Self::Lrw, Self::Adiantum];

    /// Returns dm-crypt's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Xts => "xts",
            Self::Cbc => "cbc",
            Self::Ecb => "ecb",
            Self::Ctr => "ctr",
            Self::Lrw => "lrw",
            Self::Adiantum => "adiantum",
        }
    }
}

/// The mode that makes an IV of the number of a data unit (with dm-crypt's names).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IvMode {
    /// The low 32 bits, little-endian, zero padded.
    Plain,
    /// All 64 bits, little-endian, zero padded.
    Plain64,
    /// All 64 bits, big-endian, at the end of the IV.
    Plain64Be,
    /// The `plain64` IV encrypted under a hash of the key, which has the length of a key of the cipher.
    Essiv(Hash),
    /// The number of the unit's first cipher block, counted from 1, big-endian, at the end of the IV.
    Benbi,
    /// Zero bytes.
    Null,
    /// loop-AES: an MD5 state over number and plaintext, with a seed if there is a 65th key; CBC in units of 512 bytes.
    Lmk,
    /// Old TrueCrypt volumes: IV and whitening from the end of the key; units of 512 bytes.
    Tcw,
    /// The byte offset of the unit, encrypted as one block under the data's own cipher (BitLocker).
    Eboiv,
    /// As [`IvMode::Eboiv`], with BitLocker's Elephant diffuser under the second half of the key.
    Elephant,
    /// SPDK's: the number little-endian in the last eight bytes of the tweak, zero before. dm-crypt does not have it,
    /// so it has no name in specifications: plain volumes have an option for it.
    SpdkUpper,
}

impl IvMode {
    /// Every IV mode that this crate has; ESSIV once, with SHA-256.
    pub const ALL: &[Self] = &[
        Self::Plain,
        Self::Plain64,
        Self::Plain64Be,
        Self::Essiv(Hash::Sha256),
        Self::Benbi,
        Self::Null,
        Self::Lmk,
        Self::Tcw,
        Self::Eboiv,
        Self::Elephant,
        Self::SpdkUpper,
    ];

    /// Returns dm-crypt's name, without the part after a colon.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Plain64 => "plain64",
            Self::Plain64Be => "plain64be",
            Self::Essiv(_) => "essiv",
            Self::Benbi => "benbi",
            Self::Null => "null",
            Self::Lmk => "lmk",
            Self::Tcw => "tcw",
            Self::Eboiv => "eboiv",
            Self::Elephant => "elephant",
            Self::SpdkUpper => "(spdk-upper)",
        }
    }
}

/// Number of keys that the data units of a volume use in turn (dm-crypt's `aes:64-...`): a power of two up to 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyCount {
    log2: u8,
}

impl KeyCount {
    /// One key for everything.
    pub const ONE: Self = Self { log2: 0 };
    /// The number of loop-AES, which is the maximum.
    pub const MAX: Self = Self { log2: 6 };

    /// Returns `count` keys, a power of two up to 64.
    pub fn new(count: u32) -> Option<Self> {
        let fits = count.is_power_of_two() && count <= 1 << Self::MAX.log2;
        fits.then(|| Self { log2: count.trailing_zeros() as u8 })
    }

    /// Returns the number.
    pub fn get(self) -> usize {
        1 << self.log2
    }
}

/// A cipher, its mode, its IV mode and the number of its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CipherSpec {
    /// The block cipher.
    pub cipher: Cipher,
    /// How blocks are chained.
    pub mode: ChainMode,
    /// The mode that makes IVs; [`IvMode::Null`] if the chain mode needs none.
    pub iv: IvMode,
    /// Number of keys that take turns, selected by the low bits of a unit's first sector.
    pub keys: KeyCount,
}

impl CipherSpec {
    /// `aes-xts-plain64`, the default of cryptsetup and of Inlock.
    pub const AES_XTS_PLAIN64: Self =
        Self { cipher: Cipher::Aes, mode: ChainMode::Xts, iv: IvMode::Plain64, keys: KeyCount::ONE };

    /// Whether the specification accepts a key of `len` bytes.
    pub fn can_use_key_len(&self, len: usize) -> bool {
        self.key_parts(len).is_some()
    }

    /// Whether the specification accepts units of this size: `lmk` and `tcw` are defined for 512 bytes only.
    pub fn can_use_unit(&self, unit: DataUnitSize) -> bool {
        unit == DataUnitSize::SECTOR || !matches!(self.iv, IvMode::Lmk | IvMode::Tcw)
    }

    /// Returns the name in two parts, as LUKS1 headers store it: `aes` and `xts-plain64`.
    pub fn luks1_names(&self) -> (String, String) {
        let text = self.to_string();
        match text.split_once('-') {
            Some((cipher, mode)) => (cipher.to_owned(), mode.to_owned()),
            None => (text, String::new()),
        }
    }
}

/// Displays dm-crypt's legacy notation, which every specification has: `cipher[:keys]-mode-iv[:options]`.
impl fmt::Display for CipherSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.cipher.name())?;
        if self.keys != KeyCount::ONE {
            write!(f, ":{}", self.keys.get())?;
        }
        write!(f, "-{}", self.mode.name())?;
        match self.iv {
            _ if self.mode == ChainMode::Ecb => Ok(()),
            IvMode::Essiv(hash) => write!(f, "-essiv:{}", hash.kernel_name().unwrap_or(hash.name())),
            iv => write!(f, "-{}", iv.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Does not compile if a variant is missing here, and fails if one is missing in `ALL`.
    #[test]
    fn lists_of_ciphers_and_modes_are_complete() {
        for (at, cipher) in Cipher::ALL.iter().enumerate() {
            let place = match cipher {
                Cipher::Aes => 0,
                Cipher::Serpent => 1,
                Cipher::Twofish => 2,
                Cipher::Camellia => 3,
                Cipher::Aria => 4,
                Cipher::Sm4 => 5,
                Cipher::Des3 => 6,
                Cipher::Blowfish => 7,
                Cipher::Cast5 => 8,
                Cipher::Cast6 => 9,
                Cipher::Adiantum { rounds: 12 } => 10,
                Cipher::Adiantum { .. } => 11,
                Cipher::Null => 12,
            };
            assert_eq!(place, at);
        }
        for (at, mode) in ChainMode::ALL.iter().enumerate() {
            let place = match mode {
                ChainMode::Xts => 0,
                ChainMode::Cbc => 1,
                ChainMode::Ecb => 2,
                ChainMode::Ctr => 3,
                ChainMode::Lrw => 4,
                ChainMode::Adiantum => 5,
            };
            assert_eq!(place, at);
        }
        assert_eq!((Cipher::ALL.len(), ChainMode::ALL.len()), (13, 6));
    }

    #[test]
    fn lists_of_ivs_are_complete() {
        for (at, iv) in IvMode::ALL.iter().enumerate() {
            let place = match iv {
                IvMode::Plain => 0,
                IvMode::Plain64 => 1,
                IvMode::Plain64Be => 2,
                IvMode::Essiv(_) => 3,
                IvMode::Benbi => 4,
                IvMode::Null => 5,
                IvMode::Lmk => 6,
                IvMode::Tcw => 7,
                IvMode::Eboiv => 8,
                IvMode::Elephant => 9,
                IvMode::SpdkUpper => 10,
            };
            assert_eq!(place, at);
        }
        assert_eq!(IvMode::ALL.len(), 11);
    }
}
