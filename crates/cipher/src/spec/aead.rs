//! Specifications of authenticated encryption, in dm-crypt's notation and in that of LUKS2.
//!
//! dm-crypt has them after `capi:` only, such as `capi:gcm(aes)-random` with the option `integrity:28:aead`. LUKS2
//! stores two texts, `aes-gcm-random` and the type of the integrity, `aead`.

use super::parse::{api_name, between, cipher_or_driver, is_driver, iv_mode};
use super::{ChainMode, Cipher, CipherSpec, InvalidCipherSpec, IvMode, KeyCount};
use crate::{Hash, VolumeKey};
use std::fmt;
use std::str::FromStr;

/// An algorithm of authenticated encryption.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AeadAlgorithm {
    /// AES-GCM (NIST SP 800-38D) with an IV of 96 bits.
    Gcm,
    /// AES-CCM in the profile of RFC 4309: the key ends with 3 bytes of salt, the IV has 8 bytes.
    Ccm,
    /// ChaCha20-Poly1305 (RFC 8439, before that RFC 7539).
    ChaCha20Poly1305,
    /// AEGIS-128 (CAESAR's final portfolio, version 1.1), not AEGIS-128L.
    Aegis128,
    /// Encrypt-then-MAC: HMAC over sector number, IV and ciphertext of a cipher in a mode. The key is the cipher's and
    /// then the MAC's.
    Authenc {
        /// Hash of the HMAC: SHA-1, SHA-256 or SHA-512.
        mac: Hash,
        /// The block cipher, which has blocks of 16 bytes.
        cipher: Cipher,
        /// Its mode: XTS, CBC or counter mode.
        mode: ChainMode,
    },
}

/// Source of the IV of a data unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AeadIv {
    /// Random for each write, and stored after the tag.
    Random,
    /// Made of the sector number, as without integrity. The tag then protects from changes, but an old unit with its
    /// tag can be put back, and equal plaintexts of a sector are equal ciphertexts.
    Numbered(IvMode),
}

/// An algorithm, its IVs, and the lengths of its tag and its MAC's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AeadSpec {
    algorithm: AeadAlgorithm,
    iv: AeadIv,
    tag_len: usize,
    mac_key_len: usize,
}

const ALGORITHMS: &str =
    "authenc(hmac(HASH),MODE(CIPHER)), gcm(aes), rfc4309(ccm(aes)), rfc7539(chacha20,poly1305) or aegis128";
const MACS: &str = "hmac(sha1), hmac(sha256) or hmac(sha512)";
const IVS: &str =
    "random; with authenc over xts or cbc also plain, plain64, plain64be, essiv with a hash, benbi or null";
const TYPES: &str = "aead, poly1305, hmac(sha1), hmac(sha256) or hmac(sha512)";

impl AeadSpec {
    /// Maximum length of the metadata of a data unit: dm-crypt takes `integrity:480:...` at most.
    pub const MAX_METADATA_LEN: usize = 480;

    /// Makes a specification with the longest tag and, with a MAC, a key as long as its digest.
    ///
    /// # Errors
    ///
    /// Fails with the first part that does not fit the others.
    pub fn new(algorithm: AeadAlgorithm, iv: AeadIv) -> Result<Self, InvalidCipherSpec> {
        let spec = match algorithm {
            AeadAlgorithm::Authenc { mac, .. } => Self { algorithm, iv, tag_len: mac.len(), mac_key_len: mac.len() },
            _ => Self { algorithm, iv, tag_len: 16, mac_key_len: 0 },
        };
        spec.check()?;
        Ok(spec)
    }

    fn check(&self) -> Result<(), InvalidCipherSpec> {
        if let AeadAlgorithm::Authenc { mac, cipher, mode } = self.algorithm {
            if !matches!(mac, Hash::Sha1 | Hash::Sha256 | Hash::Sha512) {
                return Err(InvalidCipherSpec::new("MAC", &format!("hmac({mac})"), MACS));
            }
            if !matches!(mode, ChainMode::Xts | ChainMode::Cbc | ChainMode::Ctr) || cipher.block_len() != 16 {
                return Err(InvalidCipherSpec::new(
                    "mode",
                    &format!("{}({})", mode.name(), cipher.name()),
                    "xts, cbc or ctr over a cipher with blocks of 16 bytes",
                ));
            }
            self.inner().map_or(Ok(()), |inner| inner.check())?;
        }
        let may_count = matches!(self.algorithm, AeadAlgorithm::Authenc { mode: ChainMode::Xts | ChainMode::Cbc, .. });
        match self.iv {
            AeadIv::Random => Ok(()),
            AeadIv::Numbered(
                IvMode::Plain | IvMode::Plain64 | IvMode::Plain64Be | IvMode::Essiv(_) | IvMode::Benbi | IvMode::Null,
            ) if may_count => Ok(()),
            // The other algorithms lose confidentiality and authenticity if an IV comes twice under a key.
            AeadIv::Numbered(iv) => Err(InvalidCipherSpec::new("IV mode", iv.name(), IVS)),
        }
    }

    /// Returns the algorithm.
    pub fn algorithm(&self) -> AeadAlgorithm {
        self.algorithm
    }

    /// Returns the source of IVs.
    pub fn iv(&self) -> AeadIv {
        self.iv
    }

    /// Returns the cipher below the MAC as a specification of its own; random IVs count as `plain64`. `None` if the
    /// algorithm is not `authenc`.
    pub fn inner(&self) -> Option<CipherSpec> {
        let AeadAlgorithm::Authenc { cipher, mode, .. } = self.algorithm else { return None };
        let iv = match self.iv {
            AeadIv::Random => IvMode::Plain64,
            AeadIv::Numbered(iv) => iv,
        };
        Some(CipherSpec { cipher, mode, iv, keys: KeyCount::ONE })
    }

    /// Returns the length of an IV in bytes.
    pub fn iv_len(&self) -> usize {
        match self.algorithm {
            AeadAlgorithm::Gcm | AeadAlgorithm::ChaCha20Poly1305 => 12,
            AeadAlgorithm::Ccm => 8,
            AeadAlgorithm::Aegis128 | AeadAlgorithm::Authenc { .. } => 16,
        }
    }

    /// Returns the length of a stored IV in bytes: 0 unless IVs are random.
    pub fn stored_iv_len(&self) -> usize {
        if self.iv == AeadIv::Random { self.iv_len() } else { 0 }
    }

    /// Returns the length of a tag in bytes.
    pub fn tag_len(&self) -> usize {
        self.tag_len
    }

    /// Returns the number of bytes of a data unit's metadata: the tag, then the stored IV. It is the
    /// number in dm-crypt's option `integrity:N:aead`.
    pub fn metadata_len(&self) -> usize {
        self.tag_len + self.stored_iv_len()
    }

    /// Returns the specification with metadata of `len` bytes: the tag is what the stored IV leaves, and may be shorter
    /// than the algorithm's.
    ///
    /// # Errors
    ///
    /// Fails if the algorithm has no tag of that length.
    pub fn with_metadata_len(mut self, len: usize) -> Result<Self, InvalidCipherSpec> {
        let tag_len = len.checked_sub(self.stored_iv_len()).filter(|tag| self.can_use_tag_len(*tag));
        self.tag_len = tag_len.ok_or_else(|| {
            let expected = match self.algorithm {
                AeadAlgorithm::Gcm => "a tag of 4, 8 or 12 to 16 bytes, and 12 bytes for the IV",
                AeadAlgorithm::Ccm => "a tag of 8, 12 or 16 bytes, and 8 bytes for the IV",
                AeadAlgorithm::ChaCha20Poly1305 => "a tag of 16 bytes, and 12 bytes for the IV",
                AeadAlgorithm::Aegis128 => "a tag of 8 to 16 bytes, and 16 bytes for the IV",
                AeadAlgorithm::Authenc { .. } => "a tag of 1 byte to the MAC's length, and 16 bytes for a random IV",
            };
            InvalidCipherSpec::new("integrity size", &len.to_string(), expected)
        })?;
        Ok(self)
    }

    fn can_use_tag_len(&self, len: usize) -> bool {
        match self.algorithm {
            AeadAlgorithm::Gcm => matches!(len, 4 | 8 | 12..=16),
            AeadAlgorithm::Ccm => matches!(len, 8 | 12 | 16),
            AeadAlgorithm::ChaCha20Poly1305 => len == 16,
            AeadAlgorithm::Aegis128 => matches!(len, 8..=16),
            AeadAlgorithm::Authenc { mac, .. } => (1..=mac.len()).contains(&len),
        }
    }

    /// Returns the length of the MAC's key in bytes, at the end of the volume key; 0 if the algorithm is not `authenc`.
    pub fn mac_key_len(&self) -> usize {
        self.mac_key_len
    }

    /// Whether the MAC's key has another length than its digest.
    pub fn has_own_mac_key_len(&self) -> bool {
        matches!(self.algorithm, AeadAlgorithm::Authenc { mac, .. } if mac.len() != self.mac_key_len)
    }

    /// Returns the specification with a MAC key of `len` bytes (dm-crypt's `integrity_key_size`).
    ///
    /// # Errors
    ///
    /// Fails if `len` is 0 or longer than a volume key, or if the algorithm has no key for a MAC.
    pub fn with_mac_key_len(mut self, len: usize) -> Result<Self, InvalidCipherSpec> {
        let text = len.to_string();
        if !matches!(self.algorithm, AeadAlgorithm::Authenc { .. }) {
            return Err(InvalidCipherSpec::new("integrity key size", &text, "none: only authenc has a key for a MAC"));
        }
        if !(1..=VolumeKey::MAX_LEN / 2).contains(&len) {
            return Err(InvalidCipherSpec::new("integrity key size", &text, "1 to 2080 bytes"));
        }
        self.mac_key_len = len;
        Ok(self)
    }

    /// Returns the lengths in bytes of the volume keys that the specification accepts, ascending.
    pub fn key_lens(&self) -> Vec<usize> {
        match self.algorithm {
            AeadAlgorithm::Gcm => vec![16, 24, 32],
            AeadAlgorithm::Ccm => vec![19, 27, 35],
            AeadAlgorithm::ChaCha20Poly1305 => vec![32],
            AeadAlgorithm::Aegis128 => vec![16],
            AeadAlgorithm::Authenc { .. } => {
                let inner = self.inner().map(|inner| inner.key_lens()).unwrap_or_default();
                inner.into_iter().map(|len| len + self.mac_key_len).collect()
            }
        }
    }

    /// Whether the cipher below the MAC has an XTS key with two equal halves, as [`CipherSpec::has_equal_halves`].
    pub fn has_equal_halves(&self, key: &[u8]) -> bool {
        let cipher_key = key.len().checked_sub(self.mac_key_len).map(|len| &key[..len]);
        self.inner().zip(cipher_key).is_some_and(|(inner, key)| inner.has_equal_halves(key))
    }

    /// Whether the specification accepts a volume key of `len` bytes.
    pub fn can_use_key_len(&self, len: usize) -> bool {
        match self.inner() {
            Some(inner) => len.checked_sub(self.mac_key_len).is_some_and(|len| inner.can_use_key_len(len)),
            None => self.key_lens().contains(&len),
        }
    }

    /// Parses the two texts of a LUKS2 segment, such as `aes-xts-random` and `hmac(sha256)`, with the length of its
    /// metadata as cryptsetup computes it: with `cbc` and random IVs it is that of the MAC alone, so the tag is cut by
    /// the length of the IV.
    ///
    /// # Errors
    ///
    /// Fails if either text is not supported, or if both do not fit together.
    pub fn from_luks2(encryption: &str, integrity: &str) -> Result<Self, InvalidCipherSpec> {
        let (cipher, rest) = encryption.split_once('-').unwrap_or((encryption, ""));
        // A cipher without a mode, such as chacha20-random, has only an IV mode.
        let (mode, iv) = rest.split_once('-').map_or(("", rest), |(mode, iv)| (mode, iv));
        let name = if mode.is_empty() { cipher.to_owned() } else { format!("{mode}({cipher})") };
        let table = match (integrity, mode) {
            ("aead", "ccm") => format!("capi:rfc4309({name})-{iv}"),
            ("aead", _) => format!("capi:{name}-{iv}"),
            ("poly1305", _) => format!("capi:rfc7539({name},poly1305)-{iv}"),
            _ if integrity.starts_with("hmac(") => format!("capi:authenc({integrity},{name})-{iv}"),
            _ => return Err(InvalidCipherSpec::new("integrity", integrity, TYPES)),
        };
        let spec: Self = table.parse()?;
        match spec.algorithm {
            AeadAlgorithm::Authenc { mac, mode: ChainMode::Cbc, .. } => spec.with_metadata_len(mac.len()),
            _ => Ok(spec),
        }
    }

    /// Returns the two texts of a LUKS2 segment, as [`AeadSpec::from_luks2`] parses them.
    pub fn luks2_names(&self) -> (String, String) {
        let (name, integrity) = match self.algorithm {
            AeadAlgorithm::Gcm => ("aes-gcm".to_owned(), "aead".to_owned()),
            AeadAlgorithm::Ccm => ("aes-ccm".to_owned(), "aead".to_owned()),
            AeadAlgorithm::ChaCha20Poly1305 => ("chacha20".to_owned(), "poly1305".to_owned()),
            AeadAlgorithm::Aegis128 => ("aegis128".to_owned(), "aead".to_owned()),
            AeadAlgorithm::Authenc { mac, cipher, mode } => {
                (format!("{}-{}", cipher.name(), mode.name()), format!("hmac({mac})"))
            }
        };
        (format!("{name}-{}", self.iv), integrity)
    }
}

impl fmt::Display for AeadIv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Random => f.write_str("random"),
            Self::Numbered(IvMode::Essiv(hash)) => {
                write!(f, "essiv:{}", hash.kernel_name().unwrap_or(hash.name()))
            }
            Self::Numbered(iv) => f.write_str(iv.name()),
        }
    }
}

/// Displays dm-crypt's notation. Lengths of tag and key are options of a table, and are not in it.
impl fmt::Display for AeadSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("capi:")?;
        match self.algorithm {
            AeadAlgorithm::Gcm => f.write_str("gcm(aes)")?,
            AeadAlgorithm::Ccm => f.write_str("rfc4309(ccm(aes))")?,
            AeadAlgorithm::ChaCha20Poly1305 => f.write_str("rfc7539(chacha20,poly1305)")?,
            AeadAlgorithm::Aegis128 => f.write_str("aegis128")?,
            AeadAlgorithm::Authenc { mac, cipher, mode } => {
                write!(f, "authenc(hmac({mac}),{}({}))", mode.name(), cipher.name())?;
            }
        }
        write!(f, "-{}", self.iv)
    }
}

impl FromStr for AeadSpec {
    type Err = InvalidCipherSpec;

    /// Parses dm-crypt's notation. Options follow the last colon, the IV mode the last dash before it.
    fn from_str(text: &str) -> Result<Self, InvalidCipherSpec> {
        let Some(name) = text.strip_prefix("capi:") else {
            return Err(InvalidCipherSpec::new("specification", text, "'capi:' before an authenticated mode"));
        };
        let (rest, options) = name.rsplit_once(':').map_or((name, None), |(rest, options)| (rest, Some(options)));
        let (name, iv) = rest.rsplit_once('-').map_or((rest, ""), |(name, iv)| (name, iv));
        let algorithm = algorithm(name)?;
        let iv = match (iv, algorithm) {
            ("random", _) => AeadIv::Random,
            (_, AeadAlgorithm::Authenc { mode, .. }) => AeadIv::Numbered(iv_mode(mode, iv, options)?),
            _ => return Err(InvalidCipherSpec::new("IV mode", iv, "random")),
        };
        Self::new(algorithm, iv)
    }
}

/// Parses a name of the kernel's crypto API.
fn algorithm(name: &str) -> Result<AeadAlgorithm, InvalidCipherSpec> {
    let unknown = || InvalidCipherSpec::new("authenticated mode", name, ALGORITHMS);
    let is_aes = |name: &str| cipher_or_driver(name) == Ok(Cipher::Aes);
    let plain =
        |word: &str| word.split_once('-').filter(|(_, driver)| is_driver(driver)).map_or(0, |(name, _)| name.len());
    let short = |word| match plain(word) {
        0 => word,
        len => &word[..len],
    };
    if let Some(inner) = between(name, "authenc(") {
        let (mac, inner) = inner.split_once(',').ok_or_else(unknown)?;
        let hash = between(mac, "hmac(").map(short).and_then(Hash::from_kernel_name);
        let mac = hash.ok_or_else(|| InvalidCipherSpec::new("MAC", mac, MACS))?;
        let (cipher, mode) = api_name(inner)?;
        return Ok(AeadAlgorithm::Authenc { mac, cipher, mode });
    }
    if between(name, "gcm(").is_some_and(is_aes) {
        return Ok(AeadAlgorithm::Gcm);
    }
    if between(name, "rfc4309(").and_then(|inner| between(inner, "ccm(")).is_some_and(is_aes) {
        return Ok(AeadAlgorithm::Ccm);
    }
    let words = between(name, "rfc7539(").and_then(|inner| inner.split_once(','));
    if words.is_some_and(|(stream, mac)| short(stream) == "chacha20" && short(mac) == "poly1305") {
        return Ok(AeadAlgorithm::ChaCha20Poly1305);
    }
    if short(name) == "aegis128" { Ok(AeadAlgorithm::Aegis128) } else { Err(unknown()) }
}

/// Returns every algorithm of AES and ChaCha20 with every IV mode that fits, for tests, comparisons and lists.
pub fn known_aead_specs() -> Vec<AeadSpec> {
    let mut specs = Vec::new();
    let simple = [AeadAlgorithm::Gcm, AeadAlgorithm::Ccm, AeadAlgorithm::ChaCha20Poly1305, AeadAlgorithm::Aegis128];
    let cipher = Cipher::Aes;
    let macs = [Hash::Sha1, Hash::Sha256, Hash::Sha512];
    let modes = [ChainMode::Xts, ChainMode::Cbc, ChainMode::Ctr];
    let authenc = macs.into_iter().flat_map(|mac| modes.map(|mode| AeadAlgorithm::Authenc { mac, cipher, mode }));
    let ivs: Vec<_> = IvMode::ALL.iter().map(|iv| AeadIv::Numbered(*iv)).chain([AeadIv::Random]).collect();
    for algorithm in simple.into_iter().chain(authenc) {
        specs.extend(ivs.iter().filter_map(|iv| AeadSpec::new(algorithm, *iv).ok()));
    }
    specs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<AeadSpec, String> {
        text.parse::<AeadSpec>().map_err(|error| error.to_string())
    }

    /// Notation, LUKS2's two texts, and the lengths of tag, stored IV, IV and the shortest key.
    #[test]
    fn every_specification_has_its_names_and_lengths() {
        type Row = (&'static str, &'static str, &'static str, [usize; 4]);
        let rows: [Row; 8] = [
            ("gcm(aes)-random", "aes-gcm-random", "aead", [16, 12, 12, 16]),
            ("rfc4309(ccm(aes))-random", "aes-ccm-random", "aead", [16, 8, 8, 19]),
            ("rfc7539(chacha20,poly1305)-random", "chacha20-random", "poly1305", [16, 12, 12, 32]),
            ("aegis128-random", "aegis128-random", "aead", [16, 16, 16, 16]),
            ("authenc(hmac(sha256),xts(aes))-random", "aes-xts-random", "hmac(sha256)", [32, 16, 16, 64]),
            ("authenc(hmac(sha256),cbc(aes))-essiv:sha256", "aes-cbc-essiv:sha256", "hmac(sha256)", [32, 0, 16, 48]),
            ("authenc(hmac(sha1),ctr(aes))-random", "aes-ctr-random", "hmac(sha1)", [20, 16, 16, 36]),
            ("authenc(hmac(sha512),xts(serpent))-random", "serpent-xts-random", "hmac(sha512)", [64, 16, 16, 64]),
        ];
        for (text, encryption, integrity, [tag, stored, iv, key]) in rows {
            let spec = read(&format!("capi:{text}")).unwrap();
            assert_eq!(spec.to_string(), format!("capi:{text}"));
            assert_eq!(spec.luks2_names(), (encryption.to_owned(), integrity.to_owned()), "{text}");
            assert_eq!((spec.tag_len(), spec.stored_iv_len(), spec.iv_len()), (tag, stored, iv), "{text}");
            assert_eq!((spec.metadata_len(), spec.key_lens()[0]), (tag + stored, key), "{text}");
            assert_eq!(AeadSpec::from_luks2(encryption, integrity), Ok(spec));
        }
    }

    #[test]
    fn names_of_drivers_read_as_their_algorithms() {
        let rows = [
            ("capi:gcm(aes-generic)-random:passed-over", "capi:gcm(aes)-random"),
            ("capi:rfc7539(chacha20-simd,poly1305-generic)-random", "capi:rfc7539(chacha20,poly1305)-random"),
            ("capi:aegis128-aesni-random", "capi:aegis128-random"),
            ("capi:authenc(hmac(sha512-generic),xts(ecb(aes)))-plain64", "capi:authenc(hmac(sha512),xts(aes))-plain64"),
        ];
        for (text, canonical) in rows {
            assert_eq!(read(text).unwrap().to_string(), canonical);
        }
    }

    /// cryptsetup counts no IV for `cbc-random`, so that the kernel cuts the tag.
    #[test]
    fn luks2_metadata_of_cbc_is_as_long_as_the_mac() {
        let rows =
            [("random", "hmac(sha1)", 20, 4), ("random", "hmac(sha256)", 32, 16), ("random", "hmac(sha512)", 64, 48)];
        for (iv, integrity, len, tag) in rows.into_iter().chain([("plain64", "hmac(sha256)", 32, 32)]) {
            let spec = AeadSpec::from_luks2(&format!("aes-cbc-{iv}"), integrity).unwrap();
            assert_eq!((spec.metadata_len(), spec.tag_len()), (len, tag));
        }
    }

    #[test]
    fn errors_name_the_word_and_what_was_expected() {
        let rows = [
            ("aes-gcm-random", "specification 'aes-gcm-random': expected 'capi:'"),
            ("capi:gcm(aes)-plain64", "IV mode 'plain64': expected random"),
            ("capi:gcm(aes)", "IV mode ''"),
            ("capi:gcm(serpent)-random", "authenticated mode 'gcm(serpent)': expected authenc(hmac(HASH)"),
            ("capi:ccm(aes)-random", "authenticated mode 'ccm(aes)'"),
            ("capi:rfc4106(gcm(aes))-random", "authenticated mode 'rfc4106(gcm(aes))'"),
            ("capi:rfc7539(chacha20,x)-random", "authenticated mode"),
            ("capi:rfc7539(chacha20)-random", "authenticated mode"),
            ("capi:aegis128l-random", "authenticated mode 'aegis128l'"),
            ("capi:aegis256-random", "authenticated mode 'aegis256'"),
            ("capi:xts(aes)-plain64", "authenticated mode 'xts(aes)'"),
            ("capi:essiv(authenc(hmac(sha256),cbc(aes)),sha256)-plain64", "authenticated mode 'essiv("),
            ("capi:authenc(hmac(sha256))-random", "authenticated mode 'authenc(hmac(sha256))'"),
            ("capi:authenc(cmac(aes),xts(aes))-random", "MAC 'cmac(aes)': expected hmac(sha1)"),
            ("capi:authenc(hmac(md5),xts(aes))-random", "MAC 'hmac(md5)'"),
            ("capi:authenc(hmac(sha256),ecb(aes))-random", "mode 'ecb(aes)': expected xts, cbc or ctr"),
            ("capi:authenc(hmac(sha256),cbc(des3_ede))-random", "mode 'cbc(des3_ede)'"),
            ("capi:authenc(hmac(sha256),xts(foo))-random", "cipher 'foo'"),
            ("capi:authenc(hmac(sha256),ctr(aes))-plain64", "IV mode 'plain64'"),
            ("capi:authenc(hmac(sha256),cbc(aes))-lmk", "IV mode 'lmk'"),
            ("capi:authenc(hmac(sha256),cbc(aes))-eboiv", "IV mode 'eboiv'"),
            ("capi:authenc(hmac(sha256),cbc(aes))-essiv", "ESSIV hash ''"),
            ("capi:authenc(hmac(sha256),cbc(aes))-essiv:sha512", "ESSIV hash 'sha512'"),
            ("capi:authenc(hmac(sha256),cbc(aes))", "IV mode ''"),
        ];
        for (text, expected) in rows {
            let error = read(text).unwrap_err();
            assert!(error.starts_with(&format!("unsupported {expected}")), "{text}: {error}");
        }
        for (encryption, integrity) in [
            ("aes-xts-random", "none"),
            ("aes-xts-random", "crc32c"),
            ("aes-xts-random", "cmac(aes)"),
            ("aes-xts-random", "aead"),
            ("aes-gcm-random", "poly1305"),
            ("aes-gcm-plain64", "aead"),
            ("aegis256-random", "aead"),
            ("chacha20-random", "aead"),
            ("", "aead"),
            ("aes", ""),
        ] {
            assert!(AeadSpec::from_luks2(encryption, integrity).is_err(), "{encryption} {integrity}");
        }
    }

    #[test]
    fn lengths_of_tags_are_the_kernels() {
        let tags = |text: &str| {
            let spec = read(text).unwrap();
            let stored = spec.stored_iv_len();
            let lens = (0..=AeadSpec::MAX_METADATA_LEN).filter(|len| spec.with_metadata_len(*len).is_ok());
            lens.map(|len| len - stored).collect::<Vec<_>>()
        };
        assert_eq!(tags("capi:gcm(aes)-random"), [4, 8, 12, 13, 14, 15, 16]);
        assert_eq!(tags("capi:rfc4309(ccm(aes))-random"), [8, 12, 16]);
        assert_eq!(tags("capi:rfc7539(chacha20,poly1305)-random"), [16]);
        assert_eq!(tags("capi:aegis128-random"), (8..=16).collect::<Vec<_>>());
        assert_eq!(tags("capi:authenc(hmac(sha1),xts(aes))-plain64"), (1..=20).collect::<Vec<_>>());
        let error = read("capi:gcm(aes)-random").unwrap().with_metadata_len(29).unwrap_err();
        let text = "unsupported integrity size '29': expected a tag of 4, 8 or 12 to 16 bytes, and 12 bytes for the IV";
        assert_eq!(error.to_string(), text);
    }

    #[test]
    fn lengths_of_keys_count_the_macs() {
        let spec = read("capi:authenc(hmac(sha256),xts(aes))-random").unwrap();
        assert_eq!(spec.key_lens(), [64, 80, 96]);
        let longer = spec.with_mac_key_len(64).unwrap();
        assert_eq!((longer.key_lens(), longer.mac_key_len()), (vec![96, 112, 128], 64));
        assert!((0..200).all(|len| longer.can_use_key_len(len) == longer.key_lens().contains(&len)));
        assert!(spec.with_mac_key_len(0).is_err() && spec.with_mac_key_len(2081).is_err());
        assert!(read("capi:gcm(aes)-random").unwrap().with_mac_key_len(32).is_err());
        assert_eq!(read("capi:rfc4309(ccm(aes))-random").unwrap().key_lens(), [19, 27, 35]);
    }

    #[test]
    fn every_known_specification_reads_back() {
        let specs = known_aead_specs();
        assert!(specs.len() >= 40, "{}", specs.len());
        for spec in specs {
            assert_eq!(spec.to_string().parse(), Ok(spec));
        }
    }
}
