//! Engine of Inlock: maps, encrypts and carries out the requests of a volume. It does not parse LUKS headers; the caller
//! passes segments and keys.
//!
//! A program needs a [`BackingStore`] that holds the ciphertext ([`store::file::FileStore`] for files and block devices,
//! [`store::memory::MemoryStore`] for tests) and a [`Device`], which combines segments, key and store. There are two ways
//! to use a device, also at the same time:
//!
//! - [`BlockingDevice`] has `read_at`, `write_at` and `flush`. Calls run on the calling thread and block until they are
//!   complete. Any number of threads may share one; it starts none.
//! - [`worker::Worker`] serves a [`worker::Frontend`], such as an NBD server. Each worker is an event loop on one thread,
//!   with a [`ring::Ring`] and a [`BufferPool`] of its own. It encrypts between two steps, on the same thread; cipher and
//!   copy threads are optional. Workers share a device, and keep requests to the same data units in order.
//!
//! A write is on stable storage after the next flush, or at its completion with FUA. Only ciphertext reaches a store.
//!
//! ```
//! use inlock_cipher::{CipherSpec, DataUnitSize, Sector, Segment, VolumeKey};
//! use inlock_engine::{Access, BlockingDevice, Device, store::memory::MemoryStore};
//! use std::sync::Arc;
//!
//! let segment = Segment {
//!     start: Sector(0),
//!     sectors: None, // to the end of the store
//!     data_offset: Sector(0),
//!     iv_offset: Sector(0),
//!     unit: DataUnitSize::SECTOR,
//!     large_iv: false,
//!     cipher: Some(CipherSpec::AES_XTS_PLAIN64),
//! };
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

// Unit tests share a store with the tests in `tests/`.
#[cfg(test)]
extern crate self as inlock_engine;
#[cfg(test)]
#[allow(dead_code, reason = "the tests in `tests/` use more of it")]
#[path = "../tests/it/zoned/memory.rs"]
mod zoned_memory;

pub mod blocking;
pub mod buffer;
pub mod crypt_mapping;
pub mod device;
mod events;
#[cfg(feature = "fault-injection")]
pub mod fault_injection;
mod flush;
mod freeze;
pub mod locks;
pub mod mapping;
mod message_queue;
pub mod request;
pub mod ring;
pub mod rmw;
pub mod stats;
pub mod store;
mod sync;
mod thread_pool;
pub mod worker;
mod zone_mapping;
mod zone_queue;
pub mod zoned;

pub use blocking::BlockingDevice;
pub use buffer::{Buffer, BufferPool};
pub use crypt_mapping::{Content, CryptMapping, MappedRange, Target, TargetError};
pub use device::{Access, ControlError, Device};
pub use mapping::{Kind, Mapping};
pub use request::{ByteRange, RequestError};
pub use stats::{Stats, StatsLevel};
pub use store::{BackingStore, BlockStatus, Geometry, StoreProfile};
pub use thread_pool::crypt::{Offload, OffloadError, OffloadOptions, OffloadPolicy};
