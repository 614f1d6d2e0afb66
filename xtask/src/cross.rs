//! `cargo xtask cross`: type-checks the shipped crates for other CPUs.
//!
//! Where rustup has a target, its library is taken. Elsewhere Debian's compiler and the library's source are unpacked
//! under `target/cross`, without installing them, and the library is built from source once for each target.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use inlock_tests::process::{output, program, text};
use inlock_tests::report::skipped;

use crate::target_dir;

/// One with other instructions, and one with numbers of 32 bits.
const TARGETS: [&str; 2] = ["aarch64-unknown-linux-gnu", "i686-unknown-linux-gnu"];

/// The shipped package. The tests are written for the machine that runs them.
const PACKAGE: &str = "inlock-cli";

/// Checks every target, or those named in the arguments.
pub(crate) fn run(root: &Path, args: &[String]) -> Result<ExitCode> {
    let targets: Vec<&str> = if args.is_empty() { TARGETS.to_vec() } else { args.iter().map(String::as_str).collect() };
    let mut failed = 0;
    let mut checked = 0;
    for target in targets {
        let Some(mut cargo) = cargo(root, target)? else {
            skipped(format!("no Rust library for {target} can be had here"));
            continue;
        };
        cargo.current_dir(root).args(["check", "--quiet", "--package", PACKAGE, "--target", target]);
        cargo.arg("--target-dir").arg(target_dir(root).join("cross/build"));
        // A warning on one target only is not seen elsewhere. The crate io-uring does not vouch for its
        // structures on targets of 32 bits; types are all that is checked here.
        cargo.env("RUSTFLAGS", "-Dwarnings --cfg=io_uring_skip_arch_check");
        let passed = cargo.status().context("cannot run cargo")?.success();
        println!("cross: {target}: {}", if passed { "ok" } else { "FAILED" });
        failed += usize::from(!passed);
        checked += usize::from(passed);
    }
    println!("COUNT targets_checked {checked}");
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Cargo with a compiler that has, or can build, the target's library. None where there is neither.
fn cargo(root: &Path, target: &str) -> Result<Option<Command>> {
    let mut cargo = Command::new(env!("CARGO"));
    let library = text(program("rustc").args(["--print", "target-libdir", "--target", target]))?;
    if Path::new(library.trim()).is_dir() {
        return Ok(Some(cargo));
    }
    let place = target_dir(root).join("cross");
    let Some(compiler) = debian_compiler(&place)? else { return Ok(None) };
    cargo.env("RUSTC", compiler).env("RUSTC_BOOTSTRAP", "1").arg("-Zbuild-std=std,panic_abort");
    Ok(Some(cargo))
}

/// The compiler of Debian's `rustc-web` under `place`, downloaded if it is not there. None: apt does not have it.
fn debian_compiler(place: &Path) -> Result<Option<PathBuf>> {
    let folder = place.join("compiler");
    let run = folder.join("rustc");
    if !run.is_file() {
        fs::create_dir_all(place)?;
        let unfinished = tempfile::tempdir_in(place)?;
        if !unpack(unfinished.path())? {
            return Ok(None);
        }
        // Two that begin at once make the same.
        if fs::rename(unfinished.path(), &folder).is_err() {
            ensure!(run.is_file(), "cannot put the compiler to {}", folder.display());
        }
    }
    Ok(Some(run))
}

/// Fills `folder` with the packages' files, and `rustc`, a script that runs the compiler with its libraries.
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

/// `rustc-web`, the source of its library, and what it is linked with, of the version that apt has.
fn packages() -> Result<Option<Vec<String>>> {
    let depends = |package: &str| output(program("apt-cache").args(["depends", package]));
    let mut wanted = vec!["rustc-web".to_owned(), "rust-web-src".to_owned(), "libstd-rust-web-dev".to_owned()];
    let Ok(library) = depends("libstd-rust-web-dev") else { return Ok(None) };
    let Some(library) = dependency(&library.stdout, "libstd-rust-web-") else { return Ok(None) };
    let llvm = dependency(&depends(&library)?.stdout, "libllvm").context("the compiler depends on no LLVM")?;
    wanted.extend([library, llvm]);
    Ok(Some(wanted))
}

/// The package whose name begins so, from the output of `apt-cache depends`.
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
