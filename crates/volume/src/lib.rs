//! Headers and keys of LUKS1, LUKS2 and plain dm-crypt volumes, and device-mapper tables.
//!
//! [`Volume::load`] reads and checks a header from a [`HeaderDevice`]. [`Volume::unlock`] turns a passphrase into the
//! [`VolumeKey`] and the [`Segment`]s of the volume, from which `inlock-engine` makes a device. [`luks1::format`] and
//! [`luks2::format`] create volumes. [`plain::Plain`] is a volume without a header, [`Table`] the table of dm-crypt.
//! The crate does no I/O on the payload and takes no locks.
//!
//! ```
//! use inlock_volume::{MemoryDevice, Secret, UnlockOptions, Volume, luks2};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = MemoryDevice::zeroed(20 << 20); // or FileDevice::new(file)
//! let mut options = luks2::FormatOptions::default();
//! options.kdf.memory_kib = Some(1024); // quick, for this example
//! options.kdf.iter_time_ms = 10;
//! luks2::format(&device, options, &Secret::new(b"passphrase".to_vec()))?;
//!
//! let volume = Volume::load(&device)?;
//! println!("LUKS{} {}", volume.version(), volume.uuid());
//! let unlocked = volume.unlock(&device, &Secret::new(b"passphrase".to_vec()), &UnlockOptions::default())?;
//! assert_eq!((unlocked.keyslot, unlocked.segments.len()), (Some(0), 1));
//! assert!(volume.unlock(&device, &Secret::new(b"wrong".to_vec()), &UnlockOptions::default()).is_err());
//! # Ok(())
//! # }
//! ```
//!
//! Headers are taken as hostile. Each violation of a specification is an error with its path in the header, never a
//! panic, an unbounded allocation or a write, and key derivations have limits ([`KdfLimits`]). A header cannot turn
//! encryption off ([`HeaderPolicy`]). A volume key is returned only if the header's digest confirms it.

#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod af;
mod attempts;
mod authenticated;
mod byte_text;
mod checked_device;
mod convert;
mod edit;
mod error;
mod find_headers;
mod header_backup;
mod header_copy;
mod header_device;
mod header_policy;
mod key_material;
mod keyslot_report;
mod keyslot_state;
pub mod luks1;
pub mod luks2;
mod luks_cipher;
mod luks_uuid;
mod pbkdf;
pub mod plain;
mod positioned;
mod printable;
mod repair;
mod repair_step;
mod secret;
mod signatures;
pub mod table;
mod unlock;
mod violation;
mod volume;
mod zones;

pub use authenticated::AuthenticatedSegment;
pub use byte_text::{bytes_of_text, text_of_bytes};
pub use convert::{Conversion, ConvertError, ForeignMetadata};
pub use edit::{EditError, KeyslotStatus, NewKeyslot, Priority};
pub use error::{
    BackupError, CommitError, DataDeviceError, FormatError, LoadError, LoadWarning, ProofError, RepairError,
    RestoreError, UnlockError,
};
pub use find_headers::{FoundHeader, find_headers};
pub use header_backup::{HeaderBackup, MAX_BACKUP_LEN, Replaced};
pub use header_device::{BoundedDevice, FileDevice, HeaderDevice, MemoryDevice, WindowDevice};
pub use header_policy::{HeaderDigest, HeaderPolicy, InvalidHeaderDigest, KdfRule, PolicyError, plain_iv_repeats};
pub use inlock_cipher::{AeadSpec, CipherSpec, DataUnitSize, Sector, Segment, VolumeKey};
pub use keyslot_report::KeyslotReport;
pub use keyslot_state::KeyslotState;
pub use pbkdf::{Argon2Cost, Hash, Kdf, KdfError, KdfKind, KdfLimits, KdfRequest, RandomError, UnknownHash};
pub use printable::{Excerpt, Printable};
pub use repair::RepairPlan;
pub use repair_step::Repair;
pub use secret::Secret;
pub use signatures::{Signature, SignatureKind, find_signatures, wipe_signatures};
pub use table::{Table, TableError};
pub use unlock::{ActivationFlags, UnlockOptions, UnlockWarning, Unlocked};
pub use violation::{HeaderFault, HeaderPath, Violation};
pub use volume::{HeaderLocation, Volume};
pub use zones::{ZoneFault, Zones};
