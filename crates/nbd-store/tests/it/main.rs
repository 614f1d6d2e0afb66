//! The NBD store against servers: honest ones, hostile ones, ones that die, and the real ones.

// Helpers outside test functions may fail a test as well as the functions themselves.
#![allow(missing_docs, clippy::unwrap_used)]

mod fake;
mod handshake;
mod hostile;
mod limits;
mod order;
mod real;
mod restart;
mod tls;
