//! LUKS version 2: "LUKS2 On-Disk Format Specification", version 1.1.4.
//!
//! Two copies of a binary header, each with JSON metadata, then the keyslot areas. Loading chooses the copy to trust,
//! and checks all of it. [`Luks2`] keeps the JSON as read, with a typed view over it, so a rewrite preserves unknown
//! fields. Loading never writes.

mod areas;
pub mod binary_header;
mod commit;
mod copies;
pub(crate) mod digest;
pub(crate) mod dump;
mod edit;
mod format;
mod json;
mod keyslot;
mod load;
pub mod metadata;
mod new_digest;
mod new_keyslot;
pub mod reencryption;
mod reencryption_keyslot;
pub(crate) mod repair;
mod salvage;
mod segment;
mod token;
mod unlock;
mod validate;
pub(crate) mod wipe;

pub(crate) use repair::Luks2Repair;

pub use format::{DEFAULT_KEYSLOTS_LEN, DEFAULT_METADATA_LEN, FormatOptions, format};
pub use token::{TokenError, TokenFailure, TokenHandler, TokenOptions, TokenRequest};

use crate::checked_device::CheckedDevice;
use crate::error::{CommitError, LoadError, LoadWarning};
use crate::header_device::HeaderDevice;
use binary_header::{BinaryHeader, Copy};
use metadata::Metadata;
use serde_json::{Map, Value};

pub(crate) use areas::{MAX_KEYSLOTS_LEN, keyslots_end as header_end};
pub(crate) use copies::Copies;

pub(crate) const HEADER: &str = "LUKS2 header";
pub(crate) const SECOND_HEADER: &str = "LUKS2 second header";

/// A checked LUKS2 header.
#[derive(Clone, Debug)]
pub struct Luks2 {
    header: BinaryHeader,
    json: String,
    map: Map<String, Value>,
    metadata: Metadata,
    warnings: Vec<LoadWarning>,
    /// The copy that was read; the next commit writes the other one first.
    trusted: Copy,
    /// One copy may not be durable.
    has_volatile_copy: bool,
}

impl Luks2 {
    /// Reads both copies of the header, and checks the trusted one.
    ///
    /// # Errors
    ///
    /// Fails if the device has no LUKS2 header, or no copy of it that complies with the specification.
    pub fn load(device: &dyn HeaderDevice) -> Result<Self, LoadError> {
        load::load(device, load::Foreign::Refused)
    }

    /// Like [`Luks2::load`]; also uses the second copy of a header whose first one is lost on a device that has a
    /// signature of another format, such as a file system. Such a copy may be what an older volume has left, and
    /// writing to it destroys the other content; so let the user decide.
    ///
    /// # Errors
    ///
    /// As [`Luks2::load`].
    pub fn load_despite_signatures(device: &dyn HeaderDevice) -> Result<Self, LoadError> {
        load::load(device, load::Foreign::Ignored)
    }

    /// Whether another header has the same sequence number and content, and the same copy is whole.
    pub(crate) fn is_same_header(&self, other: &Self) -> bool {
        self.trusted == other.trusted && self.header == other.header && self.json == other.json
    }

    /// Returns `device` to change its header, which must be this one.
    pub(crate) fn checked<'a>(&self, device: &'a dyn HeaderDevice) -> Result<CheckedDevice<'a>, CommitError> {
        // The caller has decided about signatures of other formats when it loaded this header.
        let present = Self::load_despite_signatures(device);
        CheckedDevice::new(device, present.map(|present| present.is_same_header(self)))
    }

    /// Whether a keyslot of another header holds the same key under the same passphrase. Its priority does not matter.
    pub(crate) fn has_same_keyslot(&self, other: &Self, number: u32) -> bool {
        let keyslot = |luks2: &Self| {
            let mut object = luks2.map.get("keyslots")?.get(number.to_string())?.as_object()?.clone();
            object.shift_remove("priority");
            Some(object)
        };
        let digest = |luks2: &Self| {
            let mut object = luks2.map["digests"][luks2.digest_of(number)?.to_string()].as_object()?.clone();
            object.shift_remove("keyslots");
            Some(object)
        };
        keyslot(self).is_some() && keyslot(self) == keyslot(other) && digest(self) == digest(other)
    }

    /// Returns the UUID.
    pub fn uuid(&self) -> &str {
        &self.header.uuid
    }

    /// Returns the label, unless it is empty.
    pub fn label(&self) -> Option<&str> {
        Some(self.header.label.as_str()).filter(|label| !label.is_empty())
    }

    /// Returns the subsystem label, unless it is empty.
    pub fn subsystem(&self) -> Option<&str> {
        Some(self.header.subsystem.as_str()).filter(|label| !label.is_empty())
    }

    /// Irregularities that did not prevent loading the header.
    pub fn warnings(&self) -> &[LoadWarning] {
        &self.warnings
    }

    /// Returns the binary header.
    pub fn header(&self) -> &BinaryHeader {
        &self.header
    }

    /// Returns the typed view of the metadata.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Returns the metadata as stored: a JSON object, of which [`Luks2::commit`] writes a changed version.
    pub fn metadata_json(&self) -> &str {
        &self.json
    }

    /// Returns the start of the first segment on the data device, in bytes.
    pub fn data_offset(&self) -> u64 {
        self.metadata.segments.values().filter(|segment| !segment.is_backup()).map(|s| s.offset).min().unwrap_or(0)
    }

    /// Returns the minimum length of the data device in bytes; a segment up to its end counts as one sector.
    pub fn data_end(&self) -> u64 {
        let live = self.metadata.segments.values().filter(|segment| !segment.is_backup());
        live.map(|segment| segment.offset.saturating_add(segment.size.unwrap_or(512))).max().unwrap_or(0)
    }

    /// Returns the ciphers of the segments in use, as stored.
    pub(crate) fn cipher_names(&self) -> Vec<Option<String>> {
        let live = self.metadata.segments.values().filter(|segment| !segment.is_backup());
        let name = |segment: &metadata::Segment| match &segment.kind {
            metadata::SegmentKind::Crypt(crypt) => Some(crypt.cipher.clone()),
            _ => None,
        };
        live.map(name).collect()
    }

    /// Returns the salt of the digest of a segment's key.
    pub(crate) fn key_salt(&self) -> Option<&[u8]> {
        let mut bound = self.metadata.digests.values().filter(|digest| !digest.segments.is_empty());
        bound.find_map(|digest| match &digest.kind {
            metadata::DigestKind::Pbkdf2 { salt, .. } => Some(&salt[..]),
            metadata::DigestKind::Other(_) => None,
        })
    }

    /// Returns the length of the volume key in bytes. `None`: no keyslot is left that says it.
    pub fn volume_key_len(&self) -> Option<usize> {
        let bound = self.metadata.digests.values().find(|digest| !digest.segments.is_empty())?;
        let slot = bound.keyslots.iter().find_map(|number| self.metadata.keyslots.get(number))?;
        Some(slot.key_len as usize)
    }

    /// Numbers of the keyslots that hold a key of a segment, in the order in which they are tried.
    pub fn active_keyslots(&self) -> Vec<u32> {
        unlock::order_of_trial(&self.metadata)
    }
}
