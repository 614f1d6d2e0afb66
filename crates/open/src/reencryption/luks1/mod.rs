//! Re-encryption of LUKS1 volumes that no process has open, as cryptsetup does it: with a log and both headers in files
//! of the current directory ([`inlock_volume::luks1::reencryption`]). Either program goes on with what the other has
//! begun, except that only Inlock finishes a zone that it was writing when it was killed.

mod begin;
mod files;
#[cfg(test)]
mod tests;
mod zones;

use std::fs::OpenOptions;
use std::ops::ControlFlow;
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use inlock_cipher::{CipherSpec, VolumeKey};
use inlock_engine::store::file::IoMode;
use inlock_volume::luks1::Luks1;
use inlock_volume::luks1::reencryption::{Lengths, Log, PLAIN_UUID, is_marked};
use inlock_volume::luks2::reencryption::{Direction, ReencryptionMode};
use inlock_volume::{HeaderBackup, HeaderLocation, LoadError, Volume};

pub use self::begin::NewLuks1;
use self::files::{Files, LEAST_ZONE, LogFile, ZoneFile, unusable};
use self::zones::{Place, Records, Zones, cannot_go_on};
use super::ciphers::Ciphers;
use super::offline::refused;
use crate::backing;
use crate::device::{Device, OpenMode};
use crate::durable;
use crate::error::{Error, ErrorKind, Result, ResultExt as _, cannot_load, cannot_unlock};
use crate::header::{Header, check_place, load_volume, unlock_options};
use crate::host::Context;
use crate::lock::{self, DeviceLock, Mode, VolumeName};
use crate::secret::Ask;
use crate::source::{HeaderOptions, KeyOptions};
use crate::zones as device_zones;

/// Longest zone unless another one is asked for.
const ZONE: u64 = 64 << 20;

/// Longest zone that is kept in memory.
const MAX_ZONE: u64 = 1 << 30;

/// What is at the start of the device of the header.
#[derive(Debug)]
pub enum Present {
    /// A LUKS1 header.
    Luks1(Box<Luks1>),
    /// The header of a volume in LUKS1 re-encryption, which has this UUID.
    Marked(String),
    /// Another header.
    Other,
    /// No header.
    Nothing,
}

impl Present {
    /// Returns what is on the device that has, or gets, the header.
    pub fn find(context: &Context, at: &HeaderOptions) -> Result<Self> {
        match at.header.as_deref().filter(|header| !header.exists()) {
            Some(_) => Ok(Self::Nothing),
            None => {
                let path = at.header.as_deref().unwrap_or(&at.image);
                Self::on(&Device::open(context, path, OpenMode::Read)?)
            }
        }
    }

    fn on(device: &Device) -> Result<Self> {
        let _lock = lock::header(device, Mode::Shared)?;
        match load_volume(device.context(), &device.header()?) {
            Ok(Volume::Luks1(luks1)) => Ok(Self::Luks1(luks1)),
            Ok(_) => Ok(Self::Other),
            Err(LoadError::Luks1Reencrypted { uuid }) => Ok(Self::Marked(uuid)),
            Err(LoadError::NotLuks) => Ok(Self::Nothing),
            Err(error @ LoadError::Io(_)) => Err(cannot_load(&device.path)(error)),
            // Damaged: no plaintext to encrypt.
            Err(_) => Ok(Self::Other),
        }
    }
}

/// A volume to re-encrypt.
#[derive(Debug)]
pub struct Luks1Options<'a> {
    /// Device and header.
    pub at: &'a HeaderOptions,
    /// Change of the data. [`ReencryptionMode::Reencrypt`] goes on with any.
    pub mode: ReencryptionMode,
    /// UUID of a volume whose decryption has destroyed its header.
    pub uuid: Option<&'a str>,
    /// Directory of the files.
    pub directory: &'a Path,
}

/// Where a re-encryption is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    New,
    Begun,
    /// Only the files are left.
    Finished,
}

/// Cipher and key of the data before or after; `None`: plaintext.
type SideKey = Option<(CipherSpec, VolumeKey)>;

/// A volume whose data are on their way from one header to another.
struct Sides {
    place: Place,
    old: SideKey,
    new: SideKey,
}

/// A LUKS1 volume that no other process uses, to re-encrypt.
pub struct Luks1Offline {
    data: Device,
    /// Device of a detached header.
    detached: Option<Device>,
    /// File of a detached header, which an encryption creates.
    missing_header: Option<PathBuf>,
    /// The header, of a volume whose re-encryption has not begun.
    header: Option<Header>,
    files: Files,
    log: Option<LogFile>,
    headers: Option<[HeaderBackup; 2]>,
    stage: Stage,
    sides: Option<Sides>,
    _locks: Vec<DeviceLock>,
}

impl Luks1Offline {
    /// Opens and locks the devices of a volume and the log of its re-encryption, if that has begun.
    ///
    /// # Errors
    ///
    /// Fails, without a change, if the volume or its files cannot be used, or not for this change.
    pub fn open(context: &Context, options: &Luks1Options<'_>) -> Result<Self> {
        let at = options.at;
        let data = Device::open(context, &at.image, OpenMode::Write)?.with_zones()?;
        data.check_writable()?;
        if data.zones.is_some() {
            return Err(refused(&data, "its zones are written in order, and re-encryption writes in place"));
        }
        let mut locks = vec![lock::storage(&data, Mode::Exclusive)?];
        let missing = at.header.clone().filter(|path| options.mode == ReencryptionMode::Encrypt && !path.exists());
        let detached = match (&missing, at.header.as_deref()) {
            (None, Some(path)) => Some(Device::open(context, path, OpenMode::Header)?),
            _ => None,
        };
        let detached = detached.filter(|device| {
            device.identity() != data.identity() && backing::distance(&device.path, &data.path) != Some(0)
        });
        if let Some(device) = detached.as_ref().filter(|device| !backing::overlap(&device.path, &data.path)) {
            locks.push(lock::storage(device, Mode::Exclusive)?);
        }
        let present =
            if missing.is_some() { Present::Nothing } else { Present::on(detached.as_ref().unwrap_or(&data))? };
        let uuid = uuid_of(&present, options, detached.as_ref().unwrap_or(&data))?;
        if let Present::Luks1(luks1) = &present {
            locks.push(lock::volume(&data, &VolumeName::of(&Volume::Luks1(luks1.clone())), Mode::Exclusive)?);
        }
        let files = Files::new(options.directory, &uuid);
        let log = LogFile::open(&files)?;
        let mut opened = Self {
            data,
            detached,
            missing_header: missing,
            header: None,
            files,
            log,
            headers: None,
            stage: Stage::New,
            sides: None,
            _locks: locks,
        };
        match opened.log.is_some() {
            true => opened.load_begun(options, &present)?,
            false => opened.check_new(options, &present)?,
        }
        if let (Stage::New, Present::Luks1(luks1)) = (opened.stage, present) {
            opened.header = Some(opened.usable_header(luks1, at)?);
        }
        Ok(opened)
    }

    /// Returns the header of a volume whose re-encryption has not begun, if that complies with the policy.
    fn usable_header(&self, luks1: Box<Luks1>, at: &HeaderOptions) -> Result<Header> {
        let location = if self.detached.is_some() { HeaderLocation::Detached } else { HeaderLocation::DataDevice };
        let header = Header {
            device: self.header_device().duplicate(),
            volume: Volume::Luks1(luks1),
            policy: at.policy.clone(),
        };
        let header = header.complying(at)?;
        header.check(&at.policy)?;
        check_place(&header, location, &self.data)?;
        device_zones::check_volume(&header.volume, &self.data, true)?;
        Ok(header)
    }

    /// Checks that a re-encryption can begin.
    fn check_new(&self, options: &Luks1Options<'_>, present: &Present) -> Result<()> {
        let path = &self.header_device().path;
        match (options.mode, present, self.files.left()) {
            (_, Present::Marked(_), _) => {
                let text = format!(
                    "Device {} is in LUKS1 re-encryption, but {} does not exist.",
                    path.display(),
                    self.files.log().display()
                );
                Err(Error::new(ErrorKind::NoReencryptionLog, text).about(path))
            }
            (_, _, Some(left)) => {
                let text = format!("File {} is left of a re-encryption that has no log.", left.display());
                Err(Error::new(ErrorKind::ReencryptionFileLeft, text).about(&left))
            }
            (ReencryptionMode::Encrypt, Present::Nothing, _) => match Present::on(&self.data)? {
                Present::Nothing => Ok(()),
                _ => Err(already_luks(&self.data.path)),
            },
            (ReencryptionMode::Encrypt, ..) => Err(already_luks(path)),
            (_, Present::Luks1(_), _) if options.uuid.is_none() => Ok(()),
            // There is a UUID.
            _ => Err(no_decryption()),
        }
    }

    /// Loads the headers of a re-encryption that has begun, and checks that they are those of the device.
    fn load_begun(&mut self, options: &Luks1Options<'_>, present: &Present) -> Result<()> {
        let log = self.log()?.log.clone();
        if ![ReencryptionMode::Reencrypt, log.mode].contains(&options.mode) {
            let text = format!("The re-encryption has begun with another change: {}.", log.mode.name());
            return Err(Error::new(ErrorKind::OtherReencryption, text).about(&self.files.log()));
        }
        let old = self.files.read_header(&self.files.old_header())?;
        let new = self.files.read_header(&self.files.new_header())?;
        self.check_name(&log)?;
        if is_over(&log, present, old.as_ref(), new.as_ref()) {
            self.stage = Stage::Finished;
            return Ok(());
        }
        let is_untouched = match present {
            Present::Luks1(present) => old.as_ref().is_none_or(|old| is_same(present, old)),
            Present::Nothing => log.mode == ReencryptionMode::Encrypt,
            Present::Marked(_) | Present::Other => false,
        };
        let (old, new) = match (old, new) {
            (Some(old), Some(new)) => (old, new),
            (..) if is_untouched && log.is_initial() && !log.has_zone => return self.forget(),
            (None, _) => return Err(unusable(&self.files.old_header(), "there is no whole LUKS1 header in it")),
            (_, None) => return Err(unusable(&self.files.new_header(), "there is no whole LUKS1 header in it")),
        };
        if log.mode == ReencryptionMode::Reencrypt && luks1_of(&new)?.uuid() != log.uuid {
            return Err(unusable(&self.files.new_header(), "it has the header of another volume"));
        }
        let place = self.place(&log, [&old, &new])?;
        let is_ended = match present {
            Present::Luks1(present) => is_same(present, &new) && !is_same(present, &old),
            _ => false,
        };
        self.stage = if is_ended { Stage::Finished } else { Stage::Begun };
        if !is_ended {
            self.check_present(&log, present, &old)?;
            self.check_offset(&log, &place)?;
        }
        self.headers = Some([old, new]);
        Ok(())
    }

    /// Checks that the device has the name of when it has begun, if its UUID does not tell it from others.
    fn check_name(&self, log: &Log) -> Result<()> {
        match &log.name {
            Some(name) if *name != self.files.name_of(&self.data) => {
                let path = self.data.path.display();
                let reason = "it is that of a device with another name; end that one first, or begin";
                Err(unusable(&self.files.log(), &format!("{reason} {path} in another directory")))
            }
            _ => Ok(()),
        }
    }

    /// Removes the files of a re-encryption that was stopped before all of them were written.
    fn forget(&mut self) -> Result<()> {
        self.log = None;
        self.files.remove()
    }

    /// Checks that the device has the header of before, or what is left of it.
    fn check_present(&self, log: &Log, present: &Present, old: &HeaderBackup) -> Result<()> {
        let path = &self.header_device().path;
        let fits = match (present, log.mode) {
            (Present::Luks1(present), _) => is_same(present, old) && log.is_initial(),
            (Present::Marked(_), ReencryptionMode::Reencrypt | ReencryptionMode::Decrypt) => {
                is_marked(&self.header_device().header()?, luks1_of(old)?)?
            }
            // Its first data are plaintext.
            (Present::Nothing | Present::Other, ReencryptionMode::Decrypt) => self.detached.is_none(),
            (Present::Nothing, ReencryptionMode::Encrypt) => true,
            _ => false,
        };
        let is_length_same = log.lengths.is_none_or(|lengths| lengths.device == self.data.len);
        match (fits, is_length_same) {
            (true, true) => Ok(()),
            (false, _) => Err(unusable(
                &self.files.log(),
                &format!("device {} does not have the header of this re-encryption", path.display()),
            )),
            (true, false) => Err(unusable(
                &self.files.log(),
                &format!("device {} has another length than when it has begun", self.data.path.display()),
            )),
        }
    }

    fn check_offset(&self, log: &Log, place: &Place) -> Result<()> {
        if log.is_initial() || log.offset <= place.len && log.offset.is_multiple_of(512) {
            return Ok(());
        }
        let reason = format!("its offset is {}, and the data have {} bytes", log.offset, place.len);
        Err(unusable(&self.files.log(), &reason))
    }

    /// Returns the place of the data, as the headers tell.
    fn place(&self, log: &Log, [old, new]: [&HeaderBackup; 2]) -> Result<Place> {
        for (header, path, is_plain) in [
            (old, self.files.old_header(), log.mode == ReencryptionMode::Encrypt),
            (new, self.files.new_header(), log.mode == ReencryptionMode::Decrypt),
        ] {
            if luks1_of(header)?.is_plain() != is_plain {
                return Err(unusable(&path, &format!("it does not belong to the change '{}'", log.mode.name())));
            }
        }
        let (old, new) = (old.volume().data_offset(), new.volume().data_offset());
        let room = self.data.len.saturating_sub(old.max(new));
        let whole = room - room % 512;
        let len = log.lengths.map_or(whole, |lengths| lengths.data);
        let fits = match log.direction {
            Direction::Forward => new <= old,
            Direction::Backward => new >= old,
        };
        if !fits || len == 0 || len > whole || !len.is_multiple_of(512) {
            return Err(refused(&self.data, "its data do not have the place of the headers of the re-encryption"));
        }
        Ok(Place { old, new, len, direction: log.direction })
    }

    /// Returns the device of the header, which a missing one would be on otherwise.
    fn header_device(&self) -> &Device {
        self.detached.as_ref().unwrap_or(&self.data)
    }

    fn log(&self) -> Result<&LogFile> {
        self.log.as_ref().ok_or_else(|| Error::new(ErrorKind::NotReencrypted, "Device reencryption not in progress."))
    }

    /// Whether the re-encryption has begun, so that it has to be unlocked rather than begun.
    pub fn has_begun(&self) -> bool {
        self.stage == Stage::Begun
    }

    /// Whether nothing but the removal of the files is missing.
    pub fn is_finished(&self) -> bool {
        self.stage == Stage::Finished
    }

    /// Returns the header of a volume whose re-encryption has not begun.
    pub fn header(&self) -> Option<&Header> {
        self.header.as_ref()
    }

    /// Whether the header is, or will be, on another device than the data.
    pub fn is_detached(&self) -> bool {
        self.detached.is_some() || self.missing_header.is_some()
    }

    /// Returns the change of the data of a re-encryption that has begun.
    pub fn mode(&self) -> Option<ReencryptionMode> {
        self.log.as_ref().map(|log| log.log.mode)
    }

    /// Returns the path of the log.
    pub fn log_path(&self) -> PathBuf {
        self.files.log()
    }

    /// Returns the UUID by which the files are named.
    pub fn uuid(&self) -> &str {
        self.files.uuid()
    }

    /// Asks for passphrases until one unlocks both sides of a re-encryption that has begun. `data_len`: length of the
    /// data in bytes, if the user gives it.
    ///
    /// # Errors
    ///
    /// Fails if none does, or if the re-encryption has begun with another length.
    pub fn unlock(&mut self, key: &KeyOptions, data_len: Option<u64>, ask: Ask<'_>) -> Result<()> {
        let [old, new] = self.headers.as_ref().ok_or_else(Error::no_key)?;
        let (log, is_decryption) = (self.log()?.log.clone(), self.mode() == Some(ReencryptionMode::Decrypt));
        let mut place = self.place(&log, [old, new])?;
        match (log.lengths, data_len) {
            (Some(Lengths { data, .. }), Some(asked)) if asked != data => {
                return Err(refused(
                    &self.data,
                    &format!("it has begun with {data} bytes, and --device-size says {asked}"),
                ));
            }
            (None, Some(asked)) if asked > 0 && asked <= place.len && asked.is_multiple_of(512) => place.len = asked,
            (None, Some(asked)) => {
                let text = format!("its data have {} bytes, and --device-size says {asked}", place.len);
                return Err(refused(&self.data, &text));
            }
            _ => {}
        }
        self.check_offset(&log, &place)?;
        let (asked, path) = match is_decryption {
            true => (old, self.files.old_header()),
            false => (new, self.files.new_header()),
        };
        let device = Device::open(ask.context, &path, OpenMode::Read)?;
        let header =
            Header { device, volume: asked.volume().clone(), policy: unlock_options(None, Default::default()).policy };
        let opened = header.open_keyslot(key, ask)?;
        let side = |backup: &HeaderBackup, path: &Path| -> Result<SideKey> {
            let luks1 = luks1_of(backup)?;
            if luks1.is_plain() {
                return Ok(None);
            }
            let file = inlock_volume::MemoryDevice::new(backup.bytes().to_vec());
            let unlocked = luks1.unlock(&file, &opened.passphrase, &unlock_options(None, header.policy.clone()));
            let unlocked = unlocked.map_err(cannot_unlock(path))?;
            Ok(unlocked.segments.first().and_then(|segment| segment.cipher).map(|cipher| (cipher, unlocked.key)))
        };
        let (old, new) = (side(old, &self.files.old_header())?, side(new, &self.files.new_header())?);
        self.sides = Some(Sides { place, old, new });
        Ok(())
    }

    /// Goes on to the end, or until `watch` stops it after a zone. `watch` takes the number of bytes that are done, and
    /// that of all. Returns whether it has reached the end. `longest_zone`: in bytes; `None`: the default.
    ///
    /// # Errors
    ///
    /// Fails if a device or a file cannot be written. The re-encryption can go on then.
    pub fn run(
        &mut self,
        longest_zone: Option<u64>,
        watch: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<bool> {
        if self.stage == Stage::Finished {
            return self.files.remove().map(|()| true);
        }
        let sides = self.sides.take().ok_or_else(Error::no_key)?;
        self.mark()?;
        let is_same_content = match (&sides.old, &sides.new) {
            (Some((old, old_key)), Some((new, new_key))) => {
                sides.place.shift() == 0 && old == new && old_key.as_bytes() == new_key.as_bytes()
            }
            _ => false,
        };
        if !is_same_content && !self.run_zones(&sides, longest_zone, watch)? {
            return Ok(false);
        }
        self.finish(&sides)?;
        Ok(true)
    }

    /// Marks the header, unless that was done or there is none.
    fn mark(&self) -> Result<()> {
        let (Some([old, _]), Some(mode)) = (&self.headers, self.mode()) else { return Ok(()) };
        if mode == ReencryptionMode::Encrypt {
            return Ok(());
        }
        let device = self.header_device();
        let _lock = lock::header(device, Mode::Exclusive)?;
        match Present::on_locked(device)? {
            Present::Luks1(_) => {
                let marked = luks1_of(old)?.mark_reencrypted(&device.header()?);
                marked.with_context(|| format!("cannot mark the header on {}", device.path.display()))
            }
            _ => Ok(()),
        }
    }

    fn run_zones(
        &mut self,
        sides: &Sides,
        longest_zone: Option<u64>,
        watch: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<bool> {
        let Some(log) = self.log.take() else { return Err(Error::no_key()) };
        let store = self.data.store(IoMode::Sync, false, false);
        let store = store.with_context(|| format!("cannot use {}", self.data.path.display()))?;
        let ciphers = ciphers_of(sides)?;
        let place = sides.place;
        let is_kept = place.shift() < LEAST_ZONE;
        let mut zones = Zones {
            store: &*store,
            ciphers: &ciphers,
            place,
            offset: if log.log.offset == Log::NOT_BEGUN { place.len } else { log.log.offset },
            limit: limit_of(longest_zone, place),
            is_kept,
            is_decryption: sides.new.is_none(),
        };
        let mut progress = Progress { log, zone: None, lengths: Lengths { data: place.len, device: self.data.len } };
        if progress.log.log.has_zone {
            let kept = ZoneFile::kept(&self.files).map_err(|error| lost_zone(&self.files, error))?;
            let is_whole = kept.as_ref().is_some_and(|kept| zones.is_in_flight(kept));
            if progress.log.log.is_writing && !is_whole {
                let reason = "it is damaged, or that of another zone, and the zone was being written";
                let error = unusable(&self.files.zone(), reason);
                self.log = Some(progress.log);
                return Err(error);
            }
            progress.zone = Some(ZoneFile::allocate(&self.files, zones.limit)?);
            if let Some(kept) = kept {
                zones.redo(kept, &mut progress)?;
            }
        } else if is_kept {
            // One that is left is of a zone that was finished.
            self.files.remove_zone()?;
            progress.zone = Some(ZoneFile::allocate(&self.files, zones.limit)?);
        }
        zones.limit = progress.zone.as_ref().map_or(zones.limit, |file| file.room.min(zones.limit));
        progress.advance(zones.offset)?;
        let total = place.len;
        let is_stopped = watch(zones.done(), total).is_break() && zones.done() < total;
        let has_ended = !is_stopped && zones.run(&mut progress, &mut |done| watch(done, total))?;
        // No zone is in flight: cryptsetup can go on.
        progress.zone = None;
        progress.advance(zones.offset)?;
        self.files.remove_zone()?;
        if has_ended {
            zones.clear(self.leftover(&place)?)?;
        }
        self.log = Some(progress.log);
        Ok(has_ended)
    }

    /// Returns the range of the device that has old data outside of the new ones, and nothing else.
    fn leftover(&self, place: &Place) -> Result<Range<u64>> {
        let Some([old, new]) = &self.headers else { return Ok(0..0) };
        let is_whole = self.data.len - place.old.max(place.new) - place.len < 512;
        Ok(match (luks1_of(old)?.is_plain(), luks1_of(new)?.is_plain()) {
            // Between the header and the data.
            (true, _) => new.volume().header_len().next_multiple_of(512).min(place.new)..place.new,
            // Behind the plaintext.
            (_, true) if is_whole => place.len..place.old + place.len,
            _ => 0..0,
        })
    }

    /// Writes the new header, and removes the files.
    fn finish(&mut self, sides: &Sides) -> Result<()> {
        if sides.new.is_some() {
            self.restore_header()?;
        }
        self.stage = Stage::Finished;
        self.log = None;
        self.files.remove()
    }

    fn restore_header(&self) -> Result<()> {
        let Some([_, new]) = &self.headers else { return Ok(()) };
        let cannot_write = |path: &Path| format!("cannot write the header on {}", path.display());
        if let Some(path) = &self.missing_header {
            let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path);
            let written = file.and_then(|file| {
                file.write_all_at(new.bytes(), 0)?;
                file.sync_all()?;
                Ok(file)
            });
            return durable::sync_name(&written.with_context(|| cannot_write(path))?, path);
        }
        let device = self.header_device();
        let _lock = lock::header(device, Mode::Exclusive)?;
        if !device.is_block() && self.detached.is_some() {
            let file = device.share()?;
            let len = file.metadata()?.len().max(new.bytes().len() as u64);
            file.set_len(len).with_context(|| cannot_write(&device.path))?;
        }
        new.replace_marked(&device.header()?).with_context(|| cannot_write(&device.path))
    }
}

impl Present {
    /// As [`Present::on`], under a lock of the caller.
    fn on_locked(device: &Device) -> Result<Self> {
        Ok(match load_volume(device.context(), &device.header()?) {
            Ok(Volume::Luks1(luks1)) => Self::Luks1(luks1),
            _ => Self::Other,
        })
    }
}

/// The log and the file of the zone in flight.
struct Progress {
    log: LogFile,
    zone: Option<ZoneFile>,
    lengths: Lengths,
}

impl Records for Progress {
    fn keep(&mut self, zone: &Range<u64>, data: &[u8], is_new: bool) -> Result<()> {
        match &self.zone {
            Some(file) => {
                file.keep(zone, data, is_new)?;
                // From here on, the file has to be whole.
                let log = Log { is_writing: true, has_zone: true, ..self.log.log.clone() };
                self.log.write(log)
            }
            None => Err(cannot_go_on("a zone has no place where it is kept")),
        }
    }

    fn advance(&mut self, offset: u64) -> Result<()> {
        let (has_zone, lengths) = (self.zone.is_some(), Some(self.lengths));
        let log = Log { offset, lengths, has_zone, is_writing: false, ..self.log.log.clone() };
        self.log.write(log)
    }
}

/// Whether a re-encryption has ended whose files were removed in part. A device in re-encryption is marked, or has no
/// header.
fn is_over(log: &Log, present: &Present, old: Option<&HeaderBackup>, new: Option<&HeaderBackup>) -> bool {
    match (old, new) {
        (Some(_), _) => false,
        (None, Some(new)) => matches!(present, Present::Luks1(present) if is_same(present, new)),
        (None, None) => matches!(present, Present::Luks1(_)) && log.is_at_end() && !log.is_initial(),
    }
}

/// Returns the ciphers of both sides.
fn ciphers_of(sides: &Sides) -> Result<Ciphers> {
    let [old, new] = [&sides.old, &sides.new].map(|side| side.as_ref().map(|(spec, key)| (spec, key)));
    Ciphers::of_sectors(old, new).context("cannot use the ciphers of the re-encryption")
}

/// Returns the length of the longest zone.
fn limit_of(asked: Option<u64>, place: Place) -> u64 {
    let asked = asked.unwrap_or(ZONE).min(MAX_ZONE).min(place.len.next_multiple_of(512));
    let longest = if place.shift() < LEAST_ZONE { asked } else { asked.min(place.shift()) };
    (longest - longest % 512).max(512)
}

fn lost_zone(files: &Files, error: Error) -> Error {
    let text =
        format!("The zone that was being re-encrypted is only in {}, which cannot be read", files.zone().display());
    Error::with_source(ErrorKind::ReencryptionFile, text, error).about(&files.zone())
}

/// Returns the UUID after which the files are named.
fn uuid_of(present: &Present, options: &Luks1Options<'_>, header: &Device) -> Result<String> {
    match (options.mode, present) {
        (ReencryptionMode::Encrypt, _) => Ok(PLAIN_UUID.to_owned()),
        (_, Present::Luks1(luks1)) if options.uuid.is_some_and(|uuid| uuid != luks1.uuid()) => Err(no_decryption()),
        (_, Present::Luks1(luks1)) if luks1.uuid().bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-') => {
            Ok(luks1.uuid().to_owned())
        }
        (_, Present::Luks1(_)) => Err(refused(header, "its UUID is damaged; set one with `luksUUID --uuid`")),
        (_, Present::Marked(uuid)) => Ok(uuid.clone()),
        (_, Present::Other) if options.uuid.is_none() => Err(Error::not_luks(&header.path, Some(2))),
        _ => match options.uuid {
            Some(uuid) if uuid.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-') && uuid.len() == 36 => {
                Ok(uuid.to_owned())
            }
            Some(_) => Err(Error::new(ErrorKind::InvalidUuid, "Wrong LUKS UUID format provided.")),
            None => Err(Error::not_luks(&header.path, None)),
        },
    }
}

fn is_same(present: &Luks1, backup: &HeaderBackup) -> bool {
    Volume::Luks1(Box::new(present.clone())).is_same_header(backup.volume())
}

fn luks1_of(backup: &HeaderBackup) -> Result<&Luks1> {
    match backup.volume() {
        Volume::Luks1(luks1) => Ok(luks1),
        _ => Err(cannot_go_on("a header of it is not LUKS1")),
    }
}

fn no_decryption() -> Error {
    let text = "No decryption in progress, provided UUID can be used only to resume suspended decryption process.";
    Error::new(ErrorKind::NoReencryptionLog, text)
}

fn already_luks(path: &Path) -> Error {
    let text = format!("Device {} is already LUKS device. Aborting operation.", path.display());
    Error::new(ErrorKind::CannotReencrypt, text).about(path)
}
