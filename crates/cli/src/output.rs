//! Where `export` writes to: a file, a block device, or a stream.
//!
//! A file or block device that exists is taken before a passphrase is asked for: a block device exclusively, and both
//! with the locks of a volume. Nothing of it changes before [`Output::begin`]. [`Output::finish`] returns when all is
//! on stable storage.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, SeekFrom, seek};

use crate::copy::{self, CHUNK};
use crate::device::Device;
use crate::durable;
use crate::exit::{Problem, cannot_open};
use crate::lock::{self, DeviceLock, Mode};

/// An output, and what keeps others away from it.
pub(crate) struct Output {
    name: PathBuf,
    /// `None`: opened when it begins, since it does not exist or cannot be taken.
    file: Option<File>,
    kind: Kind,
    /// Whether it did not exist before.
    is_new: bool,
    /// A block device, opened exclusively.
    alone: Option<File>,
    lock: Option<DeviceLock>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A regular file: zeroes are left out. With the offset that comes next.
    Sparse(u64),
    /// A file or a block device that takes every byte in order.
    Storage,
    /// A pipe, a socket, a character device.
    Stream,
}

impl Output {
    /// Takes what is at `path`, or standard output, from others. A path where nothing is stays as it is.
    pub(crate) fn take(path: Option<&Path>) -> anyhow::Result<Self> {
        let name = path.map_or_else(|| "standard output".into(), Path::to_owned);
        let mut output = Self { name, file: None, kind: Kind::Stream, is_new: false, alone: None, lock: None };
        let Some(path) = path else {
            // Not through the library's buffer, which looks for ends of lines.
            let out = io::stdout().as_fd().try_clone_to_owned().map_err(|error| output.cannot_write(error))?;
            output.use_file(out.into())?;
            if output.kind != Kind::Stream {
                // The shell may have opened it to go on at its end.
                output.kind = Kind::Storage;
            }
            return Ok(output);
        };
        if std::fs::metadata(path).is_ok_and(|found| found.is_file() || found.file_type().is_block_device()) {
            output.open()?;
        }
        Ok(output)
    }

    fn cannot_write(&self, error: io::Error) -> anyhow::Error {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Problem::OutputClosed.into(),
            io::ErrorKind::ResourceBusy => cannot_open(&self.name, false)(error),
            _ => anyhow::Error::from(error).context(format!("cannot write {}", self.name.display())),
        }
    }

    /// Opens the file, and makes it where nothing is.
    fn open(&mut self) -> anyhow::Result<()> {
        self.is_new = !self.name.exists();
        // Plaintext is for the owner's eyes; an existing file keeps its own mode.
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&self.name);
        self.use_file(file.map_err(|error| self.cannot_write(error))?)
    }

    /// Takes what was opened, if it is storage.
    fn use_file(&mut self, file: File) -> anyhow::Result<()> {
        let metadata = file.metadata().map_err(|error| self.cannot_write(error))?;
        if metadata.file_type().is_block_device() {
            self.kind = Kind::Storage;
            // One that is mounted, or otherwise in use, cannot be had.
            let flags = OFlags::EXCL.bits().cast_signed();
            let again = format!("/proc/self/fd/{}", file.as_raw_fd());
            let alone = OpenOptions::new().write(true).custom_flags(flags).open(again);
            self.alone = Some(alone.map_err(|error| self.cannot_write(error))?);
        } else if metadata.is_file() {
            self.kind = Kind::Sparse(0);
        }
        let device = Device { path: self.name.clone(), file, len: 0, metadata, zones: None };
        if self.kind != Kind::Stream {
            self.lock = Some(lock::whole_device(&device, Mode::Exclusive)?);
        }
        self.file = Some(device.file);
        Ok(())
    }

    /// Makes it ready for `len` bytes: what it held before goes.
    pub(crate) fn begin(&mut self, len: u64) -> anyhow::Result<()> {
        if self.file.is_none() {
            self.open()?;
        }
        let Some(file) = &self.file else { return Ok(()) };
        if matches!(self.kind, Kind::Sparse(_)) {
            file.set_len(0).and_then(|()| file.set_len(len)).map_err(|error| self.cannot_write(error))?;
        }
        if self.alone.is_some() {
            let at = seek(file, SeekFrom::Current(0));
            let room = at.and_then(|at| {
                let end = seek(file, SeekFrom::End(0))?;
                seek(file, SeekFrom::Start(at))?;
                Ok(end.saturating_sub(at))
            });
            let room = room.map_err(|error| self.cannot_write(error.into()))?;
            if room < len {
                return Err(Problem::refused(
                    format!("{} has {room} bytes, and {len} are to be written.", self.name.display()),
                    "--range takes a part of the volume",
                ));
            }
        }
        Ok(())
    }

    /// Writes what comes next.
    pub(crate) fn write(&mut self, data: &[u8]) -> anyhow::Result<()> {
        let Some(mut file) = self.file.as_ref() else { return Ok(()) };
        let written = match self.kind {
            Kind::Sparse(at) => {
                let mut full = copy::runs(data).filter(|(_, _, zero)| !zero);
                full.try_for_each(|(offset, bytes, _)| file.write_all_at(bytes, at + offset as u64))
            }
            Kind::Storage | Kind::Stream => file.write_all(data),
        };
        written.map_err(|error| self.cannot_write(error))?;
        self.advance(data.len() as u64);
        Ok(())
    }

    /// Writes `len` zeroes.
    pub(crate) fn zeroes(&mut self, mut len: u64) -> anyhow::Result<()> {
        if matches!(self.kind, Kind::Sparse(_)) {
            self.advance(len);
            return Ok(());
        }
        let zeroes = vec![0; CHUNK];
        while len > 0 {
            let step = len.min(CHUNK as u64);
            self.write(&zeroes[..step as usize])?;
            len -= step;
        }
        Ok(())
    }

    fn advance(&mut self, len: u64) {
        if let Kind::Sparse(at) = &mut self.kind {
            *at += len;
        }
    }

    /// Puts everything on stable storage, with the name of a new file.
    pub(crate) fn finish(self) -> anyhow::Result<()> {
        let Some(file) = self.file.as_ref().filter(|_| self.kind != Kind::Stream) else { return Ok(()) };
        file.sync_all().map_err(|error| self.cannot_write(error))?;
        if self.is_new { durable::sync_name(file, &self.name) } else { Ok(()) }
    }
}
