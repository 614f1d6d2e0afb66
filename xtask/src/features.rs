//! `cargo xtask features`: builds each crate with no feature, with each feature alone, and with all; with `--tests`,
//! including its tests.
//!
//! A default build has every feature, so a missing dependency between features shows only here.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::metadata::metadata;

/// Excluded: its features build other implementations from source, which takes minutes.
const LEFT_OUT: [&str; 1] = ["inlock-benches"];

/// Runs all combinations, and fails if any does.
pub(crate) fn run(root: &Path, args: &[String]) -> Result<ExitCode> {
    let with_tests = args.iter().any(|word| word == "--tests");
    let combinations = combinations(&metadata(root, &["--no-deps"])?)?;
    let mut failed = 0;
    for (package, features) in &combinations {
        let mut command = Command::new(env!("CARGO"));
        command.current_dir(root).args(["clippy", "--quiet", "--package", package]);
        command.args(if with_tests { &["--all-targets"][..] } else { &[] });
        command.args(["--no-default-features", "--features", features, "--", "-D", "warnings"]);
        let passed = command.status().context("cannot run cargo")?.success();
        println!("features: {package} with [{features}]: {}", if passed { "ok" } else { "FAILED" });
        failed += usize::from(!passed);
    }
    println!("COUNT feature_combinations {}", combinations.len() - failed);
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns each crate of the workspace with features, with the values for `--features`.
fn combinations(metadata: &Value) -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for package in metadata["packages"].as_array().context("cargo lists no packages")? {
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
        found.extend(sets.into_iter().map(|set| (name.to_owned(), set)));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_feature_is_built_alone_with_none_and_with_all() {
        let metadata = json!({"packages": [
            {"name": "inlock-a", "features": {"default": ["x"], "x": [], "y": []}},
            {"name": "inlock-b", "features": {}},
            {"name": "inlock-c", "features": {"z": []}},
            {"name": "inlock-benches", "features": {"slow": []}},
        ]});
        let found = combinations(&metadata).unwrap();
        let short: Vec<String> = found.iter().map(|(name, set)| format!("{}:{set}", &name[7..])).collect();
        assert_eq!(short, ["a:", "a:x", "a:y", "a:x,y", "c:", "c:z"]);
    }
}
