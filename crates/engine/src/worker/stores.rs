//! Access of a worker to its stores: calls, operations of the ring, or operations that the store completes by itself.

use super::{Frontend, Worker};
use crate::device::Device;
use crate::errno::Errno;
use crate::message_queue::MessageQueue;
use crate::ring::{Completion, FileId, Operation, Ring, Token, Waker};
use crate::store::StoreOperation;
use crate::store::asynchronous::{Completed, Pending};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Interval between two looks for the last completions of a worker that ends.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Access to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreAccess {
    /// Calls of the worker.
    Inline,
    /// Operations of the ring.
    Ring(FileId),
    /// Operations of an asynchronous store.
    Async,
}

/// Operations at asynchronous stores.
pub(super) struct AsyncOperations {
    completions: Arc<Completions>,
    in_flight: usize,
}

/// Completions from the threads of the stores.
struct Completions(MessageQueue<Completion>);

impl Completed for Completions {
    fn completed(&self, token: u64, result: Result<usize, Errno>, operation: StoreOperation) {
        self.0.push(Completion { token: Token(token), result, returned: operation.into() });
    }
}

/// Returns how a worker with this ring accesses the stores of `device`, with memory for the operations of `capacity`
/// requests.
pub(super) fn connect(device: &Device, ring: &mut Ring, capacity: usize) -> (Vec<StoreAccess>, AsyncOperations) {
    let mut access = |store: &Arc<_>| match ring.add_store(store) {
        Some(file) => StoreAccess::Ring(file),
        None if store.asynchronous().is_some() => StoreAccess::Async,
        None => StoreAccess::Inline,
    };
    let access: Vec<_> = device.stores().iter().map(&mut access).collect();
    let capacity = if access.contains(&StoreAccess::Async) { capacity } else { 0 };
    (access, AsyncOperations::new(ring.waker(), capacity))
}

impl AsyncOperations {
    fn new(waker: Waker, capacity: usize) -> Self {
        Self { completions: Arc::new(Completions(MessageQueue::new(waker, capacity))), in_flight: 0 }
    }

    /// Returns an operation for its store. `None`: no asynchronous store has such operations.
    fn begin(&mut self, operation: Operation, token: Token) -> Option<Pending> {
        let Operation::Store(operation) = operation else { return None };
        self.in_flight += 1;
        Some(Pending::new(operation, token.0, Arc::clone(&self.completions) as _))
    }

    /// Takes the oldest completion.
    pub(super) fn next(&mut self) -> Option<Completion> {
        let done = self.completions.0.next()?;
        self.in_flight -= 1;
        Some(done)
    }

    /// Waits for the operations in flight, and adds their completions to `ended`. Blocks.
    pub(super) fn finish(&mut self, ended: &mut VecDeque<Completion>) {
        while self.in_flight > 0 {
            match self.next() {
                Some(done) => ended.push_back(done),
                None => std::thread::sleep(POLL_INTERVAL),
            }
        }
    }
}

impl<F: Frontend> Worker<F> {
    /// Submits an operation to a store. It completes later.
    pub(super) fn submit(&mut self, store: usize, operation: impl Into<Operation>, token: Token) {
        let operation = operation.into();
        let access = match (self.volume.access[store], operation.write_end()) {
            // The call fails, without the race of an operation.
            (StoreAccess::Ring(_), Some(end)) if self.volume.device.stores()[store].is_cut_before(end) => {
                StoreAccess::Inline
            }
            (access, _) => access,
        };
        match access {
            StoreAccess::Ring(file) => self.ring.submit(file, operation, token),
            StoreAccess::Async => {
                let pending = self.asynchronous.begin(operation, token);
                let started = self.volume.device.stores()[store].asynchronous().zip(pending);
                // A store that is no longer asynchronous has dropped the operation, and so failed it.
                if let Some((store, pending)) = started {
                    store.start(pending);
                }
            }
            StoreAccess::Inline => {
                let (result, returned) = operation.execute(&*self.volume.device.stores()[store]);
                self.completions.push_back(Completion { token, result, returned });
            }
        }
    }
}
