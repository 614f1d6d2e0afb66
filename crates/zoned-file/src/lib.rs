//! A zoned store in a regular file, for the engine of Inlock.
//!
//! For tests, and for machines without a zoned drive. A [`ZonedFile`] behaves as a host-managed drive does, with its
//! limits, and refuses what a drive refuses with the same error numbers. Write pointers and conditions of the zones are
//! in a sidecar, the file `NAME.zones`. What was answered outlives the process; what was answered before a
//! [`sync`](inlock_engine::BackingStore::sync) that succeeded outlives a power cut. Bytes beyond a zone's write pointer
//! read as zeroes. The store has no descriptor: all I/O goes through its calls, which move the pointers. The format,
//! and why it survives a power cut, is in `docs/formats/zoned-file.md`.

#![forbid(unsafe_code)]

mod error;
mod files;
mod layout;
mod mark;
mod records;
mod sidecar;
mod states;
mod store;

pub use error::{Damage, Mismatch, ZonedFileError};
pub use layout::{LayoutError, ZonedLayout};
pub use store::ZonedFile;
