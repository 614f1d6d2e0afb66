//! Tags: hashes by name, the tag of a block, and the filler of discarded blocks.

use crate::error::IntegrityError;
use hmac::digest::Output;
use hmac::{Hmac, KeyInit, Mac};
use inlock_cipher::Hash;
use sha1::Sha1;
use sha2::{Sha256, Sha512};
use std::fmt;
use std::hash::Hasher;
use std::str::FromStr;
use std::sync::Arc;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Length of the salt in bytes.
pub const SALT_LEN: usize = 16;
/// Length of the longest tag in bytes.
pub const MAX_TAG_LEN: usize = 255;
/// Each byte of the tag of a discarded block. Such a block is not checked if discards are allowed.
pub const DISCARD_FILLER: u8 = 0xf6;

/// Hash of tags or MACs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TagAlgorithm {
    /// CRC-32 as in the kernel: without inversion before and after.
    Crc32,
    /// CRC-32C.
    Crc32c,
    /// XXH64 with seed 0.
    XxHash64,
    /// SHA-1.
    Sha1,
    /// SHA-256.
    Sha256,
    /// SHA-512.
    Sha512,
    /// HMAC with SHA-1.
    HmacSha1,
    /// HMAC with SHA-256.
    HmacSha256,
    /// HMAC with SHA-512.
    HmacSha512,
}

impl TagAlgorithm {
    /// All algorithms.
    pub const ALL: [Self; 9] = [
        Self::Crc32,
        Self::Crc32c,
        Self::XxHash64,
        Self::Sha1,
        Self::Sha256,
        Self::Sha512,
        Self::HmacSha1,
        Self::HmacSha256,
        Self::HmacSha512,
    ];

    /// Returns the name of integritysetup.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Crc32 => "crc32",
            Self::Crc32c => "crc32c",
            Self::XxHash64 => "xxhash64",
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
            Self::HmacSha1 => "hmac-sha1",
            Self::HmacSha256 => "hmac-sha256",
            Self::HmacSha512 => "hmac-sha512",
        }
    }

    /// Returns the name in tables of the kernel.
    pub const fn kernel_name(self) -> &'static str {
        match self {
            Self::HmacSha1 => "hmac(sha1)",
            Self::HmacSha256 => "hmac(sha256)",
            Self::HmacSha512 => "hmac(sha512)",
            other => other.name(),
        }
    }

    /// Returns the bytes of a digest.
    pub const fn digest_len(self) -> usize {
        match self {
            Self::Crc32 | Self::Crc32c => 4,
            Self::XxHash64 => 8,
            Self::Sha1 | Self::HmacSha1 => 20,
            Self::Sha256 | Self::HmacSha256 => 32,
            Self::Sha512 | Self::HmacSha512 => 64,
        }
    }

    /// Whether the hash needs a key.
    pub const fn is_keyed(self) -> bool {
        matches!(self, Self::HmacSha1 | Self::HmacSha256 | Self::HmacSha512)
    }
}

impl fmt::Display for TagAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for TagAlgorithm {
    type Err = IntegrityError;

    /// Parses a name of integritysetup or of the kernel.
    fn from_str(name: &str) -> Result<Self, IntegrityError> {
        let named = |algorithm: &Self| algorithm.name() == name || algorithm.kernel_name() == name;
        let unknown = IntegrityError::option("integrity", "the hash is not supported");
        Self::ALL.into_iter().find(named).ok_or(unknown)
    }
}

/// A hash with its key.
pub struct TagHash {
    algorithm: TagAlgorithm,
    state: State,
}

enum State {
    Checksum,
    Plain(Hash),
    HmacSha1(Box<Hmac<Sha1>>),
    HmacSha256(Box<Hmac<Sha256>>),
    HmacSha512(Box<Hmac<Sha512>>),
}

impl TagHash {
    /// Bytes of the longest digest.
    pub const MAX_LEN: usize = 64;

    /// Returns a hash.
    ///
    /// # Errors
    ///
    /// Fails if a keyed hash has no key, or another has one.
    #[allow(clippy::missing_panics_doc)] // HMAC takes keys of every length.
    pub fn new(algorithm: TagAlgorithm, key: &[u8]) -> Result<Self, IntegrityError> {
        match (algorithm.is_keyed(), key.is_empty()) {
            (true, true) => return Err(IntegrityError::option("integrity-key-file", "the hash needs a key")),
            (false, false) => return Err(IntegrityError::option("integrity-key-file", "the hash takes no key")),
            _ => {}
        }
        const ANY_LENGTH: &str = "HMAC takes keys of every length";
        let state = match algorithm {
            TagAlgorithm::HmacSha1 => State::HmacSha1(Box::new(Hmac::new_from_slice(key).expect(ANY_LENGTH))),
            TagAlgorithm::HmacSha256 => State::HmacSha256(Box::new(Hmac::new_from_slice(key).expect(ANY_LENGTH))),
            TagAlgorithm::HmacSha512 => State::HmacSha512(Box::new(Hmac::new_from_slice(key).expect(ANY_LENGTH))),
            TagAlgorithm::Sha1 => State::Plain(Hash::Sha1),
            TagAlgorithm::Sha256 => State::Plain(Hash::Sha256),
            TagAlgorithm::Sha512 => State::Plain(Hash::Sha512),
            TagAlgorithm::Crc32 | TagAlgorithm::Crc32c | TagAlgorithm::XxHash64 => State::Checksum,
        };
        Ok(Self { algorithm, state })
    }

    /// Returns HMAC-SHA-256 under a key that is derived from `key` for one purpose. `None`: there is no key.
    pub(crate) fn derive(key: &[u8], purpose: &[u8]) -> Option<Self> {
        let derived = Zeroizing::new(Self::new(TagAlgorithm::HmacSha256, key).ok()?.digest(&[purpose]));
        Self::new(TagAlgorithm::HmacSha256, &derived[..32]).ok()
    }

    /// Returns the algorithm.
    pub fn algorithm(&self) -> TagAlgorithm {
        self.algorithm
    }

    /// Returns the bytes of a digest.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.algorithm.digest_len()
    }

    /// Returns the digest of the concatenated `parts`, padded with zeroes.
    pub fn digest(&self, parts: &[&[u8]]) -> [u8; Self::MAX_LEN] {
        let mut out = [0; Self::MAX_LEN];
        let mut put = |digest: &[u8]| out[..digest.len()].copy_from_slice(digest);
        match (&self.state, self.algorithm) {
            (State::HmacSha1(mac), _) => put(&finish(&**mac, parts)),
            (State::HmacSha256(mac), _) => put(&finish(&**mac, parts)),
            (State::HmacSha512(mac), _) => put(&finish(&**mac, parts)),
            (State::Plain(hash), _) => return *hash.digest(parts),
            (State::Checksum, TagAlgorithm::Crc32) => put(&kernel_crc32(parts).to_le_bytes()),
            (State::Checksum, TagAlgorithm::Crc32c) => {
                put(&parts.iter().fold(0, |crc, part| crc32c::crc32c_append(crc, part)).to_le_bytes());
            }
            (State::Checksum, _) => {
                let mut hasher = twox_hash::XxHash64::with_seed(0);
                parts.iter().for_each(|part| hasher.write(part));
                put(&hasher.finish().to_le_bytes());
            }
        }
        out
    }
}

impl fmt::Debug for TagHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TagHash({})", self.algorithm)
    }
}

/// Computes CRC-32 with initial value 0 and no inversion.
fn kernel_crc32(parts: &[&[u8]]) -> u32 {
    // The library inverts the value before and after.
    let mut hasher = crc32fast::Hasher::new_with_initial(!0);
    parts.iter().for_each(|part| hasher.update(part));
    !hasher.finalize()
}

fn finish<M: Mac + Clone>(mac: &M, parts: &[&[u8]]) -> Output<M> {
    let mut state = mac.clone();
    parts.iter().for_each(|part| state.update(part));
    state.finalize().into_bytes()
}

/// Computes the tags of a volume's blocks.
#[derive(Debug)]
pub struct Tagger {
    hash: Arc<TagHash>,
    salt: Option<[u8; SALT_LEN]>,
    tag_size: usize,
}

impl Tagger {
    /// Returns the tags' function of a volume: `salt` is [`crate::Superblock::hash_salt`].
    pub fn new(hash: Arc<TagHash>, salt: Option<[u8; SALT_LEN]>, tag_size: usize) -> Self {
        Self { hash, salt, tag_size }
    }

    /// Writes the tag of the block at logical `sector`: the hash, cut or padded with zeroes.
    pub fn tag(&self, sector: u64, block: &[u8], tag: &mut [u8]) {
        let salt = self.salt.as_ref().map_or(&[][..], |salt| &salt[..]);
        let digest = self.hash.digest(&[salt, &sector.to_le_bytes(), block]);
        let len = self.tag_size.min(digest.len());
        tag[..len].copy_from_slice(&digest[..len]);
        tag[len..self.tag_size].fill(0);
    }

    /// Whether this is the tag of `block`.
    pub fn is_tag_of(&self, sector: u64, block: &[u8], tag: &[u8]) -> bool {
        let mut expected = [0; MAX_TAG_LEN];
        let expected = &mut expected[..self.tag_size];
        self.tag(sector, block, expected);
        expected.ct_eq(tag).into()
    }

    /// Returns the bytes of a tag.
    pub(crate) fn tag_size(&self) -> usize {
        self.tag_size
    }

    /// Returns the hash.
    pub fn hash(&self) -> &TagHash {
        &self.hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn digest(name: &str, key: &[u8], data: &[u8]) -> String {
        let hash = TagHash::new(name.parse().unwrap(), key).unwrap();
        let parted = hash.digest(&[&data[..data.len() / 2], &[], &data[data.len() / 2..]]);
        assert_eq!(hash.digest(&[data]), parted, "{name}: parts do not matter");
        assert!(parted[hash.len()..].iter().all(|byte| *byte == 0));
        hex(&parted[..hash.len()])
    }

    #[test]
    fn digests_are_those_of_published_vectors() {
        // The check value of CRC-32 with neither inversion, from the linear relation to the common one (0xcbf43926).
        assert_eq!(digest("crc32", b"", b"123456789"), hex(&0x2dfd_2d88_u32.to_le_bytes()));
        // RFC 3720, B.4: 32 bytes of zeroes.
        assert_eq!(digest("crc32c", b"", &[0; 32]), "aa36918a");
        // xxHash's specification: the empty input with seed 0.
        assert_eq!(digest("xxhash64", b"", b""), hex(&0xef46_db37_51d8_e999_u64.to_le_bytes()));
        // FIPS 180-4 examples.
        assert_eq!(digest("sha1", b"", b"abc"), "a9993e364706816aba3e25717850c26c9cd0d89d");
        assert!(digest("sha256", b"", b"abc").starts_with("ba7816bf8f01cfea414140de5dae2223"));
        assert!(digest("sha512", b"", b"abc").starts_with("ddaf35a193617abacc417349ae204131"));
        // RFC 2202 and RFC 4231, test case 2.
        let (key, data) = (b"Jefe", b"what do ya want for nothing?");
        assert_eq!(digest("hmac-sha1", key, data), "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79");
        assert!(digest("hmac(sha256)", key, data).starts_with("5bdcc146bf60754e6a042426089575c7"));
        assert!(digest("hmac-sha512", key, data).starts_with("164b7a7bfcf819e2e395fbe73b56e0a3"));
    }

    #[test]
    fn tag_is_cut_or_padded_and_depends_on_sector_and_salt() {
        let tag = |salt, size, sector| {
            let hash = Arc::new(TagHash::new(TagAlgorithm::Sha256, b"").unwrap());
            let mut tag = [0xaa; MAX_TAG_LEN];
            Tagger::new(hash, salt, size).tag(sector, &[1; 512], &mut tag[..size]);
            tag[..size].to_vec()
        };
        let whole = tag(None, 32, 7);
        let message: Vec<u8> = 7u64.to_le_bytes().into_iter().chain([1; 512]).collect();
        assert_eq!(hex(&whole), digest("sha256", b"", &message));
        assert_eq!(tag(None, 10, 7), whole[..10]);
        assert_eq!(tag(None, 40, 7), [&whole[..], &[0; 8]].concat());
        assert_ne!(tag(None, 32, 8), whole);
        let salted: Vec<u8> = [3; 16].into_iter().chain(message).collect();
        assert_eq!(hex(&tag(Some([3; 16]), 32, 7)), digest("sha256", b"", &salted));
    }

    #[test]
    fn key_is_required_or_refused_and_never_printed() {
        for algorithm in TagAlgorithm::ALL {
            assert_eq!(TagHash::new(algorithm, b"key").is_ok(), algorithm.is_keyed(), "{algorithm}");
            assert_eq!(TagHash::new(algorithm, b"").is_ok(), !algorithm.is_keyed(), "{algorithm}");
        }
        let hash = TagHash::new(TagAlgorithm::HmacSha256, b"secret").unwrap();
        assert_eq!(format!("{hash:?}"), "TagHash(hmac-sha256)");
    }
}
