//! The engine's locks, freeze, queue of syncs and mailbox in every order of their threads' steps.
//!
//! The files of the engine are compiled here a second time, as they stand, with loom's primitives in `sync` and with as
//! much of the modules around them as they use. A model is a test that runs a few threads on them: loom repeats it for
//! every order in which the threads' steps can take effect, each atomic operation with every value that its memory
//! ordering allows. A model fails if its threads all wait (a lost wake-up), if two of them access a
//! [`loom::cell::UnsafeCell`] at a time or without an order between them (no exclusion), or if an assertion does.

#![cfg_attr(not(test), allow(dead_code))]
// loom runs all threads of a model on one, and its cells are not `Sync`.
#![allow(clippy::arc_with_non_send_sync)]

#[allow(dead_code, unreachable_pub)]
#[path = "../../crates/engine/src/errno.rs"]
mod errno;
// To clippy, loom's `Arc` is like any other type.
#[allow(dead_code)]
#[path = "../../crates/engine/src/flush.rs"]
mod flush;
#[allow(clippy::map_clone, dead_code)]
#[path = "../../crates/engine/src/freeze.rs"]
mod freeze;
#[allow(dead_code, unreachable_pub)]
#[path = "../../crates/engine/src/locks.rs"]
mod locks;
#[allow(dead_code)]
#[path = "../../crates/engine/src/message_queue.rs"]
mod message_queue;

mod around;
use around::{crypt_mapping, events, mapping, request, ring, sync};

#[cfg(test)]
mod tests;
