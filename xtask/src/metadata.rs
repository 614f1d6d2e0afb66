//! Cargo, and its metadata of the workspace and its dependencies.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use inlock_tests::process::{bare, text};
use serde_json::Value;

/// Returns the cargo of `PATH`, to run in the workspace.
///
/// Not the one that built this program: where that one belongs to rustup and is run directly, the compiler would be
/// chosen for each dependency by the toolchain file of that dependency.
pub(crate) fn cargo(root: &Path) -> Command {
    let mut command = bare("cargo");
    command.current_dir(root);
    command
}

/// Returns the output of `cargo metadata`.
pub(crate) fn metadata(root: &Path, arguments: &[&str]) -> Result<Value> {
    let mut command = cargo(root);
    command.args(["metadata", "--format-version=1", "--locked"]).args(arguments);
    serde_json::from_str(&text(&mut command)?).context("cargo metadata is not JSON")
}
