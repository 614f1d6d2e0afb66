//! A store whose calls a test scripts: errors, short transfers, lost writes, records, counters, and calls that wait.
//!
//! The script sees every call before the store does. It may record it, wait in it (see [`Gate`]), or panic, and decides
//! what becomes of it.

#![forbid(unsafe_code)]

use inlock_engine::store::memory::MemoryStore;
use inlock_engine::{BackingStore, BlockStatus, Errno, Geometry, StoreProfile};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A call of a store. Positions and lengths are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Call<'a> {
    /// A read.
    Read {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: usize,
    },
    /// A write; a vectored one is a call for each part.
    Write {
        /// First byte.
        offset: u64,
        /// The bytes.
        data: &'a [u8],
    },
    /// A sync.
    Sync,
    /// A discard.
    Discard {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// A prefetch, which cannot fail.
    Prefetch {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
}

impl Call<'_> {
    /// Returns the first byte of a read or write, and the byte after the last.
    pub fn range(&self) -> Option<std::ops::Range<u64>> {
        match self {
            Self::Read { offset, len } => Some(*offset..*offset + *len as u64),
            Self::Write { offset, data } => Some(*offset..*offset + data.len() as u64),
            Self::Sync | Self::Discard { .. } | Self::Prefetch { .. } => None,
        }
    }
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The store executes it.
    Pass,
    /// It fails, and nothing was done.
    Fail(Errno),
    /// The store transfers at most so many bytes.
    Short(usize),
    /// It succeeds, but nothing was done.
    Ignore,
}

type Script = dyn Fn(Call<'_>) -> Verdict + Send + Sync;

/// A store that follows a script.
pub struct ScriptedStore<S = MemoryStore> {
    inner: Arc<S>,
    profile: StoreProfile,
    script: Box<Script>,
}

impl<S: BackingStore> ScriptedStore<S> {
    /// Creates a store over `inner`, with its profile.
    pub fn new(inner: Arc<S>, script: impl Fn(Call<'_>) -> Verdict + Send + Sync + 'static) -> Self {
        Self { profile: inner.profile(), inner, script: Box::new(script) }
    }

    /// Gives the store another profile.
    #[must_use]
    pub fn with_profile(self, profile: StoreProfile) -> Self {
        Self { profile, ..self }
    }

    /// Returns the store that executes the calls.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// Runs `call` as the script decides: it gets the number of bytes to transfer, of at most `len`.
    fn run(
        &self,
        call: Call<'_>,
        len: usize,
        execute: impl FnOnce(usize) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        match (self.script)(call) {
            Verdict::Pass => execute(len),
            Verdict::Fail(error) => Err(error),
            Verdict::Short(most) => execute(most.min(len)),
            Verdict::Ignore => Ok(len),
        }
    }
}

impl<S: BackingStore> BackingStore for ScriptedStore<S> {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn profile(&self) -> StoreProfile {
        self.profile
    }

    fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let whole = data.len();
        self.run(Call::Read { offset, len: whole }, whole, |len| self.inner.read_at(&mut data[..len], offset))
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        self.run(Call::Write { offset, data }, data.len(), |len| self.inner.write_at(&data[..len], offset))
    }

    fn sync(&self) -> Result<(), Errno> {
        self.run(Call::Sync, 0, |_| self.inner.sync().map(|()| 0)).map(drop)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), Errno> {
        self.run(Call::Discard { offset, len }, 0, |_| self.inner.discard(offset, len).map(|()| 0)).map(drop)
    }

    fn prefetch(&self, offset: u64, len: u64) {
        let _ = self.run(Call::Prefetch { offset, len }, 0, |_| {
            self.inner.prefetch(offset, len);
            Ok(0)
        });
    }

    fn block_status(&self, offset: u64, len: u64) -> Result<BlockStatus, Errno> {
        self.inner.block_status(offset, len)
    }
}

impl<S: BackingStore> ScriptedStore<S> {
    /// Returns a store whose call with this number, counted from 1, fails, and the number of its calls.
    pub fn failing_at(inner: Arc<S>, nth: usize, error: Errno) -> (Arc<Self>, Arc<AtomicUsize>) {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let script = move |_: Call<'_>| match counted.fetch_add(1, Ordering::SeqCst) + 1 {
            call if call == nth => Verdict::Fail(error),
            _ => Verdict::Pass,
        };
        (Arc::new(Self::new(inner, script)), calls)
    }
}

/// A step that reached a store, or a mark that the test set between two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step<M> {
    /// A write.
    Write {
        /// Position in bytes.
        at: usize,
        /// The bytes.
        data: Vec<u8>,
    },
    /// A sync: the writes before it are durable.
    Sync,
    /// A mark of the test, for example that a request was acknowledged.
    Mark(M),
}

/// Steps in order, for tests that cut the power after each.
#[derive(Debug)]
pub struct Log<M>(Arc<Mutex<Vec<Step<M>>>>);

impl<M> Clone for Log<M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<M> Default for Log<M> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<M: Clone + Send + 'static> Log<M> {
    /// Returns a store over `inner` that logs its writes and syncs. With `loses_syncs`, syncs succeed without being
    /// done, as the control of a test that must then fail.
    pub fn store<S: BackingStore>(&self, inner: Arc<S>, loses_syncs: bool) -> ScriptedStore<S> {
        let log = self.clone();
        ScriptedStore::new(inner, move |call| match call {
            Call::Write { offset, data } => {
                log.steps().push(Step::Write { at: offset as usize, data: data.to_vec() });
                Verdict::Pass
            }
            Call::Sync if loses_syncs => Verdict::Ignore,
            Call::Sync => {
                log.steps().push(Step::Sync);
                Verdict::Pass
            }
            // A cut cannot undo it.
            Call::Discard { .. } => Verdict::Fail(Errno::OPNOTSUPP),
            Call::Read { .. } | Call::Prefetch { .. } => Verdict::Pass,
        })
    }

    /// Appends a mark.
    pub fn mark(&self, mark: M) {
        self.steps().push(Step::Mark(mark));
    }

    /// Returns the steps so far.
    pub fn steps(&self) -> MutexGuard<'_, Vec<Step<M>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Holds calls of a script until the test lets them go on.
#[derive(Debug, Default)]
pub struct Gate {
    is_closed: Mutex<bool>,
    changed: Condvar,
    waiting: AtomicUsize,
}

impl Gate {
    /// Returns a gate that is closed.
    pub fn closed() -> Self {
        Self { is_closed: Mutex::new(true), ..Self::default() }
    }

    /// Blocks while the gate is closed.
    pub fn pass(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let is_closed = self.is_closed.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_while(is_closed, |is_closed| *is_closed).unwrap_or_else(PoisonError::into_inner));
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Holds the calls that come from now on.
    pub fn close(&self) {
        *self.is_closed.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }

    /// Lets all calls go on.
    pub fn open(&self) {
        *self.is_closed.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.changed.notify_all();
    }

    /// Returns the number of calls in [`Gate::pass`].
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(script: impl Fn(Call<'_>) -> Verdict + Send + Sync + 'static) -> ScriptedStore {
        ScriptedStore::new(Arc::new(MemoryStore::new(vec![1; 1024])), script)
    }

    #[test]
    fn verdict_decides_what_becomes_of_a_call() {
        for (verdict, result, written) in [
            (Verdict::Pass, Ok(4), [9, 9, 9, 9]),
            (Verdict::Fail(Errno::NOSPC), Err(Errno::NOSPC), [1; 4]),
            (Verdict::Short(3), Ok(3), [9, 9, 9, 1]),
            (Verdict::Short(5), Ok(4), [9, 9, 9, 9]),
            (Verdict::Ignore, Ok(4), [1; 4]),
        ] {
            let store = store(move |_| verdict);
            assert_eq!(store.write_at(&[9; 4], 8), result, "{verdict:?}");
            assert_eq!(store.inner().contents()[8..12], written, "{verdict:?}");
            assert_eq!(store.sync().is_ok(), result.is_ok(), "{verdict:?}");
        }
    }

    #[test]
    fn only_the_nth_call_fails() {
        let (store, calls) = ScriptedStore::failing_at(Arc::new(MemoryStore::new(vec![1; 1024])), 2, Errno::IO);
        let mut data = [0; 4];
        assert_eq!(store.read_at(&mut data, 0), Ok(4));
        assert_eq!(store.sync(), Err(Errno::IO));
        assert_eq!(store.write_at(&data, 0), Ok(4));
        assert_eq!(calls.load(Ordering::SeqCst), 3);
    }

    #[test]
    fn log_has_the_steps_in_order_and_no_sync_that_was_lost() {
        for loses_syncs in [false, true] {
            let log = Log::default();
            let store = log.store(Arc::new(MemoryStore::new(vec![0; 16])), loses_syncs);
            store.write_at(&[7], 3).unwrap();
            log.mark("between");
            store.sync().unwrap();
            let mut expected = vec![Step::Write { at: 3, data: vec![7] }, Step::Mark("between"), Step::Sync];
            expected.truncate(if loses_syncs { 2 } else { 3 });
            assert_eq!(*log.steps(), expected);
        }
    }

    #[test]
    fn closed_gate_holds_calls_until_it_opens() {
        let gate = Arc::new(Gate::closed());
        let held = Arc::clone(&gate);
        let store = store(move |_| {
            held.pass();
            Verdict::Pass
        });
        std::thread::scope(|scope| {
            let write = scope.spawn(|| store.write_at(&[2], 0));
            while gate.waiting() == 0 {
                std::thread::yield_now();
            }
            assert_eq!(store.inner().contents()[0], 1);
            gate.open();
            assert_eq!(write.join().unwrap(), Ok(1));
        });
        assert_eq!((store.inner().contents()[0], gate.waiting()), (2, 0));
    }
}
