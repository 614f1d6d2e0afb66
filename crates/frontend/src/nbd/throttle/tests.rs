//! Limits with a simulated clock.

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
