//! Compares the kernel's verdicts in `tests/table/verdicts.txt` with those of the real `dmsetup` and dm-crypt.
//!
//! The first field of a row is the verdict, `accept` or `reject`, the second the table line. The directory of the run
//! gets the file with the kernel's verdicts.

use std::fs;

use anyhow::{Context, Result};
use inlock_tests::process::root;

use super::super::Scene;
use super::super::report::{Outcome, Report};
use super::Judge;

/// Length of the guest's disk in sectors.
const SECTORS: u64 = 32768;

pub(super) fn prepare(scene: &mut Scene<'_>) -> Result<Judge> {
    let file = root().join("tests/table/verdicts.txt");
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let mut list = String::new();
    for (_, table, _) in text.lines().filter_map(row) {
        list += &table.replace("@DEV@", "/dev/vda").replace("@SECTORS@", &SECTORS.to_string());
        list.push('\n');
    }
    scene.files.push(("vm/lines".to_owned(), list.into_bytes()));
    Ok(Box::new(move |scene, report| judge(&text, scene, report)))
}

/// Returns verdict, table and the rest of a row. `None`: an empty line or a comment.
fn row(line: &str) -> Option<(&str, &str, &str)> {
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let (verdict, rest) = line.split_once('\t').unwrap_or(("no verdict", line));
    let end = rest.find('\t').unwrap_or(rest.len());
    Some((verdict, &rest[..end], &rest[end..]))
}

fn judge(text: &str, scene: &Scene<'_>, report: &mut Report) -> Result<()> {
    let (mut right, mut rows) = (String::new(), 0u64);
    for (place, line) in text.lines().enumerate() {
        let Some((verdict, table, rest)) = row(line) else {
            right += &format!("{line}\n");
            continue;
        };
        rows += 1;
        let said = report.data.iter().find(|(key, _)| *key == rows.to_string()).map(|(_, said)| said.as_str());
        let (kernels, why) = said.map_or(("nothing", ""), |said| said.split_once(' ').unwrap_or((said, "")));
        right += &format!("{kernels}\t{table}{rest}\n");
        let name = format!("line-{}", place + 1);
        report.outcomes.push(if verdict == kernels {
            Outcome::Ok(name)
        } else {
            Outcome::Fail(name, format!("the file says {verdict}, the kernel {kernels} ({why}): {table}"))
        });
    }
    report.counts.push(("table_lines_judged".to_owned(), rows));
    Ok(fs::write(scene.folder.join("verdicts.txt"), right)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_rows_are_split_at_tabs() {
        assert_eq!(row("accept\t0 8 zero\taccept\twhy"), Some(("accept", "0 8 zero", "\taccept\twhy")));
        assert_eq!(row("reject\t0 8 one"), Some(("reject", "0 8 one", "")));
        assert_eq!((row(""), row("# a comment")), (None, None));
    }
}
