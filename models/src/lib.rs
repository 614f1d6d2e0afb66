//! Models of the engine's locks, freeze, sync queue and message queue, checked in every order of their threads' steps.
//!
//! The engine's files are compiled here a second time, unchanged, with loom's primitives in `sync` and with stubs of
//! the modules around them. A model is a test that runs a few threads: loom repeats it for every order in which the
//! threads' steps can take effect, each atomic operation with every value that its memory ordering allows. A model
//! fails if all threads block (a lost wake-up), if two of them access a [`loom::cell::UnsafeCell`] at the same time or
//! without an order between them (no exclusion), or if an assertion fails.

#![cfg_attr(not(test), allow(dead_code))]
// loom runs all threads of a model on one thread, and its cells are not `Sync`.
#![allow(clippy::arc_with_non_send_sync)]

// clippy does not know that loom's `Arc` is one.
#[allow(dead_code, unreachable_pub)]
#[path = "../../crates/engine/src/errno.rs"]
mod errno;
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
