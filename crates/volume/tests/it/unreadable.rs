//! Sectors that cannot be read: a LUKS2 header has two copies, of which one is enough.

use crate::support::{PASSPHRASE, chain, luks1_image, luks2_image, luks2_options, secret, unlock};
use inlock_volume::luks2::binary_header::Copy;
use inlock_volume::{
    BackupError, HeaderBackup, HeaderDevice, LoadError, LoadWarning, MemoryDevice, Repair, RepairError, RepairPlan,
    Violation, Volume, luks2,
};
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::Mutex;

const SECTOR: u64 = 512;
/// Length of a copy.
const COPY: u64 = 16 << 10;

/// A disk with sectors that cannot be read until they are written.
struct BadSectors {
    device: MemoryDevice,
    bad: Mutex<BTreeSet<u64>>,
}

impl BadSectors {
    fn new(bytes: Vec<u8>, bad: impl IntoIterator<Item = u64>) -> Self {
        Self { device: MemoryDevice::new(bytes), bad: Mutex::new(bad.into_iter().collect()) }
    }

    fn sectors(offset: u64, len: usize) -> Range<u64> {
        offset / SECTOR..(offset + len as u64).div_ceil(SECTOR)
    }
}

impl HeaderDevice for BadSectors {
    fn len(&self) -> io::Result<u64> {
        self.device.len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let bad = self.bad.lock().unwrap();
        match bad.range(Self::sectors(offset, buf.len())).next() {
            Some(_) => Err(io::Error::from_raw_os_error(5)),
            None => self.device.read_exact_at(buf, offset),
        }
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.device.write_all_at(data, offset)?;
        let written = Self::sectors(offset, data.len());
        self.bad.lock().unwrap().retain(|sector| !written.contains(sector));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

fn is_eio(error: &io::Error) -> bool {
    error.raw_os_error() == Some(5)
}

#[test]
fn volume_opens_by_the_copy_that_can_be_read_and_is_repaired() {
    let image = luks2_image();
    let backup = HeaderBackup::of_device(&MemoryDevice::new(image.clone())).unwrap();
    for sector in 0..2 * COPY / SECTOR {
        let copy = if sector < COPY / SECTOR { Copy::Primary } else { Copy::Secondary };
        let device = BadSectors::new(image.clone(), [sector]);
        let volume = Volume::load(&device).unwrap_or_else(|error| panic!("sector {sector}: {error}"));
        let unreadable = |fault: &inlock_volume::HeaderFault| matches!(fault.violation, Violation::Unreadable(_));
        let is_named = match volume.warnings() {
            [LoadWarning::PrimaryDamaged(fault)] => copy == Copy::Primary && unreadable(fault),
            [LoadWarning::SecondaryDamaged(fault)] => copy == Copy::Secondary && unreadable(fault),
            _ => false,
        };
        assert!(is_named, "sector {sector}: {:?}", volume.warnings());
        unlock(&device, PASSPHRASE).unwrap();
        // Salts and checksums of the copies differ; the metadata are the same.
        let saved = HeaderBackup::of_device(&device).unwrap();
        assert_eq!(saved.bytes().len(), backup.bytes().len());
        assert!(saved.volume().header_digest() == backup.volume().header_digest(), "sector {sector}");
        let restored = Volume::load(&MemoryDevice::new(saved.bytes().to_vec())).unwrap();
        assert!(restored.warnings().is_empty(), "sector {sector}: {:?}", restored.warnings());

        let plan = RepairPlan::new(&device).unwrap();
        let repairs = plan.repairs().to_vec();
        assert!(matches!(repairs[..], [Repair::RewriteCopy { copy: found, .. }] if found == copy), "{repairs:?}");
        let repaired = plan.execute(&device, false).unwrap();
        assert!(repaired.warnings().is_empty() && device.bad.lock().unwrap().is_empty(), "sector {sector}");
        unlock(&device, PASSPHRASE).unwrap();
    }
}

#[test]
fn change_of_a_header_makes_its_unreadable_copy_whole() {
    for sector in [0, 9, COPY / SECTOR, COPY / SECTOR + 9] {
        let device = BadSectors::new(luks2_image(), [sector]);
        let mut volume = Volume::load(&device).unwrap();
        volume.set_uuid(&device, None).unwrap();
        assert!(Volume::load(&device).unwrap().warnings().is_empty(), "sector {sector}");
    }
}

#[test]
fn header_without_a_readable_copy_is_an_error_of_reading() {
    let image = luks2_image();
    for (one, other) in [(0, COPY / SECTOR), (3, COPY / SECTOR + 20), (31, COPY / SECTOR + 31)] {
        let device = BadSectors::new(image.clone(), [one, other]);
        assert!(matches!(Volume::load(&device), Err(LoadError::Io(error)) if is_eio(&error)), "{one} {other}");
        let plan = RepairPlan::new(&device);
        assert!(matches!(plan, Err(RepairError::Load(LoadError::Io(error))) if is_eio(&error)), "{one} {other}");
        let backup = HeaderBackup::of_device(&device);
        assert!(matches!(backup, Err(BackupError::Load(LoadError::Io(error))) if is_eio(&error)), "{one} {other}");
        // A backup brings it back.
        let backup = HeaderBackup::of_device(&MemoryDevice::new(image.clone())).unwrap();
        backup.restore(&device).unwrap();
        assert!(device.device.to_vec() == image && device.bad.lock().unwrap().is_empty(), "{one} {other}");
    }
    // LUKS1 has one copy, and without magic bytes it is not known what cannot be read.
    for (image, sector) in [(luks1_image(), 0), (luks1_image(), 1), (vec![0; 1 << 20], COPY / SECTOR)] {
        let loaded = Volume::load(&BadSectors::new(image, [sector]));
        assert!(matches!(loaded, Err(LoadError::Io(error)) if is_eio(&error)), "sector {sector}");
    }
    for sector in [0, 1] {
        let plan = RepairPlan::new(&BadSectors::new(luks1_image(), [sector]));
        assert!(chain(&plan.unwrap_err()).contains("os error 5"), "sector {sector}");
    }
}

#[test]
fn sector_where_no_copy_is_matters_to_no_header() {
    // A second copy may be at 32 KiB, and at 64 KiB, where keyslot areas are here.
    let mut image = luks2_image();
    image[100] ^= 1;
    for offset in [32 << 10, 64 << 10, 512 << 10] {
        let device = BadSectors::new(image.clone(), [offset / SECTOR]);
        assert!(matches!(Volume::load(&device).unwrap().warnings(), [LoadWarning::PrimaryDamaged(_)]), "{offset}");
    }
}

#[test]
fn second_copy_is_found_beyond_a_place_that_cannot_be_read() {
    let mut options = luks2_options();
    options.metadata_len = 64 << 10;
    let device = MemoryDevice::zeroed((1 << 20) + 8192);
    luks2::format(&device, options, &secret(PASSPHRASE)).unwrap();
    let mut image = device.to_vec();
    image[100] ^= 1;
    // A copy of 16 KiB, and one of 32 KiB, would be there.
    for offset in [16 << 10, 32 << 10] {
        let device = BadSectors::new(image.clone(), [offset / SECTOR]);
        assert!(matches!(Volume::load(&device).unwrap().warnings(), [LoadWarning::PrimaryDamaged(_)]), "{offset}");
        unlock(&device, PASSPHRASE).unwrap();
    }
    // Without the first copy's magic bytes, a damaged second copy says more than a place that cannot be read.
    image[..6].fill(0);
    image[(64 << 10) + 100] ^= 1;
    let loaded = Volume::load(&BadSectors::new(image, [(16 << 10) / SECTOR]));
    assert!(matches!(loaded, Err(LoadError::Damaged(_))), "{loaded:?}");
}
