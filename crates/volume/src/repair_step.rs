//! Steps of the repair of a header, as the user reads them.

use crate::error::LoadWarning;
use crate::header_copy::Copy;
use std::fmt;

/// One repair of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Repair {
    /// A copy of a LUKS2 header is written again from the other one.
    RewriteCopy {
        /// The copy to write.
        copy: Copy,
        /// Why.
        reason: LoadWarning,
    },
    /// The magic is written again; the rest of the header is whole.
    RestoreMagic,
    /// Both copies of a LUKS2 header are written again, from the binary header of the first one and metadata that are
    /// whole. No checksum proves them.
    RebuildCopies,
    /// The binary header of LUKS2 is made again; the metadata are whole.
    RebuildHeader {
        /// The new UUID. The old one, label and subsystem are lost.
        uuid: String,
    },
    /// A value of a keyslot is replaced by the usual one.
    MendKeyslot {
        /// Number of the keyslot.
        keyslot: u32,
        /// Name of the value.
        field: &'static str,
        /// The damaged value.
        from: String,
        /// The new value.
        to: String,
    },
    /// Remains of a partition table are wiped from an unused keyslot.
    WipePartitionTable {
        /// Number of the keyslot.
        keyslot: u32,
    },
    /// A keyslot that cannot be used is erased.
    EraseKeyslot {
        /// Number of the keyslot.
        keyslot: u32,
        /// Its damage.
        reason: String,
    },
    /// The name of the hash is written in lower case.
    LowerHash {
        /// The name.
        to: String,
    },
}

impl Repair {
    /// Whether it restores a header that cannot be loaded from what is left of it.
    pub(crate) fn is_salvage(&self) -> bool {
        matches!(self, Self::RestoreMagic | Self::RebuildCopies | Self::RebuildHeader { .. })
    }

    /// Whether it may lose a keyslot for good: it erases one, or replaces a valid copy of the header that may have
    /// others.
    pub fn is_erasure(&self) -> bool {
        match self {
            Self::EraseKeyslot { .. } => true,
            Self::RewriteCopy { reason, .. } => matches!(reason, LoadWarning::SameSequenceDifferentContent { .. }),
            _ => false,
        }
    }
}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RewriteCopy { copy: Copy::Primary, .. } => f.write_str("rewrite the first header copy"),
            Self::RewriteCopy { copy: Copy::Secondary, .. } => f.write_str("rewrite the second header copy"),
            Self::RestoreMagic => f.write_str("write the magic of the header, whose rest is whole"),
            Self::RebuildCopies => f.write_str("write both header copies again, from metadata that are whole"),
            Self::RebuildHeader { uuid } => {
                write!(f, "make a header with UUID {uuid} from metadata that are whole; label and UUID are lost")
            }
            Self::MendKeyslot { keyslot, field, from, to } => {
                write!(f, "keyslot {keyslot}: set {field} from {from} to {to}")
            }
            Self::WipePartitionTable { keyslot } => {
                write!(f, "keyslot {keyslot}: wipe the signature of a partition table")
            }
            Self::EraseKeyslot { keyslot, reason } => write!(f, "keyslot {keyslot}: erase it, because {reason}"),
            Self::LowerHash { to } => write!(f, "write the hash as {to}"),
        }
    }
}
