//! Bytes of others between the parts of a header, which a conversion overwrites.
//!
//! Programs keep metadata there, such as clevis in a LUKS1 header. Zeroes, other constant sectors and random bytes,
//! which keyslots leave, are filler: a program that keeps something there has a sector with structure to find it by.

use crate::header_device::HeaderDevice;
use std::io;
use std::ops::Range;

const SECTOR: usize = 512;
const CHUNK: u64 = 1 << 20;
/// Random bytes of a sector have 221 values on average, with a standard deviation of 5.
const RANDOM_VALUES: usize = 180;
/// Start of the metadata of luksmeta.
const LUKSMETA: &[u8] = b"LUKSMETA";

/// Metadata of another program between the parts of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metadata {
    /// Offset of its first sector, in bytes.
    pub offset: u64,
    /// Whether it is that of luksmeta, in which clevis keeps what opens the volume.
    pub is_luksmeta: bool,
}

/// Returns the first metadata of others in `region` outside of the parts in `own`.
pub(super) fn find(
    device: &dyn HeaderDevice,
    region: &Range<u64>,
    mut own: Vec<Range<u64>>,
) -> io::Result<Option<Metadata>> {
    let end = region.end.min(device.len()?);
    own.push(end..end);
    own.sort_unstable_by_key(|part| part.start);
    let mut start = region.start;
    for part in own {
        let gap = start..part.start.min(end);
        if let Some(found) = find_in_gap(device, gap)? {
            return Ok(Some(found));
        }
        start = start.max(part.end);
    }
    Ok(None)
}

fn find_in_gap(device: &dyn HeaderDevice, gap: Range<u64>) -> io::Result<Option<Metadata>> {
    let mut at = gap.start;
    let mut chunk = Vec::new();
    while at < gap.end {
        chunk.resize(CHUNK.min(gap.end - at) as usize, 0);
        device.read_exact_at(&mut chunk, at)?;
        let found = chunk.chunks(SECTOR).zip(0_u64..).find(|(sector, _)| !is_filler(sector));
        if let Some((sector, index)) = found {
            let offset = at + index * SECTOR as u64;
            return Ok(Some(Metadata { offset, is_luksmeta: sector.starts_with(LUKSMETA) }));
        }
        at += chunk.len() as u64;
    }
    Ok(None)
}

/// Whether the bytes are all the same, or look random.
fn is_filler(sector: &[u8]) -> bool {
    let mut seen = [false; 256];
    sector.iter().for_each(|byte| seen[usize::from(*byte)] = true);
    let values = seen.iter().filter(|seen| **seen).count();
    values == 1 || values >= RANDOM_VALUES * sector.len() / SECTOR
}
