//! `cargo xtask miri`: tests of `unsafe` code under Miri, which checks every access to memory and who may make it.
//!
//! Miri interprets Rust: it knows neither io_uring nor locked pages nor vector instructions. So these are the tests of
//! the code around them that handles raw pointers.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};

use crate::target_dir;

/// A package, its features, and how the names of its tests begin.
const TESTS: [(&str, &str, &[&str]); 3] = [
    ("inlock-cipher", "", &["aes::job::"]),
    ("inlock-engine", "", &["thread_pool::loan::", "buffer::"]),
    ("inlock-frontend", "ublk", &["ublk::command::"]),
];

/// Files are opened; addresses that the kernel is given come back from it as pointers; memory that it may still use is
/// leaked.
const FLAGS: &str = "-Zmiri-disable-isolation -Zmiri-permissive-provenance -Zmiri-ignore-leaks";

/// Runs the tests, where the nightly toolchain has Miri and the source of the standard library.
pub(crate) fn run(root: &Path) -> Result<ExitCode> {
    let miri = || {
        let mut cargo = Command::new("cargo");
        // Not that of the stable toolchain, which cargo tells its children.
        cargo.current_dir(root).env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO").args(["+nightly", "miri"]);
        cargo.env("MIRIFLAGS", FLAGS).env("CARGO_TARGET_DIR", target_dir(root).join("miri"));
        cargo
    };
    let has_miri = miri().arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !has_miri.is_ok_and(|status| status.success()) {
        println!("SKIPPED: no Miri in this toolchain");
        return Ok(ExitCode::SUCCESS);
    }
    for (package, features, names) in TESTS {
        let output = miri()
            .args(["test", "--package", package, "--features", features, "--lib", "--"])
            .args(names)
            .stderr(Stdio::inherit())
            .output()
            .context("cannot run cargo")?;
        print!("{}", String::from_utf8_lossy(&output.stdout));
        ensure!(output.status.success(), "a test of {package} failed under Miri");
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(names.iter().all(|name| text.contains(&format!("test {name}"))), "{package} has no test for a name");
    }
    Ok(ExitCode::SUCCESS)
}
