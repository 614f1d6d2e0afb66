//! Substitutes for the modules of the engine that the model-checked files use.

/// The engine's module of this name, with loom's primitives.
pub(crate) mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    pub(crate) use loom::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard};
    use std::sync::LockResult;
    pub(crate) use std::sync::PoisonError;
    use std::time::Duration;

    /// loom's condition variable, with the standard library's loop around `wait`.
    #[derive(Default)]
    pub(crate) struct Condvar(loom::sync::Condvar);

    impl Condvar {
        pub(crate) fn new() -> Self {
            Self::default()
        }

        pub(crate) fn wait_while<'a, T>(
            &self,
            mut guard: MutexGuard<'a, T>,
            mut condition: impl FnMut(&mut T) -> bool,
        ) -> LockResult<MutexGuard<'a, T>> {
            while condition(&mut guard) {
                guard = self.0.wait(guard)?;
            }
            Ok(guard)
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }

    /// Lets other threads run.
    pub(crate) fn sleep(_: Duration) {
        loom::thread::yield_now();
    }
}

/// The part of the engine's module that locks use.
pub(crate) mod crypt_mapping {
    use super::mapping::Mapping;
    use super::sync::Arc;
    use loom::cell::UnsafeCell;

    /// Data units of four bytes.
    pub(crate) struct MappedRange {
        pub(crate) store: u32,
        pub(crate) store_offset: u64,
        pub(crate) aligned_len: usize,
        pub(crate) is_partial: bool,
    }

    impl MappedRange {
        pub(crate) fn is_partial(&self) -> bool {
            self.is_partial
        }
    }

    pub(crate) const CALL_STACK: usize = 8 << 10;

    /// A mapping whose uses loom checks.
    pub(crate) struct CryptMapping {
        mapping: Arc<Mapping>,
        keys: UnsafeCell<()>,
    }

    impl CryptMapping {
        pub(crate) fn new() -> Self {
            Self { mapping: Arc::new(Mapping), keys: UnsafeCell::new(()) }
        }

        pub(crate) fn mapping(&self) -> &Arc<Mapping> {
            &self.mapping
        }

        pub(crate) fn measure(&self) {}

        /// Uses the keys, possibly concurrently with other threads.
        pub(crate) fn use_keys(&self) {
            self.keys.with(|_| ());
        }

        /// Changes the keys, which no other thread may use meanwhile.
        pub(crate) fn change_keys(&self) {
            self.keys.with_mut(|_| ());
        }
    }

    impl Drop for CryptMapping {
        fn drop(&mut self) {
            // After a failure loom has no current thread.
            if !std::thread::panicking() {
                self.change_keys();
            }
        }
    }
}

/// The part of the engine's module that locks use: an event calls a closure.
pub(crate) mod events {
    pub(crate) enum Event {
        Locked,
    }

    pub(crate) struct ReplyTo(Box<dyn Fn(Event)>);

    impl ReplyTo {
        pub(crate) fn new(reply: impl Fn(Event) + 'static) -> Self {
            Self(Box::new(reply))
        }

        pub(crate) fn post(&self, event: Event) {
            (self.0)(event);
        }
    }
}

/// The part of the engine's module that the freeze uses.
pub(crate) mod mapping {
    pub(crate) struct Mapping;
}

/// The part of the engine's module that the freeze uses.
pub(crate) mod request {
    #[derive(Debug, PartialEq, Eq)]
    pub(crate) enum RequestError {
        Io(crate::errno::Errno),
    }
}

/// A worker's waker: a counter to wait for, like an event descriptor.
pub(crate) mod ring {
    use super::sync::{Condvar, Mutex, MutexGuard, PoisonError};
    use std::sync::Arc;

    #[derive(Clone, Default)]
    pub(crate) struct Waker(Arc<Event>);

    #[derive(Default)]
    struct Event {
        count: Mutex<u64>,
        readable: Condvar,
    }

    impl Waker {
        /// Ends the current or the next wait.
        pub(crate) fn wake(&self) {
            *self.count() += 1;
            self.0.readable.notify_all();
        }

        /// Blocks until a wake since the last [`Waker::clear`].
        pub(crate) fn wait(&self) {
            drop(self.0.readable.wait_while(self.count(), |count| *count == 0));
        }

        pub(crate) fn clear(&self) {
            *self.count() = 0;
        }

        fn count(&self) -> MutexGuard<'_, u64> {
            self.0.count.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }
}
