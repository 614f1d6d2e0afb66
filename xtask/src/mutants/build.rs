//! Builds the copy, and leaves out mutants that do not compile.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::groups::Tests;
use super::tree::Tree;

/// Builds until all mutants that are left compile; more rounds mean that leaving them out does not help.
const MAX_ROUNDS: usize = 60;

/// Test programs that one command has built.
pub(super) struct Programs {
    pub(super) tests: Vec<PathBuf>,
    /// Differs from that of another build. Tests that run a command stay as they are when only the command changes.
    pub(super) stamp: String,
}

/// Builds test programs and returns them. Adds mutants that do not compile to the disabled ones.
pub(super) fn programs(tree: &mut Tree, build: &Path, tests: &Tests) -> Result<Programs> {
    let messages = until_it_builds(tree, build, tests.build)?;
    // Tests of a command build the command, too.
    let executable = |message: &Value| message["executable"].as_str().map(PathBuf::from);
    let stamp = stamp(&messages.iter().filter_map(executable).collect::<Vec<_>>())?;
    let tests_only = messages.iter().filter(|message| message["profile"]["test"] == true);
    let programs: Vec<PathBuf> = tests_only.filter_map(executable).collect();
    if programs.is_empty() {
        bail!("cargo built no tests of {}", tests.directory);
    }
    Ok(Programs { tests: programs, stamp })
}

/// Returns a text that changes with each of the programs.
fn stamp(programs: &[PathBuf]) -> Result<String> {
    let one = |program: &PathBuf| {
        let metadata = fs::metadata(program)?;
        Ok(format!("{} {:?} {}", program.display(), metadata.modified()?, metadata.len()))
    };
    Ok(programs.iter().map(one).collect::<Result<Vec<_>>>()?.join("; "))
}

fn until_it_builds(tree: &mut Tree, build: &Path, arguments: &[&str]) -> Result<Vec<Value>> {
    for _ in 0..MAX_ROUNDS {
        tree.write()?;
        let (is_built, messages) = cargo(&tree.copy, build, arguments)?;
        if is_built {
            return Ok(messages);
        }
        let found = blamed(tree, &messages);
        let before = tree.disabled.len();
        tree.disabled.extend(&found);
        if tree.disabled.len() == before {
            let rendered = messages.iter().filter_map(|message| message["message"]["rendered"].as_str());
            bail!("no mutant explains why the copy does not build:\n{}", rendered.collect::<String>());
        }
        println!("mutants: {} do not compile", tree.disabled.len());
        tree.save_disabled()?;
    }
    bail!("the copy does not build after {MAX_ROUNDS} rounds")
}

fn cargo(copy: &Path, build: &Path, arguments: &[&str]) -> Result<(bool, Vec<Value>)> {
    let mut command = Command::new("cargo");
    command.args(["test", "--no-run"]).args(arguments).args(["--message-format=json", "--quiet"]);
    command.current_dir(copy).env("CARGO_TARGET_DIR", build);
    let output = command.stderr(Stdio::inherit()).output().context("cannot run cargo")?;
    let lines = std::str::from_utf8(&output.stdout).context("cargo's messages are not UTF-8")?.lines();
    let messages = lines.filter_map(|line| serde_json::from_str(line).ok()).collect();
    Ok((output.status.success(), messages))
}

/// Returns the mutants that errors are about.
fn blamed(tree: &Tree, messages: &[Value]) -> BTreeSet<usize> {
    let errors = messages.iter().map(|message| &message["message"]).filter(|message| message["level"] == "error");
    let (mut found, mut around) = (BTreeSet::new(), BTreeSet::new());
    for error in errors {
        let spans = error["spans"].as_array().map(Vec::as_slice).unwrap_or_default();
        let (primary, secondary): (Vec<&Value>, Vec<&Value>) =
            spans.iter().partition(|span| span["is_primary"] == true);
        let spans = || primary.iter().chain(&secondary);
        let first = |wider: bool| spans().find_map(|span| of_span(tree, span, wider));
        match first(false) {
            Some(mutants) => found.extend(mutants),
            None => around.extend(first(true).unwrap_or_default()),
        }
    }
    // An error that all variants of an expression share may be a consequence of one that is about one of them.
    if found.is_empty() { around } else { found }
}

fn of_span(tree: &Tree, span: &Value, around: bool) -> Option<Vec<usize>> {
    let number = |name: &str| span[name].as_u64().and_then(|n| usize::try_from(n).ok());
    tree.blamed(span["file_name"].as_str()?, &(number("byte_start")?..number("byte_end")?), around)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamp_changes_with_a_command_that_tests_run() {
        let dir = tempfile::tempdir().unwrap();
        let programs = ["test", "command"].map(|name| dir.path().join(name));
        let write = |text: &str| programs.each_ref().map(|program| fs::write(program, text).unwrap());
        write("one");
        let before = stamp(&programs).unwrap();
        assert_eq!(stamp(&programs).unwrap(), before);
        fs::write(&programs[1], "other").unwrap();
        assert_ne!(stamp(&programs).unwrap(), before);
    }
}
