//! What a new header must not leave behind: older headers, and key material that older passphrases open.

use crate::error::FormatError;
use crate::header_device::HeaderDevice;
use crate::luks2::binary_header::{BLOCK_LEN, LUKS_MAGIC, SECOND_MAGIC, SECOND_OFFSETS};
use crate::pbkdf::random_bytes;

/// Zeroes the first header's block and every block that looks like a second header, and makes that durable. From here on
/// the device is no LUKS volume until a new header is written. Blocks without a magic are left alone.
pub(crate) fn wipe_old_headers(device: &dyn HeaderDevice) -> Result<(), FormatError> {
    let len = device.len()?;
    for (offset, magic) in [(0, LUKS_MAGIC)].into_iter().chain(SECOND_OFFSETS.map(|offset| (offset, SECOND_MAGIC))) {
        let mut found = [0; 6];
        if offset + BLOCK_LEN as u64 > len {
            continue;
        }
        device.read_exact_at(&mut found, offset)?;
        if offset == 0 || found == magic {
            device.write_all_at(&[0; BLOCK_LEN], offset)?;
        }
    }
    Ok(device.sync()?)
}

/// Fills an area with random bytes, as unused keyslots have. Not durable yet.
pub(crate) fn fill_random(device: &dyn HeaderDevice, mut offset: u64, end: u64) -> Result<(), FormatError> {
    const CHUNK: u64 = 1 << 20;
    while offset < end {
        let len = CHUNK.min(end - offset);
        device.write_all_at(&random_bytes(len as usize)?, offset)?;
        offset += len;
    }
    Ok(())
}
