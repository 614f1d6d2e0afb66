//! `cargo xtask cross`: type-checks the command for other CPUs, and the libraries without I/O for other systems.
//!
//! A target of rustup is used if it is installed. Otherwise Debian's compiler and the source of the library are
//! unpacked in `target/cross`, without installing them, and the library is built once for each target. A dependency
//! (`ring`) compiles C, which needs Debian's packages gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and libc6-dev-i386.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use inlock_tests::process::{output, program, text};
use inlock_tests::report::skipped;

use crate::{metadata, target_dir};

/// The shipped package. The tests are written for x86-64 Linux.
const COMMAND: &[&str] = &["inlock-cli"];

/// Libraries that need no Linux.
const LIBRARIES: &[&str] = &["inlock-cipher", "inlock-volume"];

/// Targets, and what is checked for them: another instruction set, 32 bits, other systems, none.
const TARGETS: [(&str, &[&str]); 6] = [
    ("aarch64-unknown-linux-gnu", COMMAND),
    ("i686-unknown-linux-gnu", COMMAND),
    ("x86_64-pc-windows-msvc", LIBRARIES),
    ("aarch64-apple-darwin", LIBRARIES),
    ("wasm32-wasip1", LIBRARIES),
    ("wasm32-unknown-unknown", LIBRARIES),
];

/// Flags of the compiler for all targets. Warnings may occur on one target only. The crate io-uring does not guarantee
/// its structures on targets of 32 bits, and WebAssembly without a system has no random numbers, but only types are
/// checked here.
const FLAGS: &str = "-Dwarnings --cfg=io_uring_skip_arch_check";
const FLAGS_WITHOUT_SYSTEM: &str = "-Dwarnings --cfg=getrandom_backend=\"unsupported\"";

/// Checks every target, or those named in the arguments.
pub(crate) fn run(root: &Path, args: &[String]) -> Result<ExitCode> {
    let unknown = args.iter().find(|arg| TARGETS.iter().all(|(target, _)| target != arg));
    ensure!(unknown.is_none(), "the targets are {}", TARGETS.map(|(target, _)| target).join(", "));
    let mut failed = 0;
    let mut checked = 0;
    for (target, packages) in
        TARGETS.iter().filter(|(target, _)| args.is_empty() || args.iter().any(|arg| arg == target))
    {
        let Some(mut cargo) = cargo(root, target)? else {
            skipped(format!("no Rust library for {target} can be had here"));
            continue;
        };
        cargo.args(["check", "--quiet", "--target", target]);
        cargo.args(packages.iter().flat_map(|package| ["--package", package]));
        cargo.arg("--target-dir").arg(target_dir(root).join("cross/build"));
        cargo.env("RUSTFLAGS", if target.ends_with("unknown-unknown") { FLAGS_WITHOUT_SYSTEM } else { FLAGS });
        let passed = cargo.status().context("cannot run cargo")?.success();
        println!("cross: {target}: {}", if passed { "ok" } else { "FAILED" });
        failed += usize::from(!passed);
        checked += usize::from(passed);
    }
    println!("COUNT targets_checked {checked}");
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns cargo with a compiler that has, or can build, the target's library. `None`: there is no such compiler.
fn cargo(root: &Path, target: &str) -> Result<Option<Command>> {
    let mut cargo = metadata::cargo(root);
    let library = text(program("rustc").args(["--print", "target-libdir", "--target", target]))?;
    if Path::new(library.trim()).is_dir() {
        return Ok(Some(cargo));
    }
    let place = target_dir(root).join("cross");
    let Some(compiler) = debian_compiler(&place)? else { return Ok(None) };
    cargo.env("RUSTC", compiler).env("RUSTC_BOOTSTRAP", "1").arg("-Zbuild-std=std,panic_abort");
    Ok(Some(cargo))
}

/// Returns the compiler of Debian's `rustc-web` in `place`, downloaded if needed. `None`: apt does not have it.
fn debian_compiler(place: &Path) -> Result<Option<PathBuf>> {
    let folder = place.join("compiler");
    let run = folder.join("rustc");
    if !run.is_file() {
        fs::create_dir_all(place)?;
        let unfinished = tempfile::tempdir_in(place)?;
        if !unpack(unfinished.path())? {
            return Ok(None);
        }
        // Another process may have created the same.
        if fs::rename(unfinished.path(), &folder).is_err() {
            ensure!(run.is_file(), "cannot put the compiler to {}", folder.display());
        }
    }
    Ok(Some(run))
}

/// Fills `folder` with the files of the packages, and `rustc`, a script that runs the compiler with its libraries.
fn unpack(folder: &Path) -> Result<bool> {
    let Some(packages) = packages()? else { return Ok(false) };
    let downloaded = output(program("apt-get").args(["download", "-qq"]).args(&packages).current_dir(folder))?;
    if !downloaded.status.success() {
        return Ok(false);
    }
    for entry in fs::read_dir(folder)? {
        let archive = entry?.path();
        text(program("dpkg-deb").arg("-x").arg(&archive).arg(folder))?;
        fs::remove_file(archive)?;
    }
    let run = folder.join("rustc");
    let script = "#!/bin/sh\n\
                  here=$(dirname \"$0\")\n\
                  LD_LIBRARY_PATH=$here/usr/lib/$(uname -m)-linux-gnu exec \"$here/usr/bin/rustc\" \"$@\"\n";
    fs::write(&run, script)?;
    fs::set_permissions(&run, fs::Permissions::from_mode(0o755))?;
    Ok(true)
}

/// Returns `rustc-web`, the source of its library and its dependencies, in the version that apt has.
fn packages() -> Result<Option<Vec<String>>> {
    let depends = |package: &str| output(program("apt-cache").args(["depends", package]));
    let mut wanted = vec!["rustc-web".to_owned(), "rust-web-src".to_owned(), "libstd-rust-web-dev".to_owned()];
    let Ok(library) = depends("libstd-rust-web-dev") else { return Ok(None) };
    let Some(library) = dependency(&library.stdout, "libstd-rust-web-") else { return Ok(None) };
    let llvm = dependency(&depends(&library)?.stdout, "libllvm").context("the compiler depends on no LLVM")?;
    wanted.extend([library, llvm]);
    Ok(Some(wanted))
}

/// Returns the package with this prefix in the output of `apt-cache depends`.
fn dependency(listed: &[u8], begins: &str) -> Option<String> {
    let listed = String::from_utf8_lossy(listed);
    let mut names = listed.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    names.find(|name| name.starts_with(begins)).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependency_is_found_by_prefix() {
        let listed =
            b"libstd-rust-web-dev\n  Depends: libc6\n  Depends: libstd-rust-web-1.96\n  Conflicts: libstd-rust-web-x\n";
        assert_eq!(dependency(listed, "libstd-rust-web-").as_deref(), Some("libstd-rust-web-1.96"));
        assert_eq!(dependency(listed, "libllvm"), None);
    }
}
