//! `cargo xtask bench-servers`: throughput of Inlock beside other NBD servers, in one run.
//!
//! All servers stand ready at once on images of one size in one folder (tmpfs where there is one). Short fio runs go
//! round them in turn, the order moving on with each round, so that a noisy minute hits all of them; the table shows
//! medians over the rounds, and ratios only between numbers of the same run.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

use crate::fio::{self, LOADS, Load};
use crate::servers::{KINDS, Kind, Server};

/// What a speed bar compares, and how much faster Inlock has to be.
const BARS: [(Kind, f64); 3] = [(Kind::NbdkitLuks1, 2.0), (Kind::QemuLuks1, 3.0), (Kind::InlockRaw, 0.8)];

struct Options {
    rounds: u32,
    seconds: u32,
    size_mib: u64,
    dir: PathBuf,
    record: bool,
}

type Samples = BTreeMap<(usize, usize), Vec<f64>>;

/// Measures and prints the table; with `--record` also writes it to `benches/record`.
pub(crate) fn run(root: &Path, args: &[String]) -> Result<ExitCode> {
    let options = parse(args)?;
    let inlock = inlock_binary(root)?;
    let dir = tempfile::Builder::new().prefix("inlock-bench-").tempdir_in(&options.dir)?;
    let servers: Vec<Server> =
        KINDS.iter().map(|k| Server::start(*k, &inlock, dir.path(), options.size_mib)).collect::<Result<_>>()?;
    for server in &servers {
        fill(server, options.size_mib)?;
    }
    let mut samples = Samples::new();
    for round in 0..options.rounds as usize {
        for (l, load) in LOADS.iter().enumerate() {
            for turn in 0..servers.len() {
                let s = (turn + round) % servers.len();
                let rate = fio::bytes_a_second(&servers[s].socket, load, options.size_mib, options.seconds)?;
                samples.entry((l, s)).or_default().push(rate);
            }
        }
    }
    let table = table(&samples);
    println!("{table}");
    if options.record {
        let path = write_record(root, &options, &servers, &table)?;
        println!("written to {}", path.strip_prefix(root).unwrap_or(&path).display());
    }
    Ok(ExitCode::SUCCESS)
}

fn parse(args: &[String]) -> Result<Options> {
    let shm = PathBuf::from("/dev/shm");
    let dir = if shm.is_dir() { shm } else { std::env::temp_dir() };
    let mut options = Options { rounds: 5, seconds: 2, size_mib: 256, dir, record: false };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--quick" => (options.rounds, options.seconds, options.size_mib) = (3, 1, 128),
            "--rounds" => options.rounds = value()?.parse().context("--rounds")?,
            "--seconds" => options.seconds = value()?.parse().context("--seconds")?,
            "--dir" => options.dir = PathBuf::from(value()?),
            "--record" => options.record = true,
            other => bail!("unknown option '{other}'"),
        }
    }
    if options.rounds == 0 || options.seconds == 0 {
        bail!("--rounds and --seconds have to be at least 1");
    }
    Ok(options)
}

/// The release build of `inlock`: the one named by INLOCK_BIN, or a fresh one.
fn inlock_binary(root: &Path) -> Result<PathBuf> {
    if let Some(named) = std::env::var_os("INLOCK_BIN") {
        return Ok(named.into());
    }
    let status = Command::new(env!("CARGO"))
        .current_dir(root)
        .args(["build", "--release", "--package", "inlock-cli"])
        .status()
        .context("cannot run cargo")?;
    if !status.success() {
        bail!("inlock does not build");
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(root.join(target).join("release/inlock"))
}

/// Writes every byte once, so that no round pays for a file's first pages.
fn fill(server: &Server, size_mib: u64) -> Result<()> {
    let output = Command::new("fio")
        .args(
            fio::arguments(&server.socket, &LOADS[2], size_mib, 1)
                .iter()
                .filter(|a| !a.starts_with("--time_based") && !a.starts_with("--runtime")),
        )
        .output()
        .context("cannot run fio")?;
    if !output.status.success() {
        bail!("cannot fill {}: {}", server.kind.name(), String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

fn shown(load: &Load, rate: f64) -> String {
    if load.counts_operations {
        format!("{:.0} IOPS", rate / 4096.0)
    } else {
        format!("{:.0} MiB/s", rate / f64::from(1 << 20))
    }
}

/// The throughput table and, under it, the ratios of the speed bar.
fn table(samples: &Samples) -> String {
    let medians = |l: usize, s: usize| samples.get(&(l, s)).map_or(0.0, |rates| median(rates));
    let mut out = format!("| {:<28} |", "median of the rounds");
    for kind in KINDS {
        out += &format!(" {:>13} |", kind.name());
    }
    out += &format!("\n|{}|{}\n", "-".repeat(30), format!("{}:|", "-".repeat(14)).repeat(KINDS.len()));
    for (l, load) in LOADS.iter().enumerate() {
        out += &format!("| {:<28} |", load.name);
        for s in 0..KINDS.len() {
            out += &format!(" {:>13} |", shown(load, medians(l, s)));
        }
        out.push('\n');
    }
    out += &format!("\n| {:<28} |", "Inlock LUKS2 compared with");
    for (kind, bar) in BARS {
        out += &format!(" {:>22} |", format!("{} (bar {bar})", kind.name()));
    }
    out += &format!("\n|{}|{}\n", "-".repeat(30), format!("{}:|", "-".repeat(23)).repeat(BARS.len()));
    for (l, load) in LOADS.iter().enumerate() {
        out += &format!("| {:<28} |", load.name);
        for (kind, bar) in BARS {
            let column = KINDS.iter().position(|k| *k == kind).expect("every bar names a measured kind");
            let ratio = medians(l, 0) / medians(l, column);
            let verdict = if ratio >= bar { "" } else { " missed" };
            out += &format!(" {:>22} |", format!("{ratio:.2}{verdict}"));
        }
        out.push('\n');
    }
    out
}

fn write_record(root: &Path, options: &Options, servers: &[Server], table: &str) -> Result<PathBuf> {
    let date = first_line(Command::new("date").arg("+%Y-%m-%d"))?;
    let commit = first_line(Command::new("git").current_dir(root).args(["rev-parse", "--short", "HEAD"]))
        .unwrap_or_else(|_| "unknown".into());
    let mut text = format!("# NBD servers beside each other, {date}\n\n{table}\n## How\n\n");
    text += &format!(
        "`cargo xtask bench-servers --rounds {} --seconds {} --record` at commit {commit}: {} rounds of {} s for each \
         cell, interleaved, images of {} MiB in {}, one connection over a unix socket.\n\n",
        options.rounds,
        options.seconds,
        options.rounds,
        options.seconds,
        options.size_mib,
        options.dir.display()
    );
    let cpu = proc_field("/proc/cpuinfo", "model name");
    let flags = proc_field("/proc/cpuinfo", "flags");
    let wanted = ["aes", "vaes", "vpclmulqdq", "avx2", "avx512f"];
    let present: Vec<&str> = flags.split_whitespace().filter(|f| wanted.contains(f)).collect();
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    text += &format!("- CPU: {cpu}, {cpus} usable; {}\n", present.join(" "));
    text += &format!("- Kernel: {}\n", first_line(Command::new("uname").arg("-sr"))?);
    for program in ["fio", "nbdkit", "qemu-nbd"] {
        text += &format!("- {}\n", first_line(Command::new(program).arg("--version"))?);
    }
    text += "\nServers:\n\n";
    for server in servers {
        text += &format!("    {}\n", server.command_line);
    }
    text += "\nLoads:\n\n";
    for load in &LOADS {
        let words = fio::arguments(Path::new("SOCKET"), load, options.size_mib, options.seconds);
        text += &format!("    fio {}\n", words.join(" "));
    }
    let folder = root.join("benches/record");
    fs::create_dir_all(&folder)?;
    let path = folder.join(format!("{date}-servers.md"));
    fs::write(&path, text)?;
    Ok(path)
}

fn first_line(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {:?}", command.get_program()))?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned())
}

fn proc_field(file: &str, field: &str) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find(|l| l.starts_with(field)).and_then(|l| l.split_once(':'));
    line.map_or_else(|| "unknown".to_owned(), |(_, value)| value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_ignores_one_bad_round() {
        assert_eq!(median(&[10.0, 11.0, 0.1, 10.5, 90.0]), 10.5);
    }

    #[test]
    fn a_missed_bar_is_said() {
        let mut samples = Samples::new();
        for l in 0..LOADS.len() {
            for (s, rate) in [3.0, 2.0, 1.0, 2.0].into_iter().enumerate() {
                samples.insert((l, s), vec![rate * 1e9]);
            }
        }
        let text = table(&samples);
        assert_eq!(text.matches("1.50 missed").count(), LOADS.len(), "{text}");
        assert!(text.contains("3.00 |"), "{text}");
        assert_eq!(text.matches("missed").count(), LOADS.len(), "{text}");
    }

    #[test]
    fn options_are_checked() {
        assert!(parse(&["--rounds".into(), "0".into()]).is_err());
        assert!(parse(&["--what".into()]).is_err());
        assert!(parse(&["--seconds".into()]).is_err());
        assert!(parse(&["--quick".into()]).is_ok_and(|o| o.rounds == 3 && !o.record));
    }
}
