//! Primitives of the code that waits for other threads and is model-checked: the locks of data units, the gate,
//! the queue of syncs, the mailbox.
//!
//! The package `inlock-models` compiles those files a second time, with a module of this name that has loom's primitives.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
pub(crate) use std::thread::sleep;
