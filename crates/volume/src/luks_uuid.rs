//! UUIDs of LUKS headers.

use crate::edit::EditError;
use crate::error::FormatError;
use uuid::Uuid;

/// The text is not a UUID in the form of headers.
#[derive(Debug)]
pub(crate) struct InvalidUuid;

const OPTION: &str = "uuid";
const REASON: &str = "not a UUID";

impl From<InvalidUuid> for FormatError {
    fn from(_: InvalidUuid) -> Self {
        Self::InvalidOption { option: OPTION, reason: REASON }
    }
}

impl From<InvalidUuid> for EditError {
    fn from(_: InvalidUuid) -> Self {
        Self::InvalidOption { option: OPTION, reason: REASON }
    }
}

/// Returns the requested UUID, or a random one, in the form of headers.
pub(crate) fn new(text: Option<&str>) -> Result<String, InvalidUuid> {
    let uuid = match text {
        None => Uuid::new_v4(),
        Some(text) if text.len() == 36 => Uuid::parse_str(text).map_err(|_| InvalidUuid)?,
        Some(_) => return Err(InvalidUuid),
    };
    Ok(uuid.hyphenated().to_string())
}
