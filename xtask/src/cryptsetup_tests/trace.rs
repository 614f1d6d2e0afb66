//! The course of a script's run, from the lines that `tests/cryptsetup/trace.sh` and `bin/cryptsetup` wrote.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::script::{Script, Step};

/// A failed check.
struct Failure {
    line: usize,
    /// Message of the script, and the exit status of the command before.
    says: String,
    /// Calls of the program since the line began, each followed by its errors.
    calls: Vec<String>,
}

/// A run of a script.
#[derive(Default)]
pub(super) struct Trace {
    reached: BTreeSet<usize>,
    failures: Vec<Failure>,
    /// Line and words of the script's own decision to skip the rest.
    skip: Option<(usize, String)>,
    calls: usize,
}

impl Trace {
    pub(super) fn parse(text: &str) -> Self {
        let mut trace = Self::default();
        let (mut line, mut before, mut calls): (usize, Vec<String>, Vec<String>) = Default::default();
        for entry in text.lines() {
            let (kind, rest) = entry.split_once(' ').unwrap_or((entry, ""));
            let (first, words) = rest.split_once(' ').unwrap_or((rest, ""));
            match kind {
                "R" => {
                    let number = first.parse().unwrap_or(0);
                    trace.reached.insert(number);
                    if number != line && !calls.is_empty() {
                        // A check of `$?` stands below the call.
                        before = std::mem::take(&mut calls);
                    }
                    line = number;
                }
                "F" => {
                    let calls = if calls.is_empty() { before.clone() } else { calls.clone() };
                    let line = first.parse().unwrap_or(0);
                    let (status, says) = words.split_once(' ').unwrap_or((words, ""));
                    let says = format!("{says} (status {status})");
                    trace.reached.insert(line);
                    // A function that is called is seen twice: as the call, and at its beginning.
                    if trace.failures.last().is_none_or(|last| (last.line, &last.says) != (line, &says)) {
                        trace.failures.push(Failure { line, says, calls });
                    }
                }
                "S" => trace.skip = Some((first.parse().unwrap_or(0), words.to_owned())),
                "C" => {
                    trace.calls += 1;
                    calls.push(format!("[{first}] {words}"));
                }
                "E" => calls.push(format!("    {rest}")),
                _ => {}
            }
        }
        trace
    }

    pub(super) fn has_reached(&self, step: &Step) -> bool {
        self.reached.range(step.lines.clone()).next().is_some()
    }

    /// Whether the step was reached, and none of its checks failed.
    pub(super) fn has_passed(&self, step: &Step) -> bool {
        self.has_reached(step) && !self.failures.iter().any(|failure| step.lines.contains(&failure.line))
    }

    /// Returns the first failed check, or else the script's own skip. `None`: neither.
    pub(super) fn first_stop(&self, script: &Script) -> Option<String> {
        if let Some(failure) = self.failures.first() {
            let text = script.step_at(failure.line).map_or("", |step| &step.text);
            return Some(format!("line {}: `{}`", failure.line, text.replace('|', "\\|")));
        }
        self.skip.as_ref().map(|(line, words)| format!("line {line}: {}", words.replace('|', "\\|")))
    }

    /// Describes every failed check, with the calls that led to it.
    pub(super) fn report(&self, script: &Script, end: &str) -> String {
        let mut text = format!("{} calls of the program; the script {end}\n", self.calls);
        for (number, failure) in self.failures.iter().enumerate() {
            // Of a line in a loop the first ones.
            if self.failures[..number].iter().filter(|other| other.line == failure.line).count() >= 4 {
                continue;
            }
            let step = script.step_at(failure.line).map_or("", |step| &step.text);
            let _ = writeln!(text, "\nline {}: {step}\n  {}", failure.line, failure.says);
            for call in failure.calls.iter().rev().take(12).rev() {
                let _ = writeln!(text, "  {call}");
            }
        }
        if let Some((line, words)) = &self.skip {
            let _ = writeln!(text, "\nline {line} skips the rest: {words}");
        }
        for step in script.steps.iter().filter(|step| !self.has_reached(step)) {
            let _ = writeln!(text, "not reached: line {}: {}", step.lines.start(), step.text);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trace_tells_reached_passed_and_first_stop() {
        let script = Script::parse("one || fail\ntwo || fail\n[ $? -eq 1 ] || fail \"status\"\nfour || fail\n");
        let trace = Trace::parse("R 1\nC 0 one\nR 2\nC 2 two\nE Not so.\nR 3\nF 3 1 fail \"status\"\n");
        let passed: Vec<bool> = script.steps.iter().map(|step| trace.has_passed(step)).collect();
        assert_eq!(passed, [true, true, false, false]);
        assert!(!trace.has_reached(&script.steps[3]));
        assert_eq!(trace.first_stop(&script).unwrap(), "line 3: `[ $? -eq 1 ] \\|\\| fail \"status\"`");
        let report = trace.report(&script, "ends");
        assert!(report.contains("[2] two\n      Not so.\n"), "{report}");
        assert!(report.contains("not reached: line 4"), "{report}");
    }
}
