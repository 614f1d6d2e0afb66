//! Devices with a hash tree.

use crate::silent;
use crate::steps::Curious;
use inlock_engine::store::file::IoMode;
use inlock_engine::{Access, BlockingDevice};
use inlock_open::source::VolumeType;
use inlock_open::verity::{GivenParameters, RootHash, VerityOptions, hex};
use inlock_open::verity_format::VerityFormat;
use inlock_open::{KeySource, OpenOptions, open};

/// Bytes of a block.
const BLOCK: usize = 512;
/// Number of bad blocks of which each has a message.
const NAMED: usize = 1024;

#[test]
fn bad_blocks_are_told_and_counted_if_there_are_many() {
    let dir = tempfile::tempdir().expect("a directory");
    let [data, hash] = ["data", "hash"].map(|name| dir.path().join(name));
    std::fs::write(&data, vec![5; (NAMED + 8) * BLOCK]).expect("a file");
    let given = GivenParameters { data_block_len: Some(BLOCK as u32), ..GivenParameters::default() };
    let (hash_name, uuid) = ("sha256".to_owned(), uuid::Uuid::nil());
    let format = VerityFormat { given, hash_name, hash_offset: 0, superblock: true, uuid, fec: None, threads: 1 };
    let made = format.create(&format.open(&silent(), &data, &hash).expect("two files")).expect("a tree");
    let verity = VerityOptions {
        hash_device: hash,
        hash_offset: 0,
        given: GivenParameters::default(),
        no_superblock: false,
        root_hash: RootHash::Digits(hex(&made.root)),
        ignore_corruption: true,
        ignore_zero_blocks: false,
        fec: None,
    };
    let options = OpenOptions::new(&data, VolumeType::Verity(verity), KeySource::Ask);
    let program = Curious::default();
    let volume = open(&program.context(), &options, false, None).expect("it opens");
    let volume = volume.into_device(IoMode::Sync, Access::default()).expect("a device");
    std::fs::write(&data, vec![6; (NAMED + 8) * BLOCK]).expect("a file");
    let device = BlockingDevice::new(volume.device.clone());
    let warnings = |blocks: std::ops::Range<usize>| -> Vec<String> {
        program.heard();
        for block in blocks {
            let mut read = [0; BLOCK];
            device.read_at(&mut read, (block * BLOCK) as u64).expect("it is read nevertheless");
            assert_eq!(read, [6; BLOCK]);
        }
        program.heard()
    };
    let bad = |block: usize| {
        let at = block * BLOCK;
        format!("Warning: {}: data block {block} at position {at} does not match its digest", data.display())
    };
    let counted = |block: usize| {
        format!("{}; {} reads of bad blocks so far, which `inlock status` counts", bad(block), block + 1)
    };
    assert_eq!(warnings(0..NAMED), (0..NAMED).map(bad).collect::<Vec<_>>());
    // The first one, and each that doubles their number.
    assert_eq!(warnings(NAMED..NAMED + 8), [0, 1, 3, 7].map(|further| counted(NAMED + further)));
}
