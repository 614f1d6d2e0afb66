//! Runs tests with one mutant active, or with none to see which mutants each test reaches.
//!
//! Each run has a directory for temporary files and, for root, a PID namespace of its own: what a mutant leaves running
//! ends with it.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

/// Address space of a test program: a mutant may ask for any amount.
const MAX_MEMORY: u64 = 12 << 30;
/// A mutant hangs if a test takes this many times as long as without it, and `MIN_TIMEOUT` more.
const TIMEOUT_FACTOR: u32 = 5;
pub(super) const MIN_TIMEOUT: Duration = Duration::from_secs(6);
/// Attempts to see a failed test fail once more.
const CONFIRMATIONS: usize = 2;
/// Time that a test may take without a mutant.
pub(super) const MAX_TIME: Duration = Duration::from_secs(600);
/// Tests that take less than each of these are tried before those that take more.
const STEPS: [Duration; 6] = [
    Duration::from_millis(40),
    Duration::from_millis(150),
    Duration::from_millis(500),
    Duration::from_millis(1500),
    Duration::from_millis(5000),
    Duration::MAX,
];

/// One test without a mutant.
pub(super) struct Test {
    program: PathBuf,
    directory: PathBuf,
    pub(super) name: String,
    time: Duration,
    reached: BTreeSet<u32>,
}

impl Test {
    pub(super) fn has_reached(&self, number: usize) -> bool {
        u32::try_from(number).is_ok_and(|number| self.reached.contains(&number))
    }
}

/// Result of a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// A test failed.
    Caught(String),
    /// A test did not end.
    Hung,
    /// All tests that reach the mutant passed.
    Survived,
    /// No test reaches it.
    NotReached,
}

enum End {
    Passed,
    Failed(String),
    Hung(String),
}

/// Runs each test of a program alone, `jobs` at a time, and records the mutants that it reaches. Records of earlier
/// runs are used if `stamp`, which is that of the build, is the same. Tests that take longer than `longest`, or fail,
/// are left out.
pub(super) fn reached(
    (program, stamp): (&Path, &str),
    directory: &Path,
    is_run: impl Fn(&str) -> bool,
    place: &Path,
    longest: Duration,
    jobs: usize,
) -> Result<Vec<Test>> {
    let name = program.file_name().and_then(|name| name.to_str()).context("a program has no name")?;
    let record = place.join("reached").join(format!("{name}.json"));
    fs::create_dir_all(place.join("reached"))?;
    let known: Option<Value> = fs::read(&record).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let known = known.filter(|known| known["stamp"] == stamp);
    let mut tests = known.and_then(|known| known["tests"].as_array().cloned()).unwrap_or_default();
    let names: Vec<String> = list(program)?.into_iter().filter(|test| is_run(test)).collect();
    tests.retain(|test| names.iter().any(|name| test["name"] == name.as_str()));
    let new: Vec<&String> =
        names.iter().filter(|name| !tests.iter().any(|known| known["name"] == name.as_str())).collect();
    println!("mutants: running each of {} tests of {name}, {} of them new", names.len(), new.len());
    let tests = Mutex::new(tests);
    in_parallel(jobs, &new, |test| {
        let Some(measured) = measure(program, directory, place, test, longest)? else { return Ok(()) };
        let mut tests = tests.lock().map_err(|_| anyhow!("another job panicked"))?;
        tests.push(measured);
        Ok(fs::write(&record, serde_json::to_vec(&json!({ "stamp": stamp, "tests": *tests }))?)?)
    })?;
    let parse = |test: &Value| {
        let reached = test["reached"].as_array()?.iter().filter_map(|n| u32::try_from(n.as_u64()?).ok()).collect();
        Some(Test {
            program: program.to_owned(),
            directory: directory.to_owned(),
            name: test["name"].as_str()?.to_owned(),
            time: Duration::from_millis(test["ms"].as_u64()?),
            reached,
        })
    };
    let tests = tests.into_inner().map_err(|_| anyhow!("a job panicked"))?;
    let tests: Result<Vec<Test>> = tests.iter().map(|test| parse(test).context("a record is damaged")).collect();
    let mut tests: Vec<Test> = tests?.into_iter().filter(|test| test.time <= longest).collect();
    // As they run.
    tests.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(tests)
}

/// Does the work for each item, for several at once, until one fails.
pub(super) fn in_parallel<T: Sync>(jobs: usize, items: &[T], work: impl Fn(&T) -> Result<()> + Sync) -> Result<()> {
    let next = AtomicUsize::new(0);
    let job = || {
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            work(item)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..jobs).map(|_| scope.spawn(job)).collect();
        jobs.into_iter().try_for_each(|job| job.join().map_err(|_| anyhow!("a job panicked"))?)
    })
}

fn list(program: &Path) -> Result<Vec<String>> {
    let output = Command::new(program).args(["--list", "--format=terse"]).output()?;
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

/// Returns nothing for a test that takes longer than `longest`, or fails each time.
fn measure(program: &Path, directory: &Path, place: &Path, test: &str, longest: Duration) -> Result<Option<Value>> {
    static FILES: AtomicUsize = AtomicUsize::new(0);
    let file = place.join(format!("reached-{}-{}", std::process::id(), FILES.fetch_add(1, Ordering::Relaxed)));
    let _ = fs::remove_file(&file);
    let mut begin = Instant::now();
    let mut attempt = || {
        begin = Instant::now();
        let variable = ("INLOCK_MUTANTS_REACHED", file.display().to_string());
        let end = run(program, directory, place, &[(test.to_owned(), longest)], variable)?;
        if matches!(end, End::Failed(_)) {
            println!("mutants: {test} failed once without a mutant");
        }
        Ok::<_, anyhow::Error>(end)
    };
    // On a busy machine a test may fail that depends on time.
    let mut end = attempt()?;
    for _ in 0..2 {
        if matches!(end, End::Failed(_)) {
            end = attempt()?;
        }
    }
    match end {
        End::Passed => {}
        End::Hung(_) if longest < MAX_TIME => return Ok(None),
        End::Failed(_) | End::Hung(_) => {
            println!("mutants: {test} fails without a mutant, and is left out");
            return Ok(None);
        }
    }
    let bytes = fs::read(&file).unwrap_or_default();
    let _ = fs::remove_file(&file);
    let reached: BTreeSet<u32> =
        bytes.chunks_exact(4).filter_map(|number| Some(u32::from_le_bytes(number.try_into().ok()?))).collect();
    Ok(Some(json!({ "name": test, "ms": begin.elapsed().as_millis() as u64, "reached": reached })))
}

/// Runs the tests that reach a mutant until one fails, short ones first. A test that does not end within `patience` and
/// the multiple of its time hangs.
pub(super) fn try_mutant(number: usize, tests: &[Test], place: &Path, patience: Duration) -> Result<Outcome> {
    let reaching: Vec<&Test> = tests.iter().filter(|test| test.has_reached(number)).collect();
    if reaching.is_empty() {
        return Ok(Outcome::NotReached);
    }
    let mut min = Duration::ZERO;
    for max in STEPS {
        let times = min..max;
        min = max;
        let batch: Vec<&Test> = reaching.iter().copied().filter(|test| times.contains(&test.time)).collect();
        for of_program in batch.chunk_by(|a, b| a.program == b.program) {
            match try_batch(number, of_program, place, patience)? {
                End::Passed => {}
                End::Failed(test) => return Ok(Outcome::Caught(test)),
                End::Hung(_) => return Ok(Outcome::Hung),
            }
        }
    }
    Ok(Outcome::Survived)
}

/// Runs tests of one program. A failure counts if the test fails once more alone, and a hang if it lasts longer: on a
/// busy machine a test may fail that depends on time.
fn try_batch(number: usize, tests: &[&Test], place: &Path, patience: Duration) -> Result<End> {
    let mut left = tests;
    while let [first, ..] = left {
        let attempt = |tests: &[&Test], patience: Duration| {
            let limit = |test: &&Test| (test.name.clone(), patience + test.time * TIMEOUT_FACTOR);
            let limits: Vec<(String, Duration)> = tests.iter().map(limit).collect();
            let variable = ("INLOCK_MUTANT", number.to_string());
            run(&first.program, &first.directory, place, &limits, variable)
        };
        let end = attempt(left, patience)?;
        let (End::Failed(name) | End::Hung(name)) = &end else { return Ok(end) };
        let Some(at) = left.iter().position(|test| test.name == *name) else { return Ok(end) };
        let (attempts, patience) =
            if matches!(end, End::Hung(_)) { (1, 3 * patience) } else { (CONFIRMATIONS, patience) };
        for _ in 0..attempts {
            let again = attempt(&left[at..=at], patience)?;
            if !matches!(again, End::Passed) {
                return Ok(again);
            }
        }
        left = &left[at + 1..];
    }
    Ok(End::Passed)
}

/// Runs tests of a program one after the other until one fails, or does not end within its limit.
fn run(
    program: &Path,
    directory: &Path,
    place: &Path,
    tests: &[(String, Duration)],
    (variable, value): (&str, String),
) -> Result<End> {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let temporary = place.join(format!("tmp-{}-{}", std::process::id(), RUNS.fetch_add(1, Ordering::Relaxed)));
    fs::create_dir_all(&temporary)?;
    let mut command = Command::new("unshare");
    // The shell waits for processes that lost their parent.
    match rustix::process::geteuid().is_root() {
        true => command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", "\"$@\"; exit $?", "sh"]),
        false => command.arg("--"),
    };
    command.args(["nice", "-n", "10", "prlimit", "--core=0"]).arg(format!("--as={MAX_MEMORY}")).arg(program);
    command.args(["--exact", "--test-threads=1"]).args(tests.iter().map(|(name, _)| name));
    command.current_dir(directory).env("TMPDIR", &temporary).env(variable, value).env("RUST_BACKTRACE", "0");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
    let mut child = command.spawn().context("cannot run unshare")?;
    let group = Pid::from_child(&child);
    let mut output = child.stdout.take().context("no pipe")?;
    let (sender, parts) = mpsc::channel();
    std::thread::spawn(move || {
        let mut part = [0; 4096];
        while let Ok(len @ 1..) = output.read(&mut part) {
            if sender.send(String::from_utf8_lossy(&part[..len]).into_owned()).is_err() {
                return;
            }
        }
    });
    let longest = tests.iter().map(|(_, limit)| *limit).max().unwrap_or_default();
    // A step counts at most that long, so that time during which all processes were stopped does not count.
    const MAX_STEP: Duration = Duration::from_millis(50);
    let (mut elapsed, mut last_step) = (Duration::ZERO, Instant::now());
    let (mut text, mut end) = (String::new(), None);
    while end.is_none() {
        let status = child.try_wait()?;
        match parts.recv_timeout(Duration::from_millis(10)) {
            Ok(part) => {
                text.push_str(&part);
                elapsed = Duration::ZERO;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(Duration::from_millis(2)),
        }
        text.extend(status.iter().flat_map(|_| parts.try_iter()));
        let running = running(&text);
        elapsed += last_step.elapsed().min(MAX_STEP);
        last_step = Instant::now();
        let limit = tests.iter().find(|(name, _)| Some(name.as_str()) == running).map_or(longest, |(_, limit)| *limit);
        end = match (text.lines().find_map(failed), status) {
            (Some(test), _) => Some(End::Failed(test)),
            (None, Some(status)) if status.success() => Some(End::Passed),
            // It crashed.
            (None, Some(status)) => Some(End::Failed(running.map_or_else(|| status.to_string(), str::to_owned))),
            (None, None) => (elapsed > limit).then(|| End::Hung(running.unwrap_or_default().to_owned())),
        };
    }
    // Also ends what the tests started. The group is gone if the program ended alone.
    let _ = kill_process_group(group, Signal::KILL);
    child.wait()?;
    let _ = fs::remove_dir_all(&temporary);
    end.context("a run has an end")
}

/// Returns the test that the output names without a result.
fn running(text: &str) -> Option<&str> {
    let (name, rest) = text.lines().next_back()?.strip_prefix("test ")?.split_once(" ... ")?;
    rest.is_empty().then_some(name)
}

/// Returns the test that a line of the output reports as failed.
fn failed(line: &str) -> Option<String> {
    line.trim_end().strip_suffix(" ... FAILED")?.strip_prefix("test ").map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Returns a script that takes the arguments of a test program.
    fn script(directory: &Path, text: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let path = directory.join("program");
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn test(program: &Path, directory: &Path, reached: &[u32]) -> Test {
        Test {
            program: program.to_owned(),
            directory: directory.to_owned(),
            name: "t".to_owned(),
            time: Duration::ZERO,
            reached: reached.iter().copied().collect(),
        }
    }

    #[test]
    fn mutant_is_tried_with_the_tests_that_reach_it() {
        let place = tempfile::tempdir().unwrap();
        let text = "[ \"$1 $3\" = '--exact t' ] || exit 3
            [ $INLOCK_MUTANT = 7 ] && echo 'test t ... FAILED' && sleep 100
            [ $INLOCK_MUTANT = 9 ] && kill -9 $$
            [ $INLOCK_MUTANT = 8 ] && echo 'test t ... ok'
            [ $INLOCK_MUTANT != 10 ] || ! mkdir ../once || echo 'test t ... FAILED'";
        let program = script(place.path(), text);
        let directory = place.path().join("crate");
        fs::create_dir(&directory).unwrap();
        let tests = [test(&program, &directory, &[7, 8, 9, 10])];
        let outcome = |number| try_mutant(number, &tests, place.path(), MIN_TIMEOUT).unwrap();
        assert_eq!(outcome(6), Outcome::NotReached);
        assert_eq!(outcome(7), Outcome::Caught("t".to_owned()), "the first failure ends the run");
        assert_eq!(outcome(8), Outcome::Survived);
        assert!(matches!(outcome(9), Outcome::Caught(_)), "a crash is a failure");
        assert_eq!(outcome(10), Outcome::Survived, "the test failed only once");
    }

    #[test]
    fn reached_mutants_are_recorded_for_each_test() {
        let place = tempfile::tempdir().unwrap();
        let text = "case $1 in --list) echo 'a: test'; echo 'b: test'; echo 'c: test'; exit;; esac
            [ $3 = a ] && printf '\\005\\000\\000\\000' >> $INLOCK_MUTANTS_REACHED
            [ $3 != c ]";
        let program = script(place.path(), text);
        let reached = |program: &Path, stamp, longest| {
            reached((program, stamp), place.path(), |name| name != "c", place.path(), longest, 2).unwrap()
        };
        for _ in 0..2 {
            let tests = reached(&program, "1", MAX_TIME);
            let found: BTreeMap<_, _> = tests.iter().map(|test| (test.name.as_str(), test.reached.clone())).collect();
            assert_eq!(found, BTreeMap::from([("a", BTreeSet::from([5])), ("b", BTreeSet::new())]));
        }
        let program = script(place.path(), "[ $1 = --list ] && echo 'a: test'");
        assert_eq!(reached(&program, "1", MAX_TIME).len(), 1, "the build has the same stamp");
        assert!(reached(&program, "2", MAX_TIME).is_empty(), "fails without a mutant");
        let program = script(place.path(), "[ $1 != --list ] && sleep 100; echo 'a: test'");
        assert!(reached(&program, "3", Duration::from_millis(200)).is_empty(), "it takes too long");
    }
}
