//! `cargo xtask dependencies`: no dependency needs a newer Rust than the workspace, every library can be packaged, and
//! `cargo deny check` passes.
//!
//! The advisories are a repository on the network. Without a copy of it they are skipped, and so is cargo-deny as a
//! whole if it is not installed; both are printed.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use inlock_tests::process::{lossy, output, program};
use inlock_tests::report::skipped;
use serde_json::Value;

use crate::metadata::{cargo, metadata};
use crate::target_dir;

/// Runs all checks.
pub(crate) fn run(root: &Path) -> Result<ExitCode> {
    let metadata = metadata(root, &["--all-features"])?;
    let newer = newer_than_workspace(&metadata)?;
    for finding in &newer {
        println!("dependencies: {finding}");
    }
    let packaged = package(root, &libraries(root, &metadata)?)?;
    let denied = !deny(root)?;
    Ok(if newer.is_empty() && packaged && !denied { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the names of the library crates: those of `crates/` except the one for tests.
fn libraries(root: &Path, metadata: &Value) -> Result<Vec<String>> {
    let packages = metadata["packages"].as_array().context("cargo lists no packages")?;
    let is_library = |package: &&Value| {
        let path =
            package["manifest_path"].as_str().is_some_and(|path| Path::new(path).starts_with(root.join("crates")));
        let mut targets = package["targets"].as_array().into_iter().flatten();
        let has_library =
            targets.any(|target| target["kind"].as_array().is_some_and(|kinds| kinds.contains(&"lib".into())));
        path && has_library && package["name"] != "inlock-testing"
    };
    Ok(packages.iter().filter(is_library).filter_map(|package| Some(package["name"].as_str()?.to_owned())).collect())
}

/// Packages crates without building them. Returns false if one cannot be packaged.
fn package(root: &Path, names: &[String]) -> Result<bool> {
    let mut command = cargo(root);
    command.args(["package", "--no-verify", "--allow-dirty", "--exclude-lockfile", "--offline"]);
    command.arg("--target-dir").arg(target_dir(root).join("packages"));
    command.args(names.iter().flat_map(|name| ["--package", name]));
    let ended = output(&mut command)?;
    if !ended.status.success() {
        println!("dependencies: a library cannot be packaged: {}", lossy(&ended.stderr));
    }
    Ok(ended.status.success())
}

/// Returns dependencies of the workspace that need a newer Rust than the oldest `rust-version` of a member.
fn newer_than_workspace(metadata: &Value) -> Result<Vec<String>> {
    let packages = metadata["packages"].as_array().context("cargo lists no packages")?;
    let named = |package: &Value| package["rust_version"].as_str().map(version);
    // Packages of the workspace come from no registry.
    let own = packages.iter().filter(|package| package["source"].is_null()).filter_map(named).min();
    let own = own.context("no package of the workspace names a rust-version")?;
    let newer = packages.iter().filter(|package| named(package).is_some_and(|theirs| theirs > own));
    let show = |package: &Value| {
        let text = |key: &str| package[key].as_str().unwrap_or_default().to_owned();
        let own = own.map(|number| number.to_string()).join(".");
        format!(
            "{} {} needs Rust {}, and the workspace promises {own}",
            text("name"),
            text("version"),
            text("rust_version")
        )
    };
    Ok(newer.map(show).collect())
}

/// Parses a version, so that `1.89` equals `1.89.0`.
fn version(text: &str) -> [u32; 3] {
    let mut numbers = text.split('.').map(|part| part.parse().unwrap_or(0));
    [(); 3].map(|()| numbers.next().unwrap_or(0))
}

/// Runs cargo-deny with deny.toml. Returns false if it denies something.
fn deny(root: &Path) -> Result<bool> {
    let checked = |what: &[&str]| {
        let mut command = program("cargo-deny");
        output(command.current_dir(root).args(["--color=never", "--log-level=error", "check"]).args(what))
    };
    let Ok(present) = output(program("cargo-deny").arg("--version")) else { return Ok(true) };
    if !present.status.success() {
        skipped("cargo-deny is not installed");
        return Ok(true);
    }
    let rest = checked(&["bans", "licenses", "sources"])?;
    print!("{}{}", lossy(&rest.stdout), lossy(&rest.stderr));
    let advisories = checked(&["advisories"])?;
    let said = lossy(&advisories.stderr);
    if said.contains("failed to fetch advisory database") {
        skipped("the advisories on dependencies cannot be fetched here");
        return Ok(rest.status.success());
    }
    print!("{}{said}", lossy(&advisories.stdout));
    Ok(rest.status.success() && advisories.status.success())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn dependency_that_needs_a_newer_rust_is_reported() {
        let with = |theirs: &str| {
            let found = newer_than_workspace(&json!({"packages": [
                {"name": "inlock-a", "version": "0.1.0", "source": null, "rust_version": "1.89"},
                {"name": "b", "version": "2.0.0", "source": "registry", "rust_version": theirs},
                {"name": "c", "version": "1.0.0", "source": "registry", "rust_version": null},
            ]}));
            found.unwrap()
        };
        assert_eq!(with("1.89.0"), Vec::<String>::new());
        assert_eq!(with("1.9"), Vec::<String>::new());
        assert_eq!(with("1.89.1"), ["b 2.0.0 needs Rust 1.89.1, and the workspace promises 1.89.0"]);
        assert_eq!(with("1.100").len(), 1);
    }
}
