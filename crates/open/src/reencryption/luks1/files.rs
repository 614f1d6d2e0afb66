//! The files of a LUKS1 re-encryption, in the directory where it has begun: log, both headers, and the zone in flight.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use inlock_volume::luks1::reencryption::{LOG_LEN, Log};
use inlock_volume::{FileDevice, Hash, HeaderBackup};
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use rustix::io::Errno;

use super::super::parallel;
use crate::device::Device;
use crate::durable;
use crate::error::{Error, ErrorKind, Result, ResultExt as _};

/// Bytes before the content in the file of a zone.
const ZONE_HEAD: u64 = 4096;
/// Start of the file of a zone.
const ZONE_MAGIC: [u8; 16] = *b"inlock zone 1\n\0\0";
/// Length of the digest of a zone.
const DIGEST: usize = 32;
/// Bytes that are hashed by one thread at once.
const CHUNK: usize = 1 << 20;
/// Shortest zone for which there has to be room.
pub(super) const LEAST_ZONE: u64 = 1 << 20;

/// Names of the files.
#[derive(Clone, Debug)]
pub(super) struct Files {
    directory: PathBuf,
    uuid: String,
}

impl Files {
    pub(super) fn new(directory: &Path, uuid: &str) -> Self {
        Self { directory: directory.to_owned(), uuid: uuid.to_owned() }
    }

    pub(super) fn uuid(&self) -> &str {
        &self.uuid
    }

    /// Returns what stands for the name of a device, in a log whose UUID others have, too.
    pub(super) fn name_of(&self, data: &Device) -> String {
        let path = std::fs::canonicalize(&data.path).unwrap_or_else(|_| data.path.clone());
        let digest = Hash::Sha256.digest(&[self.uuid.as_bytes(), path.as_os_str().as_bytes()]);
        digest[..16].iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
    }

    fn named(&self, end: &str) -> PathBuf {
        self.directory.join(format!("LUKS-{}.{end}", self.uuid))
    }

    pub(super) fn log(&self) -> PathBuf {
        self.named("log")
    }

    /// The header before.
    pub(super) fn old_header(&self) -> PathBuf {
        self.named("org")
    }

    /// The header after.
    pub(super) fn new_header(&self) -> PathBuf {
        self.named("new")
    }

    /// The zone in flight, which only Inlock reads.
    pub(super) fn zone(&self) -> PathBuf {
        self.named("zone")
    }

    /// Returns the first of the files besides the log that exists.
    pub(super) fn left(&self) -> Option<PathBuf> {
        let all = [self.old_header(), self.new_header(), self.zone()];
        all.into_iter().find(|path| path.symlink_metadata().is_ok())
    }

    /// Removes all; last the log, without which nothing has begun.
    pub(super) fn remove(&self) -> Result<()> {
        [self.zone(), self.old_header(), self.new_header(), self.log()].iter().try_for_each(|path| remove(path))
    }

    /// Removes the file of a zone that is not in flight.
    pub(super) fn remove_zone(&self) -> Result<()> {
        remove(&self.zone())
    }

    /// Writes a header to a new file, durably.
    pub(super) fn create_header(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        let written = create_new(path).and_then(|file| {
            file.write_all_at(bytes, 0)?;
            file.sync_all()?;
            Ok(file)
        });
        durable::sync_name(&written.with_context(|| format!("cannot write {}", path.display()))?, path)
    }

    /// Reads a header. `None`: there is no such file, or it has no whole header.
    pub(super) fn read_header(&self, path: &Path) -> Result<Option<HeaderBackup>> {
        match File::open(path) {
            Ok(file) => Ok(HeaderBackup::of_file(&FileDevice::new(file)).ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }
}

/// Removes a file, if there is one.
fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Creates a file for its owner only.
fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
}

/// The log, locked against other processes of Inlock.
#[derive(Debug)]
pub(super) struct LogFile {
    file: File,
    path: PathBuf,
    pub(super) log: Log,
}

impl LogFile {
    /// Creates the file.
    ///
    /// # Errors
    ///
    /// Fails if it exists.
    pub(super) fn create(files: &Files, log: Log) -> Result<Self> {
        let path = files.log();
        let file = create_new(&path).with_context(|| format!("cannot create {}", path.display()))?;
        lock(&file, &path)?;
        let mut created = Self { file, path, log: log.clone() };
        created.write(log)?;
        durable::sync_name(&created.file, &created.path)?;
        Ok(created)
    }

    /// Opens and reads the file. `None`: there is none, or an empty one, which was created and not written; that is
    /// removed.
    ///
    /// # Errors
    ///
    /// Fails if another process uses it, or if it is damaged or that of another volume.
    pub(super) fn open(files: &Files) -> Result<Option<Self>> {
        let path = files.log();
        let file = match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("cannot open {}", path.display())),
        };
        lock(&file, &path)?;
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(&file, 2 * LOG_LEN as u64), &mut bytes)
            .with_context(|| format!("cannot read {}", path.display()))?;
        if bytes.iter().all(|byte| *byte == 0) && files.left().is_none() {
            remove(&path)?;
            return Ok(None);
        }
        let log = Log::parse(&bytes).map_err(|error| unusable(&path, &error.to_string()))?;
        if log.uuid != files.uuid {
            return Err(unusable(&path, &format!("it is that of UUID {}", log.uuid)));
        }
        Ok(Some(Self { file, path, log }))
    }

    /// Replaces the content, durably. A log is one sector.
    pub(super) fn write(&mut self, log: Log) -> Result<()> {
        let written = self.file.write_all_at(&log.to_bytes(), 0).and_then(|()| self.file.sync_data());
        written.with_context(|| format!("cannot write {}", self.path.display()))?;
        self.log = log;
        Ok(())
    }
}

/// Locks the log until it is closed.
fn lock(file: &File, path: &Path) -> Result<()> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => {
            let text = format!("The re-encryption of {} is run by another process.", path.display());
            Err(Error::new(ErrorKind::BeingReencrypted, text).about(path))
        }
        Err(error) => Err(error).with_context(|| format!("cannot lock {}", path.display())),
    }
}

/// The error of a file of a re-encryption that is damaged or that of another one.
pub(super) fn unusable(path: &Path, reason: &str) -> Error {
    let text = format!("File {} cannot be used: {reason}.", path.display());
    Error::new(ErrorKind::ReencryptionFile, text).about(path)
}

/// The file of the zone in flight: its content, old or new, by which the zone can be written again.
#[derive(Debug)]
pub(super) struct ZoneFile {
    file: File,
    path: PathBuf,
    /// Longest zone for which there is room.
    pub(super) room: u64,
}

/// The content of a zone.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct KeptZone {
    /// Range in the volume, in bytes.
    pub(super) zone: Range<u64>,
    /// Whether it is the new content.
    pub(super) is_new: bool,
    pub(super) data: Vec<u8>,
}

impl ZoneFile {
    /// Creates or opens the file, and allocates room for a zone of `longest` bytes, or of less.
    ///
    /// # Errors
    ///
    /// Fails if there is no room for the shortest zone.
    pub(super) fn allocate(files: &Files, longest: u64) -> Result<Self> {
        let path = files.zone();
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = opened.with_context(|| format!("cannot create {}", path.display()))?;
        let mut room = longest;
        loop {
            match fallocate(&file, FallocateFlags::empty(), 0, ZONE_HEAD + room) {
                // Room cannot be allocated on some file systems, where it is found out by writing.
                Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => break,
                Err(Errno::NOSPC) if room / 2 >= LEAST_ZONE => room = (room / 2).next_multiple_of(512),
                Err(error) => {
                    return Err(error).with_context(|| format!("cannot allocate {room} bytes for {}", path.display()));
                }
            }
        }
        file.sync_all().with_context(|| format!("cannot write {}", path.display()))?;
        durable::sync_name(&file, &path)?;
        Ok(Self { file, path, room })
    }

    /// Keeps the content of a zone, durably.
    pub(super) fn keep(&self, zone: &Range<u64>, data: &[u8], is_new: bool) -> Result<()> {
        let mut head = Vec::with_capacity(ZONE_HEAD as usize);
        head.extend_from_slice(&ZONE_MAGIC);
        for number in [zone.start, zone.end, u64::from(is_new)] {
            head.extend_from_slice(&number.to_le_bytes());
        }
        let digest = digest(&head, data)?;
        head.extend_from_slice(&digest);
        head.resize(ZONE_HEAD as usize, 0);
        let written = self.file.write_all_at(&head, 0).and_then(|()| self.file.write_all_at(data, ZONE_HEAD));
        written.and_then(|()| self.file.sync_data()).with_context(|| format!("cannot write {}", self.path.display()))
    }

    /// Returns the zone that was kept last. `None`: keeping it was cut off, or none was kept, and its data are old.
    pub(super) fn kept(files: &Files) -> Result<Option<KeptZone>> {
        let path = files.zone();
        let cannot_read = || format!("cannot read {}", path.display());
        let file = File::open(&path).with_context(cannot_read)?;
        let len = file.metadata().with_context(cannot_read)?.len();
        let mut head = vec![0; ZONE_HEAD as usize];
        if len < ZONE_HEAD {
            return Ok(None);
        }
        file.read_exact_at(&mut head, 0).with_context(cannot_read)?;
        let number = |at: usize| head[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let (fields, zone) = (ZONE_MAGIC.len() + 24, number(16)..number(24));
        let room = zone.end.checked_sub(zone.start).filter(|room| *room > 0 && *room <= len - ZONE_HEAD);
        let Some(room) = room.filter(|_| head.starts_with(&ZONE_MAGIC)) else { return Ok(None) };
        let mut data = vec![0; room as usize];
        file.read_exact_at(&mut data, ZONE_HEAD).with_context(cannot_read)?;
        let is_whole = digest(&head[..fields], &data)? == head[fields..fields + DIGEST];
        Ok(is_whole.then(|| KeptZone { zone, is_new: number(32) == 1, data }))
    }
}

/// Returns the digest of the digests of all pieces.
fn digest(head: &[u8], data: &[u8]) -> Result<[u8; DIGEST]> {
    let mut digests = vec![0; data.len().div_ceil(CHUNK) * DIGEST];
    let pieces: Vec<_> = data.chunks(CHUNK).zip(digests.chunks_mut(DIGEST)).collect();
    parallel::for_each(pieces.into_iter(), |(data, digest)| {
        digest.copy_from_slice(&Hash::Sha256.digest(&[data])[..DIGEST]);
        Ok(())
    })?;
    let mut whole = [0; DIGEST];
    whole.copy_from_slice(&Hash::Sha256.digest(&[head, &digests])[..DIGEST]);
    Ok(whole)
}
