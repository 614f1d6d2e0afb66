//! The gate: a controller that closes it, callers with passes, workers with seats. loom watches who uses the target.

use super::{in_every_order, in_orders_with};
use crate::gate::{Gate, Passage};
use crate::ring::Waker;
use crate::target::CryptTarget;
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

struct Scene {
    gate: Gate,
    /// Used by calls and changed while the gate is closed.
    table: UnsafeCell<()>,
    waker: Waker,
}

impl Scene {
    fn new() -> Arc<Self> {
        let gate = Gate::new(CryptTarget::new());
        Arc::new(Self { gate, table: UnsafeCell::new(()), waker: Waker::default() })
    }

    fn spawn(self: &Arc<Self>, act: impl FnOnce(&Self) + Send + 'static) -> thread::JoinHandle<()> {
        let scene = Arc::clone(self);
        thread::spawn(move || act(&scene))
    }

    /// A call on a thread that blocks. False: the device was given up.
    fn call(&self) -> bool {
        let Ok(pass) = self.gate.pass() else { return false };
        self.table.with(|_| ());
        pass.use_keys();
        true
    }

    /// Turns of a worker, as `Worker::turn` and `Worker::rest` have them, until the device is given up.
    fn work(&self) {
        let seat = self.gate.join(self.waker.clone());
        let mut view = self.gate.look(seat);
        let mut target = view.target.take();
        loop {
            if let Some(target) = &target {
                self.table.with(|_| ());
                target.use_keys();
            }
            if view.passage != Passage::Open && target.take().is_some() {
                self.gate.quiet(seat);
            }
            if view.passage == Passage::Ended {
                break;
            }
            self.waker.wait();
            self.waker.clear();
            if self.gate.epoch() != view.epoch {
                view = self.gate.look(seat);
                target = view.target.take().or(target);
            }
        }
        self.gate.leave(seat);
    }

    /// A worker that uses its target once and ends, be the gate open or not.
    fn work_and_leave(&self) {
        let seat = self.gate.join(self.waker.clone());
        if let Some(target) = self.gate.look(seat).target {
            self.table.with(|_| ());
            target.use_keys();
        }
        self.gate.leave(seat);
    }

    /// Closes the gate. No other thread uses what is behind it then.
    fn close(&self) {
        self.gate.close();
        self.table.with_mut(|_| ());
    }

    /// Changes the target of the closed gate.
    fn change(&self) {
        let changed = self.gate.change(|target| {
            target.change_keys();
            target
        });
        assert_eq!(changed, Ok(true));
    }
}

#[test]
fn close_waits_for_the_pass_and_open_wakes_the_next() {
    in_every_order(|| {
        let scene = Scene::new();
        let caller = scene.spawn(|scene| assert!(scene.call()));
        scene.close();
        scene.change();
        assert!(scene.gate.open());
        caller.join().unwrap();
    });
}

#[test]
fn caller_goes_through_again_after_every_opening() {
    in_every_order(|| {
        let scene = Scene::new();
        let caller = scene.spawn(|scene| assert!(scene.call() && scene.call()));
        scene.close();
        assert!(scene.gate.open());
        caller.join().unwrap();
    });
}

#[test]
fn two_callers_are_both_waited_for_and_woken() {
    in_every_order(|| {
        let scene = Scene::new();
        let callers = [scene.spawn(|scene| assert!(scene.call())), scene.spawn(|scene| assert!(scene.call()))];
        scene.close();
        assert!(scene.gate.open());
        callers.into_iter().for_each(|caller| caller.join().unwrap());
    });
}

#[test]
fn end_wakes_the_caller_which_fails() {
    in_every_order(|| {
        let scene = Scene::new();
        scene.close();
        let caller = scene.spawn(|scene| assert!(!scene.call()));
        scene.gate.end();
        caller.join().unwrap();
    });
}

#[test]
fn no_pass_is_given_after_the_key_was_wiped() {
    in_every_order(|| {
        let scene = Scene::new();
        let caller = scene.spawn(|scene| _ = scene.call());
        scene.close();
        assert_eq!(scene.gate.replace(None), Ok(()));
        assert!(!scene.gate.open(), "there is no target");
        scene.table.with_mut(|_| ());
        scene.gate.end();
        caller.join().unwrap();
    });
}

#[test]
fn close_waits_for_the_worker_and_end_wakes_it() {
    in_every_order(|| {
        let scene = Scene::new();
        let worker = scene.spawn(Scene::work);
        scene.close();
        scene.change();
        scene.gate.end();
        worker.join().unwrap();
    });
}

#[test]
fn worker_goes_on_after_opening_and_is_waited_for_again() {
    in_orders_with(4, || {
        let scene = Scene::new();
        let worker = scene.spawn(Scene::work);
        scene.close();
        assert!(scene.gate.open());
        scene.close();
        assert_eq!(scene.gate.replace(None), Ok(()));
        scene.gate.end();
        worker.join().unwrap();
    });
}

#[test]
fn close_waits_for_worker_and_caller() {
    in_orders_with(4, || {
        let scene = Scene::new();
        let worker = scene.spawn(Scene::work_and_leave);
        let caller = scene.spawn(|scene| assert!(scene.call()));
        scene.close();
        assert!(scene.gate.open());
        worker.join().unwrap();
        caller.join().unwrap();
    });
}

#[test]
fn worker_that_leaves_is_not_waited_for() {
    in_every_order(|| {
        let scene = Scene::new();
        let worker = scene.spawn(Scene::work_and_leave);
        scene.close();
        scene.change();
        worker.join().unwrap();
    });
}
