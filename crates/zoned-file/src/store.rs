//! Zoned storage over two backing stores: one for the data, one for the sidecar.

#[cfg(test)]
mod tests;

use crate::error::ZonedFileError;
use crate::layout::ZonedLayout;
use crate::sidecar::{self, Loaded, Promise, Sidecar};
use crate::states::{State, States};
use crate::{mark, records};
use inlock_engine::BackingStore;
use inlock_engine::Errno;
use inlock_engine::store::{BlockStatus, Geometry};
use inlock_engine::zoned::{Zone, ZoneAction, ZoneCondition, ZoneLimits, ZonedStore};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Zoned storage in two stores: one with the bytes, one with the states of the zones.
///
/// Locks are taken in this order: of a zone (of several in ascending order), of the promises, of the states.
pub struct ZonedFile {
    layout: ZonedLayout,
    data: Arc<dyn BackingStore>,
    sidecar: Sidecar,
    read_only: bool,
    /// Held while the zone is written or managed; one for each zone.
    turns: Vec<Mutex<()>>,
    promises: Mutex<Vec<Promise>>,
    states: Mutex<States>,
    /// Number and position of the session.
    session: (u64, usize),
    /// Acknowledged states may be lost, so no further one is promised.
    broken: AtomicBool,
}

impl ZonedFile {
    /// Formats two stores: `data` of [`ZonedFile::data_len`] bytes and `sidecar` of [`ZonedFile::sidecar_len`] bytes.
    /// Sequential zones are empty; conventional ones keep the bytes of `data`.
    ///
    /// # Errors
    ///
    /// Fails if the layout is not possible or a store cannot be written.
    pub fn format(
        data: &dyn BackingStore,
        sidecar: &dyn BackingStore,
        layout: &ZonedLayout,
    ) -> Result<(), ZonedFileError> {
        mark::format(data, sidecar, layout, 0)
    }

    /// Opens two formatted stores. `boot` identifies the boot of the system that caches writes until they are synced:
    /// if it differs from that of the last session, unsynced writes are considered lost.
    ///
    /// # Errors
    ///
    /// Fails if the sidecar is damaged or that of other data, or if it cannot be read or written.
    pub fn over(
        data: Arc<dyn BackingStore>,
        sidecar: Arc<dyn BackingStore>,
        boot: u64,
    ) -> Result<Self, ZonedFileError> {
        let read_only = data.geometry().read_only;
        let loaded = sidecar::load(sidecar, boot)?;
        mark::check(&*data, &loaded.sidecar.layout, &loaded.sidecar.identity)?;
        Self::start(data, loaded, read_only)
    }

    fn start(data: Arc<dyn BackingStore>, loaded: Loaded, read_only: bool) -> Result<Self, ZonedFileError> {
        let Loaded { sidecar, states, promises, session: (last, place), torn } = loaded;
        let session = (last.sequence + 1, 1 - place);
        if !read_only {
            let repair = || {
                // The records just read may be in memory only, and must survive if the next ones are torn.
                sidecar.sync()?;
                for (table, zone) in torn {
                    match table {
                        records::Table::Answered => sidecar.answer(zone, states[zone as usize])?,
                        _ => sidecar.promise(table, zone, promises[zone as usize].state)?,
                    }
                }
                sidecar.write_session(session.0, session.1, false)
            };
            repair().map_err(sidecar::failed)?;
        }
        let layout = sidecar.layout;
        let mut turns = Vec::new();
        turns.resize_with(layout.zones() as usize, Mutex::default);
        Ok(Self {
            layout,
            data,
            sidecar,
            read_only,
            turns,
            promises: Mutex::new(promises),
            states: Mutex::new(States::new(layout, states.into_iter())),
            session,
            broken: AtomicBool::new(false),
        })
    }

    /// Returns the length of the data store of a layout.
    pub fn data_len(layout: &ZonedLayout) -> u64 {
        records::data_len(layout)
    }

    /// Returns the length of the sidecar store of a layout.
    pub fn sidecar_len(layout: &ZonedLayout) -> u64 {
        records::sidecar_len(layout.zones())
    }

    /// Returns the layout.
    pub fn layout(&self) -> &ZonedLayout {
        &self.layout
    }

    /// Makes a sequential zone read-only or offline, as a drive does with zones that fail. This cannot be undone.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a conventional or missing zone, and for any other condition; or the error of writing the record.
    pub fn retire(&self, zone: u32, condition: ZoneCondition) -> Result<(), Errno> {
        if zone >= self.layout.zones() {
            return Err(Errno::INVAL);
        }
        let _turn = self.turn(zone);
        self.change(zone, |states| states.retire(zone, condition).map(|()| None))
    }

    /// Closes the file: promises all answered states. Dropping it does the same and ignores errors.
    ///
    /// # Errors
    ///
    /// Fails if the states cannot be made durable.
    pub fn close(mut self) -> Result<(), Errno> {
        let closed = self.end();
        self.read_only = true;
        closed
    }

    fn end(&self) -> Result<(), Errno> {
        if self.read_only {
            return Ok(());
        }
        self.sync()?;
        // Declares all records valid as the last step.
        self.make_safe()?;
        self.sidecar.write_session(self.session.0 + 1, 1 - self.session.1, true)
    }

    fn turn(&self, zone: u32) -> MutexGuard<'_, ()> {
        self.turns[zone as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn states(&self) -> MutexGuard<'_, States> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn promises(&self) -> MutexGuard<'_, Vec<Promise>> {
        self.promises.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes a zone, and writes the new states of the zone and of the one closed for it. If a record cannot be
    /// written, the change is undone.
    fn change(&self, zone: u32, change: impl FnOnce(&mut States) -> Result<Option<u32>, Errno>) -> Result<(), Errno> {
        let mut states = self.states();
        let before = states.get(zone);
        let closed = change(&mut states)?;
        let written = closed.map_or(Ok(()), |closed| self.sidecar.answer(closed, states.get(closed)));
        if states.get(zone) == before {
            return written;
        }
        let written = written.and_then(|()| self.sidecar.answer(zone, states.get(zone)));
        if written.is_err() {
            // The record may be partly written, so the next one has a later number in any case.
            let sequence = states.get(zone).sequence;
            states.put(zone, State { sequence, ..before });
        }
        written
    }

    /// Returns the length of the part of a range in one zone, or in the conventional ones, and the zone if it is
    /// sequential. `None` at the end.
    fn part(&self, offset: u64, len: usize) -> Option<(usize, Option<u32>)> {
        if offset >= self.layout.len {
            return None;
        }
        let conventional = self.layout.conventional_end();
        let (end, zone) = if offset < conventional {
            (conventional, None)
        } else {
            let zone = self.layout.zone_of(offset);
            (self.layout.range(zone).end, Some(zone))
        };
        Some(((len as u64).min(end - offset) as usize, zone))
    }

    /// Writes `data` as far as possible, and returns the number of bytes. Fails if it is 0.
    fn write_data(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        let mut done = 0;
        while done < data.len() {
            match self.data.write_at(&data[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    fn write_zone(&self, zone: u32, data: &[u8], offset: u64) -> Result<usize, Errno> {
        let granularity = self.layout.write_granularity as usize;
        if !offset.is_multiple_of(granularity as u64) || !data.len().is_multiple_of(granularity) {
            return Err(Errno::INVAL);
        }
        let _turn = self.turn(zone);
        let at = offset - self.layout.range(zone).start;
        {
            let mut states = self.states();
            if let Some(closed) = states.begin_write(zone, at, data.len() as u64)? {
                // The record of this zone follows when its data are written.
                if let Err(error) = self.sidecar.answer(closed, states.get(closed)) {
                    states.end_write(zone, 0);
                    return Err(error);
                }
            }
        }
        let written = self.write_data(data, offset);
        let whole = written.map_or(0, |n| n - n % granularity);
        let moved = self.change(zone, |states| {
            states.end_write(zone, whole as u64);
            Ok(None)
        });
        written?;
        moved?;
        // A partly written block counts as not written.
        if whole == 0 { Err(Errno::IO) } else { Ok(whole) }
    }

    /// Returns the zones of a range, which must consist of whole zones.
    fn zones_of(&self, offset: u64, len: u64) -> Result<RangeInclusive<u32>, Errno> {
        let (total, zone_len) = (self.layout.len, self.layout.zone_len);
        let end = offset.checked_add(len).filter(|end| len > 0 && *end <= total).ok_or(Errno::INVAL)?;
        if !offset.is_multiple_of(zone_len) || !(len.is_multiple_of(zone_len) || end == total) {
            return Err(Errno::INVAL);
        }
        Ok(self.layout.zone_of(offset)..=self.layout.zone_of(end - 1))
    }

    /// Empties zones. If one has promised data, the empty state is promised before a byte can change.
    fn reset(&self, zones: RangeInclusive<u32>, all: bool) -> Result<(), Errno> {
        let _turns: Vec<_> = zones.clone().map(|zone| self.turn(zone)).collect();
        let (mut refused, mut empty) = (Ok(()), Vec::new());
        {
            let states = self.states();
            for zone in zones {
                match states.reset(zone) {
                    Ok(None) => {}
                    Ok(Some(state)) => empty.push((zone, state)),
                    Err(_) if all => {}
                    Err(error) => refused = refused.and(Err(error)),
                }
            }
        }
        self.make_empty(&empty)?;
        for (zone, _) in empty {
            // If the space cannot be freed, the bytes stay invisible.
            let _ = self.data.discard(self.layout.range(zone).start, self.layout.capacity_of(zone));
        }
        refused
    }

    /// Sets the states of zones emptied by a reset. No sync starts before that: it would promise an old write pointer
    /// over the next data of the zone.
    fn make_empty(&self, empty: &[(u32, State)]) -> Result<(), Errno> {
        let mut promises = self.promises();
        let promised = self.promise_empty(&mut promises, empty).inspect_err(|_| {
            // The promise may be on disk nevertheless, so the next states have later numbers.
            let mut states = self.states();
            for (zone, State { sequence, .. }) in empty {
                let state = states.get(*zone);
                states.put(*zone, State { sequence: *sequence, ..state });
            }
        })?;
        for (zone, state) in empty {
            if promised {
                self.states().put(*zone, *state);
            } else {
                self.change(*zone, |states| {
                    states.put(*zone, *state);
                    Ok(None)
                })?;
            }
        }
        Ok(())
    }

    /// Promises that zones are empty, if one of them has promised data. Returns whether it did.
    fn promise_empty(&self, promises: &mut [Promise], zones: &[(u32, State)]) -> Result<bool, Errno> {
        if !zones.iter().any(|(zone, _)| promises[*zone as usize].may_hold_bytes()) {
            return Ok(false);
        }
        self.check_unbroken()?;
        for (zone, state) in zones {
            let promise = &mut promises[*zone as usize];
            self.sidecar.promise(promise.table.other(), *zone, *state)?;
            promise.next = *state;
        }
        self.make_safe()?;
        for (zone, _) in zones {
            promises[*zone as usize].stand();
        }
        Ok(true)
    }

    fn check_unbroken(&self) -> Result<(), Errno> {
        if self.broken.load(Ordering::Acquire) { Err(Errno::IO) } else { Ok(()) }
    }

    /// Makes the records durable. After a failure, any of them may be.
    fn make_safe(&self) -> Result<(), Errno> {
        self.sidecar.sync().inspect_err(|_| self.broken.store(true, Ordering::Release))
    }
}

impl Promise {
    /// Whether a power cut may leave promised data. A failed sync may have written the next promise.
    fn may_hold_bytes(&self) -> bool {
        self.state.written > 0 || self.next.written > 0
    }

    /// Puts the next promise into effect after a sync.
    fn stand(&mut self) {
        if self.state != self.next {
            (self.state, self.table) = (self.next, self.table.other());
        }
    }
}

impl BackingStore for ZonedFile {
    fn geometry(&self) -> Geometry {
        let geometry = if self.read_only { Geometry::new_read_only } else { Geometry::new };
        geometry(self.layout.len)
    }

    fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let Some((len, zone)) = self.part(offset, data.len()) else { return Ok(0) };
        let data = &mut data[..len];
        let Some(zone) = zone else { return self.data.read_at(data, offset) };
        let state = self.states().get(zone);
        if state.condition == ZoneCondition::Offline {
            return Err(Errno::IO);
        }
        let pointer = self.layout.range(zone).start + state.written;
        if offset < pointer {
            let len = (len as u64).min(pointer - offset) as usize;
            return self.data.read_at(&mut data[..len], offset);
        }
        data.fill(0);
        Ok(len)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        if self.read_only {
            return Err(Errno::PERM);
        }
        let (len, zone) = self.part(offset, data.len()).ok_or(Errno::NOSPC)?;
        if len == 0 {
            return Ok(0);
        }
        let Some(zone) = zone else { return self.data.write_at(&data[..len], offset) };
        self.write_zone(zone, &data[..len], offset)
    }

    fn sync(&self) -> Result<(), Errno> {
        if self.read_only {
            return Ok(());
        }
        let mut promises = self.promises();
        self.check_unbroken()?;
        {
            let states = self.states();
            for (zone, promise) in (0..).zip(promises.iter_mut()) {
                promise.next = states.get(zone).at_rest();
            }
        }
        // The data must be durable before the pointers that cover them.
        self.data.sync().inspect_err(|_| self.broken.store(true, Ordering::Release))?;
        let mut any = false;
        for (zone, promise) in (0..).zip(promises.iter()).filter(|(_, promise)| promise.state != promise.next) {
            self.sidecar.promise(promise.table.other(), zone, promise.next)?;
            any = true;
        }
        if any {
            self.make_safe()?;
        }
        promises.iter_mut().for_each(Promise::stand);
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), Errno> {
        match offset.checked_add(len) {
            Some(end) if end <= self.layout.conventional_end() => self.data.discard(offset, len),
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    fn zoned(&self) -> Option<&dyn ZonedStore> {
        Some(self)
    }

    fn block_status(&self, offset: u64, len: u64) -> Result<BlockStatus, Errno> {
        let len = len.min(usize::MAX as u64);
        let Some((part, zone)) = self.part(offset, len as usize) else {
            return Ok(BlockStatus::allocated(offset, len));
        };
        let Some(zone) = zone else { return self.data.block_status(offset, part as u64) };
        let pointer = self.layout.range(zone).start + self.states().get(zone).written;
        let len = part as u64;
        Ok(match pointer.saturating_sub(offset) {
            0 => BlockStatus::hole(offset, len),
            written => BlockStatus::allocated(offset, len.min(written)),
        })
    }
}

impl ZonedStore for ZonedFile {
    fn limits(&self) -> ZoneLimits {
        self.layout.limits()
    }

    fn report(&self, offset: u64, into: &mut [Zone]) -> Result<usize, Errno> {
        if offset >= self.layout.len {
            return Ok(0);
        }
        let states = self.states();
        let zones = self.layout.zone_of(offset)..self.layout.zones();
        Ok(into.iter_mut().zip(zones).map(|(into, zone)| *into = states.report(zone)).count())
    }

    fn manage(&self, action: ZoneAction, offset: u64, len: u64) -> Result<(), Errno> {
        if self.read_only {
            return Err(Errno::PERM);
        }
        let all = 0..=self.layout.zones() - 1;
        if action == ZoneAction::ResetAll {
            return self.reset(all, true);
        }
        let zones = self.zones_of(offset, len)?;
        if action == ZoneAction::Reset {
            // Like in the kernel, "all zones" means those that can change.
            let of_all = zones == all;
            return self.reset(zones, of_all);
        }
        // A zone that refuses does not prevent others from changing.
        let mut refused = Ok(());
        for zone in zones {
            let _turn = self.turn(zone);
            refused = refused.and(self.change(zone, |states| states.act(action, zone)));
        }
        refused
    }
}

impl Drop for ZonedFile {
    fn drop(&mut self) {
        // `close` reports errors.
        let _ = self.end();
    }
}
