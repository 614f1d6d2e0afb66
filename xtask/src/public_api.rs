//! `cargo xtask public-api`: compares the public API of the libraries with the listings in `docs/api`.
//!
//! A listing has a line for each public item, made from rustdoc's JSON (tests/rustdoc_json.sh). A change of the API
//! shows as a change of these files; `--update` writes them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use inlock_tests::report::skipped;

use crate::metadata::cargo;
use crate::target_dir;

/// Libraries whose API is listed.
const LIBRARIES: [&str; 12] = [
    "inlock-cipher",
    "inlock-volume",
    "inlock-engine",
    "inlock-frontend",
    "inlock-zoned-file",
    "inlock-integrity",
    "inlock-verity",
    "inlock-nbd-store",
    "inlock-rbd-store",
    "inlock-afalg",
    "inlock-open",
    "inlock-serve",
];

/// Where the listings are.
const LISTINGS: &str = "docs/api";

/// Compares or, with `--update`, writes the listings. Needs a toolchain with a known format of the JSON.
pub(crate) fn run(root: &Path, args: &[String]) -> Result<ExitCode> {
    let update = match args {
        [] => false,
        [word] if word == "--update" => true,
        _ => bail!("usage: cargo xtask public-api [--update]"),
    };
    let documents = document(root)?;
    let mut changes = 0;
    for package in LIBRARIES {
        let json = documents.join(format!("{}.json", package.replace('-', "_")));
        let Some(listing) = listing(&json) else {
            ensure!(!update, "rustdoc of this toolchain writes another format");
            skipped("rustdoc of this toolchain writes another format, the public API is not compared");
            return Ok(ExitCode::SUCCESS);
        };
        let file = root.join(LISTINGS).join(format!("{package}.txt"));
        if update {
            fs::create_dir_all(root.join(LISTINGS))?;
            fs::write(&file, &listing).with_context(|| format!("cannot write {}", file.display()))?;
        } else {
            let known = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
            changes += print_changes(package, &known, &listing);
        }
        println!("public-api: {package}: {} items", listing.lines().count());
    }
    if changes > 0 {
        println!("public-api: {changes} changes; `cargo xtask public-api --update` writes them to {LISTINGS}");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes rustdoc's JSON of the libraries, with the features that the commands have, and returns its directory. What
/// they depend on is that of the documentation.
fn document(root: &Path) -> Result<PathBuf> {
    let mut cargo = cargo(root);
    cargo.args(["doc", "--quiet", "--no-deps", "--lib", "--workspace", "--exclude", "inlock-benches"]);
    cargo.env("RUSTDOC", root.join("tests/rustdoc_json.sh"));
    cargo.env("RUSTDOCFLAGS", "-Z unstable-options --output-format json --cap-lints allow");
    ensure!(cargo.status().context("cannot run cargo")?.success(), "cannot document the libraries");
    Ok(target_dir(root).join("doc"))
}

/// Returns the public items, a line each. `None`: the format is not known.
fn listing(json: &Path) -> Option<String> {
    let builder = public_api::Builder::from_rustdoc_json(json);
    let builder = builder.omit_blanket_impls(true).omit_auto_trait_impls(true).omit_auto_derived_impls(true);
    builder.build().ok().map(|api| api.to_string())
}

/// Prints the lines that only one of the listings has. Returns their number.
fn print_changes(package: &str, known: &str, found: &str) -> usize {
    let only_in = |one: &str, other: &str, sign: char| {
        let other: Vec<&str> = other.lines().collect();
        let lines = one.lines().filter(|line| !other.contains(line));
        lines.map(|line| println!("public-api: {package}: {sign}{line}")).count()
    };
    only_in(known, found, '-') + only_in(found, known, '+')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_lines_of_one_listing_only() {
        assert_eq!(print_changes("x", "a\nb\n", "b\na\n"), 0);
        assert_eq!(print_changes("x", "a\nb\n", "a\nc\n"), 2);
    }
}
