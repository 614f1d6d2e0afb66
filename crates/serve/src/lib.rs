//! Running volumes: names and control of the volumes that a process serves, their status and metrics, block devices and
//! files to attach them as, and many volumes in one server.
//!
//! ```no_run
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use inlock_engine::{Access, store::file::IoMode};
//! use inlock_open::{Context, KeySource, OpenOptions, Settings, host::Silent, open};
//! use inlock_serve::attached::{Attaching, Serving, Shutdown};
//! use inlock_serve::control::name::Name;
//! use inlock_serve::{Error, Told};
//!
//! /// Only `inlock close data` ends it.
//! struct Never;
//!
//! impl Shutdown for Never {
//!     fn wait(&self, limit: Duration) -> Result<bool, Error> {
//!         std::thread::sleep(limit);
//!         Ok(false)
//!     }
//!
//!     fn postponed(&self, _held: Error) {}
//! }
//!
//! let context = Context::new(Silent, Settings::default());
//! let name = Name::new("data")?;
//! // Before a passphrase is asked for.
//! let attaching = Attaching::begin(Arc::new(context.clone()), &name, None, || false)?;
//! let unlocked = open(&context, &OpenOptions::luks("disk.img", KeySource::bytes("passphrase")), true, None)?;
//! let volume = unlocked.info.clone();
//! let stores = unlocked.into_device(IoMode::Auto, Access::default())?;
//! let attached = attaching.attach(volume, &stores, Serving { threads: 1, engine: None, metrics: None }, || {})?;
//! println!("{}", attached.node().display());
//! let ended = stores.check_writes(attached.wait(&Never));
//! drop(stores);
//! attached.finish(ended.as_ref().copied().map_err(Told::of));
//! # ended?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A name has a lock, a state file and a socket in the [run directory](run_dir). [`control`] has both ends of the
//! socket, [`attached`] attaches an opened volume, [`many`] opens volumes when clients of NBD ask for them. The program
//! around the library is a [`Program`]; errors have neither exit status nor hint ([`Error`]).

#![forbid(unsafe_code)]

pub mod attach;
pub mod attached;
pub mod control;
pub mod error;
pub mod listen;
pub mod log;
pub mod many;
pub mod method;
pub mod pipe;
pub mod program;
pub mod run_dir;
pub mod socket;
pub mod tls;
pub mod trusted_config;
pub mod uri;

pub use error::{Error, Reply, Result, Told};
pub use method::AttachMethod;
pub use program::Program;
