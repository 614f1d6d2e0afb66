//! `reencrypt`: every kind of re-encryption, interrupted ones, and what is refused.

use crate::harness::killed::Killed;
use crate::harness::{Dir, Ended, FAST, call, call_with, have, inlock, noise, run};
use crate::header_policy;
use inlock_cipher::{CipherSpec, DataUnitSize, InOut, IvNumber, IvNumbering, new_sector_cipher};
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

#[test]
fn refused_decryption_leaves_the_device_as_it_was() {
    let (dir, input) = (Dir::new(), noise(LEN));
    let image = volume(&dir, &input, &["--sector-size", "4096"]);
    let (before, header) = (std::fs::read(&image).unwrap(), dir.name("header"));
    let refused = reencrypt(&image, &["--decrypt", "--header", &header, "--device-size", "1049088"]);
    refused.fails(1, &["not aligned to encryption sector size (4096 bytes)"]);
    assert!(std::fs::read(&image).unwrap() == before);
    reencrypt(&image, &["--decrypt", "--header", &header]).works();
    assert!(std::fs::read(&image).unwrap()[..LEN] == input);
}

/// The header was exported once, and the volume got another key since; or it is that of another volume.
#[test]
fn header_of_another_volume_or_key_is_refused_and_nothing_is_written() {
    let (dir, input) = (Dir::new(), noise(LEN));
    let (image, stale, other) = (volume(&dir, &input, &[]), dir.name("stale"), dir.name("other"));
    call(["luksHeaderBackup", &image, "--header-backup-file", &stale]).works();
    reencrypt(&image, &[]).works();
    let second = Dir::new();
    call(["luksHeaderBackup", &volume(&second, &input, &[]), "--header-backup-file", &other]).works();
    let before = std::fs::read(&image).unwrap();
    for (header, words) in [(&stale, &["--decrypt"][..]), (&other, &["--decrypt"]), (&stale, &[])] {
        let refused = reencrypt(&image, &[words, &["--header", header]].concat());
        refused.fails(1, &["it has a LUKS header, which is not the one that --header names"]);
        assert!(std::fs::read(&image).unwrap() == before);
    }
}

#[test]
fn part_of_a_device_is_encrypted_and_nothing_else_is_touched() {
    let (dir, input, rest) = (Dir::new(), noise(LEN), noise(LEN));
    let image = dir.file("plain", &[input.clone(), rest.clone()].concat());
    // The header, the data, what is not asked for, and the place that the first data have meanwhile.
    for (words, start, kept) in [
        (&["--device-size", "1M", "--reduce-device-size", "8M"][..], 4 << 20, 5 << 20..12 << 20),
        (&["--device-size", "6M", "--reduce-device-size", "10M"], 5 << 20, 11 << 20..11 << 20),
        (&["--offset", "2048", "--device-size", "2M", "--reduce-device-size", "8M"], 1 << 20, 3 << 20..15 << 20),
    ] {
        let len = if words[0] == "--offset" { 2 << 20 } else { words[1].trim_end_matches('M').parse().unwrap() };
        let len = if len < 1 << 20 { len << 20 } else { len };
        let whole = [input.clone(), rest.clone()].concat();
        std::fs::write(&image, &whole).unwrap();
        reencrypt(&image, &[&["--encrypt"], words].concat()).works();
        assert!(content(&image, &[])[..len] == whole[..len], "{words:?}");
        assert!(std::fs::read(&image).unwrap()[kept.clone()] == whole[kept], "{words:?}");
        assert_eq!(dump(&image, &["offset: ", "Requirements"]), format!("offset: {start} [bytes]"), "{words:?}");
    }
    let detached = dir.name("detached");
    std::fs::write(&image, &rest).unwrap();
    reencrypt(&image, &["--encrypt", "--header", &detached, "--offset", "2048"]).works();
    assert!(std::fs::read(&image).unwrap()[..1 << 20] == rest[..1 << 20]);
    assert!(content(&image, &["--header", &detached]) == rest[1 << 20..]);
}

#[test]
fn key_derivations_of_keyslots_are_kept_unless_others_are_asked_for() {
    let (dir, input) = (Dir::new(), noise(LEN));
    let image = volume(&dir, &input, &[]);
    let (other, key) = (dir.file("other", b"other"), dir.file("key", b"secret"));
    let costs = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1234"];
    call(["luksAddKey", "-q", "--key-file", &key, &image, &other].iter().chain(&costs)).works();
    call_with(b"secret\nother\n", ["reencrypt", "-q", &image]).works();
    assert_eq!(dump(&image, &["PBKDF:"]), "PBKDF:      argon2id PBKDF:      pbkdf2");
    assert!(dump(&image, &["Memory:", "Iterations:"]).starts_with("Memory:     32 Iterations: 1234 Iterations: "));
    let words = ["reencrypt", "-q", "--disable-keyring", "--new-key-size", "256", &image];
    call_with(b"secret\nother\n", words.iter().chain(&FAST)).works();
    assert_eq!(dump(&image, &["PBKDF:"]), "PBKDF:      argon2id PBKDF:      argon2id");
    assert!(dump(&image, &["Key:"]).contains("256 bits"));
    assert!(content(&image, &["--key-file", &other]) == input);
}

#[test]
fn new_volume_key_comes_from_a_file_and_may_have_another_length() {
    let (dir, input) = (Dir::new(), noise(LEN));
    let image = volume(&dir, &input, &["--cipher", "aes-cbc-essiv:sha256", "--key-size", "256"]);
    let (same, short) = (dir.file("same", &[9; 32]), dir.file("short", &[7; 16]));
    for (key, words) in [(&same, &[][..]), (&short, &["--new-key-size", "128"])] {
        reencrypt(&image, &[&["--new-volume-key-file", key], words].concat()).works();
        call(["open", "--test-passphrase", &image, "--volume-key-file", key]).works();
        assert!(content(&image, &[]) == input, "{key}");
    }
    reencrypt(&image, &["--new-key-size", "512"]).fails(1, &["key-size"]);
}

#[test]
fn volume_is_re_encrypted_by_its_keys_alone_and_loses_its_keyslots() {
    let (dir, input) = (Dir::new(), noise(LEN));
    let (old, new) = (dir.name("old"), dir.file("new", &noise(64)));
    let image = volume(&dir, &input, &["--key-size", "512"]);
    call_with(b"secret", ["luksDump", "-q", "--dump-volume-key", "--volume-key-file", &old, &image]).works();
    let before = std::fs::read(&image).unwrap();
    let by_keys = ["--volume-key-file", &old, "--new-volume-key-file", &new, "--new-key-size", "512"];
    for (words, code, text) in [
        (&by_keys[..], 1, "Use --force-no-keyslots"),
        (&["--force-no-keyslots"], 1, "--force-no-keyslots and a passphrase"),
        (&["--force-no-keyslots", "--volume-key-file", &old], 1, "needs --new-volume-key-file"),
        (&[&["--force-no-keyslots"], &by_keys[..4]].concat(), 1, "must be paired with --new-key-size"),
        (&[&["--force-no-keyslots", "--decrypt"], &by_keys[..]].concat(), 1, "cannot be combined"),
        (
            &["--force-no-keyslots", "--volume-key-file", &new, "--new-volume-key-file", &old, "--new-key-size", "512"],
            2,
            "does not match the volume",
        ),
    ] {
        reencrypt(&image, words).fails(code, &[text]);
        assert!(std::fs::read(&image).unwrap() == before, "{words:?}");
    }
    let by_keys = [&["--force-no-keyslots"], &by_keys[..]].concat();
    reencrypt(&image, &[&["--init-only"], &by_keys[..]].concat()).works();
    // The keyslots of the old key are there until the end.
    call_with(b"secret", ["reencrypt", "-q", "--resume-only", &image])
        .fails(1, &["one of both keys has no keyslot", "do not restore"]);
    // In between it opens with both keys, in any order.
    let size = ["--key-size", "512"];
    for keys in [[&old, &new], [&new, &old]] {
        let words = [&["--volume-key-file", keys[0], "--volume-key-file", keys[1]], &size[..]].concat();
        assert!(content(&image, &words) == input);
    }
    for keys in [&[&old][..], &[&new], &[&new, &new], &[&old, &old]] {
        let words = keys.iter().flat_map(|key| ["--volume-key-file", key]).chain(size);
        call(["open", "--test-passphrase", &image].into_iter().chain(words)).fails(2, &["does not match the volume"]);
    }
    let three = ["--volume-key-file=a", "--volume-key-file=b", "--volume-key-file=c"];
    call(["open", "--test-passphrase", &image].iter().chain(&three)).fails(1, &["only 2 of each option"]);
    call(["luksDump", &image].iter().chain(&three[1..])).fails(1, &["only 1 of each option"]);
    let swapped = ["--volume-key-file", &new, "--new-volume-key-file", &old, "--new-key-size", "512"];
    reencrypt(&image, &[&["--resume-only"], &swapped[..]].concat()).fails(2, &[]);
    reencrypt(&image, &[&["--resume-only"], &by_keys[..]].concat()).works();
    assert_eq!(dump(&image, &[": luks2", "Requirements"]), "");
    call_with(b"secret", ["open", "--test-passphrase", &image]).fails(1, &["keyslot"]);
    let by_new = ["--volume-key-file", &new, "--key-size", "512"];
    assert!(content(&image, &by_new) == input);
    // Without keyslots there are none to drop.
    let again =
        ["--volume-key-file", &new, "--key-size", "512", "--new-volume-key-file", &old, "--new-key-size", "512"];
    reencrypt(&image, &again).works();
    assert!(content(&image, &["--volume-key-file", &old, "--key-size", "512"]) == input);
    let added = ["luksAddKey", "-q", "--volume-key-file", &old, "--key-size", "512", &image];
    call_with(b"secret", added.iter().chain(&FAST)).works();
    assert!(content(&image, &[]) == input);
}

/// An encryption of data that move, which is killed at one of its first writes.
struct Beginning {
    dir: Dir,
    input: Vec<u8>,
    image: String,
}

/// The command of [`Beginning`].
const ENCRYPT: [&str; 4] = ["--encrypt", "--reduce-device-size", "32M", "--init-only"];

impl Beginning {
    fn new() -> Self {
        let (dir, input) = (Dir::new(), noise(20 << 20));
        let image = dir.file("image", &input);
        Self { dir, input, image }
    }

    /// Begins with the device as it was, and is killed before a write, counted from 1. Returns whether there was one.
    fn is_killed_at(&self, write: usize) -> bool {
        std::fs::write(&self.image, &self.input).unwrap();
        std::fs::OpenOptions::new().write(true).open(&self.image).unwrap().set_len(52 << 20).unwrap();
        let inject = format!("inject=pwrite64:signal=KILL:when={write}");
        let mut command = Command::new("strace");
        command.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=pwrite64", "-e", &inject]);
        command.arg(env!("CARGO_BIN_EXE_inlock")).args(["reencrypt", "-q", &self.image]).args(FAST).args(ENCRYPT);
        run(&mut command, b"secret").code != 0
    }

    /// Begins again. Returns whether the first attempt was found.
    fn has_begun_before(&self) -> bool {
        let ended = reencrypt(&self.image, &ENCRYPT);
        assert!([0, 1].contains(&ended.code), "{}", ended.err);
        if ended.code == 1 {
            assert!(ended.err.contains("had begun") || ended.err.contains("already"), "{}", ended.err);
            assert!(ended.err.contains("--resume-only"), "{}", ended.err);
        }
        ended.code == 1
    }

    fn check(&self) {
        // It may warn of the first copy of the header.
        let ended = reencrypt(&self.image, &["--resume-only"]);
        assert_eq!(ended.code, 0, "{}", ended.err);
        assert!(content(&self.image, &[])[..self.input.len()] == self.input[..]);
    }

    /// Overwrites the bytes of the image from `at` on.
    fn put(&self, at: usize, bytes: &[u8]) {
        let file = std::fs::OpenOptions::new().write(true).open(&self.image).unwrap();
        file.write_all_at(bytes, at as u64).unwrap();
    }
}

#[test]
fn beginning_of_an_encryption_is_killed_at_each_write_and_repeated() {
    if !have("strace") {
        return;
    }
    let mut first = Beginning::new();
    // 16 for the first data, one for the header behind the data, three for that at the start.
    let writes = (1..).take_while(|write| {
        let is_killed = first.is_killed_at(*write);
        if *write >= 16 || *write == 1 || !is_killed {
            first.has_begun_before();
            first.check();
        }
        is_killed
    });
    assert!(writes.count() >= 20);
    // The keyslots area, which is written first, in part.
    let header = |first: &Beginning| std::fs::read(&first.image).unwrap()[20 << 20..36 << 20].to_vec();
    for torn in [512, 4096, 1 << 20] {
        assert!(first.is_killed_at(18));
        let part = 32768..32768 + torn;
        first.put(part.start, &header(&first)[part]);
        assert!(first.has_begun_before(), "{torn}");
        first.check();
    }
    // The device was used in between.
    assert!(first.is_killed_at(18));
    let other = noise(4096);
    first.put(65536, &other);
    first.input[65536..65536 + 4096].copy_from_slice(&other);
    assert!(!first.has_begun_before());
    first.check();
    drop(first.dir);
}

/// Returns the number of 4096-byte blocks of a file from `start` on that are allocated.
fn allocated(image: &str, start: u64) -> u64 {
    let file = std::fs::File::open(image).unwrap();
    let (mut at, mut count) = (start, 0);
    while let Ok(data) = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)) {
        at = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(data)).unwrap();
        count += (at - data) / 4096;
    }
    count
}

#[test]
fn holes_of_a_sparse_image_stay_if_asked_for_and_data_beside_them_are_kept() {
    let dir = Dir::new();
    let image = dir.image("image", 24);
    call_with(b"secret", ["luksFormat", "-q", "--sector-size", "512", &image].iter().chain(&FAST)).works();
    // Runs of data that begin and end in blocks of checksums, with holes between them.
    let parts: [(u64, usize); 4] = [(0, 512), (20 << 10, 40 << 10), (1 << 20, 4096), ((8 << 20) - 8192, 8192)];
    let whole = noise(LEN);
    let key = dir.name("key");
    call_with(b"secret", ["luksDump", "-q", "--dump-volume-key", "--volume-key-file", &key, &image]).works();
    let key = std::fs::read(&key).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&image).unwrap();
    let (spec, unit) = (CipherSpec::AES_XTS_PLAIN64, DataUnitSize::SECTOR);
    let cipher = new_sector_cipher(&spec, &key, unit, IvNumbering::Sectors).unwrap();
    for (at, len) in parts {
        let mut data = whole[at as usize..at as usize + len].to_vec();
        cipher.encrypt(IvNumber(at / 512), InOut::InPlace(&mut data));
        file.write_all_at(&data, (16 << 20) + at).unwrap();
    }
    let before = allocated(&image, 16 << 20);
    for words in [&["--keep-holes"][..], &["--keep-holes", "--hotzone-size", "64K", "--resilience", "journal"]] {
        reencrypt(&image, words).works();
        let found = content(&image, &[]);
        for (at, len) in parts {
            let range = at as usize..at as usize + len;
            assert!(found[range.clone()] == whole[range], "{words:?}: {len} bytes at {at}");
        }
        assert_eq!(allocated(&image, 16 << 20), before, "{words:?}");
    }
    reencrypt(&image, &["--encrypt", "--keep-holes", "--reduce-device-size", "8M"]).fails(1, &["cannot be combined"]);
    reencrypt(&image, &[]).works();
    assert_eq!(allocated(&image, 16 << 20), (LEN / 4096) as u64, "all data are written otherwise");
}

#[test]
fn passphrase_is_tested_and_found_behind_a_keyslot_without_volume_key() {
    let (dir, input) = (Dir::new(), noise(LEN));
    let (image, key) = (dir.file("plain", &input), dir.file("key", b"secret"));
    let header = dir.name("header");
    let format = ["luksFormat", "-q", "--header", &header, "-S", "5", &image];
    call_with(b"secret", format.iter().chain(&FAST)).works();
    let unbound = ["luksAddKey", "-q", "--unbound", "-s", "80", "--new-key-slot", "0", &header, &key];
    call(unbound.iter().chain(&FAST)).works();
    reencrypt(&image, &["--decrypt", "--init-only", "--header", &header]).works();
    call_with(b"secret", ["open", "--test-passphrase", &header]).works();
    call_with(b"wrong", ["open", "--test-passphrase", &header]).fails(2, &["No key available with this passphrase."]);
}

#[test]
fn options_that_do_not_fit_a_re_encryption_are_refused_and_nothing_is_written() {
    let (dir, input) = (Dir::new(), noise(LEN));
    let (image, header) = (volume(&dir, &input, &[]), dir.name("header"));
    let misfit = "Requested --resilience option cannot be applied to current reencryption operation.";
    for words in [&["--resilience", "datashift"][..], &["--resilience", "datashift-journal"]] {
        reencrypt(&image, &[words, &["--init-only"]].concat()).fails(1, &[misfit]);
    }
    for resilience in ["none", "datashift"] {
        let words = ["--decrypt", "--header", &header, "--resilience", resilience];
        reencrypt(&image, &words).fails(1, &[misfit]);
        assert!(!std::path::Path::new(&header).exists());
    }
    reencrypt(&image, &["--init-only"]).works();
    let before = std::fs::read(&image).unwrap();
    for (words, text) in [
        (&["--encrypt", "--reduce-device-size", "4M"][..], "is in another re-encryption: reencrypt."),
        (&["--decrypt"], "is in another re-encryption: reencrypt."),
        (&["--resilience", "datashift-checksum"], misfit),
        (&["--device-size", "1M"], "it has begun with 8388608 bytes"),
        (&["--encrypt", "--header", &header], "has a LUKS header already."),
    ] {
        reencrypt(&image, words).fails(1, &[text]);
        assert!(std::fs::read(&image).unwrap() == before && !std::path::Path::new(&header).exists(), "{words:?}");
    }
    reencrypt(&image, &["--device-size", "8M"]).works();
    assert!(content(&image, &[]) == input);
}

#[test]
fn repair_adds_the_digest_of_a_re_encryption_with_its_passphrase() {
    let (dir, input) = (Dir::new(), noise(LEN));
    for requirement in ["online-reencrypt", "online-reencrypt-v2"] {
        let image = volume(&dir, &input, &[]);
        reencrypt(&image, &["--init-only"]).works();
        header_policy::change(&image, |json| {
            json["digests"].as_object_mut().unwrap().remove("2").unwrap();
            json["config"]["requirements"]["mandatory"][0] = requirement.into();
        });
        let before = std::fs::read(&image).unwrap();
        for action in ["export", "reencrypt"] {
            let words = if action == "export" { &["-"][..] } else { &[] };
            call_with(b"secret", [action, "-q", &image].iter().chain(words)).fails(1, &["no digest"]);
        }
        call_with(b"wrong", ["repair", "-q", &image]).fails(2, &["No key available with this passphrase."]);
        assert!(std::fs::read(&image).unwrap() == before, "{requirement}");
        let repaired = call_with(b"secret", ["repair", "-q", "--disable-keyring", &image]);
        assert!(repaired.code == 0 && repaired.err.contains("that nothing confirms"), "{repaired:?}");
        assert!(content(&image, &[]) == input, "{requirement}");
        assert!(dump(&image, &["Requirements"]).contains("online-reencrypt-v2"));
        // A digest that is there and does not fit is never replaced.
        header_policy::change(&image, |json| json["keyslots"]["2"]["direction"] = "backward".into());
        let broken = std::fs::read(&image).unwrap();
        call_with(b"secret", ["repair", "-q", &image]).fails(1, &["its digest does not confirm it"]);
        reencrypt(&image, &[]).fails(1, &["its digest does not confirm it"]);
        // Without the requirement, old programs would take the old segment for the volume.
        header_policy::change(&image, |json| json["config"]["requirements"] = serde_json::json!({}));
        let left = std::fs::read(&image).unwrap();
        call_with(b"secret", ["export", "-q", &image, "-"]).fails(1, &["not its requirement"]);
        call_with(b"secret", ["repair", "-q", &image]).fails(1, &["not its requirement"]);
        header_policy::change(&image, |json| json["config"]["requirements"] = serde_json::json!({"mandatory": []}));
        reencrypt(&image, &[]).fails(1, &["not its requirement"]);
        assert!(broken[32 << 10..] == std::fs::read(&image).unwrap()[32 << 10..] && broken.len() == left.len());
    }
}

#[test]
fn first_segment_of_a_decryption_is_protected_by_what_the_keyslot_area_holds() {
    let (dir, input) = (Dir::new(), noise(20 << 20));
    let header = dir.name("header");
    for (begin, go_on) in [
        (&["--hotzone-size", "1M"][..], &["--resilience", "journal"][..]),
        (&["--resilience", "journal"], &["--resilience", "checksum"]),
        (&[], &["--resilience", "checksum", "--resilience-hash", "sha512"]),
    ] {
        let image = volume(&dir, &input, &["--offset", "8192"]);
        reencrypt(&image, &[&["--decrypt", "--init-only", "--header", &header], begin].concat()).works();
        assert!(content(&image, &["--header", &header]) == input, "{begin:?}");
        if begin.is_empty() {
            // All of the shift is to be kept.
            let before = std::fs::read(&header).unwrap();
            let words = ["--header", &header, "--resilience", "journal"];
            reencrypt(&image, &words).fails(1, &["space"]);
            assert!(std::fs::read(&header).unwrap() == before);
        }
        reencrypt(&image, &[&["--header", &header], go_on].concat()).works();
        assert!(std::fs::read(&image).unwrap()[..input.len()] == input, "{begin:?}");
        std::fs::remove_file(&header).unwrap();
    }
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
    call_with(b"secret", ["luksKillSlot", "-q", &image, "0"]).fails(1, &["unmet LUKS2 requirement"]);
    call_with(b"secret", ["luksRemoveKey", "-q", &image]).fails(1, &["unmet LUKS2 requirement"]);
    let header = dir.name("new-header");
    reencrypt(&image, &["--decrypt", "--header", &header]).fails(1, &["already initialized"]);
    assert!(!std::path::Path::new(&header).exists());
    assert!(call(["doctor", &image]).text().contains("its re-encryption has not ended; it opens as it is"));
    let copy = dir.name("erased");
    std::fs::copy(&image, &copy).unwrap();
    assert_eq!(call(["erase", "-q", &copy]).code, 0);
    assert_eq!(dump(&copy, &[": luks2"]), "", "the new keyslots are gone, too");
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
        (&image, &["--cipher", "cipher_null-ecb"], "cipher_null"),
        (&image, &["--cipher", "aes-xts-null"], "null"),
        (&image, &["--keep-key", "--cipher", "aes-cbc-essiv:sha256"], "key of 512 bits"),
        (&image, &["--label", "x"], "Options --label, --subsystem and --uuid need --encrypt."),
        (&image, &["--write-log"], "are for LUKS1"),
        (&image, &["--offset", "8192"], "Option --offset needs --encrypt."),
        (&image, &["--volume-key-file", &plain], "needs --new-volume-key-file, or --keep-key."),
        (&image, &["--type", "luks1"], "Conflicting versions."),
        (&luks1, &["--type", "luks2"], "Conflicting versions."),
        (
            &plain,
            &["--encrypt", "--reduce-device-size", "2M", "name"],
            "A name is taken with --encrypt and --init-only.",
        ),
        (&plain, &["--encrypt", "--reduce-device-size", "2M", "--offset", "4096"], "less than or equal to half"),
        (&plain, &["--encrypt", "--reduce-device-size", "2M", "--device-size", "7M"], "and to keep 7340032 bytes."),
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
fn file_system_that_is_longer_than_what_is_left_is_not_cut() {
    const LEN: u64 = 512 << 20;
    let dir = Dir::new();
    for (mkfs, words, name) in [
        ("mkfs.ext4", &["-q"][..], "ext4"),
        ("mkfs.ext2", &["-q", "-b", "1024"], "ext4"),
        ("mkfs.xfs", &["-q", "-f"], "XFS"),
        ("mkfs.btrfs", &["-q", "-f"], "Btrfs"),
    ] {
        if !have(mkfs) {
            continue;
        }
        let image = dir.image("image", 0);
        let set_len = |len| std::fs::OpenOptions::new().write(true).open(&image).unwrap().set_len(len).unwrap();
        let encrypt = ["--encrypt", "--reduce-device-size", "32M", "--init-only"];
        set_len(LEN);
        run(Command::new(mkfs).args(words).arg(&image), b"").works();
        reencrypt(&image, &encrypt)
            .fails(1, &[&format!("The {name} file system"), "would be left", "hint: shrink it first"]);
        call(["isLuks", &image]).fails(1, &[]);
        // As long as the file system, and one sector shorter.
        set_len(LEN + (32 << 20) - 512);
        let short = reencrypt(&image, &encrypt);
        short.fails(1, &[&format!("has {LEN} bytes")]);
        set_len(LEN + (32 << 20));
        reencrypt(&image, &encrypt).works();
        std::fs::remove_file(&image).unwrap();
    }
    let image = dir.image("image", 64);
    run(Command::new("mkfs.ext4").args(["-q", &image]), b"").works();
    let forced = ["--encrypt", "--reduce-device-size", "32M", "--init-only", "--force-offline-reencrypt"];
    reencrypt(&image, &forced).works();
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
