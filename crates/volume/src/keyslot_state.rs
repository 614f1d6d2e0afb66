//! State of a keyslot, as far as it can be told without a passphrase.

use crate::error::UnlockError;

/// State of a keyslot.
#[derive(Debug)]
#[non_exhaustive]
pub enum KeyslotState {
    /// The right passphrase opens it, as far as can be told without one.
    Usable,
    /// The right passphrase opens it if it is requested by number.
    OnlyByNumber,
    /// It has a key that opens no data.
    Unbound,
    /// Its key material is gone: some sectors have only one byte.
    Overwritten {
        /// Number of such sectors.
        sectors: usize,
        /// Number of all sectors of the key material.
        of: usize,
    },
    /// Its key material cannot be read.
    Unreadable(std::io::Error),
    /// Its key material ends beyond the device.
    Truncated,
    /// It cannot be used.
    Unusable(UnlockError),
}
