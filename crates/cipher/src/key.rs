//! The volume key: bytes in locked memory, wiped when dropped.

use crate::locked::LockedBytes;

/// The key that encrypts a volume's data (cryptsetup's "volume key"). It is in memory that is kept out of swap and core
/// dumps (see [`memory_lock_failed`](crate::memory_lock_failed)), wiped when dropped, and never printed.
pub struct VolumeKey {
    bytes: LockedBytes,
}

impl VolumeKey {
    /// Maximum length of a key of any supported specification, in bytes.
    pub const MAX_LEN: usize = 65 * 64;

    /// Copies `bytes`; the caller wipes its own copy.
    pub fn new(bytes: &[u8]) -> Self {
        let mut key = Self::zeroed(bytes.len());
        key.as_mut_bytes().copy_from_slice(bytes);
        key
    }

    /// Returns a key of `len` zero bytes, to be filled through [`VolumeKey::as_mut_bytes`].
    pub fn zeroed(len: usize) -> Self {
        Self { bytes: LockedBytes::zeroed(len) }
    }

    /// Returns the key.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.as_slice()
    }

    /// Returns the key, to be filled.
    pub fn as_mut_bytes(&mut self) -> &mut [u8] {
        self.bytes.as_mut_slice()
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.as_bytes().len()
    }

    /// Whether the key has no bytes, as is possible for a null cipher.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl AsRef<[u8]> for VolumeKey {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

// The memory wipes itself.
impl zeroize::ZeroizeOnDrop for VolumeKey {}

impl std::fmt::Debug for VolumeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "VolumeKey({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::locked::tests::releases_of;

    #[test]
    fn volume_key_is_wiped_when_dropped_and_never_printed() {
        let key = VolumeKey::new(&[0xab; 64]);
        assert_eq!(key.as_bytes(), [0xab; 64]);
        assert_eq!(format!("{key:?}"), "VolumeKey(64 bytes)");
        assert_eq!(releases_of(|| drop(key)), [true]);
    }

    #[test]
    fn volume_key_may_be_empty() {
        assert!(VolumeKey::zeroed(0).is_empty());
    }
}
