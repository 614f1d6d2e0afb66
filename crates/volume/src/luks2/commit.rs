//! Rewriting the metadata.
//!
//! The copy that was not trusted is written first, and made durable before the other one is written. So a power cut
//! leaves at least one valid copy, with the old metadata or the new; a damaged copy is repaired as well.

use super::binary_header::{BinaryHeader, Copy};
use super::copies::{Copies, json_area};
use super::metadata::Metadata;
use super::{HEADER, Luks2, load, validate};
use crate::byte_text::bytes_of_text;
use crate::checked_device::CheckedDevice;
use crate::error::{CommitError, LoadWarning};
use crate::header_device::HeaderDevice;
use serde_json::{Map, Value};
use std::io;

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

    /// Writes both copies durably, one after the other.
    pub(super) fn write(&mut self, device: &CheckedDevice<'_>, draft: Draft) -> Result<(), CommitError> {
        self.write_copies(device, draft, |copies, copy| copies.write(device, copy))
    }

    /// Writes one copy durably, and then the other, which [`Luks2::sync`] or the next change makes durable.
    pub(super) fn write_first(&mut self, device: &CheckedDevice<'_>, draft: Draft) -> Result<(), CommitError> {
        self.write_copies(device, draft, |copies, copy| copies.write_volatile(device, copy))?;
        self.has_volatile_copy = true;
        Ok(())
    }

    fn write_copies(
        &mut self,
        device: &CheckedDevice<'_>,
        draft: Draft,
        write_second: impl FnOnce(&Copies<'_>, Copy) -> io::Result<()>,
    ) -> Result<(), CommitError> {
        // A copy is overwritten only while the other one is durable.
        self.sync(device)?;
        let Draft { header, map, metadata, area } = draft;
        let copies = Copies::encode(&header, &area)?;
        let second = self.trusted;
        copies.write(device, second.other())?;
        self.trusted = second.other();
        write_second(&copies, second)?;
        self.trusted = Copy::Primary;
        self.json = Value::Object(map.clone()).to_string();
        (self.header, self.map, self.metadata) = (header, map, metadata);
        let odd = load::odd_texts(&self.header, &self.json);
        self.warnings = load::damage_of_keyslots(&self.metadata).chain(odd).collect();
        Ok(())
    }
}

impl Luks2 {
    /// Makes the header durable, if a copy of it may not be.
    ///
    /// # Errors
    ///
    /// Fails if the device does.
    pub fn sync(&mut self, device: &dyn HeaderDevice) -> io::Result<()> {
        if self.has_volatile_copy {
            device.sync()?;
            self.has_volatile_copy = false;
        }
        Ok(())
    }

    /// Takes note that the caller has made durable what was written to the device of the header.
    pub fn set_durable(&mut self) {
        self.has_volatile_copy = false;
    }

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
        Ok(Copies::encode(&self.header, &area)?.write(device, self.trusted.other())?)
    }
}

impl Luks2 {
    /// Writes both copies again with the same sequence number, the one that was not read first.
    pub(crate) fn rewrite_copies(&self, device: &dyn HeaderDevice) -> Result<(), CommitError> {
        self.rewrite_other_copy(device)?;
        Self { trusted: self.trusted.other(), ..self.clone() }.rewrite_other_copy(device)
    }
}
