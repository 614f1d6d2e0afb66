//! The gate of a device: what holds requests back while it is suspended, and hands the target out while it is not.
//!
//! Workers look at one number a turn, [`Gate::epoch`], and only where it has changed at anything else; each has a seat
//! here and says when nothing of it is in flight. Callers of [`crate::BlockingDevice`] hold a pass for the length of a
//! call. While the gate is closed nobody but the gate has the target, so that dropping it wipes its keys.
//!
//! Model-checked: the package `inlock-models` compiles this file with loom's primitives.

use crate::layout::Layout;
use crate::request::RequestError;
use crate::ring::Waker;
use crate::sync::{Arc, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, PoisonError, RwLock, RwLockReadGuard, sleep};
use crate::target::CryptTarget;
use inlock_cipher::scrub_stack;
use rustix::io::Errno;
use std::ops::Deref;
use std::time::{Duration, Instant};

/// Whether requests go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passage {
    /// They do.
    Open,
    /// They wait.
    Closed,
    /// They fail: the device is given up while it was suspended.
    Ended,
}

/// As much of the stack as a worker's turn may have used for a cipher call.
pub(crate) const SCRUB_TURN: usize = 64 << 10;
/// As much as a single call may have used.
pub(crate) const SCRUB_CALL: usize = 8 << 10;

/// How long somebody else may have the target of a closed gate: a thread of the cipher pool, at work for a worker that has
/// died meanwhile.
const PATIENCE: Duration = Duration::from_secs(10);

/// Somebody else still had the target when [`PATIENCE`] was over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InUse;

/// What a worker finds when it looks.
pub(crate) struct View {
    pub(crate) epoch: u64,
    pub(crate) passage: Passage,
    pub(crate) layout: Arc<Layout>,
    /// The target, while the gate is open.
    pub(crate) target: Option<Arc<CryptTarget>>,
}

pub(crate) struct Gate {
    /// Changes with every change of the state; says nothing else.
    epoch: AtomicU64,
    /// The target for callers that block; `None` while they have to wait.
    passes: RwLock<Option<Arc<CryptTarget>>>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    passage: Passage,
    layout: Arc<Layout>,
    /// `None`: the key was wiped.
    target: Option<Arc<CryptTarget>>,
    seats: Vec<Seat>,
    next_seat: u64,
}

/// A worker.
struct Seat {
    id: u64,
    waker: Waker,
    /// It has nothing in flight and will start nothing before it has looked again.
    quiet: bool,
}

/// A call that is carried out. The gate does not close before it is dropped.
pub(crate) struct Pass<'a>(RwLockReadGuard<'a, Option<Arc<CryptTarget>>>);

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        scrub_stack::<SCRUB_CALL>();
    }
}

impl Deref for Pass<'_> {
    type Target = CryptTarget;

    fn deref(&self) -> &CryptTarget {
        self.0.as_ref().expect("a pass is only made where there is a target")
    }
}

impl Gate {
    pub(crate) fn new(target: CryptTarget) -> Self {
        let (layout, target) = (Arc::clone(target.layout()), Arc::new(target));
        let passes = RwLock::new(Some(Arc::clone(&target)));
        let state = State { passage: Passage::Open, layout, target: Some(target), seats: Vec::new(), next_seat: 0 };
        Self { epoch: AtomicU64::new(0), passes, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// A number that is another one after every change. One load; for a worker's turn.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    pub(crate) fn passage(&self) -> Passage {
        self.state().passage
    }

    pub(crate) fn layout(&self) -> Arc<Layout> {
        Arc::clone(&self.state().layout)
    }

    /// The target for a call on this thread. Waits while the gate is closed.
    pub(crate) fn pass(&self) -> Result<Pass<'_>, RequestError> {
        loop {
            let target = self.passes.read().unwrap_or_else(PoisonError::into_inner);
            if target.is_some() {
                return Ok(Pass(target));
            }
            drop(target);
            let closed = |state: &mut State| state.passage == Passage::Closed;
            let state = self.changed.wait_while(self.state(), closed).unwrap_or_else(PoisonError::into_inner);
            if state.passage == Passage::Ended {
                return Err(RequestError::Io(Errno::SHUTDOWN));
            }
        }
    }

    /// A seat for a worker, which `waker` wakes.
    pub(crate) fn join(&self, waker: Waker) -> u64 {
        let mut state = self.state();
        let id = state.next_seat;
        state.next_seat += 1;
        state.seats.push(Seat { id, waker, quiet: true });
        id
    }

    /// How things stand. A worker that finds the gate open has to be waited for from now on.
    pub(crate) fn look(&self, seat: u64) -> View {
        let mut state = self.state();
        let open = state.passage == Passage::Open;
        if let Some(seat) = state.seats.iter_mut().find(|s| s.id == seat)
            && open
        {
            seat.quiet = false;
        }
        // The epoch only moves with the state locked, so it is the one of what is seen here.
        View {
            epoch: self.epoch(),
            passage: state.passage,
            layout: Arc::clone(&state.layout),
            target: state.target.as_ref().filter(|_| open).map(Arc::clone),
        }
    }

    /// A worker that has found the gate closed has nothing in flight any more, and has dropped its target.
    pub(crate) fn quiet(&self, seat: u64) {
        let mut state = self.state();
        if let Some(seat) = state.seats.iter_mut().find(|s| s.id == seat) {
            seat.quiet = true;
        }
        self.changed.notify_all();
    }

    /// A worker has ended.
    pub(crate) fn leave(&self, seat: u64) {
        self.state().seats.retain(|s| s.id != seat);
        self.changed.notify_all();
    }

    /// Holds back what comes, and returns when nothing is in flight.
    pub(crate) fn close(&self) {
        self.move_to(&mut self.state(), Passage::Closed);
        // Returns when every pass was given back.
        *self.passes.write().unwrap_or_else(PoisonError::into_inner) = None;
        let busy = |state: &mut State| state.seats.iter().any(|seat| !seat.quiet);
        drop(self.changed.wait_while(self.state(), busy).unwrap_or_else(PoisonError::into_inner));
    }

    /// Lets through what has waited. False: there is no target, and the gate stays closed.
    pub(crate) fn open(&self) -> bool {
        let mut state = self.state();
        let Some(target) = &state.target else { return false };
        *self.passes.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(target));
        self.move_to(&mut state, Passage::Open);
        true
    }

    /// Lets what has waited, and all that comes, fail.
    pub(crate) fn end(&self) {
        self.move_to(&mut self.state(), Passage::Ended);
    }

    /// Puts another target, or none, in place of the one there was, which is gone when this returns, or else as soon as
    /// whoever has it ends. The gate is closed, and the caller is the only one to change anything.
    pub(crate) fn replace(&self, target: Option<CryptTarget>) -> Result<(), InUse> {
        let mut state = self.state();
        if let Some(target) = &target {
            state.layout = Arc::clone(target.layout());
        }
        let before = std::mem::replace(&mut state.target, target.map(Arc::new));
        drop(state);
        before.map_or(Ok(()), |before| take_alone(before, PATIENCE).map(drop).map_err(|_| InUse))
    }

    /// Changes the target of a closed gate, where there is one. False: the key was wiped. The caller is the only one to
    /// change anything.
    pub(crate) fn change(&self, change: impl FnOnce(CryptTarget) -> CryptTarget) -> Result<bool, InUse> {
        let Some(before) = self.state().target.take() else { return Ok(false) };
        let taken = take_alone(before, PATIENCE);
        let mut state = self.state();
        match taken {
            Ok(before) => {
                let target = change(before);
                state.layout = Arc::clone(target.layout());
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

    fn move_to(&self, state: &mut MutexGuard<'_, State>, passage: Passage) {
        state.passage = passage;
        self.epoch.fetch_add(1, Ordering::AcqRel);
        self.changed.notify_all();
        state.seats.iter().for_each(|seat| seat.waker.wake());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The target, when nobody else has it any more; as it was, if that takes too long.
fn take_alone(mut target: Arc<CryptTarget>, patience: Duration) -> Result<CryptTarget, Arc<CryptTarget>> {
    let start = Instant::now();
    loop {
        target = match Arc::try_unwrap(target) {
            Ok(target) => return Ok(target),
            Err(shared) if start.elapsed() >= patience => return Err(shared),
            Err(shared) => shared,
        };
        sleep(Duration::from_millis(1));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn who_has_the_target_of_a_closed_gate_is_waited_for() {
        let gate = Gate::new(CryptTarget::raw(4096));
        gate.close();
        let user = gate.state().target.clone();
        let (told, ended) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(30));
                told.send(()).unwrap();
                drop(user);
            });
            assert_eq!(gate.change(|target| target.grown(&[8192])), Ok(true));
            assert_eq!(ended.try_recv(), Ok(()), "not before it was given back");
        });
        assert_eq!(gate.layout().len(), 8192);
        let user = gate.state().target.clone();
        std::thread::scope(|scope| {
            scope.spawn(move || drop(user));
            assert_eq!(gate.replace(None), Ok(()));
        });
        assert_eq!(gate.change(|target| target), Ok(false));
    }

    #[test]
    fn who_keeps_a_target_is_not_waited_for_for_ever() {
        let target = Arc::new(CryptTarget::raw(4096));
        let user = Arc::clone(&target);
        let kept = take_alone(target, Duration::from_millis(5));
        assert!(kept.is_err_and(|kept| Arc::ptr_eq(&kept, &user)));
    }
}
