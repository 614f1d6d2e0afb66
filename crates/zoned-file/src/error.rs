//! Errors of creating and opening zoned files.

use crate::layout::LayoutError;
use std::io;
use std::path::PathBuf;

/// A zoned file cannot be created or opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ZonedFileError {
    /// The layout is not possible.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A file cannot be opened, read or written.
    #[error("{}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The sidecar exists already.
    #[error("{} already exists", .0.display())]
    Exists(PathBuf),
    /// The data file is not empty.
    #[error("{} is not empty", .0.display())]
    HoldsData(PathBuf),
    /// Another process has it open.
    #[error("{} is in use by another process", .0.display())]
    Busy(PathBuf),
    /// There is no sidecar.
    #[error("{} is the data file of zoned storage, but its sidecar {} is missing", data.display(), sidecar.display())]
    NoSidecar {
        /// The data file.
        data: PathBuf,
        /// The path at which the sidecar is expected.
        sidecar: PathBuf,
    },
    /// The sidecar is damaged.
    #[error("the sidecar of the zoned file is damaged: {0}")]
    Damaged(Damage),
    /// The sidecar belongs to another file.
    #[error("the sidecar does not match the zoned file: {0}")]
    Foreign(Mismatch),
    /// The boot id cannot be read. Without it, the writes that are still in the page cache are not known.
    #[error("cannot read the boot id")]
    BootId(#[source] io::Error),
    /// The system returned no random bytes for the file's identity.
    #[error("the system returned no random bytes: {0}")]
    Random(getrandom::Error),
}

/// Damage of a sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// It is shorter or longer than its header says, or has no header.
    #[error("it has {len} bytes instead of {expected}")]
    Len {
        /// Its length.
        len: u64,
        /// The expected length.
        expected: u64,
    },
    /// It does not start with the magic.
    #[error("it does not start with the magic of a sidecar")]
    Magic,
    /// A later version wrote it.
    #[error("version {0} is not supported")]
    Version(u32),
    /// The header's checksum is wrong.
    #[error("the checksum of its header does not match")]
    Header,
    /// The header has a valid checksum and an impossible layout.
    #[error("the layout in its header is not possible: {0}")]
    Layout(LayoutError),
    /// The last session is not known.
    #[error("the checksum of its session does not match")]
    Session,
    /// An unused byte is not zero.
    #[error("unused byte {0} is not zero")]
    Padding(u64),
    /// A record is wrong.
    #[error("the record of zone {zone} in {table} is invalid")]
    Record {
        /// The zone.
        zone: u32,
        /// The table.
        table: &'static str,
    },
}

/// A difference between a sidecar and its data file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Mismatch {
    /// The data file has another length.
    #[error("the file has {len} bytes instead of {expected}")]
    Len {
        /// Length of the data file.
        len: u64,
        /// The expected length.
        expected: u64,
    },
    /// The data file does not end with the mark of a zoned file.
    #[error("the file does not end with the mark of zoned storage")]
    Unmarked,
    /// The data file has another identity.
    #[error("it belongs to another file")]
    Identity,
}
