//! Creates a zonefs: the Debian release of the tests has no program for it.
//!
//! The super block is described in the kernel's `Documentation/filesystems/zonefs.rst` and `fs/zonefs/zonefs.h`: 4096
//! bytes at the device's start, little-endian: magic, CRC-32 of the whole with this field 0 (not inverted at the end),
//! label, UUID, features, owner, group and permissions of the files. If it is in a sequential zone, that zone is
//! finished.

use std::path::Path;

use anyhow::{Context, Result};

use super::aligned::{self, Aligned, BLOCK};
use super::ioctl::{self, Action, CONVENTIONAL};

const MAGIC: u32 = 0x5a4f_4653;

/// Resets all sequential zones and writes the super block.
pub(super) fn make(path: &Path) -> Result<()> {
    let device = aligned::open(path, true).with_context(|| format!("cannot open {}", path.display()))?;
    let zones = ioctl::all_zones(&device)?;
    for zone in zones.iter().filter(|zone| zone.kind != CONVENTIONAL) {
        ioctl::act(&device, Action::Reset, zone.start, zone.len)?;
    }
    let mut block = Aligned::new(BLOCK as usize);
    super_block(block.get_mut());
    aligned::write(&device, block.get(), 0)?;
    if let Some(first) = zones.first().filter(|zone| zone.kind != CONVENTIONAL) {
        ioctl::act(&device, Action::Finish, first.start, first.len)?;
    }
    device.sync_all()?;
    Ok(())
}

fn super_block(into: &mut [u8]) {
    into[..4].copy_from_slice(&MAGIC.to_le_bytes());
    into[72..88].copy_from_slice(&[0x5a; 16]);
    let crc = crc32(into);
    into[4..8].copy_from_slice(&crc.to_le_bytes());
}

/// Computes the CRC-32 with the reversed polynomial of Ethernet, started with ones and not inverted.
fn crc32(bytes: &[u8]) -> u32 {
    let bit = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
    bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), bit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32_check_value_is_inverted() {
        assert_eq!(!crc32(b"123456789"), 0xcbf4_3926);
    }
}
