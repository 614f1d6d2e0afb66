//! Results of mutants, and the survivors that docs/mutants.md explains.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};

use super::trial::Outcome;

/// The list of survivors that no test can distinguish from the code, each with the reason.
pub(super) const EXPLAINED: &str = "docs/mutants.md";
/// Percentage of mutants that may survive without a reason.
const UNEXPLAINED_PERCENT: usize = 3;

/// Results by the mutants' names, kept in a file from run to run.
pub(super) struct Results {
    file: File,
    outcomes: BTreeMap<String, Outcome>,
}

impl Results {
    /// Reads the results of earlier runs; a later line replaces an earlier one.
    pub(super) fn open(path: &Path) -> Result<Self> {
        fs::create_dir_all(path.parent().context("a file lies in no directory")?)?;
        let text = fs::read_to_string(path).unwrap_or_default();
        let outcomes = text.lines().filter_map(parse).collect();
        let file = File::options().create(true).append(true).open(path)?;
        Ok(Self { file, outcomes })
    }

    pub(super) fn get(&self, name: &str) -> Option<&Outcome> {
        self.outcomes.get(name)
    }

    /// Adds a result.
    pub(super) fn add(&mut self, name: &str, outcome: Outcome) -> Result<()> {
        let (word, detail) = match &outcome {
            Outcome::Caught(test) => ("caught", test.as_str()),
            Outcome::Hung => ("hung", ""),
            Outcome::Survived => ("survived", ""),
            Outcome::NotReached => ("not-reached", ""),
        };
        writeln!(self.file, "{word}\t{name}\t{detail}")?;
        self.outcomes.insert(name.to_owned(), outcome);
        Ok(())
    }
}

fn parse(line: &str) -> Option<(String, Outcome)> {
    let mut fields = line.split('\t');
    let (word, name, detail) = (fields.next()?, fields.next()?, fields.next()?);
    let outcome = match word {
        "caught" => Outcome::Caught(detail.to_owned()),
        "hung" => Outcome::Hung,
        "survived" => Outcome::Survived,
        "not-reached" => Outcome::NotReached,
        _ => return None,
    };
    Some((name.to_owned(), outcome))
}

/// Returns whether a mutant lived through all tests.
pub(super) fn is_survivor(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Survived | Outcome::NotReached)
}

/// Prints the survivors of a group without a reason, and reasons for mutants that are caught or do not exist. Returns
/// whether the group passes.
pub(super) fn report(
    group: &str,
    names: &[&String],
    unviable: usize,
    results: &Results,
    explained: &BTreeMap<String, String>,
) -> bool {
    let tried: Vec<(&String, &Outcome)> = names.iter().filter_map(|name| Some((*name, results.get(name)?))).collect();
    let unexplained =
        tried.iter().filter(|(name, outcome)| is_survivor(outcome) && !explained.contains_key(*name)).count();
    for (name, outcome) in tried.iter().filter(|(_, outcome)| is_survivor(outcome)) {
        if !explained.contains_key(*name) {
            let how = if **outcome == Outcome::NotReached { "is reached by no test" } else { "survived" };
            println!("mutants: {how}: {name}");
        }
    }
    let mut stale = 0;
    for name in explained.keys() {
        let known = names.contains(&name);
        if !known || results.get(name).is_some_and(|outcome| !is_survivor(outcome)) {
            let why = if known { "is caught" } else { "does not exist" };
            println!("mutants: {EXPLAINED} excuses one that {why}: {name}");
            stale += 1;
        }
    }
    let count = |wanted: fn(&Outcome) -> bool| tried.iter().filter(|(_, outcome)| wanted(outcome)).count();
    println!(
        "mutants: {group}: {} of {} tried ({unviable} more do not compile): {} caught, {} hung, {} survived, \
         {unexplained} of them without a reason",
        tried.len(),
        names.len(),
        count(|outcome| matches!(outcome, Outcome::Caught(_))),
        count(|outcome| *outcome == Outcome::Hung),
        count(is_survivor),
    );
    !tried.is_empty() && unexplained * 100 <= tried.len() * UNEXPLAINED_PERCENT && stale == 0
}

/// Parses the rows of the table: a mutant's name in backticks, and the reason why no test can detect it.
pub(super) fn explained(markdown: &str) -> BTreeMap<String, String> {
    let rows = markdown.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    let reason =
        |(name, rest): (&str, &str)| (name.replace("\\|", "|"), rest.trim().trim_end_matches('|').trim().to_owned());
    rows.map(reason).filter(|(_, reason)| !reason.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survivor_without_reason_is_not_excused() {
        let table =
            "| mutant | why |\n|---|---|\n| `a.rs: replace \\|\\| with &&` | both are true |\n| `b.rs: x` | |\n";
        let found = explained(table);
        assert_eq!(found.keys().collect::<Vec<_>>(), ["a.rs: replace || with &&"]);
    }

    #[test]
    fn results_are_kept_and_the_last_one_counts() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("results/group");
        let mut results = Results::open(&path).unwrap();
        results.add("a", Outcome::Survived).unwrap();
        results.add("b", Outcome::Hung).unwrap();
        results.add("c", Outcome::NotReached).unwrap();
        results.add("a", Outcome::Caught("t".to_owned())).unwrap();
        let again = Results::open(&path).unwrap();
        assert_eq!(again.outcomes, results.outcomes);
        assert_eq!(again.get("a"), Some(&Outcome::Caught("t".to_owned())));
    }

    #[test]
    fn group_passes_with_few_unexplained_survivors_and_no_stale_reasons() {
        let place = tempfile::tempdir().unwrap();
        let names: Vec<String> = (0..100).map(|n| format!("a.rs: {n}")).collect();
        let names: Vec<&String> = names.iter().collect();
        let mut n = 0;
        let mut passes = |survivors: usize, explained: &[&str]| {
            n += 1;
            let mut results = Results::open(&place.path().join(n.to_string())).unwrap();
            for (n, name) in names.iter().enumerate() {
                let outcome = if n < survivors { Outcome::Survived } else { Outcome::Hung };
                results.add(name, outcome).unwrap();
            }
            let explained = explained.iter().map(|name| (format!("a.rs: {name}"), "why".to_owned())).collect();
            report("a", &names, 0, &results, &explained)
        };
        assert!(passes(3, &[]));
        assert!(!passes(4, &[]));
        assert!(passes(4, &["0"]));
        assert!(!passes(0, &["0"]), "excuses one that is caught");
        assert!(!passes(0, &["100"]), "excuses one that does not exist");
        let none = Results::open(&place.path().join("none")).unwrap();
        assert!(!report("a", &names, 0, &none, &BTreeMap::new()), "nothing tried is no success");
    }
}
