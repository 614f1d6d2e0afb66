//! The freeze: a controller that freezes, callers with usage guards, and workers. loom checks all uses of the mapping.

use super::{in_every_order, in_orders_with};
use crate::crypt_mapping::CryptMapping;
use crate::freeze::{Freeze, FreezeState};
use crate::request::RequestError;
use crate::ring::Waker;
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

struct Scene {
    freeze: Freeze,
    /// Used by calls, and changed while the device is frozen.
    table: UnsafeCell<()>,
    waker: Waker,
}

impl Scene {
    fn new() -> Arc<Self> {
        let freeze = Freeze::new(CryptMapping::new());
        Arc::new(Self { freeze, table: UnsafeCell::new(()), waker: Waker::default() })
    }

    fn spawn(self: &Arc<Self>, act: impl FnOnce(&Self) + Send + 'static) -> thread::JoinHandle<()> {
        let scene = Arc::clone(self);
        thread::spawn(move || act(&scene))
    }

    /// A call on a thread that may block. Fails if the device has ended.
    fn call(&self) -> Result<(), RequestError> {
        let mapping = self.freeze.enter()?;
        self.table.with(|_| ());
        mapping.use_keys();
        Ok(())
    }

    /// Turns of a worker, like `Worker::turn` and `Worker::rest`, until the device ends.
    fn work(&self) {
        let worker = self.freeze.join(self.waker.clone());
        let mut view = self.freeze.view(worker);
        let mut target = view.target.take();
        loop {
            if let Some(target) = &target {
                self.table.with(|_| ());
                target.use_keys();
            }
            if view.freeze_state != FreezeState::Running && target.take().is_some() {
                self.freeze.set_idle(worker);
            }
            if view.freeze_state == FreezeState::Ended {
                break;
            }
            self.waker.wait();
            self.waker.clear();
            if self.freeze.epoch() != view.epoch {
                view = self.freeze.view(worker);
                target = view.target.take().or(target);
            }
        }
        self.freeze.leave(worker);
    }

    /// A worker that uses its mapping once and exits, whether the device is frozen or not.
    fn work_and_leave(&self) {
        let worker = self.freeze.join(self.waker.clone());
        if let Some(target) = self.freeze.view(worker).target {
            self.table.with(|_| ());
            target.use_keys();
        }
        self.freeze.leave(worker);
    }

    /// Freezes the device. No other thread uses the mapping afterwards.
    fn freeze(&self) {
        self.freeze.freeze();
        self.table.with_mut(|_| ());
    }

    /// Changes the mapping of the frozen device.
    fn change(&self) {
        let changed = self.freeze.change(|target| {
            target.change_keys();
            target
        });
        assert_eq!(changed, Ok(true));
    }
}

#[test]
fn freeze_waits_for_call_and_unfreeze_wakes_next_call() {
    in_every_order(|| {
        let scene = Scene::new();
        let caller = scene.spawn(|scene| assert_eq!(scene.call(), Ok(())));
        scene.freeze();
        scene.change();
        assert!(scene.freeze.try_unfreeze());
        caller.join().unwrap();
    });
}

#[test]
fn call_enters_again_after_unfreeze() {
    in_every_order(|| {
        let scene = Scene::new();
        let caller = scene.spawn(|scene| assert_eq!((scene.call(), scene.call()), (Ok(()), Ok(()))));
        scene.freeze();
        assert!(scene.freeze.try_unfreeze());
        caller.join().unwrap();
    });
}

#[test]
fn freeze_waits_for_two_calls_and_unfreeze_wakes_both() {
    in_every_order(|| {
        let scene = Scene::new();
        let callers = [
            scene.spawn(|scene| assert_eq!(scene.call(), Ok(()))),
            scene.spawn(|scene| assert_eq!(scene.call(), Ok(()))),
        ];
        scene.freeze();
        assert!(scene.freeze.try_unfreeze());
        callers.into_iter().for_each(|caller| caller.join().unwrap());
    });
}

#[test]
fn end_of_device_wakes_call_with_error() {
    in_every_order(|| {
        let scene = Scene::new();
        scene.freeze();
        let caller = scene.spawn(|scene| assert!(scene.call().is_err()));
        scene.freeze.end();
        caller.join().unwrap();
    });
}

#[test]
fn call_gets_no_usage_guard_after_key_wipe() {
    in_every_order(|| {
        let scene = Scene::new();
        let caller = scene.spawn(|scene| _ = scene.call());
        scene.freeze();
        assert_eq!(scene.freeze.replace(None), Ok(()));
        assert!(!scene.freeze.try_unfreeze(), "there is no target");
        scene.table.with_mut(|_| ());
        scene.freeze.end();
        caller.join().unwrap();
    });
}

#[test]
fn freeze_waits_for_worker_and_end_of_device_wakes_it() {
    in_every_order(|| {
        let scene = Scene::new();
        let worker = scene.spawn(Scene::work);
        scene.freeze();
        scene.change();
        scene.freeze.end();
        worker.join().unwrap();
    });
}

#[test]
fn freeze_after_unfreeze_waits_for_worker_again() {
    in_orders_with(4, || {
        let scene = Scene::new();
        let worker = scene.spawn(Scene::work);
        scene.freeze();
        assert!(scene.freeze.try_unfreeze());
        scene.freeze();
        assert_eq!(scene.freeze.replace(None), Ok(()));
        scene.freeze.end();
        worker.join().unwrap();
    });
}

#[test]
fn freeze_waits_for_worker_and_call() {
    in_orders_with(4, || {
        let scene = Scene::new();
        let worker = scene.spawn(Scene::work_and_leave);
        let caller = scene.spawn(|scene| assert_eq!(scene.call(), Ok(())));
        scene.freeze();
        assert!(scene.freeze.try_unfreeze());
        worker.join().unwrap();
        caller.join().unwrap();
    });
}

#[test]
fn freeze_does_not_wait_for_exited_worker() {
    in_every_order(|| {
        let scene = Scene::new();
        let worker = scene.spawn(Scene::work_and_leave);
        scene.freeze();
        scene.change();
        worker.join().unwrap();
    });
}
