//! The freeze of a device: what holds requests back while it is suspended, and hands the target out while it is not.
//!
//! Workers look at one number a turn, [`Freeze::epoch`], and only where it has changed at anything else; each has a worker
//! here and says when nothing of it is in flight. Callers of [`crate::BlockingDevice`] hold a pass for the length of a
//! call. While the freeze is closed nobody but the freeze has the target, so that dropping it wipes its keys.
//!
//! Model-checked: the package `inlock-models` compiles this file with loom's primitives.

use crate::crypt_mapping::{CALL_STACK, CryptMapping};
use crate::mapping::Mapping;
use crate::request::RequestError;
use crate::ring::Waker;
use crate::sync::{Arc, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, PoisonError, RwLock, RwLockReadGuard, sleep};
use inlock_cipher::scrub_stack;
use rustix::io::Errno;
use std::ops::Deref;
use std::time::{Duration, Instant};

/// Whether requests go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FreezeState {
    /// They do.
    Running,
    /// They wait.
    Frozen,
    /// They fail: the device is given up while it was suspended.
    Ended,
}

/// How long somebody else may have the target of a closed freeze: a thread of the cipher pool, at work for a worker that has
/// died meanwhile.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

/// Somebody else still had the target when [`RELEASE_TIMEOUT`] was over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InUse;

/// What a worker finds when it looks.
pub(crate) struct View {
    pub(crate) epoch: u64,
    pub(crate) freeze_state: FreezeState,
    pub(crate) mapping: Arc<Mapping>,
    /// The target, while the freeze is open.
    pub(crate) target: Option<Arc<CryptMapping>>,
}

pub(crate) struct Freeze {
    /// Changes with every change of the state; says nothing else.
    epoch: AtomicU64,
    /// The target for callers that block; `None` while they have to wait.
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

/// A worker.
struct Member {
    id: u64,
    waker: Waker,
    /// It has nothing in flight and will start nothing before it has looked again.
    idle: bool,
}

/// A call that is carried out. The freeze does not close before it is dropped.
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

    /// A number that is another one after every change. One load; for a worker's turn.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    pub(crate) fn freeze_state(&self) -> FreezeState {
        self.state().freeze_state
    }

    pub(crate) fn mapping(&self) -> Arc<Mapping> {
        Arc::clone(&self.state().mapping)
    }

    /// The target for a call on this thread. Waits while the freeze is closed.
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

    /// A worker for a worker, which `waker` wakes.
    pub(crate) fn join(&self, waker: Waker) -> u64 {
        let mut state = self.state();
        let id = state.next_worker;
        state.next_worker += 1;
        state.workers.push(Member { id, waker, idle: true });
        id
    }

    /// How things stand. A worker that finds the freeze open has to be waited for from now on.
    pub(crate) fn view(&self, worker: u64) -> View {
        let mut state = self.state();
        let open = state.freeze_state == FreezeState::Running;
        if let Some(worker) = state.workers.iter_mut().find(|s| s.id == worker)
            && open
        {
            worker.idle = false;
        }
        // The epoch only moves with the state locked, so it is the one of what is seen here.
        View {
            epoch: self.epoch(),
            freeze_state: state.freeze_state,
            mapping: Arc::clone(&state.mapping),
            target: state.target.as_ref().filter(|_| open).map(Arc::clone),
        }
    }

    /// A worker that has found the freeze closed has nothing in flight any more, and has dropped its target.
    pub(crate) fn set_idle(&self, worker: u64) {
        let mut state = self.state();
        if let Some(worker) = state.workers.iter_mut().find(|s| s.id == worker) {
            worker.idle = true;
        }
        self.changed.notify_all();
    }

    /// A worker has ended.
    pub(crate) fn leave(&self, worker: u64) {
        self.state().workers.retain(|s| s.id != worker);
        self.changed.notify_all();
    }

    /// Holds back what comes, and returns when nothing is in flight.
    pub(crate) fn freeze(&self) {
        self.move_to(&mut self.state(), FreezeState::Frozen);
        // Returns when every pass was given back.
        *self.usage.write().unwrap_or_else(PoisonError::into_inner) = None;
        let busy = |state: &mut State| state.workers.iter().any(|worker| !worker.idle);
        drop(self.changed.wait_while(self.state(), busy).unwrap_or_else(PoisonError::into_inner));
    }

    /// Lets through what has waited. False: there is no target, and the freeze stays closed.
    pub(crate) fn unfreeze(&self) -> bool {
        let mut state = self.state();
        let Some(target) = &state.target else { return false };
        *self.usage.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(target));
        self.move_to(&mut state, FreezeState::Running);
        true
    }

    /// Lets what has waited, and all that comes, fail.
    pub(crate) fn end(&self) {
        self.move_to(&mut self.state(), FreezeState::Ended);
    }

    /// Puts another target, or none, in place of the one there was, which is gone when this returns, or else as soon as
    /// whoever has it ends. The freeze is closed, and the caller is the only one to change anything.
    pub(crate) fn replace(&self, target: Option<CryptMapping>) -> Result<(), InUse> {
        let mut state = self.state();
        if let Some(target) = &target {
            state.mapping = Arc::clone(target.mapping());
        }
        let before = std::mem::replace(&mut state.target, target.map(Arc::new));
        drop(state);
        before.map_or(Ok(()), |before| take_alone(before, RELEASE_TIMEOUT).map(drop).map_err(|_| InUse))
    }

    /// Changes the target of a closed freeze, where there is one. False: the key was wiped. The caller is the only one to
    /// change anything.
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

    /// Measures the ciphers of the target, where there is one.
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

/// The target, when nobody else has it any more; as it was, if that takes too long.
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
    fn who_has_the_target_of_a_closed_gate_is_waited_for() {
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
            assert_eq!(freeze.change(|target| target.grown(&[8192])), Ok(true));
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
    fn who_keeps_a_target_is_not_waited_for_for_ever() {
        let target = Arc::new(CryptMapping::raw(4096));
        let user = Arc::clone(&target);
        let kept = take_alone(target, Duration::from_millis(5));
        assert!(kept.is_err_and(|kept| Arc::ptr_eq(&kept, &user)));
    }
}
