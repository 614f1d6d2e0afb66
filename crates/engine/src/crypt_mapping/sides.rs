//! Sides of a device that is re-encrypted while it is used.

use super::{CryptMapping, Table, Target, TargetError, map_target};
use crate::boundary::{Boundary, MoveDirection, NEW, OLD};
use inlock_cipher::{SECTOR_SIZE, Sector};
use std::sync::Arc;

/// Both sides of a device that is re-encrypted while it is used.
#[derive(Clone, Copy, Debug)]
pub struct Sides<'a> {
    /// How bytes are stored that are not re-encrypted yet. Start and length of its segment are ignored: a side is
    /// described over the whole device.
    pub old: Target<'a>,
    /// How bytes are stored that are re-encrypted.
    pub new: Target<'a>,
    /// Direction of the re-encryption.
    pub direction: MoveDirection,
    /// Boundary between new and old bytes, in bytes of the device.
    pub boundary: u64,
    /// Length of the device in bytes.
    pub len: u64,
}

impl CryptMapping {
    /// Creates the crypt mapping of a device that is re-encrypted while it is used, on stores of these lengths in
    /// bytes.
    ///
    /// # Errors
    ///
    /// As [`CryptMapping::stacked`] for each side over the whole device; [`TargetError::NotStored`] for a side that is
    /// neither encrypted nor linear, and [`TargetError::Boundary`] for a boundary that is not one of both sides' data
    /// units.
    pub fn moving(sides: &Sides<'_>, store_lens: &[u64]) -> Result<Self, TargetError> {
        let Sides { direction, boundary, len, .. } = *sides;
        if !len.is_multiple_of(SECTOR_SIZE) {
            return Err(TargetError::UnitLength { len, unit: SECTOR_SIZE as usize });
        }
        let whole = |side: &Target<'_>| {
            let mut segment = *side.segment;
            (segment.start, segment.sectors) = (Sector(0), Some(len / SECTOR_SIZE));
            segment
        };
        let segments = [whole(&sides.old), whole(&sides.new)];
        let mut table = Table::default();
        for (index, side) in [(OLD, &sides.old), (NEW, &sides.new)] {
            let line = Target { segment: &segments[index], ..*side };
            let part = map_target(index, &line, store_lens)?;
            let unit = part.unit_len();
            if !part.kind.is_stored() {
                return Err(TargetError::NotStored(index));
            }
            if boundary > len || !boundary.is_multiple_of(unit as u64) {
                return Err(TargetError::Boundary { boundary, len, unit });
            }
            table.add(index, &line, part)?;
        }
        Ok(table.mapped(len, Some(Arc::new(Boundary::new(direction, boundary)))))
    }
}

#[cfg(test)]
mod tests;
