//! Volumes of `luksFormat`, checked by cryptsetup.

use crate::harness::{Dir, FAST, FAST1, call, call_with, have, run};
use std::process::Command;

fn cryptsetup(words: &[&str]) -> crate::harness::Ended {
    run(
        Command::new("cryptsetup").env("LC_ALL", "C").env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin").args(words),
        b"secret",
    )
}

/// Options, and lines of cryptsetup's dump of the volume.
const VARIANTS: &[(&[&str], &[&str])] = &[
    (&[], &["cipher: aes-xts-plain64", "sector: 4096 [bytes]", "PBKDF:      argon2id", "Key:        512 bits"]),
    (&["--type", "luks2", "--pbkdf", "argon2i", "-s", "256"], &["PBKDF:      argon2i\n", "Key:        256 bits"]),
    (&["--sector-size", "512", "-h", "sha512"], &["sector: 512 [bytes]", "AF hash:    sha512"]),
    (&["--sector-size", "2048", "-S", "5"], &["sector: 2048 [bytes]", "  5: luks2"]),
    (&["--label", "mine", "--subsystem", "sub"], &["Label:         \tmine", "Subsystem:     \tsub"]),
    (&["--uuid", "11111111-2222-4333-8444-555555555555"], &["UUID:          \t11111111-2222-4333-8444-555555555555"]),
    (&["-o", "40960"], &["offset: 20971520 [bytes]"]),
    (&["-c", "aes-cbc-essiv:sha256", "-s", "256"], &["cipher: aes-cbc-essiv:sha256"]),
];

#[test]
fn luks2_of_inlock_opens_with_cryptsetup() {
    if !have("cryptsetup") {
        return;
    }
    let dir = Dir::new();
    for (options, found) in VARIANTS {
        let image = dir.image("image", 24);
        call_with(b"secret", ["luksFormat", "-q", &image].iter().chain(*options).chain(&FAST)).works();
        let dump = cryptsetup(&["luksDump", &image]);
        for line in *found {
            assert!(dump.works().text().contains(line), "{options:?}: no {line:?} in {}", dump.text());
        }
        assert_eq!(call(["luksDump", &image]).works().text(), dump.text(), "{options:?}");
        cryptsetup(&["open", "--test-passphrase", &image]).works();
        assert_eq!(call(["luksUUID", &image]).works().text(), cryptsetup(&["luksUUID", &image]).works().text());
        cryptsetup(&["isLuks", "--type", "luks2", &image]).works();
    }
}

#[test]
fn luks1_of_inlock_opens_with_cryptsetup() {
    if !have("cryptsetup") {
        return;
    }
    let dir = Dir::new();
    let variants: [(&[&str], &str); 4] = [
        (&[], "MK bits:       \t512"),
        (&["-s", "256", "-h", "sha1"], "Hash spec:     \tsha1"),
        (&["-c", "aes-cbc-essiv:sha256", "-s", "128", "-S", "7"], "Cipher mode:   \tcbc-essiv:sha256"),
        (&["-o", "6144", "--pbkdf", "pbkdf2"], "Payload offset:\t6144"),
    ];
    for (options, found) in variants {
        let image = dir.image("image", 6);
        call_with(b"secret", ["luksFormat", "-q", &image].iter().chain(options).chain(&FAST1)).works();
        let dump = cryptsetup(&["luksDump", &image]);
        assert!(dump.works().text().contains(found), "{options:?}: no {found:?} in {}", dump.text());
        assert_eq!(call(["luksDump", &image]).works().text(), dump.text(), "{options:?}");
        cryptsetup(&["open", "--test-passphrase", &image]).works();
    }
}

#[test]
fn volume_of_cryptsetup_opens_with_inlock() {
    if !have("cryptsetup") {
        return;
    }
    let dir = Dir::new();
    for options in [&FAST[..], &FAST1[..]] {
        let image = dir.image("image", 24);
        cryptsetup(&[&["luksFormat", "-q", &image][..], options].concat()).works();
        call_with(b"secret", ["open", "--test-passphrase", &image]).works();
        call_with(b"Secret", ["open", "--test-passphrase", &image]).fails(2, &[]);
        assert_eq!(call(["luksDump", &image]).works().text(), cryptsetup(&["luksDump", &image]).works().text());
    }
}

#[test]
fn detached_header_leaves_data_unchanged() {
    let dir = Dir::new();
    for fast in [&FAST[..], &FAST1] {
        let data = dir.file("data", &crate::harness::noise(1 << 20));
        let header = dir.name("header");
        call_with(b"secret", ["luksFormat", "-q", &data, "--header", &header].iter().chain(fast)).works();
        assert_eq!(std::fs::read(&data).unwrap(), crate::harness::noise(1 << 20), "the data changed");
        call(["isLuks", &data]).fails(1, &[]);
        call(["isLuks", &data, "--header", &header]).works();
        call(["luksUUID", &header]).works();
        call_with(b"secret", ["open", "--test-passphrase", &data, "--header", &header]).works();
        let input = dir.file("input", &crate::harness::noise(5000));
        call_with(b"secret", ["import", &input, &data, "--header", &header]).works();
        let out = dir.name("out");
        call_with(b"secret", ["export", "-q", "--range", "0:5000", &data, &out, "--header", &header]).works();
        assert_eq!(std::fs::read(&out).unwrap(), crate::harness::noise(5000));
        if have("cryptsetup") {
            cryptsetup(&["open", "--test-passphrase", "--header", &header, &data]).works();
        }
        std::fs::remove_file(&header).unwrap();
    }
}

#[test]
fn detached_header_as_data_device_is_refused() {
    let dir = Dir::new();
    let data = dir.image("data", 1);
    let header = dir.name("header");
    call_with(b"secret", ["luksFormat", "-q", &data, "--header", &header].iter().chain(&FAST)).works();
    let before = std::fs::read(&header).unwrap();
    let input = dir.file("input", b"would overwrite the header");
    call_with(b"secret", ["import", &input, &header]).fails(1, &["the header is detached", "hint: ", "--header"]);
    call_with(b"secret", ["import", &input, &header, "--header", &header]).fails(1, &["the header is detached"]);
    call_with(b"secret", ["serve", &header, "--run", "true"]).fails(1, &["the header is detached"]);
    assert!(std::fs::read(&header).unwrap() == before);
    // While the volume is served, no new header is created.
    let again = format!("{} luksFormat -q {data} --header {header}", env!("CARGO_BIN_EXE_inlock"));
    let served = call_with(b"secret", ["serve", &data, "--header", &header, "--run", &again]);
    served.fails(5, &["is in use (locked by another process)."]);
    let other = dir.image("other", 1);
    let again = format!("{} luksFormat -q {other} --header {header}", env!("CARGO_BIN_EXE_inlock"));
    call_with(b"secret", ["serve", &data, "--header", &header, "--run", &again]).fails(5, &["is in use"]);
    // --header may name the image itself.
    let image = dir.luks2("image");
    call_with(b"secret", ["serve", &image, "--header", &image, "--run", "true"]).works();
}

#[test]
fn header_file_is_removed_if_format_fails() {
    let dir = Dir::new();
    let data = dir.image("data", 1);
    let header = dir.name("header");
    let format = |input: &[u8], more: &[&str]| {
        call_with(input, ["luksFormat", "-q", &data, "--header", &header].iter().chain(more).chain(&FAST))
    };
    format(b"", &[]).fails(1, &["Nothing to read"]);
    assert!(!dir.path("header").exists());
    format(b"secret", &["--uuid", "x"]).fails(1, &["Wrong LUKS UUID format"]);
    assert!(!dir.path("header").exists());
    call_with(b"secret", ["luksFormat", "-q", &data, "--header", &data].iter().chain(&FAST))
        .fails(1, &["the device itself"]);
    call_with(b"x", ["luksFormat", "-q", &data, "--header", "/nonexistent/header"])
        .fails(1, &["cannot create header file"]);
    // A short file is extended.
    dir.file("header", b"");
    format(b"secret", &[]).works();
    assert_eq!(std::fs::metadata(&header).unwrap().len(), 16 << 20);
}

#[test]
fn metadata_are_printed_as_stored() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    let json = call(["luksDump", "--dump-json-metadata", &image]);
    let value: serde_json::Value = serde_json::from_str(json.works().text()).unwrap();
    assert_eq!(value["segments"]["0"]["encryption"], "aes-xts-plain64");
    let stored = std::fs::read(&image).unwrap();
    assert!(stored[4096..].starts_with(json.text().trim_end().as_bytes()));
}

#[test]
fn defaults_are_those_of_cryptsetup() {
    let dir = Dir::new();
    let image = dir.image("image", 24);
    // Default PBKDF, with the shortest time.
    call_with(b"secret", ["luksFormat", "-q", &image, "-i", "1"]).works();
    let dump = call(["luksDump", &image]);
    for line in ["PBKDF:      argon2id", "AF hash:    sha256", "offset: 16777216 [bytes]", "Cipher key: 512 bits"] {
        assert!(dump.works().text().contains(line), "no {line:?} in {}", dump.text());
    }
}
