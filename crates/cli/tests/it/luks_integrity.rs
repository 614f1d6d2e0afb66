//! LUKS2 volumes with integrity protection: `luksFormat --integrity`, and their use.

use crate::harness::control::{Named, Run};
use crate::harness::{Dir, FAST, call, call_with, have, memory, newest, noise, run};
use inlock_tests::nbd::{Connection, command, errno};
use inlock_tests::wait::eventually;
use rustix::process::{Pid, Signal};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

/// Cipher, integrity, key size in bits, data unit.
const KINDS: [(&str, &str, &str, &str); 8] = [
    ("aes-xts-plain64", "hmac-sha256", "512", "4096"),
    ("aes-xts-random", "hmac-sha256", "512", "512"),
    ("aes-xts-random", "hmac-sha512", "256", "4096"),
    ("aes-cbc-random", "hmac-sha1", "256", "4096"),
    ("aes-gcm-random", "aead", "256", "4096"),
    ("aes-ccm-random", "aead", "280", "512"),
    ("aegis128-random", "aead", "128", "4096"),
    ("chacha20-random", "poly1305", "256", "4096"),
];

fn format(dir: &Dir, mib: u64, options: &[&str]) -> String {
    let image = dir.image("image", mib);
    let words = ["luksFormat", "-q"].into_iter().chain(options.iter().copied()).chain(FAST).chain([&*image]);
    call_with(b"secret", words).works();
    image
}

#[test]
fn data_come_back_for_every_cipher_and_no_changed_unit_is_returned() {
    for (cipher, integrity, bits, unit) in KINDS {
        let dir = Dir::new();
        let options = ["--cipher", cipher, "--integrity", integrity, "--key-size", bits, "--sector-size", unit];
        let image = format(&dir, 24, &options);
        // Zeroes with their tags were written.
        let empty = call_with(b"secret", ["export", &image, "-"]);
        assert!(empty.works().out.iter().all(|byte| *byte == 0), "{cipher}");
        let before = fs::read(&image).unwrap();
        let data = noise(1_000_000);
        let input = dir.file("input", &data);
        call_with(b"secret", ["import", &input, &image]).works();
        let exported = call_with(b"secret", ["export", "--range", "0:1000000", &image, "-"]);
        assert!(exported.works().out == data, "{cipher} {integrity}");
        call_with(b"wrong", ["export", &image, "-"]).fails(2, &["No key available"]);
        call_with(b"secret", ["import", "--integrity-no-journal", &input, &image]).works();
        let mut bytes = fs::read(&image).unwrap();
        let dump = call_with(b"", ["luksDump", &image]);
        assert!(dump.works().text().contains(&format!("cipher: {cipher}\n")), "{}", dump.text());
        // In the last unit that was written: the tags are before the data, and the journal is emptied.
        let at = (0..bytes.len()).rev().find(|at| bytes[*at] != before[*at]).unwrap();
        bytes[at] ^= 1;
        fs::write(&image, &bytes).unwrap();
        call_with(b"secret", ["export", "--range", "0:1000000", &image, "-"]).fails(1, &["cannot read"]);
    }
}

#[test]
fn volume_without_wipe_has_only_written_units() {
    let dir = Dir::new();
    let image = format(&dir, 24, &["--integrity", "hmac-sha256", "--integrity-no-wipe"]);
    let data = dir.file("input", &[7; 8192]);
    call_with(b"secret", ["import", "--integrity-no-journal", &data, &image]).works();
    let exported = call_with(b"secret", ["export", "--range", "0:8192", &image, "-"]);
    assert_eq!(exported.works().out, [7; 8192]);
    call_with(b"secret", ["export", "--range", "8192:4096", &image, "-"]).fails(1, &["cannot read"]);
}

#[test]
fn volume_with_marks_reads_zeroes_where_it_was_never_written() {
    for (cipher, integrity, bits, unit) in KINDS {
        let dir = Dir::new();
        let image = dir.file("image", &noise(24 << 20));
        let before = fs::read(&image).unwrap();
        let options = ["--cipher", cipher, "--integrity", integrity, "--key-size", bits, "--sector-size", unit];
        let words = ["luksFormat", "-q", "--integrity-lazy"].into_iter().chain(options).chain(FAST).chain([&*image]);
        call_with(b"secret", words).works();
        let after = fs::read(&image).unwrap();
        let changed = before[16 << 20..].iter().zip(&after[16 << 20..]).filter(|(a, b)| a != b).count();
        // Superblock, journal and tags, of which those of 512 bytes are the longest.
        assert!(changed < 3 << 20, "{cipher}: {changed} bytes of the data area were written");
        let empty = call_with(b"secret", ["export", &image, "-"]);
        assert!(empty.works().out.iter().all(|byte| *byte == 0), "{cipher}");
        let input = dir.file("input", &noise(100_000));
        call_with(b"secret", ["import", &input, &image]).works();
        let exported = call_with(b"secret", ["export", &image, "-"]);
        let (written, rest) = exported.works().out.split_at(100_000);
        assert!(written == noise(100_000) && rest.iter().all(|byte| *byte == 0), "{cipher}");
        let resumed = call_with(b"secret", ["luksFormat", "-q", "--resume-wipe", "--integrity-lazy", &image]);
        assert_eq!(resumed.works().text(), "0 blocks could not be read, and are marked as never written.\n");
    }
}

#[test]
fn suspended_volume_has_no_key_and_goes_on_with_it() {
    let dir = Dir::new();
    let run = Run::new();
    let image = format(&dir, 24, &["--cipher", "aes-gcm-random", "--integrity", "aead"]);
    let server = Named::start(&run, "data", &[&image]);
    let mut client = server.connect();
    client.write(5000, &[9; 10_000]).unwrap();
    let status = run.json(&["status", "data", "--json"]);
    assert_eq!((&status["integrity"]["integrity"], &status["integrity"]["mode"]), (&"aead".into(), &"journal".into()));
    let text = run.call(&["status", "data"]).works().text().to_owned();
    for line in ["  cipher:  aes-gcm-random\n", "  integrity: aead\n", "  integrity tag size: 28 [bytes]\n"] {
        assert!(text.contains(line), "{text}");
    }
    let dumped = call_with(b"secret", ["luksDump", "-q", "--dump-volume-key", &image]);
    let hex: String = dumped.works().text().rsplit("MK dump:").next().unwrap().split_whitespace().collect();
    let key: Vec<u8> = (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect();
    assert_eq!(key.len(), 32);
    run.call(&["suspend", "data"]).works();
    let pid = Pid::from_raw(server.pid() as i32).unwrap();
    if let Some(found) = memory::count(pid, &[&key]) {
        assert_eq!(found, 0, "the key is in memory while the volume is suspended");
    }
    run.call_with(b"wrong", &["resume", "data"]).fails(2, &["No key available"]);
    run.call_with(b"secret", &["resume", "data"]).works();
    assert_eq!(client.read(4999, 10_002).unwrap(), [&[0][..], &[9; 10_000], &[0]].concat());
    run.call(&["resize", "data"]).fails(1, &["Resize of LUKS2 device with integrity protection is not supported."]);
    drop(client);
    run.call(&["close", "data"]).works();
    assert_eq!(server.ended(), (Some(0), String::new()));
}

#[test]
fn volume_without_integrity_ignores_no_journal_with_a_warning() {
    let dir = Dir::new();
    let plain = ["--type", "plain"];
    for (image, more) in [(dir.luks2("two"), &[][..]), (dir.luks1("one"), &[]), (dir.image("plain", 1), &plain)] {
        let serve = ["serve", &image, "--run", "true", "--integrity-no-journal"];
        let served = call_with(b"secret", serve.into_iter().chain(more.iter().copied()));
        let warning = "the volume has no integrity protection, and --integrity-no-journal has no effect";
        assert!(served.code == 0 && served.err.contains(warning), "{served:?}");
    }
    let resumed = call_with(b"secret", ["luksFormat", "--resume-wipe", &dir.luks2("three")]);
    resumed.fails(1, &["Option --resume-wipe needs a LUKS2 volume with integrity protection."]);
    let raw = call(["serve", &dir.image("raw", 1), "--type", "raw", "--run", "true", "--integrity-no-journal"]);
    raw.fails(1, &["Option --integrity-no-journal is not allowed with type raw."]);
}

#[test]
fn mistakes_are_explained_and_nothing_is_written() {
    let dir = Dir::new();
    let image = dir.image("image", 24);
    for (options, said) in [
        (&["--integrity", "foo"][..], "No known integrity specification pattern detected."),
        (&["--type", "luks1", "--integrity", "hmac-sha256"], "Integrity option can be used only for LUKS2 format."),
        (&["--integrity", "aead"], "Cipher aes-xts-plain64 with --integrity aead is not available"),
        (&["--integrity", "aead", "--cipher", "aegis128-random"], "takes no key of 256 bits; it takes 128 bits"),
        (&["--integrity", "hmac-sha256", "--integrity-key-size", "100"], "multiple of 8 bits"),
        (
            &["--integrity", "poly1305", "--cipher", "chacha20-random", "--integrity-key-size", "256"],
            "needs --integrity",
        ),
        (&["--integrity-no-wipe"], "Option --integrity-no-wipe needs --integrity."),
        (&["--integrity-lazy"], "Option --integrity-lazy needs --integrity."),
        (
            &["--integrity", "hmac-sha256", "--integrity-lazy", "--integrity-no-wipe"],
            "--integrity-no-wipe is not allowed with --integrity-lazy",
        ),
        (&["--integrity", "hmac-sha256", "--integrity-inline"], "Inline integrity is not supported"),
        (&["--integrity", "hmac-sha256", "--offset", "49144"], "too small"),
    ] {
        let words = ["luksFormat", "-q"].into_iter().chain(options.iter().copied()).chain(FAST).chain([&*image]);
        call_with(b"secret", words).fails(1, &[said]);
        assert!(fs::read(&image).unwrap().iter().all(|byte| *byte == 0), "{options:?}");
    }
    let words = ["luksFormat", "-q", "--integrity", "none"].into_iter().chain(FAST).chain([&*image]);
    call_with(b"secret", words).works();
    call_with(b"secret", ["export", "--range", "0:512", &image, "-"]).works();
}

#[test]
fn header_is_the_one_that_cryptsetup_reads() {
    if !have("cryptsetup") {
        return;
    }
    let dir = Dir::new();
    for (cipher, integrity, bits, unit) in KINDS {
        let options = ["--cipher", cipher, "--integrity", integrity, "--key-size", bits, "--sector-size", unit];
        let image = format(&dir, 24, &options);
        let dump = |program: &str| {
            let output = std::process::Command::new(program).args(["luksDump", &image]).output().unwrap();
            assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
            output.stdout
        };
        assert!(dump("cryptsetup") == dump(env!("CARGO_BIN_EXE_inlock")), "{cipher}");
        let mut test = std::process::Command::new("cryptsetup");
        let passphrase = dir.file("passphrase", b"secret");
        test.args(["open", "--test-passphrase", "--key-file", &passphrase, &image]);
        assert!(test.status().unwrap().success(), "{cipher}");
    }
}

/// The newest cryptsetup knows more than Debian's: sizes of the MAC's key, and the salt's version of the superblock.
#[test]
fn header_is_the_one_that_the_newest_cryptsetup_reads() {
    if newest("cryptsetup").is_none() {
        return;
    }
    let theirs = |program: &str, words: &[&str]| run(newest(program).expect("as before").args(words), b"");
    let dir = Dir::new();
    let (passphrase, slice) = (dir.file("passphrase", b"secret"), dir.name("slice"));
    let plain = KINDS.map(|(cipher, integrity, bits, unit)| (cipher, integrity, bits, unit, &[][..]));
    let more: [(_, _, _, _, &[&str]); 3] = [
        ("aes-xts-random", "hmac-sha256", "512", "4096", &["--integrity-key-size", "128"]),
        ("aes-xts-plain64", "hmac-sha512", "512", "512", &["--integrity-key-size", "512"]),
        ("aes-gcm-random", "aead", "128", "512", &["--integrity-legacy-padding"]),
    ];
    for (cipher, integrity, bits, unit, more) in plain.into_iter().chain(more) {
        let options = ["--cipher", cipher, "--integrity", integrity, "--key-size", bits, "--sector-size", unit];
        let image = format(&dir, 24, &[&options, more].concat());
        let dump = theirs("cryptsetup", &["luksDump", &image]);
        assert_eq!(dump.works().text(), call(["luksDump", &image]).works().text(), "{cipher} {integrity} {more:?}");
        let words = ["luksDump", "--dump-json-metadata", &image];
        let json = |ended: crate::harness::Ended| serde_json::from_str::<Value>(ended.works().text()).unwrap();
        let metadata = json(call(words));
        assert_eq!(json(theirs("cryptsetup", &words)), metadata, "{cipher} {integrity} {more:?}");
        theirs("cryptsetup", &["open", "--test-passphrase", "--key-file", &passphrase, &image]).works();
        // What dm-integrity gets: the data segment by itself.
        let offset: usize = metadata["segments"]["0"]["offset"].as_str().unwrap().parse().unwrap();
        fs::write(&slice, &fs::read(&image).unwrap()[offset..]).unwrap();
        crate::harness::superblock::compare(&slice, &[]);
    }
}

/// Sector of the changed unit below: 100 units of 4096 bytes.
const BAD: u64 = 800;

/// Makes a volume, and changes a byte of one unit.
fn with_bad_unit(dir: &Dir) -> String {
    let image = format(dir, 24, &["--cipher", "aes-gcm-random", "--integrity", "aead", "--sector-size", "4096"]);
    let before = fs::read(&image).expect("as it should");
    let run = Run::new();
    let server = Named::start(&run, "data", &["--integrity-no-journal", &image]);
    let mut client = server.connect();
    client.write(BAD * 512, &noise(4096)).expect("as it should");
    drop(client);
    run.call(&["close", "data"]).works();
    let mut bytes = fs::read(&image).expect("as it should");
    // The tags are before the data.
    let at = (0..bytes.len()).rev().find(|at| bytes[*at] != before[*at]).expect("as it should");
    bytes[at] ^= 1;
    fs::write(&image, &bytes).expect("as it should");
    image
}

#[test]
fn bad_unit_fails_alone_and_is_counted_logged_once_and_shown() {
    let dir = Dir::new();
    let run = Run::new();
    let image = with_bad_unit(&dir);
    let metrics = run.socket("metrics");
    let server = Named::start(&run, "data", &["--metrics", &format!("unix:{metrics}"), &image]);
    let mut client = server.connect();
    let units = client.size / 4096;
    let mut mismatches = 0;
    let mut read = |client: &mut Connection, offset: u64, len: u64| {
        let reply = client.call(0, command::READ, offset, len, &[]).unwrap();
        assert!(reply.error == 0 || reply.error == errno::IO, "{reply:?}");
        mismatches += u64::from(reply.error != 0);
        reply.error == 0
    };
    let failed: Vec<u64> = (0..units).filter(|unit| !read(&mut client, unit * 4096, 4096)).collect();
    assert_eq!(failed, [BAD / 8]);
    // Any part of the unit, and what contains it.
    assert!(!read(&mut client, BAD * 512 + 1, 2) && !read(&mut client, 0, 1 << 20));
    assert!(read(&mut client, BAD * 512 - 5, 5) && read(&mut client, (BAD + 8) * 512, 5));
    // A program that knows nothing of Inlock sees the same.
    if have("qemu-io") {
        let uri = format!("nbd+unix:///?socket={}", server.socket);
        for (unit, is_bad) in [(BAD / 8 - 1, false), (BAD / 8, true), (BAD / 8 + 1, false)] {
            let command = format!("read {} 4096", unit * 4096);
            let output = std::process::Command::new("qemu-io").args(["-f", "raw", "-r", "-c", &command, &uri]).output();
            let output = output.unwrap();
            let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
            assert_eq!(text.contains("Input/output error"), is_bad, "unit {unit}: {text}");
            mismatches += u64::from(is_bad);
        }
    }
    client.write(0, &noise(8192)).unwrap();
    client.flush().unwrap();
    let status = run.json(&["status", "data", "--json"]);
    let shown = &status["integrity"];
    assert_eq!((&shown["mismatches"], &shown["mismatched_sectors"]), (&mismatches.into(), &vec![BAD].into()));
    assert_eq!((&shown["client_bytes"], &shown["commits"]), (&8192.into(), &1.into()), "{shown}");
    let text = run.call(&["status", "data"]).works().text().to_owned();
    assert!(text.contains(&format!("  tags:    {mismatches} mismatches, 1 commits, ")), "{text}");
    assert!(text.contains(&format!("  mismatches at sectors: {BAD} (the first of each MiB)\n")), "{text}");
    let mut scraper = std::os::unix::net::UnixStream::connect(&metrics).unwrap();
    scraper.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut scraped = String::new();
    scraper.read_to_string(&mut scraped).unwrap();
    let stored = shown["stored_bytes"].as_u64().unwrap();
    for line in [
        format!("inlock_integrity_mismatches_total{{volume=\"data\"}} {mismatches}"),
        "inlock_integrity_journal_commits_total{volume=\"data\"} 1".to_owned(),
        "inlock_integrity_written_bytes_total{volume=\"data\",place=\"clients\"} 8192".to_owned(),
        format!("inlock_integrity_written_bytes_total{{volume=\"data\",place=\"devices\"}} {stored}"),
        format!("inlock_integrity_write_amplification{{volume=\"data\"}} {:.4}", stored as f64 / 8192.0),
    ] {
        assert!(scraped.lines().any(|found| found == line), "no {line} in {scraped}");
    }
    drop(client);
    run.call(&["close", "data"]).works();
    let (code, err) = server.ended();
    let warning =
        format!("inlock: warning: {image}: the block at sector {BAD} does not match its tag and cannot be read\n");
    assert_eq!((code, err), (Some(0), warning));
}

#[test]
fn top_shows_commits_mismatches_and_write_amplification() {
    let dir = Dir::new();
    let run = Run::new();
    let server = Named::start(&run, "data", &[&with_bad_unit(&dir)]);
    let _other = Named::start(&run, "raw", &["--type", "raw", &dir.image("raw", 1)]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = server.connect();
            while !stop.load(Ordering::Relaxed) {
                client.write(0, &noise(65536)).unwrap();
                client.flush().unwrap();
                assert!(client.read(BAD * 512, 4096).is_err());
            }
        });
        let rows = run.json(&["top", "--once", "--json"]);
        let text = run.call(&["top", "--once"]).works().text().to_owned();
        stop.store(true, Ordering::Relaxed);
        let row = |name: &str| rows.as_array().unwrap().iter().find(|row| row["name"] == name).unwrap();
        let shown = |what: &str| row("data")["integrity"][what].as_f64().unwrap_or_else(|| panic!("no {what}: {rows}"));
        assert!(shown("commits_per_s") > 0.0 && shown("mismatches_per_s") > 0.0, "{rows}");
        assert!((1.0..10.0).contains(&shown("write_amplification")), "{rows}");
        assert!(row("raw").get("integrity").is_none(), "{rows}");
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].ends_with("COMMIT/s  MISMATCH/s  WRITTEN") && lines[1].ends_with('x'), "{text}");
        assert!(lines[2].starts_with("raw ") && lines[2].ends_with('-'), "{text}");
    });
    let alone = run.call(&["top", "--once", "raw"]);
    assert!(!alone.works().text().contains("COMMIT/s"), "{}", alone.text());
}

#[test]
fn interrupted_wipe_of_luks_format_is_continued() {
    let dir = Dir::new();
    let image = dir.image("image", 320);
    let mut format = crate::harness::inlock();
    format.args(["luksFormat", "-q"]).args(FAST).args(["--integrity", "hmac-sha512", "--sector-size", "512", &image]);
    format.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = format.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"secret").unwrap();
    // Header and journal take less, and a busy machine has time to interrupt the rest.
    let written = || {
        assert!(child.try_wait().unwrap().is_none(), "it was faster");
        fs::metadata(&image).unwrap().blocks() * 512
    };
    eventually("24 MiB are written", written, |written| *written >= 24 << 20);
    rustix::process::kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let mut err = String::new();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert!(!child.wait().unwrap().success() && err.contains("Continue it with --resume-wipe."), "{err}");
    let export = |range: &str| call_with(b"secret", ["export", "--range", range, &image, "-"]);
    export("0:4096").works();
    export("256M:4096").fails(1, &["cannot read"]);
    // What was written behind it stays.
    let input = dir.file("input", &noise(100_000));
    let run = Run::new();
    let server = Named::start(&run, "data", &["--integrity-no-journal", &image]);
    server.connect().write(256 << 20, &noise(100_000 / 512 * 512)).unwrap();
    run.call(&["close", "data"]).works();
    drop(server);
    call_with(b"wrong", ["luksFormat", "--resume-wipe", &image]).fails(2, &["No key available"]);
    call_with(b"secret", ["luksFormat", "-q", "--resume-wipe", "--integrity", "aead", &image])
        .fails(1, &["Option --integrity is not allowed with --resume-wipe."]);
    let resumed = call_with(b"secret", ["luksFormat", "-q", "--resume-wipe", &image]);
    assert!(resumed.works().text().ends_with(" blocks could not be read, and are filled with zeroes.\n"));
    let whole = call_with(b"secret", ["export", &image, "-"]);
    let whole = &whole.works().out;
    let (from, len) = (256 << 20, 100_000 / 512 * 512);
    assert!(whole[from..from + len] == fs::read(input).unwrap()[..len]);
    assert!(whole[..from].iter().chain(&whole[from + len..]).all(|byte| *byte == 0));
    let again = call_with(b"secret", ["luksFormat", "-q", "--resume-wipe", &image]);
    assert_eq!(again.works().text(), "0 blocks could not be read, and are filled with zeroes.\n");
    let plain = dir.luks2("plain");
    call_with(b"secret", ["luksFormat", "-q", "--resume-wipe", &plain])
        .fails(1, &["Option --resume-wipe needs a LUKS2 volume with integrity protection."]);
}

#[test]
fn persistent_stores_and_removes_the_flag_no_journal() {
    let dir = Dir::new();
    let run = Run::new();
    let image = format(&dir, 24, &["--integrity", "hmac-sha256"]);
    let flags = || {
        let dump = call_with(b"", ["luksDump", &image]);
        let line = dump.works().text().lines().find(|line| line.starts_with("Flags:")).unwrap().to_owned();
        line["Flags:".len()..].trim().to_owned()
    };
    let mode = |words: &[&str], persistent: bool| {
        let server = Named::start(&run, "data", &[words, &[&*image]].concat());
        if persistent {
            run.call(&["refresh", "data", "--persistent"]).works();
        }
        let mode = run.json(&["status", "data", "--json"])["integrity"]["mode"].clone();
        run.call(&["close", "data"]).works();
        assert_eq!(server.ended(), (Some(0), String::new()));
        mode
    };
    assert_eq!((mode(&[], true), flags()), ("journal".into(), "(no flags)".to_owned()));
    assert_eq!((mode(&["--integrity-no-journal"], false), flags()), ("direct".into(), "(no flags)".to_owned()));
    assert_eq!((mode(&["--integrity-no-journal"], true), flags()), ("direct".into(), "no-journal".to_owned()));
    assert_eq!((mode(&[], false), flags()), ("direct".into(), "no-journal".to_owned()));
    if crate::harness::has_fuse() {
        let words = ["open", &image, "data", "--via", "fuse", "--persistent"];
        run.call_with(b"secret", &words).works();
        let status = run.json(&["status", "data", "--json"]);
        run.call(&["close", "data"]).works();
        assert_eq!((&status["integrity"]["mode"], flags()), (&"journal".into(), "(no flags)".to_owned()));
    }
}

#[test]
fn damaged_journal_is_refused_by_name_and_salvaged_on_request() {
    let (dir, run) = (Dir::new(), Run::new());
    let image = format(&dir, 24, &["--cipher", "aes-gcm-random", "--integrity", "aead", "--integrity-lazy"]);
    let mut server = Named::start(&run, "data", &[&image]);
    let mut client = server.connect();
    client.write(0, &noise(64 << 10)).unwrap();
    client.flush().unwrap();
    server.kill();
    let whole = fs::read(&image).unwrap();
    // Behind the superblock: commit id, first entry's position, displaced bytes, and tag.
    let journal = (16 << 20) + 4096;
    let used =
        (0..4096).find(|section| whole[journal + section * 512..][..4] == [0; 4]).expect("the first entry") * 512;
    for byte in [504, 0, 8, 16] {
        let mut damaged = whole.clone();
        damaged[journal + used + byte] ^= 8;
        fs::write(&image, &damaged).unwrap();
        let words = ["the journal is damaged: ", "hint: nothing was written", "--integrity-salvage-journal"];
        call_with(b"secret", ["export", "--range", "0:4096", &image, "-"]).fails(1, &words);
        call_with(b"secret", ["serve", &image, "--run", "true"]).fails(1, &words);
        assert!(fs::read(&image).unwrap() == damaged, "byte {byte}: written to");
        let salvaged =
            call_with(b"secret", ["export", "--integrity-salvage-journal", "--range", "0:4096", &image, "-"]);
        assert_eq!(salvaged.code, 0, "{}", salvaged.err);
        assert!(fs::read(&image).unwrap() == damaged, "byte {byte}: written to");
        let salvaged = call_with(b"secret", ["serve", "--integrity-salvage-journal", &image, "--run", "true"]);
        assert!(salvaged.code == 0 && salvaged.err.contains("left out"), "{}", salvaged.err);
        call_with(b"secret", ["export", &image, "-"]).works();
    }
    fs::write(&image, &whole).unwrap();
    let exported = call_with(b"secret", ["export", "--range", "0:65536", &image, "-"]);
    assert!(exported.works().out == noise(64 << 10));
}
