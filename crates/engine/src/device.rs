//! A device: a target on a store, and the rules that hold for it. What all workers of a served volume share.

use crate::request::RequestError;
use crate::stats::{Stats, StatsLevel};
use crate::store::{BackingStore, Run};
use crate::target::{CryptTarget, TargetError};
use crate::unaligned::UnitLocks;
use inlock_cipher::{Segment, VolumeKey};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a device's user may do with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Writes are refused.
    pub read_only: bool,
    /// Discard gives storage back. It shows on the store which units are in use, so it is off unless asked for.
    pub allow_discards: bool,
}

/// A target on a store. Immutable but for its locks, its counters and the mark of a failed flush.
pub struct Device {
    target: CryptTarget,
    store: Arc<dyn BackingStore>,
    access: Access,
    locks: UnitLocks,
    /// Set by the first failed flush: the kernel has dropped the dirty state, so a later success would be a lie.
    lost_writes: AtomicBool,
    stats: Arc<Stats>,
}

impl Device {
    /// The device that `segments` describe on `store`, under `key`.
    pub fn new(
        segments: &[Segment],
        key: &VolumeKey,
        store: Arc<dyn BackingStore>,
        access: Access,
    ) -> Result<Self, TargetError> {
        let target = CryptTarget::new(segments, key, store.geometry().len)?;
        Ok(Self::with_target(target, store, access))
    }

    /// The store as it is, without a cipher.
    pub fn raw(store: Arc<dyn BackingStore>, access: Access) -> Self {
        Self::with_target(CryptTarget::raw(store.geometry().len), store, access)
    }

    fn with_target(target: CryptTarget, store: Arc<dyn BackingStore>, access: Access) -> Self {
        let access = Access { read_only: access.read_only || store.geometry().read_only, ..access };
        let stats = Stats::new(StatsLevel::On);
        Self { target, store, access, locks: UnitLocks::default(), lost_writes: AtomicBool::new(false), stats }
    }

    /// The same device with counters of another level, which start anew.
    #[must_use]
    pub fn with_stats(self, level: StatsLevel) -> Self {
        Self { stats: Stats::new(level), ..self }
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.target.len()
    }

    /// Whether the device has no bytes.
    pub fn is_empty(&self) -> bool {
        self.target.is_empty()
    }

    /// Where and how data units are encrypted.
    pub fn target(&self) -> &CryptTarget {
        &self.target
    }

    /// Where the ciphertext is.
    pub fn store(&self) -> &Arc<dyn BackingStore> {
        &self.store
    }

    /// What is allowed.
    pub fn access(&self) -> Access {
        self.access
    }

    /// What it has done, and how long that took.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    pub(crate) fn shared_stats(&self) -> &Arc<Stats> {
        &self.stats
    }

    pub(crate) fn locks(&self) -> &UnitLocks {
        &self.locks
    }

    /// Whether a flush may still succeed.
    pub(crate) fn check_flush(&self) -> Result<(), RequestError> {
        if self.lost_writes.load(Ordering::Acquire) { Err(RequestError::Io(Errno::IO)) } else { Ok(()) }
    }

    /// Takes note of how the store's flush ended.
    pub(crate) fn flushed(&self, result: Result<(), Errno>) -> Result<(), RequestError> {
        if result.is_err() {
            self.lost_writes.store(true, Ordering::Release);
        }
        self.check_flush()?;
        Ok(result?)
    }

    /// The run of allocated bytes or hole that starts at `offset`, at most `len` long and not empty. A hole of the store
    /// is reported as a hole; what an encrypted one reads as is nobody's business but the cipher's, and never zero.
    pub fn run_at(&self, offset: u64, len: u64) -> Result<Run, RequestError> {
        let place = self.target.place(offset, len)?;
        let granule = place.granule as u64;
        let run = self.store.run_at(place.store_offset, place.len)?;
        // Holes shrink to whole data units, data grows to them: a unit that is stored in part is not a hole. Units are
        // counted from the device's start, since the data area need not start on a multiple of the unit.
        let end = offset + run.len.clamp(1, place.len);
        let (hole, end) = match end / granule * granule {
            whole if run.hole && whole > offset && offset.is_multiple_of(granule) => (true, whole),
            _ => (false, end.next_multiple_of(granule).min(offset + place.len)),
        };
        // A hole may end with the device, whose last unit is whole.
        Ok(Run { offset, len: end - offset, hole })
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({} bytes, {:?})", self.len(), self.access)
    }
}
