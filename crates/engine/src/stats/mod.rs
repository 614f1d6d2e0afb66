//! Statistics of a device: counters and latency histograms at next to no cost.
//!
//! Every thread that carries out requests adds to a shard of its own with relaxed stores; readers add the shards up.
//! The clock is read once per step. Of the short requests only one in [`SHORT_ONE_IN`], picked at random, is timed, and
//! counted as that many: a histogram estimates all requests, while the counters are exact. A shard is allocated when a
//! thread first needs it, or before that if it is reserved; nothing else is allocated.

mod histogram;
mod store_errors;

pub use histogram::{Bucket, Histogram};
pub use store_errors::StoreError;

use crate::request::{Operation, RequestError};
use histogram::Buckets;
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use store_errors::StoreErrors;
use zerocopy::FromZeros;

/// Requests shorter than 16 KiB are timed once in this many.
pub const SHORT_ONE_IN: u64 = 256;
/// Requests shorter than 128 KiB are timed once in this many; longer ones always.
pub const MEDIUM_ONE_IN: u64 = 4;
const SHORT: u64 = 16 << 10;
const MEDIUM: u64 = 128 << 10;

/// Number of threads that can have a shard of their own. Further threads share the first.
const SHARDS: usize = 64;
const SHARED: usize = 0;

/// Level of detail of the statistics.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StatsLevel {
    /// Nothing: to measure the cost of statistics.
    Off,
    /// Exact counters, estimated histograms.
    #[default]
    On,
    /// Every request is timed (tests only).
    Exact,
}

/// Counters since the device was created; [`Snapshot`] has their sums under the same names.
#[derive(Clone, Copy)]
enum Counter {
    // Reads and the next five are used by nearly every request: with the choice of timed requests, they fill one cache
    // line.
    Reads,
    Writes,
    BytesRead,
    BytesWritten,
    CipherCalls,
    CipherUnits,
    WriteZeroes,
    Flushes,
    Discards,
    Prefetches,
    Appends,
    ZoneActions,
    Errors,
    Offloaded,
}

const COUNTERS: usize = Counter::Offloaded as usize + 1;

/// Phase of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// From acceptance to start, including the wait for the lock.
    Queue,
    /// Reads and writes of the store.
    Store,
    /// Encryption and decryption; for offloaded work including the hand-over to other threads.
    Cipher,
}

const PHASES: usize = Phase::Cipher as usize + 1;

/// Statistics of one thread. Aligned so that no two threads write to one cache line.
#[repr(C, align(128))]
#[derive(FromZeros)]
struct Shard {
    /// Numbers of short and of medium requests left to skip before one is timed.
    skip: [AtomicU64; 2],
    counters: [AtomicU64; COUNTERS],
    /// State of the random generator that picks the requests to time.
    random: AtomicU64,
    owned: AtomicBool,
    phases: [Buckets; PHASES],
    total: Buckets,
}

impl Shard {
    fn new() -> Arc<Self> {
        // Too large for the stack. Failing to allocate may end the program.
        Self::new_box_zeroed().expect("memory for the counters of a thread").into()
    }
}

/// Counters and histograms of a device.
pub struct Stats {
    level: StatsLevel,
    /// Shards that threads have used so far. A server of many volumes has few threads for each.
    shards: Vec<OnceLock<Arc<Shard>>>,
    /// Number of threads whose shards are allocated before they need one.
    reserved: AtomicUsize,
    store_errors: StoreErrors,
    /// Requests that a frontend has refused. No thread is busy with them.
    refused: AtomicU64,
}

/// Sums of all counters and histograms at one time.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Reads that succeeded. Over NBD a long request counts once for each of its pieces, here and below.
    pub reads: u64,
    /// Writes that succeeded.
    pub writes: u64,
    /// Write-zeroes that succeeded.
    pub write_zeroes: u64,
    /// Flushes that succeeded.
    pub flushes: u64,
    /// Discards that succeeded.
    pub discards: u64,
    /// Prefetches that succeeded.
    pub prefetches: u64,
    /// Zone appends that succeeded.
    pub appends: u64,
    /// Zone management requests that succeeded.
    pub zone_actions: u64,
    /// Requests of any kind that failed.
    pub errors: u64,
    /// Requests that a frontend refused without carrying them out: not allowed, out of range, or malformed; counted at
    /// every [`StatsLevel`].
    pub refused: u64,
    /// Failed requests for which a store returned the error; counted at every [`StatsLevel`].
    pub store_errors: u64,
    /// Last error of a store.
    pub last_store_error: Option<StoreError>,
    /// Bytes requested by reads.
    pub bytes_read: u64,
    /// Bytes requested by writes, appends and write-zeroes.
    pub bytes_written: u64,
    /// Reads, writes, appends and write-zeroes whose cipher work ran on the thread that carried them out.
    pub inline: u64,
    /// Reads, writes, appends and write-zeroes whose cipher work ran on the pool.
    pub offloaded: u64,
    /// Number of cipher calls.
    pub cipher_calls: u64,
    /// Data units processed by a cipher. Divided by the calls: units per call.
    pub cipher_units: u64,
    /// Time from acceptance to start of a request, including the wait for the lock.
    pub queue: Histogram,
    /// Time in the store, over all steps of a request.
    pub store: Histogram,
    /// Time in the cipher, over all steps of a request; for offloaded work including the hand-over.
    pub cipher: Histogram,
    /// Time from acceptance to completion of a request.
    pub total: Histogram,
}

impl Stats {
    pub(crate) fn new(level: StatsLevel) -> Arc<Self> {
        let shards = if level == StatsLevel::Off { 1 } else { SHARDS };
        let shards = (0..shards).map(|_| OnceLock::new()).collect();
        let (reserved, store_errors, refused) = Default::default();
        Arc::new(Self { level, shards, reserved, store_errors, refused })
    }

    fn shard(&self, index: usize) -> &Arc<Shard> {
        self.shards[index].get_or_init(Shard::new)
    }

    /// Returns the level of detail.
    pub fn level(&self) -> StatsLevel {
        self.level
    }

    /// Counts a request that a frontend refuses.
    pub fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the sums of all shards. Requests that complete concurrently may be counted in part.
    pub fn snapshot(&self) -> Snapshot {
        let shards = || self.shards.iter().filter_map(OnceLock::get);
        let sum = |c: Counter| shards().map(|s| s.counters[c as usize].load(Ordering::Relaxed)).sum();
        let mut snapshot = Snapshot {
            reads: sum(Counter::Reads),
            writes: sum(Counter::Writes),
            write_zeroes: sum(Counter::WriteZeroes),
            flushes: sum(Counter::Flushes),
            discards: sum(Counter::Discards),
            prefetches: sum(Counter::Prefetches),
            appends: sum(Counter::Appends),
            zone_actions: sum(Counter::ZoneActions),
            errors: sum(Counter::Errors),
            refused: self.refused.load(Ordering::Relaxed),
            store_errors: self.store_errors.count(),
            last_store_error: self.store_errors.last(),
            bytes_read: sum(Counter::BytesRead),
            bytes_written: sum(Counter::BytesWritten),
            offloaded: sum(Counter::Offloaded),
            cipher_calls: sum(Counter::CipherCalls),
            cipher_units: sum(Counter::CipherUnits),
            ..Snapshot::default()
        };
        let moved = snapshot.reads + snapshot.writes + snapshot.appends + snapshot.write_zeroes;
        snapshot.inline = moved.saturating_sub(snapshot.offloaded);
        for shard in shards() {
            snapshot.queue.add(&shard.phases[Phase::Queue as usize]);
            snapshot.store.add(&shard.phases[Phase::Store as usize]);
            snapshot.cipher.add(&shard.phases[Phase::Cipher as usize]);
            snapshot.total.add(&shard.total);
        }
        snapshot
    }

    /// Allocates shards for `more` threads, so that their first requests do not.
    pub(crate) fn reserve(&self, more: usize) {
        self.reserved.fetch_add(more, Ordering::Relaxed);
        self.fill();
    }

    /// Ends a reservation.
    pub(crate) fn unreserve(&self, less: usize) {
        self.reserved.fetch_sub(less, Ordering::Relaxed);
    }

    /// Allocates shards until as many are free as are reserved.
    fn fill(&self) {
        let reserved = self.reserved.load(Ordering::Relaxed);
        let mut free = 0;
        for index in SHARED + 1..self.shards.len() {
            if free == reserved {
                break;
            }
            free += usize::from(!self.shard(index).owned.load(Ordering::Relaxed));
        }
    }

    fn claim(&self) -> usize {
        let free = |s: &Shard| !s.owned.load(Ordering::Relaxed) && !s.owned.swap(true, Ordering::Acquire);
        (SHARED + 1..self.shards.len()).find(|index| free(self.shard(*index))).unwrap_or(SHARED)
    }

    fn release(&self, index: usize) {
        if index != SHARED {
            // The next owner goes on from these counts.
            self.shard(index).owned.store(false, Ordering::Release);
        }
    }

    /// Returns the calling thread's shard, which it keeps from its first call until it ends.
    pub(crate) fn of_this_thread(self: &Arc<Self>) -> Recorder<'_> {
        let (last, index) = LAST.get();
        if std::ptr::eq(last, Arc::as_ptr(self)) {
            return Recorder::new(self, self.shard(index), index);
        }
        // A thread that is ending has given its shards back.
        let index = OF_THREAD.try_with(|t| t.borrow_mut().shard(self)).unwrap_or(SHARED);
        Recorder::new(self, self.shard(index), index)
    }
}

impl Snapshot {
    /// Returns the difference to `earlier`, a snapshot of the same device.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            reads: self.reads.saturating_sub(earlier.reads),
            writes: self.writes.saturating_sub(earlier.writes),
            write_zeroes: self.write_zeroes.saturating_sub(earlier.write_zeroes),
            flushes: self.flushes.saturating_sub(earlier.flushes),
            discards: self.discards.saturating_sub(earlier.discards),
            prefetches: self.prefetches.saturating_sub(earlier.prefetches),
            appends: self.appends.saturating_sub(earlier.appends),
            zone_actions: self.zone_actions.saturating_sub(earlier.zone_actions),
            errors: self.errors.saturating_sub(earlier.errors),
            refused: self.refused.saturating_sub(earlier.refused),
            store_errors: self.store_errors.saturating_sub(earlier.store_errors),
            last_store_error: self.last_store_error.filter(|_| self.store_errors > earlier.store_errors),
            bytes_read: self.bytes_read.saturating_sub(earlier.bytes_read),
            bytes_written: self.bytes_written.saturating_sub(earlier.bytes_written),
            inline: self.inline.saturating_sub(earlier.inline),
            offloaded: self.offloaded.saturating_sub(earlier.offloaded),
            cipher_calls: self.cipher_calls.saturating_sub(earlier.cipher_calls),
            cipher_units: self.cipher_units.saturating_sub(earlier.cipher_units),
            queue: self.queue.since(&earlier.queue),
            store: self.store.since(&earlier.store),
            cipher: self.cipher.since(&earlier.cipher),
            total: self.total.since(&earlier.total),
        }
    }
}

impl std::fmt::Debug for Stats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stats({:?})", self.level)
    }
}

/// Number of devices for which a thread keeps a shard at a time.
const DEVICES_OF_A_THREAD: usize = 4;

thread_local! {
    /// The device that the thread used last, one of [`OF_THREAD`], and the thread's shard of it.
    static LAST: Cell<(*const Stats, usize)> = const { Cell::new((std::ptr::null(), SHARED)) };
    static OF_THREAD: RefCell<OfThread> = const { RefCell::new(OfThread { shards: [const { None }; 4], oldest: 0 }) };
}

/// Shards of a thread, released when it ends.
struct OfThread {
    shards: [Option<(Weak<Stats>, usize)>; DEVICES_OF_A_THREAD],
    oldest: usize,
}

impl OfThread {
    fn shard(&mut self, stats: &Arc<Stats>) -> usize {
        // A weak reference keeps the address from being used again.
        let found = self.shards.iter().flatten().find(|(owner, _)| std::ptr::eq(owner.as_ptr(), Arc::as_ptr(stats)));
        if let Some((_, index)) = found {
            LAST.set((Arc::as_ptr(stats), *index));
            return *index;
        }
        let index = stats.claim();
        let slot = &mut self.shards[self.oldest];
        self.oldest = (self.oldest + 1) % DEVICES_OF_A_THREAD;
        give_back(slot.replace((Arc::downgrade(stats), index)));
        LAST.set((Arc::as_ptr(stats), index));
        index
    }
}

impl Drop for OfThread {
    fn drop(&mut self) {
        LAST.set((std::ptr::null(), SHARED));
        self.shards.iter_mut().for_each(|slot| give_back(slot.take()));
    }
}

fn give_back(shard: Option<(Weak<Stats>, usize)>) {
    if let Some((stats, index)) = shard
        && let Some(stats) = stats.upgrade()
    {
        stats.release(index);
    }
}

/// Shard that its owner keeps until dropped: for a worker.
pub(crate) struct OwnShard {
    stats: Arc<Stats>,
    shard: Arc<Shard>,
    index: usize,
}

impl OwnShard {
    pub(crate) fn new(stats: &Arc<Stats>) -> Self {
        let index = stats.claim();
        stats.fill();
        Self { stats: Arc::clone(stats), shard: Arc::clone(stats.shard(index)), index }
    }

    pub(crate) fn recorder(&self) -> Recorder<'_> {
        Recorder::new(&self.stats, &self.shard, self.index)
    }
}

impl Drop for OwnShard {
    fn drop(&mut self) {
        self.stats.release(self.index);
    }
}

/// Work of a request, counted when it completes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    /// Bytes requested.
    pub(crate) len: u64,
    /// Number of cipher calls.
    pub(crate) cipher_calls: u32,
    /// Data units processed by a cipher.
    pub(crate) cipher_units: u32,
    /// Whether the pool processed them.
    pub(crate) offloaded: bool,
}

/// Clock of a timed request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// Number of requests that it represents.
    weight: u64,
    accepted: Instant,
    last: Instant,
    /// Time per phase; `None`: the request had no such phase.
    spent: [Option<u64>; PHASES],
}

impl Timing {
    /// Adds the time since the last call to `phase`.
    pub(crate) fn lap(&mut self, phase: Phase) {
        self.lap_until(phase, Instant::now());
    }

    /// Adds the time from the last call to `then` to `phase`.
    pub(crate) fn lap_until(&mut self, phase: Phase, then: Instant) {
        let spent = then.saturating_duration_since(self.last).as_nanos() as u64;
        *self.spent[phase as usize].get_or_insert(0) += spent;
        self.last = self.last.max(then);
    }

    /// Moves `part` of the time of one phase to another.
    pub(crate) fn shift(&mut self, from: Phase, to: Phase, part: Duration) {
        let part = self.spent[from as usize].map_or(0, |spent| spent.min(part.as_nanos() as u64));
        if let Some(spent) = &mut self.spent[from as usize] {
            *spent -= part;
        }
        *self.spent[to as usize].get_or_insert(0) += part;
    }
}

/// Writer to a shard.
#[derive(Clone, Copy)]
pub(crate) struct Recorder<'a> {
    level: StatsLevel,
    shard: &'a Shard,
    store_errors: &'a StoreErrors,
    /// Whether other threads write to the shard as well.
    shared: bool,
}

impl<'a> Recorder<'a> {
    fn new(stats: &'a Stats, shard: &'a Shard, index: usize) -> Self {
        Self { level: stats.level, shard, store_errors: &stats.store_errors, shared: index == SHARED }
    }

    /// Returns the clock of a request of `len` bytes that is accepted now, or `None` if it is not timed.
    pub(crate) fn accept(&self, operation: Operation, len: u64) -> Option<Timing> {
        let moves_data =
            operation.writes_data() || matches!(operation, Operation::Read | Operation::WriteZeroes { .. });
        let (class, weight) = match (self.level, len) {
            (StatsLevel::Off, _) => return None,
            (StatsLevel::On, ..SHORT) if moves_data => (0, SHORT_ONE_IN),
            (StatsLevel::On, ..MEDIUM) if moves_data => (1, MEDIUM_ONE_IN),
            _ => (2, 1),
        };
        if let Some(skip) = self.shard.skip.get(class) {
            let left = skip.load(Ordering::Relaxed);
            if left > 0 {
                skip.store(left - 1, Ordering::Relaxed);
                return None;
            }
            // Evenly distributed between 0 and twice the average number of requests to skip.
            skip.store(self.draw() % (2 * weight - 1), Ordering::Relaxed);
        } else {
            self.draw();
        }
        let now = Instant::now();
        Some(Timing { weight, accepted: now, last: now, spent: [None; PHASES] })
    }

    fn draw(&self) -> u64 {
        let random = &self.shard.random;
        // Knuth's linear congruential generator; its upper bits are more random.
        let next = random.load(Ordering::Relaxed).wrapping_mul(6_364_136_223_846_793_005).wrapping_add(SEED);
        random.store(next, Ordering::Relaxed);
        next >> 32
    }

    /// Counts a completed request.
    pub(crate) fn finish(
        &self,
        operation: Operation,
        result: &Result<(), RequestError>,
        work: &Work,
        timing: Option<&Timing>,
    ) {
        if let Err(error) = result {
            self.store_errors.note(operation, error);
        }
        if self.level == StatsLevel::Off {
            return;
        }
        if result.is_ok() {
            self.count(operation, work);
        } else {
            self.add(Counter::Errors, 1);
        }
        if work.cipher_calls > 0 {
            self.add(Counter::CipherCalls, work.cipher_calls.into());
            self.add(Counter::CipherUnits, work.cipher_units.into());
        }
        let Some(timing) = timing else { return };
        for (buckets, spent) in self.shard.phases.iter().zip(timing.spent) {
            if let Some(spent) = spent {
                buckets.note(spent, timing.weight, |counter, n| self.add_to(counter, n));
            }
        }
        let total = timing.last.duration_since(timing.accepted).as_nanos() as u64;
        self.shard.total.note(total, timing.weight, |counter, n| self.add_to(counter, n));
    }

    fn count(&self, operation: Operation, work: &Work) {
        let (requests, bytes) = match operation {
            Operation::Read => (Counter::Reads, Some(Counter::BytesRead)),
            Operation::Write { .. } | Operation::WriteReissued { .. } => (Counter::Writes, Some(Counter::BytesWritten)),
            Operation::Append { .. } => (Counter::Appends, Some(Counter::BytesWritten)),
            Operation::Zones(_) => (Counter::ZoneActions, None),
            Operation::WriteZeroes { .. } => (Counter::WriteZeroes, Some(Counter::BytesWritten)),
            Operation::Flush => (Counter::Flushes, None),
            Operation::Discard { .. } | Operation::Deallocate { .. } => (Counter::Discards, None),
            Operation::Prefetch => (Counter::Prefetches, None),
        };
        self.add(requests, 1);
        if let Some(bytes) = bytes {
            self.add(bytes, work.len);
            if work.offloaded {
                self.add(Counter::Offloaded, 1);
            }
        }
    }

    fn add(&self, counter: Counter, n: u64) {
        self.add_to(&self.shard.counters[counter as usize], n);
    }

    fn add_to(&self, counter: &AtomicU64, n: u64) {
        if self.shared {
            counter.fetch_add(n, Ordering::Relaxed);
        } else {
            // The shard has one writer, so no locked instruction is needed.
            counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
        }
    }
}

/// Account of a request that one call carries out on one thread.
pub(crate) struct Account<'a> {
    recorder: Recorder<'a>,
    operation: Operation,
    work: Work,
    timing: Option<Timing>,
}

impl<'a> Account<'a> {
    /// Starts the account of a request of `len` bytes on the calling thread.
    pub(crate) fn new(stats: &'a Arc<Stats>, operation: Operation, len: u64) -> Self {
        let recorder = stats.of_this_thread();
        Self { recorder, operation, work: Work { len, ..Work::default() }, timing: recorder.accept(operation, len) }
    }

    pub(crate) fn lap(&mut self, phase: Phase) {
        if let Some(timing) = &mut self.timing {
            timing.lap(phase);
        }
    }

    /// Makes the request one of `len` bytes.
    pub(crate) fn set_len(&mut self, len: u64) {
        self.work.len = len;
    }

    /// Counts cipher calls for `bytes` in data units of `unit_len` bytes; counts none for units of one byte, which are
    /// not encrypted.
    pub(crate) fn ciphered(&mut self, calls: usize, bytes: usize, unit_len: usize) {
        if unit_len > 1 {
            self.work.cipher_calls += calls as u32;
            self.work.cipher_units += (bytes / unit_len) as u32;
            self.lap(Phase::Cipher);
        }
    }

    /// Counts the request with its result.
    pub(crate) fn end(self, result: Result<(), RequestError>) -> Result<(), RequestError> {
        self.recorder.finish(self.operation, &result, &self.work, self.timing.as_ref());
        result
    }
}

/// Odd, so that the generator has its full period.
const SEED: u64 = 1_442_695_040_888_963_407;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errno::Errno;

    const OK: Result<(), RequestError> = Ok(());

    #[test]
    fn counts_are_exact_and_times_stand_for_all() {
        let stats = Stats::new(StatsLevel::On);
        let shard = OwnShard::new(&stats);
        let n = 256_000;
        for i in 0..n {
            let recorder = shard.recorder();
            let operation = if i % 4 == 0 { Operation::Write { durable: false } } else { Operation::Read };
            let mut timing = recorder.accept(operation, 4096);
            if let Some(timing) = &mut timing {
                timing.lap(Phase::Queue);
                timing.lap(Phase::Store);
                timing.lap(Phase::Cipher);
            }
            let work = Work { len: 4096, cipher_calls: 1, cipher_units: 8, offloaded: false };
            recorder.finish(operation, &OK, &work, timing.as_ref());
        }
        shard.recorder().finish(Operation::Flush, &Err(RequestError::Io(Errno::IO)), &Work::default(), None);
        let s = stats.snapshot();
        assert_eq!((s.reads, s.writes, s.inline, s.errors, s.flushes), (192_000, 64_000, n, 1, 0));
        assert_eq!((s.bytes_read, s.bytes_written), (192_000 * 4096, 64_000 * 4096));
        assert_eq!((s.cipher_calls, s.cipher_units), (n, n * 8));
        for histogram in [&s.queue, &s.store, &s.cipher, &s.total] {
            let share = histogram.count() as f64 / n as f64;
            assert!((0.8..1.2).contains(&share), "the times stand for {share} of the requests");
        }
        let counters = |of: Snapshot| {
            let [queue, store, cipher, total] = [(); 4].map(|()| Histogram::default());
            Snapshot { queue, store, cipher, total, ..of }
        };
        let nothing = s.since(&s);
        let histograms = [&nothing.queue, &nothing.store, &nothing.cipher, &nothing.total];
        assert!(histograms.iter().all(|histogram| histogram.count() == 0));
        assert_eq!(counters(nothing), Snapshot::default());
        for _ in 0..3 {
            let work = Work { len: 4096, cipher_calls: 1, cipher_units: 8, offloaded: false };
            shard.recorder().finish(Operation::Read, &OK, &work, None);
        }
        let three = Snapshot {
            reads: 3,
            bytes_read: 3 * 4096,
            inline: 3,
            cipher_calls: 3,
            cipher_units: 24,
            ..Snapshot::default()
        };
        assert_eq!(counters(stats.snapshot().since(&s)), three);
    }

    #[test]
    fn threads_have_shards_of_their_own_and_give_them_back() {
        let stats = Stats::new(StatsLevel::Exact);
        let note = |times: u64| {
            for _ in 0..times {
                let recorder = stats.of_this_thread();
                let timing = recorder.accept(Operation::Flush, 0);
                recorder.finish(Operation::Flush, &OK, &Work::default(), timing.as_ref());
            }
        };
        for _ in 0..3 {
            // More than there are shards: the rest shares one and loses nothing.
            std::thread::scope(|scope| {
                let threads: Vec<_> = (0..100).map(|_| scope.spawn(|| note(500))).collect();
                // Joined one by one: that waits for the end of the thread, not only of its call.
                threads.into_iter().for_each(|t| t.join().unwrap());
            });
        }
        assert_eq!(stats.snapshot().flushes, 3 * 100 * 500);
        assert_eq!(stats.snapshot().total.count(), 3 * 100 * 500);
        assert!(
            stats.shards.iter().flat_map(OnceLock::get).all(|s| !s.owned.load(Ordering::Relaxed)),
            "every shard came back"
        );
    }

    #[test]
    fn shards_are_made_for_threads_that_need_one() {
        let stats = Stats::new(StatsLevel::On);
        let made = || stats.shards.iter().flat_map(OnceLock::get).count();
        assert_eq!((stats.snapshot(), made()), (Snapshot::default(), 0));
        let (first, second) = (OwnShard::new(&stats), OwnShard::new(&stats));
        assert_eq!(made(), 2);
        drop(first);
        let again = OwnShard::new(&stats);
        assert_eq!((again.index, second.index, made()), (1, 2, 2), "a shard that was given back is not used again");
        stats.reserve(2);
        assert_eq!(made(), 4);
        let worker = OwnShard::new(&stats);
        assert_eq!((worker.index, made()), (3, 5), "a worker takes no shard that is reserved");
        stats.unreserve(2);
    }

    #[test]
    fn nothing_is_kept_where_nothing_is_wanted() {
        let stats = Stats::new(StatsLevel::Off);
        let shard = OwnShard::new(&stats);
        assert!(shard.recorder().accept(Operation::Read, 1 << 20).is_none());
        shard.recorder().finish(Operation::Read, &OK, &Work::default(), None);
        assert_eq!(stats.snapshot().reads, 0);
    }
}
