//! Segments of the metadata (specification, section 3.3), and their form for the engine.

use super::json::Fields;
use super::metadata::{CryptSegment, Integrity, Metadata, Segment, SegmentKind};
use crate::authenticated::AuthenticatedSegment;
use crate::error::UnlockError;
use crate::key_material::MAX_KEY_LEN;
use crate::luks_cipher;
use crate::printable::Excerpt;
use crate::unlock::Payload;
use crate::violation::{HeaderFault, Violation};
use inlock_cipher::{AeadSpec, CipherError, CipherSpec, DataUnitSize, InvalidCipherSpec, SECTOR_SIZE, Sector};

/// Flag of the segment that is being written.
pub(super) const IN_REENCRYPTION: &str = "in-reencryption";

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
        true => Some(integrity(&fields.part("integrity")?)?),
        false => None,
    };
    let cipher = fields.text("encryption")?;
    if cipher.is_empty() {
        return Err(fields.wrong("encryption", "the name of a cipher"));
    }
    Ok(CryptSegment { iv_tweak: fields.decimal("iv_tweak")?, cipher: cipher.to_owned(), sector_size, integrity })
}

fn integrity(fields: &Fields<'_>) -> Result<Integrity, HeaderFault> {
    let name = |field| match fields.text(field)? {
        "" => Err(fields.wrong(field, "the name of an algorithm")),
        name => Ok(name.to_owned()),
    };
    let key_len = match fields.has_field("key_size") {
        true => Some(fields.number("key_size", 1, MAX_KEY_LEN as u32)?),
        false => None,
    };
    Ok(Integrity {
        kind: name("type")?,
        journal_encryption: name("journal_encryption")?,
        journal_integrity: name("journal_integrity")?,
        key_len,
    })
}

fn multiple(fields: &Fields<'_>, field: &'static str, value: u64, unit: u64) -> Result<(), HeaderFault> {
    if value.is_multiple_of(unit) { Ok(()) } else { Err(fields.fault(Violation::Misaligned { field, value, unit })) }
}

/// Returns the payload of the volume: its segments for the engine, in order and without gaps, or its only segment if
/// that is authenticated.
pub(super) fn to_serve(metadata: &Metadata) -> Result<Payload, UnlockError> {
    if let Some(authenticated) = authenticated(metadata)? {
        return Ok(Payload::Authenticated(authenticated));
    }
    let mut segments = Vec::new();
    let mut start = 0u64;
    for (&number, segment) in metadata.segments.iter().filter(|(_, segment)| !segment.is_backup()) {
        let refuse = |reason| UnlockError::Segment { segment: number, reason };
        if segment.has_flag(IN_REENCRYPTION) {
            return Err(refuse("it is being re-encrypted"));
        }
        let mut mapped = mapped(number, segment)?;
        mapped.start = Sector(start);
        start = start.checked_add(mapped.sectors.unwrap_or(0)).ok_or_else(|| refuse("sizes add up to too much"))?;
        segments.push(mapped);
    }
    Ok(Payload::Segments(segments))
}

/// Returns a segment without integrity protection for the engine, as if it were the first of its volume.
pub(super) fn mapped(number: u32, segment: &Segment) -> Result<inlock_cipher::Segment, UnlockError> {
    let refuse = |reason| UnlockError::Segment { segment: number, reason };
    if segment.offset.checked_add(segment.size.unwrap_or(0)).is_none() {
        return Err(refuse("it ends beyond the largest device"));
    }
    let (cipher, unit, iv_offset) = match &segment.kind {
        SegmentKind::Linear => (None, DataUnitSize::SECTOR, 0),
        SegmentKind::Other(name) => {
            return Err(UnlockError::UnsupportedType { place: "LUKS2 segment", name: Excerpt::new(name) });
        }
        SegmentKind::Crypt(crypt) => {
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
    mapped.sectors = segment.size.map(|size| size / SECTOR_SIZE);
    mapped.data_offset = Sector(segment.offset / SECTOR_SIZE);
    mapped.iv_offset = Sector(iv_offset);
    Ok(mapped)
}

/// Returns the authenticated segment, if the volume has one. It must be the only one and reach to the end of the
/// device, since the dm-integrity volume has its length from there.
fn authenticated(metadata: &Metadata) -> Result<Option<AuthenticatedSegment>, UnlockError> {
    let mut live = metadata.segments.iter().filter(|(_, segment)| !segment.is_backup());
    let found = live.clone().find_map(|(&number, segment)| match &segment.kind {
        SegmentKind::Crypt(crypt) => Some((number, segment, crypt, crypt.integrity.as_ref()?)),
        _ => None,
    });
    let Some((number, segment, crypt, integrity)) = found else { return Ok(None) };
    let refuse = |reason| Err(UnlockError::Segment { segment: number, reason });
    if live.nth(1).is_some() {
        return refuse("a volume with integrity protection has only one segment");
    }
    if segment.has_flag(IN_REENCRYPTION) {
        return refuse("it is being re-encrypted");
    }
    if segment.size.is_some() {
        return refuse("with integrity protection its size must be dynamic");
    }
    if integrity.journal_encryption != "none" || integrity.journal_integrity != "none" {
        return refuse("the encryption or authentication of its journal is not supported");
    }
    let spec = aead_spec(crypt, integrity)?;
    let Ok(unit) = DataUnitSize::new(crypt.sector_size) else { return refuse("sector size") };
    if !crypt.iv_tweak.is_multiple_of(unit.sectors()) {
        return refuse("iv_tweak is not a multiple of the sector size");
    }
    let data_offset = Sector(segment.offset / SECTOR_SIZE);
    Ok(Some(AuthenticatedSegment { spec, unit, data_offset, iv_offset: Sector(crypt.iv_tweak) }))
}

/// Returns the AEAD of a segment with integrity protection.
pub(super) fn aead_spec(crypt: &CryptSegment, integrity: &Integrity) -> Result<AeadSpec, UnlockError> {
    let unsupported = |error: InvalidCipherSpec| UnlockError::UnsupportedCipher {
        place: "LUKS2 segment",
        name: Excerpt::new(&format!("{} with {}", crypt.cipher, integrity.kind)),
        part: error.part,
    };
    let spec = AeadSpec::from_luks2(&crypt.cipher, &integrity.kind).map_err(unsupported)?;
    match integrity.key_len {
        Some(len) => spec.with_mac_key_len(len as usize).map_err(unsupported),
        None => Ok(spec),
    }
}

/// Parses the name of a cipher in the metadata.
pub(super) fn cipher(place: &'static str, name: &str) -> Result<CipherSpec, UnlockError> {
    let unknown = |part| UnlockError::UnsupportedCipher { place, name: Excerpt::new(name), part };
    luks_cipher::parse(name).map_err(unknown)
}
