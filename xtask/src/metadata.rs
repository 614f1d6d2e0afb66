//! Cargo's metadata of the workspace and its dependencies.

use std::path::Path;

use anyhow::{Context, Result};
use inlock_tests::process::{program, text};
use serde_json::Value;

/// Returns the output of `cargo metadata`.
pub(crate) fn metadata(root: &Path, arguments: &[&str]) -> Result<Value> {
    let mut command = program(env!("CARGO"));
    command.current_dir(root).args(["metadata", "--format-version=1", "--locked"]).args(arguments);
    serde_json::from_str(&text(&mut command)?).context("cargo metadata is not JSON")
}
