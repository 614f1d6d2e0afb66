//! The process of a volume is killed with SIGKILL while a file system writes: synced files remain, and the file system
//! replays its journal.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use inlock_tests::process::{lossy, program, text};
use inlock_tests::random::Random;
use inlock_tests::report::count;

use crate::support::{Disk, KILLING, can_make_disks, harvest, hash};

/// Writes and syncs files until that fails, and returns those that were synced.
fn write_until_it_fails(dir: &Path, written: &AtomicUsize, seed: u64) -> BTreeMap<PathBuf, u64> {
    let mut random = Random::new(seed);
    let mut durable = BTreeMap::new();
    for number in 0.. {
        let name = PathBuf::from(format!("file-{seed}-{number}"));
        let content = random.bytes(1 + (number * 7919) % 60_000);
        let write = || {
            let mut file = File::create(dir.join(&name))?;
            file.write_all(&content)?;
            file.sync_all()?;
            File::open(dir)?.sync_all()
        };
        if write().is_err() {
            break;
        }
        durable.insert(name, hash(&content));
        written.fetch_add(1, Ordering::Relaxed);
    }
    durable
}

fn killed(mkfs: &[&str], fsck: &[&str]) -> Result<()> {
    if !can_make_disks() {
        return Ok(());
    }
    let _killing = KILLING.read();
    // More than a fast machine can write in that time, since a full disk is not under test.
    let disk = Disk::new(4 << 30)?;
    let node = disk.open(&["--via", "loop"])?;
    let (name, words) = mkfs.split_first().expect("a program");
    text(program(name).args(words).arg(&node))?;
    let mut durable = BTreeMap::new();
    for (round, run_ms) in [700, 1500, 2500].into_iter().enumerate() {
        let node = if round == 0 { node.clone() } else { disk.open(&["--via", "loop"])? };
        disk.mount(&node)?;
        harvest(&disk.mount_point(), &durable)?;
        let pid = disk.pid()?;
        let dir = disk.mount_point();
        let synced = AtomicUsize::new(0);
        let written = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..3)
                .map(|number| {
                    let (dir, synced) = (&dir, &synced);
                    scope.spawn(move || write_until_it_fails(dir, synced, round as u64 * 10 + number))
                })
                .collect();
            // On a busy machine the first sync may take longer than the rest of the time.
            while synced.load(Ordering::Relaxed) == 0 && !writers.iter().all(|writer| writer.is_finished()) {
                std::thread::sleep(Duration::from_millis(10));
            }
            std::thread::sleep(Duration::from_millis(run_ms));
            text(program("kill").arg("-9").arg(pid.to_string()))?;
            let mut all = BTreeMap::new();
            for writer in writers {
                all.extend(writer.join().map_err(|_| anyhow::anyhow!("a writer panicked"))?);
            }
            Ok::<_, anyhow::Error>(all)
        })?;
        ensure!(!written.is_empty(), "nothing was written before the process was killed");
        durable.extend(written);
        let status = disk.say("status", &[])?;
        ensure!(status.status.code() == Some(4), "status of a killed process: {}", status.status);
        // A mounted file system prevents the cleanup.
        let refused = disk.say("close", &[])?;
        ensure!(refused.status.code() == Some(5), "{}: {}", refused.status, lossy(&refused.stderr));
        disk.unmount()?;
        if round == 1 {
            disk.close()?;
        }
    }
    // `open` cleans up as well.
    let node = disk.open(&["--via", "loop"])?;
    disk.mount(&node)?;
    harvest(&disk.mount_point(), &durable)?;
    disk.unmount()?;
    let (name, words) = fsck.split_first().expect("a program");
    text(program(name).args(words).arg(&node))?;
    disk.close()?;
    count("files_synced_before_kill", durable.len());
    Ok(())
}

#[test]
fn ext4_of_killed_process_replays_journal_and_is_clean() -> Result<()> {
    killed(&["mkfs.ext4", "-q", "-N", "60000"], &["e2fsck", "-fn"])
}

#[test]
fn xfs_of_killed_process_replays_journal_and_is_clean() -> Result<()> {
    killed(&["mkfs.xfs", "-q"], &["xfs_repair", "-n"])
}

#[test]
fn close_cleans_up_fuse_mount_of_killed_process() -> Result<()> {
    if !can_make_disks() {
        return Ok(());
    }
    let _killing = KILLING.read();
    let disk = Disk::new(32 << 20)?;
    let file = disk.open(&["--via", "fuse"])?;
    let pid = disk.pid()?;
    text(program("kill").arg("-9").arg(pid.to_string()))?;
    ensure!(fs::read(&file).is_err(), "the file still answers");
    disk.close()?;
    nothing_is_left(&disk, &file)
}

/// `close` is connected to a process that never answers.
#[test]
fn close_that_awaits_killed_process_cleans_up() -> Result<()> {
    if !can_make_disks() {
        return Ok(());
    }
    let _killing = KILLING.read();
    let disk = Disk::new(32 << 20)?;
    let file = disk.open(&["--via", "fuse"])?;
    let pid = disk.pid()?.to_string();
    text(program("kill").args(["-STOP", &pid]))?;
    std::thread::scope(|scope| {
        let close = scope.spawn(|| disk.close());
        // The name under which the control socket was bound, before it was renamed.
        let socket = format!("/~{pid}");
        let has_name = |line: &str| line.ends_with(&socket);
        // One listens, the other is a connection that waits to be accepted.
        let is_connected =
            || anyhow::Ok(fs::read_to_string("/proc/net/unix")?.lines().filter(|line| has_name(line)).count() > 1);
        while !is_connected()? && !close.is_finished() {
            std::thread::sleep(Duration::from_millis(10));
        }
        text(program("kill").args(["-KILL", &pid]))?;
        close.join().expect("no panic")
    })?;
    nothing_is_left(&disk, &file)
}

fn nothing_is_left(disk: &Disk, file: &Path) -> Result<()> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    ensure!(!mounts.contains(&disk.name), "the mount stays");
    ensure!(!file.exists(), "the file stays");
    let gone = disk.say("close", &[])?;
    ensure!(gone.status.code() == Some(4), "there was something left: {}", lossy(&gone.stderr));
    Ok(())
}
