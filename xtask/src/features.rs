//! `cargo xtask features`: checks each crate with no feature, with each feature alone, and with all; with `--tests`,
//! including its tests.
//!
//! A default build has nearly every feature, so a missing dependency between features shows only here. The features
//! that a crate has in the default build are left out: the stage `clippy` checks those. Clippy's own lints run over the
//! other end, no feature, too; for the rest the compiler is enough, whose warnings fail a combination.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::metadata::{cargo, metadata};

/// Excluded: its features build other implementations from source, which takes minutes.
const LEFT_OUT: [&str; 1] = ["inlock-benches"];

/// Runs all combinations, and fails if any does.
pub(crate) fn run(root: &Path, args: &[String]) -> Result<ExitCode> {
    let with_tests = args.iter().any(|word| word == "--tests");
    let combinations = combinations(&metadata(root, &[])?)?;
    let mut failed = 0;
    for (package, features) in &combinations {
        let passed = is_clean(root, package, features, with_tests)?;
        println!("features: {package} with [{features}]: {}", if passed { "ok" } else { "FAILED" });
        failed += usize::from(!passed);
    }
    println!("COUNT feature_combinations {}", combinations.len() - failed);
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns whether a crate compiles with these features and without a warning; prints what Cargo says otherwise.
fn is_clean(root: &Path, package: &str, features: &str, with_tests: bool) -> Result<bool> {
    let mut command = cargo(root);
    let how = if features.is_empty() { "clippy" } else { "check" };
    command.args([how, "--quiet", "--package", package]);
    command.args(if with_tests { &["--all-targets"][..] } else { &[] });
    command.args(["--no-default-features", "--features", features]);
    let output = command.output().context("cannot run cargo")?;
    let said = String::from_utf8_lossy(&output.stderr);
    let passed = output.status.success() && !said.lines().any(is_warning);
    if !passed {
        eprint!("{said}");
    }
    Ok(passed)
}

/// Returns whether a line of the compiler begins a warning, with or without the name of a lint.
fn is_warning(line: &str) -> bool {
    line.strip_prefix("warning").is_some_and(|rest| rest.starts_with([':', '[']))
}

/// Returns each crate of the workspace with features, with the values for `--features`, except those of the default
/// build.
fn combinations(metadata: &Value) -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for package in metadata["packages"].as_array().context("cargo lists no packages")? {
        // Only those of the workspace have no source.
        if !package["source"].is_null() {
            continue;
        }
        let name = package["name"].as_str().context("a package has no name")?;
        let features = package["features"].as_object().context("a package has no features")?;
        let features: Vec<&str> = features.keys().map(String::as_str).filter(|feature| *feature != "default").collect();
        if features.is_empty() || LEFT_OUT.contains(&name) {
            continue;
        }
        let mut sets = vec![String::new()];
        sets.extend(features.iter().map(|feature| (*feature).to_owned()));
        if features.len() > 1 {
            sets.push(features.join(","));
        }
        let usual = usual_features(metadata, package)?;
        sets.retain(|set| set.split(',').filter(|feature| !feature.is_empty()).ne(usual.iter().copied()));
        found.extend(sets.into_iter().map(|set| (name.to_owned(), set)));
    }
    Ok(found)
}

/// Returns the features that a crate has in the default build, in the order of Cargo's list.
fn usual_features<'a>(metadata: &'a Value, package: &Value) -> Result<Vec<&'a str>> {
    let nodes = metadata["resolve"]["nodes"].as_array().context("cargo resolves no dependencies")?;
    let node = nodes.iter().find(|node| node["id"] == package["id"]).context("a package is not resolved")?;
    let features = node["features"].as_array().context("a package has no list of features")?;
    Ok(features.iter().filter_map(Value::as_str).filter(|feature| *feature != "default").collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_feature_is_built_alone_with_none_and_with_all_except_as_usual() {
        let package = |name: &str, features: Value| json!({"id": name, "name": name, "features": features});
        let usual = |name: &str, features: &[&str]| json!({"id": name, "features": features});
        let metadata = json!({
            "packages": [
                package("inlock-a", json!({"default": ["x"], "x": [], "y": []})),
                package("inlock-b", json!({})),
                package("inlock-c", json!({"z": []})),
                package("inlock-d", json!({"v": [], "w": []})),
                package("inlock-benches", json!({"slow": []})),
                json!({"id": "other", "name": "other", "source": "registry", "features": {"x": []}}),
            ],
            "resolve": {"nodes": [
                usual("inlock-a", &["default", "x"]),
                usual("inlock-c", &[]),
                usual("inlock-d", &["v", "w"]),
            ]},
        });
        let found = combinations(&metadata).unwrap();
        let short: Vec<String> = found.iter().map(|(name, set)| format!("{}:{set}", &name[7..])).collect();
        assert_eq!(short, ["a:", "a:y", "a:x,y", "c:z", "d:", "d:v", "d:w"]);
    }

    #[test]
    fn warnings_are_told_from_other_lines() {
        for line in ["warning: unused import", "warning[E0133]: x"] {
            assert!(is_warning(line), "{line}");
        }
        for line in ["   |  warning: in a text", "error: x", "warnings are fine", ""] {
            assert!(!is_warning(line), "{line}");
        }
    }
}
