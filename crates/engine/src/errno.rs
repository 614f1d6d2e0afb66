//! Error numbers of the operating system.

use std::fmt;
use std::io;

/// Error number of the operating system, as in `errno(3)`. Two bytes and `Copy`, because it travels on the data path.
///
/// The constants are the numbers that stores report and the engine returns; any other number of the system fits too.
/// [`fmt::Display`] gives the system's text. A store that uses `std::io` can return its errors with `?`:
///
/// ```
/// use inlock_engine::Errno;
/// use std::{fs::File, os::unix::fs::FileExt};
///
/// fn read_at(file: &File, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
///     Ok(file.read_at(data, offset)?)
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(u16);

macro_rules! errnos {
    ($($name:ident: $text:literal,)*) => {
        impl Errno {
            $(#[doc = $text] pub const $name: Self = Self::from_rustix(rustix::io::Errno::$name);)*
        }
    };
}

errnos! {
    AGAIN: "`EAGAIN`: try again.",
    BADF: "`EBADF`: not an open file.",
    BUSY: "`EBUSY`: in use.",
    CANCELED: "`ECANCELED`: the operation was canceled.",
    CONNRESET: "`ECONNRESET`: the peer closed the connection.",
    DQUOT: "`EDQUOT`: the disk quota is exhausted.",
    FAULT: "`EFAULT`: invalid address.",
    FBIG: "`EFBIG`: beyond the maximum length of a file.",
    ILSEQ: "`EILSEQ`: protection information does not match the data.",
    INTR: "`EINTR`: a signal interrupted the call.",
    INVAL: "`EINVAL`: invalid argument.",
    IO: "`EIO`: input/output error.",
    NODATA: "`ENODATA`: critical medium error.",
    NODEV: "`ENODEV`: the device does not exist.",
    NOLINK: "`ENOLINK`: the path to the device failed.",
    NOMEM: "`ENOMEM`: out of memory.",
    NOSPC: "`ENOSPC`: no space left.",
    NOTSOCK: "`ENOTSOCK`: not a socket.",
    NXIO: "`ENXIO`: the device does not respond, or the file has no data there.",
    OPNOTSUPP: "`EOPNOTSUPP`: the operation is not supported.",
    OVERFLOW: "`EOVERFLOW`: too many active zones.",
    PERM: "`EPERM`: the operation is not permitted.",
    REMOTEIO: "`EREMOTEIO`: critical target error.",
    ROFS: "`EROFS`: read-only.",
    SHUTDOWN: "`ESHUTDOWN`: the device is being closed.",
    SPIPE: "`ESPIPE`: no position in the file.",
    STALE: "`ESTALE`: the file no longer exists on its server.",
    TIMEDOUT: "`ETIMEDOUT`: the device did not respond in time.",
    TOOMANYREFS: "`ETOOMANYREFS`: too many open zones.",
}

impl Errno {
    /// Returns the error with this number. A number that is not one of Linux's, 1 to 4095, becomes `EIO`.
    pub const fn from_raw_os_error(number: i32) -> Self {
        match number {
            1..=4095 => Self(number as u16),
            _ => Self::IO,
        }
    }

    /// Returns the error number of `error`, or `None` if it did not come from the system.
    pub fn from_io_error(error: &io::Error) -> Option<Self> {
        error.raw_os_error().map(Self::from_raw_os_error)
    }

    /// Returns the number.
    pub const fn raw_os_error(self) -> i32 {
        self.0 as i32
    }

    /// Returns the error of a system call.
    pub(crate) const fn from_rustix(errno: rustix::io::Errno) -> Self {
        Self(errno.raw_os_error() as u16)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        io::Error::from(*self).fmt(f)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Errno {}

impl From<Errno> for io::Error {
    fn from(errno: Errno) -> Self {
        Self::from_raw_os_error(errno.raw_os_error())
    }
}

impl From<io::Error> for Errno {
    /// An error without a number becomes `EIO`.
    fn from(error: io::Error) -> Self {
        Self::from_io_error(&error).unwrap_or(Self::IO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_and_text_are_those_of_the_system() {
        for number in 1..=133 {
            let (errno, system) = (Errno::from_raw_os_error(number), io::Error::from_raw_os_error(number));
            assert_eq!((errno.raw_os_error(), errno.to_string()), (number, system.to_string()));
            assert_eq!((io::Error::from(errno).kind(), Errno::from(system)), (io::Error::from(errno).kind(), errno));
        }
        assert_eq!([Errno::PERM, Errno::IO, Errno::NOSPC].map(Errno::raw_os_error), [1, 5, 28]);
    }

    #[test]
    fn error_without_a_number_becomes_eio() {
        for number in [0, -5, 4096, 65536 + 22, i32::MIN, i32::MAX] {
            assert_eq!(Errno::from_raw_os_error(number), Errno::IO, "{number}");
        }
        assert_eq!(Errno::from_io_error(&io::ErrorKind::TimedOut.into()), None);
        assert_eq!(Errno::from(io::Error::other("no number")), Errno::IO);
    }

    #[test]
    fn error_has_two_bytes() {
        assert_eq!((size_of::<Errno>(), size_of::<Result<usize, Errno>>()), (2, 16));
    }
}
