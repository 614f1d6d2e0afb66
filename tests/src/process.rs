//! Running programs, and finding the release build of `inlock`.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};

/// The interpreter that Debian's Python modules (nbd, cryptography) belong to; another may come first on the path.
pub const PYTHON: &str = "/usr/bin/python3";

/// The folder of the workspace.
pub fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map_or(here.clone(), Path::to_path_buf)
}

/// The release build of `inlock`: the one named by INLOCK_BIN, else built once by the first test that asks.
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

/// An `inlock` command to add arguments to.
pub fn inlock() -> Result<Command> {
    Ok(program(inlock_path()?))
}

/// Any program that ends by itself, with nothing on standard input and messages in English. One that hangs is ended after
/// five minutes, so that a server's hang fails a test and does not hold it.
pub fn program(name: impl AsRef<OsStr>) -> Command {
    let mut command = bare("timeout");
    command.args(["--kill-after=5", "300"]).arg(name);
    command
}

/// A program that runs until it is told to end, as its own process.
pub fn bare(name: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(name);
    command.stdin(Stdio::null()).env("LC_ALL", "C").env_remove("RUST_BACKTRACE");
    command
}

/// Runs to the end, whatever the status.
pub fn output(command: &mut Command) -> Result<Output> {
    command.output().with_context(|| format!("cannot run {:?}", command.get_program()))
}

/// Runs to the end and gives standard output as text; a status other than 0 is an error that shows everything.
pub fn text(command: &mut Command) -> Result<String> {
    let output = output(command)?;
    if !output.status.success() {
        bail!("{command:?}: {}\n{}{}", output.status, lossy(&output.stdout), lossy(&output.stderr));
    }
    Ok(lossy(&output.stdout))
}

/// As [`text`], with bytes written to standard input.
pub fn text_with_input(command: &mut Command, input: &[u8]) -> Result<String> {
    let output = output_with_input(command, input)?;
    if !output.status.success() {
        bail!("{command:?}: {}\n{}{}", output.status, lossy(&output.stdout), lossy(&output.stderr));
    }
    Ok(lossy(&output.stdout))
}

/// As [`output`], with bytes written to standard input.
pub fn output_with_input(command: &mut Command, input: &[u8]) -> Result<Output> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot run {:?}", command.get_program()))?;
    let mut stdin = child.stdin.take().context("the child has no standard input")?;
    std::thread::scope(|scope| {
        // A program that does not read all of it is free to.
        scope.spawn(move || drop(stdin.write_all(input)));
        child.wait_with_output().context("cannot wait for the child")
    })
}

/// Bytes as text, for messages.
pub fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
