//! Errors of making and calling ciphers.

use crate::unit::MAX_AEAD_UNITS;
use crate::{AeadSpec, CipherSpec, DataUnitSize};

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
    /// The pieces of the data and those of its destination differ in length.
    #[error("{len} bytes do not fit {destination} bytes of destination: pass pieces of the same length in all")]
    DestinationLength {
        /// Length of the data, in bytes.
        len: usize,
        /// Length of the destination, in bytes.
        destination: usize,
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

/// An error of an authenticated cipher. A wrong tag is not one: [`Aead::open`](crate::Aead::open) returns the units
/// that have it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AeadError {
    /// The cipher below the MAC, or the value of `INLOCK_CPU`.
    #[error(transparent)]
    Cipher(#[from] CipherError),
    /// The specification does not take a key of this length.
    #[error("{spec} does not take a key of {} bits", len * 8)]
    KeyLength {
        /// The specification.
        spec: AeadSpec,
        /// Length of the key, in bytes.
        len: usize,
    },
    /// The data units are too large.
    #[error("authenticated modes take data units of 512 to 4096 bytes, not {}", unit.bytes())]
    Unit {
        /// Size of a data unit.
        unit: DataUnitSize,
    },
    /// A tuple is shorter than tag and IV.
    #[error("{spec} needs {} bytes of metadata for each data unit, not {len}", spec.metadata_len())]
    TupleLength {
        /// The specification.
        spec: AeadSpec,
        /// Length of a tuple, in bytes.
        len: usize,
    },
    /// The data of a call is not a positive number of whole data units, or too many of them.
    #[error("{len} bytes are not 1 to {} data units of {} bytes", MAX_AEAD_UNITS, unit.bytes())]
    DataLength {
        /// Length of the data, in bytes.
        len: usize,
        /// Size of a data unit.
        unit: DataUnitSize,
    },
    /// The metadata of a call does not fit its data.
    #[error("{len} bytes of metadata are not {units} tuples of {tuple_len} bytes")]
    TuplesLength {
        /// Length of the metadata, in bytes.
        len: usize,
        /// Number of data units.
        units: usize,
        /// Length of a tuple, in bytes.
        tuple_len: usize,
    },
    /// The system's generator gave no random bytes.
    #[error("cannot read random bytes for IVs: {0}")]
    Random(getrandom::Error),
}
