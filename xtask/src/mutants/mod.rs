//! `cargo xtask mutants`: changes the code behind the guarantees in small ways, and lists changes that no test notices.
//!
//! All mutants are compiled at once into a copy of the tree in `target/mutants`, each behind a check of an environment
//! variable (`rewrite.rs`, `tree.rs`); those that do not compile are left out (`build.rs`). Each test runs once alone,
//! and records the mutants that it reaches; each mutant runs the tests that reach it until one fails (`trial.rs`).
//! Survivors are compared with docs/mutants.md (`verdict.rs`); `target/mutants/survivors` has those without a reason.
//!
//! Mutants run in an order that looks random, so an interrupted run, or one with `--sample`, has tried a random sample;
//! `--seed N` chooses another order, and `--skip N` leaves out its first N. A run continues where the last one ended,
//! until `target/mutants/results` is removed; with `--survivors` or `--hung` it tries those again. `--subtle` tries
//! subtle changes only (`sites/subtle.rs`), `--jobs N` several at once. `--patience SECONDS` is the time after which a
//! short test hangs. `--longest SECONDS` leaves out tests that take more, `--test WORD` those not so named.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use regex_lite::Regex;

use crate::target_dir;

mod build;
mod groups;
mod rewrite;
mod sites;
mod tree;
mod trial;
mod values;
mod verdict;

use groups::{GROUPS, Group, Tests};
use tree::Tree;
use trial::{Outcome, Test};
use verdict::{EXPLAINED, Results};

/// Arguments of the command line.
#[derive(Debug, Default)]
struct Wanted {
    groups: Vec<&'static str>,
    /// Number of mutants of each group to have results of; all without it.
    sample: Option<usize>,
    /// Number of mutants of each group, the first in the order of trials, to leave out.
    skip: usize,
    /// Chooses the order of trials.
    seed: u64,
    /// Try subtle changes, and no others.
    subtle: bool,
    /// Try the survivors of earlier runs again, and no others.
    survivors: bool,
    /// Try those again that hung in earlier runs, and no others.
    hung: bool,
    /// Number of mutants to try at once.
    jobs: Option<usize>,
    /// Seconds after which a short test hangs.
    patience: Option<u64>,
    /// Seconds of the longest test to run.
    longest: Option<u64>,
    /// Run only tests whose names contain one of these; all without any.
    tests: Vec<String>,
    /// List the mutants and try none.
    list: bool,
    /// A mutant's name must match one of these.
    filters: Vec<Regex>,
}

impl Wanted {
    fn parse(args: &[String]) -> Result<Self> {
        let mut wanted = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--sample" | "--skip" | "--seed" | "--jobs" | "--patience" | "--longest" => {
                    let number = args.next().and_then(|number| number.parse::<u32>().ok());
                    let number = number.with_context(|| format!("{arg} needs a number"))?;
                    match arg.as_str() {
                        "--sample" => wanted.sample = Some(number as usize),
                        "--skip" => wanted.skip = number as usize,
                        "--seed" => wanted.seed = number.into(),
                        "--jobs" => wanted.jobs = Some(number as usize),
                        "--longest" => wanted.longest = Some(number.into()),
                        _ => wanted.patience = Some(number.into()),
                    }
                }
                "--test" => wanted.tests.push(args.next().context("--test needs a name")?.clone()),
                "--subtle" => wanted.subtle = true,
                "--survivors" => wanted.survivors = true,
                "--hung" => wanted.hung = true,
                "--list" => wanted.list = true,
                option if option.starts_with('-') => bail!("'{option}' is no option of mutants"),
                word => match GROUPS.iter().find(|group| group.name == word) {
                    Some(group) => wanted.groups.push(group.name),
                    None => wanted.filters.push(Regex::new(word).with_context(|| format!("cannot use '{word}'"))?),
                },
            }
        }
        if wanted.groups.is_empty() {
            wanted.groups.extend(GROUPS.iter().map(|group| group.name));
        }
        Ok(wanted)
    }

    fn jobs(&self) -> usize {
        self.jobs.unwrap_or(1)
    }

    fn is_wanted(&self, name: &str) -> bool {
        let is_matched = self.filters.is_empty() || self.filters.iter().any(|filter| filter.is_match(name));
        is_matched && (!self.subtle || sites::subtle::is_subtle(name))
    }
}

/// Runs the mutants of the groups named in the arguments, or all, and judges the survivors.
pub(crate) fn run(root: &Path, args: &[String]) -> Result<ExitCode> {
    let wanted = Wanted::parse(args)?;
    let place = target_dir(root).join("mutants");
    let groups: Vec<&Group> = GROUPS.iter().filter(|group| wanted.groups.contains(&group.name)).collect();
    let mut tree = Tree::read(root, &place, &groups)?;
    if wanted.list {
        let listed = tree.names.iter().filter(|name| groups.iter().any(|group| group.has_mutant(name)));
        listed.filter(|name| wanted.is_wanted(name)).for_each(|name| println!("{name}"));
        return Ok(ExitCode::SUCCESS);
    }
    if wanted.subtle {
        let others = tree.names.iter().enumerate().filter(|(_, name)| !sites::subtle::is_subtle(name));
        tree.unwanted = others.map(|(number, _)| number).collect();
    }
    let programs = build(&mut tree, &place, &groups)?;
    let explained =
        verdict::explained(&fs::read_to_string(root.join(EXPLAINED)).with_context(|| format!("no {EXPLAINED}"))?);
    let mut passes = true;
    for group in groups {
        let mut results = Results::open(&place.join("results").join(group.name))?;
        let mut tests: Vec<Test> = Vec::new();
        for (of, programs, directory) in programs.iter().filter(|(of, ..)| group.tests.contains(of)) {
            for program in &programs.tests {
                let longest = wanted.longest.map_or(trial::MAX_TIME, Duration::from_secs);
                let is_run = |test: &str| {
                    !of.left_out.iter().any(|name| test.starts_with(name))
                        && (wanted.tests.is_empty() || wanted.tests.iter().any(|word| test.contains(word.as_str())))
                };
                let program = (program.as_path(), programs.stamp.as_str());
                tests.extend(trial::reached(program, directory, is_run, &place, longest, wanted.jobs())?);
            }
        }
        try_group(group, &wanted, &tree, &tests, &mut results, &place)?;
        let (viable, others): (Vec<usize>, Vec<usize>) = (0..tree.names.len())
            .filter(|&number| group.has_mutant(&tree.names[number]) && !tree.unwanted.contains(&number))
            .partition(|number| !tree.disabled.contains(number));
        let names: Vec<&String> = viable.iter().map(|&number| &tree.names[number]).collect();
        let explained = explained.iter().filter(|(name, _)| group.has_mutant(name));
        let explained = explained.filter(|(name, _)| !wanted.subtle || sites::subtle::is_subtle(name));
        let explained = explained.map(|(name, reason)| (name.clone(), reason.clone())).collect();
        let path = place.join("survivors").join(group.name);
        fs::create_dir_all(place.join("survivors"))?;
        let text = viable.iter().filter_map(|&n| described(n, &tree, &tests, &results, &explained));
        fs::write(&path, text.collect::<String>())?;
        passes &= verdict::report(group.name, &names, others.len(), &results, &explained);
    }
    Ok(if passes { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

type Programs = (Tests, build::Programs, std::path::PathBuf);

/// Builds the tests of the groups. A mutant that is left out for one program changes all, so the last round builds all
/// again.
fn build(tree: &mut Tree, place: &Path, groups: &[&Group]) -> Result<Vec<Programs>> {
    loop {
        let before = tree.disabled.len();
        let mut built: Vec<Programs> = Vec::new();
        for tests in groups.iter().flat_map(|group| group.tests) {
            if built.iter().all(|(known, ..)| known != tests) {
                let programs = build::programs(tree, &place.join("build"), tests)?;
                built.push((*tests, programs, tree.copy.join(tests.directory)));
            }
        }
        if tree.disabled.len() == before {
            return Ok(built);
        }
    }
}

/// Tries the mutants of a group that have no result yet.
fn try_group(
    group: &Group,
    wanted: &Wanted,
    tree: &Tree,
    tests: &[Test],
    results: &mut Results,
    place: &Path,
) -> Result<()> {
    let mut numbers: Vec<usize> = (0..tree.names.len())
        .filter(|number| !tree.disabled.contains(number))
        .filter(|&number| group.has_mutant(&tree.names[number]) && wanted.is_wanted(&tree.names[number]))
        .collect();
    numbers.sort_by_key(|&number| order(wanted.seed, &tree.names[number]));
    numbers.drain(..wanted.skip.min(numbers.len()));
    numbers.truncate(wanted.sample.unwrap_or(usize::MAX));
    numbers.retain(|&number| match results.get(&tree.names[number]) {
        Some(Outcome::Hung) => wanted.hung,
        Some(outcome) => wanted.survivors && verdict::is_survivor(outcome),
        None => !wanted.survivors && !wanted.hung,
    });
    let patience = wanted.patience.map_or(trial::MIN_TIMEOUT, Duration::from_secs);
    let begin = Instant::now();
    let (done, results) = (AtomicUsize::new(0), Mutex::new(results));
    trial::in_parallel(wanted.jobs(), &numbers, |&number| {
        let name = &tree.names[number];
        let outcome = trial::try_mutant(number, tests, place, patience)?;
        if verdict::is_survivor(&outcome) {
            println!("mutants: {outcome:?}: {name}");
        }
        results.lock().map_err(|_| anyhow!("another job panicked"))?.add(name, outcome)?;
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        if done.is_multiple_of(50) {
            println!("mutants: {}: {done} of {} in {:?}", group.name, numbers.len(), begin.elapsed());
        }
        Ok(())
    })
}

/// Describes a survivor without a reason, with the tests that reach it.
fn described(
    number: usize,
    tree: &Tree,
    tests: &[Test],
    results: &Results,
    explained: &BTreeMap<String, String>,
) -> Option<String> {
    let name = &tree.names[number];
    let survived = results.get(name).is_some_and(verdict::is_survivor) && !explained.contains_key(name);
    let reaching: Vec<&str> =
        tests.iter().filter(|test| test.has_reached(number)).map(|test| test.name.as_str()).collect();
    survived.then(|| format!("{}  reached by {reaching:?}\n\n", tree.described(number).unwrap_or_default()))
}

/// Returns a mutant's place in the order of trials that the seed chooses.
fn order(seed: u64, name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    if seed > 0 {
        seed.hash(&mut hasher);
    }
    name.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn arguments_name_groups_and_filters() {
        let parse = |words: &[&str]| Wanted::parse(&words.iter().map(|w| w.to_string()).collect::<Vec<_>>());
        assert_eq!(
            parse(&[]).unwrap().groups,
            [
                "volume",
                "volume-edit",
                "engine",
                "frontend",
                "nbd-store",
                "verity",
                "integrity",
                "rbd-store",
                "open",
                "serve"
            ]
        );
        let wanted = parse(&["frontend", "--sample", "300", "netlink"]).unwrap();
        assert_eq!((wanted.groups.clone(), wanted.sample), (vec!["frontend"], Some(300)));
        assert!(wanted.is_wanted("crates/frontend/src/nbd/netlink.rs: x") && !wanted.is_wanted("mux.rs: x"));
        let wanted = parse(&["--skip", "400", "--jobs", "2", "--patience", "30"]).unwrap();
        assert_eq!((wanted.skip, wanted.jobs, wanted.patience), (400, Some(2), Some(30)));
        let wanted = parse(&["--subtle", "--seed", "7"]).unwrap();
        assert!(
            wanted.seed == 7 && wanted.is_wanted("a.rs: delete ! in f") && !wanted.is_wanted("a.rs: replace f -> u8")
        );
        let ordered = |seed| {
            let mut numbers: Vec<usize> = (0..50).collect();
            numbers.sort_by_key(|number| order(seed, &number.to_string()));
            numbers
        };
        assert!(ordered(0) != ordered(1) && ordered(1) != ordered(2) && ordered(2) == ordered(2));
        for bad in [&["--fast"][..], &["--sample"], &["--sample", "x"], &["--jobs", "-1"], &["("]] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn mutants_of_the_tree_have_names_of_their_own() {
        let root = crate::workspace_root().unwrap();
        let tree = Tree::read(&root, &root.join("unused"), &GROUPS.iter().collect::<Vec<_>>()).unwrap();
        let names: BTreeSet<&String> = tree.names.iter().collect();
        assert_eq!(names.len(), tree.names.len());
        for group in &GROUPS {
            let count = names.iter().filter(|name| group.has_mutant(name)).count();
            assert!(count > 100, "{} has only {count} mutants", group.name);
        }
    }
}
