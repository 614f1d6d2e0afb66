//! `inlock bench`: what the project says about its speed, measured on the machine at hand.
//!
//! [`cipher`] is about kernels, [`path`], [`cpu`] and [`latency`] about a request's way through a worker, [`compare`] about the
//! NBD server beside others. All but the first share one form: figures and bars ([`figures`]) that become text, JSON or a page.

mod cipher;
mod compare;
mod cpu;
mod environment;
mod figures;
mod fio;
mod latency;
mod page;
mod path;
mod plot;
mod scripted;
mod servers;
mod wire;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};

use crate::exit::{self, Problem, Status};
use crate::options::Options;
use figures::Results;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    Cipher,
    Path,
    Latency,
    Compare,
    /// Path, latency and compare.
    All,
}

/// A checked `bench`.
#[derive(Debug)]
pub(crate) struct BenchArgs {
    pub subject: Subject,
    pub json: bool,
    pub report: Option<PathBuf>,
    /// Whether a bar that is missed is an error, and one that was not measured, unless `allow_missing`.
    pub bars: bool,
    pub allow_missing: bool,
    pub quick: bool,
    pub batch: bool,
    pub rounds: Option<usize>,
    pub slice: Option<Duration>,
    /// Where images are made.
    pub dir: PathBuf,
}

impl BenchArgs {
    /// From the options of `bench SUBJECT`.
    pub(crate) fn new(options: &Options, subject: &str) -> anyhow::Result<Self> {
        let subject = match subject {
            "cipher" => Subject::Cipher,
            "path" => Subject::Path,
            "latency" => Subject::Latency,
            "compare" => Subject::Compare,
            "all" => Subject::All,
            other => return Err(Problem::usage(format!("bench: '{other}' is none of {SUBJECTS}."))),
        };
        let given = [
            (options.report.is_some(), "report"),
            (options.bars, "bars"),
            (options.allow_missing, "allow-missing"),
            (options.quick, "quick"),
            (options.rounds.is_some(), "rounds"),
            (options.slice_ms.is_some(), "slice-ms"),
            (options.dir.is_some(), "dir"),
        ];
        if let Some((_, option)) = given.iter().find(|(given, _)| *given && subject == Subject::Cipher) {
            return Err(Problem::usage(format!("Option --{option} is not allowed with bench cipher.")));
        }
        if options.allow_missing && !options.bars {
            return Err(Problem::usage("Option --allow-missing needs --bars."));
        }
        if options.rounds == Some(0) || options.slice_ms == Some(0) {
            return Err(Problem::usage("Options --rounds and --slice-ms need numbers above zero."));
        }
        // Where files live in memory the figures show the software and not a disk.
        let memory = PathBuf::from("/dev/shm");
        let dir = options.dir.clone().unwrap_or_else(|| if memory.is_dir() { memory } else { std::env::temp_dir() });
        Ok(Self {
            subject,
            json: options.json,
            report: options.report.clone(),
            bars: options.bars,
            allow_missing: options.allow_missing,
            quick: options.quick,
            batch: options.batch_mode,
            rounds: options.rounds.map(|rounds| rounds as usize),
            slice: options.slice_ms.map(|millis| Duration::from_millis(millis.into())),
            dir,
        })
    }

    /// How often and how long each case has its turn, from defaults in milliseconds: a full run's and a quick one's.
    fn rounds_and_slice(&self, full: (usize, u64), quick: (usize, u64)) -> (usize, Duration) {
        let (rounds, millis) = if self.quick { quick } else { full };
        (self.rounds.unwrap_or(rounds), self.slice.unwrap_or(Duration::from_millis(millis)))
    }
}

/// What may be measured, for messages.
pub(crate) const SUBJECTS: &str = "cipher, path, latency, compare, all";

/// Measures, and shows what was asked for.
pub(crate) fn run(args: &BenchArgs) -> anyhow::Result<u8> {
    if args.subject == Subject::Cipher {
        return cipher::run(args.json).map(|()| 0);
    }
    // A report that cannot be written is no reason to measure first.
    if let Some(file) = &args.report {
        std::fs::write(file, "").with_context(|| format!("cannot write {}", file.display()))?;
    }
    let mut results = Results::default();
    let wanted = |subject| args.subject == subject || args.subject == Subject::All;
    if wanted(Subject::Path) {
        path::run(args, &mut results)?;
        cpu::run(args, &mut results)?;
    }
    if wanted(Subject::Latency) {
        latency::run(args, &mut results)?;
    }
    let mut programs = Vec::new();
    if wanted(Subject::Compare) {
        compare::run(args, &mut results)?;
        programs = vec!["fio", "nbdkit", "qemu-nbd"];
    }
    let environment = environment::describe(&args.dir, &programs);
    if args.json {
        exit::print(format_args!("{:#}\n", results.json(&environment)))?;
    } else {
        for (name, value) in &environment {
            exit::print(format_args!("# {name}: {value}\n"))?;
        }
        exit::print(format_args!("\n{}", results.text()))?;
    }
    if let Some(file) = &args.report {
        let page = page::html(&results, &environment);
        std::fs::write(file, page).with_context(|| format!("cannot write {}", file.display()))?;
    }
    if !args.bars {
        return Ok(0);
    }
    let (verdict, holds) = results.verdict(args.allow_missing);
    exit::say(&format!("inlock: {verdict}"));
    Ok(if holds { 0 } else { Status::Wrong as u8 })
}

/// A line that says what is being measured, where standard error is a terminal.
struct Progress(Option<ProgressBar>);

impl Progress {
    fn new(args: &BenchArgs, steps: u64) -> Self {
        let bar = (!args.batch && std::io::stderr().is_terminal()).then(|| {
            let style = ProgressStyle::with_template("{percent:>3}% {msg}, {eta} left").ok();
            let bar = ProgressBar::new(steps);
            style.map_or_else(|| bar.clone(), |style| bar.clone().with_style(style))
        });
        Self(bar)
    }

    /// The next step begins.
    fn step(&self, what: &str) {
        if let Some(bar) = &self.0 {
            bar.set_message(what.to_owned());
            bar.inc(1);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
