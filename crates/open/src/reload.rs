//! Another table for a running volume.

use crate::error::{Error, ErrorKind, Result};
use crate::host::Context;
use inlock_engine::{self as engine, CryptMapping};
use inlock_volume::table::{CryptOptions, TableLine, Target};
use inlock_volume::{Segment, Table};

use super::contents::content_of;
use super::device;
use super::info::SegmentInfo;
use super::key_check::KeyCheck;
use super::table;

/// Changes to a running volume by a table.
pub struct Reloaded {
    /// The mapping to the devices.
    pub mapping: CryptMapping,
    /// The lines of the table.
    pub segments: Vec<SegmentInfo>,
    /// Recognizes the table's keys.
    pub check: Option<KeyCheck>,
    /// Discards and the flags of threads.
    pub flags: CryptOptions,
}

/// Checks a table for a running volume with these segments, opened on the devices with these identities, and maps it to
/// the same devices.
pub fn reload(
    context: &Context,
    table: &Table,
    running: &engine::Device,
    segments: &[SegmentInfo],
    identities: &[String],
) -> Result<Reloaded> {
    let of_line = table::on_devices(context, table, identities)?;
    let is_legacy = |line: &TableLine| match &line.target {
        Target::Crypt(crypt) => crypt.cipher.cipher.is_legacy(),
        _ => false,
    };
    if !running.access().read_only && table.lines().iter().any(is_legacy) {
        return Err(Error::new(ErrorKind::TableLegacyCipher, "The table has a legacy cipher, which is read-only."));
    }
    table::check_discards(table, running.access().allow_discards)?;
    for (number, (line, store)) in table.lines().iter().zip(&of_line).enumerate() {
        let block = running.stores().get(*store).and_then(|store| device::direct_block(store.as_fd()?));
        block.map_or(Ok(()), |block| table::check_blocks(number + 1, line, block))?;
    }
    let new_segments = SegmentInfo::of_table(table);
    if running.zone_limits().is_some() && runs(segments, running.len()) != runs(&new_segments, 0) {
        return Err(Error::new(ErrorKind::TableZones, "The table does not have the same zones in the same order."));
    }
    let line_segments: Vec<Segment> = table.lines().iter().map(TableLine::segment).collect();
    let lines = table.lines().iter().zip(&line_segments).zip(&of_line);
    let lines: Vec<_> = lines
        .map(|((line, segment), store)| engine::Target { segment, content: content_of(&line.target), store: *store })
        .collect();
    let lens: Vec<u64> = running.stores().iter().map(|store| store.geometry().len).collect();
    Ok(Reloaded {
        mapping: CryptMapping::stacked(&lines, &lens)?,
        segments: new_segments,
        check: KeyCheck::of_table(table).ok(),
        flags: table::flags(table),
    })
}

/// Returns the contiguous runs of a volume of `len` bytes: first sector, offset on the device, number of sectors.
fn runs(segments: &[SegmentInfo], len: u64) -> Vec<(u64, u64, u64)> {
    let mut runs: Vec<(u64, u64, u64)> = Vec::new();
    for segment in segments {
        let sectors = segment.sectors.unwrap_or((len / 512).saturating_sub(segment.start));
        match runs.last_mut() {
            Some((_, offset, run)) if offset.checked_add(*run) == Some(segment.offset) => *run += sectors,
            _ => runs.push((segment.start, segment.offset, sectors)),
        }
    }
    runs
}
