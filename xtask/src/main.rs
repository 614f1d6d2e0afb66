//! Repository chores, run as `cargo xtask CHORE`.
//!
//! `tidy` checks the layout rules, `fuzz` runs libFuzzer on the targets of `fuzz/`, `bench-record` stores benchmark
//! results, `miri` interprets tests of `unsafe` code, `soak` serves many connections for minutes, `vm` runs the tests
//! that need a real kernel, `ci` runs the checks of a push. This crate is not shipped.

mod bench_record;
mod cross;
mod cryptsetup_tests;
mod dependencies;
mod faults;
mod features;
mod floors;
mod fuzz;
mod header_proof;
mod metadata;
mod miri;
mod mutants;
mod public_api;
mod soak;
mod tidy;
mod vm;
mod zones;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

const USAGE: &str = "usage: cargo xtask CHORE
  tidy                                   check crate arrows, module circles, unsafe, lengths, wording
  features [--tests]                     check each crate with no feature, each alone, and all
  dependencies                           check that no dependency needs a newer Rust; cargo deny check
  public-api [--update]                  compare the public API of the libraries with docs/api
  floors                                 raise tests/floors.txt to the last full run's counts minus 5 %
  cross [TARGET...]                      type-check for other CPUs: aarch64, and one of 32 bits
  fuzz [--seconds N] [--jobs N] [TARGET] run libFuzzer on one target, or on all, 60 seconds each by default
  mutants [--sample N] [--survivors] [--list] [GROUP...] [REGEX...]
                                         mutate the code of volume, engine and nbd, and check that tests fail
  miri                                   run the tests of `unsafe` code that Miri can interpret
  bench-record [ARGUMENT...]             run `inlock bench all` and store the results in benches/record
  soak [--minutes N | --seconds N] [--connections N] [--stall-seconds N] [--dir DIR]
                                         64 connections, mixed sizes, 5 minutes: no error, no stall, no growth
  vm [--list] [--keep-log] [--full] [--timeout SECONDS] [TEST...]
                                         boot a kernel under QEMU and run the tests of tests/vm in it
  cryptsetup-tests DIR [--stop] [--seconds N] [--control PROGRAM] [SCRIPT...]
                                         run cryptsetup's test scripts in DIR against inlock, or PROGRAM
  header-proof                           run the tests of changed and broken headers with all their cases
  zones WHAT                             run in guests of `vm`: requests to zoned devices
  faults WHAT DISK                       run in guests of `vm`: tests of storage that loses writes
  ci                                     run the checks of a push: ./test.sh";

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode> {
    let mut args = std::env::args().skip(1);
    let chore = args.next();
    let rest: Vec<String> = args.collect();
    let root = workspace_root()?;
    match chore.as_deref() {
        Some("tidy") => tidy::run(&root),
        Some("fuzz") => fuzz::run(&root, &rest),
        Some("mutants") => mutants::run(&root, &rest),
        Some("features") => features::run(&root, &rest),
        Some("public-api") => public_api::run(&root, &rest),
        Some("floors") => floors::run(&root),
        Some("dependencies") => dependencies::run(&root),
        Some("cross") => cross::run(&root, &rest),
        Some("bench-record") => bench_record::run(&root, &rest),
        Some("miri") => miri::run(&root),
        Some("soak") => soak::run(&rest),
        Some("vm") => vm::run(&root, &target_dir(&root), &rest),
        Some("cryptsetup-tests") => cryptsetup_tests::run(&root, &target_dir(&root), &rest),
        Some("header-proof") => header_proof::run(&root),
        Some("zones") => zones::run(&rest),
        Some("faults") => faults::run(&rest),
        Some("ci") => {
            let status = Command::new(root.join("test.sh")).args(rest).status().context("cannot run test.sh")?;
            Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Some("help" | "--help" | "-h") => {
            println!("{USAGE}");
            Ok(ExitCode::SUCCESS)
        }
        Some(other) => bail!("unknown chore '{other}'\n{USAGE}"),
        None => bail!("no chore given\n{USAGE}"),
    }
}

/// Returns the words of [`USAGE`] that `cargo xtask` accepts.
fn chores() -> Vec<&'static str> {
    let lines = USAGE.lines().filter_map(|line| line.strip_prefix("  ")).filter(|line| !line.starts_with(' '));
    lines.filter_map(|line| line.split(' ').next()).collect()
}

/// Returns Cargo's build directory.
fn target_dir(root: &Path) -> PathBuf {
    root.join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// Returns the directory of the workspace, relative to this crate's manifest.
fn workspace_root() -> Result<PathBuf> {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    Ok(here.parent().context("xtask has no parent directory")?.to_path_buf())
}
