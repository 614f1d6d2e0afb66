//! What a frontend asks of a device, and how it can fail.

use crate::zoned::ZoneAction;
use rustix::io::Errno;

/// A stretch of the device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// First byte.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
}

impl ByteRange {
    /// The stretch of `len` bytes from `offset`.
    pub fn new(offset: u64, len: u64) -> Self {
        Self { offset, len }
    }

    /// The first byte after the stretch, or `None` where that does not fit 64 bits.
    pub fn end(&self) -> Option<u64> {
        self.offset.checked_add(self.len)
    }
}

/// What is done to a stretch of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Read and decrypt into the request's buffer.
    Read,
    /// Encrypt the request's buffer and write it. `durable`: it is on stable storage before the answer (FUA).
    Write {
        /// Force unit access.
        durable: bool,
    },
    /// The same, when it may have been carried out before by a process that died: in a sequential zone, what is stored
    /// already is compared with what would be written, and is no error where it is that.
    WriteReissued {
        /// Force unit access.
        durable: bool,
    },
    /// Encrypt the request's buffer for the place where the zone's write pointer is, and write it there. The range begins
    /// where the zone does; where it landed is the offset of the [`crate::MappedRange`] that comes back.
    Append {
        /// Force unit access.
        durable: bool,
    },
    /// Do something to the zones of the range, whole zones; to all zones where that says so.
    Zones(ZoneAction),
    /// Make the stretch read as zeroes. On an encrypted device these are encrypted zeroes, never a hole.
    WriteZeroes {
        /// Force unit access.
        durable: bool,
    },
    /// Every write that was answered before is on stable storage before the answer.
    Flush,
    /// Give the stretch's storage back; what it reads as afterwards is not defined. Refused unless the device allows it.
    Discard {
        /// Force unit access: after a power cut the storage is still given back.
        durable: bool,
    },
    /// Bring the stretch into the page cache.
    Prefetch,
}

impl Operation {
    /// Whether the answer promises that the change is on stable storage.
    pub fn durable(self) -> bool {
        use Operation::{Append, Discard, Write, WriteReissued, WriteZeroes};
        matches!(
            self,
            Write { durable: true }
                | WriteReissued { durable: true }
                | Append { durable: true }
                | WriteZeroes { durable: true }
                | Discard { durable: true }
        )
    }

    /// Whether the operation brings bytes that are written.
    pub fn writes_data(self) -> bool {
        matches!(self, Self::Write { .. } | Self::WriteReissued { .. } | Self::Append { .. })
    }

    /// Whether the operation changes what the device holds.
    pub fn modifies(self) -> bool {
        self.writes_data() || matches!(self, Self::WriteZeroes { .. } | Self::Discard { .. } | Self::Zones(_))
    }
}

/// Why a request failed. Small and `Copy`: it travels on the data path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The range does not lie within the device.
    #[error("the range does not lie within the device")]
    OutOfRange,
    /// The device was opened read-only.
    #[error("the device is read-only")]
    ReadOnly,
    /// The device does not do this, for example discard where it was not allowed.
    #[error("the device does not support the operation")]
    Unsupported,
    /// The store failed, with this error number.
    #[error("the store failed: {0}")]
    Io(Errno),
}

impl RequestError {
    /// The error number that describes the failure to a client.
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
        Self::Io(Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }
}

impl From<RequestError> for std::io::Error {
    fn from(error: RequestError) -> Self {
        std::io::Error::new(std::io::Error::from(error.errno()).kind(), error)
    }
}
