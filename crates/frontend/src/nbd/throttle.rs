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
//! replies, or send no payload, keep no other waiting. See docs/decisions/0081-shares-of-volume-limits.md.

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
    /// What the client holds waits for this piece.
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
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const LONG: u64 = 32 * MIB;

    fn throttle(limits: ExportLimits, now: Instant) -> Arc<Throttle> {
        Throttle::new(&SharedLimits::new(limits, 1, now))
    }

    fn rates(operations: Option<u64>, bytes: Option<u64>) -> ExportLimits {
        ExportLimits { operations, bytes, in_flight: None }
    }

    fn in_flight(bytes: u64) -> ExportLimits {
        ExportLimits { in_flight: Some(bytes), ..ExportLimits::default() }
    }

    fn read(len: u64) -> Command {
        Command { flags: 0, kind: command::READ, cookie: 0, offset: 0, len }
    }

    /// A client of a simulated clock that makes requests of `len` bytes, one after the other.
    struct Client {
        allowance: Allowance,
        len: u64,
        /// Bytes of the current request without a piece.
        rest: u64,
        requests: u64,
        bytes: u64,
        waits_since: Instant,
        longest_wait: Duration,
    }

    impl Client {
        fn new(throttle: &Arc<Throttle>, len: u64, now: Instant) -> Self {
            let allowance = Allowance::new(throttle, now);
            let longest_wait = Duration::ZERO;
            Self { allowance, len, rest: 0, requests: 0, bytes: 0, waits_since: now, longest_wait }
        }

        /// Begins the next piece.
        fn advance(&mut self, now: Instant) -> Result<(), Blocked> {
            if self.rest == 0 {
                self.allowance.admit(&read(self.len), now)?;
                self.rest = self.len;
            }
            let max_len = self.allowance.piece(Piece::first(self.rest), now)?;
            let piece = self.rest.min(max_len).min(MIB);
            drop(self.allowance.begin_piece(piece));
            (self.rest, self.bytes) = (self.rest - piece, self.bytes + piece);
            self.longest_wait = self.longest_wait.max(now - self.waits_since);
            self.waits_since = now;
            self.requests += u64::from(self.rest == 0);
            Ok(())
        }
    }

    /// Runs clients for a time, the first ones first. Those for which `is_light` holds give back what they do not use
    /// after each request, as clients do that wait for the reply before they make another.
    fn run(clients: &mut [Client], is_light: fn(&Client) -> bool, start: Instant, time: Duration) -> Instant {
        let mut now = start;
        while now < start + time {
            let mut next = None;
            for client in &mut *clients {
                loop {
                    match client.advance(now) {
                        Ok(()) if is_light(client) => client.allowance.settle(now),
                        Ok(()) => {}
                        Err(Blocked::Until(until)) => {
                            next = Some(next.map_or(until, |next: Instant| next.min(until)));
                            break;
                        }
                        Err(blocked) => panic!("{blocked:?}"),
                    }
                }
            }
            now = next.expect("a client that waits");
        }
        now
    }

    fn none(_: &Client) -> bool {
        false
    }

    #[test]
    fn rates_hold_over_time() {
        let start = Instant::now() + Duration::from_secs(1);
        let made = |limits, len| {
            let mut client = [Client::new(&throttle(limits, start), len, start)];
            run(&mut client, none, start, Duration::from_secs(10));
            (client[0].requests, client[0].bytes)
        };
        // A quantum is begun at the end.
        let (operations, _) = made(rates(Some(1000), None), 4096);
        assert!((10_000..=10_020).contains(&operations), "{operations}");
        let (_, bytes) = made(rates(None, Some(MIB)), 4096);
        assert!((10 * MIB..=10 * MIB + MIB / 4).contains(&bytes), "{bytes}");
        let (_, bytes) = made(rates(Some(1000), Some(MIB)), LONG);
        assert!((10 * MIB..=10 * MIB + MIB / 4).contains(&bytes), "{bytes}");
        let (operations, _) = made(rates(Some(3), Some(1 << 40)), 1);
        assert!((30..=31).contains(&operations), "{operations}");
    }

    /// The greedy ones come first whenever several may begin.
    #[test]
    fn greedy_clients_delay_another_by_a_quantum_each() {
        let start = Instant::now() + Duration::from_secs(1);
        for greedy in [1, 8] {
            for (limits, len) in [
                (rates(None, Some(20_000_000)), LONG),
                (rates(None, Some(20_000_000)), 4096),
                (rates(Some(1000), None), 4096),
                (rates(Some(1000), Some(20_000_000)), LONG),
            ] {
                let throttle = throttle(limits, start);
                let mut clients: Vec<_> = (0..greedy).map(|_| Client::new(&throttle, len, start)).collect();
                clients.push(Client::new(&throttle, 512, start));
                run(&mut clients, |client| client.len == 512, start, Duration::from_secs(60));
                let Client { longest_wait, requests, .. } = clients[greedy as usize];
                let bound = Duration::from_millis(25) * (greedy + 1);
                assert!(longest_wait <= bound, "{longest_wait:?} behind {greedy} clients at {limits:?}");
                assert!(requests > 200, "{requests} behind {greedy} clients at {limits:?}");
            }
        }
    }

    #[test]
    fn clients_of_all_workers_get_equal_parts_of_a_rate() {
        let start = Instant::now() + Duration::from_secs(1);
        for limits in [rates(None, Some(20_000_000)), rates(None, Some(1_000_000)), rates(Some(400), None)] {
            let shared = SharedLimits::new(limits, 2, start);
            let workers = [0; 2].map(|_| Throttle::new(&shared));
            let mut clients: Vec<_> = [(0, LONG), (0, 4096), (1, 4096), (1, MIB), (1, 100_000)]
                .map(|(worker, len)| Client::new(&workers[worker], len, start))
                .into();
            let end = run(&mut clients, none, start, Duration::from_secs(100));
            let amount = |client: &Client| match limits.bytes {
                Some(_) => client.bytes as f64,
                // A long request has begun before its last piece.
                None => (client.requests + u64::from(client.rest > 0)) as f64,
            };
            let rate = limits.bytes.or(limits.operations).unwrap() as f64;
            let part = rate * (end - start).as_secs_f64() / 5.0;
            for client in &clients {
                let got = amount(client) / part;
                assert!((0.97..1.03).contains(&got), "{got} of a fair part by {} bytes, {limits:?}", client.len);
            }
        }
    }

    #[test]
    fn debt_of_a_client_that_leaves_is_paid_and_its_credit_given_back() {
        let now = Instant::now() + Duration::from_secs(1);
        let throttle = throttle(rates(None, Some(MIB)), now);
        let mut first = Client::new(&throttle, MIB, now);
        // All of it in one piece, as a read in one chunk.
        let piece = Piece { is_whole: true, ..Piece::first(MIB) };
        assert_eq!(first.allowance.piece(piece, now), Ok(MIB));
        drop(first.allowance.begin_piece(MIB));
        drop(first);
        let begins = |client: &mut Client| match client.advance(now) {
            Err(Blocked::Until(at)) => (at - now).as_millis(),
            other => panic!("{other:?}"),
        };
        let mut second = Client::new(&throttle, 4096, now);
        assert_eq!(begins(&mut second), 1000);
        let mut third = Client::new(&throttle, 4096, now);
        assert_eq!(begins(&mut third), 1062, "behind a quantum of the second");
        drop((second, third));
        assert_eq!(begins(&mut Client::new(&throttle, 4096, now)), 1000);
    }

    #[test]
    fn new_limits_apply_at_once() {
        let now = Instant::now();
        let limits = ExportLimits { operations: None, bytes: Some(1), in_flight: Some(2) };
        let throttle = throttle(limits, now);
        let mut client = Client::new(&throttle, SHORT_PIECE, now);
        assert_eq!(client.advance(now), Ok(()));
        assert!(matches!(client.advance(now), Err(Blocked::Until(_))));
        throttle.shared.set(limits, now);
        assert_eq!(client.advance(now), Ok(()), "the debt is not forgiven");
        let charge = client.allowance.begin_piece(4096);
        assert_eq!(client.advance(now), Err(Blocked::Own));
        throttle.shared.set(ExportLimits::default(), now);
        assert_eq!(client.advance(now), Ok(()), "an export without limits waits");
        throttle.shared.set(in_flight(8192), now);
        assert_eq!(client.advance(now), Err(Blocked::Own));
        drop(charge);
        assert_eq!(client.advance(now), Ok(()));
    }

    /// Begins pieces of `len` until the client may no more.
    fn fill(client: &mut Allowance, len: u64, now: Instant) -> (Vec<Charge>, Blocked) {
        let mut charges = Vec::new();
        loop {
            match client.piece(Piece::first(len), now) {
                Ok(max_len) => charges.push(client.begin_piece(len.min(max_len))),
                Err(blocked) => return (charges, blocked),
            }
        }
    }

    #[test]
    fn one_client_holds_half_and_another_can_begin_at_any_time() {
        let now = Instant::now();
        for (limit, len) in [(8 * MIB, MIB), (8 * MIB, 4096), (9 * MIB + 4096, MIB), (4096, 1024), (1, MIB)] {
            let throttle = throttle(in_flight(limit), now);
            let [mut first, mut second, mut third] = [(); 3].map(|()| Allowance::new(&throttle, now));
            let (of_first, blocked) = fill(&mut first, len, now);
            let held = throttle.stats(now).in_flight;
            assert_eq!(blocked, Blocked::Own);
            assert!(held <= (limit / 2).max(len.min(SHORT_PIECE)), "{held} of {limit}");
            assert!(held + SHORT_PIECE.min(len) > limit / 2, "{held} of {limit}");
            assert_eq!(first.kept_waiting_since(now), None, "others are not to blame");
            let (of_second, _) = fill(&mut second, len, now);
            let both = throttle.stats(now).in_flight;
            assert_eq!(both, 2 * held);
            // A short piece at a time, however little is left.
            let (mut of_third, blocked) = fill(&mut third, len, now);
            assert_eq!(of_third.len(), 1, "{limit}, {len}");
            assert!(throttle.stats(now).in_flight - both <= SHORT_PIECE.min(len));
            assert!(limit < 4096 || blocked == Blocked::Others, "{blocked:?}");
            assert!(limit < 4096 || third.kept_waiting_since(now) == Some(now));
            for _ in 0..100 {
                of_third.clear();
                of_third = fill(&mut third, len, now).0;
                assert_eq!(of_third.len(), 1);
            }
            drop((of_first, of_second, of_third));
            assert_eq!(throttle.stats(now).in_flight, 0);
        }
    }

    #[test]
    fn piece_that_all_wait_for_begins_at_any_limit() {
        let now = Instant::now();
        let throttle = throttle(in_flight(MIB), now);
        let mut client = Allowance::new(&throttle, now);
        let _held = fill(&mut client, MIB, now).0;
        let piece = Piece { is_awaited: true, ..Piece::first(MIB) };
        assert_eq!(client.piece(piece, now), Ok(SHORT_PIECE));
    }

    #[test]
    fn client_that_others_keep_waiting_is_known_by_how_long_they_do() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let throttle = throttle(in_flight(2 * MIB), start);
        let [mut first, mut second, mut third] = [(); 3].map(|()| Allowance::new(&throttle, start));
        let (held, _) = fill(&mut first, MIB, start);
        let (_others, _) = fill(&mut second, MIB, start);
        // It makes progress all the time, a short piece at a time.
        for millis in (0..5000).step_by(900) {
            let _short = fill(&mut third, MIB, at(millis)).0;
            assert_eq!(third.kept_waiting_since(at(millis)), Some(start));
        }
        assert_eq!(third.kept_waiting_since(at(6000)), None, "it has tried nothing for long");
        drop(held);
        let _long = fill(&mut third, MIB, at(4600)).0;
        assert_eq!(third.kept_waiting_since(at(4600)), None);
    }

    #[test]
    fn workers_share_the_bytes_in_flight_out() {
        let now = Instant::now();
        let shared = SharedLimits::new(in_flight(4 * MIB), 2, now);
        let [one, other] = [0, 1].map(|_| Throttle::new(&shared));
        let mut clients = [&one, &one, &other].map(|worker| Allowance::new(worker, now));
        let charges = clients.each_mut().map(|client| fill(client, MIB, now).0);
        assert_eq!([one, other].map(|worker| worker.stats(now).in_flight), [2 * MIB, MIB]);
        drop(charges);
    }

    #[test]
    fn flush_needs_no_bytes() {
        let now = Instant::now();
        let throttle = throttle(ExportLimits { bytes: Some(1), ..in_flight(2) }, now);
        let mut client = Client::new(&throttle, 4096, now);
        assert_eq!(client.advance(now), Ok(()));
        let _charge = client.allowance.begin_piece(4096);
        assert!(client.advance(now).is_err());
        let flush = Command { kind: command::FLUSH, ..read(0) };
        assert_eq!(client.allowance.admit(&flush, now), Ok(()));
    }

    #[test]
    fn time_at_limits_is_counted_while_a_client_waits() {
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        let throttle = throttle(ExportLimits::default(), start);
        throttle.note_waiting(false, at(1));
        assert_eq!(throttle.stats(at(2)).throttled, Duration::ZERO, "nothing has waited");
        throttle.note_waiting(true, at(3));
        throttle.note_waiting(true, at(4));
        assert_eq!(throttle.stats(at(5)).throttled, Duration::from_secs(2));
        throttle.note_waiting(false, at(5));
        assert_eq!(throttle.stats(at(60)).throttled, Duration::from_secs(2));
        throttle.note_waiting(true, at(70));
        assert_eq!(throttle.stats(at(71)).throttled, Duration::from_secs(3));
    }
}
