//! Rewriting the metadata.
//!
//! The copy that was not trusted is written first, and made durable before the other one is written. So a power cut
//! leaves at least one valid copy, with the old metadata or the new; a damaged copy is repaired as well.

use super::binary_header::{BLOCK_LEN, BinaryHeader, Copy};
use super::{HEADER, Luks2, validate};
use crate::error::CommitError;
use crate::header_device::HeaderDevice;
use crate::pbkdf::fill_random;
use serde_json::{Map, Value};

impl Luks2 {
    /// Checks the JSON object `metadata` by all rules of loading, and writes it as the new metadata of both copies,
    /// with the next sequence number and new salts. Key material that it refers to must be durable before.
    ///
    /// The caller holds the header's lock since loading it. After an error `self` still has the old metadata, and the
    /// device has the old or the new.
    ///
    /// # Errors
    ///
    /// Fails before it writes if the metadata violate a rule or do not fit their area; later, only if the device cannot
    /// be written. One copy of the header is valid at any time.
    pub fn commit(&mut self, device: &dyn HeaderDevice, metadata: &str) -> Result<(), CommitError> {
        let seqid = self.header.seqid.checked_add(1).ok_or(CommitError::SequenceExhausted)?;
        let header = BinaryHeader { seqid, ..self.header.clone() };
        let (map, metadata) = validate::read(HEADER, &header, metadata)?;
        let area = json_area(&header, &map).map_err(|(needed, area)| CommitError::MetadataTooLarge { needed, area })?;
        for copy in [self.trusted.other(), self.trusted] {
            write_copy(device, &header, copy, &area)?;
            self.trusted = copy;
        }
        self.trusted = Copy::Primary;
        self.json = Value::Object(map.clone()).to_string();
        (self.header, self.map, self.metadata) = (header, map, metadata);
        self.warnings.clear();
        Ok(())
    }
}

fn write_copy(
    device: &dyn HeaderDevice,
    header: &BinaryHeader,
    copy: Copy,
    json_area: &[u8],
) -> Result<(), CommitError> {
    let mut salt = [0; 64];
    fill_random(&mut salt)?;
    let mut bytes = header.encode(copy, &salt, json_area).to_vec();
    bytes.extend_from_slice(json_area);
    device.write_all_at(&bytes, header.offset(copy))?;
    Ok(device.sync()?)
}

/// Returns the JSON area with the text of `map`. Fails with the length of the text with its zero byte, and the length
/// of the area.
pub(super) fn json_area(header: &BinaryHeader, map: &Map<String, Value>) -> Result<Vec<u8>, (u64, u64)> {
    let mut area = serde_json::to_vec(map).expect("a tree with string keys always becomes text");
    let len = header.hdr_size as usize - BLOCK_LEN;
    if area.len() >= len {
        return Err((area.len() as u64 + 1, len as u64));
    }
    area.resize(len, 0);
    Ok(area)
}
