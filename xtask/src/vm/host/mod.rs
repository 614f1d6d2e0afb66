//! The host part of a test: prepares disks and files before the guest runs, and judges the results after it.
//!
//! Tests without an entry need neither.

mod dm_crypt;
mod integrity;
mod luks;
mod sealed;
mod slots;
mod table;
mod verity;
mod zoned;

use anyhow::Result;

use super::Scene;
use super::report::Report;
use super::script::Script;

/// Checks what the guest has left, and adds verdicts, counts and notes to its report. Called only if the guest's script
/// has finished.
pub(super) type Judge = Box<dyn FnOnce(&Scene<'_>, &mut Report) -> Result<()>>;

/// Prepares a test, and returns its judge.
type Prepare = fn(&mut Scene<'_>) -> Result<Judge>;

/// The tests with a host part, by the names of their scripts.
const PARTS: &[(&str, Prepare)] = &[
    ("dm-crypt", dm_crypt::prepare),
    ("integrity", integrity::prepare),
    ("luks", luks::prepare),
    ("sealed", sealed::prepare),
    ("table", table::prepare),
    ("verity", verity::prepare),
    ("zoned", zoned::prepare),
];

/// Prepares the test of this name.
pub(super) fn prepare(name: &str, scene: &mut Scene<'_>) -> Result<Option<Judge>> {
    PARTS.iter().find(|(n, _)| *n == name).map(|(_, prepare)| prepare(scene)).transpose()
}

/// Returns the number of rounds of a test, each with its own machine and disks: with `--full` the disks cannot hold all
/// of it at once.
pub(super) fn rounds(script: &Script, full: bool) -> usize {
    if full && script.name == "dm-crypt" { dm_crypt::FULL_ROUNDS } else { 1 }
}
