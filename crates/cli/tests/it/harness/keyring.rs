//! Keys and keyrings of the kernel.

use keyutils_raw::{
    KEY_SPEC_SESSION_KEYRING, KEY_SPEC_USER_KEYRING, KEY_TYPE_KEYRING, KEY_TYPE_USER, KeyringSerial, add_key,
    keyctl_get_keyring_id, keyctl_invalidate, keyctl_read, keyctl_search, keyctl_unlink,
};

/// Adds a key. `None`: there are no keyrings here.
fn added(key_type: &str, description: &str, content: &[u8], keyring: KeyringSerial) -> Option<KeyringSerial> {
    let ring = keyctl_get_keyring_id(keyring, false);
    let added = ring.and_then(|ring| add_key(key_type, description, content, ring));
    added.map_err(|error| println!("SKIPPED: no kernel keyring can be used here: {error}")).ok()
}

/// A key of type `user` in the session keyring, removed when dropped.
pub(crate) struct KernelKey(KeyringSerial);

impl KernelKey {
    /// `None`: there are no keyrings here.
    pub(crate) fn add(description: &str, content: &[u8]) -> Option<Self> {
        added(KEY_TYPE_USER, description, content, KEY_SPEC_SESSION_KEYRING).map(Self)
    }

    /// Returns its number.
    pub(crate) fn number(&self) -> i32 {
        self.0.get()
    }
}

impl Drop for KernelKey {
    fn drop(&mut self) {
        keyctl_invalidate(self.0).expect("removed");
    }
}

/// A keyring in the user's keyring, removed when dropped.
pub(crate) struct TestKeyring {
    serial: KeyringSerial,
    name: String,
}

impl TestKeyring {
    /// `None`: there are no keyrings here.
    pub(crate) fn add(name: &str) -> Option<Self> {
        let name = format!("inlock-test-{}-{name}", std::process::id());
        let serial = added(KEY_TYPE_KEYRING, &name, &[], KEY_SPEC_USER_KEYRING)?;
        Some(Self { serial, name })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn number(&self) -> i32 {
        self.serial.get()
    }

    fn search(&self, key_type: &str, description: &str) -> Option<KeyringSerial> {
        keyctl_search(self.serial, key_type, description, None).ok()
    }

    pub(crate) fn has_key(&self, key_type: &str, description: &str) -> bool {
        self.search(key_type, description).is_some()
    }

    /// Returns the number of a key of type `user`.
    pub(crate) fn key(&self, description: &str) -> i32 {
        self.search(KEY_TYPE_USER, description).expect("in the keyring").get()
    }

    /// Returns the content of a key of type `user`.
    pub(crate) fn read(&self, description: &str) -> Option<Vec<u8>> {
        let mut content = vec![0; 4096];
        let len = keyctl_read(self.search(KEY_TYPE_USER, description)?, Some(content[..].as_mut().into())).ok()?;
        content.truncate(len);
        Some(content)
    }

    /// Removes a key from the keyring.
    pub(crate) fn unlink(&self, key_type: &str, description: &str) {
        keyctl_unlink(self.search(key_type, description).expect("in the keyring"), self.serial).expect("removed");
    }
}

impl Drop for TestKeyring {
    fn drop(&mut self) {
        keyctl_invalidate(self.serial).expect("removed");
    }
}
