//! What a front end asks of a device, and how it can fail.

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
        use Operation::{Discard, Write, WriteZeroes};
        matches!(self, Write { durable: true } | WriteZeroes { durable: true } | Discard { durable: true })
    }

    /// Whether the operation changes what the device holds.
    pub fn modifies(self) -> bool {
        matches!(self, Self::Write { .. } | Self::WriteZeroes { .. } | Self::Discard { .. })
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
