//! Locks on an image itself, which the processes of all users see: an open file description lock for a range of it.
//!
//! Byte `n` is locked at `BASE + n`, beyond any byte that a file can have, since other programs lock bytes at the start
//! of images for their own purposes. The kernel releases a lock with the last descriptor of the description.

use std::fs::File;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use crate::values::Range;

/// Half of the largest offset: no file system has files of this length.
const BASE: u64 = 1 << 62;

/// Sharing of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// With other readers.
    Shared,
    /// For a single writer.
    Exclusive,
}

/// A lock, held until dropped.
#[derive(Debug)]
pub(super) struct RangeLock {
    file: File,
    range: Range,
}

/// Result of an attempt.
#[derive(Debug)]
pub(super) enum Attempt {
    Taken(RangeLock),
    /// Another process holds a conflicting lock.
    Busy,
    /// The file system has no such locks.
    Unsupported,
}

/// Locks a range of `file`, which is open for writing if the lock is exclusive. Retries for `timeout`.
pub(super) fn take(file: File, range: Range, mode: Mode, timeout: Duration) -> anyhow::Result<Attempt> {
    let kind = match mode {
        Mode::Shared => libc::F_RDLCK,
        Mode::Exclusive => libc::F_WRLCK,
    };
    let Some(lock) = describe(kind, range) else { return Ok(Attempt::Unsupported) };
    let deadline = Instant::now() + timeout;
    loop {
        match fcntl(&file, FcntlArg::F_OFD_SETLK(&lock)) {
            Ok(_) => return Ok(Attempt::Taken(RangeLock { file, range })),
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN | Errno::EACCES) if Instant::now() >= deadline => return Ok(Attempt::Busy),
            Err(Errno::EAGAIN | Errno::EACCES) => thread::sleep(Duration::from_millis(20)),
            Err(Errno::ENOLCK | Errno::ENOSYS | Errno::EOPNOTSUPP | Errno::EINVAL | Errno::EOVERFLOW) => {
                return Ok(Attempt::Unsupported);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Describes a lock. `None`: the offsets of this system are too short.
fn describe(kind: i32, range: Range) -> Option<libc::flock> {
    let start = BASE.checked_add(range.offset)?;
    // 0 means to the end of the file; a length beyond the last offset would be refused.
    let len = range.len.filter(|len| *len < BASE.saturating_sub(range.offset)).unwrap_or(0);
    Some(libc::flock {
        l_type: kind.try_into().ok()?,
        l_whence: libc::SEEK_SET.try_into().ok()?,
        l_start: start.try_into().ok()?,
        l_len: len.try_into().ok()?,
        l_pid: 0,
    })
}

impl Drop for RangeLock {
    fn drop(&mut self) {
        // The description may be shared with the device, which stays open.
        if let Some(lock) = describe(libc::F_UNLCK, self.range) {
            let _ = fcntl(&self.file, FcntlArg::F_OFD_SETLK(&lock));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(path: &std::path::Path, start: u64, len: u64, mode: Mode) -> Attempt {
        let file = File::options().read(true).write(true).open(path).unwrap();
        take(file, Range { offset: start, len: Some(len).filter(|len| *len > 0) }, mode, Duration::ZERO).unwrap()
    }

    #[test]
    fn overlapping_ranges_exclude_each_other() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let held = attempt(file.path(), 100, 50, Mode::Exclusive);
        assert!(matches!(held, Attempt::Taken(_)));
        for (start, len) in [(0, 0), (149, 1), (0, 101), (100, 50), (120, 0), (0, u64::MAX)] {
            for mode in [Mode::Shared, Mode::Exclusive] {
                assert!(matches!(attempt(file.path(), start, len, mode), Attempt::Busy), "{start} {len}");
            }
        }
        for (start, len) in [(0, 100), (150, 0), (150, u64::MAX)] {
            assert!(matches!(attempt(file.path(), start, len, Mode::Exclusive), Attempt::Taken(_)), "{start} {len}");
        }
        drop(held);
        let readers = [0, 1].map(|_| attempt(file.path(), 0, 0, Mode::Shared));
        assert!(readers.iter().all(|reader| matches!(reader, Attempt::Taken(_))));
        assert!(matches!(attempt(file.path(), 7, 1, Mode::Exclusive), Attempt::Busy));
        drop(readers);
        assert!(matches!(attempt(file.path(), 7, 1, Mode::Exclusive), Attempt::Taken(_)));
    }
}
