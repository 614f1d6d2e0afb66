//! Compares a table of operations on zones, `tests/table/zones.txt`, with the results of the guest's devices.
//!
//! A row has the result of its steps on a device of the first shape, the lines behind it the differences on other
//! shapes. Of each shape there is the kernel's own device, which is compared with the file, and others that must behave
//! like it: dm-crypt's, Inlock's on such a device, Inlock's on a zoned file. The directory of the run gets the file
//! with the results of the devices.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, ensure};
use inlock_tests::process::root;

use super::super::Scene;
use super::super::report::{Outcome, Report};
use super::Judge;

/// The shapes, and the devices of each in addition to the kernel's own. `tests/vm/zoned.sh` describes them.
const SHAPES: [(&str, &[&str]); 4] = [
    ("mixed", &["dm", "inlock", "file"]),
    ("plain", &["dm", "inlock", "file"]),
    ("sectors", &["dm", "inlock", "file"]),
    ("narrow", &["dm", "inlock", "file"]),
];
/// Result of a device that lacks an object of the steps.
const ABSENT: &str = "absent";
/// Separates results of which a device may give any: requests of one ioctl reach it in no order.
const OR: &str = " or ";
/// The kernel's own device.
const OWN: &str = "raw";
/// A shape whose devices must differ from those of the first, and the minimum number of different rows.
const CONTROL: &str = "plain";
const CONTROL_DIFFERS: usize = 10;

pub(super) fn prepare(scene: &mut Scene<'_>) -> Result<Judge> {
    let file = root().join("tests/table/zones.txt");
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    scene.files.push(("vm/zones.txt".to_owned(), text.clone().into_bytes()));
    Ok(Box::new(move |scene, report| judge(&text, scene, report)))
}

/// A row with the lines behind it.
struct Row<'a> {
    name: &'a str,
    steps: &'a str,
    result: &'a str,
    /// Results elsewhere, by `SHAPE`, or `SHAPE/DEVICE` where one device differs from the others of its shape.
    elsewhere: BTreeMap<&'a str, &'a str>,
}

/// Whether `given` is one of the results in `expected`.
fn is_one_of(given: &str, expected: &str) -> bool {
    expected.split(OR).any(|expected| given == expected)
}

/// A line of the file: part of the table, or not.
enum Line<'a> {
    Row(Row<'a>),
    Text(&'a str),
}

fn lines(text: &str) -> Result<Vec<Line<'_>>> {
    let mut lines = Vec::new();
    for line in text.lines() {
        if let Some(difference) = line.strip_prefix('\t') {
            let (place, result) = difference.split_once('\t').with_context(|| format!("cannot parse: {line}"))?;
            let known = SHAPES.iter().any(|(shape, others)| {
                place == *shape || others.iter().any(|device| place == format!("{shape}/{device}"))
            });
            ensure!(known && place != SHAPES[0].0, "there is no '{place}'");
            let Some(Line::Row(row)) = lines.last_mut() else { anyhow::bail!("no row is before: {line}") };
            row.elsewhere.insert(place, result);
        } else if line.is_empty() || line.starts_with('#') {
            lines.push(Line::Text(line));
        } else {
            let fields: Vec<&str> = line.split('\t').collect();
            let [name, steps, result] = fields[..] else { anyhow::bail!("cannot parse: {line}") };
            lines.push(Line::Row(Row { name, steps, result, elsewhere: BTreeMap::new() }));
        }
    }
    Ok(lines)
}

impl Row<'_> {
    /// Returns the expected result; `own` is the result of the kernel's own device of the shape.
    fn expected<'a>(&'a self, shape: &str, device: &str, own: &'a str) -> &'a str {
        let elsewhere = |place: &str| self.elsewhere.get(place).copied();
        if device == OWN {
            elsewhere(shape).unwrap_or(self.result)
        } else {
            elsewhere(&format!("{shape}/{device}")).unwrap_or(own)
        }
    }
}

fn judge(text: &str, scene: &Scene<'_>, report: &mut Report) -> Result<()> {
    // By device, as SHAPE/DEVICE, and name of the row.
    let said: BTreeMap<(&str, &str), &str> = report
        .data
        .iter()
        .filter_map(|(device, row)| row.split_once('\t').map(|(name, result)| ((device.as_str(), name), result)))
        .collect();
    let (mut right, mut outcomes, mut judged, mut control) = (String::new(), Vec::new(), 0, 0);
    for line in lines(text)? {
        let row = match line {
            Line::Row(row) => row,
            Line::Text(text) => {
                right += &format!("{text}\n");
                continue;
            }
        };
        let of = |shape: &str, device: &str| {
            said.get(&(format!("{shape}/{device}").as_str(), row.name)).copied().unwrap_or("nothing")
        };
        let first = of(SHAPES[0].0, OWN);
        right += &format!("{}\t{}\t{first}\n", row.name, row.steps);
        for (shape, others) in SHAPES {
            let own = of(shape, OWN);
            if own != first {
                right += &format!("\t{shape}\t{own}\n");
            }
            for device in std::iter::once(&OWN).chain(others) {
                let (given, expected) = (of(shape, device), row.expected(shape, device, own));
                let is_expected = is_one_of(given, expected);
                if is_expected && expected.contains(OR) {
                    right += &format!("\t{shape}/{device}\t{expected}\n");
                } else if given != own {
                    right += &format!("\t{shape}/{device}\t{given}\n");
                }
                if given == expected && given == ABSENT {
                    continue;
                }
                judged += 1;
                let place = format!("{shape}/{device}:{}", row.name);
                outcomes.push(if is_expected && given != "nothing" {
                    Outcome::Ok(place)
                } else {
                    Outcome::Fail(place, format!("it is '{given}', not '{expected}', of: {}", row.steps))
                });
            }
        }
        control += usize::from(of(CONTROL, OWN) != row.result);
    }
    outcomes.push(if control >= CONTROL_DIFFERS {
        Outcome::Ok("control".to_owned())
    } else {
        Outcome::Fail("control".to_owned(), format!("a device of another shape differs in {control} rows only"))
    });
    report.outcomes.extend(outcomes);
    report.counts.push(("zone_cases_judged".to_owned(), judged));
    Ok(fs::write(scene.folder.join("zones.txt"), right)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exception_line_belongs_to_preceding_row() {
        let text = "# a table\n\nopen\topen s0 1z\tok |\n\tplain\tEIO |\n\tplain/dm\tok |\nzones\tzones\t14 |\n";
        let lines = lines(text).unwrap();
        let [Line::Text("# a table"), Line::Text(""), Line::Row(open), Line::Row(zones)] = &lines[..] else {
            panic!("not as it was written");
        };
        assert_eq!(open.expected("mixed", OWN, "?"), "ok |");
        assert_eq!(open.expected("plain", OWN, "?"), "EIO |");
        assert_eq!((open.expected("plain", "dm", "?"), open.expected("plain", "inlock", "?")), ("ok |", "?"));
        assert_eq!((zones.steps, zones.expected("plain", OWN, "?")), ("zones", "14 |"));
    }

    #[test]
    fn third_result_beside_two_alternatives_is_refused() {
        let expected = "EIO | s0:1 or EIO | s1:1";
        assert!(is_one_of("EIO | s0:1", expected) && is_one_of("EIO | s1:1", expected));
        for given in ["EIO | s2:1", "EIO |", "", expected] {
            assert!(!is_one_of(given, expected), "{given}");
        }
    }

    #[test]
    fn line_of_no_row_is_refused() {
        for text in [
            "\tplain\tEIO |\n",
            "a\tb\tc\n\tno-shape\tEIO |\n",
            "a\tb\tc\n\tplain\n",
            "a\tb\n",
            "a\tb\tc\n\tmixed\td\n",
        ] {
            assert!(lines(text).is_err(), "{text}");
        }
    }
}
