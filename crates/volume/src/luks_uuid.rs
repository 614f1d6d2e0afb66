//! UUIDs of new LUKS headers.

use crate::error::FormatError;
use uuid::Uuid;

/// Returns the requested UUID, or a random one, in the form of headers.
pub(crate) fn new(text: Option<&str>) -> Result<String, FormatError> {
    let uuid = match text {
        None => Uuid::new_v4(),
        Some(text) if text.len() == 36 => {
            Uuid::parse_str(text).map_err(|_| FormatError::InvalidOption { option: "uuid", reason: "not a UUID" })?
        }
        Some(_) => return Err(FormatError::InvalidOption { option: "uuid", reason: "not a UUID" }),
    };
    Ok(uuid.hyphenated().to_string())
}
