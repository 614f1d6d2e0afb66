//! Devices: a crypt mapping on its stores, with the state that all workers of a served volume share.
//!
//! A device can be suspended: requests in flight complete, new ones wait, and the keys can be wiped from memory or the
//! mapping replaced before it is resumed.

use crate::cipher_engine::{CipherEngine, EngineSlot, EngineStats};
use crate::crypt_mapping::{CryptMapping, Target, TargetError};
use crate::errno::Errno;
use crate::flush::SyncQueue;
use crate::freeze::{Freeze, FreezeState, InUse, UsageGuard};
use crate::locks::UnitLocks;
use crate::mapping::{Mapping, Place};
use crate::request::RequestError;
use crate::stats::{Stats, StatsLevel};
use crate::store::{BackingStore, BlockStatus};
use crate::zone_mapping;
use crate::zone_queue::ZoneWriteQueues;
use crate::zoned::{Zone, ZoneLimits};
use inlock_cipher::{DataUnitSize, Segment, TargetType, VolumeKey};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

mod zone_lock;

pub use zone_lock::ZoneLock;

/// Operations that a device permits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether discards are passed to the store. They reveal which units are in use, so the default is off.
    pub allow_discards: bool,
}

/// Least data unit size in bytes that buffers are made for, so that any LUKS volume's table can replace one of smaller
/// units.
const MIN_UNIT_LEN: usize = DataUnitSize::LUKS_MAX.bytes();

/// Failure of a control operation such as [`Device::suspend`]. Nothing has changed, unless the variant says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// Keys can only be changed while nothing uses them.
    #[error("the device is not suspended")]
    NotSuspended,
    /// The key was wiped and no other was set.
    #[error("the device has no key")]
    NoKey,
    /// [`Device::end`] was called.
    #[error("the device is being closed")]
    Ended,
    /// The length of a store is unavailable.
    #[error("the store failed: {0}")]
    Store(#[source] RequestError),
    /// The device is suspended, but earlier writes may be lost.
    #[error("suspended, but writes may be lost")]
    Flush(#[source] RequestError),
    /// The new table or key cannot be used.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The cipher pool still works on a request of a failed worker. Keys to be wiped are wiped when it has finished;
    /// nothing else has changed.
    #[error("a request of a worker that has failed still uses the keys")]
    InUse,
    /// The new table is shorter, so that waiting requests could lie beyond its end.
    #[error("the new table has {len} bytes, the device {current}")]
    Shorter {
        /// Length of the new table.
        len: u64,
        /// Length of the device.
        current: u64,
    },
    /// The new table's data units exceed the buffers, which were made when the device was opened.
    #[error("the new table has data units of {unit} bytes; the device was opened for {most} at most")]
    LargerUnit {
        /// Largest data unit of the new table, in bytes.
        unit: usize,
        /// Largest data unit that the buffers hold, in bytes.
        most: usize,
    },
}

/// A crypt mapping on its stores. Immutable except for its locks, its counters, the flag of a failed flush, the
/// boundary of a re-encryption, and changes made while it is suspended.
pub struct Device {
    freeze: Freeze,
    /// Held by the thread that suspends, resumes or replaces. True after [`Device::end`], which permits no more of
    /// these.
    orders: Mutex<bool>,
    stores: Vec<Arc<dyn BackingStore>>,
    read_only: bool,
    allow_discards: AtomicBool,
    locks: UnitLocks,
    /// Zone write queues; set if the store, then the only one, is zoned.
    zones: Option<ZoneWriteQueues>,
    len: AtomicU64,
    /// Largest data unit in bytes that buffers are made for.
    unit_len: usize,
    syncs: SyncQueue,
    stats: Arc<Stats>,
    /// Whether a frontend asked for the speed of the ciphers.
    measures: AtomicBool,
    /// Cipher engine; `None` unless one was asked for.
    engine: Option<EngineSlot>,
    /// Whether holes of the stores read as zeroes.
    zero_holes: bool,
}

impl Device {
    /// Creates a device of `segments` on `store`, encrypted with `key`.
    ///
    /// # Errors
    ///
    /// The segments leave a gap or do not fit the store, their data units or its zones, or the key does not fit a
    /// cipher.
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

    /// Creates a device of `lines` on `stores`. It is read-only if one of the stores is.
    ///
    /// # Errors
    ///
    /// As [`Device::new`], and for a target on a store that does not exist.
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

    /// Creates a device that passes data to and from the store unencrypted.
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
            engine: None,
            zero_holes: false,
        }
    }

    /// Returns the device with counters of another level, starting at zero.
    #[must_use]
    pub fn with_stats(self, level: StatsLevel) -> Self {
        Self { stats: Stats::new(level), ..self }
    }

    /// Returns the device with a cipher engine, which workers give requests of at least `min_len` bytes; `keys` are
    /// those of the device, in the order of first use. Other keys go to the engine too ([`Device::set_keys`]); another
    /// table ([`Device::reload`]) is for software only.
    ///
    /// # Errors
    ///
    /// Another number of keys than the table uses, or a key of another length.
    pub fn with_engine(
        self,
        engine: Arc<dyn CipherEngine>,
        min_len: usize,
        keys: &[&VolumeKey],
    ) -> Result<Self, TargetError> {
        let slot = EngineSlot::new(engine, min_len);
        let target = CryptMapping::with_keys(&self.freeze.mapping(), keys)?.with_engine(&slot, keys);
        Ok(Self { freeze: Freeze::new(target), engine: Some(slot), ..self })
    }

    /// Returns the device with holes of its stores that read as zeroes, as librbd's own encryption reads them, not as
    /// what a hole decrypts to. A data unit whose ciphertext is all zero bytes is a hole. Discards then deallocate only
    /// what becomes a hole exactly, and requests go to no cipher engine.
    ///
    /// An attacker who can write to the store can then make data units read as zeroes.
    ///
    /// # Errors
    ///
    /// [`TargetError::Holes`] if a store has no [`crate::StoreProfile::hole_len`].
    pub fn with_zero_holes(self) -> Result<Self, TargetError> {
        let mapping = self.mapping().with_zero_holes(&self.stores).map_err(TargetError::Holes)?;
        self.freeze.freeze();
        // Nothing else uses it yet.
        let _ = self.freeze.change(|target| target.with_lengths(mapping));
        self.freeze.try_unfreeze();
        Ok(Self { zero_holes: true, ..self })
    }

    /// Returns the counters of the cipher engine, if there is one.
    pub fn engine_stats(&self) -> Option<EngineStats> {
        self.engine.as_ref().map(EngineSlot::stats)
    }

    /// Returns the device without its zone write queues: writes to a zone are submitted as soon as they are encrypted.
    /// A negative control for the tests of their order.
    #[cfg(feature = "fault-injection")]
    #[must_use]
    pub fn without_zone_write_queues(mut self) -> Self {
        self.zones.iter_mut().for_each(ZoneWriteQueues::bypass);
        self
    }

    /// Returns the length in bytes. It grows when a longer table is loaded.
    pub fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// Returns whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the current mapping. Frontends use the one of their worker ([`crate::worker::Context::mapping`]).
    pub fn mapping(&self) -> Arc<Mapping> {
        self.freeze.mapping()
    }

    /// Returns the limits of the device's zones, or `None` for a device without zones.
    pub fn zone_limits(&self) -> Option<ZoneLimits> {
        zone_mapping::limits_of(&self.mapping(), &self.stores)
    }

    /// Fills `into` from the zone that contains byte `offset` and returns the number of zones. Blocks.
    ///
    /// # Errors
    ///
    /// [`RequestError::Unsupported`]: the device has no zones.
    pub fn report_zones(&self, offset: u64, into: &mut [Zone]) -> Result<usize, RequestError> {
        zone_mapping::report(&self.mapping(), &self.stores, offset, into)
    }

    /// Returns the queues that keep writes to sequential zones in order.
    pub(crate) fn zones(&self) -> Option<&ZoneWriteQueues> {
        self.zones.as_ref()
    }

    /// Returns whether a range of a store touches a sequential zone, where only a reset deallocates storage.
    pub(crate) fn is_sequential(&self, place: &Place) -> Result<bool, RequestError> {
        self.zones.as_ref().map_or(Ok(false), |zones| zones.is_sequential(place.store_offset, place.len))
    }

    /// Returns the backing stores.
    pub fn stores(&self) -> &[Arc<dyn BackingStore>] {
        &self.stores
    }

    /// Returns the largest data unit in bytes that buffers have to hold: of this table, and of any that may replace it.
    pub fn unit_len(&self) -> usize {
        self.unit_len
    }

    /// Returns the permitted operations.
    pub fn access(&self) -> Access {
        Access { read_only: self.read_only, allow_discards: self.allow_discards.load(Ordering::Relaxed) }
    }

    /// Allows or forbids discards from now on. Frontends that have already advertised discards to clients are not
    /// informed.
    pub fn allow_discards(&self, allowed: bool) {
        self.allow_discards.store(allowed, Ordering::Relaxed);
    }

    /// Returns counters and latency histograms.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    pub(crate) fn shared_stats(&self) -> &Arc<Stats> {
        &self.stats
    }

    /// Suspends the device: later requests wait until [`Device::resume`]. Returns when no request is in flight and all
    /// completed writes are on stable storage. Must not be called on a worker's thread. Does nothing if the device is
    /// suspended already.
    ///
    /// # Errors
    ///
    /// [`ControlError::Flush`]: the device is suspended nevertheless. Every later call reports the same.
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

    /// Resumes the device; requests that waited go first. Refused while there is no key.
    ///
    /// # Errors
    ///
    /// [`ControlError::NoKey`] if the key was wiped; [`ControlError::Ended`] after [`Device::end`].
    pub fn resume(&self) -> Result<(), ControlError> {
        let _orders = self.order()?;
        if !self.is_suspended() || self.freeze.try_unfreeze() { Ok(()) } else { Err(ControlError::NoKey) }
    }

    /// Returns whether requests wait.
    pub fn is_suspended(&self) -> bool {
        self.freeze.freeze_state() != FreezeState::Running
    }

    /// Wipes the keys and all state derived from them from memory. The device must be suspended.
    ///
    /// # Errors
    ///
    /// [`ControlError::NotSuspended`], [`ControlError::Ended`], or [`ControlError::InUse`].
    pub fn wipe_key(&self) -> Result<(), ControlError> {
        let _orders = self.order_while_suspended()?;
        self.freeze.replace(None).map_err(|InUse| ControlError::InUse)
    }

    /// Sets `key`, which is as long as the key that the device was opened with. The device must be suspended and have
    /// been opened with one key.
    ///
    /// # Errors
    ///
    /// [`ControlError::NotSuspended`] or [`ControlError::Ended`]; [`ControlError::Target`] for a key of another length.
    pub fn set_key(&self, key: &VolumeKey) -> Result<(), ControlError> {
        self.set_keys(&[key])
    }

    /// Sets the keys of a device of several: one for each [`VolumeKey`] of its table, in the order of first use. Does
    /// nothing for a device that encrypts nothing. See [`Device::set_key`].
    ///
    /// # Errors
    ///
    /// As [`Device::set_key`]; also [`ControlError::Target`] for another number of keys.
    pub fn set_keys(&self, keys: &[&VolumeKey]) -> Result<(), ControlError> {
        let _orders = self.order_while_suspended()?;
        let mut target = CryptMapping::with_keys(&self.freeze.mapping(), keys)?;
        if let Some(slot) = &self.engine {
            target = target.with_engine(slot, keys);
        }
        self.put(target);
        Ok(())
    }

    /// Replaces the mapping by `target`, on the same stores. Waiting requests are carried out on the new one. Suspends
    /// a running device for the duration.
    ///
    /// # Errors
    ///
    /// [`ControlError::Shorter`], [`ControlError::LargerUnit`], or [`ControlError::Target`] if the mapping does not fit
    /// the stores; [`ControlError::Ended`]. The old mapping remains.
    pub fn reload(&self, target: CryptMapping) -> Result<(), ControlError> {
        let _orders = self.order()?;
        self.load(target)
    }

    /// Replaces the mapping by `target`, as [`Device::reload`] does, and passes `keys`, those of the table in the order
    /// of first use, to the cipher engine if the device has one.
    ///
    /// # Errors
    ///
    /// As [`Device::reload`]; also [`ControlError::Target`] for another number of keys.
    pub fn reload_with_keys(&self, target: CryptMapping, keys: &[&VolumeKey]) -> Result<(), ControlError> {
        let _orders = self.order()?;
        let expected = target.keys();
        if keys.len() != expected {
            return Err(TargetError::KeyCount { given: keys.len(), expected }.into());
        }
        self.load(match &self.engine {
            Some(slot) => target.with_engine(slot, keys),
            None => target,
        })
    }

    /// Puts `target` in force. The caller holds `orders`.
    fn load(&self, target: CryptMapping) -> Result<(), ControlError> {
        let (len, current) = (target.len(), self.len());
        if len < current {
            return Err(ControlError::Shorter { len, current });
        }
        if target.unit_len() > self.unit_len {
            return Err(ControlError::LargerUnit { unit: target.unit_len(), most: self.unit_len });
        }
        self.check_stores(target.mapping())?;
        let target = if self.zero_holes { target.with_zero_holes(&self.stores)? } else { target };
        let target = target.of_generation(self.mapping().generation.wrapping_add(1));
        let suspended = self.is_suspended();
        if !suspended {
            self.freeze.freeze();
        }
        self.put(target);
        self.len.store(len, Ordering::Release);
        if !suspended {
            self.freeze.try_unfreeze();
        }
        Ok(())
    }

    /// Reads the lengths of the stores again and returns the device's length in bytes. A last segment without an end
    /// grows with its store. A segment whose store became too short keeps its
    /// length, and fails beyond the store's end. Suspends a running device for the duration.
    ///
    /// # Errors
    ///
    /// [`ControlError::Store`] if a length is unavailable; [`ControlError::InUse`]; [`ControlError::Ended`].
    pub fn grow(&self) -> Result<u64, ControlError> {
        let _orders = self.order()?;
        let lens = self.revalidate_lens()?;
        self.change_lengths(CryptMapping::grown(&self.mapping(), &lens))
    }

    /// Moves the end of the last segment so that the device has `len` bytes, more or fewer than before. Requests beyond
    /// a new end fail. Suspends a running device for the duration.
    ///
    /// # Errors
    ///
    /// [`ControlError::Target`] if the last segment would be empty, end within a data unit or a zone, or beyond its
    /// store, and for a device that is re-encrypted; or as [`Device::grow`].
    pub fn set_len(&self, len: u64) -> Result<u64, ControlError> {
        let _orders = self.order()?;
        self.revalidate_lens()?;
        let resized = CryptMapping::resized(&self.mapping(), len)?;
        self.check_stores(&resized)?;
        self.change_lengths(resized)
    }

    fn revalidate_lens(&self) -> Result<Vec<u64>, ControlError> {
        let len = |store: &Arc<dyn BackingStore>| store.revalidate_len();
        let lens = self.stores.iter().map(len).collect::<Result<Vec<_>, _>>();
        lens.map_err(|error| ControlError::Store(RequestError::Io(error)))
    }

    /// Puts `mapping`, the current one with other lengths, in force, and returns the device's new length in bytes. The
    /// caller holds `orders`.
    fn change_lengths(&self, mapping: Mapping) -> Result<u64, ControlError> {
        let generation = mapping.generation.wrapping_add(1);
        let suspended = self.is_suspended();
        if !suspended {
            self.freeze.freeze();
        }
        let changed = self.freeze.change(|target| target.with_lengths(mapping).of_generation(generation));
        self.len.store(self.mapping().len, Ordering::Release);
        if !suspended {
            self.freeze.try_unfreeze();
        }
        match changed {
            Ok(true) => Ok(self.len()),
            Ok(false) => Err(ControlError::NoKey),
            Err(InUse) => Err(ControlError::InUse),
        }
    }

    /// Forbids later control operations. If the device is suspended, waiting and later requests fail; otherwise it
    /// continues to run.
    pub fn end(&self) {
        let mut ended = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        *ended = true;
        if self.is_suspended() {
            self.freeze.end();
        }
    }

    /// Measures the speed of the ciphers, of this table and of those that replace it.
    pub(crate) fn measure_ciphers(&self) {
        let _orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        self.measures.store(true, Ordering::Relaxed);
        self.freeze.measure();
    }

    /// Sets `target` as the mapping.
    fn put(&self, target: CryptMapping) {
        if self.measures.load(Ordering::Relaxed) {
            target.measure();
        }
        // A pool thread that still has the old one wipes it when it has finished; no request gets it any longer.
        let _ = self.freeze.replace(Some(target));
    }

    /// Checks that all segments lie within their stores, on zoned ones at zone boundaries.
    fn check_stores(&self, mapping: &Mapping) -> Result<(), TargetError> {
        for (index, part) in mapping.targets.iter().enumerate().filter(|(_, part)| part.kind.is_stored()) {
            let store = self.stores.get(part.store as usize).ok_or(TargetError::NoStore(index))?;
            let (needed, store_len) = (part.store_end(), store.geometry().len);
            if needed > store_len {
                return Err(TargetError::BeyondStore { index, needed, store_len });
            }
        }
        zone_mapping::check(mapping, &self.stores)
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

    /// Returns the crypt mapping for a call on this thread. Blocks while the device is suspended.
    pub(crate) fn enter(&self) -> Result<UsageGuard<'_>, RequestError> {
        self.freeze.enter()
    }

    /// Puts completed writes on stable storage, on every store. Blocks; shares the sync with concurrent callers.
    ///
    /// # Errors
    ///
    /// `EIO` after a failed sync, this one or an earlier one: writes may be lost.
    pub fn sync_blocking(&self) -> Result<(), RequestError> {
        self.syncs.sync_blocking(|| self.stores.iter().try_for_each(|store| store.sync()))
    }

    /// Returns the queue that decides which user syncs the stores.
    pub(crate) fn syncs(&self) -> &SyncQueue {
        &self.syncs
    }

    pub(crate) fn locks(&self) -> &UnitLocks {
        &self.locks
    }

    /// Returns whether a flush has failed. Some writes before it may be lost, and every later flush fails.
    pub fn has_lost_writes(&self) -> bool {
        self.syncs.has_lost_writes()
    }

    /// Fails if a flush has failed.
    pub(crate) fn check_flush(&self) -> Result<(), RequestError> {
        self.syncs.check()
    }

    /// Returns the allocated range or hole that starts at `offset`, not empty and at most `len` bytes long. A hole of
    /// the store is reported as a hole; on an encrypted segment it reads as the decrypted hole, unless holes are to
    /// read as zeroes ([`Device::with_zero_holes`]). A device that is re-encrypted reports none.
    ///
    /// # Errors
    ///
    /// [`RequestError::OutOfRange`] if the range exceeds the device; otherwise the error of the store.
    pub fn block_status(&self, offset: u64, len: u64) -> Result<BlockStatus, RequestError> {
        let mapping = self.mapping();
        let place = mapping.place(offset, len)?;
        if mapping.boundary.is_some() {
            // A hole may be filled at any time.
            return Ok(BlockStatus::allocated(offset, place.len));
        }
        // The whole units that the range touches. They count from the segment's start, since the data area need not
        // start at a multiple of the unit.
        let unit_len = place.unit_len as u64;
        let head_len = place.within % unit_len;
        let aligned_len = (head_len + place.len).next_multiple_of(unit_len);
        let run = match place.kind {
            TargetType::Crypt | TargetType::Linear => {
                self.stores[place.store as usize].block_status(place.store_offset - head_len, aligned_len)?
            }
            // The whole segment reads as zeroes, and nothing is stored.
            TargetType::Zero => BlockStatus::hole(offset, aligned_len),
            TargetType::Error => return Err(RequestError::Io(Errno::IO)),
        };
        // A hole shrinks and data grows to whole units, because a unit that is stored in part is not a hole.
        let run_len = run.len.clamp(1, aligned_len);
        let (hole, end) = match run_len / unit_len * unit_len {
            whole if run.hole && whole > 0 => (true, whole),
            _ => (false, run_len.next_multiple_of(unit_len)),
        };
        Ok(BlockStatus { offset, len: (end - head_len).min(place.len), hole })
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({} bytes, {:?})", self.len(), self.access())
    }
}

#[cfg(test)]
mod tests;
