//! The steps of a test script: lines of its body that check something.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

/// A line that checks something, with its continuation lines. The numbers begin at 1.
pub(super) struct Step {
    pub(super) lines: RangeInclusive<usize>,
    pub(super) text: String,
}

/// A parsed script.
pub(super) struct Script {
    pub(super) steps: Vec<Step>,
}

impl Script {
    /// Finds the steps: lines outside functions that call `fail`, or a function that calls it.
    pub(super) fn parse(text: &str) -> Self {
        let lines: Vec<&str> = text.lines().collect();
        let mut functions: BTreeMap<&str, String> = BTreeMap::new();
        let mut body = Vec::new();
        let mut at = 0;
        while at < lines.len() {
            if let Some(name) = function_name(lines[at]) {
                let first = at;
                while !(lines[at].starts_with('}') || at == first && lines[at].trim_end().ends_with('}'))
                    && at + 1 < lines.len()
                {
                    at += 1;
                }
                functions.insert(name, lines[first..=at].iter().map(|line| code(line)).collect());
                at += 1;
                continue;
            }
            let first = at;
            while lines[at].ends_with('\\') && at + 1 < lines.len() {
                at += 1;
            }
            // A word in quotes that goes on to the line which ends it.
            if has_open_word(lines[at]) {
                at = (at + 1..lines.len()).find(|&line| lines[line].contains('\'')).unwrap_or(at);
            }
            body.push((first..=at, lines[first..=at].join(" ").replace("\\ ", " ")));
            at = end_of_here_document(&lines, at) + 1;
        }
        let checks = checking(&functions);
        let is_step = |text: &str| words(&code(text)).any(|word| checks.contains(word));
        let steps = body.into_iter().filter(|(_, text)| is_step(text)).map(|(range, text)| Step {
            lines: range.start() + 1..=range.end() + 1,
            text: text.split_whitespace().collect::<Vec<_>>().join(" "),
        });
        Self { steps: steps.collect() }
    }

    /// Returns the step that a line belongs to.
    pub(super) fn step_at(&self, line: usize) -> Option<&Step> {
        self.steps.iter().find(|step| step.lines.contains(&line))
    }
}

/// Returns the functions that check something: those that call `fail`, directly or through others.
fn checking<'a>(functions: &BTreeMap<&'a str, String>) -> BTreeSet<&'a str> {
    let mut found: BTreeSet<&str> = ["fail", "fail_count"].into();
    loop {
        let more = functions.iter().filter(|(name, text)| {
            // Called by the shell, or never.
            let is_other = matches!(**name, "_sigchld" | "skip" | "valgrind_setup");
            !is_other && !found.contains(**name) && words(text).any(|word| found.contains(word))
        });
        let more: Vec<&str> = more.map(|(name, _)| *name).collect();
        if more.is_empty() {
            return found;
        }
        found.extend(more);
    }
}

fn function_name(line: &str) -> Option<&str> {
    let (name, rest) = line.strip_prefix("function ").unwrap_or(line).split_once('(')?;
    let name = name.trim_end();
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    (is_name && rest.trim_start().starts_with(')')).then_some(name)
}

/// Returns the line without its comment.
fn code(line: &str) -> String {
    let is_comment = line.trim_start().starts_with('#');
    if is_comment { "\n".to_owned() } else { format!("{}\n", line.split(" #").next().unwrap_or("")) }
}

/// Whether a word in quotes goes on in the next line.
fn has_open_word(line: &str) -> bool {
    let code = code(line);
    let is_word = code.find('\'').is_some_and(|start| !code[..start].contains('"'));
    is_word && code.matches('\'').count() % 2 == 1
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '-' || c == '.' || c == '/'))
}

/// Returns the number of the last line of the here document that line `at` begins, or `at`.
fn end_of_here_document(lines: &[&str], at: usize) -> usize {
    let Some((_, rest)) = lines[at].split_once("<<") else { return at };
    if rest.starts_with('<') {
        return at;
    }
    let tag: String = rest.trim_start_matches('-').chars().take_while(char::is_ascii_alphanumeric).collect();
    if tag.is_empty() {
        return at;
    }
    (at + 1..lines.len()).find(|&line| lines[line].trim() == tag).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"#!/bin/bash
fail()
{
	exit 2
}
_sigchld() { fail "Segfault"; }
check_exists() { [ -b x ] || fail; }
harmless()
{
	true
}
harmless # no fail
run one || fail
run two \
	--option && fail "too much"
run three <<EOF
fail
EOF
[ $? -eq 0 ] || fail "Expect script failed."
if true; then
	check_exists
fi
# run || fail
check_exists '.a = 1 |
	.b = 2' file
"#;

    #[test]
    fn steps_of_script_are_lines_of_its_body_that_check() {
        let script = Script::parse(TEXT);
        let found: Vec<_> = script.steps.iter().map(|step| (step.lines.clone(), step.text.as_str())).collect();
        let expected = [
            (13..=13, "run one || fail"),
            (14..=15, "run two --option && fail \"too much\""),
            (19..=19, "[ $? -eq 0 ] || fail \"Expect script failed.\""),
            (21..=21, "check_exists"),
            (24..=25, "check_exists '.a = 1 | .b = 2' file"),
        ];
        assert_eq!(found, expected);
        assert_eq!(script.step_at(15).map(|step| *step.lines.start()), Some(14));
        assert!(script.step_at(17).is_none());
    }
}
