//! Prompts, on a pseudo-terminal.

mod harness;

use harness::{Dir, FAST, call, call_with, have, run};
use std::process::Command;

/// Runs a dialogue: after each text, what is typed. `None`: there is no Python.
fn talk(steps: &[(&str, &str)], words: &[&str]) -> Option<serde_json::Value> {
    if !have("python3") {
        return None;
    }
    let steps = serde_json::to_string(steps).expect("JSON");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/terminal.py");
    let mut command = Command::new("python3");
    command.args([script, &steps, env!("CARGO_BIN_EXE_inlock")]).args(words);
    let ended = run(&mut command, b"");
    assert_eq!(ended.code, 0, "{ended:?}");
    let said: serde_json::Value = serde_json::from_str(ended.text()).expect("JSON");
    println!("{said}");
    assert_eq!(said["left"], 0, "not all was asked: {said}");
    assert_eq!(said["echo_after"], true, "the terminal stays silent: {said}");
    Some(said)
}

const SURE: &str = "Are you sure? (Type 'yes' in capital letters): ";

#[test]
fn format_asks_for_confirmation_and_passphrase_twice() {
    let dir = Dir::new();
    let image = dir.image("image", 18);
    let words = [&["luksFormat", &image][..], &FAST].concat();
    let enter = format!("Enter passphrase for {image}: ");
    let steps = [(SURE, "YES\n"), (&*enter, "s3cret\n"), ("Verify passphrase: ", "s3cret\n")];
    let Some(said) = talk(&steps, &words) else { return };
    assert_eq!(said["status"], 0);
    assert_eq!(said["echo"], serde_json::json!([true, false, false]));
    let text = said["text"].as_str().unwrap();
    assert!(
        text.contains(&format!("WARNING!\r\n========\r\nThis will overwrite data on {image} irrevocably.")),
        "{text}"
    );
    assert!(!text.contains("s3cret"), "the passphrase is shown: {text}");
    call_with(b"s3cret", ["open", "--test-passphrase", &image]).works();

    // An existing volume is reported, "yes" in small letters does not confirm, and no byte changes.
    let before = std::fs::read(&image).unwrap();
    for answer in ["yes\n", "no\n", "\n", " YES\n", "\u{4}"] {
        let said = talk(&[(SURE, answer)], &words).unwrap();
        assert_eq!(said["status"], 1);
        let text = said["text"].as_str().unwrap();
        assert!(text.contains("already contains a 'crypto_LUKS' superblock signature."), "{text}");
        assert!(text.contains("Operation aborted."), "{text}");
    }
    let steps = [(SURE, "YES\n"), (&*enter, "one\n"), ("Verify passphrase: ", "other\n")];
    let said = talk(&steps, &words).unwrap();
    assert_eq!(said["status"], 1);
    assert!(said["text"].as_str().unwrap().contains("Passphrases do not match."));
    assert_eq!(std::fs::read(&image).unwrap(), before);
}

#[test]
fn batch_mode_asks_for_passphrase_once() {
    let dir = Dir::new();
    let image = dir.image("image", 18);
    let words = [&["-q", "luksFormat", &image][..], &FAST].concat();
    let Some(said) = talk(&[("Enter passphrase for ", "s3cret\n")], &words) else { return };
    assert_eq!(said["status"], 0);
    assert!(!said["text"].as_str().unwrap().contains("WARNING"), "{said}");
}

#[test]
fn passphrase_has_three_tries_by_default() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    let ask = "Enter passphrase for ";
    let open = ["open", "--test-passphrase", &image];
    let Some(said) = talk(&[(ask, "a\n"), (ask, "b\n"), (ask, "secret\n")], &open) else { return };
    assert_eq!(said["status"], 0);
    let said = talk(&[(ask, "a\n"), (ask, "b\n"), (ask, "c\n")], &open).unwrap();
    assert_eq!(said["status"], 2);
    let text = said["text"].as_str().unwrap();
    assert_eq!(text.matches("No key available with this passphrase.").count(), 3, "{text}");
    let said = talk(&[(ask, "a\n")], &[&open[..], &["-T1"]].concat()).unwrap();
    assert_eq!(said["status"], 2);
    let said = talk(&[(ask, "secret\n")], &[&open[..], &["--key-file", "-"]].concat()).unwrap();
    assert_eq!(said["status"], 0, "`-` is the terminal where standard input is one");
}

#[test]
fn typed_passphrase_of_any_bytes_works() {
    let dir = Dir::new();
    let image = dir.image("image", 18);
    let key = dir.file("key", b"\xe4\xf6 \xff");
    call(["luksFormat", "-q", &image, &key].iter().chain(&FAST)).works();
    // The script sends each character as one byte.
    let open = ["open", "--test-passphrase", &image];
    let Some(said) = talk(&[("Enter passphrase", "\u{e4}\u{f6} \u{ff}\n")], &open) else { return };
    assert_eq!(said["status"], 0);
}

#[test]
fn typed_passphrase_over_512_bytes_is_refused() {
    let dir = Dir::new();
    let image = dir.image("image", 18);
    let longest = "k".repeat(512);
    let key = dir.file("key", longest.as_bytes());
    call(["luksFormat", "-q", &image, &key].iter().chain(&FAST)).works();
    let open = ["open", "--test-passphrase", &image];
    let Some(said) = talk(&[("Enter passphrase", &format!("{longest}\n"))], &open) else { return };
    assert_eq!(said["status"], 0);
    let said = talk(&[("Enter passphrase", &format!("{longest}k\n"))], &open).unwrap();
    assert_eq!(said["status"], 1);
    assert!(said["text"].as_str().unwrap().contains("longer than 512 characters"), "{said}");
}

#[test]
fn echo_is_restored_after_signal_or_timeout() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    let open = ["open", "--test-passphrase", &image];
    // Ctrl-C, Ctrl-\ and signals of other processes; `talk` checks the echo.
    for (send, signal) in [("\u{3}", 2), ("\u{1c}", 3), ("signal 15", 15), ("signal 1", 1)] {
        let Some(said) = talk(&[("Enter passphrase", send)], &open) else { return };
        assert_eq!(said["status"], -signal, "{said}");
        assert_eq!(said["echo"], serde_json::json!([false]));
    }
    let said = talk(&[("Enter passphrase", "")], &[&open[..], &["-t", "1"]].concat()).unwrap();
    assert_eq!(said["status"], 2);
    assert!(said["text"].as_str().unwrap().contains("Timeout"), "{said}");
    // Ctrl-D on an empty line.
    let said = talk(&[("Enter passphrase", "\u{4}")], &open).unwrap();
    assert_eq!(said["status"], 1);
}
