//! Locks of data units: threads that read and write one unit, which loom watches.

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
    /// Reads the unit as a thread does that carries its request to the end without waiting.
    fn read_briefly(&self) {
        let brief = self.locks.try_lock_all_shared();
        let lock = brief.unwrap_or_else(|| self.locks.lock_blocking(&WHOLE, Purpose::Read));
        self.unit.with(|_| ());
        self.locks.unlock(lock);
    }

    /// Reads the unit if that needs no lock of the table.
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

    /// Writes part of the unit as a worker does, which is told when it holds the lock.
    fn write_when_told(&self) {
        let told = Arc::new(Told::default());
        let lock = self.lock_as(&told, 1);
        told.waker.wait();
        self.unit.with_mut(|_| ());
        self.locks.unlock(lock);
    }

    /// Asks for the lock of a partial write. `told` learns when it is held, at once if it is held at once.
    fn lock_as(&self, told: &Arc<Told>, token: u64) -> LockId {
        let reply = |token| {
            let told = Arc::clone(told);
            ReplyTo::new(move |Event::Locked| told.locked(token))
        };
        let (lock, is_held) = self.locks.lock(&PARTIAL, Purpose::Write, reply(token));
        if is_held {
            told.locked(token);
        }
        lock
    }

    /// Everything was given up: the fast path is open again.
    fn assert_is_free(&self) {
        let lock = self.locks.try_lock_all_shared().expect("no lock is held or waited for");
        self.locks.unlock(lock);
    }
}

/// A worker's side: which locks were granted, in order.
#[derive(Default)]
struct Told {
    tokens: Mutex<Vec<u64>>,
    waker: Waker,
}

impl Told {
    fn locked(&self, token: u64) {
        self.tokens.lock().unwrap().push(token);
        self.waker.wake();
    }
}

type Act = fn(&Scene);

/// Runs each act on a thread of its own, in every order.
fn beside_each_other(acts: &'static [Act]) {
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
    beside_each_other(&[Scene::write_blocking, Scene::read_briefly]);
}

#[test]
fn partial_write_excludes_two_all_shared_reads() {
    beside_each_other(&[Scene::write_blocking, Scene::try_to_read_briefly, Scene::try_to_read_briefly]);
}

#[test]
fn partial_write_excludes_read_and_all_shared_read() {
    beside_each_other(&[Scene::write_blocking, Scene::read, Scene::try_to_read_briefly]);
}

#[test]
fn partial_writes_exclude_each_other_and_all_shared_read() {
    beside_each_other(&[Scene::write_blocking, Scene::write_blocking, Scene::try_to_read_briefly]);
}

#[test]
fn partial_write_of_a_worker_excludes_all_shared_read() {
    beside_each_other(&[Scene::write_when_told, Scene::try_to_read_briefly]);
}

#[test]
fn partial_write_of_a_worker_excludes_two_all_shared_reads() {
    in_orders_with(4, || run(&[Scene::write_when_told, Scene::try_to_read_briefly, Scene::try_to_read_briefly]));
}

#[test]
fn partial_writes_of_worker_and_thread_exclude_each_other() {
    beside_each_other(&[Scene::write_when_told, Scene::write_blocking]);
}

#[test]
fn locks_of_more_threads_than_slots_are_all_granted() {
    // Room is for two.
    beside_each_other(&[Scene::write_blocking, Scene::read, Scene::read]);
}

#[test]
fn locks_are_granted_in_order_of_arrival() {
    in_every_order(|| {
        let scene = Arc::new(Scene::default());
        let told = Arc::new(Told::default());
        let first = scene.lock_as(&told, 1);
        let second = scene.lock_as(&told, 2);
        let giving_up = {
            let scene = Arc::clone(&scene);
            thread::spawn(move || {
                assert!(scene.locks.try_lock_all_shared().is_none(), "no reader overtakes the second write");
                scene.unit.with_mut(|_| ());
                scene.locks.unlock(first);
            })
        };
        let third = scene.lock_as(&told, 3);
        for (lock, expected) in [(second, &[1, 2][..]), (third, &[1, 2, 3])] {
            loop {
                let granted = told.tokens.lock().unwrap().clone();
                assert!(granted.len() <= expected.len(), "one at a time");
                if granted == expected {
                    break;
                }
                told.waker.wait();
                told.waker.clear();
            }
            scene.unit.with_mut(|_| ());
            scene.locks.unlock(lock);
        }
        giving_up.join().unwrap();
        scene.assert_is_free();
    });
}

#[test]
fn cancelled_lock_request_blocks_no_later_lock() {
    in_every_order(|| {
        let scene = Arc::new(Scene::default());
        let told = Arc::new(Told::default());
        let lock = scene.lock_as(&told, 1);
        let waiting = scene.lock_as(&told, 2);
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
