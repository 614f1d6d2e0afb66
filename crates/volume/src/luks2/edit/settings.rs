//! UUID, labels, priorities, flags and requirements.

use super::object::{object, section};
use crate::edit::{EditError, Priority};
use crate::header_device::HeaderDevice;
use crate::luks_uuid;
use crate::luks2::Luks2;
use crate::luks2::binary_header::{BinaryHeader, is_label};

impl Luks2 {
    /// Sets the UUID; `None`: a random one.
    ///
    /// # Errors
    ///
    /// Fails if the text is not a UUID, or if the header cannot be written.
    pub(crate) fn set_uuid(&mut self, device: &dyn HeaderDevice, uuid: Option<&str>) -> Result<(), EditError> {
        let header = BinaryHeader { uuid: luks_uuid::new(uuid)?, ..self.header.clone() };
        self.commit_header(device, header)
    }

    /// Sets label and subsystem; `None` keeps the present one.
    ///
    /// # Errors
    ///
    /// Fails if a text has more than 47 bytes or control characters, or if the header cannot be written.
    pub fn set_labels(
        &mut self,
        device: &dyn HeaderDevice,
        label: Option<&str>,
        subsystem: Option<&str>,
    ) -> Result<(), EditError> {
        let mut header = self.header.clone();
        for (option, text, field) in
            [("label", label, &mut header.label), ("subsystem", subsystem, &mut header.subsystem)]
        {
            match text {
                Some(text) if !is_label(text) => {
                    return Err(EditError::InvalidOption { option, reason: "not a text of at most 47 bytes" });
                }
                Some(text) => text.clone_into(field),
                None => {}
            }
        }
        self.commit_header(device, header)
    }

    /// Sets the priority of a keyslot.
    ///
    /// # Errors
    ///
    /// Fails if the keyslot is not active, or if the header cannot be written.
    pub fn set_priority(
        &mut self,
        device: &dyn HeaderDevice,
        keyslot: u32,
        priority: Priority,
    ) -> Result<(), EditError> {
        self.check_requirements()?;
        self.active_keyslot(keyslot)?;
        let mut map = self.map.clone();
        let slot = object(section(&mut map, "keyslots"), &keyslot.to_string());
        match priority {
            Priority::Ignore => slot.insert("priority".into(), 0.into()),
            Priority::Normal => slot.shift_remove("priority"),
            Priority::Prefer => slot.insert("priority".into(), 2.into()),
        };
        self.commit_map(device, map)
    }

    /// Sets the persistent activation flags, such as `allow-discards`.
    ///
    /// # Errors
    ///
    /// Fails if the header cannot be written.
    pub fn set_flags(&mut self, device: &dyn HeaderDevice, flags: &[&str]) -> Result<(), EditError> {
        self.check_requirements()?;
        let mut map = self.map.clone();
        let config = section(&mut map, "config");
        match flags.is_empty() {
            true => drop(config.shift_remove("flags")),
            false => drop(config.insert("flags".into(), flags.into())),
        }
        self.commit_map(device, map)
    }

    /// Sets the mandatory requirements. A program that does not know one of them refuses to activate the volume.
    ///
    /// # Errors
    ///
    /// Fails if the header cannot be written.
    pub fn set_requirements(&mut self, device: &dyn HeaderDevice, mandatory: &[&str]) -> Result<(), EditError> {
        let mut map = self.map.clone();
        let config = section(&mut map, "config");
        match mandatory.is_empty() {
            true => drop(config.shift_remove("requirements")),
            false => drop(object(config, "requirements").insert("mandatory".into(), mandatory.into())),
        }
        self.commit_map(device, map)
    }

    fn commit_header(&mut self, device: &dyn HeaderDevice, header: BinaryHeader) -> Result<(), EditError> {
        self.check_requirements()?;
        let device = self.checked(device)?;
        let draft = self.draft(header, &self.json)?;
        Ok(self.write(&device, draft)?)
    }
}
