//! The on-disk format of dm-verity, and verified reads of a device.
//!
//! A hash tree has a digest for every block of data; a block of the tree has the digests of many blocks of the level
//! below. The digest of the topmost block is the *root hash*, which is not stored: with it every block below can be
//! trusted. [`create()`] makes a tree, [`verify()`] compares all data with one, both on several threads;
//! [`VerityStore`] is a device as a store of the engine, which returns no block that does not match. Digests are
//! computed several at a time ([`inlock_cipher::HashBatch`]). With parity ([`Fec`]) blocks that do not match are
//! rebuilt.
//!
//! [`digest_file`] computes the digest of a file as fs-verity does.
//!
//! The format is that of Linux and of `veritysetup`, with both types: 1, and 0 as Chrome OS had it.
//!
//! ```
//! use inlock_engine::store::memory::MemoryStore;
//! use inlock_verity::{Parameters, Stores, VerityStore, create, verify};
//! use std::sync::Arc;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let data = Arc::new(MemoryStore::new(vec![7; 300 * 4096]));
//! let parameters = Parameters { data_blocks: 300, ..Parameters::default() };
//! let layout = parameters.layout()?;
//! let tree = Arc::new(MemoryStore::new(vec![0; layout.tree_len() as usize]));
//! let stores = Stores::new(data, tree, 0);
//! let root = create(&stores, &layout, 2)?;
//! verify(&stores, &layout, &root, 2)?;
//! let verified = VerityStore::open(&stores, &layout, &root, Default::default())?;
//! # let _ = verified;
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc, clippy::missing_panics_doc)]

mod cache;
mod error;
mod fec;
mod fsverity;
mod hasher;
mod layout;
mod reed_solomon;
mod store;
mod superblock;
mod tree;

pub use error::{Area, Corruption, InvalidField, VerityError};
pub use fec::{Fec, FecParameters};
pub use fsverity::{FileDigest, FileError, FileParameters, digest_file};
pub use layout::{HashType, Layout, Level, MAX_SALT_LEN, Parameters, random_salt};
pub use store::{OnCorruption, OpenOptions, Snapshot, VerityStore, verify_repairing};
pub use superblock::{SUPERBLOCK_LEN, Superblock, hash_named};
pub use tree::{Stores, create, verify};
