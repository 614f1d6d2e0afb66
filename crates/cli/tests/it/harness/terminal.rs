//! Dialogues on a pseudo-terminal.

use super::{have, run};
use serde_json::Value;
use std::ffi::OsStr;
use std::process::Command;

/// Runs `inlock` and a dialogue: after each text, what is typed. `None`: there is no Python.
pub(crate) fn talk(steps: &[(&str, &str)], words: &[impl AsRef<OsStr>]) -> Option<Value> {
    talk_to(env!("CARGO_BIN_EXE_inlock"), steps, words)
}

/// Runs a program and a dialogue. `None`: there is no Python.
pub(crate) fn talk_to(
    program: impl AsRef<OsStr>,
    steps: &[(&str, &str)],
    words: &[impl AsRef<OsStr>],
) -> Option<Value> {
    if !have("python3") {
        return None;
    }
    let steps = serde_json::to_string(steps).expect("JSON");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/terminal.py");
    let mut command = Command::new("python3");
    command.args([script, &steps]).arg(program).args(words);
    let ended = run(&mut command, b"");
    assert_eq!(ended.code, 0, "{ended:?}");
    let said: Value = serde_json::from_str(ended.text()).expect("JSON");
    println!("{said}");
    assert_eq!(said["left"], 0, "not all was asked: {said}");
    assert_eq!(said["echo_after"], true, "the terminal stays silent: {said}");
    Some(said)
}
