//! `cargo xtask fuzz`: libFuzzer with AddressSanitizer over the targets of `fuzz/`.
//!
//! Builds the target programs with coverage instrumentation and the address sanitizer (compiler options that
//! RUSTC_BOOTSTRAP enables on stable compilers), then runs each on its saved corpus. New inputs stay in `target/fuzz`;
//! a crashing one is copied to the corpus manually, and the stable tests run it from then on.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

use crate::metadata::cargo;
use crate::target_dir;

/// The targets, which are also the names of their programs and corpus directories.
const TARGETS: [&str; 10] = [
    "control_lines",
    "luks1_header",
    "luks2_header",
    "luks2_json",
    "nbd_server",
    "nbd_wire",
    "netlink_answer",
    "table",
    "table_pipe",
    "zoned_sidecar",
];

/// Instrumentation for libFuzzer.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cllvm-args=-sanitizer-coverage-stack-depth \
    -Zsanitizer=address -Ccodegen-units=1 -Cdebug-assertions -Coverflow-checks --cfg fuzzing";

/// Maximum memory in MiB, and maximum time in seconds, of a target for one input.
const MEMORY_MIB: u32 = 1024;
const SECONDS_AN_INPUT: u32 = 20;

/// Runs the targets named in the arguments, or all of them.
pub(crate) fn run(root: &Path, args: &[String]) -> Result<ExitCode> {
    let (mut seconds, mut jobs, mut targets) = (60u64, 1u64, Vec::new());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--seconds" => seconds = number(args.next(), "--seconds")?,
            "--jobs" => jobs = number(args.next(), "--jobs")?,
            name if TARGETS.contains(&name) => targets.push(name),
            other => bail!("'{other}' is no fuzz target; there are {}", TARGETS.join(", ")),
        }
    }
    if targets.is_empty() {
        targets.extend(TARGETS);
    }
    let folder = build(root)?;
    let mut failed = Vec::new();
    for target in &targets {
        println!("fuzz: {target} for {seconds} s");
        if !fuzz_one(root, &folder, target, seconds, jobs)? {
            failed.push(*target);
        }
    }
    if failed.is_empty() {
        println!("fuzz: {} targets, no finding", targets.len());
        return Ok(ExitCode::SUCCESS);
    }
    let place = target_dir(root).join("fuzz/artifacts");
    println!("fuzz: findings in {}; the inputs lie in {}", failed.join(", "), place.display());
    Ok(ExitCode::FAILURE)
}

fn number(word: Option<&String>, option: &str) -> Result<u64> {
    let word = word.with_context(|| format!("{option} needs a number"))?;
    word.parse().with_context(|| format!("{option}: '{word}' is no number"))
}

/// Builds the target programs, and returns their directory.
fn build(root: &Path) -> Result<std::path::PathBuf> {
    let triple = host_triple()?;
    let folder = target_dir(root).join("fuzz");
    let status = cargo(root)
        .args(["build", "--release", "--package", "inlock-fuzz", "--features", "libfuzzer", "--bins"])
        .args(["--target", &triple, "--config", "profile.release.lto=false"])
        .arg("--target-dir")
        .arg(&folder)
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", FLAGS)
        .status()
        .context("cannot run cargo")?;
    if !status.success() {
        bail!("the fuzz targets do not build");
    }
    Ok(folder.join(triple).join("release"))
}

/// Returns the host's target. Sanitizers need `--target`, so that build scripts and macros are built without them.
fn host_triple() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("cannot run rustc")?;
    let text = String::from_utf8(output.stdout).context("rustc -vV is not text")?;
    let host = text.lines().find_map(|l| l.strip_prefix("host: ")).context("rustc -vV names no host")?;
    Ok(host.to_owned())
}

fn fuzz_one(root: &Path, folder: &Path, target: &str, seconds: u64, jobs: u64) -> Result<bool> {
    let found = target_dir(root).join("fuzz/corpus").join(target);
    let artifacts = target_dir(root).join("fuzz/artifacts").join(target);
    std::fs::create_dir_all(&found)?;
    std::fs::create_dir_all(&artifacts)?;
    let mut command = Command::new(folder.join(target));
    command
        .arg(&found)
        .arg(root.join("fuzz/corpus").join(target))
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-rss_limit_mb={MEMORY_MIB}"))
        .arg(format!("-timeout={SECONDS_AN_INPUT}"))
        .arg("-max_len=65536")
        .arg("-print_final_stats=1")
        .arg(format!("-artifact_prefix={}/", artifacts.display()));
    if jobs > 1 {
        command.arg(format!("-fork={jobs}"));
    }
    Ok(command.status().with_context(|| format!("cannot run the target {target}"))?.success())
}
