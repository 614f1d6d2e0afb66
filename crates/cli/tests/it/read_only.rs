//! Block devices that the kernel does not let anyone write: every command opens the volume read-only, and says so.

use crate::harness::storage::Loop;
use crate::harness::{Dir, Ended, call, call_with, has_fuse, noise};

const SAID: &str = ": the device is read-only; opened read-only";

/// Runs a command with the URI of a server of a volume.
fn served(words: &[&str], command: &str) -> Ended {
    let command = format!("{} {command}", env!("CARGO_BIN_EXE_inlock"));
    call_with(b"secret", [&["serve"][..], words, &["--run", &command]].concat())
}

#[test]
fn volume_on_read_only_device_is_read_only_and_says_so() {
    let dir = Dir::new();
    let input = dir.file("input", &noise(4096));
    let image = dir.luks2("image");
    call_with(b"secret", ["import", &input, &image]).works();
    let raw = dir.file("raw", &noise(1 << 20));
    let (Some(luks), Some(plain)) = (Loop::with(&image, &["--read-only"]), Loop::with(&raw, &["--read-only"])) else {
        return;
    };
    let key = dir.file("key", &[7; 32]);
    let by_path = format!("0 2048 crypt aes-xts-plain64 {} 0 {} 0", "7".repeat(64), plain.0);
    let number = {
        use std::os::unix::fs::MetadataExt;
        let number = std::fs::metadata(&plain.0).unwrap().rdev();
        format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number))
    };
    let by_number = by_path.replace(&plain.0, &number);
    let sources: [&[&str]; 5] = [
        &[&luks.0],
        &["--type", "raw", &plain.0],
        &["--type", "plain", "--key-file", &key, &plain.0],
        &["--table", &by_path],
        &["--table", &by_number],
    ];
    for source in sources {
        let ended = served(source, &format!("import --type raw {input} $uri"));
        let device = if source.len() == 1 { &luks.0 } else { &plain.0 };
        assert!(ended.err.contains(&format!("{device}{SAID}")), "{source:?}: {ended:?}");
        assert!(ended.err.contains("permission denied") || ended.err.contains("read-only."), "{source:?}: {ended:?}");
        // What asked for it has it without a warning.
        served(&[source, &["--read-only"]].concat(), "export --type raw --range 0:4096 $uri /dev/null").works();
        let imported = call_with(b"secret", [&["import", &input][..], source].concat());
        // A table that names its device by number is refused when that is open.
        imported.fails(1, &[if source.last() == Some(&&*by_number) { "is read-only." } else { "permission denied" }]);
        let export = [&["export"][..], source, &["--range", "0:512", "/dev/null"]].concat();
        call_with(b"secret", export).works();
    }
    assert!(std::fs::read(&raw).unwrap() == noise(1 << 20));
    // A writable device is written as before.
    drop(plain);
    let Some(plain) = Loop::over(&raw) else { return };
    served(&["--type", "raw", &plain.0], &format!("import --type raw {input} $uri")).works();
}

#[test]
fn attached_volume_on_read_only_device_is_read_only() {
    let dir = Dir::new();
    let raw = dir.file("raw", &noise(1 << 20));
    let Some(device) = Loop::with(&raw, &["--read-only"]) else { return };
    if !has_fuse() {
        return;
    }
    let name = format!("read-only-{}", std::process::id());
    let opened = call(["open", "--type", "raw", "--via", "fuse", &device.0, &name]);
    let status = call(["status", "--json", &name]);
    call(["close", &name]).works();
    assert!(opened.code == 0 && opened.err.contains(SAID), "{opened:?}");
    let status: serde_json::Value = serde_json::from_str(status.works().text()).unwrap();
    assert_eq!(status["read_only"], true);
}

#[test]
fn no_command_changes_a_header_on_read_only_device() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    let (secret, other, backup) = (dir.file("secret", b"secret"), dir.file("other", b"other"), dir.name("backup"));
    call(["luksHeaderBackup", &image, "--header-backup-file", &backup]).works();
    let before = std::fs::read(&image).unwrap();
    let Some(device) = Loop::with(&image, &["--read-only"]) else { return };
    let at = &device.0;
    let data = dir.image("data", 4);
    let said = format!("inlock: Cannot write to device {at}, permission denied.\nhint: make it writable, or work");
    for words in [
        format!("luksAddKey -q -d {secret} {at} {other}"),
        format!("luksChangeKey -q -d {secret} {at} {other}"),
        format!("luksRemoveKey -q {at} {secret}"),
        format!("luksKillSlot -q -d {secret} {at} 0"),
        format!("luksConvertKey -q -d {secret} --pbkdf pbkdf2 {at}"),
        format!("luksUUID -q --uuid 0bf1a1b5-1dd4-4f2a-8b3f-0e2bbf4e4c11 {at}"),
        format!("config --label x {at}"),
        format!("token add --key-description x {at}"),
        format!("convert -q --type luks1 {at}"),
        format!("erase -q {at}"),
        format!("luksHeaderRestore -q {at} --header-backup-file {backup}"),
        format!("luksFormat -q {at} {secret}"),
        format!("luksFormat -q --header {at} {data} {secret}"),
        format!("integrity format -q {at}"),
        format!("integrity resize {at}"),
        format!("verity format {data} {at}"),
    ] {
        call(words.split(' ')).fails(1, &[&said]);
    }
    // Nothing is to be repaired.
    call(["repair", "-q", at]).works();
    assert!(std::fs::read(&image).unwrap() == before);
}
