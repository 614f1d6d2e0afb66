//! Guarantees and floors against the tree: a test that docs/semantics.md names exists, a count with a floor is printed.
//!
//! The last cell of a row names its tests, each in backticks: a `#[test]` function, a script of tests/vm, a file, or a
//! `cargo xtask` command. A row without tests says so in words.

use std::collections::BTreeSet;

use super::scan;

/// The table of guarantees.
pub(super) const PROMISES: &str = "docs/semantics.md";
/// The minimum counts of a full run.
pub(super) const FLOORS: &str = "tests/floors.txt";

/// Returns the names of the test functions of a Rust file, from its text without comments and strings.
pub(super) fn test_names(code: &str) -> Vec<String> {
    let after_attribute = code.split("#[test]").skip(1);
    let name = |rest: &str| {
        let rest = rest.split_once("fn ")?.1.trim_start();
        Some(rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>())
    };
    after_attribute.filter_map(name).filter(|name| !name.is_empty()).collect()
}

/// Returns names in the last cells of the tables that do not exist, and rows that neither name a test nor say "none".
///
/// `files` are all files of the tree, relative to its root; `chores` the words that `cargo xtask` accepts.
pub(super) fn unknown_tests(
    markdown: &str,
    tests: &BTreeSet<String>,
    files: &BTreeSet<String>,
    chores: &[&str],
) -> Vec<String> {
    let is_guest = |name: &str| files.contains(&format!("tests/vm/{name}.sh"));
    let exists = |name: &str| match name.strip_prefix("cargo xtask ") {
        Some(words) => {
            let mut words = words.split(' ');
            let chore = words.next().unwrap_or_default();
            chores.contains(&chore) && words.all(|word| word.starts_with("--") || chore != "vm" || is_guest(word))
        }
        None => tests.contains(name) || files.contains(name) || is_guest(name),
    };
    let mut findings = Vec::new();
    let mut heading = true;
    for (index, line) in markdown.lines().enumerate() {
        let Some(cells) = line.trim().strip_prefix('|').and_then(|l| l.strip_suffix('|')) else {
            heading = true;
            continue;
        };
        // The first two lines of a table are its heading.
        if heading || cells.starts_with("--") {
            heading = false;
            continue;
        }
        let cell = cells.rsplit('|').next().unwrap_or_default();
        let names: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
        let number = index + 1;
        findings.extend(
            names
                .iter()
                .filter(|name| !exists(name))
                .map(|name| format!("{PROMISES}:{number}: there is no test '{name}'")),
        );
        if names.is_empty() && !["none", "no test"].iter().any(|words| cell.contains(words)) {
            findings.push(format!("{PROMISES}:{number}: names no test, and does not say that there is none"));
        }
    }
    findings
}

/// Returns floors of counts that are printed nowhere. `sources` are the texts of all Rust and shell files.
pub(super) fn unknown_floors(floors: &str, sources: &[String]) -> Vec<String> {
    let names = floors.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split(' ').next());
    let is_printed = |name: &str| {
        // A family of counts: `COUNT corpus_{target}`.
        let families = name.match_indices('_').map(|(at, _)| format!("COUNT {}_{{", &name[..at]));
        let families: Vec<String> = families.collect();
        sources.iter().any(|text| scan::has_word(text, name) || families.iter().any(|family| text.contains(family)))
    };
    let unknown = names.filter(|name| !name.is_empty() && !is_printed(name));
    unknown.map(|name| format!("{FLOORS}: nothing prints the count '{name}'")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| name.to_string()).collect()
    }

    fn findings(cell: &str) -> Vec<String> {
        let table = format!("| promise | tests |\n|---|---|\n| `not_a_test` | `known` |\n| **All.** | {cell} |\n");
        let files = set(&["tests/vm/disk.sh", "tests/table/zones.txt"]);
        unknown_tests(&table, &set(&["known"]), &files, &["vm", "soak"])
    }

    #[test]
    fn test_functions_are_found_by_their_attribute() {
        let code = "#[test]\nfn one() {}\nfn helper() {}\n#[test]\n#[ignore]\npub(crate) fn two() -> Result<()> {}\n";
        assert_eq!(test_names(code), ["one", "two"]);
    }

    #[test]
    fn name_of_a_missing_test_is_reported() {
        for good in
            ["`known`", "`cargo xtask vm disk`, `disk`", "`cargo xtask soak`", "`tests/table/zones.txt`", "none"]
        {
            assert_eq!(findings(good), Vec::<String>::new(), "{good}");
        }
        for bad in ["`gone`", "`known`, `gone`", "`cargo xtask vm gone`", "`cargo xtask gone`", "by looking at it", ""]
        {
            let found = findings(bad);
            assert_eq!(found.len(), 1, "{bad}: {found:?}");
            assert!(found[0].starts_with("docs/semantics.md:4: "), "{found:?}");
        }
    }

    #[test]
    fn floor_of_a_count_that_nothing_prints_is_reported() {
        let sources = ["count(\"cases\", 3)".to_owned(), "println!(\"COUNT corpus_{name} 3\")".to_owned()];
        let floors = "# NAME FLOOR\ncases 3\ncorpus_table 4\n";
        assert_eq!(unknown_floors(floors, &sources), Vec::<String>::new());
        assert_eq!(unknown_floors("case 3\ndamaged_table 4\n", &sources).len(), 2);
    }
}
