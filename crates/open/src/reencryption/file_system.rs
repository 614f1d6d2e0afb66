//! Lengths of file systems, as their superblocks tell them: what is beyond the end of a shorter device would be lost.

use inlock_volume::HeaderDevice;

use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};

/// Bytes of a superblock that are read.
const SUPERBLOCK_LEN: usize = 1024;

/// A superblock: name of the file system, where it is, its magic and the place of that in it.
struct Superblock {
    name: &'static str,
    offset: u64,
    magic: (usize, &'static [u8]),
    /// Returns the length of the file system in bytes.
    len: fn(&[u8]) -> Option<u64>,
}

/// Sources: the kernel's `fs/ext4/ext4.h`, `fs/xfs/libxfs/xfs_format.h`, `include/uapi/linux/btrfs_tree.h` and
/// `fs/ntfs3/ntfs.h`.
const SUPERBLOCKS: &[Superblock] = &[
    Superblock {
        name: "ext4",
        offset: 1024,
        magic: (0x38, &[0x53, 0xef]),
        len: |bytes| {
            let has_64_bits = le32(bytes, 0x60)? & 0x80 != 0;
            let high = if has_64_bits { le32(bytes, 0x150)? } else { 0 };
            let blocks = u64::from(le32(bytes, 4)?) | u64::from(high) << 32;
            1024u64.checked_shl(le32(bytes, 0x18)?)?.checked_mul(blocks)
        },
    },
    Superblock {
        name: "XFS",
        offset: 0,
        magic: (0, b"XFSB"),
        len: |bytes| {
            let block = u32::from_be_bytes(bytes[4..8].try_into().ok()?);
            u64::from_be_bytes(bytes[8..16].try_into().ok()?).checked_mul(block.into())
        },
    },
    Superblock {
        name: "Btrfs",
        offset: 64 << 10,
        magic: (0x40, b"_BHRfS_M"),
        // That of this device, not of the whole file system.
        len: |bytes| le64(bytes, 0xd1),
    },
    Superblock {
        name: "NTFS",
        offset: 0,
        magic: (3, b"NTFS    "),
        len: |bytes| {
            let sector = u16::from_le_bytes(bytes[11..13].try_into().ok()?);
            // The last sector is a copy of the first.
            le64(bytes, 0x28)?.checked_add(1)?.checked_mul(sector.into())
        },
    },
];

fn le32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn le64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Returns name and length in bytes of the file system on a device; `None`: there is none that is known here.
fn find(device: &dyn HeaderDevice) -> Option<(&'static str, u64)> {
    SUPERBLOCKS.iter().find_map(|superblock| {
        let mut bytes = [0; SUPERBLOCK_LEN];
        device.read_exact_at(&mut bytes, superblock.offset).ok()?;
        let (at, magic) = superblock.magic;
        let is_found = bytes[at..].starts_with(magic);
        is_found.then(|| (superblock.len)(&bytes)).flatten().map(|len| (superblock.name, len))
    })
}

/// Refuses to keep the first `kept` bytes of a device whose file system is longer.
pub(super) fn check(data: &Device, kept: u64) -> Result<()> {
    match find(&data.header()?) {
        Some((name, len)) if len > kept => {
            let path = data.path.display();
            let text = format!("The {name} file system on {path} has {len} bytes, and {kept} would be left.");
            Err(Error::new(ErrorKind::FileSystemCut, text).about(&data.path))
        }
        _ => Ok(()),
    }
}
