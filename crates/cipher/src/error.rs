//! Errors of making and calling ciphers.

use crate::{CipherSpec, DataUnitSize};

/// A key or a specification that no cipher can be made from.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CipherError {
    /// The specification does not take a key of this length.
    #[error("{spec} does not take a key of {} bits", len * 8)]
    KeyLength {
        /// The specification.
        spec: CipherSpec,
        /// Length of the key, in bytes.
        len: usize,
    },
    /// The specification combines parts that do not go together.
    #[error("{0} is not supported")]
    Unsupported(CipherSpec),
    /// The specification is defined for other data units.
    #[error("{spec} takes data units of 512 bytes only, not {}", unit.bytes())]
    Unit {
        /// The specification.
        spec: CipherSpec,
        /// Size of a data unit.
        unit: DataUnitSize,
    },
    /// The environment variable `INLOCK_CPU` has a value that names no instruction set.
    #[error("INLOCK_CPU is '{value}', not one of portable, aesni, vaes256, vaes512")]
    UnknownCpuLimit {
        /// Its value, at most 64 characters.
        value: String,
    },
    /// The data of a call is not a positive number of whole data units.
    #[error("{len} bytes are not a positive number of data units of {} bytes", unit.bytes())]
    DataLength {
        /// Length of the data, in bytes.
        len: usize,
        /// Size of a data unit.
        unit: DataUnitSize,
    },
}
