//! The keyslot of a re-encryption. It holds no key: it says how the re-encryption goes on, and its area has what the
//! recovery of an interrupted zone needs.

use super::json::Fields;
use crate::violation::{HeaderFault, Violation};
use inlock_cipher::SECTOR_SIZE;
use serde_json::{Map, Value, json};
use std::fmt;
use std::ops::Range;

/// Type of the keyslot in the metadata.
pub(super) const KIND: &str = "reencrypt";

/// Longest name of a hash, in bytes.
const MAX_HASH_NAME: usize = 31;

/// Fields of the keyslot.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReencryptionKeyslot {
    /// Change of the data.
    pub mode: ReencryptionMode,
    /// The end of the volume at which it begins.
    pub direction: Direction,
    /// Protection of a zone that is being written.
    pub resilience: Resilience,
}

impl ReencryptionKeyslot {
    /// Returns a keyslot with these fields.
    pub fn new(mode: ReencryptionMode, direction: Direction, resilience: Resilience) -> Self {
        Self { mode, direction, resilience }
    }

    /// Returns the version of the requirement: a decryption with a shift takes the header out of the device.
    pub(super) fn version(&self) -> &'static str {
        if self.mode == ReencryptionMode::Decrypt && self.resilience.shift.is_some() { "v3" } else { "v2" }
    }
}

/// Change of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReencryptionMode {
    /// Ciphertext becomes other ciphertext.
    Reencrypt,
    /// Plaintext becomes ciphertext.
    Encrypt,
    /// Ciphertext becomes plaintext.
    Decrypt,
}

impl ReencryptionMode {
    /// Returns the name in the metadata.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reencrypt => "reencrypt",
            Self::Encrypt => "encrypt",
            Self::Decrypt => "decrypt",
        }
    }
}

/// The order of zones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the start of the volume to its end.
    Forward,
    /// From the end of the volume to its start.
    Backward,
}

impl Direction {
    /// Returns the name in the metadata.
    pub fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
        }
    }
}

/// How a zone is protected while it is written, so that it can be recovered after a crash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resilience {
    /// Content of the keyslot's area. With a shift, it is for the moved first segment alone.
    pub protection: Protection,
    /// Distance in bytes between the old and the new place of the data: what a zone overwrites was read before.
    pub shift: Option<u64>,
}

/// Content of the keyslot's area while a zone is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Nothing.
    None,
    /// A digest of each block of the old data.
    Checksum {
        /// Name of the hash.
        hash: String,
        /// Bytes in a block.
        block: u32,
    },
    /// The old data.
    Journal,
}

impl Resilience {
    /// Returns the name in the metadata, and in the option `--resilience`.
    pub fn name(&self) -> &'static str {
        match (&self.protection, self.shift) {
            (Protection::None, None) => "none",
            (Protection::Checksum { .. }, None) => "checksum",
            (Protection::Journal, None) => "journal",
            (Protection::None, Some(_)) => "datashift",
            (Protection::Checksum { .. }, Some(_)) => "datashift-checksum",
            (Protection::Journal, Some(_)) => "datashift-journal",
        }
    }

    /// Adds the fields of the area.
    fn add_to(&self, area: &mut Map<String, Value>) {
        area.insert("type".into(), self.name().into());
        if let Protection::Checksum { hash, block } = &self.protection {
            area.insert("hash".into(), hash.as_str().into());
            area.insert("sector_size".into(), (*block).into());
        }
        if let Some(shift) = self.shift {
            area.insert("shift_size".into(), shift.to_string().into());
        }
    }
}

impl fmt::Display for Resilience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Parses the keyslot.
pub(super) fn parse(fields: &Fields<'_>, area: &Fields<'_>) -> Result<ReencryptionKeyslot, HeaderFault> {
    fields.number("key_size", 1, 1)?;
    let mode = match fields.text("mode")? {
        "reencrypt" => ReencryptionMode::Reencrypt,
        "encrypt" => ReencryptionMode::Encrypt,
        "decrypt" => ReencryptionMode::Decrypt,
        _ => return Err(fields.wrong("mode", "reencrypt, encrypt or decrypt")),
    };
    let direction = match fields.text("direction")? {
        "forward" => Direction::Forward,
        "backward" => Direction::Backward,
        _ => return Err(fields.wrong("direction", "forward or backward")),
    };
    Ok(ReencryptionKeyslot { mode, direction, resilience: resilience(area)? })
}

fn resilience(area: &Fields<'_>) -> Result<Resilience, HeaderFault> {
    let (protection, has_shift) = match area.text("type")? {
        "none" => (Protection::None, false),
        "checksum" => (checksum(area)?, false),
        "journal" => (Protection::Journal, false),
        "datashift" => (Protection::None, true),
        "datashift-checksum" => (checksum(area)?, true),
        "datashift-journal" => (Protection::Journal, true),
        _ => return Err(area.wrong("type", "the name of a resilience")),
    };
    let shift = match has_shift {
        false => None,
        true => match area.decimal("shift_size")? {
            0 => return Err(area.fault(Violation::NotAllowed { field: "shift_size", value: 0 })),
            value if !value.is_multiple_of(SECTOR_SIZE) => {
                return Err(area.fault(Violation::Misaligned { field: "shift_size", value, unit: SECTOR_SIZE }));
            }
            value => Some(value),
        },
    };
    Ok(Resilience { protection, shift })
}

fn checksum(area: &Fields<'_>) -> Result<Protection, HeaderFault> {
    let hash = area.text("hash")?;
    if hash.is_empty() || hash.len() > MAX_HASH_NAME {
        return Err(area.wrong("hash", "the name of a hash"));
    }
    let block = area.number("sector_size", SECTOR_SIZE as u32, 1 << 20)?;
    if !block.is_power_of_two() {
        return Err(area.fault(Violation::NotAllowed { field: "sector_size", value: block.into() }));
    }
    Ok(Protection::Checksum { hash: hash.to_owned(), block })
}

/// Returns the object of the keyslot.
pub(super) fn object(keyslot: &ReencryptionKeyslot, area: &Range<u64>) -> Value {
    let mut place = Map::new();
    place.insert("offset".into(), area.start.to_string().into());
    place.insert("size".into(), (area.end - area.start).to_string().into());
    keyslot.resilience.add_to(&mut place);
    json!({
        "area": place,
        "type": KIND,
        "key_size": 1,
        "mode": keyslot.mode.name(),
        "direction": keyslot.direction.name(),
        "priority": 0,
    })
}
