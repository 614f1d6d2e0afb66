//! Bytes that are not UTF-8: in paths, which the kernel takes, and in labels and tokens of other programs.

use crate::harness::control::Run;
use crate::harness::killed::Killed;
use crate::harness::{Dir, Ended, FAST, call, call_with, has_fuse, have, inlock, run};
use inlock_tests::nbd::{Connection, Mode};
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Returns a path with Latin-1, a lone continuation byte and UTF-8 in it.
fn odd(dir: &Dir, name: &str) -> PathBuf {
    let parent = dir.path("").join(OsStr::from_bytes(b"d\xe9"));
    std::fs::create_dir_all(&parent).expect("the file system takes any bytes");
    parent.join(OsString::from_vec([b"caf\xe9 \x80 \xc3\xa9 ", name.as_bytes()].concat()))
}

fn words<'a>(verb: &[&'a str], paths: &[&'a Path]) -> Vec<&'a OsStr> {
    verb.iter().map(|word| OsStr::new(*word)).chain(paths.iter().map(|path| path.as_os_str())).collect()
}

/// Checks that the JSON of `ended` has `path` at `key`, as another program reads it.
#[track_caller]
fn names(ended: &Ended, key: &str, path: &Path) {
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.text().contains(r"\udce9 \udc80 é "), "{ended:?}");
    if !have("python3") {
        return;
    }
    let script = "import json, os, sys
value = json.load(sys.stdin)
for key in sys.argv[1].split('.'):
    value = value[int(key)] if key.isdigit() else value[key]
sys.stdout.buffer.write(os.fsencode(value))";
    let read = run(Command::new("python3").args(["-X", "utf8", "-c", script, key]), &ended.out);
    assert_eq!(OsStr::from_bytes(&read.out), path.as_os_str(), "{read:?}");
}

#[test]
fn any_path_is_formatted_examined_exported_and_used_for_keys_and_headers() {
    let dir = Dir::new();
    let (image, key, header, plain) = (odd(&dir, "image"), odd(&dir, "key"), odd(&dir, "header"), odd(&dir, "plain"));
    std::fs::File::create(&image).expect("writable").set_len(24 << 20).expect("writable");
    std::fs::write(&key, b"secret").expect("writable");
    let format: Vec<&OsStr> =
        words(&["luksFormat", "-q"], &[&image, &key]).into_iter().chain(FAST.map(OsStr::new)).collect();
    call(&format).works();
    call(words(&["open", "--test-passphrase", "--key-file"], &[&key, &image])).works();
    call(words(&["luksDump"], &[&image])).works();
    let doctor = run(inlock().args(words(&["doctor", "--json"], &[&image])), b"");
    names(&doctor, "device", &image);
    let advice = call(words(&["doctor", "-q"], &[&image])).text().to_owned();
    // The command that it advises works in a shell that knows the path by bytes.
    assert!(advice.contains(r"$'") && advice.contains(r"caf\xe9 \x80 \xc3\xa9 image'"), "{advice}");
    call(words(&["luksHeaderBackup", "--header-backup-file"], &[&header, &image])).works();
    let export = words(&["export", "-q", "--progress-json", "--key-file"], &[&key, &image, &plain]);
    assert_eq!(call(&export).code, 0);
    assert_eq!(std::fs::metadata(&plain).expect("it was made").len(), 8 << 20);
    let detached = words(&["luksDump", "--header"], &[&header, &image]);
    call(&detached).works();
}

/// A server, killed when dropped.
struct Server(Killed);

#[test]
fn volume_with_any_path_is_served_listed_and_closed() {
    let (dir, state) = (Dir::new(), Run::new());
    let (image, socket, metrics) = (odd(&dir, "image"), odd(&dir, "s"), odd(&dir, "m"));
    std::fs::rename(dir.luks2("image"), &image).expect("the same file system");
    let at = |path: &Path| OsString::from_vec([b"unix:", path.as_os_str().as_bytes()].concat());
    let command = |verb: &[&OsStr]| {
        let mut command = inlock();
        command.env("INLOCK_RUN_DIR", state.path("")).args(verb);
        command
    };
    let mut serve = command(&["serve", "--name", "odd", "--nbd"].map(OsStr::new));
    serve.arg(at(&socket)).arg("--metrics").arg(at(&metrics)).arg(&image);
    let child = serve.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut server = Server(Killed(child));
    server.0.stdin.take().expect("a pipe").write_all(b"secret").expect("it reads");
    let mut uri = String::new();
    BufReader::new(server.0.stdout.take().expect("a pipe")).read_line(&mut uri).expect("text");
    assert!(uri.contains("/caf%E9%20%80%20%C3%A9%20s"), "{uri}");
    Connection::open(&socket, Duration::from_secs(120), Mode::Simple).expect("a client connects");
    let real = std::fs::canonicalize(&image).expect("it exists");
    names(&run(&mut command(&["status", "--json", "odd"].map(OsStr::new)), b""), "device", &real);
    names(&run(&mut command(&["list", "--json"].map(OsStr::new)), b""), "0.device", &real);
    for verb in [&["status", "odd"][..], &["list"]] {
        let shown = state.call(verb).works().text().to_owned();
        assert!(verb == ["list"] || shown.contains(r"caf\udce9 \udc80 é image"), "{shown}");
    }
    state.call(&["close", "odd"]).works();
    assert!(server.0.wait().expect("it ends").success());
}

#[test]
fn volume_with_any_path_is_opened_as_a_file() {
    if !has_fuse() {
        return;
    }
    let (dir, state) = (Dir::new(), Run::new());
    let image = odd(&dir, "image");
    std::fs::rename(dir.luks2("image"), &image).expect("the same file system");
    let mut open = inlock();
    open.env("INLOCK_RUN_DIR", state.path("")).args(["open", "--via", "fuse"]).arg(&image).arg("odd");
    let opened = run(&mut open, b"secret");
    assert_eq!(opened.code, 0, "{opened:?}");
    let status = state.call(&["status", "--json", "odd"]);
    names(&status, "device", &std::fs::canonicalize(&image).expect("it exists"));
    state.call(&["close", "odd"]).works();
}

/// Gives both copies of a header other bytes, with the right checksum.
fn patch(image: &str, change: &dyn Fn(&mut [u8])) {
    use inlock_volume::luks2::binary_header::{BLOCK_LEN, write_checksum};
    let mut bytes = std::fs::read(image).expect("readable");
    for copy in bytes[..32768].chunks_mut(16384) {
        change(copy);
        let (block, area) = copy.split_at_mut(BLOCK_LEN);
        write_checksum(block.try_into().expect("a block"), area, inlock_volume::Hash::Sha256);
    }
    std::fs::write(image, bytes).expect("writable");
}

#[test]
fn label_or_token_in_latin_1_warns_and_locks_nothing_out() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    patch(&image, &|copy| copy[24..29].copy_from_slice(b"caf\xe9\0"));
    let opens = |warning: &str| call_with(b"secret", ["open", "--test-passphrase", &image]).fails(0, &[warning]);
    opens("the label has bytes that are no printable text in UTF-8");
    let dump = call(["luksDump", &image]);
    assert!(dump.code == 0 && dump.text().contains(r"caf\udce9"), "{dump:?}");
    assert_eq!(call(["repair", "-q", &image]).code, 0);
    assert_eq!(call(["isLuks", &image]).code, 0);
    call(["config", "--label", "café", &image]).fails(0, &["the label has bytes"]);
    call_with(b"secret", ["open", "--test-passphrase", &image]).works();
    assert!(call(["luksDump", &image]).works().text().contains("café"));

    let token = dir.file("token", br#"{"type": "luks2-keyring", "keyslots": ["0"], "key_description": "cafXY"}"#);
    call(["token", "import", "--json-file", &token, &image]).works();
    patch(&image, &|copy| {
        let at = copy.windows(5).position(|window| window == b"cafXY").expect("the token");
        copy[at + 3..at + 5].copy_from_slice(b"\xe9\xff");
    });
    opens("the metadata has bytes that are no printable text in UTF-8");
    let json = call(["luksDump", "--dump-json-metadata", &image]);
    assert!(json.text().contains(r"caf\udce9\udcff"), "{json:?}");
    let exported = call(["token", "export", "--token-id", "0", &image]);
    assert!(exported.text().contains(r"caf\udce9\udcff"), "{exported:?}");
    call(["config", "--label", "other", &image]).fails(0, &["the metadata has bytes"]);
    let bytes = std::fs::read(&image).expect("readable");
    assert_eq!(bytes[..32768].windows(5).filter(|window| *window == b"caf\xe9\xff").count(), 2, "the token is kept");
    call(["token", "remove", "--token-id", "0", &image]).fails(0, &["the metadata has bytes"]);
    call_with(b"secret", ["open", "--test-passphrase", &image]).works();
}
