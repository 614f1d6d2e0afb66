//! Beginning a re-encryption of LUKS1: both headers are made and written to files, and the log is created.

use inlock_cipher::{CipherSpec, VolumeKey};
use inlock_volume::luks1::reencryption::{Lengths, Log, PLAIN_UUID, plain_header};
use inlock_volume::luks1::{self, FormatOptions};
use inlock_volume::luks2::reencryption::{Direction, ReencryptionMode};
use inlock_volume::{Hash, HeaderBackup, HeaderPolicy, KdfRequest, MemoryDevice, NewKeyslot, Secret, Volume};

use super::files::{Files, LEAST_ZONE, LogFile, ZoneFile};
use super::zones::Place;
use super::{Luks1Offline, Sides, Stage, ciphers_of, limit_of};
use crate::create::cannot_create;
use crate::edit::OpenedKeyslot;
use crate::error::{Error, ErrorKind, Result, ResultExt as _, cannot_edit, cannot_unlock};
use crate::header_backup::cannot_back_up;
use crate::reencryption::file_system;
use crate::reencryption::offline::refused;

/// Bytes to which the content of a header's file is rounded up.
const PAGE: u64 = 4096;

/// Parameters of a re-encryption of LUKS1 to begin.
#[derive(Debug)]
pub struct NewLuks1 {
    /// Change of the data.
    pub mode: ReencryptionMode,
    /// The new cipher; `None`: as before.
    pub cipher: Option<CipherSpec>,
    /// Length of the new volume key in bytes; `None`: as before.
    pub key_len: Option<usize>,
    /// The new volume key; `None`: a random one.
    pub key: Option<VolumeKey>,
    /// Keep the volume key and the data, and make a new header.
    pub keeps_key: bool,
    /// Hash of the new header.
    pub hash: Hash,
    /// Costs of its keyslots.
    pub kdf: KdfRequest,
    /// Bytes by which the data move towards the end of the device, whose last ones are lost; 0: they stay.
    pub reduced_by: u64,
    /// A file system to encrypt may be longer than what is left.
    pub cuts_file_system: bool,
    /// Length of the data in bytes, from the start; `None`: all.
    pub data_len: Option<u64>,
    /// Longest zone in bytes; `None`: the default.
    pub longest_zone: Option<u64>,
    /// Policy that the new header must comply with.
    pub policy: HeaderPolicy,
}

/// A header to make.
struct NewHeader<'a> {
    new: &'a NewLuks1,
    cipher: CipherSpec,
    key: &'a VolumeKey,
    uuid: Option<String>,
    /// Start of the data in bytes.
    start: u64,
    /// Number and passphrase of each keyslot.
    keyslots: Vec<(u32, &'a Secret)>,
}

impl Luks1Offline {
    /// Begins to give a volume a new header, or to decrypt it. The passphrases of `opened` open the new keyslots, which
    /// have the same numbers.
    ///
    /// # Errors
    ///
    /// Fails without a change, except that files may be left if the machine stops.
    pub fn begin(&mut self, new: &NewLuks1, opened: &[OpenedKeyslot]) -> Result<()> {
        let header = self.header.as_ref().ok_or_else(Error::no_key)?;
        let first = opened.first().ok_or_else(Error::no_key)?;
        let path = header.path().to_owned();
        let backup = HeaderBackup::of_device(&header.device.header()?).map_err(cannot_back_up(&path))?;
        if !backup.volume().is_same_header(&header.volume) {
            let text = format!("The header on device {} was changed by another program.", path.display());
            return Err(Error::new(ErrorKind::HeaderChanged, text));
        }
        let segments = header.volume.segments().map_err(cannot_unlock(&path))?;
        let cipher = segments.first().and_then(|segment| segment.cipher);
        let cipher = cipher.ok_or_else(|| refused(&self.data, "it is not encrypted"))?;
        let old_start = header.volume.data_offset();
        let old = Some((cipher, VolumeKey::new(first.key.as_bytes())));
        if new.mode == ReencryptionMode::Decrypt {
            let place = self.new_place(new, old_start, 0)?;
            let plain = plain_header(first.number).map_err(|error| cannot_create(&path, false, error))?;
            return self.write_files(new, (backup.bytes(), &plain), Sides { place, old, new: None });
        }
        let place = self.new_place(new, old_start, old_start.saturating_add(new.reduced_by))?;
        let (cipher, key) = (new.cipher.unwrap_or(cipher), self.new_key(new, &first.key)?);
        let keyslots = opened.iter().map(|opened| (opened.number, &opened.passphrase)).collect();
        let uuid = Some(header.volume.uuid().to_owned());
        let bytes = self.make_header(&NewHeader { new, cipher, key: &key, uuid, start: place.new, keyslots })?;
        self.write_files(new, (backup.bytes(), &bytes), Sides { place, old, new: Some((cipher, key)) })
    }

    /// Begins to encrypt a device. `passphrase` opens the keyslot of this number.
    ///
    /// # Errors
    ///
    /// As [`Luks1Offline::begin`].
    pub fn begin_encryption(&mut self, new: &NewLuks1, keyslot: u32, passphrase: &Secret) -> Result<()> {
        let path = self.data.path.clone();
        let place = self.new_place(new, 0, new.reduced_by)?;
        if new.reduced_by > 0 && !new.cuts_file_system {
            file_system::check(&self.data, place.len)?;
        }
        let cipher = new.cipher.unwrap_or(CipherSpec::AES_XTS_PLAIN64);
        let key = self.new_key(new, &VolumeKey::zeroed(new.key_len.unwrap_or(64)))?;
        let keyslots = vec![(keyslot, passphrase)];
        let bytes = self.make_header(&NewHeader { new, cipher, key: &key, uuid: None, start: place.new, keyslots })?;
        let plain = plain_header(keyslot).map_err(|error| cannot_create(&path, false, error))?;
        self.write_files(new, (&plain, &bytes), Sides { place, old: None, new: Some((cipher, key)) })
    }

    /// Returns the place of the data, if there is room.
    fn new_place(&self, new: &NewLuks1, old_start: u64, new_start: u64) -> Result<Place> {
        if !new.reduced_by.is_multiple_of(512) || new.reduced_by > 1 << 30 {
            let text = "The device is reduced by a multiple of 512 bytes, at most 1 GiB.";
            return Err(Error::new(ErrorKind::CannotReencrypt, text));
        }
        let room = self.data.len.saturating_sub(old_start.max(new_start));
        let room = room - room % 512;
        let len = new.data_len.unwrap_or(room);
        if len == 0 || len > room || !len.is_multiple_of(512) {
            let reason = format!("there is room for {room} bytes of data, and it would have {len}");
            return Err(refused(&self.data, &reason));
        }
        let direction = if new.reduced_by > 0 { Direction::Backward } else { Direction::Forward };
        Ok(Place { old: old_start, new: new_start, len, direction })
    }

    fn new_key(&self, new: &NewLuks1, old: &VolumeKey) -> Result<VolumeKey> {
        if new.keeps_key {
            return Ok(VolumeKey::new(old.as_bytes()));
        }
        if let Some(key) = &new.key {
            return Ok(VolumeKey::new(key.as_bytes()));
        }
        let mut key = VolumeKey::zeroed(new.key_len.unwrap_or(old.len()));
        getrandom::fill(key.as_mut_bytes()).context("cannot read random bytes")?;
        Ok(key)
    }

    /// Returns the content of the file of a new header.
    fn make_header(&self, header: &NewHeader<'_>) -> Result<Vec<u8>> {
        let path = &self.header_device().path;
        let [(number, passphrase), others @ ..] = &header.keyslots[..] else { return Err(Error::no_key()) };
        let mut options = FormatOptions::default();
        options.cipher = header.cipher;
        options.key_len = header.key.len();
        options.hash = header.new.hash;
        options.kdf = header.new.kdf;
        options.uuid.clone_from(&header.uuid);
        options.detached = true;
        options.payload_offset = Some(header.start / 512);
        options.keyslot = *number;
        options.volume_key = Some(VolumeKey::new(header.key.as_bytes()));
        options.policy = header.new.policy.clone();
        let len = options.header_len();
        if header.start > 0 && header.start < len {
            let reason = format!(
                "the new header takes {len} bytes, and the data would begin at byte {}; move them with \
                 --reduce-device-size",
                header.start
            );
            return Err(refused(&self.data, &reason));
        }
        let draft = MemoryDevice::zeroed(len.next_multiple_of(PAGE) as usize);
        let made = luks1::format(&draft, options, passphrase).map_err(|error| cannot_create(path, false, error))?;
        let mut volume = Volume::from(made);
        for (number, passphrase) in others {
            let mut keyslot = NewKeyslot::default();
            (keyslot.number, keyslot.kdf) = (Some(*number), header.new.kdf);
            volume.add_keyslot(&draft, header.key, passphrase, &keyslot).map_err(cannot_edit(path))?;
        }
        Ok(draft.to_vec())
    }

    /// Writes the files, from which on the re-encryption has begun.
    fn write_files(&mut self, new: &NewLuks1, (old, made): (&[u8], &[u8]), sides: Sides) -> Result<()> {
        let (files, place) = (self.files.clone(), sides.place);
        let lengths = Lengths { data: place.len, device: self.data.len };
        ciphers_of(&sides)?;
        // All devices to encrypt have this one.
        let name = (files.uuid() == PLAIN_UUID).then(|| files.name_of(&self.data));
        let log = Log { name, ..Log::new(files.uuid(), new.mode, place.direction, lengths) };
        let log = LogFile::create(&files, log)?;
        let unfinished = Unfinished(Some(&files));
        files.create_header(&files.old_header(), old)?;
        files.create_header(&files.new_header(), made)?;
        if place.shift() < LEAST_ZONE && !new.keeps_key {
            ZoneFile::allocate(&files, limit_of(new.longest_zone, place))?;
        }
        let whole = |path| -> Result<HeaderBackup> {
            files.read_header(path)?.ok_or_else(|| super::unusable(path, "it was not written"))
        };
        self.headers = Some([whole(&files.old_header())?, whole(&files.new_header())?]);
        unfinished.keep();
        (self.log, self.sides, self.stage) = (Some(log), Some(sides), Stage::Begun);
        Ok(())
    }
}

/// The files of a re-encryption that may fail to begin, and that are removed then.
struct Unfinished<'a>(Option<&'a Files>);

impl Unfinished<'_> {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Some(files) = self.0 {
            // The first error is reported.
            let _ = files.remove();
        }
    }
}
