//! Prompts, on a pseudo-terminal.

use crate::harness::storage::Loop;
use crate::harness::terminal::{talk, talk_to};
use crate::harness::{Dir, FAST, call, call_with, run};
use std::process::Command;

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
    assert_eq!(said["status"], 2);
    assert!(said["text"].as_str().unwrap().contains("Passphrases do not match."));
    assert_eq!(std::fs::read(&image).unwrap(), before);
}

#[test]
fn format_warns_of_a_clone_that_librbd_has_encrypted() {
    let dir = Dir::new();
    let image = dir.image("image", 18);
    let mut before = std::fs::read(&image).unwrap();
    before[..8].copy_from_slice(b"RBDL\xba\xbe\0\x02");
    std::fs::write(&image, &before).unwrap();
    let words = [&["luksFormat", &image][..], &FAST].concat();
    let Some(said) = talk(&[(SURE, "no\n")], &words) else { return };
    let warning = format!("WARNING: Device {image} is a clone that librbd has encrypted by itself.");
    assert!(said["text"].as_str().unwrap().contains(&warning), "{said}");
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
    assert_eq!(said["status"], 1);
    assert!(said["text"].as_str().unwrap().contains("timeout"), "{said}");
    // Ctrl-D on an empty line.
    let said = talk(&[("Enter passphrase", "\u{4}")], &open).unwrap();
    assert_eq!(said["status"], 1);
}

#[test]
fn pin_has_three_tries_and_passphrase_follows() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    call_with(br#"{"type":"pin","keyslots":["0"]}"#, ["token", "import", &image]).works();
    let script = "#!/bin/sh\n[ \"$(cat <&\"${INLOCK_TOKEN_PIN_FD:-0}\")\" = 1234 ] || exit 2\nprintf secret\n";
    let path = dir.name("pin");
    run(Command::new("sh").args(["-c", "cat > \"$0\"; chmod 755 \"$0\"", &path]), script.as_bytes()).works();
    let path = dir.path("").to_str().expect("UTF-8").to_owned();
    let open = ["open", "--test-passphrase", "--external-tokens-path", &path, &image];
    let (by_number, by_type) = (["--token-id", "0"], ["--token-type", "pin", "--token-only"]);
    let (first, other, ask) = ("Enter token 0 PIN: ", "Enter token PIN: ", "Enter passphrase for ");
    let Some(said) = talk(&[(first, "1234\n")], &[&open[..], &by_number].concat()) else { return };
    assert_eq!((&said["status"], &said["echo"]), (&0.into(), &serde_json::json!([false])));
    let wrong = "No token could be unlocked with this PIN.";
    let steps = [(first, "1\n"), (first, "2\n"), (first, "3\n"), (ask, "secret\n")];
    let said = talk(&steps, &[&open[..], &by_number].concat()).unwrap();
    assert_eq!(said["status"], 0);
    assert_eq!(said["text"].as_str().unwrap().matches(wrong).count(), 3, "{said}");
    let said = talk(&[(other, "1\n"), (other, "1234\n")], &[&open[..], &by_type].concat()).unwrap();
    assert_eq!(said["status"], 0);
    let said = talk(&[(other, "1\n")], &[&open[..], &by_type, &["--tries", "1"]].concat()).unwrap();
    assert_eq!(said["status"], 1);
    // Without a PIN to the passphrase; without a request no PIN is asked for.
    assert_eq!(talk(&[(first, "\n"), (ask, "secret\n")], &[&open[..], &by_number].concat()).unwrap()["status"], 0);
    let said = talk(&[(ask, "secret\n")], &open).unwrap();
    assert!(!said["text"].as_str().unwrap().contains("PIN"), "{said}");
}

/// Installs a helper for tokens of type `pin`, with the PIN 1234, in the directory, and returns the option.
fn with_pin_helper(dir: &Dir, passphrase: &str) -> [String; 2] {
    let script = "#!/bin/sh\n[ \"$(cat <&\"${INLOCK_TOKEN_PIN_FD:-0}\")\" = 1234 ] || exit 2\nprintf ";
    let install = ["-c", "cat > \"$0\"; chmod 755 \"$0\"", &dir.name("pin")];
    run(Command::new("sh").args(install), format!("{script}{passphrase}").as_bytes()).works();
    ["--external-tokens-path".to_owned(), dir.path("").to_str().expect("UTF-8").to_owned()]
}

#[test]
fn pin_dialogue_ends_by_signal_timeout_or_end_of_file() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    call_with(br#"{"type":"pin","keyslots":["0"]}"#, ["token", "import", &image]).works();
    let [option, path] = with_pin_helper(&dir, "secret");
    let open = ["open", "--test-passphrase", &option, &path, "--token-id", "0", &image];
    let ask = "Enter token 0 PIN: ";
    // No passphrase is asked for afterwards: the user wants to end.
    let Some(said) = talk(&[(ask, "\u{3}")], &open) else { return };
    assert_eq!(said["status"], -2, "{said}");
    let said = talk(&[(ask, "")], &[&open[..], &["--timeout", "1"]].concat()).unwrap();
    assert_eq!(said["status"], 1, "{said}");
    assert!(!said["text"].as_str().unwrap().contains("passphrase for"), "{said}");
    let said = talk(&[(ask, "\u{4}"), ("Enter passphrase for ", "secret\n")], &open).unwrap();
    assert_eq!(said["status"], 0, "{said}");
    let said = talk(&[(ask, "\u{4}")], &[&open[..], &["--token-only"]].concat()).unwrap();
    assert_eq!(said["status"], 1, "{said}");
}

#[test]
fn pin_is_asked_for_when_token_has_old_or_new_passphrase() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    call_with(br#"{"type":"pin","keyslots":["0"]}"#, ["token", "import", &image]).works();
    call_with(br#"{"type":"pin","keyslots":[]}"#, ["token", "import", &image]).works();
    let [option, path] = with_pin_helper(&dir, "secret");
    let add = [&["luksAddKey", &option, &path, &image][..], &FAST].concat();
    let (new, again) = ("Enter new passphrase for key slot: ", "Verify passphrase: ");
    // The existing passphrase is that of token 0.
    let steps =
        [("Enter token 0 PIN: ", "1\n"), ("Enter token 0 PIN: ", "1234\n"), (new, "other\n"), (again, "other\n")];
    let Some(said) = talk(&steps, &[&add[..], &["--token-id", "0", "--tries", "2"]].concat()) else { return };
    assert_eq!(said["status"], 0, "{said}");
    call_with(b"other", ["open", "--test-passphrase", "-S", "1", &image]).works();
    // As for passphrases there is one try by default. A wrong PIN is not replaced by a passphrase.
    let said = talk(&[("Enter token 0 PIN: ", "1\n")], &[&add[..], &["--token-id", "0"]].concat()).unwrap();
    assert_eq!(said["status"], 1, "{said}");
    // The new passphrase is that of token 1.
    let existing = "Enter any existing passphrase: ";
    let steps = [(existing, "other\n"), ("Enter token 1 PIN: ", "9\n"), ("Enter token 1 PIN: ", "1234\n")];
    let said = talk(&steps, &[&add[..], &["--new-token-id", "1", "--tries", "2"]].concat()).unwrap();
    assert_eq!(said["status"], 0, "{said}");
    call_with(b"secret", ["open", "--test-passphrase", "-S", "2", &image]).works();
}

#[test]
fn prompts_name_file_of_loop_device() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    let Some(device) = Loop::over(&image) else { return };
    let file = std::fs::canonicalize(&image).unwrap();
    let (ask, file) = (format!("Enter passphrase for {}: ", file.display()), file.display());
    let Some(said) = talk(&[(&ask, "secret\n")], &["open", "--test-passphrase", &device.0]) else { return };
    assert_eq!(said["status"], 0, "{said}");
    let warning = format!("This will overwrite data on {file} irrevocably.");
    let said = talk(&[(SURE, "no\n")], &["luksFormat", &device.0]).unwrap();
    assert!(said["text"].as_str().unwrap().contains(&warning), "{said}");
}

#[test]
fn helper_of_token_is_killed_by_ctrl_c() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    call_with(br#"{"type":"slow","keyslots":["0"]}"#, ["token", "import", &image]).works();
    let path = dir.name("slow");
    let script = "#!/bin/sh\necho $$ > \"$0.pid\"\necho waiting >&2\nexec sleep 100\n";
    run(Command::new("sh").args(["-c", "cat > \"$0\"; chmod 755 \"$0\"", &path]), script.as_bytes()).works();
    let helpers = dir.path("").to_str().expect("UTF-8").to_owned();
    let open = ["open", "--test-passphrase", "--external-tokens-path", &helpers, &image];
    let Some(said) = talk(&[("token 0 (slow): waiting", "\u{3}")], &open) else { return };
    assert_eq!(said["status"], -2, "{said}");
    let pid = std::fs::read_to_string(dir.path("slow.pid")).unwrap();
    assert!(!std::path::Path::new(&format!("/proc/{}", pid.trim())).exists(), "the helper still runs");
}

#[test]
fn answer_waits_until_the_program_reads() {
    // A program that computes between its prompt and the end of echo, and discards what was typed before.
    let program = "import sys, termios, time
sys.stdout.write('Name: ')
sys.stdout.flush()
end = time.process_time() + 0.5
while time.process_time() < end:
    pass
before = termios.tcgetattr(0)
quiet = termios.tcgetattr(0)
quiet[3] &= ~termios.ECHO
termios.tcsetattr(0, termios.TCSAFLUSH, quiet)
name = sys.stdin.readline()
termios.tcsetattr(0, termios.TCSANOW, before)
sys.exit(name != 'secret\\n')
";
    let Some(said) = talk_to("python3", &[("Name: ", "secret\n")], &["-c", program]) else { return };
    assert_eq!((&said["status"], &said["echo"]), (&0.into(), &serde_json::json!([false])), "{said}");
}
