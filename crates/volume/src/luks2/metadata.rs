//! The typed view of LUKS2 metadata (specification, section 3).
//!
//! The view has what Inlock uses. Unknown types of keyslots, segments, digests and tokens are kept by name: they are
//! valid, but not used.

use super::reencryption_keyslot::ReencryptionKeyslot;
use crate::key_material::needed_area;
use crate::pbkdf::Argon2Cost;
use crate::violation::HeaderFault;
use std::collections::BTreeMap;

/// All objects of the metadata by number.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// Keyslots.
    pub keyslots: BTreeMap<u32, Keyslot>,
    /// Tokens.
    pub tokens: BTreeMap<u32, Token>,
    /// Segments.
    pub segments: BTreeMap<u32, Segment>,
    /// Digests.
    pub digests: BTreeMap<u32, Digest>,
    /// All other settings.
    pub config: Config,
}

/// A keyslot: a key, and its protection.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keyslot {
    /// Length of the key in bytes.
    pub key_len: u32,
    /// 0: only if requested by number; 1: normal; 2: first.
    pub priority: u8,
    /// Offset of the key material, in bytes.
    pub area_offset: u64,
    /// Length of that area in bytes.
    pub area_len: u64,
    /// Fields of its type.
    pub kind: KeyslotKind,
    /// Damage that is confined to this keyslot.
    pub damage: Option<KeyslotDamage>,
}

impl Keyslot {
    /// Whether its damage keeps it from being used.
    pub fn is_invalid(&self) -> bool {
        self.damage.as_ref().is_some_and(|damage| !damage.is_usable)
    }

    /// Returns the length of the area that no other keyslot may use. It ends inside of the keyslot areas.
    pub(crate) fn reserved_len(&self) -> u64 {
        match &self.damage {
            // Its key reaches beyond the end of its area.
            Some(damage) if damage.is_usable => self.area_len.max(needed_area(self.key_len)),
            _ => self.area_len,
        }
    }

    /// Whether a passphrase can open it.
    pub(crate) fn can_be_tried(&self) -> bool {
        matches!(self.kind, KeyslotKind::Luks2(_)) && !self.is_invalid()
    }
}

/// Damage that is confined to a keyslot: the others can be used.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyslotDamage {
    /// The violation.
    pub fault: HeaderFault,
    /// Whether the keyslot can be used all the same, since only one value is possible.
    pub is_usable: bool,
}

/// Fields of a keyslot by its type.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyslotKind {
    /// `luks2`: a passphrase keyslot.
    Luks2(PassphraseKeyslot),
    /// `reencrypt`: the state of a re-encryption.
    Reencryption(ReencryptionKeyslot),
    /// The name of another type.
    Other(String),
}

/// A keyslot that a passphrase opens.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassphraseKeyslot {
    /// The key derivation; hashes are names as stored.
    pub kdf: KeyslotKdf,
    /// Its salt.
    pub salt: Vec<u8>,
    /// Anti-forensic stripes as stored; keys have 4000, even if another number is stored.
    pub stripes: i64,
    /// Hash of the anti-forensic splitter, as stored.
    pub af_hash: String,
    /// The area's cipher, as stored.
    pub area_cipher: String,
    /// Length of that cipher's key in bytes.
    pub area_key_len: u32,
}

/// A keyslot's key derivation.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyslotKdf {
    /// `pbkdf2`.
    Pbkdf2 {
        /// The hash, as stored.
        hash: String,
        /// Number of iterations.
        iterations: u32,
    },
    /// `argon2i`.
    Argon2i(Argon2Cost),
    /// `argon2id`.
    Argon2id(Argon2Cost),
    /// The name of another one.
    Other(String),
}

/// A token: a source of a passphrase.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Its type.
    pub kind: String,
    /// The keyslots that it opens.
    pub keyslots: Vec<u32>,
}

/// A range of the data device.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Start on the data device, in bytes.
    pub offset: u64,
    /// Length in bytes; `None`: to the end of the device (`dynamic`).
    pub size: Option<u64>,
    /// Fields of its type.
    pub kind: SegmentKind,
    /// Its flags.
    pub flags: Vec<String>,
}

impl Segment {
    /// Whether it has a flag.
    pub(super) fn has_flag(&self, flag: &str) -> bool {
        self.flags.iter().any(|own| own == flag)
    }

    /// Whether it only records the state before a re-encryption.
    pub fn is_backup(&self) -> bool {
        self.flags.iter().any(|flag| flag.starts_with("backup-"))
    }
}

/// Fields of a segment by its type.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SegmentKind {
    /// `crypt`.
    Crypt(CryptSegment),
    /// `linear`: stored unencrypted.
    Linear,
    /// The name of another type.
    Other(String),
}

/// An encrypted segment.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CryptSegment {
    /// IV number of its first sector.
    pub iv_tweak: u64,
    /// The cipher, as stored.
    pub cipher: String,
    /// Bytes of a data unit.
    pub sector_size: u32,
    /// Its integrity protection, if it has any.
    pub integrity: Option<Integrity>,
}

/// The integrity protection of an encrypted segment.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Integrity {
    /// Its type, such as `hmac(sha256)` or `aead`, as stored.
    pub kind: String,
    /// Encryption of the journal, as stored: `none`.
    pub journal_encryption: String,
    /// Authentication of the journal, as stored: `none`.
    pub journal_integrity: String,
    /// Length of the MAC's key in bytes, if it is not that of the MAC.
    pub key_len: Option<u32>,
}

/// A digest: verifies keys, and binds keyslots to segments.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digest {
    /// Keyslots that hold the key.
    pub keyslots: Vec<u32>,
    /// Segments encrypted under the key.
    pub segments: Vec<u32>,
    /// Fields of its type.
    pub kind: DigestKind,
}

/// Fields of a digest by its type.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DigestKind {
    /// `pbkdf2`.
    Pbkdf2 {
        /// The hash, as stored.
        hash: String,
        /// Number of iterations.
        iterations: u32,
        /// Its salt.
        salt: Vec<u8>,
        /// The digest of the right key.
        digest: Vec<u8>,
    },
    /// The name of another type.
    Other(String),
}

/// The `config` object.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Bytes of the JSON area.
    pub json_size: u64,
    /// Bytes of the keyslot areas, all together.
    pub keyslots_size: u64,
    /// Activation flags.
    pub flags: Vec<String>,
    /// Mandatory requirements.
    pub requirements: Vec<String>,
}
