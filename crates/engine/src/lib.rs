//! A request's way through: locate, encrypt or decrypt in one call, store.
//!
//! The engine knows no LUKS. It is given segments and a key, makes a [`CryptMapping`] of them, and carries requests between
//! a frontend and a store: on the thread that has the request, without a queue in between.

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
