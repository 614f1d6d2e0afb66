//! Copies of a volume and of its header, and devices with a hash tree.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use inlock_engine::Access;
use inlock_engine::store::file::IoMode;
use inlock_open::copy::{Export, Import, Input};
use inlock_open::output::Output;
use inlock_open::range::Range;
use inlock_open::verity::{GivenParameters, RootHash, VerityOptions, hex};
use inlock_open::verity_format::VerityFormat;
use inlock_open::{Error, ErrorKind, KeySource, OpenOptions, Result, header_backup, open, zones};
use inlock_zoned_file::ZonedLayout;

use super::{Image, PASSPHRASE, opened, silent};

fn options(image: &Image) -> OpenOptions {
    OpenOptions::luks(image.path(), KeySource::bytes(PASSPHRASE))
}

/// Copies a file into a volume.
fn import(image: &Image, file: &Path, range: Option<Range>) -> Result<u64> {
    let (source, mut done) = (options(image), 0);
    let volume = opened(&silent(), &source, true)?;
    let copied =
        Import::new(&volume, &source, range, Input::open(Some(file), &[&image.path()])?).and_then(|mut copy| {
            copy.copy(|bytes| done += bytes)?;
            copy.check_end()
        });
    volume.check_writes(copied).map(|()| done)
}

#[test]
fn file_is_the_same_behind_a_volume_and_keeps_its_holes() {
    let image = Image::new();
    let (from, to) = (image.0.path().join("from"), image.0.path().join("to"));
    let mut data = vec![0; 1 << 20];
    data[4096..8192].fill(7);
    std::fs::write(&from, &data).expect("a file");
    assert_eq!(import(&image, &from, None).expect("it fits"), 1 << 20);
    let source = options(&image);
    let volume = opened(&silent(), &source, false).expect("it opens");
    let export = Export::new(&volume, &source, Some(Range { offset: 4096, len: Some(512 << 10) })).expect("a range");
    assert_eq!(export.total(), 512 << 10);
    let mut output = Output::take(&silent(), Some(&to), &[&image.path()]).expect("an output");
    let mut done = 0;
    output.begin(export.total()).expect("room");
    export.copy_to(&mut output, |bytes| done += bytes).expect("it reads");
    output.finish().expect("room");
    assert!(std::fs::read(&to).expect("a file") == data[4096..][..512 << 10] && done == 512 << 10);
    let blocks = std::fs::metadata(&to).expect("a file").blocks();
    assert!(blocks * 512 < 256 << 10, "zeroes became a hole: {blocks}");
}

#[test]
fn input_that_does_not_fit_is_refused_before_anything_is_written() {
    let image = Image::new();
    let before = std::fs::read(image.path()).expect("a file");
    let file = image.0.path().join("file");
    std::fs::write(&file, vec![1; (1 << 20) + 1]).expect("a file");
    let range = |offset, len| Some(Range { offset, len });
    let kind = |file: &Path, range| import(&image, file, range).expect_err("it is refused").kind();
    assert_eq!(kind(&file, None), ErrorKind::InputTooLong);
    assert_eq!(kind(&file, range(0, Some(4096))), ErrorKind::InputTooLong);
    assert_eq!(kind(&file, range(1 << 20, Some(1))), ErrorKind::OutsideVolume);
    assert_eq!(kind(&image.path(), None), ErrorKind::InputIsOutput);
    assert_eq!(kind(image.0.path(), None), ErrorKind::InputIsDirectory);
    std::fs::write(&file, b"short").expect("a file");
    assert_eq!(kind(&file, range(0, Some(4096))), ErrorKind::InputTooShort);
    assert!(std::fs::read(image.path()).expect("a file") == before);
    // The length of a device is not known before its end.
    assert_eq!(kind(Path::new("/dev/zero"), range(0, Some(8192))), ErrorKind::InputGoesOn);
}

#[test]
fn backup_of_a_header_never_replaces_a_file() {
    let image = Image::new();
    let (file, other) = (image.0.path().join("backup"), image.0.path().join("other"));
    header_backup::check_new(&file).expect("it is new");
    header_backup::create(&image.device(), &file).expect("it is written");
    assert!(std::fs::read(&file).expect("a file") == image.header());
    header_backup::read(&silent(), &file).expect("it is one");
    let kind = |result: Result<()>| result.expect_err("it is refused").kind();
    assert_eq!(kind(header_backup::check_new(&file)), ErrorKind::BackupExists);
    assert_eq!(kind(header_backup::create(&image.device(), &file)), ErrorKind::BackupExists);
    assert_eq!(kind(header_backup::create(&image.device(), Path::new("/proc/x"))), ErrorKind::BackupNotWritten);
    std::fs::write(&other, vec![0; 1 << 20]).expect("a file");
    assert_eq!(kind(header_backup::read(&silent(), &other).map(drop)), ErrorKind::NotABackup);
}

#[test]
fn created_hash_tree_is_that_of_its_data() {
    let dir = tempfile::tempdir().expect("a directory");
    let (data, hash) = (dir.path().join("data"), dir.path().join("hash"));
    std::fs::write(&data, vec![5; 1 << 20]).expect("a file");
    let mut format = VerityFormat {
        given: GivenParameters::default(),
        hash_name: "sha256".to_owned(),
        hash_offset: 0,
        superblock: true,
        uuid: uuid::Uuid::nil(),
        fec: None,
        threads: 1,
    };
    let made = format.create(&format.open(&silent(), &data, &hash).expect("two files")).expect("a tree");
    let verity = VerityOptions {
        hash_device: hash.clone(),
        hash_offset: 0,
        given: GivenParameters::default(),
        no_superblock: false,
        root_hash: RootHash::Digits(hex(&made.root)),
        ignore_corruption: false,
        ignore_zero_blocks: false,
        fec: None,
    };
    let source = OpenOptions::new(data.clone(), inlock_open::source::VolumeType::Verity(verity), KeySource::Ask);
    let access = Access { read_only: true, allow_discards: false };
    let volume = open(&silent(), &source, false, None).expect("it opens");
    assert_eq!(volume.info.hash.as_deref(), Some("sha256"));
    assert_eq!(volume.into_device(IoMode::Sync, access).expect("a device").device.len(), 1 << 20);
    // Refused before the file of the tree grows.
    let len = std::fs::metadata(&hash).expect("a file").len();
    format.given.data_blocks = Some(100_000);
    let devices = format.open(&silent(), &data, &hash).expect("two files");
    let kind = |result: Result<_>| result.map(|_| ()).map_err(|error: Error| error.kind());
    assert_eq!(kind(format.create(&devices).map(drop)), Err(ErrorKind::VerityDataBlocks));
    assert_eq!(std::fs::metadata(&hash).expect("a file").len(), len);
    drop(devices);
    format.given.data_blocks = None;
    let one = format.open(&silent(), &data, &data).expect("a file");
    assert_eq!(kind(format.create(&one).map(drop)), Err(ErrorKind::VerityOverlap));
}

#[test]
fn zoned_file_needs_a_length_and_reports_its_zones() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("zones");
    let mut layout = ZonedLayout {
        len: 0,
        zone_len: 1 << 20,
        capacity: 1 << 20,
        conventional: 1,
        max_open: 0,
        max_active: 0,
        write_granularity: 4096,
    };
    let empty = zones::create_file(&silent(), &path, layout).expect_err("it has no length");
    assert_eq!(empty.kind(), ErrorKind::ZonedFileEmpty);
    layout.len = 4 << 20;
    zones::create_file(&silent(), &path, layout).expect("it is created");
    let device = |path: &Path| {
        inlock_open::device::Device::open(&silent(), path, inlock_open::device::OpenMode::Read).expect("it opens")
    };
    let (limits, all) = zones::limits_and_zones(&device(&path)).expect("it reads").expect("zones");
    assert_eq!((limits.zones, all.len(), all[3].start), (4, 4, 3 << 20));
    let other = dir.path().join("other");
    std::fs::write(&other, b"x").expect("a file");
    assert!(zones::limits_and_zones(&device(&other)).expect("it reads").is_none());
}
