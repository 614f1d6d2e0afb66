//! Builds the libraries once for each version of their source, and opens images through them.

use inlock_rbd_store::{OpenError, RbdName, RbdStore, StoreOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Libraries to build: as they are, too old, without a function, and without memory for operations.
const VARIANTS: [(&str, &[&str]); 4] =
    [("good", &[]), ("old", &["-DMINOR=3"]), ("lacking", &["-DLACKING"]), ("full", &["-DNO_COMPLETIONS"])];

/// Returns the directory of a variant of the libraries; an empty one for another name.
pub(crate) fn libraries(variant: &str) -> PathBuf {
    match VARIANTS.iter().find(|(name, _)| *name == variant) {
        Some((name, flags)) => built(name, flags),
        None => tempfile::tempdir().expect("a directory").keep(),
    }
}

/// Builds a variant, unless an earlier run of these tests has done so.
fn built(name: &str, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/fake_ceph.c");
    let mut hasher = DefaultHasher::new();
    (std::fs::read(&source).expect("the source"), flags).hash(&mut hasher);
    let place = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let dir = place.join(format!("fake-ceph-{name}-{:x}", hasher.finish()));
    if dir.exists() {
        return dir;
    }
    let new = tempfile::tempdir_in(place).expect("a directory");
    for (file, define) in [("librados.so.2", "-DRADOS"), ("librbd.so.1", "-DRBD")] {
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", define]).args(flags);
        let status = cc.arg("-o").arg(new.path().join(file)).arg(&source).status().expect("cc runs");
        assert!(status.success(), "{file} {flags:?}");
    }
    // If another thread or process was first, its libraries are the same.
    let _ = std::fs::rename(new.path(), &dir);
    dir
}

/// Returns options whose libraries are those of this directory.
pub(crate) fn options() -> StoreOptions {
    let mut options = StoreOptions::default();
    options.library_dir = Some(libraries("good"));
    options.connect_timeout = Duration::from_secs(60);
    options
}

/// Opens `rbd:pool/image` with instructions for the libraries.
pub(crate) fn open(instructions: &str) -> Result<RbdStore, OpenError> {
    open_with(&format!("rbd:pool/image:mon_host=x{instructions}"), &options(), false)
}

pub(crate) fn open_with(name: &str, options: &StoreOptions, read_only: bool) -> Result<RbdStore, OpenError> {
    RbdStore::open(&RbdName::parse(name).expect("a name"), options, read_only)
}

/// A file that the libraries write their calls to.
pub(crate) struct Log(tempfile::TempDir);

impl Log {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    /// Returns a file in its directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns the instruction to write it.
    pub(crate) fn instruction(&self) -> String {
        format!(":fake_log={}", self.path("log").display())
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.path("log")).unwrap_or_default();
        text.lines().map(ToOwned::to_owned).collect()
    }
}
