//! A zoned store in a regular file, for the engine of Inlock.
//!
//! For tests, and for machines without a zoned drive. A [`ZonedFile`] behaves like a host-managed drive: it has the
//! same limits, and refuses the same requests with the same error numbers. Write pointers and conditions of the zones
//! are in a sidecar, the file `NAME.zones`. Acknowledged writes survive the process; those acknowledged before a
//! successful [`sync`](inlock_engine::BackingStore::sync) survive a power cut. Bytes beyond the write pointer of a zone
//! read as zeroes. The store has no descriptor: all I/O goes through its calls, which move the pointers.
//! `docs/formats/zoned-file.md` describes the format, and how it survives a power cut.

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
