//! Opens volumes of dm-crypt in user space: plain, LUKS1, LUKS2, with integrity protection, dm-integrity, dm-verity and
//! device-mapper tables, on files, block devices, exports of NBD servers and images of Ceph RBD.
//!
//! ```no_run
//! use inlock_engine::{Access, BlockingDevice, store::file::IoMode};
//! use inlock_open::host::Silent;
//! use inlock_open::{Context, KeySource, OpenOptions, Settings, open};
//!
//! let context = Context::new(Silent, Settings::default());
//! let options = OpenOptions::luks("disk.img", KeySource::bytes("passphrase"));
//! let volume = open(&context, &options, false, None)?.into_device(IoMode::Auto, Access::default())?;
//! let mut sector = [0; 512];
//! BlockingDevice::new(volume.device.clone()).read_at(&mut sector, 0)?;
//! volume.check_writes(Ok::<(), inlock_open::Error>(()))?;
//! # Ok::<(), inlock_open::Error>(())
//! ```
//!
//! [`open()`] takes a volume from [`OpenOptions`] to an [`unlocked::UnlockedVolume`]: device, lock, header, policy,
//! key, in this order. [`unlocked::UnlockedVolume::into_device`] makes the device of the engine.
//! [`create::NewVolume`] creates a LUKS volume.
//!
//! What programs do with volumes is here, too: [`examine()`](examine::examine) finds damage, [`copy`] copies plaintext
//! into volumes and out of them, to an [`output`]; [`verity_format`] and [`integrity_format`] create devices.
//!
//! The library has no state of its own: what openings share is in a [`host::Context`]. It prints nothing and asks
//! nobody: that is the [`host::Host`]. Its errors have neither exit status nor hint ([`error::ErrorKind`]).

#![forbid(unsafe_code)]

pub mod any_cipher;
pub mod backing;
pub mod config;
mod contents;
pub mod copy;
pub mod create;
pub mod device;
pub mod durable;
pub mod edit;
pub mod engine;
pub mod error;
mod error_kind;
pub mod examine;
pub mod freshness;
pub mod header;
pub mod header_access;
pub mod header_backup;
pub mod helper_process;
mod holes;
pub mod host;
pub mod info;
pub mod integrity;
pub mod integrity_format;
pub mod integrity_line;
pub mod integrity_options;
pub mod integrity_table;
pub mod kernel_keyring;
pub mod key_check;
pub mod keyring;
pub mod layer;
pub mod lock;
pub mod mounts;
pub mod open;
pub mod output;
pub mod path_text;
pub mod policy_file;
pub mod private_key;
pub mod range;
pub mod reencryption;
pub mod reload;
pub mod remote;
pub mod removed_integrity;
pub mod run_dir;
pub mod secret;
pub mod settings;
pub mod signatures;
pub mod source;
pub mod staged;
pub mod table;
mod threads;
pub mod token;
pub mod trusted;
pub mod unlocked;
pub mod verity;
pub mod verity_format;
pub mod verity_table;
pub mod wipe;
pub mod zones;

pub use config::OpenConfig;
pub use error::{Error, ErrorKind, Result};
pub use host::{Context, Host};
pub use open::open;
pub use settings::Settings;
pub use source::{KeySource, OpenOptions};
