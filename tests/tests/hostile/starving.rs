//! Ten hostile clients on the worker of a well-behaved one, which reads and writes 4 KiB at a time and must not starve.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use inlock_tests::nbd::command::{BLOCK_STATUS, CACHE, FLUSH, READ, TRIM, WRITE, WRITE_ZEROES};
use inlock_tests::nbd::{Connection, Mode, flag, go_data, meta_data, option, option_bytes, request_bytes};
use inlock_tests::random::Random;
use inlock_tests::report::count;

use super::{GOOD_AREA, Kind, Served, serve};

/// Number of hostile clients.
const HOSTILE: usize = 10;
/// Maximum latency of a reply on a machine that others use as well. On an idle one it is below 100 ms, as printed.
const BOUND: Duration = Duration::from_secs(4);
/// Duration of each behaviour, once it has started.
const MEASURED: Duration = Duration::from_millis(900);
/// Offset at which hostile clients read and write.
const AREA: u64 = 56 << 20;
const MIB: u64 = 1 << 20;

/// Runs a behaviour until it is stopped. Returns an error when the server disconnects it.
type Behaviour = fn(&Hostile) -> Result<()>;

const BEHAVIOURS: &[(&str, Behaviour)] = &[
    ("short replies never read", |h| h.flood_unread(Mode::Structured, READ, 4096, Duration::MAX)),
    ("replies of 64 KiB never read", |h| h.flood_unread(Mode::Simple, READ, 64 << 10, Duration::MAX)),
    ("replies of 1 MiB never read", |h| h.flood_unread(Mode::Structured, READ, MIB, Duration::MAX)),
    ("replies of 32 MiB never read", |h| h.flood_unread(Mode::Structured, READ, 32 * MIB, Duration::MAX)),
    ("replies in one chunk never read", |h| h.flood_unread(Mode::Extended, READ, MIB, Duration::MAX)),
    ("replies never read, and a byte every so often", |h| {
        h.flood_unread(Mode::Structured, READ, 64 << 10, Duration::from_millis(50))
    }),
    ("replies read a byte at a time", Hostile::sip),
    ("a write of 32 MiB that stops", |h| h.stalled_write(Duration::MAX)),
    ("a write of 32 MiB, a byte every so often", |h| h.stalled_write(Duration::from_millis(50))),
    ("unread replies behind a write that stops", Hostile::unread_and_stalled),
    ("half of a handshake, many times", Hostile::half_handshakes),
    ("256 reads of 1 MiB at a time", |h| h.flood(READ, 0, MIB, 256)),
    ("256 reads of 4 KiB at a time", |h| h.flood(READ, 0, 4096, 256)),
    ("256 long zeroes at a time", |h| h.flood(WRITE_ZEROES, 0, 32 * MIB, 256)),
    ("256 durable short zeroes at a time", |h| h.flood(WRITE_ZEROES, flag::FUA, 5000, 256)),
    ("256 long prefetches at a time", |h| h.flood(CACHE, 0, AREA, 256)),
    ("256 trims at a time", |h| h.flood(TRIM, 0, AREA, 256)),
    ("256 flushes at a time", |h| h.flood(FLUSH, 0, 0, 256)),
    ("256 questions for extents at a time", |h| h.flood(BLOCK_STATUS, 0, AREA, 256)),
    ("long reads, and disconnecting", Hostile::disconnect),
];

/// A hostile client.
struct Hostile {
    socket: PathBuf,
    number: usize,
    begun: AtomicUsize,
    stop: AtomicBool,
}

impl Hostile {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Enters transmission with block status if the mode has it, and with a short timeout.
    fn open(&self, mode: Mode) -> Result<Connection> {
        let mut connection = Connection::haggle(&self.socket, BOUND)?;
        connection.negotiate(mode)?;
        if mode != Mode::Simple {
            connection.send(&option_bytes(option::SET_META_CONTEXT, &meta_data(b"", &[b"base:allocation"])))?;
            connection.option_replies()?;
        }
        connection.send(&option_bytes(option::GO, &go_data(b"", &[])))?;
        connection.option_replies()?;
        connection.set_patience(Duration::from_millis(50))?;
        Ok(connection)
    }

    /// Reports that the behaviour is in effect.
    fn begin(&self) {
        self.begun.store(1, Ordering::Relaxed);
    }

    fn rest(&self) {
        self.begin();
        while !self.is_stopped() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Floods the server with requests and receives no reply, then sends one byte of the next request every `every`.
    fn flood_unread(&self, mode: Mode, kind: u16, len: u64, every: Duration) -> Result<()> {
        let mut connection = self.open(mode)?;
        let flags = if mode == Mode::Extended { flag::DF } else { 0 };
        let request = |n: u64| request_bytes(mode, flags, kind, n, (n * len) % (AREA - len + 1), len);
        let requests: Vec<u8> = (0..if every == Duration::MAX { 2000 } else { 60 }).flat_map(request).collect();
        let _ = connection.send(&requests);
        if every == Duration::MAX {
            self.rest();
            return Ok(());
        }
        self.begin();
        for byte in (0..).flat_map(request).take_while(|_| !self.is_stopped()) {
            let _ = connection.send(&[byte]);
            std::thread::sleep(every);
        }
        Ok(())
    }

    fn sip(&self) -> Result<()> {
        let mut connection = self.open(Mode::Simple)?;
        let requests = (0..300).flat_map(|n| request_bytes(Mode::Simple, 0, READ, n, (n % 50) * MIB, 128 << 10));
        let _ = connection.send(&requests.collect::<Vec<u8>>());
        self.begin();
        while !self.is_stopped() {
            connection.receive(1)?;
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn stalled_write(&self, every: Duration) -> Result<()> {
        let mut connection = self.open(Mode::Structured)?;
        connection.request(0, WRITE, 0, 32 * MIB)?;
        connection.send(&vec![1; 100_000])?;
        if every == Duration::MAX {
            self.rest();
        }
        self.begin();
        while !self.is_stopped() {
            connection.send(&[1])?;
            std::thread::sleep(every);
        }
        Ok(())
    }

    fn unread_and_stalled(&self) -> Result<()> {
        let mut connection = self.open(Mode::Structured)?;
        let reads = (0..20).flat_map(|n| request_bytes(Mode::Structured, 0, READ, n, n * MIB, MIB));
        connection.send(&reads.collect::<Vec<u8>>())?;
        let _ = connection.request(0, WRITE, 0, 32 * MIB);
        let _ = connection.send(&vec![1; 100_000]);
        self.rest();
        Ok(())
    }

    fn half_handshakes(&self) -> Result<()> {
        let mut held = Vec::new();
        while !self.is_stopped() {
            let mut connection = Connection::haggle(&self.socket, BOUND)?;
            connection.send(&option_bytes(option::GO, &go_data(b"", &[]))[..11])?;
            held.push(connection);
            if held.len() > 40 {
                self.begin();
                held.drain(..30);
            }
        }
        Ok(())
    }

    /// Sends as many requests as a client may have in flight, and receives every reply immediately.
    fn flood(&self, kind: u16, flags: u16, len: u64, depth: u64) -> Result<()> {
        let mut connection = self.open(Mode::Structured)?;
        let mut replies = connection.split()?;
        replies.set_patience(Duration::from_millis(50))?;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut seen = false;
                while !self.is_stopped() {
                    match replies.discard() {
                        Ok(0) => return,
                        Ok(_) => seen = true,
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                        Err(_) => return,
                    }
                    if seen {
                        self.begin();
                    }
                }
            });
            let mut n = 0;
            while !self.is_stopped() {
                let place = |n: u64| ((n * len).checked_rem(AREA + 1 - len).unwrap_or(0), len);
                let requests = (n..n + depth)
                    .flat_map(|n| request_bytes(Mode::Structured, flags, kind, n, place(n).0, place(n).1));
                connection.send_until(&requests.collect::<Vec<u8>>(), || self.is_stopped())?;
                n += depth;
            }
            Ok(())
        })
    }

    fn disconnect(&self) -> Result<()> {
        while !self.is_stopped() {
            let mut connection = self.open(Mode::Structured)?;
            let reads = (0..256).flat_map(|n| request_bytes(Mode::Structured, 0, READ, n, 0, 32 * MIB));
            let _ = connection.send(&reads.collect::<Vec<u8>>());
            self.begin();
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

/// Returns the latency of each reply to the well-behaved client.
fn good_answers(socket: &Path, over: &AtomicBool) -> Result<Vec<Duration>> {
    let mut client = Connection::open(socket, BOUND, Mode::Structured)?;
    let mut random = Random::new(3);
    let mut model = vec![0u8; 64 << 10];
    client.write(GOOD_AREA, &model)?;
    let mut times = Vec::new();
    for n in 0.. {
        // Each answer is one within the bound, also where few are made.
        if over.load(Ordering::Relaxed) && times.len() >= 4 {
            break;
        }
        // Mostly whole data units, sometimes parts of two.
        let shift = if n % 4 == 3 { 1 + random.below(4000) as usize } else { 0 };
        let at = 4096 * random.below(14) as usize + shift;
        let data = random.bytes(4096);
        let begun = Instant::now();
        client.write(GOOD_AREA + at as u64, &data).with_context(|| format!("write {n}"))?;
        times.push(begun.elapsed());
        model[at..at + 4096].copy_from_slice(&data);
        let at = 4096 * random.below(14) as usize + shift;
        let begun = Instant::now();
        let read = client.read(GOOD_AREA + at as u64, 4096).with_context(|| format!("read {n}"))?;
        times.push(begun.elapsed());
        ensure!(read == model[at..at + 4096], "read {n} is not what was written");
    }
    client.disconnect()?;
    Ok(times)
}

/// Runs the well-behaved client while ten hostile ones are active; `behaviour` returns that of each.
fn with_hostile_clients(served: &Served, behaviour: impl Fn(usize) -> Behaviour) -> Result<Vec<Duration>> {
    let socket = served.server.socket();
    let hostile: Vec<Hostile> = (0..HOSTILE)
        .map(|number| Hostile {
            socket: socket.to_owned(),
            number,
            begun: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
        })
        .collect();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for hostile in &hostile {
            let run = behaviour(hostile.number);
            // An error means that the server has disconnected the hostile client.
            scope.spawn(move || {
                let ended = run(hostile);
                hostile.begin();
                ended
            });
        }
        let good = scope.spawn(|| good_answers(socket, &over));
        let waited = Instant::now();
        while hostile.iter().any(|h| h.begun.load(Ordering::Relaxed) == 0) && waited.elapsed() < BOUND {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(MEASURED);
        over.store(true, Ordering::Relaxed);
        let good = good.join().map_err(|_| anyhow::anyhow!("the good client panicked"));
        hostile.iter().for_each(|h| h.stop.store(true, Ordering::Relaxed));
        good?
    })
}

/// Prints percentiles of the latencies in milliseconds, and checks that all are below the bound.
fn judge(name: &str, kind: Kind, io: &str, mut times: Vec<Duration>) -> Result<()> {
    ensure!(times.len() >= 4, "{name}, {kind:?}, {io}: only {} answers", times.len());
    times.sort();
    let ms = |part: usize| times[(times.len() - 1) * part / 1000].as_secs_f64() * 1e3;
    let [half, most, all] = [500, 990, 1000].map(ms);
    let late = times.iter().filter(|time| time.as_millis() >= 100).count();
    println!(
        "{kind:?} --io {io:5} {name:50} {:6} answers, ms: half {half:7.3}, 99 % {most:7.3}, all {all:8.3}; 100 or more: {late}",
        times.len()
    );
    ensure!(all < BOUND.as_secs_f64() * 1e3, "{name}, {kind:?}, {io}: an answer took {all} ms");
    Ok(())
}

/// Has hostile clients of each behaviour, and of several at once, on one worker.
fn try_behaviours(kind: Kind, io: &str) -> Result<()> {
    let mut failures = Vec::new();
    let serve = || serve(kind, &[("threads", "1"), ("io", io), ("allow-discards", "")]);
    let mut served = serve()?;
    let mut attempt = |name: &str, behaviour: &dyn Fn(usize) -> Behaviour| -> Result<()> {
        let outcome = with_hostile_clients(&served, behaviour).and_then(|times| judge(name, kind, io, times));
        if let Err(error) = outcome {
            failures.push(format!("{name}, {kind:?}, --io {io}: {error:#}"));
            // A new server, so that the next behaviour starts clean.
            served = serve()?;
        }
        ensure!(served.server.ended()?.is_none(), "the server has ended: {}", served.server.log_text());
        Ok(())
    };
    for (name, behaviour) in BEHAVIOURS {
        attempt(name, &|_| *behaviour)?;
    }
    for first in [0, HOSTILE] {
        attempt("one of each", &|number| BEHAVIOURS[(first + number) % BEHAVIOURS.len()].1)?;
    }
    ensure!(served.server.terminate()?.success(), "the end: {}", served.server.log_text());
    count("hostile_behaviours", BEHAVIOURS.len() as u64);
    ensure!(failures.is_empty(), "{} behaviours:\n{}", failures.len(), failures.join("\n"));
    Ok(())
}

#[test]
fn ten_hostile_clients_delay_no_other_client() -> Result<()> {
    ["uring", "sync"].into_iter().try_for_each(|io| try_behaviours(Kind::One, io))
}

/// Each limit is one that ten hostile clients reach.
#[test]
fn ten_hostile_clients_of_limited_volume_delay_no_other() -> Result<()> {
    ["uring", "sync"].into_iter().try_for_each(|io| try_behaviours(Kind::Many(2000), io))
}
