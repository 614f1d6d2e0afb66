//! TLS of `serve`, with the clients of libnbd, QEMU and Inlock.

use super::{start, stop};
use crate::harness::{Dir, call, call_with, have, inlock, memory, noise, run};
use inlock_tests::certificates::Authority;
use inlock_tests::nbd::{Connection, option};
use inlock_tests::process::PYTHON;
use inlock_tests::report::count;
use inlock_tests::wait::eventually;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(300);

/// Options of a server that requires TLS.
pub(crate) fn require(certificates: &str) -> [&str; 4] {
    ["--tls", "require", "--tls-certificates", certificates]
}

pub(crate) fn authority(dir: &Dir) -> (Authority, String) {
    (Authority::with_server(&dir.path("c"), "server"), dir.name("c"))
}

fn authority_with_client(dir: &Dir) -> (Authority, String) {
    (Authority::with_server_and_client(&dir.path("c")), dir.name("c"))
}

pub(crate) fn size(uri: &str) -> (i32, String) {
    let ended = run(Command::new("nbdinfo").args(["--size", uri]), b"");
    (ended.code, ended.err)
}

fn qemu_object(certificates: &str) -> String {
    format!("tls-creds-x509,id=t,dir={certificates},endpoint=client")
}

#[test]
fn libnbd_reads_and_writes_over_tls() {
    if !have("nbdcopy") {
        return;
    }
    let dir = Dir::new();
    let (_authority, certificates) = authority_with_client(&dir);
    let image = dir.luks2("image");
    let input = dir.file("input", &noise(8 << 20));
    let (output, socket) = (dir.name("output"), dir.name("s"));
    let unix = format!("unix:{socket}");
    for (address, more) in [
        (None, &[][..]),
        (Some(unix.as_str()), &["--tls-verify-peer"][..]),
        (Some("tcp:localhost:0"), &["--tls-verify-peer"]),
    ] {
        let script = format!("echo $uri; nbdinfo \"$uri\"; nbdcopy {input} \"$uri\" && nbdcopy \"$uri\" {output}");
        let nbd: Vec<&str> = address.iter().flat_map(|address| ["--nbd", address]).collect();
        let words = [&["serve", &image][..], &require(&certificates), &nbd, more, &["--run", &script]].concat();
        let ended = call_with(b"secret", words);
        let text = ended.works().text();
        assert!(text.starts_with("nbds") && text.contains(&format!("tls-certificates={certificates}")), "{text}");
        assert!(text.contains("newstyle-fixed with TLS"), "{text}");
        assert!(fs::read(&output).unwrap() == noise(8 << 20), "{address:?}");
        assert!(call_with(b"secret", ["export", &image, "-"]).works().out == noise(8 << 20));
        call_with(b"secret", ["import", &dir.image("zero", 8), &image]).works();
    }
    let script = "/usr/bin/python3 -m nbd -c 'h.set_uri_allow_local_file(True)' -c \"h.connect_uri('$uri')\" \
        -c 'h.pwrite(b\"hello\", 77)' -c 'h.flush()' -c 'assert h.pread(5, 77) == b\"hello\"' \
        -c 'assert h.get_tls_negotiated() and h.get_structured_replies_negotiated()' -c 'print(h.get_size())'";
    let raw = dir.image("raw", 1);
    let words = [&["serve", "--type", "raw", &raw][..], &require(&certificates), &["--run", script]].concat();
    assert_eq!(call(words).works().text().trim(), "1048576");
    assert_eq!(&fs::read(&raw).unwrap()[77..82], b"hello");
}

#[test]
fn qemu_reads_and_writes_over_tls() {
    if !have("qemu-img") || !have("qemu-io") {
        return;
    }
    let dir = Dir::new();
    let (_authority, certificates) = authority_with_client(&dir);
    let (image, input) = (dir.image("image", 8), dir.file("input", &noise(8 << 20)));
    let (child, uri) = start(
        &[&["--type", "raw", &image, "--nbd", "tcp:localhost:0", "--tls-verify-peer"][..], &require(&certificates)]
            .concat(),
    );
    let port = uri.trim_start_matches("nbds://").split('/').next().unwrap().rsplit(':').next().unwrap().to_owned();
    let object = qemu_object(&certificates);
    let options = format!("driver=nbd,server.type=inet,server.host=localhost,server.port={port},tls-creds=t");
    let convert = ["convert", "-n", "-f", "raw", &input, "--object", &object, "--target-image-opts"];
    let target = format!("{options},tls-hostname=localhost");
    run(Command::new("qemu-img").args(convert).arg(&target), b"").works();
    assert!(fs::read(&image).unwrap() == noise(8 << 20));
    let script = ["-c", "write -P 5 1000 70000", "-c", "read -P 5 1000 70000", "-c", "flush"];
    let mut io = Command::new("qemu-io");
    let ended = run(io.args(["--object", &object]).args(script).args(["--image-opts", &target]), b"");
    assert!(ended.code == 0 && !ended.text().contains("failed"), "{ended:?}");
    assert!(fs::read(&image).unwrap()[1000..71_000].iter().all(|byte| *byte == 5));
    // Its name is another one.
    let wrong = format!("{options},tls-hostname=other.example");
    let ended = run(Command::new("qemu-io").args(["--object", &object, "-c", "read 0 1", "--image-opts", &wrong]), b"");
    assert!(ended.code != 0, "{ended:?}");
    assert_eq!(stop(child, Signal::TERM).0, Some(0));
}

#[test]
fn volume_on_an_export_of_inlock_over_tls() {
    let dir = Dir::new();
    let (_authority, certificates) = authority(&dir);
    let image = dir.image("image", 24);
    let socket = dir.name("s");
    let (child, uri) =
        start(&[&["--type", "raw", &image, "--nbd", &format!("unix:{socket}")][..], &require(&certificates)].concat());
    call_with(b"secret", ["luksFormat", "-q", &uri].into_iter().chain(crate::harness::FAST)).works();
    let input = dir.file("input", &noise(4 << 20));
    call_with(b"secret", ["import", "-q", &input, &uri]).works();
    let words = ["export", &uri, "-", "--range", "0:4M"];
    assert!(call_with(b"secret", words).works().out == noise(4 << 20));
    let plain = format!("nbd+unix:///?socket={socket}");
    call_with(b"secret", ["luksDump", &plain]).fails(4, &["requires TLS"]);
    assert_eq!(stop(child, Signal::TERM), (Some(0), String::new()));
    assert!(call_with(b"secret", ["export", &image, "-", "--range", "0:4M"]).works().out == noise(4 << 20));
}

#[test]
fn client_without_tls_gets_what_the_mode_allows() {
    if !have("nbdinfo") {
        return;
    }
    let dir = Dir::new();
    let (_authority, certificates) = authority(&dir);
    let image = dir.image("image", 1);
    for (mode, plain_works, tls_works) in [("off", true, false), ("on", true, true), ("require", false, true)] {
        let socket = dir.name(mode);
        let address = format!("unix:{socket}");
        let tls: &[&str] =
            if mode == "off" { &["--tls", "off"] } else { &["--tls", mode, "--tls-certificates", &certificates] };
        let (child, uri) = start(&[&["--type", "raw", &image, "--nbd", &address][..], tls].concat());
        assert_eq!(uri.starts_with("nbds"), mode == "require", "{uri}");
        let (plain, secure) = (
            size(&format!("nbd+unix:///?socket={socket}")),
            size(&format!("nbds+unix:///?socket={socket}&tls-certificates={certificates}")),
        );
        assert_eq!((plain.0 == 0, secure.0 == 0), (plain_works, tls_works), "{mode}: {plain:?} {secure:?}");
        assert_eq!(stop(child, Signal::TERM), (Some(0), String::new()), "{mode}");
    }
}

#[test]
fn certificates_of_both_sides_are_checked() {
    if !have("nbdinfo") {
        return;
    }
    let dir = Dir::new();
    let [ours, theirs] = ["ours", "theirs"].map(|name| Authority::with_server_and_client(&dir.path(name)));
    let certificates = dir.name("ours");
    let trusting = |name: &str, server: &Authority, client: Option<&Authority>| {
        server.make_client(&dir.path(name), client);
        dir.name(name)
    };
    let good = trusting("good", &ours, Some(&ours));
    let none = trusting("none", &ours, None);
    let foreign = trusting("foreign", &ours, Some(&theirs));
    let wary = trusting("wary", &theirs, Some(&ours));
    // A certificate of a server is none of a client.
    ours.issue("client", "server", 20);
    let server = trusting("server", &ours, Some(&ours));
    ours.issue_expired("client", "client");
    let expired = trusting("expired", &ours, Some(&ours));
    ours.issue("client", "client", 21);
    let revoked = trusting("revoked", &ours, Some(&ours));
    ours.revoke(21);
    let image = dir.image("image", 1);
    let words =
        [&["--type", "raw", &image, "--nbd", "tcp:localhost:0", "--tls-verify-peer"][..], &require(&certificates)];
    let (child, uri) = start(&words.concat());
    let address = uri.split('?').next().unwrap();
    let mut refusals = 0;
    for (name, client, works) in [
        ("good", &good, true),
        ("no certificate", &none, false),
        ("another authority", &foreign, false),
        ("a server's", &server, false),
        ("expired", &expired, false),
        ("revoked", &revoked, false),
        ("the server is not trusted", &wary, false),
        ("good again", &good, true),
    ] {
        let libnbd = size(&format!("{address}?tls-certificates={client}"));
        assert_eq!(libnbd.0 == 0, works, "{name}: {libnbd:?}");
        let own = call(["luksDump", &format!("{address}?tls-certificates={client}")]);
        // The export is empty: it has no header.
        assert_eq!(own.code, if works { 1 } else { 4 }, "{name}: {own:?}");
        refusals += u32::from(!works);
    }
    assert_eq!(stop(child, Signal::TERM), (Some(0), String::new()));
    // Without the check, all connect that trust the server.
    let (child, uri) = start(
        &[&["--type", "raw", &image, "--nbd", &format!("unix:{}", dir.name("s"))][..], &require(&certificates)]
            .concat(),
    );
    let socket = uri.split('&').next().unwrap();
    for client in [&none, &foreign, &revoked] {
        assert_eq!(size(&format!("{socket}&tls-certificates={client}")).0, 0, "{client}");
    }
    stop(child, Signal::TERM);
    count("serve_tls_refusals", refusals);
}

#[test]
fn certificates_that_cannot_be_used_are_refused_before_listening() {
    let dir = Dir::new();
    let (authority, certificates) = authority_with_client(&dir);
    let image = dir.image("image", 1);
    let socket = dir.name("s");
    let address = format!("unix:{socket}");
    let tls = |options: &[&str]| call([&["serve", "--type", "raw", &image, "--nbd", &address][..], options].concat());
    let file = |name: &str| dir.path("c").join(name);
    let original = |name: &str| fs::read(file(name)).unwrap();
    let (certificate, key) = (original("server-cert.pem"), original("server-key.pem"));
    let restore = || {
        for (name, content) in [("server-cert.pem", &certificate), ("server-key.pem", &key)] {
            let path = file(name);
            // It may be missing.
            let _ = if path.is_dir() { fs::remove_dir(&path) } else { fs::remove_file(&path) };
            fs::write(path, content).unwrap();
        }
    };
    let mut cases = 0;
    let mut fails = |change: &dyn Fn(), code: i32, words: &[&str]| {
        change();
        tls(&require(&certificates)).fails(code, words);
        assert!(!Path::new(&socket).exists(), "{words:?}");
        restore();
        cases += 1;
    };
    let remove = |name: &str| fs::remove_file(file(name)).unwrap();
    let copy = |from: &str, to: &str| assert!(fs::copy(file(from), file(to)).unwrap() > 0);
    fails(&|| remove("server-cert.pem"), 4, &["server-cert.pem: No such file", "hint: "]);
    fails(&|| remove("server-key.pem"), 4, &["server-key.pem: No such file"]);
    let dangles = || {
        remove("server-key.pem");
        std::os::unix::fs::symlink("nowhere", file("server-key.pem")).unwrap();
    };
    fails(&dangles, 4, &["server-key.pem: No such file"]);
    let directory = || {
        remove("server-cert.pem");
        fs::create_dir(file("server-cert.pem")).unwrap();
    };
    fails(&directory, 4, &["server-cert.pem: Is a directory"]);
    fails(&|| fs::write(file("server-key.pem"), "").unwrap(), 1, &["server-key.pem: nothing of its kind"]);
    fails(&|| copy("server-cert.pem", "server-key.pem"), 1, &["server-key.pem: nothing of its kind"]);
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    fails(&|| fs::write(file("server-cert.pem"), broken).unwrap(), 1, &["Cannot use ", "server-cert.pem: "]);
    fails(
        &|| copy("client-key.pem", "server-key.pem"),
        1,
        &["server-key.pem: does not belong to ", "server-cert.pem."],
    );
    let of_client = || {
        copy("client-key.pem", "server-key.pem");
        copy("client-cert.pem", "server-cert.pem");
    };
    fails(&of_client, 1, &["server-cert.pem: the certificate is not one of a server"]);
    fails(&|| authority.issue_expired("server", "server"), 1, &["server-cert.pem: the certificate has expired"]);
    tls(&[&require(&dir.name("none"))[..]].concat()).fails(4, &["No such file"]);
    let peer = [&require(&certificates)[..], &["--tls-verify-peer"]].concat();
    fs::write(dir.path("c").join("ca-crl.pem"), "no list").unwrap();
    tls(&peer).fails(1, &["ca-crl.pem: nothing of its kind"]);
    fs::remove_file(dir.path("c").join("ca-crl.pem")).unwrap();
    fs::remove_file(dir.path("c").join("ca-cert.pem")).unwrap();
    tls(&peer).fails(4, &["ca-cert.pem: No such file"]);
    count("serve_tls_bad_files", cases);
}

/// The file of a private key was read, and its text is nowhere in the server's memory.
#[test]
fn text_of_the_private_key_is_wiped() {
    let dir = Dir::new();
    let (_authority, certificates) = authority(&dir);
    let text = fs::read_to_string(dir.path("c").join("server-key.pem")).unwrap();
    let line = text.lines().nth(1).unwrap().as_bytes();
    // In a long file the key is where the next allocations do not overwrite it.
    let long = format!("{text}{}", "Text behind a key is no part of it.\n".repeat(2000));
    fs::write(dir.path("c").join("server-key.pem"), long).unwrap();
    let image = dir.image("image", 1);
    let address = format!("unix:{}", dir.name("s"));
    let (child, _) = start(&[&["--type", "raw", &image, "--nbd", &address][..], &require(&certificates)].concat());
    if let Some(found) = memory::count(Pid::from_child(&child), &[&line[..48]]) {
        assert_eq!(found, 0, "copies of the text");
    }
    assert_eq!(stop(child, Signal::TERM).0, Some(0));
}

#[test]
fn private_key_that_others_can_use_is_told() {
    let dir = Dir::new();
    let (_authority, certificates) = authority(&dir);
    let (image, key) = (dir.image("image", 1), dir.path("c/server-key.pem"));
    for (mode, is_told) in [(0o600, false), (0o640, false), (0o644, true), (0o620, true), (0o602, true)] {
        fs::set_permissions(&key, fs::Permissions::from_mode(mode)).unwrap();
        let serve = ["serve", "--type", "raw", &image, "--run", "true"];
        let ended = call([&serve[..], &require(&certificates)].concat());
        let has_told = ended.err.contains("can read or replace this private key");
        assert_eq!((ended.code, has_told), (0, is_told), "{mode:o}: {ended:?}");
        // As the client of another server, which need not be there.
        fs::copy(&key, dir.path("c/client-key.pem")).unwrap();
        fs::set_permissions(dir.path("c/client-key.pem"), fs::Permissions::from_mode(mode)).unwrap();
        let export = format!("nbds+unix:///?socket={}&tls-certificates={certificates}", dir.name("none"));
        let ended = call(["luksDump", "--connect-timeout", "1", &export]);
        let told = format!("{certificates}/client-key.pem: other users can read or replace this private key");
        assert_eq!((ended.code, ended.err.contains(&told)), (4, is_told), "{mode:o}: {ended:?}");
    }
}

#[test]
fn options_of_tls_that_promise_nothing_are_refused() {
    let dir = Dir::new();
    let image = dir.image("image", 1);
    let tls = |options: &[&str]| call([&["serve", "--type", "raw", &image, "--run", "true"][..], options].concat());
    tls(&["--tls", "require"]).fails(1, &["Option --tls needs --tls-certificates."]);
    tls(&["--tls-certificates", "x"]).fails(1, &["--tls-certificates needs --tls with"]);
    tls(&["--tls-verify-peer", "--tls", "off"]).fails(1, &["--tls-verify-peer needs --tls with"]);
    tls(&["--tls", "on", "--tls-certificates", "x", "--tls-verify-peer"]).fails(1, &["with 'require'"]);
    tls(&["--tls", "maybe"]).fails(1, &["maybe"]);
    tls(&["--tls-psk", "x"]).fails(1, &["--tls-psk is not supported", "use certificates"]);
}

#[test]
fn address_of_tcp_needs_certificates_of_clients_or_insecure() {
    let dir = Dir::new();
    let (_authority, certificates) = authority_with_client(&dir);
    let image = dir.image("image", 1);
    let serve = |address: &str, tls: &[&str]| {
        call([&["serve", "--type", "raw", &image, "--nbd", address][..], tls, &["--run", "echo $uri"]].concat())
    };
    for address in ["tcp:0.0.0.0:0", "tcp:127.0.0.1:0"] {
        let checks = [&require(&certificates)[..], &["--tls-verify-peer"]].concat();
        assert!(serve(address, &checks).works().text().starts_with("nbds://"));
        let open = [&require(&certificates)[..], &["--insecure"]].concat();
        assert!(serve(address, &open).works().text().starts_with("nbds://"));
        let refused = serve(address, &require(&certificates));
        refused.fails(1, &["clients need no certificate", "add --tls-verify-peer, or allow it with --insecure"]);
        serve(address, &["--tls", "on", "--tls-certificates", &certificates]).fails(1, &["NBD is unencrypted"]);
        serve(address, &[]).fails(1, &["NBD is unencrypted", "--tls=require with --tls-verify-peer"]);
    }
}

/// Number of threads of a process.
fn threads(child: &Child) -> usize {
    fs::read_dir(format!("/proc/{}/task", child.id())).expect("it works").count()
}

#[test]
fn half_open_connections_are_bounded() {
    let dir = Dir::new();
    let (_authority, certificates) = authority(&dir);
    let image = dir.image("image", 1);
    let socket = dir.path("s");
    let address = format!("unix:{}", socket.display());
    let (child, uri) = start(&[&["--type", "raw", &image, "--nbd", &address][..], &require(&certificates)].concat());
    let most = threads(&child) + 256;
    let mut half_open = Vec::new();
    for number in 0..1000 {
        let mut client = Connection::dial(&socket, TIMEOUT).unwrap();
        // A third is silent, a third negotiates, and a third is in the handshake of TLS.
        let is_served = client.greeting().is_ok();
        if is_served && number % 3 > 0 {
            let _ = client.send(&[0, 0, 0, 3]);
        }
        if is_served && number % 3 == 2 {
            let _ = client.ask(option::STARTTLS, b"");
        }
        assert!(threads(&child) <= most, "{} threads", threads(&child));
        half_open.push(client);
    }
    // Others are served at once: those that have been idle for longest make room.
    for number in 0..5 {
        let (code, text) = size(&uri);
        assert_eq!(code, 0, "client {number}: {text}");
    }
    drop(half_open);
    assert_eq!(stop(child, Signal::TERM), (Some(0), String::new()));
}

/// Starts `serve --config`, and returns its URI.
pub(crate) fn start_many(dir: &Dir, config: &str, address: &str) -> (Child, String) {
    let config = dir.file("volumes.toml", config.as_bytes());
    let control = dir.name("control");
    let mut command = inlock();
    command.args(["serve", "--config", &config, "--nbd", address, "--control", &control]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it works");
    let mut uri = String::new();
    BufReader::new(child.stdout.take().expect("it works")).read_line(&mut uri).expect("it works");
    (child, uri.trim_end().to_owned())
}

#[test]
fn many_volumes_are_served_over_tls_and_certificates_are_read_again() {
    if !have("nbdcopy") {
        return;
    }
    let dir = Dir::new();
    let (authority, certificates) = authority_with_client(&dir);
    let images = [dir.image("a", 1), dir.image("b", 1)];
    let volumes: String = ["a", "b"]
        .iter()
        .zip(&images)
        .map(|(name, image)| format!("[volumes.{name}]\nimage = \"{image}\"\ntype = \"raw\"\n"))
        .collect();
    let tls = format!("tls = \"require\"\ntls-certificates = \"{certificates}\"\ntls-verify-peer = true\n");
    let (child, uri) = start_many(&dir, &format!("{tls}{volumes}"), "tcp:localhost:0");
    assert!(uri.starts_with("nbds://"), "{uri}");
    let (base, parameters) = uri.split_once("/?").unwrap();
    let input = dir.file("input", &noise(1 << 20));
    run(Command::new("nbdcopy").args([&input, &format!("{base}/b?{parameters}")]), b"").works();
    let list = run(Command::new("nbdinfo").args(["--list", "--json", &uri]), b"");
    assert_eq!(list.works().text().matches("\"export-name\"").count(), 2);
    assert_eq!(size(&format!("{base}/c?{parameters}")).0, 1, "no such export");
    assert_ne!(size(&format!("{}/b", base.replace("nbds:", "nbd:"))).0, 0, "a client without TLS");

    // A client that stays connected while the certificates change.
    let uri_of_b = format!("{base}/b?{parameters}");
    let connect = format!("h.set_uri_allow_local_file(True); h.connect_uri('{uri_of_b}')");
    let reads = format!("import sys; sys.stdin.readline(); assert h.pread(4, 0) == open('{input}', 'rb').read(4)");
    let mut staying = Command::new(PYTHON);
    staying.args(["-m", "nbd", "-c", &connect, "-c", "print('ready', flush=True)", "-c", &reads]);
    let mut staying = staying.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = String::new();
    BufReader::new(staying.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    assert_eq!(ready, "ready\n");
    let reload = || call(["control", &dir.name("control"), "reload"]);
    let rewrite = |tls: &str| drop(dir.file("volumes.toml", format!("{tls}{volumes}").as_bytes()));
    // What is invalid changes nothing.
    let key = fs::read(dir.path("c").join("server-key.pem")).unwrap();
    fs::write(dir.path("c").join("server-key.pem"), "").unwrap();
    reload().fails(1, &["server-key.pem"]);
    assert_eq!(size(&uri_of_b).0, 0);
    fs::write(dir.path("c").join("server-key.pem"), key).unwrap();
    rewrite("");
    reload().fails(1, &["TLS of a running server cannot change"]);
    rewrite(&tls.replace("require", "on").replace("tls-verify-peer = true\n", ""));
    reload().fails(1, &["TLS of a running server cannot change"]);
    rewrite(&tls);
    authority.revoke(18);
    assert_eq!(size(&uri_of_b).0, 0, "the list is not read yet");
    reload().works();
    assert_ne!(size(&uri_of_b).0, 0, "the client is revoked");
    // Who is connected stays.
    drop(staying.stdin.take());
    assert!(staying.wait().unwrap().success());
    authority.issue("client", "client", 22);
    authority.issue("server", "server", 23);
    kill_process(Pid::from_child(&child), Signal::HUP).unwrap();
    eventually("the new certificates are used", || size(&uri_of_b), |(code, _)| *code == 0);
    let (code, err) = stop(child, Signal::TERM);
    assert_eq!(code, Some(0), "{err}");
    assert!(fs::read(&images[1]).unwrap() == noise(1 << 20));
}

#[test]
fn keys_of_tls_that_promise_nothing_are_refused() {
    let dir = Dir::new();
    let volumes = "[volumes.a]\nimage = \"/a\"\ntype = \"raw\"\n";
    dir.file("volumes.toml", volumes.as_bytes());
    for (tls, words) in [
        ("tls = \"require\"\n", "line 1, tls: needs tls-certificates"),
        ("tls = 7\n", "line 1, tls: expected a string"),
        ("tls-verify-peer = true\n", "line 1, tls-verify-peer: needs tls"),
    ] {
        let file = dir.file("bad.toml", format!("{tls}{volumes}").as_bytes());
        call(["serve", "--config", &file, "--nbd", "unix:/nonexistent/x"]).fails(1, &[words]);
    }
    let file = dir.name("volumes.toml");
    let words = ["serve", "--config", &file, "--nbd", "unix:/nonexistent/x", "--tls", "on"];
    call(words).fails(1, &["set tls in the file"]);
}
