//! Re-encrypting a volume that no process has open.

use std::ops::ControlFlow;
use std::path::Path;

use inlock_cipher::{CipherSpec, DataUnitSize, VolumeKey};
use inlock_engine::store::file::IoMode;
use inlock_volume::luks2::reencryption::{
    Direction, NewSide, PieceState, Protection, ReencryptedKeyslot, Reencryption, ReencryptionKeys,
    ReencryptionKeyslot, ReencryptionMode, ReencryptionStart, Resilience,
};
use inlock_volume::{Hash, HeaderLocation, KdfRequest, KeyslotStatus, NewKeyslot, Segment, Volume};

use super::driver::{Devices, Driver};
use super::interrupted::{self, luks2_of, state_of};
use crate::backing;
use crate::device::{Device, OpenMode};
use crate::edit::OpenedKeyslot;
use crate::error::{Error, ErrorKind, Result, ResultExt as _, against_policy, cannot_edit, cannot_unlock};
use crate::header::{Header, check_place, unlock_options};
use crate::host::Context;
use crate::key_check::KeyCheck;
use crate::lock::{self, DeviceLock, Lock, Mode, VolumeName};
use crate::secret::Ask;
use crate::source::{HeaderOptions, KeyOptions};
use crate::staged::StagedHeader;
use crate::{removed_integrity, zones};

/// Longest block of checksums that is not asked for by a longer data unit.
const CHECKSUM_BLOCK: u64 = 4096;

/// A LUKS2 volume that no other process uses, to re-encrypt; or the header alone, to begin what the process of an open
/// volume carries out.
pub struct Offline {
    pub(super) data: Device,
    pub(super) header: Header,
    /// Once it is unlocked.
    unlocked: Option<(Reencryption, ReencryptionKeys)>,
    locks: Vec<DeviceLock>,
    _lock: Lock,
}

/// Parameters of a re-encryption to begin.
#[derive(Debug)]
pub struct NewParameters {
    /// Change of the data.
    pub mode: ReencryptionMode,
    /// The new cipher; `None`: as before.
    pub cipher: Option<CipherSpec>,
    /// Length of the new volume key in bytes; `None`: as before.
    pub key_len: Option<usize>,
    /// The new data unit; `None`: as before.
    pub unit: Option<DataUnitSize>,
    /// Keep the volume key.
    pub keeps_key: bool,
    /// The new volume key; `None`: a random one.
    pub key: Option<VolumeKey>,
    /// Parameters of the new keyslots.
    pub keyslot: NewKeyslot,
    /// Those that differ, each with the number of the keyslot that it replaces.
    pub other_keyslots: Vec<(u32, NewKeyslot)>,
    /// Hash of the new digests.
    pub hash: Hash,
    /// How a zone is protected while it is written.
    pub protection: ZoneProtection,
    /// Length of the data in bytes, from the start; `None`: all.
    pub data_len: Option<u64>,
    /// Longest first segment in bytes that a decryption with a shift moves; `None`: the shift.
    pub longest_moved: Option<u64>,
}

/// How a zone is protected while it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ZoneProtection {
    /// By digests of its old blocks, with this hash.
    Checksum(String),
    /// By a copy of its old data.
    Journal,
    /// Not at all: a crash loses the zone.
    None,
}

impl Offline {
    /// Opens and locks the devices of a LUKS2 volume, and takes cryptsetup's lock of its re-encryption.
    pub fn open(context: &Context, at: &HeaderOptions) -> Result<Self> {
        let data = Device::open(context, &at.image, OpenMode::Write)?.with_zones()?;
        let locks = vec![lock::storage(&data, Mode::Exclusive)?];
        let header = at.header.as_deref().map(|path| Device::open(context, path, OpenMode::Header)).transpose()?;
        let header = header.filter(|device| device.identity() != data.identity());
        Self::of_devices(data, header, at, locks)
    }

    /// Opens the devices of a volume that another process has open, to begin a re-encryption of its header. Nothing is
    /// written: that process writes what [`Offline::staged`] returns.
    pub fn open_header(context: &Context, at: &HeaderOptions) -> Result<Self> {
        let open = |path: &Path| Device::open(context, path, OpenMode::Read)?.staged();
        let data = open(&at.image)?.with_zones()?;
        let header = at.header.as_deref().map(open).transpose()?;
        let header = header.filter(|device| device.identity() != data.identity());
        let (location, header) = load(&data, header, at)?;
        Self::of_header(data, (location, header), at, Vec::new())
    }

    /// Returns what the process of an open volume is to write to the header; `None`: nothing.
    pub fn staged(&self) -> Option<StagedHeader> {
        self.header.device.staged_header()
    }

    /// Returns the key of the old data of a re-encryption that has begun; `None`: they are plaintext.
    pub fn old_key(&self) -> Option<&VolumeKey> {
        self.unlocked.as_ref().and_then(|(_, keys)| keys.of(PieceState::Old))
    }

    /// Returns both keys of a re-encryption that has begun, for the process of an open volume.
    pub fn joined_key(&self) -> Result<VolumeKey> {
        Ok(self.unlocked.as_ref().ok_or_else(Error::no_key)?.1.joined())
    }

    /// Loads the header. `detached`: its device, if it is not that of the data.
    pub(super) fn of_devices(
        data: Device,
        detached: Option<Device>,
        at: &HeaderOptions,
        mut locks: Vec<DeviceLock>,
    ) -> Result<Self> {
        data.check_writable()?;
        if let Some(device) = detached.as_ref().filter(|device| !backing::overlap(&device.path, &data.path)) {
            locks.push(lock::storage(device, Mode::Exclusive)?);
        }
        let (location, header) = load(&data, detached, at)?;
        locks.push(lock::volume(&data, &VolumeName::of(&header.volume), Mode::Exclusive)?);
        Self::of_header(data, (location, header), at, locks)
    }

    fn of_header(
        data: Device,
        (location, header): (HeaderLocation, Header),
        at: &HeaderOptions,
        locks: Vec<DeviceLock>,
    ) -> Result<Self> {
        let lock = lock::reencryption(&data, header.volume.uuid(), Mode::Exclusive)?;
        // Loaded before the lock: another process may have gone on meanwhile.
        let header = Header { volume: Header::load_again(&header.device, at.luks)?, ..header };
        let header = match state_of(&header)? {
            Some(_) => Header { policy: at.policy.clone(), ..header },
            None => {
                let header = header.complying(at)?;
                header.check(&at.policy)?;
                check_place(&header, location, &data)?;
                zones::check_volume(&header.volume, &data, true)?;
                removed_integrity::check(&header.volume, &data, &at.policy)?;
                header
            }
        };
        if data.zones.is_some() {
            return Err(refused(&data, "its zones are written in order, and re-encryption writes in place"));
        }
        if header.volume.authenticated().is_ok_and(|segment| segment.is_some()) {
            return Err(refused(&data, "a volume with integrity protection cannot be re-encrypted"));
        }
        Ok(Self { data, header, unlocked: None, locks, _lock: lock })
    }

    /// Returns the data device with the lock on it, and releases the locks on the header.
    pub(super) fn into_locked(self) -> (Device, Vec<DeviceLock>) {
        (self.data, self.locks.into_iter().take(1).collect())
    }

    /// Returns the keys, and releases the volume.
    pub(super) fn into_keys(self) -> Result<ReencryptionKeys> {
        Ok(self.unlocked.ok_or_else(Error::no_key)?.1)
    }

    /// Returns it with the keys of a re-encryption that has begun.
    pub(super) fn unlocked_with(self, keys: ReencryptionKeys) -> Result<Self> {
        let state = state_of(&self.header)?;
        Ok(Self { unlocked: state.map(|state| (state, keys)), ..self })
    }

    /// Returns the header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the device with the data.
    pub fn data(&self) -> &Device {
        &self.data
    }

    /// Whether its re-encryption has begun.
    pub fn has_begun(&self) -> Result<bool> {
        Ok(self.keyslot()?.is_some())
    }

    /// Returns mode, direction and resilience of a re-encryption that has begun.
    pub fn keyslot(&self) -> Result<Option<ReencryptionKeyslot>> {
        Ok(state_of(&self.header)?.map(|state| state.keyslot))
    }

    /// Returns the numbers of the keyslots of the volume key.
    pub fn keyslots(&self) -> Vec<u32> {
        let status = |number| self.header.volume.keyslot_status(number);
        let numbers = (0..).take_while(|number| status(*number) != KeyslotStatus::Invalid);
        numbers.filter(|number| matches!(status(*number), KeyslotStatus::Active | KeyslotStatus::ActiveLast)).collect()
    }

    /// Asks for passphrases until one unlocks a re-encryption that has begun.
    pub fn unlock(&mut self, key: &KeyOptions, ask: Ask<'_>) -> Result<()> {
        let policy = self.header.policy.clone();
        self.unlocked = Some(self.header.unlock_reencryption(key, &policy, ask)?);
        Ok(())
    }

    /// Begins a re-encryption. The passphrases of `opened` open the new keyslots, of which the first has the number of
    /// [`NewParameters::keyslot`].
    ///
    /// # Errors
    ///
    /// Fails before it writes.
    pub fn begin(&mut self, new: &NewParameters, opened: &[OpenedKeyslot]) -> Result<()> {
        let key = &opened.first().ok_or_else(Error::no_key)?.key;
        self.begin_shifted(new, (key, opened), None)
    }

    /// Begins a re-encryption of the volume whose key is `old` without keyslots for the new key; all others are removed
    /// at the end.
    ///
    /// # Errors
    ///
    /// Fails before it writes, also if the new key is not given: it would be lost.
    pub fn begin_without_keyslots(&mut self, new: &NewParameters, old: &VolumeKey) -> Result<()> {
        if new.key.is_none() && !new.keeps_key {
            return Err(Error::no_key());
        }
        self.begin_shifted(new, (old, &[]), None)
    }

    /// Verifies the volume keys of a re-encryption that has begun. `new`: `None` if there is no other.
    pub fn unlock_with_keys(&mut self, old: VolumeKey, new: Option<VolumeKey>) -> Result<()> {
        let options = unlock_options(None, self.header.policy.clone());
        let confirmed =
            luks2_of(&self.header)?.confirm_reencryption_of(ReencryptionKeys::new(Some(old), new), &options);
        self.unlocked = Some(confirmed.map_err(cannot_unlock(self.header.path()))?);
        Ok(())
    }

    pub(super) fn begin_shifted(
        &mut self,
        new: &NewParameters,
        (key, opened): (&VolumeKey, &[OpenedKeyslot]),
        shift_and_moved: Option<(u64, u64)>,
    ) -> Result<()> {
        let (shift, moved_len) = shift_and_moved.unzip();
        if self.has_begun()? {
            let text = "LUKS2 reencryption already initialized. Aborting operation.";
            return Err(Error::new(ErrorKind::AlreadyReencrypted, text));
        }
        let segments = self.header.volume.segments().map_err(cannot_unlock(self.header.path()))?;
        let [present] = segments[..] else { return Err(refused(&self.data, "it has several segments")) };
        self.check_own_header(key, &segments)?;
        let side = self.new_side(new, &present)?;
        let keys = match new.mode {
            ReencryptionMode::Reencrypt if new.keeps_key => ReencryptionKeys::new(Some(copy(key)), None),
            ReencryptionMode::Reencrypt => ReencryptionKeys::new(Some(copy(key)), Some(new_key(new, key.len())?)),
            ReencryptionMode::Encrypt => ReencryptionKeys::new(None, Some(copy(key))),
            ReencryptionMode::Decrypt => ReencryptionKeys::new(Some(copy(key)), None),
        };
        if let (Some(side), Some(key)) = (&side, keys.of(PieceState::New)) {
            let refused = against_policy("The new cipher".to_owned());
            self.header.policy.check_new(side.cipher, key.len(), side.unit).map_err(refused)?;
            if new.keeps_key {
                let segment = Segment::whole(Some(side.cipher), side.unit);
                KeyCheck::new(&[segment], key).context("cannot use the new cipher")?;
            }
        }
        let has_new_key = new.mode == ReencryptionMode::Reencrypt && !new.keeps_key;
        let new_keyslot = |old: u32| new.other_keyslots.iter().find(|(number, _)| *number == old);
        let keyslots = opened.iter().filter(|_| has_new_key).map(|opened| ReencryptedKeyslot {
            old: opened.number,
            passphrase: &opened.passphrase,
            new: new_keyslot(opened.number).map_or(&new.keyslot, |(_, keyslot)| keyslot),
        });
        let is_forward = shift.is_some() || new.mode != ReencryptionMode::Decrypt;
        let direction = if is_forward { Direction::Forward } else { Direction::Backward };
        let unit = side.as_ref().map_or(present.unit, |side| side.unit.max(present.unit));
        let resilience = Resilience { protection: self.protection(new, unit, &present, shift), shift };
        let start = ReencryptionStart {
            keyslot: ReencryptionKeyslot::new(new.mode, direction, resilience),
            new: side.filter(|_| new.mode == ReencryptionMode::Reencrypt),
            keys: &keys,
            keyslots: keyslots.collect(),
            kdf: new.keyslot.kdf,
            hash: new.hash,
            device_len: self.data.len,
            data_len: new.data_len,
            moved_len,
        };
        let lock = lock::header(&self.header.device, Mode::Exclusive)?;
        let device = self.header.device.header()?;
        let path = self.header.device.path.clone();
        let Volume::Luks2(luks2) = &mut self.header.volume else { return Err(Error::not_luks2(&path)) };
        let state = luks2.start_reencryption(&device, &start).map_err(cannot_edit(&path))?;
        drop(lock);
        self.unlocked = Some((state, keys));
        Ok(())
    }

    /// Refuses a detached header if the device has one of another key, or of other data: that of the file is an old one,
    /// or of another device.
    fn check_own_header(&self, key: &VolumeKey, segments: &[Segment]) -> Result<()> {
        if self.header.volume.data_offset() == 0 || self.header.device.identity() == self.data.identity() {
            return Ok(());
        }
        let Ok(own) = Volume::load_despite_signatures(&self.data.header()?) else { return Ok(()) };
        let options = unlock_options(None, self.header.policy.clone());
        let is_this = own.segments().is_ok_and(|own| own == segments)
            && own.uuid() == self.header.volume.uuid()
            && own.unlock_with_volume_key(copy(key), &options).is_ok();
        match is_this {
            true => Ok(()),
            false => Err(refused(&self.data, "it has a LUKS header, which is not the one that --header names")),
        }
    }

    /// Returns cipher and data unit after the re-encryption; `None`: there is plaintext on one side.
    fn new_side(&self, new: &NewParameters, present: &Segment) -> Result<Option<NewSide>> {
        let Some(cipher) = present.cipher else { return Err(refused(&self.data, "it is not encrypted")) };
        let unit = new.unit.unwrap_or(present.unit);
        let len = new.data_len.unwrap_or(self.data.len - present.data_offset.to_bytes().unwrap_or(self.data.len));
        let behind = self.data.len.saturating_sub(present.data_offset.to_bytes().unwrap_or(u64::MAX));
        if len > behind {
            return Err(refused(&self.data, &format!("its data have {behind} bytes, and --device-size says {len}")));
        }
        if !len.is_multiple_of(unit.bytes() as u64) {
            let text = format!("Data device is not aligned to encryption sector size ({} bytes).", unit.bytes());
            return Err(Error::new(ErrorKind::UnitMisfit, text));
        }
        let side = NewSide { cipher: new.cipher.unwrap_or(cipher), unit };
        let is_same = side.cipher == cipher && side.unit == present.unit;
        if new.mode == ReencryptionMode::Reencrypt && new.keeps_key && is_same {
            let text = "No data segment parameters changed. Reencryption aborted.";
            return Err(Error::new(ErrorKind::CannotReencrypt, text));
        }
        Ok((new.mode == ReencryptionMode::Reencrypt).then_some(side))
    }

    fn protection(&self, new: &NewParameters, unit: DataUnitSize, present: &Segment, shift: Option<u64>) -> Protection {
        let len = self.data.len - present.data_offset.to_bytes().unwrap_or(0).min(self.data.len);
        let is_whole =
            len.is_multiple_of(CHECKSUM_BLOCK) && shift.is_none_or(|shift| shift.is_multiple_of(CHECKSUM_BLOCK));
        let least = if is_whole { CHECKSUM_BLOCK as u32 } else { 512 };
        match &new.protection {
            ZoneProtection::None => Protection::None,
            ZoneProtection::Journal => Protection::Journal,
            ZoneProtection::Checksum(hash) => {
                Protection::Checksum { hash: hash.clone(), block: least.max(unit.bytes() as u32) }
            }
        }
    }

    /// Checks the length of the data, in bytes, of a re-encryption that is unlocked.
    ///
    /// # Errors
    ///
    /// Fails if it has begun with another length.
    pub fn check_len(&self, asked: u64) -> Result<()> {
        let (state, _) = self.unlocked.as_ref().ok_or_else(Error::no_key)?;
        match state.len(self.data.len) {
            len if len == asked => Ok(()),
            len => Err(refused(&self.data, &format!("it has begun with {len} bytes, and --device-size says {asked}"))),
        }
    }

    /// Changes how zones are protected, of a re-encryption that is unlocked and has no zone to recover.
    ///
    /// # Errors
    ///
    /// Fails before it writes.
    pub fn change_protection(&mut self, protection: &ZoneProtection, kdf: KdfRequest) -> Result<()> {
        let Some((state, keys)) = &mut self.unlocked else { return Err(Error::no_key()) };
        let unit = state.old.unit.max(state.new.unit).bytes() as u32;
        let present = &state.keyslot.resilience;
        let protection = match (protection, &present.protection, present.shift, state.keyslot.mode) {
            // Its zones need none.
            (_, _, Some(_), ReencryptionMode::Encrypt) => Protection::None,
            (ZoneProtection::None, ..) => Protection::None,
            (ZoneProtection::Journal, ..) => Protection::Journal,
            (ZoneProtection::Checksum(hash), Protection::Checksum { block, .. }, ..) => {
                Protection::Checksum { hash: hash.clone(), block: *block }
            }
            (ZoneProtection::Checksum(hash), ..) => Protection::Checksum { hash: hash.clone(), block: unit.max(512) },
        };
        let resilience = Resilience { protection, shift: present.shift };
        if resilience == *present {
            return Ok(());
        }
        let _lock = lock::header(&self.header.device, Mode::Exclusive)?;
        let (device, path) = (self.header.device.header()?, self.header.device.path.clone());
        let Volume::Luks2(luks2) = &mut self.header.volume else { return Err(Error::not_luks2(&path)) };
        let changed = luks2.change_resilience(&device, state, keys, (resilience, Hash::Sha256, &kdf));
        *state = changed.map_err(cannot_edit(&path))?;
        Ok(())
    }

    /// Goes on with a re-encryption that is unlocked, to the end, or until `watch` stops it after a zone. `watch` takes
    /// the number of bytes that are done, and that of all. Returns whether it has reached the end. `keeps_holes`: holes
    /// of the store stay holes, and read as other bytes afterwards.
    ///
    /// # Errors
    ///
    /// Fails if a device fails. The volume stays one that can be opened, and whose re-encryption can go on.
    pub fn run(
        &mut self,
        longest_zone: Option<u64>,
        keeps_holes: bool,
        watch: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<bool> {
        let (state, keys) = self.unlocked.take().ok_or_else(Error::no_key)?;
        let store = self.data.store(IoMode::Sync, false, false);
        let store = store.with_context(|| format!("cannot use {}", self.data.path.display()))?;
        let device = self.header.device.header()?;
        let lock = || lock::header(&self.header.device, Mode::Exclusive);
        let sync = || store.sync().context("cannot flush");
        let syncs_header = self.header.device.is_synced_with(&self.data);
        let devices = Devices { header: &device, data: &*store, sync: &sync, syncs_header, lock: &lock };
        let mut driver = Driver::new(devices, luks2_of(&self.header)?.clone(), state, &keys, longest_zone)?;
        if keeps_holes {
            driver.keep_holes()?;
        }
        if let Some(recovered) = driver.recover()? {
            interrupted::tell(&self.data, &recovered);
        }
        let total = driver.total();
        if watch(driver.done(), total).is_break() {
            return Ok(false);
        }
        driver.run(&mut |done| watch(done, total))
    }

    /// Recovers the zone that was being written, of a re-encryption that is unlocked.
    ///
    /// # Errors
    ///
    /// Fails before it writes if nothing protects the zone.
    pub fn recover(mut self) -> Result<()> {
        let (_, keys) = self.unlocked.take().ok_or_else(Error::no_key)?;
        interrupted::recover(&self.data, &mut self.header, &keys, false)
    }
}

/// Loads the header, which is on `detached` or on the device of the data.
fn load(data: &Device, detached: Option<Device>, at: &HeaderOptions) -> Result<(HeaderLocation, Header)> {
    let location = if detached.is_some() { HeaderLocation::Detached } else { HeaderLocation::DataDevice };
    let header = Header::load_from(detached.unwrap_or_else(|| data.duplicate()), at.luks, false)?;
    header.check_luks2()?;
    Ok((location, header))
}

fn copy(key: &VolumeKey) -> VolumeKey {
    VolumeKey::new(key.as_bytes())
}

fn new_key(new: &NewParameters, old_len: usize) -> Result<VolumeKey> {
    if let Some(key) = &new.key {
        return Ok(copy(key));
    }
    let mut key = VolumeKey::zeroed(new.key_len.unwrap_or(old_len));
    getrandom::fill(key.as_mut_bytes()).context("cannot read random bytes")?;
    Ok(key)
}

/// The error of a volume that cannot be re-encrypted.
pub(super) fn refused(data: &Device, reason: &str) -> Error {
    let text = format!("The volume on {} cannot be re-encrypted: {reason}.", data.path.display());
    Error::new(ErrorKind::CannotReencrypt, text).about(&data.path)
}
