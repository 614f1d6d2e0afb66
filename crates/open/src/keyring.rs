//! Volume keys and passphrases in the kernel's keyrings.

use crate::error::{Error, ErrorKind, Result, ResultExt as _};
use std::io;

use inlock_volume::{Secret, VolumeKey};

use crate::kernel_keyring::{Key, KeyType, Keyring};

/// Returns the content of the key of type `user` with this description. It is searched for in the session keyring and
/// in those that are linked to it, as request_key(2) does; no program is called to make a missing one.
pub(crate) fn read_passphrase(description: &str) -> io::Result<Secret> {
    Ok(Keyring::session()?.search(description)?.read_to_vec()?.into())
}

/// Reads a volume key of `len` bytes. `name`: as in keyctl(1) `%user:DESCRIPTION`, where the type may be left out, or
/// the number of a key. A description, also one of digits, is searched for in the session keyring first.
pub(crate) fn read_volume_key(name: &str, len: usize) -> Result<VolumeKey> {
    let key = find(name)?;
    let mut volume_key = VolumeKey::zeroed(len);
    let found = key.read(volume_key.as_mut_bytes());
    match found.with_context(|| format!("Failed to read key '{name}' from the keyring."))? {
        found if found == len => Ok(volume_key),
        found => {
            let lengths = format!("key '{name}' has {found} bytes; the volume key has {len}");
            Err(Error::with_source(ErrorKind::WrongVolumeKey, Error::wrong_volume_key().to_string(), lengths))
        }
    }
}

fn find(name: &str) -> Result<Key> {
    let description = match name.strip_prefix('%').and_then(|rest| rest.split_once(':')) {
        Some(("user", description)) => description,
        None if !name.starts_with('%') => name,
        _ => {
            return Err(Error::new(ErrorKind::KeyType, format!("Key '{name}' cannot be read.")));
        }
    };
    let session = Keyring::session().context("This system has no kernel keyring for --volume-key-keyring.")?;
    let found = session.search(description);
    if found.is_err()
        && let Ok(number) = name.parse()
    {
        return Ok(Key::from_number(number));
    }
    found.with_context(|| format!("Failed to find key '{name}' in the session keyring."))
}

/// A key of a keyring that is to have the volume key: `--link-vk-to-keyring`.
#[derive(Clone, Debug)]
pub struct KeyLink {
    keyring: Keyring,
    key_type: KeyType,
    description: String,
    /// As the user has it.
    text: String,
}

impl KeyLink {
    /// Parses `KEYRING::[%TYPE:]DESCRIPTION`, and finds the keyring.
    pub fn parse(text: &str) -> Result<Self> {
        let invalid = || {
            let message = format!("Invalid --link-vk-to-keyring value '{text}'.");
            Error::new(ErrorKind::InvalidKeyLink, message)
        };
        let (keyring, key) = text.split_once("::").ok_or_else(invalid)?;
        let (key_type, description) = match key.strip_prefix('%').map(|rest| rest.split_once(':')) {
            None => (KeyType::User, key),
            Some(Some(("user", description))) => (KeyType::User, description),
            // The kernel refuses others.
            Some(Some(("logon", description))) if !description.starts_with(':') && description.contains(':') => {
                (KeyType::Logon, description)
            }
            Some(_) => return Err(invalid()),
        };
        if keyring.is_empty() || description.is_empty() {
            return Err(invalid());
        }
        let found = Keyring::find(keyring).with_context(|| format!("Could not find keyring '{keyring}'."));
        Ok(Self { keyring: found?, key_type, description: description.to_owned(), text: text.to_owned() })
    }

    /// Adds the key, or replaces its content.
    fn add(&self, key: &VolumeKey) -> Result<Key> {
        let added = self.keyring.add(self.key_type, &self.description, key.as_bytes());
        added.with_context(|| format!("Failed to link the volume key to '{}'.", self.text))
    }
}

/// Fails if there are links and the volume is not LUKS2, as in cryptsetup. `kind`: as in the status of a volume.
pub fn check_links(links: &[KeyLink], kind: &str) -> Result<()> {
    if links.is_empty() || kind == "LUKS2" {
        return Ok(());
    }
    Err(Error::new(ErrorKind::KeyLinkNeedsLuks2, "Option --link-vk-to-keyring is allowed only for LUKS2 volumes."))
}

/// Keys that have been linked. Dropped, they are unlinked again, unless the action has succeeded.
#[derive(Default)]
#[must_use]
pub struct LinkedKeys(Vec<(Keyring, Key)>);

impl LinkedKeys {
    /// Links the volume key as each of `links` says.
    pub fn link(links: &[KeyLink], key: &VolumeKey) -> Result<Self> {
        let mut linked = Self::default();
        for link in links {
            linked.0.push((link.keyring, link.add(key)?));
        }
        Ok(linked)
    }

    /// Keeps the keys. They stay until the user removes them, or their keyring ends.
    pub fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for LinkedKeys {
    fn drop(&mut self) {
        for (keyring, key) in &self.0 {
            // It may have been removed meanwhile.
            let _ = keyring.unlink(*key);
        }
    }
}
