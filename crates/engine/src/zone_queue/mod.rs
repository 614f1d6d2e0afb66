//! Order of writes in sequential zones: one set of zone write queues for all workers and callers of a device.
//!
//! A write gets an entry when it begins, and the entries of a zone form a queue. Cipher work runs in any order. Only
//! the head of the queue goes to the store, merged with the writes behind it that are ready (`worker/merge.rs`), so
//! that the store sees each zone's writes one after the other in the order of submission. Writes are not validated
//! here: a write that is not at the write pointer is dispatched in order, and fails as it would without a queue. An
//! append is assigned its position, the end of the zone's queue, before it is encrypted. When a write fails, the write
//! pointer is read again, and the appends behind it are reassigned.
//!
//! Requests of several frontend queues may overtake each other before they arrive here. A write ahead of the pointer is
//! *deferred* until each worker has had two turns, in which the writes before it would have arrived.

mod merge;
mod mgmt;
mod table;
#[cfg(test)]
mod tests;

use crate::ciphertext::Ciphertext;
use crate::errno::Errno;
use crate::events::{Event, EventQueue, RequestId};
use crate::request::RequestError;
use crate::ring::{Token, Waker};
use crate::store::BackingStore;
use crate::zoned::{Zone, ZoneKind, ZoneLimits, ZonedStore};
pub(crate) use merge::Told;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
pub(crate) use table::Waiter;
use table::{NONE, QueuedKind, QueuedWrite, State, Table};

/// Limit on reassignments of an append because another writer uses its zone.
const MAX_REASSIGNMENTS: u8 = 8;
/// Number of workers that are distinguished; later ones share the last bit, and may end a wait early.
const WORKERS: u32 = 64;

/// Entry in the queue of a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WriteId {
    index: u32,
    generation: u32,
}

impl WriteId {
    /// Returns the token for a segment of this write.
    pub(crate) fn token(self) -> Token {
        Token(u64::from(self.generation) << 32 | u64::from(self.index))
    }

    /// Returns the write with this token.
    pub(crate) fn of(token: Token) -> Self {
        Self { index: token.0 as u32, generation: (token.0 >> 32) as u32 }
    }
}

/// Zone management operation that waits in the queues or runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ZoneMgmtId(u32);

/// Kind of a write: how its position is determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteKind {
    /// Data at its own position, where the write pointer will be.
    Data,
    /// Data that the zone may hold already, in whole or in part.
    Reissued,
    /// Data for the end of the zone's queue.
    Append,
}

/// Result of enqueuing a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Enqueued {
    /// The write needs no order.
    Free,
    /// The write is in its zone's queue, with this position in the store.
    Placed(WriteId, u64),
    /// The write waits for those before it to arrive; it is informed when it may begin.
    Deferred(WriteId),
}

/// Result of completing a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteOutcome {
    /// The write has left the queue.
    Left {
        /// Next head of the queue, if it is a request of the same worker.
        next: Option<RequestId>,
        /// Whether the store has all of it, even if it failed.
        landed: bool,
    },
    /// The write was not at the zone's pointer, and is to be written at this position instead.
    Reassigned(u64),
}

/// Write queues of a store's zones.
pub(crate) struct ZoneWriteQueues {
    store: Arc<dyn BackingStore>,
    limits: ZoneLimits,
    table: Mutex<Table>,
    changed: Condvar,
    /// Number of deferred writes, which are ahead of their zone's pointer.
    held: AtomicUsize,
    /// Whether writes bypass the queues, as a test may have it.
    bypassed: bool,
}

impl ZoneWriteQueues {
    /// Creates the queues if the store has zones.
    pub(crate) fn new(store: &Arc<dyn BackingStore>) -> Self {
        let limits = store.zoned().expect("only made for stores that have zones").limits();
        let (table, changed, held) = (Mutex::new(Table::new(limits.zones)), Condvar::new(), AtomicUsize::new(0));
        Self { store: Arc::clone(store), limits, table, changed, held, bypassed: false }
    }

    /// Dispatches every write as soon as it is encrypted: the negative control of the tests of the order.
    #[cfg(feature = "fault-injection")]
    pub(crate) fn bypass(&mut self) {
        self.bypassed = true;
    }

    /// Returns the limits of the store's zones.
    pub(crate) fn limits(&self) -> ZoneLimits {
        self.limits
    }

    /// Returns the write pointer of the zone that contains `position`, as known from completed writes.
    pub(crate) fn written(&self, position: u64) -> Result<u64, Errno> {
        let mut table = self.table();
        let zone = self.zones_of(position, 1).start;
        self.know(&mut table, zone).map_err(RequestError::errno)?;
        Ok(table.zones[zone].written)
    }

    /// Asks the store for the write pointer of the zone that contains `position`. Blocks.
    pub(crate) fn ask_again(&self, position: u64) -> Result<u64, Errno> {
        let mut table = self.table();
        let zone = self.zones_of(position, 1).start;
        self.ask(&mut table, zone).map_err(RequestError::errno)?;
        self.replace(&mut table, zone);
        Ok(table.zones[zone].written)
    }

    /// Returns whether a range of the store touches a sequential zone.
    pub(crate) fn is_sequential(&self, position: u64, len: u64) -> Result<bool, RequestError> {
        let mut table = self.table();
        for zone in self.zones_of(position, len) {
            self.know(&mut table, zone)?;
            if table.zones[zone].sequential {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns whether a range of the store lies in several zones, not all of them conventional.
    pub(crate) fn crosses(&self, position: u64, len: u64) -> Result<bool, RequestError> {
        Ok(self.zones_of(position, len).len() > 1 && self.is_sequential(position, len)?)
    }

    /// Reserves memory for `more` entries at a time.
    pub(crate) fn reserve(&self, more: usize) {
        let mut table = self.table();
        table.room += more;
        table.make_room();
    }

    /// Releases reserved memory.
    pub(crate) fn unreserve(&self, room: usize) {
        self.table().room -= room;
    }

    /// Registers a worker that `waker` wakes, and returns its number.
    pub(crate) fn join(&self, waker: Waker) -> u64 {
        let mut table = self.table();
        let taken = |bit: u32| table.workers.iter().any(|(worker, _)| *worker == 1 << bit);
        let worker = 1 << (0..WORKERS).find(|bit| !taken(*bit)).unwrap_or(WORKERS - 1);
        table.workers.push((worker, waker));
        worker
    }

    /// Deregisters a worker that ends.
    pub(crate) fn leave_worker(&self, worker: u64) {
        let mut table = self.table();
        if let Some(index) = table.workers.iter().position(|(s, _)| *s == worker) {
            table.workers.remove(index);
        }
        self.expire(&mut table);
        self.end(table);
    }

    /// Returns whether writes are deferred, so that [`ZoneWriteQueues::turned`] has to be called.
    pub(crate) fn has_deferred(&self) -> bool {
        self.held.load(Ordering::Acquire) > 0
    }

    /// Notes the end of a worker's turn.
    pub(crate) fn turned(&self, worker: u64) {
        let mut table = self.table();
        let Table { held, entries, .. } = &mut *table;
        for index in held.iter() {
            let [first, second] = &mut entries[*index as usize].turned;
            if *first & worker == 0 { *first |= worker } else { *second |= worker }
        }
        self.expire(&mut table);
        table.wake_workers();
        self.end(table);
    }

    /// Puts a write of `len` bytes at `position` of the store into its zone's queue; `position` is the zone's start for
    /// an append. With `may_hold`, a write ahead of the pointer is deferred.
    ///
    /// # Errors
    ///
    /// `EIO` for a write across the end of a zone, and for an append that does not fit, does not name a zone by its
    /// start, or is not to a sequential zone.
    pub(crate) fn enqueue(
        &self,
        position: u64,
        len: u64,
        kind_of_write: WriteKind,
        may_hold: bool,
        waiter: Waiter,
    ) -> Result<Enqueued, RequestError> {
        const REFUSED: RequestError = RequestError::Io(Errno::IO);
        let append = kind_of_write == WriteKind::Append;
        let mut table = self.table();
        let zones = self.zones_of(position, len);
        for zone in zones.clone() {
            self.know(&mut table, zone)?;
        }
        if !zones.clone().any(|zone| table.zones[zone].sequential) {
            return if append { Err(REFUSED) } else { Ok(Enqueued::Free) };
        }
        let zone = zones.start;
        if zones.len() > 1 || append && position != self.start_of(zone) {
            return Err(REFUSED);
        }
        if append && table.zones[zone].is_short_of(len) && table.zones[zone].head == NONE {
            // Another user of the store may have reset the zone.
            self.ask(&mut table, zone)?;
            self.replace(&mut table, zone);
        }
        if append && table.zones[zone].is_short_of(len) {
            return Err(REFUSED);
        }
        let State { pointer, end, .. } = table.zones[zone];
        let position = if append { pointer } else { position };
        let write = QueuedWrite::new(zone as u32, position, len, QueuedKind::Data(kind_of_write), Some(waiter));
        let index = table.add(write);
        if may_hold && position > pointer && position < end {
            table.held.push(index);
            self.held.store(table.held.len(), Ordering::Release);
            table.wake_workers();
            return Ok(Enqueued::Deferred(table.id(index)));
        }
        self.place(&mut table, index);
        let write = table.id(index);
        self.end(table);
        Ok(Enqueued::Placed(write, position))
    }

    /// Removes a deferred write. Returns false if it is no longer deferred, and has been informed.
    pub(crate) fn try_take_back(&self, write: WriteId) -> bool {
        let mut table = self.table();
        let held = table.held.iter().position(|index| *index == write.index);
        let Some(at) = held.filter(|_| !table.has_ended(write)) else { return false };
        table.held.remove(at);
        self.held.store(table.held.len(), Ordering::Release);
        table.remove(write.index);
        true
    }

    /// Marks a write as encrypted for `position`. Returns the data if the write is dispatched; otherwise its owner is
    /// informed later, and takes the data with [`ZoneWriteQueues::take_data`]. With `can_merge`, it may be merged with
    /// other writes.
    pub(crate) fn ready(&self, write: WriteId, position: u64, data: Ciphertext, can_merge: bool) -> Option<Ciphertext> {
        let mut table = self.table();
        table.write(write).can_merge = can_merge;
        if self.is_first_ready(&mut table, write) {
            return Some(data);
        }
        table.write(write).data = Some((position, data));
        None
    }

    /// Returns the data of a dispatched write.
    pub(crate) fn take_data(&self, write: WriteId) -> Ciphertext {
        let mut table = self.table();
        let data = table.write(write).data.take();
        data.expect("a write that waits for its turn has its data here").1
    }

    fn is_first_ready(&self, table: &mut Table, write: WriteId) -> bool {
        let write = table.write(write);
        write.ready = true;
        if self.bypassed {
            write.granted = true;
            return true;
        }
        let zone = write.zone as usize;
        let State { head, .. } = table.zones[zone];
        let first = &mut table.entries[head as usize];
        if !first.ready || first.granted {
            return false;
        }
        // No other write is ready, so this one is dispatched.
        first.granted = true;
        true
    }

    /// Marks a write of a thread, which keeps its data, as encrypted. Blocks until it is dispatched.
    pub(crate) fn ready_blocking(&self, write: WriteId) {
        let now = self.is_first_ready(&mut self.table(), write);
        if !now {
            self.wait(|table| table.entries[write.index as usize].granted);
        }
    }

    /// Returns the current position of a write, which is final once the write is dispatched.
    pub(crate) fn position(&self, write: WriteId) -> u64 {
        self.table().write(write).position
    }

    /// Completes a dispatched write.
    pub(crate) fn complete_write(&self, write: WriteId, succeeded: bool, me: Option<&Arc<EventQueue>>) -> WriteOutcome {
        let mut table = self.table();
        let QueuedWrite { zone, position, len, kind, moves, .. } = *table.write(write);
        let zone = zone as usize;
        let before = table.zones[zone].written;
        let mut landed = succeeded;
        if succeeded {
            table.zones[zone].written = position + len;
            table.unlink(write.index);
            if before != position {
                self.replace(&mut table, zone);
            }
        } else {
            let known = self.ask(&mut table, zone).is_ok();
            let State { written, end, .. } = table.zones[zone];
            let touched = written >= position && written <= position + len;
            landed = before == position && written == position + len;
            let append = kind == QueuedKind::Data(WriteKind::Append);
            if append && known && !touched && written + len <= end && moves < MAX_REASSIGNMENTS {
                let write = table.write(write);
                (write.position, write.moves) = (written, moves + 1);
                self.replace(&mut table, zone);
                self.end(table);
                return WriteOutcome::Reassigned(written);
            }
            table.unlink(write.index);
            self.replace(&mut table, zone);
        }
        let next = table.go(zone, me);
        self.end(table);
        WriteOutcome::Left { next, landed }
    }

    /// Gives up a write that is deferred, queued, or completed by the store. Returns the next head, if
    /// that has the same owner.
    pub(crate) fn leave(&self, write: WriteId, me: Option<&Arc<EventQueue>>) -> Option<RequestId> {
        if self.try_take_back(write) {
            return None;
        }
        let mut table = self.table();
        if table.has_ended(write) {
            return None;
        }
        let QueuedWrite { zone, granted, .. } = *table.write(write);
        if table.write(write).lent.is_some() {
            // The worker that borrowed the data completes the write, and informs no owner.
            table.write(write).waiter = None;
            return None;
        }
        let zone = zone as usize;
        table.unlink(write.index);
        if granted {
            // How much of the write the store has is unknown. If the store does not answer now, the next write fails.
            let _ = self.ask(&mut table, zone);
        }
        self.replace(&mut table, zone);
        let next = table.go(zone, me);
        self.end(table);
        next
    }

    fn zoned(&self) -> &dyn ZonedStore {
        self.store.zoned().expect("only made for stores that have zones")
    }

    fn start_of(&self, zone: usize) -> u64 {
        zone as u64 * self.limits.zone_len
    }

    fn zones_of(&self, position: u64, len: u64) -> Range<usize> {
        let last = self.limits.zone_of(position + len.max(1) - 1).min(u64::from(self.limits.zones) - 1);
        self.limits.zone_of(position) as usize..last as usize + 1
    }

    /// Asks the store for the state of a zone if it is unknown, or an error has occurred since.
    fn know(&self, table: &mut Table, zone: usize) -> Result<(), RequestError> {
        if !table.zones[zone].known {
            self.ask(table, zone)?;
            self.replace(table, zone);
        }
        Ok(())
    }

    /// Asks the store for the state of a zone. The writes in its queue are to be reassigned.
    fn ask(&self, table: &mut Table, zone: usize) -> Result<(), RequestError> {
        let state = &mut table.zones[zone];
        state.known = false;
        let mut reported = [Zone::UNKNOWN];
        if self.zoned().report(self.start_of(zone), &mut reported)? != 1 {
            return Err(RequestError::Io(Errno::IO));
        }
        let [found] = reported;
        state.known = true;
        state.sequential = found.kind == ZoneKind::SequentialRequired;
        state.end = found.start + found.capacity;
        state.written = found.write_pointer.unwrap_or(state.end).min(state.end);
        Ok(())
    }

    /// Appends a write to its zone's queue, and after it the deferred writes that follow.
    fn place(&self, table: &mut Table, index: u32) {
        let zone = table.link_data(index);
        self.follow(table, zone);
    }

    /// Enqueues the deferred writes that are at the pointer now.
    fn follow(&self, table: &mut Table, zone: usize) {
        loop {
            let pointer = table.zones[zone].pointer;
            let fits = |index: &u32| {
                let write = &table.entries[*index as usize];
                write.zone as usize == zone && write.position == pointer
            };
            let Some(at) = table.held.iter().position(fits) else { return };
            self.enqueue_deferred(table, at);
        }
    }

    /// Enqueues the deferred write at `at` of the list, and informs its owner.
    fn enqueue_deferred(&self, table: &mut Table, at: usize) {
        let index = table.held.remove(at);
        self.held.store(table.held.len(), Ordering::Release);
        table.link_data(index);
        if let Some(Waiter::Request(reply)) = &table.entries[index as usize].waiter {
            reply.post(Event::Released);
        }
    }

    /// Enqueues the writes that were deferred long enough, at their own positions, where they fail.
    fn expire(&self, table: &mut Table) {
        let workers = table.workers.iter().fold(0, |all, (worker, _)| all | worker);
        let is_over = |table: &Table, at: usize| {
            let [_, second] = table.entries[table.held[at] as usize].turned;
            second & workers == workers
        };
        while let Some(at) = (0..table.held.len()).find(|at| is_over(table, *at)) {
            self.enqueue_deferred(table, at);
        }
    }

    /// Recomputes the end of a zone's queue, and reassigns its appends.
    fn replace(&self, table: &mut Table, zone: usize) {
        let (start, mut at) = (self.start_of(zone), table.zones[zone].head);
        let mut state = table.zones[zone];
        state.pointer = state.written;
        while at != NONE {
            let write = &mut table.entries[at as usize];
            state.pointer = match write.kind {
                QueuedKind::Action(_, action) => state.after(action, start),
                QueuedKind::Data(kind_of_write) => {
                    if kind_of_write == WriteKind::Append && !write.granted {
                        write.position = state.pointer;
                    }
                    state.after_write(kind_of_write, write.position, write.len)
                }
            };
            at = write.next;
        }
        table.zones[zone].pointer = state.pointer;
        self.follow(table, zone);
    }

    fn wait(&self, ready: impl Fn(&Table) -> bool) {
        let waiting = self.changed.wait_while(self.table(), |table| !ready(table));
        drop(waiting.unwrap_or_else(PoisonError::into_inner));
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, mut table: MutexGuard<'_, Table>) {
        let wakes = std::mem::take(&mut table.wakes);
        drop(table);
        if wakes {
            self.changed.notify_all();
        }
    }
}
