//! Errors of formatting and opening volumes.

use inlock_engine::Errno;

/// A volume cannot be formatted or opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IntegrityError {
    /// The device has no superblock, and its first 4096 bytes are zero.
    #[error("the device has no superblock")]
    NoSuperblock,
    /// The device has other data where the superblock belongs.
    #[error("superblock field magic: the device holds other data")]
    OtherData,
    /// A field of the superblock is impossible or does not match the devices.
    #[error(transparent)]
    Superblock(#[from] InvalidField),
    /// An option is impossible or does not match the superblock.
    #[error("option {option}: {reason}")]
    Option {
        /// The option.
        option: &'static str,
        /// The reason.
        reason: &'static str,
    },
    /// A store failed.
    #[error("cannot {action}")]
    Io {
        /// The failed action.
        action: &'static str,
        /// The store's error.
        #[source]
        source: Errno,
    },
    /// The system returned no random bytes for the salt.
    #[error("the system returned no random bytes: {0}")]
    Random(getrandom::Error),
}

impl IntegrityError {
    /// Returns an error of an option.
    pub(crate) const fn option(option: &'static str, reason: &'static str) -> Self {
        Self::Option { option, reason }
    }

    /// Returns the error of a store as that of an action.
    pub(crate) fn io(action: &'static str) -> impl FnOnce(Errno) -> Self {
        move |source| Self::Io { action, source }
    }
}

/// A field of the superblock has an impossible value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("superblock field {field} is {value}: {reason}")]
pub struct InvalidField {
    /// The field, under the kernel's name.
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
