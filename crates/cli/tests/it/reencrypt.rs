//! `reencrypt`: every kind of re-encryption, interrupted ones, and what is refused.

use crate::harness::killed::Killed;
use crate::harness::{Dir, Ended, FAST, call, call_with, have, inlock, noise, run};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

/// Bytes of a volume of [`Dir::luks2`], which is 24 MiB with its header.
const LEN: usize = 8 << 20;

/// Runs `reencrypt` with these words.
fn reencrypt(image: &str, words: &[&str]) -> Ended {
    call_with(b"secret", ["reencrypt", "-q", image].iter().chain(&FAST).chain(words))
}

/// Creates a volume with this content.
fn volume(dir: &Dir, content: &[u8], words: &[&str]) -> String {
    let image = dir.image("image", 24);
    call_with(b"secret", ["luksFormat", "-q", &image].iter().chain(&FAST).chain(words)).works();
    let input = dir.file("input", content);
    call_with(b"secret", ["import", "-q", &input, &image]).works();
    image
}

/// Returns the content of a volume.
fn content(image: &str, words: &[&str]) -> Vec<u8> {
    let ended = call_with(b"secret", ["export", "-q", image, "-"].iter().chain(words));
    assert_eq!(ended.code, 0, "{}", ended.err);
    ended.out
}

/// Returns what `luksDump` says of the segment and the keyslots: the words in the lines that have one of these.
fn dump(image: &str, words: &[&str]) -> String {
    let dump = call(["luksDump", image]).works().text().to_owned();
    let lines = dump.lines().filter(|line| words.iter().any(|word| line.contains(word)));
    lines.map(str::trim).collect::<Vec<_>>().join(" ")
}

#[test]
fn each_change_of_a_volume_keeps_the_content() {
    let input = noise(LEN);
    let dir = Dir::new();
    let image = volume(&dir, &input, &["--sector-size", "512"]);
    for (words, cipher, sector) in [
        (&[][..], "aes-xts-plain64", "512"),
        (&["--resilience", "journal", "--hotzone-size", "1M"], "aes-xts-plain64", "512"),
        (&["--resilience", "none"], "aes-xts-plain64", "512"),
        (&["--cipher", "serpent-xts-plain64", "--key-size", "256"], "serpent-xts-plain64", "512"),
        (&["--sector-size", "4096", "--force-offline-reencrypt"], "serpent-xts-plain64", "4096"),
        (&["--cipher", "aes-cbc-essiv:sha256", "--resilience-hash", "sha512"], "aes-cbc-essiv:sha256", "4096"),
        (&["--keep-key", "--sector-size", "1024"], "aes-cbc-essiv:sha256", "1024"),
    ] {
        let key = std::fs::read(&image).unwrap();
        reencrypt(&image, words).works();
        assert!(content(&image, &[]) == input, "{words:?}");
        let segment = dump(&image, &["cipher:", "sector:", "Requirements"]);
        assert_eq!(segment, format!("cipher: {cipher} sector: {sector} [bytes]"), "{words:?}");
        let changed = std::fs::read(&image).unwrap()[16 << 20..] != key[16 << 20..];
        assert!(changed, "{words:?}: all data are written");
        let keyslots = dump(&image, &[": luks2", ": reencrypt"]);
        assert_eq!(keyslots.matches("luks2").count(), 1, "{words:?}: {keyslots}");
    }
}

#[test]
fn passphrases_and_tokens_of_keyslots_are_kept() {
    let (dir, input) = (Dir::new(), noise(LEN));
    let image = volume(&dir, &input, &[]);
    let (other, key) = (dir.file("other", b"other"), dir.file("key", b"secret"));
    call(["luksAddKey", "-q", "--key-file", &key, "--new-key-slot", "3", &image, &other].iter().chain(&FAST)).works();
    let token = dir.file("token", br#"{"type":"mine","keyslots":["3"]}"#);
    call(["token", "import", &image, "--json-file", &token]).works();
    call(["config", "-S", "3", "--priority", "prefer", &image]).works();
    let third = dir.file("third", b"third");
    call(["luksAddKey", "-q", "--key-file", &key, "--new-key-slot", "5", &image, &third].iter().chain(&FAST)).works();
    call(["config", "-S", "5", "--priority", "ignore", &image]).works();
    let named = call(["reencrypt", "-q", "--key-file", &key, &image]);
    named.fails(1, &["only with --key-slot or with exactly one key slot active.", "hint: "]);
    let wrong = call_with(b"secret\nsecret\n", ["reencrypt", "-q", &image].iter().chain(&FAST));
    wrong.fails(2, &["No key available with this passphrase."]);
    call_with(b"secret\nother\nthird", ["reencrypt", "-q", &image].iter().chain(&FAST)).works();
    assert!(content(&image, &["--key-file", &other]) == input && content(&image, &["--key-file", &key]) == input);
    let kept = dump(&image, &["luks2", "Priority", "Keyslot:"]);
    assert_eq!(
        kept,
        "1: luks2 Priority:   normal 2: luks2 Priority:   preferred 4: luks2 Priority:   ignored Keyslot:    2"
    );
    // Keyslots that are not named go.
    call_with(b"other", ["reencrypt", "-q", "-S", "2", &image].iter().chain(&FAST)).works();
    call_with(b"secret", ["open", "--test-passphrase", &image]).fails(2, &[]);
    assert!(content(&image, &["--key-file", &other]) == input);
}

#[test]
fn device_is_encrypted_and_decrypted_in_place() {
    let (dir, input) = (Dir::new(), noise(LEN));
    for (sector, shift) in [("512", "8M"), ("4096", "2M")] {
        let image = dir.file("plain", &input);
        let file = std::fs::OpenOptions::new().write(true).open(&image).unwrap();
        file.set_len(24 << 20).unwrap();
        let header = dir.name(&format!("header-{sector}"));
        reencrypt(&image, &["--encrypt", "--reduce-device-size", shift, "--sector-size", sector]).works();
        let found = content(&image, &[]);
        assert!(found[..LEN] == input[..], "{sector}");
        assert_eq!(dump(&image, &["sector:", "Requirements"]), format!("sector: {sector} [bytes]"));
        reencrypt(&image, &["--encrypt", "--reduce-device-size", shift]).fails(1, &["already"]);
        reencrypt(&image, &["--decrypt"]).fails(1, &["its header is in the way of the data", "--header"]);
        reencrypt(&image, &["--decrypt", "--header", &header]).works();
        assert!(std::fs::read(&image).unwrap()[..LEN] == input[..], "{sector}");
        call(["isLuks", &image]).fails(1, &[]);
    }
    let (image, header) = (dir.file("plain", &input), dir.name("header"));
    reencrypt(&image, &["--encrypt", "--header", &header]).works();
    assert!(std::fs::read(&image).unwrap() != input && content(&image, &["--header", &header]) == input);
    reencrypt(&image, &["--decrypt", "--header", &header]).works();
    assert!(std::fs::read(&image).unwrap() == input);
}

/// Starts `reencrypt` with many zones, and returns it after this number of them.
fn interrupt(image: &str, words: &[&str], zones: usize) -> Killed {
    let mut command = inlock();
    command.args(["reencrypt", "--hotzone-size", "64K", "--progress-json", "--progress-frequency", "0", image]);
    command.args(FAST).args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Killed(command.spawn().expect("inlock starts"));
    child.stdin.take().unwrap().write_all(b"secret").unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    assert_eq!(output.lines().take(zones).map_while(Result::ok).count(), zones);
    child
}

/// Ways to go on with a re-encryption that was killed.
const GO_ON: &[&[&[&str]]] = &[
    &[&["inlock", "reencrypt", "-q", "--resume-only"]],
    &[&["inlock", "repair", "-q"], &["inlock", "reencrypt", "-q", "--resume-only", "--resilience", "journal"]],
    &[&["inlock", "serve", "--run", "true"], &["inlock", "reencrypt", "-q"]],
    &[
        &["cryptsetup", "repair", "-q"],
        &["cryptsetup", "reencrypt", "-q", "--resume-only", "--force-offline-reencrypt"],
    ],
    &[&["cryptsetup", "repair", "-q"], &["inlock", "reencrypt", "-q", "--resume-only"]],
];

#[test]
fn killed_re_encryption_goes_on_with_either_program() {
    let input = noise(LEN);
    for (number, steps) in GO_ON.iter().enumerate() {
        if steps.iter().any(|step| step[0] == "cryptsetup") && !have("cryptsetup") {
            continue;
        }
        for resilience in ["checksum", "journal"] {
            let dir = Dir::new();
            let image = volume(&dir, &input, &[]);
            drop(interrupt(&image, &["--resilience", resilience], 5 + 7 * number));
            let key = dir.file("key", b"secret");
            for step in *steps {
                let mut command = if step[0] == "inlock" { inlock() } else { Command::new("cryptsetup") };
                command.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin");
                let ended = run(command.args(&step[1..2]).args([&image, "--key-file", &key]).args(&step[2..]), b"");
                assert_eq!(ended.code, 0, "{resilience} {step:?}: {ended:?}");
            }
            assert!(content(&image, &[]) == input, "{resilience} {steps:?}");
            assert_eq!(dump(&image, &["Requirements", ": reencrypt"]), "", "{resilience} {steps:?}");
        }
    }
}

#[test]
fn signal_stops_after_a_zone_and_the_volume_stays_usable() {
    let (dir, input) = (Dir::new(), noise(LEN));
    let image = volume(&dir, &input, &[]);
    let mut child = interrupt(&image, &[], 3);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let mut err = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut err).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{err}");
    assert!(err.contains("Reencryption interrupted.") && err.contains("--resume-only"), "{err}");
    assert!(dump(&image, &["Requirements"]).contains("online-reencrypt-v2"));
    // It opens as it is, for reading and for writing, in the background as well.
    assert!(content(&image, &[]) == input);
    let (changed, half) = (noise(4096), LEN as u64 / 2);
    let part = dir.file("part", &changed);
    call_with(b"secret", ["import", "-q", &part, &image, "--range", &format!("{half}:4096")]).works();
    reencrypt(&image, &["--init-only"]).fails(1, &["LUKS2 reencryption already initialized. Aborting operation."]);
    call_with(b"secret", ["luksAddKey", "-q", &image, &part])
        .fails(1, &["unmet LUKS2 requirement", "inlock reencrypt --resume-only"]);
    reencrypt(&image, &["--resume-only"]).works();
    let mut all = input;
    all[half as usize..][..4096].copy_from_slice(&changed);
    assert!(content(&image, &[]) == all);
    reencrypt(&image, &["--resume-only"]).fails(1, &["Device reencryption not in progress."]);
}

#[test]
fn impossible_re_encryption_is_refused_and_writes_nothing() {
    let dir = Dir::new();
    let image = volume(&dir, &noise(LEN), &["--sector-size", "512"]);
    let luks1 = dir.luks1("luks1");
    let plain = dir.file("plain", &noise(LEN));
    for (image, words, text) in [
        (
            &image,
            &["--sector-size", "4096"][..],
            "Encryption sector size increase is not supported for offline device.",
        ),
        (&image, &["--sector-size", "1000"], "Unsupported encryption sector size."),
        (&image, &["--keep-key"], "No data segment parameters changed. Reencryption aborted."),
        (&image, &["--encrypt", "--decrypt"], "Options --encrypt and --decrypt cannot be combined."),
        (&image, &["--encrypt", "--reduce-device-size", "8M"], "is already LUKS device."),
        (&image, &["--reduce-device-size", "8M"], "Option --reduce-device-size needs --encrypt."),
        (&image, &["--hotzone-size", "1000"], "Option --hotzone-size takes a multiple of 512 bytes."),
        (&image, &["--device-size", "1G"], "its data have 8388608 bytes"),
        (&image, &["--resilience", "hope"], "Unknown resilience 'hope'"),
        (&image, &["--resilience-hash", "hope"], "hope"),
        (&image, &["--cipher", "aes-xts-plain64", "--key-size", "128"], "key"),
        (&image, &["--resume-only"], "Device reencryption not in progress."),
        (&image, &["--write-log"], "is not available"),
        (&luks1, &[], "LUKS2"),
        (&plain, &[], "is not a valid LUKS device."),
        (&plain, &["--encrypt"], "Encryption without detached header (--header) is not possible"),
        (&plain, &["--encrypt", "--reduce-device-size", "8M"], "is too small to be reduced by 8388608 bytes."),
        (&plain, &["--encrypt", "--reduce-device-size", "32K"], "The header takes"),
    ] {
        let before = std::fs::read(image).unwrap();
        let ended = reencrypt(image, words);
        ended.fails(1, &[text]);
        assert!(std::fs::read(image).unwrap() == before, "{words:?}: nothing is written");
    }
    let wrong = call_with(b"wrong", ["reencrypt", "-q", &image].iter().chain(&FAST));
    wrong.fails(2, &["No key available with this passphrase."]);
}

#[test]
fn volume_in_use_or_in_re_encryption_elsewhere_is_refused() {
    let dir = Dir::new();
    let image = volume(&dir, &noise(LEN), &[]);
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&image).unwrap();
    let child = interrupt(&image, &[], 2);
    // Stopped, so that it does not end.
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::STOP).unwrap();
    reencrypt(&image, &[]).fails(5, &["is in use"]);
    call_with(b"secret", ["export", "-q", &image, "-"]).fails(5, &["is in use"]);
    drop(child);
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: only root has the lock files of cryptsetup");
        return;
    }
    let mut uuid = [0; 36];
    file.read_exact_at(&mut uuid, 168).unwrap();
    let name = format!("/run/cryptsetup/LN_LUKS2-reencryption-{}", std::str::from_utf8(&uuid).unwrap());
    std::fs::create_dir_all("/run/cryptsetup").unwrap();
    let held = std::fs::File::create(&name).unwrap();
    held.lock().unwrap();
    reencrypt(&image, &[]).fails(5, &["is being re-encrypted by another process.", "hint: "]);
    drop(held);
    reencrypt(&image, &[]).works();
}
