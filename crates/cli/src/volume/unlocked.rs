//! An unlocked volume, and the engine's device made of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use inlock_cipher::scrub_stack;
use inlock_engine::store::file::{FileStore, IoMode};
use inlock_engine::{self as engine, Content, TargetError};
use inlock_integrity::IntegrityDevice;
use inlock_volume::table::Target;
use inlock_volume::{CipherSpec, DataUnitSize, Segment, Table, VolumeKey};

use super::device::Device;
use super::info::VolumeInfo;
use super::integrity::{IntegrityOpening, MaintainedIntegrity};
use super::lock::DeviceLock;
use super::zones;
use crate::error::CliError;
use crate::ui::print::warn;

/// Length of the stack that deriving and checking a key may have used.
pub(super) const SCRUB: usize = 256 << 10;

/// A volume that is unlocked, and whose devices are locked.
pub(crate) struct UnlockedVolume {
    /// One device, except for a table, which may have several or none.
    data: Vec<Device>,
    pub info: VolumeInfo,
    contents: Contents,
    locks: Vec<DeviceLock>,
    /// Use direct I/O on the block device.
    direct: bool,
}

/// Data on the devices.
pub(super) enum Contents {
    /// `--type raw`
    Raw,
    Volume(Vec<Segment>, VolumeKey),
    /// With the index of each line's device.
    Table(Table, Vec<usize>),
    /// A dm-integrity volume on the device with its superblock, and perhaps another one with its data.
    Integrity(IntegrityOpening),
}

impl Contents {
    fn ciphers(&self) -> Vec<CipherSpec> {
        match self {
            Self::Raw | Self::Integrity(_) => Vec::new(),
            Self::Volume(segments, _) => segments.iter().filter_map(|segment| segment.cipher).collect(),
            Self::Table(table, _) => table.lines().iter().filter_map(|line| line.segment().cipher).collect(),
        }
    }
}

/// The engine's device, and the locks that are held as long as it is used.
pub(crate) struct LockedStores {
    pub device: Arc<engine::Device>,
    /// The devices as first opened. The exclusive claim on a block device belongs to this descriptor, not to the one
    /// for direct I/O.
    data: Vec<Device>,
    /// The dm-integrity volume under the engine's device.
    integrity: Option<MaintainedIntegrity>,
    _locks: Vec<DeviceLock>,
}

impl LockedStores {
    /// Returns how the use of the volume ended: `ended`, or an error if writes may be lost.
    ///
    /// Closes a dm-integrity volume first.
    pub(crate) fn check_writes(&self, ended: anyhow::Result<()>) -> anyhow::Result<()> {
        let ended = match &self.integrity {
            Some(integrity) => integrity.close().and(ended),
            None => ended,
        };
        if !self.device.has_lost_writes() {
            return ended;
        }
        let path = self.data.first().map_or_else(PathBuf::new, |data| data.path.clone());
        let lost = CliError::WritesLost { path };
        Err(match ended {
            Ok(()) => lost.into(),
            Err(cause) => cause.context(lost),
        })
    }

    /// Returns the dm-integrity volume under the engine's device.
    pub(crate) fn integrity(&self) -> Option<Arc<IntegrityDevice>> {
        self.integrity.as_ref().map(|integrity| Arc::clone(&integrity.device))
    }
}

impl UnlockedVolume {
    pub(super) fn new(data: Vec<Device>, info: VolumeInfo, contents: Contents, locks: Vec<DeviceLock>) -> Self {
        Self { data, info, contents, locks, direct: false }
    }

    /// Uses direct I/O if the volume is on a block device and aligned with its blocks: the layers above have caches of
    /// their own, and must not wait for memory of this one. Only for frontends with workers, whose buffers are aligned.
    pub(crate) fn use_direct_io(&mut self) {
        let (Contents::Volume(segments, _), [data]) = (&self.contents, self.data.as_slice()) else { return };
        let block = u64::from(data.block_len());
        let fits = |segment: &Segment| {
            let offset = segment.data_offset.to_bytes();
            (segment.unit.bytes() as u64).is_multiple_of(block) && offset.is_some_and(|n| n.is_multiple_of(block))
        };
        self.direct = data.is_block() && segments.iter().all(|s| s.cipher.is_some() && fits(s));
    }

    /// Makes the engine's device, read-only for a legacy cipher. Wipes the volume key before it returns; the cipher
    /// keeps its own key schedule.
    pub(crate) fn into_device(self, mode: IoMode, access: engine::Access) -> anyhow::Result<LockedStores> {
        let stores = self.connect(mode, access);
        scrub_stack::<SCRUB>();
        stores
    }

    #[inline(never)]
    fn connect(mut self, mode: IoMode, access: engine::Access) -> anyhow::Result<LockedStores> {
        if let Contents::Integrity(opening) = self.contents {
            self.contents = Contents::Raw;
            let integrity = opening.open(&self.data[0], self.data.get(1), mode, access.read_only)?;
            let device = engine::Device::raw(integrity.store()?, access);
            return Ok(LockedStores { integrity: Some(integrity), ..self.finish(device)? });
        }
        let legacy = self.contents.ciphers().into_iter().find(|spec| spec.cipher.is_legacy());
        if let Some(spec) = legacy.filter(|_| !access.read_only) {
            warn(format_args!("{}: {spec} is a legacy cipher; opened read-only", self.info.device.display()));
        }
        let access = engine::Access { read_only: access.read_only || legacy.is_some(), ..access };
        let mut stores: Vec<Arc<dyn engine::BackingStore>> = Vec::with_capacity(self.data.len());
        for data in &self.data {
            if data.zones.is_some() {
                stores.push(zones::store(data, access.read_only, mode)?);
                continue;
            }
            let file = if self.direct { data.reopen_direct(!access.read_only)? } else { data.share()? };
            let store = match access.read_only {
                true => FileStore::new_read_only(file, mode),
                false => FileStore::new(file, mode),
            };
            stores.push(Arc::new(store.with_context(|| format!("cannot use {}", data.path.display()))?));
        }
        let lines: Vec<_> = match &self.contents {
            Contents::Raw | Contents::Integrity(_) => {
                return self.finish(engine::Device::raw(stores.remove(0), access));
            }
            Contents::Volume(segments, key) => {
                let content = |s: &Segment| if s.cipher.is_some() { Content::Crypt(key) } else { Content::Linear };
                segments.iter().map(|segment| (*segment, content(segment), 0)).collect()
            }
            Contents::Table(table, of_line) => {
                let lines = table.lines().iter().zip(of_line);
                lines.map(|(line, store)| (line.segment(), content_of(&line.target), *store)).collect()
            }
        };
        let lines: Vec<_> = lines
            .iter()
            .map(|(segment, content, store)| engine::Target { segment, content: *content, store: *store })
            .collect();
        let device =
            engine::Device::stacked(&lines, stores, access).map_err(|error| cannot_use(error, &self.info.device))?;
        drop(lines);
        self.finish(device)
    }

    fn finish(self, device: engine::Device) -> anyhow::Result<LockedStores> {
        if inlock_cipher::memory_lock_failed() {
            warn("cannot lock the memory of keys, which may be written to swap (see ulimit -l)");
        }
        Ok(LockedStores { device: Arc::new(device), data: self.data, integrity: None, _locks: self.locks })
    }

    /// Returns the names of its devices that are files.
    pub(crate) fn files(&self) -> Vec<String> {
        self.data.iter().filter(|data| !data.is_block()).map(|data| data.path.display().to_string()).collect()
    }

    /// Returns the device-mapper table of the volume.
    pub(crate) fn table(self) -> Table {
        let (segments, key) = match self.contents {
            Contents::Table(table, _) => return table,
            Contents::Volume(segments, key) => (segments, key),
            Contents::Raw | Contents::Integrity(_) => (vec![whole()], VolumeKey::zeroed(0)),
        };
        let data = &self.data[0];
        let mut table =
            Table::of_volume(&segments, &key, self.info.flags, &self.info.device.to_string_lossy(), data.len);
        let names: Vec<_> = self.info.segments.iter().map(|segment| segment.cipher.clone()).collect();
        table.set_cipher_names(&names);
        table
    }
}

/// Returns the engine's content for a table's target.
pub(super) fn content_of(target: &Target) -> Content<'_> {
    match target {
        Target::Crypt(crypt) => Content::Crypt(&crypt.key),
        Target::Linear { .. } => Content::Linear,
        Target::Zero => Content::Zero,
        Target::Error => Content::Error,
    }
}

/// Returns the only segment of a volume without a cipher.
fn whole() -> Segment {
    Segment::whole(None, DataUnitSize::SECTOR)
}

fn cannot_use(error: TargetError, path: &Path) -> anyhow::Error {
    let hint = match error {
        TargetError::BeyondStore { .. } | TargetError::Empty { .. } => {
            "the image is truncated, or the header belongs to another image"
        }
        TargetError::UnitLength { .. } => {
            "make the length of the image a multiple of its sector size: truncate -s SIZE"
        }
        _ => return anyhow::Error::from(error).context(format!("cannot use {}", path.display())),
    };
    let message = format!("Device {} cannot be used", path.display());
    anyhow::Error::from(error).context(CliError::Refused { message, hint })
}
