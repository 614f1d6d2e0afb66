//! Tokens of the metadata (specification, section 3.5). Every type is accepted; none is used.

use super::json::Fields;
use super::metadata::Token;
use crate::violation::HeaderFault;

/// Parses one token; `keyslot_exists` tells which keyslots exist.
pub(super) fn parse(fields: &Fields<'_>, keyslot_exists: impl Fn(u32) -> bool) -> Result<Token, HeaderFault> {
    Ok(Token { kind: fields.text("type")?.to_owned(), keyslots: fields.references("keyslots", keyslot_exists)? })
}
