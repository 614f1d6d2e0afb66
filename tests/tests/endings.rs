//! How `inlock` exits: statuses and messages for bad input, signals under load, captive commands.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use inlock_tests::image::{CHEAP_PBKDF2, inlock_format, key_file, sparse};
use inlock_tests::nbd::{Connection, Mode, command, flag};
use inlock_tests::oracle::Volume;
use inlock_tests::process::{inlock, lossy, output, output_with_input, program, text};
use inlock_tests::random::Random;
use inlock_tests::report::count;
use inlock_tests::server::Server;

const SIZE: u64 = 8 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

struct Made {
    dir: tempfile::TempDir,
    image: PathBuf,
    key: PathBuf,
}

fn luks2() -> Result<Made> {
    let dir = tempfile::tempdir()?;
    let key = key_file(dir.path(), "key", b"endings")?;
    let image = dir.path().join("volume.img");
    inlock_format(&image, SIZE + (16 << 20), &key, &[&["--type=luks2"][..], &CHEAP_PBKDF2].concat())?;
    Ok(Made { dir, image, key })
}

/// A wrong command line: description, words (IMAGE, KEY and so on stand for paths), exit status, part of the message.
struct Row(&'static str, &'static str, i32, &'static str);

const BAD_CALLS: &[Row] = &[
    Row("no arguments", "", 1, "Argument <action> missing."),
    Row("an unknown action", "frobnicate IMAGE", 1, "Unknown action 'frobnicate'."),
    Row("an unknown option", "serve IMAGE --sideways", 1, "--sideways: unknown option"),
    Row(
        "an option of another action",
        "isLuks IMAGE --pbkdf argon2id",
        1,
        "Option --pbkdf is not allowed with isLuks action.",
    ),
    Row("too few arguments", "export IMAGE", 1, "export: requires <image> <output file or -> as arguments"),
    Row("a missing directory", "mount IMAGE", 1, "mount: requires <source> <directory> as arguments"),
    Row("too many arguments", "luksUUID IMAGE OUT", 1, "luksUUID: unexpected argument"),
    Row("an invalid number", "luksFormat -q IMAGE --key-file KEY --iter-time soon", 1, "invalid value 'soon'"),
    Row("an invalid range", "export IMAGE OUT --key-file KEY --range twelve", 1, "invalid value 'twelve'"),
    Row(
        "a range past the end",
        "export IMAGE OUT --key-file KEY --range 0:99999999999",
        1,
        "The range exceeds the volume, which has 8388608 bytes.",
    ),
    Row("an invalid address", "serve IMAGE --key-file KEY --nbd pigeon:loft", 1, "neither unix:PATH nor tcp:HOST:PORT"),
    Row(
        "an unknown I/O engine",
        "serve IMAGE --key-file KEY --nbd unix:SOCKET --io magic",
        1,
        "one of auto, uring, sync",
    ),
    Row("a public address without TLS", "serve IMAGE --key-file KEY --nbd tcp:0.0.0.0:0", 1, "--insecure"),
    Row("an address of this machine without TLS", "serve IMAGE --key-file KEY --nbd tcp:localhost:0", 1, "--insecure"),
    Row("no address to serve on", "serve IMAGE --key-file KEY", 1, "Option --nbd or --run is required"),
    Row(
        "a wrong passphrase",
        "serve IMAGE --key-file WRONG --nbd unix:SOCKET",
        2,
        "No key available with this passphrase.",
    ),
    Row(
        "a wrong passphrase for export",
        "export IMAGE OUT --key-file WRONG",
        2,
        "No key available with this passphrase.",
    ),
    Row(
        "a wrong passphrase for import",
        "import RAW IMAGE --key-file WRONG",
        2,
        "No key available with this passphrase.",
    ),
    Row("an empty key file", "export IMAGE OUT --key-file EMPTY", 2, "No key available with this passphrase."),
    Row("an inactive keyslot", "export IMAGE OUT --key-file KEY --key-slot 3", 1, "Keyslot 3 is not active"),
    Row("a missing key file", "export IMAGE OUT --key-file MISSING", 1, "Failed to open key file"),
    Row("a missing image", "serve MISSING --key-file KEY --nbd unix:SOCKET", 4, "does not exist"),
    Row("a missing image for luksDump", "luksDump MISSING", 4, "does not exist"),
    Row("a missing image for luksFormat", "luksFormat -q MISSING --key-file KEY", 4, "does not exist"),
    Row("a directory as image", "luksDump DIRECTORY", 4, "is neither a regular file nor a block device."),
    Row("a missing header", "export IMAGE OUT --key-file KEY --header MISSING", 4, "does not exist"),
    Row("an image without LUKS", "serve RAW --key-file KEY --nbd unix:SOCKET", 1, "is not a valid LUKS device."),
    Row("an image without LUKS, for luksDump", "luksDump RAW", 1, "is not a valid LUKS device."),
    Row("an image without LUKS, for luksUUID", "luksUUID RAW", 1, "is not a valid LUKS device."),
    Row("LUKS2 where LUKS1 is asked for", "luksDump --type luks1 IMAGE", 1, "its LUKS2 header"),
    Row(
        "an image cut inside its header",
        "export SHORT OUT --key-file KEY",
        1,
        "LUKS2 header ends at byte 16384, but the device has only 10000",
    ),
    Row("both header copies damaged", "export BROKEN OUT --key-file KEY", 1, "checksum does not match"),
    Row("an unknown requirement", "serve REQUIRES --key-file KEY --nbd unix:SOCKET", 1, "telepathy"),
    Row("an image too small for a header", "luksFormat -q SMALL --key-file KEY", 1, "is too small"),
    Row(
        "an unknown cipher",
        "luksFormat -q OTHER --key-file KEY --cipher rot13-ecb-null",
        1,
        "unsupported cipher 'rot13'",
    ),
    Row("an unsupported key size", "luksFormat -q OTHER --key-file KEY --key-size 300", 1, "Key size must be"),
    Row(
        "an unsupported sector size",
        "luksFormat -q OTHER --key-file KEY --sector-size 8192",
        1,
        "Unsupported encryption sector size",
    ),
    Row(
        "a sector size that is not a power of two",
        "luksFormat -q OTHER --key-file KEY --sector-size 1000",
        1,
        "Unsupported encryption sector size",
    ),
    Row("an unknown hash", "luksFormat -q OTHER --key-file KEY --hash md99", 1, "Hash 'md99' is not available."),
    Row("an invalid UUID", "luksFormat -q OTHER --key-file KEY --uuid 1234", 1, "Wrong LUKS UUID format provided."),
    Row(
        "a label that is too long",
        "luksFormat -q OTHER --key-file KEY --label LONG",
        1,
        "Option --label takes at most 47 bytes.",
    ),
    Row(
        "a label for LUKS1",
        "luksFormat -q OTHER --type luks1 --key-file KEY --label x",
        1,
        "Options --label and --subsystem are supported only for LUKS2 volumes.",
    ),
    Row(
        "Argon2 for LUKS1",
        "luksFormat -q OTHER --type luks1 --key-file KEY --pbkdf argon2id",
        1,
        "LUKS1 supports only the PBKDF pbkdf2.",
    ),
    Row(
        "too few iterations",
        "luksFormat -q OTHER --key-file KEY --pbkdf pbkdf2 --pbkdf-force-iterations 10",
        1,
        "iterations 10 is less than the minimum of 1000",
    ),
    Row(
        "too much Argon2 memory",
        "luksFormat -q OTHER --key-file KEY --pbkdf-memory 99999999",
        1,
        "99999999 exceeds the limit of",
    ),
    Row(
        "an unknown type",
        "luksFormat -q OTHER --type luks9 --key-file KEY",
        1,
        "Unrecognized metadata device type luks9.",
    ),
];

/// Creates the inputs: the volume, and copies of it with changed headers and valid checksums.
fn make_inputs(made: &Made) -> Result<BTreeMap<&'static str, PathBuf>> {
    let at = |name: &str| made.dir.path().join(name);
    let whole = fs::read(&made.image)?;
    sparse(&at("raw.img"), 1 << 20)?;
    sparse(&at("small.img"), 4096)?;
    sparse(&at("other.img"), 32 << 20)?;
    fs::write(at("empty"), b"")?;
    fs::write(at("wrong"), b"not the passphrase")?;
    fs::write(at("short.img"), &whole[..10_000])?;
    let mut broken = whole.clone();
    for copy in [0, 16 << 10] {
        broken[copy + 5000] ^= 0xff;
    }
    fs::write(at("broken.img"), &broken)?;
    fs::write(at("requires.img"), with_unknown_requirement(&whole)?)?;
    fs::create_dir(at("directory"))?;
    let names = [
        ("RAW", "raw.img"),
        ("SMALL", "small.img"),
        ("OTHER", "other.img"),
        ("EMPTY", "empty"),
        ("WRONG", "wrong"),
        ("SHORT", "short.img"),
        ("BROKEN", "broken.img"),
        ("REQUIRES", "requires.img"),
        ("DIRECTORY", "directory"),
        ("MISSING", "missing"),
        ("SOCKET", "socket"),
        ("OUT", "out.img"),
    ];
    let mut paths: BTreeMap<_, _> = names.into_iter().map(|(word, name)| (word, at(name))).collect();
    paths.insert("IMAGE", made.image.clone());
    paths.insert("KEY", made.key.clone());
    paths.insert("LONG", "x".repeat(60).into());
    Ok(paths)
}

/// Adds an unknown mandatory requirement to both copies of the metadata, with valid checksums.
fn with_unknown_requirement(whole: &[u8]) -> Result<Vec<u8>> {
    let mut image = whole.to_vec();
    for copy in [0usize, 16 << 10] {
        let area = copy + 4096..copy + (16 << 10);
        let end = image[area.clone()].iter().position(|b| *b == 0).context("the JSON area has no end")?;
        let json = lossy(&image[area.start..area.start + end]);
        let with = json.replacen("\"config\":{", "\"config\":{\"requirements\":{\"mandatory\":[\"telepathy\"]},", 1);
        ensure!(with != json, "no config object in {json}");
        image[area.clone()].fill(0);
        image[area.start..area.start + with.len()].copy_from_slice(with.as_bytes());
        image[copy + 448..copy + 512].fill(0);
        let sum = sha256(&image[copy..copy + (16 << 10)])?;
        image[copy + 448..copy + 480].copy_from_slice(&sum);
    }
    Ok(image)
}

fn sha256(bytes: &[u8]) -> Result<Vec<u8>> {
    let said = inlock_tests::process::text_with_input(&mut program("sha256sum"), bytes)?;
    let hex = said.split_whitespace().next().context("sha256sum says nothing")?;
    (0..32).map(|n| Ok(u8::from_str_radix(&hex[2 * n..2 * n + 2], 16)?)).collect()
}

fn call(words: &str, paths: &BTreeMap<&str, PathBuf>) -> Result<Output> {
    let mut command = inlock()?;
    for word in words.split_whitespace() {
        let socket = word.strip_prefix("unix:").and_then(|w| paths.get(w)).map(|p| format!("unix:{}", p.display()));
        match paths.get(word) {
            Some(path) => command.arg(path),
            None => command.arg(socket.unwrap_or_else(|| word.to_owned())),
        };
    }
    output(&mut command)
}

#[test]
fn bad_input_has_exit_status_and_reason() -> Result<()> {
    let made = luks2()?;
    let paths = make_inputs(&made)?;
    let before = fs::read(&made.image)?;
    let mut failures = Vec::new();
    for Row(what, words, status, message) in BAD_CALLS {
        // A message must differ from the common hints and from an echo of the command line.
        let vague = "inlock: hint: run `inlock --help` to list actions and options".contains(message)
            || "hint: run `inlock luksFormat --help` to list its options".contains(message)
            || words.contains(message);
        ensure!(!vague, "{what}: any message would do");
        let output = call(words, &paths)?;
        let said = lossy(&output.stderr);
        let panicked = said.contains("panicked") || said.contains("RUST_BACKTRACE");
        if output.status.code() != Some(*status) || panicked || !said.contains(message) {
            failures
                .push(format!("{what} (inlock {words}): {}, wanted {status} and '{message}': {said}", output.status));
        }
    }
    count("bad_calls", BAD_CALLS.len());
    ensure!(failures.is_empty(), "{} of {}:\n{}", failures.len(), BAD_CALLS.len(), failures.join("\n"));
    ensure!(fs::read(&made.image)? == before, "a refused call has changed the volume");
    ensure!(!paths["OUT"].exists(), "a refused export left a file behind");
    ensure!(fs::read(&paths["OTHER"])?.iter().all(|b| *b == 0), "a refused luksFormat has written to the image");
    Ok(())
}

#[test]
fn is_luks_is_silent_and_returns_status() -> Result<()> {
    let made = luks2()?;
    let paths = make_inputs(&made)?;
    for (words, status) in [
        ("isLuks IMAGE", 0),
        ("isLuks --type luks2 IMAGE", 0),
        ("isLuks --type luks1 IMAGE", 1),
        ("isLuks RAW", 1),
        ("isLuks EMPTY", 1),
    ] {
        let output = call(words, &paths)?;
        ensure!(output.status.code() == Some(status), "{words}: {}", output.status);
        ensure!(output.stdout.is_empty(), "{words} says {}", lossy(&output.stdout));
    }
    Ok(())
}

#[test]
fn passphrase_on_stdin_ends_before_newline() -> Result<()> {
    let made = luks2()?;
    let out = made.dir.path().join("out");
    for (args, input, status) in [
        (&[][..], "endings\n", 0),
        (&[], "endings", 0),
        (&["--key-file=-"], "endings", 0),
        (&["--key-file=-"], "endings\n", 2),
        (&[], "wrong\n", 2),
        (&[], "", 1),
    ] {
        let mut command = inlock()?;
        command.args(["export", "-q", "--range", "0:512"]).args(args).arg(&made.image).arg(&out);
        let ended = output_with_input(&mut command, input.as_bytes())?;
        ensure!(
            ended.status.code() == Some(status),
            "{args:?} with {input:?}: {}, {}",
            ended.status,
            lossy(&ended.stderr)
        );
    }
    Ok(())
}

#[test]
fn volume_in_use_is_busy() -> Result<()> {
    let made = luks2()?;
    let mut server = Server::inlock(made.dir.path(), "first", &made.image, Some(&made.key), &[])?;
    let second = made.dir.path().join("second.sock");
    let link = made.dir.path().join("hard-link.img");
    fs::hard_link(&made.image, &link)?;
    for image in [&made.image, &link] {
        for words in ["serve", "import", "luksFormat"] {
            let mut command = inlock()?;
            command.arg(words).args(["-q", "--key-file"]).arg(&made.key);
            match words {
                "serve" => command.arg(image).arg("--nbd").arg(format!("unix:{}", second.display())),
                "import" => command.arg("/dev/null").arg(image),
                _ => command.arg(image),
            };
            let output = output(&mut command)?;
            ensure!(output.status.code() == Some(5), "{words}: {}, {}", output.status, lossy(&output.stderr));
        }
    }
    server.terminate()?;
    let again = Server::inlock(made.dir.path(), "again", &made.image, Some(&made.key), &[])?;
    Connection::open(again.socket(), PATIENCE, Mode::Simple)?.read(0, 512).map(drop)
}

#[test]
fn captive_command_gets_uri_and_returns_status() -> Result<()> {
    let made = luks2()?;
    let run = |command: &str, more: &[&str]| -> Result<Output> {
        output(
            inlock()?
                .arg("serve")
                .arg(&made.image)
                .arg("--key-file")
                .arg(&made.key)
                .args(more)
                .args(["--run", command]),
        )
    };
    for status in [0, 1, 3, 77] {
        let ended = run(&format!("exit {status}"), &[])?;
        ensure!(ended.status.code() == Some(status), "exit {status}: {}, {}", ended.status, lossy(&ended.stderr));
    }
    let size = run("nbdinfo --size \"$uri\"", &[])?;
    ensure!(lossy(&size.stdout).trim() == SIZE.to_string(), "{}{}", lossy(&size.stdout), lossy(&size.stderr));
    let named = run(
        "test -S \"$unixsocket\" && echo \"$exportname\" && nbdinfo --size \"$uri\"",
        &["--export-name", "dïsk 1"],
    )?;
    ensure!(lossy(&named.stdout) == format!("dïsk 1\n{SIZE}\n"), "{}{}", lossy(&named.stdout), lossy(&named.stderr));
    let socket = run("echo \"$unixsocket\"", &[])?;
    let socket = lossy(&socket.stdout);
    ensure!(!Path::new(socket.trim()).exists(), "the private socket is left behind: {socket}");
    let ended = run("kill -9 $$", &[])?;
    ensure!(!ended.status.success(), "a command that was killed counts as a success");
    Ok(())
}

/// Writes and records acknowledged writes until the server exits.
fn write_until_gone(mut connection: Connection, n: u64, noted: &Mutex<BTreeMap<u64, u8>>) -> Result<u64> {
    let mut random = Random::new(n);
    let mut done = 0;
    loop {
        // Each writer has its own blocks: n, n + 4, n + 8 …
        let block = 4 * random.below(SIZE / 4096 / 4) + n;
        let value = (random.below(255) + 1) as u8;
        let flags = if done % 8 == 0 { flag::FUA } else { 0 };
        // Before the write completes, the block may have any content; afterwards it has the value.
        noted.lock().map_err(|_| anyhow::anyhow!("poisoned"))?.remove(&block);
        match connection.call(flags, command::WRITE, block * 4096, 4096, &[value; 4096]) {
            Ok(reply) if reply.error == 0 => {
                noted.lock().map_err(|_| anyhow::anyhow!("poisoned"))?.insert(block, value);
                done += 1;
            }
            _ => return Ok(done),
        }
    }
}

/// Stops the server while four writers are active, and compares the acknowledged writes with the image.
fn end_under_load(made: &Made, signal: &str, io: &str, after: Duration) -> Result<u64> {
    let mut server = Server::inlock(made.dir.path(), "load", &made.image, Some(&made.key), &["--io", io])?;
    let noted = Mutex::new(BTreeMap::new());
    // Connects before the time starts: on a busy machine the signal would come first.
    let open = |_| Connection::open(server.socket(), PATIENCE, Mode::Simple);
    let connections = (0..4).map(open).collect::<Result<Vec<_>>>()?;
    let (status, acknowledged) = std::thread::scope(|scope| {
        let noted = &noted;
        let begin = |(n, connection)| scope.spawn(move || write_until_gone(connection, n, noted));
        let writers: Vec<_> = (0..).zip(connections).map(begin).collect();
        std::thread::sleep(after);
        let ended = server.signal(signal).and_then(|()| server.wait());
        if ended.is_err() {
            // The writers exit only when the server does.
            server.signal("KILL")?;
        }
        let status = ended?;
        let mut acknowledged = 0;
        for writer in writers {
            acknowledged += writer.join().map_err(|_| anyhow::anyhow!("a writer panicked"))??;
        }
        Ok::<_, anyhow::Error>((status, acknowledged))
    })?;
    if signal != "KILL" {
        ensure!(status.success(), "{signal} ends the server with {status}: {}", server.log_text());
    }
    let plain = Volume { image: &made.image, key: &made.key, header: None, plain: None }.decrypt()?;
    for (block, value) in noted.into_inner().map_err(|_| anyhow::anyhow!("poisoned"))? {
        let at = (block * 4096) as usize;
        ensure!(
            plain[at..at + 4096] == [value; 4096],
            "after {signal}, block {block} does not hold what was acknowledged"
        );
    }
    Ok(acknowledged)
}

fn ignores_interrupts() -> Result<bool> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).context("no SigIgn")?;
    Ok(u64::from_str_radix(mask.trim(), 16)? & 1 << 1 != 0)
}

#[test]
fn signal_under_load_loses_no_acknowledged_write() -> Result<()> {
    let made = luks2()?;
    let mut acknowledged = 0;
    let mut ended = 0;
    // Some shells start background jobs with SIGINT ignored, and then the server ignores it, too.
    let interrupt = if ignores_interrupts()? { "TERM" } else { "INT" };
    for round in 0..24u64 {
        let signal = ["TERM", "KILL", interrupt][(round % 3) as usize];
        let io = ["uring", "sync"][(round % 2) as usize];
        let after = Duration::from_millis(20 + 37 * (round % 7));
        acknowledged += end_under_load(&made, signal, io, after).with_context(|| format!("round {round}"))?;
        ended += 1;
    }
    count("ends_under_load", ended);
    ensure!(acknowledged > 1000, "only {acknowledged} writes were acknowledged, the test says little");
    Ok(())
}

#[test]
fn sigterm_with_idle_clients_exits_immediately() -> Result<()> {
    let made = luks2()?;
    let mut server = Server::inlock(made.dir.path(), "idle", &made.image, Some(&made.key), &[])?;
    let idle: Vec<_> = (0..20)
        .map(|n| match n % 3 {
            0 => Connection::dial(server.socket(), PATIENCE),
            1 => Connection::haggle(server.socket(), PATIENCE),
            _ => Connection::open(server.socket(), PATIENCE, Mode::Extended),
        })
        .collect::<Result<_>>()?;
    let status = server.terminate()?;
    ensure!(status.success(), "{status}: {}", server.log_text());
    ensure!(!server.socket().exists(), "the socket is left behind");
    drop(idle);
    let text = text(inlock()?.arg("isLuks").arg(&made.image))?;
    ensure!(text.is_empty(), "isLuks says {text}");
    Ok(())
}
