//! `reencrypt NAME --start`: clients of an open volume while it is re-encrypted, paused, killed and opened again.

use crate::harness::control::{Named, Run};
use crate::harness::killed::Killed;
use crate::harness::{Dir, FAST, call, call_with, have, inlock, noise, run as run_program};
use inlock_tests::random::Random;
use inlock_tests::wait::eventually;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes of a volume of [`Dir::luks2`].
const LEN: usize = 8 << 20;
/// Parts of the volume, each of one client. Zones of 64 KiB lie across their ends.
const PARTS: [(u64, usize); 3] = [(0, 2_700_100), (2_700_100, 2_700_200), (5_400_300, LEN - 5_400_300)];
const ZONE: [&str; 2] = ["--hotzone-size", "64K"];

/// A client of the volume, and the content that it expects.
struct Client {
    start: u64,
    model: Vec<u8>,
    /// A write without a reply, and what it was to write.
    unknown: Option<(usize, Vec<u8>)>,
    random: Random,
}

/// Counts requests of all clients, and stops them.
#[derive(Default)]
struct Load {
    stop: AtomicBool,
    done: AtomicU64,
}

impl Client {
    fn new(seed: u64, (start, len): (u64, usize), content: &[u8]) -> Self {
        let model = content[start as usize..][..len].to_vec();
        Self { start, model, unknown: None, random: Random::new(seed) }
    }

    /// Reads, writes, writes zeroes and flushes until it is stopped, or the server dies.
    fn run(&mut self, server: &str, load: &Load) {
        let path = std::path::Path::new(server);
        let patience = std::time::Duration::from_secs(120);
        let mode = inlock_tests::nbd::Mode::Simple;
        let Ok(mut client) = inlock_tests::nbd::Connection::open(path, patience, mode) else { return };
        if let Some((at, new)) = self.unknown.take() {
            let found = client.read(self.start + at as u64, new.len()).expect("as it should");
            self.settle(at, &new, &found);
        }
        while !load.stop.load(Ordering::Relaxed) {
            let at = self.random.below(self.model.len() as u64 - 1) as usize;
            let len = 1 + self.random.below((self.model.len() - at).min(70_000) as u64 - 1) as usize;
            let offset = self.start + at as u64;
            match self.random.below(4) {
                0 | 1 => match client.read(offset, len) {
                    Ok(found) => assert!(found == self.model[at..at + len], "other bytes at {offset}, {len}"),
                    Err(_) => return,
                },
                2 => {
                    let bytes = self.random.bytes(len);
                    if client.write(offset, &bytes).is_err() {
                        self.unknown = Some((at, bytes));
                        return;
                    }
                    self.model[at..at + len].copy_from_slice(&bytes);
                }
                _ if client.flush().is_err() => return,
                _ => {}
            }
            load.done.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes over what a write without a reply has left: each sector is old or new.
    fn settle(&mut self, at: usize, new: &[u8], found: &[u8]) {
        let first = (512 - (self.start as usize + at) % 512) % 512;
        let mut ends: Vec<usize> = (first..new.len()).step_by(512).collect();
        ends.push(new.len());
        let mut start = 0;
        for end in ends {
            let part = &found[start..end];
            assert!(part == &new[start..end] || part == &self.model[at + start..at + end], "torn at {}", at + start);
            start = end;
        }
        self.model[at..at + new.len()].copy_from_slice(found);
    }
}

/// Returns the content of an image that is closed.
fn content(image: &str) -> Vec<u8> {
    let ended = call_with(b"secret", ["export", "-q", image, "-"]);
    assert_eq!(ended.code, 0, "{}", ended.err);
    ended.out
}

fn start(run: &Run, words: &[&str]) {
    let words = [&["reencrypt", "data", "--start"], &FAST[..], words].concat();
    run.call_with(b"secret", &words).works();
}

fn status(run: &Run) -> Value {
    run.json(&["reencrypt", "data", "--status", "--json"])
}

fn state(run: &Run) -> String {
    status(run)["state"].as_str().expect("a word").to_owned()
}

fn done(run: &Run) -> u64 {
    status(run)["done_bytes"].as_u64().expect("a number")
}

/// Returns what the state file tells a process that recovers the device.
fn published(run: &Run) -> Value {
    serde_json::from_slice(&std::fs::read(run.path("data.json")).expect("read")).expect("JSON")
}

fn finishes(run: &Run) {
    eventually("it is finished", || state(run), |state| state == "finished");
}

/// Runs clients while `meanwhile` runs, and returns their models.
fn under_load(clients: &mut [Client], server: &str, meanwhile: impl FnOnce(&Load)) {
    let load = Load::default();
    std::thread::scope(|scope| {
        for client in clients.iter_mut() {
            scope.spawn(|| client.run(server, &load));
        }
        // They stop if this fails, too.
        let _stop = Stop(&load.stop);
        meanwhile(&load);
    });
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn clients_of(content: &[u8]) -> Vec<Client> {
    (1..).zip(PARTS).map(|(seed, part)| Client::new(seed, part, content)).collect()
}

fn models(clients: &[Client]) -> Vec<u8> {
    clients.iter().flat_map(|client| client.model.iter().copied()).collect()
}

#[test]
fn volume_in_use_is_re_encrypted_and_nobody_notices() {
    for (io, words, cipher) in [
        ("uring", &["--cipher", "serpent-xts-plain64", "--key-size", "256"][..], "serpent-xts-plain64"),
        ("sync", &["--resilience", "journal", "--sector-size", "512"], "aes-xts-plain64"),
    ] {
        let (dir, run) = (Dir::new(), Run::new());
        let image = dir.luks2("image");
        let before = content(&image);
        let server = Named::start(&run, "data", &["--threads", "2", "--io", io, &image]);
        let mut clients = clients_of(&before);
        under_load(&mut clients, &server.socket, |load| {
            let done = || load.done.load(Ordering::Relaxed);
            eventually("clients work", done, |done| *done > 20);
            start(&run, &[&ZONE, words].concat());
            finishes(&run);
            let enough = done() + 100;
            eventually("clients go on", done, |done| *done > enough);
        });
        let info = run.json(&["status", "data", "--json"]);
        assert_eq!(
            (&info["segments"][0]["cipher"], &info["reencryption"]["done_bytes"]),
            (&cipher.into(), &LEN.into())
        );
        let published = published(&run);
        assert!(published.get("next").is_none() && published["segments"][0]["cipher"] == cipher, "{published}");
        // With its new key.
        run.call(&["suspend", "data"]).works();
        run.call_with(b"secret", &["resume", "data"]).works();
        assert!(server.connect().read(0, 4096).expect("as it should") == clients[0].model[..4096]);
        run.call(&["close", "data"]).works();
        assert!(content(&image) == models(&clients), "{io}");
        let dump = call(["luksDump", &image]);
        assert!(dump.text().contains(cipher) && !dump.text().contains("reencrypt"), "{}", dump.text());
    }
}

#[test]
fn re_encryption_is_paused_limited_and_goes_on() {
    let (dir, run) = (Dir::new(), Run::new());
    let image = dir.luks2("image");
    let before = content(&image);
    let server = Named::start(&run, "data", &["--threads", "2", &image]);
    run.call(&["reencrypt", "data", "--status"]).fails(1, &["Device reencryption not in progress."]);
    run.call(&["reencrypt", "data", "--pause"]).fails(1, &["is not being re-encrypted."]);
    let mut clients = clients_of(&before);
    under_load(&mut clients, &server.socket, |load| {
        let requests = || load.done.load(Ordering::Relaxed);
        start(&run, &[&ZONE[..], &["--rate", "256K"]].concat());
        eventually("zones are written", || done(&run), |done| *done > 0);
        run.call_with(b"secret", &[&["reencrypt", "data", "--start"], &FAST[..]].concat()).fails(1, &["already"]);
        run.call(&["reencrypt", "data", "--pause"]).works();
        let at = done(&run);
        assert!(state(&run) == "paused" && at < LEN as u64);
        let enough = requests() + 200;
        eventually("clients go on", requests, |done| *done > enough);
        assert_eq!((done(&run), &*state(&run)), (at, "paused"));
        assert!(run.call(&["status", "data"]).text().contains("reencryption:  in-progress, paused"));
        let (old, next) = (&published(&run)["key_fingerprint"], &published(&run)["next"]);
        assert!(old.is_object() && next["key_fingerprint"].is_object() && next["segments"][0].is_object(), "{next}");
        assert!(run.json(&["status", "data", "--json"]).get("next").is_none());
        // A volume with two keys.
        for verb in [&["suspend", "data"][..], &["resize", "data"]] {
            run.call(verb).fails(5, &["is being re-encrypted, and cannot be", "hint: "]);
        }
        call_with(b"secret", ["luksAddKey", "-q", &image, &dir.file("new", b"new")])
            .fails(1, &["unmet LUKS2 requirement", "inlock reencrypt --resume-only"]);
        call_with(b"secret", ["reencrypt", "-q", &image, "--resume-only"]).fails(5, &["is in use"]);
        run.call(&["reencrypt", "data", "--resume"]).works();
        run.call(&["reencrypt", "data", "--rate", "0"]).works();
        finishes(&run);
    });
    run.call(&["close", "data"]).works();
    assert!(content(&image) == models(&clients));
}

#[test]
fn killed_server_loses_nothing_and_the_volume_goes_on() {
    for (round, resilience) in ["checksum", "journal", "checksum"].into_iter().enumerate() {
        let (dir, run) = (Dir::new(), Run::new());
        let image = dir.luks2("image");
        let mut clients = clients_of(&content(&image));
        let mut random = Random::new(round as u64);
        let mut kills = 0;
        loop {
            let mut server = Named::start(&run, "data", &["--threads", "2", &image]);
            // It may have been killed before it began, or after the end.
            let has_begun = run.call(&["reencrypt", "data", "--status"]).code == 0;
            let mut is_finished = false;
            let socket = server.socket.clone();
            under_load(&mut clients, &socket, |_| {
                let words = ["--resilience", resilience];
                match has_begun {
                    true => run.call_with(b"secret", &[&["reencrypt", "data", "--resume"], &ZONE[..]].concat()),
                    false => run
                        .call_with(b"secret", &[&["reencrypt", "data", "--start"], &FAST[..], &ZONE, &words].concat()),
                }
                .works();
                let zones = random.below(40) * 65_536;
                let from = done(&run);
                eventually("zones are written", || done(&run), |done| *done >= (from + zones).min(LEN as u64));
                is_finished = state(&run) == "finished";
                if !is_finished {
                    server.kill();
                }
            });
            if is_finished {
                break;
            }
            kills += 1;
            drop(server);
        }
        run.call(&["close", "data"]).works();
        assert!(kills > 0, "it was killed");
        assert!(content(&image) == models(&clients), "{resilience}, {kills} kills");
        assert!(!call(["luksDump", &image]).text().contains("reencrypt"));
    }
}

#[test]
fn closed_volume_goes_on_without_a_server() {
    let (dir, run) = (Dir::new(), Run::new());
    let image = dir.luks2("image");
    let before = content(&image);
    let server = Named::start(&run, "data", &[&image]);
    start(&run, &[&ZONE[..], &["--rate", "256K"]].concat());
    eventually("zones are written", || done(&run), |done| *done > 0);
    run.call(&["close", "data"]).works();
    drop(server);
    assert!(call(["luksDump", &image]).text().contains("online-reencrypt-v2"));
    assert!(content(&image) == before, "it opens as it is");
    call_with(b"secret", ["reencrypt", "-q", &image, "--resume-only"]).works();
    assert!(content(&image) == before);
}

#[test]
fn impossible_re_encryption_of_an_open_volume_is_refused() {
    let (dir, run) = (Dir::new(), Run::new());
    let image = dir.image("image", 24);
    call_with(b"secret", ["luksFormat", "-q", &image, "--sector-size", "512"].iter().chain(&FAST)).works();
    let before = std::fs::read(&image).unwrap();
    let start =
        |words: &[&str]| run.call_with(b"secret", &[&["reencrypt", "data", "--start"], &FAST[..], words].concat());
    start(&[]).fails(4, &["data is not active"]);
    let server = Named::start(&run, "data", &[&image]);
    start(&["--sector-size", "4096"]).fails(1, &["sector size increase is not supported for an open volume."]);
    start(&["--encrypt"]).fails(1, &["An open volume is only re-encrypted or decrypted, as a whole"]);
    start(&["--decrypt"]).fails(1, &["--decrypt, --init-only and --resume-only go with --active-name."]);
    let active = ["reencrypt", "--active-name", "data"];
    run.call(&[&active[..], &["--resume-only"]].concat()).fails(1, &["Device reencryption not in progress."]);
    run.call(&[&active[..], &["--decrypt"]].concat()).fails(1, &["its data would move"]);
    start(&["--pause"]).fails(1, &["cannot be combined"]);
    let wrong = [&["reencrypt", "data", "--start"], &FAST[..]].concat();
    run.call_with(b"wrong", &wrong).fails(2, &["No key available with this passphrase."]);
    run.call(&["suspend", "data"]).works();
    start(&[]).fails(1, &["it is suspended"]);
    run.call_with(b"secret", &["resume", "data"]).works();
    run.call(&["resize", "data", "--size", "10000"]).works();
    start(&[]).fails(1, &["it does not have its whole length"]);
    drop(server);
    let server = Named::start(&run, "data", &["--readonly", &image]);
    start(&[]).fails(1, &["cannot be re-encrypted"]);
    drop(server);
    assert!(std::fs::read(&image).unwrap() == before, "nothing is written");
    let luks1 = dir.luks1("luks1");
    let _server = Named::start(&run, "data", &[&luks1]);
    start(&[]).fails(1, &["it is no LUKS2 volume"]);
}

/// The options are cryptsetup's, and the command waits for the end.
#[test]
fn open_volume_is_found_by_its_name_or_device_and_re_encrypted_to_the_end() {
    let (dir, run) = (Dir::new(), Run::new());
    let image = dir.luks2("image");
    let before = content(&image);
    let _server = Named::start(&run, "data", &[&image]);
    let reencrypt =
        |words: &[&str]| run.call_with(b"secret", &[&["reencrypt", "-q"], words, &FAST[..], &ZONE].concat());
    for words in [&["--active-name", "data"][..], &["--active-name", "/dev/mapper/data"], &[&image]] {
        let key = published(&run)["key_fingerprint"].clone();
        reencrypt(words).works();
        assert!(state(&run) == "finished" && published(&run)["key_fingerprint"] != key, "{words:?}");
    }
    reencrypt(&["--active-name", "data", "--init-only"]).works();
    assert_eq!((&*state(&run), done(&run)), ("paused", 0));
    reencrypt(&["--active-name", "data", "--init-only"]).fails(1, &["already initialized"]);
    reencrypt(&[&image, "--resume-only"]).works();
    assert_eq!(state(&run), "finished");

    let mut command = inlock();
    command.args(["reencrypt", "--active-name", "data", "--rate", "64K"].iter().chain(&FAST).chain(&ZONE));
    command.env("INLOCK_RUN_DIR", run.path("")).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut waiting = Killed(command.spawn().expect("it starts"));
    waiting.stdin.take().expect("a pipe").write_all(b"secret").expect("it reads");
    let has_begun = || run.call(&["reencrypt", "data", "--status"]).text().contains("running");
    eventually("it has begun", has_begun, |begun| *begun);
    eventually("zones are written", || done(&run), |done| *done > 0);
    let ctrl_c = || kill_process(Pid::from_child(&waiting), Signal::INT);
    eventually("it is paused", || (ctrl_c(), state(&run)).1, |state| state == "paused");
    let mut said = String::new();
    waiting.stderr.take().expect("a pipe").read_to_string(&mut said).expect("text");
    assert!(
        waiting.wait().expect("it ends").code() == Some(1) && said.contains("`inlock reencrypt data --resume`"),
        "{said}"
    );
    run.call(&["reencrypt", "data", "--rate", "0"]).works();
    reencrypt(&["--active-name", "data"]).works();
    run.call(&["close", "data"]).works();
    assert!(content(&image) == before);
}

#[test]
fn open_volume_with_a_detached_header_is_decrypted() {
    let (dir, run) = (Dir::new(), Run::new());
    let (plain, header) = (noise(LEN), dir.name("header"));
    let image = dir.file("image", &plain);
    let words = ["reencrypt", "-q", "--encrypt", "--header", &header, &image];
    call_with(b"secret", words.iter().chain(&FAST)).works();
    let server = Named::start(&run, "data", &["--header", &header, &image]);
    let words = [&["reencrypt", "-q", "--active-name", "data", "--decrypt"], &FAST[..], &ZONE].concat();
    run.call_with(b"secret", &words).works();
    assert!(server.connect().read(0, LEN).expect("as it should") == plain);
    // Without a key there is none to ask for.
    run.call(&["suspend", "data"]).works();
    run.call(&["resume", "data"]).works();
    assert!(server.connect().read(0, LEN).expect("as it should") == plain);
    run.call(&["close", "data"]).works();
    assert!(std::fs::read(&image).unwrap() == plain);
}

/// Two volumes have one header: when one is new, the other still has the old key.
#[test]
fn volume_with_another_key_than_its_header_is_refused_before_anything_is_written() {
    let (dir, run) = (Dir::new(), Run::new());
    let header = dir.name("header");
    let images = ["one", "two"].map(|name| dir.file(name, &noise(LEN)));
    call_with(b"secret", ["luksFormat", "-q", "--header", &header, &images[0]].iter().chain(&FAST)).works();
    let other = Run::new();
    let _one = Named::start(&run, "data", &["--header", &header, &images[0]]);
    let _two = Named::start(&other, "data", &["--allow-copy", "--header", &header, &images[1]]);
    let words = [&["reencrypt", "-q", "--active-name", "data"], &FAST[..]].concat();
    run.call_with(b"secret", &words).works();
    let before = std::fs::read(&header).unwrap();
    other.call_with(b"secret", &words).fails(2, &["Volume key does not match the volume."]);
    assert!(std::fs::read(&header).unwrap() == before);
}

/// The header would be written to one file, and the data to another.
#[test]
fn image_or_header_that_is_another_file_by_now_is_not_re_encrypted() {
    let (dir, run) = (Dir::new(), Run::new());
    let image = dir.luks2("image");
    let before = content(&image);
    let server = Named::start(&run, "data", &[&image]);
    let moved = dir.name("moved");
    std::fs::copy(&image, &moved).unwrap();
    let taken = std::fs::read(&image).unwrap();
    std::fs::rename(&moved, &image).unwrap();
    for words in [&["data", "--start"][..], &["--active-name", "data"], &[&image]] {
        let words = [&["reencrypt", "-q"], words, &FAST].concat();
        run.call_with(b"secret", &words).fails(1, &["is another file or device than the open one"]);
        assert!(std::fs::read(&image).unwrap() == taken);
    }
    drop(server);
    assert!(content(&image) == before);
}

#[test]
fn header_file_that_is_removed_stops_the_re_encryption_and_is_named() {
    let (dir, run) = (Dir::new(), Run::new());
    let (header, input) = (dir.name("header"), noise(LEN));
    let image = dir.file("image", &input);
    call_with(b"secret", ["luksFormat", "-q", "--header", &header, &image].iter().chain(&FAST)).works();
    let server = Named::start(&run, "data", &["--header", &header, &image]);
    let model = server.connect().read(0, LEN).expect("as it should");
    start(&run, &[&ZONE[..], &["--rate", "256K"]].concat());
    eventually("zones are written", || done(&run), |done| *done > 0);
    // Before the next zone.
    std::fs::remove_file(&header).unwrap();
    let ended = eventually("it stops", || status(&run), |status| status["state"] != "running");
    let error = ended["error"].as_str().unwrap_or_else(|| panic!("{ended}"));
    let rescue = error.split_once("copy ").and_then(|(_, rest)| rest.split_once(" before")).expect("a path").0;
    assert!(error.contains("was removed or replaced"), "{error}");
    assert!(server.connect().read(0, LEN).expect("as it should") == model);
    std::fs::copy(rescue, &header).unwrap();
    run.call(&["close", "data"]).works();
    let words = ["reencrypt", "-q", "--resume-only", "--header", &header, &image];
    call_with(b"secret", words).works();
    let found = call_with(b"secret", ["export", "-q", "--header", &header, &image, "-"]).works().out.clone();
    assert!(found == model);
}

#[test]
fn open_volume_is_named_with_its_own_image_alone() {
    let (dir, run) = (Dir::new(), Run::new());
    let (image, other) = (dir.luks2("image"), dir.luks2("other"));
    let _server = Named::start(&run, "data", &[&image]);
    let reencrypt = |image: &str| {
        run.call_with(b"secret", &[&["reencrypt", "-q", "--active-name", "data", image], &FAST[..]].concat())
    };
    for image in [&other, "/nowhere"] {
        reencrypt(image).fails(1, &["Volume data is not on"]);
    }
    reencrypt(&image).works();
}

#[test]
fn volume_that_closes_while_a_command_waits_is_named_with_what_goes_on() {
    let (dir, run) = (Dir::new(), Run::new());
    let image = dir.luks2("image");
    let before = content(&image);
    let _server = Named::start(&run, "data", &[&image]);
    let words = [&["reencrypt", "-q", "--active-name", "data", "--rate", "64K"], &FAST[..], &ZONE].concat();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| run.call_with(b"secret", &words));
        let has_begun = || run.call(&["reencrypt", "data", "--status"]).text().contains("running");
        eventually("it has begun", has_begun, |begun| *begun);
        run.call(&["close", "data"]).works();
        let said = ["was closed; go on with `inlock reencrypt --resume-only"];
        waiting.join().expect("it ends").fails(1, &said);
    });
    call_with(b"secret", ["reencrypt", "-q", "--resume-only", &image]).works();
    assert!(content(&image) == before);
}

#[test]
fn erased_volume_in_re_encryption_has_a_header_that_cryptsetup_reads() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    call_with(b"secret", ["reencrypt", "-q", "--init-only", &image].iter().chain(&FAST)).works();
    call(["erase", "-q", &image]).works();
    let dump = call(["luksDump", &image]);
    assert!(!dump.text().contains(": luks2\n") && dump.text().contains("online-reencrypt"), "{}", dump.text());
    call_with(b"secret", ["open", "--test-passphrase", &image]).fails(1, &[]);
    if have("cryptsetup") {
        run_program(Command::new("cryptsetup").args(["luksDump", &image]), b"").works();
    }
}

/// A small file system in memory.
struct Tmpfs(String);

impl Tmpfs {
    /// `None`: skipped.
    fn new(dir: &Dir, bytes: u64) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED: only root mounts a file system");
            return None;
        }
        let at = dir.name("tmpfs");
        std::fs::create_dir(&at).unwrap();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "none", &at]).status();
        assert!(mounted.is_ok_and(|status| status.success()), "tmpfs is mounted");
        Some(Self(at))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-l", &self.0]).status();
    }
}

#[test]
fn zone_that_cannot_be_written_fails_the_volume_and_is_recovered() {
    let (dir, run) = (Dir::new(), Run::new());
    let Some(tmpfs) = Tmpfs::new(&dir, 40 << 20) else { return };
    // Sparse: its zones take room when they are written.
    let image = dir.luks2("image");
    let (before, there) = (content(&image), format!("{}/image", tmpfs.0));
    let copied = Command::new("cp").args(["--sparse=always", &image, &there]).status();
    assert!(copied.is_ok_and(|status| status.success()));
    let ballast = format!("{}/ballast", tmpfs.0);
    let server = Named::start(&run, "data", &["--threads", "2", &there]);
    let mut client = server.connect();
    start(&run, &[&ZONE[..], &["--rate", "1M"]].concat());
    eventually("zones are written", || done(&run), |done| *done > 0);
    let full = Command::new("dd").args(["if=/dev/zero", "bs=64k", &format!("of={ballast}")]).output().unwrap();
    assert!(!full.status.success(), "no room is left");
    eventually("a zone fails", || state(&run), |state| state == "failed");
    let found = status(&run);
    assert!(found["error"].as_str().is_some_and(|error| error.contains("No space left")), "{found}");
    let error = client.read(0, 512).expect_err("the volume has failed").to_string();
    assert!(error.contains("error 5"), "{error}");
    drop(server);
    std::fs::remove_file(&ballast).unwrap();
    call_with(b"secret", ["export", "-q", &there, "-"]).fails(1, &["was interrupted in a zone", "hint: "]);
    assert_eq!(call_with(b"secret", ["repair", "-q", &there]).code, 0);
    assert!(content(&there) == before, "the zone is recovered");
    call_with(b"secret", ["reencrypt", "-q", &there, "--resume-only"]).works();
    assert!(content(&there) == before);
}
