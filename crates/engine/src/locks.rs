//! Locks over ranges of the stores, first come, first served.
//!
//! Model-checked: the package `inlock-models` compiles this file with loom's primitives.

use crate::crypt_mapping::MappedRange;
use crate::events::{Event, ReplyTo};
use crate::sync::{AtomicU64, Condvar, Mutex, MutexGuard, Ordering, PoisonError};

/// What a lock is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Its holder reads.
    Read,
    /// Its holder writes.
    Write,
}

/// A lock that is held or waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LockId(u64);

impl LockId {
    /// Not one of the table: [`UnitLocks::try_lock_all_shared`].
    const ALL_SHARED: Self = Self(u64::MAX);
}

/// Locks over stretches of the stores, first come, first served. Shared by all workers of a device.
#[derive(Default)]
pub(crate) struct UnitLocks {
    table: Mutex<Table>,
    /// How many hold everything briefly; counted in [`EXCLUSIVE`], the exclusive claims of the table.
    all_shared: AtomicU64,
    /// A thread that waits has got its lock, or there is room for another.
    changed: Condvar,
}

/// What an exclusive claim adds to [`UnitLocks::all_shared`].
const EXCLUSIVE: u64 = 1 << 32;

/// Threads that have or wait for locks at a time; more wait until there is room in the table.
const MAX_THREADS: usize = if cfg!(loom) { 2 } else { 256 };

#[derive(Default)]
struct Table {
    /// In order of arrival. There is always room: for workers it was made when they began, for threads it is limited.
    claims: Vec<Claim>,
    /// Claims of threads.
    threads: usize,
    /// How many claims of workers there may be.
    room: usize,
    next: u64,
}

struct Claim {
    id: u64,
    store: u32,
    start: u64,
    end: u64,
    exclusive: bool,
    of_thread: bool,
    /// `None`: the lock is held.
    waiter: Option<Waiter>,
}

enum Waiter {
    /// A request of a worker.
    Request(ReplyTo),
    /// It sleeps until something has changed, and looks.
    Thread,
}

impl Claim {
    fn conflicts(&self, other: &Claim) -> bool {
        let overlap = self.start < other.end && other.start < self.end && self.store == other.store;
        (self.exclusive || other.exclusive) && overlap
    }

    /// Whether somebody holds everything, if that is in the way. Who ends that looks at the claims once more.
    fn is_held_up(&self, all_shared: &AtomicU64) -> bool {
        self.exclusive && !all_shared.load(Ordering::Acquire).is_multiple_of(EXCLUSIVE)
    }
}

impl UnitLocks {
    /// Makes room for `more` locks at a time, so that asking for them allocates nothing.
    pub(crate) fn reserve(&self, more: usize) {
        let mut table = self.table();
        let room = table.room + more;
        let len = table.claims.len();
        table.claims.reserve((room + MAX_THREADS).saturating_sub(len));
        table.room = room;
    }

    /// Gives back what [`UnitLocks::reserve`] made.
    pub(crate) fn unreserve(&self, less: usize) {
        self.table().room -= less;
    }

    /// The shared lock of every unit, for a request that this thread carries to its end without waiting for anything: one
    /// atomic step where the table takes two locks. `None`: somebody has or wants units for himself, ask for those that
    /// are needed.
    pub(crate) fn try_lock_all_shared(&self) -> Option<LockId> {
        if self.all_shared.fetch_add(1, Ordering::AcqRel) < EXCLUSIVE {
            return Some(LockId::ALL_SHARED);
        }
        self.unlock_all_shared();
        None
    }

    fn unlock_all_shared(&self) {
        let before = self.all_shared.fetch_sub(1, Ordering::AcqRel);
        // The last of them lets the exclusive ones go on. None can have come since the first of those.
        if before > EXCLUSIVE && before % EXCLUSIVE == 1 {
            self.grant(self.table(), 0, None);
        }
    }

    /// Asks for the lock on the aligned range of `mapped`: exclusive for a write of partial units, else shared. True: it is
    /// held. False: the request gets [`Event::Locked`] when the last conflicting lock is given up.
    pub(crate) fn lock(&self, mapped: &MappedRange, purpose: Purpose, reply: ReplyTo) -> (LockId, bool) {
        self.table().acquire(&self.all_shared, mapped, purpose, false, || Waiter::Request(reply))
    }

    /// As [`UnitLocks::lock`]; the calling thread waits until the lock is held.
    pub(crate) fn lock_blocking(&self, mapped: &MappedRange, purpose: Purpose) -> LockId {
        let wait = |table, condition: fn(&Table, LockId) -> bool, id| {
            self.changed.wait_while(table, |table| condition(table, id)).unwrap_or_else(PoisonError::into_inner)
        };
        let mut table = wait(self.table(), |table, _| table.threads >= MAX_THREADS, LockId(0));
        table.threads += 1;
        let (id, held) = table.acquire(&self.all_shared, mapped, purpose, true, || Waiter::Thread);
        if !held {
            let waits = |table: &Table, id: LockId| table.claims.iter().any(|c| c.id == id.0 && c.waiter.is_some());
            drop(wait(table, waits, id));
        }
        id
    }

    /// Gives up a lock that is held or waited for.
    pub(crate) fn unlock(&self, lock: LockId) {
        if lock == LockId::ALL_SHARED {
            return self.unlock_all_shared();
        }
        let mut table = self.table();
        let Some(index) = table.claims.iter().position(|c| c.id == lock.0) else { return };
        let gone = table.claims.remove(index);
        if gone.exclusive {
            self.all_shared.fetch_sub(EXCLUSIVE, Ordering::AcqRel);
        }
        self.grant(table, index, Some(gone));
    }

    /// Gives the claims from `index` on their locks whose way is free now that `gone` is gone, or that nobody holds
    /// everything any more.
    fn grant(&self, mut table: MutexGuard<'_, Table>, index: usize, gone: Option<Claim>) {
        let of_thread = gone.as_ref().is_some_and(|g| g.of_thread);
        let mut wakes = of_thread && table.threads == MAX_THREADS;
        table.threads -= usize::from(of_thread);
        for later in index..table.claims.len() {
            let (earlier, rest) = table.claims.split_at_mut(later);
            let claim = &mut rest[0];
            let concerned = claim.waiter.is_some() && gone.as_ref().is_none_or(|g| g.conflicts(claim));
            if concerned && !claim.is_held_up(&self.all_shared) && !earlier.iter().any(|e| e.conflicts(claim)) {
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
        mapped: &MappedRange,
        purpose: Purpose,
        of_thread: bool,
        waiter: impl FnOnce() -> Waiter,
    ) -> (LockId, bool) {
        let id = self.next;
        self.next += 1;
        let start = mapped.store_offset;
        let end = start + mapped.aligned_len as u64;
        let exclusive = purpose == Purpose::Write && mapped.is_partial();
        let mut claim = Claim { id, store: mapped.store, start, end, exclusive, of_thread, waiter: None };
        if exclusive {
            // From here on nobody gets everything.
            all_shared.fetch_add(EXCLUSIVE, Ordering::AcqRel);
        }
        let held = !claim.is_held_up(all_shared) && !self.claims.iter().any(|earlier| earlier.conflicts(&claim));
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

    /// A worker's side of the locks: its events, in order.
    struct Log(Arc<EventQueue>);

    impl Log {
        fn new() -> Self {
            let ring = crate::ring::Ring::new(Default::default()).expect("a ring");
            Self(Arc::new(EventQueue::new(ring.waker(), 0)))
        }

        fn reply(&self, index: u32) -> ReplyTo {
            ReplyTo::new(&self.0, RequestId { index, generation: 0 })
        }

        /// The requests that were told since the last call that they hold their locks.
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
        let (whole, held) = locks.lock(&mapped(0, 512), Purpose::Write, log.reply(1));
        assert!(held, "what is shared goes beside it");
        let (partial, held) = locks.lock(&mapped(513, 5), Purpose::Write, log.reply(2));
        assert!(!held);
        assert_eq!(locks.try_lock_all_shared(), None, "nobody overtakes a waiting write");
        let (late, held) = locks.lock(&mapped(1025, 5), Purpose::Write, log.reply(3));
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
    fn locks_are_granted_in_order_and_shared_ones_together() {
        let target = target();
        let mapped = |offset, len| target.locate(offset, len, 4096).unwrap();
        let log = Log::new();
        let locks = UnitLocks::default();
        let (whole_a, held) = locks.lock(&mapped(0, 512), Purpose::Write, log.reply(1));
        assert!(held);
        let (whole_b, held) = locks.lock(&mapped(0, 1024), Purpose::Write, log.reply(2));
        assert!(held, "two writes of whole units do not wait for each other");
        let (partial, held) = locks.lock(&mapped(1, 5), Purpose::Write, log.reply(3));
        assert!(!held);
        let (elsewhere, held) = locks.lock(&mapped(2049, 5), Purpose::Write, log.reply(4));
        assert!(held, "another unit is free");
        let (reader, held) = locks.lock(&mapped(2048, 4), Purpose::Read, log.reply(6));
        assert!(!held, "nobody reads a unit that is being patched");
        let (late, held) = locks.lock(&mapped(0, 512), Purpose::Write, log.reply(5));
        assert!(!held, "nobody overtakes a waiting write");
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
