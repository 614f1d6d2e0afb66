//! Rewriting the metadata.
//!
//! The copy that was not trusted is written first, and made durable before the other one is written. So a power cut
//! leaves at least one valid copy, with the old metadata or the new; a damaged copy is repaired as well.

use super::binary_header::{BLOCK_LEN, BinaryHeader, Copy};
use super::metadata::Metadata;
use super::{HEADER, Luks2, load, validate};
use crate::byte_text::bytes_of_text;
use crate::checked_device::CheckedDevice;
use crate::error::{CommitError, LoadWarning};
use crate::header_device::HeaderDevice;
use crate::pbkdf::fill_random;
use serde_json::{Map, Value};

/// A new version of the header that complies with the format and fits its area, not yet written.
#[derive(Debug)]
pub(super) struct Draft {
    header: BinaryHeader,
    map: Map<String, Value>,
    metadata: Metadata,
    area: Vec<u8>,
}

impl Luks2 {
    /// Checks the JSON object `metadata` by all rules of loading, and writes it as the new metadata of both copies,
    /// with the next sequence number and new salts. Key material that it refers to must be durable before.
    ///
    /// The caller holds the header's lock since loading it. After an error `self` still has the old metadata, and the
    /// device has the old or the new.
    ///
    /// # Errors
    ///
    /// Fails before it writes if the device has another header than the loaded one, or if the metadata violate a rule
    /// or do not fit their area; later, only if the device cannot
    /// be written. One copy of the header is valid at any time.
    pub fn commit(&mut self, device: &dyn HeaderDevice, metadata: &str) -> Result<(), CommitError> {
        let device = self.checked(device)?;
        let draft = self.draft(self.header.clone(), metadata)?;
        self.write(&device, draft)
    }

    /// Checks the next version of the header, with these fields and this JSON text.
    pub(super) fn draft(&self, header: BinaryHeader, metadata: &str) -> Result<Draft, CommitError> {
        let seqid = self.header.seqid.checked_add(1).ok_or(CommitError::SequenceExhausted)?;
        let header = BinaryHeader { seqid, ..header };
        let (map, metadata) = validate::read(HEADER, &header, metadata)?;
        let area = json_area(&header, &map).map_err(|(needed, area)| CommitError::MetadataTooLarge { needed, area })?;
        Ok(Draft { header, map, metadata, area })
    }

    /// Writes both copies, one after the other.
    pub(super) fn write(&mut self, device: &CheckedDevice<'_>, draft: Draft) -> Result<(), CommitError> {
        let Draft { header, map, metadata, area } = draft;
        for copy in [self.trusted.other(), self.trusted] {
            write_copy(device, &header, copy, &area)?;
            self.trusted = copy;
        }
        self.trusted = Copy::Primary;
        self.json = Value::Object(map.clone()).to_string();
        (self.header, self.map, self.metadata) = (header, map, metadata);
        let odd = load::odd_texts(&self.header, &self.json);
        self.warnings = load::damage_of_keyslots(&self.metadata).chain(odd).collect();
        Ok(())
    }
}

impl Luks2 {
    /// Whether loading found a copy damaged, older, or with another content.
    pub(crate) fn has_different_copies(&self) -> bool {
        let is_of_copies = |warning: &LoadWarning| {
            matches!(
                warning,
                LoadWarning::PrimaryDamaged(_)
                    | LoadWarning::SecondaryDamaged(_)
                    | LoadWarning::CopiesDiffer { .. }
                    | LoadWarning::SameSequenceDifferentContent { .. }
            )
        };
        self.warnings.iter().any(is_of_copies)
    }

    /// Returns the copy that was read.
    pub(crate) fn trusted_copy(&self) -> Copy {
        self.trusted
    }

    /// Writes the other copy again from the one that was read, with the same sequence number and a new salt.
    pub(crate) fn rewrite_other_copy(&self, device: &dyn HeaderDevice) -> Result<(), CommitError> {
        let mut area = vec![0; self.header.json_len()];
        let json = bytes_of_text(&self.json);
        area[..json.len()].copy_from_slice(&json);
        write_copy(device, &self.header, self.trusted.other(), &area)
    }
}

impl Luks2 {
    /// Writes both copies again with the same sequence number, the one that was not read first.
    pub(crate) fn rewrite_copies(&self, device: &dyn HeaderDevice) -> Result<(), CommitError> {
        self.rewrite_other_copy(device)?;
        Self { trusted: self.trusted.other(), ..self.clone() }.rewrite_other_copy(device)
    }
}

fn write_copy(
    device: &dyn HeaderDevice,
    header: &BinaryHeader,
    copy: Copy,
    json_area: &[u8],
) -> Result<(), CommitError> {
    device.write_all_at(&encode(header, copy, json_area)?, header.offset(copy))?;
    Ok(device.sync()?)
}

/// Returns a copy, with a new salt.
fn encode(header: &BinaryHeader, copy: Copy, json_area: &[u8]) -> Result<Vec<u8>, CommitError> {
    let mut salt = [0; 64];
    fill_random(&mut salt)?;
    let mut bytes = header.encode(copy, &salt, json_area).to_vec();
    bytes.extend_from_slice(json_area);
    Ok(bytes)
}

/// Both copies of a new header, checked and encoded.
#[derive(Debug)]
pub(crate) struct NewCopies {
    primary: Vec<u8>,
    secondary: Vec<u8>,
}

impl NewCopies {
    pub(crate) fn new(header: &BinaryHeader, map: &Map<String, Value>) -> Result<Self, CommitError> {
        validate::check(HEADER, header, map)?;
        let area = json_area(header, map).map_err(|(needed, area)| CommitError::MetadataTooLarge { needed, area })?;
        Ok(Self { primary: encode(header, Copy::Primary, &area)?, secondary: encode(header, Copy::Secondary, &area)? })
    }

    pub(crate) fn of(&self, copy: Copy) -> &[u8] {
        match copy {
            Copy::Primary => &self.primary,
            Copy::Secondary => &self.secondary,
        }
    }
}

/// Returns the JSON area with the text of `map`. Fails with the length of the text with its zero byte, and the length
/// of the area.
pub(super) fn json_area(header: &BinaryHeader, map: &Map<String, Value>) -> Result<Vec<u8>, (u64, u64)> {
    let text = serde_json::to_string(map).expect("a tree with string keys always becomes text");
    let mut area = bytes_of_text(&text).into_owned();
    let len = header.hdr_size as usize - BLOCK_LEN;
    if area.len() >= len {
        return Err((area.len() as u64 + 1, len as u64));
    }
    area.resize(len, 0);
    Ok(area)
}
