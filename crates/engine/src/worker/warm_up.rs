//! Preparation of kernel resources for a worker's operations, before the first request needs them.
//!
//! A device that is used as swap, or whose file system must be written to before memory is free, must not allocate
//! memory on the request path.

use super::stores::StoreAccess;
use super::{ENGINE, Frontend, Worker};
use crate::buffer::Buffer;
use crate::ring::{Token, Wait};
use crate::store::{BackingStore, StoreOperation};
use std::collections::VecDeque;
use std::io;

/// Length in bytes of a warm-up read: a block of any disk.
const WARM_UP_LEN: usize = 4096;

impl<F: Frontend> Worker<F>
where
    F::Message: 'static,
{
    /// Makes the kernel allocate its resources for `operations` operations at a time on each store: reads the beginning
    /// that many times, and flushes, for which the kernel starts a thread. Call it before the first turn. Errors are
    /// ignored.
    ///
    /// # Errors
    ///
    /// The ring fails.
    pub fn warm_up(&mut self, operations: usize) -> io::Result<()> {
        self.volume.device.locks().reserve(operations);
        self.volume.device.zones().inspect(|zones| zones.reserve(operations));
        self.volume.lock_room += operations;
        self.ring.reserve(operations);
        // The kernel's last idle thread remains, and is there for the next operation.
        if self.volume.device.stores().iter().all(|store| is_direct_block_device(&**store)) {
            self.ring.set_iowq_max_workers()?;
        }
        let mut done = VecDeque::with_capacity(operations);
        for (store, access) in self.volume.device.stores().iter().zip(&self.volume.access) {
            let StoreAccess::Ring(file) = *access else { continue };
            let len = store.geometry().len.min(WARM_UP_LEN as u64) as usize;
            for _ in 0..operations {
                let read = StoreOperation::Read { offset: 0, buffer: Buffer::new(WARM_UP_LEN), range: 0..len };
                self.ring.submit(file, read, Token(ENGINE));
            }
            self.ring.submit(file, StoreOperation::Sync, Token(ENGINE));
            let mut left = operations + 1;
            while left > 0 {
                if self.ring.turn(Wait::Forever, &mut done)? {
                    self.ring.waker().wake();
                }
                left -= done.drain(..).count();
            }
        }
        Ok(())
    }
}

/// Returns whether a store is a block device with direct I/O, on which every operation except flushes and discards runs
/// without a kernel thread that waits for it.
fn is_direct_block_device(store: &dyn BackingStore) -> bool {
    let flags = store.as_fd().and_then(|fd| rustix::fs::fcntl_getfl(fd).ok());
    store.profile().is_block_device && flags.is_some_and(|flags| flags.contains(rustix::fs::OFlags::DIRECT))
}

#[cfg(test)]
mod tests {
    use super::super::tests::Pipe;
    use super::super::{Context, Finished, Flow};
    use super::*;
    use crate::buffer::BufferPool;
    use crate::device::{Access, Device};
    use crate::ring::{Completion, Ring};
    use crate::store::file::{FileStore, IoMode};
    use std::sync::Arc;
    use std::time::Duration;

    /// Waits for an hour unless there is something to do.
    struct Idle;

    impl Frontend for Idle {
        type Message = ();
        fn on_message(&mut self, _cx: &mut Context<'_>, (): ()) {}
        fn on_completion(&mut self, _cx: &mut Context<'_>, _done: Completion) {}
        fn on_finished(&mut self, _cx: &mut Context<'_>, _done: Finished) {}
        fn end_turn(&mut self, _cx: &mut Context<'_>) -> (Flow, Wait) {
            (Flow::Continue, Wait::Until(Duration::from_secs(3600)))
        }
    }

    fn worker(mode: IoMode) -> Worker<Idle> {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        let device = Device::raw(Arc::new(FileStore::new(file, mode).unwrap()), Access::default());
        Worker::new(Arc::new(device), Ring::new(mode).unwrap(), BufferPool::new(&[]), Idle)
    }

    #[test]
    fn nothing_is_in_flight_after_warm_up() {
        for (mode, operations) in [(IoMode::Uring, 1), (IoMode::Uring, 5), (IoMode::Sync, 5)] {
            let mut worker = worker(mode);
            worker.warm_up(operations).unwrap();
            let mut late = VecDeque::new();
            worker.ring.turn(Wait::Until(Duration::from_millis(20)), &mut late).unwrap();
            assert!(late.is_empty(), "{} of {operations}", late.len());
        }
    }

    #[test]
    fn only_block_devices_with_direct_io_need_no_kernel_threads() {
        for (is_block_device, is_direct) in [(false, false), (false, true), (true, false), (true, true)] {
            let flags = if is_direct { rustix::pipe::PipeFlags::DIRECT } else { rustix::pipe::PipeFlags::empty() };
            let (_, end) = rustix::pipe::pipe_with(flags).unwrap();
            let found = is_direct_block_device(&Pipe::new(end, is_block_device));
            assert_eq!(found, is_block_device && is_direct, "{is_block_device} {is_direct}");
        }
    }

    #[test]
    fn worker_with_nothing_to_do_waits_as_long_as_its_frontend_says() {
        for mode in [IoMode::Uring, IoMode::Sync] {
            let mut worker = worker(mode);
            worker.turn().unwrap();
            assert_eq!(worker.wait, Wait::Until(Duration::from_secs(3600)));
        }
    }

    #[test]
    fn locks_have_room_for_the_operations_until_the_worker_ends() {
        for mode in [IoMode::Uring, IoMode::Sync] {
            let mut worker = worker(mode);
            let device = Arc::clone(&worker.volume.device);
            let (room, locks) = (worker.ring.room(), device.locks().room());
            worker.warm_up(5).unwrap();
            assert!(worker.ring.room() >= room + 5);
            assert_eq!(device.locks().room(), locks + 5);
            drop(worker);
            assert_eq!(device.locks().room(), 0);
        }
    }
}
