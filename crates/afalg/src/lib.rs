//! The Linux kernel's crypto API as a cipher engine, through sockets of the family AF_ALG.
//!
//! [`AfAlg`] is a [`CipherEngine`](inlock_engine::CipherEngine) for AES in the modes XTS and CBC. The kernel chooses
//! the implementation: an accelerator if there is a driver for one, otherwise instructions of the CPU.
//!
//! An operation of such a socket has one IV. So a request of n data units is n operations. A thread has up to 16 of
//! them in flight on as many sockets, through io_uring; without it, each is two system calls. Several requests are
//! processed at a time, each by one thread. What the kernel fails, the thread does in software. A key is in the kernel
//! until its [`EngineKey`](inlock_engine::EngineKey) is dropped, which closes its sockets.

#![warn(clippy::missing_errors_doc)]

mod api;
mod engine;
mod error;
#[allow(unsafe_code)] // Gives the kernel pointers to messages and results.
mod pipeline;
mod sockets;
#[cfg(test)]
mod tests;

pub use engine::{AfAlg, DEFAULT_MIN_LEN, DRIVER_VARIABLE};
pub use error::AfAlgError;
