//! The commands of the guide: every fenced `sh` block of a chapter runs, in order, in a directory of its own.
//!
//! A block's first line may have a word after `sh`: `fuse` and `root` name a requirement, `skip: REASON` marks commands
//! that cannot run in a test. A script around the block feeds passphrases, makes key derivation cheap, and runs servers
//! in the background until the block ends.

use crate::harness::{Dir, have, run};
use inlock_tests::report::count;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Requirements of a block.
#[derive(Debug, PartialEq, Eq)]
enum Needs {
    Nothing,
    Fuse,
    Root,
    Skip(String),
}

/// A fenced block of commands.
#[derive(Debug)]
struct Block {
    line: usize,
    needs: Needs,
    script: String,
}

/// Returns the `sh` blocks of a chapter. Fails for a block in another language than those that other tests check.
fn blocks(chapter: &str, text: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let Some(info) = line.strip_prefix("```") else { continue };
        let script: Vec<&str> = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```").collect();
        let needs = match info {
            "sh" => Needs::Nothing,
            "sh fuse" => Needs::Fuse,
            "sh root" => Needs::Root,
            // Output, configuration, and Rust, which the library's tests compile.
            "text" | "ini" | "json" | "toml" => continue,
            info if info.starts_with("rust") => continue,
            info => match info.strip_prefix("sh skip: ") {
                Some(reason) => Needs::Skip(reason.to_owned()),
                None => panic!("{chapter}:{}: a block is '{info}'", number + 1),
            },
        };
        found.push(Block { line: number + 1, needs, script: script.join("\n") });
    }
    found
}

/// Whether a block can run here; prints the reason if it cannot.
fn can_run(needs: &Needs) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    let opens = |path: &str| fs::File::options().read(true).write(true).open(path).is_ok();
    let missing = match needs {
        Needs::Skip(reason) => Some(format!("the guide needs {reason}")),
        Needs::Fuse | Needs::Root if !opens("/dev/fuse") => Some("nothing can be mounted with FUSE here".to_owned()),
        Needs::Root if !is_root => Some("only root can make block devices".to_owned()),
        Needs::Root if !opens("/dev/loop-control") => Some("no loop device can be made here".to_owned()),
        Needs::Nothing | Needs::Fuse | Needs::Root => None,
    };
    if let Some(reason) = &missing {
        println!("SKIPPED: {reason}");
    }
    missing.is_none()
}

/// Functions for the commands of a block.
const PROLOGUE: &str = r#"
set -euo pipefail
exec < /dev/null
server=
stop() {
    [ -z "$server" ] || { kill "$server"; wait "$server" || true; }
    server=
}
trap stop EXIT

# Runs the real program with the passphrase on standard input, unless a pipe or a file is there.
program() {
    if [ "$(readlink /proc/self/fd/0)" = /dev/null ]; then
        "$INLOCK" "$@" <<< secret
    else
        "$INLOCK" "$@"
    fi
}

inlock() {
    local word action=
    for word in "$@"; do
        case $word in
            -*) ;;
            *) action=$word; break ;;
        esac
    done
    # A reader stops a server with Ctrl-C before the next one.
    [ "$action" != serve ] || stop
    case "$action $*" in
        *--help*) program "$@" ;;
        luksFormat*luks1*) program "$@" --pbkdf-force-iterations 1000 ;;
        luksFormat*) program "$@" --pbkdf-force-iterations 4 --pbkdf-memory 32 --pbkdf-parallel 1 ;;
        reencrypt*--encrypt* | luksAddKey* | luksChangeKey*)
            program "$@" --pbkdf-force-iterations 4 --pbkdf-memory 32 --pbkdf-parallel 1
            ;;
        bench\ *cipher*) INLOCK_CPU=portable program "$@" ;;
        bench\ *) program "$@" --rounds 1 --slice-ms 1 ;;
        benchmark*) program "$@" -c aes-xts-plain64 ;;
        serve*--run* | serve*--background*) program "$@" ;;
        serve*)
            rm -f served
            "$INLOCK" "$@" <<< secret > served &
            server=$!
            until [ -s served ]; do
                kill -0 "$server"
                sleep 0.02
            done
            ;;
        *) program "$@" ;;
    esac
}
"#;

/// Runs the blocks of a chapter, and returns how many ran.
fn run_chapter(path: &Path) -> usize {
    let chapter = path.file_name().expect("a file").to_string_lossy().into_owned();
    let text = fs::read_to_string(path).expect("a chapter");
    let dir = Dir::new();
    let _cleanup = Cleanup(&dir);
    fs::create_dir(dir.path("mnt")).expect("a new directory");
    let mut done = 0;
    for block in blocks(&chapter, &text).iter().filter(|block| can_run(&block.needs)) {
        // The directories of the guide are those of the test.
        let script = block.script.replace("/tmp/", &dir.name("")).replace("/mnt", &dir.name("mnt"));
        // The port may be in use here.
        let script = script.replace("localhost:10809", "localhost:0");
        let mut bash = Command::new("bash");
        bash.args(["-c", &format!("{PROLOGUE}\n{script}\n")]).current_dir(dir.path(""));
        let ended = run(with_environment(&mut bash, &dir), b"");
        assert_eq!(ended.code, 0, "{chapter}:{}: {ended:?}\n{script}", block.line);
        done += 1;
    }
    done
}

fn with_environment<'a>(command: &'a mut Command, dir: &Dir) -> &'a mut Command {
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command.env("INLOCK", env!("CARGO_BIN_EXE_inlock")).env("INLOCK_RUN_DIR", dir.path("run"))
}

/// Unmounts and closes what a failed block has left.
struct Cleanup<'a>(&'a Dir);

impl Drop for Cleanup<'_> {
    fn drop(&mut self) {
        let script = r#"umount "$0/mnt" 2> /dev/null
            for name in "$0"/run/*.json; do "$INLOCK" close "$(basename "$name" .json)" 2> /dev/null; done"#;
        let mut bash = Command::new("bash");
        bash.args(["-c", script, &self.0.name("")]);
        let _ = with_environment(&mut bash, self.0).output();
    }
}

#[test]
fn commands_of_the_guide_succeed() {
    let programs = ["bash", "nbdinfo", "nbdcopy", "qemu-img", "mke2fs", "curl", "gzip"];
    if !programs.iter().all(|program| have(program)) {
        return;
    }
    let guide = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide"));
    let mut chapters: Vec<PathBuf> =
        fs::read_dir(guide).expect("the guide").map(|entry| entry.expect("an entry").path()).collect();
    chapters.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    chapters.sort();
    let done: usize = chapters.iter().map(|path| run_chapter(path)).sum();
    count("guide_blocks", done);
}

#[test]
fn blocks_of_a_chapter_are_found_with_their_needs() {
    let text = "# T\n```sh\na\nb\n```\n```text\nx\n```\n```sh root\nc\n```\n```sh skip: a drive\nd\n```\n";
    let found = blocks("t.md", text);
    let shown: Vec<_> = found.iter().map(|block| (block.line, block.script.as_str())).collect();
    assert_eq!(shown, [(2, "a\nb"), (9, "c"), (12, "d")]);
    assert_eq!(found[1].needs, Needs::Root);
    assert_eq!(found[2].needs, Needs::Skip("a drive".to_owned()));
    assert!(std::panic::catch_unwind(|| blocks("t.md", "```\nx\n```\n")).is_err(), "a block without a language");
}
