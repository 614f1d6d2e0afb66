//! Names of running volumes, and the files that belong to one.
//!
//! `NAME.lock` is held by the process as long as it lives, so that a name is in use or it is not, whatever else was left
//! behind; `NAME.json` holds the [`Facts`]; `NAME.sock` is the control socket; `NAME.log` is what a background process says.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::PathBuf;

use anyhow::Context;

use super::Facts;
use super::key_check::KeyCheck;
use crate::exit::Problem;
use crate::lock::{self, Lock};
use crate::run_dir::run_dir;
use crate::way;

/// The most that a file of facts may have, in bytes.
const FACTS_MAX: u64 = 1 << 20;

/// The longest name that is part of an address: an address has at most 107 bytes, and a name may have more.
const SOCKET_NAME_MAX: usize = 32;

/// A name that device-mapper would take as it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name(String);

impl Name {
    /// Checks a name: 1 to 127 bytes, of the characters that need no escaping in `/dev`.
    pub(crate) fn new(text: &str) -> Result<Self, String> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"#+-.:=@_".contains(&byte);
        match text {
            "" => Err("a name is missing".to_owned()),
            "." | ".." | "control" => Err("the name has a meaning of its own".to_owned()),
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

/// When a log is removed with the other files.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Log {
    Always,
    IfEmpty,
    Kept,
}

/// The files of a name.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    dir: PathBuf,
    name: Name,
}

impl Files {
    /// Those of `name`, whether or not they exist.
    pub(crate) fn of(name: &Name) -> anyhow::Result<Self> {
        Ok(Self::within(run_dir()?, name))
    }

    /// Those of `name` in another directory.
    pub(super) fn within(dir: PathBuf, name: &Name) -> Self {
        Self { dir, name: name.clone() }
    }

    /// Those of every name that there are facts of, in order.
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

    /// Where the volume is shown as a file.
    pub(crate) fn volume(&self) -> PathBuf {
        self.path("volume")
    }

    /// Where the kernel's NBD driver finds its server, for a moment.
    pub(crate) fn nbd_socket(&self) -> PathBuf {
        if self.name.0.len() <= SOCKET_NAME_MAX {
            return self.path("nbd");
        }
        // No name has a ~.
        let mut hasher = DefaultHasher::new();
        self.name.0.hash(&mut hasher);
        self.dir.join(format!("~{:016x}.nbd", hasher.finish()))
    }

    /// How far the zones of a ublk device were answered.
    pub(crate) fn zones(&self) -> PathBuf {
        self.path("zones")
    }

    fn path(&self, kind: &str) -> PathBuf {
        self.dir.join(format!("{}.{kind}", self.name))
    }

    /// Whether a process holds the name.
    pub(crate) fn is_alive(&self) -> bool {
        lock::is_taken(&self.path("lock"))
    }

    /// What is served under the name, or was when its process ended without cleaning up.
    pub(crate) fn facts(&self) -> Option<Facts> {
        let path = self.path("json");
        let metadata = std::fs::metadata(&path).ok()?;
        let text = (metadata.len() <= FACTS_MAX).then(|| std::fs::read(path).ok())??;
        serde_json::from_slice(&text).ok()
    }

    /// Says what is served: the file is replaced as a whole.
    pub(crate) fn publish(&self, facts: &Facts) -> anyhow::Result<()> {
        let stamp = facts.check.as_ref().map(KeyCheck::stamp).transpose().context("cannot note the key")?;
        let facts = Facts { stamp, ..facts.clone() };
        let path = self.path("json");
        let write = || -> io::Result<()> {
            // Its owner's only, as temporary files are.
            let file = tempfile::Builder::new().prefix("~").tempfile_in(&self.dir)?;
            std::fs::write(file.path(), serde_json::to_vec_pretty(&facts)?)?;
            file.persist(&path)?;
            Ok(())
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }

    /// Removes what a process leaves behind, and the log as `log` says.
    fn remove(&self, log: Log) {
        // What is gone already is what was wanted.
        let _ = std::fs::remove_file(self.socket());
        let _ = std::fs::remove_file(self.nbd_socket());
        let _ = std::fs::remove_file(self.zones());
        let _ = std::fs::remove_file(self.path("json"));
        let is_empty = || std::fs::metadata(self.log()).is_ok_and(|metadata| metadata.len() == 0);
        if log == Log::Always || log == Log::IfEmpty && is_empty() {
            let _ = std::fs::remove_file(self.log());
        }
    }
}

/// A name that this process holds. Its files go with it.
pub(crate) struct Claim {
    files: Files,
    /// What a process that is gone left, and what waits for another one. It stays where this one does not get that far.
    left: Option<Facts>,
    stays: Option<Box<dyn FnOnce() -> bool>>,
    /// The log is left though nothing is in it yet.
    keeps_log: bool,
    _lock: Lock,
}

impl Claim {
    /// Takes the name, and cleans up after a process that is gone. What it left and others use, is an error.
    pub(crate) fn take(name: &Name) -> anyhow::Result<Self> {
        Self::take_unless(name, |_| false)
    }

    /// As [`Claim::take`], but what waits for a process is left as it is.
    pub(crate) fn take_over(name: &Name) -> anyhow::Result<Self> {
        Self::take_unless(name, |left| way::waiting(left).is_some())
    }

    fn take_unless(name: &Name, stays: impl FnOnce(&Facts) -> bool) -> anyhow::Result<Self> {
        let files = Files::of(name)?;
        let Some(lock) = lock::alone(&files.path("lock"))? else {
            return Err(Problem::NameInUse { name: name.to_string(), pid: files.facts().map(|facts| facts.pid) }.into());
        };
        let left = files.facts();
        let (left, gone) = match left {
            Some(left) if stays(&left) => (Some(left), None),
            other => (None, other),
        };
        if let Some(gone) = gone {
            way::clean_up(&gone, &files.volume())?;
        }
        if left.is_none() {
            files.remove(Log::Always);
        }
        Ok(Self { files, left, stays: None, keeps_log: false, _lock: lock })
    }

    pub(crate) fn name(&self) -> &Name {
        &self.files.name
    }

    pub(crate) fn files(&self) -> &Files {
        &self.files
    }

    /// What a process that is gone has left, and what waits for this one.
    pub(crate) fn left(&self) -> Option<&Facts> {
        self.left.as_ref()
    }

    /// Has the files left, too, where `stays` says at the end that what they tell of stays: without them nobody could take it
    /// back or away.
    pub(crate) fn leave_if(&mut self, stays: impl FnOnce() -> bool + 'static) {
        self.stays = Some(Box::new(stays));
    }

    /// Has the log left, since the process is yet to write there why it ended.
    pub(crate) fn keep_log(&mut self) {
        self.keeps_log = true;
    }

    /// As [`Files::publish`].
    pub(crate) fn publish(&mut self, facts: &Facts) -> anyhow::Result<()> {
        self.files.publish(facts)?;
        self.left = None;
        Ok(())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let stays = self.stays.take().is_some_and(|stays| stays());
        if self.left.is_none() && !stays {
            self.files.remove(if self.keeps_log { Log::Kept } else { Log::IfEmpty });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_device_mapper_keeps_as_they_are() {
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
    fn the_longest_name_has_an_address_of_its_own() {
        let socket = |name: &str| Files::within("/run/inlock".into(), &Name::new(name).unwrap()).nbd_socket();
        let (one, other) = ("a".repeat(127), "a".repeat(126) + "b");
        assert!(socket(&one).as_os_str().len() <= 107 && socket(&one) != socket(&other));
        assert_eq!(socket(&one), socket(&one));
        assert_eq!(socket("data"), PathBuf::from("/run/inlock/data.nbd"));
    }

    #[test]
    fn files_of_what_stays_are_left() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::within(dir.path().to_owned(), &Name::new("data").unwrap());
        for stays in [true, false] {
            let lock = lock::alone(&files.path("lock")).unwrap().unwrap();
            let mut claim = Claim { files: files.clone(), left: None, stays: None, keeps_log: false, _lock: lock };
            claim.leave_if(move || stays);
            std::fs::write(files.path("json"), "{}").unwrap();
            drop(claim);
            assert_eq!(files.path("json").exists(), stays);
        }
    }
}
