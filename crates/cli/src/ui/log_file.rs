//! The log of a background process, which is standard error: bounded, so that it does not fill the memory of `/run`.
//!
//! When it is full, it becomes `NAME.log.1` in place of an older one, and a new file begins. Renaming loses no line of
//! another writer: one that still has the old file continues there.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::OnceLock;

use inlock_serve::control::files::older_log;
use rustix::fs::{OFlags, Stat, fstat};

/// Length of a log without `--log-limit`, in bytes.
pub(crate) const DEFAULT_LIMIT: u64 = 1 << 20;

/// The log of this process. Unset: standard error is the user's.
static LOG: OnceLock<LogFile> = OnceLock::new();

/// A log.
pub(crate) struct LogFile {
    path: PathBuf,
    limit: u64,
}

impl LogFile {
    pub(crate) fn new(path: PathBuf, limit: u64) -> Self {
        Self { path, limit }
    }

    /// Opens the file to append. A symbolic link is refused: the file that it names is not a log.
    fn open(&self) -> io::Result<File> {
        let flags = OFlags::NOFOLLOW.bits().cast_signed();
        OpenOptions::new().create(true).append(true).mode(0o600).custom_flags(flags).open(&self.path)
    }

    /// Makes standard output and error this log, for the rest of the process.
    pub(crate) fn redirect(self) -> io::Result<()> {
        let file = self.open()?;
        rustix::stdio::dup2_stdout(file.as_fd())?;
        rustix::stdio::dup2_stderr(file.as_fd())?;
        let _ = LOG.set(self);
        Ok(())
    }

    /// Returns a new file in place of `current`, if that has no room for `len` more bytes.
    fn next(&self, current: &Stat, len: usize) -> io::Result<Option<File>> {
        let size = u64::try_from(current.st_size).unwrap_or(0);
        if size == 0 || size.saturating_add(len as u64) <= self.limit {
            return Ok(None);
        }
        let is_current = |found: std::fs::Metadata| (found.dev(), found.ino()) == (current.st_dev, current.st_ino);
        if self.path.symlink_metadata().is_ok_and(is_current) {
            std::fs::rename(&self.path, older_log(&self.path))?;
        }
        self.open().map(Some)
    }
}

/// Makes room in the log, if this process has one, before so many bytes are written. Returns whether they may be
/// written: if no new file can be made, the old one gets twice its limit. The caller holds the lock of standard error.
pub(super) fn make_room(len: usize) -> bool {
    let Some(log) = LOG.get() else { return true };
    let Ok(current) = fstat(rustix::stdio::stderr()) else { return true };
    match log.next(&current, len) {
        Ok(None) => true,
        Ok(Some(file)) => {
            let _ = rustix::stdio::dup2_stdout(file.as_fd());
            rustix::stdio::dup2_stderr(file.as_fd()).is_ok()
        }
        Err(_) => u64::try_from(current.st_size).unwrap_or(0) < log.limit.saturating_mul(2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    const LIMIT: u64 = 100;

    fn write(log: &LogFile, file: &mut File, line: &str) {
        if let Some(next) = log.next(&fstat(&*file).unwrap(), line.len()).unwrap() {
            *file = next;
        }
        file.write_all(line.as_bytes()).unwrap();
    }

    #[test]
    fn full_log_becomes_the_older_one_and_no_new_line_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.log");
        let log = LogFile::new(path.clone(), LIMIT);
        let mut file = log.open().unwrap();
        let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        let mut all = String::new();
        for number in 0..100 {
            let line = format!("line {number:04}\n");
            write(&log, &mut file, &line);
            all += &line;
            let kept = read(&older_log(&path)) + &read(&path);
            assert!(all.ends_with(&kept) && read(&path).ends_with(&line), "{number}: {kept}");
            let len = |path: &Path| path.metadata().map_or(0, |found| found.len());
            assert!(len(&path) <= LIMIT && len(&older_log(&path)) <= LIMIT, "{number}");
            assert!(number < 10 || len(&older_log(&path)) == LIMIT, "{number}: a file is filled");
        }
        // A line that is longer than the limit is whole, too.
        let long = "x".repeat(150);
        write(&log, &mut file, &long);
        assert_eq!(read(&path), long);
    }

    #[test]
    fn another_writer_loses_no_line_when_the_log_is_renamed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.log");
        let log = LogFile::new(path.clone(), LIMIT);
        let (mut file, mut other) = (log.open().unwrap(), log.open().unwrap());
        write(&log, &mut file, &"x".repeat(90));
        write(&log, &mut file, "0123456789+");
        other.write_all(b"late").unwrap();
        assert_eq!(std::fs::read_to_string(older_log(&path)).unwrap(), "x".repeat(90) + "late");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "0123456789+");
    }

    #[test]
    fn links_and_foreign_files_are_not_followed_renamed_or_written() {
        let dir = tempfile::tempdir().unwrap();
        let (path, victim) = (dir.path().join("x.log"), dir.path().join("victim"));
        std::fs::write(&victim, "precious").unwrap();
        let log = LogFile::new(path.clone(), LIMIT);
        let mut file = log.open().unwrap();
        file.write_all(&[b'x'; 95]).unwrap();
        // The older log is a link: it is replaced, and its target is not.
        symlink(&victim, older_log(&path)).unwrap();
        write(&log, &mut file, "0123456789");
        assert!(!older_log(&path).is_symlink());
        // The log itself is moved away, and a link is in its place.
        file.write_all(&[b'y'; 95]).unwrap();
        std::fs::rename(&path, dir.path().join("moved")).unwrap();
        symlink(&victim, &path).unwrap();
        assert!(log.next(&fstat(&file).unwrap(), 10).is_err() && log.open().is_err());
        assert!(path.is_symlink());
        // Another program has moved it away: a new file begins.
        std::fs::remove_file(&path).unwrap();
        write(&log, &mut file, "0123456789");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "0123456789");
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
        assert_eq!(std::fs::read(older_log(&path)).unwrap(), [b'x'; 95]);
    }
}
