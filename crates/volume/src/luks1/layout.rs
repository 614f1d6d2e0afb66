//! The layout of a LUKS1 header as cryptsetup creates it: keyslots of equal length from byte 4096.

use super::STRIPES;
use super::binary_header::KEYSLOTS;
use crate::key_material::material_len;

/// Bytes to which keyslots are aligned; the first starts there.
pub(crate) const KEYSLOT_ALIGN: u64 = 4096;

/// Returns the distance of two keyslots, in bytes.
pub(crate) fn area_len(key_len: u64) -> u64 {
    material_len(key_len, STRIPES.into()).unwrap_or(0).next_multiple_of(KEYSLOT_ALIGN)
}

/// Returns the start of a keyslot's area, in bytes.
pub(crate) fn area_offset(key_len: u64, number: u32) -> u64 {
    KEYSLOT_ALIGN + u64::from(number) * area_len(key_len)
}

/// Returns the end of the last keyslot's area.
pub(crate) fn areas_end(key_len: u64) -> u64 {
    area_offset(key_len, KEYSLOTS as u32)
}
