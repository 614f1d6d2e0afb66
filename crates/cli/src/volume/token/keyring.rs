//! Passphrases in the kernel's keyrings.

use inlock_volume::Secret;
use linux_keyutils::{KeyError, KeyRing, KeyRingIdentifier};

/// Returns the content of the key of type `user` with this description. It is searched for in the session keyring and
/// in those that are linked to it, as request_key(2) does; no program is called to make a missing one.
pub(super) fn read(description: &str) -> Result<Secret, KeyError> {
    let session = KeyRing::from_special_id(KeyRingIdentifier::Session, false)?;
    Ok(Secret::new(session.search(description)?.read_to_vec()?))
}
