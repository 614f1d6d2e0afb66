//! Acknowledged writes that may be lost: every way to close the volume reports them, with a status other than 0.

use crate::harness::control::{Named, Run};
use crate::harness::storage::Thin;
use crate::harness::{Dir, FAST, call_with, noise};
use inlock_tests::nbd::{Connection, Mode};
use inlock_tests::wait::eventually;
use rustix::process::{Pid, Signal, kill_process};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(120);
const LOST: &str = "may be lost: a flush failed";

/// Writes more than the storage can hold; all writes are acknowledged.
fn write_too_much(socket: &str) {
    let mut client = Connection::open(Path::new(socket), PATIENCE, Mode::Simple).expect("it is served");
    for piece in 0..24 {
        client.write(piece << 20, &noise(1 << 20)).expect("the page cache takes it");
    }
}

/// Suspends the volume; the command and then `status` report the lost writes.
fn suspend(run: &Run) {
    run.call(&["suspend", "data"]).fails(1, &["writes may be lost"]);
    assert_eq!(run.json(&["status", "data", "--json"])["writes_lost"], true);
    assert!(run.call(&["status", "data"]).works().text().contains("  data loss: "));
}

fn signal(pid: u32) {
    kill_process(Pid::from_raw(pid as i32).expect("a process"), Signal::TERM).expect("it runs");
}

#[test]
fn exit_of_suspended_server_reports_lost_writes() {
    for io in ["uring", "sync"] {
        for (by_signal, resumed) in [(false, false), (true, false), (false, true)] {
            let (dir, run) = (Dir::new(), Run::new());
            let Some(thin) = Thin::new(&dir, 64, 8) else { return };
            let server = Named::start(&run, "data", &["--type", "raw", "--io", io, &thin.device.0]);
            write_too_much(&server.socket);
            suspend(&run);
            if resumed {
                run.call(&["resume", "data"]).works();
            }
            match by_signal {
                true => signal(server.pid()),
                false => run.call(&["close", "data"]).fails(1, &[]),
            }
            let (code, said) = server.ended();
            assert_eq!(code, Some(1), "{said}");
            assert!(said.contains(LOST) || (resumed && said.contains("final flush failed")), "{said}");
        }
    }
}

#[test]
fn close_of_suspended_volume_reports_lost_writes() {
    let (dir, run) = (Dir::new(), Run::new());
    let Some(thin) = Thin::new(&dir, 64, 8) else { return };
    let server = Named::start(&run, "data", &["--type", "raw", &thin.device.0]);
    write_too_much(&server.socket);
    suspend(&run);
    run.call(&["close", "data"]).fails(1, &[LOST, &thin.device.0, "hint: "]);
    assert_eq!(server.ended().0, Some(1));
    assert_eq!(run.left(), [] as [String; 0]);
}

#[test]
fn captive_command_does_not_hide_lost_writes() {
    let (dir, run) = (Dir::new(), Run::new());
    let Some(thin) = Thin::new(&dir, 64, 8) else { return };
    let inlock = env!("CARGO_BIN_EXE_inlock");
    let script = format!(
        "dd if=/dev/zero bs=1M count=24 2>/dev/null | tr '\\0' x > {0}/x && \
        nbdcopy {0}/x \"$uri\"; {inlock} suspend data; true",
        dir.name(".")
    );
    if !crate::harness::have("nbdcopy") {
        return;
    }
    let ended = run.call(&["serve", "--name", "data", "--type", "raw", &thin.device.0, "--run", &script]);
    ended.fails(1, &["suspended, but writes may be lost", LOST]);
}

#[test]
fn log_of_background_server_reports_lost_writes() {
    let (dir, run) = (Dir::new(), Run::new());
    let Some(thin) = Thin::new(&dir, 64, 8) else { return };
    let socket = run.socket("nbd");
    let address = format!("unix:{socket}");
    run.call(&["serve", "--background", "--name", "data", "--type", "raw", &thin.device.0, "--nbd", &address]).works();
    write_too_much(&socket);
    suspend(&run);
    let pid = run.json(&["status", "data", "--json"])["pid"].as_u64().unwrap();
    signal(pid as u32);
    let log = || std::fs::read_to_string(run.path("data.log")).unwrap_or_default();
    eventually("the log tells of the lost write", log, |log| log.contains(LOST));
}

#[test]
fn close_of_file_reports_lost_writes() {
    let run = Run::new();
    if !crate::harness::has_fuse() {
        return;
    }
    for suspended in [true, false] {
        let dir = Dir::new();
        let Some(thin) = Thin::new(&dir, 64, 8) else { return };
        let file = run.call(&["open", "--type", "raw", "--via", "fuse", &thin.device.0, "data"]);
        let path = file.works().text().trim().to_owned();
        let mut volume = std::fs::File::options().write(true).open(path).unwrap();
        for _ in 0..24 {
            // A full file system may already refuse some writes.
            let _ = volume.write_all(&noise(1 << 20));
        }
        let synced = if suspended { Ok(()) } else { volume.sync_all() };
        drop(volume);
        match suspended {
            true => suspend(&run),
            false => assert!(synced.is_err(), "a sync succeeds over lost writes"),
        }
        run.call(&["close", "data"]).fails(1, &[LOST]);
    }
}

/// A file that is cut short while it is served would be lengthened by a write at its old end, with zeroes between.
#[test]
fn write_at_the_old_end_of_a_cut_file_fails_and_leaves_no_gap() {
    const CUT: u64 = 1 << 20;
    let gcm = ["luksFormat", "-q", "--integrity", "aead", "--cipher", "aes-gcm-random", "--integrity-lazy"];
    for io in ["uring", "sync", "auto"] {
        for kind in ["raw", "raw in memory", "LUKS2", "sealed", "sealed, journal"] {
            let (dir, run) = (Dir::new(), Run::new());
            let memory = tempfile::tempdir_in("/dev/shm").expect("it is there");
            let image = match kind {
                "raw" => dir.file("image", &noise(8 << 20)),
                "raw in memory" => {
                    let image = memory.path().join("image");
                    std::fs::write(&image, noise(8 << 20)).expect("writable");
                    image.to_str().expect("UTF-8").to_owned()
                }
                "LUKS2" => dir.luks2("image"),
                _ => {
                    let image = dir.image("image", 24);
                    call_with(b"secret", gcm.into_iter().chain(FAST).chain([&*image])).works();
                    image
                }
            };
            let options: &[&str] = match kind {
                "raw" | "raw in memory" => &["--type", "raw"],
                "sealed" => &["--integrity-no-journal"],
                _ => &[],
            };
            let server = Named::start(&run, "data", &[&["--io", io, &*image], options].concat());
            let len = run.json(&["status", "data", "--json"])["sectors"].as_u64().expect("a number") * 512;
            let mut client = server.connect();
            client.write(0, &[1; 4096]).expect("it is whole");
            client.flush().expect("it is whole");
            let file = std::fs::File::options().write(true).open(&image).expect("it is there");
            let cut = file.metadata().expect("it is open").len() - CUT;
            file.set_len(cut).expect("it can be cut");
            // One that the worker copies, or gives to another thread.
            let written = [256 << 10, 4096].map(|length| client.write(len - length, &noise(length as usize)));
            if kind == "sealed, journal" {
                // It is in the journal: its copy to the end fails.
                run.call(&["close", "data"]).fails(1, &["may be lost", "hint: "]);
            } else {
                assert!(written.iter().all(Result::is_err), "{kind}, {io}: the end has moved");
                client.flush().expect_err("as after lost writes");
                client.write(0, &[2; 512]).expect_err("also where the file is");
                assert_eq!(run.json(&["status", "data", "--json"])["writes_lost"], true, "{kind}, {io}");
                client.read(len - (CUT / 2), 4096).expect_err("no zeroes, no noise");
                run.call(&["close", "data"]).fails(1, &[]);
            }
            assert_eq!(server.ended().0, Some(1), "{kind}, {io}");
            assert_eq!(file.metadata().expect("it is open").len(), cut, "{kind}, {io}: it has become longer");
        }
    }
}
