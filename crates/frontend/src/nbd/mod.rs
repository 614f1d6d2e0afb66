//! The NBD server: fixed newstyle handshake, structured replies, extended headers, `base:allocation`.
//!
//! [`handshake`], [`transmission`] and [`protocol`] are the codec: bytes in, bytes out, no I/O; [`client`] is the half
//! of it that clients use. `session` is one client as a state machine, with its `output` and its `memory`; `active`
//! carries commands out; `mux` runs the sessions of one worker on its ring. [`server`] listens, and deals connections
//! to workers. With many exports or [`tls`], `greeting` has a thread for each handshake, and `relay` passes plaintext
//! between a client over TLS and its worker; [`park`] keeps the clients of idle exports. [`kernel`] connects the
//! kernel's NBD driver to a server. Source: the NBD project's `doc/proto.md`, with its extended headers as in the
//! branch `extension-ext-header`.

mod active;
mod block_status;
pub mod certificates;
mod check;
pub mod client;
pub mod descriptors;
pub mod exports;
mod greeting;
pub mod handshake;
pub mod kernel;
pub mod link;
pub mod listener;
mod memory;
mod mux;
mod netlink;
mod output;
pub mod park;
mod places;
pub mod protocol;
mod relay;
pub mod server;
mod session;
pub mod throttle;
pub mod tls;
pub mod transmission;
mod zeroing;
