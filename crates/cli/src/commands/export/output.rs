//! The output of `export`: a file, a block device, or a stream.
//!
//! A file or block device that exists is locked like a volume before a passphrase is asked for; a block device is also
//! opened exclusively. It does not change before [`Output::begin`]. [`Output::finish`] returns when all data are on
//! stable storage.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{OFlags, SeekFrom, seek};

use super::super::copy::{self, CHUNK};
use crate::error::{CliError, cannot_open};
use crate::system::durable;
use crate::volume::device::{Device, Medium};
use crate::volume::lock::{self, DeviceLock, Mode};

/// An output and its locks.
pub(crate) struct Output {
    name: PathBuf,
    /// `None`: opened by [`Output::begin`], since it does not exist or cannot be locked.
    file: Option<File>,
    output_type: OutputType,
    /// It was created.
    is_new: bool,
    /// A block device, opened exclusively.
    exclusive: Option<File>,
    lock: Option<DeviceLock>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum OutputType {
    /// A regular file, written without zeroes, and the next offset.
    Sparse(u64),
    /// A file or a block device, written sequentially.
    Storage,
    /// A pipe, a socket, a character device.
    Stream,
}

impl Output {
    /// Opens and locks `path`, or standard output. Does not create a file.
    pub(crate) fn take(path: Option<&Path>) -> anyhow::Result<Self> {
        let name = path.map_or_else(|| "standard output".into(), Path::to_owned);
        let mut output =
            Self { name, file: None, output_type: OutputType::Stream, is_new: false, exclusive: None, lock: None };
        let Some(path) = path else {
            // Not through the standard library, which buffers lines.
            let out = io::stdout().as_fd().try_clone_to_owned().map_err(|error| output.cannot_write(error))?;
            output.use_file(out.into())?;
            if output.output_type != OutputType::Stream {
                // The shell may have opened it for appending.
                output.output_type = OutputType::Storage;
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
            io::ErrorKind::BrokenPipe => CliError::OutputClosed.into(),
            io::ErrorKind::ResourceBusy => cannot_open(&self.name, false)(error),
            _ => anyhow::Error::from(error).context(format!("cannot write {}", self.name.display())),
        }
    }

    /// Opens or creates the file.
    fn open(&mut self) -> anyhow::Result<()> {
        self.is_new = !self.name.exists();
        // Only the owner may read plaintext; an existing file keeps its mode.
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&self.name);
        self.use_file(file.map_err(|error| self.cannot_write(error))?)
    }

    /// Locks an open file, if it is storage.
    fn use_file(&mut self, file: File) -> anyhow::Result<()> {
        let metadata = file.metadata().map_err(|error| self.cannot_write(error))?;
        if metadata.file_type().is_block_device() {
            self.output_type = OutputType::Storage;
            // Fails for one that is in use, such as a mounted one.
            let flags = OFlags::EXCL.bits().cast_signed();
            let again = format!("/proc/self/fd/{}", file.as_raw_fd());
            let exclusive = OpenOptions::new().write(true).custom_flags(flags).open(again);
            self.exclusive = Some(exclusive.map_err(|error| self.cannot_write(error))?);
        } else if metadata.is_file() {
            self.output_type = OutputType::Sparse(0);
        }
        let again = file.try_clone().map_err(|error| self.cannot_write(error))?;
        let medium = Medium::Local(Arc::new(again), metadata);
        let device = Device { path: self.name.clone(), medium, len: 0, zones: None };
        if self.output_type != OutputType::Stream {
            self.lock = Some(lock::whole_device(&device, Mode::Exclusive)?);
        }
        self.file = Some(file);
        Ok(())
    }

    /// Prepares it for `len` bytes, and discards its previous contents.
    pub(crate) fn begin(&mut self, len: u64) -> anyhow::Result<()> {
        if self.file.is_none() {
            self.open()?;
        }
        let Some(file) = &self.file else { return Ok(()) };
        if matches!(self.output_type, OutputType::Sparse(_)) {
            file.set_len(0).and_then(|()| file.set_len(len)).map_err(|error| self.cannot_write(error))?;
        }
        if self.exclusive.is_some() {
            let at = seek(file, SeekFrom::Current(0));
            let room = at.and_then(|at| {
                let end = seek(file, SeekFrom::End(0))?;
                seek(file, SeekFrom::Start(at))?;
                Ok(end.saturating_sub(at))
            });
            let room = room.map_err(|error| self.cannot_write(error.into()))?;
            if room < len {
                return Err(CliError::refused(
                    format!("{} has only {room} bytes; {len} bytes are needed.", self.name.display()),
                    "use --range to export a part of the volume",
                ));
            }
        }
        Ok(())
    }

    /// Appends data.
    pub(crate) fn write(&mut self, data: &[u8]) -> anyhow::Result<()> {
        let Some(mut file) = self.file.as_ref() else { return Ok(()) };
        let written = match self.output_type {
            OutputType::Sparse(at) => {
                let mut full = copy::runs(data).filter(|(_, _, zero)| !zero);
                full.try_for_each(|(offset, bytes, _)| file.write_all_at(bytes, at + offset as u64))
            }
            OutputType::Storage | OutputType::Stream => file.write_all(data),
        };
        written.map_err(|error| self.cannot_write(error))?;
        self.advance(data.len() as u64);
        Ok(())
    }

    /// Appends `len` zeroes.
    pub(crate) fn zeroes(&mut self, mut len: u64) -> anyhow::Result<()> {
        if matches!(self.output_type, OutputType::Sparse(_)) {
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
        if let OutputType::Sparse(at) = &mut self.output_type {
            *at += len;
        }
    }

    /// Syncs the data, and the directory entry of a new file.
    pub(crate) fn finish(self) -> anyhow::Result<()> {
        let Some(file) = self.file.as_ref().filter(|_| self.output_type != OutputType::Stream) else { return Ok(()) };
        file.sync_all().map_err(|error| self.cannot_write(error))?;
        if self.is_new { durable::sync_name(file, &self.name) } else { Ok(()) }
    }
}
