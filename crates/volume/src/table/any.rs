//! A table of any form.

use super::error::TableError;
use super::words::split_name;
use super::{IntegrityTable, MAX_LEN, ShowKeys, Table, VerityTable};
use zeroize::Zeroizing;

/// A table of any form.
#[derive(Debug)]
pub enum AnyTable {
    /// Lines of one device.
    Lines(Table),
    /// A device with integrity protection.
    Integrity(Box<IntegrityTable>),
    /// A device with a hash tree.
    Verity(Box<VerityTable>),
}

impl AnyTable {
    /// Parses a table: with a hash tree if it has a line of the target `verity`, else with integrity protection if it
    /// has one of `integrity`.
    ///
    /// # Errors
    ///
    /// As [`Table::parse`].
    pub fn parse(text: &str) -> Result<Self, TableError> {
        let has = |target: &str| text.len() <= MAX_LEN && text.lines().any(|line| is_of(line, target));
        if has("verity") {
            return Ok(Self::Verity(Box::new(VerityTable::parse(text)?)));
        }
        if has("integrity") {
            return Ok(Self::Integrity(Box::new(IntegrityTable::parse(text)?)));
        }
        Table::parse(text).map(Self::Lines)
    }

    /// Returns the underlying devices, each once.
    pub fn devices(&self) -> Vec<&str> {
        match self {
            Self::Lines(table) => table.devices(),
            Self::Integrity(table) => table.devices(),
            Self::Verity(table) => table.devices(),
        }
    }

    /// Whether a line has a key.
    pub fn has_key(&self) -> bool {
        match self {
            Self::Lines(table) => table.has_key(),
            Self::Integrity(table) => table.has_key(),
            Self::Verity(table) => table.has_key(),
        }
    }

    /// Returns the text, as [`Table::to_text`].
    pub fn to_text(&self, keys: ShowKeys) -> Zeroizing<String> {
        match self {
            Self::Lines(table) => table.to_text(keys),
            Self::Integrity(table) => table.to_text(keys),
            Self::Verity(table) => table.to_text(keys),
        }
    }
}

/// Whether the line has this target.
fn is_of(line: &str, target: &str) -> bool {
    let line = split_name(line).1;
    !line.trim_start().starts_with('#') && line.split_ascii_whitespace().nth(2) == Some(target)
}
