//! State of a LUKS1 re-encryption, which the header itself has no room for, as cryptsetup keeps it.
//!
//! The header of the volume is marked by another magic, so that nothing opens it. The files `LUKS-UUID.org` and
//! `LUKS-UUID.new` have the headers before and after, and `LUKS-UUID.log` says how far the data are ([`Log`]). A side
//! without encryption has a header with a null cipher ([`plain_header`]). All is done in this order:
//!
//! log, headers, mark, data and log in turns, new header on the device, removal of the files.

use super::binary_header::{HEADER_LEN, KEYSLOT_ENABLED, RawHeader};
use super::format::{base_header, digest_key};
use super::{Luks1, STRIPES, layout};
use crate::af;
use crate::error::{CommitError, FormatError};
use crate::header_device::HeaderDevice;
use crate::key_material::material_len;
use crate::luks2::reencryption::{Direction, ReencryptionMode};
use crate::pbkdf::{Hash, random_bytes};
use inlock_cipher::{SECTOR_SIZE, VolumeKey};
use std::fmt::Write as _;
use std::io;
use zerocopy::IntoBytes;

/// Magic of a header whose volume is in re-encryption.
const MARK: [u8; 6] = *b"LUKS\xde\xad";
/// Mark and version.
const MARKED: [u8; 8] = *b"LUKS\xde\xad\x00\x01";
/// Start and length of the UUID.
const UUID: (u64, usize) = (168, 40);

/// UUID of a side without encryption. Files of an encryption are named after it, since the device has none yet.
pub const PLAIN_UUID: &str = "cafecafe-cafe-cafe-cafe-cafecafeeeee";

/// Length of a log in bytes.
pub const LOG_LEN: usize = 512;

/// Cipher and mode of a side without encryption.
const PLAIN_CIPHER: (&str, &str) = ("cipher_null", "ecb");
/// Length of its key in bytes, which encrypts nothing.
const PLAIN_KEY_LEN: usize = 32;
/// Iterations of its key derivations.
const PLAIN_ITERATIONS: u32 = 1000;

/// Returns the UUID of a header that is marked. `None`: it is not, or there is none.
///
/// # Errors
///
/// Fails if the device cannot be read.
pub fn marked_uuid(device: &dyn HeaderDevice) -> io::Result<Option<String>> {
    let mut start = [0; MARKED.len()];
    if device.len()? < HEADER_LEN as u64 || device.read_exact_at(&mut start, 0).is_err() || start != MARKED {
        return Ok(None);
    }
    let mut uuid = [0; UUID.1];
    device.read_exact_at(&mut uuid, UUID.0)?;
    let uuid = uuid.iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte));
    Ok(Some(uuid.map(|byte| if byte.is_ascii_hexdigit() || byte == '-' { byte } else { '?' }).collect()))
}

/// Whether the device has the header of `volume`, marked.
///
/// # Errors
///
/// Fails if the device cannot be read.
pub fn is_marked(device: &dyn HeaderDevice, volume: &Luks1) -> io::Result<bool> {
    if marked_uuid(device)?.is_none() {
        return Ok(false);
    }
    let mut bytes = [0; HEADER_LEN];
    device.read_exact_at(&mut bytes, 0)?;
    bytes[..MARK.len()].copy_from_slice(b"LUKS\xba\xbe");
    Ok(volume.header_digest == crate::header_policy::HeaderDigest::of(&bytes))
}

impl Luks1 {
    /// Marks the header, durably: one sector is written.
    ///
    /// # Errors
    ///
    /// Fails if the device does not have this header, or cannot be written.
    pub fn mark_reencrypted(&self, device: &dyn HeaderDevice) -> Result<(), CommitError> {
        let device = self.checked(device)?;
        let mut sector = [0; SECTOR_SIZE as usize];
        device.read_exact_at(&mut sector, 0)?;
        sector[..MARK.len()].copy_from_slice(&MARK);
        device.write_all_at(&sector, 0)?;
        Ok(device.sync()?)
    }

    /// Whether this is the header of a side without encryption.
    pub fn is_plain(&self) -> bool {
        self.cipher_name == PLAIN_CIPHER.0
    }
}

/// Returns the header and keyslot areas of a side without encryption whose data begin at byte 0. Any passphrase opens
/// its keyslot, which has this number.
///
/// # Errors
///
/// Fails without random bytes.
pub fn plain_header(keyslot: u32) -> Result<Vec<u8>, FormatError> {
    let mut key = VolumeKey::zeroed(PLAIN_KEY_LEN);
    key.as_mut_bytes().copy_from_slice(&random_bytes(PLAIN_KEY_LEN)?);
    let mut header = base_header(PLAIN_CIPHER, Hash::Sha256, PLAIN_KEY_LEN);
    header.uuid[..PLAIN_UUID.len()].copy_from_slice(PLAIN_UUID.as_bytes());
    digest_key(&mut header, &key, Hash::Sha256, PLAIN_ITERATIONS)?;
    let slot = &mut header.keyslots[keyslot as usize];
    slot.active = KEYSLOT_ENABLED.into();
    slot.iterations = PLAIN_ITERATIONS.into();
    slot.salt.copy_from_slice(&random_bytes(32)?);
    let start = slot.offset.get() as usize * SECTOR_SIZE as usize;
    let mut bytes = vec![0; layout::areas_end(PLAIN_KEY_LEN as u64) as usize];
    bytes[..HEADER_LEN].copy_from_slice(RawHeader::as_bytes(&header));
    let len = material_len(PLAIN_KEY_LEN as u64, STRIPES.into()).unwrap_or(0) as usize;
    let mut material = random_bytes(len)?;
    af::split(key.as_bytes(), &mut material[..PLAIN_KEY_LEN * STRIPES as usize], Hash::Sha256);
    bytes[start..start + len].copy_from_slice(&material);
    Ok(bytes)
}

/// State of the data, as the log has it. A line that starts with `#` means nothing to cryptsetup, and one that it does
/// not know keeps it from going on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// UUID of the volume, or [`PLAIN_UUID`].
    pub uuid: String,
    /// Change of the data.
    pub mode: ReencryptionMode,
    /// Backward: from the end of the data to their start.
    pub direction: Direction,
    /// Where new data meet old ones, in bytes of the volume. Backward, [`Log::NOT_BEGUN`] before the first zone.
    pub offset: u64,
    /// Number that cryptsetup reads and writes without using it.
    pub shift: u64,
    /// Lengths that Inlock has noted in a comment. cryptsetup writes a log without.
    pub lengths: Option<Lengths>,
    /// Whether a zone may be in flight whose content only the file of Inlock has.
    pub has_zone: bool,
    /// Whether that zone is kept, and being written: its file has to be whole.
    pub is_writing: bool,
    /// Text for the name of the device, if its UUID does not tell it from others.
    pub name: Option<String>,
}

/// Lengths in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Data that are re-encrypted.
    pub data: u64,
    /// Device of the data.
    pub device: u64,
}

/// A log that is none, or whose content makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The file is too short.
    #[error("it is shorter than {LOG_LEN} bytes")]
    Short,
    /// A line is none of those of a log.
    #[error("line {0} is not one of a log of a re-encryption")]
    Line(usize),
    /// A value is missing.
    #[error("the {0} is missing")]
    Missing(&'static str),
}

impl Log {
    /// Offset of a log whose data have not been touched, if they are written backward.
    pub const NOT_BEGUN: u64 = u64::MAX;

    /// Returns the log of a re-encryption that has not begun.
    pub fn new(uuid: &str, mode: ReencryptionMode, direction: Direction, lengths: Lengths) -> Self {
        let offset = if direction == Direction::Forward { 0 } else { Self::NOT_BEGUN };
        let lengths = Some(lengths);
        Self {
            uuid: uuid.to_owned(),
            mode,
            direction,
            offset,
            shift: 0,
            lengths,
            has_zone: false,
            is_writing: false,
            name: None,
        }
    }

    /// Parses the content of a file.
    ///
    /// # Errors
    ///
    /// Fails if it is not the log of a re-encryption.
    pub fn parse(bytes: &[u8]) -> Result<Self, LogError> {
        let bytes = bytes.get(..LOG_LEN).ok_or(LogError::Short)?;
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(LOG_LEN);
        let mut fields = Fields::default();
        for (number, line) in (1..).zip(bytes[..end].split_inclusive(|byte| *byte == b'\n')) {
            let line = std::str::from_utf8(line).ok().and_then(|line| line.strip_suffix('\n'));
            line.and_then(|line| fields.take(line)).ok_or(LogError::Line(number))?;
        }
        Ok(Self {
            uuid: fields.uuid.ok_or(LogError::Missing("UUID"))?,
            // The first version has no mode.
            mode: fields.mode.unwrap_or(ReencryptionMode::Reencrypt),
            direction: fields.direction.ok_or(LogError::Missing("direction"))?,
            offset: fields.offset.ok_or(LogError::Missing("offset"))?,
            shift: fields.shift.unwrap_or(0),
            lengths: fields.lengths,
            has_zone: fields.has_zone,
            is_writing: fields.is_writing,
            name: fields.name,
        })
    }

    /// Returns the content of the file.
    pub fn to_bytes(&self) -> [u8; LOG_LEN] {
        let (direction, mode) = (u8::from(self.direction == Direction::Backward), mode_number(self.mode));
        let mut text = "# Log of a re-encryption of LUKS1: do not change or remove it.\n".to_owned();
        if let Some(Lengths { data, device }) = self.lengths {
            let _ = writeln!(text, "# inlock: data = {data} device = {device}");
        }
        if let Some(name) = &self.name {
            let _ = writeln!(text, "# inlock: name = {name}");
        }
        let _ = writeln!(text, "version = 2\nUUID = {}\ndirection = {direction}\nmode = {mode}", self.uuid);
        let _ = writeln!(text, "offset = {}\nshift = {}", self.offset, self.shift);
        if self.has_zone {
            let state = 1 + u8::from(self.is_writing);
            let _ = writeln!(text, "inlock = {state}\n# Only Inlock goes on: a zone may be in flight.");
        }
        text.push_str("# EOF\n");
        let mut bytes = [0; LOG_LEN];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        bytes
    }

    /// Whether all data are new, as far as the log tells.
    pub fn is_at_end(&self) -> bool {
        match self.direction {
            Direction::Forward => self.lengths.is_some_and(|lengths| self.offset >= lengths.data),
            Direction::Backward => self.offset == 0,
        }
    }

    /// Whether no data have been touched, as far as the log tells.
    pub fn is_initial(&self) -> bool {
        self.offset == if self.direction == Direction::Forward { 0 } else { Self::NOT_BEGUN }
    }
}

fn mode_number(mode: ReencryptionMode) -> u8 {
    match mode {
        ReencryptionMode::Reencrypt => 0,
        ReencryptionMode::Encrypt => 1,
        ReencryptionMode::Decrypt => 2,
    }
}

/// Values of the lines that were read.
#[derive(Default)]
struct Fields {
    uuid: Option<String>,
    mode: Option<ReencryptionMode>,
    direction: Option<Direction>,
    offset: Option<u64>,
    shift: Option<u64>,
    lengths: Option<Lengths>,
    has_zone: bool,
    is_writing: bool,
    name: Option<String>,
}

impl Fields {
    /// Takes a line. `None`: it is not one of a log.
    fn take(&mut self, line: &str) -> Option<()> {
        if let Some(comment) = line.strip_prefix('#') {
            let lengths = comment.strip_prefix(" inlock: data = ").and_then(|text| text.split_once(" device = "));
            if let Some((data, device)) = lengths {
                self.lengths = Some(Lengths { data: number(data)?, device: number(device)? });
            }
            if let Some(name) = comment.strip_prefix(" inlock: name = ") {
                self.name = Some(name.to_owned());
            }
            return Some(());
        }
        let (name, value) = line.split_once(" = ")?;
        match (name, value) {
            ("version", "1" | "2") => {}
            ("UUID", uuid) if is_uuid(uuid) => self.uuid = Some(uuid.to_owned()),
            ("direction", "0") => self.direction = Some(Direction::Forward),
            ("direction", "1") => self.direction = Some(Direction::Backward),
            ("mode", "0") => self.mode = Some(ReencryptionMode::Reencrypt),
            ("mode", "1") => self.mode = Some(ReencryptionMode::Encrypt),
            ("mode", "2") => self.mode = Some(ReencryptionMode::Decrypt),
            ("offset", value) => self.offset = Some(number(value)?),
            ("shift", value) => self.shift = Some(number(value)?),
            ("inlock", "1") => self.has_zone = true,
            ("inlock", "2") => (self.has_zone, self.is_writing) = (true, true),
            _ => return None,
        }
        Some(())
    }
}

fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Whether a text can be a part of a file name.
fn is_uuid(text: &str) -> bool {
    !text.is_empty() && text.len() <= UUID.1 && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header_device::MemoryDevice;

    fn log() -> Log {
        let lengths = Lengths { data: 1 << 40, device: (1 << 40) + 4096 };
        Log::new("11111111-2222-3333-4444-555555555555", ReencryptionMode::Decrypt, Direction::Forward, lengths)
    }

    #[test]
    fn log_is_parsed_as_it_was_written() {
        for direction in [Direction::Forward, Direction::Backward] {
            for mode in [ReencryptionMode::Reencrypt, ReencryptionMode::Encrypt, ReencryptionMode::Decrypt] {
                for (offset, lengths, has_zone) in [(0, None, true), (u64::MAX, log().lengths, false)] {
                    let (is_writing, name) =
                        (has_zone && mode == ReencryptionMode::Encrypt, lengths.map(|_| "ab".into()));
                    let log = Log { mode, direction, offset, lengths, has_zone, is_writing, name, ..log() };
                    assert_eq!(Log::parse(&log.to_bytes()), Ok(log));
                }
            }
        }
        assert!(log().is_initial() && !Log { offset: 512, ..log() }.is_initial());
        let backward = Log { direction: Direction::Backward, ..log() };
        assert!(!backward.is_initial() && Log { offset: Log::NOT_BEGUN, ..backward }.is_initial());
    }

    #[test]
    fn text_that_is_no_log_is_refused() {
        let padded = |text: &str| {
            let mut bytes = text.as_bytes().to_vec();
            bytes.resize(LOG_LEN, 0);
            bytes
        };
        let whole = "version = 2\nUUID = ab-12\ndirection = 1\nmode = 1\noffset = 512\nshift = 0\n";
        assert_eq!(Log::parse(&padded(whole)).map(|log| (log.offset, log.has_zone)), Ok((512, false)));
        assert_eq!(Log::parse(whole.as_bytes()), Err(LogError::Short));
        for (old, new, line) in [
            ("version = 2", "version = 3", 1),
            ("ab-12", "../ab", 2),
            ("direction = 1", "direction = 2", 3),
            ("mode = 1", "mode = 3", 4),
            ("offset = 512", "offset = -1", 5),
            ("offset = 512", "offset = 99999999999999999999", 5),
            ("shift = 0\n", "shift = 0", 6),
            ("shift = 0", "zone = 0", 6),
        ] {
            assert_eq!(Log::parse(&padded(&whole.replace(old, new))), Err(LogError::Line(line)), "{new}");
        }
        for (line, name) in [("UUID = ab-12\n", "UUID"), ("direction = 1\n", "direction"), ("offset = 512\n", "offset")]
        {
            assert_eq!(Log::parse(&padded(&whole.replace(line, ""))), Err(LogError::Missing(name)));
        }
    }

    #[test]
    fn plain_header_loads_and_can_be_marked() {
        for keyslot in [0, 7] {
            let device = MemoryDevice::new(plain_header(keyslot).unwrap());
            let volume = Luks1::load(&device).unwrap();
            assert!(volume.is_plain());
            assert_eq!((volume.active_keyslots(), volume.payload_offset()), (vec![keyslot], 0));
            assert_eq!(marked_uuid(&device).unwrap(), None);
            assert!(!is_marked(&device, &volume).unwrap());
            volume.mark_reencrypted(&device).unwrap();
            assert_eq!(marked_uuid(&device).unwrap().as_deref(), Some(PLAIN_UUID));
            assert!(is_marked(&device, &volume).unwrap());
            let other = Luks1::load(&MemoryDevice::new(plain_header(keyslot).unwrap())).unwrap();
            assert!(!is_marked(&device, &other).unwrap(), "it has another key");
        }
    }
}
