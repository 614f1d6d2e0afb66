//! Beginning to encrypt or to decrypt a device: room for a header is made at its start, or given back.
//!
//! The data move by the length of the header. The first of them are moved out of its way before the header says so, and
//! come last:
//!
//! - to encrypt, they go to the end of the device, whose last part the user has freed. The header goes behind the data
//!   first, where the last data will be, so that a second attempt after a power cut does not move what the first one has
//!   overwritten;
//! - to decrypt, the header goes to a file, its magics are cleared, and the first data take its place.

use std::io;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use inlock_engine::BackingStore;
use inlock_engine::store::file::IoMode;
use inlock_engine::store::{read_all, write_all};
use inlock_volume::luks2::reencryption::{
    Direction, Protection, ReencryptionKeys, ReencryptionKeyslot, ReencryptionMode, ReencryptionStart, Resilience,
};
use inlock_volume::luks2::{DEFAULT_METADATA_LEN, Luks2};
use inlock_volume::{DataUnitSize, HeaderBackup, HeaderDevice, LoadError, Secret, Volume};

use super::file_system;
use super::interrupted::luks2_of;
use super::offline::{NewParameters, Offline, ZoneProtection, refused};
use crate::create::{CreateOptions, Format, NewVolume, Placement};
use crate::device::{Device, OpenMode};
use crate::durable;
use crate::edit::OpenedKeyslot;
use crate::error::{Error, ErrorKind, Result, ResultExt as _, cannot_edit};
use crate::header::load_volume;
use crate::header_backup;
use crate::host::Context;
use crate::lock::{self, Mode};
use crate::remote;
use crate::source::{HeaderOptions, Luks};

/// Bytes that a disk writes whole or not at all.
const SECTOR: usize = 512;

/// Bytes that are copied at once.
const CHUNK: u64 = 1 << 20;

/// Bytes of a copy of the header before its metadata.
const BLOCK_LEN: u64 = 4096;

/// A header in the making, in memory: the start of a device.
struct Draft {
    bytes: Mutex<Vec<u8>>,
    device_len: u64,
}

impl HeaderDevice for Draft {
    fn len(&self) -> io::Result<u64> {
        Ok(self.device_len)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let start = usize::try_from(offset).map_or(bytes.len(), |offset| offset.min(bytes.len()));
        let found = &bytes[start..(start + buf.len()).min(bytes.len())];
        buf[..found.len()].copy_from_slice(found);
        buf[found.len()..].fill(0);
        Ok(())
    }

    /// What is behind the header is not written: there are data.
    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let start = usize::try_from(offset).map_or(bytes.len(), |offset| offset.min(bytes.len()));
        let end = (start + data.len()).min(bytes.len());
        bytes[start..end].copy_from_slice(&data[..end - start]);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A volume to encrypt.
#[derive(Debug)]
pub struct NewEncryption<'a> {
    /// The header. [`CreateOptions::header`] is `None` with a shift.
    pub create: &'a CreateOptions,
    /// The re-encryption.
    pub parameters: &'a NewParameters,
    /// Its passphrase.
    pub passphrase: &'a Secret,
    /// A file system may be longer than the data that are kept.
    pub cuts_file_system: bool,
}

impl NewEncryption<'_> {
    /// Begins to encrypt a device whose header is another device or file, which is created.
    ///
    /// # Errors
    ///
    /// Fails if the header cannot be created; before it writes if it would replace one, or the device has one.
    pub fn begin_detached(&self, context: &Context) -> Result<Offline> {
        let header = self.create.header.as_deref();
        let present = header.filter(|path| path.exists());
        for path in [Some(&*self.create.image), present].into_iter().flatten() {
            check_no_header(&Device::open(context, path, OpenMode::Read)?)?;
        }
        let Some(path) = header.filter(|path| present.is_none() && remote::uri_of(path).is_none()) else {
            return self.begin_with_header_of(context, self.create);
        };
        // A header file that says nothing of the encryption yet would be that of an encrypted device.
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let cannot_create = || format!("cannot create header file {}", path.display());
        let file = tempfile::NamedTempFile::new_in(parent).with_context(cannot_create)?;
        let create = CreateOptions { header: Some(file.path().to_owned()), ..self.create.clone() };
        let keys = self.begin_with_header_of(context, &create)?.into_keys()?;
        let file = file.persist_noclobber(path).map_err(|error| error.error).with_context(cannot_create)?;
        durable::sync_name(&file, path)?;
        Offline::open(context, &at(self.create))?.unlocked_with(keys)
    }

    fn begin_with_header_of(&self, context: &Context, create: &CreateOptions) -> Result<Offline> {
        let Self { parameters, passphrase, .. } = self;
        let volume = NewVolume::prepare(context, create)?;
        let mut key = inlock_cipher::VolumeKey::zeroed(create.key_len);
        match &parameters.key {
            Some(given) => key.as_mut_bytes().copy_from_slice(given.as_bytes()),
            None => getrandom::fill(key.as_mut_bytes()).context("cannot read random bytes")?,
        }
        let copy = inlock_cipher::VolumeKey::new(key.as_bytes());
        volume.create(passphrase, Some(copy), |_| std::ops::ControlFlow::Continue(()))?;
        let mut offline = Offline::open(context, &at(create))?;
        let passphrase = Secret::new(passphrase.as_bytes().to_vec());
        offline.begin(parameters, &[OpenedKeyslot { number: create.keyslot, key, passphrase }])?;
        Ok(offline)
    }

    /// Begins to encrypt a device whose last `2 * shift` bytes have no data: the data move by `shift` bytes, to make
    /// room for the header, and as many bytes at the end keep the first data meanwhile. What is between the new place
    /// of shorter data and these is not touched.
    ///
    /// # Errors
    ///
    /// Fails before it writes if the device has a LUKS header or is too small.
    pub fn begin_with_shift(&self, context: &Context, shift: u64) -> Result<Offline> {
        let data = Device::open(context, &self.create.image, OpenMode::Write)?.with_zones()?;
        data.check_writable()?;
        if data.zones.is_some() {
            return Err(refused(&data, "its zones are written in order, and re-encryption writes in place"));
        }
        let locks = vec![lock::whole_device(&data, Mode::Exclusive)?];
        check_no_header(&data)?;
        let unit = self.parameters.unit.unwrap_or(DataUnitSize::SECTOR);
        let len = len_with_shift(&data, shift, unit, self.parameters.data_len)?;
        let store = data.store(IoMode::Sync, false, false);
        let store = store.with_context(|| format!("cannot use {}", data.path.display()))?;
        let start = Start { store: &*store, shift, len };
        if let Some(header) = start.interrupted(&data)? {
            start.write(&data, &header)?;
            let path = data.path.display();
            let text = format!("The encryption of {path} had begun, and its header was not complete; it is now.");
            return Err(Error::new(ErrorKind::AlreadyReencrypted, text).about(&data.path));
        }
        if !self.cuts_file_system {
            file_system::check(&data, len)?;
        }
        let (header, keys) = self.header_for(&data, shift, unit, len)?;
        copy(&*store, 0, data.len - shift, shift.min(len))?;
        start.write(&data, &header)?;
        Offline::of_devices(data, None, &at(self.create), locks)?.unlocked_with(keys)
    }

    /// Returns the header of an encryption that has begun, and its keys.
    fn header_for(
        &self,
        data: &Device,
        shift: u64,
        unit: DataUnitSize,
        len: u64,
    ) -> Result<(Vec<u8>, ReencryptionKeys)> {
        let Self { create, parameters, passphrase, .. } = self;
        let draft = Draft { bytes: Mutex::new(vec![0; shift as usize]), device_len: data.len };
        let mut format = Format::new(create, Placement { offset: Some(shift / 512), unit: Some(unit) });
        if format.least_header_len() > shift {
            let text = format!(
                "The header takes {} bytes; reduce the device by at least twice as much.",
                format.least_header_len()
            );
            return Err(Error::new(ErrorKind::CannotReencrypt, text));
        }
        if let Some(key) = &parameters.key {
            format.set_key(inlock_cipher::VolumeKey::new(key.as_bytes()));
        }
        let key = format.make_key().context("cannot make a header")?;
        format.write(&draft, None, passphrase).context("cannot make a header")?;
        let keys = ReencryptionKeys::new(None, key);
        let mut luks2 = Luks2::load(&draft).context("cannot make a header")?;
        let resilience = Resilience { protection: Protection::None, shift: Some(shift) };
        let start = ReencryptionStart {
            keyslot: ReencryptionKeyslot::new(ReencryptionMode::Encrypt, Direction::Backward, resilience),
            new: None,
            keys: &keys,
            keyslots: Vec::new(),
            kdf: parameters.keyslot.kdf,
            hash: parameters.hash,
            device_len: data.len,
            data_len: Some(len),
            moved_len: None,
        };
        luks2.start_reencryption(&draft, &start).map_err(cannot_edit(&data.path))?;
        let mut bytes = draft.bytes.into_inner().unwrap_or_else(PoisonError::into_inner);
        bytes.truncate(header_len(&luks2));
        Ok((bytes, keys))
    }
}

fn at(create: &CreateOptions) -> HeaderOptions {
    HeaderOptions {
        image: create.image.clone(),
        header: create.header.clone(),
        luks: Luks::Two,
        policy: create.policy.clone(),
    }
}

/// Returns the number of bytes of both copies of a header and its keyslot areas.
fn header_len(luks2: &Luks2) -> usize {
    let config = &luks2.metadata().config;
    (2 * (config.json_size + BLOCK_LEN) + config.keyslots_size) as usize
}

/// The start of a device whose first data are at its end, as well, where they were copied to make room for the header.
struct Start<'a> {
    store: &'a dyn BackingStore,
    shift: u64,
    /// Length of the data.
    len: u64,
}

impl Start<'_> {
    /// Writes the header to the start of the device, and behind the data before, where [`Start::interrupted`] finds it
    /// until the last data take its place.
    fn write(&self, data: &Device, header: &[u8]) -> Result<()> {
        let put = |part: Range<usize>, base: u64| {
            write_all(self.store, &header[part.clone()], base + part.start as u64)
                .context("cannot write the header")?;
            self.store.sync().context("cannot write the header")
        };
        let second = DEFAULT_METADATA_LEN as usize;
        let mut parts = [2 * second..header.len(), second..2 * second, 0..second];
        if header.len() as u64 <= self.len {
            put(0..header.len(), self.len)?;
        } else {
            // The places overlap. At least the second attempt must find that there was a first.
            parts.swap(0, 1);
        }
        let _lock = lock::header(data, Mode::Exclusive)?;
        parts.into_iter().try_for_each(|part| put(part, 0))
    }

    /// Returns the header of an attempt that was interrupted while it wrote it to the start of the device. `None`: there
    /// was none, or the start was changed since: each sector of it is one of the header, or of the first data, which
    /// are at the end.
    fn interrupted(&self, data: &Device) -> Result<Option<Vec<u8>>> {
        let draft = Draft { bytes: Mutex::new(self.read(self.len, self.shift)?), device_len: data.len };
        let Ok(luks2) = Luks2::load(&draft) else { return Ok(None) };
        let Ok(Some(state)) = luks2.reencryption() else { return Ok(None) };
        let moved = data.len - self.shift..data.len - self.shift + self.shift.min(self.len);
        let is_this = state.keyslot.mode == ReencryptionMode::Encrypt && state.moved == Some(moved.clone());
        if !is_this || state.len(data.len) != self.len {
            return Ok(None);
        }
        let mut header = draft.bytes.into_inner().unwrap_or_else(PoisonError::into_inner);
        header.truncate(header_len(&luks2));
        let (present, first) = (self.read(0, header.len() as u64)?, self.read(moved.start, moved.end - moved.start)?);
        let mut is_begun = false;
        for (at, (present, of_header)) in present.chunks(SECTOR).zip(header.chunks(SECTOR)).enumerate() {
            if first.get(at * SECTOR..(at + 1) * SECTOR).is_some_and(|first| first == present) {
                continue;
            }
            if present != of_header {
                return Ok(None);
            }
            is_begun = true;
        }
        Ok(is_begun.then_some(header))
    }

    fn read(&self, offset: u64, len: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len as usize];
        read_all(self.store, &mut bytes, offset).context("cannot read the data")?;
        Ok(bytes)
    }
}

/// Refuses a device that has a LUKS header, also a damaged one: it would be encrypted twice.
fn check_no_header(device: &Device) -> Result<()> {
    match load_volume(device.context(), &device.header()?) {
        Err(LoadError::NotLuks) => Ok(()),
        _ => {
            let text = format!("Device {} has a LUKS header already.", device.path.display());
            Err(Error::new(ErrorKind::CannotReencrypt, text).about(&device.path))
        }
    }
}

/// Returns the length of the data, `asked` or all, that move by a shift. Refuses one for which there is no room, or
/// that splits data units.
fn len_with_shift(data: &Device, shift: u64, unit: DataUnitSize, asked: Option<u64>) -> Result<u64> {
    if shift == 0 || !shift.is_multiple_of(4096) || shift > 1 << 30 {
        let text = "The device is reduced by a multiple of 8192 bytes, at most 2 GiB: half of it is for the header.";
        return Err(Error::new(ErrorKind::CannotReencrypt, text));
    }
    let room = data.len.saturating_sub(shift.saturating_mul(2));
    let len = asked.unwrap_or(room);
    if len == 0 || len > room {
        let what = asked.map_or(String::new(), |asked| format!(", and to keep {asked} bytes"));
        let (path, bytes) = (data.path.display(), 2 * shift);
        let text = format!("Device {path} is too small to be reduced by {bytes} bytes{what}.");
        return Err(Error::new(ErrorKind::CannotReencrypt, text));
    }
    if !len.is_multiple_of(unit.bytes() as u64) {
        let text = format!("Data device is not aligned to encryption sector size ({} bytes).", unit.bytes());
        return Err(Error::new(ErrorKind::UnitMisfit, text));
    }
    Ok(len)
}

/// Copies bytes to a place that does not overlap them, durably.
fn copy(store: &dyn BackingStore, from: u64, to: u64, len: u64) -> Result<()> {
    let mut buffer = vec![0; len.min(CHUNK) as usize];
    let mut done = 0;
    while done < len {
        let part = &mut buffer[..(len - done).min(CHUNK) as usize];
        read_all(store, part, from + done).context("cannot read the data")?;
        write_all(store, part, to + done).context("cannot move the first data")?;
        done += part.len() as u64;
    }
    store.sync().context("cannot move the first data")
}

impl Offline {
    /// Moves the header, which is at the start of the device, to a new file. The device is decrypted with it.
    ///
    /// # Errors
    ///
    /// Fails if the file exists or cannot be written; nothing is changed then.
    pub fn export_header(self, file: &Path) -> Result<Self> {
        let context = self.data.context().clone();
        let backup = {
            let _lock = lock::header(&self.header.device, Mode::Shared)?;
            HeaderBackup::of_device(&self.header.device.header()?)
                .map_err(header_backup::cannot_back_up(&self.data.path))?
        };
        header_backup::write(&context, &backup, file)?;
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600))
            .with_context(|| format!("cannot use {}", file.display()))?;
        let detached = Device::open(&context, file, OpenMode::Header)?;
        let at = HeaderOptions {
            image: self.data.path.clone(),
            header: Some(file.to_owned()),
            luks: Luks::Two,
            policy: self.header.policy.clone(),
        };
        let (data, locks) = self.into_locked();
        Self::of_devices(data, Some(detached), &at, locks)
    }

    /// Begins to decrypt a device with a header elsewhere. Data that begin behind the room of a header move to the start
    /// of the device, where a header is destroyed.
    ///
    /// # Errors
    ///
    /// As [`Offline::begin`].
    pub fn begin_decryption(&mut self, new: &NewParameters, opened: &[OpenedKeyslot]) -> Result<()> {
        let shift = self.header.volume.data_offset();
        if shift == 0 {
            return self.begin(new, opened);
        }
        if self.header.device.identity() == self.data.identity() {
            return Err(refused(&self.data, "its header is in the way of the data; move it to a file with --header"));
        }
        let store = self.data.store(IoMode::Sync, false, false);
        let store = store.with_context(|| format!("cannot use {}", self.data.path.display()))?;
        let moved = self.moved_len(new, shift)?;
        let key = &opened.first().ok_or_else(Error::no_key)?.key;
        // What is refused is refused before the first write.
        let header = self.header.device.duplicate();
        self.header.device = header.duplicate().staged()?;
        let begun = self.begin_shifted(new, (key, opened), Some((shift, moved)));
        let staged = std::mem::replace(&mut self.header.device, header).staged_header();
        begun?;
        for offset in self.magics()? {
            write_all(&*store, &[0; 6], offset).context("cannot clear the header")?;
            store.sync().context("cannot clear the header")?;
        }
        copy(&*store, shift, 0, moved.min(self.data.len - shift))?;
        let _lock = lock::header(&self.header.device, Mode::Exclusive)?;
        let device = self.header.device.header()?;
        staged.map_or(Ok(()), |staged| staged.write(&device, self.header.device.len))
    }

    /// Returns the length of the first segment that a decryption moves: the shift, or what is asked for and what the
    /// keyslot area can protect.
    fn moved_len(&self, new: &NewParameters, shift: u64) -> Result<u64> {
        let room = match new.protection {
            // It is kept as a whole.
            ZoneProtection::Journal => luks2_of(&self.header)?.free_area_len(),
            _ => u64::MAX,
        };
        let longest = shift.min(room).min(new.longest_moved.unwrap_or(u64::MAX));
        match longest - longest % DataUnitSize::LUKS_MAX.bytes() as u64 {
            0 => Err(Error::new(ErrorKind::NoFreeArea, "The keyslot area has no space for the re-encryption.")),
            moved => Ok(moved),
        }
    }

    /// Returns the places of the magics of a header of this volume on the data device.
    fn magics(&self) -> Result<Vec<u64>> {
        match Volume::load_despite_signatures(&self.data.header()?) {
            Ok(Volume::Luks2(luks2)) if luks2.uuid() == self.header.volume.uuid() => {
                // The copies follow each other.
                Ok(vec![0, luks2.metadata().config.json_size + BLOCK_LEN])
            }
            _ => Ok(Vec::new()),
        }
    }
}
