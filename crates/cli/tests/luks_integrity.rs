//! LUKS2 volumes with integrity protection: `luksFormat --integrity`, and their use.

mod harness;

use harness::control::{Named, Run};
use harness::{Dir, FAST, call_with, have, memory, noise};
use inlock_tests::nbd::{Connection, Mode};
use rustix::process::Pid;
use std::fs;
use std::path::Path;
use std::time::Duration;

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
fn suspended_volume_has_no_key_and_goes_on_with_it() {
    let dir = Dir::new();
    let run = Run::new();
    let image = format(&dir, 24, &["--cipher", "aes-gcm-random", "--integrity", "aead"]);
    let server = Named::start(&run, "data", &[&image]);
    let connect = || Connection::open(Path::new(&server.socket), Duration::from_secs(120), Mode::Simple).unwrap();
    let mut client = connect();
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
        (&["--integrity", "hmac-sha256", "--integrity-inline"], "Inline integrity is not supported"),
        (&["--integrity", "hmac-sha256", "--offset", "49144"], "too small"),
    ] {
        let words = ["luksFormat", "-q"].into_iter().chain(options.iter().copied()).chain(FAST).chain([&*image]);
        call_with(b"secret", words).fails(1, &[said]);
        assert!(fs::read(&image).unwrap().iter().all(|byte| *byte == 0), "{options:?}");
    }
    let words = ["luksFormat", "-q", "--integrity", "none"].into_iter().chain(FAST).chain([&*image]);
    call_with(b"secret", words).works();
    call_with(b"secret", ["export", "--integrity-no-journal", "--range", "0:512", &image, "-"]).works();
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
