//! Tokens of the metadata (specification, section 3.5): sources of passphrases.
//!
//! The header keeps tokens of every type. [`kind`] knows the fields of the common ones, [`dump`] prints them, and
//! [`unlock`] tries the passphrases that a [`TokenHandler`] gets.

pub(super) mod dump;
pub(super) mod kind;
mod unlock;

pub(crate) use unlock::of_keyslots;
pub use unlock::{TokenError, TokenFailure, TokenHandler, TokenOptions, TokenRequest};

use super::json::Fields;
use super::metadata::Token;
use crate::violation::HeaderFault;

/// Parses one token; `keyslot_exists` tells which keyslots exist. The fields of its type are not checked: a wrong one
/// makes only this token unusable.
pub(super) fn parse(fields: &Fields<'_>, keyslot_exists: impl Fn(u32) -> bool) -> Result<Token, HeaderFault> {
    Ok(Token { kind: fields.text("type")?.to_owned(), keyslots: fields.references("keyslots", keyslot_exists)? })
}
