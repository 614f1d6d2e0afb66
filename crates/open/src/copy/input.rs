//! Plaintext that is copied into a volume.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Display, Path, PathBuf};

use inlock_engine::BlockingDevice;

use crate::backing;
use crate::error::{Error, ErrorKind, Result, ResultExt as _};

/// Source of the plaintext. Holes of a file are not read.
pub struct Input {
    from: Box<dyn ReadAhead>,
    name: PathBuf,
    /// In bytes. `None`: unknown before the end.
    len: Option<u64>,
}

/// Next part of the input.
enum Piece {
    /// Number of bytes read into the buffer.
    Data(usize),
    /// Number of zeroes, at most the length of the buffer.
    Hole(u64),
    /// End of the input, or of the buffer.
    End,
}

trait ReadAhead {
    fn next(&mut self, buffer: &mut [u8]) -> io::Result<Piece>;
}

impl Input {
    /// Opens `path`, or standard input, which must be none of `images`.
    pub fn open(path: Option<&Path>, images: &[&Path]) -> Result<Self> {
        // The image may be standard input, too.
        let read = path.unwrap_or(Path::new("/proc/self/fd/0"));
        if images.iter().any(|image| backing::overlap(read, image)) {
            return Err(Error::new(ErrorKind::InputIsOutput, "The input file is the image itself."));
        }
        let Some(path) = path else {
            return Ok(Self { from: Box::new(Stream(io::stdin().lock())), name: "standard input".into(), len: None });
        };
        let cannot = || format!("cannot read {}", path.display());
        let mut file = File::open(path).with_context(cannot)?;
        let metadata = file.metadata().with_context(cannot)?;
        if metadata.is_dir() {
            return Err(Error::new(ErrorKind::InputIsDirectory, format!("{} is a directory.", path.display())));
        }
        if !metadata.is_file() && !metadata.file_type().is_block_device() {
            return Ok(Self { from: Box::new(Stream(file)), name: path.to_owned(), len: None });
        }
        let len = file.seek(SeekFrom::End(0)).with_context(cannot)?;
        let sparse = metadata.is_file();
        Ok(Self { from: Box::new(Blocks { file, at: 0, len, sparse }), name: path.to_owned(), len: Some(len) })
    }

    /// Returns its length in bytes, `None` if it is not known before the end.
    pub fn known_len(&self) -> Option<u64> {
        self.len
    }

    /// Refuses one that does not fit `room` bytes, if its length is known. `exact`: one that is shorter, too.
    pub(super) fn check_len(&self, room: u64, exact: bool) -> Result<()> {
        let Some(len) = self.len else { return Ok(()) };
        let name = self.name.display();
        if len > room {
            let text = format!("{name} has {len} bytes, but the volume has only {room}. Nothing was written.");
            return Err(Error::new(ErrorKind::InputTooLong, text));
        }
        if exact && len < room {
            let text = format!("{name} has {len} bytes, but the range has {room}. Nothing was written.");
            return Err(Error::new(ErrorKind::InputTooShort, text));
        }
        Ok(())
    }

    fn next(&mut self, buffer: &mut [u8]) -> Result<Piece> {
        if buffer.is_empty() {
            return Ok(Piece::End);
        }
        self.from.next(buffer).with_context(|| format!("cannot read {}", self.name.display()))
    }

    /// Writes the next part, at most the length of the buffer, at `at`, and returns its length; 0 at the end.
    pub(super) fn copy_to(
        &mut self,
        device: &BlockingDevice,
        buffer: &mut [u8],
        at: u64,
        image: &Display<'_>,
    ) -> Result<u64> {
        let written = match self.next(buffer)? {
            Piece::End => return Ok(0),
            Piece::Hole(len) => device.write_zeroes(at, len).map(|()| len),
            Piece::Data(len) => device.write_at(&buffer[..len], at).map(|()| len as u64),
        };
        written.with_context(|| format!("cannot write at {at} of {image}"))
    }

    /// Fills the buffer, with zeroes for holes, and returns the number of bytes.
    pub(super) fn fill(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            let len = match self.next(&mut buffer[filled..])? {
                Piece::End => break,
                Piece::Data(len) => len,
                Piece::Hole(len) => {
                    let len = len as usize;
                    buffer[filled..filled + len].fill(0);
                    len
                }
            };
            filled += len;
        }
        Ok(filled)
    }

    /// Refuses a stream with more data than were written.
    pub(super) fn check_end(&mut self, done: u64) -> Result<()> {
        match self.next(&mut [0])? {
            Piece::End => Ok(()),
            _ => {
                let name = self.name.display();
                let text =
                    format!("{name} is longer than the volume or the range; its first {done} bytes were written.");
                Err(Error::new(ErrorKind::InputGoesOn, text))
            }
        }
    }
}

/// A pipe, a socket, a character device.
struct Stream<R>(R);

impl<R: Read> ReadAhead for Stream<R> {
    /// Fills the buffer unless the stream ends, so that whole data units are written.
    fn next(&mut self, buffer: &mut [u8]) -> io::Result<Piece> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.0.read(&mut buffer[filled..]) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(if filled == 0 { Piece::End } else { Piece::Data(filled) })
    }
}

/// A regular file or a block device.
struct Blocks {
    file: File,
    at: u64,
    len: u64,
    sparse: bool,
}

impl ReadAhead for Blocks {
    fn next(&mut self, buffer: &mut [u8]) -> io::Result<Piece> {
        let left = self.len - self.at;
        if left == 0 {
            return Ok(Piece::End);
        }
        let want = left.min(buffer.len() as u64);
        if self.sparse {
            let data = match rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Data(self.at)) {
                Ok(data) => data,
                Err(rustix::io::Errno::NXIO) => self.len,
                // The file system does not support holes.
                Err(_) => self.at,
            };
            if data > self.at {
                let hole = (data - self.at).min(want);
                self.at += hole;
                return Ok(Piece::Hole(hole));
            }
        }
        self.file.read_exact_at(&mut buffer[..want as usize], self.at)?;
        self.at += want;
        Ok(Piece::Data(want as usize))
    }
}
