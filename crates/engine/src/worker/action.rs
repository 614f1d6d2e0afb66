//! Actions that a step requests from the worker.

use super::path::Via;
use crate::buffer::Buffer;
use crate::cipher_engine::Direction;
use crate::ciphertext::Ciphertext;
use crate::locks::LockId;
use crate::request::RequestError;
use crate::zone_queue::WriteId;
use std::ops::Range;

/// Action to perform before the next event.
#[derive(Debug)]
pub(super) enum Action {
    /// Nothing: an event is outstanding.
    Wait,
    /// Acquire the lock on its data units.
    Lock,
    /// Give up the lock on its data units, which have moved, and begin with this data again.
    BeginAgain { data: Buffer },
    /// Read from the store into `buffer.data()[span]`.
    Read { via: Via, offset: u64, buffer: Buffer, span: Range<usize> },
    /// Write `span` of the ciphertext to the store.
    Write { via: Via, offset: u64, data: Ciphertext, span: Range<usize>, fua: bool },
    /// Encrypt or decrypt on the cipher threads.
    Crypt { direction: Direction, buffer: Buffer },
    /// Move data between buffer and store on the copy thread.
    Copy { writes: bool, buffer: Buffer },
    /// Put the ciphertext into the zone write queue.
    Queue { data: Ciphertext, can_merge: bool },
    /// Take the ciphertext, which is at the head of its queue, out of it.
    Dispatch,
    /// Merge the ciphertext, which was at the head of its queue, with the writes behind it that are ready.
    Merge { data: Ciphertext },
    /// Compare the ciphertext with what the store has of it.
    Compare { data: Ciphertext },
    /// Leave the zone write queue.
    Leave { data: Ciphertext, succeeded: bool },
    /// Sync the stores. Gives up the lock on its data units.
    Sync,
    /// Give back a range of a store.
    Discard { store: u32, range: Range<u64> },
    /// Carry out a zone management operation.
    ZoneMgmt,
    /// Carry out the next child request.
    Child,
    /// The request has ended.
    Finish(Ending),
}

/// How a request ended.
#[derive(Debug)]
pub(super) struct Ending {
    pub(super) result: Result<(), RequestError>,
    /// The buffer of a transfer.
    pub(super) data: Option<Buffer>,
    /// Whether the disk may have lost earlier writes.
    pub(super) lost_writes: bool,
}

impl Ending {
    pub(super) fn new(result: Result<(), RequestError>, data: Option<Buffer>) -> Self {
        Self { result, data, lost_writes: false }
    }
}

/// Lock or queue entry that a transfer holds until it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    None,
    /// The lock on its data units.
    Units(LockId),
    /// An entry of its zone's write queue.
    ZoneWrite(WriteId),
}
