//! One writer of a volume under all names of its storage: exports of NBD servers, files on overlayfs, parts of a
//! device.

use crate::harness::control::{Named, Run};
use crate::harness::killed::Killed;
use crate::harness::storage::{Loop, Mounted};
use crate::harness::{Dir, Ended, call, has_fuse, have};
use inlock_tests::server::Server;
use inlock_tests::wait::eventually;
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

const IN_USE: &str = "is in use";
const OTHER_NAME: &str = "is open under another name";

/// Serves a file with nbdkit, which ignores the name of the export.
fn nbdkit(dir: &Dir, image: &str) -> Server {
    let socket = dir.path("server.sock");
    // A server that was killed leaves it.
    let _ = std::fs::remove_file(&socket);
    let mut command = Command::new("nbdkit");
    command.arg("-f").arg("-U").arg(&socket).args(["file", image]);
    Server::start(command, socket).expect("it starts")
}

/// A server on TCP, killed when dropped.
struct Tcp {
    _process: Killed,
    port: u16,
}

impl Tcp {
    fn nbdkit(image: &str) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port").port();
        let mut command = Command::new("nbdkit");
        command.args(["-f", "-i", "127.0.0.1", "-p", &port.to_string(), "file", image]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        let server = Self { _process: Killed(child), port };
        drop(eventually("the server listens", || TcpStream::connect(("127.0.0.1", port)), Result::is_ok));
        server
    }
}

/// Opens a volume for a moment.
fn open(words: &[&str]) -> Ended {
    call([&["serve", "--run", "true"], words].concat())
}

/// Creates an image with a volume of dm-integrity with a keyed hash; returns it, and the options to open it.
fn keyed_integrity(dir: &Dir, name: &str) -> (String, Vec<String>) {
    let key = dir.file("mac", &[7; 32]);
    let image = dir.image(name, 8);
    let options = ["--integrity", "hmac-sha256", "--integrity-key-file", &key, "--integrity-key-size", "32"];
    call([&["integrity", "format", "-q", &image, "--tag-size", "32"], &options[..]].concat()).works();
    (image, options.map(ToOwned::to_owned).into())
}

#[test]
fn export_has_one_writer_under_all_names_of_its_server() {
    let (dir, run) = (Dir::new(), Run::new());
    if !have("nbdkit") {
        return;
    }
    // Without a volume that could be told from others.
    let image = dir.image("image", 4);
    let server = nbdkit(&dir, &image);
    std::fs::create_dir(dir.path("sub")).unwrap();
    std::os::unix::fs::symlink(server.socket(), dir.path("soft")).unwrap();
    std::os::unix::fs::symlink(dir.path("sub/.."), dir.path("around")).unwrap();
    std::fs::hard_link(server.socket(), dir.path("hard")).unwrap();
    let unix = ["server.sock", "soft", "sub/../server.sock", "around/server.sock", "hard"]
        .map(|name| format!("nbd+unix:///?socket={}", dir.name(name)));
    let second = dir.image("second", 4);
    let tcp = Tcp::nbdkit(&second);
    let tcp = ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]"]
        .map(|host| format!("nbd://{host}:{}", tcp.port));
    for names in [&unix[..], &tcp] {
        for (number, held) in names.iter().enumerate() {
            let holder = Named::start(&run, "held", &["--type", "raw", held]);
            for other in [&names[0], &names[(number + 1) % names.len()]] {
                open(&["--type", "raw", other]).fails(5, &[IN_USE]);
            }
            drop(holder);
        }
        let readers = names.iter().enumerate().map(|(number, name)| {
            Named::start(&run, &format!("reader{number}"), &["--type", "raw", "--read-only", name])
        });
        let readers: Vec<_> = readers.collect();
        open(&["--type", "raw", &names[1]]).fails(5, &[IN_USE]);
        drop(readers);
        open(&["--type", "raw", &names[1]]).works();
    }
}

/// A server that ignores names, and the file behind it: the volume shows that the storage is the same.
#[test]
fn volume_on_an_export_has_one_writer_on_this_host() {
    let dir = Dir::new();
    if !have("nbdkit") {
        return;
    }
    let key = dir.file("key", b"secret");
    let (sealed, options) = keyed_integrity(&dir, "sealed");
    let options: Vec<_> = options.iter().map(String::as_str).collect();
    let luks = ["-d", &key];
    for (image, serve, key) in
        [(dir.luks1("one"), "serve", &luks[..]), (dir.luks2("two"), "serve", &luks), (sealed, "integrity", &options)]
    {
        let server = nbdkit(&dir, &image);
        let names = [server.uri(), server.uri().replace("///?", "///ignored?"), image.clone()];
        let words = |name: &str, more: &[&str]| {
            let start: &[&str] = if serve == "integrity" { &["integrity", "serve"] } else { &["serve"] };
            let all: Vec<_> = [start, &[name], more, key].concat().into_iter().map(ToOwned::to_owned).collect();
            all
        };
        let holding = |name: &str, more: &[&str]| {
            let mut command = crate::harness::inlock();
            command.args(words(name, more)).args(["--nbd", &format!("unix:{}", dir.name("held.sock"))]);
            Server::start(command, dir.path("held.sock")).expect("it starts")
        };
        let moment = |name: &str, more: &[&str]| call(words(name, &[&["--run", "true"], more].concat()));
        for held in &names {
            let holder = holding(held, &[]);
            for other in names.iter().filter(|other| *other != held) {
                moment(other, &["--read-only"]).fails(5, &[OTHER_NAME, "hint: ", "--allow-copy"]);
            }
            drop(holder);
            let reader = holding(held, &["--read-only"]);
            for other in names.iter().filter(|other| *other != held) {
                moment(other, &[]).fails(5, &[OTHER_NAME]);
                moment(other, &["--read-only"]).works();
            }
            drop(reader);
            moment(held, &[]).works();
        }
        // All that writes to the bytes of the volume counts.
        let holder = holding(&image, &[]);
        if serve == "serve" {
            call(["luksFormat", "-q", &names[0], key[1]]).fails(5, &[OTHER_NAME]);
        }
        call(["integrity", "format", "-q", &names[1]]).fails(5, &[OTHER_NAME]);
        drop(holder);
    }
}

/// Copies have the UUID and the salts of the original, and are other storage.
#[test]
fn copy_of_a_volume_opens_beside_it() {
    let (dir, run) = (Dir::new(), Run::new());
    if !have("nbdkit") {
        return;
    }
    let key = dir.file("key", b"secret");
    let image = dir.luks2("image");
    let [copy, third] = ["copy", "third"].map(|name| {
        std::fs::copy(&image, dir.path(name)).unwrap();
        dir.name(name)
    });
    let _original = Named::start(&run, "original", &["-d", &key, &image]);
    let copied = Named::start(&run, "copy", &["-d", &key, &copy]);
    if let Some(device) = Loop::over(&third) {
        open(&["-d", &key, &device.0]).works();
    }
    let server = nbdkit(&dir, &third);
    open(&["-d", &key, &server.uri()]).fails(5, &[OTHER_NAME, "--allow-copy"]);
    let held = Named::start(&run, "export", &["-d", &key, "--allow-copy", &server.uri()]);
    // The same name is no copy.
    open(&["-d", &key, "--allow-copy", &server.uri()]).fails(5, &["is in use (locked by another process)"]);
    drop(copied);
    open(&["-d", &key, &copy]).works();
    drop(held);
}

/// A server that passes on the bytes of a volume is no user of it.
#[test]
fn volume_opens_over_a_server_of_its_image() {
    let (dir, run) = (Dir::new(), Run::new());
    let key = dir.file("key", b"secret");
    let image = dir.luks2("image");
    let table = dir.file("table", format!("0 49152 linear {image} 0\n").as_bytes());
    for words in [&["--type", "raw", &image][..], &["--table", &table]] {
        let below = Named::start(&run, "below", words);
        open(&["-d", &key, &format!("nbd+unix:///?socket={}", below.socket)]).works();
        drop(below);
    }
}

#[test]
fn file_has_one_writer_under_its_name_on_overlayfs() {
    let (dir, run) = (Dir::new(), Run::new());
    for name in ["lower", "upper", "work", "merged", "bound"] {
        std::fs::create_dir(dir.path(name)).unwrap();
    }
    std::fs::create_dir_all(dir.path("upper/d")).unwrap();
    let (upper, lower) = (dir.image("upper/d/image", 4), dir.image("lower/read", 4));
    let [l, u, w, merged] = ["lower", "upper", "work", "merged"].map(|name| dir.name(name));
    let options = format!("lowerdir={l},upperdir={u},workdir={w}");
    let Some(_mounted) = Mounted::new(&["-t", "overlay", "-o", &options, "overlay", &merged]) else { return };
    let Some(_bound) = Mounted::new(&["--bind", &dir.name("merged/d"), &dir.name("bound")]) else { return };
    let names = [upper, dir.name("merged/d/image"), dir.name("bound/image")];
    for held in &names {
        let holder = Named::start(&run, "held", &["--type", "raw", held]);
        for other in &names {
            open(&["--type", "raw", other]).fails(5, &[IN_USE]);
            open(&["--type", "raw", "--read-only", other]).fails(5, &[IN_USE]);
        }
        if let Some(device) = Loop::over(&names[0]) {
            open(&["--type", "raw", &device.0]).fails(5, &[IN_USE]);
        }
        drop(holder);
        open(&["--type", "raw", held]).works();
    }
    // A file of a lower layer is read there; to open it for writing makes another one.
    let reader = Named::start(&run, "reader", &["--type", "raw", "--read-only", &dir.name("merged/read")]);
    open(&["--type", "raw", &lower]).fails(5, &[IN_USE]);
    open(&["--type", "raw", "--read-only", &lower]).works();
    drop(reader);
    let _holder = Named::start(&run, "held", &["--type", "raw", &lower]);
    open(&["--type", "raw", "--read-only", &dir.name("merged/read")]).fails(5, &[IN_USE]);
    open(&["--type", "raw", &dir.name("merged/read")]).works();
}

/// `--shared`: each volume has a range of its own.
#[test]
fn shared_volumes_do_not_overlap() {
    let (dir, run) = (Dir::new(), Run::new());
    if !has_fuse() {
        return;
    }
    let key = dir.file("key", &[5; 32]);
    let image = dir.image("image", 4);
    let device = Loop::over(&image);
    let server = have("nbdkit").then(|| nbdkit(&dir, &dir.image("exported", 4)));
    let open = |name: &str, device: &str, more: &[&str]| {
        let plain = ["open", device, name, "--via", "fuse", "--type", "plain", "-c", "aes-xts-plain64", "-s", "256"];
        run.call(&[&plain[..], &["-d", &key], more].concat())
    };
    // Two names of the same bytes.
    let mut pairs = vec![(image.clone(), image.clone())];
    pairs.extend(device.as_ref().map(|device| (image.clone(), device.0.clone())));
    pairs.extend(server.as_ref().map(|server| (server.uri(), server.uri())));
    for (held, other) in &pairs {
        let opened = |ended: Ended| {
            assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{ended:?}");
            run.call(&["close", "other"]).works();
        };
        let overlaps = |ended: Ended| ended.fails(5, &["another volume has a part of the range", "hint: "]);
        assert_eq!(open("held", held, &["--shared", "--offset", "1024", "--size", "1024"]).code, 0);
        for range in [&["1024", "--size", "1024"][..], &["0", "--size", "1025"], &["2047", "--size", "1"], &["0"]] {
            overlaps(open("other", other, &[&["--shared", "--offset"], range].concat()));
        }
        overlaps(open("other", other, &["--shared", "--offset", "1500", "--size", "8", "--read-only"]));
        for range in [&["0", "--size", "1024"][..], &["2048"]] {
            opened(open("other", other, &[&["--shared", "--offset"], range].concat()));
        }
        // A reader of the whole device opens, as before; a writer does not.
        opened(open("other", other, &["--read-only"]));
        open("other", other, &[]).fails(5, &[IN_USE]);
        run.call(&["close", "held"]).works();
        assert_eq!(open("held", held, &["--shared", "--read-only", "--offset", "1024"]).code, 0);
        opened(open("other", other, &["--shared", "--read-only", "--offset", "2048", "--size", "8"]));
        overlaps(open("other", other, &["--shared", "--offset", "2048", "--size", "8"]));
        run.call(&["close", "held"]).works();
        opened(open("other", other, &["--shared", "--offset", "1024"]));
    }
}
