//! Running programs, and locating the release build of `inlock`.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};

/// The interpreter with Debian's Python modules (nbd, cryptography). Another one may come first on the path.
pub const PYTHON: &str = "/usr/bin/python3";

/// Returns the directory of the workspace.
pub fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map_or(here.clone(), Path::to_path_buf)
}

/// Returns the release build of `inlock`: the one that INLOCK_BIN names, or else one that the first test builds.
pub fn inlock_path() -> Result<PathBuf> {
    static BUILT: OnceLock<std::result::Result<PathBuf, String>> = OnceLock::new();
    BUILT.get_or_init(|| build().map_err(|e| format!("{e:#}"))).clone().map_err(anyhow::Error::msg)
}

fn build() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os("INLOCK_BIN") {
        return Ok(named.into());
    }
    let status = Command::new(env!("CARGO"))
        .current_dir(root())
        .args(["build", "--quiet", "--release", "--package", "inlock-cli"])
        .status()
        .context("cannot run cargo")?;
    if !status.success() {
        bail!("inlock does not build");
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    Ok(root().join(target).join("release/inlock"))
}

/// Returns an `inlock` command without arguments.
pub fn inlock() -> Result<Command> {
    Ok(program(inlock_path()?))
}

/// Returns a program that exits by itself, with empty standard input and messages in English. It is killed after five
/// minutes, so that a hang fails one test and does not block the run.
pub fn program(name: impl AsRef<OsStr>) -> Command {
    let mut command = bare("timeout");
    command.args(["--kill-after=5", "300"]).arg(name);
    command
}

/// Returns a program that runs until it is stopped.
pub fn bare(name: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(name);
    command.stdin(Stdio::null()).env("LC_ALL", "C").env_remove("RUST_BACKTRACE");
    command
}

/// Runs a program, with any exit status.
pub fn output(command: &mut Command) -> Result<Output> {
    command.output().with_context(|| format!("cannot run {:?}", command.get_program()))
}

/// Runs a program and returns its standard output as text. Fails with all output on any status except 0.
pub fn text(command: &mut Command) -> Result<String> {
    let output = output(command)?;
    if !output.status.success() {
        bail!("{command:?}: {}\n{}{}", output.status, lossy(&output.stdout), lossy(&output.stderr));
    }
    Ok(lossy(&output.stdout))
}

/// Like [`text`], with `input` on standard input.
pub fn text_with_input(command: &mut Command, input: &[u8]) -> Result<String> {
    let output = output_with_input(command, input)?;
    if !output.status.success() {
        bail!("{command:?}: {}\n{}{}", output.status, lossy(&output.stdout), lossy(&output.stderr));
    }
    Ok(lossy(&output.stdout))
}

/// Like [`output`], with `input` on standard input.
pub fn output_with_input(command: &mut Command, input: &[u8]) -> Result<Output> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot run {:?}", command.get_program()))?;
    let mut stdin = child.stdin.take().context("the child has no standard input")?;
    std::thread::scope(|scope| {
        // A program may exit without reading all of it.
        scope.spawn(move || drop(stdin.write_all(input)));
        child.wait_with_output().context("cannot wait for the child")
    })
}

/// Converts bytes to text, for messages.
pub fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
