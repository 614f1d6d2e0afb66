//! Errors of loading, unlocking, creating and rewriting volumes.
//!
//! Errors name the object by its path in the header, in the words of the format's specification: `LUKS2 header:
//! keyslots/3/area: offset 4096 overlaps the header`. Texts from a header are cut and escaped first ([`Excerpt`]), so
//! every error is safe to print. No error contains a secret.

use crate::header_policy::PolicyError;
use crate::pbkdf::{KdfError, RandomError};
use crate::printable::Excerpt;
use crate::signatures::Signature;
use crate::violation::HeaderFault;
use inlock_cipher::{AeadError, CipherError};
use std::fmt;
use std::io;

/// A volume cannot be loaded. The device is unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// There is no LUKS header, valid or damaged.
    #[error("not a LUKS volume")]
    NotLuks,
    /// The volume is in a re-encryption of LUKS1, which has marked its header.
    #[error("the volume is in LUKS1 re-encryption")]
    Luks1Reencrypted {
        /// The UUID, by which its files are named.
        uuid: String,
    },
    /// The version of the header does not exist, or is not supported.
    #[error("LUKS header: version {0} is not supported")]
    UnsupportedVersion(u16),
    /// The device ends inside the header.
    #[error("{what} ends at byte {needed}, but the device has only {len}")]
    Truncated {
        /// The object that does not fit.
        what: &'static str,
        /// End of the object, in bytes.
        needed: u64,
        /// Length of the device, in bytes.
        len: u64,
    },
    /// Only the second copy of a LUKS2 header is valid, and the device has the signature of another format. An older
    /// volume may have left the copy.
    #[error("the first copy of the LUKS2 header is lost, and the device has a {0}")]
    Ambiguous(Signature),
    /// The header violates its specification, and no other copy of it is valid.
    #[error(transparent)]
    Damaged(#[from] HeaderFault),
    /// The device could not be read.
    #[error("cannot read the header")]
    Io(#[from] io::Error),
}

/// An irregularity of a header that was loaded nevertheless.
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
    /// The copies have the same sequence number but different contents; the first was used.
    SameSequenceDifferentContent {
        /// Their sequence number.
        seqid: u64,
    },
    /// A label, or a string of the metadata, is not UTF-8, or has control characters. Names what.
    OddText(&'static str),
    /// The UUID is not a text.
    UuidDamaged(HeaderFault),
    /// Damage that is confined to a keyslot; the others can be used.
    KeyslotDamaged {
        /// Number of the keyslot.
        keyslot: u32,
        /// Its damage.
        fault: HeaderFault,
        /// Whether it can be used all the same.
        is_usable: bool,
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
            Self::OddText(name) => {
                write!(f, "the {name} has bytes that are no printable text in UTF-8; \\udce9 stands for a byte 0xe9")
            }
            Self::UuidDamaged(fault) => write!(f, "the UUID is damaged: {fault}"),
            Self::KeyslotDamaged { keyslot, fault, is_usable: true } => {
                write!(f, "keyslot {keyslot} is damaged: {fault}")
            }
            Self::KeyslotDamaged { keyslot, fault, is_usable: false } => {
                write!(f, "keyslot {keyslot} is invalid and not used: {fault}")
            }
        }
    }
}

/// A volume cannot be unlocked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnlockError {
    /// No tried keyslot opens with this passphrase.
    #[error("no key available with this passphrase")]
    WrongPassphrase,
    /// No active keyslot may be tried.
    #[error("no usable keyslot is available")]
    NoUsableKeyslot,
    /// The requested keyslot is not active.
    #[error("keyslot {0} is not active")]
    KeyslotInactive(u32),
    /// The key of the requested keyslot is not bound to a segment (LUKS2 "unbound").
    #[error("keyslot {0} has a key that is bound to no segment")]
    KeyslotUnbound(u32),
    /// The requested keyslot is damaged.
    #[error("keyslot {keyslot} is invalid")]
    KeyslotInvalid {
        /// Number of the keyslot.
        keyslot: u32,
        /// Its damage.
        source: HeaderFault,
    },
    /// The header has a requirement that Inlock does not support; it can be shown, but not activated.
    #[error("LUKS2 header: config/requirements: '{0}' is not supported")]
    Requirement(Excerpt),
    /// The volume is being re-encrypted, and its header cannot be used for that.
    #[error("LUKS2 header: re-encryption: {reason}")]
    Reencryption {
        /// The reason.
        reason: &'static str,
    },
    /// The segments of the volume cannot be used.
    #[error("LUKS2 header: segments/{segment}: {reason}")]
    Segment {
        /// Number of the segment.
        segment: u32,
        /// The reason.
        reason: &'static str,
    },
    /// The cipher is not supported.
    #[error("{place}: cipher '{name}' is not supported (its {part})")]
    UnsupportedCipher {
        /// The object that names it: `LUKS1 header`, `LUKS2 segment` or `LUKS2 keyslot`.
        place: &'static str,
        /// Its name.
        name: Excerpt,
        /// The unsupported part: `cipher`, `key count`, `mode`, `IV mode`, `ESSIV hash` or `specification`.
        part: &'static str,
    },
    /// The hash is not supported.
    #[error("{place}: hash '{name}' is not supported")]
    UnsupportedHash {
        /// The object that names it.
        place: &'static str,
        /// Its name.
        name: Excerpt,
    },
    /// The type of an object is not supported.
    #[error("{place}: type '{name}' is not supported")]
    UnsupportedType {
        /// The object that names it.
        place: &'static str,
        /// Its name.
        name: Excerpt,
    },
    /// The cipher of key material does not encrypt.
    #[error("keyslot {keyslot}: the cipher does not encrypt")]
    NullCipherKeyslot {
        /// Number of the keyslot.
        keyslot: u32,
    },
    /// The volume violates [`UnlockOptions::policy`](crate::UnlockOptions::policy).
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// No tried keyslot opens with this passphrase, and these were skipped.
    #[error(
        "{} cannot be tried: all together cost more than the limit, and no other opens with this passphrase",
        Keyslots(.0)
    )]
    TooCostlyTogether(Vec<u32>),
    /// The cipher does not accept the key.
    #[error("the cipher does not accept the key")]
    Cipher(#[from] CipherError),
    /// The authenticated cipher does not accept the key.
    #[error("the cipher does not accept the key")]
    Aead(#[from] AeadError),
    /// The key derivation was refused or failed.
    #[error("key derivation failed")]
    Kdf(#[from] KdfError),
    /// The digest cannot be computed, so no key can be verified.
    #[error("digest {digest} cannot be computed: {reason}")]
    DigestNotComputable {
        /// Number of the digest (0 for LUKS1).
        digest: u32,
        /// The reason.
        reason: &'static str,
    },
    /// Key material could not be read.
    #[error("cannot read the keyslot area")]
    Io(#[from] io::Error),
}

/// A device does not have the payload that the header describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DataDeviceError {
    /// The header is a detached one, but its own device was given for the payload.
    #[error("the header is detached: the payload is on another device")]
    Detached,
    /// The payload ends beyond the device.
    #[error("the payload ends at byte {needed}, but the data device has only {len}")]
    TooSmall {
        /// Minimum end of the payload, in bytes.
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
        /// The reason.
        reason: &'static str,
    },
    /// The new volume would violate its policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// Both halves of the caller's XTS key are equal.
    #[error("both halves of the XTS volume key are equal")]
    EqualXtsKeyHalves,
    /// The cipher does not accept a key of this length.
    #[error("the cipher does not accept the volume key")]
    Cipher(#[from] CipherError),
    /// The authenticated cipher does not accept a key of this length.
    #[error("the cipher does not accept the volume key")]
    Aead(#[from] AeadError),
    /// The key derivation was refused or failed.
    #[error("key derivation failed")]
    Kdf(#[from] KdfError),
    /// The system returned no random bytes.
    #[error("the system returned no random bytes")]
    Random(#[from] RandomError),
    /// The new metadata do not fit their area.
    #[error("the metadata takes {needed} bytes, but its area has only {area}")]
    MetadataTooLarge {
        /// Bytes of JSON.
        needed: u64,
        /// Bytes of its area.
        area: u64,
    },
    /// The device cannot be written.
    #[error("cannot write the header")]
    Io(#[from] io::Error),
    /// The written header cannot be loaded.
    #[error("cannot load the new header")]
    Verify(#[source] Box<LoadError>),
}

/// A header cannot be rewritten.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// The changed metadata violate the format; nothing was written.
    #[error("the changed metadata is not valid")]
    Invalid(#[from] HeaderFault),
    /// The metadata do not fit their area; nothing was written.
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
    /// The device has another header than the one that was loaded; nothing was written.
    #[error("the header was changed by another program")]
    HeaderChanged,
    /// The system returned no random bytes.
    #[error("the system returned no random bytes")]
    Random(#[from] RandomError),
    /// The device cannot be written; one copy of the header is still valid.
    #[error("cannot write the header")]
    Io(#[from] io::Error),
}

/// A header cannot be backed up, or a backup cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// There is no valid header.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The keyslot areas end too far from the start.
    #[error("a backup would take {0} bytes, which is too long")]
    TooLong(u64),
    /// A damaged copy cannot be replaced in the backup.
    #[error("cannot make the damaged copy whole")]
    Copy(#[from] CommitError),
    /// The device cannot be read.
    #[error("cannot read the keyslot areas")]
    Io(#[from] io::Error),
}

/// A backup cannot be restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The device is too small.
    #[error("the backup takes {needed} bytes, but the device has only {len}")]
    DeviceTooSmall {
        /// Length of the backup, in bytes.
        needed: u64,
        /// Length of the device, in bytes.
        len: u64,
    },
    /// The header on the device belongs to other data.
    #[error("the data start at byte {device} on the device, and at byte {backup} in the backup")]
    OtherDataOffset {
        /// Start of the data in the header on the device, in bytes.
        device: u64,
        /// Start of the data in the backup, in bytes.
        backup: u64,
    },
    /// The header on the device has a volume key of another length.
    #[error("the volume key on the device has another length than that in the backup")]
    OtherKeyLength,
    /// The backup has requirements that Inlock does not support.
    #[error("the backup has requirements that are not supported")]
    Requirements,
    /// The device cannot be read or written.
    #[error("cannot write the header")]
    Io(#[from] io::Error),
}

/// A passphrase does not prove the repair of a keyslot.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProofError {
    /// The header is not valid even with all repairs.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The passphrase does not open the keyslot with the new values.
    #[error(transparent)]
    Unlock(#[from] UnlockError),
}

/// A header cannot be repaired.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RepairError {
    /// There is no header, or its damage cannot be repaired.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A LUKS2 header cannot be written.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// The system returned no random bytes.
    #[error("the system returned no random bytes")]
    Random(#[from] RandomError),
    /// The device cannot be read or written.
    #[error("cannot write the header")]
    Io(#[from] io::Error),
}

/// Displays `keyslot 3` or `keyslots 3 and 4`.
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
