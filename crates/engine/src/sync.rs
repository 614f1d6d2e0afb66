//! Synchronization primitives of the model-checked modules: the locks of data units, the freeze state, the sync queue
//! and the message queue.
//!
//! The package `inlock-models` compiles those modules a second time, with a module of this name that has loom's
//! primitives.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
pub(crate) use std::thread::sleep;
