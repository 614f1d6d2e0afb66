//! Creating volumes as a program does that is not the command.

use std::fs::{self, File};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use inlock_cipher::AeadSpec;
use inlock_engine::store::file::{FileStore, IoMode};
use inlock_engine::{Access, BlockingDevice};
use inlock_integrity::{Fill, FormatOptions as IntegrityFormat, Stores};
use inlock_open::create::{CreateOptions, DataStart, IntegrityProtection, NewVolume, Overwritten};
use inlock_open::source::VolumeType;
use inlock_open::table::TableSource;
use inlock_open::{Error, ErrorKind, KeySource, OpenOptions, Result, open};
use inlock_volume::luks2::{self, FormatOptions};
use inlock_volume::table::ShowKeys;
use inlock_volume::{FileDevice, KdfKind, KdfRequest, Secret};

use super::steps::Curious;
use super::{PASSPHRASE, opened, silent};

/// A directory with an image of noise.
struct Dir(tempfile::TempDir);

impl Dir {
    fn new(mib: usize) -> Self {
        let dir = Self(tempfile::tempdir().expect("a directory"));
        fs::write(dir.image(), vec![0xa5; mib << 20]).expect("a file");
        dir
    }

    fn image(&self) -> PathBuf {
        self.0.path().join("disk.img")
    }

    fn header(&self) -> PathBuf {
        self.0.path().join("header")
    }

    /// Options of a volume in the image, whose key is derived at once.
    fn options(&self) -> CreateOptions {
        CreateOptions { kdf: fast(), ..CreateOptions::luks2(self.image()) }
    }

    fn open(&self, header: Option<PathBuf>) -> Result<BlockingDevice> {
        let options = OpenOptions { header, ..OpenOptions::luks(self.image(), KeySource::bytes(PASSPHRASE)) };
        Ok(BlockingDevice::new(opened(&silent(), &options, false)?.device.clone()))
    }
}

fn fast() -> KdfRequest {
    let mut kdf = KdfRequest::new(KdfKind::Pbkdf2);
    kdf.forced_iterations = Some(1000);
    kdf
}

fn secret() -> Secret {
    Secret::new(PASSPHRASE.into())
}

fn hmac() -> AeadSpec {
    AeadSpec::from_luks2("aes-xts-random", "hmac(sha256)").expect("it is known")
}

fn protected(options: CreateOptions, fill: Option<Fill>) -> CreateOptions {
    let protection = IntegrityProtection { spec: hmac(), fix_padding: true, fill };
    CreateOptions { integrity: Some(protection), key_len: 32 + hmac().mac_key_len(), ..options }
}

fn create(options: &CreateOptions) -> Result<()> {
    NewVolume::prepare(&silent(), options)?.create(&secret(), None, |_| ControlFlow::Continue(()))
}

/// Writes a LUKS2 header, as another program does.
fn write_header(path: &Path) {
    let file = File::options().read(true).write(true).open(path).expect("a file");
    let mut options = FormatOptions::default();
    options.kdf = fast();
    luks2::format(&FileDevice::new(file), options, &secret()).expect("a header");
}

#[test]
fn created_volume_opens_and_is_one_of_cryptsetup() {
    let dir = Dir::new(17);
    let options = dir.options();
    let luks1 = CreateOptions { version: 1, ..options.clone() };
    let placed = CreateOptions { start: DataStart::At(2048), sector_size: Some(512), ..options.clone() };
    for (options, start) in [(&options, 16 << 20), (&luks1, 2 << 20), (&placed, 1 << 20)] {
        create(options).expect("it is created");
        let device = dir.open(None).expect("it opens");
        assert_eq!(device.device().len(), (17 << 20) - start);
        let dump = Command::new("cryptsetup").arg("luksDump").arg(dir.image()).output();
        let dump = match dump {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                println!("SKIPPED: cryptsetup is not installed");
                return;
            }
            dump => dump.expect("it runs"),
        };
        let text = String::from_utf8_lossy(&dump.stdout);
        let version = text.lines().find_map(|line| line.strip_prefix("Version:")).map(str::trim);
        assert!(dump.status.success() && version == Some(&options.version.to_string()), "{dump:?}");
    }
}

#[test]
fn refused_volume_changes_no_byte() {
    let dir = Dir::new(17);
    let before = fs::read(dir.image()).expect("it is read");
    let options = || dir.options();
    let null_iv = CreateOptions { cipher: "aes-ecb".parse().expect("a cipher"), key_len: 32, ..options() };
    let too_far = CreateOptions { start: DataStart::At(17 << 11), ..options() };
    let no_tags = CreateOptions { start: DataStart::At((17 << 11) - 8), ..protected(options(), None) };
    let all = [
        (CreateOptions { start: DataStart::At(4), ..options() }, ErrorKind::InvalidOption),
        (CreateOptions { version: 3, ..options() }, ErrorKind::InvalidOption),
        (CreateOptions { version: 1, label: Some("x".to_owned()), ..options() }, ErrorKind::InvalidOption),
        (CreateOptions { version: 1, kdf: KdfRequest::new(KdfKind::Argon2id), ..options() }, ErrorKind::InvalidOption),
        (CreateOptions { sector_size: Some(520), ..options() }, ErrorKind::InvalidOption),
        (CreateOptions { sector_size: Some(8192), ..options() }, ErrorKind::InvalidOption),
        (CreateOptions { label: Some("x".repeat(48)), ..options() }, ErrorKind::InvalidOption),
        (CreateOptions { keyslot: 32, ..options() }, ErrorKind::InvalidOption),
        (CreateOptions { key_len: 33, ..options() }, ErrorKind::InvalidOption),
        (CreateOptions { key_len: 32, ..protected(options(), None) }, ErrorKind::InvalidOption),
        // Found when the header is made.
        (CreateOptions { metadata_len: Some(1 << 13), ..options() }, ErrorKind::InvalidOption),
        (CreateOptions { uuid: Some("x".to_owned()), ..options() }, ErrorKind::InvalidUuid),
        (null_iv, ErrorKind::NewAgainstPolicy),
        (too_far, ErrorKind::TooSmall { len: 17 << 20, needed: (17 << 20) + 512 }),
        (no_tags, ErrorKind::TooSmall { len: 17 << 20, needed: (18 << 20) - 4096 }),
    ];
    for (options, kind) in all {
        for header in [None, Some(dir.header())] {
            let options = CreateOptions { header, ..options.clone() };
            let error = create(&options).expect_err("it is refused");
            assert_eq!(error.kind(), kind, "{error}");
            assert!(!dir.header().exists());
            assert!(fs::read(dir.image()).expect("it is read") == before, "{error}");
        }
    }
}

#[test]
fn header_that_changed_since_it_was_found_is_kept() {
    let dir = Dir::new(17);
    for has_header in [false, true] {
        let volume = NewVolume::prepare(&silent(), &dir.options()).expect("there is room");
        let found = volume.overwritten().expect("it is read");
        assert_eq!(matches!(found.as_slice(), [Overwritten::Header]), has_header, "{found:?}");
        write_header(&dir.image());
        let before = fs::read(dir.image()).expect("it is read");
        let error = volume.create(&secret(), None, |_| ControlFlow::Continue(())).expect_err("it is refused");
        assert_eq!(error.kind(), ErrorKind::ReplacedHeaderChanged, "{error}");
        assert!(fs::read(dir.image()).expect("it is read") == before);
    }
    // One that did not change is replaced.
    create(&dir.options()).expect("it is created");
    dir.open(None).expect("it opens");
}

#[test]
fn header_file_is_there_only_with_a_volume() {
    let dir = Dir::new(4);
    let options = CreateOptions { header: Some(dir.header()), ..dir.options() };
    let volume = NewVolume::prepare(&silent(), &options).expect("there is room");
    let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(dir.header()).expect("it is there"));
    assert_eq!(mode & 0o777, 0o600);
    drop(volume);
    assert!(!dir.header().exists());
    let same = CreateOptions { header: Some(dir.image()), ..dir.options() };
    let error = NewVolume::prepare(&silent(), &same).map(|_| ()).expect_err("it is refused");
    assert_eq!(error.kind(), ErrorKind::SameHeaderDevice, "{error}");
    assert!(dir.image().exists());
    create(&options).expect("it is created");
    dir.open(Some(dir.header())).expect("it opens");
    // It is not removed with a volume that is not created.
    drop(NewVolume::prepare(&silent(), &options).expect("there is room"));
    assert!(dir.header().exists());
}

#[test]
fn wipe_that_is_stopped_leaves_a_volume() {
    let dir = Dir::new(16);
    let options = CreateOptions { header: Some(dir.header()), ..dir.options() };
    let volume = NewVolume::prepare(&silent(), &protected(options, Some(Fill::Zeroes))).expect("there is room");
    let mut seen = Vec::new();
    let stopped = volume.create(&secret(), None, |wiped| {
        seen.push(wiped);
        ControlFlow::Break(())
    });
    assert_eq!(stopped.map_err(|error| error.kind()), Err(ErrorKind::WipeStopped));
    assert!(seen.len() == 1 && seen[0].done == 0 && seen[0].total > 8 << 20, "{seen:?}");
    let device = dir.open(Some(dir.header())).expect("it opens");
    assert_eq!(device.device().len(), seen[0].total);
    device.read_at(&mut [0; 512], 0).expect_err("it is not filled");
}

#[test]
fn volume_with_integrity_is_where_its_header_says() {
    let dir = Dir::new(12);
    // Metadata and keyslots end before a whole MiB, where the data begin.
    for keyslots_len in [520 << 10, 1088 << 10] {
        let options = CreateOptions { keyslots_len: Some(keyslots_len), ..dir.options() };
        create(&protected(options, Some(Fill::Zeroes))).expect("it is created");
        let device = dir.open(None).expect("it opens");
        let mut all = vec![1; device.device().len() as usize];
        device.read_at(&mut all, 0).expect("it is filled");
        assert!(all.iter().all(|byte| *byte == 0));
    }
}

#[test]
fn given_volume_key_is_that_of_the_data() {
    let dir = Dir::new(17);
    let key = || inlock_volume::VolumeKey::new(&(0..64).collect::<Vec<u8>>());
    let volume = NewVolume::prepare(&silent(), &dir.options()).expect("there is room");
    volume.create(&secret(), Some(key()), |_| ControlFlow::Continue(())).expect("it is created");
    let plaintext = |dir: &Dir| {
        let mut sector = [0; 512];
        dir.open(None)?.read_at(&mut sector, 0)?;
        Ok::<_, Error>(sector)
    };
    let first = plaintext(&dir).expect("it is read");
    let volume = NewVolume::prepare(&silent(), &dir.options()).expect("there is room");
    volume.create(&secret(), Some(key()), |_| ControlFlow::Continue(())).expect("it is created");
    assert_eq!(plaintext(&dir).expect("it is read"), first);
    create(&dir.options()).expect("it is created");
    assert_ne!(plaintext(&dir).expect("it is read"), first);
}

#[test]
fn volume_of_dm_integrity_that_the_header_does_not_describe_is_named() {
    let dir = Dir::new(20);
    create(&protected(dir.options(), None)).expect("it is created");
    let options = OpenOptions::luks(dir.image(), KeySource::bytes(PASSPHRASE));
    let found = || open(&silent(), &options, false, None).expect("it opens");
    found().table("x").expect("a table");
    // One with shorter tags in its place.
    let file = File::options().read(true).write(true).open(dir.image()).expect("the image");
    let store = FileStore::new(file, IoMode::Sync).expect("a store");
    let stores = Stores { start: (16 << 20) / 512, ..Stores::interleaved(Arc::new(store)) };
    let options = IntegrityFormat { tag_size: Some(16), block_len: 4096, overwrite: true, ..Default::default() };
    inlock_integrity::format(&stores, &options).expect("a volume of dm-integrity");
    let errors = [
        found().table("x").map(drop).expect_err("it is refused"),
        found().into_device(IoMode::Sync, Access::default()).map(drop).expect_err("it is refused"),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::IntegrityMisfit, "{error}");
    }
}

#[test]
fn volume_with_integrity_has_no_discards_and_tells_so() {
    let dir = Dir::new(20);
    for is_protected in [false, true] {
        let options = if is_protected { protected(dir.options(), None) } else { dir.options() };
        create(&options).expect("it is created");
        for asks in [false, true] {
            let program = Curious::default();
            let mut options = OpenOptions::luks(dir.image(), KeySource::bytes(PASSPHRASE));
            options.flags.allow_discards = asks;
            let volume = open(&program.context(), &options, true, None).expect("it opens");
            assert_eq!(volume.info.flags.allow_discards, asks && !is_protected);
            let text =
                format!("Warning: {}: a volume with integrity protection has no discards", dir.image().display());
            assert_eq!(program.heard().contains(&text), asks && is_protected);
            if is_protected {
                // As a table it has none either.
                let table = dir.0.path().join("table");
                fs::write(&table, &*volume.table("x").expect("a table").to_text(ShowKeys::Yes)).expect("a file");
                let table = VolumeType::Table(TableSource::parse(table.as_os_str()).expect("a table"));
                let mut options = OpenOptions::new(dir.image(), table, KeySource::bytes(""));
                options.flags.allow_discards = asks;
                let volume = open(&program.context(), &options, true, None).expect("it opens");
                assert!(!volume.info.flags.allow_discards);
                assert_eq!(program.heard().contains(&text), asks);
            }
        }
    }
}
