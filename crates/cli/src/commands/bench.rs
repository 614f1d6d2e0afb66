//! `bench`: the options of a run of `inlock-bench`, and its verdict as exit status.

use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use inlock_bench::Subject;

use crate::args::action::{Action, Prepared};
use crate::args::options::Options;
use crate::error::{CliError, Status};
use crate::output::{self, Existing};
use crate::ui::print::{print, print_stderr};
use inlock_open::output::Output;

pub(crate) const ACTION: Action = Action {
    name: "bench",
    aliases: &[],
    arguments: &["cipher|engine|path|latency|compare|all"],
    options: &[&["json", "report", "check", "allow-missing", "quick", "rounds", "slice-ms", "dir"]],
    about: "benchmark ciphers, I/O path, NBD servers",
    prepare: |options, mut arguments| {
        let args = BenchArgs::new(&options, &arguments.word()?)?;
        Ok(Prepared::with_status(move || run(&args)))
    },
};

/// A checked `bench`.
struct BenchArgs {
    run: inlock_bench::Options,
    /// File for the results as an HTML page.
    report: Option<PathBuf>,
    /// `--batch-mode`
    batch: bool,
    /// Whether to fail unless all thresholds are met.
    check: bool,
    /// Whether `check` accepts thresholds that were not measured.
    allow_missing: bool,
}

impl BenchArgs {
    /// Converts the options of `bench SUBJECT`.
    fn new(options: &Options, subject: &str) -> anyhow::Result<Self> {
        let Some(subject) = Subject::ALL.into_iter().find(|known| known.name() == subject) else {
            let known = Subject::ALL.map(Subject::name).join(", ");
            return Err(CliError::usage(format!("Subject '{subject}' is none of {known}.")));
        };
        let given = [
            (options.report.is_some(), "report"),
            (options.check, "check"),
            (options.allow_missing, "allow-missing"),
            (options.dir.is_some(), "dir"),
            (options.quick, "quick"),
            (options.rounds.is_some(), "rounds"),
            (options.slice_ms.is_some(), "slice-ms"),
        ];
        let refused = match subject {
            Subject::Cipher => &given[..],
            // It has rounds and slices, and neither thresholds nor files.
            Subject::Engine => &given[..4],
            _ => &[],
        };
        if let Some((_, option)) = refused.iter().find(|(given, _)| *given) {
            return Err(CliError::usage(format!("Option --{option} is not allowed with bench {}.", subject.name())));
        }
        if options.allow_missing && !options.check {
            return Err(CliError::usage("Option --allow-missing needs --check."));
        }
        if options.rounds == Some(0) || options.slice_ms == Some(0) {
            return Err(CliError::usage("Options --rounds and --slice-ms need numbers above zero."));
        }
        let mut run = inlock_bench::Options::new(subject);
        run.json = options.json;
        run.quick = options.quick;
        run.progress = !options.batch_mode;
        run.rounds = options.rounds.map(usize::from);
        run.slice = options.slice_ms.map(|millis| Duration::from_millis(millis.into()));
        if let Some(dir) = &options.dir {
            run.dir.clone_from(dir);
        }
        let (report, batch) = (options.report.clone(), options.batch_mode);
        Ok(Self { run, report, batch, check: options.check, allow_missing: options.allow_missing })
    }
}

/// Measures, prints the results, and returns the exit status.
fn run(args: &BenchArgs) -> anyhow::Result<u8> {
    // A report that cannot be written fails the run before it measures.
    let existing = Existing::Replaced { batch: args.batch };
    let mut report = args.report.as_deref().map(|path| output::take(Some(path), &[], existing)).transpose()?;
    report.as_mut().map_or(Ok(()), |report| report.begin(0))?;
    let mut page = |text: &dyn Display| match report.as_mut() {
        Some(report) => Ok(report.write(text.to_string().as_bytes())?),
        None => Ok(()),
    };
    let verdict = inlock_bench::run(&args.run, &mut |text| print(text), args.report.is_some().then_some(&mut page))?;
    report.map_or(Ok(()), Output::finish)?;
    let Some(verdict) = verdict.filter(|_| args.check) else { return Ok(0) };
    print_stderr(format_args!("inlock: {verdict}"));
    let holds = if args.allow_missing { verdict.is_met_if_measured() } else { verdict.is_met() };
    Ok(if holds { 0 } else { Status::Wrong as u8 })
}
