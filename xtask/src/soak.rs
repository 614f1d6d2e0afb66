//! `cargo xtask soak`: many connections, mixed sizes, for minutes; no request may fail or stall, and memory must not
//! grow.
//!
//! Each connection has its own range of an encrypted volume and its own generator. Every read is compared with the last
//! write. A reply after more than a second, or `--stall-seconds`, is a stall. Resident memory is compared between the
//! end of a warm-up, in which every connection uses every size, and the end.

use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use inlock_tests::image::{inlock_format, key_file};
use inlock_tests::nbd::{Connection, Mode, command};
use inlock_tests::random::Random;
use inlock_tests::server::Server;

/// Requests in bytes: whole data units, parts of them, and one that takes two pieces.
const SIZES: [usize; 7] = [512, 4096, 5000, 65536, 128 << 10, 1 << 20, (1 << 20) + 4096];
/// Maximum number of bytes in flight on one connection.
const IN_FLIGHT: usize = 2 << 20;
/// Bytes of the volume for each connection.
const RANGE: u64 = 4 << 20;
/// Tolerance for pages that the kernel assigns to one process or another.
const SLACK_KIB: u64 = 64;
/// A run of less than a minute ends before every page of the preallocated buffers was used. A leak of 16 bytes per
/// request is still detected.
const SHORT_SLACK_KIB: u64 = 1024;

struct Options {
    time: Duration,
    connections: u64,
    stall: Duration,
    dir: std::path::PathBuf,
}

/// Results of all connections.
#[derive(Default)]
struct Tally {
    /// Limit of the latency of a reply.
    stall: Duration,
    requests: AtomicU64,
    bytes: AtomicU64,
    stalls: AtomicU64,
    slowest_us: AtomicU64,
    errors: Mutex<Vec<String>>,
}

/// Runs, prints the verdict, and fails on errors, stalls or growth.
pub(crate) fn run(args: &[String]) -> Result<ExitCode> {
    let options = parse(args)?;
    let dir = tempfile::Builder::new().prefix("inlock-soak-").tempdir_in(&options.dir)?;
    let key = key_file(dir.path(), "key", b"soak")?;
    let image = dir.path().join("volume.img");
    let format = ["--type=luks2", "--sector-size=4096", "--pbkdf=pbkdf2", "--pbkdf-force-iterations=1000"];
    inlock_format(&image, (16 << 20) + options.connections * RANGE, &key, &format)?;
    let server = Server::inlock(dir.path(), "soak", &image, Some(&key), &[])?;
    let tally = Tally { stall: options.stall, ..Tally::default() };
    let growth = drive(&server, &options, &tally)?;
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let errors = tally.errors.lock().unwrap_or_else(PoisonError::into_inner);
    errors.iter().take(5).for_each(|error| println!("error: {error}"));
    println!(
        "soak: {} connections, {} s, {} requests, {:.1} GiB, slowest answer {:.1} ms",
        options.connections,
        options.time.as_secs(),
        load(&tally.requests),
        load(&tally.bytes) as f64 / f64::from(1 << 30),
        load(&tally.slowest_us) as f64 / 1000.0,
    );
    println!(
        "soak: {} errors, {} stalls over {} s, resident memory grew by {growth} KiB",
        errors.len(),
        load(&tally.stalls),
        options.stall.as_secs()
    );
    let sound = errors.is_empty() && load(&tally.stalls) == 0 && growth == 0;
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn parse(args: &[String]) -> Result<Options> {
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
    let mut options = Options { time: Duration::from_secs(300), connections: 64, stall: Duration::from_secs(1), dir };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let value = args.next().with_context(|| format!("{arg} needs a value"))?;
        match arg.as_str() {
            "--minutes" => options.time = Duration::from_secs(60 * value.parse::<u64>().context("--minutes")?),
            "--seconds" => options.time = Duration::from_secs(value.parse().context("--seconds")?),
            "--connections" => options.connections = value.parse().context("--connections")?,
            "--stall-seconds" => options.stall = Duration::from_secs(value.parse().context("--stall-seconds")?),
            "--dir" => options.dir = value.into(),
            other => bail!("unknown option '{other}'"),
        }
    }
    ensure!(!options.time.is_zero() && options.connections > 0, "the time and the connections have to be above zero");
    Ok(options)
}

/// Warms up, runs for the time, and returns the growth of resident memory in KiB.
fn drive(server: &Server, options: &Options, tally: &Tally) -> Result<u64> {
    let over = AtomicBool::new(false);
    let warm = Barrier::new(options.connections as usize + 1);
    std::thread::scope(|scope| {
        for number in 0..options.connections {
            let (over, warm, tally) = (&over, &warm, tally);
            scope.spawn(move || {
                let mut client = Client::connect(server, number, tally);
                for size in SIZES {
                    client.step(tally, |client| client.batch(size, tally));
                }
                // A failed connection arrives here too, so that no thread waits for it.
                warm.wait();
                while !over.load(Ordering::Relaxed) {
                    let size = *client.random.pick(&SIZES);
                    client.step(tally, |client| client.batch(size, tally));
                }
            });
        }
        warm.wait();
        let settle = options.time / 5;
        let before = most_resident(server, settle);
        std::thread::sleep(options.time - 2 * settle);
        let after = most_resident(server, settle);
        over.store(true, Ordering::Relaxed);
        let (before, after) = (before?, after?);
        println!("soak: {before} KiB resident at most in the first fifth, {after} KiB in the last");
        let slack = if options.time < Duration::from_secs(60) { SHORT_SLACK_KIB } else { SLACK_KIB };
        Ok(after.saturating_sub(before + slack))
    })
}

/// Returns the maximum of resident memory in this time, in KiB.
fn most_resident(server: &Server, time: Duration) -> Result<u64> {
    let began = Instant::now();
    let mut most = server.status_field("VmRSS")?;
    while began.elapsed() < time {
        std::thread::sleep(Duration::from_millis(20));
        most = most.max(server.status_field("VmRSS")?);
    }
    Ok(most)
}

/// One connection and its range.
struct Client {
    connection: Option<Connection>,
    random: Random,
    base: u64,
    /// Contents of the range.
    written: Vec<u8>,
}

impl Client {
    fn connect(server: &Server, number: u64, tally: &Tally) -> Self {
        let mut random = Random::new(number);
        let mut client = Self { connection: None, base: number * RANGE, written: random.bytes(RANGE as usize), random };
        let opened = Connection::open(server.socket(), Duration::from_secs(60), Mode::Structured);
        match opened {
            Ok(connection) => client.connection = Some(connection),
            Err(error) => tally.note(number, &error),
        }
        let base = client.base;
        client.step(tally, |client| {
            let Some(connection) = &mut client.connection else { return Ok(()) };
            client
                .written
                .chunks(1 << 20)
                .enumerate()
                .try_for_each(|(at, part)| connection.write(base + (at << 20) as u64, part))
        });
        client
    }

    /// Runs a step; a connection on which it fails is given up.
    fn step(&mut self, tally: &Tally, what: impl FnOnce(&mut Self) -> Result<()>) {
        if let Err(error) = what(self) {
            tally.note(self.base / RANGE, &error);
            self.connection = None;
        }
        if self.connection.is_none() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Writes one request, then reads several of the same size at a time, and compares.
    fn batch(&mut self, size: usize, tally: &Tally) -> Result<()> {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        let places = RANGE - size as u64 + 1;
        let at = self.random.below(places);
        let data = self.random.bytes(size);
        let began = Instant::now();
        connection.write(self.base + at, &data)?;
        tally.answered(began, size);
        self.written[at as usize..at as usize + size].copy_from_slice(&data);
        let depth = (IN_FLIGHT / size).clamp(1, 8);
        let mut asked = std::collections::BTreeMap::new();
        for _ in 0..depth {
            let at = self.random.below(places);
            let cookie = connection.request(0, command::READ, self.base + at, size as u64)?;
            asked.insert(cookie, (at as usize, Instant::now()));
        }
        while !asked.is_empty() {
            let reply = connection.reply(size)?;
            let (at, began) = asked.remove(&reply.cookie).context("a reply to no request")?;
            ensure!(reply.error == 0, "read {size} at {at}: error {}", reply.error);
            ensure!(reply.data == self.written[at..at + size], "read {size} at {at}: other bytes than were written");
            tally.answered(began, size);
        }
        Ok(())
    }
}

impl Tally {
    fn note(&self, connection: u64, error: &anyhow::Error) {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner).push(format!("connection {connection}: {error:#}"));
    }

    fn answered(&self, began: Instant, size: usize) {
        let took = began.elapsed();
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(size as u64, Ordering::Relaxed);
        self.slowest_us.fetch_max(took.as_micros() as u64, Ordering::Relaxed);
        if took > self.stall {
            self.stalls.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_checked() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert!(
            parse(&words("--minutes 2 --connections 8")).is_ok_and(|o| o.time.as_secs() == 120 && o.connections == 8)
        );
        assert!(parse(&words("--seconds 0")).is_err());
        assert!(parse(&words("--minutes")).is_err());
        assert!(parse(&words("--what 1")).is_err());
    }

    #[test]
    fn late_reply_is_a_stall() {
        let tally = Tally { stall: Duration::from_secs(1), ..Tally::default() };
        let now = Instant::now();
        tally.answered(now, 512);
        assert_eq!(tally.stalls.load(Ordering::Relaxed), 0);
        if let Some(long_ago) = now.checked_sub(Duration::from_secs(2)) {
            tally.answered(long_ago, 512);
            assert_eq!(tally.stalls.load(Ordering::Relaxed), 1);
        }
        tally.note(3, &anyhow::anyhow!("gone"));
        assert_eq!(*tally.errors.lock().unwrap_or_else(PoisonError::into_inner), ["connection 3: gone"]);
    }
}
