//! Outputs of `export` and of commands that create files: on stable storage before success is reported, and locked
//! against others.

use crate::harness::storage::{Loop, Mounted, Other, Thin};
use crate::harness::terminal::talk;
use crate::harness::{Dir, FAST, allocated, call, call_with, have, inlock, noise, run};
use inlock_tests::wait::eventually;
use rustix::process::{Pid, Signal};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

const IN_USE: &str = "is in use (locked by another process).";

/// Runs `inlock` with `words` as the captive command of a server of `image`.
fn beside_a_server(image: &str, read_only: bool, words: &[&str]) -> crate::harness::Ended {
    let nested = [&[env!("CARGO_BIN_EXE_inlock")][..], words].concat().join(" ");
    let mut serve = vec!["serve", "--type", "raw", image, "--run", &nested];
    serve.extend(read_only.then_some("--read-only"));
    call(serve)
}

#[test]
fn export_to_storage_that_runs_full_fails() {
    let dir = Dir::new();
    let source = dir.file("source", &noise(24 << 20));
    let Some(thin) = Thin::new(&dir, 64, 8) else { return };
    let to_device = call(["export", "--type", "raw", &source, &thin.device.0]);
    to_device.fails(1, &[&thin.device.0]);
    // The same for a device as standard output.
    let script = format!("exec {} export --type raw {source} - > {}", env!("CARGO_BIN_EXE_inlock"), thin.device.0);
    run(Command::new("sh").args(["-c", &script]), b"").fails(1, &["standard output"]);
}

/// The runtime opens /dev/null in place of a closed descriptor.
#[test]
fn export_to_closed_standard_output_fails() {
    let dir = Dir::new();
    let source = dir.file("source", &noise(1 << 20));
    let export = |output: &str| {
        let script = format!("exec {} export --type raw {source} - {output}", env!("CARGO_BIN_EXE_inlock"));
        run(Command::new("sh").args(["-c", &script]), b"")
    };
    export(">&-").fails(1, &["cannot write standard output: Bad file descriptor"]);
    // What others open so is wanted.
    for output in [">/dev/null", "1<>/dev/null", "<&- >/dev/null", "2>&- >/dev/null"] {
        assert_eq!(export(output).code, 0, "{output}");
    }
}

#[test]
fn import_into_storage_that_runs_full_fails() {
    let dir = Dir::new();
    let source = dir.file("source", &noise(24 << 20));
    let Some(thin) = Thin::new(&dir, 64, 8) else { return };
    call(["import", "--type", "raw", &source, &thin.device.0]).fails(1, &[&thin.device.0]);
}

#[test]
fn export_to_file_on_storage_that_runs_full_fails() {
    let dir = Dir::new();
    let source = dir.file("source", &noise(48 << 20));
    let Some(thin) = Thin::new(&dir, 256, 32) else { return };
    if !have("mkfs.ext4") {
        return;
    }
    run(Command::new("mkfs.ext4").args(["-q", &thin.device.0]), b"").works();
    std::fs::create_dir(dir.path("files")).unwrap();
    let Some(_mounted) = Mounted::new(&[&thin.device.0, &dir.name("files")]) else { return };
    call(["export", "--type", "raw", &source, &dir.name("files/out")]).fails(1, &["files/out"]);
}

#[test]
fn export_to_mounted_device_is_refused() {
    let dir = Dir::new();
    let source = dir.file("source", &noise(1 << 20));
    let Some(device) = Loop::over(&dir.image("image", 64)) else { return };
    if !have("mkfs.ext4") {
        return;
    }
    run(Command::new("mkfs.ext4").args(["-q", &device.0]), b"").works();
    std::fs::create_dir(dir.path("files")).unwrap();
    let Some(mounted) = Mounted::new(&[&device.0, &dir.name("files")]) else { return };
    std::fs::write(dir.path("files/precious"), noise(4096)).unwrap();
    call(["export", "--type", "raw", &source, &device.0]).fails(5, &["is in use", "mounted"]);
    let script = format!("exec {} export --type raw {source} - > {}", env!("CARGO_BIN_EXE_inlock"), device.0);
    run(Command::new("sh").args(["-c", &script]), b"").fails(5, &["is in use"]);
    drop(mounted);
    run(Command::new("fsck.ext4").args(["-f", "-n", &device.0]), b"");
    let Some(_mounted) = Mounted::new(&[&device.0, &dir.name("files")]) else { return };
    assert!(std::fs::read(dir.path("files/precious")).unwrap() == noise(4096));
}

#[test]
fn export_to_device_of_server_is_refused() {
    let dir = Dir::new();
    let source = dir.file("source", &noise(1 << 20));
    let served = dir.file("served", &noise(2 << 20));
    std::fs::hard_link(&served, dir.path("hard")).unwrap();
    let mut names = vec![served.clone(), dir.name("hard")];
    let device = Loop::over(&served);
    names.extend(device.iter().map(|device| device.0.clone()));
    for read_only in [false, true] {
        for name in &names {
            let ended = beside_a_server(&served, read_only, &["export", "--type", "raw", &source, name]);
            ended.fails(5, &[IN_USE]);
            let to_stdout = format!("export --type raw {source} - 1<>{name}");
            beside_a_server(&served, read_only, &[&to_stdout]).fails(5, &[IN_USE]);
        }
    }
    assert!(std::fs::read(&served).unwrap() == noise(2 << 20), "the image was overwritten");
    call(["export", "-q", "--type", "raw", &source, &served]).works();
    assert!(std::fs::read(&served).unwrap() == noise(1 << 20));
}

#[test]
fn export_onto_its_own_source_is_refused() {
    let dir = Dir::new();
    let source = dir.file("source", &noise(1 << 20));
    std::os::unix::fs::symlink(&source, dir.path("soft")).unwrap();
    let mut names = vec![dir.name("soft")];
    let device = Loop::over(&source);
    names.extend(device.iter().map(|device| device.0.clone()));
    for name in &names {
        call(["export", "--type", "raw", &source, name]).fails(1, &["The output file is the image itself."]);
        call(["import", "--type", "raw", name, &source]).fails(1, &["The input file is the image itself."]);
    }
    for name in device.iter().map(|device| &device.0) {
        call(["export", "--type", "raw", name, &source]).fails(1, &["The output file is the image itself."]);
    }
    assert!(std::fs::read(&source).unwrap() == noise(1 << 20));
}

#[test]
fn output_is_locked_while_written() {
    let dir = Dir::new();
    let source = dir.file("source", &noise(1 << 20));
    // The key comes from a pipe that is written after the other command has exited.
    let output = dir.file("output", b"before");
    let image = dir.luks1("image");
    let mut export = inlock();
    export.args(["export", "-q", "--key-file", "-", &image, &output]);
    let mut export = export.stdin(Stdio::piped()).spawn().unwrap();
    let other = || call(["export", "--type", "raw", &output, "/dev/null"]);
    eventually("the output is locked", other, |other| other.code == 5);
    let refused = call(["export", "--type", "raw", &source, &output]);
    drop(export.stdin.take());
    assert!(!export.wait().unwrap().success(), "no key was given");
    refused.fails(5, &[IN_USE]);
    assert_eq!(std::fs::read(&output).unwrap(), b"before", "the output was cut without a key");
}

#[test]
fn write_only_output_is_written() {
    let dir = Dir::new();
    let Some(other) = Other::new(&dir) else { return };
    let source = dir.file("source", &noise(8192));
    Other::open(&source, 0o644);
    let output = dir.file("output", b"old");
    Other::open(&output, 0o222);
    run(other.inlock().args(["export", "-q", "--type", "raw", &source, &output]), b"").works();
    assert!(std::fs::read(&output).unwrap() == noise(8192));
}

/// Returns the sync calls of a command in order, each with its file or directory.
fn syncs(dir: &Dir, words: &[&str]) -> Vec<String> {
    let log = dir.name("calls");
    let calls = "trace=fsync,fdatasync,sync_file_range,syncfs";
    let mut command = Command::new("strace");
    command.args(["-f", "-y", "-q", "-e", calls, "-e", "signal=none", "-o", &log]);
    run(command.arg(env!("CARGO_BIN_EXE_inlock")).args(words), b"secret").works();
    let text = std::fs::read_to_string(&log).expect("strace writes it");
    let of = |line: &str| Some(line.split_once('<')?.1.rsplit_once('>')?.0.to_owned());
    text.lines().filter(|line| line.ends_with(" = 0")).filter_map(of).collect()
}

#[test]
fn new_file_and_its_directory_are_synced() {
    if !have("strace") {
        return;
    }
    let dir = Dir::new();
    let root = std::fs::canonicalize(dir.path("")).unwrap();
    for sub in ["out", "headers", "zones"] {
        std::fs::create_dir(dir.path(sub)).unwrap();
    }
    // The symbolic link leads to the directory of the file.
    std::os::unix::fs::symlink(root.join("out/real"), dir.path("link")).unwrap();
    let (source, data) = (dir.file("source", &noise(8192)), dir.image("data", 4));
    let (out, link, header, zones) =
        (dir.name("out/new"), dir.name("link"), dir.name("headers/new"), dir.name("zones/new"));
    let export = ["export", "-q", "--type", "raw", &source];
    let format = [&["luksFormat", "-q", "--header", &header, &data][..], &FAST].concat();
    for (words, file, directory) in [
        ([&export[..], &[&out]].concat(), "out/new", "out"),
        ([&export[..], &[&link]].concat(), "out/real", "out"),
        (format, "headers/new", "headers"),
        (vec!["zoned", "create", &zones, "--zone-size", "1M", "--size", "4M"], "zones/new", "zones"),
    ] {
        let synced = syncs(&dir, &words);
        let last = |is: &dyn Fn(&Path) -> bool| synced.iter().rposition(|found| is(Path::new(found)));
        let directory = root.join(directory);
        // A new file is synced under another name.
        let temporary =
            |found: &Path| found.starts_with(&directory) && found.extension() == Some("incomplete".as_ref());
        let of_file = last(&|found| found == root.join(file) || temporary(found));
        assert!(of_file.is_some() && of_file < last(&|found| found == directory), "{words:?}: {synced:?}");
    }
    let synced = syncs(&dir, &[&export[..], &[&out]].concat());
    assert!(synced.contains(&root.join("out/new").to_str().unwrap().to_owned()), "{synced:?}");
}

#[test]
fn zoned_create_on_served_file_is_refused() {
    let dir = Dir::new();
    let served = dir.image("served", 8);
    let ended = beside_a_server(&served, false, &["zoned", "create", &served, "--zone-size", "1M"]);
    ended.fails(5, &[IN_USE]);
    assert_eq!(std::fs::metadata(&served).unwrap().len(), 8 << 20);
    assert_eq!(allocated(&dir.path("served")), 0);
    call(["zoned", "create", &served, "--zone-size", "1M"]).works();
}

#[test]
fn export_over_file_size_limit_fails_and_is_not_killed() {
    let dir = Dir::new();
    let source = dir.file("source", &noise(1 << 20));
    let script =
        format!("ulimit -f 100; exec {} export --type raw {source} {}", env!("CARGO_BIN_EXE_inlock"), dir.name("out"));
    run(Command::new("sh").args(["-c", &script]), b"").fails(1, &["File too large"]);
    let _ = call_with(b"", ["--version"]).works();
}

/// Returns the files of the directory whose names end with `.incomplete`.
fn left_over(dir: &Dir) -> Vec<String> {
    let names =
        std::fs::read_dir(dir.path("")).expect("the directory").map(|entry| entry.expect("an entry").file_name());
    names.filter_map(|name| name.into_string().ok()).filter(|name| name.ends_with(".incomplete")).collect()
}

#[test]
fn existing_output_is_overwritten_in_batch_mode_or_after_a_question() {
    let dir = Dir::new();
    let source = dir.file("source", &noise(8192));
    let output = dir.file("output", b"before");
    std::os::unix::fs::symlink(&output, dir.path("link")).unwrap();
    for name in [&output, &dir.name("link")] {
        call(["export", "--type", "raw", &source, name]).fails(1, &["already exists", "add -q"]);
        assert_eq!(std::fs::read(&output).unwrap(), b"before");
    }
    let export = ["export", "--type", "raw", &source, &output];
    if let Some(said) = talk(&[("capital letters): ", "yes\n")], &export) {
        assert_eq!(said["status"], 1, "{said}");
        assert_eq!(std::fs::read(&output).unwrap(), b"before");
        assert_eq!(talk(&[("capital letters): ", "YES\n")], &export).unwrap()["status"], 0);
        assert!(std::fs::read(&output).unwrap() == noise(8192));
    }
    dir.file("output", b"before");
    call(["export", "-q", "--type", "raw", &source, &dir.name("link")]).works();
    assert!(std::fs::read(&output).unwrap() == noise(8192) && dir.path("link").is_symlink());
    // An empty file holds no data.
    dir.file("output", b"");
    call(export).works();
    assert!(std::fs::read(&output).unwrap() == noise(8192));
}

#[test]
fn failed_export_leaves_no_output() {
    let dir = Dir::new();
    let source = dir.file("source", &noise(1 << 20));
    let limited = |words: &str, files: &str| {
        let script = format!("ulimit -f 100; exec {} export --type raw {source} {words}", env!("CARGO_BIN_EXE_inlock"));
        run(Command::new("sh").args(["-c", &script]), b"")
            .fails(1, &[&["File too large"], files.split_terminator(',').collect::<Vec<_>>().as_slice()].concat());
    };
    let (new, old) = (dir.name("new"), dir.file("old", &noise(4096)));
    limited(&new, "");
    assert!(!dir.path("new").exists(), "a part of the data has the name of the output");
    limited(&format!("-q {old}"), "old was cut to 0 bytes");
    assert_eq!(std::fs::metadata(&old).unwrap().len(), 0);
    // On standard output the shell has emptied the file, or opened it for appending.
    limited(&format!("- > {new}"), "standard output was cut to 0 bytes");
    assert_eq!(std::fs::metadata(&new).unwrap().len(), 0);
    let log = dir.file("log", &noise(4096));
    limited(&format!("- >> {log}"), "standard output was cut to 4096 bytes");
    assert!(std::fs::read(&log).unwrap() == noise(4096));
    assert_eq!(left_over(&dir), [""; 0]);
}

/// Starts an export that takes long, and returns it when it has written data to a file of the directory that is not
/// its input.
fn long_export(dir: &Dir, words: &[&str]) -> std::process::Child {
    let (image, key) = (dir.image("image", 64 << 10), dir.file("image-key", &[7; 32]));
    // A job in the background of a shell is started with signals ignored.
    let mut export = Command::new("env");
    export.args(["--default-signal=INT,HUP", env!("CARGO_BIN_EXE_inlock")]);
    export.args(["export", "--type", "plain", "--key-file", &key, &image]).args(words);
    let export =
        export.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("inlock starts");
    let written = || {
        let others =
            std::fs::read_dir(dir.path("")).expect("the directory").map(|entry| entry.expect("an entry").path());
        others.filter(|path| !path.ends_with("image")).map(|path| allocated(&path)).max()
    };
    eventually("data are written", written, |len| len.is_some_and(|len| len > 2 << 20));
    export
}

/// Sends a signal, and returns how the process has ended.
fn end_by(signal: Signal, child: std::process::Child) -> crate::harness::Ended {
    rustix::process::kill_process(Pid::from_child(&child), signal).expect("it runs");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.signal(), Some(signal.as_raw()));
    crate::harness::Ended {
        code: -1,
        out: output.stdout,
        err: String::from_utf8(output.stderr).expect("messages are text"),
    }
}

#[test]
fn interrupted_export_leaves_no_output() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let dir = Dir::new();
        let ended = end_by(signal, long_export(&dir, &[&dir.name("new")]));
        assert_eq!(ended.err, "");
        assert!(!dir.path("new").exists(), "{signal:?}: a part of the data has the name of the output");
        assert_eq!(left_over(&dir), [""; 0]);
        let old = dir.file("old", b"before");
        let ended = end_by(signal, long_export(&dir, &["-q", &old]));
        assert!(ended.err.contains("old was cut to 0 bytes, since it is not complete."), "{ended:?}");
        assert_eq!(std::fs::metadata(&old).unwrap().len(), 0);
    }
}

#[test]
fn killed_export_leaves_no_output_of_full_length() {
    let dir = Dir::new();
    end_by(Signal::KILL, long_export(&dir, &[&dir.name("new")]));
    assert!(!dir.path("new").exists());
    assert_eq!(left_over(&dir).len(), 1, "its name says what it is");
    std::fs::remove_file(dir.path(&left_over(&dir)[0])).unwrap();
    let old = dir.file("old", b"before");
    end_by(Signal::KILL, long_export(&dir, &["-q", &old]));
    assert!(std::fs::metadata(&old).unwrap().len() < 64 << 30);
}

#[test]
fn new_key_and_header_backup_are_whole_or_missing() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    let secret = dir.file("secret", b"secret");
    let (key, backup) = (dir.name("key"), dir.name("backup"));
    let dump = format!("luksDump -q --dump-volume-key --volume-key-file {key} -d {secret} {image}");
    for (words, limit, file) in
        [(dump, 0, &key), (format!("luksHeaderBackup {image} --header-backup-file {backup}"), 100, &backup)]
    {
        let inlock = env!("CARGO_BIN_EXE_inlock");
        run(Command::new("sh").args(["-c", &format!("ulimit -f {limit}; exec {inlock} {words}")]), b"")
            .fails(1, &[file, "File too large"]);
        assert!(!Path::new(file).exists());
        assert_eq!(left_over(&dir), [""; 0]);
        run(Command::new("sh").args(["-c", &format!("exec {inlock} {words}")]), b"").works();
        run(Command::new("sh").args(["-c", &format!("exec {inlock} {words}")]), b"").fails(1, &[file]);
    }
}

/// Every command that writes a result to a file, without the file.
fn results(dir: &Dir) -> Vec<String> {
    let image = dir.luks2("volume");
    let (token, secret) = (dir.file("token", br#"{"type":"x","keyslots":["0"]}"#), dir.file("secret", b"secret"));
    call(["token", "import", "--token-id", "0", "--json-file", &token, &image]).works();
    let (data, hash) = (dir.file("data", &noise(1 << 16)), dir.name("hash"));
    vec![
        format!("export -q --type raw {data}"),
        format!("fsverity -q digest {data} --out-descriptor"),
        format!("verity format -q {data} {hash} --root-hash-file"),
        format!("token export -q --token-id 0 {image} --json-file"),
        format!("luksHeaderBackup -q {image} --header-backup-file"),
        format!("luksDump -q --dump-volume-key {image} --key-file {secret} --volume-key-file"),
        "bench path -q --rounds 1 --slice-ms 1 --report".to_owned(),
    ]
}

#[test]
fn no_result_overwrites_what_is_served() {
    let dir = Dir::new();
    let served = dir.file("served", &noise(2 << 20));
    let device = Loop::over(&served);
    let names: Vec<&String> = std::iter::once(&served).chain(device.iter().map(|device| &device.0)).collect();
    for words in results(&dir) {
        for name in &names {
            for read_only in [false, true] {
                let words: Vec<&str> = words.split(' ').chain([name.as_str()]).collect();
                let ended = beside_a_server(&served, read_only, &words);
                assert!([1, 5].contains(&ended.code), "{words:?}: {ended:?}");
                assert!(std::fs::read(&served).unwrap() == noise(2 << 20), "{words:?}: the image was overwritten");
            }
        }
    }
}

#[test]
fn no_result_overwrites_what_is_mounted() {
    let dir = Dir::new();
    let image = dir.image("image", 64);
    let Some(device) = Loop::over(&image) else { return };
    if !have("mkfs.ext4") {
        return;
    }
    run(Command::new("mkfs.ext4").args(["-q", &device.0]), b"").works();
    std::fs::create_dir(dir.path("files")).unwrap();
    let Some(mounted) = Mounted::new(&[&device.0, &dir.name("files")]) else { return };
    for words in results(&dir) {
        for name in [&device.0, &image] {
            let words: Vec<&str> = words.split(' ').chain([name.as_str()]).collect();
            let ended = call(&words);
            assert!([1, 5].contains(&ended.code), "{words:?}: {ended:?}");
        }
    }
    assert_eq!(std::fs::metadata(&image).unwrap().len(), 64 << 20);
    drop(mounted);
    run(Command::new("fsck.ext4").args(["-f", "-n", &device.0]), b"").text().contains("clean");
    assert!(Mounted::new(&[&device.0, &dir.name("files")]).is_some(), "the file system was overwritten");
}

#[test]
fn no_result_overwrites_its_input_or_a_long_file() {
    let dir = Dir::new();
    let all = results(&dir);
    for (words, input) in [(1, "data"), (2, "data"), (2, "hash"), (3, "volume")] {
        let before = std::fs::read(dir.path(input)).unwrap_or_default();
        let name = dir.file(input, &before);
        let words: Vec<&str> = all[words].split(' ').chain([name.as_str()]).collect();
        call(&words).fails(1, &["The output file is the image itself."]);
        assert!(std::fs::read(&name).unwrap() == before, "{words:?}");
    }
    let (long, result) = (dir.file("long", &noise((1 << 20) + 1)), dir.file("result", &noise(1 << 20)));
    for words in &all[1..4] {
        let words: Vec<&str> = words.split(' ').filter(|word| *word != "-q").collect();
        call([&words[..], &[&long]].concat()).fails(1, &["already exists", "add -q"]);
        assert!(std::fs::read(&long).unwrap() == noise((1 << 20) + 1));
        call([&words[..], &[&result]].concat()).works();
        assert!(std::fs::metadata(&result).unwrap().len() < 4096);
    }
}

/// Runs `inlock` with `words` of a shell: redirections come last.
fn in_shell(words: &str) -> crate::harness::Ended {
    let script = format!("exec {} {words}", env!("CARGO_BIN_EXE_inlock"));
    run(Command::new("sh").args(["-c", &script]), b"")
}

#[test]
fn output_starts_where_its_descriptor_is() {
    let dir = Dir::new();
    // A header of LUKS on the output is read, for its lock.
    let headers = [noise(64 << 10), std::fs::read(dir.luks2("luks")).unwrap()];
    let source = dir.file("source", &noise(8192));
    for before in headers {
        let check = |name: &str, at: usize, ended: crate::harness::Ended| {
            ended.works();
            let mut wanted = before.clone();
            wanted[at..at + 8192].copy_from_slice(&noise(8192));
            assert!(std::fs::read(dir.path("output")).unwrap() == wanted, "{name}: other bytes, or another length");
            dir.file("output", &before);
        };
        let output = dir.file("output", &before);
        let export = format!("export --type raw {source}");
        check("file", 0, in_shell(&format!("{export} - 1<>{output}")));
        let skipped = format!("exec 1<>{output}; head -c 4096 <&1 >/dev/null; exec {} {export} -", inlock_path());
        check("file at 4096", 4096, run(Command::new("bash").args(["-c", &skipped]), b""));
        let device = || Loop::over(&output);
        let Some(named) = device() else { continue };
        let ended = in_shell(&format!("{export} {}", named.0));
        drop(named);
        check("device", 0, ended);
        let Some(stdout) = device() else { continue };
        let ended = in_shell(&format!("{export} - > {}", stdout.0));
        drop(stdout);
        check("device as standard output", 0, ended);
        // All of a device, and a byte more than it has.
        let whole = dir.file("whole", &noise(before.len()));
        let Some(full) = device() else { continue };
        in_shell(&format!("export --type raw {whole} {}", full.0)).works();
        let longer = dir.file("longer", &noise(before.len() + 512));
        let room = format!("{} has only {} bytes", full.0, before.len());
        in_shell(&format!("export --type raw {longer} {}", full.0)).fails(1, &[&room]);
        drop(full);
        assert!(std::fs::read(&output).unwrap() == noise(before.len()));
    }
}

fn inlock_path() -> &'static str {
    env!("CARGO_BIN_EXE_inlock")
}

#[test]
fn input_and_output_of_shell_are_not_the_image_itself() {
    let dir = Dir::new();
    let before = noise(1 << 20);
    let image = dir.file("image", &before);
    let device = Loop::over(&image);
    let names: Vec<&String> = std::iter::once(&image).chain(device.iter().map(|device| &device.0)).collect();
    for (one, other) in names.iter().flat_map(|one| names.iter().map(move |other| (one, other))) {
        in_shell(&format!("import --type raw - {one} < {other}")).fails(1, &["The input file is the image itself."]);
        for way in [">>", "1<>"] {
            let ended = in_shell(&format!("export --type raw {one} - {way} {other}"));
            ended.fails(1, &["The output file is the image itself."]);
        }
        assert!(std::fs::read(&image).unwrap() == before, "{one} {other}");
    }
    let other = dir.file("other", &before[..4096]);
    in_shell(&format!("import --type raw - {image} < {other}")).works();
}

#[test]
fn new_file_on_file_system_without_links_is_complete_or_missing() {
    if !have("strace") {
        return;
    }
    let dir = Dir::new();
    let (image, secret) = (dir.luks2("image"), dir.file("secret", b"secret"));
    let source = dir.file("source", &noise(8192));
    let refused = |more: &str, words: &str| {
        let mut command = Command::new("strace");
        let calls = "trace=renameat2,linkat,link,rename,renameat";
        command.args(["-f", "-q", "-e", calls, "-o", "/dev/null", "-e", "inject=renameat2:error=EINVAL"]);
        command.args(["-e", "inject=linkat,link:error=EPERM"]);
        command.args(more.split_terminator(' ')).arg(inlock_path()).args(words.split(' '));
        run(&mut command, b"")
    };
    for (words, result) in [
        (format!("export --type raw {source} "), "exported"),
        (format!("luksHeaderBackup {image} --header-backup-file "), "backup"),
        (format!("luksDump -q --dump-volume-key -d {secret} {image} --volume-key-file "), "key"),
    ] {
        let words = words + &dir.name(result);
        // Nothing stays if it cannot be renamed, either.
        refused("-e inject=rename,renameat:error=EIO", &words).fails(1, &["Input/output error"]);
        assert!(!dir.path(result).exists(), "{words}");
        assert_eq!(refused("", &words).code, 0, "{words}");
        assert!(std::fs::metadata(dir.path(result)).unwrap().len() > 0, "{words}");
        // It does not replace anything.
        let before = std::fs::read(dir.path(result)).unwrap();
        assert_ne!(refused("", &words).code, 0, "{words}");
        assert!(std::fs::read(dir.path(result)).unwrap() == before, "{words}");
        assert_eq!(left_over(&dir), [""; 0]);
    }
}

#[test]
fn error_names_the_output_and_not_its_temporary_name() {
    let dir = Dir::new();
    let source = dir.file("source", &noise(8192));
    for name in ["none/out", "none/out."] {
        let ended = call(["export", "--type", "raw", &source, &dir.name(name)]);
        ended.fails(1, &[&format!("cannot write {}: No such file or directory\n", dir.name(name))]);
        assert!(!ended.err.contains("incomplete"), "{ended:?}");
    }
}
