//! Locks on ranges of the stores, in first-come, first-served order.
//!
//! Model-checked: the package `inlock-models` compiles this file with loom's primitives.

use crate::crypt_mapping::MappedRange;
use crate::events::{Event, ReplyTo};
use crate::sync::{AtomicU64, Condvar, Mutex, MutexGuard, Ordering, PoisonError};
use std::ops::Range;

/// Purpose of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The holder reads.
    Read,
    /// The holder writes.
    Write,
}

/// Lock that is held or waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LockId(u64);

impl LockId {
    /// Shared lock of all units, which is not in the table: [`UnitLocks::try_lock_all_shared`].
    const ALL_SHARED: Self = Self(u64::MAX);
}

/// Locks on ranges of the stores, in first-come, first-served order. Shared by all workers of a device.
#[derive(Default)]
pub(crate) struct UnitLocks {
    table: Mutex<Table>,
    /// Number of holders of all units; in multiples of [`EXCLUSIVE`], the number of exclusive claims in the table.
    all_shared: AtomicU64,
    /// A waiting thread has got its lock, or the table has room for another thread.
    changed: Condvar,
}

/// Amount that an exclusive claim adds to [`UnitLocks::all_shared`].
const EXCLUSIVE: u64 = 1 << 32;

/// Threads that hold or wait for locks at a time; more wait until the table has room.
const MAX_THREADS: usize = if cfg!(loom) { 2 } else { 256 };

#[derive(Default)]
struct Table {
    /// In order of arrival. There is always room: workers reserve it at the start, and the number of threads is
    /// limited.
    claims: Vec<Claim>,
    /// Claims of threads.
    threads: usize,
    /// Number of claims of workers that there is memory for.
    room: usize,
    next: u64,
}

struct Claim {
    id: u64,
    span: Span,
    of_thread: bool,
    /// `None`: the lock is held.
    waiter: Option<Waiter>,
}

/// Bytes of a store, what is done with them, and what others may do meanwhile.
struct Span {
    store: u32,
    start: u64,
    end: u64,
    reads: bool,
    excludes: Excludes,
}

/// Locks that a lock excludes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Excludes {
    /// Locks that exclude all: it is shared.
    Exclusive,
    /// All but those that read, and that are within it.
    Writes,
    /// All: it is exclusive.
    All,
}

impl Span {
    /// Returns the aligned range, exclusively for a write of partial units.
    fn of(mapped: &MappedRange, purpose: Purpose) -> Self {
        let start = mapped.store_offset;
        let end = start + mapped.aligned_len as u64;
        let reads = purpose == Purpose::Read;
        let excludes = if !reads && mapped.is_partial() { Excludes::All } else { Excludes::Exclusive };
        Self { store: mapped.store, start, end, reads, excludes }
    }

    fn is_shared(&self) -> bool {
        self.excludes == Excludes::Exclusive
    }

    fn is_in_conflict_with(&self, other: &Self) -> bool {
        let overlap = self.start < other.end && other.start < self.end && self.store == other.store;
        overlap && (self.is_exclusive_of(other) || other.is_exclusive_of(self))
    }

    /// Whether a lock of it excludes one of `other`, which overlaps it.
    fn is_exclusive_of(&self, other: &Self) -> bool {
        match self.excludes {
            Excludes::Exclusive => false,
            Excludes::Writes => !(other.reads && self.start <= other.start && other.end <= self.end),
            Excludes::All => true,
        }
    }
}

enum Waiter {
    /// A request of a worker.
    Request(ReplyTo),
    /// A thread that sleeps until the table changes, and checks its claim.
    Thread,
}

impl Claim {
    fn is_in_conflict_with(&self, other: &Claim) -> bool {
        self.span.is_in_conflict_with(&other.span)
    }

    /// Returns whether a holder of all units delays this claim. The last such holder checks the claims again.
    fn is_held_up(&self, all_shared: &AtomicU64) -> bool {
        !self.span.is_shared() && !all_shared.load(Ordering::Acquire).is_multiple_of(EXCLUSIVE)
    }
}

impl UnitLocks {
    /// Reserves memory for `more` locks at a time, so that acquiring them does not allocate.
    pub(crate) fn reserve(&self, more: usize) {
        let mut table = self.table();
        let room = table.room + more;
        let len = table.claims.len();
        table.claims.reserve((room + MAX_THREADS).saturating_sub(len));
        table.room = room;
    }

    /// Releases memory that [`UnitLocks::reserve`] reserved.
    pub(crate) fn unreserve(&self, less: usize) {
        let mut table = self.table();
        table.room -= less;
        if table.room == 0 && table.claims.is_empty() {
            table.claims = Vec::new();
        }
    }

    /// Returns the number of locks that memory is reserved for.
    #[cfg(test)]
    pub(crate) fn room(&self) -> usize {
        self.table().room
    }

    /// Returns the number of locks that are waited for.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.table().claims.iter().filter(|claim| claim.waiter.is_some()).count()
    }

    /// Acquires the shared lock of every unit, for a request that this thread completes without waiting for anything:
    /// one atomic operation, where the table takes two mutex locks. `None`: exclusive claims exist; acquire the lock of
    /// the needed units instead.
    pub(crate) fn try_lock_all_shared(&self) -> Option<LockId> {
        if self.all_shared.fetch_add(1, Ordering::AcqRel) < EXCLUSIVE {
            return Some(LockId::ALL_SHARED);
        }
        self.unlock_all_shared();
        None
    }

    fn unlock_all_shared(&self) {
        let before = self.all_shared.fetch_sub(1, Ordering::AcqRel);
        // The last holder lets the exclusive claims proceed. No holder can have come since the first such claim.
        if before > EXCLUSIVE && before % EXCLUSIVE == 1 {
            self.grant(self.table(), 0, None);
        }
    }

    /// Acquires the lock on the aligned range of `mapped`: exclusive for a write of partial units, otherwise shared.
    /// Returns whether it is held; if not, the request gets [`Event::Locked`] when the last conflicting lock is
    /// released.
    pub(crate) fn lock(
        &self,
        mapped: &MappedRange,
        purpose: Purpose,
        reply: impl FnOnce() -> ReplyTo,
    ) -> (LockId, bool) {
        self.table().acquire(&self.all_shared, Span::of(mapped, purpose), false, || Waiter::Request(reply()))
    }

    /// Acquires the lock as [`UnitLocks::lock`] does. Blocks until it is held.
    pub(crate) fn lock_blocking(&self, mapped: &MappedRange, purpose: Purpose) -> LockId {
        self.acquire_blocking(Span::of(mapped, purpose))
    }

    /// Acquires the exclusive lock of a range of a store in bytes. Blocks until it is held.
    pub(crate) fn lock_range_blocking(&self, store: u32, range: Range<u64>) -> LockId {
        let Range { start, end } = range;
        self.acquire_blocking(Span { store, start, end, reads: false, excludes: Excludes::All })
    }

    /// Lets requests that only read have the bytes of an exclusive lock, those that wait for it too.
    pub(crate) fn admit_reads(&self, lock: LockId) {
        let mut table = self.table();
        table.claims.iter_mut().filter(|claim| claim.id == lock.0).for_each(|c| c.span.excludes = Excludes::Writes);
        self.grant(table, 0, None);
    }

    fn acquire_blocking(&self, span: Span) -> LockId {
        let wait = |table, condition: fn(&Table, LockId) -> bool, id| {
            self.changed.wait_while(table, |table| condition(table, id)).unwrap_or_else(PoisonError::into_inner)
        };
        let mut table = wait(self.table(), |table, _| table.threads >= MAX_THREADS, LockId(0));
        table.threads += 1;
        let (id, held) = table.acquire(&self.all_shared, span, true, || Waiter::Thread);
        if !held {
            let waits = |table: &Table, id: LockId| table.claims.iter().any(|c| c.id == id.0 && c.waiter.is_some());
            drop(wait(table, waits, id));
        }
        id
    }

    /// Releases a lock that is held or waited for.
    pub(crate) fn unlock(&self, lock: LockId) {
        if lock == LockId::ALL_SHARED {
            return self.unlock_all_shared();
        }
        let mut table = self.table();
        let Some(index) = table.claims.iter().position(|c| c.id == lock.0) else { return };
        let gone = table.claims.remove(index);
        if !gone.span.is_shared() {
            self.all_shared.fetch_sub(EXCLUSIVE, Ordering::AcqRel);
        }
        self.grant(table, index, Some(gone));
    }

    /// Grants the locks of the claims from `index` on that nothing delays any longer, now that `gone` is released, or
    /// that no thread holds all units.
    fn grant(&self, mut table: MutexGuard<'_, Table>, index: usize, gone: Option<Claim>) {
        let of_thread = gone.as_ref().is_some_and(|g| g.of_thread);
        let mut wakes = of_thread && table.threads == MAX_THREADS;
        table.threads -= usize::from(of_thread);
        for later in index..table.claims.len() {
            let (earlier, rest) = table.claims.split_at_mut(later);
            let claim = &mut rest[0];
            let concerned = claim.waiter.is_some() && gone.as_ref().is_none_or(|g| g.is_in_conflict_with(claim));
            if concerned && !claim.is_held_up(&self.all_shared) && !earlier.iter().any(|e| e.is_in_conflict_with(claim))
            {
                match claim.waiter.take() {
                    Some(Waiter::Request(reply)) => reply.post(Event::Locked),
                    Some(Waiter::Thread) | None => wakes = true,
                }
            }
        }
        drop(table);
        if wakes {
            self.changed.notify_all();
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn acquire(
        &mut self,
        all_shared: &AtomicU64,
        span: Span,
        of_thread: bool,
        waiter: impl FnOnce() -> Waiter,
    ) -> (LockId, bool) {
        let id = self.next;
        self.next += 1;
        let mut claim = Claim { id, span, of_thread, waiter: None };
        if !claim.span.is_shared() {
            // From here on the lock of all units is refused.
            all_shared.fetch_add(EXCLUSIVE, Ordering::AcqRel);
        }
        let held =
            !claim.is_held_up(all_shared) && !self.claims.iter().any(|earlier| earlier.is_in_conflict_with(&claim));
        if !held {
            claim.waiter = Some(waiter());
        }
        self.claims.push(claim);
        (LockId(id), held)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::crypt_mapping::CryptMapping;
    use crate::events::{EventQueue, RequestId};
    use inlock_cipher::{CipherSpec, DataUnitSize, Segment, VolumeKey};
    use std::sync::Arc;

    fn target() -> CryptMapping {
        let segment = Segment::whole(Some(CipherSpec::AES_XTS_PLAIN64), DataUnitSize::SECTOR);
        CryptMapping::new(&[segment], &VolumeKey::new(&[3; 64]), 4096).expect("the segment fits")
    }

    /// Queue of a worker's events, in order.
    struct Log(Arc<EventQueue>);

    impl Log {
        fn new() -> Self {
            let ring = crate::ring::Ring::new(Default::default()).expect("a ring");
            Self(Arc::new(EventQueue::new(ring.waker(), 0)))
        }

        fn reply(&self, index: u32) -> ReplyTo {
            ReplyTo::new(&self.0, RequestId { index, generation: 0 })
        }

        /// Returns the requests that got their locks since the last call.
        fn locked(&self) -> Vec<u32> {
            let index = |(request, event): (RequestId, Event)| {
                assert!(matches!(event, Event::Locked));
                request.index
            };
            std::iter::from_fn(|| self.0.next()).map(index).collect()
        }
    }

    #[test]
    fn all_shared_lock_delays_exclusive_ones_and_none_joins_it() {
        let target = target();
        let mapped = |offset, len| target.mapping().locate(offset, len, 4096).unwrap();
        let log = Log::new();
        let locks = UnitLocks::default();
        let (one, two) = (locks.try_lock_all_shared().unwrap(), locks.try_lock_all_shared().unwrap());
        let (whole, held) = locks.lock(&mapped(0, 512), Purpose::Write, || log.reply(1));
        assert!(held, "shared locks do not exclude each other");
        let (partial, held) = locks.lock(&mapped(513, 5), Purpose::Write, || log.reply(2));
        assert!(!held);
        assert_eq!(locks.try_lock_all_shared(), None, "no lock overtakes a waiting write");
        let (late, held) = locks.lock(&mapped(1025, 5), Purpose::Write, || log.reply(3));
        assert!(!held);
        locks.unlock(one);
        assert_eq!(log.locked(), [0; 0]);
        locks.unlock(two);
        assert_eq!(log.locked(), [2, 3]);
        locks.unlock(partial);
        assert_eq!(locks.try_lock_all_shared(), None);
        locks.unlock(late);
        locks.unlock(whole);
        let again = locks.try_lock_all_shared().unwrap();
        locks.unlock(again);
        assert_eq!(locks.all_shared.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn reads_within_an_exclusive_lock_are_admitted_and_nothing_else() {
        let target = target();
        let mapped = |offset, len| target.mapping().locate(offset, len, 4096).unwrap();
        let log = Log::new();
        let locks = UnitLocks::default();
        let zone = locks.lock_range_blocking(0, 512..2048);
        let lock = |range, purpose, name| locks.lock(&range, purpose, || log.reply(name));
        let waits = [
            (mapped(512, 512), Purpose::Read, 1),
            (mapped(1536, 600), Purpose::Read, 2),
            (mapped(1024, 512), Purpose::Write, 3),
            (mapped(0, 700), Purpose::Read, 4),
            (mapped(1536, 512), Purpose::Read, 5),
            (mapped(600, 5), Purpose::Write, 6),
            (mapped(700, 5), Purpose::Read, 7),
        ];
        let mut held: Vec<_> = waits.into_iter().map(|(range, purpose, name)| lock(range, purpose, name)).collect();
        assert!(held.iter().all(|(_, is_held)| !is_held));
        locks.admit_reads(zone);
        assert_eq!(log.locked(), [1, 5], "those in part within it wait, and those behind a write");
        held.push(lock(mapped(1024, 1), Purpose::Read, 8));
        assert!(held[7].1, "a read that comes later");
        held.push(lock(mapped(1025, 1), Purpose::Write, 9));
        held.push(lock(mapped(1536, 512), Purpose::Write, 10));
        assert!(!held[8].1 && !held[9].1);
        assert_eq!(locks.try_lock_all_shared(), None);
        locks.unlock(zone);
        assert_eq!(log.locked(), [2, 3, 4, 10]);
        held.into_iter().for_each(|(id, _)| locks.unlock(id));
        assert!(locks.table().claims.is_empty() && locks.try_lock_all_shared().is_some());
    }

    #[test]
    fn memory_is_reserved_for_workers_and_threads() {
        let locks = UnitLocks::default();
        locks.reserve(1);
        assert!(locks.table().claims.capacity() > MAX_THREADS);
        locks.reserve(2);
        locks.unreserve(1);
        assert!(locks.table().claims.capacity() > MAX_THREADS);
        locks.unreserve(2);
        assert_eq!(locks.table().claims.capacity(), 0);
    }

    #[test]
    fn neighbouring_units_do_not_exclude_each_other() {
        let target = target();
        let log = Log::new();
        let locks = UnitLocks::default();
        for offset in [1025, 513, 1537] {
            let mapped = target.locate(offset, 5, 4096).unwrap();
            assert!(locks.lock(&mapped, Purpose::Write, || log.reply(1)).1, "{offset}");
        }
    }

    #[test]
    fn end_of_a_shared_lock_does_not_pass_over_the_holder_of_all() {
        let target = target();
        let mapped = |offset, len| target.locate(offset, len, 4096).unwrap();
        let log = Log::new();
        let locks = UnitLocks::default();
        let all = locks.try_lock_all_shared().unwrap();
        let (whole, held) = locks.lock(&mapped(0, 512), Purpose::Read, || log.reply(1));
        assert!(held);
        let (partial, held) = locks.lock(&mapped(1, 5), Purpose::Write, || log.reply(2));
        assert!(!held);
        locks.unlock(whole);
        assert_eq!(log.locked(), [0; 0], "the holder of all units still reads");
        locks.unlock(all);
        assert_eq!(log.locked(), [2]);
        locks.unlock(partial);
    }

    #[test]
    fn locks_are_granted_in_order_and_shared_ones_together() {
        let target = target();
        let mapped = |offset, len| target.locate(offset, len, 4096).unwrap();
        let log = Log::new();
        let locks = UnitLocks::default();
        let (whole_a, held) = locks.lock(&mapped(0, 512), Purpose::Write, || log.reply(1));
        assert!(held);
        let (whole_b, held) = locks.lock(&mapped(0, 1024), Purpose::Write, || log.reply(2));
        assert!(held, "two writes of whole units do not wait for each other");
        let (partial, held) = locks.lock(&mapped(1, 5), Purpose::Write, || log.reply(3));
        assert!(!held);
        let (elsewhere, held) = locks.lock(&mapped(2049, 5), Purpose::Write, || log.reply(4));
        assert!(held, "another unit is free");
        let (reader, held) = locks.lock(&mapped(2048, 4), Purpose::Read, || log.reply(6));
        assert!(!held, "no read of a unit that a write changes in part");
        let (late, held) = locks.lock(&mapped(0, 512), Purpose::Write, || log.reply(5));
        assert!(!held, "no lock overtakes a waiting write");
        locks.unlock(whole_a);
        assert_eq!(log.locked(), [0; 0]);
        locks.unlock(whole_b);
        assert_eq!(log.locked(), [3]);
        locks.unlock(elsewhere);
        assert_eq!(log.locked(), [6]);
        locks.unlock(reader);
        locks.unlock(partial);
        assert_eq!(log.locked(), [5]);
        locks.unlock(late);
        assert!(locks.table().claims.is_empty());
    }
}
