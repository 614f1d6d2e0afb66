//! Rules for single files, as pure functions from text to findings.

use std::collections::{BTreeMap, BTreeSet};

use super::scan;

const FILE_LINES: usize = 700;
const FUNCTION_LINES: usize = 70;
const HEAD_LINES: usize = 12;

/// Crates that must forbid `unsafe`.
const WITHOUT_UNSAFE: [&str; 8] = [
    "crates/bench/src/lib.rs",
    "crates/integrity/src/lib.rs",
    "crates/verity/src/lib.rs",
    "crates/volume/src/lib.rs",
    "crates/zoned-file/src/lib.rs",
    "crates/open/src/lib.rs",
    "crates/serve/src/lib.rs",
    "crates/cli/src/main.rs",
];

/// Reasons for long files and functions, one a line: `PATH: reason` or `PATH FUNCTION: reason`.
pub(crate) struct Exceptions(BTreeMap<String, String>);

impl Exceptions {
    /// Parses the list; empty lines and lines that start with `#` are ignored.
    pub(crate) fn parse(text: &str) -> Self {
        let lines = text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
        Self(
            lines
                .map(|l| l.split_once(':').unwrap_or((l, "")))
                .map(|(k, v)| (k.trim().into(), v.trim().into()))
                .collect(),
        )
    }

    fn has_reason(&self, key: &str, used: &mut BTreeSet<String>) -> bool {
        let found = self.0.get(key).is_some_and(|reason| !reason.is_empty());
        if found {
            used.insert(key.to_owned());
        }
        found
    }

    /// Returns entries that excuse nothing, or have no reason.
    pub(crate) fn stale(&self, used: &BTreeSet<String>) -> Vec<String> {
        let unused = self.0.keys().filter(|key| !used.contains(*key));
        unused.map(|key| format!("xtask/tidy-exceptions.txt: '{key}' excuses nothing, or gives no reason")).collect()
    }
}

/// Reports files over 700 lines and functions over 70 without a reason in the list.
pub(crate) fn lengths(
    name: &str,
    text: &str,
    code: &str,
    exceptions: &Exceptions,
    used: &mut BTreeSet<String>,
) -> Vec<String> {
    let mut findings = Vec::new();
    let lines = text.lines().count();
    if lines > FILE_LINES && !exceptions.has_reason(name, used) {
        findings.push(format!("{name}: {lines} lines, more than {FILE_LINES}"));
    }
    for function in scan::functions(code).iter().filter(|f| f.lines > FUNCTION_LINES) {
        if !exceptions.has_reason(&format!("{name} {}", function.name), used) {
            findings.push(format!(
                "{name}:{}: fn {} takes {} lines, more than {FUNCTION_LINES}",
                function.line, function.name, function.lines
            ));
        }
    }
    findings
}

/// Reports a Rust file without a head comment, or with one of more than 12 lines (except for the root of a crate).
pub(crate) fn head_comment(name: &str, text: &str) -> Vec<String> {
    let head =
        text.lines().skip_while(|l| l.starts_with("#!") || l.trim().is_empty()).take_while(|l| l.starts_with("//!"));
    let lines = head.count();
    let root = name.ends_with("/lib.rs") || name.ends_with("/main.rs");
    if lines == 0 {
        vec![format!("{name}: no head comment")]
    } else if lines > HEAD_LINES && !root {
        vec![format!("{name}: head comment of {lines} lines, more than {HEAD_LINES}")]
    } else {
        Vec::new()
    }
}

/// Returns the files in the first column of the table in docs/unsafe.md.
pub(crate) fn unsafe_list(markdown: &str) -> BTreeSet<String> {
    let cells = markdown.lines().filter_map(|l| l.trim().strip_prefix('|')).filter_map(|l| l.split('|').next());
    cells.filter_map(|cell| cell.trim().strip_prefix('`')?.strip_suffix('`')).map(str::to_owned).collect()
}

/// Reports files with `unsafe` that are not listed, and listed files without any.
pub(crate) fn unsafe_matches(listed: &BTreeSet<String>, found: &BTreeSet<String>) -> Vec<String> {
    let missing = found.difference(listed).map(|f| format!("{f}: holds unsafe and is not in docs/unsafe.md"));
    let stale =
        listed.difference(found).map(|f| format!("docs/unsafe.md: lists {f}, which holds no unsafe or is gone"));
    missing.chain(stale).collect()
}

/// Reports crates that must forbid `unsafe` and do not.
pub(crate) fn forbids_unsafe(name: &str, code: &str) -> Vec<String> {
    if WITHOUT_UNSAFE.contains(&name) && !code.contains("#![forbid(unsafe_code)]") {
        return vec![format!("{name}: does not say #![forbid(unsafe_code)]")];
    }
    Vec::new()
}

/// Reports words that mark unfinished work, terms that the glossary excludes, and directories of one machine.
pub(crate) fn words(name: &str, text: &str) -> Vec<String> {
    // Split, so that this file complies with its own rule.
    const WORDS: [&str; 11] = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("XX", "X:"),
        concat!("HA", "CK:"),
        concat!("master ", "key"),
        concat!("To ", "come."),
        concat!("/ho", "me/"),
        concat!("/ro", "ot/"),
        concat!("/wo", "rk/"),
        concat!("/tmp/", "target"),
        concat!("lorem ", "ipsum"),
    ];
    let mut findings = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for word in WORDS.iter().filter(|w| line.contains(**w)) {
            findings.push(format!("{name}:{}: '{word}' has no place here", number + 1));
        }
    }
    findings
}

/// Reports names that do not describe the contents of a file.
pub(crate) fn file_name(name: &str) -> Vec<String> {
    const EMPTY_NAMES: [&str; 8] = ["util", "utils", "helper", "helpers", "common", "manager", "misc", "stuff"];
    let parts = name.split('/').map(|p| p.split('.').next().unwrap_or(p));
    let bad = parts.filter(|p| EMPTY_NAMES.contains(p));
    bad.map(|p| format!("{name}: '{p}' does not say what the file is for")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn length_findings(text: &str, exceptions: &str) -> Vec<String> {
        let exceptions = Exceptions::parse(exceptions);
        let mut used = BTreeSet::new();
        let mut found = lengths("a.rs", text, &scan::code_only(text), &exceptions, &mut used);
        found.extend(exceptions.stale(&used));
        found
    }

    #[test]
    fn long_file_needs_a_reason() {
        let long = "\n".repeat(FILE_LINES + 1);
        assert_eq!(length_findings(&long, "").len(), 1);
        assert_eq!(length_findings(&long, "a.rs:").len(), 2, "an empty reason excuses nothing");
        assert_eq!(length_findings(&long, "a.rs: a table of the standard's vectors").len(), 0);
        assert_eq!(length_findings(&"\n".repeat(FILE_LINES), "").len(), 0);
    }

    #[test]
    fn long_function_needs_a_reason() {
        let body = |lines: usize| format!("fn f() {{{}}}\n", "\n".repeat(lines - 1));
        assert_eq!(length_findings(&body(FUNCTION_LINES + 1), "").len(), 1);
        assert_eq!(length_findings(&body(FUNCTION_LINES + 1), "# why\na.rs f: one arm for each option").len(), 0);
        assert_eq!(length_findings(&body(FUNCTION_LINES), "").len(), 0);
    }

    #[test]
    fn unneeded_reason_is_reported() {
        assert_eq!(length_findings("fn f() {}\n", "b.rs: long").len(), 1);
    }

    #[test]
    fn file_without_a_head_comment_is_reported() {
        assert_eq!(head_comment("a.rs", "use std::io;\n").len(), 1);
        assert_eq!(head_comment("a.rs", "// not a head comment\n").len(), 1);
        assert_eq!(head_comment("a.rs", &"//! x\n".repeat(HEAD_LINES + 1)).len(), 1);
        assert_eq!(head_comment("a.rs", "#![no_main]\n//! What it is for.\n").len(), 0);
        assert_eq!(head_comment("x/lib.rs", &"//! x\n".repeat(HEAD_LINES + 1)).len(), 0);
    }

    #[test]
    fn list_of_unsafe_files_has_to_match_both_ways() {
        let table = "| file | why |\n|---|---|\n| `a.rs` | loads |\n| `b.rs` | ring |\n";
        let listed = unsafe_list(table);
        assert_eq!(listed.len(), 2);
        let found: BTreeSet<String> = ["a.rs".to_owned(), "c.rs".to_owned()].into();
        let findings = unsafe_matches(&listed, &found);
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(findings[0].starts_with("c.rs") && findings[1].contains("b.rs"));
        assert!(unsafe_matches(&found, &found).is_empty());
    }

    #[test]
    fn crate_that_promises_no_unsafe_has_to_forbid_it() {
        assert_eq!(forbids_unsafe("crates/volume/src/lib.rs", "// #![forbid]").len(), 1);
        assert_eq!(forbids_unsafe("crates/volume/src/lib.rs", "#![forbid(unsafe_code)]\n").len(), 0);
        assert_eq!(forbids_unsafe("crates/engine/src/lib.rs", "").len(), 0);
    }

    #[test]
    fn unfinished_work_and_machine_paths_are_reported() {
        assert_eq!(words("a.md", concat!("// TO", "DO later")).len(), 1);
        assert_eq!(words("a.md", concat!("see /ho", "me/someone/x")).len(), 1);
        assert_eq!(words("a.md", concat!("the master ", "key\nand FIX", "ME")).len(), 2);
        assert_eq!(words("a.md", "to do well; the volume key; /dev/shm").len(), 0);
    }

    #[test]
    fn empty_names_are_reported() {
        assert_eq!(file_name("crates/engine/src/utils.rs").len(), 1);
        assert_eq!(file_name("crates/common/src/lib.rs").len(), 1);
        assert_eq!(file_name("crates/engine/src/unaligned.rs").len(), 0);
    }
}
