//! `cargo xtask header-proof`: the tests of changed and broken headers with all their cases, of which `./test.sh` runs
//! a part: 300 random sequences, 300 re-encryptions in turns with cryptsetup, every noted verdict of cryptsetup, and
//! power cuts of every repair and re-encryption.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use inlock_tests::process::inlock_path;

use crate::metadata::cargo;

const SEQUENCES: &str = "300";

/// Runs the tests, and fails if one does.
pub(crate) fn run(root: &Path) -> Result<ExitCode> {
    let status = cargo(root)
        .args(["test", "--release", "--package", "inlock-open", "--lib", "reencryption::", "--", "--show-output"])
        .env("INLOCK_HEADER_PROOF", "1")
        .status()
        .context("cannot run cargo")?;
    if !status.success() {
        return Ok(ExitCode::FAILURE);
    }
    let sequences = std::env::var("INLOCK_SEQUENCES").unwrap_or_else(|_| SEQUENCES.to_owned());
    let newest =
        Command::new(root.join("tests/newest.sh")).arg("cryptsetup").output().context("cannot run newest.sh")?;
    let status = cargo(root)
        .args(["test", "--release", "--package", "inlock-cli", "--test", "it", "reencrypt_turns::", "--"])
        .arg("--show-output")
        .env("INLOCK_SEQUENCES", &sequences)
        .env("INLOCK_NEW_CRYPTSETUP", String::from_utf8_lossy(&newest.stdout).trim())
        .status()
        .context("cannot run cargo")?;
    if !status.success() {
        return Ok(ExitCode::FAILURE);
    }
    let status = cargo(root)
        .args(["test", "--package", "inlock-volume", "--test", "it", "--"])
        .args(["sequences::", "header_verdicts::", "edit_states::", "repair_states::", "--show-output"])
        .env("INLOCK_HEADER_PROOF", "1")
        .env("INLOCK_SEQUENCES", sequences)
        .env("INLOCK_BIN", inlock_path()?)
        .status()
        .context("cannot run cargo")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
