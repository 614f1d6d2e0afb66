//! How a key gets from one process to another: through a pipe whose reading end is handed over.
//!
//! What is in a pipe is the kernel's own memory: it is never swapped, it is in no file, and it is gone when it was read. The
//! receiver reads straight into memory that is locked and wiped.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use inlock_volume::VolumeKey;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fcntl_setfl, fstat};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use zeroize::Zeroizing;

/// How long whoever hands over a pipe may take to fill it.
const PATIENCE: Duration = Duration::from_secs(5);

/// A pipe with `secret` in it, and nobody to write more.
pub(crate) fn filled(secret: &[u8]) -> io::Result<OwnedFd> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let mut rest = secret;
    while !rest.is_empty() {
        match rustix::io::write(&writer, rest) {
            Ok(written) => rest = &rest[written..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Err(io::Error::other("it is too long for a pipe")),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(reader)
}

/// The key in a pipe.
pub(crate) fn read_key(pipe: &OwnedFd) -> io::Result<VolumeKey> {
    let mut room = VolumeKey::zeroed(VolumeKey::MAX_LEN + 1);
    let len = read(pipe, room.as_mut_bytes())?;
    match len {
        0..=VolumeKey::MAX_LEN => Ok(VolumeKey::new(&room.as_bytes()[..len])),
        _ => Err(io::Error::other(format!("a key has at most {} bytes", VolumeKey::MAX_LEN))),
    }
}

/// The text in a pipe, of at most `max` bytes.
pub(crate) fn read_text(pipe: &OwnedFd, max: usize) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut room = Zeroizing::new(vec![0; max + 1]);
    let len = read(pipe, &mut room)?;
    if len > max {
        return Err(io::Error::other(format!("it has more than {max} bytes")));
    }
    room.truncate(len);
    Ok(room)
}

/// To the end, or until `room` is full. It never waits for longer than [`PATIENCE`], whatever was handed over.
fn read(pipe: &OwnedFd, room: &mut [u8]) -> io::Result<usize> {
    // Of other descriptors a read may wait although poll calls them readable, and some do not take the flag.
    if FileType::from_raw_mode(fstat(pipe)?.st_mode) != FileType::Fifo {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "what was handed over is not a pipe"));
    }
    // Another process that has this pipe open may take what poll has seen.
    fcntl_setfl(pipe, fcntl_getfl(pipe)? | OFlags::NONBLOCK)?;
    let deadline = Instant::now() + PATIENCE;
    let mut len = 0;
    while len < room.len() {
        wait(pipe.as_fd(), deadline)?;
        match rustix::io::read(pipe, &mut room[len..]) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(len)
}

fn wait(pipe: BorrowedFd<'_>, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    let left = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
    match poll(&mut [PollFd::from_borrowed_fd(pipe, PollFlags::IN)], Some(&left)) {
        Ok(0) => Err(io::ErrorKind::TimedOut.into()),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_arrives_as_it_was_sent() {
        let longest = [7; VolumeKey::MAX_LEN];
        for key in [&b""[..], b"k", &longest] {
            assert_eq!(read_key(&filled(key).unwrap()).unwrap().as_bytes(), key);
        }
        assert!(read_key(&filled(&[7; VolumeKey::MAX_LEN + 1]).unwrap()).is_err());
    }

    #[test]
    fn what_is_too_long_is_refused_on_either_side() {
        assert_eq!(&**read_text(&filled(b"line").unwrap(), 4).unwrap(), b"line");
        assert!(read_text(&filled(b"line").unwrap(), 3).is_err());
        assert!(filled(&vec![0; 8 << 20]).is_err());
    }
}
