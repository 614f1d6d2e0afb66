//! Signatures of other formats: the table, and the second copy of a header under one.

use crate::support::{PASSPHRASE, luks2_image, luks2_options, secret, unlock};
use inlock_volume::{
    HeaderDevice, LoadError, LoadWarning, MemoryDevice, RepairPlan, Volume, find_signatures, luks2, wipe_signatures,
};
use std::io;

type Rows = Vec<(&'static str, Vec<(i64, Vec<u8>)>)>;

/// Formats as their specifications have them: bytes at offsets, negative ones from the end of a device of 4 MiB.
fn rows() -> Rows {
    let le = |value: u32| value.to_le_bytes().to_vec();
    let be = |value: u32| value.to_be_bytes().to_vec();
    let mut lvm = vec![0; 512];
    lvm[..8].copy_from_slice(b"LABELONE");
    lvm[24..32].copy_from_slice(b"LVM2 001");
    let ext = |compatible: u32, incompatible: u32| {
        let mut block = vec![0; 1024];
        for (offset, value) in [(0, 16), (4, 64), (24, 2), (76, 1), (92, compatible), (96, incompatible)] {
            block[offset..offset + 4].copy_from_slice(&le(value));
        }
        block[56..58].copy_from_slice(&[0x53, 0xef]);
        (1024, block)
    };
    let raid = |offset: i64, version: u32| (offset, [le(0xa92b_4efc), le(version)].concat());
    let table = |kind: u8| {
        let mut sector = vec![0; 512];
        sector[446 + 4] = kind;
        sector[446 + 12] = 8;
        sector[510..].copy_from_slice(&[0x55, 0xaa]);
        (0, sector)
    };
    let boot = |at: usize, name: &[u8]| {
        let (_, mut sector) = table(0);
        sector[at..at + name.len()].copy_from_slice(name);
        (0, sector)
    };
    vec![
        ("LVM2_member", vec![(512, lvm.clone())]),
        ("LVM2_member", vec![(1536, lvm)]),
        ("linux_raid_member", vec![raid(0, 1)]),
        ("linux_raid_member", vec![raid(4096, 1)]),
        ("linux_raid_member", vec![raid(-8192, 1)]),
        ("linux_raid_member", vec![raid(-65536, 0)]),
        ("linux_raid_member", vec![(-65536, be(0xa92b_4efc))]),
        ("ddf_raid_member", vec![(-512, be(0xde11_de11))]),
        ("isw_raid_member", vec![(-1024, b"Intel Raid ISM Cfg Sig. 1.1.00".to_vec())]),
        ("drbd", vec![(-4096 + 60, be(0x8374_026d))]),
        ("gpt", vec![table(0xee), (512, b"EFI PART".to_vec())]),
        ("dos", vec![table(0x83)]),
        ("ext2", vec![ext(0, 2)]),
        ("ext3", vec![ext(4, 2)]),
        ("ext4", vec![ext(4, 0x42)]),
        ("xfs", vec![(0, b"XFSB".to_vec())]),
        ("btrfs", vec![(65600, b"_BHRfS_M".to_vec())]),
        ("f2fs", vec![(1024, le(0xf2f5_2010))]),
        ("nilfs2", vec![(1024, [le(2), vec![0, 0, 0x34, 0x34]].concat())]),
        ("swap", vec![(4086, b"SWAPSPACE2".to_vec())]),
        ("swap", vec![(65526, b"SWAPSPACE2".to_vec())]),
        ("vfat", vec![boot(82, b"FAT32   ")]),
        ("vfat", vec![boot(54, b"FAT16   ")]),
        ("ntfs", vec![boot(3, b"NTFS    ")]),
        ("exfat", vec![boot(3, b"EXFAT   ")]),
        ("BitLocker", vec![boot(3, b"-FVE-FS-")]),
        ("zfs_member", vec![(132 << 10, 0x00ba_b10c_u64.to_le_bytes().to_vec())]),
        ("zfs_member", vec![(255 << 10, 0x00ba_b10c_u64.to_be_bytes().to_vec())]),
        ("bcache", vec![(4120, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81".to_vec())]),
        ("iso9660", vec![(32769, b"CD001".to_vec())]),
        ("squashfs", vec![(0, b"hsqs".to_vec())]),
        ("vdo", vec![(0, b"dmvdo001".to_vec())]),
        ("qcow2", vec![(0, b"QFI\xfb\0\0\0\x03".to_vec())]),
        ("DM_verity_hash", vec![(0, b"verity\0\0".to_vec())]),
        ("DM_integrity", vec![(0, b"integrt\0".to_vec())]),
    ]
}

/// Places the bytes of a row in `image`.
fn place(image: &mut [u8], row: &[(i64, Vec<u8>)]) {
    for (offset, bytes) in row {
        let start = if *offset < 0 { image.len() as i64 + offset } else { *offset } as usize;
        image[start..start + bytes.len()].copy_from_slice(bytes);
    }
}

#[test]
fn each_format_is_found_at_its_place_and_not_beside_it() {
    for (name, row) in rows() {
        let mut image = vec![0; 4 << 20];
        place(&mut image, &row);
        let device = MemoryDevice::new(image.clone());
        let found = find_signatures(&device).unwrap();
        assert_eq!(found.iter().map(|one| one.name).collect::<Vec<_>>(), [name], "{row:?}");
        let (start, len) = (found[0].offset as usize, found[0].len);
        image[start + len - 1] ^= 0x40;
        let found = find_signatures(&MemoryDevice::new(image)).unwrap();
        assert!(found.iter().all(|one| one.name != name), "{name} without its magic: {found:?}");
        wipe_signatures(&device, 0..4 << 20).unwrap();
        assert_eq!(find_signatures(&device).unwrap(), [], "{name} after the wipe");
    }
    for empty in [vec![], vec![0; 511], vec![0; 4 << 20], crate::support::luks1_image(), luks2_image()] {
        assert_eq!(find_signatures(&MemoryDevice::new(empty)).unwrap(), []);
    }
    // Random bytes with the short magics at their places.
    for seed in 0..64_u32 {
        let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
        let mut noise = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state as u8
        };
        let mut image: Vec<u8> = (0..1 << 20).map(|_| noise()).collect();
        image[1024 + 56..1024 + 58].copy_from_slice(&[0x53, 0xef]);
        image[1024 + 6..1024 + 8].copy_from_slice(&[0x34, 0x34]);
        image[510..512].copy_from_slice(&[0x55, 0xaa]);
        image[446] = 1;
        let found = find_signatures(&MemoryDevice::new(image)).unwrap();
        assert_eq!(found, [], "seed {seed}");
    }
}

#[test]
fn wipe_stays_inside_of_its_range() {
    let mut image = vec![0; 1 << 20];
    place(&mut image, &[(0, b"XFSB".to_vec()), (-8192, [0xfc, 0x4e, 0x2b, 0xa9, 1, 0, 0, 0].to_vec())]);
    let device = MemoryDevice::new(image);
    let end = (1 << 20) - 8192 + 4;
    wipe_signatures(&device, 1..end - 1).unwrap();
    assert_eq!(find_signatures(&device).unwrap().len(), 2);
    wipe_signatures(&device, 0..end - 1).unwrap();
    assert_eq!(find_signatures(&device).unwrap()[0].name, "linux_raid_member");
    wipe_signatures(&device, 0..end).unwrap();
    assert_eq!(find_signatures(&device).unwrap(), []);
}

/// Every format over the first copy of a volume whose second copy is whole.
#[test]
fn second_copy_below_another_format_is_refused_until_the_user_decides() {
    let device = MemoryDevice::zeroed(4 << 20);
    luks2::format(&device, luks2_options(), &secret(PASSPHRASE)).unwrap();
    let volume = device.to_vec();
    let second = 16 << 10..32 << 10;
    for (name, row) in rows() {
        let mut image = volume.clone();
        image[..16 << 10].fill(0);
        place(&mut image, &row);
        if image[second.clone()] != volume[second.clone()] {
            continue;
        }
        let device = MemoryDevice::new(image.clone());
        let refused = Volume::load(&device);
        assert!(matches!(&refused, Err(LoadError::Ambiguous(one)) if one.name == name), "{name}: {refused:?}");
        let known = Volume::load_despite_signatures(&device).unwrap();
        assert!(matches!(known.warnings()[0], LoadWarning::PrimaryDamaged(_)), "{name}");
        let plan = RepairPlan::new(&device).unwrap();
        assert_eq!(plan.foreign().map(|one| one.name), Some(name));
        assert!(device.to_vec() == image, "{name}: nothing is written before the user decides");
        // What is placed in the keyslot areas destroys a key.
        let volume = plan.execute(&device, false).unwrap();
        assert_eq!(volume.warnings(), [], "{name}");
        Volume::load(&device).unwrap();
    }
    // With the first copy, and without another format, nothing changes.
    let mut image = volume.clone();
    place(&mut image, &[(-8192, [0xfc, 0x4e, 0x2b, 0xa9, 1, 0, 0, 0].to_vec())]);
    unlock(&MemoryDevice::new(image), PASSPHRASE).unwrap();
    let mut image = volume;
    image[..16 << 10].fill(0);
    unlock(&MemoryDevice::new(image.clone()), PASSPHRASE).unwrap();
    assert_eq!(RepairPlan::new(&MemoryDevice::new(image)).unwrap().foreign(), None);
}

/// A device of which one sector cannot be read.
struct BadSector(MemoryDevice, u64);

impl HeaderDevice for BadSector {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let is_hit = offset < self.1 + 512 && self.1 < offset + buf.len() as u64;
        if is_hit { Err(io::Error::from_raw_os_error(5)) } else { self.0.read_exact_at(buf, offset) }
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
}

#[test]
fn unreadable_sector_hides_only_what_is_in_it() {
    let mut image = vec![0; 1 << 20];
    place(&mut image, &[(65600, b"_BHRfS_M".to_vec())]);
    let found = |sector: u64| find_signatures(&BadSector(MemoryDevice::new(image.clone()), sector)).unwrap();
    assert_eq!(found(0)[0].name, "btrfs");
    assert_eq!(found(65536), []);
}
