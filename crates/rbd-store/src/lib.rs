//! An image of Ceph RBD as a backing store of the engine.
//!
//! [`RbdStore::open`] connects to the cluster of an [`RbdName`] through librados and librbd, which are loaded when the
//! first image is opened. Operations are librbd's asynchronous ones, many at a time; they are started on the engine's
//! threads, and one thread (`store`) takes their completions. All calls of the libraries are in `ffi`.
//!
//! An image that is opened for writing is locked exclusively. A client that has lost its lock to another one is
//! refused by the cluster for good; from then on every operation of the store fails.

#![warn(clippy::missing_errors_doc)]

mod error;
mod ffi;
mod name;
mod open;
mod options;
mod store;

pub use error::OpenError;
pub use name::{NameError, RbdName};
pub use options::{ImageFacts, StoreOptions};
pub use store::RbdStore;
