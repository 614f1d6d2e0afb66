//! The Linux kernel's crypto API as a cipher engine, through sockets of the family AF_ALG.
//!
//! [`AfAlg`] is a [`CipherEngine`](inlock_engine::CipherEngine) for AES in the modes XTS and CBC. The kernel chooses
//! the implementation: an accelerator if there is a driver for one, otherwise instructions of the CPU.
//!
//! An operation of such a socket has one IV. So a request of n data units is n operations of two system calls each, one
//! after the other; several requests are processed at a time, each by a thread with a socket of its own. What the
//! kernel fails, the thread does in software. A key is in the kernel until its [`EngineKey`](inlock_engine::EngineKey)
//! is dropped, which closes its sockets.

#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod api;
mod engine;
mod error;
mod sockets;
#[cfg(test)]
mod tests;

pub use engine::{AfAlg, DEFAULT_MIN_LEN};
pub use error::AfAlgError;
