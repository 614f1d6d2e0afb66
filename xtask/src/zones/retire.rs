//! Makes zones of a zoned file fail, like those of a drive.

use std::path::Path;

use anyhow::{Context, Result, bail};
use inlock_engine::zoned::ZoneCondition;
use inlock_zoned_file::ZonedFile;

/// Sets the condition of a zone of `file` permanently.
pub(super) fn run(file: &Path, zone: u64, condition: &str) -> Result<()> {
    let condition = match condition {
        "read-only" => ZoneCondition::ReadOnly,
        "offline" => ZoneCondition::Offline,
        _ => bail!("a zone fails as read-only or offline, not '{condition}'"),
    };
    let file = ZonedFile::open(file)?;
    file.retire(u32::try_from(zone)?, condition).with_context(|| format!("cannot retire zone {zone}"))?;
    Ok(file.close()?)
}
