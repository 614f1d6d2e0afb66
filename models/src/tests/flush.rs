//! The queue of syncs: workers and threads that write, and then ask for stable storage. A disk that is synced by two at
//! a time fails the model, and reports a lost write to one sync only, as the kernel does.

use super::in_every_order;
use crate::errno::Errno;
use crate::flush::{SyncQueue, Turn};
use crate::ring::Waker;
use crate::sync::{Mutex, PoisonError};
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

#[derive(Default)]
struct Disk {
    written: u64,
    durable: u64,
    /// A write was lost, and no sync has been told.
    lost: bool,
}

struct Scene {
    queue: SyncQueue,
    disk: Mutex<Disk>,
    syncing: UnsafeCell<()>,
}

impl Scene {
    fn new(lost: bool) -> Arc<Self> {
        let disk = Mutex::new(Disk { lost, ..Disk::default() });
        Arc::new(Self { queue: SyncQueue::default(), disk, syncing: UnsafeCell::new(()) })
    }

    fn spawn(self: &Arc<Self>, act: impl FnOnce(&Self) + Send + 'static) -> thread::JoinHandle<()> {
        let scene = Arc::clone(self);
        thread::spawn(move || act(&scene))
    }

    fn disk<T>(&self, act: impl FnOnce(&mut Disk) -> T) -> T {
        act(&mut self.disk.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn write(&self) -> u64 {
        self.disk(|disk| {
            disk.written += 1;
            disk.written
        })
    }

    /// Covers what was written before it begins.
    fn sync(&self) -> Result<(), Errno> {
        self.syncing.with_mut(|_| {
            let covered = self.disk(|disk| disk.written);
            thread::yield_now();
            self.disk(|disk| {
                disk.durable = disk.durable.max(covered);
                if std::mem::take(&mut disk.lost) { Err(Errno::IO) } else { Ok(()) }
            })
        })
    }

    /// Whether the writer may believe that its write is durable; it must be then.
    fn promised(&self, write: u64) -> bool {
        let promised = self.queue.check().is_ok();
        assert!(!promised || self.disk(|disk| disk.durable) >= write, "a promise without a sync");
        promised
    }

    /// A thread that writes and flushes.
    fn write_and_flush(&self) -> bool {
        let write = self.write();
        self.queue.sync_blocking(|| self.sync()).is_ok() && self.promised(write)
    }

    /// A worker that writes and flushes, as `Worker::await_sync` and `Worker::look_at_syncs` have it.
    fn work(&self) -> bool {
        let waker = Waker::default();
        let member = self.queue.join(waker.clone());
        let write = self.write();
        let (number, mut turn) = self.queue.request(member);
        while turn != Turn::Done {
            if turn == Turn::Lead {
                self.queue.end(self.sync());
            } else {
                waker.wait();
                waker.clear();
            }
            turn = self.queue.look(member, number);
        }
        let promised = self.promised(write);
        self.queue.leave(member, None);
        promised
    }

    /// A worker that ends while it leads, or waits.
    fn work_and_leave(&self) {
        let member = self.queue.join(Waker::default());
        self.write();
        let (_, turn) = self.queue.request(member);
        self.queue.leave(member, (turn == Turn::Lead).then(|| self.sync()));
    }
}

#[test]
fn two_workers_are_told_of_what_is_durable() {
    in_every_order(|| {
        let scene = Scene::new(false);
        let other = scene.spawn(|scene| assert!(scene.work()));
        assert!(scene.work());
        other.join().unwrap();
    });
}

#[test]
fn worker_and_threads_are_told_of_what_is_durable() {
    super::in_orders_with(3, || {
        let scene = Scene::new(false);
        let others =
            [scene.spawn(|scene| assert!(scene.write_and_flush())), scene.spawn(|scene| assert!(scene.work()))];
        assert!(scene.write_and_flush());
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

#[test]
fn all_are_told_of_a_lost_write_that_is_reported_once() {
    super::in_orders_with(3, || {
        let scene = Scene::new(true);
        let others =
            [scene.spawn(|scene| assert!(!scene.write_and_flush())), scene.spawn(|scene| assert!(!scene.work()))];
        assert!(!scene.work());
        others.into_iter().for_each(|other| other.join().unwrap());
        assert!(scene.queue.has_lost_writes());
    });
}

#[test]
fn worker_that_ends_holds_up_no_other() {
    super::in_orders_with(3, || {
        let scene = Scene::new(false);
        let others =
            [scene.spawn(|scene| scene.work_and_leave()), scene.spawn(|scene| assert!(scene.write_and_flush()))];
        assert!(scene.work());
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

#[test]
fn worker_that_ends_with_a_failed_sync_is_not_forgotten() {
    in_every_order(|| {
        let scene = Scene::new(true);
        let other = scene.spawn(|scene| scene.work_and_leave());
        other.join().unwrap();
        assert!(!scene.work() && !scene.write_and_flush());
    });
}
