//! Locks: on headers, shared with cryptsetup, and on devices, with one writer under all names.

use crate::harness::killed::Killed;
use crate::harness::storage::{Loop, Other};
use crate::harness::{Dir, FAST, call, call_with, have, inlock, run};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

const IN_USE: &str = "is in use (locked by another process).";

/// A running server, stopped by SIGTERM.
struct Serving(Killed);

impl Serving {
    fn start(image: &str, socket: &str, more: &[&str]) -> Self {
        Self::start_by(inlock(), image, socket, more)
    }

    /// Like `start`, with another command.
    fn start_by(mut command: Command, image: &str, socket: &str, more: &[&str]) -> Self {
        command.args(["serve", "--type", "raw", image, "--nbd", &format!("unix:{socket}")]).args(more);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let mut uri = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut uri).expect("text");
        assert!(uri.starts_with("nbd+unix:///?socket="), "{uri}");
        Self(Killed(child))
    }

    fn stop(mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
        assert!(self.0.wait().expect("it ends").success());
    }

    fn kill(mut self) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it ends");
    }
}

#[test]
fn header_locked_by_another_process_is_busy_after_timeout() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    if !have("flock") {
        return;
    }
    let under = |lock: &str, words: &[&str]| {
        let image = words.iter().find(|word| word.contains("/")).expect("an image among the words");
        run(Command::new("flock").args([lock, image, env!("CARGO_BIN_EXE_inlock")]).args(words), b"secret")
    };
    // Each waits for seconds, so they run in parallel on images of their own.
    let others = ["second", "third", "fourth"].map(|name| dir.luks2(name));
    let before = others.each_ref().map(|image| std::fs::read(image).unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| under("--exclusive", &["luksUUID", &image]).fails(5, &[IN_USE, "hint: "]));
        scope.spawn(|| under("--exclusive", &["open", "--test-passphrase", &others[0]]).fails(5, &[IN_USE]));
        scope.spawn(|| under("--exclusive", &["isLuks", &others[1]]).fails(5, &[IN_USE]));
        let format = [&["luksFormat", "-q", &others[2]][..], &FAST].concat();
        scope.spawn(move || under("--shared", &format).fails(5, &[IN_USE]));
    });
    assert!(others.iter().zip(before).all(|(image, before)| std::fs::read(image).unwrap() == before));
    under("--shared", &["luksUUID", &image]).works();

    // A lock that is released in time only delays.
    let mut holder = Command::new("flock").args(["--exclusive", &image, "sleep", "0.5"]).spawn().unwrap();
    let ended = call(["luksUUID", &image]);
    assert!(holder.wait().unwrap().success());
    ended.works();
}

#[test]
fn header_is_unlocked_while_volume_is_served() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    if !have("flock") {
        return;
    }
    let serving = Serving::start(&image, &dir.name("socket"), &[]);
    let free = run(Command::new("flock").args(["--exclusive", "--nonblock", &image, "echo", "free"]), b"");
    assert_eq!(free.works().text(), "free\n");
    call(["luksDump", &image]).works();
    serving.stop();
}

#[test]
fn device_under_any_name_has_one_writer() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    std::fs::hard_link(&image, dir.path("hard")).unwrap();
    std::os::unix::fs::symlink(&image, dir.path("soft")).unwrap();
    let input = dir.file("input", b"data");
    let (socket, second) = (dir.name("socket"), format!("unix:{}", dir.name("second")));
    let serving = Serving::start(&image, &socket, &[]);
    for name in [image.clone(), dir.name("hard"), dir.name("soft"), format!("{}/../image", dir.name("."))] {
        let Some(name) = std::path::Path::new(&name).exists().then_some(name) else { continue };
        let serve = ["serve", "--type", "raw", &name, "--nbd", &second];
        call(serve).fails(5, &[IN_USE, "hint: run `inlock list` to see the volumes that use it"]);
        call([&serve[..], &["--read-only"]].concat()).fails(5, &[IN_USE]);
        call(["import", "--type", "raw", &input, &name]).fails(5, &[IN_USE]);
        call(["export", "--type", "raw", &name, &dir.name("out")]).fails(5, &[IN_USE]);
        call_with(b"secret", ["luksFormat", "-q", &name].iter().chain(&FAST)).fails(5, &[IN_USE]);
    }
    // The socket is in use as well.
    let other = dir.image("other", 1);
    let taken = ["serve", "--type", "raw", &other, "--nbd", &format!("unix:{socket}")];
    call(taken).fails(5, &["is in use."]);
    serving.stop();
    call(["import", "--type", "raw", &input, &image]).works();
}

#[test]
fn readers_share_device() {
    let dir = Dir::new();
    let image = dir.image("image", 1);
    let first = Serving::start(&image, &dir.name("first"), &["--read-only"]);
    let second = Serving::start(&image, &dir.name("second"), &["-r"]);
    call(["export", "-q", "--type", "raw", &image, &dir.name("out")]).works();
    let input = dir.file("input", b"data");
    call(["import", "--type", "raw", &input, &image]).fails(5, &[IN_USE]);
    first.stop();
    call(["import", "--type", "raw", &input, &image]).fails(5, &[IN_USE]);
    second.stop();
    call(["import", "--type", "raw", &input, &image]).works();
}

#[test]
fn killed_server_leaves_no_lock() {
    let dir = Dir::new();
    let image = dir.image("image", 1);
    let socket = dir.name("socket");
    Serving::start(&image, &socket, &[]).kill();
    assert!(std::path::Path::new(&socket).exists(), "a killed server cannot tidy up");
    Serving::start(&image, &socket, &[]).stop();
    assert!(!std::path::Path::new(&socket).exists());
}

#[test]
fn lock_files_are_in_usable_runtime_directory() {
    let dir = Dir::new();
    let image = dir.image("image", 1);
    let id = run(Command::new("id").arg("-u"), b"");
    if id.text().trim() == "0" && !have("setpriv") {
        return;
    }
    if id.text().trim() != "0" {
        println!("SKIPPED: only root can switch users");
        return;
    }
    use std::os::unix::fs::PermissionsExt;
    let open = |path: &str, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    open(&dir.name(""), 0o755);
    open(&image, 0o666);
    let program = dir.name("inlock");
    std::fs::copy(env!("CARGO_BIN_EXE_inlock"), &program).unwrap();
    // The user's runtime directory is used; a relative or missing one is skipped.
    let runtime = dir.name("runtime");
    std::fs::create_dir(&runtime).unwrap();
    std::os::unix::fs::chown(&runtime, Some(65533), None).unwrap();
    let input = dir.file("input", b"data");
    open(&input, 0o644);
    let import = |runtime: &str| {
        let mut command = Command::new("setpriv");
        command.env("XDG_RUNTIME_DIR", runtime).args(["--reuid", "65533", "--regid", "65533", "--clear-groups"]);
        run(command.args([&program, "import", "--type", "raw", &input, &image]), b"")
    };
    import(&runtime).works();
    let left = std::fs::read_dir(format!("{runtime}/inlock/locks")).expect("the directory was made and used").count();
    assert_eq!(left, 0, "lock files stay behind");
    import("relative").works();
    import("/nonexistent").works();
}

#[test]
fn block_device_has_lock_file_of_cryptsetup() {
    if !have("flock") {
        return;
    }
    let dir = Dir::new();
    let Some(device) = Loop::over(&dir.image("image", 24)) else { return };
    let name = device.0.clone();
    call_with(b"secret", ["luksFormat", "-q", &name].iter().chain(&FAST)).works();
    call_with(b"secret", ["open", "--test-passphrase", &name]).works();
    let out = call_with(b"secret", ["serve", &name, "--run", "echo served"]);
    assert_eq!(out.works().text(), "served\n");
    let number = std::os::unix::fs::MetadataExt::rdev(&std::fs::metadata(&name).unwrap());
    let lock = format!("/run/cryptsetup/L_{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
    let under = ["--exclusive", &lock, env!("CARGO_BIN_EXE_inlock"), "luksUUID", &name];
    run(Command::new("flock").args(under), b"").fails(5, &[IN_USE, "the lock of the header"]);
    let _ = std::fs::remove_file(&lock);
    call(["luksUUID", &name]).works();
    assert!(!std::path::Path::new(&lock).exists(), "the lock file stays");
    // One writer, and none for a device that the kernel has claimed exclusively, such as a mounted one.
    let nested = format!("{} import --type raw /dev/null {name}", env!("CARGO_BIN_EXE_inlock"));
    call_with(b"secret", ["serve", &name, "--run", &nested]).fails(5, &[IN_USE]);
    let too_long = dir.image("long", 25);
    call(["import", "--type", "raw", &too_long, &name]).fails(1, &["but the volume has only 25165824"]);
}

/// Checks that every locking command on `name`, run by `by`, exits with status 5.
fn all_are_refused(by: &dyn Fn() -> Command, name: &str, dir: &Dir) {
    let input = dir.name("input");
    let refused = |words: &[&str]| run(by().args(words), b"secret").fails(5, &[IN_USE]);
    refused(&["serve", "--type", "raw", name, "--run", "true"]);
    refused(&["serve", "--type", "raw", name, "--run", "true", "--read-only"]);
    refused(&["import", "--type", "raw", &input, name]);
    refused(&["export", "--type", "raw", name, "/dev/null"]);
    refused(&[&["luksFormat", "-q", name], &FAST[..]].concat());
}

#[test]
fn image_and_its_loop_device_have_one_writer() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    dir.file("input", b"data");
    let Some(device) = Loop::over(&image) else { return };
    let before = std::fs::read(&image).unwrap();
    for (served, other) in [(&image, &device.0), (&device.0, &image)] {
        let serving = Serving::start(served, &dir.name("socket"), &[]);
        all_are_refused(&inlock, other, &dir);
        serving.stop();
        let serving = Serving::start(served, &dir.name("socket"), &["--read-only"]);
        call(["export", "--type", "raw", other, "/dev/null"]).works();
        call(["import", "--type", "raw", &dir.name("input"), other]).fails(5, &[IN_USE]);
        serving.stop();
    }
    assert!(std::fs::read(&image).unwrap() == before, "something was written");
    call(["import", "--type", "raw", &dir.name("input"), &device.0]).works();
}

#[test]
fn disjoint_loop_devices_of_image_have_own_writers() {
    let dir = Dir::new();
    let image = dir.image("image", 8);
    let parts = [("0", "2097152"), ("2097152", "2097152"), ("4194304", "0"), ("1048576", "2097152")];
    let devices: Vec<_> =
        parts.iter().map(|(at, len)| Loop::with(&image, &["--offset", at, "--sizelimit", len])).collect();
    let Some(devices) = devices.into_iter().collect::<Option<Vec<Loop>>>() else { return };
    let [first, second, rest, across] = &devices[..] else { panic!("four were made") };
    dir.file("input", b"data");
    let serving = Serving::start(&first.0, &dir.name("socket"), &[]);
    for apart in [second, rest] {
        call(["import", "--type", "raw", &dir.name("input"), &apart.0]).works();
    }
    for other in [&across.0, &image] {
        call(["import", "--type", "raw", &dir.name("input"), other]).fails(5, &[IN_USE]);
    }
    serving.stop();
    // A loop device on a loop device has its backing file.
    let Some(upper) = Loop::with(&rest.0, &["--offset", "1048576"]) else { return };
    let serving = Serving::start(&upper.0, &dir.name("socket"), &[]);
    call(["import", "--type", "raw", &dir.name("input"), &image]).fails(5, &[IN_USE]);
    call(["import", "--type", "raw", &dir.name("input"), &across.0]).works();
    serving.stop();
}

#[test]
fn partition_of_loop_device_locks_its_range() {
    let dir = Dir::new();
    let image = dir.image("image", 8);
    let Some(device) = Loop::with(&image, &["--partscan"]) else { return };
    if !have("addpart") {
        return;
    }
    // From the second MiB, two MiB long.
    run(Command::new("addpart").args([&device.0, "1", "2048", "4096"]), b"").works();
    let part = format!("{}p1", device.0);
    for _ in 0..100 {
        if std::path::Path::new(&part).exists() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    if !std::path::Path::new(&part).exists() {
        println!("SKIPPED: no loop device can be made here that has nodes for its partitions");
        return;
    }
    dir.file("input", b"data");
    let Some(other) = Loop::with(&image, &["--offset", "3145728"]) else { return };
    let serving = Serving::start(&part, &dir.name("socket"), &[]);
    all_are_refused(&inlock, &image, &dir);
    call(["import", "--type", "raw", &dir.name("input"), &other.0]).works();
    serving.stop();
    call(["import", "--type", "raw", &dir.name("input"), &image]).works();
}

/// Returns an image that all users can write, and an input that all can read.
fn image_for_all_users(dir: &Dir) -> String {
    let image = dir.image("image", 24);
    dir.file("input", b"data");
    Other::open(&image, 0o666);
    Other::open(dir.name("input"), 0o644);
    image
}

#[test]
fn processes_of_different_users_exclude_each_other() {
    let dir = Dir::new();
    let Some(other) = Other::new(&dir) else { return };
    let image = image_for_all_users(&dir);
    let before = std::fs::read(&image).unwrap();
    let by_other = || other.inlock();
    for (server, client) in [(&inlock as &dyn Fn() -> Command, &by_other as &dyn Fn() -> Command), (&by_other, &inlock)]
    {
        let socket = dir.name("socket");
        let serving = Serving::start_by(server(), &image, &socket, &[]);
        all_are_refused(client, &image, &dir);
        serving.stop();
        let serving = Serving::start_by(server(), &image, &socket, &["--read-only"]);
        run(client().args(["export", "--type", "raw", &image, "/dev/null"]), b"").works();
        run(client().args(["import", "--type", "raw", &dir.name("input"), &image]), b"").fails(5, &[IN_USE]);
        // A killed process leaves no lock.
        serving.kill();
        std::fs::remove_file(&socket).unwrap();
    }
    assert!(std::fs::read(&image).unwrap() == before, "something was written");
    run(other.inlock().args(["import", "--type", "raw", &dir.name("input"), &image]), b"").works();
}

#[test]
fn loop_device_of_another_user_is_respected() {
    let dir = Dir::new();
    let Some(other) = Other::new(&dir) else { return };
    let image = image_for_all_users(&dir);
    let Some(device) = Loop::over(&image) else { return };
    let serving = Serving::start(&device.0, &dir.name("socket"), &[]);
    all_are_refused(&|| other.inlock(), &image, &dir);
    serving.stop();
    let serving = Serving::start_by(other.inlock(), &image, &dir.name("socket"), &[]);
    all_are_refused(&inlock, &device.0, &dir);
    serving.stop();
}

#[test]
fn foreign_locks_on_served_image_work() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    if !have("cryptsetup") || !have("qemu-img") {
        return;
    }
    let serving = Serving::start(&image, &dir.name("socket"), &[]);
    run(Command::new("cryptsetup").args(["luksDump", &image]), b"").works();
    run(Command::new("cryptsetup").args(["config", &image, "--label", "served"]), b"").works();
    run(Command::new("qemu-img").args(["info", "--image-opts", &format!("driver=raw,file.filename={image}")]), b"")
        .works();
    serving.stop();
    let copy =
        run(Command::new("qemu-img").args(["convert", "-f", "raw", "-O", "raw", &image, &dir.name("copy")]), b"");
    copy.works();
    assert!(call(["luksDump", &dir.name("copy")]).works().text().contains("served"));
}
