//! Sources of passphrases and keys, read byte for byte like cryptsetup.

use crate::harness::{Dir, FAST, call, call_with, have, inlock, run};
use inlock_tests::wait::eventually;
use std::process::Command;

/// Creates a volume with `made` on standard input and `options`.
fn made_with(dir: &Dir, made: &[u8], options: &[&str]) -> String {
    let image = dir.image("image", 18);
    call_with(made, ["luksFormat", "-q", &image].iter().chain(options).chain(&FAST)).works();
    image
}

fn opens(image: &str, input: &[u8], options: &[&str]) -> bool {
    let ended = call_with(input, ["open", "--test-passphrase", image].iter().chain(options));
    assert!(ended.code == 0 || ended.code == 2, "{ended:?}");
    ended.code == 0
}

#[test]
fn passphrase_on_stdin_ends_at_first_newline() {
    let dir = Dir::new();
    let image = made_with(&dir, b"secret\nmore", &[]);
    let key = dir.file("key", b"secret");
    let with_newline = dir.file("newline", b"secret\n");
    assert!(opens(&image, b"secret", &[]));
    assert!(opens(&image, b"secret\n", &[]));
    assert!(opens(&image, b"secret\nwhatever\n", &[]));
    assert!(!opens(&image, b"secret ", &[]));
    assert!(opens(&image, b"", &["--key-file", &key]));
    assert!(!opens(&image, b"", &["--key-file", &with_newline]), "a key file keeps its newline");
    assert!(opens(&image, b"", &["--key-file", &with_newline, "--keyfile-size", "6"]));
    assert!(opens(&image, b"secret", &["--key-file", "-"]));
    assert!(!opens(&image, b"secret\n", &["--key-file", "-"]), "`-` is read to its end");
    assert!(opens(&image, b"secret\n", &["--key-file", "-", "--keyfile-size", "6"]));
    assert!(opens(&image, b"xxsecret", &["-d", "-", "--keyfile-offset", "2"]));
    // The size holds for a passphrase, too.
    assert!(opens(&image, b"secret\n", &["--keyfile-size", "6"]));
    assert!(!opens(&image, b"secret\n", &["--keyfile-size", "3"]));
}

#[test]
fn key_file_is_read_from_offset_to_end() {
    let dir = Dir::new();
    let content: Vec<u8> = (0..=255).cycle().take(5000).collect();
    let key = dir.file("key", &content);
    let image = made_with(&dir, b"", &["-d", &key, "--keyfile-offset", "1000", "-l", "3000"]);
    assert!(opens(&image, &content[1000..4000], &["-d", "-"]));
    assert!(opens(&image, b"", &["-d", &key, "--keyfile-offset", "1000", "--keyfile-size", "3000"]));
    assert!(!opens(&image, b"", &["-d", &key]));
    // Also through a pipe.
    let script = format!(
        "cat {key} | {} open --test-passphrase {image} -d /dev/stdin --keyfile-offset 1000 -l 3000",
        env!("CARGO_BIN_EXE_inlock")
    );
    run(Command::new("sh").args(["-c", &script]), b"").works();
}

#[test]
fn passphrase_of_any_bytes_works() {
    let dir = Dir::new();
    let passphrase = b"\xff\xfe\0\x80 \t\r";
    let image = made_with(&dir, passphrase, &[]);
    assert!(opens(&image, passphrase, &[]));
    assert!(opens(&image, b"", &["-d", &dir.file("key", passphrase)]));
    assert!(!opens(&image, b"\xff\xfe", &[]));
}

#[test]
fn key_over_8192_kib_is_refused() {
    let dir = Dir::new();
    let longest = vec![b'k'; 8192 * 1024];
    let key = dir.file("key", &longest);
    let image = made_with(&dir, b"", &["-d", &key]);
    assert!(opens(&image, &longest, &[]), "standard input takes as much");
    let mut longer = longest;
    longer.push(b'k');
    let too_long = ["Maximum keyfile size exceeded."];
    call(["open", "--test-passphrase", &image, "-d", &dir.file("longer", &longer)]).fails(1, &too_long);
    call_with(&longer, ["open", "--test-passphrase", &image]).fails(1, &too_long);
    call_with(&longer, ["open", "--test-passphrase", &image, "-d", "-"]).fails(1, &too_long);
}

#[test]
fn missing_key_is_1() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    let open = |options: &[&str]| call(["open", "--test-passphrase", &image].iter().chain(options));
    open(&[]).fails(1, &["Nothing to read on input."]);
    open(&["-d", &dir.name("missing")]).fails(1, &["Failed to open key file", "No such file"]);
    open(&["-d", &dir.name("")]).fails(1, &["not a directory"]);
    let key = dir.file("key", b"secret");
    open(&["-d", &key, "--keyfile-offset", "7"]).fails(1, &["Cannot seek to requested keyfile offset"]);
    open(&["-d", &key, "--keyfile-size", "7"]).fails(1, &["Cannot read requested amount of data."]);
    open(&["-d", &key, "--keyfile-size", "8388609"]).fails(1, &["at most 8192 KiB"]);
    let ended = call_with(b"secret", ["open", "--test-passphrase", &image, "-y"]);
    ended.fails(0, &["Can't do passphrase verification on non-tty inputs."]);
}

#[test]
fn passphrase_in_arguments_or_environment_is_ignored() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    for name in ["PASSPHRASE", "PASSWORD", "INLOCK_PASSPHRASE", "INLOCK_KEY_FILE", "CRYPTSETUP_PASSPHRASE"] {
        run(inlock().env(name, "secret").args(["open", "--test-passphrase", &image]), b"")
            .fails(1, &["Nothing to read"]);
    }
    call(["open", "--test-passphrase", &image, "--passphrase", "secret"]).fails(1, &["--passphrase: unknown option"]);
}

#[test]
fn passphrase_on_stdin_with_data_is_refused() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    call_with(b"data", ["import", "-", &image, "-d", "-"]).fails(1, &["cannot carry both the key and the data"]);
    if have("setsid") {
        let mut alone = Command::new("setsid");
        alone.args(["--wait", env!("CARGO_BIN_EXE_inlock"), "import", "-", &image]);
        run(&mut alone, b"secret\n").fails(1, &["there is no terminal to ask", "hint: ", "--key-file"]);
    }
}

#[test]
fn core_dumps_are_disabled() {
    let dir = Dir::new();
    // A named pipe without a writer blocks the program meanwhile.
    let fifo = dir.name("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let mut child = inlock().args(["open", "--test-passphrase", &dir.luks2("image"), "-d", &fifo]).spawn().unwrap();
    let limits = || {
        let limits = std::fs::read_to_string(format!("/proc/{}/limits", child.id())).unwrap_or_default();
        limits.lines().find(|line| line.starts_with("Max core file size")).unwrap_or_default().to_owned()
    };
    // The program sets the limit first.
    let is_none = |limits: &String| limits.split_whitespace().filter(|word| *word == "0").count() == 2;
    eventually("core dumps are disabled", limits, is_none);
    std::fs::write(&fifo, b"secret").unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn plain_volume_hashes_passphrase_but_not_key_file() {
    let dir = Dir::new();
    let image = dir.file("image", &crate::harness::noise(1 << 20));
    let exported = |input: &[u8], options: &[&str]| {
        let ended =
            call_with(input, ["export", "--type", "plain", "--range", "0:4096", &image, "-"].iter().chain(options));
        assert_eq!(ended.code, 0, "{ended:?}");
        ended.out
    };
    // SHA-256 of "abc".
    let hash = [
        0xba, 0x78, 0x16, 0xbf, 0x8f, 0x01, 0xcf, 0xea, 0x41, 0x41, 0x40, 0xde, 0x5d, 0xae, 0x22, 0x23, 0xb0, 0x03,
        0x61, 0xa3, 0x96, 0x17, 0x7a, 0x9c, 0xb4, 0x10, 0xff, 0x61, 0xf2, 0x00, 0x15, 0xad,
    ];
    let key = dir.file("key", &hash);
    let cbc = ["-c", "aes-cbc-essiv:sha256", "-s", "256"];
    let typed = exported(b"abc\n", &cbc);
    assert_eq!(typed, exported(b"", &[&cbc[..], &["-d", &key]].concat()));
    assert_eq!(typed, exported(&hash, &[&cbc[..], &["--hash", "plain"]].concat()));
    assert_ne!(typed, exported(b"abd", &cbc));
    let short = dir.file("short", &hash[..31]);
    let ended = call(["export", "--type", "plain", &image, "-", "-d", &short]);
    ended.fails(1, &["Cannot read requested amount of data."]);
}
