//! Outputs of `export` and of commands that create files: on stable storage before success is reported, and locked
//! against others.

mod harness;

use harness::storage::{Loop, Mounted, Other, Thin};
use harness::{Dir, FAST, allocated, call, call_with, have, inlock, noise, run};
use inlock_tests::wait::eventually;
use std::process::Command;

const IN_USE: &str = "is in use (locked by another process).";

/// Runs `inlock` with `words` as the captive command of a server of `image`.
fn beside_a_server(image: &str, read_only: bool, words: &[&str]) -> harness::Ended {
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
    call(["export", "--type", "raw", &source, &served]).works();
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
    export.args(["export", "--key-file", "-", &image, &output]);
    let mut export = export.stdin(std::process::Stdio::piped()).spawn().unwrap();
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
    run(other.inlock().args(["export", "--type", "raw", &source, &output]), b"").works();
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
    let export = ["export", "--type", "raw", &source];
    let format = [&["luksFormat", "-q", "--header", &header, &data][..], &FAST].concat();
    for (words, file, directory) in [
        ([&export[..], &[&out]].concat(), "out/new", "out"),
        ([&export[..], &[&link]].concat(), "out/real", "out"),
        (format, "headers/new", "headers"),
        (vec!["zoned", "create", &zones, "--zone-size", "1M", "--size", "4M"], "zones/new", "zones"),
    ] {
        let synced = syncs(&dir, &words);
        let last = |path: &str| synced.iter().rposition(|found| *found == root.join(path).to_str().unwrap());
        assert!(last(file).is_some() && last(file) < last(directory), "{words:?}: {synced:?}");
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
