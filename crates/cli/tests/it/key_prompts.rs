//! Prompts of the actions that change keyslots and headers, on a pseudo-terminal, compared with those of cryptsetup.
//!
//! Each dialogue is played to both programs on copies of the same image. Prompts, their order, the echo while typing,
//! the exit status and the effect must be the same. The one difference is Ctrl-C: it ends Inlock by the signal, so that
//! a calling shell stops too; cryptsetup exits with 1 or 2.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::harness::terminal::talk_to;
use crate::harness::{Dir, call, call_with, have};
use inlock_tests::report::count;
use serde_json::{Value, json};

const SURE: &str = "Are you sure? (Type 'yes' in capital letters): ";
const UNLOCK: &str = "Enter passphrase for IMAGE: ";
const EXISTING: &str = "Enter any existing passphrase: ";
const NEW_SLOT: &str = "Enter new passphrase for key slot: ";
const VERIFY: &str = "Verify passphrase: ";
const FAST: &str = "--pbkdf pbkdf2 --pbkdf-force-iterations 1000";
const UUID: &str = "12345678-1234-1234-1234-123456789abc";

/// Place of a keyslot's stripes in a LUKS1 header.
const STRIPES_OF_5: usize = 208 + 5 * 48 + 44;

const CTRL_C: &str = "\u{3}";

/// Images that the actions begin with.
#[derive(Clone, Copy)]
enum Start {
    /// LUKS2 with the passphrases `one` in keyslot 0 and `two` in keyslot 1.
    Two,
    /// LUKS2 with `one` in keyslot 0.
    Last,
    /// LUKS1 with `one` and `two`.
    Luks1,
    /// LUKS1 with `one` and `two`, and damaged stripes of a keyslot that is not used.
    Damaged,
}

/// An action and its prompts, with the answers that make it succeed.
#[derive(Clone, Copy)]
struct Case {
    start: Start,
    words: &'static str,
    prompts: &'static [(&'static str, &'static str)],
    /// Whether success changes the image.
    changes: bool,
}

const fn case(start: Start, words: &'static str, prompts: &'static [(&'static str, &'static str)]) -> Case {
    Case { start, words, prompts, changes: true }
}

const CASES: &[Case] = &[
    case(Start::Last, "luksFormat IMAGE FAST", &[(SURE, "YES"), (UNLOCK, "three33"), (VERIFY, "three33")]),
    case(Start::Last, "luksFormat --type luks1 IMAGE FAST", &[(SURE, "YES"), (UNLOCK, "three33"), (VERIFY, "three33")]),
    case(Start::Two, "luksAddKey IMAGE FAST", &[(EXISTING, "one"), (NEW_SLOT, "three33"), (VERIFY, "three33")]),
    case(Start::Luks1, "luksAddKey IMAGE FAST", &[(EXISTING, "two"), (NEW_SLOT, "three33"), (VERIFY, "three33")]),
    case(Start::Two, "luksAddKey IMAGE FAST -S 3", &[(EXISTING, "one"), (NEW_SLOT, "three33"), (VERIFY, "three33")]),
    case(Start::Two, "luksAddKey --unbound --key-size 128 IMAGE FAST", &[(NEW_SLOT, "three33"), (VERIFY, "three33")]),
    case(
        Start::Two,
        "luksChangeKey IMAGE FAST",
        &[("Enter passphrase to be changed: ", "one"), ("Enter new passphrase: ", "three33"), (VERIFY, "three33")],
    ),
    case(
        Start::Luks1,
        "luksChangeKey -S 1 IMAGE FAST",
        &[("Enter passphrase to be changed: ", "two"), ("Enter new passphrase: ", "three33"), (VERIFY, "three33")],
    ),
    case(Start::Two, "luksRemoveKey IMAGE", &[("Enter passphrase to be deleted: ", "two")]),
    case(Start::Last, "luksRemoveKey IMAGE", &[("Enter passphrase to be deleted: ", "one"), (SURE, "YES")]),
    case(Start::Two, "luksKillSlot IMAGE 1", &[("Enter any remaining passphrase: ", "one")]),
    case(Start::Last, "luksKillSlot IMAGE 0", &[(SURE, "YES"), ("Enter any remaining passphrase: ", "one")]),
    case(Start::Two, "luksErase IMAGE", &[(SURE, "YES")]),
    case(Start::Luks1, "erase IMAGE", &[(SURE, "YES")]),
    case(Start::Two, "luksUUID --uuid UUID IMAGE", &[(SURE, "YES")]),
    case(Start::Two, "luksConvertKey -S 0 IMAGE FAST", &[("Enter passphrase for keyslot to be converted: ", "one")]),
    case(Start::Last, "luksHeaderRestore IMAGE --header-backup-file BACKUP", &[(SURE, "YES")]),
    Case {
        changes: false,
        ..case(Start::Two, "luksHeaderRestore IMAGE --header-backup-file BACKUP", &[(SURE, "YES")])
    },
    Case { changes: false, ..case(Start::Two, "luksHeaderBackup IMAGE --header-backup-file NEW", &[]) },
    case(Start::Luks1, "convert --type luks2 IMAGE", &[(SURE, "YES")]),
    case(Start::Two, "convert --type luks1 IMAGE", &[(SURE, "YES")]),
    case(Start::Damaged, "repair IMAGE", &[(SURE, "YES")]),
    Case { changes: false, ..case(Start::Two, "luksDump --dump-volume-key IMAGE", &[(SURE, "YES"), (UNLOCK, "one")]) },
    Case { changes: false, ..case(Start::Two, "open --test-passphrase IMAGE", &[(UNLOCK, "two")]) },
];

/// Images that the dialogues begin with, made once.
struct Stage {
    dir: Dir,
    has_cryptsetup: bool,
}

static STAGE: LazyLock<Stage> = LazyLock::new(Stage::new);

/// End of a dialogue.
struct Played {
    said: Value,
    changed: bool,
    image: String,
}

impl Stage {
    fn new() -> Self {
        let dir = Dir::new();
        let fast: Vec<&str> = FAST.split(' ').collect();
        let luks2 = "luksFormat -q --type luks2 --sector-size 512";
        for (name, mib, format) in [("two", 18, luks2), ("last", 18, luks2), ("luks1", 4, "luksFormat -q --type luks1")]
        {
            let start = dir.image(name, mib);
            call_with(b"one", format.split(' ').chain([&*start]).chain(fast.iter().copied())).works();
            if name != "last" {
                call_with(b"one\ntwo\n", [&["luksAddKey", &start], &fast[..]].concat()).works();
            }
        }
        call(["luksHeaderBackup", &dir.name("two"), "--header-backup-file", &dir.name("backup")]).works();
        let mut damaged = fs::read(dir.path("luks1")).expect("readable");
        damaged[STRIPES_OF_5..STRIPES_OF_5 + 4].fill(0);
        dir.file("damaged", &damaged);
        Self { dir, has_cryptsetup: have("cryptsetup") }
    }

    /// Plays a dialogue to one program on a fresh copy of the image. `None`: there is no Python.
    fn play_to(&self, program: &str, case: &Case, steps: &[(&str, &str)]) -> Option<Played> {
        let start = match case.start {
            Start::Two => "two",
            Start::Last => "last",
            Start::Luks1 => "luks1",
            Start::Damaged => "damaged",
        };
        let dir = Dir::new();
        let image = dir.name("image");
        fs::copy(self.dir.path(start), &image).expect("a copy");
        let named = |text: &str| {
            let text = text.replace("IMAGE", &image).replace("BACKUP", &self.dir.name("backup"));
            let text = text.replace("NEW", &dir.name("new"));
            text.replace("FAST", FAST).replace(" UUID ", &format!(" {UUID} "))
        };
        let words = named(case.words);
        let words: Vec<&str> = words.split(' ').collect();
        let steps: Vec<(String, &str)> = steps.iter().map(|(prompt, answer)| (named(prompt), *answer)).collect();
        let steps: Vec<(&str, &str)> = steps.iter().map(|(prompt, answer)| (&**prompt, *answer)).collect();
        let said = talk_to(program, &steps, &words)?;
        let read = |path: &Path| fs::read(path).expect("readable");
        let changed = read(image.as_ref()) != read(&self.dir.path(start));
        Some(Played { said, changed, image })
    }

    /// Plays a dialogue to Inlock and to cryptsetup, and compares them. Returns Inlock's.
    fn play(&self, case: &Case, steps: &[(&str, &str)]) -> Option<Played> {
        let ours = self.play_to(env!("CARGO_BIN_EXE_inlock"), case, steps)?;
        let what = format!("{} {steps:?}: {}", case.words, ours.said);
        // Passphrases are typed unseen, everything else is seen.
        let echo: Vec<bool> = steps.iter().map(|(prompt, _)| *prompt == SURE).collect();
        assert_eq!(ours.said["echo"], json!(echo), "{what}");
        if self.has_cryptsetup {
            let theirs = self.play_to("cryptsetup", case, steps)?;
            let what = format!("{what}\ncryptsetup: {}", theirs.said);
            let interrupted = steps.last().is_some_and(|(_, answer)| *answer == CTRL_C);
            assert_eq!(ours.changed, theirs.changed, "{what}");
            assert_eq!(theirs.said["echo"], json!(echo), "{what}");
            if interrupted {
                assert_ne!(theirs.said["status"], 0, "{what}");
            } else {
                assert_eq!(ours.said["status"], theirs.said["status"], "{what}");
                assert_eq!(text(&ours), text(&theirs), "{what}");
            }
        }
        Some(ours)
    }
}

/// Returns the lines on the terminal without what Inlock adds: its name, hints, and the cause of an error.
fn text(played: &Played) -> Vec<String> {
    let text = played.said["text"].as_str().expect("text");
    let lines = text.lines().map(|line| line.trim_end().trim_start_matches("inlock: ").replace(&played.image, "IMAGE"));
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with("hint: "));
    // A prompt that got no line stands before the error on the same line in cryptsetup.
    let lines = lines.flat_map(|line| match line.find("Error reading passphrase") {
        Some(at) if at > 0 => vec![line[..at].trim_end().to_owned(), line[at..].to_owned()],
        _ => vec![line],
    });
    // Declining to dump a key, or to restore a header, is silent in cryptsetup.
    let is_silent =
        ["The header dump with volume key", "Replacing header"].iter().any(|warning| text.contains(warning));
    let lines = lines.filter(|line| !(is_silent && line == "Operation aborted."));
    // What is repaired, Inlock says before it asks, and cryptsetup afterwards.
    let lines = lines.filter(|line| !line.to_lowercase().contains("keyslot 5"));
    lines.map(|line| line.replace(": timeout.", ".")).collect()
}

/// Plays the dialogues of each case, a few at a time: they wait for each other's processes most of the time.
fn each_case(play: impl Fn(&Case) -> Option<usize> + Sync) {
    let (next, dialogues) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(case) = CASES.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let Some(played) = play(case) else { return };
                    dialogues.fetch_add(played, Ordering::Relaxed);
                }
            });
        }
    });
    let programs = 1 + usize::from(STAGE.has_cryptsetup);
    count("dialogues_on_a_terminal", dialogues.into_inner() * programs);
}

fn typed(prompts: &[(&'static str, &str)]) -> Vec<(&'static str, String)> {
    prompts.iter().map(|(prompt, answer)| (*prompt, format!("{answer}\n"))).collect()
}

fn steps<'a>(typed: &'a [(&'static str, String)]) -> Vec<(&'static str, &'a str)> {
    typed.iter().map(|(prompt, answer)| (*prompt, &**answer)).collect()
}

#[test]
fn prompts_and_effects_are_those_of_cryptsetup() {
    each_case(|case| {
        let played = STAGE.play(case, &steps(&typed(case.prompts)))?;
        assert_eq!(played.said["status"], 0, "{}: {}", case.words, played.said);
        assert_eq!(played.changed, case.changes, "{}: {}", case.words, played.said);
        Some(1)
    });
}

#[test]
fn ctrl_c_at_each_prompt_changes_nothing() {
    each_case(|case| {
        for last in 0..case.prompts.len() {
            let mut typed = typed(&case.prompts[..=last]);
            typed[last].1 = CTRL_C.to_owned();
            let played = STAGE.play(case, &steps(&typed))?;
            assert_eq!((played.said["status"].as_i64(), played.changed), (Some(-2), false), "{}", case.words);
        }
        Some(case.prompts.len())
    });
}

#[test]
fn only_yes_in_capital_letters_confirms() {
    each_case(|case| {
        let Some(sure) = case.prompts.iter().position(|(prompt, _)| *prompt == SURE) else { return Some(0) };
        let answers = ["yes", "", "no", "Y"];
        for answer in answers {
            let mut typed = typed(&case.prompts[..=sure]);
            typed[sure].1 = format!("{answer}\n");
            let played = STAGE.play(case, &steps(&typed))?;
            assert!(played.said["status"] == 1 || played.said["status"] == 2, "{}: {}", case.words, played.said);
            assert!(!played.changed, "{}", case.words);
        }
        Some(answers.len())
    });
}

#[test]
fn second_passphrase_must_match() {
    each_case(|case| {
        let Some(verify) = case.prompts.iter().position(|(prompt, _)| *prompt == VERIFY) else { return Some(0) };
        let mut typed = typed(case.prompts);
        typed[verify].1 = "three34\n".to_owned();
        let played = STAGE.play(case, &steps(&typed))?;
        assert!(played.said["text"].as_str().expect("text").contains("Passphrases do not match."), "{}", case.words);
        assert!(!played.changed, "{}", case.words);
        Some(1)
    });
}

/// Returns the first prompt for a passphrase that exists.
fn first_passphrase(case: &Case) -> Option<usize> {
    case.prompts.iter().position(|(prompt, _)| ![SURE, NEW_SLOT].contains(prompt))
}

#[test]
fn wrong_passphrase_changes_nothing() {
    each_case(|case| {
        // A new volume has no wrong passphrase; unlocking asks three times.
        let first = first_passphrase(case).filter(|_| !case.words.starts_with("luksFormat"));
        let Some(first) = first else { return Some(0) };
        let mut typed = typed(&case.prompts[..=first]);
        typed[first].1 = "wrong\n".to_owned();
        if case.words.starts_with("open") {
            let again = typed[first].clone();
            typed.extend([again.clone(), again]);
        }
        let played = STAGE.play(case, &steps(&typed))?;
        assert_eq!((played.said["status"].as_i64(), played.changed), (Some(2), false), "{}", case.words);
        Some(1)
    });
}

#[test]
fn timeout_at_passphrase_changes_nothing() {
    each_case(|case| {
        // The first of each action: each takes a second.
        let first = case.prompts.iter().position(|(prompt, _)| *prompt != SURE);
        let Some(first) = first else { return Some(0) };
        let limited = Case { words: Box::leak(format!("{} -t 1", case.words).into_boxed_str()), ..*case };
        let mut typed = typed(&case.prompts[..=first]);
        typed[first].1 = String::new();
        let played = STAGE.play(&limited, &steps(&typed))?;
        assert!(played.said["status"] == 1 && !played.changed, "{}: {}", case.words, played.said);
        Some(1)
    });
}
