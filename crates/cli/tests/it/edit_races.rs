//! Two commands that change one header at once: the passphrases that they promise open it.
//!
//! The first command has checked the header and waits for its lock, which the test holds; it is stopped there, the
//! second one runs to its end, and the first goes on. `INLOCK_RACES=20` repeats all pairs that often, and lets them
//! run freely, too; without it each pair runs once, and those with the least to lose are left out.

use crate::harness::storage::Loop;
use crate::harness::terminal::talk;
use crate::harness::{Dir, Ended, call, call_with, have, inlock, run};
use inlock_tests::wait::eventually;
use inlock_volume::{FileDevice, Secret, UnlockOptions, Volume};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, PipeReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};

const COSTS: [&str; 4] = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];
const SMALL: [&str; 6] = ["--cipher", "aes-cbc-essiv:sha256", "--key-size", "128", "--offset", "2048"];
const UUID: &str = "11111111-2222-3333-4444-555555555555";

/// A command that changes the header, of the keyslot of this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Add(u32),
    Change(u32),
    ConvertKey(u32),
    Remove(u32),
    Kill(u32),
    Erase,
    Label,
    Token,
    Uuid,
    Convert,
    Repair,
    Restore,
    Format,
}

use Verb::{Add, Change, Convert, ConvertKey, Erase, Format, Kill, Label, Remove, Repair, Restore, Token, Uuid};

/// Passphrases of the keyslots.
type State = BTreeMap<u32, String>;

fn passphrase(slot: u32) -> String {
    format!("passphrase {slot}")
}

impl Verb {
    /// Returns the commands of a version, for keyslot 0 and then for keyslot 1.
    fn all(version: u32) -> (Vec<Self>, Vec<Self>) {
        let of = |slot| vec![Add(slot), Change(slot), Remove(slot), Kill(slot)];
        let (mut first, mut second) = (of(0), of(1));
        first.extend([Erase, Uuid, Convert, Repair, Restore, Format]);
        if version == 2 {
            first.extend([ConvertKey(0), Label, Token]);
            second.push(ConvertKey(1));
        }
        (first, second)
    }

    /// Whether it only changes keyslots, labels or tokens, so that another one may follow.
    fn is_edit(self) -> bool {
        !matches!(self, Uuid | Convert | Restore | Format)
    }

    /// Whether it writes a header with a sequence number of its own.
    fn is_new(self) -> bool {
        matches!(self, Restore | Format | Convert)
    }

    /// Whether it changes one keyslot, of which the other one may be the proof.
    fn is_of_keyslot(self) -> bool {
        matches!(self, Change(_) | Remove(_) | Kill(_))
    }

    /// Returns the words and the input of the command; `name` tells its passphrase from that of others.
    fn command(self, volume: &Template, image: &str, name: &str) -> (Vec<String>, String) {
        let version = volume.version;
        let other = (3 - version).to_string();
        let (words, input): (Vec<&str>, String) = match self {
            Add(slot) => (vec!["luksAddKey"], format!("{}\n{name}\n", passphrase(slot))),
            Change(slot) => (vec!["luksChangeKey"], format!("{}\n{name}\n", passphrase(slot))),
            ConvertKey(slot) => (vec!["luksConvertKey"], passphrase(slot)),
            Remove(slot) => (vec!["luksRemoveKey"], passphrase(slot)),
            Kill(slot) => (vec!["luksKillSlot", image, ["0", "1"][slot as usize]], passphrase(1 - slot)),
            Erase => (vec!["luksErase", "-q"], String::new()),
            Label => (vec!["config", "--label", name], String::new()),
            Token => (vec!["token", "add", "--key-description", name, image], String::new()),
            Uuid => (vec!["luksUUID", "-q", "--uuid", UUID], String::new()),
            Convert => (vec!["convert", "-q", "--type", if other == "1" { "luks1" } else { "luks2" }], String::new()),
            Repair => (vec!["repair", "-q"], String::new()),
            Restore => (vec!["luksHeaderRestore", "-q", "--header-backup-file", &volume.backup], String::new()),
            Format => {
                (vec!["luksFormat", "-q", "--type", if version == 1 { "luks1" } else { "luks2" }], name.to_owned())
            }
        };
        let mut all: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        if !words.contains(&image) {
            all.push(image.to_owned());
        }
        if matches!(self, Add(_) | Change(_) | ConvertKey(_) | Format) {
            all.extend(COSTS.map(str::to_owned));
        }
        if self == Format {
            all.extend(SMALL.map(str::to_owned));
        }
        (all, input)
    }

    /// Returns what the command makes of a header, `None` if it must not succeed.
    fn apply(self, version: u32, state: &State, name: &str) -> Option<State> {
        let mut new = state.clone();
        let free = (0..).find(|slot| !state.contains_key(slot))?;
        let slot_of = |slot| state.iter().find(|(_, held)| **held == passphrase(slot)).map(|(&number, _)| number);
        match self {
            Add(slot) => {
                slot_of(slot)?;
                new.insert(free, name.to_owned());
            }
            Change(slot) => {
                let number = slot_of(slot)?;
                new.remove(&number);
                new.insert(if version == 1 { free } else { number }, name.to_owned());
            }
            ConvertKey(slot) => drop(slot_of(slot)?),
            Remove(slot) => drop(new.remove(&slot_of(slot)?)),
            Kill(slot) => {
                slot_of(1 - slot).filter(|number| *number != slot)?;
                new.remove(&slot)?;
            }
            Erase => new.clear(),
            Restore => new = start(),
            Format => new = State::from([(0, name.to_owned())]),
            Label | Token | Uuid | Convert | Repair => {}
        }
        Some(new)
    }
}

/// The keyslots of every volume before the race.
fn start() -> State {
    State::from([(0, passphrase(0)), (1, passphrase(1))])
}

/// A volume to copy.
struct Template {
    version: u32,
    bytes: Vec<u8>,
    backup: String,
}

impl Template {
    fn new(dir: &Dir, version: u32) -> Self {
        let image = dir.image("template", 2);
        let kind = format!("luks{version}");
        let words = ["luksFormat", "-q", "--type", &kind, &image];
        call_with(passphrase(0).as_bytes(), words.iter().chain(&COSTS).chain(&SMALL)).works();
        let both = format!("{}\n{}\n", passphrase(0), passphrase(1));
        call_with(both.as_bytes(), ["luksAddKey", &image].iter().chain(&COSTS)).works();
        let backup = dir.name("backup");
        call(["luksHeaderBackup", &image, "--header-backup-file", &backup]).works();
        Self { version, bytes: std::fs::read(&image).expect("readable"), backup }
    }
}

/// A command that may be running.
struct Running {
    child: Child,
    /// Its output and its errors.
    output: BufReader<PipeReader>,
    said: String,
}

impl Running {
    fn start(mut command: Command, input: &str) -> Self {
        let (output, writer) = std::io::pipe().expect("a pipe");
        command.stdin(Stdio::piped()).stdout(writer.try_clone().expect("a pipe")).stderr(writer);
        let mut child = command.spawn().expect("it starts");
        // It has the only other end.
        drop(command);
        // A command that does not read its input may be gone.
        let _ = child.stdin.take().expect("a pipe").write_all(input.as_bytes());
        Self { child, output: BufReader::new(output), said: String::new() }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it was not waited for");
    }

    /// Waits until it asks for the exclusive lock of the header, and stops it there. `false`: it ended before.
    fn stop_at_lock(&mut self) -> bool {
        while !self.said.contains("Acquiring write lock") {
            if self.output.read_line(&mut self.said).expect("text") == 0 {
                return false;
            }
        }
        self.signal(Signal::STOP);
        let stat = format!("/proc/{}/stat", self.child.id());
        let state = || std::fs::read_to_string(&stat).unwrap_or_default();
        eventually("the command stops", state, |stat| stat.contains(") T "));
        true
    }

    fn end(mut self) -> Ended {
        let mut rest = Vec::new();
        self.output.read_to_end(&mut rest).expect("readable");
        self.said.push_str(&String::from_utf8_lossy(&rest));
        let code = self.child.wait().expect("it ends").code().unwrap_or(-1);
        Ended { code, out: Vec::new(), err: self.said }
    }
}

/// Program of the second command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Inlock,
    Cryptsetup,
}

impl Program {
    fn command(self) -> Command {
        match self {
            Self::Inlock => inlock(),
            Self::Cryptsetup => Command::new("cryptsetup"),
        }
    }
}

/// Two commands on one volume.
struct Race<'a> {
    template: &'a Template,
    image: String,
    /// Its name for either command.
    names: [&'a str; 2],
    verbs: [Verb; 2],
    second: Program,
}

const NAMES: [&str; 2] = ["of the first", "of the second"];

impl Race<'_> {
    fn command(&self, at: usize) -> (Command, String) {
        let (words, input) = self.verbs[at].command(self.template, self.names[at], NAMES[at]);
        let mut command = if at == 0 { inlock() } else { self.second.command() };
        command.args(words);
        (command, input)
    }

    /// Writes the volume. The file stays the same, for a loop device over it.
    fn start(&self) {
        let file = File::options().write(true).create(true).truncate(false).open(&self.image);
        file.and_then(|file| file.write_all_at(&self.template.bytes, 0)).expect("writable");
    }

    /// Runs the second command while the first one waits for the lock.
    fn run_stopped(&self) {
        self.start();
        let lock = File::open(&self.image).expect("readable");
        flock(&lock, FlockOperation::LockShared).expect("it is free");
        let (mut command, input) = self.command(0);
        command.arg("--debug");
        let mut first = Running::start(command, &input);
        let waits = first.stop_at_lock();
        flock(&lock, FlockOperation::Unlock).expect("it is held");
        let (mut command, input) = self.command(1);
        let second = run(&mut command, input.as_bytes());
        let between = std::fs::read(&self.image).expect("readable");
        if waits {
            first.signal(Signal::CONT);
        }
        let ended = [first.end(), second];
        self.check(&ended);
        let what = format!("{self} {ended:?}");
        assert!(waits, "it did not wait for the lock: {what}");
        if ended[0].code != 0 {
            assert!(std::fs::read(&self.image).expect("readable") == between, "a failed command wrote: {what}");
        }
        let [first, second] = self.verbs;
        let after = second.apply(self.template.version, &start(), NAMES[1]).filter(|_| ended[1].code == 0);
        let both = after.and_then(|state| first.apply(self.template.version, &state, NAMES[0]));
        // A keyslot with the old passphrase and another derivation is another one, and so is one that was changed.
        let is_other = matches!((second, first), (ConvertKey(_), _) | (Change(0), Kill(0)));
        if both.is_some() && first.is_edit() && second.is_edit() && !is_other {
            assert_eq!(ended[0].code, 0, "nothing hinders it: {what}");
        }
    }

    /// Runs both without any order.
    fn run_freely(&self) {
        self.start();
        let running = [0, 1].map(|at| {
            let (command, input) = self.command(at);
            Running::start(command, &input)
        });
        self.check(&running.map(Running::end));
    }

    /// Checks that the passphrases are those of the commands that succeeded, one after the other.
    fn check(&self, ended: &[Ended; 2]) {
        let file = File::open(&self.image).expect("readable");
        let device = FileDevice::new(file);
        let volume = Volume::load(&device).unwrap_or_else(|error| panic!("{error}: {self} {ended:?}"));
        let candidates = [passphrase(0), passphrase(1)].into_iter().chain(NAMES.map(str::to_owned));
        let opens = |text: &String| {
            let secret = Secret::new(text.clone().into_bytes());
            volume.unlock_key(&device, &secret, &UnlockOptions::default()).is_ok()
        };
        let found: Vec<String> = candidates.filter(opens).collect();
        let orders: [&[usize]; 2] = match ended.each_ref().map(|ended| ended.code == 0) {
            [true, true] => [&[0, 1], &[1, 0]],
            [true, false] => [&[0]; 2],
            [false, true] => [&[1]; 2],
            [false, false] => [&[]; 2],
        };
        let promised = orders.map(|order| {
            let apply = |state: State, at: &usize| self.verbs[*at].apply(self.template.version, &state, NAMES[*at]);
            let mut all: Vec<String> = order.iter().try_fold(start(), apply)?.into_values().collect();
            all.sort_unstable_by_key(|text| (text.starts_with("of"), text.clone()));
            Some(all)
        });
        let what = format!("{self}: {found:?} open, {promised:?} were promised; {ended:?}");
        assert!(promised.contains(&Some(found)), "{what}");
        let says_why = |ended: &Ended| ended.code == 0 || !ended.err.is_empty();
        // cryptsetup may say nothing.
        assert!(says_why(&ended[0]) && (self.second == Program::Cryptsetup || says_why(&ended[1])), "{what}");
    }
}

impl std::fmt::Display for Race<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [first, second] = self.verbs;
        write!(f, "LUKS{}: {first:?} and {second:?} of {:?}", self.template.version, self.second)
    }
}

/// Races every pair. cryptsetup takes no lock of a LUKS1 header, and knows another LUKS2 header by its sequence number
/// alone: with these it keeps its promise only as the second command.
fn race_all(version: u32, second: Program) {
    let repetitions = std::env::var("INLOCK_RACES").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let dir = Dir::new();
    let template = Template::new(&dir, version);
    let (firsts, more) = Verb::all(version);
    for verbs in firsts.iter().flat_map(|&first| firsts.iter().chain(&more).map(move |&second| [first, second])) {
        // These lock the header before they look at it.
        let is_trivial = matches!(verbs[0], Convert | Repair | Restore) && !matches!(verbs[1], Add(_) | Erase);
        let is_brief = second == Program::Inlock || verbs[0].is_of_keyslot() && verbs[1].is_of_keyslot();
        if repetitions == 1 && (is_trivial || !is_brief) {
            continue;
        }
        let image = dir.name("image");
        let race = Race { template: &template, names: [&image; 2], image: image.clone(), verbs, second };
        for repetition in 0..repetitions {
            race.run_stopped();
            // cryptsetup's `luksUUID` reads the header before it takes the lock to write.
            let is_free = |verb: &Verb| !verb.is_new() && *verb != Uuid;
            if repetition > 0 && (second == Program::Inlock || version == 2 && verbs.iter().all(is_free)) {
                race.run_freely();
            }
        }
    }
}

#[test]
fn two_edits_of_luks1_keep_what_they_promise() {
    race_all(1, Program::Inlock);
}

#[test]
fn two_edits_of_luks2_keep_what_they_promise() {
    race_all(2, Program::Inlock);
}

#[test]
fn edits_together_with_cryptsetup_keep_what_they_promise() {
    if have("cryptsetup") {
        for version in [1, 2] {
            race_all(version, Program::Cryptsetup);
        }
    }
}

#[test]
fn edits_of_a_file_and_of_a_loop_device_over_it_keep_what_they_promise() {
    for version in [1, 2] {
        let dir = Dir::new();
        let template = Template::new(&dir, version);
        let image = dir.file("image", &template.bytes);
        let Some(device) = Loop::over(&image) else { return };
        for verbs in [[Add(0), Add(1)], [Change(0), Change(0)], [Remove(0), Kill(1)], [Kill(0), Kill(1)]] {
            for names in [[&*image, &device.0], [&device.0, &image]] {
                let race = Race { template: &template, image: image.clone(), names, verbs, second: Program::Inlock };
                race.run_stopped();
            }
        }
    }
}

/// The last keyslot is removed only if the user agrees, also if it was not the last one when it was opened.
#[test]
fn removal_of_key_that_became_the_last_one_is_confirmed() {
    for version in [1, 2] {
        let dir = Dir::new();
        let template = Template::new(&dir, version);
        let image = dir.name("image");
        let confirm = "Are you sure? (Type 'yes' in capital letters): ";
        for (answer, status, left) in [("no\n", 2, 1), ("YES\n", 0, 0)] {
            std::fs::write(&image, &template.bytes).expect("writable");
            let lock = File::open(&image).expect("readable");
            flock(&lock, FlockOperation::LockShared).expect("it is free");
            // The other command goes past the lock that the first one waits for.
            let other = format!(
                "run printf '{}' | {} luksRemoveKey -q --disable-locks {image} && touch {image}.done",
                passphrase(1),
                env!("CARGO_BIN_EXE_inlock")
            );
            let typed = passphrase(0) + "\n";
            let steps = [("to be deleted: ", &*typed), ("Acquiring write lock", &other), (confirm, answer)];
            let said = std::thread::scope(|scope| {
                let first = scope.spawn(|| talk(&steps, &["luksRemoveKey", &image, "--debug"]));
                let done = dir.path("image.done");
                eventually("the other command", || first.is_finished() || done.exists(), |is_done| *is_done);
                let _ = std::fs::remove_file(done);
                flock(&lock, FlockOperation::Unlock).expect("it is held");
                first.join().expect("it ends")
            });
            let Some(said) = said else { return };
            assert_eq!(said["status"], status, "{said}");
            let volume = Volume::load(&FileDevice::new(File::open(&image).expect("readable"))).expect("a header");
            assert_eq!(volume.active_keyslots().len(), left, "{said}");
        }
    }
}
