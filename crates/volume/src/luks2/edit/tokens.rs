//! Adding, removing and assigning tokens.

use super::object::{free_number, refer, section, unrefer};
use crate::edit::EditError;
use crate::header_device::HeaderDevice;
use crate::luks2::json;
use crate::luks2::token::kind;
use crate::luks2::validate::MAX_OBJECTS;
use crate::luks2::{HEADER, Luks2};
use crate::printable::Excerpt;
use crate::violation::HeaderPath;
use serde_json::Value;

impl Luks2 {
    /// Adds a token, and returns its number. `json` is the object as [`Luks2::token_json`] returns it. All keyslots
    /// that it refers to exist.
    ///
    /// # Errors
    ///
    /// Fails if the text is not a token, if it violates the rules of its type, if `number` is in use, or if the header
    /// cannot be written.
    pub fn add_token(&mut self, device: &dyn HeaderDevice, number: Option<u32>, json: &str) -> Result<u32, EditError> {
        let number = match number {
            None => free_number(&self.metadata.tokens, MAX_OBJECTS).ok_or(EditError::NoFreeToken)?,
            Some(number) if self.metadata.tokens.contains_key(&number) => return Err(EditError::TokenInUse(number)),
            Some(number) => number,
        };
        self.put_token(device, number, json)?;
        Ok(number)
    }

    /// Replaces a token, or adds one of that number.
    ///
    /// # Errors
    ///
    /// As [`Luks2::add_token`], except that `number` may be in use.
    pub fn replace_token(&mut self, device: &dyn HeaderDevice, number: u32, json: &str) -> Result<(), EditError> {
        self.put_token(device, number, json)
    }

    fn put_token(&mut self, device: &dyn HeaderDevice, number: u32, text: &str) -> Result<(), EditError> {
        self.check_requirements()?;
        if number >= MAX_OBJECTS {
            return Err(EditError::TokenInvalid { number, max: MAX_OBJECTS - 1 });
        }
        let not_json = |violation: crate::violation::Violation| {
            EditError::TokenJson(violation.at(HEADER, HeaderPath::object("tokens", number)))
        };
        let token = json::parse(text.trim()).map_err(not_json)?;
        kind::check(&token).map_err(|reason| EditError::TokenType {
            kind: Excerpt::new(token.get("type").and_then(Value::as_str).unwrap_or_default()),
            reason,
        })?;
        let mut map = self.map.clone();
        section(&mut map, "tokens").insert(number.to_string(), token.into());
        self.commit_map(device, map)
    }

    /// Removes a token.
    ///
    /// # Errors
    ///
    /// Fails if there is none of this number, or if the header cannot be written.
    pub fn remove_token(&mut self, device: &dyn HeaderDevice, number: u32) -> Result<(), EditError> {
        self.check_requirements()?;
        self.active_token(number)?;
        let mut map = self.map.clone();
        section(&mut map, "tokens").shift_remove(&number.to_string());
        self.commit_map(device, map)
    }

    /// Assigns a token to a keyslot; `None`: to all keyslots.
    ///
    /// # Errors
    ///
    /// Fails if there is no such token or keyslot, or if the header cannot be written.
    pub fn assign_token(
        &mut self,
        device: &dyn HeaderDevice,
        number: u32,
        keyslot: Option<u32>,
    ) -> Result<(), EditError> {
        let keyslots = self.keyslots_to_assign(number, keyslot)?;
        self.change_token(device, number, |token| keyslots.iter().for_each(|&keyslot| refer(token, keyslot)))
    }

    /// Removes the assignment of a token to a keyslot; `None`: to all keyslots.
    ///
    /// # Errors
    ///
    /// Fails if there is no such assignment, or if the header cannot be written.
    pub fn unassign_token(
        &mut self,
        device: &dyn HeaderDevice,
        number: u32,
        keyslot: Option<u32>,
    ) -> Result<(), EditError> {
        let keyslots = self.keyslots_to_assign(number, keyslot)?;
        if let Some(keyslot) = keyslot.filter(|keyslot| !self.metadata.tokens[&number].keyslots.contains(keyslot)) {
            return Err(EditError::TokenNotAssigned { token: number, keyslot });
        }
        self.change_token(device, number, |token| keyslots.iter().for_each(|&keyslot| unrefer(token, keyslot)))
    }

    /// Returns a token's JSON object, if there is one of this number.
    pub fn token_json(&self, number: u32) -> Option<String> {
        Some(self.map.get("tokens")?.get(number.to_string())?.to_string())
    }

    fn change_token(
        &mut self,
        device: &dyn HeaderDevice,
        number: u32,
        change: impl FnOnce(&mut Value),
    ) -> Result<(), EditError> {
        let mut map = self.map.clone();
        change(&mut section(&mut map, "tokens")[&number.to_string()]);
        self.commit_map(device, map)
    }

    fn keyslots_to_assign(&self, number: u32, keyslot: Option<u32>) -> Result<Vec<u32>, EditError> {
        self.check_requirements()?;
        self.active_token(number)?;
        match keyslot {
            Some(keyslot) => self.active_keyslot(keyslot).map(|_| vec![keyslot]),
            None => Ok(self.metadata.keyslots.keys().copied().collect()),
        }
    }

    fn active_token(&self, number: u32) -> Result<(), EditError> {
        match self.metadata.tokens.contains_key(&number) {
            true => Ok(()),
            false if number < MAX_OBJECTS => Err(EditError::TokenInactive(number)),
            false => Err(EditError::TokenInvalid { number, max: MAX_OBJECTS - 1 }),
        }
    }
}
