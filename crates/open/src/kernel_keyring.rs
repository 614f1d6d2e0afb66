//! Keyrings of the kernel (keyrings(7)).

use std::io;

use keyutils_raw::{self as raw, KeyringSerial};
use zeroize::Zeroizing;

/// A keyring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keyring(KeyringSerial);

/// Special keyrings with their names in keyctl(1).
const SPECIAL: [(&str, KeyringSerial); 6] = [
    ("@t", raw::KEY_SPEC_THREAD_KEYRING),
    ("@p", raw::KEY_SPEC_PROCESS_KEYRING),
    ("@s", raw::KEY_SPEC_SESSION_KEYRING),
    ("@u", raw::KEY_SPEC_USER_KEYRING),
    ("@us", raw::KEY_SPEC_USER_SESSION_KEYRING),
    ("@g", raw::KEY_SPEC_GROUP_KEYRING),
];

/// A key of any type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(KeyringSerial);

/// Type of a key that a program can add.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyType {
    /// Readable by programs.
    User,
    /// Readable by the kernel alone. Its description has the form `PREFIX:NAME`.
    Logon,
}

impl KeyType {
    /// Returns its name in the kernel.
    const fn name(self) -> &'static str {
        match self {
            Self::User => raw::KEY_TYPE_USER,
            Self::Logon => raw::KEY_TYPE_LOGON,
        }
    }
}

impl Keyring {
    /// Returns the session keyring, or that of the user's default session.
    pub fn session() -> io::Result<Self> {
        Self::of_number(raw::KEY_SPEC_SESSION_KEYRING, false)
    }

    /// Returns the keyring of this number, which may be a special one. `create`: makes that of a thread or a process.
    fn of_number(number: KeyringSerial, create: bool) -> io::Result<Self> {
        Ok(Self(raw::keyctl_get_keyring_id(number, create)?))
    }

    /// Returns the keyring that `text` names: a special one as in keyctl(1), a number, or a description, which is
    /// searched for in the keyrings of the session and of the user.
    pub fn find(text: &str) -> io::Result<Self> {
        if let Some((_, special)) = SPECIAL.iter().find(|(name, _)| *name == text) {
            // Those of a thread and of a process are created when needed.
            let create = [raw::KEY_SPEC_THREAD_KEYRING, raw::KEY_SPEC_PROCESS_KEYRING].contains(special);
            return Self::of_number(*special, create);
        }
        let name = ["%:", "%keyring:"].iter().find_map(|prefix| text.strip_prefix(prefix));
        if let (None, Ok(number)) = (name, text.parse()) {
            return Self::of_number(number, false);
        }
        let (session, user) = (Self::session()?, Self(raw::KEY_SPEC_USER_KEYRING));
        let search = |ring: Self| ring.search_type(raw::KEY_TYPE_KEYRING, name.unwrap_or(text));
        search(session).or_else(|_| search(user)).map(|key| Self(key.0))
    }

    /// Searches this keyring, and those that are linked to it, for a key of type `user`.
    pub fn search(self, description: &str) -> io::Result<Key> {
        self.search_type(raw::KEY_TYPE_USER, description)
    }

    fn search_type(self, key_type: &str, description: &str) -> io::Result<Key> {
        // A header may have such a description; the bindings take none.
        if description.contains('\0') {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(Key(raw::keyctl_search(self.0, key_type, description, None)?))
    }

    /// Adds a key, which replaces the one with this type and description.
    pub fn add(self, key_type: KeyType, description: &str, content: &[u8]) -> io::Result<Key> {
        // Adding it here would update an existing key, which a process may not do that does not possess the keyring.
        let thread = Self::of_number(raw::KEY_SPEC_THREAD_KEYRING, true)?;
        let key = Key(raw::add_key(key_type.name(), description, content, thread.0)?);
        if self != thread {
            let linked = raw::keyctl_link(key.0, self.0);
            thread.unlink(key)?;
            linked?;
        }
        Ok(key)
    }

    /// Removes a key from this keyring.
    pub fn unlink(self, key: Key) -> io::Result<()> {
        Ok(raw::keyctl_unlink(key.0, self.0)?)
    }
}

impl Key {
    /// Returns the key of this number.
    pub const fn from_number(number: KeyringSerial) -> Self {
        Self(number)
    }

    /// Reads the key into `content`, and returns its length in bytes. A key that is longer than `content` is not
    /// read whole.
    pub fn read(self, content: &mut [u8]) -> io::Result<usize> {
        Ok(raw::keyctl_read(self.0, Some(content.into()))?)
    }

    /// Returns the content of the key.
    pub fn read_to_vec(self) -> io::Result<Zeroizing<Vec<u8>>> {
        let mut len = raw::keyctl_read(self.0, None)?;
        loop {
            let mut content = Zeroizing::new(vec![0; len]);
            match self.read(&mut content)? {
                found if found <= len => {
                    content.truncate(found);
                    return Ok(content);
                }
                // Meanwhile the key was given a longer content.
                found => len = found,
            }
        }
    }
}
