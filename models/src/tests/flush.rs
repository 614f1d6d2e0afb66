//! The sync queue: workers and threads write, and then flush. Two concurrent syncs of the disk fail the model. The disk
//! reports a lost write to one sync only, like the kernel.

use super::in_every_order;
use crate::errno::Errno;
use crate::flush::{SyncQueue, Turn};
use crate::request::RequestError;
use crate::ring::Waker;
use crate::sync::{Mutex, PoisonError};
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

#[derive(Default)]
struct Disk {
    written: u64,
    durable: u64,
    /// A write was lost, and no sync has reported it.
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

    /// Makes the writes durable that precede it.
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

    /// Checks that the queue has no lost writes. If it has none, the write must be durable.
    fn check(&self, write: u64) -> Result<(), RequestError> {
        self.queue.check()?;
        assert!(self.disk(|disk| disk.durable) >= write, "a flush succeeded without a sync");
        Ok(())
    }

    /// A thread that writes and flushes.
    fn write_and_flush(&self) -> Result<(), RequestError> {
        let write = self.write();
        self.queue.sync_blocking(|| self.sync())?;
        self.check(write)
    }

    /// A worker that writes and flushes, like `Worker::await_sync` and `Worker::look_at_syncs`.
    fn work(&self) -> Result<(), RequestError> {
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
        let result = self.check(write);
        self.queue.leave(member, None);
        result
    }

    /// A worker that exits while it leads, or waits.
    fn work_and_leave(&self) {
        let member = self.queue.join(Waker::default());
        self.write();
        let (_, turn) = self.queue.request(member);
        self.queue.leave(member, (turn == Turn::Lead).then(|| self.sync()));
    }
}

#[test]
fn flushes_of_two_workers_are_durable() {
    in_every_order(|| {
        let scene = Scene::new(false);
        let other = scene.spawn(|scene| assert_eq!(scene.work(), Ok(())));
        assert_eq!(scene.work(), Ok(()));
        other.join().unwrap();
    });
}

#[test]
fn flushes_of_worker_and_threads_are_durable() {
    super::in_orders_with(3, || {
        let scene = Scene::new(false);
        let others = [
            scene.spawn(|scene| assert_eq!(scene.write_and_flush(), Ok(()))),
            scene.spawn(|scene| assert_eq!(scene.work(), Ok(()))),
        ];
        assert_eq!(scene.write_and_flush(), Ok(()));
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

#[test]
fn lost_write_reported_once_fails_every_flush() {
    super::in_orders_with(3, || {
        let scene = Scene::new(true);
        let others = [
            scene.spawn(|scene| assert!(scene.write_and_flush().is_err())),
            scene.spawn(|scene| assert!(scene.work().is_err())),
        ];
        assert!(scene.work().is_err());
        others.into_iter().for_each(|other| other.join().unwrap());
        assert!(scene.queue.has_lost_writes());
    });
}

#[test]
fn exit_of_worker_blocks_no_flush() {
    super::in_orders_with(3, || {
        let scene = Scene::new(false);
        let others = [
            scene.spawn(|scene| scene.work_and_leave()),
            scene.spawn(|scene| assert_eq!(scene.write_and_flush(), Ok(()))),
        ];
        assert_eq!(scene.work(), Ok(()));
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

#[test]
fn failed_sync_of_exited_worker_fails_later_flushes() {
    in_every_order(|| {
        let scene = Scene::new(true);
        let other = scene.spawn(|scene| scene.work_and_leave());
        other.join().unwrap();
        assert!(scene.work().is_err() && scene.write_and_flush().is_err());
    });
}
