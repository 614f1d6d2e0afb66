//! Frontends of Inlock: they make a [`Device`](inlock_engine::Device) available to other programs.
//!
//! | module, its feature | the volume becomes | it needs |
//! |---|---|---|
//! | [`nbd`] (default) | an NBD export at a unix socket or a TCP address | nothing |
//! | [`nbd::kernel`] | a block device, `/dev/nbdN`, whose driver is a client of that export | root, the `nbd` driver |
//! | `ublk` | a block device, `/dev/ublkbN`, with zones if the store has them | root, Linux 6.4, the `ublk_drv` driver |
//! | `fuse` | a regular file, and with its `loop_device` a block device, `/dev/loopN` | `/dev/fuse`; root for the latter |
//!
//! All are used in the same way: `start` returns when requests are served, on threads of the frontend; `stop` answers
//! the requests that were read and puts everything that was written on stable storage. Several frontends may serve one
//! device. Clients of the NBD server are not trusted: what they may send, hold and delay is bounded
//! ([`nbd::server::Limits`]). Clients read the plaintext; a unix socket is its owner's alone, and TCP is neither
//! encrypted nor authenticated.
//!
//! A server of an encrypted volume in memory:
//!
//! ```
//! use inlock_cipher::{CipherSpec, DataUnitSize, Segment, VolumeKey};
//! use inlock_engine::store::memory::MemoryStore;
//! use inlock_engine::{Access, Device};
//! use inlock_frontend::nbd::server::{Listen, Server, ServerOptions};
//! use std::sync::Arc;
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let segment = Segment::whole(Some(CipherSpec::AES_XTS_PLAIN64), DataUnitSize::SECTOR);
//!     let key = VolumeKey::new(&(0..64).collect::<Vec<u8>>());
//!     let store = Arc::new(MemoryStore::new(vec![0; 1 << 20]));
//!     let device = Arc::new(Device::new(&[segment], &key, store, Access::default())?);
//!
//!     let directory = tempfile::tempdir()?;
//!     let listen = Listen::Unix(directory.path().join("socket"));
//!     let server = Server::start(device, &listen, &ServerOptions::default())?;
//!     println!("clients may connect to {}", server.listen());
//!     server.stop()?;
//!     Ok(())
//! }
//! ```

#![warn(clippy::missing_errors_doc)]

pub mod connect;
#[cfg(feature = "fuse")]
pub mod fuse;
#[cfg(feature = "nbd")]
pub mod nbd;
#[cfg(feature = "ublk")]
pub mod ublk;
