//! `cargo xtask tidy`: the layout rules as checks that fail.
//!
//! Crate arrows, the list of files with `unsafe`, lengths of files and functions, head comments of modules, forbidden
//! words and machine paths, tests that docs/semantics.md names. Each rule is a pure function of text, so its tests can
//! show it a bad sample.

mod arrows;
mod circles;
mod modules;
mod promises;
mod prose;
mod rules;
mod scan;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};

/// Reasons for long files and functions.
const EXCEPTIONS: &str = "xtask/tidy-exceptions.txt";
/// List of files that may have `unsafe`, one table row each.
const UNSAFE_LIST: &str = "docs/unsafe.md";

/// Checks the whole tree and prints one line for each finding.
pub(crate) fn run(root: &Path) -> Result<ExitCode> {
    let mut findings = Vec::new();
    let circles = check_arrows(root, &mut findings)?;
    let files = source_files(root)?;
    let exceptions = rules::Exceptions::parse(&read(&root.join(EXCEPTIONS))?);
    let listed = rules::unsafe_list(&read(&root.join(UNSAFE_LIST))?);
    let mut used = BTreeSet::new();
    let mut with_unsafe = BTreeSet::new();
    let mut rust_files = 0;
    let mut tests = BTreeSet::new();
    let mut names = BTreeSet::new();
    let mut programs = Vec::new();
    for path in &files {
        let name =
            path.strip_prefix(root).context("a listed file lies outside the tree")?.to_string_lossy().into_owned();
        let text = read(path)?;
        findings.extend(rules::words(&name, &text));
        findings.extend(rules::file_name(&name));
        findings.extend(prose::check(&name, &text));
        names.insert(name.clone());
        // Samples of these rules are neither tests nor counts.
        if (name.ends_with(".rs") || name.ends_with(".sh")) && !name.starts_with("xtask/src/tidy/") {
            programs.push(text.clone());
        }
        if !name.ends_with(".rs") {
            continue;
        }
        rust_files += 1;
        let code = scan::code_only(&text);
        tests.extend(promises::test_names(&code));
        findings.extend(rules::head_comment(&name, &text));
        findings.extend(rules::lengths(&name, &text, &code, &exceptions, &mut used));
        if scan::has_word(&code, "unsafe") {
            with_unsafe.insert(name.clone());
        }
        findings.extend(rules::forbids_unsafe(&name, &code));
    }
    findings.extend(rules::unsafe_matches(&listed, &with_unsafe));
    findings.extend(exceptions.stale(&used));
    findings.extend(promises::unknown_tests(&read(&root.join(promises::PROMISES))?, &tests, &names, &crate::chores()));
    findings.extend(promises::unknown_floors(&read(&root.join(promises::FLOORS))?, &programs));
    findings.sort();
    for finding in &findings {
        println!("tidy: {finding}");
    }
    println!(
        "tidy: {} files, {rust_files} of them Rust, {} with unsafe, {circles} known circles of modules, {} findings",
        files.len(),
        with_unsafe.len(),
        findings.len()
    );
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Checks dependencies between crates and between modules. Returns the number of circles.
fn check_arrows(root: &Path, findings: &mut Vec<String>) -> Result<usize> {
    let mut circles = circles::of_crate("xtask", &root.join("xtask"))?;
    for entry in fs::read_dir(root.join("crates")).context("cannot list crates/")? {
        let directory = entry?.path();
        let manifest = directory.join("Cargo.toml");
        if !manifest.is_file() {
            continue;
        }
        let name = directory.file_name().context("a crate directory has no name")?.to_string_lossy().into_owned();
        findings.extend(arrows::check(&name, &read(&manifest)?));
        circles.extend(circles::of_crate(&name, &directory)?);
    }
    findings.extend(circles::check(&read(&root.join(circles::KNOWN))?, &circles));
    Ok(circles.len())
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Returns all text files of the project, sorted, without build output, version control and saved corpora.
fn source_files(root: &Path) -> Result<Vec<PathBuf>> {
    const SUFFIXES: [&str; 8] = ["rs", "toml", "md", "sh", "py", "txt", "fio", "yml"];
    let mut found = Vec::new();
    let mut open = vec![root.to_path_buf()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).with_context(|| format!("cannot list {}", directory.display()))? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() {
                let skipped = ["target", ".git", "corpus", "artifacts", "vectors"].contains(&name.as_str());
                if !skipped && !path.is_symlink() {
                    open.push(path);
                }
            } else if path.extension().is_some_and(|e| SUFFIXES.iter().any(|s| e == *s)) || name == "run" {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}
