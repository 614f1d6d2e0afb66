//! Volumes on exports of NBD servers: every action takes the URI, and every failure has its own message.

use crate::harness::control::{Named, Run};
use crate::harness::{Dir, FAST, call, call_with, noise};
use inlock_tests::report::count;
use inlock_tests::wait::eventually;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SECRET: &[u8] = b"secret";

/// A server process, killed when dropped.
struct Server {
    child: Child,
    socket: PathBuf,
}

impl Server {
    /// Starts `qemu-nbd` over an image.
    fn qemu(dir: &Dir, image: &str, more: &[&str]) -> Self {
        let socket = dir.path("server.sock");
        let mut command = Command::new("qemu-nbd");
        command.args(["-f", "raw", "--persistent", "--shared=8"]).args(more).arg("-k").arg(&socket).arg(image);
        Self::start(command, socket)
    }

    fn nbdkit(dir: &Dir, name: &str, words: &[&str]) -> Self {
        let socket = dir.path(name);
        let mut command = Command::new("nbdkit");
        command.arg("-f").arg("-U").arg(&socket).args(words);
        Self::start(command, socket)
    }

    fn start(mut command: Command, socket: PathBuf) -> Self {
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        // It binds the socket before it listens.
        let connected = || std::os::unix::net::UnixStream::connect(&socket);
        drop(eventually(&format!("{command:?} listens"), connected, Result::is_ok));
        Self { child, socket }
    }

    fn uri(&self) -> String {
        self.uri_of("")
    }

    fn uri_of(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket.display())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}

#[test]
fn header_actions_work_on_an_export() {
    let dir = Dir::new();
    let image = dir.image("image", 32);
    let server = Server::qemu(&dir, &image, &[]);
    let uri = server.uri();
    call(["isLuks", &uri]).fails(1, &[]);
    call(["luksDump", &uri]).fails(1, &["is not a valid LUKS device"]);
    call_with(SECRET, FAST.into_iter().chain(["luksFormat", "-q", &uri])).works();
    call(["isLuks", &uri]).works();
    let uuid = call(["luksUUID", &uri]).works().text().to_owned();
    let key = dir.file("key", b"another");
    let first = dir.file("first", SECRET);
    call(FAST.into_iter().chain(["luksAddKey", "-q", "-d", &first, &uri, &key])).works();
    call(["open", "--test-passphrase", &uri, "-d", &key]).works();
    call(["luksKillSlot", "-q", &uri, "0", "-d", &key]).works();
    call(["open", "--test-passphrase", &uri, "-d", &first]).fails(2, &["No key available"]);
    call(["config", &uri, "--label", "remote"]).works();
    let backup = dir.name("backup");
    call(["luksHeaderBackup", &uri, "--header-backup-file", &backup]).works();
    call(["luksHeaderRestore", "-q", &uri, "--header-backup-file", &backup]).works();
    call(["doctor", &uri]).works();
    let remote = call(["luksDump", &uri]).works().text().to_owned();
    drop(server);
    // The bytes are those of a volume in a file.
    let local = call(["luksDump", &image]).works().text().to_owned();
    assert_eq!(remote.replace(&uri, &image), local);
    assert!(local.contains("remote") && local.contains(uuid.trim()), "{local}");
}

#[test]
fn data_goes_through_the_export_both_ways() {
    let dir = Dir::new();
    let image = dir.image("image", 32);
    let input = dir.file("input", &noise(8 << 20));
    let server = Server::qemu(&dir, &image, &[]);
    let uri = server.uri();
    call_with(SECRET, FAST.into_iter().chain(["luksFormat", "-q", &uri])).works();
    let key = dir.file("key", SECRET);
    call(["import", &input, &uri, "-q", "-d", &key]).works();
    assert!(call(["export", &uri, "-", "-d", &key]).works().out[..8 << 20] == noise(8 << 20));
    // server, Inlock, client.
    let copy = format!("nbdcopy \"$uri\" {}", dir.name("copy"));
    call(["serve", &uri, "-d", &key, "--run", &copy]).works();
    assert!(std::fs::read(dir.path("copy")).unwrap()[..8 << 20] == noise(8 << 20));
    let back = dir.file("back", &noise(4 << 20).into_iter().rev().collect::<Vec<u8>>());
    call(["serve", &uri, "-d", &key, "--run", &format!("nbdcopy --flush {back} \"$uri\"")]).works();
    let verify = "fio --name=v --ioengine=nbd --uri=\"$uri\" --rw=randwrite --bsrange=512-64k --bs_unaligned=0 \
                  --size=8m --offset=8m --iodepth=16 --verify=crc32c --do_verify=1 --verify_fatal=1 --fsync=64 \
                  --verify_state_save=0 --output=/dev/null";
    call(["serve", &uri, "-d", &key, "--replay", "4M", "--run", verify]).works();
    drop(server);
    let local = call(["export", &image, "-", "-d", &key]).works().out.clone();
    assert!(local[..4 << 20] == std::fs::read(&back).unwrap()[..]);
    assert!(local[4 << 20..8 << 20] == noise(8 << 20)[4 << 20..]);
}

/// A hole of an encrypted image reads as noise, and its server does not call it zero.
#[test]
fn hole_that_is_not_zero_is_no_hole_of_a_second_server() {
    let dir = Dir::new();
    let run = Run::new();
    let image = dir.image("image", 32);
    call_with(SECRET, FAST.into_iter().chain(["luksFormat", "-q", &image])).works();
    let key = dir.file("key", SECRET);
    let expected = call(["export", &image, "-", "-d", &key]).works().out.clone();
    let served = Named::start(&run, "data", &["-d", &key, &image]);
    let uri = format!("nbd+unix:///?socket={}", served.socket);
    let info = Command::new("nbdinfo").args(["--map", &uri]).output().expect("nbdinfo starts");
    let map = String::from_utf8(info.stdout).expect("text");
    assert!(map.contains("hole") && !map.contains("zero"), "{map}");
    let [exported, copied] = ["exported", "copied"].map(|name| dir.name(name));
    call(["export", "--type", "raw", &uri, &exported]).works();
    assert!(std::fs::read(&exported).unwrap() == expected, "export");
    call(["serve", "--type", "raw", &uri, "--run", &format!("nbdcopy \"$uri\" {copied}")]).works();
    assert!(std::fs::read(&copied).unwrap() == expected, "serve");
}

#[test]
fn each_failure_has_its_message_and_status() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    let missing = format!("nbd+unix:///?socket={}", dir.name("nothing"));
    call(["luksDump", &missing]).fails(4, &["cannot be opened", "cannot connect to", "start the server"]);
    call(["luksDump", "nbd://127.0.0.1:1/x"]).fails(4, &["cannot connect to 127.0.0.1:1"]);
    for (uri, words) in [
        ("nbds://host/?tls-psk-file=f", ["pre-shared keys", "certificates"]),
        ("nbd:host:7", ["// is missing", "nbd://HOST"]),
        ("nbd+unix:///x", ["?socket=PATH is missing", "nbd+unix:///EXPORT"]),
    ] {
        call(["luksDump", uri]).fails(1, &words);
    }
    let server = Server::qemu(&dir, &image, &["-x", "disk"]);
    call(["luksDump", &server.uri_of("disk")]).works();
    call(["luksDump", &server.uri_of("other")]).fails(4, &["the server has no export 'other'", "nbdinfo"]);
    drop(server);
    let server = Server::qemu(&dir, &image, &["--read-only"]);
    call(["luksDump", &server.uri()]).works();
    call_with(SECRET, ["luksKillSlot", "-q", &server.uri(), "0"]).fails(1, &["Cannot write to device"]);
    call_with(SECRET, ["serve", &server.uri(), "--read-only", "--run", "nbdinfo --size \"$uri\""]).works();
    drop(server);
    // A listener that says nothing.
    let silent = dir.path("silent");
    let _listener = std::os::unix::net::UnixListener::bind(&silent).unwrap();
    let begun = Instant::now();
    let uri = format!("nbd+unix:///?socket={}", silent.display());
    call(["luksDump", &uri, "--connect-timeout", "1"]).fails(4, &["no answer from", "within 1 s"]);
    assert!(begun.elapsed() < Duration::from_secs(8));
    // Blocks that are larger than the sectors of the volume.
    let one = dir.luks1("one");
    let words = ["--filter=blocksize-policy", "file", &one, "blocksize-minimum=4096", "blocksize-error-policy=error"];
    let server = Server::nbdkit(&dir, "blocks.sock", &words);
    call(["luksDump", &server.uri()]).works();
    call_with(SECRET, ["serve", &server.uri(), "--run", "true"])
        .fails(1, &["takes blocks of 4096 bytes, and the volume has sectors of 512 bytes", "--sector-size"]);
    call(["luksDump", &image, "--store-timeout", "0"]).fails(1, &["1 second or more"]);
    call(["serve", &image, "--nbd", "unix:x", "--replay", "4k"]).fails(1, &["4M or more"]);
}

/// Two processes of this host do not write to the same export, as far as its URI shows.
#[test]
fn export_in_use_is_refused_on_the_same_host() {
    let dir = Dir::new();
    let run = Run::new();
    let image = dir.luks2("image");
    let server = Server::qemu(&dir, &image, &[]);
    let _served = Named::start(&run, "data", &["-d", &dir.file("key", SECRET), &server.uri()]);
    call_with(SECRET, ["serve", &server.uri(), "--run", "true"]).fails(5, &["is in use"]);
}

/// Two exports whose URIs differ in a special character only are two devices.
#[test]
fn lines_of_a_table_on_two_exports_go_to_two_exports() {
    let dir = Dir::new();
    std::fs::create_dir(dir.path("a")).unwrap();
    let images = ["one", "two"].map(|name| dir.image(name, 4));
    let [one, two] = ["a_b", "a/b"].map(|socket| dir.path(socket));
    let start = |socket: &PathBuf, image: &str| {
        let mut command = Command::new("qemu-nbd");
        command.args(["-f", "raw", "--persistent", "--shared=8", "-k"]).arg(socket).arg(image);
        Server::start(command, socket.clone())
    };
    let servers = [start(&one, &images[0]), start(&two, &images[1])];
    let table = format!("0 8192 linear {} 0\n8192 8192 linear {} 0\n", servers[0].uri(), servers[1].uri());
    let table = dir.file("table", table.as_bytes());
    let input = dir.file("input", &noise(8 << 20));
    call(["serve", "--table", &table, "--run", &format!("nbdcopy --flush {input} \"$uri\"")]).works();
    drop(servers);
    let [one, two] = images.map(|image| std::fs::read(image).unwrap());
    assert!(one == noise(8 << 20)[..4 << 20], "the first half");
    assert!(two == noise(8 << 20)[4 << 20..], "the second half");
}

/// `close --force` ends a volume whose server is gone, and says that writes may be lost.
#[test]
fn forced_close_does_not_wait_for_a_lost_server() {
    let dir = Dir::new();
    let run = Run::new();
    let image = dir.luks2("image");
    let server = Server::qemu(&dir, &image, &[]);
    let key = dir.file("key", SECRET);
    let times = ["--reconnect-delay", "600", "--store-timeout", "600"];
    let uri = server.uri();
    let served = Named::start(&run, "data", &[&times[..], &["-d", &key, &uri]].concat());
    let status = run.call(&["status", "data"]).works().text().to_owned();
    assert!(status.contains(&uri), "{status}");
    let client = format!("nbd+unix:///?socket={}", served.socket);
    drop(server);
    let mut waiting = Command::new("nbdcopy")
        .args([&dir.file("data", &noise(1 << 20)), &client, "--no-extents"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert!(waiting.try_wait().unwrap().is_none(), "the client waits for the server");
    let begun = Instant::now();
    let closed = run.call(&["close", "data", "--force"]);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert!(!waiting.wait().unwrap().success(), "the client's write has failed");
    let (code, errors) = served.ended();
    closed.fails(1, &["lost"]);
    assert!(code == Some(1) && errors.contains("connecting again"), "{code:?} {errors}");
}

/// A server that accepts connections and says nothing ends every command that opens it within `--connect-timeout`.
#[test]
fn silent_server_ends_integrity_and_verity_commands_in_time() {
    let dir = Dir::new();
    let socket = dir.path("silent.sock");
    // The kernel completes the connections that nothing accepts.
    let _silent = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    let (image, hash) = (dir.image("image", 1), "0".repeat(64));
    for words in [
        &["integrity", "format", "-q", &uri][..],
        &["integrity", "format", "-q", &image, "--data-device", &uri],
        &["integrity", "open", &uri, "data"],
        &["integrity", "serve", &uri, "--run", "true"],
        &["integrity", "resize", &uri],
        &["integrity", "dump", &uri],
        &["verity", "format", &image, &uri],
        &["verity", "open", &uri, "data", &image, &hash],
        &["verity", "serve", &uri, &image, &hash, "--run", "true"],
        &["verity", "verify", &uri, &image, &hash],
        &["verity", "table", &uri, &image, &hash],
        &["verity", "dump", &uri],
    ] {
        let begun = Instant::now();
        let limits = ["--connect-timeout", "1", "--store-timeout", "2", "--reconnect-delay", "2"];
        let ended = call(words.iter().copied().chain(limits));
        // The default of --connect-timeout is 10 s.
        assert!(begun.elapsed() < Duration::from_secs(8), "{words:?}: {:?}", begun.elapsed());
        ended.fails(ended.code, &["raise --connect-timeout"]);
        assert_ne!(ended.code, 0, "{words:?}");
    }
}

/// The store of an integrity volume makes blocking calls to the export behind it. `close --force` ends them.
#[test]
fn forced_close_reaches_an_export_behind_integrity() {
    let dir = Dir::new();
    let run = Run::new();
    let image = dir.image("image", 16);
    let server = Server::qemu(&dir, &image, &[]);
    let uri = server.uri();
    call(["integrity", "format", "-q", &uri]).works();
    let socket = run.socket("i.nbd");
    run.call(&["integrity", "serve", "--background", "--name", "data", "--nbd", &format!("unix:{socket}"), &uri])
        .works();
    drop(server);
    let mut waiting = Command::new("nbdcopy")
        .args([&dir.file("data", &noise(1 << 20)), &format!("nbd+unix:///?socket={socket}"), "--no-extents"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert!(waiting.try_wait().unwrap().is_none(), "the client waits for the server");
    let begun = Instant::now();
    run.call(&["close", "data", "--force"]).fails(1, &[]);
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    assert!(!waiting.wait().unwrap().success(), "the client's write has failed");
}

/// `close --force` with a server that works is a close: acknowledged writes reach stable storage.
#[test]
fn forced_close_with_a_working_server_loses_nothing() {
    let dir = Dir::new();
    let run = Run::new();
    let image = dir.luks2("image");
    let server = Server::qemu(&dir, &image, &[]);
    let key = dir.file("key", SECRET);
    let served = Named::start(&run, "data", &["-d", &key, &server.uri()]);
    let client = format!("nbd+unix:///?socket={}", served.socket);
    let input = dir.file("data", &noise(1 << 20));
    let copied = Command::new("nbdcopy").args([&input, &client, "--no-extents"]).status().unwrap();
    assert!(copied.success());
    let begun = Instant::now();
    run.call(&["close", "data", "--force"]).works();
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let (code, errors) = served.ended();
    assert!(code == Some(0) && errors.is_empty(), "{code:?} {errors}");
    drop(server);
    let local = call(["export", &image, "-", "-d", &key]).works().out.clone();
    assert!(local[..1 << 20] == noise(1 << 20));
}

/// A relative path of a socket stays valid in a process that has left its directory, and names the same export.
#[test]
fn relative_socket_path_names_the_same_export_everywhere() {
    let dir = Dir::new();
    let run = Run::new();
    let image = dir.luks2("image");
    let server = Server::qemu(&dir, &image, &[]);
    let key = dir.file("key", SECRET);
    let inlock = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_inlock"));
        command.current_dir(dir.path("")).env("INLOCK_RUN_DIR", run.path("")).args(words);
        command.stdin(Stdio::null()).output().unwrap()
    };
    let socket = format!("unix:{}", run.socket("r.nbd"));
    let relative = "nbd+unix:///?socket=server.sock";
    let words = ["serve", "--background", "--name", "rel", "--nbd", &socket, "-d", &key, relative];
    let started = inlock(&words);
    assert!(started.status.success(), "{started:?}");
    run.call(&["status", "rel"]).works();
    let again = inlock(&["serve", "-d", &key, &server.uri(), "--run", "true"]);
    assert_eq!(again.status.code(), Some(5), "{again:?}");
    // The process connects again, from another directory.
    drop(server);
    let server = Server::qemu(&dir, &image, &[]);
    let client = format!("nbd+unix:///?socket={}", run.socket("r.nbd"));
    let copied = Command::new("nbdcopy").args([&client, &dir.name("copy")]).status().unwrap();
    run.call(&["close", "rel", "--force"]).works();
    assert!(copied.success());
    drop(server);
}

/// A wrong command line never shows a key.
#[test]
fn key_in_the_name_of_an_image_is_refused_and_not_shown() {
    let name = "rbd:pool/image:id=me:key=AQD5ecret";
    for words in [vec![name], vec!["--debug", name], vec!["--debug", "x", &format!("--header={name}")]] {
        let refused = call([vec!["luksDump"], words].concat());
        refused.fails(1, &["rbd:pool/image cannot be used", "keyfile=FILE"]);
        assert!(!format!("{}{}", refused.text(), refused.err).contains("AQD5ecret"), "{}", refused.err);
    }
}

#[test]
fn holes_are_zero_only_where_the_store_has_exact_ones() {
    let dir = Dir::new();
    let image = dir.image("image", 32);
    call_with(SECRET, [&["luksFormat", "-q", "--type=luks2"][..], &FAST, &[&image]].concat()).works();
    let out = dir.path("out");
    let out = out.to_str().expect("a text");
    let server = Server::qemu(&dir, &image, &[]);
    for (device, why) in [(image.as_str(), "is a file"), (&server.uri(), "is the export of an NBD server")] {
        let refused = call_with(SECRET, ["export", "--holes=zero", device, out]);
        refused.fails(1, &["Option --holes zero needs an image of Ceph RBD", why, "use --holes noise"]);
    }
    drop(server);
    call_with(SECRET, ["export", "--holes=noise", &image, out]).works();
    let table = format!("0 8 crypt cipher_null-ecb - 0 {image} 0");
    let table = ["export", "-q", out, "--allow-null-cipher", "--holes=zero", "--table", &table];
    call(table).fails(1, &["needs an image of Ceph RBD"]);
    let raw = ["export", "--type=raw", "--holes=zero", &image, out];
    call(raw).fails(1, &["Option --holes is not allowed with type raw"]);
    call(["export", "--holes=maybe", &image, out]).fails(1, &["maybe"]);
    call(["luksDump", "--holes=zero", &image]).fails(1, &["holes"]);
    let both = ["serve", "--holes=zero", "--engine=afalg", "--run=true", &image];
    call(both).fails(1, &["Options --engine afalg and --holes zero cannot be combined"]);
}

/// Returns an nbdkit with the filter `evil` (1.36 or newer), and the directory of its filters and plugins: that of this
/// system, or the one that `tests/newest.sh` installs. Reports a skip otherwise.
fn evil_nbdkit() -> Option<(Command, PathBuf)> {
    let config = Command::new("nbdkit").arg("--dump-config").output().expect("it starts");
    let config = String::from_utf8(config.stdout).expect("a text");
    let filters = config.lines().find_map(|line| line.strip_prefix("filterdir=")).expect("a directory");
    let has_evil = |dir: &Path| dir.join("filters/nbdkit-evil-filter.so").exists();
    let dir = Path::new(filters).with_file_name("");
    if has_evil(&dir) {
        return Some((Command::new("nbdkit"), dir));
    }
    let newest = std::env::var("INLOCK_NEW_NBDKIT").unwrap_or_default();
    let mut words = newest.split_whitespace();
    let loader = words.next().filter(|loader| has_evil(&Path::new(loader).with_file_name("nbdkit")));
    let Some(loader) = loader else {
        println!("SKIPPED: no nbdkit with the filter evil");
        return None;
    };
    let mut command = Command::new(loader);
    command.args(words);
    Some((command, Path::new(loader).with_file_name("nbdkit")))
}

/// Starts that nbdkit over an image. With a mode of the filter, about two bits of a million that are read are wrong.
fn start_evil(dir: &Dir, image: &str, mode: Option<&str>) -> Option<Server> {
    let (mut command, modules) = evil_nbdkit()?;
    let socket = dir.path("server.sock");
    command.arg("-f").arg("-U").arg(&socket);
    let plugin = modules.join("plugins/nbdkit-file-plugin.so");
    match mode {
        Some(mode) => {
            command.arg(format!("--filter={}", modules.join("filters/nbdkit-evil-filter.so").display()));
            command.arg(plugin).arg(image).arg(format!("evil={mode}"));
            command.args(["evil-probability=2e-6", "evil-seed=1"]);
        }
        None => drop(command.arg(plugin).arg(image)),
    }
    Some(Server::start(command, socket))
}

/// A server that flips bits: what nothing protects is returned as it decrypts, other than it was written. With
/// integrity protection, a unit is right or its read fails with EIO.
#[test]
fn flipped_bits_are_errors_with_integrity_and_wrong_plaintext_without() {
    const LEN: usize = 4 << 20;
    let input = noise(LEN);
    for mode in ["stuck-bits", "cosmic-rays"] {
        let sealed = ["--integrity=aead", "--cipher=aes-gcm-random", "--key-size=256"];
        for integrity in [&[][..], &["--integrity=hmac-sha256"], &sealed] {
            let dir = Dir::new();
            let run = Run::new();
            let image = dir.image("image", 48);
            let format = ["luksFormat", "-q", "--type=luks2", "--sector-size=4096", &image];
            call_with(SECRET, format.into_iter().chain(FAST).chain(integrity.iter().copied())).works();
            let (key, data) = (dir.file("key", SECRET), dir.file("data", &input));
            call(["import", &data, &image, "-q", "-d", &key]).works();
            // The header is read from a server that is honest, and the data from one that is not.
            let Some(honest) = start_evil(&dir, &image, None) else { return };
            let served = Named::start(&run, "data", &["--read-only", "-d", &key, &honest.uri()]);
            drop(honest);
            let Some(evil) = start_evil(&dir, &image, Some(mode)) else { return };
            let mut client = served.connect();
            let (mut wrong, mut failed) = (0, 0);
            for (number, unit) in input.chunks(4096).enumerate() {
                match client.read(number as u64 * 4096, 4096) {
                    Ok(found) => wrong += usize::from(found != unit),
                    Err(error) => {
                        assert!(error.to_string().ends_with(": error 5"), "{mode} {integrity:?}: {error}");
                        failed += 1;
                    }
                }
            }
            let (some, none) = if integrity.is_empty() { (wrong, failed) } else { (failed, wrong) };
            assert!(some > 5 && some < 512, "{mode} {integrity:?}: {wrong} wrong and {failed} failed");
            assert_eq!(none, 0, "{mode} {integrity:?}: {wrong} wrong and {failed} failed");
            count("remote_units_with_flipped_bits", some);
            drop(client);
            drop(evil);
            drop(served);
        }
    }
}
