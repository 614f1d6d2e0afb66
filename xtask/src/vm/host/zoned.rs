//! Holds a table of operations on zones, `tests/table/zones.txt`, against what the guest's devices did.
//!
//! The third field of a row is what comes of its steps; it is asked of every device alike: the kernel's own, dm-crypt's,
//! Inlock's. (Files with zones are held against it by the engine's own tests.) The run's folder gets the file as the
//! kernel's own device would have it. A device of another shape, `control`, has to differ.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result};
use inlock_tests::process::root;

use super::super::Scene;
use super::super::report::{Outcome, Report};
use super::Judge;

/// Devices that do as the table says. The first writes the file.
const ALIKE: [&str; 3] = ["raw", "dm", "inlock"];
/// The device that must not, and in how many rows at least.
const CONTROL: &str = "control";
const CONTROL_DIFFERS: usize = 10;

pub(super) fn prepare(scene: &mut Scene<'_>) -> Result<Judge> {
    let file = root().join("tests/table/zones.txt");
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    scene.files.push(("vm/zones.txt".to_owned(), text.clone().into_bytes()));
    Ok(Box::new(move |scene, report| judge(&text, scene, report)))
}

/// Name, steps and result of a row; none: an empty line or a comment.
fn row(line: &str) -> Option<(&str, &str, &str)> {
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let mut fields = line.splitn(3, '\t');
    Some((fields.next()?, fields.next().unwrap_or_default(), fields.next().unwrap_or_default()))
}

fn judge(text: &str, scene: &Scene<'_>, report: &mut Report) -> Result<()> {
    // By device and name of the row.
    let said: BTreeMap<(&str, &str), &str> = report
        .data
        .iter()
        .filter_map(|(device, row)| row.split_once('\t').map(|(name, result)| ((device.as_str(), name), result)))
        .collect();
    let (mut right, mut outcomes, mut judged, mut control) = (String::new(), Vec::new(), 0, 0);
    for line in text.lines() {
        let Some((name, steps, result)) = row(line) else {
            right += &format!("{line}\n");
            continue;
        };
        for device in ALIKE {
            let given = said.get(&(device, name)).copied().unwrap_or("nothing");
            judged += 1;
            let place = format!("{device}:{name}");
            outcomes.push(if given == result {
                Outcome::Ok(place)
            } else {
                Outcome::Fail(place, format!("the table says '{result}', the device '{given}', of: {steps}"))
            });
        }
        right += &format!("{name}\t{steps}\t{}\n", said.get(&(ALIKE[0], name)).unwrap_or(&"nothing"));
        control += usize::from(said.get(&(CONTROL, name)).is_some_and(|given| *given != result));
    }
    outcomes.push(if control >= CONTROL_DIFFERS {
        Outcome::Ok(CONTROL.to_owned())
    } else {
        Outcome::Fail(CONTROL.to_owned(), format!("a device of another shape differs in {control} rows only"))
    });
    report.outcomes.extend(outcomes);
    report.counts.push(("zone_cases_judged".to_owned(), judged));
    Ok(fs::write(scene.folder.join("zones.txt"), right)?)
}
