//! Errors of conversions.

use crate::edit::EditError;
use crate::error::{CommitError, LoadError};
use crate::pbkdf::RandomError;
use crate::printable::Excerpt;
use crate::violation::HeaderFault;
use std::io;

/// A volume cannot be converted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConvertError {
    /// It has that version.
    #[error("device is already LUKS{0} type")]
    SameVersion(u32),
    /// There is no such version.
    #[error("invalid LUKS type, only luks1 and luks2 are supported")]
    UnknownVersion(u32),
    /// The header has a requirement.
    #[error("unmet LUKS2 requirement: '{0}'")]
    Requirement(Excerpt),
    /// A keyslot is damaged.
    #[error("keyslot {0} is damaged")]
    KeyslotDamaged(u32),
    /// There is more than one segment.
    #[error("device uses more segments")]
    Segments,
    /// The segment has a property that LUKS1 does not have.
    #[error("default segment {0}")]
    Segment(&'static str),
    /// The number of a keyslot is too high for LUKS1.
    #[error("slot {0} (over maximum slots) is still active")]
    KeyslotNumber(u32),
    /// A keyslot has a property that LUKS1 does not have.
    #[error("keyslot {keyslot} is not LUKS1 compatible: {reason}")]
    Keyslot {
        /// Number of the keyslot.
        keyslot: u32,
        /// The reason.
        reason: &'static str,
    },
    /// LUKS1 has no tokens.
    #[error("LUKS2 header contains {0} token(s)")]
    Tokens(usize),
    /// The digests cannot be that of a LUKS1 header.
    #[error("keyslot digests are not LUKS1 compatible: {0}")]
    Digests(&'static str),
    /// The areas do not fit.
    #[error("not enough space in header keyslot area: it takes {needed} bytes, but has only {len}")]
    NoSpace {
        /// Bytes that the new header takes.
        needed: u64,
        /// Bytes before the payload, or of the keyslot areas.
        len: u64,
    },
    /// A text of the header is too long for LUKS1.
    #[error("{0} is too long")]
    TooLong(&'static str),
    /// The new header would violate its format.
    #[error("the new header is not valid")]
    Invalid(#[from] HeaderFault),
    /// The header could not be loaded afterwards.
    #[error("cannot load the new header")]
    Load(#[from] LoadError),
    /// A LUKS1 header cannot be changed.
    #[error(transparent)]
    Edit(#[from] EditError),
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
