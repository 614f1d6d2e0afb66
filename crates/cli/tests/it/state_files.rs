//! State files that processes leave when they are killed: of every version, in part, unreadable, or missing. What the
//! process has attached is detached, and no file is taken for a missing one.

use crate::harness::control::{Named, Run};
use crate::harness::{Dir, Ended, has_fuse, have, inlock, run};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Whether loop devices can be made. Reports a skip otherwise.
fn can_make_disks() -> bool {
    let can = rustix::process::geteuid().is_root() && Path::new("/dev/loop-control").exists() && have("losetup");
    if !can {
        println!("SKIPPED: no loop device can be made here");
    }
    can && has_fuse()
}

/// Methods that work here.
fn methods() -> &'static [&'static str] {
    match (has_fuse(), can_make_disks()) {
        (true, true) => &["fuse", "loop"],
        (true, false) => &["fuse"],
        (false, _) => &[],
    }
}

/// Returns a method that works here, another one for the next number.
fn method(number: usize) -> Option<&'static str> {
    methods().get(number % methods().len().max(1)).copied()
}

/// A plain volume, and a run directory. What is attached is detached when this is dropped.
struct Volume {
    dir: Dir,
    run: Run,
    /// Its own, since there is only one /dev/inlock.
    name: String,
}

impl Volume {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("state-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let this = Self { dir: Dir::new(), run: Run::new(), name };
        this.dir.image("image", 8);
        this.dir.file("key", &[7; 32]);
        // Creates the run directory.
        this.run.call(&["list"]).works();
        this
    }

    fn command(&self, program: Command, words: &[&str]) -> Command {
        let mut command = program;
        command.env("INLOCK_RUN_DIR", self.run.path("")).args(["open", &self.dir.name("image"), &self.name]);
        command.args(["--type", "plain", "--key-file", &self.dir.name("key")]).args(words);
        command
    }

    /// Opens it in the background.
    fn open(&self, via: &str) -> Ended {
        run(&mut self.command(inlock(), &["--via", via]), b"")
    }

    /// Opens it in the foreground, and returns its process and its node.
    fn start(&self, via: &str) -> (Child, PathBuf) {
        let mut command = self.command(inlock(), &["--via", via, "--foreground"]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("as it should");
        let mut node = String::new();
        BufReader::new(child.stdout.as_mut().expect("as it should")).read_line(&mut node).expect("as it should");
        // The control socket is there, too.
        assert_eq!(self.run.json(&["status", &self.name, "--json"])["state"], "active");
        (child, PathBuf::from(node.trim_end()))
    }

    /// Opens it in a process that is killed then. Returns its node.
    fn killed(&self, via: &str) -> PathBuf {
        let (mut child, node) = self.start(via);
        child.kill().expect("as it should");
        child.wait().expect("as it should");
        node
    }

    fn state_file(&self) -> PathBuf {
        self.run.path(&format!("{}.json", self.name))
    }

    /// Returns the file that is mounted over.
    fn file(&self) -> PathBuf {
        self.run.path(&format!("{}.volume", self.name))
    }

    /// Returns what is attached: lines of mounts and of loop devices.
    fn attached(&self) -> Vec<String> {
        let here = self.run.path("").to_str().expect("as it should").trim_end_matches('/').to_owned();
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("as it should");
        let mounts = mounts.lines().filter(|line| line.contains(&here)).map(str::to_owned);
        let devices =
            fs::read_dir("/sys/block").expect("as it should").map(|device| device.expect("as it should").path());
        let files = devices.filter_map(|device| fs::read_to_string(device.join("loop/backing_file")).ok());
        mounts.chain(files.filter(|file| file.starts_with(&here))).collect()
    }

    /// Checks that nothing is attached, and that the run directory has these files only.
    #[track_caller]
    fn has_left(&self, files: &[&str]) {
        let mut left = self.run.left();
        // The control socket before it gets its name.
        left.retain(|name| !name.starts_with('~') || name.ends_with(".json"));
        assert!(fs::read_link(Path::new("/dev/inlock").join(&self.name)).is_err(), "a link stays");
        assert_eq!((self.attached(), left.iter().map(String::as_str).collect::<Vec<_>>()), (vec![], files.to_vec()));
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // Needed only after a failed test.
        let _ = self.run.call(&["close", "--force", &self.name]);
        let _ = self.run.call(&["close", "--force", &self.name]);
    }
}

/// Kills `open` as each call returns that changes something, until it has printed its node.
#[test]
fn process_killed_at_any_time_leaves_nothing_attached() {
    if !have("python3") {
        return;
    }
    for via in methods() {
        let volume = Volume::new();
        let mut states = Vec::new();
        for number in 1.. {
            let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/killed_at.py");
            let mut tracer = Command::new("python3");
            tracer.args([script, &number.to_string(), env!("CARGO_BIN_EXE_inlock")]);
            let ended = run(&mut volume.command(tracer, &["--via", via, "--foreground"]), b"");
            assert!([0, 3].contains(&ended.code), "{via}, call {number}: {ended:?}");
            let attached = volume.attached().len();
            states.push((volume.state_file().exists(), attached));
            assert!(volume.state_file().exists() || attached == 0, "{via}, call {number}: nothing tells what is left");
            match number % 2 {
                0 => drop(volume.run.call(&["close", &volume.name])),
                _ => {
                    volume.open(via).works();
                    volume.run.call(&["close", &volume.name]).works();
                }
            }
            volume.has_left(&[]);
            if ended.code == 3 {
                break;
            }
        }
        // It was killed before it attached, between attaching and publishing, and after that.
        let most = if *via == "loop" { 2 } else { 1 };
        for attached in 0..=most {
            assert!(states.contains(&(true, attached)), "{via}: {states:?}");
        }
        assert!(states.iter().filter(|state| state.1 == most).count() > 2, "{via}: {states:?}");
    }
}

/// Returns the state files of earlier versions, and of this one, with their names.
fn samples() -> Vec<(String, String)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/state");
    let files = fs::read_dir(dir).expect("as it should").map(|file| file.expect("as it should").path());
    let name = |path: &Path| path.file_name().expect("as it should").to_str().expect("as it should").to_owned();
    let mut samples: Vec<_> =
        files.map(|path| (name(&path), fs::read_to_string(&path).expect("as it should"))).collect();
    samples.sort();
    assert!(samples.len() > 10);
    samples
}

#[test]
fn state_files_of_every_version_tell_what_to_detach() {
    let volume = Volume::new();
    for (number, (name, sample)) in samples().into_iter().enumerate() {
        if let Some(via) = method(number / 2) {
            let node = volume.killed(via);
            let named = format!("\"name\": \"{}\"", volume.name);
            let texts = [("\"name\": \"data\"", &*named), ("@METHOD@", via), ("@NODE@", node.to_str().unwrap())];
            let text = texts.iter().fold(sample.clone(), |text, (from, to)| text.replace(from, to));
            fs::write(volume.state_file(), text.replace("@FILE@", volume.file().to_str().unwrap())).unwrap();
            let status = volume.run.call(&["status", &volume.name]);
            assert_eq!(status.code, 4, "{name}: {status:?}");
            status.fails(
                4,
                &["Process 4194304, which served /srv/", "has died", &format!("`inlock close {}`", volume.name)],
            );
            let listed = volume.run.call(&["list"]);
            let row: Vec<&str> = listed.works().text().lines().nth(1).unwrap().split_whitespace().collect();
            assert_eq!((row[1], row[3]), ("gone", via), "{name}");
            if number % 2 == 0 {
                volume.open(via).works();
            }
            volume.run.call(&["close", &volume.name]).works();
            volume.has_left(&[]);
        }
    }
}

/// A way to make a state file unusable.
struct Broken {
    name: &'static str,
    /// In the error of every command.
    reason: &'static str,
    /// Whether the part that never changes is readable.
    is_readable: bool,
    /// State in lists.
    state: &'static str,
    make: fn(&Path, Value),
}

const BROKEN: &[Broken] = &[
    unreadable("empty", "is damaged: EOF", |path, _| fs::write(path, "").expect("as it should")),
    unreadable("cut", "is damaged: EOF", |path, whole| {
        let text = whole.to_string();
        fs::write(path, &text[..text.len() - 1]).expect("as it should");
    }),
    unreadable("noise", "is damaged: expected value", |path, _| {
        fs::write(path, crate::harness::noise(4096)).expect("as it should")
    }),
    unreadable("long", "is damaged: it has 1048577 bytes", |path, whole| {
        let text = whole.to_string();
        fs::write(path, text.clone() + &" ".repeat((1 << 20) + 1 - text.len())).expect("as it should");
    }),
    unreadable("directory", "cannot be read: Is a directory", |path, _| {
        fs::remove_file(path).expect("as it should");
        fs::create_dir(path).expect("as it should");
    }),
    unreadable("circle of links", "cannot be read: Too many levels", |path, _| {
        fs::remove_file(path).expect("as it should");
        std::os::unix::fs::symlink(path, path).expect("as it should");
    }),
    unreadable("link to nothing", "cannot be read: No such file", |path, _| {
        fs::remove_file(path).expect("as it should");
        std::os::unix::fs::symlink("/nowhere/at/all", path).expect("as it should");
    }),
    unreadable("other name", "is that of another volume, \"other\"", |path, whole| with(path, whole, "name", "other")),
    unreadable("no method", "is damaged: missing field `via`", |path, mut whole| {
        whole.as_object_mut().expect("as it should").remove("via");
        fs::write(path, whole.to_string()).expect("as it should");
    }),
    unreadable("unknown method", "attached it by \"vhost\"", |path, whole| with(path, whole, "via", "vhost")),
    unreadable("cookie that is text", "is damaged: invalid type", |path, whole| {
        with(path, whole, "device_cookie", "1")
    }),
    Broken {
        name: "newer",
        reason: "is of a newer version of Inlock (format 2",
        is_readable: true,
        state: "newer",
        make: |path, whole| with(path, whole, "version", 2),
    },
    Broken {
        name: "newer, with nothing in common but the frozen part",
        reason: "is of a newer version of Inlock (format 4294967295",
        is_readable: true,
        state: "newer",
        make: |path, mut whole| {
            let frozen = ["name", "pid", "via", "device", "node", "device_cookie", "mounted_over"];
            whole.as_object_mut().expect("as it should").retain(|key, _| frozen.contains(&key.as_str()));
            (whole["segments"], whole["started"]) = ("none".into(), Value::Null);
            with(path, whole, "version", u32::MAX);
        },
    },
    Broken {
        name: "rest damaged",
        reason: "is damaged: invalid type",
        is_readable: true,
        state: "unreadable",
        make: |path, whole| with(path, whole, "segments", 1),
    },
];

const fn unreadable(name: &'static str, reason: &'static str, make: fn(&Path, Value)) -> Broken {
    Broken { name, reason, is_readable: false, state: "unreadable", make }
}

fn with(path: &Path, mut whole: Value, key: &str, value: impl Into<Value>) {
    whole[key] = value.into();
    fs::write(path, whole.to_string()).expect("as it should");
}

/// Returns what is at a path, to compare it: kind, target and content.
fn content(path: &Path) -> (fs::FileType, Option<PathBuf>, Option<Vec<u8>>) {
    let kind = fs::symlink_metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).file_type();
    (kind, fs::read_link(path).ok(), fs::read(path).ok())
}

#[test]
fn state_file_that_cannot_be_used_is_shown_and_kept_until_it_is_closed() {
    for (number, broken) in BROKEN.iter().enumerate() {
        if let Some(via) = method(number) {
            let volume = Volume::new();
            volume.killed(via);
            let path = volume.state_file();
            let whole = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            (broken.make)(&path, whole);
            let (before, attached) = (content(&path), volume.attached());
            assert!(!attached.is_empty());
            let force = if broken.is_readable { "" } else { " --force" };
            let next = format!("`inlock close{force} {}`", volume.name);
            let words = ["State file", path.to_str().unwrap(), broken.reason, &next];

            volume.open(via).fails(5, &words);
            let served =
                ["serve", &volume.dir.name("image"), "--type", "raw", "--name", &volume.name, "--nbd", "unix:/x"];
            volume.run.call(&served).fails(5, &words);
            let status = volume.run.call(&["status", &volume.name]);
            status.fails(5, &words);
            assert_eq!(status.text(), format!("{} is inactive.\n", volume.name));
            volume.run.call(&["suspend", &volume.name]).fails(5, &words);
            let status = volume.run.json_of(5, &["status", &volume.name, "--json"]);
            assert_eq!((&status["state"], &status["active"]), (&broken.state.into(), &false.into()), "{}", broken.name);
            let listed = volume.run.call(&["list"]);
            listed.fails(0, &words[..3]);
            assert!(listed.text().lines().nth(1).is_some_and(|row| row.contains(broken.state)), "{listed:?}");
            let listed = &volume.run.json(&["list", "--json"])[0];
            assert_eq!((&listed["name"], &listed["state"]), (&volume.name.as_str().into(), &broken.state.into()));
            assert_eq!(listed["via"] == *via, broken.is_readable, "{listed}");
            assert!(listed["error"].as_str().unwrap().contains(broken.reason), "{listed}");
            let top = volume.run.json(&["top", "--once", "--json"]);
            assert!(top.to_string().contains(broken.state), "{top}");
            if !broken.is_readable {
                volume.run.call(&["close", &volume.name]).fails(5, &words);
            }
            assert_eq!((content(&path), volume.attached()), (before.clone(), attached), "{}", broken.name);

            if broken.is_readable {
                volume.run.call(&["close", &volume.name]).works();
                volume.has_left(&[]);
            } else {
                let aside = volume.state_file().with_extension("unreadable");
                volume.run.call(&["close", "--force", &volume.name]).fails(0, &["is now", aside.to_str().unwrap()]);
                volume.has_left(&[&format!("{}.unreadable", volume.name)]);
                assert_eq!(content(&aside), before, "{}", broken.name);
            }
            volume.open(via).works();
            volume.run.call(&["close", &volume.name]).works();
        }
    }
}

/// The process holds its lock, and has published what it is going to attach.
#[test]
fn volume_that_is_being_attached_is_starting() {
    let run = Run::new();
    run.call(&["list"]).works();
    let lock = File::create(run.path("data.lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let (_, text) = samples().into_iter().find(|(name, _)| name == "version-1-attaching.json").unwrap();
    fs::write(run.path("data.json"), text.replace("@METHOD@", "fuse")).unwrap();
    let listed = run.call(&["list"]);
    let row: Vec<&str> = listed.works().text().lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row[..4], ["data", "starting", "LUKS2", "fuse"]);
    run.call(&["status", "data"]).fails(5, &["does not respond", "wait until it has started"]);
    assert!(run.path("data.json").exists());
}

#[test]
fn file_that_was_set_aside_is_not_replaced() {
    let run = Run::new();
    run.call(&["list"]).works();
    for (text, code) in [("one", 0), ("two", 5)] {
        fs::write(run.path("data.json"), text).unwrap();
        run.call(&["close", "--force", "data"]).fails(code, &["data.unreadable"]);
    }
    let read = |name| fs::read_to_string(run.path(name)).unwrap();
    assert_eq!((read("data.unreadable").as_str(), read("data.json").as_str()), ("one", "two"));
}

/// The process tells its state itself.
#[test]
fn running_volume_with_an_unusable_state_file_is_controlled() {
    let (dir, run) = (Dir::new(), Run::new());
    let image = dir.image("image", 1);
    for broken in BROKEN.iter().filter(|broken| broken.name != "directory") {
        let server = Named::start(&run, "data", &["--type", "raw", &image]);
        let path = run.path("data.json");
        let whole = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        (broken.make)(&path, whole);
        assert_eq!(run.json(&["status", "data", "--json"])["pid"], server.pid(), "{}", broken.name);
        let listed = &run.json(&["list", "--json"])[0];
        assert_eq!((&listed["state"], &listed["pid"]), (&"active".into(), &server.pid().into()), "{}", broken.name);
        run.call(&["serve", "--type", "raw", "--name", "data", "--nbd", "unix:/x", &image])
            .fails(5, &["already exists"]);
        run.call(&["close", "data"]).works();
        assert_eq!(run.left(), [] as [String; 0], "{}", broken.name);
    }
}

#[test]
fn dead_mount_of_a_name_without_a_state_file_is_unmounted() {
    for via in methods() {
        for close_first in [false, true] {
            let volume = Volume::new();
            let open_file = || {
                let (mut child, _) = volume.start(via);
                // Loop devices are detached first, and are in use if their file is.
                let file = (*via == "fuse").then(|| File::open(volume.file()).unwrap());
                child.kill().unwrap();
                child.wait().unwrap();
                file
            };
            let file = open_file();
            fs::remove_file(volume.state_file()).unwrap();
            let _ = fs::remove_file(volume.run.path(&format!("{}.lock", volume.name)));
            if close_first {
                volume.run.call(&["close", &volume.name]).fails(4, &["is not active"]);
            }
            volume.open(via).works();
            // Only one is left: the new one.
            assert_eq!(volume.attached().len(), if *via == "loop" { 2 } else { 1 }, "{:?}", volume.attached());
            assert_eq!(fs::metadata(volume.file()).unwrap().len(), 8 << 20);
            drop(file);
            volume.run.call(&["close", &volume.name]).works();
            volume.has_left(&[]);
        }
    }
}

/// The files in the run directory were deleted, such as by a program that cleans /tmp.
#[test]
fn volume_of_a_living_process_without_its_files_is_not_detached() {
    for via in methods() {
        let volume = Volume::new();
        let (mut child, node) = volume.start(via);
        let attached = volume.attached();
        let state = fs::read(volume.state_file()).unwrap();
        for without in [true, false] {
            let _ = fs::remove_file(volume.run.path(&format!("{}.lock", volume.name)));
            match without {
                true => fs::remove_file(volume.state_file()).unwrap(),
                false => fs::write(volume.state_file(), &state).unwrap(),
            }
            volume.open(via).fails(5, &[".volume is still in use", "lost its lock file"]);
            if !without {
                volume.run.call(&["close", &volume.name]).fails(5, &[".volume is still in use"]);
            }
            assert_eq!(volume.attached(), attached);
            assert_eq!(fs::read(&node).unwrap().len(), 8 << 20);
        }
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
}
