//! Paths and names of others in all output: none of it may control the terminal that shows it.

use crate::harness::control::Run;
use crate::harness::killed::Killed;
use crate::harness::terminal::talk;
use crate::harness::{Dir, inlock, run};
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Sequences of a terminal in 7 and 8 bits, everything that changes the direction of writing or separates lines, a
/// byte that is not UTF-8, and what would be a line of its own.
fn hostile(dir: &Dir, name: &str) -> PathBuf {
    let mut text = String::from("\x1b]0;title\x07\x1b[2J\r\x08\x7f\t\u{80}\u{85}\u{9b}31m\u{9f}\u{61c}");
    text.extend(['\u{200e}', '\u{200f}'].into_iter().chain('\u{2028}'..='\u{202e}').chain('\u{2066}'..='\u{2069}'));
    let bytes = [text.as_bytes(), b"\x9b\xe9\nFORGED ", name.as_bytes()].concat();
    dir.path("").join(OsStr::from_bytes(&bytes))
}

/// Checks that output has no character that a terminal interprets but ends of lines, and tabs of a table.
#[track_caller]
fn is_harmless(what: &str, output: &[u8]) {
    let text = std::str::from_utf8(output).unwrap_or_else(|error| panic!("{what}: {error}: {output:?}"));
    let is_harmful = |c: char| {
        let directs =
            matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        directs || c.is_control() && !"\n\t".contains(c)
    };
    assert_eq!(text.find(is_harmful), None, "{what}: {text:?}");
    assert!(!text.lines().any(|line| line.starts_with("FORGED")), "{what}: {text:?}");
    // No tab of the path.
    assert!(!text.contains("\t\u{80}") && !text.contains("\t\\u0080"), "{what}: {text:?}");
}

/// Images, and where the command keeps its state.
struct Matrix {
    dir: Dir,
    state: Run,
    paths: Vec<(&'static str, PathBuf)>,
}

impl Matrix {
    /// Gives each of these words the path of a file.
    fn new(names: &[&'static str]) -> Self {
        let dir = Dir::new();
        let paths = names.iter().map(|name| (*name, hostile(&dir, name))).collect();
        Self { dir, state: Run::new(), paths }
    }

    fn path(&self, word: &str) -> &Path {
        let (_, path) = self.paths.iter().find(|(name, _)| *name == word).expect("one of the names");
        path
    }

    /// Returns the words of a command line, of which those in capitals are paths.
    fn words(&self, line: &str) -> Vec<OsString> {
        let is_path = |word: &&str| word.bytes().all(|byte| byte.is_ascii_uppercase());
        line.split(' ')
            .map(|word| Some(word).filter(is_path).map_or(word.into(), |word| self.path(word).into()))
            .collect()
    }

    /// Runs a command, checks its output, and returns it.
    #[track_caller]
    fn prints(&self, input: &[u8], status: i32, line: &str) -> String {
        let ended = run(inlock().env("INLOCK_RUN_DIR", self.state.path("")).args(self.words(line)), input);
        assert_eq!(ended.code, status, "{line}: {ended:?}");
        is_harmless(line, &ended.out);
        is_harmless(line, ended.err.as_bytes());
        format!("{}{}", ended.text(), ended.err)
    }

    /// Like `prints`, for a command that names the path.
    #[track_caller]
    fn shows(&self, input: &[u8], status: i32, line: &str) -> String {
        let printed = self.prints(input, status, line);
        assert!(printed.contains(r"\u001b]0;title\u0007") && printed.contains(r"\u202e"), "{line}: {printed:?}");
        printed
    }
}

#[test]
fn no_command_prints_controls_of_a_path() {
    let all = Matrix::new(&["IMAGE", "ONE", "MISSING", "SHORT", "ZEROES", "HEADER", "KEY", "TREE", "PLAIN"]);
    for (from, to) in [(all.dir.luks2("image"), "IMAGE"), (all.dir.luks1("one"), "ONE")] {
        std::fs::rename(from, all.path(to)).expect("as it should");
    }
    for (word, content) in [("SHORT", &[0; 100][..]), ("ZEROES", &[0; 1 << 20]), ("TREE", &[0; 1 << 20]), ("KEY", b"x")]
    {
        std::fs::write(all.path(word), content).expect("as it should");
    }
    // Results.
    all.prints(b"", 0, "luksDump IMAGE");
    all.shows(b"", 0, "luksDump ONE");
    all.shows(b"", 0, "doctor IMAGE");
    let doctor = all.shows(b"", 0, "doctor --json IMAGE");
    assert!(doctor.contains(r"\u009b31m") && doctor.contains(r"\u2069\udc9b\udce9"), "{doctor}");
    all.prints(b"", 0, "luksHeaderBackup IMAGE --header-backup-file HEADER");
    all.shows(b"secret", 0, "-q --progress-json export IMAGE PLAIN");
    all.shows(b"", 0, "fsverity digest ZEROES");
    all.shows(b"", 0, "-q verity format ZEROES TREE");
    all.shows(b"", 0, "verity dump TREE");
    all.prints(b"", 0, "-q integrity format --no-wipe ZEROES");
    all.shows(b"", 0, "integrity dump ZEROES");
    all.prints(b"", 0, "zoned create --size 1M --zone-size 64k MISSING");
    all.shows(b"", 0, "zoned report --json MISSING");
    std::fs::remove_file(all.path("MISSING")).expect("as it should");
    // Errors, hints and warnings.
    all.prints(b"wrong", 2, "open --test-passphrase IMAGE");
    all.shows(b"", 1, "luksHeaderBackup IMAGE --header-backup-file HEADER");
    all.shows(b"", 1, "open --test-passphrase --policy KEY IMAGE");
    all.shows(b"", 1, "serve --config KEY --nbd unix:socket");
    all.shows(b"", 1, "open --test-passphrase --header SHORT IMAGE");
    all.shows(b"secret", 1, "table --table KEY");
    for verb in ["luksDump", "luksUUID", "luksAddKey", "convert --type=luks1", "erase", "repair", "resize"] {
        all.shows(b"", 4, &format!("{verb} MISSING"));
    }
    all.shows(b"", 4, "export -q MISSING -");
    for line in ["luksDump SHORT", "luksUUID ZEROES", "luksDump ZEROES", "luksAddKey ZEROES"] {
        all.shows(b"", 1, line);
    }
    // The words of the command line.
    all.shows(b"secret", 0, "--debug open --test-passphrase IMAGE");
    all.shows(b"", 4, "status IMAGE");
}

/// The terminal turns an end of line into `\r\n`.
#[track_caller]
fn says(matrix: &Matrix, steps: &[(&str, &str)], status: i32, line: &str) -> bool {
    let Some(said) = talk(steps, &matrix.words(line)) else { return false };
    assert_eq!(said["status"], status, "{line}: {said}");
    // The transcript has a character for each byte.
    let text: Vec<u8> =
        said["text"].as_str().expect("as it should").chars().map(|c| u8::try_from(c).expect("as it should")).collect();
    let text = String::from_utf8(text).expect("as it should").replace("\r\n", "\n");
    is_harmless(line, text.as_bytes());
    assert!(text.contains(r"\u001b]0;title\u0007"), "{line}: {text:?}");
    true
}

#[test]
fn no_prompt_has_controls_of_a_path() {
    let all = Matrix::new(&["IMAGE", "NEW", "BACKUP"]);
    std::fs::rename(all.dir.luks2("image"), all.path("IMAGE")).expect("as it should");
    std::fs::rename(all.dir.image("new", 18), all.path("NEW")).expect("as it should");
    all.prints(b"", 0, "luksHeaderBackup IMAGE --header-backup-file BACKUP");
    let (sure, ask) = ("(Type 'yes' in capital letters): ", "Enter passphrase for ");
    if !says(&all, &[(ask, "secret\n")], 0, "open --test-passphrase IMAGE") {
        return;
    }
    let format = "luksFormat --sector-size 512 --pbkdf pbkdf2 --pbkdf-force-iterations 1000 NEW";
    says(&all, &[(sure, "YES\n"), (ask, "a\n"), ("Verify passphrase: ", "a\n")], 0, format);
    says(&all, &[(sure, "no\n")], 2, "erase IMAGE");
    says(&all, &[(sure, "no\n")], 2, "convert --type luks1 NEW");
    says(&all, &[(sure, "no\n")], 1, "luksHeaderRestore IMAGE --header-backup-file BACKUP");
    says(&all, &[(sure, "no\n")], 1, "integrity format NEW");
    says(&all, &[(sure, "no\n")], 1, "export IMAGE BACKUP");
}

/// A server, killed when dropped.
struct Server(Killed);

impl Server {
    /// Starts a server, and waits until it prints its address.
    fn start(matrix: &Matrix, line: &str) -> Self {
        let mut command = inlock();
        command.env("INLOCK_RUN_DIR", matrix.state.path("")).args(matrix.words(line));
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("as it should");
        let _ = child.stdin.take().expect("as it should").write_all(b"secret");
        let mut uri = String::new();
        let server = BufReader::new(child.stdout.take().expect("as it should")).read_line(&mut uri);
        assert!(server.is_ok() && uri.starts_with("nbd"), "{uri}");
        is_harmless(line, uri.as_bytes());
        Self(Killed(child))
    }

    fn stop(mut self) -> String {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.0), rustix::process::Signal::TERM)
            .expect("as it should");
        let mut err = String::new();
        self.0.stderr.take().expect("as it should").read_to_string(&mut err).expect("as it should");
        assert!(self.0.wait().expect("as it should").success(), "{err}");
        err
    }
}

/// Sends one line to a socket, and returns the line of the reply.
fn ask(socket: &Path, line: &str) -> String {
    let mut stream = UnixStream::connect(socket).expect("as it should");
    stream.write_all(line.as_bytes()).expect("as it should");
    let mut reply = String::new();
    BufReader::new(stream).read_line(&mut reply).expect("as it should");
    reply
}

#[test]
fn no_status_list_or_state_file_has_controls_of_a_path() {
    let all = Matrix::new(&["IMAGE"]);
    std::fs::rename(all.dir.luks2("image"), all.path("IMAGE")).expect("as it should");
    let nbd = all.dir.name("nbd");
    let server = Server::start(&all, &format!("serve --name odd --nbd unix:{nbd} IMAGE"));
    let real = std::fs::canonicalize(all.path("IMAGE")).expect("as it should");
    for line in ["status odd", "status --json odd", "list --json"] {
        all.shows(b"", 0, line);
    }
    for line in ["list", "top --once odd", "top --once --json odd"] {
        all.prints(b"", 0, line);
    }
    all.shows(b"", 5, &format!("serve --nbd unix:{nbd}2 IMAGE"));
    let file = std::fs::read(all.state.path("odd.json")).expect("as it should");
    let reply = ask(&all.state.path("odd.sock"), "{\"command\":\"status\"}\n");
    for (what, json) in [("state file", &file[..]), ("reply", reply.as_bytes())] {
        is_harmless(what, json);
        let value: Value = serde_json::from_slice(json).expect("as it should");
        let device = value["device"].as_str().or(value["status"]["device"].as_str()).expect("as it should");
        assert_eq!(*inlock_volume::bytes_of_text(device), *real.as_os_str().as_bytes(), "{what}");
    }
    assert!(server.stop().is_empty());
}

#[test]
fn no_log_or_table_of_many_volumes_has_controls_of_a_name() {
    let all = Matrix::new(&["CONFIG"]);
    // Other control characters are refused in names.
    let name = r"a\u202Eb\u2066\u200F\u2028FORGED";
    let image = r"/no\u001B[2J\u009B\u202E\nFORGED image";
    let config = format!("[volumes.\"{name}\"]\nimage = \"{image}\"\ntype = \"plain\"\nkey-file = \"{image}\"\n");
    std::fs::write(all.path("CONFIG"), config).expect("as it should");
    let (nbd, control) = (all.dir.name("nbd"), all.dir.name("control"));
    let server = Server::start(&all, &format!("serve --config CONFIG --nbd unix:{nbd} --control {control}"));
    let mut client = inlock_tests::nbd::Connection::haggle(Path::new(&nbd), std::time::Duration::from_secs(300))
        .expect("as it should");
    client.go("a\u{202e}b\u{2066}\u{200f}\u{2028}FORGED".as_bytes()).expect_err("as it should");
    for verb in ["list", "list --json", "top --once", "top --once --json"] {
        let printed = all.prints(b"", 0, &format!("control {control} {verb}"));
        assert!(verb.starts_with("top") || printed.contains(r"a\u202eb\u2066\u200f\u2028FORGED"), "{printed}");
    }
    is_harmless("reply", ask(Path::new(&control), "{\"command\":\"list\"}\n").as_bytes());
    let log = server.stop();
    is_harmless("log", log.as_bytes());
    assert!(log.contains(r"\u202e") && log.contains(r"\u001b[2J\u009b\u202e\u000aFORGED"), "{log}");
}
