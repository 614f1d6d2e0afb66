//! Shared code of the tests: cheap volumes, and calls of other tools.

use inlock_volume::{
    FileDevice, HeaderDevice, KdfKind, KdfRequest, MemoryDevice, Secret, UnlockError, UnlockOptions, Unlocked, Volume,
    luks1, luks2,
};
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Whether the tests of headers run with all their cases: `cargo xtask header-proof` sets this.
pub(crate) fn is_full() -> bool {
    std::env::var_os("INLOCK_HEADER_PROOF").is_some()
}

/// Returns `base` with some of its fields changed.
macro_rules! with {
    ($base:expr; $($field:ident: $value:expr),+ $(,)?) => {{
        let mut value = $base;
        $(value.$field = $value;)+
        value
    }};
}
pub(crate) use with;

/// Returns the metadata as a tree.
pub(crate) fn map_of(luks2: &luks2::Luks2) -> serde_json::Map<String, serde_json::Value> {
    serde_json::from_str(luks2.metadata_json()).unwrap()
}

/// Returns the text of a tree of metadata.
pub(crate) fn text_of(map: serde_json::Map<String, serde_json::Value>) -> String {
    serde_json::Value::Object(map).to_string()
}

pub(crate) const PASSPHRASE: &[u8] = b"correct horse";
pub(crate) const VOLUME_KEY_64: [u8; 64] = {
    let mut key = [0; 64];
    let mut n = 0;
    while n < 64 {
        key[n] = (n * 7 + 3) as u8;
        n += 1;
    }
    key
};

pub(crate) fn secret(bytes: &[u8]) -> Secret {
    Secret::new(bytes.to_vec())
}

/// Returns the minimum costs of the formats.
pub(crate) fn cheap(kind: KdfKind) -> KdfRequest {
    let forced = if kind == KdfKind::Pbkdf2 { 1000 } else { 4 };
    with!(KdfRequest::new(kind); forced_iterations: Some(forced), memory_kib: Some(32), lanes: Some(1))
}

pub(crate) fn luks2_options() -> luks2::FormatOptions {
    with!(
        luks2::FormatOptions::default();
        kdf: cheap(KdfKind::Argon2id),
        keyslots_len: Some(512 << 10),
        uuid: Some("11111111-2222-3333-4444-555555555555".into()),
        label: "label".into(),
    )
}

pub(crate) fn luks1_options() -> luks1::FormatOptions {
    with!(luks1::FormatOptions::default(); kdf: cheap(KdfKind::Pbkdf2), key_len: 32)
}

/// Returns a small LUKS2 volume: two copies of 16 KiB, keyslot areas of 512 KiB, a payload at 1 MiB.
pub(crate) fn luks2_image() -> Vec<u8> {
    let device = MemoryDevice::zeroed((1 << 20) + 8192);
    luks2::format(&device, luks2_options(), &secret(PASSPHRASE)).unwrap();
    device.to_vec()
}

/// Returns a small LUKS1 volume with a payload at 2 MiB.
pub(crate) fn luks1_image() -> Vec<u8> {
    let device = MemoryDevice::zeroed((2 << 20) + 4096);
    luks1::format(&device, luks1_options(), &secret(PASSPHRASE)).unwrap();
    device.to_vec()
}

pub(crate) fn unlock(device: &dyn HeaderDevice, passphrase: &[u8]) -> Result<Unlocked, UnlockError> {
    let volume = Volume::load(device).unwrap();
    let unlocked = volume.unlock(device, &secret(passphrase), &UnlockOptions::default())?;
    assert_eq!(volume.segments().unwrap(), unlocked.segments, "told before the key was there");
    Ok(unlocked)
}

/// Returns the message of an error with all its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text.push_str(&format!(": {inner}"));
        source = inner.source();
    }
    text
}

/// Whether a tool is installed. Reports a skip otherwise.
pub(crate) fn installed(tool: &str) -> bool {
    let there = Command::new(tool).arg("--version").output().is_ok();
    if !there {
        println!("SKIPPED: {tool} not installed");
    }
    there
}

/// Runs a tool that must succeed, and returns its standard output.
pub(crate) fn run(tool: &str, args: &[&str]) -> String {
    let output = output(tool, args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{tool} {args:?}: {}: {errors}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn output(tool: &str, args: &[&str]) -> Output {
    Command::new(tool).args(args).output().unwrap()
}

/// A directory with an image and key files.
pub(crate) struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let bench = Self { dir: tempfile::tempdir().unwrap() };
        std::fs::write(bench.path("key"), PASSPHRASE).unwrap();
        bench
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// Creates an empty sparse file.
    pub(crate) fn image(&self, name: &str, len: u64) -> String {
        File::create(self.path(name)).unwrap().set_len(len).unwrap();
        self.text(name)
    }

    pub(crate) fn device(&self, name: &str) -> FileDevice {
        open(&self.path(name))
    }
}

pub(crate) fn open(path: &Path) -> FileDevice {
    FileDevice::new(OpenOptions::new().read(true).write(true).open(path).unwrap())
}
