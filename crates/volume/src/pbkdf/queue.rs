//! Turns of the derivations of a process: one at a time, or as many as fit into the available memory.
//!
//! Threads that unlock volumes at the same time would otherwise each find enough memory, and together exceed it.

use super::KdfError;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The queue of this process.
pub(super) static QUEUE: Queue = Queue::new();

/// Derivations in the order in which they asked for memory.
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// Number of the next derivation that asks.
    next: u64,
    /// Number of the derivation that is served.
    served: u64,
    /// Memory of running derivations, in KiB.
    taken_kib: u64,
}

impl Queue {
    const fn new() -> Self {
        Self { state: Mutex::new(State { next: 0, served: 0, taken_kib: 0 }), changed: Condvar::new() }
    }

    /// Waits until `memory_kib` and the memory of the running derivations fit into what `available_kib` returns. Fails
    /// if they do not fit even alone.
    pub(super) fn take(&self, memory_kib: u32, available_kib: impl Fn() -> u64) -> Result<Turn<'_>, KdfError> {
        let needed = u64::from(memory_kib);
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        loop {
            if state.served == number {
                // Memory that was taken but not written yet still counts as available.
                let available = available_kib();
                let fits = state.taken_kib.checked_add(needed).is_some_and(|all| all <= available);
                if fits || state.taken_kib == 0 {
                    state.served += 1;
                    self.changed.notify_all();
                    if !fits {
                        return Err(KdfError::MemoryNotAvailable { memory_kib, available_kib: available });
                    }
                    state.taken_kib += needed;
                    return Ok(Turn { queue: self, kib: needed });
                }
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to take memory, given back when dropped.
pub(super) struct Turn<'a> {
    queue: &'a Queue,
    kib: u64,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.queue.lock().taken_kib -= self.kib;
        self.queue.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pbkdf::{Argon2Cost, Kdf, KdfLimits};
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    #[test]
    fn derivations_that_do_not_fit_together_take_turns() {
        let queue = Queue::new();
        let (taken, most) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for number in 0..12 {
                let (queue, taken, most) = (&queue, &taken, &most);
                let kib = 300 + number % 3 * 100;
                scope.spawn(move || {
                    let turn = queue.take(kib, || 1000).unwrap();
                    let now = taken.fetch_add(kib.into(), Ordering::SeqCst) + u64::from(kib);
                    most.fetch_max(now, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(5));
                    taken.fetch_sub(kib.into(), Ordering::SeqCst);
                    drop(turn);
                });
            }
        });
        let most = most.into_inner();
        assert!((501..=1000).contains(&most), "{most} KiB at a time: two fit, and no more than 1000 KiB");
        assert_eq!(queue.lock().taken_kib, 0);
    }

    #[test]
    fn derivation_that_never_fits_fails_and_holds_nobody_up() {
        let queue = Queue::new();
        let error = KdfError::MemoryNotAvailable { memory_kib: 1001, available_kib: 1000 };
        assert_eq!(queue.take(1001, || 1000).map(|_| ()), Err(error));
        let turn = queue.take(600, || 1000).unwrap();
        std::thread::scope(|scope| {
            // It waits, since it may fit when the running one has ended.
            let waiting = scope.spawn(|| queue.take(2000, || 1000).map(|_| ()).unwrap_err());
            let behind = scope.spawn(|| queue.take(600, || 1000).map(|_| ()));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!waiting.is_finished() && !behind.is_finished());
            drop(turn);
            assert!(matches!(waiting.join().unwrap(), KdfError::MemoryNotAvailable { memory_kib: 2000, .. }));
            assert_eq!(behind.join().unwrap(), Ok(()));
        });
    }

    /// Argon2 takes its turn in the queue of the process; PBKDF2 needs none.
    #[test]
    fn argon2_waits_for_its_turn() {
        let cost = Argon2Cost { time: 1, memory_kib: 64, lanes: 1 };
        let derive = |kdf: Kdf| kdf.derive(b"x", b"saltsalt", &mut [0; 32], &KdfLimits::default()).unwrap();
        std::thread::scope(|scope| {
            let turn = QUEUE.take(u32::MAX, || u64::MAX).unwrap();
            QUEUE.lock().taken_kib += 1 << 60;
            let waiting = scope.spawn(|| derive(Kdf::Argon2id(cost)));
            derive(Kdf::Pbkdf2 { hash: crate::Hash::Sha256, iterations: 1 });
            std::thread::sleep(Duration::from_millis(50));
            assert!(!waiting.is_finished());
            QUEUE.lock().taken_kib -= 1 << 60;
            drop(turn);
            waiting.join().unwrap();
        });
    }
}
