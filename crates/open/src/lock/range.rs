//! Locks on an image itself, which the processes of all users see: an open file description lock for a range of it.
//!
//! Byte `n` of an image is locked at `IMAGE + n`, beyond any byte that a file can have, since other programs lock bytes
//! at the start of images for their own purposes; and at `PARTS + n` among volumes that share an image. The kernel
//! releases a lock with the last descriptor of the description.

use crate::error::Result;
use std::fs::File;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use crate::range::Range;

/// Half of the largest offset: no file system has files of this length.
const IMAGE: u64 = 1 << 62;

/// A quarter of the largest offset. What is locked from there on ends before `IMAGE`.
const PARTS: u64 = 1 << 61;

/// Sharing of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// With other readers.
    Shared,
    /// For a single writer.
    Exclusive,
}

/// Bytes that are locked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bytes {
    start: u64,
    len: Option<u64>,
}

impl Bytes {
    /// Returns a range of an image.
    pub(super) fn of_image(range: Range) -> Self {
        Self { start: IMAGE.saturating_add(range.offset), len: range.len }
    }

    /// Returns a range among the parts of an image that volumes share.
    pub(super) fn of_parts(range: Range) -> Self {
        let start = PARTS.saturating_add(range.offset).min(IMAGE - 1);
        let room = IMAGE - start;
        Self { start, len: Some(range.len.map_or(room, |len| len.min(room))) }
    }
}

/// A lock, held until dropped.
#[derive(Debug)]
pub(super) struct RangeLock {
    file: File,
    bytes: Bytes,
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

fn kind_of(mode: Mode) -> i32 {
    match mode {
        Mode::Shared => libc::F_RDLCK,
        Mode::Exclusive => libc::F_WRLCK,
    }
}

/// Whether no other process holds a conflicting lock. Without locks there is no conflict.
pub(super) fn is_free(file: &File, bytes: Bytes, mode: Mode) -> bool {
    let Some(mut lock) = describe(kind_of(mode), bytes) else { return true };
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock)).is_err() || i32::from(lock.l_type) == libc::F_UNLCK
}

/// Locks bytes of `file`, which is open for writing if the lock is exclusive. Retries for `timeout`.
pub(super) fn take(file: File, bytes: Bytes, mode: Mode, timeout: Duration) -> Result<Attempt> {
    let Some(lock) = describe(kind_of(mode), bytes) else { return Ok(Attempt::Unsupported) };
    let deadline = Instant::now() + timeout;
    loop {
        match fcntl(&file, FcntlArg::F_OFD_SETLK(&lock)) {
            Ok(_) => return Ok(Attempt::Taken(RangeLock { file, bytes })),
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
fn describe(kind: i32, bytes: Bytes) -> Option<libc::flock> {
    let start = bytes.start;
    // 0 means to the end of the file; a length beyond the last offset would be refused.
    let len = bytes.len.filter(|len| *len < (2 * IMAGE).saturating_sub(start)).unwrap_or(0);
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
        if let Some(lock) = describe(libc::F_UNLCK, self.bytes) {
            let _ = fcntl(&self.file, FcntlArg::F_OFD_SETLK(&lock));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(path: &std::path::Path, start: u64, len: u64, mode: Mode) -> Attempt {
        let file = File::options().read(true).write(true).open(path).unwrap();
        let range = Range { offset: start, len: Some(len).filter(|len| *len > 0) };
        take(file, Bytes::of_image(range), mode, Duration::ZERO).unwrap()
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
