//! Examining damaged headers.

use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;

use inlock_open::device::{Device, OpenMode};
use inlock_open::examine::{HeaderLoss, Health, Problem, Report, can_work, examine};
use inlock_volume::{
    DataDeviceError, FileDevice, KeyslotState, LoadError, LoadWarning, PolicyError, UnlockError, Volume,
};

use super::{Image, silent};

/// Offset of the second copy of the header.
const SECOND: u64 = 16 << 10;
/// Offset of the key material of keyslot 0.
const KEY_MATERIAL: u64 = 32 << 10;
/// Offset of the data, and length of the header.
const DATA: u64 = 16 << 20;
/// Length of the image.
const LEN: u64 = 17 << 20;

impl Image {
    fn write(&self, bytes: &[u8], offset: u64) {
        let file = std::fs::File::options().write(true).open(self.path()).expect("a file");
        file.write_all_at(bytes, offset).expect("room");
    }

    fn resize(&self, len: u64) {
        std::fs::File::options().write(true).open(self.path()).and_then(|file| file.set_len(len)).expect("room");
    }

    pub(super) fn header(&self) -> Vec<u8> {
        let mut all = std::fs::read(self.path()).expect("a file");
        all.truncate(DATA as usize);
        all
    }

    pub(super) fn device(&self) -> Device {
        Device::open(&silent(), &self.path(), OpenMode::Read).expect("it opens")
    }

    fn examine(&self) -> Report {
        examine(&self.device(), None).expect("it can be read")
    }

    fn search(&self) -> Report {
        let mut report = self.examine();
        report.search(&self.device(), |_| ControlFlow::Continue(())).expect("it can be read");
        report
    }
}

/// Returns the problems of a volume with this health, whose header can be loaded.
fn problems(report: Report, health: Health) -> Vec<Problem> {
    assert_eq!(report.health, health, "{report:?}");
    report.header.expect("a header").problems
}

#[test]
fn whole_volume_is_healthy() {
    let image = Image::new();
    let report = image.examine();
    assert_eq!((report.health, report.len, &report.device), (Health::Healthy, LEN, &image.path()));
    assert!(report.repair.is_none() && report.mended_keyslots.is_none() && report.signatures.is_empty());
    let header = report.header.expect("a header");
    assert!(header.problems.is_empty() && header.has_keyslot() && header.keyslots.len() == 1);
    assert_eq!(header.copies(), Some([None, None]));
}

#[test]
fn damaged_copy_is_named_and_can_be_repaired() {
    for (offset, is_second) in [(0, false), (SECOND, true)] {
        let image = Image::new();
        image.write(b"damage", offset + 5000);
        let report = image.examine();
        assert_eq!(report.repair.as_ref().map(|plan| plan.repairs().len()), Some(1));
        let header = report.header.as_ref().expect("a header");
        match header.copies().expect("two copies") {
            [Some(LoadWarning::PrimaryDamaged(_)), None] if !is_second => {}
            [None, Some(LoadWarning::SecondaryDamaged(_))] if is_second => {}
            copies => panic!("{copies:?}"),
        }
        assert!(matches!(problems(report, Health::Damaged)[..], [Problem::Irregular(_)]));
    }
}

#[test]
fn older_copy_is_the_irregular_one() {
    let image = Image::new();
    let old = image.header();
    let file = std::fs::File::options().read(true).write(true).open(image.path()).expect("a file");
    let file = FileDevice::new(file);
    Volume::load(&file).expect("a header").set_uuid(&file, None).expect("another UUID");
    image.write(&old[..SECOND as usize], 0);
    let header = image.examine().header.expect("a header");
    assert!(matches!(header.copies(), Some([Some(LoadWarning::CopiesDiffer { .. }), None])), "{header:?}");
}

#[test]
fn device_without_the_payload_is_unusable() {
    let image = Image::new();
    image.resize(DATA);
    match problems(image.examine(), Health::Unusable)[..] {
        [Problem::NoPayload(DataDeviceError::TooSmall { len: DATA, .. })] => {}
        ref other => panic!("{other:?}"),
    }
    let detached = Image::with(|options| options.detached = true);
    match problems(detached.examine(), Health::Unusable)[..] {
        [Problem::NoPayload(DataDeviceError::Detached), ..] => {}
        ref other => panic!("{other:?}"),
    }
    let data = Image::new();
    let report = examine(&detached.device(), Some(&data.device())).expect("it can be read");
    assert!(problems(report, Health::Healthy).is_empty());
}

#[test]
fn payload_with_a_part_of_a_unit_is_damaged() {
    let image = Image::new();
    image.resize(LEN + 512);
    assert!(matches!(problems(image.examine(), Health::Damaged)[..], [Problem::PartOfUnit(4096)]));
}

#[test]
fn superblock_of_removed_integrity_makes_a_volume_unusable() {
    let image = Image::new();
    image.write(b"integrt\0\x01", DATA);
    assert!(matches!(problems(image.examine(), Health::Unusable)[..], [Problem::RemovedIntegrity(DATA)]));
}

#[test]
fn cipher_that_encrypts_nothing_makes_a_volume_unusable() {
    let image = Image::with(|options| {
        options.cipher = "cipher_null-ecb".parse().expect("a cipher");
        options.policy.allow_null_cipher = true;
    });
    match problems(image.examine(), Health::Unusable)[..] {
        [Problem::Refused(UnlockError::Policy(PolicyError::NullCipher { .. }))] => {}
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn volume_without_a_keyslot_that_works_is_unusable() {
    let image = Image::new();
    image.write(&[0; 1024], KEY_MATERIAL);
    let report = image.examine();
    assert_eq!(report.health, Health::Unusable);
    let header = report.header.expect("a header");
    assert!(!header.has_keyslot() && !can_work(&header.keyslots[0].state));
    assert!(matches!(header.keyslots[0].state, KeyslotState::Overwritten { sectors: 2, .. }), "{:?}", header.keyslots);
    assert!(header.problems.is_empty());
}

#[test]
fn device_without_a_header_has_nothing() {
    let image = Image::new();
    image.write(&vec![0; DATA as usize], 0);
    let report = image.search();
    assert!(matches!(report.header, Err(HeaderLoss::Load(LoadError::NotLuks))));
    assert_eq!((report.health, report.found.len(), report.repair.is_some()), (Health::Nothing, 0, false));
    image.write(b"RBDL\xba\xbe", 0);
    let report = image.examine();
    assert!(matches!(report.header, Err(HeaderLoss::EncryptedClone)) && report.health == Health::Unusable);
}

#[test]
fn header_without_magic_can_be_repaired_from_its_rest() {
    let image = Image::new();
    image.write(&[0; 6], 0);
    image.write(&[0; 6], SECOND);
    image.write(&[0; 1024], KEY_MATERIAL);
    let report = image.examine();
    assert_eq!(report.health, Health::Unusable);
    assert!(matches!(report.header, Err(HeaderLoss::Load(LoadError::NotLuks))));
    assert!(report.repair.is_some_and(|plan| plan.is_salvage()));
    // The repair does not bring its key back.
    let mended = report.mended_keyslots.expect("a header");
    assert!(matches!(mended[..], [ref slot] if !can_work(&slot.state)), "{mended:?}");
}

#[test]
fn other_format_is_named_and_only_the_user_knows_what_counts() {
    let image = Image::new();
    image.write(&[0; 4096], 0);
    image.write(b"QFI\xfb", 0);
    let report = image.search();
    assert_eq!(report.health, Health::Unusable);
    assert!(matches!(report.header, Err(HeaderLoss::Load(LoadError::Ambiguous(_)))), "{report:?}");
    assert_eq!(report.signatures.iter().map(|one| (one.name, one.offset)).collect::<Vec<_>>(), [("qcow2", 0)]);
    assert_eq!(report.file_format().map(|one| one.name), Some("qcow2"));
    assert_eq!(report.repair.and_then(|plan| plan.foreign()).map(|one| one.name), Some("qcow2"));
    assert!(matches!(report.found[..], [ref one] if one.offset == 0 && one.second_only), "{:?}", report.found);
    // A partition table is no format of files.
    image.write(&[0; 4], 0);
    image.write(b"EFI PART", 512);
    assert!(image.examine().file_format().is_none());
}

#[test]
fn headers_elsewhere_are_found_with_and_without_their_payload() {
    let image = Image::new();
    let header = image.header();
    image.resize(64 << 20);
    image.write(&[0; SECOND as usize * 2], 0);
    image.write(&header, 1 << 20);
    // Only the second copy, and a header whose payload would be behind the end.
    image.write(&header[SECOND as usize..], (20 << 20) + SECOND);
    image.write(&header, 48 << 20);
    let mut report = image.examine();
    assert_eq!(report.health, Health::Nothing);
    let mut read = 0;
    report
        .search(&image.device(), |bytes| {
            read += bytes;
            ControlFlow::Continue(())
        })
        .expect("it can be read");
    assert_eq!((report.health, read), (Health::Unusable, 64 << 20));
    let uuid = |one: &inlock_open::examine::Found| one.volume.as_ref().ok().map(|volume| volume.uuid.clone());
    let all: Vec<_> = report.found.iter().map(|one| (one.offset >> 20, one.second_only, one.header_len)).collect();
    assert_eq!(all, [(1, false, Some(DATA)), (20, true, Some(DATA)), (48, false, Some(DATA))]);
    let has: Vec<_> =
        report.found.iter().map(|one| one.volume.as_ref().map(|volume| volume.has_payload).ok()).collect();
    assert_eq!(has, [Some(true), Some(true), Some(false)]);
    assert!(report.found.iter().all(|one| uuid(one) == uuid(&report.found[0])));
}

#[test]
fn search_ends_early_and_leaves_out_what_is_too_much() {
    let image = Image::new();
    // The magic of damaged headers.
    let sectors = [b"LUKS\xba\xbe\0\x02".as_slice(), &[0; 504]].concat();
    image.write(&sectors.repeat(300), DATA);
    let report = image.search();
    assert_eq!((report.found.len(), report.left_out, report.health), (256, 44, Health::Healthy));
    assert!(report.found.iter().all(|one| one.volume.is_err() && one.header_len.is_none()));
    let mut report = image.examine();
    report.search(&image.device(), |_| ControlFlow::Break(())).expect("it can be read");
    assert!(report.found.is_empty());
}
