//! A misbehaving client harms no other: named cases, mutated streams and idle connections against `inlock serve`, while
//! another client writes, reads back and compares all the time. The server has one volume, or many with limits.
//!
//! Each case checks for the reply that the protocol requires. As the negative control, the same cases run against a
//! server that accepts everything; most of them must fail there.

mod handshake;
mod starving;
mod streams;
mod transmission;
mod yes_server;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use inlock_tests::image::{CHEAP_PBKDF2, inlock_format, key_file};
use inlock_tests::nbd::{Connection, Mode};
use inlock_tests::process;
use inlock_tests::random::Random;
use inlock_tests::report::count;
use inlock_tests::server::Server;

/// Length of the plaintext of the export.
const SIZE: u64 = 64 << 20;
/// Area of the well-behaved client. No case, and no mutated stream of the fixed seeds, writes there.
pub(crate) const GOOD_AREA: u64 = 60 << 20;
const GOOD_AREA_LEN: u64 = 1 << 20;
/// Maximum growth of the server by an attack, in KiB.
const KEPT_KIB: u64 = 32 << 10;

/// A server under attack.
pub(crate) struct Target {
    pub(crate) socket: PathBuf,
    pub(crate) patience: Duration,
}

impl Target {
    /// Returns a connection after the greeting.
    pub(crate) fn haggle(&self) -> Result<Connection> {
        Connection::haggle(&self.socket, self.patience)
    }

    /// Returns a connection in transmission.
    pub(crate) fn open(&self, mode: Mode) -> Result<Connection> {
        Connection::open(&self.socket, self.patience, mode)
    }
}

/// A named kind of misbehaviour with the check of the reply.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) run: fn(&Target) -> Result<()>,
}

fn cases() -> impl Iterator<Item = &'static Case> {
    handshake::CASES.iter().chain(transmission::CASES)
}

/// A kind of server, with every option that a test sets.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// `serve IMAGE`.
    One,
    /// `serve --config`, where the volume has every limit: operations a second, and the others for all.
    Many(u32),
}

/// Limits of a volume of [`Kind::Many`], without the operations. One client can have any of them used up.
const LIMITS: &str = "max-bytes = \"100M\"\nmax-in-flight = \"4M\"\nmax-clients = 1000";

pub(crate) struct Served {
    pub(crate) server: Server,
    image: PathBuf,
    _dir: tempfile::TempDir,
}

/// Serves a volume with options of the command `serve`: those without a value are true.
pub(crate) fn serve(kind: Kind, options: &[(&str, &str)]) -> Result<Served> {
    let dir = tempfile::tempdir()?;
    let key = key_file(dir.path(), "key", b"hostile")?;
    let image = dir.path().join("volume.img");
    let mut args = vec!["--type", "luks2"];
    args.extend(CHEAP_PBKDF2);
    inlock_format(&image, SIZE + (16 << 20), &key, &args)?;
    let server = match kind {
        Kind::One => {
            let words: Vec<_> = options.iter().map(|(name, value)| format!("--{name}={value}")).collect();
            let words: Vec<_> = words.iter().map(|word| word.trim_end_matches('=')).collect();
            Server::inlock(dir.path(), "volume", &image, Some(&key), &words)?
        }
        Kind::Many(operations) => {
            let (image, key) = (image.display(), key.display());
            let table = format!("image = \"{image}\"\nkey-file = \"{key}\"\nmax-operations = {operations}");
            let value = |text: &str| match text {
                "" => "true".to_owned(),
                number if number.bytes().all(|byte| byte.is_ascii_digit()) => number.to_owned(),
                text => format!("\"{text}\""),
            };
            let options: String = options.iter().map(|(name, text)| format!("{name} = {}\n", value(text))).collect();
            let config = dir.path().join("volumes.toml");
            std::fs::write(&config, format!("default = \"v\"\n[volumes.v]\n{table}\n{LIMITS}\n{options}"))?;
            let socket = dir.path().join("volume.sock");
            let mut command = process::bare(process::inlock_path()?);
            command.args(["serve", "--nbd", &format!("unix:{}", socket.display()), "--config"]).arg(config);
            Server::start(command, socket)?
        }
    };
    Ok(Served { server, image, _dir: dir })
}

fn target(socket: &Path) -> Target {
    Target { socket: socket.to_owned(), patience: Duration::from_secs(60) }
}

/// Writes random pieces of its area, reads them back and compares, on one connection, until stopped.
fn good_client(socket: &Path, stop: &AtomicBool, rounds: &AtomicU64) -> Result<()> {
    let mut random = Random::new(7);
    let mut model = vec![0u8; GOOD_AREA_LEN as usize];
    let mut client = Connection::open(socket, Duration::from_secs(120), Mode::Structured)?;
    client.write(GOOD_AREA, &model)?;
    while !stop.load(Ordering::Relaxed) {
        let offset = random.below(GOOD_AREA_LEN - 9000);
        let len = 1 + random.below(9000) as usize;
        let data = random.bytes(len);
        client.write(GOOD_AREA + offset, &data)?;
        model[offset as usize..offset as usize + len].copy_from_slice(&data);
        let from = random.below(GOOD_AREA_LEN - 9000);
        let back = client.read(GOOD_AREA + from, 9000)?;
        ensure!(
            back == model[from as usize..from as usize + 9000],
            "the good client read something else than it wrote"
        );
        if rounds.fetch_add(1, Ordering::Relaxed).is_multiple_of(64) {
            client.flush()?;
        }
    }
    ensure!(client.read(GOOD_AREA, model.len())? == model, "the good client's area has changed");
    client.disconnect()
}

/// Runs an attack while the well-behaved client works, then checks that the server is alive and has not grown.
fn with_good_client(served: &mut Served, attack: impl FnOnce(&Target) -> Result<()>) -> Result<()> {
    let socket = served.server.socket().to_owned();
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let (attacked, good) = std::thread::scope(|scope| {
        let good = scope.spawn(|| good_client(&socket, &stop, &rounds));
        while rounds.load(Ordering::Relaxed) < 10 && !good.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let before = served.server.status_field("VmRSS").context("before the attack")?;
        let attacked = attack(&target(&socket));
        let (from, waited) = (rounds.load(Ordering::Relaxed), std::time::Instant::now());
        while rounds.load(Ordering::Relaxed) < from + 10 && !good.is_finished() && waited.elapsed().as_secs() < 60 {
            std::thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, Ordering::Relaxed);
        let good = good.join().map_err(|_| anyhow::anyhow!("the good client panicked"))?;
        Ok::<_, anyhow::Error>((attacked.map(|()| before), good))
    })?;
    let before = attacked?;
    good.context("the good client")?;
    ensure!(served.server.ended()?.is_none(), "the server has ended: {}", served.server.log_text());
    let after = served.server.status_field("VmRSS")?;
    ensure!(after <= before + KEPT_KIB, "the server grew from {before} to {after} KiB");
    count("good_client_rounds", rounds.load(Ordering::Relaxed));
    Ok(())
}

/// Operations a second where a test makes many.
const MANY_OPERATIONS: u32 = 20_000;

#[test]
fn misbehaving_client_gets_protocol_reply() -> Result<()> {
    judge_cases(Kind::One)
}

#[test]
fn misbehaving_client_of_limited_volume_gets_protocol_reply() -> Result<()> {
    judge_cases(Kind::Many(MANY_OPERATIONS))
}

fn judge_cases(kind: Kind) -> Result<()> {
    let mut served = serve(kind, &[])?;
    let mut failures = Vec::new();
    let mut done = 0;
    with_good_client(&mut served, |target| {
        for case in cases() {
            done += 1;
            if let Err(error) = (case.run)(target) {
                failures.push(format!("{}: {error:#}", case.name));
            }
            // The next case needs a running server.
            let alive =
                target.open(Mode::Simple).and_then(|mut c| c.read(0, 4096).map(|_| c)).and_then(|c| c.disconnect());
            alive.with_context(|| format!("after the case {}", case.name))?;
        }
        Ok(())
    })?;
    count("hostile_cases", done);
    ensure!(
        failures.is_empty(),
        "{} of {done} cases:\n{}\n{}",
        failures.len(),
        failures.join("\n"),
        served.server.log_text()
    );
    Ok(())
}

#[test]
fn permissive_server_fails_protocol_cases() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let socket = dir.path().join("yes.sock");
    yes_server::start(&socket, SIZE)?;
    let target = Target { socket, patience: Duration::from_millis(150) };
    let caught = cases().filter(|case| (case.run)(&target).is_err()).count();
    count("hostile_cases_that_catch_a_bad_server", caught);
    ensure!(caught * 3 >= cases().count() * 2, "only {caught} of {} cases notice", cases().count());
    Ok(())
}

#[test]
fn mutated_streams_harm_no_other_client() -> Result<()> {
    send_streams(Kind::One, 1600)
}

#[test]
fn mutated_streams_harm_no_other_client_of_limited_volume() -> Result<()> {
    send_streams(Kind::Many(MANY_OPERATIONS), 400)
}

fn send_streams(kind: Kind, streams: u64) -> Result<()> {
    let mut served = serve(kind, &[])?;
    let mut sent = 0;
    with_good_client(&mut served, |target| {
        for seed in 0..streams {
            sent += streams::send_mutated(&target.socket, seed).with_context(|| format!("stream {seed}"))?;
        }
        Ok(())
    })?;
    count("mutated_streams", streams);
    count("mutated_stream_bytes", sent);
    let status = served.server.terminate()?;
    ensure!(status.success(), "after the streams the server ends with {status}: {}", served.server.log_text());
    ensure!(std::fs::metadata(&served.image)?.len() == SIZE + (16 << 20), "the image has another length");
    Ok(())
}

#[test]
fn idle_connections_stay_open_while_client_is_served() -> Result<()> {
    const IDLE: usize = 500;
    let mut served = serve(Kind::One, &[])?;
    let mut held = 0;
    let mut most = 0;
    let socket = served.server.socket().to_owned();
    let pid_status = |s: &Served| s.server.status_field("VmRSS");
    let before = pid_status(&served)?;
    let mut idle = Vec::new();
    // A third of them each: silent, in option haggling, in transmission. All must be accepted and stay open.
    for n in 0..IDLE {
        let target = target(&socket);
        let connection = match n % 3 {
            0 => Connection::dial(&socket, target.patience),
            1 => target.haggle(),
            _ => target.open(Mode::Structured),
        };
        idle.push(connection.with_context(|| format!("idle connection {n}"))?);
        held += 1;
    }
    most = most.max(pid_status(&served)?);
    with_good_client(&mut served, |target| {
        let mut second = target.open(Mode::Simple)?;
        for n in 0..100 {
            second.write(n * 4096, &[n as u8; 4096])?;
            ensure!(second.read(n * 4096, 4096)? == [n as u8; 4096], "the second good client");
        }
        second.disconnect()
    })?;
    // Those in transmission still get replies.
    for (n, connection) in idle.iter_mut().enumerate().filter(|(n, _)| n % 3 == 2) {
        connection.read(0, 512).with_context(|| format!("idle connection {n} after the wait"))?;
    }
    drop(idle);
    count("idle_connections_held", held);
    count("idle_connection_cost_kib", most.saturating_sub(before) / IDLE as u64);
    ensure!(most <= before + 64 * 1024, "{IDLE} idle connections cost {} KiB", most - before);
    Ok(())
}

#[test]
fn read_only_export_refuses_every_change() -> Result<()> {
    for kind in [Kind::One, Kind::Many(MANY_OPERATIONS)] {
        let served = serve(kind, &[("read-only", "")])?;
        let before = std::fs::read(&served.image)?;
        for case in transmission::READ_ONLY_CASES {
            (case.run)(&target(served.server.socket())).with_context(|| format!("{}, {kind:?}", case.name))?;
        }
        count("read_only_cases", transmission::READ_ONLY_CASES.len());
        ensure!(std::fs::read(&served.image)? == before, "a read-only export has changed its image");
    }
    Ok(())
}
