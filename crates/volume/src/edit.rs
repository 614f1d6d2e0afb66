//! Requests, results and errors of changes to a header, for every format.

use crate::error::{CommitError, UnlockError};
use crate::key_material::SealError;
use crate::pbkdf::{Hash, KdfError, KdfKind, KdfRequest, RandomError};
use crate::printable::Excerpt;
use crate::violation::HeaderFault;
use inlock_cipher::{CipherError, CipherSpec};
use std::io;

/// Parameters of a new keyslot. The default is that of LUKS2;
/// [`Volume::new_keyslot`](crate::Volume::new_keyslot) returns those of a volume's format.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NewKeyslot {
    /// Number of the keyslot (`--key-slot`). `None`: the first free one; for a change of a LUKS2 keyslot, its own.
    pub number: Option<u32>,
    /// Costs of the key derivation; LUKS1 takes only PBKDF2. Its `hash` is replaced by [`NewKeyslot::hash`].
    pub kdf: KdfRequest,
    /// Hash of PBKDF2 and of the anti-forensic splitter (`--hash`); `None`: `sha256`. A LUKS1 keyslot always has that
    /// of its header.
    pub hash: Option<Hash>,
    /// Cipher of the keyslot's area and length of its key in bytes (`--keyslot-cipher`, `--keyslot-key-size`), for
    /// LUKS2; `None`: those of the payload.
    pub cipher: Option<(CipherSpec, usize)>,
    /// Whether a change may overwrite the keyslot in place if there is no space for a second one. A power cut may then
    /// leave neither the old nor the new passphrase of this keyslot.
    pub may_overwrite: bool,
}

impl NewKeyslot {
    /// Returns the default with this key derivation.
    pub fn new(kind: KdfKind) -> Self {
        Self { number: None, kdf: KdfRequest::new(kind), hash: None, cipher: None, may_overwrite: false }
    }
}

impl Default for NewKeyslot {
    fn default() -> Self {
        Self::new(KdfKind::Argon2id)
    }
}

/// State of a keyslot number, as libcryptsetup's `crypt_keyslot_status` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyslotStatus {
    /// The format has no such number.
    Invalid,
    /// Holds no key.
    Inactive,
    /// Holds the volume key.
    Active,
    /// Holds the volume key, and is the last one that does.
    ActiveLast,
    /// Holds a key that is bound to no segment.
    Unbound,
}

/// Priority of a LUKS2 keyslot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Only tried if it is requested by number (`ignore`).
    Ignore,
    /// Tried in the order of numbers (`normal`).
    Normal,
    /// Tried before the others (`prefer`).
    Prefer,
}

/// A header was not changed, or not completely. Load it again before the next change.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EditError {
    /// An option has a value that the format or Inlock does not allow.
    #[error("{option}: {reason}")]
    InvalidOption {
        /// cryptsetup's name of the option, without dashes.
        option: &'static str,
        /// The reason.
        reason: &'static str,
    },
    /// The format of the volume does not have this.
    #[error("{0} needs LUKS2")]
    NeedsLuks2(&'static str),
    /// The format has no keyslot of this number.
    #[error("keyslot {number} is invalid, select between 0 and {max}")]
    KeyslotInvalid {
        /// The number.
        number: u32,
        /// The highest number.
        max: u32,
    },
    /// The keyslot holds no key.
    #[error("keyslot {0} is not active")]
    KeyslotInactive(u32),
    /// The keyslot for the new key is in use.
    #[error("keyslot {0} is full, select another one")]
    KeyslotInUse(u32),
    /// The keyslot belongs to a re-encryption that is not finished.
    #[error("keyslot {0} holds the state of a re-encryption")]
    KeyslotOfReencryption(u32),
    /// Every keyslot is in use.
    #[error("all keyslots are full")]
    NoFreeKeyslot,
    /// The keyslot areas have no gap for another key.
    #[error("no space for new keyslot: it takes {needed} bytes, which none of the gaps in the keyslot areas has")]
    NoFreeArea {
        /// Length of the new area, in bytes.
        needed: u64,
    },
    /// Every digest is in use.
    #[error("no space for another digest: LUKS2 has at most {max}")]
    NoFreeDigest {
        /// The maximum.
        max: u32,
    },
    /// The key is not the one that the header's digest confirms.
    #[error("volume key does not match the volume")]
    WrongKey,
    /// The header has a requirement that Inlock does not support.
    #[error("unmet LUKS2 requirement: '{0}'")]
    Requirement(Excerpt),
    /// The token number does not exist.
    #[error("token {number} is invalid, select between 0 and {max}")]
    TokenInvalid {
        /// The number.
        number: u32,
        /// The highest number.
        max: u32,
    },
    /// There is no token of this number.
    #[error("token {0} is not in use")]
    TokenInactive(u32),
    /// The number for a new token is in use.
    #[error("token {0} in use")]
    TokenInUse(u32),
    /// Every token is in use.
    #[error("all tokens are in use")]
    NoFreeToken,
    /// The token is not assigned to the keyslot.
    #[error("token {token} is not assigned to keyslot {keyslot}")]
    TokenNotAssigned {
        /// Number of the token.
        token: u32,
        /// Number of the keyslot.
        keyslot: u32,
    },
    /// The JSON text is no token.
    #[error("not a valid token")]
    TokenJson(#[source] HeaderFault),
    /// The JSON text is a token of a reserved type, or violates the rules of its type.
    #[error("not a valid token of type '{kind}': {reason}")]
    TokenType {
        /// Its type.
        kind: Excerpt,
        /// The reason.
        reason: &'static str,
    },
    /// The key material of a removed keyslot may still be there.
    #[error("cannot overwrite the key material of keyslot {keyslot}")]
    NotOverwritten {
        /// Number of the keyslot.
        keyslot: u32,
        /// The cause.
        source: io::Error,
    },
    /// The header cannot confirm the key, or names an algorithm that is not supported.
    #[error(transparent)]
    Unsupported(#[from] UnlockError),
    /// The cipher does not accept the key.
    #[error("the cipher does not accept the key")]
    Cipher(#[from] CipherError),
    /// The key derivation was refused or failed.
    #[error("key derivation failed")]
    Kdf(#[from] KdfError),
    /// The system returned no random bytes.
    #[error("the system returned no random bytes")]
    Random(#[from] RandomError),
    /// The metadata cannot be rewritten.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// The device cannot be read or written.
    #[error("cannot write the keyslot")]
    Io(#[from] io::Error),
}

impl From<SealError> for EditError {
    fn from(error: SealError) -> Self {
        match error {
            SealError::Cipher(error) => Self::Cipher(error),
            SealError::Kdf(error) => Self::Kdf(error),
            SealError::Random(error) => Self::Random(error),
        }
    }
}
