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
    #[error("{} exists", .0.display())]
    Exists(PathBuf),
    /// The data file is not empty.
    #[error("{} holds data", .0.display())]
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
    /// The sidecar is that of another file.
    #[error("the sidecar does not match the zoned file: {0}")]
    Foreign(Mismatch),
    /// The boot id cannot be read. Without it, the writes that are still in the page cache are not known.
    #[error("cannot read the boot id")]
    BootId(#[source] io::Error),
    /// No random bytes for the file's identity.
    #[error("no random bytes: {0}")]
    Random(getrandom::Error),
}

/// A damage of a sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// It is shorter or longer than its header says, or has none.
    #[error("it is {len} bytes long, where {expected} are due")]
    Len {
        /// Its length.
        len: u64,
        /// The expected length.
        expected: u64,
    },
    /// It does not begin with the magic.
    #[error("it does not begin with the mark of a sidecar")]
    Magic,
    /// A later version wrote it.
    #[error("it has version {0}, which is not known")]
    Version(u32),
    /// The header's checksum is wrong.
    #[error("the checksum of its header is wrong")]
    Header,
    /// The header has a valid checksum and an impossible layout.
    #[error("its header says what cannot be: {0}")]
    Layout(LayoutError),
    /// The last session is not known.
    #[error("the checksum of its session is wrong")]
    Session,
    /// A byte that is not in use is not zero.
    #[error("byte {0}, which is not in use, is not zero")]
    Padding(u64),
    /// A record is wrong.
    #[error("the record of zone {zone} in {table} is wrong")]
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
    #[error("the file is {len} bytes long, where {expected} are due")]
    Len {
        /// Length of the data file.
        len: u64,
        /// The expected length.
        expected: u64,
    },
    /// The data file does not end with the mark of a zoned one.
    #[error("the file does not end with the mark of zoned storage")]
    Unmarked,
    /// The data file has another identity.
    #[error("it belongs to another file")]
    Identity,
}
