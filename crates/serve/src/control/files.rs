//! Files of a running volume in the run directory.
//!
//! The process of a volume holds `NAME.lock` as long as it lives: the lock alone decides whether a name is in use.
//! `NAME.json` is the state file with the [`RuntimeInfo`], `NAME.sock` the control socket, `NAME.log` the log of a
//! background process.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use inlock_volume::Printable;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::info::RuntimeInfo;
use super::name::Name;
use super::state_file::{self, SET_ASIDE, StateFile, Unusable};
use crate::error::{Error, Result, ResultExt};
use crate::run_dir::run_dir;
use inlock_open::key_check::KeyCheck;
use inlock_open::lock;

/// Maximum length of a name in the path of a socket: a path has at most 107 bytes, and a name may have more.
const SOCKET_NAME_MAX: usize = 32;

/// Whether a log is removed with the other files.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Log {
    Always,
    IfEmpty,
    Kept,
}

/// Returns the path of the file that a full log becomes.
pub fn older_log(log: &Path) -> PathBuf {
    let mut older = log.as_os_str().to_owned();
    older.push(".1");
    older.into()
}

/// Files of a name.
#[derive(Clone, Debug)]
pub struct Files {
    dir: PathBuf,
    name: Name,
}

impl Files {
    /// Returns the files of `name`, which may not exist.
    pub fn of(name: &Name) -> Result<Self> {
        Ok(Self::within(run_dir()?, name))
    }

    /// Returns the files of `name` in another directory.
    pub(crate) fn within(dir: PathBuf, name: &Name) -> Self {
        Self { dir, name: name.clone() }
    }

    /// Returns the files of all names with a state file, sorted.
    pub fn all() -> Result<Vec<Self>> {
        Self::all_in(run_dir()?)
    }

    fn all_in(dir: PathBuf) -> Result<Vec<Self>> {
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

    /// Returns the files of the volume that is attached as this device or file.
    pub fn of_node(path: &Path) -> Result<Option<Self>> {
        let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let is_node = |files: &Self| files.state().node() == Some(&real);
        Ok(Self::all()?.into_iter().find(is_node))
    }

    /// Returns the name.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Returns the path of the control socket.
    pub fn socket(&self) -> PathBuf {
        self.path("sock")
    }

    /// Returns the path of the log of a background process.
    pub fn log(&self) -> PathBuf {
        self.path("log")
    }

    /// Returns the path of a volume that is attached as a file.
    pub fn volume(&self) -> PathBuf {
        self.path("volume")
    }

    /// Returns the path of the socket that is handed to the kernel's NBD driver.
    pub fn nbd_socket(&self) -> PathBuf {
        if self.name.as_str().len() <= SOCKET_NAME_MAX {
            return self.path("nbd");
        }
        // `~` cannot occur in a name.
        let mut hasher = DefaultHasher::new();
        self.name.as_str().hash(&mut hasher);
        self.dir.join(format!("~{:016x}.nbd", hasher.finish()))
    }

    /// Returns the path of the completion log of a zoned ublk device.
    pub fn completion_log(&self) -> PathBuf {
        self.path("zones")
    }

    pub(crate) fn path(&self, kind: &str) -> PathBuf {
        self.dir.join(format!("{}.{kind}", self.name))
    }

    /// Whether a process holds the name.
    pub fn is_alive(&self) -> bool {
        lock::is_taken(&self.path("lock"))
    }

    /// Reads the state file, which a process that died has left behind.
    pub fn state(&self) -> StateFile {
        StateFile::read(&self.path("json"), &self.name)
    }

    /// Returns the error for the state file.
    pub fn error_of(&self, unusable: &Unusable) -> Error {
        unusable.error(&self.path("json"), &self.name)
    }

    /// Renames the state file. Returns its new path. Fails if another file was set aside before, which may be needed.
    pub(crate) fn set_aside(&self) -> Result<PathBuf> {
        let (path, aside) = (self.path("json"), self.path(SET_ASIDE));
        match renameat_with(CWD, &path, CWD, &aside, RenameFlags::NOREPLACE) {
            Ok(()) => Ok(aside),
            Err(error) => Err(Error::SetAside { path, aside, cause: error.into() }),
        }
    }

    /// Replaces the state file atomically.
    pub fn publish(&self, info: &RuntimeInfo) -> Result<()> {
        let fingerprint = info.check.as_ref().map(KeyCheck::fingerprint).transpose();
        let key_fingerprint = fingerprint.context("cannot compute the key fingerprint")?;
        let info = RuntimeInfo { key_fingerprint, ..info.clone() };
        let path = self.path("json");
        let write = || -> io::Result<()> {
            // Temporary files are for their owner only.
            let new = self.new_name();
            let _ = std::fs::remove_file(self.dir.join(&new));
            let mut file = tempfile::Builder::new().rand_bytes(0).prefix(&new).tempfile_in(&self.dir)?;
            let text = state_file::text(&info, &self.volume())?;
            write!(file, "{}", Printable::json(&text))?;
            // Otherwise it may be empty after a power cut, if the directory is not on tmpfs.
            file.as_file().sync_all()?;
            file.persist(&path)?;
            Ok(())
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }

    /// Returns the name of the file that replaces the state file. `~` cannot occur in the name of a volume.
    fn new_name(&self) -> String {
        format!("~{}.json", self.name)
    }

    /// Removes the files of a process, and the log according to `log`.
    pub(crate) fn remove(&self, log: Log) {
        // Some of them may not exist.
        let _ = std::fs::remove_file(self.socket());
        let _ = std::fs::remove_file(self.nbd_socket());
        let _ = std::fs::remove_file(self.completion_log());
        let _ = std::fs::remove_file(self.path("json"));
        let _ = std::fs::remove_file(self.dir.join(self.new_name()));
        let is_empty = || std::fs::metadata(self.log()).is_ok_and(|metadata| metadata.len() == 0);
        if log == Log::Always || log == Log::IfEmpty && is_empty() {
            let _ = std::fs::remove_file(self.log());
            let _ = std::fs::remove_file(older_log(&self.log()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_name_has_own_socket_path() {
        let socket = |name: &str| Files::within("/run/inlock".into(), &Name::new(name).unwrap()).nbd_socket();
        let (one, other) = ("a".repeat(127), "a".repeat(126) + "b");
        assert!(socket(&one).as_os_str().len() <= 107 && socket(&one) != socket(&other));
        assert_eq!(socket(&one), socket(&one));
        assert_eq!(socket("data"), PathBuf::from("/run/inlock/data.nbd"));
        let border = "a".repeat(SOCKET_NAME_MAX);
        assert_eq!(socket(&border), PathBuf::from(format!("/run/inlock/{border}.nbd")));
        assert!(socket(&(border + "a")).to_str().unwrap().starts_with("/run/inlock/~"));
    }

    #[test]
    fn names_with_a_state_file_are_sorted() {
        let dir = tempfile::tempdir().unwrap();
        let names = ["m", "b", "z", "a", "y", "c"];
        for file in names.map(|name| format!("{name}.json")).iter().map(String::as_str).chain(["d.lock", "~e.json"]) {
            std::fs::write(dir.path().join(file), "").unwrap();
        }
        let all = Files::all_in(dir.path().to_owned()).unwrap();
        let found: Vec<&str> = all.iter().map(|files| files.name().as_str()).collect();
        assert_eq!(found, ["a", "b", "c", "m", "y", "z"]);
    }

    #[test]
    fn state_file_that_cannot_be_replaced_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::within(dir.path().to_owned(), &Name::new("data").unwrap());
        let info = serde_json::from_value(serde_json::json!({
            "name": "data", "pid": 1, "started": 0, "type": "RAW", "device": "/dev/sdx", "segments": [],
            "read_only": false, "allow_discards": false, "offload": "none", "via": "nbd", "ring": "sync", "threads": 1
        }));
        let info: RuntimeInfo = info.unwrap();
        files.publish(&info).unwrap();
        assert!(matches!(files.state(), StateFile::Whole(found) if found.name == "data"));
        std::fs::remove_file(files.path("json")).unwrap();
        std::fs::create_dir(files.path("json")).unwrap();
        files.publish(&info).unwrap_err();
    }

    #[test]
    fn log_is_removed_with_the_other_files_unless_it_has_lines_or_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::within(dir.path().to_owned(), &Name::new("data").unwrap());
        assert_eq!(older_log(&files.log()), dir.path().join("data.log.1"));
        for (log, text, is_left) in [
            (Log::Always, "line", false),
            (Log::IfEmpty, "line", true),
            (Log::IfEmpty, "", false),
            (Log::Kept, "", true),
        ] {
            for path in [files.socket(), files.nbd_socket(), files.completion_log(), files.path("json")] {
                std::fs::write(path, "").unwrap();
            }
            std::fs::write(files.log(), text).unwrap();
            std::fs::write(older_log(&files.log()), "older").unwrap();
            files.remove(log);
            let left = std::fs::read_dir(dir.path()).unwrap().count();
            assert_eq!(left, if is_left { 2 } else { 0 }, "{text:?}");
        }
    }
}
