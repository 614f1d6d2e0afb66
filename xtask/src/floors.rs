//! `cargo xtask floors`: raises the floors of tests/floors.txt to the last full run's counts minus 5 %.
//!
//! The last stage of `./test.sh` writes a line for each count. A floor is never lowered here: that needs a reason and a
//! manual edit.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};

use crate::target_dir;

/// Rewrites the file.
pub(crate) fn run(root: &Path) -> Result<ExitCode> {
    let log = target_dir(root).join("test-logs/floors.log");
    let said = fs::read_to_string(&log).with_context(|| format!("no full run left {}", log.display()))?;
    let counts = counts(&said);
    ensure!(!counts.is_empty(), "{} holds no counts", log.display());
    let path = root.join("tests/floors.txt");
    let before = fs::read_to_string(&path)?;
    let after = raised(&before, &counts);
    fs::write(&path, &after)?;
    for (before, after) in before.lines().zip(after.lines()).filter(|(before, after)| before != after) {
        println!("floors: {before} -> {after}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Parses lines `count NAME: NUMBER, at least FLOOR`.
fn counts(said: &str) -> BTreeMap<&str, u64> {
    let lines = said.lines().filter_map(|line| line.strip_prefix("count ")?.split_once(": "));
    lines.filter_map(|(name, rest)| Some((name, rest.split(',').next()?.parse().ok()?))).collect()
}

/// Returns the floors, with those below 95 % of their count raised.
fn raised(floors: &str, counts: &BTreeMap<&str, u64>) -> String {
    let raise = |line: &str| {
        let Some((name, floor)) = line.split_once(' ').filter(|_| !line.starts_with('#')) else {
            return line.to_owned();
        };
        let wanted = counts.get(name).map_or(0, |count| count - count.div_ceil(20));
        match floor.parse::<u64>() {
            Ok(floor) if wanted > floor => format!("{name} {wanted}"),
            _ => line.to_owned(),
        }
    };
    floors.lines().map(|line| raise(line) + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floor_rises_to_95_percent_of_count_and_never_falls() {
        let counts =
            counts("count a: 1000, at least 10\ncount b: 100, at least 96\ncount c: 9, fewer than 10\nnoise\n");
        assert_eq!(counts, BTreeMap::from([("a", 1000), ("b", 100), ("c", 9)]));
        let floors = "# NAME FLOOR\na 10\nb 96\nc 10\nd 4\n";
        assert_eq!(raised(floors, &counts), "# NAME FLOOR\na 950\nb 96\nc 10\nd 4\n");
    }
}
