//! The device of a header that is about to be changed.
//!
//! A change is computed from a loaded header. On a device with another one by now it would undo what another program
//! has written, or overwrite a key that is now the last one. So every change is written through a [`CheckedDevice`],
//! and there is one only for a device that still has the loaded header. The caller's lock keeps it there
//! ([edits under the lock](../../../docs/decisions/luks-headers.md)).

use crate::error::{CommitError, LoadError};
use crate::header_device::HeaderDevice;
use std::io;

/// A device with the loaded header.
pub(crate) struct CheckedDevice<'a>(&'a dyn HeaderDevice);

impl<'a> CheckedDevice<'a> {
    /// Fails unless loading the header of `device` has found the loaded one.
    pub(crate) fn new(device: &'a dyn HeaderDevice, is_same: Result<bool, LoadError>) -> Result<Self, CommitError> {
        match is_same {
            Ok(true) => Ok(Self(device)),
            Err(LoadError::Io(error)) => Err(error.into()),
            Ok(false) | Err(_) => Err(CommitError::HeaderChanged),
        }
    }
}

impl HeaderDevice for CheckedDevice<'_> {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buf, offset)
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
}
