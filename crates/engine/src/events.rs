//! Events of requests in flight: one type, and one queue per worker.
//!
//! Locks, zone write queues and helper threads keep a [`ReplyTo`] and post one event through it. A request has at most
//! one event outstanding, so a worker's queue never grows. An event for a request that has ended is dropped.

use crate::buffer::Buffer;
use crate::ciphertext::Ciphertext;
use crate::errno::Errno;
use crate::message_queue::MessageQueue;
use crate::request::RequestError;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Request in flight: its index in the worker's table, and the number of requests that used the index before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// Event that a request waits for.
#[derive(Debug)]
pub(crate) enum Event {
    /// It holds the lock on its data units.
    Locked,
    /// Its zone write queue lets it begin, or its write is the head of the queue.
    Released,
    /// Its ciphertext, which was the head of its zone write queue, to be written at `position` of the store.
    Dispatched { data: Ciphertext, position: u64 },
    /// No other write can be merged with its write.
    NotMerged { data: Ciphertext },
    /// How much of a reissued write the store has already.
    Compared { data: Ciphertext, present: Result<usize, Errno> },
    /// Its write has left the zone write queue. `landed`: the store has all of it, even if the write failed.
    Left { data: Ciphertext, landed: bool },
    /// Its append failed because the write pointer was elsewhere, and is to be written at `position` now.
    Reassigned { data: Ciphertext, position: u64 },
    /// Its write was merged with another one, which has ended.
    Merged(MergedWrite),
    /// A read of the store has ended.
    Read { buffer: Buffer, result: Result<usize, Errno> },
    /// A write to the store has ended.
    Written { data: Ciphertext, result: Result<usize, Errno> },
    /// The helper threads or the cipher engine have no room for a job: the worker does the work inline.
    Refused(Buffer),
    /// The cipher threads or the cipher engine have encrypted or decrypted, in `calls` calls.
    Crypted { data: Crypted, calls: u32 },
    /// The copy thread has moved the data between buffer and store, `cipher` of the time in `calls` cipher calls.
    Copied { buffer: Buffer, result: Result<(), Errno>, calls: u32, cipher: Duration },
    /// A discard has ended.
    Discarded(Result<(), Errno>),
    /// The stores were synced, or failed to be.
    Synced(Result<(), RequestError>),
    /// A zone management operation has ended.
    ZonesManaged(Result<(), Errno>),
    /// A child request has ended: its buffer, and where the requested bytes are in it.
    Child { buffer: Buffer, requested: Range<usize>, result: Result<(), RequestError> },
}

/// A buffer that cipher threads or a cipher engine worked on.
#[derive(Debug)]
pub(crate) enum Crypted {
    /// Plaintext.
    Decrypted(Buffer),
    /// Ciphertext.
    Encrypted(Ciphertext),
    /// A cipher panicked, or an engine failed; the buffer holds neither plaintext nor ciphertext.
    Poisoned(Buffer),
}

/// A write that went to the store with another one's.
#[derive(Debug)]
pub(crate) struct MergedWrite {
    /// Ciphertext written; `None` if the worker that had it ended.
    pub(crate) data: Option<Ciphertext>,
    pub(crate) result: Result<(), Errno>,
    /// When the merged write was dispatched.
    pub(crate) since: Instant,
}

/// The events for one worker's requests.
pub(crate) type EventQueue = MessageQueue<(RequestId, Event)>;

/// Where to post the event that a request waits for.
#[derive(Clone)]
pub(crate) struct ReplyTo {
    queue: Arc<EventQueue>,
    request: RequestId,
}

impl RequestId {
    /// Generations are numbers of as many bits as fit a token of the ring.
    pub(crate) const GENERATIONS: u32 = (1 << 30) - 1;
}

impl ReplyTo {
    /// Replies to `request` of the worker with this queue.
    pub(crate) fn new(queue: &Arc<EventQueue>, request: RequestId) -> Self {
        Self { queue: Arc::clone(queue), request }
    }

    /// Posts the event and wakes the worker. Takes the queue's lock for a moment, so callers may hold locks of their
    /// own.
    pub(crate) fn post(&self, event: Event) {
        self.queue.push((self.request, event));
    }

    /// Returns the request if it is one of the worker with this queue, which then needs no event.
    pub(crate) fn request_of(&self, queue: &Arc<EventQueue>) -> Option<RequestId> {
        Arc::ptr_eq(&self.queue, queue).then_some(self.request)
    }
}
