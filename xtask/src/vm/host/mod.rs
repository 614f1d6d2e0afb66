//! The host part of a test: prepares disks and files before the guest runs, and judges the results after it.
//!
//! A test without an entry here needs neither.

mod dm_crypt;
mod luks;
mod table;
mod zoned;

use anyhow::Result;

use super::Scene;
use super::report::Report;
use super::script::Script;

/// Looks at what the guest left and adds verdicts, counts and notes to its report. Only called where the guest's script
/// came to its end.
pub(super) type Judge = Box<dyn FnOnce(&Scene<'_>, &mut Report) -> Result<()>>;

/// Prepares a test, and gives what judges it.
type Prepare = fn(&mut Scene<'_>) -> Result<Judge>;

/// The tests that the host has a part in, by the names of their scripts.
const PARTS: &[(&str, Prepare)] =
    &[("dm-crypt", dm_crypt::prepare), ("luks", luks::prepare), ("table", table::prepare), ("zoned", zoned::prepare)];

/// Prepares the test of this name.
pub(super) fn prepare(name: &str, scene: &mut Scene<'_>) -> Result<Option<Judge>> {
    PARTS.iter().find(|(n, _)| *n == name).map(|(_, prepare)| prepare(scene)).transpose()
}

/// In how many rounds a test runs, each with its own machine and disks: with `--full` not all of it fits onto disks at
/// once.
pub(super) fn rounds(script: &Script, full: bool) -> usize {
    if full && script.name == "dm-crypt" { dm_crypt::FULL_ROUNDS } else { 1 }
}
