//! Names of running volumes, and their files.
//!
//! The process of a volume holds `NAME.lock` as long as it lives: the lock alone decides whether a name is in use.
//! `NAME.json` is the state file with the [`RuntimeInfo`], `NAME.sock` the control socket, `NAME.log` the log of a
//! background process.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::PathBuf;

use anyhow::Context;

use super::info::RuntimeInfo;
use crate::attach::stale;
use crate::error::CliError;
use crate::system::run_dir::run_dir;
use crate::volume::key_check::KeyCheck;
use crate::volume::lock::{self, Lock};

/// Maximum length of a state file, in bytes.
const STATE_FILE_MAX: u64 = 1 << 20;

/// Maximum length of a name in the path of a socket: a path has at most 107 bytes, and a name may have more.
const SOCKET_NAME_MAX: usize = 32;

/// A name that device-mapper uses without escaping.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name(String);

impl Name {
    /// Checks a name: 1 to 127 bytes, of the characters that need no escaping in `/dev`.
    pub(crate) fn new(text: &str) -> Result<Self, String> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"#+-.:=@_".contains(&byte);
        match text {
            "" => Err("it is empty".to_owned()),
            "." | ".." | "control" => Err("it is reserved".to_owned()),
            _ if text.len() > 127 => Err("a name has at most 127 bytes".to_owned()),
            _ if !text.bytes().all(plain) => Err("a name has letters, digits and #+-.:=@_ only".to_owned()),
            _ => Ok(Self(text.to_owned())),
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether a log is removed with the other files.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Log {
    Always,
    IfEmpty,
    Kept,
}

/// Files of a name.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    dir: PathBuf,
    name: Name,
}

impl Files {
    /// Returns the files of `name`, which may not exist.
    pub(crate) fn of(name: &Name) -> anyhow::Result<Self> {
        Ok(Self::within(run_dir()?, name))
    }

    /// Returns the files of `name` in another directory.
    pub(super) fn within(dir: PathBuf, name: &Name) -> Self {
        Self { dir, name: name.clone() }
    }

    /// Returns the files of all names with a state file, sorted.
    pub(crate) fn all() -> anyhow::Result<Vec<Self>> {
        let dir = run_dir()?;
        let entries = std::fs::read_dir(&dir).with_context(|| format!("cannot read {}", dir.display()))?;
        let mut all: Vec<Self> = entries
            .filter_map(|entry| {
                let file = entry.ok()?.file_name();
                let name = Name::new(file.to_str()?.strip_suffix(".json")?).ok()?;
                Some(Self { dir: dir.clone(), name })
            })
            .collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    pub(crate) fn name(&self) -> &Name {
        &self.name
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path("sock")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.path("log")
    }

    /// Returns the path of a volume that is attached as a file.
    pub(crate) fn volume(&self) -> PathBuf {
        self.path("volume")
    }

    /// Returns the path of the socket that is handed to the kernel's NBD driver.
    pub(crate) fn nbd_socket(&self) -> PathBuf {
        if self.name.0.len() <= SOCKET_NAME_MAX {
            return self.path("nbd");
        }
        // `~` cannot occur in a name.
        let mut hasher = DefaultHasher::new();
        self.name.0.hash(&mut hasher);
        self.dir.join(format!("~{:016x}.nbd", hasher.finish()))
    }

    /// Returns the path of the completion log of a zoned ublk device.
    pub(crate) fn completion_log(&self) -> PathBuf {
        self.path("zones")
    }

    fn path(&self, kind: &str) -> PathBuf {
        self.dir.join(format!("{}.{kind}", self.name))
    }

    /// Whether a process holds the name.
    pub(crate) fn is_alive(&self) -> bool {
        lock::is_taken(&self.path("lock"))
    }

    /// Reads the state file, which a process that died has left behind.
    pub(crate) fn info(&self) -> Option<RuntimeInfo> {
        let path = self.path("json");
        let metadata = std::fs::metadata(&path).ok()?;
        let text = (metadata.len() <= STATE_FILE_MAX).then(|| std::fs::read(path).ok())??;
        serde_json::from_slice(&text).ok()
    }

    /// Replaces the state file atomically.
    pub(crate) fn publish(&self, info: &RuntimeInfo) -> anyhow::Result<()> {
        let fingerprint = info.check.as_ref().map(KeyCheck::fingerprint).transpose();
        let key_fingerprint = fingerprint.context("cannot compute the key fingerprint")?;
        let info = RuntimeInfo { key_fingerprint, ..info.clone() };
        let path = self.path("json");
        let write = || -> io::Result<()> {
            // Temporary files are for their owner only.
            let file = tempfile::Builder::new().prefix("~").tempfile_in(&self.dir)?;
            std::fs::write(file.path(), serde_json::to_vec_pretty(&info)?)?;
            file.persist(&path)?;
            Ok(())
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }

    /// Removes the files of a process, and the log according to `log`.
    fn remove(&self, log: Log) {
        // Some of them may not exist.
        let _ = std::fs::remove_file(self.socket());
        let _ = std::fs::remove_file(self.nbd_socket());
        let _ = std::fs::remove_file(self.completion_log());
        let _ = std::fs::remove_file(self.path("json"));
        let is_empty = || std::fs::metadata(self.log()).is_ok_and(|metadata| metadata.len() == 0);
        if log == Log::Always || log == Log::IfEmpty && is_empty() {
            let _ = std::fs::remove_file(self.log());
        }
    }
}

/// A name held by this process. Its files are removed with it.
pub(crate) struct Claim {
    files: Files,
    /// State of a process that died and left a device that awaits recovery. Kept if this process fails before.
    stale: Option<RuntimeInfo>,
    keep: Option<Box<dyn FnOnce() -> bool>>,
    /// Keep the log even if it is empty.
    keeps_log: bool,
    _lock: Lock,
}

impl Claim {
    /// Takes the name, and cleans up after a process that died. Fails if its device is in use.
    pub(crate) fn take(name: &Name) -> anyhow::Result<Self> {
        Self::take_unless(name, |_| false)
    }

    /// Like [`Claim::take`], but keeps a device that awaits recovery.
    pub(crate) fn take_over(name: &Name) -> anyhow::Result<Self> {
        Self::take_unless(name, |info| stale::awaiting_recovery(info.stale_device()).is_some())
    }

    fn take_unless(name: &Name, keep: impl FnOnce(&RuntimeInfo) -> bool) -> anyhow::Result<Self> {
        let files = Files::of(name)?;
        let Some(lock) = lock::exclusive(&files.path("lock"))? else {
            return Err(CliError::NameInUse { name: name.to_string(), pid: files.info().map(|info| info.pid) }.into());
        };
        let stale = match files.info() {
            Some(info) if keep(&info) => Some(info),
            gone => {
                if let Some(gone) = gone {
                    stale::clean_up(gone.stale_device(), &files.volume())?;
                }
                files.remove(Log::Always);
                None
            }
        };
        Ok(Self { files, stale, keep: None, keeps_log: false, _lock: lock })
    }

    pub(crate) fn name(&self) -> &Name {
        &self.files.name
    }

    pub(crate) fn files(&self) -> &Files {
        &self.files
    }

    /// Returns the state of a process that died and left a device that awaits recovery.
    pub(crate) fn stale(&self) -> Option<&RuntimeInfo> {
        self.stale.as_ref()
    }

    /// Keeps the files if `keep` returns true when the name is released: the device is still attached, and is recovered or
    /// cleaned up by them.
    pub(crate) fn keep_if(&mut self, keep: impl FnOnce() -> bool + 'static) {
        self.keep = Some(Box::new(keep));
    }

    /// Keeps the log, to which the process has yet to write its last error.
    pub(crate) fn keep_log(&mut self) {
        self.keeps_log = true;
    }

    /// As [`Files::publish`].
    pub(crate) fn publish(&mut self, info: &RuntimeInfo) -> anyhow::Result<()> {
        self.files.publish(info)?;
        self.stale = None;
        Ok(())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let keep = self.keep.take().is_some_and(|keep| keep());
        if self.stale.is_none() && !keep {
            self.files.remove(if self.keeps_log { Log::Kept } else { Log::IfEmpty });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_that_device_mapper_escapes_is_refused() {
        let longest = "x".repeat(127);
        for name in ["a", "data-1_2.3", "#+-.:=@_", "-r", ".hidden", longest.as_str()] {
            assert_eq!(Name::new(name).unwrap().as_str(), name);
        }
        let longer = "x".repeat(128);
        for name in ["", ".", "..", "control", "a/b", "/", "a b", "a\n", "a\0", "ä", "~x", longer.as_str()] {
            assert!(Name::new(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn longest_name_has_own_socket_path() {
        let socket = |name: &str| Files::within("/run/inlock".into(), &Name::new(name).unwrap()).nbd_socket();
        let (one, other) = ("a".repeat(127), "a".repeat(126) + "b");
        assert!(socket(&one).as_os_str().len() <= 107 && socket(&one) != socket(&other));
        assert_eq!(socket(&one), socket(&one));
        assert_eq!(socket("data"), PathBuf::from("/run/inlock/data.nbd"));
    }

    #[test]
    fn files_of_kept_device_stay() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::within(dir.path().to_owned(), &Name::new("data").unwrap());
        for keep in [true, false] {
            let lock = lock::exclusive(&files.path("lock")).unwrap().unwrap();
            let mut claim = Claim { files: files.clone(), stale: None, keep: None, keeps_log: false, _lock: lock };
            claim.keep_if(move || keep);
            std::fs::write(files.path("json"), "{}").unwrap();
            drop(claim);
            assert_eq!(files.path("json").exists(), keep);
        }
    }
}
