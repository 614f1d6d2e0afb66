//! Bytes that may be written to a store.

use crate::buffer::Buffer;

/// Bytes that may be written to a store: the output of a cipher call, or bytes read from a store.
#[derive(Debug)]
pub struct Ciphertext(Buffer);

impl Ciphertext {
    /// Wraps a buffer that a store has just filled.
    pub(crate) fn from_store(buffer: Buffer) -> Self {
        Self(buffer)
    }

    /// Wraps a buffer whose data units were all encrypted, or are stored unencrypted.
    pub(crate) fn encrypted(buffer: Buffer) -> Self {
        Self(buffer)
    }

    /// Returns the bytes to write.
    pub fn bytes(&self) -> &[u8] {
        self.0.data()
    }

    /// Returns the buffer for reuse.
    pub fn into_buffer(self) -> Buffer {
        self.0
    }
}
