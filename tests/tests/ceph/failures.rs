//! A cluster that fails under a served volume.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use inlock_tests::nbd::{command, errno};
use inlock_tests::process::lossy;
use inlock_tests::random::Random;
use inlock_tests::report::count;
use inlock_tests::server::Server;
use serde_json::Value;

use crate::support::{Cluster, MIB, cluster, cluster_alone, cluster_disturbed, connect, device, unique};

const BLOCK: u64 = 4096;

/// Returns the address of the client that has an image open for writing.
fn client_of(cluster: &Cluster, image: &str) -> Result<String> {
    let status: Value = serde_json::from_str(&cluster.rbd(&["status", "--format=json", &format!("rbd/{image}")])?)?;
    let address = status["watchers"][0]["address"].as_str().context("no client has the image open")?;
    Ok(address.to_owned())
}

/// Fails if a request of any kind succeeds.
fn fails_altogether(server: &Server) -> Result<()> {
    let mut connection = connect(server)?;
    for _ in 0..3 {
        for (kind, len, payload) in
            [(command::READ, BLOCK, &[][..]), (command::WRITE, BLOCK, &[3; BLOCK as usize]), (command::FLUSH, 0, &[])]
        {
            let reply = connection.call(0, kind, 0, len, payload)?;
            ensure!(reply.error == errno::IO, "command {kind} gives {}", reply.error);
        }
    }
    Ok(())
}

/// Writes random blocks with many requests in flight, and flushes and counts them in `flushes`, until `is_over`.
/// Returns the blocks with the byte that each is filled with.
fn load(
    server: &Server,
    seed: u64,
    blocks: std::ops::Range<u64>,
    flushes: &AtomicU64,
    is_over: &AtomicBool,
) -> Result<BTreeMap<u64, u8>> {
    let mut connection = connect(server)?;
    let mut random = Random::new(seed);
    let mut flushed = BTreeMap::new();
    while !is_over.load(Ordering::Relaxed) {
        let mut written = BTreeMap::new();
        while written.len() < 16 {
            let block = blocks.start + random.below(blocks.end - blocks.start);
            written.insert(block, random.below(255) as u8 + 1);
        }
        for (block, fill) in &written {
            connection.request(0, command::WRITE, block * BLOCK, BLOCK)?;
            connection.send(&vec![*fill; BLOCK as usize])?;
        }
        for _ in &written {
            let reply = connection.reply(0)?;
            ensure!(reply.error == 0, "a write fails with {}", reply.error);
        }
        connection.flush()?;
        flushed.extend(written);
        flushes.fetch_add(1, Ordering::Relaxed);
    }
    Ok(flushed)
}

#[test]
fn storage_daemon_killed_under_load_loses_no_flushed_write() -> Result<()> {
    let Some(cluster) = cluster_alone()? else { return Ok(()) };
    let image = cluster.volume(32, &[])?;
    let server = cluster.serve(&device(&image), &["--store-timeout=600"])?;
    // A long proof: INLOCK_CEPH_KILLS=100.
    let kills: usize = std::env::var("INLOCK_CEPH_KILLS").map_or(Ok(2), |text| text.parse())?;
    let (is_over, flushes) = (AtomicBool::new(false), [AtomicU64::new(0), AtomicU64::new(0)]);
    let blocks = 16 * MIB / BLOCK / 2;
    let flushed = std::thread::scope(|scope| {
        let loads = [0, 1].map(|n| {
            let (server, flushes, is_over) = (&server, &flushes[n as usize], &is_over);
            scope.spawn(move || load(server, n, n * blocks..(n + 1) * blocks, flushes, is_over))
        });
        // Waits until each connection has flushed again, or has failed.
        let progress = || {
            let before = flushes.each_ref().map(|number| number.load(Ordering::Relaxed));
            let is_ahead = |n: usize| flushes[n].load(Ordering::Relaxed) > before[n] + 1;
            while !loads.iter().enumerate().all(|(n, load)| is_ahead(n) || load.is_finished()) {
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        let kill = || {
            for _ in 0..kills {
                progress();
                cluster.control("kill-osd")?;
                cluster.control("start-osd")?;
            }
            progress();
            anyhow::Ok(())
        };
        let killed = kill();
        is_over.store(true, Ordering::Relaxed);
        let loads = loads.map(|load| load.join().expect("no panic"));
        killed.map(|()| loads)
    })?;
    // What a power cut of the server itself leaves.
    server.signal("KILL")?;
    let found = cluster.export(&device(&image))?;
    let mut checked = 0;
    for flushed in flushed {
        for (block, fill) in flushed.with_context(|| server.log_text())? {
            let bytes = &found[(block * BLOCK) as usize..][..BLOCK as usize];
            ensure!(bytes.iter().all(|byte| *byte == fill), "block {block}: {} in place of {fill}", bytes[0]);
            checked += 1;
        }
    }
    count("ceph_osd_kills", kills);
    ensure!(checked >= 32, "only {checked} blocks were checked");
    println!("{checked} blocks that a flush covers are there after {kills} kills");
    Ok(())
}

/// The cache of librbd, if a name asks for it, holds writes until the next flush.
#[test]
fn flush_writes_what_librbd_has_cached() -> Result<()> {
    let Some(cluster) = cluster()? else { return Ok(()) };
    let image = cluster.volume(32, &[])?;
    let cached = "rbd_cache=true:rbd_cache_policy=writeback:rbd_cache_writethrough_until_flush=false";
    let cached = format!("{cached}:rbd_cache_max_dirty_age=1000");
    let server = cluster.serve(&format!("{}:{cached}", device(&image)), &[])?;
    let mut connection = connect(&server)?;
    connection.write(0, &[1; BLOCK as usize])?;
    connection.flush()?;
    connection.write(0, &[2; BLOCK as usize])?;
    server.signal("KILL")?;
    let found = cluster.export(&device(&image))?[..BLOCK as usize].to_vec();
    // Without the cache, the second write would be there, and the flush would prove nothing.
    ensure!(found == [1; BLOCK as usize], "after the flush, the block has {}", found[0]);
    Ok(())
}

/// A daemon that is stopped has requests in its socket, and carries them out when it goes on.
#[test]
fn write_that_ends_too_late_is_never_over_a_newer_one() -> Result<()> {
    let Some(cluster) = cluster_alone()? else { return Ok(()) };
    let image = cluster.volume(32, &[])?;
    let server = cluster.serve(&device(&image), &["--store-timeout=1"])?;
    let mut connection = connect(&server)?;
    for round in 0..3u8 {
        let (old, late, new) = (3 * round + 1, 3 * round + 2, 3 * round + 3);
        connection.write(0, &[old; BLOCK as usize])?;
        connection.flush()?;
        cluster.signal_osd("STOP")?;
        let reply = connection.call(0, command::WRITE, 0, BLOCK, &[late; BLOCK as usize]);
        let read = connection.call(0, command::READ, 0, BLOCK, &[]);
        cluster.signal_osd("CONT")?;
        let (reply, read) = (reply?.error, read?.error);
        ensure!(reply != 0 && read != 0, "requests to a stopped daemon end with {reply} and {read}");
        connection.write(0, &[new; BLOCK as usize])?;
        connection.flush()?;
        ensure!(connection.read(0, BLOCK as usize)? == [new; BLOCK as usize], "the late write is over the new one");
    }
    drop(connection);
    server.signal("KILL")?;
    ensure!(cluster.export(&device(&image))?[..BLOCK as usize] == [9; BLOCK as usize], "the last write is lost");
    Ok(())
}

#[test]
fn paused_cluster_fails_requests_in_time_and_works_again() -> Result<()> {
    let Some(cluster) = cluster_alone()? else { return Ok(()) };
    let image = cluster.volume(32, &[])?;
    let server = cluster.serve(&device(&image), &["--store-timeout=2"])?;
    let mut connection = connect(&server)?;
    connection.write(0, &[1; BLOCK as usize])?;
    cluster.ceph(&["osd", "pause"])?;
    // The client learns of it a little later.
    let mut begun = Instant::now();
    let mut write = connection.call(0, command::WRITE, 0, BLOCK, &[2; BLOCK as usize]);
    while write.as_ref().is_ok_and(|reply| reply.error == 0) {
        begun = Instant::now();
        write = connection.call(0, command::WRITE, 0, BLOCK, &[3; BLOCK as usize]);
    }
    let elapsed = begun.elapsed();
    let read = connection.call(0, command::READ, 0, BLOCK, &[]);
    cluster.ceph(&["osd", "unpause"])?;
    ensure!(write?.error != 0 && read?.error != 0, "requests succeed in a paused cluster");
    ensure!(elapsed >= Duration::from_secs(2), "requests fail at once: {elapsed:?}");
    connection.write(0, &[4; BLOCK as usize])?;
    connection.flush()?;
    ensure!(connection.read(0, BLOCK as usize)? == [4; BLOCK as usize], "an old write is over a new one");
    Ok(())
}

#[test]
fn forced_close_fails_what_waits_for_a_dead_daemon() -> Result<()> {
    let Some(cluster) = cluster_alone()? else { return Ok(()) };
    let image = cluster.volume(32, &[])?;
    let name = unique("forced");
    let mut server = cluster.serve(&device(&image), &["--name", &name])?;
    let mut connection = connect(&server)?;
    connection.write(0, &[1; BLOCK as usize])?;
    connection.flush()?;
    cluster.control("kill-osd")?;
    connection.request(0, command::WRITE, 0, BLOCK)?;
    connection.send(&[2; BLOCK as usize])?;
    let closed = cluster.inlock(&["close", &name, "--force"]);
    let reply = connection.reply(0);
    let ended = server.wait();
    cluster.control("start-osd")?;
    let (closed, ended) = (closed?, ended?);
    ensure!(reply?.error == errno::IO, "the write that waits ends otherwise");
    // By itself, not by a signal of a library that is torn down under its threads.
    ensure!(ended.code() == Some(1), "the server ends with {ended}: {}", server.log_text());
    ensure!(closed.status.code() == Some(1), "close ends with {}: {}", closed.status, lossy(&closed.stderr));
    ensure!(server.log_text().contains("requests are failed, as asked for"), "{}", server.log_text());
    // The lock is free once the cluster has noticed.
    ensure!(cluster.export(&device(&image))?[..BLOCK as usize] == [1; BLOCK as usize], "a flushed write is lost");
    Ok(())
}

#[test]
fn client_that_the_cluster_refuses_fails_for_good() -> Result<()> {
    let Some(cluster) = cluster()? else { return Ok(()) };
    let image = cluster.volume(32, &[])?;
    let server = cluster.serve(&device(&image), &[])?;
    connect(&server)?.write(0, &[1; BLOCK as usize])?;
    let address = client_of(&cluster, &image)?;
    cluster.ceph(&["osd", "blocklist", "add", &address])?;
    fails_altogether(&server)?;
    cluster.ceph(&["osd", "blocklist", "rm", &address])?;
    fails_altogether(&server)?;
    ensure!(server.log_text().contains("no longer accepts this client"), "{}", server.log_text());
    Ok(())
}

#[test]
fn lock_of_a_served_image_is_stolen_only_if_asked_for() -> Result<()> {
    let Some(cluster) = cluster()? else { return Ok(()) };
    let image = cluster.volume(32, &[])?;
    let (name, key) = (device(&image), cluster.key.to_str().context("a text")?);
    let server = cluster.serve(&name, &[])?;
    connect(&server)?.write(0, &[1; BLOCK as usize])?;
    let address = client_of(&cluster, &image)?;
    // Another host does not see the lock files of this one.
    let elsewhere = cluster.own.path().join("elsewhere");
    let other = |words: &[&str]| {
        let mut command = inlock_tests::process::program(inlock_tests::process::inlock_path()?);
        command.args(words).env("CEPH_CONF", cluster.conf()).env("INLOCK_RUN_DIR", &elsewhere);
        inlock_tests::process::output(&mut command)
    };
    let words = ["luksAddKey", "-q", "--disable-locks", "--pbkdf=pbkdf2", "--pbkdf-force-iterations=1000"];
    let refused = other(&[&words[..], &["-d", key, &name, key]].concat())?;
    let said = lossy(&refused.stderr);
    ensure!(refused.status.code() == Some(5) && said.contains(&address), "{} {said}", refused.status);
    connect(&server)?.write(0, &[2; BLOCK as usize])?;

    let stolen = other(&[&words[..], &["--steal-lock", "-d", key, &name, key]].concat())?;
    ensure!(stolen.status.success(), "{}", lossy(&stolen.stderr));
    fails_altogether(&server)?;
    // Local readers wait for the end of a local writer.
    drop(server);
    ensure!(cluster.export(&name)?[..BLOCK as usize] == [2; BLOCK as usize], "a write of the old client is lost");
    Ok(())
}

#[test]
fn lock_of_another_program_is_respected() -> Result<()> {
    let Some(cluster) = cluster()? else { return Ok(()) };
    let image = cluster.volume(32, &[])?;
    let mut python = std::process::Command::new(inlock_tests::process::PYTHON);
    python.arg(inlock_tests::process::root().join("tests/ceph/librbd.py")).args(["lock", &image]);
    python.env("CEPH_CONF", cluster.conf()).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut owner = python.spawn()?;
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(owner.stdout.as_mut().context("a pipe")?), &mut line)?;
    ensure!(line == "locked\n", "{line}");
    let key = cluster.key.to_str().context("a text")?;
    let words = ["config", &device(&image), "--label", "x"];
    let refused = cluster.fails(&words, 5, "the image is locked by the client at ");
    // Readers need no lock.
    let read = cluster.works(&["open", "--test-passphrase", &device(&image), "-d", key]);
    drop(owner.stdin.take());
    ensure!(owner.wait()?.success(), "the owner failed");
    refused?;
    read?;
    cluster.works(&words).map(drop)
}

#[test]
fn lock_of_a_served_image_is_kept_from_other_programs() -> Result<()> {
    let Some(cluster) = cluster()? else { return Ok(()) };
    let image = cluster.volume(32, &[])?;
    let server = cluster.serve(&device(&image), &[])?;
    let mut connection = connect(&server)?;
    connection.write(0, &[1; BLOCK as usize])?;
    for words in [&["write", &image, "raw", "", "16777216+4"][..], &["lock", &image]] {
        let refused = cluster.librbd(words, b"evil");
        ensure!(refused.is_err(), "{words:?} succeeds");
    }
    ensure!(connection.read(0, BLOCK as usize)? == [1; BLOCK as usize], "another program has written");
    connection.write(0, &[2; BLOCK as usize])?;
    connection.flush()?;
    // An administrator breaks it.
    let spec = format!("rbd/{image}");
    let locks: Value = serde_json::from_str(&cluster.rbd(&["lock", "ls", "--format=json", &spec])?)?;
    let (id, locker) = (locks[0]["id"].as_str(), locks[0]["locker"].as_str());
    cluster.rbd(&["lock", "rm", &spec, id.context("a lock")?, locker.context("a lock")?])?;
    fails_altogether(&server)
}

#[test]
fn lock_that_was_set_by_hand_is_respected() -> Result<()> {
    let Some(cluster) = cluster()? else { return Ok(()) };
    let image = cluster.volume(32, &[])?;
    let spec = format!("rbd/{image}");
    cluster.rbd(&["lock", "add", &spec, "mine"])?;
    let words = ["config", &device(&image), "--label", "x"];
    for more in [&[][..], &["--steal-lock"]] {
        cluster.fails(&[&words[..], more].concat(), 5, "the image has a lock that was set by hand")?;
    }
    cluster.works(&["luksUUID", &device(&image)])?;
    let locks: Value = serde_json::from_str(&cluster.rbd(&["lock", "ls", "--format=json", &spec])?)?;
    cluster.rbd(&["lock", "rm", &spec, "mine", locks[0]["locker"].as_str().context("a lock")?])?;
    cluster.works(&words).map(drop)
}

#[test]
fn lock_of_a_killed_server_becomes_free() -> Result<()> {
    let Some(cluster) = cluster_disturbed()? else { return Ok(()) };
    let image = cluster.volume(32, &[])?;
    let mut server = cluster.serve(&device(&image), &[])?;
    connect(&server)?.write(0, &[1; BLOCK as usize])?;
    server.signal("KILL")?;
    server.wait()?;
    // The cluster waits for a sign of life.
    loop {
        let ended = cluster.inlock(&["config", "--connect-timeout=120", &device(&image), "--label", "again"])?;
        if ended.status.success() {
            break;
        }
        let said = lossy(&ended.stderr);
        ensure!(ended.status.code() == Some(5), "{} {said}", ended.status);
        std::thread::sleep(Duration::from_millis(500));
    }
    ensure!(cluster.export(&device(&image))?[..BLOCK as usize] == [1; BLOCK as usize], "a write is lost");
    Ok(())
}

#[test]
fn full_pool_fails_writes_and_still_reads() -> Result<()> {
    let Some(cluster) = cluster()? else { return Ok(()) };
    let pool = unique("small");
    cluster.ceph(&["osd", "pool", "create", &pool, "1", "1"])?;
    cluster.rbd(&["pool", "init", &pool])?;
    let name = format!("rbd:{pool}/image");
    cluster.rbd(&["create", "--size=64G", &format!("{pool}/image")])?;
    cluster.format(&name, &[])?;
    let server = cluster.serve(&name, &["--store-timeout=200"])?;
    let mut connection = connect(&server)?;
    connection.write(0, &[5; BLOCK as usize])?;
    connection.flush()?;
    cluster.ceph(&["osd", "pool", "set-quota", &pool, "max_bytes", &MIB.to_string()])?;
    // The quota is enforced when the cluster has counted. Only a write that needs space fails: each has a new object.
    let mut offset = 0;
    let error = loop {
        offset += 4 * MIB;
        let reply = connection.call(0, command::WRITE, offset, BLOCK, &[1; BLOCK as usize])?;
        if reply.error != 0 {
            break reply.error;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    ensure!(error == errno::NOSPC, "a write to a full pool fails with {error}");
    ensure!(connection.read(0, BLOCK as usize)? == [5; BLOCK as usize], "the full pool does not read");
    cluster.ceph(&["osd", "pool", "set-quota", &pool, "max_bytes", "0"])?;
    while connection.call(0, command::WRITE, offset, BLOCK, &[6; BLOCK as usize])?.error != 0 {
        std::thread::sleep(Duration::from_millis(100));
    }
    connection.flush()?;
    drop(server);
    cluster.ceph(&["osd", "pool", "rm", &pool, &pool, "--yes-i-really-really-mean-it"]).map(drop)
}

#[test]
fn image_removed_by_force_fails_for_good() -> Result<()> {
    let Some(cluster) = cluster()? else { return Ok(()) };
    let image = cluster.volume(32, &[])?;
    let server = cluster.serve(&device(&image), &[])?;
    connect(&server)?.write(0, &[1; BLOCK as usize])?;
    let facts: Value = serde_json::from_str(&cluster.rbd(&["info", "--format=json", &format!("rbd/{image}")])?)?;
    let header = format!("rbd_header.{}", facts["id"].as_str().context("an identity")?);
    cluster.run("rados", &["-p", "rbd", "rm", &header])?;
    // Without a request.
    while !server.log_text().contains("has been removed") {
        std::thread::sleep(Duration::from_millis(50));
    }
    fails_altogether(&server)
}

#[test]
fn removed_image_or_pool_never_acknowledges_a_write() -> Result<()> {
    let Some(cluster) = cluster()? else { return Ok(()) };
    let pool = unique("removed");
    cluster.ceph(&["osd", "pool", "create", &pool, "1", "1"])?;
    cluster.rbd(&["pool", "init", &pool])?;
    let name = format!("rbd:{pool}/image");
    cluster.rbd(&["create", "--size=64M", &format!("{pool}/image")])?;
    cluster.format(&name, &[])?;
    let server = cluster.serve(&name, &[])?;
    let mut connection = connect(&server)?;
    connection.write(0, &[1; BLOCK as usize])?;
    let removed = cluster.rbd(&["rm", "--no-progress", &format!("{pool}/image")]);
    ensure!(removed.is_err(), "Ceph removes a locked image");
    connection.write(0, &[2; BLOCK as usize])?;
    connection.flush()?;
    cluster.ceph(&["osd", "pool", "rm", &pool, &pool, "--yes-i-really-really-mean-it"])?;
    let reply = connection.call(0, command::WRITE, 0, BLOCK, &[3; BLOCK as usize])?;
    ensure!(reply.error != 0, "a write to a removed pool succeeds");
    // The store looks once a second.
    while !server.log_text().contains("has been removed") {
        std::thread::sleep(Duration::from_millis(50));
    }
    fails_altogether(&server)
}
