//! Errors of formatting, verifying and opening devices.

use inlock_engine::Errno;
use std::fmt;

/// A device cannot be formatted, verified or opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerityError {
    /// There is no superblock at its place.
    #[error("the device has no superblock")]
    NoSuperblock,
    /// A field of the superblock, or a parameter, is impossible or does not match the devices.
    #[error(transparent)]
    Field(#[from] InvalidField),
    /// A block does not match its digest.
    #[error(transparent)]
    Corrupt(#[from] Corruption),
    /// A store failed.
    #[error("cannot {action}")]
    Io {
        /// The failed action.
        action: &'static str,
        /// The store's error.
        #[source]
        source: Errno,
    },
    /// The system returned no random bytes.
    #[error("the system returned no random bytes: {0}")]
    Random(getrandom::Error),
    /// `INLOCK_CPU` has an unknown value.
    #[error(transparent)]
    Cpu(#[from] inlock_cipher::CipherError),
}

impl VerityError {
    /// Returns the error of a store as that of an action.
    pub(crate) fn io(action: &'static str) -> impl FnOnce(Errno) -> Self {
        move |source| Self::Io { action, source }
    }
}

/// A field has an impossible value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("field {field} is {value}: {reason}")]
pub struct InvalidField {
    /// The field.
    pub field: &'static str,
    /// Its value.
    pub value: u64,
    /// The reason.
    pub reason: &'static str,
}

/// Returns an error unless `good`.
pub(crate) fn check(good: bool, field: &'static str, value: u64, reason: &'static str) -> Result<(), InvalidField> {
    if good { Ok(()) } else { Err(InvalidField { field, value, reason }) }
}

/// Part of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Area {
    /// The data.
    Data,
    /// A level of the tree. Level 0 has the digests of the data.
    Level(u32),
}

/// A block that does not match its digest, or has bytes that must be zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corruption {
    /// The block's part of the device.
    pub area: Area,
    /// Number of the block in this part.
    pub block: u64,
    /// First byte of the block, on the data device or the hash device.
    pub position: u64,
    /// Whether the digest to compare with is the root hash.
    pub is_root: bool,
    /// Whether the block matches its digest, and unused bytes of it are not zero.
    pub is_spare: bool,
    /// Whether the right bytes were computed from the parity.
    pub is_repaired: bool,
    /// Whether the digest to compare with is in a block of the tree that is corrupted, or below one.
    pub is_below_corrupted: bool,
}

impl fmt::Display for Corruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.area {
            Area::Data => write!(f, "data block {}", self.block)?,
            Area::Level(level) => write!(f, "hash block {} of level {level}", self.block)?,
        }
        write!(f, " at position {} ", self.position)?;
        f.write_str(match (self.is_root, self.is_spare) {
            _ if self.is_below_corrupted => "cannot be verified, since a hash block above it is corrupted",
            (_, true) => "has unused bytes that are not zero",
            (true, false) => "does not match the root hash",
            (false, false) => "does not match its digest",
        })?;
        f.write_str(if self.is_repaired { ", and was rebuilt from the parity" } else { "" })
    }
}

impl std::error::Error for Corruption {}
