//! Wipes older headers, and key material that older passphrases open, before a new header is written.

use super::binary_header::{SECOND_MAGIC, SECOND_OFFSETS};
use crate::edit::EditError;
use crate::header_device::HeaderDevice;
use crate::pbkdf::random_bytes;
use std::io;
use std::ops::Range;

const SECTOR: usize = 512;

/// Zeroes the first sector of the device, and of every block before `end` that looks like a second header or cannot be
/// read, and makes that durable. From then on the device is no LUKS volume until a new header is written. There is no
/// intermediate state, since a sector is written whole or not at all; the rest of the old headers means nothing without
/// their magic.
pub(crate) fn wipe_old_headers(device: &dyn HeaderDevice, end: u64) -> io::Result<()> {
    let end = device.len()?.min(end);
    device.write_all_at(&[0; SECTOR], 0)?;
    for offset in SECOND_OFFSETS {
        let mut found = [0; SECOND_MAGIC.len()];
        if offset + SECTOR as u64 > end {
            break;
        }
        if device.read_exact_at(&mut found, offset).is_err() || found == SECOND_MAGIC {
            device.write_all_at(&[0; SECTOR], offset)?;
        }
    }
    device.sync()
}

/// Fills an area with random bytes, like that of an unused keyslot. Not durable yet.
pub(crate) fn fill_random(device: &dyn HeaderDevice, area: Range<u64>) -> io::Result<()> {
    const CHUNK: u64 = 1 << 20;
    let mut offset = area.start;
    while offset < area.end {
        let len = CHUNK.min(area.end - offset);
        device.write_all_at(&random_bytes(len as usize).map_err(io::Error::other)?, offset)?;
        offset += len;
    }
    Ok(())
}

/// Overwrites the key material of a keyslot, and makes that durable.
pub(crate) fn overwrite_key(device: &dyn HeaderDevice, keyslot: u32, area: Range<u64>) -> Result<(), EditError> {
    let overwritten = fill_random(device, area).and_then(|()| device.sync());
    overwritten.map_err(|source| EditError::NotOverwritten { keyslot, source })
}

/// Overwrites an area that no longer belongs to a keyslot, and makes that durable.
pub(crate) fn wipe_area(device: &dyn HeaderDevice, area: Range<u64>) -> io::Result<()> {
    fill_random(device, area)?;
    device.sync()
}
