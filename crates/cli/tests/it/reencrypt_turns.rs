//! Inlock and cryptsetup take turns with a re-encryption, each killed at a random system call: the other goes on.

use crate::harness::{Dir, Ended, FAST, call, call_with, have, inlock, newest, noise, run};
use std::process::Command;

/// Bytes of data.
const LEN: usize = 2 << 20;
/// Zones are short, so that each re-encryption has many.
const ZONE: &str = "64K";
/// Most turns until one program goes on to the end.
const TURNS: u64 = 6;
/// System calls that write, at one of which a program is killed.
const CALLS: &str = "write,pwrite64,pwritev,fsync,fdatasync";

/// Random numbers of a run (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }

    fn one_of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len() as u64) as usize]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Reencrypt,
    /// Towards the end of the device, with room for the header at its start.
    EncryptWithShift,
    EncryptDetached,
    /// Towards the start of the device.
    DecryptWithShift,
    DecryptDetached,
}

const KINDS: [Kind; 5] =
    [Kind::Reencrypt, Kind::EncryptWithShift, Kind::EncryptDetached, Kind::DecryptWithShift, Kind::DecryptDetached];

/// Whether a header says that a re-encryption is going on.
fn has_begun(header: &str) -> bool {
    call(["luksDump", header]).out.windows(16).any(|words| words == b"online-reencrypt")
}

/// One run.
struct Turns {
    random: Random,
    dir: Dir,
    kind: Kind,
    image: String,
    /// The file of a detached header.
    header: String,
    /// Options that began it.
    options: Vec<&'static str>,
    content: Vec<u8>,
    log: Vec<String>,
    kills: usize,
    /// Whether Inlock has gone on with it.
    has_written: bool,
    /// Whether the newest cryptsetup takes part, rather than the installed one.
    is_newest: bool,
}

impl Turns {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let kind = KINDS[random.below(5) as usize];
        let dir = Dir::new();
        let content = noise(LEN);
        let (image, header) = (dir.name("image"), dir.name("header"));
        let mut turns = Self {
            random,
            dir,
            kind,
            image,
            header,
            options: Vec::new(),
            content,
            log: Vec::new(),
            kills: 0,
            has_written: false,
            is_newest: seed % 4 < 2,
        };
        turns.prepare();
        turns
    }

    /// Creates the device, and chooses the options.
    fn prepare(&mut self) {
        let old = self.random.one_of(&["512", "4096"]);
        let new = self.random.one_of(&["512", "4096"]);
        let detached = matches!(self.kind, Kind::DecryptDetached);
        match self.kind {
            Kind::Reencrypt | Kind::DecryptWithShift | Kind::DecryptDetached => {
                self.dir.image("image", if detached { LEN as u64 >> 20 } else { 18 });
                let (image, header) = (self.image.clone(), self.header.clone());
                let mut words = vec!["-q", "--sector-size", old];
                match detached {
                    true => words.extend(["--header", &header]),
                    // The shift of a decryption: the data are longer, or shorter.
                    false => words.extend(["--offset", self.random.one_of(&["2048", "32768"])]),
                }
                call_with(b"secret", ["luksFormat", &image].iter().chain(&words).chain(&FAST)).works();
                let input = self.dir.file("input", &self.content);
                let header = if detached { vec!["--header", &header] } else { Vec::new() };
                call_with(b"secret", ["import", "-q", &input, &image].iter().chain(&header)).works();
            }
            Kind::EncryptWithShift => {
                // The last 2 MiB are lost.
                let mut device = self.content.clone();
                device.resize(LEN + (2 << 20), 0);
                self.dir.file("image", &device);
            }
            Kind::EncryptDetached => drop(self.dir.file("image", &self.content)),
        }
        let resilience = self.random.one_of(&["checksum", "journal"]);
        self.options = match self.kind {
            Kind::Reencrypt => vec!["--cipher", "aes-xts-plain64", "--sector-size", new, "--resilience", resilience],
            Kind::EncryptWithShift => vec!["--encrypt", "--reduce-device-size", "2M", "--sector-size", new],
            Kind::EncryptDetached => vec!["--encrypt", "--sector-size", new, "--resilience", resilience],
            Kind::DecryptWithShift => vec!["--decrypt"],
            Kind::DecryptDetached => vec!["--decrypt", "--resilience", resilience],
        };
        self.log.push(format!("{:?} {old} {:?}", self.kind, self.options));
    }

    /// Whether the header is a file of its own now.
    fn is_detached(&self) -> bool {
        !matches!(self.kind, Kind::Reencrypt | Kind::EncryptWithShift)
    }

    /// Whether the header says that a re-encryption is going on.
    fn has_begun(&self) -> bool {
        has_begun(if self.is_detached() { &self.header } else { &self.image })
    }

    /// Returns the words of a random program: Inlock, or the cryptsetup of this run. `is_killed`: not to the end.
    fn program(&mut self, is_killed: bool) -> Vec<String> {
        let command = match self.random.below(2) {
            0 => inlock(),
            // A decryption that moves data is shared with the newest one alone, which takes whole turns.
            _ if self.kind == Kind::DecryptWithShift && is_killed => inlock(),
            _ if self.kind == Kind::DecryptWithShift => newest("cryptsetup").unwrap_or_else(inlock),
            _ if self.is_newest => newest("cryptsetup").unwrap_or_else(|| Command::new("cryptsetup")),
            _ => Command::new("cryptsetup"),
        };
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words.map(|word| word.to_str().expect("UTF-8").to_owned()).collect()
    }

    /// Runs `reencrypt` of one program with these words, after `repair` where it asks for that. `kill`: at this system
    /// call.
    fn turn(&mut self, words: &[&str], kill: Option<u64>) -> Ended {
        let program = self.program(kill.is_some());
        let ended = self.call(&program, "reencrypt", words, kill);
        if !ended.err.contains("Run repair first") {
            return ended;
        }
        let repaired = self.call(&program, "repair", &[], kill);
        if repaired.code == 0 && self.has_begun() { self.call(&program, "reencrypt", words, kill) } else { repaired }
    }

    fn call(&mut self, program: &[String], action: &str, words: &[&str], kill: Option<u64>) -> Ended {
        let mut all = Vec::new();
        if let Some(when) = kill {
            let (trace, inject) = (format!("trace={CALLS}"), format!("inject={CALLS}:signal=KILL:when={when}"));
            all.extend(["strace", "-f", "-qq", "-o", "/dev/null", "-e", &trace, "-e", &inject].map(str::to_owned));
        }
        all.extend_from_slice(program);
        let mut command = Command::new(&all[0]);
        command.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin").args(&all[1..]).args([action, "-q", &self.image]);
        if self.is_detached() {
            command.args(["--header", &self.header]);
        }
        command.args(words);
        if action == "reencrypt" && !program[0].ends_with("inlock") {
            command.arg("--force-offline-reencrypt").args(["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"]);
        }
        let ended = run(&mut command, b"secret");
        self.kills += usize::from(ended.code == -1 || ended.code == 137);
        let name = program.last().map_or("", String::as_str);
        let is_written = [-1, 0, 137].contains(&ended.code) && !words.contains(&"--init-only");
        self.has_written |= name == env!("CARGO_BIN_EXE_inlock") && is_written;
        self.log.push(format!("{name} {action} {words:?} killed at {kill:?}: {} {}", ended.code, ended.err.trim()));
        ended
    }

    /// Begins the re-encryption. Beginnings are not cut: a device that is encrypted has no header then that could tell.
    fn begin(&mut self) {
        let mut words = self.options.clone();
        words.push("--init-only");
        let forced = ["--force-offline-reencrypt"];
        words.extend(if self.kind == Kind::Reencrypt { &forced[..] } else { &[] });
        let ended = self.turn(&words, None);
        assert!(ended.code == 0 && self.has_begun(), "{ended:?}: {:#?}", self.log);
    }

    /// Takes turns to the end, and checks the data.
    fn run(mut self) -> usize {
        self.begin();
        for _ in 0..self.random.below(TURNS) {
            if !self.has_begun() {
                break;
            }
            let when = 1 + self.random.below(60);
            self.turn(&["--resume-only", "--hotzone-size", ZONE], Some(when));
            self.check_opens();
        }
        if self.has_begun() {
            let ended = self.turn(&["--resume-only"], None);
            // cryptsetup removes the keyslots of a device that is decrypted before it says that it is.
            let is_decrypted = self.is_to_be_decrypted() && std::fs::read(&self.image).unwrap()[..LEN] == self.content;
            if is_decrypted && ended.code != 0 {
                return self.kills;
            }
            // What Inlock has not written, cryptsetup itself may refuse to go on with, or have left without keyslots.
            if ended.code != 0 && !self.has_written {
                let mut words = vec!["reencrypt", "-q", "--resume-only", &self.image];
                words.extend(if self.is_detached() { vec!["--header", &self.header] } else { Vec::new() });
                let resumed = call_with(b"secret", &words);
                if resumed.code != 0 && self.is_to_be_decrypted() {
                    return self.kills;
                }
                assert_eq!(resumed.code, 0, "{resumed:?}: {:#?}", self.log);
            } else {
                assert_eq!(ended.code, 0, "{ended:?}: {:#?}", self.log);
            }
        }
        assert!(!self.has_begun(), "{:#?}", self.log);
        self.check_end(&self.image, &self.header);
        self.kills
    }

    fn is_to_be_decrypted(&self) -> bool {
        matches!(self.kind, Kind::DecryptDetached | Kind::DecryptWithShift)
    }

    /// Checks the data of a volume, also of one that is decrypted.
    fn check_end(&self, image: &str, header: &str) {
        match self.is_to_be_decrypted() && !has_begun(header) {
            true => assert!(std::fs::read(image).unwrap()[..LEN] == self.content, "{:#?}", self.log),
            false => self.check_content(image, header),
        }
    }

    /// Now and then, opens a copy of the volume as it is.
    fn check_opens(&mut self) {
        if !self.has_begun() || self.random.below(3) != 0 {
            return;
        }
        let (image, header) = (self.dir.name("copy"), self.dir.name("copied-header"));
        std::fs::copy(&self.image, &image).unwrap();
        if self.is_detached() {
            std::fs::copy(&self.header, &header).unwrap();
        }
        let mut words = vec!["repair", "-q", &image];
        words.extend(if self.is_detached() { vec!["--header", &header] } else { Vec::new() });
        let repaired = call_with(b"secret", &words);
        // cryptsetup removes the keyslots of a device that is decrypted before it says that it is.
        let is_decrypted = || std::fs::read(&image).unwrap()[..LEN] == self.content;
        if self.is_to_be_decrypted() && (is_decrypted() || repaired.code != 0 && !self.has_written) {
            return;
        }
        assert_eq!(repaired.code, 0, "{repaired:?}: {:#?}", self.log);
        self.check_end(&image, &header);
    }

    fn check_content(&self, image: &str, header: &str) {
        let header = if self.is_detached() { vec!["--header", header] } else { Vec::new() };
        let export = call_with(b"secret", ["export", "-q", image, "-"].iter().chain(&header));
        assert_eq!(export.code, 0, "{}: {:#?}", export.err, self.log);
        assert!(export.out[..LEN] == self.content, "{:#?}", self.log);
    }
}

#[test]
fn programs_that_are_killed_in_turns_lose_nothing() {
    if !have("cryptsetup") || !have("strace") {
        return;
    }
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let (runs, first) = (number("INLOCK_SEQUENCES").unwrap_or(10), number("INLOCK_SEED").unwrap_or(1));
    let kills: usize = std::thread::scope(|scope| {
        let half = |parity| move || (0..runs).filter(|n| n % 2 == parity).map(|n| Turns::new(first + n).run()).sum();
        let threads = [0, 1].map(|parity| scope.spawn(half(parity)));
        threads.into_iter().map(|thread| -> usize { thread.join().unwrap() }).sum()
    });
    println!("COUNT re_encryptions_in_turns {runs}");
    println!("COUNT kills_of_re_encryptions {kills}");
    assert!(kills as u64 >= runs / 2, "only {kills} programs were killed");
}
