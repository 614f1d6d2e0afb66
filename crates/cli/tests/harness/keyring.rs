//! Keys in the kernel's keyring.

use linux_keyutils::{Key, KeyRing, KeyRingIdentifier};

/// A key of type `user` in the session keyring, removed when dropped.
pub(crate) struct KernelKey(Key);

impl KernelKey {
    /// `None`: there are no keyrings here.
    pub(crate) fn add(description: &str, content: &[u8]) -> Option<Self> {
        let ring = KeyRing::from_special_id(KeyRingIdentifier::Session, false);
        match ring.and_then(|ring| ring.add_key(description, content)) {
            Ok(key) => Some(Self(key)),
            Err(error) => {
                println!("SKIPPED: no kernel keyring can be used here: {error}");
                None
            }
        }
    }

    /// Returns its number.
    pub(crate) fn number(&self) -> i32 {
        self.0.get_id().0
    }
}

impl Drop for KernelKey {
    fn drop(&mut self) {
        self.0.invalidate().expect("removed");
    }
}
