//! Limits of an export: operations and bytes a second, and bytes of requests in flight, shared by its clients.
//!
//! **Rates.** A client that has something to begin reserves a quantum of each rate, a hundredth of a second or a little
//! more, at the end of the line of reservations. It begins requests and pieces while it has credit, when its turn has
//! come. One that begins more than its credit owes the rest, which its next reservation pays. This is a deficit round
//! robin of all clients of all workers, and over time the rates hold exactly. A client with nothing to begin gives back
//! what it has not used.
//!
//! **Bytes in flight** are charged when a piece of a request gets its buffer, until the buffer returns. A client holds
//! at most half of the limit, and one that holds nothing may always begin a short piece. So clients that take no
//! replies, or send no payload, keep no other waiting. See docs/decisions/many-volumes.md.

use super::protocol::command;
use super::transmission::Command;
use inlock_engine::BufferPool;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Limits of an export. The default has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExportLimits {
    /// Requests a second, refused ones too.
    pub operations: Option<u64>,
    /// Bytes read and written a second; zeroes too, unless they become holes.
    pub bytes: Option<u64>,
    /// Bytes of requests in buffers. Workers share it out among them.
    pub in_flight: Option<u64>,
}

/// Effect of the limits of an export so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ThrottleStats {
    /// Bytes of requests in flight.
    pub in_flight: u64,
    /// Time for which some client had something to begin that waited for the limits. Workers add up.
    pub throttled: Duration,
}

/// Time whose share of a rate an idle export saves up.
const BURST: Duration = Duration::from_millis(100);
/// Part of a second whose share of a rate a client reserves at a time.
const QUANTA_A_SECOND: u64 = 100;
/// Length of a piece that may begin at any limit of bytes in flight, and minimum number of bytes to reserve. Shorter
/// pieces of a long request would cost more than they move.
const SHORT_PIECE: u64 = 64 << 10;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The limits of an export, which its workers share.
#[derive(Debug)]
pub(super) struct SharedLimits {
    rates: Mutex<Rates>,
    /// Number of workers.
    workers: u64,
}

/// Numbers of the rates in arrays.
const OPERATIONS: usize = 0;
const BYTES: usize = 1;

#[derive(Debug)]
struct Rates {
    limits: ExportLimits,
    /// When the next reservation of operations, and of bytes, begins.
    next: [Instant; 2],
    /// Number of changes. Reservations of earlier limits do not count.
    generation: u64,
}

impl Rates {
    fn rate(&self, number: usize) -> Option<u64> {
        [self.limits.operations, self.limits.bytes][number].map(|rate| rate.max(1))
    }

    /// Returns what a client reserves at a time.
    fn quantum(&self, number: usize) -> i64 {
        let part = self.rate(number).unwrap_or(u64::MAX) / QUANTA_A_SECOND;
        let quantum = match number {
            OPERATIONS => part.max(1),
            // Whole pieces use it up.
            _ => (part - part % SHORT_PIECE).clamp(SHORT_PIECE, BufferPool::LARGEST_PIECE as u64),
        };
        quantum.min(1 << 32) as i64
    }

    /// Returns the time that a rate needs for an amount.
    fn cost(&self, number: usize, amount: u64) -> Duration {
        let nanos = self.rate(number).map_or(0, |rate| u128::from(amount) * 1_000_000_000 / u128::from(rate));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Adds a reservation to the line, and returns when it begins.
    fn reserve(&mut self, number: usize, amount: u64, now: Instant) -> Instant {
        let begin = now.checked_sub(BURST).map_or(self.next[number], |earliest| earliest.max(self.next[number]));
        // A debt of centuries needs no more.
        self.next[number] = begin.checked_add(self.cost(number, amount)).unwrap_or(begin);
        begin
    }

    /// Gives back what was reserved and not used, or charges what was used beyond it.
    fn settle(&mut self, number: usize, credit: i64, now: Instant) {
        if credit < 0 {
            self.reserve(number, credit.unsigned_abs(), now);
        } else {
            let unused = self.cost(number, credit.unsigned_abs());
            self.next[number] = self.next[number].checked_sub(unused).unwrap_or(self.next[number]);
        }
    }
}

impl SharedLimits {
    pub(super) fn new(limits: ExportLimits, workers: usize, now: Instant) -> Arc<Self> {
        let rates = Mutex::new(Rates { limits, next: [now; 2], generation: 0 });
        Arc::new(Self { rates, workers: workers.max(1) as u64 })
    }

    /// Replaces the limits. Debts are forgiven, and clients reserve again.
    pub(super) fn set(&self, limits: ExportLimits, now: Instant) {
        let mut rates = lock(&self.rates);
        *rates = Rates { limits, next: [now; 2], generation: rates.generation + 1 };
    }

    /// Returns the limit of bytes in flight of one worker.
    fn in_flight(&self, rates: &Rates) -> u64 {
        rates.limits.in_flight.map_or(u64::MAX, |limit| (limit / self.workers).max(1))
    }
}

/// The limits of an export, and what one of its workers has in flight.
#[derive(Debug)]
pub(super) struct Throttle {
    shared: Arc<SharedLimits>,
    in_flight: AtomicU64,
    waits: Mutex<Waits>,
}

#[derive(Debug, Default)]
struct Waits {
    /// Since when some client waits for a limit.
    since: Option<Instant>,
    throttled: Duration,
}

impl Throttle {
    pub(super) fn new(shared: &Arc<SharedLimits>) -> Arc<Self> {
        Arc::new(Self { shared: Arc::clone(shared), in_flight: AtomicU64::new(0), waits: Mutex::default() })
    }

    /// Takes note whether some client waits for a limit.
    pub(super) fn note_waiting(&self, is_waiting: bool, now: Instant) {
        let mut waits = lock(&self.waits);
        if is_waiting {
            waits.since.get_or_insert(now);
        } else if let Some(since) = waits.since.take() {
            waits.throttled += now.saturating_duration_since(since);
        }
    }

    pub(super) fn stats(&self, now: Instant) -> ThrottleStats {
        let waits = lock(&self.waits);
        let waiting = waits.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        ThrottleStats { in_flight: self.in_flight.load(Ordering::Relaxed), throttled: waits.throttled + waiting }
    }
}

/// A reason why a client may begin nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blocked {
    /// Its turn at a rate comes then.
    Until(Instant),
    /// It holds its part of the bytes in flight.
    Own,
    /// Other clients hold bytes in flight, or wait in front of it.
    Others,
}

/// One client's part in the limits of an export.
#[derive(Debug)]
pub(super) struct Allowance {
    throttle: Arc<Throttle>,
    /// Its bytes in flight.
    held: Arc<AtomicU64>,
    /// The limits for which it has reserved.
    generation: u64,
    /// Which rates are limited.
    is_limited: [bool; 2],
    /// Reserved operations and bytes that it has not used. Negative: it has used more than it reserved.
    credit: [i64; 2],
    /// When its last reservation begins.
    begin: Instant,
    /// First and last time that others kept it from beginning what it has.
    kept_waiting: Option<(Instant, Instant)>,
}

/// Time after the last failed attempt for which a client still counts as waiting for others.
const WAITING_FOR: Duration = Duration::from_secs(1);

/// A piece of a request that is to begin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// Bytes that are left of the request.
    pub(super) len: u64,
    /// It cannot be shorter than the rest of the request.
    pub(super) is_whole: bool,
    /// Whether all that the client holds waits for this piece.
    pub(super) is_awaited: bool,
}

impl Piece {
    /// The first piece of a request of `len` bytes.
    pub(super) fn first(len: u64) -> Self {
        Self { len, is_whole: false, is_awaited: false }
    }

    /// Length below which the piece does not begin.
    fn least(self) -> u64 {
        if self.is_whole { self.len } else { self.len.min(SHORT_PIECE) }
    }
}

impl Allowance {
    pub(super) fn new(throttle: &Arc<Throttle>, now: Instant) -> Self {
        Self {
            throttle: Arc::clone(throttle),
            held: Arc::default(),
            generation: 0,
            is_limited: [false; 2],
            credit: [0; 2],
            begin: now,
            kept_waiting: None,
        }
    }

    /// Charges a request that begins, unless it may not.
    pub(super) fn admit(&mut self, command: &Command, now: Instant) -> Result<(), Blocked> {
        // A discard changes what the store knows of the bytes, and moves none.
        let moves = matches!(command.kind, command::READ | command::WRITE | command::WRITE_ZEROES);
        let admitted = self.may_begin(if moves { command.len } else { 0 }, now);
        if admitted.is_ok() {
            self.charge(OPERATIONS, 1);
        }
        admitted
    }

    /// Returns why a request that moves `len` bytes may not begin, if it may not.
    fn may_begin(&mut self, len: u64, now: Instant) -> Result<(), Blocked> {
        let shared = Arc::clone(&self.throttle.shared);
        let rates = &mut *lock(&shared.rates);
        if len == 0 {
            return self.take_turn(rates, &[OPERATIONS], now);
        }
        self.room(shared.in_flight(rates), Piece::first(len), now)?;
        self.take_turn(rates, &[OPERATIONS, BYTES], now)
    }

    /// Returns the maximum length of a piece, or why none may begin.
    pub(super) fn piece(&mut self, piece: Piece, now: Instant) -> Result<u64, Blocked> {
        let shared = Arc::clone(&self.throttle.shared);
        let rates = &mut *lock(&shared.rates);
        let room = self.room(shared.in_flight(rates), piece, now)?;
        self.take_turn(rates, &[BYTES], now)?;
        let credit = if self.is_limited[BYTES] { self.credit[BYTES].unsigned_abs() } else { u64::MAX };
        Ok(room.min(credit).max(piece.least()))
    }

    /// Charges a piece of `len` bytes that begins.
    pub(super) fn begin_piece(&mut self, len: u64) -> Charge {
        self.charge(BYTES, len);
        self.throttle.in_flight.fetch_add(len, Ordering::Relaxed);
        self.held.fetch_add(len, Ordering::Relaxed);
        Charge { throttle: Arc::clone(&self.throttle), held: Arc::clone(&self.held), len }
    }

    fn charge(&mut self, number: usize, amount: u64) {
        if self.is_limited[number] {
            self.credit[number] = self.credit[number].saturating_sub_unsigned(amount);
        }
    }

    /// Returns how many bytes in flight a piece may add.
    fn room(&mut self, limit: u64, piece: Piece, now: Instant) -> Result<u64, Blocked> {
        let held = self.held.load(Ordering::Relaxed);
        let (least, may_exceed) = (piece.least(), held == 0 || piece.is_awaited);
        let of_client = (limit / 2).max(1).saturating_sub(held);
        if of_client < least && !may_exceed {
            // Its own replies or payloads have to go first.
            self.kept_waiting = None;
            return Err(Blocked::Own);
        }
        let of_all = limit.saturating_sub(self.throttle.in_flight.load(Ordering::Relaxed));
        if of_all >= least {
            self.kept_waiting = None;
        } else {
            let since = self.kept_waiting_since(now).unwrap_or(now);
            self.kept_waiting = Some((since, now));
            if !may_exceed {
                return Err(Blocked::Others);
            }
        }
        Ok(of_client.min(of_all))
    }

    /// Reserves what the client has used up of these rates, and returns when its turn comes unless it has.
    fn take_turn(&mut self, rates: &mut Rates, numbers: &[usize], now: Instant) -> Result<(), Blocked> {
        if self.generation != rates.generation {
            (self.generation, self.credit, self.begin) = (rates.generation, [0; 2], now);
        }
        numbers.iter().for_each(|&number| self.is_limited[number] = rates.rate(number).is_some());
        // One that owes more than a quantum waits for several turns.
        while self.begin <= now {
            let mut has_turn = true;
            for &number in numbers {
                if self.is_limited[number] && self.credit[number] <= 0 {
                    let quantum = rates.quantum(number);
                    self.begin = self.begin.max(rates.reserve(number, quantum.unsigned_abs(), now));
                    self.credit[number] = self.credit[number].saturating_add(quantum);
                    has_turn = false;
                }
            }
            if has_turn {
                return Ok(());
            }
        }
        Err(Blocked::Until(self.begin))
    }

    /// Returns it with bytes that are reserved, and whose turn has come.
    #[cfg(test)]
    pub(super) fn with_credit(mut self, bytes: i64) -> Self {
        (self.credit[BYTES], self.is_limited[BYTES]) = (bytes, true);
        self
    }

    /// Returns the number of reserved bytes that are not used.
    #[cfg(test)]
    pub(super) fn credit(&self) -> i64 {
        self.credit[BYTES]
    }

    /// Gives back what is reserved and not used: the client has nothing to begin.
    pub(super) fn settle(&mut self, now: Instant) {
        if self.credit == [0; 2] {
            return;
        }
        let credit = std::mem::take(&mut self.credit);
        let mut rates = lock(&self.throttle.shared.rates);
        if self.generation == rates.generation {
            (OPERATIONS..=BYTES).for_each(|number| rates.settle(number, credit[number], now));
        }
    }

    /// The client cannot begin more before it takes replies.
    pub(super) fn wait_for_client(&mut self) {
        self.kept_waiting = None;
    }

    /// Returns the time since which bytes in flight of others have kept the client waiting, if that still lasts.
    pub(super) fn kept_waiting_since(&self, now: Instant) -> Option<Instant> {
        self.kept_waiting
            .filter(|(_, last)| now.saturating_duration_since(*last) <= WAITING_FOR)
            .map(|(since, _)| since)
    }
}

impl Drop for Allowance {
    fn drop(&mut self) {
        self.settle(Instant::now());
    }
}

/// Bytes in flight, until it is dropped.
#[derive(Debug)]
pub(super) struct Charge {
    throttle: Arc<Throttle>,
    held: Arc<AtomicU64>,
    len: u64,
}

impl Charge {
    /// Adds the bytes of another piece of the same client.
    pub(super) fn add(&mut self, mut other: Self) {
        self.len += std::mem::take(&mut other.len);
    }

    /// Takes the bytes of a piece that has ended out of it.
    pub(super) fn release(&mut self, len: u64) {
        let len = len.min(self.len);
        self.len -= len;
        self.throttle.in_flight.fetch_sub(len, Ordering::Relaxed);
        self.held.fetch_sub(len, Ordering::Relaxed);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.release(self.len);
    }
}

#[cfg(test)]
mod tests;
