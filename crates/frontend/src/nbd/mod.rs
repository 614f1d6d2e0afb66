//! The NBD server: fixed newstyle handshake, structured replies, extended headers, `base:allocation`.
//!
//! [`handshake`] and [`transmission`] are the codec: bytes in, bytes out, no I/O. [`frontend`] runs connections on a
//! worker's ring, `transfer` carries their commands out; [`server`] listens, and spreads connections over workers. Source: the NBD project's `doc/proto.md`,
//! with its extended headers as in the branch `extension-ext-header`.

mod connection;
pub mod descriptors;
pub mod frontend;
pub mod handshake;
pub mod kernel;
mod netlink;
pub mod protocol;
pub mod server;
mod transfer;
pub mod transmission;
