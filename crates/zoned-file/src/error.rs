//! Why a zoned file cannot be made or opened.

use crate::layout::LayoutError;
use std::io;
use std::path::PathBuf;

/// Why a zoned file cannot be made or opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ZonedFileError {
    /// The zones cannot lie like that.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A file cannot be opened, read or written.
    #[error("{}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// There is something already.
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
        /// Where the sidecar should be.
        sidecar: PathBuf,
    },
    /// The sidecar cannot be relied on.
    #[error("the sidecar of the zoned file is damaged: {0}")]
    Damaged(Damage),
    /// The sidecar is that of another file.
    #[error("the sidecar does not match the zoned file: {0}")]
    Foreign(Mismatch),
    /// The number of the system's start cannot be learned, without which nobody knows what outlived it.
    #[error("cannot read the boot id")]
    BootId(#[source] io::Error),
    /// No random bytes for the file's identity.
    #[error("no random bytes: {0}")]
    Random(getrandom::Error),
}

/// What is damaged in a sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// It is shorter or longer than its header says, or has none.
    #[error("it is {len} bytes long, where {expected} are due")]
    Len {
        /// Its length.
        len: u64,
        /// What it should be.
        expected: u64,
    },
    /// It does not begin as one.
    #[error("it does not begin with the mark of a sidecar")]
    Magic,
    /// A later version wrote it.
    #[error("it has version {0}, which is not known")]
    Version(u32),
    /// The header's checksum is wrong.
    #[error("the checksum of its header is wrong")]
    Header,
    /// The header is whole, and says what cannot be.
    #[error("its header says what cannot be: {0}")]
    Layout(LayoutError),
    /// It is not known who wrote last.
    #[error("the checksum of its session is wrong")]
    Session,
    /// Bytes that mean nothing have a meaning.
    #[error("byte {0}, which is not in use, is not zero")]
    Padding(u64),
    /// A record is wrong.
    #[error("the record of zone {zone} in {table} is wrong")]
    Record {
        /// Which zone.
        zone: u32,
        /// Where.
        table: &'static str,
    },
}

/// How a sidecar does not match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Mismatch {
    /// The data file has another length.
    #[error("the file is {len} bytes long, where {expected} are due")]
    Len {
        /// Length of the data file.
        len: u64,
        /// What it should be.
        expected: u64,
    },
    /// The data file does not end with the mark of a zoned one.
    #[error("the file does not end with the mark of zoned storage")]
    Unmarked,
    /// The data file has another identity.
    #[error("it belongs to another file")]
    Identity,
}
