//! Segments of the metadata (specification, section 3.3), and their form for the engine.

use super::json::Fields;
use super::metadata::{CryptSegment, Metadata, Segment, SegmentKind};
use crate::error::UnlockError;
use crate::luks_cipher;
use crate::printable::Excerpt;
use crate::violation::{HeaderFault, Violation};
use inlock_cipher::{CipherError, CipherSpec, DataUnitSize, SECTOR_SIZE, Sector};

/// Parses one segment.
pub(super) fn parse(fields: &Fields<'_>) -> Result<Segment, HeaderFault> {
    let kind = match fields.text("type")? {
        "crypt" => SegmentKind::Crypt(crypt(fields)?),
        "linear" => SegmentKind::Linear,
        other => SegmentKind::Other(other.to_owned()),
    };
    let unit = match &kind {
        SegmentKind::Crypt(crypt) => crypt.sector_size.into(),
        _ => SECTOR_SIZE,
    };
    let offset = fields.decimal("offset")?;
    multiple(fields, "offset", offset, SECTOR_SIZE)?;
    let size = match fields.text("size")? {
        "dynamic" => None,
        _ => Some(fields.decimal("size")?),
    };
    if let Some(size) = size {
        multiple(fields, "size", size, unit)?;
        if size == 0 {
            return Err(fields.fault(Violation::NotAllowed { field: "size", value: 0 }));
        }
    }
    Ok(Segment { offset, size, kind, flags: fields.texts_if_any("flags")? })
}

fn crypt(fields: &Fields<'_>) -> Result<CryptSegment, HeaderFault> {
    let sector_size = fields.number("sector_size", 512, 4096)?;
    if !sector_size.is_power_of_two() {
        return Err(fields.fault(Violation::NotAllowed { field: "sector_size", value: sector_size.into() }));
    }
    let integrity = match fields.has_field("integrity") {
        true => Some(fields.part("integrity")?.text("type")?.to_owned()),
        false => None,
    };
    let cipher = fields.text("encryption")?;
    if cipher.is_empty() {
        return Err(fields.wrong("encryption", "the name of a cipher"));
    }
    Ok(CryptSegment { iv_tweak: fields.decimal("iv_tweak")?, cipher: cipher.to_owned(), sector_size, integrity })
}

fn multiple(fields: &Fields<'_>, field: &'static str, value: u64, unit: u64) -> Result<(), HeaderFault> {
    if value.is_multiple_of(unit) { Ok(()) } else { Err(fields.fault(Violation::Misaligned { field, value, unit })) }
}

/// Returns the segments of the volume for the engine, in order and without gaps.
pub(super) fn to_serve(metadata: &Metadata) -> Result<Vec<inlock_cipher::Segment>, UnlockError> {
    let mut segments = Vec::new();
    let mut start = 0u64;
    for (&number, segment) in metadata.segments.iter().filter(|(_, segment)| !segment.is_backup()) {
        let refuse = |reason| UnlockError::Segment { segment: number, reason };
        if segment.flags.iter().any(|flag| flag == "in-reencryption") {
            return Err(refuse("it is being re-encrypted"));
        }
        if segment.offset.checked_add(segment.size.unwrap_or(0)).is_none() {
            return Err(refuse("it ends beyond the largest device"));
        }
        let sectors = segment.size.map(|size| size / SECTOR_SIZE);
        let (cipher, unit, iv_offset) = match &segment.kind {
            SegmentKind::Linear => (None, DataUnitSize::SECTOR, 0),
            SegmentKind::Other(name) => {
                return Err(UnlockError::UnsupportedType { place: "LUKS2 segment", name: Excerpt::new(name) });
            }
            SegmentKind::Crypt(crypt) => {
                if crypt.integrity.is_some() {
                    return Err(refuse("integrity protection is not supported"));
                }
                let unit = DataUnitSize::new(crypt.sector_size).map_err(|_| refuse("sector size"))?;
                let cipher = cipher("LUKS2 segment", &crypt.cipher)?;
                if !cipher.can_use_unit(unit) {
                    return Err(CipherError::Unit { spec: cipher, unit }.into());
                }
                (Some(cipher), unit, crypt.iv_tweak)
            }
        };
        // dm-crypt refuses an IV offset that is not a whole number of data units.
        if !iv_offset.is_multiple_of(unit.sectors()) {
            return Err(refuse("iv_tweak is not a multiple of the sector size"));
        }
        let mut mapped = inlock_cipher::Segment::whole(cipher, unit);
        mapped.start = Sector(start);
        mapped.sectors = sectors;
        mapped.data_offset = Sector(segment.offset / SECTOR_SIZE);
        mapped.iv_offset = Sector(iv_offset);
        segments.push(mapped);
        start = start.checked_add(sectors.unwrap_or(0)).ok_or_else(|| refuse("sizes add up to too much"))?;
    }
    Ok(segments)
}

/// Parses the name of a cipher in the metadata.
pub(super) fn cipher(place: &'static str, name: &str) -> Result<CipherSpec, UnlockError> {
    let unknown = |part| UnlockError::UnsupportedCipher { place, name: Excerpt::new(name), part };
    luks_cipher::parse(name).map_err(unknown)
}
