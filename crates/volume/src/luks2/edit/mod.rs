//! Changing a LUKS2 header.
//!
//! Every change is one or more commits of metadata, each of which a power cut leaves undone or done. Key material is
//! durable before the metadata that refers to it. Key material of a removed keyslot is overwritten, and that is
//! durable, before the keyslot leaves the metadata: after a power cut in between, the keyslot can be removed again
//! ([order of writes](../../../../../docs/decisions/luks-headers.md)).

mod change;
mod keyslots;
mod object;
mod settings;
mod tokens;

pub(super) use keyslots::{free_area, free_digest, free_keyslot};
pub(super) use object::{has_reference, object, refer, remove_keyslots, section};

use super::Luks2;
use super::commit::Draft;
use crate::edit::EditError;
use crate::header_device::HeaderDevice;
use crate::printable::Excerpt;
use serde_json::{Map, Value};

impl Luks2 {
    /// Refuses a header with a mandatory requirement, whose rules a change might break.
    pub(super) fn check_requirements(&self) -> Result<(), EditError> {
        match self.metadata.config.requirements.first() {
            Some(requirement) => Err(EditError::Requirement(Excerpt::new(requirement))),
            None => Ok(()),
        }
    }

    /// Refuses to remove a keyslot during a re-encryption, which needs one of each key.
    pub(super) fn check_removal(&self) -> Result<(), EditError> {
        if self.is_in_reencryption() { self.check_requirements() } else { Ok(()) }
    }

    /// Checks changed metadata.
    pub(super) fn draft_of(&self, map: Map<String, Value>) -> Result<Draft, EditError> {
        Ok(self.draft(self.header.clone(), &Value::Object(map).to_string())?)
    }

    /// Checks and writes changed metadata.
    pub(super) fn commit_map(&mut self, device: &dyn HeaderDevice, map: Map<String, Value>) -> Result<(), EditError> {
        let device = self.checked(device)?;
        let draft = self.draft_of(map)?;
        Ok(self.write(&device, draft)?)
    }
}
