//! Errors of running volumes. They have neither an exit status nor a hint: what a user can do next depends on the
//! program, which decides by the variant.

use std::error::Error as StdError;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use inlock_engine::ControlError;
use serde_json::{Map, Value};

use crate::method::AttachMethod;

/// The result of an operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Fields of a reply to a control command, without `ok`.
pub type Reply = Result<Map<String, Value>>;

/// An error that is a cause of another.
pub type Cause = Box<dyn StdError + Send + Sync>;

/// An error of a running volume.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the text of each variant says what its fields are")]
pub enum Error {
    // Names.
    #[error("Device {name} already exists.")]
    NameInUse { name: String, pid: Option<u32> },
    #[error("Device {name} is not active.")]
    Inactive { name: String },
    #[error("The process serving {name} has died.")]
    Gone { name: String },
    /// `pid`: 0 if it is unknown, as long as the process starts.
    #[error("The process serving {name} does not respond.")]
    Unreachable { name: String, pid: u32, source: Option<io::Error> },
    #[error("The server of many volumes in process {pid} does not respond.")]
    ServerUnresponsive { pid: u32 },
    /// `name`: the volume that it may serve.
    #[error("The server of many volumes in process {pid} does not respond; it may serve {name}.")]
    ServerSilent { name: String, pid: u32 },
    #[error("Several servers have opened {name}: processes {pids}.")]
    Ambiguous { name: String, pids: String },
    #[error("The server of {name} (process {pid}) has died.")]
    ServerGone { name: String, pid: u32 },
    #[error("State file {} {fault}.", .path.display())]
    StateFile { name: String, path: PathBuf, fault: String, is_newer: bool, remains: bool },
    #[error("Cannot rename {} to {}: {cause}.", .path.display(), .aside.display())]
    SetAside { path: PathBuf, aside: PathBuf, cause: io::Error },
    #[error("Directory {} of INLOCK_RUN_DIR cannot be used.", .dir.display())]
    RunDir { dir: PathBuf },
    #[error("There is no directory for the state of running volumes.")]
    NoRunDir,

    // A device that awaits recovery.
    #[error("Volume key does not match volume {name}.")]
    RecoveredKey { name: String },
    #[error("{name} can only be recovered with {kind} volume {device}.")]
    RecoveredVolume { name: String, kind: String, device: String },

    // Attaching.
    #[error("Device {} is still in use: {by}.", .node.display())]
    Held { node: PathBuf, by: String },
    #[error("Cannot attach the volume: {missing}.")]
    NoMethod { missing: String },
    /// `best`: a method that works.
    #[error("--via {} does not work here: {missing}.", .method.name())]
    MethodMissing { method: AttachMethod, missing: String, best: Option<AttachMethod> },
    #[error("--via {} does not support zoned volumes.", .method.name())]
    MethodWithoutZones { method: AttachMethod },
    #[error("Zoned volumes need --via ublk, which does not work here: {missing}.")]
    ZonesMissing { missing: String },
    #[error("Cannot attach the volume: {cause}.")]
    CannotAttach { cause: Cause, instead: Instead, not_permitted: bool },
    #[error("A worker of {} failed; I/O waits until the volume is reopened.", .node.display())]
    WorkerFailed { node: PathBuf },
    #[error("The volume has {len} bytes now, but {cause}.")]
    DeviceStays { len: u64, cause: Cause },
    #[error("--via {} does not support discards.", .method.name())]
    MethodWithoutDiscards { method: AttachMethod },
    #[error("{} was created without discard support.", .node.display())]
    DeviceWithoutDiscards { node: PathBuf },

    // Control commands.
    #[error("This volume is not closed later.")]
    NotDeferred,
    #[error("{} detaches when its last user closes it.", .node.display())]
    DetachesItself { node: PathBuf },
    #[error("Volume {name} is already suspended.")]
    Suspended { name: String },
    #[error("Volume {name} is not suspended.")]
    NotSuspended { name: String },
    #[error("Volume {name} is suspended and cannot be resized.")]
    SuspendedResize { name: String },
    #[error("Volume {name} needs its key.")]
    KeyMissing { name: String },
    #[error("The table cannot be used.")]
    Table { source: ControlError },
    #[error("Another operation on the volume is in progress.")]
    InProgress,
    #[error("The volume is being closed.")]
    Closing,
    #[error("The server executes as many commands as it can at the same time.")]
    TooManyCommands,
    /// A request that this process does not understand.
    #[error("{0}")]
    Request(String),
    #[error("The command '{command}' failed inside the process.")]
    Panicked { command: String },
    #[error("The process serving {server} sent an invalid reply.")]
    InvalidReply { server: String },
    /// Error of another process, which replied with it.
    #[error("{}", .0.message)]
    Told(Box<Told>),

    // Volumes of a server of many.
    #[error("Volume {name} does not exist.")]
    UnknownVolume { name: String },
    #[error("Volume {name} already exists.")]
    VolumeExists { name: String },
    #[error("Volume {name} is {state}.")]
    NotOpen { name: String, state: String },
    #[error("Volume {name} is in use by {clients} clients.")]
    VolumeInUse { name: String, clients: usize },
    #[error("Volume {name} is served with others, and cannot be closed later.")]
    NotDeferrable { name: String },
    #[error("Volume {name} is not added: {fault}.")]
    NotAdded { name: String, fault: String },
    /// `outcome`: what else has changed.
    #[error("{outcome}. The last writes to a volume that was closed may be lost.")]
    ClosedWithLoss { outcome: String },
    #[error("Volume {name} is removed, but its last writes may be lost.")]
    RemovedWithLoss { name: String, source: Box<Error> },
    /// The last closing of the volume.
    #[error("{0}")]
    LastClosing(String),
    #[error("{} is zoned; NBD clients can only read it.", .image.display())]
    Zoned { image: PathBuf },
    #[error("{} {what}.", .program.display())]
    KeyCommand { program: PathBuf, what: String },
    #[error("File {} has more than {max} bytes.", .path.display())]
    ConfigTooLong { path: PathBuf, max: u64 },
    #[error("File {}, {fault}.", .path.display())]
    Config { path: PathBuf, fault: String },
    #[error("{what} {} is not used, because {reason}.", .path.display())]
    Untrusted { what: &'static str, path: PathBuf, reason: String },
    #[error("TLS of a running server cannot change.")]
    TlsStays,
    #[error("Cannot use {}: {reason}.", .path.display())]
    Certificates { path: PathBuf, reason: String, kind: Option<io::ErrorKind> },
    #[error("The server at {} cannot be reached.", .path.display())]
    ServerUnreachable { path: PathBuf, source: io::Error },

    // Addresses.
    #[error("Address {address} is in use.")]
    AddressInUse { address: String },
    #[error("Address {0} is not loopback, and metrics are unencrypted.")]
    NotLoopback(SocketAddr),

    // Errors of others.
    #[error(transparent)]
    Open(#[from] inlock_open::Error),
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Other(Cause),
    /// A sentence, and the cause of what it says.
    #[error("{what}")]
    Failed { what: String, source: Cause },
}

/// A way that works where attaching has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Instead {
    /// Nothing.
    None,
    /// A server, which needs no driver of the kernel.
    Serve,
    /// A loop device, which needs only FUSE.
    Loop,
    /// A part of the volume that ends with a zone.
    Zones {
        /// Its length in sectors of 512 bytes.
        sectors: u64,
    },
}

/// An error as the client of a control command is told it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// The error and its causes in one line.
    pub message: String,
    /// Advice what to do next.
    pub hint: Option<String>,
    /// Exit status for the client's process.
    pub exit: u8,
    /// Word for an error that programs tell from others ([`Error::code`]).
    pub code: Option<String>,
}

impl Told {
    /// Returns what is told without hints and statuses.
    pub fn of(error: &Error) -> Self {
        let code = error.code().map(str::to_owned);
        Self { message: inlock_open::error::message_of(error), hint: None, exit: 1, code }
    }
}

impl Error {
    /// Returns the word by which the client of a control command tells the error from others.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Told(told) => told.code.as_deref(),
            error => error.fixed_code(),
        }
    }

    /// Returns the word for an error of this process.
    pub(crate) fn fixed_code(&self) -> Option<&'static str> {
        match self {
            Self::InProgress => Some("in_progress"),
            Self::Closing => Some("closing"),
            Self::TooManyCommands => Some("too_many_commands"),
            _ => None,
        }
    }

    /// Whether the command was not executed since the server executes as many others as it can.
    pub fn is_not_executed(&self) -> bool {
        self.code() == Some("too_many_commands")
    }

    /// Returns the error of another crate that this one is, without a sentence of its own.
    pub fn wrapped(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Open(error) => Some(error),
            Self::Control(error) => Some(error),
            Self::Io(error) => Some(error),
            Self::Other(error) => Some(&**error),
            Self::RemovedWithLoss { source, .. } => source.wrapped(),
            _ => None,
        }
    }

    /// Whether the command can be tried again when another has ended.
    pub fn is_in_progress(&self) -> bool {
        matches!(self.code(), Some("in_progress" | "closing" | "too_many_commands"))
    }

    pub(crate) fn other(error: impl Into<Cause>) -> Self {
        Self::Other(error.into())
    }
}

macro_rules! from_other {
    ($($source:ty),+ $(,)?) => {
        $(impl From<$source> for Error {
            fn from(source: $source) -> Self {
                Self::other(source)
            }
        })+
    };
}

from_other!(
    serde_json::Error,
    inlock_frontend::nbd::kernel::KernelNbdError,
    inlock_frontend::nbd::server::ServerError,
    inlock_volume::table::TableError,
);

#[cfg(feature = "fuse")]
from_other!(inlock_frontend::fuse::loop_device::LoopError, inlock_frontend::fuse::mount::FuseError);

#[cfg(feature = "ublk")]
from_other!(inlock_frontend::ublk::device::UblkError);

impl From<rustix::io::Errno> for Error {
    fn from(source: rustix::io::Errno) -> Self {
        Self::Io(source.into())
    }
}

/// Adds a sentence to an error.
pub trait ResultExt<T> {
    /// The sentence says what has failed.
    fn context(self, what: &str) -> Result<T>;
    /// Like [`ResultExt::context`].
    fn with_context(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<Cause>> ResultExt<T> for std::result::Result<T, E> {
    fn context(self, what: &str) -> Result<T> {
        self.with_context(|| what.to_owned())
    }

    fn with_context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::Failed { what: what(), source: source.into() })
    }
}
