//! `cargo xtask cryptsetup-tests`: runs cryptsetup's own test scripts against `inlock`.
//!
//! The scripts run unmodified, as root, each in a copy of their directory and a mount namespace
//! (`tests/cryptsetup/launch.sh`). `tests/cryptsetup/trace.sh` follows them: which steps of a script were reached, and
//! which failed. By default a failed step does not end the script, so that one run shows all of them; `--stop` lets it
//! end the script as written.

mod script;
mod trace;

use std::fs;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail, ensure};
use script::Script;
use trace::Trace;

/// Scripts that test the command line on LUKS and plain volumes.
const SCRIPTS: [&str; 22] = [
    "compat-args-test",
    "luks2-validation-test",
    "luks1-compat-test",
    "compat-test",
    "compat-test2",
    "keyring-compat-test",
    "keyring-test",
    "mode-test",
    "password-hash-test",
    "device-test",
    "discards-test",
    "align-test",
    "align-test2",
    "luks2-integrity-test",
    "integrity-compat-test",
    "verity-compat-test",
    "loopaes-test",
    "luks2-reencryption-mangle-test",
    "luks2-reencryption-test",
    "reencryption-compat-test",
    "systemd-test-plugin",
    "ssh-test-plugin",
];
/// First number of the loop devices of all runs. Each run has 20 of its own.
const LOOP_BASE: u32 = 200;

struct Options {
    tests: PathBuf,
    program: PathBuf,
    /// Whether `program` is another one than Inlock, which has a device-mapper of its own or none.
    control: bool,
    stop: bool,
    seconds: u64,
    scripts: Vec<String>,
}

/// Runs the scripts, and prints a table of their results. Fails only if a script cannot be run.
pub(crate) fn run(root: &Path, target: &Path, args: &[String]) -> Result<ExitCode> {
    let options = parse(target, args)?;
    ensure!(rustix::process::geteuid().is_root(), "the scripts need root");
    ensure!(options.program.is_file(), "{} is missing: run cargo build -p inlock-cli", options.program.display());
    let logs = target.join(if options.control { "cryptsetup-tests-control" } else { "cryptsetup-tests" });
    fs::create_dir_all(&logs)?;
    println!("| script | steps | reached | passed | first stop |\n|---|---|---|---|---|");
    for name in &options.scripts {
        let script = Script::parse(&fs::read_to_string(options.tests.join(name)).with_context(|| name.clone())?);
        let (trace, end) = run_script(root, &options, name, &logs)?;
        let passed = script.steps.iter().filter(|step| trace.has_passed(step)).count();
        let reached = script.steps.iter().filter(|step| trace.has_reached(step)).count();
        let stop = trace.first_stop(&script).unwrap_or_else(|| end.clone());
        println!("| {name} | {} | {reached} | {passed} | {stop} |", script.steps.len());
        fs::write(logs.join(format!("{name}.report")), trace.report(&script, &end))?;
    }
    println!("\nReports and logs: {}", logs.display());
    Ok(ExitCode::SUCCESS)
}

fn parse(target: &Path, args: &[String]) -> Result<Options> {
    let mut args = args.iter();
    let tests = args.next().context("usage: cargo xtask cryptsetup-tests DIR [OPTION...] [SCRIPT...]")?;
    let program = std::env::var_os("INLOCK_BIN").map_or_else(|| target.join("debug/inlock"), PathBuf::from);
    let mut options = Options {
        tests: fs::canonicalize(tests).with_context(|| tests.clone())?,
        program,
        control: false,
        stop: false,
        seconds: 1800,
        scripts: Vec::new(),
    };
    while let Some(word) = args.next() {
        let mut value = || args.next().with_context(|| format!("{word} needs a value"));
        match word.as_str() {
            "--control" => (options.control, options.program) = (true, value()?.into()),
            "--stop" => options.stop = true,
            "--seconds" => options.seconds = value()?.parse()?,
            other if other.starts_with('-') => bail!("unknown option {other}"),
            name => options.scripts.push(name.to_owned()),
        }
    }
    options.program = fs::canonicalize(&options.program).unwrap_or(options.program);
    if options.scripts.is_empty() {
        let there = SCRIPTS.iter().filter(|name| options.tests.join(name).is_file());
        options.scripts = there.map(ToString::to_string).collect();
    }
    Ok(options)
}

/// Runs one script in a copy of its directory. Returns what it did, and how it ended.
fn run_script(root: &Path, options: &Options, name: &str, logs: &Path) -> Result<(Trace, String)> {
    let dir = tempfile::Builder::new().prefix("inlock-cryptsetup-").tempdir()?;
    let work = dir.path().join("tests");
    let copied = Command::new("cp").arg("-a").args([&options.tests, &work]).status()?;
    ensure!(copied.success(), "cannot copy {}", options.tests.display());
    let ours = root.join("tests/cryptsetup");
    for program in ["differ", "crypto-check"] {
        fs::copy(ours.join(program), work.join(program))?;
    }
    let (trace, log) = (logs.join(format!("{name}.trace")), logs.join(format!("{name}.log")));
    fs::write(&trace, "")?;
    fs::write(&log, "")?;
    let output = || OpenOptions::new().append(true).open(&log);
    let status = Command::new(ours.join("launch.sh"))
        .arg(format!("./{name}"))
        .current_dir(&work)
        .env("CRYPTSETUP_PATH", ours.join("bin"))
        .env("INLOCK_UNDER_TEST", &options.program)
        .env("INLOCK_TRACE", &trace)
        .env("INLOCK_RUN", dir.path())
        .env("INLOCK_CONTINUE", if options.stop { "0" } else { "1" })
        .env("INLOCK_TIMEOUT", options.seconds.to_string())
        .env("INLOCK_LOOP_BASE", (LOOP_BASE + std::process::id() % 40 * 20).to_string())
        .env("INLOCK_REAL_GREP", real("grep")?)
        .env("INLOCK_REAL_LOSETUP", real("losetup")?)
        .env("INLOCK_REAL_DMSETUP", real("dmsetup").unwrap_or_default())
        .envs(options.control.then_some(("INLOCK_CONTROL", "1")))
        .stdin(Stdio::null())
        .stdout(output()?)
        .stderr(output()?)
        .status()
        .context("cannot run launch.sh")?;
    let end = match status.code() {
        Some(0) => "ends".to_owned(),
        Some(77) => "skips the rest".to_owned(),
        Some(124 | 137) => format!("stopped after {} s", options.seconds),
        Some(code) => format!("exit status {code}"),
        None => "killed".to_owned(),
    };
    Ok((Trace::parse(&fs::read_to_string(&trace)?), end))
}

/// Returns the path of a program of the system.
fn real(name: &str) -> Result<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let all = std::env::split_paths(&paths).chain(["/usr/sbin".into(), "/sbin".into()]);
    all.map(|dir| dir.join(name)).find(|path| path.is_file()).with_context(|| format!("{name} is not installed"))
}
