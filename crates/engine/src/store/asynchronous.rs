//! Stores that complete operations later, such as a server on the network.
//!
//! An operation owns its memory while it is at the store, as one of the ring does, and completes exactly once: a store
//! that drops it has failed it. Callers that block use the functions at the end, which start an operation and wait.

use crate::buffer::Buffer;
use crate::ciphertext::Ciphertext;
use crate::errno::Errno;
use crate::store::StoreOperation;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Store that completes operations later.
///
/// Callers bound the number of operations that they start, so a queue of them needs no bound of its own. Every one
/// completes in bounded time, with an error if the store does not respond.
pub trait AsyncStore: Send + Sync {
    /// Starts an operation. Does not block. It may complete before this returns, on this thread or on another one.
    fn start(&self, pending: Pending);

    /// Fails every operation with `EIO`, those that wait and all later ones.
    fn abort(&self);
}

/// Receiver of completed operations.
pub(crate) trait Completed: Send + Sync {
    /// Takes an operation that has ended: the number of bytes transferred, or the error.
    fn completed(&self, token: u64, result: Result<usize, Errno>, operation: StoreOperation);
}

/// Operation that has started. Dropping it fails it with `EIO`.
pub struct Pending {
    operation: Option<StoreOperation>,
    token: u64,
    receiver: Arc<dyn Completed>,
}

impl Pending {
    /// Returns an operation whose end `receiver` is told under `token`.
    pub(crate) fn new(operation: StoreOperation, token: u64, receiver: Arc<dyn Completed>) -> Self {
        Self { operation: Some(operation), token, receiver }
    }

    /// Returns the operation, whose memory the store writes from.
    pub fn operation(&self) -> &StoreOperation {
        self.operation.as_ref().expect("an operation is there until it completes")
    }

    /// Returns the operation, whose memory the store reads into.
    pub fn operation_mut(&mut self) -> &mut StoreOperation {
        self.operation.as_mut().expect("an operation is there until it completes")
    }

    /// Ends the operation: the number of bytes transferred, or the error. More bytes than were asked for are a defect
    /// of the store, and an `EIO`.
    pub fn complete(mut self, result: Result<usize, Errno>) {
        self.end(result);
    }

    /// Fails the operation with `EIO` while something outside of the program may still use its memory, and returns that
    /// memory, which the store keeps until then. The engine gets other memory of the same length back.
    pub fn fail_and_keep_memory(mut self) -> Option<Buffer> {
        let kept = match self.operation_mut() {
            StoreOperation::Read { buffer, .. } => {
                let other = Buffer::new(buffer.capacity());
                Some(std::mem::replace(buffer, other))
            }
            StoreOperation::Write { data, .. } => {
                // Never written: the operation has failed.
                let other = Ciphertext::encrypted(Buffer::new(data.bytes().len()));
                Some(std::mem::replace(data, other).into_buffer())
            }
            StoreOperation::Sync | StoreOperation::Discard { .. } => None,
        };
        self.end(Err(Errno::IO));
        kept
    }

    fn end(&mut self, result: Result<usize, Errno>) {
        if let Some(operation) = self.operation.take() {
            let asked = operation.transfer_len();
            let result = result.and_then(|len| if len <= asked { Ok(len) } else { Err(Errno::IO) });
            self.receiver.completed(self.token, result, operation);
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.end(Err(Errno::IO));
    }
}

impl std::fmt::Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Pending").field(&self.operation).finish()
    }
}

/// A blocked caller.
#[derive(Default)]
struct Caller {
    ended: Mutex<Option<(Result<usize, Errno>, StoreOperation)>>,
    changed: Condvar,
}

impl Completed for Caller {
    fn completed(&self, _token: u64, result: Result<usize, Errno>, operation: StoreOperation) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some((result, operation));
        self.changed.notify_one();
    }
}

/// Carries out an operation and returns it with its result. Blocks.
pub fn call(store: &dyn AsyncStore, operation: StoreOperation) -> (Result<usize, Errno>, StoreOperation) {
    let caller = Arc::new(Caller::default());
    store.start(Pending::new(operation, 0, Arc::clone(&caller) as _));
    let mut ended = caller.ended.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        match ended.take() {
            Some(ended) => return ended,
            None => ended = caller.changed.wait(ended).unwrap_or_else(PoisonError::into_inner),
        }
    }
}

/// Reads as [`crate::BackingStore::read_at`]. Blocks.
///
/// # Errors
///
/// The error of the store.
pub fn read_at(store: &dyn AsyncStore, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let range = 0..data.len();
    let (result, operation) = call(store, StoreOperation::Read { offset, buffer: Buffer::new(data.len()), range });
    let len = result?.min(data.len());
    if let StoreOperation::Read { buffer, .. } = operation {
        data[..len].copy_from_slice(&buffer.data()[..len]);
    }
    Ok(len)
}

/// Writes ciphertext as [`crate::BackingStore::write_at`], or with FUA. Blocks.
///
/// # Errors
///
/// The error of the store.
pub fn write_at(store: &dyn AsyncStore, data: &[u8], offset: u64, durable: bool) -> Result<usize, Errno> {
    let mut buffer = Buffer::new(data.len());
    buffer.data_mut()[..data.len()].copy_from_slice(data);
    let (data, range) = (Ciphertext::encrypted(buffer), 0..data.len());
    call(store, StoreOperation::Write { offset, data, range, durable }).0
}

/// Puts completed writes on stable storage, as [`crate::BackingStore::sync`]. Blocks.
///
/// # Errors
///
/// The error of the store.
pub fn sync(store: &dyn AsyncStore) -> Result<(), Errno> {
    call(store, StoreOperation::Sync).0.map(drop)
}

/// Deallocates a range, as [`crate::BackingStore::discard`]. Blocks.
///
/// # Errors
///
/// The error of the store.
pub fn discard(store: &dyn AsyncStore, offset: u64, len: u64) -> Result<(), Errno> {
    call(store, StoreOperation::Discard { offset, len }).0.map(drop)
}
