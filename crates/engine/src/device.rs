//! A device: a target on its stores, and the rules that hold for it. What all workers of a served volume share.
//!
//! A device can be suspended: what is in flight ends, what comes waits, and the keys may be taken out of memory, or the
//! target replaced by another, before it goes on.

use crate::crypt_mapping::{CryptMapping, Target, TargetError};
use crate::flush::SyncQueue;
use crate::freeze::{Freeze, FreezeState, InUse, UsageGuard};
use crate::locks::UnitLocks;
use crate::mapping::{Kind, Mapping, Place};
use crate::request::RequestError;
use crate::stats::{Stats, StatsLevel};
use crate::store::{BackingStore, BlockStatus};
use crate::zone_mapping;
use crate::zone_queue::ZoneWriteQueues;
use crate::zoned::{Zone, ZoneLimits};
use inlock_cipher::{DataUnitSize, Segment, VolumeKey};
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a device's user may do with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Writes are refused.
    pub read_only: bool,
    /// Discard gives storage back. It shows on the store which units are in use, so it is off unless asked for.
    pub allow_discards: bool,
}

/// Buffers are made for data units of this size at least, so that a table of small ones can be replaced by any LUKS volume's.
const MIN_UNIT_LEN: usize = DataUnitSize::LUKS_MAX.bytes();

/// An order to a device that it cannot follow. Nothing has changed, unless it says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// Keys are only changed while nothing uses them.
    #[error("the device is not suspended")]
    NotSuspended,
    /// The key was wiped and no other was set.
    #[error("the device has no key")]
    NoKey,
    /// [`Device::end`] was called.
    #[error("the device is being closed")]
    Ended,
    /// The store does not say how long it is.
    #[error("the store failed: {0}")]
    Store(#[source] RequestError),
    /// The device is suspended, but what was written before may be lost.
    #[error("suspended, but writes may be lost")]
    Flush(#[source] RequestError),
    /// The new table or key cannot be used.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The cipher pool is not done with a request of a worker that has failed. Keys that were to be wiped are, as soon as
    /// it is; nothing else has changed.
    #[error("a request of a worker that has failed still uses the keys")]
    InUse,
    /// The new table is shorter: requests that wait could lie beyond its end.
    #[error("the new table has {len} bytes, the device {current}")]
    Shorter {
        /// Length of the new table.
        len: u64,
        /// Length of the device.
        current: u64,
    },
    /// The new table's data units are too large for the buffers, which were made when the device was opened.
    #[error("the new table has data units of {unit} bytes; the device was opened for {most} at most")]
    LargerUnit {
        /// The new table's largest data unit.
        unit: usize,
        /// The largest that buffers were made for.
        most: usize,
    },
}

/// A target on its stores. Immutable but for its locks, its counters, the mark of a failed flush, and what it is told while suspended.
pub struct Device {
    freeze: Freeze,
    /// Who suspends, resumes or replaces has this. True: nobody may any more.
    orders: Mutex<bool>,
    stores: Vec<Arc<dyn BackingStore>>,
    read_only: bool,
    allow_discards: AtomicBool,
    locks: UnitLocks,
    /// Where a store is zoned: it is the only one.
    zones: Option<ZoneWriteQueues>,
    len: AtomicU64,
    /// The largest data unit that buffers are made for.
    unit_len: usize,
    syncs: SyncQueue,
    stats: Arc<Stats>,
    /// Whether somebody asked how fast the ciphers are.
    measures: AtomicBool,
}

impl Device {
    /// The device that `segments` describe on `store`, under `key`.
    pub fn new(
        segments: &[Segment],
        key: &VolumeKey,
        store: Arc<dyn BackingStore>,
        access: Access,
    ) -> Result<Self, TargetError> {
        let target = CryptMapping::new(segments, key, store.geometry().len)?;
        let stores = vec![store];
        zone_mapping::check(target.mapping(), &stores)?;
        Ok(Self::with_target(target, stores, access))
    }

    /// The device that `lines` describe on `stores`. Read-only if one of the stores is.
    pub fn stacked(
        lines: &[Target<'_>],
        stores: Vec<Arc<dyn BackingStore>>,
        access: Access,
    ) -> Result<Self, TargetError> {
        let lens: Vec<u64> = stores.iter().map(|store| store.geometry().len).collect();
        let target = CryptMapping::stacked(lines, &lens)?;
        zone_mapping::check(target.mapping(), &stores)?;
        Ok(Self::with_target(target, stores, access))
    }

    /// The store as it is, without a cipher.
    pub fn raw(store: Arc<dyn BackingStore>, access: Access) -> Self {
        Self::with_target(CryptMapping::raw(store.geometry().len), vec![store], access)
    }

    fn with_target(target: CryptMapping, stores: Vec<Arc<dyn BackingStore>>, access: Access) -> Self {
        let read_only = access.read_only || stores.iter().any(|store| store.geometry().read_only);
        Self {
            len: AtomicU64::new(target.len()),
            unit_len: target.unit_len().max(MIN_UNIT_LEN),
            freeze: Freeze::new(target),
            orders: Mutex::default(),
            zones: stores.iter().find(|store| store.zoned().is_some()).map(ZoneWriteQueues::new),
            stores,
            read_only,
            allow_discards: access.allow_discards.into(),
            locks: UnitLocks::default(),
            syncs: SyncQueue::default(),
            stats: Stats::new(StatsLevel::On),
            measures: AtomicBool::new(false),
        }
    }

    /// The same device with counters of another level, which start anew.
    #[must_use]
    pub fn with_stats(self, level: StatsLevel) -> Self {
        Self { stats: Stats::new(level), ..self }
    }

    /// The same device, whose writes to a zone go as soon as they are encrypted: what shows that the tests of their order see
    /// when there is none.
    #[doc(hidden)]
    #[must_use]
    pub fn without_zone_write_queues(mut self) -> Self {
        self.zones.iter_mut().for_each(ZoneWriteQueues::bypass);
        self
    }

    /// Length in bytes. Grows when a longer table is loaded.
    pub fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// Whether the device has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where data units lie, as it stands now. Frontends use their worker's ([`crate::worker::Context::mapping`]).
    pub fn mapping(&self) -> Arc<Mapping> {
        self.freeze.mapping()
    }

    /// What is true of the device's zones; `None` where it has none.
    pub fn zone_limits(&self) -> Option<ZoneLimits> {
        zone_mapping::limits_of(&self.mapping(), &self.stores)
    }

    /// Reports the device's zones from the one that holds byte `offset`, as many as there are and `into` has room for; how
    /// many. Asks the store, and waits for it.
    ///
    /// # Errors
    ///
    /// [`RequestError::Unsupported`]: the device has no zones.
    pub fn report_zones(&self, offset: u64, into: &mut [Zone]) -> Result<usize, RequestError> {
        zone_mapping::report(&self.mapping(), &self.stores, offset, into)
    }

    /// Keeps the order of writes in sequential zones.
    pub(crate) fn zones(&self) -> Option<&ZoneWriteQueues> {
        self.zones.as_ref()
    }

    /// Whether a stretch of a store touches a zone that is written in order, which gives nothing back but by a reset.
    pub(crate) fn is_sequential(&self, place: &Place) -> Result<bool, RequestError> {
        self.zones.as_ref().map_or(Ok(false), |zones| zones.is_sequential(place.store_offset, place.len))
    }

    /// Where the ciphertext is.
    pub fn stores(&self) -> &[Arc<dyn BackingStore>] {
        &self.stores
    }

    /// The largest data unit in bytes that buffers have to be made for: of this table, and of one that may replace it.
    pub fn unit_len(&self) -> usize {
        self.unit_len
    }

    /// What is allowed.
    pub fn access(&self) -> Access {
        Access { read_only: self.read_only, allow_discards: self.allow_discards.load(Ordering::Relaxed) }
    }

    /// Allows discards from now on, or not. Frontends that have told their clients what they may do know nothing of it.
    pub fn allow_discards(&self, allowed: bool) {
        self.allow_discards.store(allowed, Ordering::Relaxed);
    }

    /// What it has done, and how long that took.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    pub(crate) fn shared_stats(&self) -> &Arc<Stats> {
        &self.stats
    }

    /// Holds requests back. Returns when none is in flight and what was written is on stable storage; until
    /// [`Device::resume`] whatever is asked waits. Not to be called on a worker's own thread. A device that is suspended
    /// stays so.
    ///
    /// # Errors
    ///
    /// [`ControlError::Flush`]: the device is suspended all the same. So for every later call.
    pub fn suspend(&self) -> Result<(), ControlError> {
        let _orders = self.order()?;
        if self.is_suspended() {
            return self.check_flush().map_err(ControlError::Flush);
        }
        self.freeze.freeze();
        if self.read_only {
            return Ok(());
        }
        self.sync_blocking().map_err(ControlError::Flush)
    }

    /// Lets requests go on, those that waited first. Refused while there is no key.
    pub fn resume(&self) -> Result<(), ControlError> {
        let _orders = self.order()?;
        if !self.is_suspended() || self.freeze.unfreeze() { Ok(()) } else { Err(ControlError::NoKey) }
    }

    /// Whether requests wait.
    pub fn is_suspended(&self) -> bool {
        self.freeze.freeze_state() != FreezeState::Running
    }

    /// Takes the keys out of memory, with all that was computed from them. The device is suspended.
    pub fn wipe_key(&self) -> Result<(), ControlError> {
        let _orders = self.order_while_suspended()?;
        self.freeze.replace(None).map_err(|InUse| ControlError::InUse)
    }

    /// The device goes on under `key`, which is as long as the one it was opened with. The device is suspended; it may
    /// have been opened under one key only.
    pub fn set_key(&self, key: &VolumeKey) -> Result<(), ControlError> {
        self.set_keys(&[key])
    }

    /// As [`Device::set_key`], for a device of several keys: one for each [`VolumeKey`] that its table was made with, in
    /// the order of their first use. None where nothing is encrypted.
    pub fn set_keys(&self, keys: &[&VolumeKey]) -> Result<(), ControlError> {
        let _orders = self.order_while_suspended()?;
        let target = CryptMapping::with_keys(&self.freeze.mapping(), keys)?;
        self.put(target);
        Ok(())
    }

    /// The device goes on as `target`, which lies on the same stores. Requests that wait are carried out as the new
    /// table says. A device that is not suspended is, for as long as this takes.
    pub fn reload(&self, target: CryptMapping) -> Result<(), ControlError> {
        let _orders = self.order()?;
        let (len, current) = (target.len(), self.len());
        if len < current {
            return Err(ControlError::Shorter { len, current });
        }
        if target.unit_len() > self.unit_len {
            return Err(ControlError::LargerUnit { unit: target.unit_len(), most: self.unit_len });
        }
        self.check_stores(&target)?;
        zone_mapping::check(target.mapping(), &self.stores)?;
        let target = target.of_generation(self.mapping().generation.wrapping_add(1));
        let suspended = self.is_suspended();
        if !suspended {
            self.freeze.freeze();
        }
        self.put(target);
        self.len.store(len, Ordering::Release);
        if !suspended {
            self.freeze.unfreeze();
        }
        Ok(())
    }

    /// Looks how long the stores are now. A last segment without an end grows with its store; its new length. What is
    /// shorter than before stays as long as it was, and fails beyond the store's end. A device that is not suspended is,
    /// for as long as this takes.
    pub fn grow(&self) -> Result<u64, ControlError> {
        let _orders = self.order()?;
        let len = |store: &Arc<dyn BackingStore>| store.revalidate_len();
        let lens = self.stores.iter().map(len).collect::<Result<Vec<_>, _>>();
        let lens = lens.map_err(|error| ControlError::Store(RequestError::Io(error)))?;
        let generation = self.mapping().generation.wrapping_add(1);
        let suspended = self.is_suspended();
        if !suspended {
            self.freeze.freeze();
        }
        let changed = self.freeze.change(|target| target.grown(&lens).of_generation(generation));
        self.len.fetch_max(self.mapping().len, Ordering::AcqRel);
        if !suspended {
            self.freeze.unfreeze();
        }
        match changed {
            Ok(true) => Ok(self.len()),
            Ok(false) => Err(ControlError::NoKey),
            Err(InUse) => Err(ControlError::InUse),
        }
    }

    /// Takes no orders any more. If the device is suspended it is given up: requests that wait fail, and so do all later
    /// ones. A device that is not suspended goes on, and stays so.
    pub fn end(&self) {
        let mut ended = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        *ended = true;
        if self.is_suspended() {
            self.freeze.end();
        }
    }

    /// Finds out how fast the ciphers are, of this table and of those that replace it.
    pub(crate) fn measure_ciphers(&self) {
        let _orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        self.measures.store(true, Ordering::Relaxed);
        self.freeze.measure();
    }

    /// Puts `target` in place of the one there is, if any.
    fn put(&self, target: CryptMapping) {
        if self.measures.load(Ordering::Relaxed) {
            target.measure();
        }
        // Who still has the old one wipes it when done; nobody gets it any more.
        let _ = self.freeze.replace(Some(target));
    }

    fn check_stores(&self, target: &CryptMapping) -> Result<(), TargetError> {
        let stored = |p: &&crate::mapping::MappedTarget| matches!(p.kind, Kind::Crypt | Kind::Linear);
        for (index, part) in target.mapping().targets.iter().enumerate().filter(|(_, p)| stored(p)) {
            let store = self.stores.get(part.store as usize).ok_or(TargetError::NoStore(index))?;
            let (needed, store_len) = (part.store_end(), store.geometry().len);
            if needed > store_len {
                return Err(TargetError::BeyondStore { index, needed, store_len });
            }
        }
        Ok(())
    }

    fn order(&self) -> Result<MutexGuard<'_, bool>, ControlError> {
        let ended = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        if *ended { Err(ControlError::Ended) } else { Ok(ended) }
    }

    fn order_while_suspended(&self) -> Result<MutexGuard<'_, bool>, ControlError> {
        let orders = self.order()?;
        if self.is_suspended() { Ok(orders) } else { Err(ControlError::NotSuspended) }
    }

    pub(crate) fn freeze(&self) -> &Freeze {
        &self.freeze
    }

    /// The target for a call on this thread, which waits while the device is suspended.
    pub(crate) fn enter(&self) -> Result<UsageGuard<'_>, RequestError> {
        self.freeze.enter()
    }

    /// Puts what was written on stable storage, on every store. Blocks; shares the sync with others that ask for one.
    pub(crate) fn sync_blocking(&self) -> Result<(), RequestError> {
        self.syncs.sync_blocking(|| self.stores.iter().try_for_each(|store| store.sync()))
    }

    /// Whose turn it is to sync the stores.
    pub(crate) fn syncs(&self) -> &SyncQueue {
        &self.syncs
    }

    pub(crate) fn locks(&self) -> &UnitLocks {
        &self.locks
    }

    /// Whether a flush has failed: of what was written before it, some may be lost, and no flush succeeds any more.
    pub fn has_lost_writes(&self) -> bool {
        self.syncs.has_lost_writes()
    }

    /// Whether a flush may still succeed.
    pub(crate) fn check_flush(&self) -> Result<(), RequestError> {
        self.syncs.check()
    }

    /// The run of allocated bytes or hole that starts at `offset`, at most `len` long and not empty. A hole of the store
    /// is reported as a hole; what an encrypted one reads as is nobody's business but the cipher's, and never zero.
    pub fn block_status(&self, offset: u64, len: u64) -> Result<BlockStatus, RequestError> {
        let place = self.mapping().place(offset, len)?;
        let unit_len = place.unit_len as u64;
        let run = match place.kind {
            Kind::Crypt | Kind::Linear => {
                self.stores[place.store as usize].block_status(place.store_offset, place.len)?
            }
            // What a hole reads as is zeroes, and nothing is stored.
            Kind::Zero => BlockStatus { offset, len: place.len, hole: true },
            Kind::Error => return Err(RequestError::Io(Errno::IO)),
        };
        // Holes shrink to whole data units, data grows to them: a unit that is stored in part is not a hole. Units are
        // counted from the segment's start, since the data area need not start on a multiple of the unit.
        let start = place.within;
        let end = start + run.len.clamp(1, place.len);
        let (hole, end) = match end / unit_len * unit_len {
            whole if run.hole && whole > start && start.is_multiple_of(unit_len) => (true, whole),
            _ => (false, end.next_multiple_of(unit_len).min(start + place.len)),
        };
        // A hole may end with the segment, whose last unit is whole.
        Ok(BlockStatus { offset, len: end - start, hole })
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({} bytes, {:?})", self.len(), self.access())
    }
}
