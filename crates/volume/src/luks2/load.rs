//! Choosing the copy of the header to trust.
//!
//! The first copy is used if it is valid, and has the offset of the second. If the first is damaged, the second is
//! searched at every offset that the format allows; the nearest is used, since a larger header overwrites what a
//! smaller one has left nearby, and not vice versa. Of two valid copies the one with the higher sequence number is
//! used. A copy that cannot be read is a damaged one.

use super::binary_header::{BLOCK_LEN, BinaryHeader, Copy, SECOND_OFFSETS, checksum_matches};
use super::json::text_of_area;
use super::metadata::{KeyslotDamage, Metadata};
use super::{HEADER, Luks2, SECOND_HEADER, validate};
use crate::byte_text::has_bytes;
use crate::error::{LoadError, LoadWarning};
use crate::header_device::HeaderDevice;
use crate::printable::Excerpt;
use crate::signatures::find_signatures;
use crate::violation::{HeaderFault, HeaderPath, Violation};
use serde_json::{Map, Value};
use std::io;

/// A valid copy.
struct Loaded {
    header: BinaryHeader,
    json: String,
    map: Map<String, Value>,
    metadata: Metadata,
}

enum CopyError {
    Fault(HeaderFault),
    Io(io::Error),
}

impl CopyError {
    /// Returns the damage of the copy.
    fn into_fault(self, copy: Copy) -> HeaderFault {
        match self {
            Self::Fault(fault) => fault,
            Self::Io(error) => {
                Violation::Unreadable(Excerpt::new(&error.to_string())).at(name_of(copy), HeaderPath::ROOT)
            }
        }
    }
}

impl From<io::Error> for CopyError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// `foreign`: whether a second copy without a first one is used although the device has another format's signature.
pub(super) fn load(device: &dyn HeaderDevice, foreign: Foreign) -> Result<Luks2, LoadError> {
    let (loaded, mut warnings, trusted) = match read_copy(device, Copy::Primary, 0) {
        Ok(primary) => choose(device, primary),
        Err(error) => match find_second(device) {
            Ok(second) => {
                foreign.check(device)?;
                let fault = error.into_fault(Copy::Primary);
                (second, vec![LoadWarning::PrimaryDamaged(fault)], Copy::Secondary)
            }
            Err(second) => return Err(no_copy(error, second)),
        },
    };
    check_inside(device, &loaded.metadata)?;
    warnings.extend(damage_of_keyslots(&loaded.metadata));
    warnings.extend(odd_texts(&loaded.header, &loaded.json));
    let Loaded { header, json, map, metadata } = loaded;
    Ok(Luks2 { header, json, map, metadata, warnings, trusted, has_volatile_copy: false })
}

/// Meaning of other signatures if only the second copy of a header is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Foreign {
    /// The copy is what an older volume has left.
    Refused,
    /// The user knows that the volume is there.
    Ignored,
}

impl Foreign {
    fn check(self, device: &dyn HeaderDevice) -> Result<(), LoadError> {
        match self {
            Self::Ignored => Ok(()),
            Self::Refused => match find_signatures(device)?.into_iter().find(|found| !found.is_trailer()) {
                Some(signature) => Err(LoadError::Ambiguous(signature)),
                None => Ok(()),
            },
        }
    }
}

/// Compares a valid first copy with the second, and returns the newer one.
fn choose(device: &dyn HeaderDevice, primary: Loaded) -> (Loaded, Vec<LoadWarning>, Copy) {
    let second = match read_copy(device, Copy::Secondary, primary.header.hdr_size) {
        Ok(second) => second,
        Err(error) => {
            let fault = error.into_fault(Copy::Secondary);
            return (primary, vec![LoadWarning::SecondaryDamaged(fault)], Copy::Primary);
        }
    };
    let (ours, theirs) = (primary.header.seqid, second.header.seqid);
    if ours != theirs {
        let warnings = vec![LoadWarning::CopiesDiffer { primary: ours, secondary: theirs }];
        return if theirs > ours { (second, warnings, Copy::Secondary) } else { (primary, warnings, Copy::Primary) };
    }
    let mut warnings = Vec::new();
    if primary.header != second.header || primary.json != second.json {
        warnings.push(LoadWarning::SameSequenceDifferentContent { seqid: ours });
    }
    (primary, warnings, Copy::Primary)
}

/// Searches for the second copy, since the first is damaged. Fails with the first one that looks like it, or with what
/// cannot be read.
fn find_second(device: &dyn HeaderDevice) -> Result<Loaded, Option<CopyError>> {
    let (mut damaged, mut unreadable) = (None, None);
    for offset in SECOND_OFFSETS {
        match read_copy(device, Copy::Secondary, offset) {
            Ok(second) => return Ok(second),
            Err(CopyError::Fault(HeaderFault {
                violation: Violation::NoMagic | Violation::Truncated { .. }, ..
            })) => {}
            Err(error @ CopyError::Fault(_)) => drop(damaged.get_or_insert(error)),
            Err(error @ CopyError::Io(_)) => drop(unreadable.get_or_insert(error)),
        }
    }
    Err(damaged.or(unreadable))
}

/// Returns why neither copy can be used.
fn no_copy(primary: CopyError, second: Option<CopyError>) -> LoadError {
    let primary = match primary {
        CopyError::Io(error) => return error.into(),
        CopyError::Fault(fault) => fault,
    };
    match (primary.violation, second) {
        (Violation::NoMagic, Some(CopyError::Fault(fault))) => fault.into(),
        (Violation::NoMagic, Some(CopyError::Io(error))) => error.into(),
        (Violation::NoMagic, None) => LoadError::NotLuks,
        (Violation::Version(version), _) => LoadError::UnsupportedVersion(version),
        (Violation::Truncated { needed, len }, _) => LoadError::Truncated { what: HEADER, needed, len },
        (violation, _) => HeaderFault { violation, ..primary }.into(),
    }
}

fn name_of(copy: Copy) -> &'static str {
    if copy == Copy::Primary { HEADER } else { SECOND_HEADER }
}

/// Reads and checks the copy at `offset`.
fn read_copy(device: &dyn HeaderDevice, copy: Copy, offset: u64) -> Result<Loaded, CopyError> {
    let name = name_of(copy);
    let fault = |violation: Violation| CopyError::Fault(violation.at(name, HeaderPath::ROOT));
    let len = device.len()?;
    let inside = |end: u64| if end <= len { Ok(()) } else { Err(fault(Violation::Truncated { needed: end, len })) };
    let mut magic = [0; 6];
    if offset + magic.len() as u64 > len {
        return Err(fault(Violation::NoMagic));
    }
    device.read_exact_at(&mut magic, offset)?;
    if magic != copy.magic() {
        return Err(fault(Violation::NoMagic));
    }
    inside(offset + BLOCK_LEN as u64)?;
    let mut block = [0; BLOCK_LEN];
    device.read_exact_at(&mut block, offset)?;
    let header = BinaryHeader::decode(&block, copy, offset).map_err(fault)?;
    inside(offset + header.hdr_size)?;
    let mut area = vec![0; header.json_len()];
    device.read_exact_at(&mut area, offset + BLOCK_LEN as u64)?;
    if !checksum_matches(&block, &area, header.csum_alg) {
        return Err(fault(Violation::Checksum));
    }
    let text = text_of_area(&area).map_err(fault)?;
    let (map, metadata) = validate::read(name, &header, &text).map_err(CopyError::Fault)?;
    Ok(Loaded { header, json: text.into_owned(), map, metadata })
}

/// Warnings of damage that is confined to a keyslot.
pub(super) fn damage_of_keyslots(metadata: &Metadata) -> impl Iterator<Item = LoadWarning> {
    metadata.keyslots.iter().filter_map(|(&keyslot, slot)| {
        let KeyslotDamage { fault, is_usable } = slot.damage.clone()?;
        Some(LoadWarning::KeyslotDamaged { keyslot, fault, is_usable })
    })
}

/// Warnings of texts that are none, but decide nothing.
pub(super) fn odd_texts(header: &BinaryHeader, json: &str) -> impl Iterator<Item = LoadWarning> {
    let is_odd = |text: &str| has_bytes(text) || text.chars().any(char::is_control);
    let texts = [
        ("label", is_odd(&header.label)),
        ("subsystem label", is_odd(&header.subsystem)),
        ("metadata", has_bytes(json)),
    ];
    texts.into_iter().filter_map(|(name, is_odd)| is_odd.then_some(LoadWarning::OddText(name)))
}

/// Checks that the device has the areas of all keyslots with keys.
fn check_inside(device: &dyn HeaderDevice, metadata: &Metadata) -> Result<(), LoadError> {
    let len = device.len()?;
    let keys = metadata.keyslots.values().filter(|keyslot| keyslot.can_be_tried());
    // The sum was checked against the end of the keyslot areas.
    match keys.map(|keyslot| keyslot.area_offset + keyslot.reserved_len()).max() {
        Some(needed) if needed > len => {
            Err(LoadError::Truncated { what: "LUKS2 header: the last keyslot area in use", needed, len })
        }
        _ => Ok(()),
    }
}
