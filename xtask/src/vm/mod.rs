//! `cargo xtask vm`: tests that need a real kernel, each in a machine of its own that boots in seconds.
//!
//! A test is a script of the guest in `tests/vm` and, if the host has to prepare or check something, a module in
//! `host/`. The guest reports line by line over a serial port; a guest that panics, hangs or reports nothing has
//! failed, and the end of its console is printed. The last line starts with `test result:` as in Cargo's tests.

mod host;
mod initramfs;
mod kernel;
mod qemu;
mod report;
mod script;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{self, File};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use initramfs::Initramfs;
use kernel::{Flavour, Kernel};
use qemu::{End, Machine};
use report::{Outcome, Report};
use script::Script;

/// Number of console lines to print after a failure.
const CONSOLE_LINES: usize = 60;

/// Number of failures in the last lines, and the length of each: test.sh prints about forty lines of the end of a log.
const NAMED_FAILURES: usize = 30;
const NAMED_CHARS: usize = 240;
/// Number of machines at a time: one boots, waits or is checked while another computes.
const MACHINES: usize = 2;
/// Factor for the time limit of a script, since other machines use the CPUs too.
const SHARED_CPUS: u64 = 3;

/// The arguments.
#[derive(Default)]
struct Options {
    names: Vec<String>,
    list: bool,
    keep_log: bool,
    full: bool,
    seconds: Option<u64>,
    jobs: Option<usize>,
}

/// Runs the tests named in the arguments, or all of them.
pub(crate) fn run(root: &Path, target: &Path, args: &[String]) -> Result<ExitCode> {
    let options = parse(args)?;
    let scripts = scripts(&root.join("tests/vm"), &options.names)?;
    if options.list {
        for script in &scripts {
            println!("{:<12} {} MiB  {} cpus  {}", script.name, script.memory_mib, script.cpus, script.about);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let rounds = |script| (0..host::rounds(script, options.full)).map(move |round| (script, round));
    let wanted = scripts.iter().filter(|script| !options.names.is_empty() || !script.only_named);
    let mut wanted: Vec<(&Script, usize)> = wanted.flat_map(rounds).collect();
    // The longest come first, so that no machine runs alone in the end.
    wanted.sort_by_key(|(script, _)| Reverse(script.seconds));
    let mut kernels = BTreeMap::<Flavour, Kernel>::new();
    for (script, _) in &wanted {
        if let Entry::Vacant(place) = kernels.entry(script.flavour) {
            let kernel = Kernel::provide(&target.join("vm"), script.flavour)?;
            println!("vm: Linux {}", kernel.release);
            place.insert(kernel);
        }
    }
    let one = |script: &Script, round| {
        let folder = if round == 0 { script.name.clone() } else { format!("{}-{round}", script.name) };
        let folder = target.join("vm/run").join(folder);
        Run { root, script, kernel: &kernels[&script.flavour], options: &options, round, folder }.timed()
    };
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    let mut counts = BTreeMap::<String, u64>::new();
    let (mut verdicts, mut named) = (Vec::new(), Vec::new());
    for ((script, _), (report, verdict)) in wanted.iter().zip(side_by_side(machines(&options, &wanted), &wanted, one)?)
    {
        let (passes, failures, skips) = report.sums();
        (passed, failed, skipped) = (passed + passes, failed + failures, skipped + skips);
        verdicts.push(verdict);
        named.extend(report.outcomes.iter().filter_map(|outcome| failure(&script.name, outcome)));
        for (name, number) in report.counts {
            *counts.entry(name).or_default() += number;
        }
    }
    counts.insert("vm_verdicts".to_owned(), passed as u64);
    for (name, number) in counts {
        println!("COUNT {name} {number}");
    }
    for line in verdicts {
        println!("{line}");
    }
    for line in last_words(&named) {
        println!("{line}");
    }
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    // Skips were printed one per line, which is how `./test.sh` counts them.
    println!("vm: {skipped} skipped");
    println!("test result: {verdict}. {passed} passed; {failed} failed; 0 ignored");
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the number of machines to run at a time: one if a test measures, or if there is no space for all disks.
fn machines(options: &Options, wanted: &[(&Script, usize)]) -> usize {
    let alone = options.full || wanted.iter().any(|(script, _)| script.only_named);
    options.jobs.unwrap_or(if alone { 1 } else { MACHINES })
}

/// Returns the results of `one` for each test, in their order; runs `jobs` at a time. After an error no further one
/// starts.
fn side_by_side<'a, T: Send>(
    jobs: usize,
    wanted: &[(&'a Script, usize)],
    one: impl Fn(&'a Script, usize) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some((script, round)) = wanted.get(number) else { return anyhow::Ok(done) };
            let result = one(script, *round).inspect_err(|_| next.store(wanted.len(), Ordering::Relaxed))?;
            done.push((number, result));
        }
    };
    let done = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        let ends = threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
        ends.collect::<Result<Vec<_>>>()
    })?;
    let by_number: BTreeMap<usize, T> = done.into_iter().flatten().collect();
    Ok(by_number.into_values().collect())
}

/// Returns the line with the failures of the test `name`. `None`: there are none.
fn failure(name: &str, outcome: &Outcome) -> Option<String> {
    let Outcome::Fail(what, why) = outcome else { return None };
    Some(format!("vm {name}: {what} FAILED: {why}"))
}

/// Returns the failures, shortened to fit below the last line of a log whose end is printed.
fn last_words(failures: &[String]) -> Vec<String> {
    let short = |line: &String| line.chars().take(NAMED_CHARS).collect();
    let mut lines: Vec<String> = failures.iter().take(NAMED_FAILURES).map(short).collect();
    if failures.len() > NAMED_FAILURES {
        lines.push(format!("vm: and {} more, named above", failures.len() - NAMED_FAILURES));
    }
    lines
}

fn parse(args: &[String]) -> Result<Options> {
    let mut options = Options::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--list" => options.list = true,
            "--keep-log" => options.keep_log = true,
            "--full" => options.full = true,
            "--jobs" => {
                let number = args.next().context("--jobs needs a number of machines")?;
                options.jobs = Some(number.parse().with_context(|| format!("--jobs: '{number}' is no number"))?);
                ensure!(options.jobs != Some(0), "--jobs needs at least one machine");
            }
            "--timeout" => {
                let number = args.next().context("--timeout needs a number of seconds")?;
                options.seconds = Some(number.parse().with_context(|| format!("--timeout: '{number}' is no number"))?);
            }
            name if !name.starts_with('-') => options.names.push(name.to_owned()),
            other => bail!("vm has no option '{other}'"),
        }
    }
    Ok(options)
}

/// Returns the scripts of these names, or all, by name.
fn scripts(folder: &Path, names: &[String]) -> Result<Vec<Script>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        let part = ["init.sh", "lib.sh"].iter().any(|name| path.ends_with(name));
        if path.extension().is_some_and(|e| e == "sh") && !part {
            all.push(Script::load(&path)?);
        }
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some(unknown) = names.iter().find(|name| !all.iter().any(|s| s.name == **name)) {
        let known: Vec<_> = all.iter().map(|s| s.name.as_str()).collect();
        bail!("there is no vm test '{unknown}'; there are {}", known.join(", "));
    }
    all.retain(|script| names.is_empty() || names.contains(&script.name));
    Ok(all)
}

/// The files that the host prepares for a guest.
struct Scene<'a> {
    /// A directory of this run for images and notes, emptied before and removed after it.
    folder: &'a Path,
    /// Whether the full test is requested, however long it takes; and the number of this round.
    full: bool,
    round: usize,
    /// Images for the guest, in the order from `/dev/vda`; the empty disks of the script follow.
    disks: Vec<PathBuf>,
    /// Files for the guest: path without the leading `/`, and contents.
    files: Vec<(String, Vec<u8>)>,
}

/// One running test.
struct Run<'a> {
    root: &'a Path,
    script: &'a Script,
    kernel: &'a Kernel,
    options: &'a Options,
    round: usize,
    folder: PathBuf,
}

impl Run<'_> {
    /// Runs everything, and returns the report with a summary line.
    fn timed(&self) -> Result<(Report, String)> {
        let begin = Instant::now();
        let report = self.whole()?;
        let (passes, failures, skips) = report.sums();
        let verdict = if failures == 0 { "ok" } else { "FAILED" };
        let booted = report.booted.first().map_or(String::new(), |s| format!(", booted in {s} s"));
        let (name, seconds) = (&self.script.name, begin.elapsed().as_secs_f32());
        let verdict = format!(
            "vm {name}: {verdict}, {passes} passed, {failures} failed, {skips} skipped, {seconds:.0} s{booted}"
        );
        println!("{verdict}");
        Ok((report, verdict))
    }

    /// Prepares, runs, checks and prints. An error is the host's; failures in the guest are in the report.
    fn whole(&self) -> Result<Report> {
        if self.folder.exists() {
            fs::remove_dir_all(&self.folder)?;
        }
        fs::create_dir_all(&self.folder)?;
        let mut scene = Scene {
            folder: &self.folder,
            full: self.options.full,
            round: self.round,
            disks: Vec::new(),
            files: Vec::new(),
        };
        let judge = host::prepare(&self.script.name, &mut scene).with_context(|| self.script.name.clone())?;
        for (n, size) in self.script.disks.iter().enumerate() {
            let path = self.folder.join(format!("disk{n}.img"));
            File::create(&path)?.set_len(*size)?;
            scene.disks.push(path);
        }
        fs::write(self.initramfs(), self.root_file_system(&scene)?)?;
        let mut report = self.boots(&scene)?;
        if let (Some(judge), Some(0)) = (judge, report.status) {
            judge(&scene, &mut report).with_context(|| self.script.name.clone())?;
        }
        self.print(&report)?;
        Ok(report)
    }

    fn root_file_system(&self, scene: &Scene<'_>) -> Result<Vec<u8>> {
        let script = self.script;
        let mut archive = Initramfs::new()?;
        let parts = self.root.join("tests/vm");
        archive.file("init", 0o755, &fs::read(parts.join("init.sh"))?);
        archive.file("vm/lib.sh", 0o644, &fs::read(parts.join("lib.sh"))?);
        for part in fs::read_dir(parts.join("parts"))? {
            let part = part?;
            let name = format!("vm/parts/{}", part.file_name().to_string_lossy());
            archive.file(&name, 0o644, &fs::read(part.path())?);
        }
        archive.file("vm/test.sh", 0o644, script.text.as_bytes());
        archive.file("vm/modules", 0o644, script.modules.join(" ").as_bytes());
        for tool in &script.tools {
            archive.tool(tool)?;
        }
        for file in &script.files {
            archive.program_as(Path::new(file), file.trim_start_matches('/'))?;
        }
        for (name, content) in &scene.files {
            archive.file(name, 0o755, content);
        }
        archive.tree(&self.kernel.modules)?;
        Ok(archive.finish())
    }

    /// Runs the machine once, or as often as its script cuts it off, and returns a common report.
    fn boots(&self, scene: &Scene<'_>) -> Result<Report> {
        let (mut number, mut again) = (1, true);
        loop {
            let report = self.boot(scene, number)?;
            if report.booted.len() < number && again {
                // Early kernel code sometimes fails under emulation, before anything of the test runs.
                let console = text_of(&self.console());
                let last = console.lines().last().unwrap_or("nothing on its console").to_owned();
                println!("vm {}: the machine did not come up ({last}); once more", self.script.name);
                again = false;
            } else if report.booted.len() == number && report.cuts == number && number < self.script.boots {
                number += 1;
            } else {
                return Ok(report);
            }
        }
    }

    /// Runs the machine, the script's `number`th time. An abnormal exit is a failure in the report.
    fn boot(&self, scene: &Scene<'_>, number: usize) -> Result<Report> {
        let usual = (if self.options.full { 4 } else { SHARED_CPUS }) * self.script.seconds;
        let seconds = self.options.seconds.unwrap_or(usual);
        let machine = Machine {
            kernel: &self.kernel.image,
            initramfs: &self.initramfs(),
            memory_mib: self.script.memory_mib,
            cpus: self.script.cpus,
            disks: &scene.disks,
            // A parameter unknown to the kernel becomes a variable of /init.
            kernel_args: &format!("{} BOOT={number}", self.script.kernel_args),
            console: &self.console(),
            report: &self.folder.join("report.txt"),
            seconds,
        };
        let before = fs::metadata(machine.console).map_or(0, |file| file.len() as usize);
        let end = machine.run()?;
        let mut report = Report::parse(&text_of(machine.report));
        let console = text_from(machine.console, before);
        let mut wrong = |what: String| report.outcomes.push(Outcome::Fail("guest".to_owned(), what));
        if let Some(panic) = console.lines().find(|line| line.contains("Kernel panic")) {
            wrong(panic.to_owned());
        } else if end == End::TimedOut {
            wrong(format!("not done after {seconds} s"));
        } else if report.status.is_none() && (report.cuts < number || number == self.script.boots) {
            wrong("it stopped before its script came to an end".to_owned());
        } else if report.status.is_some() && number < self.script.boots {
            wrong(format!("its script came to an end in run {number}, not {}", self.script.boots));
        }
        if let Some(status) = report.status.filter(|status| *status != 0) {
            report.outcomes.push(Outcome::Fail("script".to_owned(), format!("it ends with status {status}")));
        }
        if !report.strange.is_empty() {
            let lines = report.strange.join(" | ");
            report.outcomes.push(Outcome::Fail("report".to_owned(), format!("lines that mean nothing: {lines}")));
        }
        if report.outcomes.is_empty() {
            report.outcomes.push(Outcome::Fail("report".to_owned(), "there is no verdict in it".to_owned()));
        }
        Ok(report)
    }

    fn print(&self, report: &Report) -> Result<()> {
        // Keeps the reports of concurrent machines separate.
        let _whole = std::io::stdout().lock();
        let name = &self.script.name;
        for note in &report.notes {
            println!("{note}");
        }
        let mut failed = false;
        for outcome in &report.outcomes {
            match outcome {
                Outcome::Ok(_) => {}
                Outcome::Fail(..) => {
                    failed = true;
                    println!("{}", failure(name, outcome).unwrap_or_default());
                }
                Outcome::Skip(what, why) => println!("SKIPPED: vm {name}: {what}: {why}"),
            }
        }
        if failed {
            let console = text_of(&self.console());
            let lines: Vec<&str> = console.lines().collect();
            println!("--- the end of the guest's console, {}:", self.console().display());
            for line in &lines[lines.len().saturating_sub(CONSOLE_LINES)..] {
                println!("{line}");
            }
            println!("---");
        }
        if !failed && !self.options.keep_log {
            fs::remove_dir_all(&self.folder)?;
        } else if !self.options.keep_log {
            fs::remove_file(self.initramfs())?;
        }
        Ok(())
    }

    fn initramfs(&self) -> PathBuf {
        self.folder.join("initramfs.cpio")
    }

    fn console(&self) -> PathBuf {
        self.folder.join("console.log")
    }
}

/// Returns a file of the guest as text without carriage returns; empty if it does not exist.
fn text_of(path: &Path) -> String {
    text_from(path, 0)
}

/// Returns the text of a file from byte `start` on.
fn text_from(path: &Path, start: usize) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(bytes.get(start..).unwrap_or_default()).replace('\r', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_of_failures_is_short() {
        assert_eq!(failure("boot", &Outcome::Ok("one".into())), None);
        let line = failure("boot", &Outcome::Fail("one".into(), "x".repeat(9000))).unwrap();
        assert!(line.starts_with("vm boot: one FAILED: xxx"));
        assert!(last_words(&[]).is_empty());
        let lines = last_words(&vec![line; 33]);
        assert_eq!((lines.len(), lines[0].len()), (NAMED_FAILURES + 1, NAMED_CHARS));
        assert_eq!(lines[NAMED_FAILURES], "vm: and 3 more, named above");
    }

    #[test]
    fn machines_side_by_side_report_in_order_and_stop_after_an_error() {
        let script = Script::parse("name".into(), "#: about x\n".into()).unwrap();
        let wanted: Vec<(&Script, usize)> = (0..9).map(|round| (&script, round)).collect();
        for jobs in [1, 2, 12] {
            assert_eq!(side_by_side(jobs, &wanted, |_, round| Ok(round)).unwrap(), Vec::from_iter(0..9));
        }
        let begun = AtomicUsize::new(0);
        let one = |_: &Script, round| {
            begun.fetch_add(1, Ordering::Relaxed);
            if round == 2 { bail!("the host has no room") } else { Ok(()) }
        };
        assert!(side_by_side(1, &wanted, one).is_err());
        assert_eq!(begun.into_inner(), 3);
    }

    #[test]
    fn arguments_are_read() {
        let words = ["boot", "--timeout", "7", "--full", "--keep-log"].map(str::to_owned);
        let options = parse(&words).unwrap();
        assert_eq!((options.names, options.seconds), (vec!["boot".to_owned()], Some(7)));
        assert!(options.full && options.keep_log && !options.list);
        assert_eq!(parse(&["--jobs", "3"].map(str::to_owned)).unwrap().jobs, Some(3));
        assert!(parse(&["--jobs", "0"].map(str::to_owned)).is_err());
        assert!(parse(&["--timeout".to_owned()]).is_err());
        assert!(parse(&["--what".to_owned()]).is_err());
    }
}
