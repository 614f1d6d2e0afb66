//! The command line as a drop-in for cryptsetup: each line of `dropin/lines.txt` runs with Debian's cryptsetup, with
//! the newest one and with inlock, on copies of one image. Exit status and effect must be equal; both programs judge
//! the image afterwards. docs/cryptsetup.md lists the differences.
//!
//! `INLOCK_NEW_CRYPTSETUP` is the command of the newest cryptsetup; tests/newest.sh prints it.

// The lint exempts test functions only.

use crate::harness::{Dir, have, run};
use inlock_tests::report::count;
use keyutils_raw::{KEY_SPEC_SESSION_KEYRING, KEY_TYPE_USER, add_key, keyctl_get_keyring_id};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

const LINES: &str = include_str!("dropin/lines.txt");

const F: &str = "--pbkdf pbkdf2 --pbkdf-force-iterations 1000";
const F1: &str = "--pbkdf-force-iterations 1000";
const A: &str = "--pbkdf argon2id --pbkdf-memory 32 --pbkdf-force-iterations 4 --pbkdf-parallel 1";

/// A program to compare.
struct Program {
    name: &'static str,
    command: Vec<String>,
}

impl Program {
    fn run(&self, dir: &Path, input: &[u8], words: &[&str]) -> (i32, Vec<u8>, String) {
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]).args(words).current_dir(dir).env("LC_ALL", "C");
        let ended = run(&mut command, input);
        (ended.code, ended.out, ended.err)
    }

    /// Runs a command that prepares the test.
    fn must(&self, dir: &Path, words: &str) {
        let words: Vec<&str> = words.split_whitespace().collect();
        let (code, _, err) = self.run(dir, b"", &words);
        assert_eq!(code, 0, "{} {words:?}: {err}", self.name);
    }

    /// Returns the header without what is random or differs between versions, and the passphrases that open it.
    fn judge(&self, dir: &Path) -> (String, String) {
        let (_, out, _) = self.run(dir, b"", &["luksDump", "img"]);
        let passphrases = ["aaa", "bbb", "ccc", "ddd"];
        let opens = |key: &str| self.run(dir, key.as_bytes(), &["open", "--test-passphrase", "img", "-d", "-"]).0 == 0;
        (lasting(&String::from_utf8_lossy(&out)), passphrases.into_iter().filter(|key| opens(key)).collect())
    }
}

/// Returns the lines of a dump that do not differ between two runs.
fn lasting(dump: &str) -> String {
    let is_hex = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        !words.is_empty() && words.iter().all(|word| word.len() == 2 && word.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    let mut random_iterations = false;
    let mut kept = String::new();
    for line in dump.lines() {
        let text = line.trim_start();
        // A digest's iterations are measured.
        random_iterations |= text.starts_with("Digests:");
        let is_random = ["Epoch:", "Salt:", "Digest:", "UUID:", "MK digest:", "MK salt:", "MK iterations:"]
            .iter()
            .any(|name| text.starts_with(name))
            || random_iterations && text.starts_with("Iterations:");
        if !is_random && !is_hex(text) {
            kept += line.trim_end();
            kept.push('\n');
        }
    }
    kept
}

/// One line of the table.
struct Line<'a> {
    image: &'a str,
    input: Vec<u8>,
    words: &'a str,
    /// The status of inlock alone.
    expected: Option<i32>,
}

impl<'a> Line<'a> {
    fn parse(text: &'a str) -> Self {
        let mut columns = text.splitn(4, '|').map(str::trim);
        let mut column = || columns.next();
        let (image, input, words) = (column().unwrap(), column().unwrap(), column().unwrap());
        let expected = column().map(|reason| reason.split(' ').next().unwrap().parse().expect("a status"));
        Self { image, input: input.replace("\\n", "\n").into_bytes(), words, expected }
    }

    fn command_line(&self) -> Vec<&'a str> {
        let expand = |word: &'a str| match word {
            "F" => F.split(' ').collect(),
            "F1" => F1.split(' ').collect(),
            "A" => A.split(' ').collect(),
            "\"\"" => vec![""],
            word => vec![word],
        };
        self.words.split_whitespace().flat_map(expand).collect()
    }
}

/// Outcome of a command line.
#[derive(PartialEq, Eq)]
struct Outcome {
    status: i32,
    effect: Effect,
    output: Option<Vec<u8>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Effect {
    None,
    /// As each judge sees the image.
    Changed(Vec<(String, String)>),
}

struct Bench {
    dir: Dir,
    debian: Program,
    newest: Option<Program>,
    inlock: Program,
}

/// Keys of the session keyring, which the tokens of an image name.
const TOKEN_KEYS: [(&str, &str); 3] =
    [("inlock-dropin-a", "aaa"), ("inlock-dropin-b", "bbb"), ("inlock-dropin-c", "ccc")];

/// Adds the keys, and returns whether there is a keyring.
fn add_token_keys() -> bool {
    let add = || {
        let session = keyctl_get_keyring_id(KEY_SPEC_SESSION_KEYRING, false)?;
        let mut keys = TOKEN_KEYS.iter();
        keys.try_for_each(|(name, content)| add_key(KEY_TYPE_USER, name, content.as_bytes(), session).map(drop))
    };
    match add() {
        Ok(()) => true,
        Err(error) => {
            println!("SKIPPED: no kernel keyring can be used here: {error}");
            false
        }
    }
}

/// Files that command lines name, except the image.
const SMALL: &[&str] = &["ka", "kb", "kc", "kempty", "vk1", "vk2", "vkwrong", "vkshort", "ukey", "data0", "zero"];

impl Bench {
    fn new() -> Option<Self> {
        if !have("cryptsetup") {
            return None;
        }
        let program =
            |name, command: &str| Program { name, command: command.split_whitespace().map(Into::into).collect() };
        let newest = std::env::var("INLOCK_NEW_CRYPTSETUP").ok().filter(|command| !command.is_empty());
        if newest.is_none() {
            println!("SKIPPED: no newer cryptsetup");
        }
        let bench = Self {
            dir: Dir::new(),
            debian: program("Debian's cryptsetup", "/usr/sbin/cryptsetup"),
            newest: newest.map(|command| program("the newest cryptsetup", &command)),
            inlock: program("inlock", env!("CARGO_BIN_EXE_inlock")),
        };
        bench.make_images();
        Some(bench)
    }

    fn make_images(&self) {
        let dir = self.dir.path("");
        let make = |name: &str, kib: u64| {
            fs::File::create(dir.join(name)).unwrap().set_len(kib << 10).unwrap();
        };
        for (name, content) in [("ka", "aaa"), ("kb", "bbb"), ("kc", "ccc"), ("kempty", "")] {
            self.dir.file(name, content.as_bytes());
        }
        self.dir.file("vkwrong", &[0; 32]);
        self.dir.file("vkshort", &[0; 16]);
        self.dir.file("ukey", &[b'u'; 32]);
        for (name, kib) in [("data0", 1024), ("zero", 4096), ("1", 4096), ("2", 4096), ("2big", 18 << 10)] {
            make(name, kib);
        }
        let must = |words: &str| self.debian.must(&dir, words);
        let format1 = format!("luksFormat -q --type luks1 -s 256 {F1}");
        let format2 = format!("luksFormat -q --type luks2 -s 256 {F}");
        must(&format!("{format1} 1 ka"));
        must(&format!("{format2} --luks2-keyslots-size 1M --offset 4096 2 ka"));
        must(&format!("{format2} 2big ka"));
        let add = |image: &str, count: u32| {
            let costs = if image.starts_with('1') { F1 } else { F };
            (0..count).for_each(|_| must(&format!("luksAddKey -q {costs} {image} -d ka kb")));
        };
        add("2big", 31);
        for format in ["1", "2"] {
            fs::copy(dir.join(format), dir.join(format!("{format}two"))).unwrap();
            add(&format!("{format}two"), 1);
            fs::copy(dir.join(format!("{format}two")), dir.join(format!("{format}full"))).unwrap();
            add(&format!("{format}full"), 6);
            must(&format!("luksDump -q --dump-volume-key {format} -d ka --volume-key-file vk{format}"));
            make(&format!("hdr{format}"), 2048);
        }
        must(&format!("{format1} --header hdr1 data0 ka"));
        must(&format!("{format2} --luks2-keyslots-size 1M --header hdr2 data0 ka"));
        fs::copy(dir.join("2"), dir.join("2lab")).unwrap();
        must("config 2lab --label old --subsystem older");
        fs::copy(dir.join("2two"), dir.join("2tok")).unwrap();
        for (number, assigned) in ["--key-slot 0", "--key-slot 1", "--unbound"].into_iter().enumerate() {
            must(&format!("token add 2tok --key-description {} {assigned} --token-id {number}", TOKEN_KEYS[number].0));
        }
        fs::copy(dir.join("2two"), dir.join("2unb")).unwrap();
        must(&format!("luksAddKey {F} --unbound -s 256 --volume-key-file ukey -S 5 2unb kc"));
    }

    /// Runs a line on a copy of its image in `dir`.
    fn outcome(&self, program: &Program, line: &Line<'_>, dir: &Path) -> (Outcome, String) {
        let _ = fs::remove_dir_all(dir);
        fs::create_dir(dir).unwrap();
        for name in SMALL {
            fs::copy(self.dir.path(name), dir.join(name)).unwrap();
        }
        let original = (line.image != "-").then(|| fs::read(self.dir.path(line.image)).unwrap());
        if let Some(original) = &original {
            fs::write(dir.join("img"), original).unwrap();
        }
        let (status, out, err) = program.run(dir, &line.input, &line.command_line());
        let effect = match original {
            Some(original) if fs::read(dir.join("img")).unwrap() != original => {
                Effect::Changed([&self.debian, &self.inlock].map(|judge| judge.judge(dir)).to_vec())
            }
            _ => Effect::None,
        };
        let text = format!("{}{err}", String::from_utf8_lossy(&out));
        (Outcome { status, effect, output: fs::read(dir.join("out")).ok() }, text)
    }

    /// Compares the programs on one line. Returns what is wrong.
    fn check(&self, line: &Line<'_>, dir: &Path) -> Result<(), String> {
        let (ours, text) = self.outcome(&self.inlock, line, dir);
        let show = |name: &str, outcome: &Outcome, text: &str| {
            format!("{name}: status {}, {:?}, output {:?}\n{text}", outcome.status, outcome.effect, outcome.output)
        };
        if text.contains("panicked") {
            return Err(show("inlock", &ours, &text));
        }
        let mut wrong = show("inlock", &ours, &text);
        if let Some(expected) = line.expected {
            return match (ours.status == expected, &ours.effect) {
                (true, Effect::None) => Ok(()),
                _ => Err(wrong),
            };
        }
        for program in self.newest.iter().chain([&self.debian]) {
            let (theirs, text) = self.outcome(program, line, dir);
            if ours == theirs {
                return Ok(());
            }
            wrong += &show(program.name, &theirs, &text);
        }
        Err(wrong)
    }
}

#[test]
fn command_line_has_status_and_effect_of_cryptsetup() {
    let Some(bench) = Bench::new() else { return };
    let wanted = std::env::var("INLOCK_DROPIN_LINES").unwrap_or_default();
    let has_keyring = add_token_keys();
    let is_run = |line: &&str| {
        !line.is_empty()
            && !line.starts_with('#')
            && line.contains(&wanted)
            && (has_keyring || !line.starts_with("2tok"))
    };
    let lines: Vec<&str> = LINES.lines().filter(is_run).collect();
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (bench, lines, next, failures) = (&bench, &lines, &next, &failures);
            scope.spawn(move || {
                let dir = bench.dir.path(&format!("run{thread}"));
                while let Some(text) = lines.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(wrong) = bench.check(&Line::parse(text), &dir) {
                        failures.lock().unwrap().insert(*text, wrong);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    for (line, wrong) in &failures {
        println!("\n## {line}\n{wrong}");
    }
    assert!(failures.is_empty(), "{} of {} lines differ", failures.len(), lines.len());
    count("dropin_command_lines", lines.len());
}

#[test]
fn dump_without_random_lines_keeps_the_others() {
    let dump = "Epoch: \t3\nUUID: x\n  0: luks2\n\tKey: 256 bits\n\tSalt: 00 11\n\t 22 33\n\tIterations: 1000\n\
        Digests:\n\tIterations: 77\n";
    assert_eq!(lasting(dump), "  0: luks2\n\tKey: 256 bits\n\tIterations: 1000\nDigests:\n");
}
