//! Freeze state of a device: holds requests back while the device is suspended, and provides the crypt mapping while it
//! is not.
//!
//! A worker reads one number per turn, [`Freeze::epoch`], and the rest of the state only if it has changed. Each worker
//! is registered here and reports when it has nothing in flight. A call of [`crate::BlockingDevice`] holds a
//! [`UsageGuard`]. While the device is frozen, the freeze state has the only reference to the mapping, so that dropping
//! it wipes the keys.
//!
//! Model-checked: the package `inlock-models` compiles this file with loom's primitives.

use crate::crypt_mapping::{CALL_STACK, CryptMapping};
use crate::errno::Errno;
use crate::mapping::Mapping;
use crate::request::RequestError;
use crate::ring::Waker;
use crate::sync::{Arc, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, PoisonError, RwLock, RwLockReadGuard, sleep};
use inlock_cipher::scrub_stack;
use std::ops::Deref;
use std::time::{Duration, Instant};

/// State of a device's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FreezeState {
    /// Requests are carried out.
    Running,
    /// Requests wait.
    Frozen,
    /// Requests fail: the device was closed while it was suspended.
    Ended,
}

/// Timeout for the last other reference to the mapping of a frozen device: a thread of the cipher pool may still work
/// for a worker that has died.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

/// Another thread still referenced the mapping after [`RELEASE_TIMEOUT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InUse;

/// Freeze state as seen by a worker.
pub(crate) struct View {
    pub(crate) epoch: u64,
    pub(crate) freeze_state: FreezeState,
    pub(crate) mapping: Arc<Mapping>,
    /// Crypt mapping; `None` while frozen.
    pub(crate) target: Option<Arc<CryptMapping>>,
}

pub(crate) struct Freeze {
    /// Number that changes with every change of the state.
    epoch: AtomicU64,
    /// Crypt mapping for blocking callers; `None` while they have to wait.
    usage: RwLock<Option<Arc<CryptMapping>>>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    freeze_state: FreezeState,
    mapping: Arc<Mapping>,
    /// `None`: the key was wiped.
    target: Option<Arc<CryptMapping>>,
    workers: Vec<Member>,
    next_worker: u64,
}

/// Registered worker.
struct Member {
    id: u64,
    waker: Waker,
    /// Whether it has nothing in flight and starts nothing before it reads the state again.
    idle: bool,
}

/// Guard of a call in progress. The device is not frozen before it is dropped.
pub(crate) struct UsageGuard<'a>(RwLockReadGuard<'a, Option<Arc<CryptMapping>>>);

impl Drop for UsageGuard<'_> {
    fn drop(&mut self) {
        scrub_stack::<CALL_STACK>();
    }
}

impl Deref for UsageGuard<'_> {
    type Target = CryptMapping;

    fn deref(&self) -> &CryptMapping {
        self.0.as_ref().expect("a pass is only made where there is a target")
    }
}

impl Freeze {
    pub(crate) fn new(target: CryptMapping) -> Self {
        let (mapping, target) = (Arc::clone(target.mapping()), Arc::new(target));
        let usage = RwLock::new(Some(Arc::clone(&target)));
        let state = State {
            freeze_state: FreezeState::Running,
            mapping,
            target: Some(target),
            workers: Vec::new(),
            next_worker: 0,
        };
        Self { epoch: AtomicU64::new(0), usage, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Returns a number that differs after every change. One load, for a worker's turn.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    pub(crate) fn freeze_state(&self) -> FreezeState {
        self.state().freeze_state
    }

    pub(crate) fn mapping(&self) -> Arc<Mapping> {
        Arc::clone(&self.state().mapping)
    }

    /// Returns the crypt mapping for a call on this thread. Blocks while the device is frozen.
    pub(crate) fn enter(&self) -> Result<UsageGuard<'_>, RequestError> {
        loop {
            let target = self.usage.read().unwrap_or_else(PoisonError::into_inner);
            if target.is_some() {
                return Ok(UsageGuard(target));
            }
            drop(target);
            let closed = |state: &mut State| state.freeze_state == FreezeState::Frozen;
            let state = self.changed.wait_while(self.state(), closed).unwrap_or_else(PoisonError::into_inner);
            if state.freeze_state == FreezeState::Ended {
                return Err(RequestError::Io(Errno::SHUTDOWN));
            }
        }
    }

    /// Registers a worker that `waker` wakes, and returns its number.
    pub(crate) fn join(&self, waker: Waker) -> u64 {
        let mut state = self.state();
        let id = state.next_worker;
        state.next_worker += 1;
        state.workers.push(Member { id, waker, idle: true });
        id
    }

    /// Returns the current state. A worker that finds the device running counts as busy from then on.
    pub(crate) fn view(&self, worker: u64) -> View {
        let mut state = self.state();
        let open = state.freeze_state == FreezeState::Running;
        if let Some(worker) = state.workers.iter_mut().find(|s| s.id == worker)
            && open
        {
            worker.idle = false;
        }
        // The epoch changes only with the state locked, so it belongs to the state read here.
        View {
            epoch: self.epoch(),
            freeze_state: state.freeze_state,
            mapping: Arc::clone(&state.mapping),
            target: state.target.as_ref().filter(|_| open).map(Arc::clone),
        }
    }

    /// Reports that a worker of a frozen device has nothing in flight and has dropped its crypt mapping.
    pub(crate) fn set_idle(&self, worker: u64) {
        let mut state = self.state();
        if let Some(worker) = state.workers.iter_mut().find(|s| s.id == worker) {
            worker.idle = true;
        }
        self.changed.notify_all();
    }

    /// Deregisters a worker that ends.
    pub(crate) fn leave(&self, worker: u64) {
        self.state().workers.retain(|s| s.id != worker);
        self.changed.notify_all();
    }

    /// Holds new requests back and blocks until none is in flight.
    pub(crate) fn freeze(&self) {
        self.move_to(&mut self.state(), FreezeState::Frozen);
        // Blocks until every guard is dropped.
        *self.usage.write().unwrap_or_else(PoisonError::into_inner) = None;
        let busy = |state: &mut State| state.workers.iter().any(|worker| !worker.idle);
        drop(self.changed.wait_while(self.state(), busy).unwrap_or_else(PoisonError::into_inner));
    }

    /// Lets requests proceed. Returns false, and stays frozen, if there is no key.
    pub(crate) fn try_unfreeze(&self) -> bool {
        let mut state = self.state();
        let Some(target) = &state.target else { return false };
        *self.usage.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(target));
        self.move_to(&mut state, FreezeState::Running);
        true
    }

    /// Fails waiting and later requests.
    pub(crate) fn end(&self) {
        self.move_to(&mut self.state(), FreezeState::Ended);
    }

    /// Replaces the crypt mapping. The old one is dropped when this returns, or on failure as soon as its last user
    /// ends. The device must be frozen, and the caller be the only one to change it.
    pub(crate) fn replace(&self, target: Option<CryptMapping>) -> Result<(), InUse> {
        let mut state = self.state();
        if let Some(target) = &target {
            state.mapping = Arc::clone(target.mapping());
        }
        let before = std::mem::replace(&mut state.target, target.map(Arc::new));
        drop(state);
        before.map_or(Ok(()), |before| take_alone(before, RELEASE_TIMEOUT).map(drop).map_err(|_| InUse))
    }

    /// Changes the crypt mapping of a frozen device. Returns false if the key was wiped. The caller must be the only
    /// one to change it.
    pub(crate) fn change(&self, change: impl FnOnce(CryptMapping) -> CryptMapping) -> Result<bool, InUse> {
        let Some(before) = self.state().target.take() else { return Ok(false) };
        let taken = take_alone(before, RELEASE_TIMEOUT);
        let mut state = self.state();
        match taken {
            Ok(before) => {
                let target = change(before);
                state.mapping = Arc::clone(target.mapping());
                state.target = Some(Arc::new(target));
                Ok(true)
            }
            Err(before) => {
                state.target = Some(before);
                Err(InUse)
            }
        }
    }

    /// Measures the ciphers of the crypt mapping, if there is one.
    pub(crate) fn measure(&self) {
        if let Some(target) = &self.state().target {
            target.measure();
        }
    }

    fn move_to(&self, state: &mut MutexGuard<'_, State>, freeze_state: FreezeState) {
        state.freeze_state = freeze_state;
        self.epoch.fetch_add(1, Ordering::AcqRel);
        self.changed.notify_all();
        state.workers.iter().for_each(|worker| worker.waker.wake());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until no other reference to the mapping exists. Returns the reference unchanged after the timeout.
fn take_alone(mut target: Arc<CryptMapping>, timeout: Duration) -> Result<CryptMapping, Arc<CryptMapping>> {
    let start = Instant::now();
    loop {
        target = match Arc::try_unwrap(target) {
            Ok(target) => return Ok(target),
            Err(shared) if start.elapsed() >= timeout => return Err(shared),
            Err(shared) => shared,
        };
        sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn drop_of_keys_waits_for_other_users_of_the_mapping() {
        let freeze = Freeze::new(CryptMapping::raw(4096));
        freeze.freeze();
        let user = freeze.state().target.clone();
        let (told, ended) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(30));
                told.send(()).unwrap();
                drop(user);
            });
            let grown = CryptMapping::grown(&freeze.mapping(), &[8192]);
            assert_eq!(freeze.change(|target| target.with_lengths(grown)), Ok(true));
            assert_eq!(ended.try_recv(), Ok(()), "not before it was given back");
        });
        assert_eq!(freeze.mapping().len(), 8192);
        let user = freeze.state().target.clone();
        std::thread::scope(|scope| {
            scope.spawn(move || drop(user));
            assert_eq!(freeze.replace(None), Ok(()));
        });
        assert_eq!(freeze.change(|target| target), Ok(false));
    }

    #[test]
    fn wait_for_other_user_of_frozen_mapping_times_out() {
        let target = Arc::new(CryptMapping::raw(4096));
        let user = Arc::clone(&target);
        let kept = take_alone(target, Duration::from_millis(5));
        assert!(kept.is_err_and(|kept| Arc::ptr_eq(&kept, &user)));
    }
}
