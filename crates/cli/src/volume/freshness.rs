//! `--freshness`: a file outside the image that records its newest state, so that an older copy is refused.
//!
//! The file has two records, of which the newer one is valid; they are written in turns, so that an interrupted write
//! leaves the other. Their MAC has a key that is derived from the volume key.

use std::fs::{File, OpenOptions as FileOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use inlock_engine::Errno;
use inlock_integrity::{
    Digest, Freshness, FreshnessKey, FreshnessRecord, IntegrityDevice, Mode, OpenOptions, RecordedState, Stores,
    digest, stored_section, tag_root,
};
use inlock_volume::{HeaderDevice, VolumeKey};

use super::device::Device;
use super::remote::DeviceHeader;
use crate::error::{CliError, Status};
use crate::ui::print::warn;

/// Distance of the two records in the file.
const SLOT: u64 = 4096;
/// Longest LUKS2 metadata.
const MAX_METADATA: u64 = 4 << 20;

/// The options.
#[derive(Clone, Debug)]
pub(crate) struct FreshnessArgs {
    pub file: PathBuf,
    /// `--freshness-accept`: record the present state without comparing it.
    pub accept: bool,
    /// `--freshness-tags`: record a digest of all tags when the volume is closed.
    pub tags: bool,
}

/// A volume whose freshness is to be checked.
pub(crate) struct FreshnessCheck {
    pub args: FreshnessArgs,
    pub uuid: String,
    /// The device of the header.
    pub header: DeviceHeader,
}

/// The file of a volume that was compared with it.
pub(crate) struct FreshnessFile {
    path: PathBuf,
    file: File,
    key: FreshnessKey,
    header: DeviceHeader,
    /// Device of the volume.
    data: Device,
    /// The dm-integrity volume on it, read-only, and the options that open it.
    stores: Stores,
    options: OpenOptions,
    record: Mutex<FreshnessRecord>,
    tags: bool,
}

impl FreshnessCheck {
    /// Compares the volume on `data`, which `stores` read, with the file, before its journal is replayed. Returns the
    /// file if the volume will be written; it then has a record that allows the replay.
    pub(super) fn verify(
        self,
        key: &VolumeKey,
        data: &Device,
        stores: Stores,
        options: &OpenOptions,
        writing: bool,
    ) -> anyhow::Result<Option<Arc<FreshnessFile>>> {
        let Self { args, uuid, header } = self;
        let path = args.file;
        let file = open_file(&path, args.accept, writing)?;
        let key = FreshnessKey::derive(key.as_bytes())?;
        let volume = digest(uuid.as_bytes());
        let present = header_digest(&header, data, stores.start)?;
        let stored = newest_record(&file, &path, &key, &volume)?;
        let (record, tags) = match stored {
            Some(record) if !args.accept => {
                let found = record.compare(&stores, options, &present)?;
                judge(found, &data.path, &path)?;
                (record, args.tags || record.tags.is_some())
            }
            None if !args.accept => return Err(not_of_volume(&path, &data.path)),
            stored => {
                let number = stored.map_or(0, |record| record.number);
                let state = RecordedState::Opening;
                (FreshnessRecord { number, state, volume, header: present, section: None, tags: None }, args.tags)
            }
        };
        if !writing {
            return Ok(None);
        }
        if options.mode == Mode::Direct && !tags {
            return Err(CliError::refused(
                "Option --freshness without the journal needs --freshness-tags.",
                "add --freshness-tags, or leave --integrity-no-journal out",
            ));
        }
        let (data, options, record) = (data.duplicate(), options.clone(), Mutex::new(record));
        let fresh = FreshnessFile { path, file, key, header, data, stores, options, record, tags };
        if stored.is_some() && !args.accept {
            fresh.write(|record| record.state = RecordedState::Opening)?;
        }
        Ok(Some(Arc::new(fresh)))
    }
}

/// Explains a volume that is not the newest one.
fn judge(found: Freshness, image: &Path, file: &Path) -> anyhow::Result<()> {
    let (image, file) = (image.display(), file.display());
    let refused =
        |message: String, hint: &str| Err(CliError::Remote(message, Some(hint.to_owned()), Status::Device).into());
    match found {
        Freshness::Newest => Ok(()),
        Freshness::NewestWithoutTags => {
            warn(format_args!("{image}: the volume was not closed; its tags are not compared with {file}"));
            Ok(())
        }
        Freshness::OtherHeader => refused(
            format!("The header of device {image} is not the one that {file} records."),
            "if you changed the header, add --freshness-accept; otherwise it is an older copy",
        ),
        Freshness::Older => refused(
            format!("Device {image} is older than {file} records."),
            "use the newest copy of the image; if another program has written to it, add --freshness-accept",
        ),
        Freshness::Unknown => refused(
            format!(
                "Device {image} was used without the journal and not closed, so {file} cannot tell its last state."
            ),
            "check the data, and add --freshness-accept to record the present state",
        ),
    }
}

fn not_of_volume(path: &Path, image: &Path) -> anyhow::Error {
    let (path, image) = (path.display(), image.display());
    let hint = "name the file of this volume, or add --freshness-accept to record its present state";
    let message = format!("{path} has no record of the volume on {image}.");
    CliError::Remote(message, Some(hint.to_owned()), Status::Device).into()
}

/// Opens the file, and creates it if it is missing and `accept` is set.
fn open_file(path: &Path, accept: bool, writing: bool) -> anyhow::Result<File> {
    let cannot_open = || format!("Cannot open freshness file {}.", path.display());
    let file = FileOptions::new().read(true).write(writing).create(accept && writing).mode(0o600).open(path);
    let file = match file {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let hint = "if the image is known to be the newest one, create the file: add --freshness-accept to a writable open";
            let message = format!("Freshness file {} does not exist.", path.display());
            return Err(CliError::Remote(message, Some(hint.to_owned()), Status::Device).into());
        }
        other => other.with_context(cannot_open)?,
    };
    match if writing { file.try_lock() } else { file.try_lock_shared() } {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(CliError::InUse { path: path.to_owned(), hint: "use a file for each volume" }.into());
        }
        Err(TryLockError::Error(error)) => return Err(error).with_context(cannot_open),
    }
    if writing && file.metadata().with_context(cannot_open)?.len() == 0 {
        // The name is durable before a record is relied on.
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        file.set_len(2 * SLOT).and_then(|()| file.sync_all()).with_context(cannot_open)?;
        File::open(dir).and_then(|dir| dir.sync_all()).with_context(cannot_open)?;
    }
    Ok(file)
}

/// Returns the newest record of the volume. `None`: there is none.
fn newest_record(
    file: &File,
    path: &Path,
    key: &FreshnessKey,
    volume: &Digest,
) -> anyhow::Result<Option<FreshnessRecord>> {
    let mut newest: Option<FreshnessRecord> = None;
    for slot in 0..2 {
        let mut bytes = [0; FreshnessRecord::LEN];
        if file.read_exact_at(&mut bytes, slot * SLOT).is_err() {
            continue;
        }
        if !FreshnessRecord::is_present(&bytes) && bytes.iter().any(|byte| *byte != 0) {
            return Err(CliError::refused(
                format!("{} is not a freshness file.", path.display()),
                "name another file; nothing was written to this one",
            ));
        }
        let record = FreshnessRecord::decode(&bytes, key).filter(|record| record.volume == *volume);
        newest = newest.into_iter().chain(record).max_by_key(|record| record.number);
    }
    Ok(newest)
}

/// Returns the digest of the first copy of LUKS2 metadata, and of the superblock.
fn header_digest(header: &DeviceHeader, data: &Device, start: u64) -> anyhow::Result<Digest> {
    let cannot_read = || format!("cannot read the header of {}", data.path.display());
    let mut first = [0; 16];
    header.read_exact_at(&mut first, 0).with_context(cannot_read)?;
    let len = u64::from_be_bytes(first[8..].try_into().unwrap_or_default()).clamp(4096, MAX_METADATA);
    let mut bytes = vec![0; len as usize + 512];
    let (metadata, superblock) = bytes.split_at_mut(len as usize);
    header.read_exact_at(metadata, 0).with_context(cannot_read)?;
    data.header()?.read_exact_at(superblock, start * 512).with_context(cannot_read)?;
    Ok(digest(&bytes))
}

impl FreshnessFile {
    /// Records that the volume is open, and each commit of its journal from now on.
    pub(super) fn attach(self: &Arc<Self>, device: &IntegrityDevice) -> anyhow::Result<()> {
        let section = match device.newest_section() {
            None => None,
            Some(number) => {
                let stored = stored_section(&self.stores, &self.options, number)?;
                stored.map(|stored| (stored.number, stored.digest))
            }
        };
        if section.is_some() {
            let file = Arc::clone(self);
            let recorded = device.record_commits(move |number, digest| file.commit(number, digest));
            recorded.map_err(|_| {
                let message = format!("The journal of {} is too short for --freshness.", self.data.path.display());
                CliError::Refused { message, hint: "use --integrity-no-journal and --freshness-tags" }
            })?;
        }
        self.write(|record| (record.state, record.section) = (RecordedState::Open, section))
    }

    fn commit(&self, number: u32, digest: Digest) -> Result<(), Errno> {
        self.write(|record| record.section = Some((number, digest))).map_err(|error| {
            warn(format_args!("{error:#}"));
            Errno::IO
        })
    }

    /// Records a volume that was closed.
    pub(super) fn close(&self) -> anyhow::Result<()> {
        let tags = match self.tags {
            true => Some(tag_root(&self.stores, &self.options)?),
            false => None,
        };
        let header = self.header_digest()?;
        self.write(|record| (record.state, record.header, record.tags) = (RecordedState::Closed, header, tags))
    }

    fn header_digest(&self) -> anyhow::Result<Digest> {
        header_digest(&self.header, &self.data, self.stores.start)
    }

    /// Changes the record, and makes it durable.
    fn write(&self, change: impl FnOnce(&mut FreshnessRecord)) -> anyhow::Result<()> {
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = *record;
        change(&mut next);
        next.number += 1;
        let written = self.file.write_all_at(&next.encode(&self.key), next.number % 2 * SLOT);
        let written = written.and_then(|()| self.file.sync_data());
        written.with_context(|| format!("cannot write freshness file {}", self.path.display()))?;
        *record = next;
        Ok(())
    }
}
