//! `cargo xtask mutants`: runs cargo-mutants on the code behind the guarantees, and compares survivors with
//! docs/mutants.md.
//!
//! Each mutant is tried with the unit tests, which take a second; those that survive are tried with all tests of the
//! group. With `--survivors`, only those that survived the last run are tried again. Mutants are built in a copy of the
//! tree in `target/mutants`, so that work on the tree can continue. An interrupted run without `--shard` is continued:
//! caught mutants are not repeated until `target/mutants/results` is removed. Names are compared without lines and
//! columns, which move.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};
use inlock_tests::process::{output, program, text};

use crate::target_dir;

/// The list of survivors that no test can distinguish from the code, each with the reason.
const EXPLAINED: &str = "docs/mutants.md";
/// Percentage of mutants that may survive without a reason.
const UNEXPLAINED_PERCENT: usize = 3;

/// Code that is mutated together and checked by the same tests.
struct Group {
    name: &'static str,
    package: &'static str,
    files: &'static [&'static str],
    /// Arguments after `cargo test --package PACKAGE`.
    tests: &'static [&'static str],
}

const GROUPS: [Group; 3] = [
    Group {
        name: "volume",
        package: "inlock-volume",
        files: &[
            "crates/volume/src/**/unlock.rs",
            "crates/volume/src/**/validate.rs",
            "crates/volume/src/**/commit.rs",
        ],
        tests: &["--lib", "--test", "it"],
    },
    Group {
        name: "engine",
        package: "inlock-engine",
        files: &[
            "crates/engine/src/worker.rs",
            "crates/engine/src/worker/**/*.rs",
            "crates/engine/src/ring/*.rs",
            "crates/engine/src/locks.rs",
            "crates/engine/src/rmw.rs",
            "crates/engine/src/device.rs",
            "crates/engine/src/freeze.rs",
            "crates/engine/src/zone_queue/*.rs",
        ],
        tests: &["--lib", "--test", "it"],
    },
    Group {
        name: "nbd",
        package: "inlock-frontend",
        files: &["crates/frontend/src/nbd/*.rs"],
        tests: &["--lib", "--test", "it"],
    },
];

/// List of the mutants that no test noticed, in a directory of results.
const MISSED: &str = "mutants.out/missed.txt";

/// Mutants of a run.
enum Which<'a> {
    Wanted(&'a Wanted),
    /// The mutants with these names.
    Named(&'a [String]),
}

/// Arguments of the command line.
#[derive(Debug, Default, PartialEq)]
struct Wanted {
    groups: Vec<&'static str>,
    /// `K/N`: every N-th mutant, starting with number K.
    shard: Option<String>,
    /// Try only the survivors of the last run, with all tests of the group.
    survivors: bool,
    /// Regular expressions; a mutant must match one of them.
    filters: Vec<String>,
}

impl Wanted {
    fn parse(args: &[String]) -> Result<Self> {
        let mut wanted = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--shard" => wanted.shard = Some(args.next().context("--shard needs K/N")?.clone()),
                "--survivors" => wanted.survivors = true,
                option if option.starts_with('-') => bail!("'{option}' is no option of mutants"),
                word => match GROUPS.iter().find(|group| group.name == word) {
                    Some(group) => wanted.groups.push(group.name),
                    None => wanted.filters.push(word.to_owned()),
                },
            }
        }
        if wanted.groups.is_empty() {
            wanted.groups.extend(GROUPS.iter().map(|group| group.name));
        }
        Ok(wanted)
    }
}

/// Runs the mutants of the groups named in the arguments, or all, and judges the survivors.
pub(crate) fn run(root: &Path, args: &[String]) -> Result<ExitCode> {
    let wanted = Wanted::parse(args)?;
    let place = target_dir(root).join("mutants");
    let copy = place.join("tree");
    copy_tree(root, &copy)?;
    let mut verdict = Verdict::default();
    for group in GROUPS.iter().filter(|group| wanted.groups.contains(&group.name)) {
        let results = place.join("results").join(group.name);
        let (quick, full) = (results.join("quick"), results.join("full"));
        let again = match wanted.survivors {
            true => lines(&full.join(MISSED))?,
            false => {
                mutate(&copy, &place, &quick, group, Which::Wanted(&wanted), &["--lib"])?;
                lines(&quick.join(MISSED))?
            }
        };
        if !again.is_empty() {
            mutate(&copy, &place, &full, group, Which::Named(&again), group.tests)?;
        }
        verdict.add(&quick, &full)?;
    }
    let explained = explained(&fs::read_to_string(root.join(EXPLAINED)).with_context(|| format!("no {EXPLAINED}"))?);
    Ok(verdict.report(&explained))
}

/// Copies the files under version control to `copy`, and keeps build output there.
fn copy_tree(root: &Path, copy: &Path) -> Result<()> {
    let listed = text(program("git").arg("-C").arg(root).args([
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]))?;
    let names: BTreeSet<&str> = listed.split('\0').filter(|name| root.join(name).is_file()).collect();
    ensure!(names.contains("Cargo.toml"), "version control lists no Cargo.toml");
    for name in &names {
        let (from, to) = (root.join(name), copy.join(name));
        let bytes = fs::read(&from)?;
        // An unchanged file keeps its modification time, so that it is not rebuilt.
        if fs::read(&to).ok().as_ref() != Some(&bytes) {
            fs::create_dir_all(to.parent().context("a file lies in no directory")?)?;
            fs::write(&to, bytes)?;
            fs::set_permissions(&to, fs::metadata(&from)?.permissions())?;
        }
    }
    remove_others(copy, copy, &names)
}

/// Removes files in `directory` that are not listed, relative to `copy`.
fn remove_others(copy: &Path, directory: &Path, names: &BTreeSet<&str>) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(copy, &path, names)?;
        } else if !path.strip_prefix(copy)?.to_str().is_some_and(|name| names.contains(name)) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// Runs cargo-mutants on one group, which writes its results to `results`.
fn mutate(copy: &Path, place: &Path, results: &Path, group: &Group, which: Which<'_>, tests: &[&str]) -> Result<()> {
    fs::create_dir_all(results)?;
    let mut command = Command::new("cargo");
    command.args(["mutants", "--in-place", "--no-shuffle", "--colors=never", "--caught", "--line-col=true"]);
    command.arg("--dir").arg(copy).arg("--output").arg(results);
    command.args(["--package", group.package, "--test-package", group.package]);
    // A mutant that makes a test hang is caught by the timeout. Without a mutation, the tests take minutes on a busy
    // machine.
    let timeout = if tests == ["--lib"] { "30" } else { "120" };
    command.args(["--minimum-test-timeout", timeout, "--timeout-multiplier", "3"]);
    command.args(["--exclude-re", "<impl .*Debug for"]);
    // nextest stops at the first failing test, which saves half of the time.
    if output(program("cargo-nextest").arg("--version")).is_ok_and(|found| found.status.success()) {
        command.arg("--test-tool=nextest");
    }
    for file in group.files {
        command.args(["--file", file]);
    }
    match which {
        Which::Wanted(wanted) => {
            for filter in &wanted.filters {
                command.args(["--re", filter]);
            }
            match &wanted.shard {
                Some(shard) => command.args(["--sharding=round-robin", "--shard", shard]),
                // Of a shard, iterating would leave out the caught ones before it takes every N-th.
                None => command.arg("--iterate"),
            };
        }
        Which::Named(names) => {
            for name in names {
                command.args(["--re", &pattern(name)]);
            }
        }
    }
    command.arg("--").args(tests);
    command.env("CARGO_TARGET_DIR", place.join("build"));
    let status = command.status().context("cannot run cargo-mutants: cargo install --locked cargo-mutants")?;
    match status.code() {
        // All caught; some missed; some timed out: the lists have the details.
        Some(0 | 2 | 3) => Ok(()),
        _ => bail!("cargo-mutants over {} ended with {status}", group.name),
    }
}

/// Results of the mutants.
#[derive(Debug, Default)]
struct Verdict {
    caught: BTreeSet<String>,
    survived: BTreeSet<String>,
}

impl Verdict {
    /// Adds the results of a group: of the unit tests, and of all its tests, which decide on what those missed.
    fn add(&mut self, quick: &Path, full: &Path) -> Result<()> {
        for results in [quick, full] {
            // A mutant that makes a test hang is caught like one that makes it fail.
            for list in ["caught.txt", "timeout.txt", "previously_caught.txt"] {
                self.caught.extend(lines(&results.join("mutants.out").join(list))?);
            }
        }
        self.survived.extend(lines(&full.join(MISSED))?);
        Ok(())
    }

    /// Prints survivors without a reason, and reasons for mutants that are caught.
    fn report(&self, explained: &BTreeMap<String, String>) -> ExitCode {
        let unexplained: Vec<_> = self.survived.iter().filter(|name| !explained.contains_key(&bare(name))).collect();
        for name in &unexplained {
            println!("mutants: survived: {name}");
        }
        let caught: BTreeSet<String> = self.caught.iter().map(|name| bare(name)).collect();
        let survived: BTreeSet<String> = self.survived.iter().map(|name| bare(name)).collect();
        let stale: Vec<_> =
            explained.keys().filter(|name| caught.contains(*name) && !survived.contains(*name)).collect();
        for name in &stale {
            println!("mutants: {EXPLAINED} excuses one that is caught: {name}");
        }
        let all = self.caught.len() + self.survived.len();
        println!(
            "mutants: {all} tried, {} caught, {} survived, {} of them without a reason",
            self.caught.len(),
            self.survived.len(),
            unexplained.len()
        );
        let few = unexplained.len() * 100 <= all * UNEXPLAINED_PERCENT;
        if all > 0 && few && stale.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Returns the lines of a list, which may not exist.
fn lines(path: &Path) -> Result<Vec<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Returns a regular expression for the mutants with this name at any line and column.
fn pattern(name: &str) -> String {
    let name = bare(name);
    let (file, change) = name.split_once(':').unwrap_or((&name, ""));
    format!(r"^{}:\d+:\d+:{}$", regex_lite::escape(file), regex_lite::escape(change))
}

/// Returns a mutant's name without line and column: `FILE: change`.
fn bare(name: &str) -> String {
    let mut parts = name.splitn(4, ':');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(file), Some(_), Some(_), Some(change)) => format!("{file}:{change}"),
        _ => name.to_owned(),
    }
}

/// Parses the rows of the table: a mutant's name without line and column, in backticks, and the reason why no test can
/// detect it.
fn explained(markdown: &str) -> BTreeMap<String, String> {
    let rows = markdown.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    let reason =
        |(name, rest): (&str, &str)| (name.replace("\\|", "|"), rest.trim().trim_end_matches('|').trim().to_owned());
    rows.map(reason).filter(|(_, reason)| !reason.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutant_name_has_no_line_and_column() {
        let name = "crates/volume/src/luks2/commit.rs:33:9: replace Luks2::commit -> Result<(), E> with Ok(())";
        assert_eq!(bare(name), "crates/volume/src/luks2/commit.rs: replace Luks2::commit -> Result<(), E> with Ok(())");
        assert_eq!(bare(name), bare(&name.replace("33:9", "40:1")));
        assert_eq!(bare("no place"), "no place");
    }

    #[test]
    fn pattern_of_a_name_matches_it_at_any_line() {
        let name = "crates/a.rs:33:9: replace f -> Result<(), E> with Ok(()) [x]";
        let pattern = regex_lite::Regex::new(&pattern(name)).unwrap();
        assert!(pattern.is_match(name) && pattern.is_match(&name.replace("33:9", "4:10")));
        assert!(!pattern.is_match(&name.replace("Ok", "No")) && !pattern.is_match(&name.replace(".rs", "xrs")));
    }

    #[test]
    fn survivor_without_reason_is_not_excused() {
        let table =
            "| mutant | why |\n|---|---|\n| `a.rs: replace \\|\\| with &&` | both are true |\n| `b.rs: x` | |\n";
        let found = explained(table);
        assert_eq!(found.keys().collect::<Vec<_>>(), ["a.rs: replace || with &&"]);
    }

    #[test]
    fn verdict_counts_survivors_without_a_reason() {
        let name = |n: usize| format!("a.rs:{n}:1: replace f{n}");
        let verdict = |survivors: usize| Verdict {
            caught: (survivors..100).map(name).collect(),
            survived: (0..survivors).map(name).collect(),
        };
        let none = BTreeMap::new();
        let passes = |survivors: usize, explained: &BTreeMap<String, String>| {
            format!("{:?}", verdict(survivors).report(explained)) == format!("{:?}", ExitCode::SUCCESS)
        };
        assert!(passes(3, &none));
        assert!(!passes(4, &none));
        assert!(passes(4, &BTreeMap::from([("a.rs: replace f0".to_owned(), "the same".to_owned())])));
        assert!(!passes(3, &BTreeMap::from([("a.rs: replace f99".to_owned(), "stale".to_owned())])), "a stale reason");
        assert!(!format!("{:?}", Verdict::default().report(&none)).contains("(0)"), "nothing tried is no success");
    }

    #[test]
    fn arguments_name_groups_and_filters() {
        let parse = |words: &[&str]| Wanted::parse(&words.iter().map(|w| w.to_string()).collect::<Vec<_>>());
        assert_eq!(parse(&[]).unwrap().groups, ["volume", "engine", "nbd"]);
        let wanted = parse(&["nbd", "--shard", "1/4", "netlink"]).unwrap();
        assert_eq!((wanted.groups, wanted.filters), (vec!["nbd"], vec!["netlink".to_owned()]));
        assert_eq!(wanted.shard.as_deref(), Some("1/4"));
        assert!(parse(&["--fast"]).is_err());
    }
}
