//! Zoned files by name.

use super::*;
use std::path::PathBuf;

fn create(layout: &ZonedLayout) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    ZonedFile::create(&path, layout).unwrap();
    (dir, path)
}

#[test]
fn reopened_zoned_file_has_same_states_and_data() {
    let (dir, path) = create(&layout());
    let block = [3; BLOCK as usize];
    {
        let file = ZonedFile::open(&path).unwrap();
        file.write_at(&block, 2 * ZONE).unwrap();
        file.manage(ZoneAction::Open, 3 * ZONE, ZONE).unwrap();
        // The process is killed.
        std::mem::forget(file);
    }
    // The lock ends with the process; in this test a copy has to be opened instead.
    let copy = dir.path().join("copy");
    for end in ["", ".zones"] {
        std::fs::copy(dir.path().join(format!("disk{end}")), dir.path().join(format!("copy{end}"))).unwrap();
    }
    let file = ZonedFile::open(&copy).unwrap();
    assert_eq!(state(&file, 2), (ZoneCondition::ImplicitOpen, BLOCK));
    assert_eq!(state(&file, 3), (ZoneCondition::ExplicitOpen, 0));
    let mut bytes = [0; BLOCK as usize];
    assert_eq!(file.read_at(&mut bytes, 2 * ZONE), Ok(4096));
    assert_eq!(bytes, block);
    file.close().unwrap();
    let (limits, zones) = ZonedFile::look(&copy).unwrap();
    assert_eq!((limits, zones.len()), (layout().limits(), 8));
    assert_eq!(zones[2].write_pointer, Some(2 * ZONE + BLOCK));
}

#[test]
fn zoned_file_has_one_writer_or_many_readers() {
    let (_dir, path) = create(&layout());
    let writer = ZonedFile::open(&path).unwrap();
    assert!(matches!(ZonedFile::open(&path).err(), Some(ZonedFileError::Busy(_))));
    assert!(matches!(ZonedFile::open_read_only(&path).err(), Some(ZonedFileError::Busy(_))));
    writer.write_at(&[1; BLOCK as usize], 2 * ZONE).unwrap();
    assert_eq!(ZonedFile::look(&path).unwrap().1[2].write_pointer, Some(2 * ZONE + BLOCK));
    drop(writer);
    let readers = [ZonedFile::open_read_only(&path).unwrap(), ZonedFile::open_read_only(&path).unwrap()];
    assert!(matches!(ZonedFile::open(&path).err(), Some(ZonedFileError::Busy(_))));
    for reader in &readers {
        assert!(reader.geometry().read_only);
        assert_eq!(reader.write_at(&[1; BLOCK as usize], 2 * ZONE + BLOCK), Err(Errno::PERM));
        assert_eq!(reader.manage(ZoneAction::ResetAll, 0, 0), Err(Errno::PERM));
    }
}

#[test]
fn zoned_file_is_detected_by_sidecar_or_mark() {
    let (dir, path) = create(&layout());
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(ZonedFile::is_zoned(&path) && ZonedFile::is_zoned(&link));
    ZonedFile::open(&link).unwrap();
    std::fs::remove_file(dir.path().join("disk.zones")).unwrap();
    assert!(ZonedFile::is_zoned(&path));
    assert!(matches!(ZonedFile::open_read_only(&path).err(), Some(ZonedFileError::NoSidecar { .. })));
    let plain = dir.path().join("plain");
    std::fs::write(&plain, [0; 8192]).unwrap();
    assert!(!ZonedFile::is_zoned(&plain) && !ZonedFile::is_zoned(dir.path()));
}

#[test]
fn create_over_existing_data_is_refused() {
    let (dir, path) = create(&layout());
    assert!(matches!(ZonedFile::create(&path, &layout()).err(), Some(ZonedFileError::HoldsData(_))));
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(ZonedFile::create(&path, &layout()).err(), Some(ZonedFileError::Exists(_))));
    let bad = ZonedLayout { zone_len: 5, ..layout() };
    let other = dir.path().join("other");
    assert!(matches!(ZonedFile::create(&other, &bad).err(), Some(ZonedFileError::Layout(_))));
    assert!(!other.exists());
}
