//! Conversion of a LUKS2 header to LUKS1.

use super::ConvertError;
use super::shift::{Shift, shift, spare};
use crate::header_device::HeaderDevice;
use crate::key_material::STRIPES;
use crate::luks1::{self, KEYSLOT_DISABLED, KEYSLOT_ENABLED, Luks1, RawHeader, RawKeyslot, layout};
use crate::luks2::binary_header::Copy;
use crate::luks2::metadata::{
    CryptSegment, Digest, DigestKind, Keyslot, KeyslotKdf, KeyslotKind, Segment, SegmentKind,
};
use crate::luks2::wipe::fill_random;
use crate::luks2::{Luks2, header_end};
use crate::printable::Excerpt;
use std::ops::Range;
use zerocopy::{FromZeros, IntoBytes};

const KEYSLOTS: u32 = 8;
const SECTOR: usize = 512;

/// A LUKS2 header that can be converted.
#[derive(Debug)]
pub(super) struct Plan {
    luks2: Luks2,
    raw: RawHeader,
    hdr_size: u64,
    areas_end: u64,
    loses: Vec<&'static str>,
}

impl Plan {
    pub(super) fn new(luks2: &Luks2) -> Result<Self, ConvertError> {
        let metadata = luks2.metadata();
        if let Some(requirement) = metadata.config.requirements.first() {
            return Err(ConvertError::Requirement(Excerpt::new(requirement)));
        }
        let (segment, crypt) = only_segment(metadata.segments.values())?;
        let mut digests = metadata.digests.values();
        let (Some(digest), None) = (digests.next(), digests.next()) else {
            return Err(ConvertError::Digests("there is not exactly one"));
        };
        if !metadata.tokens.is_empty() {
            return Err(ConvertError::Tokens(metadata.tokens.len()));
        }
        let mut raw = new_header(luks2, segment, crypt, digest)?;
        for (&number, keyslot) in &metadata.keyslots {
            if number >= KEYSLOTS {
                return Err(ConvertError::KeyslotNumber(number));
            }
            if keyslot.damage.is_some() {
                return Err(ConvertError::KeyslotDamaged(number));
            }
            raw.keyslots[number as usize] = raw_keyslot(keyslot, &raw, crypt, digest)
                .map_err(|reason| ConvertError::Keyslot { keyslot: number, reason })?;
        }
        let key_len = u64::from(raw.key_bytes.get());
        let (start, end) = (2 * luks2.header().hdr_size, header_end(luks2.header(), metadata));
        let needed = u64::from(KEYSLOTS) * layout::area_len(key_len);
        if needed > end - start {
            return Err(ConvertError::NoSpace { needed, len: end - start });
        }
        place_unused(&mut raw, start, end)?;
        let loses = [
            ("the label", luks2.label().is_some()),
            ("the subsystem label", luks2.subsystem().is_some()),
            ("activation flags", !metadata.config.flags.is_empty()),
            ("priorities of keyslots", metadata.keyslots.values().any(|keyslot| keyslot.priority != 1)),
        ];
        let loses = loses.into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect();
        luks1::check_header(&raw)?;
        Ok(Self { luks2: luks2.clone(), raw, hdr_size: luks2.header().hdr_size, areas_end: end, loses })
    }

    /// Returns the bytes behind both copies that are overwritten, and the keyslot areas among them.
    pub(super) fn parts(&self) -> (Range<u64>, Vec<Range<u64>>) {
        let areas = self.luks2.metadata().keyslots.values();
        let own = areas.map(|slot| slot.area_offset..slot.area_offset + slot.area_len).collect();
        (2 * self.hdr_size..self.areas_end, own)
    }

    pub(super) fn loses(&self) -> Vec<&'static str> {
        self.loses.clone()
    }

    pub(super) fn execute(self, device: &dyn HeaderDevice) -> Result<(), ConvertError> {
        let device = &self.luks2.checked(device)?;
        if self.luks2.has_different_copies() {
            // The second copy must be whole while the first is replaced.
            self.luks2.rewrite_other_copy(device)?;
        }
        let mut bytes = [0; 2 * SECTOR];
        bytes[..self.raw.as_bytes().len()].copy_from_slice(self.raw.as_bytes());
        // It is LUKS2 with the second copy, until the first sector makes it LUKS1.
        device.write_all_at(&bytes[SECTOR..], SECTOR as u64)?;
        device.sync()?;
        device.write_all_at(&bytes[..SECTOR], 0)?;
        device.sync()?;
        device.write_all_at(&[0; SECTOR], self.hdr_size)?;
        device.sync()?;
        let mut luks1 = Luks1::load(device)?;
        // Without a free keyslot, moving would risk one. The areas may stay.
        if spare(&luks1).is_some() {
            let distance = 2 * self.hdr_size - layout::KEYSLOT_ALIGN;
            shift(&mut luks1, device, Shift { distance, is_up: false }, |_, _| false)?;
        }
        // What no keyslot uses may have key material, and the rest of the old header.
        let mut used: Vec<_> = luks1.active_keyslots().into_iter().map(|number| luks1.area(number)).collect();
        used.sort_unstable_by_key(|area| area.start);
        let mut start = layout::KEYSLOT_ALIGN;
        for area in used {
            fill_random(device, start..area.start)?;
            start = area.end;
        }
        fill_random(device, start..self.areas_end)?;
        device.write_all_at(&[0; layout::KEYSLOT_ALIGN as usize - 2 * SECTOR], 2 * SECTOR as u64)?;
        Ok(device.sync()?)
    }
}

fn only_segment<'a>(
    segments: impl Iterator<Item = &'a Segment>,
) -> Result<(&'a Segment, &'a CryptSegment), ConvertError> {
    let segments: Vec<_> = segments.collect();
    let [segment] = segments[..] else { return Err(ConvertError::Segments) };
    let SegmentKind::Crypt(crypt) = &segment.kind else { return Err(ConvertError::Segment("is not encrypted")) };
    let refused = [
        (crypt.sector_size != 512, "encryption sector size is not 512 bytes"),
        (crypt.integrity.is_some(), "has integrity protection"),
        (crypt.iv_tweak != 0, "has an IV offset"),
        (segment.size.is_some(), "has a length"),
        (!segment.flags.is_empty(), "has flags"),
    ];
    match refused.into_iter().find(|(is_refused, _)| *is_refused) {
        Some((_, reason)) => Err(ConvertError::Segment(reason)),
        None => Ok((segment, crypt)),
    }
}

fn new_header(
    luks2: &Luks2,
    segment: &Segment,
    crypt: &CryptSegment,
    digest: &Digest,
) -> Result<RawHeader, ConvertError> {
    let DigestKind::Pbkdf2 { hash, iterations, salt, digest: value } = &digest.kind else {
        return Err(ConvertError::Digests("its type is not pbkdf2"));
    };
    let mut raw = RawHeader::new_zeroed();
    raw.magic = Copy::Primary.magic();
    raw.version = 1.into();
    let (name, mode) = crypt.cipher.split_once('-').unwrap_or((&crypt.cipher, "cbc-plain"));
    put(&mut raw.cipher_name, name, "the cipher")?;
    put(&mut raw.cipher_mode, mode, "the cipher mode")?;
    put(&mut raw.hash_spec, hash, "the hash")?;
    put(&mut raw.uuid, luks2.uuid(), "the UUID")?;
    let payload = u32::try_from(segment.offset / 512);
    raw.payload_offset = payload.map_err(|_| ConvertError::Segment("offset is too large"))?.into();
    let key_len = luks2.metadata().keyslots.values().map(|keyslot| keyslot.key_len).next();
    raw.key_bytes = key_len.ok_or(ConvertError::Digests("there is no keyslot"))?.into();
    raw.digest_iterations = (*iterations).into();
    // A LUKS1 digest is the start of PBKDF2's output.
    let value = value.get(..raw.digest.len()).ok_or(ConvertError::Digests("it is too short"))?;
    raw.digest.copy_from_slice(value);
    raw.digest_salt = salt.as_slice().try_into().map_err(|_| ConvertError::Digests("its salt has not 32 bytes"))?;
    for slot in &mut raw.keyslots {
        *slot = RawKeyslot::new_zeroed();
        (slot.active, slot.stripes) = (KEYSLOT_DISABLED.into(), STRIPES.into());
    }
    Ok(raw)
}

fn raw_keyslot(
    keyslot: &Keyslot,
    raw: &RawHeader,
    crypt: &CryptSegment,
    digest: &Digest,
) -> Result<RawKeyslot, &'static str> {
    let KeyslotKind::Luks2(slot) = &keyslot.kind else { return Err("its type is not luks2") };
    let KeyslotKdf::Pbkdf2 { hash, iterations } = &slot.kdf else { return Err("its PBKDF is not pbkdf2") };
    let DigestKind::Pbkdf2 { hash: digest_hash, .. } = &digest.kind else { return Err("its digest is not pbkdf2") };
    if hash != digest_hash || slot.af_hash != *digest_hash {
        return Err("its hashes differ from that of the digest");
    }
    if slot.area_cipher != crypt.cipher || slot.area_key_len != keyslot.key_len {
        return Err("its cipher differs from that of the data");
    }
    if keyslot.key_len != raw.key_bytes.get() {
        return Err("the length of its key differs");
    }
    if !keyslot.area_offset.is_multiple_of(512) {
        return Err("its area does not begin at a sector");
    }
    Ok(RawKeyslot {
        active: KEYSLOT_ENABLED.into(),
        iterations: (*iterations).into(),
        salt: slot.salt.as_slice().try_into().map_err(|_| "its salt has not 32 bytes")?,
        offset: u32::try_from(keyslot.area_offset / 512).map_err(|_| "its area is too far behind")?.into(),
        stripes: STRIPES.into(),
    })
}

/// Gives unused keyslots areas in the gaps between the used ones.
fn place_unused(raw: &mut RawHeader, start: u64, end: u64) -> Result<(), ConvertError> {
    let len = layout::area_len(raw.key_bytes.get().into());
    let mut next = start;
    for number in 0..raw.keyslots.len() {
        if raw.keyslots[number].active.get() == KEYSLOT_ENABLED {
            continue;
        }
        let used = |slot: &&RawKeyslot| slot.active.get() == KEYSLOT_ENABLED;
        loop {
            let starts = raw.keyslots.iter().filter(used).map(|slot| u64::from(slot.offset.get()) * 512);
            match starts.filter(|&other| next < other + len && other < next + len).max() {
                Some(other) => next = other + len,
                None => break,
            }
        }
        if next + len > end {
            return Err(ConvertError::NoSpace { needed: next + len, len: end });
        }
        raw.keyslots[number].offset = ((next / 512) as u32).into();
        next += len;
    }
    Ok(())
}

fn put(field: &mut [u8], text: &str, name: &'static str) -> Result<(), ConvertError> {
    // A zero byte ends the text.
    if text.len() >= field.len() {
        return Err(ConvertError::TooLong(name));
    }
    field[..text.len()].copy_from_slice(text.as_bytes());
    Ok(())
}
