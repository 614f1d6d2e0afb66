//! Examines a LUKS header: what is whole, damaged or lost, and which headers are elsewhere on the device. Writes
//! nothing, and needs no passphrase.

use std::ops::ControlFlow;
use std::path::PathBuf;

use inlock_volume::{
    DataDeviceError, FoundHeader, HeaderBackup, HeaderDevice as _, HeaderLocation, HeaderPolicy, KdfLimits,
    KeyslotReport, KeyslotState, LoadError, LoadWarning, RepairPlan, Signature, SignatureKind, UnlockError, Volume,
    WindowDevice, find_headers, find_signatures,
};

use crate::device::Device;
use crate::error::Result;
use crate::header::is_encrypted_clone;
use crate::lock::{self, Mode};
use crate::remote::DeviceHeader;
use crate::removed_integrity::{self, Start};

/// Maximum number of found headers in a report.
const MAX_FOUND: usize = 256;

/// State of a volume, as far as its header tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Health {
    /// The header is whole, and a keyslot can work.
    Healthy,
    /// The volume opens, but something is damaged.
    Damaged,
    /// The volume does not open as it is, but there is a header.
    Unusable,
    /// There is no header.
    Nothing,
}

/// What is known of a device.
#[derive(Debug)]
#[non_exhaustive]
pub struct Report {
    /// The device, without `UUID=` and the like.
    pub device: PathBuf,
    /// Its length in bytes.
    pub len: u64,
    /// Its state.
    pub health: Health,
    /// The header at its start, or why there is none.
    pub header: Result<HeaderReport, HeaderLoss>,
    /// Other formats that the device has signatures of.
    pub signatures: Vec<Signature>,
    /// Repairs that the header at the start needs.
    pub repair: Option<RepairPlan>,
    /// Keyslots as the repair leaves them, if the header can be loaded only then.
    pub mended_keyslots: Option<Vec<KeyslotReport>>,
    /// Other headers, after [`Report::search`].
    pub found: Vec<Found>,
    /// Number of found headers that are left out.
    pub left_out: u64,
}

/// A header that can be loaded.
#[derive(Debug)]
#[non_exhaustive]
pub struct HeaderReport {
    /// The volume.
    pub volume: Volume,
    /// Keyslots that hold a key, or are damaged.
    pub keyslots: Vec<KeyslotReport>,
    /// What is wrong, apart from keyslots.
    pub problems: Vec<Problem>,
}

/// Why there is no header at the start of the device.
#[derive(Debug)]
#[non_exhaustive]
pub enum HeaderLoss {
    /// The device is a clone of Ceph RBD with a header of its own.
    EncryptedClone,
    /// The header is missing or damaged.
    Load(LoadError),
}

/// What is wrong with a volume whose header can be loaded.
#[derive(Debug)]
#[non_exhaustive]
pub enum Problem {
    /// The header is irregular.
    Irregular(LoadWarning),
    /// The header asks for what is refused or not supported.
    Refused(UnlockError),
    /// Its re-encryption has not ended. It opens as it is.
    Reencrypted,
    /// The device does not have the payload.
    NoPayload(DataDeviceError),
    /// The length of the payload is no multiple of the data unit of so many bytes.
    PartOfUnit(u64),
    /// The start of the data, at this byte, cannot be read.
    UnreadableStart(u64),
    /// A superblock of dm-integrity is at this byte, but the header has no integrity protection.
    RemovedIntegrity(u64),
}

/// A header that does not begin at the start of the device, or is damaged there.
#[derive(Debug)]
#[non_exhaustive]
pub struct Found {
    /// Start of the volume, in bytes.
    pub offset: u64,
    /// Whether only the second copy of a LUKS2 header is left.
    pub second_only: bool,
    /// The volume, or why the header cannot be loaded.
    pub volume: Result<FoundVolume, LoadError>,
    /// Length of the header with its keyslots, which a file for it needs. `None`: it cannot be copied.
    pub header_len: Option<u64>,
}

/// The volume of a found header.
#[derive(Debug)]
#[non_exhaustive]
pub struct FoundVolume {
    /// Version of the header.
    pub version: u32,
    /// UUID of the volume.
    pub uuid: String,
    /// Whether the device has its payload; otherwise it is a backup, or a detached header.
    pub has_payload: bool,
    /// The first irregularity of the header.
    pub warning: Option<LoadWarning>,
}

impl Problem {
    /// Whether the volume does not open because of it.
    fn is_fatal(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::NoPayload(_) | Self::RemovedIntegrity(_))
    }
}

impl HeaderReport {
    /// Examines a volume with the header `header` and the payload on `data`.
    fn of(volume: Volume, header: &DeviceHeader, location: HeaderLocation, data: &Device) -> Result<Self> {
        let keyslots = volume.report_keyslots(header, &KdfLimits::default())?;
        let mut problems: Vec<Problem> = volume.warnings().iter().cloned().map(Problem::Irregular).collect();
        let is_reencrypted =
            matches!(&volume, Volume::Luks2(luks2) if luks2.reencryption().is_ok_and(|state| state.is_some()));
        problems.extend(match volume.check_policy(&HeaderPolicy::default()) {
            Ok(()) => None,
            Err(UnlockError::Requirement(_)) if is_reencrypted => Some(Problem::Reencrypted),
            Err(error) => Some(Problem::Refused(error)),
        });
        problems.extend(volume.check_data_device(location, data.len).err().map(Problem::NoPayload));
        let unit = volume.segments().ok().and_then(|all| all.first().map(|one| one.unit.bytes())).unwrap_or(512) as u64;
        let payload = data.len.saturating_sub(volume.data_offset());
        problems.extend((!payload.is_multiple_of(unit)).then_some(Problem::PartOfUnit(unit)));
        problems.extend(removed_integrity::found(&volume, data)?.map(|start| match start {
            Start::Unreadable(offset) => Problem::UnreadableStart(offset),
            Start::Superblock(offset) => Problem::RemovedIntegrity(offset),
        }));
        Ok(Self { volume, keyslots, problems })
    }

    /// Returns what is wrong with the first and the second copy of a LUKS2 header, `None` for a LUKS1 header.
    pub fn copies(&self) -> Option<[Option<&LoadWarning>; 2]> {
        if self.volume.version() == 1 {
            return None;
        }
        let mut problems = [None, None];
        for warning in self.volume.warnings() {
            let copy = match warning {
                LoadWarning::PrimaryDamaged(_) => 0,
                LoadWarning::CopiesDiffer { primary, secondary } if primary < secondary => 0,
                LoadWarning::SecondaryDamaged(_) | LoadWarning::CopiesDiffer { .. } => 1,
                LoadWarning::SameSequenceDifferentContent { .. } => 1,
                _ => continue,
            };
            problems[copy] = Some(warning);
        }
        Some(problems)
    }

    /// Whether a passphrase can open the volume with a keyslot.
    pub fn has_keyslot(&self) -> bool {
        self.keyslots.iter().any(|slot| can_work(&slot.state))
    }

    fn health(&self) -> Health {
        if !self.has_keyslot() || self.problems.iter().any(Problem::is_fatal) {
            Health::Unusable
        } else if !self.problems.is_empty() || self.keyslots.iter().any(|slot| !can_work(&slot.state)) {
            Health::Damaged
        } else {
            Health::Healthy
        }
    }
}

impl HeaderLoss {
    fn health(&self) -> Health {
        if matches!(self, Self::Load(LoadError::NotLuks)) { Health::Nothing } else { Health::Unusable }
    }
}

/// Whether a passphrase can open a keyslot, as far as can be told without one.
pub fn can_work(state: &KeyslotState) -> bool {
    matches!(state, KeyslotState::Usable | KeyslotState::OnlyByNumber)
}

/// Examines the header at the start of `device`. `data`: the device with the payload, if the header is detached.
pub fn examine(device: &Device, data: Option<&Device>) -> Result<Report> {
    let location = if data.is_some() { HeaderLocation::Detached } else { HeaderLocation::DataDevice };
    let header = device.header()?;
    let _lock = lock::header(device, Mode::Shared)?;
    let signatures = find_signatures(&header)?;
    let repair = RepairPlan::new(&header).ok().filter(|plan| !plan.repairs().is_empty());
    let loaded = match Volume::load(&header) {
        Ok(volume) => Ok(HeaderReport::of(volume, &header, location, data.unwrap_or(device))?),
        Err(LoadError::NotLuks) if is_encrypted_clone(&header) => Err(HeaderLoss::EncryptedClone),
        Err(error) => Err(HeaderLoss::Load(error)),
    };
    let mut health = loaded.as_ref().map_or_else(HeaderLoss::health, HeaderReport::health);
    let mut mended_keyslots = None;
    if let Some(plan) = &repair {
        // What another format is needed for, only the user knows.
        let opens = !plan.is_salvage() && plan.foreign().is_none();
        health = if opens { health.max(Health::Damaged) } else { Health::Unusable };
        if let (Err(_), Ok(mended)) = (&loaded, plan.mended()) {
            mended_keyslots = Some(mended.report_keyslots(&header, &KdfLimits::default())?);
        }
    }
    Ok(Report {
        device: device.path.clone(),
        len: device.len,
        health,
        header: loaded,
        signatures,
        repair,
        mended_keyslots,
        found: Vec::new(),
        left_out: 0,
    })
}

impl Report {
    /// Searches the device for other headers. `progress` takes the number of bytes that were read since its last call,
    /// and can end the search.
    pub fn search(&mut self, device: &Device, mut progress: impl FnMut(u64) -> ControlFlow<()>) -> Result<()> {
        let header = device.header()?;
        let has_first = self.header.is_ok();
        let (mut found, mut left_out) = (Vec::new(), 0);
        let take = |one: FoundHeader| match one.offset == 0 && has_first {
            true => {}
            false if found.len() < MAX_FOUND => found.push(Found::of(one, &header)),
            false => left_out += 1,
        };
        find_headers(&header, 0, take, |bytes| progress(bytes).is_continue())?;
        if self.health == Health::Nothing && !found.is_empty() {
            self.health = Health::Unusable;
        }
        (self.found, self.left_out) = (found, left_out);
        Ok(())
    }

    /// Returns the format of files that the device is in: offsets in it are none on the disk in the file.
    pub fn file_format(&self) -> Option<&Signature> {
        self.signatures.iter().find(|one| one.kind == SignatureKind::File)
    }
}

impl Found {
    fn of(found: FoundHeader, header: &DeviceHeader) -> Self {
        let FoundHeader { offset, second_only, volume, .. } = found;
        let window = WindowDevice::new(header, offset);
        let header_len = HeaderBackup::of_device(&window).ok().map(|backup| backup.bytes().len() as u64);
        // Not the volume itself: its metadata may have megabytes.
        let volume = volume.map(|volume| FoundVolume {
            version: volume.version(),
            uuid: volume.uuid().to_owned(),
            has_payload: window
                .len()
                .is_ok_and(|len| volume.check_data_device(HeaderLocation::DataDevice, len).is_ok()),
            warning: volume.warnings().first().cloned(),
        });
        Self { offset, second_only, volume, header_len }
    }
}
