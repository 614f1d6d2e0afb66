//! Paths as text: they are bytes, which JSON does not have.
//!
//! State files and control sockets have a path as [`text_of_bytes`] makes it, so that nothing is lost; on output its
//! bytes that are not UTF-8 are escaped as `\\udce9` (`ui::print`). Where a text of several lines names a path, it is
//! [`shown`] on one of them.

use crate::error::Result;
use std::borrow::Cow;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use inlock_volume::{Printable, bytes_of_text, text_of_bytes};
use serde::{Deserialize, Deserializer, Serializer};

/// Returns a path as text, without a loss.
pub fn text_of(path: &Path) -> Cow<'_, str> {
    text_of_bytes(path.as_os_str().as_bytes())
}

/// Returns a path as one line of output has it.
pub fn shown(path: &Path) -> String {
    Printable::new(&text_of(path)).to_string()
}

/// Returns the path of a text of [`text_of`].
pub fn path_of(text: &str) -> PathBuf {
    OsString::from_vec(bytes_of_text(text).into_owned()).into()
}

/// Serializes a path as [`text_of`] makes it.
pub fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&text_of(path))
}

/// Deserializes a path.
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
    Ok(path_of(&String::deserialize(from)?))
}

/// Functions for a path that may be missing.
pub mod optional {
    use super::{Deserialize, Deserializer, PathBuf, Serializer, path_of, text_of};

    /// Serializes a path, if there is one.
    pub fn serialize<S: Serializer>(path: &Option<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
        match path {
            Some(path) => to.serialize_some(&text_of(path)),
            None => to.serialize_none(),
        }
    }

    /// Deserializes a path, if there is one.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PathBuf>, D::Error> {
        Ok(Option::<String>::deserialize(from)?.map(|text| path_of(&text)))
    }
}
