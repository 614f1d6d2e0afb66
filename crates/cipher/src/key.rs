//! The volume key: bytes that are wiped when dropped.

use zeroize::Zeroize;

/// The key that encrypts a volume's data (cryptsetup's "volume key"). Wiped when dropped; never printed.
pub struct VolumeKey {
    bytes: Box<[u8]>,
}

impl VolumeKey {
    /// The longest key that any supported specification takes, in bytes.
    pub const MAX_LEN: usize = 512;

    /// Copies `bytes`; the caller wipes its own copy.
    pub fn new(bytes: &[u8]) -> Self {
        Self { bytes: bytes.into() }
    }

    /// A key of `len` zero bytes, to be filled through [`VolumeKey::as_mut_bytes`].
    pub fn zeroed(len: usize) -> Self {
        Self { bytes: vec![0; len].into() }
    }

    /// The key.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The key, to be filled.
    pub fn as_mut_bytes(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether the key has no bytes, as a null cipher's may.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

impl Drop for VolumeKey {
    fn drop(&mut self) {
        self.bytes.zeroize();
    }
}

impl std::fmt::Debug for VolumeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "VolumeKey({} bytes)", self.bytes.len())
    }
}
