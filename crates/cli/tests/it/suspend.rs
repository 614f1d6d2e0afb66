//! Suspending and resuming a running volume: no request is lost, and the key is wiped meanwhile.

use crate::harness::control::{Named, Run};
use crate::harness::{Dir, FAST, call_with, have, memory, noise};
use inlock_tests::nbd::{Connection, Mode};
use inlock_tests::random::Random;
use inlock_tests::wait::eventually;
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(120);

/// Number of completed requests of all kinds.
struct Load {
    stop: AtomicBool,
    done: AtomicU64,
}

/// Writes and reads back, each thread in its own part of the volume. Returns the final contents.
fn load(server: &Named, load: &Load, seed: u64, start: u64, len: usize) -> Vec<u8> {
    let mut client = server.connect();
    let mut random = Random::new(seed);
    let mut model = client.read(start, len).expect("as it should");
    while !load.stop.load(Ordering::Relaxed) {
        let at = random.below(len as u64 - 1) as usize;
        let size = 1 + random.below((len - at).min(70_000) as u64 - 1) as usize;
        if random.below(3) == 0 {
            assert!(
                client.read(start + at as u64, size).expect("as it should") == model[at..at + size],
                "other bytes at {at}"
            );
        } else {
            let bytes = random.bytes(size);
            client.write(start + at as u64, &bytes).expect("as it should");
            model[at..at + size].copy_from_slice(&bytes);
        }
        load.done.fetch_add(1, Ordering::Relaxed);
    }
    client.flush().expect("as it should");
    model
}

#[test]
fn requests_wait_while_suspended_and_none_is_lost() {
    let dir = Dir::new();
    let run = Run::new();
    let image = dir.luks2("image");
    for io in ["uring", "sync"] {
        let server = Named::start(&run, "data", &["--threads", "2", "--io", io, &image]);
        let state = Load { stop: AtomicBool::new(false), done: AtomicU64::new(0) };
        let (state, server_ref) = (&state, &server);
        let done = || state.done.load(Ordering::Relaxed);
        let moves_on = || {
            let enough = done() + 20;
            eventually("requests go on", done, |done| *done >= enough);
        };
        let parts = std::thread::scope(|scope| {
            let part = |number: u64| move || load(server_ref, state, number, number << 20, 1 << 20);
            let threads: Vec<_> = (0..4).map(|number| scope.spawn(part(number))).collect();
            for round in 0..6 {
                moves_on();
                run.call(&["suspend", "data"]).works();
                let status = run.json(&["status", "data", "--json"]);
                assert_eq!((&status["suspended"], &status["key_present"]), (&true.into(), &false.into()));
                // Each of the four threads may have an earlier reply to read.
                let most = done() + 4;
                std::thread::sleep(Duration::from_millis(100));
                assert!(done() <= most, "a request was answered while the volume was suspended");
                if round == 0 {
                    let text = run.call(&["status", "data"]).works().text().to_owned();
                    assert!(text.contains("  mode:    read/write (suspended)\n"), "{text}");
                    assert!(text.contains("  key location: none (wiped)\n"), "{text}");
                    assert_eq!(run.json(&["list", "--json"])[0]["state"], "suspended");
                    run.call(&["suspend", "data"]).fails(1, &["data is already suspended"]);
                    run.call_with(b"wrong", &["resume", "data"]).fails(2, &["No key available with this passphrase."]);
                    assert!(done() <= most);
                }
                run.call_with(b"secret", &["resume", "data"]).works();
            }
            moves_on();
            state.stop.store(true, Ordering::Relaxed);
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>().concat()
        });
        run.call(&["close", "data"]).works();
        assert_eq!(server.ended(), (Some(0), String::new()));
        let exported = call_with(b"secret", ["export", "--range", "0:4M", &image, "-"]);
        assert!(exported.works().out == parts, "{io}: the volume holds other bytes than were written");
    }
}

#[test]
fn fio_sees_no_error_while_the_volume_is_suspended_and_resumed() {
    if !have("fio") {
        return;
    }
    let dir = Dir::new();
    let run = Run::new();
    let server = Named::start(&run, "data", &[&dir.luks2("image")]);
    let uri = format!("--uri=nbd+unix:///?socket={}", server.socket);
    let words = [
        "--name=load",
        "--ioengine=nbd",
        &uri,
        "--rw=randwrite",
        "--bsrange=512-64k",
        "--size=8m",
        "--io_size=96m",
        "--iodepth=16",
        "--verify=crc32c",
        "--do_verify=1",
        "--verify_fatal=1",
        "--randseed=7",
        "--verify_state_save=0",
    ];
    let mut fio = Command::new("fio").args(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut rounds = 0;
    while fio.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(50));
        run.call(&["suspend", "data"]).works();
        run.call_with(b"secret", &["resume", "data"]).works();
        rounds += 1;
    }
    let output = fio.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains("err=5") && !said.contains("verify:"), "{said}");
    assert!(rounds > 1, "fio was done before the volume was suspended");
}

/// Returns the volume key of a LUKS volume, as cryptsetup prints it.
fn volume_key(dir: &Dir, image: &str) -> Vec<u8> {
    let key = dir.file("passphrase", b"secret");
    let words = ["luksDump", "-q", "--dump-volume-key", "--key-file", &key, image];
    let output = Command::new("cryptsetup").args(words).output().expect("as it should");
    let text = String::from_utf8(output.stdout).expect("as it should");
    let dump = text.split("MK dump:").nth(1).expect("a dump").split("\n\n").next().expect("as it should");
    let hex: String = dump.chars().filter(char::is_ascii_hexdigit).collect();
    (0..hex.len() / 2)
        .map(|place| u8::from_str_radix(&hex[2 * place..2 * place + 2], 16).expect("as it should"))
        .collect()
}

#[test]
fn key_is_not_in_memory_while_suspended() {
    let dir = Dir::new();
    let run = Run::new();
    let plain_key = Random::new(9).bytes(64);
    let plain_file = dir.file("key", &plain_key);
    let plain = dir.image("plain", 8);
    let mut cases = vec![(plain_key, vec!["--type", "plain", "-s", "512", "-d", &plain_file, &plain])];
    let (two, one) = (dir.image("two", 24), dir.luks1("one"));
    if have("cryptsetup") {
        // Realistic costs except for the time: Argon2 with several lanes and much memory.
        let words = ["luksFormat", "-q", &two, "--pbkdf-memory", "65536", "--pbkdf-force-iterations", "4"];
        call_with(b"secret", words).works();
        cases.push((volume_key(&dir, &two), vec![&two]));
        cases.push((volume_key(&dir, &one), vec![&one]));
    }
    for (key, words) in &cases {
        for background in [false, true] {
            let server = if background { None } else { Some(Named::start(&run, "data", words)) };
            let socket = run.socket("data.nbd");
            if background {
                let address = format!("unix:{socket}");
                let start = [&["serve", "--background", "--name", "data", "--nbd", &address][..], words].concat();
                run.call_with(b"secret", &start).works();
            }
            let pid = run.json(&["status", "data", "--json"])["pid"].as_i64().unwrap();
            let pieces: Vec<&[u8]> = key.chunks_exact(16).collect();
            let count = || memory::count(Pid::from_raw(pid as i32).unwrap(), &pieces);
            let mut client = Connection::open(Path::new(&socket), PATIENCE, Mode::Simple).unwrap();
            client.write(0, &noise(4096)).unwrap();
            // Control: a key schedule starts with the key.
            let Some(before) = count() else { return };
            assert!(before >= 2, "{words:?}: the key is not found while it is in use");
            run.call(&["suspend", "data"]).works();
            assert_eq!(
                count(),
                Some(0),
                "{words:?}, background: {background}: the key is there, {before} times before"
            );
            let resume = match words.contains(&"plain") {
                true => vec!["resume", "data", "-d", &plain_file],
                false => vec!["resume", "data"],
            };
            run.call_with(b"secret", &resume).works();
            assert!(count().unwrap() >= 2, "{words:?}");
            assert!(client.read(0, 4096).unwrap() == noise(4096));
            run.call(&["suspend", "data"]).works();
            assert_eq!(count(), Some(0), "{words:?}: after the second time");
            run.call(&["close", "data"]).works();
            if let Some(server) = server {
                assert_eq!(server.ended(), (Some(0), String::new()));
            }
        }
    }
}

#[test]
fn resume_with_wrong_key_is_refused() {
    let dir = Dir::new();
    let run = Run::new();
    // A plain volume cannot confirm a key; with a wrong one, writes would become noise.
    let plain = dir.image("plain", 1);
    let server = Named::start(&run, "plain", &["--type", "plain", &plain]);
    let mut client = server.connect();
    client.write(0, &noise(512)).unwrap();
    run.call(&["suspend", "plain"]).works();
    let refused = run.call_with(b"secreT", &["resume", "plain"]);
    refused.fails(2, &["Volume key does not match the volume.", "stays suspended"]);
    assert_eq!(run.json(&["status", "plain", "--json"])["suspended"], true);
    run.call_with(b"secret", &["resume", "plain"]).works();
    assert!(client.read(0, 512).unwrap() == noise(512));
    run.call(&["resume", "plain"]).fails(1, &["plain is not suspended"]);
    // cryptsetup's names are for LUKS volumes.
    run.call(&["luksSuspend", "plain"]).fails(1, &["Volume plain has type plain, not luks."]);
    run.call(&["suspend", "plain"]).works();
    run.call_with(b"secret", &["luksResume", "plain"]).fails(1, &["Volume plain has type plain, not luks."]);
    run.call_with(b"secret", &["resume", "plain"]).works();

    // A new header with the same passphrase has another key.
    let (image, other) = (dir.luks2("image"), dir.luks2("other"));
    let _server = Named::start(&run, "luks", &[&image]);
    run.call(&["suspend", "luks"]).works();
    let refused = run.call_with(b"secret", &["resume", "luks", "--header", &other]);
    refused.fails(2, &["Volume key does not match the volume."]);
    run.call_with(b"secret", &["resume", "luks", "--header", &image]).works();
    run.call(&["luksSuspend", "luks"]).works();
    run.call_with(b"secret", &["luksResume", "luks"]).works();

    let _server = Named::start(&run, "raw", &["--type", "raw", &dir.image("raw", 1)]);
    run.call(&["suspend", "raw"]).works();
    run.call(&["resume", "raw"]).works();
}

#[test]
fn resume_uses_detached_header() {
    let dir = Dir::new();
    let run = Run::new();
    let (data, header) = (dir.image("data", 4), dir.image("header", 16));
    let words = ["luksFormat", "-q", &data, "--header", &header];
    call_with(b"secret", words.into_iter().chain(FAST)).works();
    let _server = Named::start(&run, "data", &["--header", &header, &data]);
    assert_eq!(
        run.json(&["status", "data", "--json"])["header"],
        std::fs::canonicalize(&header).unwrap().to_str().unwrap()
    );
    run.call(&["suspend", "data"]).works();
    run.call_with(b"secret", &["resume", "data"]).works();
}

#[test]
fn suspended_volume_closes_and_fails_waiting_requests() {
    let dir = Dir::new();
    let run = Run::new();
    let image = dir.luks2("image");
    for by_signal in [false, true] {
        let server = Named::start(&run, "data", &[&image]);
        let mut client = server.connect();
        client.write(0, &[1; 4096]).unwrap();
        run.call(&["suspend", "data"]).works();
        std::thread::scope(|scope| {
            let waits = scope.spawn(move || client.write(0, &[2; 4096]));
            std::thread::sleep(Duration::from_millis(100));
            assert!(!waits.is_finished(), "a request was answered while the volume was suspended");
            if by_signal {
                kill_process(Pid::from_raw(server.pid() as i32).unwrap(), Signal::TERM).unwrap();
            } else {
                run.call(&["close", "data"]).works();
            }
            assert!(waits.join().unwrap().is_err(), "a write that was not carried out was answered with success");
            assert_eq!(server.ended(), (Some(0), String::new()));
        });
        let read = call_with(b"secret", ["export", "--range", "0:4096", &image, "-"]);
        assert!(read.works().out == [1; 4096]);
    }
}

#[test]
fn reload_replaces_table_of_served_volume() {
    let dir = Dir::new();
    let run = Run::new();
    let (image, other) = (dir.image("image", 2), dir.image("other", 2));
    let key = "0123456789abcdef".repeat(8);
    let crypt =
        |start: u32, sectors: u32, on: &str| format!("{start} {sectors} crypt aes-xts-plain64 {key} 0 {on} {start}");
    let reload = |table: &str| run.call(&["reload", "data", "--table", table]);
    let server = Named::start(&run, "data", &["--table", &crypt(0, 2048, &image)]);
    let mut client = server.connect();
    client.write(0, &noise(1 << 20)).unwrap();

    // Refused, without any change.
    let bits = crypt(0, 2048, &image).replace(&key, &key[..62]);
    for (table, status, words) in [
        (crypt(0, 2048, &other), 1, "was not opened on device"),
        (
            crypt(0, 1024, &image),
            1,
            "The table cannot be used: the new table has 524288 bytes, the device 1048576\nhint: extend the table",
        ),
        (crypt(0, 8192, &image), 1, ""),
        ("0 2048 linear image 0".to_owned(), 1, "relative path"),
        (bits, 1, "key"),
        ("0 2048 dance".to_owned(), 1, "dance"),
        (crypt(0, 2048, &image) + " 1 allow_discards", 1, "remove allow_discards from the table"),
    ] {
        reload(&table).fails(status, &[words]);
        assert!(client.read(0, 1 << 20).unwrap() == noise(1 << 20), "{table}");
    }
    run.call(&["reload", "data"]).fails(1, &["Option --table is required for reload action."]);
    run.call(&["reload", "missing", "--table", "0 8 zero"]).fails(4, &["not active"]);

    let before: serde_json::Value = serde_json::from_slice(&std::fs::read(run.path("data.json")).unwrap()).unwrap();
    // The second half becomes zeroes, and the volume grows.
    let file = dir.file(
        "table",
        format!("{}\n1024 1024 zero\n{}\n", crypt(0, 1024, &image), crypt(2048, 1024, &image)).as_bytes(),
    );
    reload(&file).works();
    assert!(client.read(0, 512 << 10).unwrap() == noise(1 << 20)[..512 << 10]);
    assert!(client.read(512 << 10, 512 << 10).unwrap() == vec![0; 512 << 10]);
    let mut status = run.json(&["status", "data", "--json"]);
    for segment in status["segments"].as_array_mut().unwrap() {
        assert_eq!(segment.as_object_mut().unwrap().remove("iv_large_sectors"), Some(segment["large_iv"].clone()));
    }
    assert_eq!((&status["type"], &status["sectors"]), (&"TABLE".into(), &3072.into()));
    assert_eq!(status["segments"].as_array().unwrap().len(), 3);
    // The state file has the new table and its key fingerprint, for the case that the process dies.
    let left: serde_json::Value = serde_json::from_slice(&std::fs::read(run.path("data.json")).unwrap()).unwrap();
    assert_eq!((&left["type"], &left["segments"]), (&"TABLE".into(), &status["segments"]));
    assert_ne!(left["key_fingerprint"], before["key_fingerprint"]);
    assert!(left["key_fingerprint"].is_object() && status["key_fingerprint"].is_null());

    // The keys came with the table, so another table brings them back.
    run.call(&["suspend", "data"]).works();
    run.call_with(b"secret", &["resume", "data"]).fails(1, &["came with its table", "inlock reload"]);
    reload(&file).works();
    assert_eq!(run.json(&["status", "data", "--json"])["suspended"], true);
    run.call(&["resume", "data"]).works();
    assert!(client.read(0, 512 << 10).unwrap() == noise(1 << 20)[..512 << 10]);
    run.call(&["close", "data"]).works();
    assert_eq!(server.ended(), (Some(0), String::new()));
}

#[test]
fn reload_without_advertised_discards_is_refused() {
    let dir = Dir::new();
    let run = Run::new();
    let line = format!("0 2048 crypt aes-xts-plain64 {} 0 {} 0", "0123456789abcdef".repeat(8), dir.image("image", 2));
    let allowing = line.clone() + " 1 allow_discards";
    let server = Named::start(&run, "data", &["--table", &allowing]);
    run.call(&["reload", "data", "--table", &line]).fails(1, &["add allow_discards to every encrypted line"]);
    for table in [&allowing, "0 2048 zero"] {
        run.call(&["reload", "data", "--table", table]).works();
        assert_eq!(run.json(&["status", "data", "--json"])["allow_discards"], true);
    }
    run.call(&["close", "data"]).works();
    assert_eq!(server.ended(), (Some(0), String::new()));
}
