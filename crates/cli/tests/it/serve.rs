//! `serve`: captive command, addresses, signals. The server's tests cover its replies.

mod idle;
mod many;
mod many_close;
mod many_failing;
mod many_metrics;
mod many_named;
mod many_verbs;
mod tls;

use crate::harness::{Dir, FAST, call, call_with, have, inlock, noise, run};
use inlock_tests::nbd::{Connection, Mode, command, meta_data, option, option_reply};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Starts a server, and reads its address.
fn start(words: &[&str]) -> (Child, String) {
    start_by(inlock().arg("serve").args(words))
}

/// Like `start`, with another command.
fn start_by(command: &mut Command) -> (Child, String) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut uri = String::new();
    BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut uri).expect("text");
    (child, uri.trim_end().to_owned())
}

/// Stops it with `signal`, and returns its status and its errors.
fn stop(mut child: Child, signal: Signal) -> (Option<i32>, String) {
    stop_child(&mut child, signal)
}

fn stop_child(child: &mut Child, signal: Signal) -> (Option<i32>, String) {
    kill_process(Pid::from_child(child), signal).expect("it runs");
    let mut err = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut err).expect("text");
    (child.wait().expect("it ends").code(), err)
}

/// Whether the kernel has sockets of the family AF_ALG: a program that made one has loaded the module.
fn has_afalg() -> bool {
    let protocols = std::fs::read_to_string("/proc/net/protocols").expect("the kernel's protocols");
    protocols.lines().any(|line| line.split_whitespace().next() == Some("ALG"))
}

#[test]
fn engine_that_kernel_lacks_is_refused() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    let ended = call_with(b"secret", ["serve", &image, "--engine", "afalg", "--run", "true"]);
    if has_afalg() {
        ended.works();
    } else {
        let hint = "load the modules af_alg and algif_skcipher, or use --engine software";
        ended.fails(1, &["Cannot use --engine afalg: the kernel has no AF_ALG sockets.", hint]);
    }
    call_with(b"secret", ["serve", &image, "--engine", "software", "--run", "true"]).works();
}

#[test]
fn captive_command_gets_variables_and_returns_status() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    for (script, status) in [("true", 0), ("exit 1", 1), ("exit 77", 77), ("kill -KILL $$", 137), ("nonsense-x", 127)] {
        let ended = call_with(b"secret", ["serve", &image, "--run", script]);
        assert_eq!(ended.code, status, "{script}: {ended:?}");
    }
    let script = "test -S \"$unixsocket\" && echo \"$uri|$nbd|$unixsocket|$port|$exportname\"";
    let ended = call_with(b"secret", ["serve", &image, "--export-name", "it's", "--run", script]);
    let text = ended.works().text().trim_end();
    let socket = text.split('|').nth(2).unwrap();
    let wanted = format!("nbd+unix:///it%27s?socket={socket}|nbd:unix:{socket}:exportname=it's|{socket}||it's");
    assert_eq!(text, wanted);
    assert!(!std::path::Path::new(socket).parent().unwrap().exists(), "the private directory stays");
    let ended = call_with(
        b"secret",
        ["serve", &image, "--insecure", "--nbd", "tcp:localhost:0", "--run", "echo \"$uri|$port|$unixsocket\""],
    );
    let text = ended.works().text().trim_end();
    let port = text.split('|').nth(1).unwrap();
    assert!(port.parse::<u16>().unwrap() > 0);
    assert!(
        text == format!("nbd://127.0.0.1:{port}/|{port}|") || text == format!("nbd://[::1]:{port}/|{port}|"),
        "{text}"
    );
}

/// Clients ask for as much as fits 32 bits, rounded to the minimum block size, and go on where the answer ends.
#[test]
fn holes_are_found_by_queries_of_any_alignment() {
    let dir = Dir::new();
    let image = dir.image("image", 9 << 10);
    call_with(b"secret", ["luksFormat", "-q", &image].into_iter().chain(FAST)).works();
    let (key, socket) = (dir.file("key", b"secret"), dir.name("s"));
    let (server, _) = start(&[&image, "-d", &key, "--nbd", &format!("unix:{socket}")]);
    let mut client = Connection::haggle(Path::new(&socket), Duration::from_secs(120)).unwrap();
    client.negotiate(Mode::Structured).unwrap();
    let set = client.ask(option::SET_META_CONTEXT, &meta_data(b"", &[b"base:allocation"])).unwrap();
    assert_eq!((set.kind, client.option_reply().unwrap().kind), (option_reply::META_CONTEXT, option_reply::ACK));
    client.go(b"").unwrap();
    client.write(1 << 30, &[7; 4096]).unwrap();
    let size = (9 << 30) - (16 << 20);
    for (start, step) in [(0, 1 << 30), (0, u64::from(u32::MAX)), (1, 1 << 30), (4095, u64::from(u32::MAX) - 511)] {
        let (mut at, mut data) = (start, 0);
        while at < size {
            let extents = client.call(0, command::BLOCK_STATUS, at, step.min(size - at), &[]).unwrap().extents;
            assert!(!extents.is_empty() && extents.iter().all(|(len, _)| *len > 0), "{extents:?} at {at}");
            for (len, flags) in extents {
                data += if flags & 1 == 0 { len } else { 0 };
                at += len;
            }
        }
        // As much as the file system allocates at once for a write.
        assert!((4096..=64 << 10).contains(&data), "{data} bytes of data from {start} in steps of {step}");
    }
    client.disconnect().unwrap();
    assert_eq!(stop(server, Signal::TERM), (Some(0), String::new()));
}

#[test]
fn client_reads_and_writes_plaintext() {
    if !have("nbdcopy") {
        return;
    }
    let dir = Dir::new();
    let image = dir.luks2("image");
    let input = dir.file("input", &noise(8 << 20));
    for io in ["auto", "uring", "sync"] {
        let copy = format!("nbdcopy {input} \"$uri\"");
        let ended = call_with(b"secret", ["serve", &image, "--io", io, "--threads", "2", "--run", &copy]);
        if io == "uring" && ended.code != 0 && ended.err.contains("Operation not permitted") {
            println!("SKIPPED: io_uring is not allowed here");
            continue;
        }
        ended.works();
        assert!(call_with(b"secret", ["export", &image, "-"]).works().out == noise(8 << 20), "{io}");
        call_with(b"secret", ["import", &dir.image("zero", 8), &image]).works();
    }
    let ended = call_with(b"secret", ["serve", "-r", &image, "--run", &format!("nbdcopy {input} \"$uri\"")]);
    assert_ne!(ended.code, 0, "a read-only volume was written: {ended:?}");
    assert!(call_with(b"secret", ["export", &image, "-"]).works().out == vec![0; 8 << 20]);
}

#[test]
fn signal_drains_and_exits_with_success() {
    let dir = Dir::new();
    let image = dir.image("image", 1);
    let socket = dir.name("socket");
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap_or("0");
    let ignored = u64::from_str_radix(mask.trim(), 16).unwrap();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        if ignored >> (signal.as_raw() - 1) & 1 == 1 {
            println!("SKIPPED: {signal:?} is ignored here, and so it is by what is started here");
            continue;
        }
        let (child, uri) = start(&["--type", "raw", &image, "--nbd", &format!("unix:{socket}")]);
        assert_eq!(uri, format!("nbd+unix:///?socket={socket}"));
        assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(stop(child, signal), (Some(0), String::new()), "{signal:?}");
        assert!(!dir.path("socket").exists());
    }
}

#[test]
fn ignored_signal_stays_ignored() {
    let dir = Dir::new();
    let image = dir.image("image", 1);
    let address = format!("unix:{}", dir.name("socket"));
    let script = format!("trap '' HUP; exec {} serve --type raw {image} --nbd {address}", env!("CARGO_BIN_EXE_inlock"));
    let mut shell = std::process::Command::new("sh");
    let mut child = shell.args(["-c", &script]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut uri = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut uri).unwrap();
    kill_process(Pid::from_child(&child), Signal::HUP).unwrap();
    // The server still runs: a second one finds the volume in use.
    call(["serve", "--type", "raw", &image, "--run", "true"]).fails(5, &["is in use"]);
    assert!(child.try_wait().unwrap().is_none(), "SIGHUP ended a server that was told to ignore it");
    assert_eq!(stop(child, Signal::TERM), (Some(0), String::new()));
}

#[test]
fn signal_terminates_captive_command() {
    let dir = Dir::new();
    let image = dir.image("image", 1);
    let (child, told) = start(&["--type", "raw", &image, "--run", "echo ready; exec sleep 600"]);
    assert_eq!(told, "ready");
    assert_eq!(stop(child, Signal::TERM), (Some(128 + 15), String::new()));
}

#[test]
fn address_in_use_is_5() {
    let dir = Dir::new();
    let image = dir.image("image", 1);
    let other = dir.image("other", 1);
    let file = dir.file("file", b"precious");
    call(["serve", "--type", "raw", &image, "--nbd", &format!("unix:{file}")]).fails(5, &[&file]);
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
    let (child, uri) = start(&["--type", "raw", &image, "--insecure", "--nbd", "tcp:127.0.0.1:0"]);
    let port = uri.trim_end_matches('/').rsplit(':').next().unwrap().to_owned();
    let second = format!("tcp:127.0.0.1:{port}");
    call(["serve", "--type", "raw", &other, "--insecure", "--nbd", &second]).fails(5, &["is in use."]);
    assert_eq!(stop(child, Signal::TERM).0, Some(0));
    call(["serve", "--type", "raw", &image, "--nbd", &format!("unix:{}/none/s", dir.name(""))])
        .fails(1, &["cannot listen on", "No such file"]);
}

#[test]
fn raw_and_plain_volumes_have_their_size() {
    if !have("nbdinfo") {
        return;
    }
    let dir = Dir::new();
    let image = dir.image("image", 1);
    let key = dir.file("key", &noise(32));
    let size = "nbdinfo --size \"$uri\"";
    let serve = |words: &[&str]| {
        let ended = call(["serve", &image, "--run", size].iter().chain(words));
        ended.works().text().trim().parse::<u64>().unwrap()
    };
    assert_eq!(serve(&["--type", "raw"]), 1 << 20);
    assert_eq!(serve(&["--type", "plain", "-d", &key]), 1 << 20);
    assert_eq!(serve(&["--type", "plain", "-d", &key, "-o", "8", "-b", "16"]), 16 * 512);
    assert_eq!(serve(&["--type", "plain", "-d", &key, "--sector-size", "65536", "--iv-large-sectors"]), 1 << 20);
    let serve = ["serve", &image, "--run", size, "--type", "plain", "-d", &key];
    call([&serve[..], &["-b", "2049"]].concat()).fails(1, &["exceed the device"]);
    call([&serve[..], &["-o", "2049"]].concat()).fails(1, &["exceed the device"]);
    call([&serve[..], &["-b", "7", "--sector-size", "4096"]].concat()).fails(1, &["multiple"]);
}

#[test]
fn discards_are_advertised_only_if_allowed() {
    if !have("nbdinfo") {
        return;
    }
    let dir = Dir::new();
    let image = dir.luks2("image");
    let ask = "nbdinfo --can trim \"$uri\"";
    assert_eq!(call_with(b"secret", ["serve", &image, "--run", ask]).code, 2);
    call_with(b"secret", ["serve", &image, "--allow-discards", "--run", ask]).works();
}

#[test]
fn captive_command_inherits_no_image() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    // The command gets neither the passphrase's pipe content nor the image's descriptor.
    let ended = run(inlock().args(["serve", &image, "--run", "ls -l /proc/self/fd"]), b"secret\n");
    assert!(!ended.works().text().contains(&image), "{ended:?}");
}

#[test]
fn write_over_file_size_limit_fails_alone() {
    let dir = Dir::new();
    let image = dir.image("image", 8);
    for io in ["sync", "uring", "auto"] {
        let socket = dir.name("socket");
        // One MiB, in blocks of 512 bytes. The image is longer.
        let script = format!(
            "ulimit -f 2048; exec {} serve --type raw --io {io} {image} --nbd unix:{socket}",
            env!("CARGO_BIN_EXE_inlock")
        );
        let (child, _) = start_by(Command::new("sh").args(["-c", &script]));
        let mut client = Connection::open(Path::new(&socket), Duration::from_secs(60), Mode::Simple).unwrap();
        for at in [4 << 20, 6 << 20] {
            assert!(client.write(at, &[7; 4096]).is_err(), "{io}: a write over the limit succeeds");
        }
        client.write(4096, &[8; 4096]).unwrap();
        assert!(client.read(4096, 4096).unwrap() == [8; 4096]);
        assert_eq!(stop(child, Signal::TERM), (Some(0), String::new()), "{io}");
    }
    // Child processes have the default action.
    let ended = call(["serve", "--type", "raw", &image, "--run", "grep SigIgn /proc/self/status"]);
    let mask = u64::from_str_radix(ended.works().text().trim().rsplit('\t').next().unwrap(), 16).unwrap();
    assert_eq!(mask >> (rustix::process::Signal::XFSZ.as_raw() - 1) & 1, 0);
}
