//! Engine of Inlock: maps, encrypts and carries out the requests of a volume. It does not parse LUKS headers; the
//! caller passes segments and keys.
//!
//! A program needs a [`BackingStore`] that holds the ciphertext ([`store::file::FileStore`] for files and block
//! devices, [`store::memory::MemoryStore`] for tests) and a [`Device`], which combines segments, key and store. There
//! are two ways to use a device, also at the same time:
//!
//! - [`BlockingDevice`] has `read_at`, `write_at` and `flush`, and `read_vectored_at` and `write_vectored_at` for
//!   memory in several pieces. Calls run on the calling thread and block until they are complete. Any number of threads
//!   may share one; it starts none.
//! - [`worker::Worker`] serves a [`worker::Frontend`], such as an NBD server. Each worker is an event loop on one
//!   thread, with a [`ring::Ring`] and a [`BufferPool`] of its own. It encrypts between two steps, on the same thread;
//!   cipher and copy threads are optional. Workers share a device, and keep requests to the same data units in order.
//!
//! A write is on stable storage after the next flush, or at its completion with FUA. Plaintext of an
//! encrypted segment never reaches a store.
//!
//! ```
//! use inlock_cipher::{CipherSpec, DataUnitSize, Segment, VolumeKey};
//! use inlock_engine::{Access, BlockingDevice, Device, store::memory::MemoryStore};
//! use std::sync::Arc;
//!
//! // The whole store.
//! let segment = Segment::whole(Some(CipherSpec::AES_XTS_PLAIN64), DataUnitSize::SECTOR);
//! // AES-256-XTS. Use random bytes; the two halves must differ.
//! let key = VolumeKey::new(&std::array::from_fn::<u8, 64, _>(|i| i as u8));
//! let store = Arc::new(MemoryStore::new(vec![0; 1 << 20]));
//! let device = Device::new(&[segment], &key, store.clone(), Access::default())?;
//!
//! let volume = BlockingDevice::new(Arc::new(device));
//! volume.write_at(b"secret", 1000)?;
//! volume.flush()?;
//! let mut data = [0; 6];
//! volume.read_at(&mut data, 1000)?;
//! assert_eq!(&data, b"secret");
//! assert_ne!(&store.contents()[1000..1006], b"secret");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(clippy::missing_errors_doc)]

// Unit tests share a store with the tests in `tests/`.
#[cfg(test)]
extern crate self as inlock_engine;
#[cfg(test)]
#[allow(dead_code, reason = "the tests in `tests/` use more of it")]
#[path = "../tests/it/zoned/memory.rs"]
mod zoned_memory;

pub mod allocator;
mod blocking;
mod boundary;
pub mod buffer;
mod cipher_engine;
mod ciphertext;
mod crypt_mapping;
mod device;
mod errno;
mod events;
#[cfg(feature = "fault-injection")]
pub mod fault_injection;
mod flush;
mod freeze;
mod holes;
mod locks;
mod mapping;
mod message_queue;
mod pieces;
pub mod request;
pub mod ring;
pub mod rmw;
pub mod startup;
pub mod stats;
pub mod store;
mod sync;
mod thread_pool;
pub mod worker;
mod zone_mapping;
mod zone_queue;
pub mod zoned;

pub use blocking::{BlockingDevice, DeviceCursor};
pub use boundary::MoveDirection;
pub use buffer::{Buffer, BufferPool};
pub use cipher_engine::{CipherEngine, CipherJob, Direction, EngineKey, EngineKeySpec, EngineStats};
pub use ciphertext::Ciphertext;
pub use crypt_mapping::{Content, CryptMapping, Sides, Target, TargetError};
pub use device::{Access, ControlError, Device, ZoneLock};
pub use errno::Errno;
pub use holes::Zeroing;
pub use mapping::{MappedRange, Mapping, Place};
pub use request::{ByteRange, RequestError};
pub use stats::{Stats, StatsLevel};
pub use store::{BackingStore, BlockStatus, Geometry, StoreProfile};
pub use thread_pool::crypt::{Offload, OffloadError, OffloadOptions, OffloadPolicy, UnknownPolicy};
