//! Requests of frontends, and the ways in which they fail.

use crate::errno::Errno;
use crate::zoned::ZoneAction;

/// Range of bytes of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

impl ByteRange {
    /// Returns the range of `len` bytes from `offset`.
    pub fn new(offset: u64, len: u64) -> Self {
        Self { offset, len }
    }

    /// Returns the first byte after the range, or `None` if it exceeds 64 bits.
    pub fn end(&self) -> Option<u64> {
        self.offset.checked_add(self.len)
    }
}

/// Operation on a range of the device.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Read and decrypt into the request's buffer.
    Read,
    /// Encrypt the request's buffer and write it. `durable`: the data is on stable storage before the completion (FUA).
    Write {
        /// Force unit access.
        durable: bool,
    },
    /// Write again what a process that died may have written already. In a sequential zone, data that the zone already
    /// holds is compared with the new data; a difference is an error.
    WriteReissued {
        /// Force unit access.
        durable: bool,
    },
    /// Encrypt the request's buffer for the position of the zone's write pointer, and write it there. The request's
    /// range begins at the zone's start; the position written is the offset of the [`crate::MappedRange`] in the
    /// completion.
    Append {
        /// Force unit access.
        durable: bool,
    },
    /// Manage the whole zones of the range, or all zones ([`ZoneAction::ResetAll`]).
    Zones(ZoneAction),
    /// Make the range read as zeroes. An encrypted device stores encrypted zeroes, never a hole.
    WriteZeroes {
        /// Force unit access.
        durable: bool,
    },
    /// Put every write that completed before this request was submitted on stable storage.
    Flush,
    /// Deallocate the range's storage. Its content is undefined afterwards. Refused unless the device allows discards.
    Discard {
        /// Force unit access: the deallocation survives a power cut.
        durable: bool,
    },
    /// Make the range read as zeroes by deallocating its storage. Refused as unsupported, with nothing changed, unless
    /// the whole range becomes holes that read as zeroes ([`crate::Mapping::can_zero_fast`]) and the device allows
    /// discards.
    Deallocate {
        /// Force unit access: the deallocation survives a power cut.
        durable: bool,
    },
    /// Bring the range into the page cache.
    Prefetch,
}

impl Operation {
    /// Returns whether the completion promises that the change is on stable storage.
    pub fn durable(self) -> bool {
        use Operation::{Append, Deallocate, Discard, Write, WriteReissued, WriteZeroes};
        matches!(
            self,
            Write { durable: true }
                | WriteReissued { durable: true }
                | Append { durable: true }
                | WriteZeroes { durable: true }
                | Discard { durable: true }
                | Deallocate { durable: true }
        )
    }

    /// Returns whether the request carries data to write.
    pub fn writes_data(self) -> bool {
        matches!(self, Self::Write { .. } | Self::WriteReissued { .. } | Self::Append { .. })
    }

    /// Returns whether the operation changes the device's content or its zones.
    pub fn modifies(self) -> bool {
        use Operation::{Deallocate, Discard, WriteZeroes, Zones};
        self.writes_data() || matches!(self, WriteZeroes { .. } | Discard { .. } | Deallocate { .. } | Zones(_))
    }
}

/// Reason why a request failed. Small and `Copy`, because it travels on the data path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The range does not lie within the device.
    #[error("the range does not lie within the device")]
    OutOfRange,
    /// The device was opened read-only.
    #[error("the device is read-only")]
    ReadOnly,
    /// The device does not support the operation, for example a discard that it does not allow.
    #[error("the device does not support the operation")]
    Unsupported,
    /// The backing store failed with this error number.
    #[error("the store failed: {0}")]
    Io(Errno),
}

const _: () = assert!(size_of::<RequestError>() == 4);

impl RequestError {
    /// Returns the error number that describes the failure to a client.
    pub fn errno(self) -> Errno {
        match self {
            Self::OutOfRange => Errno::INVAL,
            Self::ReadOnly => Errno::PERM,
            Self::Unsupported => Errno::OPNOTSUPP,
            Self::Io(errno) => errno,
        }
    }
}

impl From<Errno> for RequestError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno)
    }
}

impl From<std::io::Error> for RequestError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error.into())
    }
}

impl From<RequestError> for std::io::Error {
    fn from(error: RequestError) -> Self {
        std::io::Error::new(std::io::Error::from(error.errno()).kind(), error)
    }
}
