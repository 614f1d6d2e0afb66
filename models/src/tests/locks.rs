//! Locks of data units: threads read and write one unit, which loom checks.

use super::{in_every_order, in_orders_with};
use crate::crypt_mapping::MappedRange;
use crate::events::{Event, ReplyTo};
use crate::locks::{LockId, Purpose, UnitLocks};
use crate::ring::Waker;
use loom::cell::UnsafeCell;
use loom::sync::Mutex;
use loom::thread;
use std::sync::Arc;

const WHOLE: MappedRange = MappedRange { store: 0, store_offset: 0, aligned_len: 4, is_partial: false };
const PARTIAL: MappedRange = MappedRange { is_partial: true, ..WHOLE };

#[derive(Default)]
struct Scene {
    locks: UnitLocks,
    unit: UnsafeCell<()>,
}

impl Scene {
    /// Reads the unit like a thread that completes its request without waiting.
    fn read_briefly(&self) {
        let brief = self.locks.try_lock_all_shared();
        let lock = brief.unwrap_or_else(|| self.locks.lock_blocking(&WHOLE, Purpose::Read));
        self.unit.with(|_| ());
        self.locks.unlock(lock);
    }

    /// Reads the unit if that takes no lock of the table.
    fn try_to_read_briefly(&self) {
        if let Some(lock) = self.locks.try_lock_all_shared() {
            self.unit.with(|_| ());
            self.locks.unlock(lock);
        }
    }

    /// Reads the unit under its shared lock.
    fn read(&self) {
        let lock = self.locks.lock_blocking(&WHOLE, Purpose::Read);
        self.unit.with(|_| ());
        self.locks.unlock(lock);
    }

    /// Writes part of the unit on a thread that may block.
    fn write_blocking(&self) {
        let lock = self.locks.lock_blocking(&PARTIAL, Purpose::Write);
        self.unit.with_mut(|_| ());
        self.locks.unlock(lock);
    }

    /// Rewrites the unit as a part of a longer range, which no other thread may use.
    fn rewrite(&self) {
        let lock = self.locks.lock_range_blocking(0, 0..16);
        self.unit.with_mut(|_| ());
        self.locks.unlock(lock);
    }

    /// Writes part of the unit like a worker, which gets an event when it holds the lock.
    fn write_when_granted(&self) {
        let granted = Arc::new(Granted::default());
        let lock = self.lock_as(&granted, 1);
        granted.waker.wait();
        self.unit.with_mut(|_| ());
        self.locks.unlock(lock);
    }

    /// Requests the lock of a partial write. `granted` records when it is granted, possibly immediately.
    fn lock_as(&self, granted: &Arc<Granted>, token: u64) -> LockId {
        let reply = |token| {
            let granted = Arc::clone(granted);
            ReplyTo::new(move |Event::Locked| granted.locked(token))
        };
        let (lock, is_held) = self.locks.lock(&PARTIAL, Purpose::Write, || reply(token));
        if is_held {
            granted.locked(token);
        }
        lock
    }

    /// Checks that no lock is held: the fast path is open again.
    fn assert_is_free(&self) {
        let lock = self.locks.try_lock_all_shared().expect("no lock is held or waited for");
        self.locks.unlock(lock);
    }
}

/// Locks granted to a worker, in order.
#[derive(Default)]
struct Granted {
    tokens: Mutex<Vec<u64>>,
    waker: Waker,
}

impl Granted {
    fn locked(&self, token: u64) {
        self.tokens.lock().unwrap().push(token);
        self.waker.wake();
    }
}

type Act = fn(&Scene);

/// Runs each function on a thread of its own, in every order.
fn concurrently(acts: &'static [Act]) {
    in_every_order(|| run(acts));
}

fn run(acts: &[Act]) {
    let scene = Arc::new(Scene::default());
    let (first, others) = acts.split_first().unwrap();
    let spawn = |act: &Act| {
        let (scene, act) = (Arc::clone(&scene), *act);
        thread::spawn(move || act(&scene))
    };
    let threads: Vec<_> = others.iter().map(spawn).collect();
    first(&scene);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    scene.assert_is_free();
}

#[test]
fn partial_write_excludes_all_shared_read() {
    concurrently(&[Scene::write_blocking, Scene::read_briefly]);
}

#[test]
fn partial_write_excludes_two_all_shared_reads() {
    concurrently(&[Scene::write_blocking, Scene::try_to_read_briefly, Scene::try_to_read_briefly]);
}

#[test]
fn partial_write_excludes_read_and_all_shared_read() {
    concurrently(&[Scene::write_blocking, Scene::read, Scene::try_to_read_briefly]);
}

#[test]
fn partial_writes_exclude_each_other_and_all_shared_read() {
    concurrently(&[Scene::write_blocking, Scene::write_blocking, Scene::try_to_read_briefly]);
}

#[test]
fn lock_of_a_range_excludes_read_and_all_shared_read() {
    concurrently(&[Scene::rewrite, Scene::read, Scene::try_to_read_briefly]);
}

#[test]
fn lock_of_a_range_excludes_partial_write_of_a_worker() {
    concurrently(&[Scene::write_when_granted, Scene::rewrite]);
}

#[test]
fn partial_write_of_a_worker_excludes_all_shared_read() {
    concurrently(&[Scene::write_when_granted, Scene::try_to_read_briefly]);
}

#[test]
fn partial_write_of_a_worker_excludes_two_all_shared_reads() {
    in_orders_with(4, || run(&[Scene::write_when_granted, Scene::try_to_read_briefly, Scene::try_to_read_briefly]));
}

#[test]
fn partial_writes_of_worker_and_thread_exclude_each_other() {
    concurrently(&[Scene::write_when_granted, Scene::write_blocking]);
}

#[test]
fn locks_of_more_threads_than_slots_are_all_granted() {
    // The table has slots for two.
    concurrently(&[Scene::write_blocking, Scene::read, Scene::read]);
}

#[test]
fn locks_are_granted_in_order_of_arrival() {
    in_every_order(|| {
        let scene = Arc::new(Scene::default());
        let granted = Arc::new(Granted::default());
        let first = scene.lock_as(&granted, 1);
        let second = scene.lock_as(&granted, 2);
        let unlocking = {
            let scene = Arc::clone(&scene);
            thread::spawn(move || {
                assert!(scene.locks.try_lock_all_shared().is_none(), "no reader overtakes the second write");
                scene.unit.with_mut(|_| ());
                scene.locks.unlock(first);
            })
        };
        let third = scene.lock_as(&granted, 3);
        for (lock, expected) in [(second, &[1, 2][..]), (third, &[1, 2, 3])] {
            loop {
                let tokens = granted.tokens.lock().unwrap().clone();
                assert!(tokens.len() <= expected.len(), "locks are granted one at a time");
                if tokens == expected {
                    break;
                }
                granted.waker.wait();
                granted.waker.clear();
            }
            scene.unit.with_mut(|_| ());
            scene.locks.unlock(lock);
        }
        unlocking.join().unwrap();
        scene.assert_is_free();
    });
}

#[test]
fn cancelled_lock_request_blocks_no_later_lock() {
    in_every_order(|| {
        let scene = Arc::new(Scene::default());
        let granted = Arc::new(Granted::default());
        let lock = scene.lock_as(&granted, 1);
        let waiting = scene.lock_as(&granted, 2);
        let reading = {
            let scene = Arc::clone(&scene);
            thread::spawn(move || scene.read())
        };
        let other = {
            let scene = Arc::clone(&scene);
            thread::spawn(move || scene.locks.unlock(waiting))
        };
        scene.unit.with_mut(|_| ());
        scene.locks.unlock(lock);
        reading.join().unwrap();
        other.join().unwrap();
        scene.assert_is_free();
    });
}
