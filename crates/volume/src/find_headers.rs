//! Searching a device for LUKS headers that do not begin at its start: on a partition, in an image of a disk, or among
//! other data.

use crate::error::LoadError;
use crate::header_device::{HeaderDevice, WindowDevice};
use crate::luks2::binary_header::{LUKS_MAGIC, SECOND_MAGIC, SECOND_OFFSETS};
use crate::volume::Volume;
use std::io;

/// Bytes to which headers are aligned.
const SECTOR: usize = 512;
/// Bytes that are read at a time.
const CHUNK: usize = 1 << 20;

/// A header that was found.
#[derive(Debug)]
#[non_exhaustive]
pub struct FoundHeader {
    /// Start of the volume, in bytes. The first copy begins there, or has begun.
    pub offset: u64,
    /// Whether only the second copy of a LUKS2 header was found.
    pub second_only: bool,
    /// The header, or why it cannot be used.
    pub volume: Result<Volume, LoadError>,
}

/// Searches for headers on the sectors of `device` from byte `start` on, and calls `found` for each. After every chunk
/// `progress` is called with the number of bytes that were read; returning `false` ends the search. Takes 1 MiB of
/// memory, and that of one header at a time.
///
/// # Errors
///
/// Fails if the length of the device cannot be determined. Chunks that cannot be read are skipped.
pub fn find_headers<D: HeaderDevice>(
    device: &D,
    start: u64,
    mut found: impl FnMut(FoundHeader),
    mut progress: impl FnMut(u64) -> bool,
) -> io::Result<()> {
    let len = device.len()?;
    let mut chunk = vec![0; CHUNK];
    let mut at = start.next_multiple_of(SECTOR as u64);
    // A header found by its first copy is not reported by its second.
    let mut known = Known::default();
    while at < len {
        let size = CHUNK.min(usize::try_from(len - at).unwrap_or(CHUNK));
        if device.read_exact_at(&mut chunk[..size], at).is_ok() {
            for (index, sector) in chunk[..size].chunks(SECTOR).enumerate() {
                let offset = at + (index * SECTOR) as u64;
                if sector.starts_with(&LUKS_MAGIC) {
                    let volume = Volume::load(&WindowDevice::new(device, offset));
                    known.insert(offset, &volume);
                    found(FoundHeader { offset, second_only: false, volume });
                } else if sector.starts_with(&SECOND_MAGIC)
                    && let Some(header) = of_second(device, offset, &known)
                {
                    found(header);
                }
            }
        }
        at += size as u64;
        if !progress(size as u64) {
            break;
        }
    }
    Ok(())
}

/// The last headers that were found, as far back as the second copy of one may be.
#[derive(Default)]
struct Known(Vec<(u64, Option<u64>)>);

impl Known {
    fn insert(&mut self, offset: u64, volume: &Result<Volume, LoadError>) {
        let furthest = SECOND_OFFSETS[SECOND_OFFSETS.len() - 1];
        self.0.retain(|(start, _)| start + furthest >= offset);
        let second = match volume {
            Ok(Volume::Luks2(luks2)) => Some(offset + luks2.header().hdr_size),
            _ => None,
        };
        self.0.push((offset, second));
    }

    fn has_second(&self, offset: u64) -> bool {
        self.0.iter().any(|(_, second)| *second == Some(offset))
    }
}

/// Returns the header of which the second copy begins at `offset`, unless it is known already.
fn of_second<D: HeaderDevice>(device: &D, offset: u64, known: &Known) -> Option<FoundHeader> {
    if known.has_second(offset) {
        return None;
    }
    // Its size is its distance from the first copy.
    let mut size = [0; 8];
    device.read_exact_at(&mut size, offset + 8).ok()?;
    let start =
        offset.checked_sub(u64::from_be_bytes(size)).filter(|_| SECOND_OFFSETS.contains(&u64::from_be_bytes(size)))?;
    let volume = Volume::load(&WindowDevice::new(device, start));
    Some(FoundHeader { offset: start, second_only: true, volume })
}
