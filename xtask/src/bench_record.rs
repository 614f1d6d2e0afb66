//! `cargo xtask bench-record`: runs `inlock bench all` on a release build, and records the results.
//!
//! The thresholds with the environment become Markdown in `benches/record`; all results as JSON, and the page, are left
//! in the target directory. If a threshold is missed, the command fails after the record is written.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use inlock_tests::process;
use serde_json::Value;

use crate::target_dir;

/// Measures with the arguments of `inlock bench all`, and writes the record.
pub(crate) fn run(root: &Path, args: &[String]) -> Result<ExitCode> {
    let inlock = process::inlock_path()?;
    let folder = root.join("benches/record");
    fs::create_dir_all(&folder)?;
    let date = first_line(Command::new("date").args(["-u", "+%Y-%m-%d"]))?;
    let results = target_dir(root).join("bench-record");
    fs::create_dir_all(&results)?;
    let file = |folder: &Path, suffix: &str| -> PathBuf { folder.join(format!("{date}-bench.{suffix}")) };
    let output = Command::new(&inlock)
        .args(["bench", "all", "--check", "--json", "--report"])
        .arg(file(&results, "html"))
        .args(args)
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run {}", inlock.display()))?;
    let Ok(told) = serde_json::from_slice::<Value>(&output.stdout) else {
        bail!("inlock bench ended with {}", output.status)
    };
    let commit = first_line(Command::new("git").current_dir(root).args(["rev-parse", "--short", "HEAD"]))
        .unwrap_or_else(|_| "unknown".to_owned());
    let command = format!("inlock bench all --check --json --report FILE {}", args.join(" "));
    fs::write(file(&results, "json"), &output.stdout)?;
    fs::write(file(&folder, "md"), markdown(&told, &date, &commit, command.trim_end()))?;
    println!("written to benches/record/{date}-bench.md; results in {}", results.display());
    Ok(if output.status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the summary of a record.
fn markdown(told: &Value, date: &str, commit: &str, command: &str) -> String {
    let mut text = format!(
        "# Benchmarks, {date}\n\n`{command}` at commit {commit}.\n\n| case | threshold | result | met |\n|---|---|---:|---|\n"
    );
    for bar in told["bars"].as_array().into_iter().flatten() {
        let figure = bar["figure"].as_f64().map_or_else(|| "-".to_owned(), |figure| format!("{figure:.3}"));
        let met = match bar["met"].as_bool() {
            Some(true) => "yes",
            Some(false) => "**no**",
            None => "not measured",
        };
        let word = |name: &str| bar[name].as_str().unwrap_or_default();
        text += &format!("| {} | {} {} | {figure} | {met} |\n", word("bar"), word("sense"), bar["limit"]);
    }
    text += "\n## Environment\n\n";
    for (name, value) in told["environment"].as_object().into_iter().flatten() {
        text += &format!("    {name}: {}\n", value.as_str().unwrap_or_default());
    }
    text += "\n## How\n\n";
    for note in told["notes"].as_array().into_iter().flatten() {
        text += &format!("    {}\n", note.as_str().unwrap_or_default());
    }
    text
}

fn first_line(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {:?}", command.get_program()))?;
    if !output.status.success() {
        bail!("{:?} ended with {}", command.get_program(), output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn missed_and_open_thresholds_differ_from_met_ones() {
        let bar = |figure: Option<f64>, met: Option<bool>| json!({ "bar": "x", "sense": ">=", "limit": 0.9, "figure": figure, "met": met });
        let bars = [bar(Some(1.0), Some(true)), bar(Some(0.5), Some(false)), bar(None, None)];
        let told = json!({ "environment": { "kernel": "6.1" }, "bars": bars, "notes": ["a note"] });
        let text = markdown(&told, "2026-11-21", "abc", "inlock bench all");
        for line in [
            "| x | >= 0.9 | 1.000 | yes |",
            "| 0.500 | **no** |",
            "| - | not measured |",
            "    kernel: 6.1",
            "    a note",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }
}
