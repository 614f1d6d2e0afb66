//! A request on its way through a worker: which step it is at, what it holds, and the account of what it did.

use crate::buffer::Buffer;
use crate::crypt_mapping::MappedRange;
use crate::locks::LockId;
use crate::request::Operation;
use crate::stats::{Phase, Timing, Work};
use crate::zoned::queue::{WriteId, ZoneMgmtId};
use rustix::io::Errno;
use std::time::Duration;

/// A request on its way.
pub(super) struct InFlight {
    pub(super) id: u64,
    pub(super) operation: Operation,
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) step: Step,
    pub(super) mapped: Option<MappedRange>,
    pub(super) buffer: Option<Buffer>,
    pub(super) spare: Option<Buffer>,
    pub(super) lock: Option<LockId>,
    /// Of a write to a sequential zone.
    pub(super) write: Option<WriteId>,
    /// Of an order to zones.
    pub(super) action: Option<ZoneMgmtId>,
    /// The request that this one is a part of; the frontend does not know of parts.
    pub(super) parent: Option<u32>,
    /// Bytes of the current store operation that are done.
    pub(super) progress: usize,
    /// Why it fails, while the store is asked whether earlier writes are lost as well.
    pub(super) failed: Option<Errno>,
    pub(super) timing: Option<Timing>,
    pub(super) work: Work,
}

impl InFlight {
    pub(super) fn lap(&mut self, phase: Phase) {
        if let Some(timing) = &mut self.timing {
            timing.lap(phase);
        }
    }

    /// Takes note of a transfer whose copy and cipher work were done together, `cipher` of the time for the latter.
    pub(super) fn carried(&mut self, calls: u32, cipher: Duration) {
        let Some(mapped) = self.mapped else { return };
        self.lap(Phase::Store);
        if calls > 0 {
            self.work.cipher_calls += calls;
            self.work.cipher_units += (mapped.aligned_len / mapped.unit_len) as u32;
            if let Some(timing) = &mut self.timing {
                timing.shift(Phase::Store, Phase::Cipher, cipher);
            }
        }
    }

    /// Takes note of cipher calls over `bytes` of its data units, and of the time they took.
    pub(super) fn ciphered(&mut self, calls: u32, bytes: usize) {
        let Some(mapped) = self.mapped.filter(|e| e.unit_len > 1) else { return };
        self.work.cipher_calls += calls;
        self.work.cipher_units += (bytes / mapped.unit_len) as u32;
        self.lap(Phase::Cipher);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Start,
    Lock,
    /// Reading edge 0 or 1 of a partial write.
    Edge(usize),
    Read,
    /// A write that is ahead of its zone's pointer, and waits for those before it.
    Held,
    /// A write to a sequential zone, or an order to zones: it waits for its turn.
    Turn,
    /// An order to zones, in the hands of the mgmt_thread.
    Zones,
    /// In the hands of the cipher pool.
    Cipher,
    /// In the hands of the carrier.
    Carried,
    Write,
    /// It waits for a sync of the stores.
    Sync,
    Discard,
    /// Carried out in parts, one after the other.
    Parts,
}
