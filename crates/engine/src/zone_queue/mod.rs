//! The order of writes in sequential zones: one table for all workers and callers of a device.
//!
//! A write gets a *write* when it begins, and entries of a zone form a queue. Cipher work goes on in any order; what then
//! goes to the store is the head of the queue, which takes along what is ready behind it (`worker/gathered.rs`), so the store
//! sees each zone's writes one after the other in the order in which they were submitted. A write is not judged here: one that
//! is not at the write pointer goes to the store in its turn, and fails as it would there. An append is placed where the
//! zone's queue will have written to, before it is encrypted; when a write fails, the pointer is read again, and what was placed
//! behind is placed anew.
//!
//! Requests of several frontend queues may overtake each other on the way here. A write that is ahead of the pointer is
//! *held* until each worker has had two turns, in which the ones before it would have come.

mod merge;
mod mgmt;
mod table;

use crate::crypt_mapping::Ciphertext;
use crate::events::{Event, EventQueue, RequestId};
use crate::request::RequestError;
use crate::ring::{Token, Waker};
use crate::store::BackingStore;
use crate::zoned::{Zone, ZoneKind, ZoneLimits, ZonedStore};
pub(crate) use merge::Told;
use rustix::io::Errno;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
pub(crate) use table::Waiter;
use table::{NONE, QueuedKind, QueuedWrite, State, Table};

/// How often an append is placed anew because others write to its zone.
const MAX_REASSIGNMENTS: u8 = 8;
/// Workers that are told apart; later ones share the last bit, and may end a wait early.
const WORKERS: u32 = 64;

/// A place in the queue of a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WriteId {
    index: u32,
    generation: u32,
}

impl WriteId {
    /// As the token of a part of a write.
    pub(crate) fn token(self) -> Token {
        Token(u64::from(self.generation) << 32 | u64::from(self.index))
    }

    /// The one with this token.
    pub(crate) fn of(token: Token) -> Self {
        Self { index: token.0 as u32, generation: (token.0 >> 32) as u32 }
    }
}

/// Orders to zones that wait for their writes, or are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ZoneMgmtId(u32);

/// How a write says where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteKind {
    /// At its position, which is where the pointer will be.
    Data,
    /// The same, but some or all of it may be there already.
    Reissued,
    /// Wherever the zone's queue ends.
    Append,
}

/// What a write finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Enqueued {
    /// No order is asked for.
    Free,
    /// It is in its zone's queue, and goes to this position of the store.
    Placed(WriteId, u64),
    /// It waits for those before it; it will be told when it may begin.
    Deferred(WriteId),
}

/// What becomes of a write that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteOutcome {
    /// It has left the queue.
    Left {
        /// The next head of the queue, if it is a request of the same worker.
        next: Option<RequestId>,
        /// The store has all of it, even if it failed.
        landed: bool,
    },
    /// It was placed where the zone's pointer was not, and is to be written here instead.
    Reassigned(u64),
}

/// The queues of a store's zones.
pub(crate) struct ZoneWriteQueues {
    store: Arc<dyn BackingStore>,
    limits: ZoneLimits,
    table: Mutex<Table>,
    changed: Condvar,
    /// Writes that are ahead of their zone's pointer.
    held: AtomicUsize,
    /// Nobody waits for his turn: [`ZoneWriteQueues::bypass`].
    bypassed: bool,
}

impl ZoneWriteQueues {
    /// For a store that has zones.
    pub(crate) fn new(store: &Arc<dyn BackingStore>) -> Self {
        let limits = store.zoned().expect("only made for stores that have zones").limits();
        let (table, changed, held) = (Mutex::new(Table::new(limits.zones)), Condvar::new(), AtomicUsize::new(0));
        Self { store: Arc::clone(store), limits, table, changed, held, bypassed: false }
    }

    /// Lets every write go as soon as it is encrypted: the negative control of the tests of the order.
    pub(crate) fn bypass(&mut self) {
        self.bypassed = true;
    }

    /// What is true of all zones of the store.
    pub(crate) fn limits(&self) -> ZoneLimits {
        self.limits
    }

    /// Where the write pointer of the zone around `position` is, as far as the store is known to have written.
    pub(crate) fn written(&self, position: u64) -> Result<u64, Errno> {
        let mut table = self.table();
        let zone = self.zones_of(position, 1).start;
        self.know(&mut table, zone).map_err(RequestError::errno)?;
        Ok(table.zones[zone].written)
    }

    /// The same, asked of the store now.
    pub(crate) fn ask_again(&self, position: u64) -> Result<u64, Errno> {
        let mut table = self.table();
        let zone = self.zones_of(position, 1).start;
        self.ask(&mut table, zone).map_err(RequestError::errno)?;
        self.replace(&mut table, zone);
        Ok(table.zones[zone].written)
    }

    /// Whether a stretch of the store touches a sequential zone.
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

    /// Whether a stretch of the store lies in several zones, not all of them conventional.
    pub(crate) fn crosses(&self, position: u64, len: u64) -> Result<bool, RequestError> {
        Ok(self.zones_of(position, len).len() > 1 && self.is_sequential(position, len)?)
    }

    /// Makes room for `more` entries at a time.
    pub(crate) fn reserve(&self, more: usize) {
        let mut table = self.table();
        table.room += more;
        table.make_room();
    }

    /// Gives up room that was made.
    pub(crate) fn unreserve(&self, room: usize) {
        self.table().room -= room;
    }

    /// A worker that `waker` wakes; its worker.
    pub(crate) fn join(&self, waker: Waker) -> u64 {
        let mut table = self.table();
        let taken = |bit: u32| table.workers.iter().any(|(worker, _)| *worker == 1 << bit);
        let worker = 1 << (0..WORKERS - 1).find(|bit| !taken(*bit)).unwrap_or(WORKERS - 1);
        table.workers.push((worker, waker));
        worker
    }

    /// A worker has ended.
    pub(crate) fn leave_worker(&self, worker: u64) {
        let mut table = self.table();
        if let Some(index) = table.workers.iter().position(|(s, _)| *s == worker) {
            table.workers.remove(index);
        }
        self.expire(&mut table);
        self.end(table);
    }

    /// Whether some are held, so that [`ZoneWriteQueues::turned`] has to be called.
    pub(crate) fn has_deferred(&self) -> bool {
        self.held.load(Ordering::Acquire) > 0
    }

    /// A worker has come to the end of a turn.
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

    /// Puts a write of `len` bytes at `position` of the store into its zone's queue; `position` is the zone's start for an
    /// append. `may_hold`: a write that is ahead of the pointer waits for those before it.
    ///
    /// # Errors
    ///
    /// `EIO` for a write across the end of a zone, and for an append that does not fit, does not name a zone by its start, or
    /// is not to a sequential one.
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
            // Somebody else may have emptied it.
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

    /// Takes a held write back, as if it had not come. False: it is held no more, and is told so.
    pub(crate) fn take_back(&self, write: WriteId) -> bool {
        let mut table = self.table();
        let held = table.held.iter().position(|index| *index == write.index);
        let Some(at) = held.filter(|_| !table.has_ended(write)) else { return false };
        table.held.remove(at);
        self.held.store(table.held.len(), Ordering::Release);
        table.remove(write.index);
        true
    }

    /// The write is encrypted, for `position`. It gets its data back if it is its turn; otherwise it is told, and
    /// [`ZoneWriteQueues::take_data`]s them. `can_merge`: it may go to the store with others.
    pub(crate) fn ready(&self, write: WriteId, position: u64, data: Ciphertext, can_merge: bool) -> Option<Ciphertext> {
        let mut table = self.table();
        table.write(write).can_merge = can_merge;
        if self.first_ready(&mut table, write) {
            return Some(data);
        }
        table.write(write).data = Some((position, data));
        None
    }

    /// The data of a write whose turn it is, which waited for it.
    pub(crate) fn take_data(&self, write: WriteId) -> Ciphertext {
        let mut table = self.table();
        let data = table.write(write).data.take();
        data.expect("a write that waits for its turn has its data here").1
    }

    fn first_ready(&self, table: &mut Table, write: WriteId) -> bool {
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
        // Nobody else was ready, so it is this one.
        first.granted = true;
        true
    }

    /// The same for a thread, which keeps its data and waits for its turn.
    pub(crate) fn ready_blocking(&self, write: WriteId) {
        let now = self.first_ready(&mut self.table(), write);
        if !now {
            self.wait(|table| table.entries[write.index as usize].granted);
        }
    }

    /// Where the write goes, as of now. It stays so once it is its turn.
    pub(crate) fn position(&self, write: WriteId) -> u64 {
        self.table().write(write).position
    }

    /// The write, whose turn it was, has ended.
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

    /// The write is given up; it may have been held, in the queue, or with the store, which has answered. The next one's
    /// token, if it belongs to the same waiter.
    pub(crate) fn leave(&self, write: WriteId, me: Option<&Arc<EventQueue>>) -> Option<RequestId> {
        if self.take_back(write) {
            return None;
        }
        let mut table = self.table();
        if table.has_ended(write) {
            return None;
        }
        let QueuedWrite { zone, granted, .. } = *table.write(write);
        if table.write(write).lent.is_some() {
            // Whoever has its data sees to the rest, and tells nobody.
            table.write(write).waiter = None;
            return None;
        }
        let zone = zone as usize;
        table.unlink(write.index);
        if granted {
            // Nobody took note of what the store has of it. One that does not answer now fails the next write.
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

    /// Asks the store about a zone where that was not done, or something has gone wrong since.
    fn know(&self, table: &mut Table, zone: usize) -> Result<(), RequestError> {
        if !table.zones[zone].known {
            self.ask(table, zone)?;
            self.replace(table, zone);
        }
        Ok(())
    }

    /// Asks the store about a zone. What is in its queue is to be placed anew.
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

    /// Appends a write to its zone's queue, and lets those that were held for it follow.
    fn place(&self, table: &mut Table, index: u32) {
        let zone = table.link_data(index);
        self.follow(table, zone);
    }

    /// Places the writes that were held and are at the pointer now.
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

    /// Puts the held write at `at` of the list into its queue, and tells it.
    fn enqueue_deferred(&self, table: &mut Table, at: usize) {
        let index = table.held.remove(at);
        self.held.store(table.held.len(), Ordering::Release);
        table.link_data(index);
        if let Some(Waiter::Request(reply)) = &table.entries[index as usize].waiter {
            reply.post(Event::Released);
        }
    }

    /// Those that were held long enough go where they want to, and fail.
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

    /// Computes anew where the queue of a zone leads to, and places its appends there.
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
