//! `reencrypt` of LUKS1 volumes: every kind, killed at any call, what is refused, and cryptsetup's files.

mod files;

use crate::harness::killed::Killed;
use crate::harness::storage::Mounted;
use crate::harness::{Dir, Ended, FAST1, call, call_with, have, inlock, newest, noise, run};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::{ChildStdout, Command, Stdio};

/// Bytes of a volume, which is 4 MiB with its header.
const LEN: usize = 2 << 20;
const UUID: &str = "11111111-2222-4333-8444-555555555555";
const COSTS: [&str; 2] = ["--pbkdf-force-iterations", "1000"];
/// Name of the files of an encryption.
const ENCRYPTION: &str = "LUKS-cafecafe-cafe-cafe-cafe-cafecafeeeee";

/// A directory in which re-encryptions have their files, and one with the images.
struct Place {
    files: Dir,
    images: Dir,
}

impl Place {
    fn new() -> Self {
        Self { files: Dir::new(), images: Dir::new() }
    }

    /// Runs a program in the directory of the files.
    fn run_in(&self, mut command: Command, input: &[u8]) -> Ended {
        run(command.current_dir(self.files.path(".")), input)
    }

    fn reencrypt_with(&self, input: &[u8], words: &[&str]) -> Ended {
        let mut command = inlock();
        command.args(["reencrypt", "-q"]).args(COSTS).args(words);
        self.run_in(command, input)
    }

    fn reencrypt(&self, words: &[&str]) -> Ended {
        self.reencrypt_with(b"secret", words)
    }

    /// Creates a volume with this content.
    fn volume(&self, content: &[u8], words: &[&str]) -> String {
        let image = self.images.image("image", 4);
        let format = ["luksFormat", "-q", "--uuid", UUID, "--offset", "4096", &image];
        call_with(b"secret", format.iter().chain(&FAST1).chain(words)).works();
        self.fill(&image, content, &[]);
        image
    }

    fn fill(&self, image: &str, content: &[u8], words: &[&str]) {
        let input = self.images.file("input", content);
        call_with(b"secret", ["import", "-q", &input, image].iter().chain(words)).works();
    }

    /// Creates a device with this content, and `room` bytes at its end that may be lost.
    fn device(&self, content: &[u8], room: usize) -> String {
        let mut bytes = content.to_vec();
        bytes.resize(content.len() + room, 0xaa);
        self.images.file("image", &bytes)
    }

    /// Names and content of all files.
    fn all(&self) -> Vec<(String, Vec<u8>)> {
        let mut all = Vec::new();
        for dir in [&self.files, &self.images] {
            for entry in std::fs::read_dir(dir.path(".")).unwrap() {
                let path = entry.unwrap().path();
                all.push((path.display().to_string(), std::fs::read(path).unwrap()));
            }
        }
        all.sort();
        all
    }

    /// Ends of the names of the files.
    fn left(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.files.path(".")).unwrap();
        let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        let mut ends: Vec<_> = entries.map(|entry| name(entry).rsplit_once('.').unwrap().1.to_owned()).collect();
        ends.sort();
        ends
    }
}

/// Returns the content of a volume.
fn content(image: &str, words: &[&str]) -> Vec<u8> {
    let ended = call_with(b"secret", ["export", "-q", image, "-"].iter().chain(words));
    assert_eq!(ended.code, 0, "{}", ended.err);
    ended.out
}

/// Returns the lines of `luksDump` that have one of these words.
fn dump(image: &str, words: &[&str]) -> Vec<String> {
    let dump = call(["luksDump", image]).works().text().to_owned();
    let lines = dump.lines().filter(|line| words.iter().any(|word| line.contains(word)));
    lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn each_change_of_a_volume_keeps_the_content() {
    let (place, input) = (Place::new(), noise(LEN));
    let image = place.volume(&input, &["--cipher", "aes-cbc-plain", "--key-size", "128"]);
    let key = place.images.file("key", &[&[5; 32][..], &[7; 32]].concat());
    for (words, found) in [
        (&[][..], "cbc-plain sha256 128"),
        (&["-s", "256"], "cbc-plain sha256 256"),
        (&["-c", "aes-xts-plain64", "-s", "256", "-h", "sha512"], "xts-plain64 sha512 256"),
        (&["-c", "aes-xts-plain64", "-s", "512", "--hotzone-size", "64K"], "xts-plain64 sha256 512"),
        (&["--volume-key-file", &key], "xts-plain64 sha256 512"),
        (&["--use-directio", "--use-fsync", "--write-log"], "xts-plain64 sha256 512"),
    ] {
        let before = std::fs::read(&image).unwrap();
        place.reencrypt(&[words, &[&image]].concat()).works();
        assert!(content(&image, &[]) == input, "{words:?}");
        let after = std::fs::read(&image).unwrap();
        let is_old = |at: usize| before[at..at + 16] == after[at..at + 16];
        assert!(!(LEN..2 * LEN).step_by(512).any(is_old), "{words:?}: all data are written");
        let names: Vec<String> = dump(&image, &["Cipher mode", "Hash", "MK bits"])
            .iter()
            .map(|line| line.rsplit_once(' ').unwrap().1.to_owned())
            .collect();
        assert_eq!(names.join(" "), found);
        assert_eq!(dump(&image, &["UUID", "Payload"]), ["Payload offset: 4096", &format!("UUID: {UUID}")]);
        assert_eq!(place.left(), [""; 0]);
        if words.contains(&key.as_str()) {
            call(["open", "--test-passphrase", "--volume-key-file", &key, &image]).works();
        }
    }
    let before = std::fs::read(&image).unwrap();
    place.reencrypt(&["--keep-key", "--hash", "sha512", "--pbkdf-force-iterations", "1001", &image]).works();
    let after = std::fs::read(&image).unwrap();
    assert!(before[LEN..] == after[LEN..] && before[..LEN] != after[..LEN]);
    assert_eq!(dump(&image, &["Hash", "Iterations: "]), ["Hash spec: sha512", "Iterations: 1001"]);
    // The device is reduced again, by room for a longer header.
    place.reencrypt(&["--reduce-device-size", "1024S", &image]).works();
    assert!(content(&image, &[]) == input[..LEN - (512 << 10)]);
    assert_eq!(dump(&image, &["Payload"]), ["Payload offset: 5120"]);
}

#[test]
fn keyslots_keep_their_numbers_and_passphrases() {
    let (place, input) = (Place::new(), noise(LEN));
    let image = place.volume(&input, &["-S", "1"]);
    let [key, other, third] = ["secret", "other", "third"].map(|text| place.images.file(text, text.as_bytes()));
    for (file, slot) in [(&other, "0"), (&third, "6")] {
        call(["luksAddKey", "-q", "--key-file", &key, "--new-key-slot", slot, &image, file].iter().chain(&COSTS))
            .works();
    }
    let before = place.all();
    let named = place.reencrypt(&["--key-file", &key, &image]);
    named.fails(1, &["Key file can be used only with --key-slot or with exactly one key slot active.", "hint: "]);
    place.reencrypt_with(b"other\nwrong\nthird", &[&image]).fails(2, &["No key available with this passphrase."]);
    place.reencrypt_with(b"other", &["-S", "1", &image]).fails(2, &["No key available with this passphrase."]);
    place.reencrypt_with(b"other", &["-S", "5", &image]).fails(1, &["Keyslot 5 is not active."]);
    place.reencrypt_with(b"other", &["-S", "8", &image]).fails(1, &["8"]);
    assert!(place.all() == before);
    place.reencrypt_with(b"other\nsecret\nthird\n", &[&image]).works();
    assert_eq!(dump(&image, &["ENABLED"]).join(" "), "Key Slot 0: ENABLED Key Slot 1: ENABLED Key Slot 6: ENABLED");
    for file in [&key, &other, &third] {
        assert!(content(&image, &["--key-file", file]) == input);
    }
    place.reencrypt(&["--key-file", &third, "-S", "6", &image]).works();
    assert_eq!(dump(&image, &["ENABLED"]), ["Key Slot 6: ENABLED"]);
    assert!(content(&image, &["--key-file", &third]) == input);
}

#[test]
fn device_is_encrypted_and_decrypted_in_place() {
    let (place, input) = (Place::new(), noise(LEN));
    for (reduced, bits) in [("1126400", "256"), ("2M", "512"), ("3M", "512")] {
        let image = place.device(&input, 3 << 20);
        let plain = std::fs::read(&image).unwrap();
        let encrypt = ["--encrypt", "--type", "luks1", "--reduce-device-size", reduced, &image];
        place.reencrypt(&encrypt).works();
        let found = content(&image, &[]);
        assert!(found.len() >= LEN && found[..] == plain[..found.len()], "{reduced}");
        assert_eq!(dump(&image, &["MK bits"]), [format!("MK bits: {bits}")]);
        let bytes = std::fs::read(&image).unwrap();
        let is_plain = |at: usize| bytes[at..at + 512] == plain[at..at + 512];
        assert!(!(0..LEN).step_by(512).any(is_plain), "{reduced}: nothing of the plaintext is left");
        place.reencrypt(&encrypt).fails(1, &["is already LUKS device. Aborting operation."]);
        place.reencrypt(&["--decrypt", &image]).works();
        let bytes = std::fs::read(&image).unwrap();
        assert!(bytes[..found.len()] == found[..] && bytes[found.len()..].iter().all(|byte| *byte == 0), "{reduced}");
        assert_eq!((bytes.len(), place.left()), (LEN + (3 << 20), Vec::new()));
    }
}

#[test]
fn device_with_a_header_elsewhere_is_encrypted_and_decrypted() {
    let (place, input) = (Place::new(), noise(LEN));
    for has_file in [false, true] {
        let (image, header) = (place.device(&input, 0), place.images.name(&format!("header-{has_file}")));
        if has_file {
            std::fs::write(&header, b"").unwrap();
        }
        place.reencrypt(&["--encrypt", "--type", "luks1", "--header", &header, &image]).works();
        assert!(content(&image, &["--header", &header]) == input);
        assert!(std::fs::read(&image).unwrap() != input);
        place.reencrypt(&["-c", "aes-cbc-essiv:sha256", "-s", "256", "--header", &header, &image]).works();
        assert!(content(&image, &["--header", &header]) == input);
        place.reencrypt(&["--decrypt", "--header", &header, &image]).works();
        assert!(std::fs::read(&image).unwrap() == input);
        call(["isLuks", &header]).fails(1, &[]);
    }
}

#[test]
fn part_of_the_data_is_re_encrypted() {
    let (place, input) = (Place::new(), noise(LEN));
    let image = place.volume(&input, &[]);
    let before = std::fs::read(&image).unwrap();
    place.reencrypt(&["--device-size", "1M", &image]).works();
    assert!(content(&image, &[])[..1 << 20] == input[..1 << 20]);
    assert!(std::fs::read(&image).unwrap()[3 << 20..] == before[3 << 20..]);
}

/// Ways to re-encrypt: words that begin it, and those with which it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Reencrypt,
    KeepKey,
    Reduce,
    Encrypt,
    EncryptDetached,
    Decrypt,
    DecryptDetached,
}

const KINDS: [Kind; 7] = [
    Kind::Reencrypt,
    Kind::KeepKey,
    Kind::Reduce,
    Kind::Encrypt,
    Kind::EncryptDetached,
    Kind::Decrypt,
    Kind::DecryptDetached,
];

/// A re-encryption that is interrupted.
struct Interrupted {
    place: Place,
    kind: Kind,
    image: String,
    header: String,
    input: Vec<u8>,
}

impl Interrupted {
    fn new(kind: Kind) -> Self {
        let (place, input) = (Place::new(), noise(LEN));
        let header = place.images.name("header");
        let image = match kind {
            Kind::Reencrypt | Kind::KeepKey | Kind::Reduce | Kind::Decrypt => place.volume(&input, &[]),
            Kind::Encrypt => place.device(&input, LEN),
            Kind::EncryptDetached => place.device(&input, 0),
            Kind::DecryptDetached => {
                let image = place.device(&input, 0);
                let words = ["luksFormat", "-q", "--uuid", UUID, "--header", &header, &image];
                call_with(b"secret", words.iter().chain(&FAST1)).works();
                place.fill(&image, &input, &["--header", &header]);
                image
            }
        };
        Self { place, kind, image, header, input }
    }

    /// Returns the words that begin it, and go on, except after a decryption has destroyed the header.
    fn words(&self) -> Vec<&str> {
        let mut words = match self.kind {
            Kind::Reencrypt => vec!["-c", "aes-cbc-essiv:sha256", "-s", "256"],
            Kind::KeepKey => vec!["--keep-key", "--hash", "sha512"],
            Kind::Reduce => vec!["--reduce-device-size", "64K"],
            Kind::Encrypt => vec!["--encrypt", "--type", "luks1", "--reduce-device-size", "2M"],
            Kind::EncryptDetached => vec!["--encrypt", "--type", "luks1"],
            Kind::Decrypt | Kind::DecryptDetached => vec!["--decrypt"],
        };
        if self.is_detached() {
            words.extend(["--header", &self.header]);
        }
        words.push(&self.image);
        words
    }

    fn is_detached(&self) -> bool {
        matches!(self.kind, Kind::EncryptDetached | Kind::DecryptDetached)
    }

    fn is_decryption(&self) -> bool {
        matches!(self.kind, Kind::Decrypt | Kind::DecryptDetached)
    }

    fn words_to_go_on(&self) -> Vec<&str> {
        let has_uuid = self.kind == Kind::Decrypt && call(["luksUUID", &self.image]).code != 0;
        let is_marked = std::fs::read(&self.image).unwrap().starts_with(b"LUKS\xde\xad");
        let words = if has_uuid && !is_marked { &["--uuid", UUID][..] } else { &[] };
        [words, &self.words()].concat()
    }

    /// Runs it, killed at this system call that writes. Returns whether it was killed.
    fn is_killed_at(&self, when: usize, words: &[&str]) -> bool {
        const CALLS: &str = "write,pwrite64,fsync,fdatasync,fallocate,unlink,unlinkat";
        let (trace, inject) = (format!("trace={CALLS}"), format!("inject={CALLS}:signal=KILL:when={when}"));
        let mut command = Command::new("strace");
        command.args(["-f", "-qq", "-o", "/dev/null", "-e", &trace, "-e", &inject]).arg(inlock().get_program());
        command.args(["reencrypt", "-q", "--hotzone-size", "64K"]).args(COSTS).args(words);
        let ended = self.place.run_in(command, b"secret");
        assert!([0, -1, 137].contains(&ended.code), "{:?} at {when}: {ended:?}", self.kind);
        ended.code != 0
    }

    /// Goes on to the end.
    fn go_on(&self) {
        // The first time may only find that it has ended.
        let ended = self.place.reencrypt(&self.words_to_go_on());
        let is_ended = ended.err.contains("already LUKS device")
            || ended.err.contains("not a valid LUKS device")
            || ended.err.contains("No decryption in progress")
            || ended.err.contains("does not exist");
        assert!(ended.code == 0 || is_ended && self.place.left().is_empty(), "{:?}: {ended:?}", self.kind);
        self.check();
    }

    fn check(&self) {
        assert_eq!(self.place.left(), [""; 0], "{:?}", self.kind);
        let found = match (self.is_decryption(), self.is_detached()) {
            (true, _) => std::fs::read(&self.image).unwrap(),
            (false, true) => content(&self.image, &["--header", &self.header]),
            (false, false) => content(&self.image, &[]),
        };
        let len = if self.kind == Kind::Reduce { LEN - (64 << 10) } else { LEN };
        assert!(found[..len] == self.input[..len], "{:?}", self.kind);
    }
}

#[test]
fn killed_re_encryption_goes_on_and_loses_nothing() {
    if !have("strace") {
        return;
    }
    let mut kills = 0;
    for (index, kind) in KINDS.into_iter().enumerate() {
        for first in [1, 3, 6, 10, 15, 21, 28, 38, 50, 67, 90] {
            let turn = Interrupted::new(kind);
            if !turn.is_killed_at(first + index % 3, &turn.words()) {
                turn.check();
                break;
            }
            kills += 1;
            // And again, wherever it is.
            if turn.is_killed_at(2 + (first + index) % 9, &turn.words_to_go_on()) {
                kills += 1;
            }
            turn.go_on();
        }
    }
    println!("COUNT kills_of_luks1_re_encryptions {kills}");
    assert!(kills > 70, "{kills}");
}

/// Starts it with many zones, and returns it and its output after this number of them. It goes on only as far as the
/// short pipe takes its progress.
fn interrupt(turn: &Interrupted, zones: usize) -> (Killed, BufReader<ChildStdout>) {
    let mut command = inlock();
    command.current_dir(turn.place.files.path(".")).args(["reencrypt", "--progress-json", "--progress-frequency", "0"]);
    command.args(["--hotzone-size", "4K"]).args(COSTS).args(turn.words());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Killed(command.spawn().expect("inlock starts"));
    let output = child.stdout.take().unwrap();
    rustix::pipe::fcntl_setpipe_size(&output, 4096).unwrap();
    child.stdin.take().unwrap().write_all(b"secret").unwrap();
    let mut output = BufReader::with_capacity(512, output);
    for _ in 0..zones {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert!(line.ends_with('\n'), "it has ended");
    }
    (child, output)
}

/// Kills a re-encryption after some zones.
fn kill(turn: &Interrupted) {
    let (mut child, _output) = interrupt(turn, 3);
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Stops a re-encryption by a signal after some zones, and returns what it has said.
fn stop(turn: &Interrupted) -> String {
    let (mut child, mut output) = interrupt(turn, 3);
    let id = rustix::process::Pid::from_child(&child);
    // Not SIGINT, which a test that runs in the background ignores.
    rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
    std::io::copy(&mut output, &mut std::io::sink()).unwrap();
    let mut text = String::new();
    child.stderr.as_mut().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{text}");
    text
}

#[test]
fn stopped_re_encryption_says_how_to_go_on() {
    for kind in KINDS.into_iter().filter(|kind| *kind != Kind::KeepKey) {
        let turn = Interrupted::new(kind);
        let text = stop(&turn);
        assert!(text.contains("Reencryption interrupted."), "{kind:?}: {text}");
        assert_eq!(turn.place.left(), ["log", "new", "org"], "{kind:?}");
        let (_, command) = text.rsplit_once("`inlock reencrypt ").expect("the hint has a command");
        let words: Vec<&str> = command.trim_end_matches(['`', '\n']).split(' ').collect();
        let ended = turn.place.reencrypt(&words);
        assert!(ended.code == 0 && ended.err.contains("Going on with the re-encryption"), "{kind:?}: {ended:?}");
        turn.check();
    }
}

#[test]
fn volume_in_re_encryption_is_named_by_each_action() {
    let turn = Interrupted::new(Kind::Reencrypt);
    stop(&turn);
    let before = turn.place.all();
    let text = format!("Device {} is in LUKS1 re-encryption, whose log is LUKS-{UUID}.log.", turn.image);
    let hint = format!("hint: go on in the directory of that file with `inlock reencrypt {}`", turn.image);
    for words in [&["luksDump"][..], &["isLuks"], &["luksUUID"], &["export", "-q"], &["open", "--test-passphrase"]] {
        let end = if words[0] == "export" { &["-"][..] } else { &[] };
        let ended = call_with(b"secret", words.iter().chain(&[turn.image.as_str()]).chain(end));
        ended.fails(1, &[&text, &hint]);
    }
    call_with(b"", ["repair", "-q", &turn.image]).fails(1, &["is in LUKS1 re-encryption", "hint: "]);
    let doctor = call(["doctor", &turn.image]);
    assert!(doctor.text().contains("LUKS1 re-encryption") && doctor.text().contains("inlock reencrypt"), "{doctor:?}");
    assert!(turn.place.all() == before);
    turn.go_on();
}

#[test]
fn options_of_luks1_that_do_not_fit_are_refused_and_nothing_is_changed() {
    let (place, input) = (Place::new(), noise(LEN));
    let image = place.volume(&input, &[]);
    let before = place.all();
    let refused = |words: &[&str], text: &str| {
        let ended = place.reencrypt(&[words, &[&image]].concat());
        ended.fails(1, &[text]);
        assert!(place.all() == before, "{words:?}");
    };
    refused(&["--sector-size", "4096"], "LUKS1 re-encryption does not take --sector-size.");
    refused(&["--init-only"], "does not take --init-only.");
    refused(&["--resilience", "none"], "does not take --resilience.");
    refused(&["--pbkdf", "argon2id"], "Requested PBKDF type is not supported for LUKS1.");
    refused(&["--keep-key", "-c", "aes-cbc-plain64"], "With --keep-key only the header");
    refused(&["--type", "luks2"], "Conflicting versions.");
    refused(&["--resume-only"], "Device reencryption not in progress.");
    refused(&["--device-size", "3M"], "there is room for 2097152 bytes of data");
    refused(&["--encrypt", "--type", "luks1", "--reduce-device-size", "1M"], "is already LUKS device.");
    refused(&["-c", "aes-cbc-plain64", "-s", "512"], "key");
    refused(&["-c", "aes-ecb", "-s", "256"], "ecb");
    place.reencrypt(&["--pbkdf-force-iterations", "999", &image]).fails(1, &["pbkdf"]);
    place.reencrypt(&["--decrypt", "--uuid", "no", &image]).fails(1, &["No decryption in progress"]);
    assert!(place.all() == before);
    // Room for the header.
    let plain = place.images.file("plain", &[3; 4 << 20]);
    let words = ["--encrypt", "--type", "luks1", "--reduce-device-size", "64K", &plain];
    place.reencrypt(&words).fails(1, &["the new header takes", "--reduce-device-size"]);
    place.reencrypt(&["--encrypt", "--type", "luks1", &plain]).fails(1, &["(--reduce-device-size)"]);
    place
        .reencrypt(&["--encrypt", "--type", "luks1", "--header", &plain, &plain])
        .fails(1, &["(--reduce-device-size)"]);
    let unknown = ["--decrypt", "--uuid", UUID, &plain];
    place.reencrypt(&unknown).fails(1, &["No decryption in progress, provided UUID", "hint: "]);
    place.reencrypt(&["--decrypt", &plain]).fails(1, &["is not a valid LUKS"]);
    assert!(std::fs::read(&plain).unwrap() == [3; 4 << 20] && place.left().is_empty());
}

#[test]
fn files_that_are_not_those_of_the_volume_are_refused_and_nothing_is_changed() {
    let turn = Interrupted::new(Kind::Reencrypt);
    stop(&turn);
    let path = |end: &str| turn.place.files.path(&format!("LUKS-{UUID}.{end}"));
    let refused = |text: &str, code: i32, input: &[u8]| {
        let before = turn.place.all();
        turn.place.reencrypt_with(input, &turn.words()).fails(code, &[text, "inlock: "]);
        assert!(turn.place.all() == before, "{text}");
    };
    refused("No key available with this passphrase.", 2, b"wrong");
    for (end, change, text) in [
        ("log", (0, &b"x"[..]), "line 1 is not one of a log"),
        ("new", (0, b"x"), "there is no whole LUKS1 header in it"),
        ("org", (0, b"x"), "there is no whole LUKS1 header in it"),
        // The digest.
        ("org", (112, b"\xff\xff"), "does not have the header of this re-encryption"),
    ] {
        let whole = std::fs::read(path(end)).unwrap();
        let mut bytes = whole.clone();
        bytes[change.0..change.0 + change.1.len()].copy_from_slice(change.1);
        std::fs::set_permissions(path(end), std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(path(end), &bytes).unwrap();
        refused(text, 1, b"secret");
        std::fs::remove_file(path(end)).unwrap();
        refused(if end == "log" { "does not exist" } else { "there is no whole LUKS1 header in it" }, 1, b"secret");
        std::fs::write(path(end), &whole).unwrap();
    }
    let log = std::fs::read(path("log")).unwrap();
    let changed = |old: &str, new: &str| {
        let text = String::from_utf8(log.clone()).unwrap().replace(old, new);
        let mut bytes = text.into_bytes();
        bytes.resize(512, 0);
        std::fs::write(path("log"), &bytes).unwrap();
    };
    changed(UUID, "11111111-2222-4333-8444-666666666666");
    refused("it is that of UUID 11111111-2222-4333-8444-666666666666", 1, b"secret");
    changed("mode = 0", "mode = 2");
    refused("does not belong to the change 'decrypt'", 1, b"secret");
    changed("offset = ", "offset = 9");
    refused("its offset is 9", 1, b"secret");
    changed("device = 4194304", "device = 4194816");
    refused("has another length", 1, b"secret");
    std::fs::write(path("log"), &log).unwrap();
    let mode = turn.place.reencrypt(&["--decrypt", &turn.image]);
    mode.fails(1, &["The re-encryption has begun with another change: reencrypt.", "hint: "]);
    turn.place.reencrypt(&["--device-size", "1M", &turn.image]).fails(1, &["it has begun with 2097152 bytes"]);
    // Another directory.
    let mut elsewhere = inlock();
    elsewhere.args(["reencrypt", "-q", &turn.image]).current_dir(turn.place.images.path("."));
    run(&mut elsewhere, b"secret").fails(1, &["does not exist", "change to the directory"]);
    turn.go_on();
    // What is left of another one.
    std::fs::write(path("org"), b"header").unwrap();
    let before = turn.place.all();
    turn.place.reencrypt(&[&turn.image]).fails(1, &["is left of a re-encryption that has no log", "hint: "]);
    assert!(turn.place.all() == before);
}

#[test]
fn zone_in_flight_is_not_lost_with_its_file() {
    let turn = Interrupted::new(Kind::Reencrypt);
    kill(&turn);
    assert_eq!(turn.place.left(), ["log", "new", "org", "zone"]);
    let zone = turn.place.files.path(&format!("LUKS-{UUID}.zone"));
    let kept = std::fs::read(&zone).unwrap();
    std::fs::remove_file(&zone).unwrap();
    let before = turn.place.all();
    turn.place.reencrypt(&turn.words()).fails(1, &["The zone that was being re-encrypted is only in", "hint: "]);
    assert!(turn.place.all() == before);
    std::fs::write(&zone, kept).unwrap();
    turn.go_on();
}

#[test]
fn device_that_is_used_is_refused() {
    let (place, input) = (Place::new(), noise(LEN));
    let image = place.volume(&input, &[]);
    let key = place.images.file("key", b"secret");
    for words in [&[][..], &["--read-only"]] {
        let mut command = inlock();
        command.args(["serve", "--key-file", &key, &image]).args(words).arg("--run");
        let again = format!(
            "cd '{}' && printf secret | '{}' reencrypt -q '{image}'; echo \"status $?\"",
            place.files.path(".").display(),
            inlock().get_program().display(),
        );
        let ended = run(command.arg(again), b"");
        assert!(ended.text().contains("status 5") && ended.err.contains("is in use"), "{ended:?}");
    }
    assert_eq!(place.left(), [""; 0]);
    assert!(content(&image, &[]) == input);
}

#[test]
fn directory_that_cannot_be_written_or_is_full_changes_nothing() {
    let (place, input) = (Place::new(), noise(LEN));
    let image = place.volume(&input, &[]);
    let before = place.all();
    // `/proc` cannot be written by any user.
    let mut command = inlock();
    command.args(["reencrypt", "-q", &image]).args(COSTS).current_dir("/proc");
    run(&mut command, b"secret").fails(1, &["cannot create /proc/LUKS-", ".log"]);
    assert!(place.all() == before);
    // There is no room for the second header, or for a zone.
    for mib in [3, 4] {
        let small = Dir::new();
        let room = small.name("room");
        let Some(_mounted) = Mounted::tmpfs(&room, mib) else { return };
        let mut command = inlock();
        command.args(["reencrypt", "-q", &image]).args(COSTS).current_dir(&room);
        run(&mut command, b"secret").fails(1, &["LUKS-", "No space left on device"]);
        assert!(place.all() == before && std::fs::read_dir(&room).unwrap().count() == 0, "{mib}");
    }
}

/// Returns the cryptsetup programs that there are.
fn programs() -> Vec<Command> {
    let installed = have("cryptsetup").then(|| Command::new("cryptsetup"));
    installed.into_iter().chain(newest("cryptsetup")).collect()
}

impl Place {
    fn cryptsetup(&self, program: &Command, words: &[&str]) -> Ended {
        let mut command = Command::new(program.get_program());
        command.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin").args(program.get_args());
        command.args(["reencrypt", "-q", "--pbkdf", "pbkdf2"]).args(COSTS).args(words);
        self.run_in(command, b"secret\n")
    }
}

/// Without device-mapper, cryptsetup goes no further than to all files and the mark.
#[test]
fn re_encryption_that_cryptsetup_has_begun_goes_on() {
    for program in programs() {
        for words in [&["--hash", "sha512"][..], &["-c", "aes-cbc-essiv:sha256", "-s", "256"]] {
            let (place, input) = (Place::new(), noise(LEN));
            let image = place.volume(&input, &["--key-size", "256"]);
            let begun = place.cryptsetup(&program, &[words, &[&image]].concat());
            if begun.code == 0 {
                println!("SKIPPED: there is device-mapper here");
                return;
            }
            assert_eq!(place.left(), ["log", "new", "org"], "{begun:?}");
            assert!(std::fs::read(&image).unwrap().starts_with(b"LUKS\xde\xad"));
            let ended = place.reencrypt(&[&image]);
            assert_eq!(ended.code, 0, "{ended:?}");
            assert!(content(&image, &[]) == input && place.left().is_empty(), "{words:?}");
            assert!(dump(&image, &["Cipher mode", "Hash"]).join(" ").contains(words[1].trim_start_matches("aes-")));
        }
    }
}

/// cryptsetup checks log and headers before it asks for device-mapper.
#[test]
fn cryptsetup_takes_what_is_stopped_and_not_a_zone_in_flight() {
    for program in programs() {
        let turn = Interrupted::new(Kind::Reencrypt);
        kill(&turn);
        let before = turn.place.all();
        let words = [turn.image.as_str()];
        turn.place.cryptsetup(&program, &words).fails(1, &["Wrong log format."]);
        assert!(turn.place.all() == before);
        stop(&turn);
        let before = turn.place.all();
        let taken = turn.place.cryptsetup(&program, &words);
        taken.fails(1, &["Activation of temporary devices failed."]);
        let after = turn.place.all();
        // It may write the log again.
        assert!(before.iter().zip(&after).all(|(old, new)| old == new || old.0.ends_with(".log")));
        turn.go_on();
        // A header that was to be replaced is replaced by it.
        let turn = Interrupted::new(Kind::KeepKey);
        if have("strace") && turn.is_killed_at(14, &turn.words()) {
            let is_marked = std::fs::read(&turn.image).unwrap().starts_with(b"LUKS\xde\xad");
            assert!(is_marked, "{:?}", turn.place.left());
            let ended = turn.place.cryptsetup(&program, &["--keep-key", &turn.image]);
            assert_eq!(ended.code, 0, "{ended:?}");
            turn.check();
        }
    }
}

/// cryptsetup has marked the header, and has not been started again since.
#[test]
fn log_of_an_encryption_is_not_that_of_another_device() {
    let turn = Interrupted::new(Kind::Encrypt);
    stop(&turn);
    let other = turn.place.images.file("other", &[9; 5 << 20]);
    let words = ["--encrypt", "--type", "luks1", "--reduce-device-size", "2M", &other];
    let before = turn.place.all();
    turn.place.reencrypt(&words).fails(1, &["a device with another name", &format!("{ENCRYPTION}.log")]);
    assert!(turn.place.all() == before);
    turn.go_on();
    // Nothing else may be in its place.
    let file = std::fs::File::open(&turn.image).unwrap();
    let mut start = [0; 6];
    file.read_exact_at(&mut start, 0).unwrap();
    assert_eq!(&start, b"LUKS\xba\xbe");
}
