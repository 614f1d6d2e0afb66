//! Resident memory of a server: after unlocking, with busy connections, and without Argon2's memory.

use std::time::Duration;

use anyhow::{Result, ensure};
use inlock_tests::image::{cryptsetup_format, key_file};
use inlock_tests::nbd::{Connection, Mode, command};
use inlock_tests::random::Random;
use inlock_tests::report::count;
use inlock_tests::server::Server;

/// Maximum resident memory.
const LIMIT_KIB: u64 = 64 << 10;
/// Argon2 memory of the keyslot: four times the limit, so that memory that is not released shows.
const ARGON2_KIB: u64 = 256 << 10;
const SIZE: u64 = 64 << 20;
const CONNECTIONS: u64 = 8;

#[test]
fn resident_memory_of_eight_busy_connections_is_below_64_mib() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let key = key_file(dir.path(), "key", b"memory")?;
    let image = dir.path().join("volume.img");
    let memory = format!("--pbkdf-memory={ARGON2_KIB}");
    let args = ["--type=luks2", "--pbkdf=argon2id", "--pbkdf-force-iterations=4", "--pbkdf-parallel=2", &memory];
    cryptsetup_format(&image, SIZE + (16 << 20), &key, &args)?;
    for io in ["uring", "sync"] {
        let server = Server::inlock(dir.path(), io, &image, Some(&key), &["--io", io])?;
        let peak = server.status_field("VmHWM")?;
        ensure!(
            peak >= ARGON2_KIB,
            "the peak of {peak} KiB shows that Argon2 did not run in this process, the test is void"
        );
        let idle = server.status_field("VmRSS")?;
        let most = std::thread::scope(|scope| {
            let busy: Vec<_> = (0..CONNECTIONS)
                .map(|n| {
                    scope.spawn({
                        let server = &server;
                        move || busy(server, n)
                    })
                })
                .collect();
            let mut most = 0;
            while busy.iter().any(|b| !b.is_finished()) {
                most = most.max(server.status_field("VmRSS")?);
                std::thread::sleep(Duration::from_millis(5));
            }
            for one in busy {
                one.join().map_err(|_| anyhow::anyhow!("a client panicked"))??;
            }
            Ok::<u64, anyhow::Error>(most)
        })?;
        println!("--io {io}: {idle} KiB after unlock, at most {most} KiB with {CONNECTIONS} busy connections");
        count("busy_connections", CONNECTIONS);
        ensure!(idle < LIMIT_KIB, "--io {io}: {idle} KiB resident after unlock");
        ensure!(most < LIMIT_KIB, "--io {io}: {most} KiB resident with {CONNECTIONS} busy connections");
    }
    Ok(())
}

/// Reads and writes 1 MiB at a time, eight in flight, checked by a pattern.
fn busy(server: &Server, n: u64) -> Result<()> {
    const PIECE: u64 = 1 << 20;
    let mut random = Random::new(n);
    let mut connection = Connection::open(server.socket(), Duration::from_secs(120), Mode::Structured)?;
    let area = n * (SIZE / CONNECTIONS);
    let data = random.bytes(PIECE as usize);
    for piece in 0..8 {
        connection.write(area + piece * PIECE, &data)?;
    }
    for _ in 0..60 {
        for piece in 0..8 {
            connection.request(0, command::READ, area + piece * PIECE, PIECE)?;
        }
        for _ in 0..8 {
            let reply = connection.reply(PIECE as usize)?;
            ensure!(reply.error == 0 && reply.data == data, "connection {n} reads something else than it wrote");
        }
        connection.write(area + random.below(8) * PIECE, &data)?;
    }
    connection.disconnect()
}
