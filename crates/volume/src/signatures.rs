//! Signatures of formats other than LUKS: file systems, members of RAID and of volume groups, partition tables, images.
//!
//! One table for every decision about a device that may have other content: whether the second copy of a LUKS2 header
//! is a remnant, what a new header overwrites, what to tell of a device without a header. Offsets and magics are those
//! of the formats' specifications, and names those of libblkid where it has one. Where a magic is short, other fields
//! are checked, too, so that random bytes are no signature.

use crate::header_device::HeaderDevice;
use std::fmt;
use std::io;
use std::ops::Range;

/// The kind of a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SignatureKind {
    /// A table of partitions.
    PartitionTable,
    /// A file system, swap space, or another format that takes the device as it is.
    Superblock,
    /// A format of files: of images of disks, or of compression.
    File,
}

/// A signature that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Signature {
    /// Name of the format.
    pub name: &'static str,
    /// Kind of the format.
    pub kind: SignatureKind,
    /// Offset of its magic, in bytes.
    pub offset: u64,
    /// Length of its magic, in bytes.
    pub len: usize,
}

impl Signature {
    /// Returns whether a LUKS header can be on the same device: formats of images of disks end with a trailer.
    pub(crate) fn is_trailer(&self) -> bool {
        self.kind == SignatureKind::File && self.offset >= PAGE as u64
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            SignatureKind::PartitionTable => "partition",
            SignatureKind::Superblock => "superblock",
            SignatureKind::File => "file",
        };
        write!(f, "'{}' {kind} signature", self.name)
    }
}

/// A place, counted from the start of the device, or from its end.
enum At {
    Start(u64),
    End(u64),
}
use At::{End, Start};
use SignatureKind::{File, PartitionTable, Superblock};

/// A format that its magic alone shows.
struct Format(&'static str, SignatureKind, &'static [u8], &'static [At]);

const KIB: u64 = 1 << 10;

#[rustfmt::skip]
const FORMATS: &[Format] = &[
    // Partition tables
    Format("gpt", PartitionTable, b"EFI PART", &[Start(512), Start(4096)]),
    Format("sgi", PartitionTable, &[0x0b, 0xe5, 0xa9, 0x41], &[Start(0)]),
    Format("mac", PartitionTable, b"PM\0\0", &[Start(512)]),
    // Volume groups, RAID, caches, and others below a file system
    Format("LVM2_member", Superblock, b"LVM2 001", &[Start(24), Start(536), Start(1048), Start(1560)]),
    Format("linux_raid_member", Superblock, &[0xfc, 0x4e, 0x2b, 0xa9, 1, 0, 0, 0], &[Start(0), Start(4096)]),
    Format("ddf_raid_member", Superblock, &[0xde, 0x11, 0xde, 0x11], &[End(512), End(257 * 512)]),
    Format("isw_raid_member", Superblock, b"Intel Raid ISM Cfg Sig. ", &[End(1024)]),
    Format("bcache", Superblock, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81", &[Start(4120)]),
    Format("bcachefs", Superblock, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef", &[Start(4120)]),
    Format("vdo", Superblock, b"dmvdo001", &[Start(0)]),
    Format("stratis", Superblock, b"!Stra0tis\x86\xff\x02^\x41rh", &[Start(516), Start(4612)]),
    Format("ceph_bluestore", Superblock, b"bluestore block device", &[Start(0)]),
    Format("VMFS_volume_member", Superblock, &[0x0d, 0xd0, 0x01, 0xc0], &[Start(1 << 20)]),
    Format("VMFS", Superblock, &[0x5e, 0xf1, 0xab, 0x2f], &[Start(2 << 20)]),
    Format("DM_snapshot_cow", Superblock, b"SnAp\x01\0\0\0", &[Start(0)]),
    Format("DM_integrity", Superblock, b"integrt\0", &[Start(0)]),
    Format("DM_verity_hash", Superblock, b"verity\0\0", &[Start(0)]),
    // Encryption
    Format("BitLocker", Superblock, b"-FVE-FS-", &[Start(3)]),
    Format("BitLocker", Superblock, b"\x3b\xd6\x67\x49\x29\x2e\xd8\x4a\x83\x99\xf6\xa3\x39\xe3\xd0\x01", &[Start(424)]),
    // File systems
    Format("xfs", Superblock, b"XFSB", &[Start(0)]),
    Format("btrfs", Superblock, b"_BHRfS_M", &[Start(64 * KIB + 64)]),
    Format("f2fs", Superblock, &[0x10, 0x20, 0xf5, 0xf2], &[Start(1024)]),
    Format("reiserfs", Superblock, b"ReIsErFs", &[Start(8 * KIB + 52)]),
    Format("reiserfs", Superblock, b"ReIsEr2Fs", &[Start(64 * KIB + 52)]),
    Format("reiserfs", Superblock, b"ReIsEr3Fs", &[Start(64 * KIB + 52)]),
    Format("jfs", Superblock, b"JFS1", &[Start(32 * KIB)]),
    Format("ocfs2", Superblock, b"OCFSV2", &[Start(1024), Start(2048), Start(4096), Start(8192)]),
    Format("gfs2", Superblock, &[0x01, 0x16, 0x19, 0x70, 0, 0, 0, 1], &[Start(64 * KIB)]),
    Format("apfs", Superblock, b"NXSB", &[Start(32)]),
    Format("hfsplus", Superblock, b"H+\0\x04", &[Start(1024)]),
    Format("hfsplus", Superblock, b"HX\0\x05", &[Start(1024)]),
    Format("ufs", Superblock, &[0x54, 0x19, 0x01, 0x00], &[Start(8 * KIB + 1372)]),
    Format("ufs", Superblock, &[0x19, 0x01, 0x54, 0x19], &[Start(64 * KIB + 1372)]),
    Format("ntfs", Superblock, b"NTFS    ", &[Start(3)]),
    Format("exfat", Superblock, b"EXFAT   ", &[Start(3)]),
    Format("ReFS", Superblock, b"ReFS\0\0\0\0", &[Start(3)]),
    Format("vfat", Superblock, b"FAT32   ", &[Start(82)]),
    Format("vfat", Superblock, b"FAT16   ", &[Start(54)]),
    Format("vfat", Superblock, b"FAT12   ", &[Start(54)]),
    Format("iso9660", Superblock, b"CD001", &[Start(32 * KIB + 1)]),
    Format("udf", Superblock, b"NSR0", &[Start(34 * KIB + 1), Start(36 * KIB + 1), Start(38 * KIB + 1)]),
    Format("squashfs", Superblock, b"hsqs", &[Start(0)]),
    Format("erofs", Superblock, &[0xe2, 0xe1, 0xf5, 0xe0], &[Start(1024)]),
    Format("cramfs", Superblock, &[0x45, 0x3d, 0xcd, 0x28], &[Start(0), Start(512)]),
    Format("romfs", Superblock, b"-rom1fs-", &[Start(0)]),
    Format("swap", Superblock, b"SWAPSPACE2", &[Start(4086), Start(8182), Start(16374), Start(32758), Start(65526)]),
    Format("swap", Superblock, b"SWAP-SPACE", &[Start(4086), Start(8182), Start(16374), Start(32758), Start(65526)]),
    Format("swsuspend", Superblock, b"S1SUSPEND\0", &[Start(4086)]),
    Format("swsuspend", Superblock, b"LINHIB0001", &[Start(4086)]),
    // Files
    Format("qcow2", File, b"QFI\xfb", &[Start(0)]),
    Format("qed", File, b"QED\0", &[Start(0)]),
    Format("vmdk", File, b"KDMV", &[Start(0)]),
    Format("vmdk", File, b"# Disk DescriptorFile", &[Start(0)]),
    Format("vdi", File, &[0x7f, 0x10, 0xda, 0xbe], &[Start(64)]),
    Format("vhdx", File, b"vhdxfile", &[Start(0)]),
    Format("vpc", File, b"conectix", &[Start(0), End(512)]),
    Format("parallels", File, b"WithoutFreeSpace", &[Start(0)]),
    Format("parallels", File, b"WithouFreSpacExt", &[Start(0)]),
    Format("dmg", File, b"koly\0\0\0\x04", &[End(512)]),
    Format("gzip", File, b"\x1f\x8b\x08", &[Start(0)]),
    Format("xz", File, b"\xfd7zXZ\0", &[Start(0)]),
    Format("zstd", File, b"\x28\xb5\x2f\xfd", &[Start(0)]),
    Format("bzip2", File, b"BZh91AY&SY", &[Start(0)]),
    Format("zip", File, b"PK\x03\x04", &[Start(0)]),
];

/// Formats that more than a magic shows.
const PROBES: &[fn(&Probe<'_>) -> Option<Signature>] = &[ext, nilfs2, zfs, raid_at_end, drbd, mbr];

/// Returns the signatures of other formats on `device`: the first of each format. Parts that cannot be read have none.
///
/// # Errors
///
/// Fails if the length of the device cannot be determined.
pub fn find_signatures(device: &dyn HeaderDevice) -> io::Result<Vec<Signature>> {
    let probe = Probe::new(device)?;
    let mut found: Vec<Signature> = FORMATS.iter().filter_map(|format| probe.find(format)).collect();
    found.extend(PROBES.iter().filter_map(|find| find(&probe)));
    // Protective entries are a part of a GPT, and a boot sector with a table is no table of a file system.
    if found.iter().any(|one| matches!(one.name, "gpt" | "vfat" | "ntfs" | "exfat" | "BitLocker")) {
        found.retain(|one| one.name != "dos");
    }
    found.dedup_by_key(|one| one.name);
    Ok(found)
}

/// Returns the signature of a table of partitions on `device`.
pub(crate) fn partition_table(device: &dyn HeaderDevice) -> io::Result<Option<Signature>> {
    Ok(find_signatures(device)?.into_iter().find(|found| found.kind == PartitionTable))
}

/// Overwrites the magics of other formats in these bytes of `device` with zeroes, and makes that durable.
/// Formats have copies; so it searches again until nothing is found.
///
/// # Errors
///
/// Fails if the device cannot be written.
pub fn wipe_signatures(device: &dyn HeaderDevice, bytes: Range<u64>) -> io::Result<()> {
    // More copies than any format has.
    for _ in 0..1024 {
        let mut found = find_signatures(device)?;
        found.retain(|one| one.offset >= bytes.start && one.offset + one.len as u64 <= bytes.end);
        if found.is_empty() {
            break;
        }
        for one in found {
            device.write_all_at(&vec![0; one.len], one.offset)?;
        }
    }
    device.sync()
}

/// Start of the device in memory, since most formats begin there, and access to the rest.
struct Probe<'a> {
    device: &'a dyn HeaderDevice,
    len: u64,
    start: Vec<u8>,
    /// Label, salt, UUID and subsystem of a LUKS2 header: texts that its owner chooses are no signatures.
    texts: Range<u64>,
}

/// Bytes that are read at once: labels of ZFS with their uberblocks.
const WINDOW: u64 = 256 * KIB;
const PAGE: usize = 4096;

impl<'a> Probe<'a> {
    fn new(device: &'a dyn HeaderDevice) -> io::Result<Self> {
        let len = device.len()?;
        let mut start = vec![0; len.min(WINDOW) as usize];
        if device.read_exact_at(&mut start, 0).is_err() {
            // What cannot be read is zero.
            for (number, page) in start.chunks_mut(PAGE).enumerate() {
                if device.read_exact_at(page, (number * PAGE) as u64).is_err() {
                    page.fill(0);
                }
            }
        }
        let is_luks2 = start.starts_with(b"LUKS\xba\xbe\0\x02");
        let texts = if is_luks2 { 24..256 } else { 0..0 };
        Ok(Self { device, len, start, texts })
    }

    /// Returns `N` bytes at `offset`. `None`: the device has not so many, or they cannot be read.
    fn bytes<const N: usize>(&self, offset: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.has_read(&mut bytes, offset).then_some(bytes)
    }

    fn has_read(&self, bytes: &mut [u8], offset: u64) -> bool {
        let Some(end) = offset.checked_add(bytes.len() as u64).filter(|end| *end <= self.len) else { return false };
        match self.start.get(offset as usize..end as usize) {
            Some(known) => bytes.copy_from_slice(known),
            None => return self.device.read_exact_at(bytes, offset).is_ok(),
        }
        true
    }

    fn u16(&self, offset: u64) -> u16 {
        self.bytes(offset).map_or(0, u16::from_le_bytes)
    }

    fn u32(&self, offset: u64) -> u32 {
        self.bytes(offset).map_or(0, u32::from_le_bytes)
    }

    fn find(&self, format: &Format) -> Option<Signature> {
        let Format(name, kind, magic, places) = *format;
        let place = |at: &At| match *at {
            Start(offset) => Some(offset),
            // RAID firmware and images count whole sectors.
            End(before) => (self.len / 512 * 512).checked_sub(before),
        };
        let mut bytes = vec![0; magic.len()];
        let mut is_there = |offset: &u64| self.has_read(&mut bytes, *offset) && bytes == magic;
        let mut places = places.iter().filter_map(place).filter(|offset| !self.texts.contains(offset));
        let offset = places.find(&mut is_there)?;
        Some(Signature { name, kind, offset, len: magic.len() })
    }
}

/// ext2, ext3 and ext4, which share a magic of two bytes.
fn ext(probe: &Probe<'_>) -> Option<Signature> {
    let field = |offset: u64| probe.u32(1024 + offset);
    let (inodes, blocks, log_block, revision) = (field(0), field(4), field(24), field(76));
    if probe.u16(1024 + 56) != 0xef53 || inodes == 0 || blocks == 0 || log_block > 6 || revision > 1 {
        return None;
    }
    let (compatible, incompatible, read_only) = (field(92), field(96), field(100));
    // ext2: sparse superblocks, large files, B-trees; types of entries, meta groups. ext3: a journal, and its recovery.
    let name = match (incompatible & !0x16, read_only & !7, compatible & 4) {
        (8, _, _) => "jbd",
        (0, 0, 0) => "ext2",
        (0, 0, _) => "ext3",
        _ => "ext4",
    };
    Some(Signature { name, kind: Superblock, offset: 1024 + 56, len: 2 })
}

fn nilfs2(probe: &Probe<'_>) -> Option<Signature> {
    let is_there = probe.u32(1024) == 2 && probe.u16(1024 + 6) == 0x3434;
    is_there.then_some(Signature { name: "nilfs2", kind: Superblock, offset: 1024 + 6, len: 2 })
}

/// An uberblock of the first label of a ZFS member, in either order of bytes.
fn zfs(probe: &Probe<'_>) -> Option<Signature> {
    let is_uberblock = |offset: &u64| {
        let magic: Option<[u8; 8]> = probe.bytes(*offset);
        magic.is_some_and(|magic| [u64::from_le_bytes(magic), u64::from_be_bytes(magic)].contains(&0x00ba_b10c))
    };
    let offset = (128 * KIB..256 * KIB).step_by(1024).find(is_uberblock)?;
    Some(Signature { name: "zfs_member", kind: Superblock, offset, len: 8 })
}

/// Members of Linux's RAID whose superblock is near the end: version 0.90, in either order of bytes, and 1.0.
fn raid_at_end(probe: &Probe<'_>) -> Option<Signature> {
    let old = (probe.len / (64 * KIB) * (64 * KIB)).checked_sub(64 * KIB);
    let new = (probe.len / 512).checked_sub(16).map(|sectors| (sectors & !7) * 512);
    let is_magic = |offset: u64| [0xa92b_4efc, 0xa92b_4efc_u32.swap_bytes()].contains(&probe.u32(offset));
    let offset = old.filter(|at| is_magic(*at)).or(new.filter(|at| is_magic(*at) && probe.u32(at + 4) == 1))?;
    Some(Signature { name: "linux_raid_member", kind: Superblock, offset, len: 4 })
}

/// Internal metadata of DRBD in the last block, of versions 8 and 9.
fn drbd(probe: &Probe<'_>) -> Option<Signature> {
    let offset = (probe.len / 4096).checked_sub(1)? * 4096 + 60;
    let magic = u32::from_be_bytes(probe.bytes(offset)?);
    let is_there = (0x8374_026b..=0x8374_0272).contains(&magic);
    is_there.then_some(Signature { name: "drbd", kind: Superblock, offset, len: 4 })
}

/// A table of the PC: flags are 0 or 0x80, and an entry is in use.
fn mbr(probe: &Probe<'_>) -> Option<Signature> {
    if probe.u16(510) != 0xaa55 {
        return None;
    }
    let entries = [446, 462, 478, 494].map(|at| (probe.bytes(at).unwrap_or([0_u8; 16]), probe.u32(at + 12)));
    let is_valid = entries.iter().all(|(entry, _)| entry[0] & 0x7f == 0);
    let is_used = entries.iter().any(|(entry, sectors)| entry[4] != 0 && *sectors != 0);
    (is_valid && is_used).then_some(Signature { name: "dos", kind: PartitionTable, offset: 510, len: 2 })
}
