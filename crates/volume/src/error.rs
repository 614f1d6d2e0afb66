//! Errors of loading, unlocking, creating and rewriting volumes.
//!
//! Errors carry their place in the header in the words of the format's specification, for example `LUKS2 header:
//! keyslots/3/area: offset 4096 overlaps the header`. Texts taken from a header are cut and escaped before they get
//! here ([`Excerpt`]), so that printing an error is always safe. No error holds a secret.

use crate::header_policy::PolicyError;
use crate::pbkdf::{KdfError, RandomError};
use crate::printable::Excerpt;
use crate::violation::HeaderFault;
use inlock_cipher::CipherError;
use std::fmt;
use std::io;

/// A volume cannot be loaded. The device is unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// There is no LUKS header, whole or damaged.
    #[error("not a LUKS volume")]
    NotLuks,
    /// The header is of a version that does not exist, or not yet.
    #[error("LUKS header: version {0} is not supported")]
    UnsupportedVersion(u16),
    /// The device ends before the header does.
    #[error("{what} ends at byte {needed}, but the device has only {len}")]
    Truncated {
        /// The object that does not fit.
        what: &'static str,
        /// Where it ends, in bytes.
        needed: u64,
        /// Length of the device, in bytes.
        len: u64,
    },
    /// The header breaks a rule of its specification and no other copy of it is whole.
    #[error(transparent)]
    Damaged(#[from] HeaderFault),
    /// The device could not be read.
    #[error("cannot read the header")]
    Io(#[from] io::Error),
}

/// A volume was loaded, but something about its header is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoadWarning {
    /// The first header copy is damaged; the second was used.
    PrimaryDamaged(HeaderFault),
    /// The second header copy is damaged; the first was used.
    SecondaryDamaged(HeaderFault),
    /// The copies have different sequence numbers; the newer was used.
    CopiesDiffer {
        /// Sequence number of the first copy.
        primary: u64,
        /// Sequence number of the second copy.
        secondary: u64,
    },
    /// The copies have the same sequence number but not the same content; the first was used.
    SameSequenceDifferentContent {
        /// Their sequence number.
        seqid: u64,
    },
}

impl fmt::Display for LoadWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PrimaryDamaged(fault) => write!(f, "first header copy is damaged, using the second: {fault}"),
            Self::SecondaryDamaged(fault) => write!(f, "second header copy is damaged, using the first: {fault}"),
            Self::CopiesDiffer { primary, secondary } => {
                write!(f, "header copies have sequence numbers {primary} and {secondary}, using the newer")
            }
            Self::SameSequenceDifferentContent { seqid } => {
                write!(f, "header copies with sequence number {seqid} have different content, using the first")
            }
        }
    }
}

/// A volume cannot be unlocked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnlockError {
    /// No keyslot that was tried opens with this passphrase.
    #[error("no key available with this passphrase")]
    WrongPassphrase,
    /// There is no active keyslot that may be tried.
    #[error("no usable keyslot is available")]
    NoUsableKeyslot,
    /// The keyslot that was asked for is not active.
    #[error("keyslot {0} is not active")]
    KeyslotInactive(u32),
    /// The keyslot that was asked for holds a key that is not this volume's (LUKS2 "unbound").
    #[error("keyslot {0} holds no key of a segment")]
    KeyslotUnbound(u32),
    /// The header demands something that Inlock does not have; it can be looked at, but not activated.
    #[error("LUKS2 header: config/requirements: '{0}' is not supported")]
    Requirement(Excerpt),
    /// The volume's segments cannot be served.
    #[error("LUKS2 header: segments/{segment}: {reason}")]
    Segment {
        /// Which segment.
        segment: u32,
        /// Why.
        reason: &'static str,
    },
    /// A cipher that Inlock does not have.
    #[error("{place}: cipher '{name}' is not supported (its {part})")]
    UnsupportedCipher {
        /// Where it is named: `LUKS1 header`, `LUKS2 segment` or `LUKS2 keyslot`.
        place: &'static str,
        /// Its name.
        name: Excerpt,
        /// Which part of it is not supported: `cipher`, `key count`, `mode`, `IV mode`, `ESSIV hash` or `notation`.
        part: &'static str,
    },
    /// A hash that Inlock does not have.
    #[error("{place}: hash '{name}' is not supported")]
    UnsupportedHash {
        /// Where it is named.
        place: &'static str,
        /// Its name.
        name: Excerpt,
    },
    /// A type of object that Inlock does not have.
    #[error("{place}: type '{name}' is not supported")]
    UnsupportedType {
        /// Where it is named.
        place: &'static str,
        /// Its name.
        name: Excerpt,
    },
    /// A cipher that must not protect key material: no encryption at all.
    #[error("keyslot {keyslot}: its cipher does not encrypt")]
    NullCipherKeyslot {
        /// Which keyslot.
        keyslot: u32,
    },
    /// The volume is not what [`UnlockOptions::policy`](crate::UnlockOptions::policy) allows, or requires.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// No keyslot that was tried opens with this passphrase, and these were not tried.
    #[error(
        "{} cannot be tried: all together cost more than the limit, and no other opens with this passphrase",
        Keyslots(.0)
    )]
    TooCostlyTogether(Vec<u32>),
    /// The cipher does not take the key.
    #[error("cipher key")]
    Cipher(#[from] CipherError),
    /// The key derivation was refused or failed.
    #[error("key derivation")]
    Kdf(#[from] KdfError),
    /// The digest cannot be computed, so no key can be verified.
    #[error("digest {digest} cannot be computed: {reason}")]
    DigestNotComputable {
        /// Which digest (0 for LUKS1).
        digest: u32,
        /// Why.
        reason: &'static str,
    },
    /// Key material could not be read.
    #[error("cannot read the keyslot area")]
    Io(#[from] io::Error),
}

/// A device does not hold the payload that the header describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DataDeviceError {
    /// The header says that it is detached, but its own device was given for the payload.
    #[error("the header is detached: the payload is on another device")]
    Detached,
    /// The payload reaches past the end of the device.
    #[error("the payload reaches to byte {needed}, but the data device has only {len}")]
    TooSmall {
        /// Where the payload ends at the earliest, in bytes.
        needed: u64,
        /// Length of the device, in bytes.
        len: u64,
    },
}

/// A volume cannot be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The device is too small.
    #[error("the header takes {needed} bytes, but the device has only {len}")]
    DeviceTooSmall {
        /// Bytes that the header takes.
        needed: u64,
        /// Length of the device, in bytes.
        len: u64,
    },
    /// An option has a value that the format or Inlock does not allow.
    #[error("{option}: {reason}")]
    InvalidOption {
        /// cryptsetup's name of the option, without dashes.
        option: &'static str,
        /// Why.
        reason: &'static str,
    },
    /// The volume would not be what its policy allows.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// Both halves of an XTS key given by the caller are the same.
    #[error("both halves of the XTS volume key are the same")]
    EqualXtsKeyHalves,
    /// The cipher does not take a key of this length.
    #[error("volume key")]
    Cipher(#[from] CipherError),
    /// The key derivation was refused or failed.
    #[error("key derivation")]
    Kdf(#[from] KdfError),
    /// The system gave no random bytes.
    #[error("no random bytes from the system")]
    Random(#[from] RandomError),
    /// The header that was made does not fit its area.
    #[error("the metadata takes {needed} bytes, but its area has only {area}")]
    MetadataTooLarge {
        /// Bytes of JSON.
        needed: u64,
        /// Bytes of its area.
        area: u64,
    },
    /// The device could not be written.
    #[error("cannot write the header")]
    Io(#[from] io::Error),
    /// The header that was written does not read back.
    #[error("cannot load the new header")]
    Verify(#[source] Box<LoadError>),
}

/// A header cannot be rewritten.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// The changed metadata breaks a rule of the format; nothing was written.
    #[error("the changed metadata is not valid")]
    Invalid(#[from] HeaderFault),
    /// The metadata does not fit its area; nothing was written.
    #[error("the metadata takes {needed} bytes, but its area has only {area}")]
    MetadataTooLarge {
        /// Bytes of JSON.
        needed: u64,
        /// Bytes of its area.
        area: u64,
    },
    /// The sequence number is at its maximum.
    #[error("the header's sequence number is at its maximum")]
    SequenceExhausted,
    /// The system gave no random bytes.
    #[error("no random bytes from the system")]
    Random(#[from] RandomError),
    /// The device could not be written; one copy of the header is still whole.
    #[error("cannot write the header")]
    Io(#[from] io::Error),
}

/// `keyslot 3`, `keyslots 3 and 4`.
struct Keyslots<'a>(&'a [u32]);

impl fmt::Display for Keyslots<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.len() == 1 { "keyslot" } else { "keyslots" })?;
        for (at, number) in self.0.iter().enumerate() {
            let before = match at {
                0 => " ",
                at if at + 1 == self.0.len() => " and ",
                _ => ", ",
            };
            write!(f, "{before}{number}")?;
        }
        Ok(())
    }
}
