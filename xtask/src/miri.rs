//! `cargo xtask miri`: tests of `unsafe` code under Miri, which checks every memory access and its provenance.
//!
//! Miri interprets Rust without io_uring, locked pages and vector instructions, so these tests cover the surrounding
//! code that handles raw pointers.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};

use crate::target_dir;

/// Package, features, and prefixes of the names of its tests.
const TESTS: [(&str, &str, &[&str]); 3] = [
    ("inlock-cipher", "", &["aes::job::"]),
    ("inlock-engine", "", &["thread_pool::loan::", "buffer::"]),
    ("inlock-frontend", "ublk", &["ublk::command::"]),
];

/// Tests open files; the kernel returns addresses that become pointers again; memory that it may still use is leaked.
const FLAGS: &str = "-Zmiri-disable-isolation -Zmiri-permissive-provenance -Zmiri-ignore-leaks";

/// Runs the tests, if the nightly toolchain has Miri and the source of the standard library.
pub(crate) fn run(root: &Path) -> Result<ExitCode> {
    let miri = || {
        let mut cargo = Command::new("cargo");
        // Overrides the toolchain that cargo passes to its children.
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
