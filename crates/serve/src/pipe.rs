//! Passing keys between processes: in a pipe whose reading end is sent to the other process.
//!
//! The contents of a pipe are in kernel memory, which is never swapped, and are gone when they have been read. The
//! receiver reads into memory that is locked and wiped.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use inlock_volume::VolumeKey;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fcntl_setfl, fstat};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use zeroize::Zeroizing;

/// Time that the sender may take to fill a pipe.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes that are read at once.
const PIECE: usize = 1 << 20;

/// Returns a pipe that contains `secret`, with its writing end closed.
pub fn filled(secret: &[u8]) -> io::Result<OwnedFd> {
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

/// Returns a pipe into which a thread writes `text`, which is no secret and may be long. The thread ends with the
/// reader.
pub fn streamed(text: Vec<u8>) -> io::Result<OwnedFd> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    std::thread::Builder::new().name("inlock-pipe".into()).spawn(move || {
        // The receiver says what is wrong.
        let _ = File::from(writer).write_all(&text);
    })?;
    Ok(reader)
}

/// Reads a key from a pipe.
pub fn read_key(pipe: &OwnedFd) -> io::Result<VolumeKey> {
    let mut room = VolumeKey::zeroed(VolumeKey::MAX_LEN + 1);
    let len = read(pipe, room.as_mut_bytes())?;
    match len {
        0..=VolumeKey::MAX_LEN => Ok(VolumeKey::new(&room.as_bytes()[..len])),
        _ => Err(io::Error::other(format!("a key has at most {} bytes", VolumeKey::MAX_LEN))),
    }
}

/// Reads at most `max` bytes of text from a pipe.
pub fn read_text(pipe: &OwnedFd, max: usize) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut room = Zeroizing::new(vec![0; max + 1]);
    let len = read(pipe, &mut room)?;
    if len > max {
        return Err(io::Error::other(format!("it has more than {max} bytes")));
    }
    room.truncate(len);
    Ok(room)
}

/// Reads at most `max` bytes that are no secret from a pipe.
pub fn read_long(pipe: &OwnedFd, max: usize) -> io::Result<Vec<u8>> {
    let (mut all, mut room) = (Vec::new(), vec![0; PIECE]);
    loop {
        let len = read(pipe, &mut room)?;
        all.extend_from_slice(&room[..len]);
        if all.len() > max {
            return Err(io::Error::other(format!("it has more than {max} bytes")));
        }
        if len < room.len() {
            return Ok(all);
        }
    }
}

/// Reads to the end, or until `room` is full. Blocks for at most [`READ_TIMEOUT`], for any kind of descriptor.
fn read(pipe: &OwnedFd, room: &mut [u8]) -> io::Result<usize> {
    // Other descriptors may block although poll reports them as readable, and some ignore O_NONBLOCK.
    if FileType::from_raw_mode(fstat(pipe)?.st_mode) != FileType::Fifo {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the descriptor is not a pipe"));
    }
    // Another process with this pipe may read the data that poll has reported.
    fcntl_setfl(pipe, fcntl_getfl(pipe)? | OFlags::NONBLOCK)?;
    let deadline = Instant::now() + READ_TIMEOUT;
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
    fn key_arrives_as_sent() {
        let longest = [7; VolumeKey::MAX_LEN];
        for key in [&b""[..], b"k", &longest] {
            assert_eq!(read_key(&filled(key).unwrap()).unwrap().as_bytes(), key);
        }
        assert!(read_key(&filled(&[7; VolumeKey::MAX_LEN + 1]).unwrap()).is_err());
    }

    #[test]
    fn long_text_arrives_as_sent() {
        for len in [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE] {
            let text: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let pipe = || streamed(text.clone()).unwrap();
            assert!(read_long(&pipe(), len).unwrap() == text, "{len}");
            assert!(len == 0 || read_long(&pipe(), len - 1).is_err(), "{len}");
        }
    }

    #[test]
    fn text_over_limit_is_refused_by_both_sides() {
        assert_eq!(&**read_text(&filled(b"line").unwrap(), 4).unwrap(), b"line");
        assert!(read_text(&filled(b"line").unwrap(), 3).is_err());
        assert!(filled(&vec![0; 8 << 20]).is_err());
    }
}
