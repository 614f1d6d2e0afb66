//! Volumes of dm-integrity without a header.

use crate::{kind, opened, silent};
use inlock_engine::BackingStore;
use inlock_engine::store::file::{FileStore, IoMode};
use inlock_integrity::{FormatOptions, Mode, Stores, TagHash, format};
use inlock_open::integrity_options::{HashOptions, IntegrityOptions, JournalOptions};
use inlock_open::source::VolumeType;
use inlock_open::{ErrorKind, KeySource, OpenOptions, open};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Returns the options of a volume with its superblock on `image`.
fn options(image: &Path, data_device: Option<PathBuf>) -> OpenOptions {
    let integrity = IntegrityOptions {
        data_device,
        mode: Mode::Journal,
        hash: HashOptions { algorithm: "crc32c".parse().expect("a hash"), key: None },
        journal_mac: None,
        journal_cipher: None,
        every: Duration::from_secs(10),
        tag_size: None,
        sectors_per_bit: None,
        allow_discards: false,
        recalculate: false,
        legacy_recalculate: false,
        journal: JournalOptions::default(),
    };
    OpenOptions::new(image, VolumeType::Integrity(integrity), KeySource::Ask)
}

fn store(path: &Path) -> Arc<dyn BackingStore> {
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path).expect("a file");
    file.set_len(1 << 20).expect("room");
    Arc::new(FileStore::new(file, IoMode::Sync).expect("a store"))
}

#[test]
fn volume_is_named_after_the_device_of_its_data() {
    let dir = tempfile::tempdir().expect("a directory");
    let [one, meta, data] = ["one", "meta", "data"].map(|name| dir.path().join(name));
    let hash = Arc::new(TagHash::new("crc32c".parse().expect("a hash"), &[]).expect("no key"));
    let format_options = FormatOptions { internal_hash: Some(hash), ..FormatOptions::default() };
    format(&Stores::interleaved(store(&one)), &format_options).expect("a volume");
    format(&Stores::separate(store(&data), store(&meta)), &format_options).expect("a volume");
    for (options, device, header) in
        [(options(&one, None), &one, None), (options(&meta, Some(data.clone())), &data, Some(&meta))]
    {
        let info = open(&silent(), &options, true, None).expect("it opens").info;
        assert_eq!((&info.device, info.header.as_ref(), info.devices.len()), (device, header, 0));
        opened(&silent(), &options, true).expect("a device");
    }
    assert_eq!(kind(opened(&silent(), &options(&meta, Some(meta.clone())), true)), ErrorKind::SameDataDevice);
}
