//! Headers and keys of plain, LUKS1 and LUKS2 volumes.
//!
//! This crate reads and writes what says how a volume is encrypted, and turns a passphrase into what serves it: a
//! [`VolumeKey`] and [`Segment`]s. It sees no request and no payload. Everything read from a device is taken for
//! hostile: it ends in a typed error with its place, never in a panic, an unbounded allocation or a write. A volume
//! whose key cannot be verified is not unlocked.

#![forbid(unsafe_code)]

pub mod af;
pub mod error;
pub mod header_device;
pub mod header_policy;
mod key_material;
pub mod luks1;
pub mod luks2;
mod luks_cipher;
mod luks_uuid;
pub mod pbkdf;
pub mod plain;
mod printable;
pub mod secret;
pub mod table;
pub mod unlock;
mod violation;
pub mod volume;
pub mod zones;

pub use error::{CommitError, DataDeviceError, FormatError, LoadError, LoadWarning, UnlockError};
pub use header_device::{BoundedDevice, FileDevice, HeaderDevice, MemoryDevice};
pub use header_policy::{HeaderPolicy, PolicyError, plain_iv_repeats};
pub use inlock_cipher::{CipherSpec, DataUnitSize, Sector, Segment, VolumeKey};
pub use pbkdf::{Argon2Cost, Hash, Kdf, KdfError, KdfKind, KdfLimits, KdfRequest};
pub use printable::{Excerpt, Printable};
pub use secret::Secret;
pub use table::{Table, TableError};
pub use unlock::{ActivationFlags, UnlockOptions, UnlockWarning, Unlocked};
pub use violation::{HeaderFault, HeaderPath, Violation};
pub use volume::Volume;
pub use zones::{ZoneFault, Zones};
