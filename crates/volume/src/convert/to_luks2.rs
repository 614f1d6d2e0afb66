//! Conversion of a LUKS1 header to LUKS2.

use super::ConvertError;
use super::shift::{Shift, shift, spare};
use crate::header_device::HeaderDevice;
use crate::luks1::{Luks1, layout};
use crate::luks2::binary_header::BinaryHeader;
use crate::luks2::wipe::fill_random;
use crate::luks2::{self, Copies};
use crate::pbkdf::Hash;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use std::ops::Range;

/// Length of a copy of the new header, in bytes.
const HDR_SIZE: u64 = luks2::DEFAULT_METADATA_LEN;
/// Start of the new keyslot areas.
const AREAS_START: u64 = 2 * HDR_SIZE;
/// How far areas are moved up.
const DISTANCE: u64 = AREAS_START - layout::KEYSLOT_ALIGN;
/// Bytes of the LUKS1 header, with the rest of its second sector.
const LUKS1_LEN: u64 = 1024;

/// A LUKS1 header that can be converted.
#[derive(Debug)]
pub(super) struct Plan {
    luks1: Luks1,
    /// End of the last new keyslot area.
    header_len: u64,
    /// Length of all keyslot areas together.
    keyslots_len: u64,
}

impl Plan {
    pub(super) fn new(luks1: &Luks1) -> Result<Self, ConvertError> {
        if let Some(number) = luks1.damaged_keyslots().first() {
            return Err(ConvertError::KeyslotDamaged(*number));
        }
        let area_len = layout::area_len(luks1.key_len() as u64);
        let ends = (0..8).map(|number| target(luks1, number, luks1.area(number).start).saturating_add(area_len));
        let needed = ends.max().unwrap_or(0);
        let payload = u64::from(luks1.payload_offset()) * 512;
        let len = if payload == 0 { needed } else { payload };
        if needed > len {
            return Err(ConvertError::NoSpace { needed, len });
        }
        let keyslots_len = (len.min(AREAS_START + luks2::MAX_KEYSLOTS_LEN) - AREAS_START) / 4096 * 4096;
        let plan = Self { luks1: luks1.clone(), header_len: needed, keyslots_len };
        plan.header(|number| target(luks1, number, luks1.area(number).start))?;
        Ok(plan)
    }

    pub(super) fn header_len(&self) -> u64 {
        self.header_len
    }

    /// Returns the bytes that the new header takes, and the parts of the old one among them.
    pub(super) fn parts(&self) -> (Range<u64>, Vec<Range<u64>>) {
        let luks1 = &self.luks1;
        let area_len = layout::area_len(luks1.key_len() as u64);
        let areas = (0..8).map(|number| luks1.area(number).start);
        let mut own: Vec<_> = areas.clone().map(|start| start..start + area_len).collect();
        // A conversion that was cut off has left keys where they were, and parts of a header.
        if (0..)
            .zip(areas)
            .any(|(number, start)| start == layout::area_offset(luks1.key_len() as u64, number) + DISTANCE)
        {
            own.push(layout::KEYSLOT_ALIGN..AREAS_START + 8 * area_len);
        }
        (LUKS1_LEN..AREAS_START + self.keyslots_len, own)
    }

    pub(super) fn may_lose_keyslot(&self) -> bool {
        spare(&self.luks1).is_none()
    }

    pub(super) fn execute(self, device: &dyn HeaderDevice) -> Result<(), ConvertError> {
        let device = &self.luks1.checked(device)?;
        let mut luks1 = self.luks1.clone();
        let is_done = |number, start| target(&self.luks1, number, start) == start;
        shift(&mut luks1, device, Shift { distance: DISTANCE, is_up: true }, is_done)?;
        let copies = self.header(|number| luks1.area(number).start)?;
        copies.replace_luks1(device)?;
        // Areas without a key may have a copy of one.
        for number in (0..8).filter(|number| !luks1.active_keyslots().contains(number)) {
            fill_random(device, luks1.area(number))?;
        }
        Ok(device.sync()?)
    }

    /// Returns the LUKS2 header with the areas of the keyslots at these offsets.
    fn header(&self, offset_of: impl Fn(u32) -> u64) -> Result<Copies<'static>, ConvertError> {
        let header = BinaryHeader {
            hdr_size: HDR_SIZE,
            // That of cryptsetup.
            seqid: 2,
            label: String::new(),
            subsystem: String::new(),
            csum_alg: Hash::Sha256,
            uuid: self.luks1.uuid().to_owned(),
        };
        Ok(Copies::new(&header, &self.metadata(offset_of))?)
    }

    fn metadata(&self, offset_of: impl Fn(u32) -> u64) -> Map<String, Value> {
        let luks1 = &self.luks1;
        let key_len = luks1.key_len() as u64;
        let numbers: Vec<String> = luks1.active_keyslots().iter().map(u32::to_string).collect();
        let mut keyslots = Map::new();
        for number in luks1.active_keyslots() {
            let (iterations, salt) = luks1.derivation(number);
            let keyslot = json!({
                "type": "luks2",
                "key_size": key_len,
                "kdf": {
                    "type": "pbkdf2",
                    "hash": luks1.hash(),
                    "iterations": iterations,
                    "salt": STANDARD.encode(salt),
                },
                "af": {"type": "luks1", "hash": luks1.hash(), "stripes": 4000},
                "area": {
                    "type": "raw",
                    "encryption": luks1.cipher(),
                    "key_size": key_len,
                    "offset": offset_of(number).to_string(),
                    "size": layout::area_len(key_len).to_string(),
                },
            });
            keyslots.insert(number.to_string(), keyslot);
        }
        let segment = json!({
            "type": "crypt",
            "offset": (u64::from(luks1.payload_offset()) * 512).to_string(),
            "iv_tweak": "0",
            "size": "dynamic",
            "encryption": luks1.cipher(),
            "sector_size": 512,
        });
        let (iterations, salt, digest) = luks1.digest();
        let digest = json!({
            "type": "pbkdf2",
            "keyslots": numbers,
            "segments": ["0"],
            "hash": luks1.hash(),
            "iterations": iterations,
            "salt": STANDARD.encode(salt),
            "digest": STANDARD.encode(digest),
        });
        let config = json!({
            "json_size": (HDR_SIZE - 4096).to_string(),
            "keyslots_size": self.keyslots_len.to_string(),
        });
        let sections = [
            ("keyslots", keyslots.into()),
            ("tokens", json!({})),
            ("segments", json!({"0": segment})),
            ("digests", json!({"0": digest})),
            ("config", config),
        ];
        sections.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

/// Returns the new start of a keyslot's area that begins at `start`. One that a conversion has moved before it was cut
/// off stays.
fn target(luks1: &Luks1, number: u32, start: u64) -> u64 {
    let moved = layout::area_offset(luks1.key_len() as u64, number) + DISTANCE;
    if start == moved { start } else { start.saturating_add(DISTANCE) }
}
