//! Opening volumes as a program does that is not the command.

mod copies;
mod create;
mod examine;

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use inlock_engine::store::file::IoMode;
use inlock_engine::{Access, BlockingDevice};
use inlock_open::host::{Context, Host, Level, Silent};
use inlock_open::settings::Settings;
use inlock_open::source::{Luks, VolumeType};
use inlock_open::unlocked::LockedStores;
use inlock_open::{Error, ErrorKind, KeySource, OpenOptions, Result, open};
use inlock_volume::luks2::{self, FormatOptions};
use inlock_volume::{FileDevice, KdfKind, KdfRequest, Secret};
use zeroize::Zeroizing;

mod direct;
mod edits;
mod export;
mod integrity;
mod locks;
mod online;
mod reencryption;
mod reload;
mod remote;
mod steps;
mod tokens;
mod verity;

const PASSPHRASE: &str = "correct";

/// An image with a LUKS2 header and 1 MiB of data.
struct Image(tempfile::TempDir);

impl Image {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut FormatOptions)) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let image = Self(dir);
        let file = std::fs::File::options().read(true).write(true).create_new(true).open(image.path()).expect("a file");
        file.set_len(17 << 20).expect("room");
        let mut options = FormatOptions::default();
        options.kdf = KdfRequest::new(KdfKind::Pbkdf2);
        options.kdf.forced_iterations = Some(1000);
        change(&mut options);
        luks2::format(&FileDevice::new(file), options, &Secret::new(PASSPHRASE.into())).expect("a volume");
        image
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("disk.img")
    }
}

fn silent() -> Context {
    Context::new(Silent, Settings::default())
}

fn opened(context: &Context, options: &OpenOptions, writing: bool) -> Result<LockedStores> {
    open(context, options, writing, None)?.into_device(IoMode::Sync, Access::default())
}

fn kind(result: Result<LockedStores>) -> ErrorKind {
    result.map(|_| ()).expect_err("it is refused").kind()
}

#[test]
fn passphrase_of_the_program_opens_for_reading_and_writing() {
    let image = Image::new();
    let options = OpenOptions::luks(image.path(), KeySource::bytes(PASSPHRASE));
    let volume = opened(&silent(), &options, true).expect("it opens");
    let device = BlockingDevice::new(Arc::clone(&volume.device));
    device.write_at(b"content", 1000).expect("it writes");
    device.flush().expect("it flushes");
    // One writer: the second opening is told so by its kind.
    assert_eq!(kind(opened(&silent(), &options, true)), ErrorKind::InUse);
    volume.check_writes(Ok::<(), Error>(())).expect("nothing is lost");
    drop((device, volume));
    let volume = opened(&silent(), &options, false).expect("it opens again");
    let mut read = [0; 7];
    let device = BlockingDevice::new(Arc::clone(&volume.device));
    device.read_at(&mut read, 1000).expect("it reads");
    assert_eq!(&read, b"content");
    // It was not opened for writing.
    assert!(volume.device.access().read_only);
    device.write_at(b"x", 0).expect_err("it is read-only");
}

#[test]
fn errors_have_kinds_and_neither_hints_nor_statuses() {
    let image = Image::new();
    let with = |path: PathBuf, key: &str| opened(&silent(), &OpenOptions::luks(path, KeySource::bytes(key)), false);
    assert_eq!(kind(with(image.path(), "wrong")), ErrorKind::NoKey);
    assert_eq!(kind(with(image.0.path().join("missing"), "x")), ErrorKind::NoDevice { to_create: false });
    assert_eq!(kind(with(image.0.path().to_owned(), "x")), ErrorKind::NotADevice);
    let raw = image.0.path().join("raw");
    std::fs::write(&raw, vec![0; 1 << 20]).expect("a file");
    let not_luks = ErrorKind::NotLuks { found: None, may_be_plain: true };
    assert_eq!(kind(with(raw.clone(), "x")), not_luks);
    let luks1 = OpenOptions::new(image.path(), VolumeType::Luks(Luks::One), KeySource::bytes(PASSPHRASE));
    let other = ErrorKind::NotLuks { found: Some(2), may_be_plain: true };
    assert_eq!(kind(opened(&silent(), &luks1, false)), other);
    let error = with(raw.clone(), "x").map(|_| ()).expect_err("it is refused");
    assert_eq!(error.path(), Some(&*raw));
    assert_eq!(error.to_string(), format!("Device {} is not a valid LUKS device.", raw.display()));
}

#[test]
fn program_without_users_is_not_asked() {
    let image = Image::new();
    let ask = OpenOptions::luks(image.path(), KeySource::Ask);
    assert_eq!(kind(opened(&silent(), &ask, false)), ErrorKind::NoInput);
}

/// A program whose user mistypes the passphrase first.
#[derive(Clone, Default)]
struct Program(Arc<Mutex<Vec<String>>>);

impl Program {
    fn heard(&self) -> Vec<String> {
        self.0.lock().expect("no panic").clone()
    }
}

impl Host for Program {
    fn tell(&self, level: Level, text: &dyn Display) {
        if level != Level::Debug && level != Level::Metadata {
            self.0.lock().expect("no panic").push(format!("{level:?}: {text}"));
        }
    }

    fn can_ask(&self) -> bool {
        true
    }

    fn ask(&self, prompt: &str, _timeout: Option<Duration>) -> Result<Zeroizing<Vec<u8>>> {
        let mut heard = self.0.lock().expect("no panic");
        let answer = if heard.is_empty() { "mistyped" } else { PASSPHRASE };
        heard.push(prompt.to_owned());
        Ok(Zeroizing::new(answer.into()))
    }
}

#[test]
fn program_is_asked_and_told() {
    let image = Image::new();
    let program = Program::default();
    let context = Context::new(program.clone(), Settings::default());
    opened(&context, &OpenOptions::luks(image.path(), KeySource::Ask), false).expect("it opens");
    let prompt = format!("Enter passphrase for {}: ", image.path().display());
    let wanted = [
        prompt.clone(),
        "Notice: No key available with this passphrase.".to_owned(),
        prompt,
        "Detail: Key slot 0 unlocked.".to_owned(),
    ];
    assert_eq!(program.heard(), wanted);
}

#[test]
fn settings_are_those_of_a_context_and_not_of_the_process() {
    let image = Image::new();
    let lock = std::fs::File::open(image.path()).expect("the image");
    lock.lock().expect("a lock of another program");
    let options = OpenOptions::luks(image.path(), KeySource::bytes(PASSPHRASE));
    let mut settings = Settings::default();
    settings.no_header_locks = true;
    // Beside one that waits for the lock.
    let waiting = std::thread::spawn({
        let options = OpenOptions::luks(image.path(), KeySource::bytes(PASSPHRASE));
        move || kind(opened(&silent(), &options, false))
    });
    opened(&Context::new(Silent, settings), &options, false).expect("it takes no lock");
    assert_eq!(waiting.join().expect("no panic"), ErrorKind::HeaderLocked);
}

#[test]
fn part_of_a_key_is_used_like_that_of_a_key_file() {
    let image = Image::new();
    let of = |offset, size, key: KeySource| {
        let mut options = OpenOptions::luks(image.path(), key);
        (options.key.offset, options.key.size) = (offset, size);
        opened(&silent(), &options, false).map(|_| ())
    };
    let file = image.0.path().join("key");
    std::fs::write(&file, format!("xx{PASSPHRASE}yy")).expect("a file");
    let keys = || [KeySource::bytes(format!("xx{PASSPHRASE}yy")), KeySource::File(file.clone())];
    for key in keys() {
        of(2, Some(PASSPHRASE.len() as u64), key).expect("it opens");
    }
    for key in keys() {
        assert_eq!(of(2, Some(100), key).expect_err("too short").kind(), ErrorKind::KeyFileTooShort);
    }
    let [bytes, file] = keys();
    assert_eq!(of(100, None, bytes).expect_err("too short").kind(), ErrorKind::KeyOffset);
    assert_eq!(of(100, None, file).expect_err("too short").kind(), ErrorKind::KeyFileOffset);
    assert!(Path::new(&image.path()).exists());
}
