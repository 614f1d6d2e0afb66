//! An export of any NBD server as a backing store of the engine.
//!
//! [`NbdStore::open`] connects to the server of an [`NbdUri`] and returns a store that carries out operations
//! asynchronously, many at a time, over one connection or several. One thread (`driver`) has all of it: connections
//! (`line`), what waits for them, and connecting again (`dial`). `tls` has
//! the certificates; the frontend's [`Link`](inlock_frontend::nbd::link::Link) encrypts.
//!
//! The server holds ciphertext and is not trusted: it cannot make the store allocate, wait without bound, or answer for
//! another request. A server that violates the protocol is disconnected, and its requests are sent again over
//! new connections, until they have waited as long as [`StoreOptions`] allow.
//!
//! **After a lost connection** the server may have lost writes that it had acknowledged and not flushed. Then the next
//! flush fails, unless [`StoreOptions::replay`] keeps these writes to make them again.

#![warn(clippy::missing_errors_doc)]

mod dial;
mod driver;
mod error;
mod job;
mod line;
mod options;
mod replay;
mod shared;
mod store;
mod tls;
mod uri;

pub use error::OpenError;
pub use options::{ExportFacts, StoreOptions};
pub use store::NbdStore;
pub use uri::{NbdUri, UriError};
