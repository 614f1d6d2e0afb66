//! Errors of re-encryptions, in cryptsetup's words.

use inlock_open::ErrorKind;
use inlock_open::source::HeaderOptions;

use crate::error::{CliError, Status};

/// The error of a re-encryption that a signal has stopped.
pub(super) fn interrupted(hint: String) -> anyhow::Error {
    CliError::Remote("Reencryption interrupted.".to_owned(), Some(hint), Status::Wrong).into()
}

pub(super) fn already() -> inlock_open::Error {
    let text = "LUKS2 reencryption already initialized. Aborting operation.";
    inlock_open::Error::new(ErrorKind::AlreadyReencrypted, text)
}

pub(super) fn not_begun() -> inlock_open::Error {
    inlock_open::Error::new(ErrorKind::NotReencrypted, "Device reencryption not in progress.")
}

pub(super) fn is_luks(at: &HeaderOptions) -> inlock_open::Error {
    let path = at.header.as_ref().unwrap_or(&at.image);
    let text = format!("Device {} is already LUKS device. Aborting operation.", path.display());
    inlock_open::Error::new(ErrorKind::CannotReencrypt, text)
}
