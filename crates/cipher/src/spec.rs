//! Cipher specifications in dm-crypt's notation, `aes-xts-plain64`.

use std::fmt;
use std::str::FromStr;

/// A block cipher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cipher {
    /// AES with 128-, 192- or 256-bit keys (FIPS 197).
    Aes,
    /// Serpent, keys to 256 bits.
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
    /// Adiantum: XChaCha, AES-256, NH and Poly1305 over a whole data unit; a mode of its own.
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
        Self::Adiantum { rounds: 12 },
        Self::Adiantum { rounds: 20 },
        Self::Null,
    ];

    /// The name of the Linux kernel, with which a specification starts.
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
            Self::Adiantum { rounds: 20 } => "xchacha20,aes",
            Self::Adiantum { .. } => "xchacha12,aes",
            Self::Null => "cipher_null",
        }
    }

    /// Lengths in bytes of the cipher's own key, as the Linux kernel takes them: XTS has two such keys, several keys are several.
    pub fn key_lens(self) -> &'static [usize] {
        match self {
            Self::Aes | Self::Twofish | Self::Camellia | Self::Aria => &[16, 24, 32],
            Self::Serpent => &const { range::<33>(0) },
            Self::Sm4 => &[16],
            Self::Des3 => &[24],
            Self::Blowfish => &const { range::<53>(4) },
            Self::Cast5 => &const { range::<12>(5) },
            Self::Adiantum { .. } => &[32],
            Self::Null => &[0, 16, 32, 64],
        }
    }

    /// Whether the cipher has blocks of 8 bytes, too short for new volumes (birthday bound: a few GiB under one key): kept so that old ones
    /// can be read.
    pub fn is_legacy(self) -> bool {
        matches!(self, Self::Des3 | Self::Blowfish | Self::Cast5)
    }
}

/// `N` numbers from `first` on.
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
    /// XEX with tweak and ciphertext stealing (IEEE 1619); the key is two AES keys of the same length.
    Xts,
    /// Cipher block chaining, one chain a data unit.
    Cbc,
    /// Electronic codebook; only accepted with [`Cipher::Null`].
    Ecb,
}

impl ChainMode {
    /// Every mode that this crate has.
    pub const ALL: &[Self] = &[Self::Xts, Self::Cbc, Self::Ecb];
}

/// The hash that makes an ESSIV key from the volume key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EssivHash {
    /// SHA-256: the IV is encrypted under AES-256, whatever the length of the volume key.
    Sha256,
}

/// How an IV is made from the number of a data unit (dm-crypt's names).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IvMode {
    /// The low 32 bits, little-endian, zero padded.
    Plain,
    /// All 64 bits, little-endian, zero padded.
    Plain64,
    /// The `plain64` IV encrypted under a hash of the volume key.
    Essiv(EssivHash),
    /// Zero bytes.
    Null,
}

impl IvMode {
    /// Every IV mode that this crate has.
    pub const ALL: &[Self] = &[Self::Plain, Self::Plain64, Self::Essiv(EssivHash::Sha256), Self::Null];
}

/// A cipher, its mode and its IV mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CipherSpec {
    /// The block cipher.
    pub cipher: Cipher,
    /// How blocks are chained.
    pub mode: ChainMode,
    /// How the IV of a data unit is made.
    pub iv: IvMode,
}

impl CipherSpec {
    /// `aes-xts-plain64`, the default of cryptsetup and of Inlock.
    pub const AES_XTS_PLAIN64: Self = Self { cipher: Cipher::Aes, mode: ChainMode::Xts, iv: IvMode::Plain64 };

    /// Key lengths in bytes that this specification takes.
    pub fn key_lens(&self) -> &'static [usize] {
        match (self.cipher, self.mode) {
            (Cipher::Aes, ChainMode::Xts) => &[32, 64],
            (Cipher::Aes, ChainMode::Cbc | ChainMode::Ecb) => &[16, 24, 32],
            (Cipher::Null, _) => &[0, 16, 32, 64],
            _ => &[],
        }
    }

    /// The name in two parts, as LUKS1 headers store it: `aes` and `xts-plain64`.
    pub fn luks1_names(&self) -> (String, String) {
        let text = self.to_string();
        match text.split_once('-') {
            Some((cipher, mode)) => (cipher.to_owned(), mode.to_owned()),
            None => (text, String::new()),
        }
    }
}

impl fmt::Display for CipherSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.cipher.name())?;
        match self.mode {
            ChainMode::Xts => f.write_str("-xts")?,
            ChainMode::Cbc => f.write_str("-cbc")?,
            ChainMode::Ecb => return f.write_str("-ecb"),
        }
        f.write_str(match self.iv {
            IvMode::Plain => "-plain",
            IvMode::Plain64 => "-plain64",
            IvMode::Essiv(EssivHash::Sha256) => "-essiv:sha256",
            IvMode::Null => "-null",
        })
    }
}

impl FromStr for CipherSpec {
    type Err = InvalidCipherSpec;

    /// Reads dm-crypt's legacy form `cipher[-mode[-iv[:opts]]]`; a name alone or `name-plain` means `cbc-plain`.
    fn from_str(text: &str) -> Result<Self, InvalidCipherSpec> {
        let unknown =
            |part: &'static str, value: &str| InvalidCipherSpec { part, value: value.chars().take(64).collect() };
        let mut parts = text.splitn(3, '-');
        let cipher = match parts.next().unwrap_or_default() {
            "aes" => Cipher::Aes,
            "cipher_null" => Cipher::Null,
            other => return Err(unknown("cipher", other)),
        };
        let (mode, iv) = match (parts.next(), parts.next()) {
            (None, _) | (Some("plain"), None) => ("cbc", Some("plain")),
            (Some(mode), iv) => (mode, iv),
        };
        let mode = match (cipher, mode) {
            (_, "xts") => ChainMode::Xts,
            (_, "cbc") => ChainMode::Cbc,
            (Cipher::Null, "ecb") => ChainMode::Ecb,
            (_, other) => return Err(unknown("mode", other)),
        };
        let iv = match iv {
            Some("plain") => IvMode::Plain,
            Some("plain64") => IvMode::Plain64,
            Some("essiv:sha256") => IvMode::Essiv(EssivHash::Sha256),
            Some("null") => IvMode::Null,
            None if mode == ChainMode::Ecb => IvMode::Null,
            None => return Err(unknown("IV mode", "")),
            Some(other) => return Err(unknown("IV mode", other)),
        };
        Ok(Self { cipher, mode, iv })
    }
}

/// A cipher specification names something this crate does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unsupported {part} '{value}'")]
pub struct InvalidCipherSpec {
    /// Which part: `cipher`, `mode` or `IV mode`.
    pub part: &'static str,
    /// What it said (its first 64 characters).
    pub value: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Does not compile where a variant is missing here, and fails where one is missing in `ALL`.
    #[test]
    fn the_lists_are_complete() {
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
                Cipher::Adiantum { rounds: 12 } => 9,
                Cipher::Adiantum { .. } => 10,
                Cipher::Null => 11,
            };
            assert_eq!(place, at);
        }
        for (at, mode) in [ChainMode::Xts, ChainMode::Cbc, ChainMode::Ecb].into_iter().enumerate() {
            let place = match mode {
                ChainMode::Xts => 0,
                ChainMode::Cbc => 1,
                ChainMode::Ecb => 2,
            };
            assert_eq!((place, ChainMode::ALL[place]), (at, mode));
        }
        for (at, iv) in IvMode::ALL.iter().enumerate() {
            let place = match iv {
                IvMode::Plain => 0,
                IvMode::Plain64 => 1,
                IvMode::Essiv(EssivHash::Sha256) => 2,
                IvMode::Null => 3,
            };
            assert_eq!(place, at);
        }
    }

    #[test]
    fn every_specification_reads_back_as_it_is_written() {
        for text in ["aes-xts-plain64", "aes-cbc-plain", "aes-cbc-essiv:sha256", "aes-cbc-null", "cipher_null-ecb"] {
            assert_eq!(text.parse::<CipherSpec>().unwrap().to_string(), text);
        }
        for (text, same) in [("aes", "aes-cbc-plain"), ("aes-plain", "aes-cbc-plain")] {
            assert_eq!(text.parse::<CipherSpec>().unwrap().to_string(), same);
        }
    }
}
