//! The operations of stores, which own their memory: of a ring, and of a store that completes them later.

use super::BackingStore;
use crate::buffer::Buffer;
use crate::ciphertext::Ciphertext;
use crate::errno::Errno;
use std::ops::Range;

/// Operation of a store, with the memory that it needs.
#[non_exhaustive]
#[derive(Debug)]
pub enum StoreOperation {
    /// Read into `buffer.data()[range]` from byte `offset`. May transfer less.
    Read {
        /// Position in the store, in bytes.
        offset: u64,
        /// Buffer to read into.
        buffer: Buffer,
        /// Range of the buffer's data.
        range: Range<usize>,
    },
    /// Write `range` of the ciphertext at byte `offset`. May transfer less.
    Write {
        /// Position in the store, in bytes.
        offset: u64,
        /// Ciphertext to write from.
        data: Ciphertext,
        /// Range of `data` to write.
        range: Range<usize>,
        /// Force unit access; of an asynchronous store only with [`crate::StoreProfile::has_native_fua`].
        durable: bool,
    },
    /// Put completed writes on stable storage.
    Sync,
    /// Deallocate storage.
    Discard {
        /// First byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
}

impl StoreOperation {
    /// Returns the number of bytes that the operation transfers.
    pub fn transfer_len(&self) -> usize {
        match self {
            Self::Read { range, .. } | Self::Write { range, .. } => range.len(),
            Self::Sync | Self::Discard { .. } => 0,
        }
    }

    /// Executes the operation on the calling thread, and returns the number of bytes transferred. Blocks.
    pub(crate) fn execute(&mut self, store: &dyn BackingStore) -> Result<usize, Errno> {
        match self {
            Self::Read { offset, buffer, range } => store.read_at(&mut buffer.data_mut()[range.clone()], *offset),
            Self::Write { offset, data, range, durable } => {
                let bytes = &data.bytes()[range.clone()];
                if *durable { store.write_fua_at(bytes, *offset) } else { store.write_at(bytes, *offset) }
            }
            Self::Sync => store.sync().map(|()| 0),
            Self::Discard { offset, len } => store.discard(*offset, *len).map(|()| 0),
        }
    }
}
