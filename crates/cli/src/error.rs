//! Errors of the command line, with exit status and hint.
//!
//! The statuses are cryptsetup's: 0 success, 1 wrong parameters and all other errors, 2 no permission or bad
//! passphrase, 3 out of memory, 4 wrong device, 5 device busy or exists. An error is a sentence that names object and
//! failure, followed by its causes; a hint says in the imperative what to do.

mod kinds;
mod running;

use std::io;

use inlock_nbd_store::OpenError;
use inlock_open::{Error, ErrorKind};
use inlock_rbd_store::OpenError as ImageError;
use inlock_serve::Told;
use inlock_volume::{EditError, FormatError, KdfError, LoadError, PolicyError, UnlockError};

/// An exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Status {
    Ok = 0,
    Wrong = 1,
    Permission = 2,
    Memory = 3,
    Device = 4,
    Busy = 5,
}

impl Status {
    /// Returns the status with this number.
    pub(crate) fn from_number(number: u64) -> Self {
        let all = [Self::Ok, Self::Wrong, Self::Permission, Self::Memory, Self::Device, Self::Busy];
        all.into_iter().find(|status| *status as u64 == number).unwrap_or(Self::Wrong)
    }

    /// Returns cryptsetup's words for the status, which `--verbose` prints.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::Ok => "success",
            Self::Wrong => "wrong or missing parameters",
            Self::Permission => "no permission or bad passphrase",
            Self::Memory => "out of memory",
            Self::Device => "wrong device or file specified",
            Self::Busy => "device already exists or device is busy",
        }
    }
}

/// An error of the command line. Errors of other crates are in the same chain.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    #[error("{text}")]
    Usage { text: String, action: Option<&'static str> },
    #[error("{message}")]
    Refused { message: String, hint: &'static str },
    #[error("Nothing to read on input.")]
    NothingToRead,
    /// Message, hint and status, such as those of another process of Inlock.
    #[error("{0}")]
    Remote(String, Option<String>, Status),
    #[error("Operation aborted.")]
    NotConfirmed,
    /// The user did not confirm a change of a header.
    #[error("{0}")]
    Declined(&'static str),
    #[error("Error reading passphrase from terminal: timeout.")]
    PromptTimeout,
    #[error("Interrupted by signal {0}.")]
    Interrupted(i32),
    #[error("Standard output was closed.")]
    OutputClosed,
    /// Silent failure of `isLuks`.
    #[error("")]
    No,
    /// Already reported.
    #[error("")]
    Silent(Status),
}

impl CliError {
    /// Returns an error for a wrong command line.
    pub(crate) fn usage(text: impl Into<String>) -> anyhow::Error {
        Self::Usage { text: text.into(), action: None }.into()
    }

    /// Returns an error with a hint.
    pub(crate) fn refused(message: impl Into<String>, hint: &'static str) -> anyhow::Error {
        Self::Refused { message: message.into(), hint }.into()
    }

    /// Returns an error for an unknown hash.
    pub(crate) fn hash(name: &str) -> Self {
        Self::Refused {
            message: format!("Hash '{name}' is not available."),
            hint: "use sha256, sha512, sha3-256, blake2b-512 or another hash that `inlock benchmark` lists",
        }
    }

    fn status(&self) -> Status {
        match self {
            Self::Declined(_) => Status::Permission,
            Self::Remote(_, _, status) | Self::Silent(status) => *status,
            _ => Status::Wrong,
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Usage { action: Some(name), .. } => format!("run `inlock {name} --help` to list its options"),
            Self::Usage { action: None, .. } => "run `inlock --help` to list actions and options".to_owned(),
            Self::Refused { hint, .. } => (*hint).to_owned(),
            Self::NothingToRead => "pass the passphrase on standard input or with --key-file".to_owned(),
            Self::Remote(_, hint, _) => return hint.clone(),
            _ => return None,
        })
    }
}

/// Names the action in an error for a wrong command line, whose hint is then the help of that action.
pub(crate) fn in_action(mut error: anyhow::Error, name: Option<&'static str>) -> anyhow::Error {
    let is_wrong_request = running_error(&error).is_some_and(running::is_of_command_line);
    if is_wrong_request || kind_of(&error).is_some_and(kinds::is_of_command_line) {
        return CliError::Usage { text: message_of(&error), action: name }.into();
    }
    if let Some(CliError::Usage { action, .. }) = error.downcast_mut() {
        *action = name;
    }
    error
}

/// Returns the exit status of an error: of the [`CliError`] in it, or of the first cause that has one.
pub(crate) fn status_of(error: &anyhow::Error) -> Status {
    // Also finds one that is the context of another error.
    if let Some(own) = error.downcast_ref::<CliError>() {
        return own.status();
    }
    if let Some(status) = running_error(error).and_then(running::status) {
        return status;
    }
    if let Some(status) = opening_error(error).and_then(kinds::status) {
        return status;
    }
    for cause in causes(error) {
        if is_requested_cost(cause) {
            return Status::Wrong;
        }
        // A cost of a header over its limit counts as too little memory, as in cryptsetup.
        let is_too_costly = match cause.downcast_ref() {
            Some(KdfError::OutOfMemory { .. } | KdfError::MemoryNotAvailable { .. } | KdfError::Limit { .. }) => true,
            _ => matches!(cause.downcast_ref(), Some(UnlockError::TooCostlyTogether(_))),
        };
        if is_too_costly {
            return Status::Memory;
        }
        if let Some(status) = cause.downcast_ref::<io::Error>().and_then(status_of_io) {
            return status;
        }
    }
    Status::Wrong
}

/// Returns the error of the command in a chain, also if the library has passed it on.
pub(crate) fn own_error(error: &anyhow::Error) -> Option<&CliError> {
    let passed = || opening_error(error).and_then(Error::cause).and_then(|cause| cause.downcast_ref());
    error.downcast_ref().or_else(passed)
}

/// Returns what has happened in the library. `None`: it is an error of the command.
pub(crate) fn kind_of(error: &anyhow::Error) -> Option<ErrorKind> {
    opening_error(error).map(Error::kind)
}

/// Returns the error of a running volume.
pub(crate) fn running_error(error: &anyhow::Error) -> Option<&inlock_serve::Error> {
    error.downcast_ref()
}

/// Returns the error of opening a volume, also if a running one passes it on.
fn opening_error(error: &anyhow::Error) -> Option<&Error> {
    let passed = || running_error(error)?.wrapped()?.downcast_ref();
    error.downcast_ref().or_else(passed)
}

/// Returns all errors of a chain, also those whose text is that of the error above.
fn causes(error: &anyhow::Error) -> Vec<&(dyn std::error::Error + 'static)> {
    let mut causes = Vec::new();
    for cause in error.chain() {
        causes.push(cause);
        let wrapped = cause.downcast_ref().and_then(inlock_serve::Error::wrapped);
        causes.extend(wrapped);
        if let Some(told) = wrapped.unwrap_or(cause).downcast_ref::<Error>().and_then(Error::cause) {
            causes.push(told);
        }
    }
    causes
}

/// Whether options of a new keyslot request a cost over its limit.
fn is_requested_cost(cause: &(dyn std::error::Error + 'static)) -> bool {
    let formatting = matches!(cause.downcast_ref(), Some(FormatError::Kdf(KdfError::Limit { .. })));
    formatting || matches!(cause.downcast_ref(), Some(EditError::Kdf(KdfError::Limit { .. })))
}

/// Translates error numbers as cryptsetup does.
fn status_of_io(error: &io::Error) -> Option<Status> {
    use rustix::io::Errno;
    if error.kind() == io::ErrorKind::OutOfMemory {
        return Some(Status::Memory);
    }
    Some(match Errno::from_io_error(error)? {
        Errno::PERM | Errno::ACCESS => Status::Permission,
        Errno::NOMEM => Status::Memory,
        Errno::NODEV | Errno::NOTBLK => Status::Device,
        Errno::EXIST | Errno::BUSY => Status::Busy,
        _ => return None,
    })
}

/// Returns the hint of an error.
pub(crate) fn hint_of(error: &anyhow::Error) -> Option<String> {
    let own = error.downcast_ref::<CliError>().and_then(CliError::hint);
    let own = own.or_else(|| running_error(error).and_then(running::hint));
    let own = own.or_else(|| opening_error(error).and_then(kinds::hint));
    own.or_else(|| causes(error).into_iter().find_map(hint_of_volume).map(ToOwned::to_owned))
}

/// Returns the hint of an error of the header.
fn hint_of_volume(cause: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    if let Some(error) = cause.downcast_ref::<LoadError>() {
        return match error {
            LoadError::Truncated { .. } => Some("compare the length of the image with the original's; it is truncated"),
            LoadError::Damaged(_) => {
                Some("run `inlock doctor` to examine it, or restore a backup: inlock luksHeaderRestore")
            }
            LoadError::UnsupportedVersion(_) => Some("try a newer version of Inlock"),
            _ => None,
        };
    }
    if let Some(error) = cause.downcast_ref::<UnlockError>() {
        return match error {
            UnlockError::Requirement(name) => Some(hint_of_requirement(name.as_str())),
            UnlockError::TooCostlyTogether(_) => Some("use --key-slot to try a single keyslot"),
            UnlockError::UnsupportedCipher { .. }
            | UnlockError::UnsupportedHash { .. }
            | UnlockError::UnsupportedType { .. } => Some("try cryptsetup or a newer version of Inlock"),
            _ => None,
        };
    }
    if let Some(EditError::Requirement(name)) = cause.downcast_ref() {
        return Some(hint_of_requirement(name.as_str()));
    }
    if is_requested_cost(cause) {
        return Some("use a lower cost");
    }
    match cause.downcast_ref::<KdfError>() {
        Some(KdfError::Limit { .. }) => {
            Some("use another keyslot; this one was made for a larger machine, or by an attacker")
        }
        Some(KdfError::OutOfMemory { .. } | KdfError::MemoryNotAvailable { .. }) => {
            Some("free some memory or raise the cgroup's limit, or create a keyslot with less --pbkdf-memory")
        }
        _ => None,
    }
}

/// Returns the hint for a header with a requirement that is not met.
pub(crate) fn hint_of_requirement(name: &str) -> &'static str {
    if name.starts_with("online-reencrypt") {
        "finish the re-encryption first: inlock reencrypt --resume-only DEVICE, with --header FILE if it has one"
    } else {
        "finish or undo the operation in the header with cryptsetup"
    }
}

/// Returns the hint for an export that cannot be opened.
fn hint_of_export(error: &OpenError) -> Option<&'static str> {
    Some(match error {
        OpenError::Unreachable { .. } => "start the server, and check the address in the URI",
        OpenError::TimedOut { .. } => {
            "check the address; let the server take several clients (qemu-nbd --shared=8), or raise --connect-timeout"
        }
        OpenError::UnknownExport(_) => "list the server's exports: nbdinfo --list URI",
        OpenError::TlsRequired => "use nbds://, or nbds+unix://, with ?tls-certificates=DIR",
        OpenError::NoTls => "let the server offer TLS; nbd:// without TLS goes over networks that are trusted",
        OpenError::Certificates(_) => "name a directory with ca-cert.pem: nbds://HOST/?tls-certificates=DIR",
        OpenError::TlsFailed { .. } => {
            "check ca-cert.pem and the names in the server's certificate (tls-hostname=NAME); \
             a server that checks clients needs client-cert.pem and client-key.pem"
        }
        OpenError::Closed { .. } | OpenError::Refused(_) => {
            "look into the server's log; it may allow other clients only"
        }
        OpenError::Dialect(_) | OpenError::Protocol(_) => {
            "use a server of fixed newstyle NBD, such as nbdkit or qemu-nbd"
        }
        _ => return None,
    })
}

/// Returns the hint for an image of RBD that cannot be opened.
fn hint_of_image(error: &ImageError) -> Option<&'static str> {
    Some(match error {
        ImageError::NoLibrary { .. } => {
            "install Ceph's client library: apt-get install librbd1, or dnf install librbd1"
        }
        ImageError::Config { .. } => "name the file: rbd:POOL/IMAGE:conf=FILE",
        ImageError::Option { .. } => "check the options behind the image's name; a colon in a value is written \\:",
        ImageError::NoMonitors => "name the configuration of the cluster: rbd:POOL/IMAGE:conf=/etc/ceph/ceph.conf",
        ImageError::NoKeyring(_) => {
            "name the client with id=USER, and put its keyring where the configuration says, or add :keyring=FILE"
        }
        ImageError::UnreadableKey { .. } => {
            "check the keyring; update librbd1, or make a key that it knows: \
             ceph auth rotate client.USER --key_type=aes"
        }
        ImageError::AuthRefused { .. } => "check id=USER and its keyring: ceph auth get client.USER",
        // The newest clusters do not answer a client without any capability for storage daemons.
        ImageError::TimedOut(_) => {
            "check the monitors' addresses, `ceph -s` and the client's capabilities, or raise --connect-timeout"
        }
        ImageError::UnknownPool(_) => "list the pools: ceph osd pool ls",
        ImageError::UnknownNamespace(_) => "list the namespaces: rbd namespace ls POOL",
        ImageError::UnknownImage(_) => "list the images: rbd ls POOL; create one: rbd create --size SIZE POOL/IMAGE",
        ImageError::UnknownSnapshot(_) => "list the snapshots: rbd snap ls POOL/IMAGE",
        ImageError::NotAllowed { .. } => "give the client the capabilities of `profile rbd`: ceph auth caps",
        ImageError::LockedByHand => "list the lock: rbd lock ls POOL/IMAGE; remove it: rbd lock rm",
        ImageError::Locked(_) => {
            "close the image there; --steal-lock takes the lock, and the other client can no longer use the image"
        }
        _ => return None,
    })
}

fn hint_of_policy(error: &PolicyError) -> Option<&'static str> {
    match error {
        PolicyError::NullCipher { .. } => Some("use --allow-null-cipher to open it; writes are then not encrypted"),
        PolicyError::NullIv { .. } => Some("use --allow-null-iv to open it"),
        PolicyError::LinearSegment { .. } => {
            Some("use --allow-linear-segment to open it; writes there are then not encrypted")
        }
        PolicyError::OtherCipher { .. } => {
            Some("check --require-cipher and the header, which was changed, or belongs to another volume")
        }
        PolicyError::OtherUuid { .. } => {
            Some("check --expect-uuid and the header, which was changed, or belongs to another volume")
        }
        PolicyError::OtherDigest { .. } => {
            Some("find out who changed the header; after a change of your own, write a new policy with `inlock policy`")
        }
        PolicyError::OtherKeyLen { .. }
        | PolicyError::OtherUnit { .. }
        | PolicyError::OtherKdf { .. }
        | PolicyError::OtherKdfHash { .. }
        | PolicyError::KdfTooCheap { .. }
        | PolicyError::KdfTooCostly { .. } => {
            Some("check --policy and the header, which was changed, or belongs to another volume")
        }
        _ => None,
    }
}

fn status_of_policy(error: &PolicyError) -> Status {
    match error {
        PolicyError::OtherUuid { .. } | PolicyError::OtherDigest { .. } => Status::Device,
        PolicyError::KdfTooCostly { .. } => Status::Memory,
        _ => Status::Wrong,
    }
}

/// Returns what the client of a control command is told about an error.
pub(crate) fn told(error: &anyhow::Error) -> Told {
    let code = running_error(error).and_then(inlock_serve::Error::code).map(str::to_owned);
    Told { message: message_of(error), hint: hint_of(error), exit: status_of(error) as u8, code }
}

/// Returns an error and its causes as one line.
pub(crate) fn message_of(error: &anyhow::Error) -> String {
    inlock_open::error::message_of(error.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::{Path, PathBuf};

    use anyhow::anyhow;
    use inlock_open::error::cannot_open;
    use inlock_serve::Error as Running;

    fn of_kind(kind: ErrorKind) -> anyhow::Error {
        Error::new(kind, "x").into()
    }

    fn errno(number: rustix::io::Errno) -> anyhow::Error {
        anyhow::Error::from(io::Error::from_raw_os_error(number.raw_os_error())).context("outer")
    }

    #[test]
    fn error_has_status_of_cryptsetup() {
        use rustix::io::Errno;
        let path = PathBuf::from("x");
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        for (error, status) in [
            (CliError::usage("Wrong."), Status::Wrong),
            (CliError::refused("Wrong.", "y"), Status::Wrong),
            (Error::no_key().into(), Status::Permission),
            (cannot_open(&path, true)(missing()).into(), Status::Device),
            (of_kind(ErrorKind::NotADevice), Status::Device),
            (Error::not_luks(&path, None).into(), Status::Wrong),
            (of_kind(ErrorKind::HeaderLocked), Status::Busy),
            (of_kind(ErrorKind::InUse), Status::Busy),
            (Error::too_small(&path, 1, 2).into(), Status::Wrong),
            (Running::NameInUse { name: "x".to_owned(), pid: None }.into(), Status::Busy),
            (Running::Inactive { name: "x".to_owned() }.into(), Status::Device),
            (Running::Gone { name: "x".to_owned() }.into(), Status::Device),
            (Running::Unreachable { name: "x".to_owned(), pid: 1, source: None }.into(), Status::Busy),
            (Running::Told(Told { exit: 4, ..Told::default() }.into()).into(), Status::Device),
            // Those of other libraries keep their statuses, also behind a sentence.
            (Running::Open(Error::no_key()).into(), Status::Permission),
            (Running::Io(io::Error::from_raw_os_error(Errno::BUSY.raw_os_error())).into(), Status::Busy),
            (Error::other_key().into(), Status::Permission),
            (CliError::Remote("x".to_owned(), None, Status::from_number(3)).into(), Status::Memory),
            (CliError::Silent(Status::Device).into(), Status::Device),
            (errno(Errno::PERM), Status::Permission),
            (errno(Errno::NOMEM), Status::Memory),
            (errno(Errno::NODEV), Status::Device),
            (errno(Errno::EXIST), Status::Busy),
            (errno(Errno::BUSY), Status::Busy),
            (errno(Errno::INVAL), Status::Wrong),
            (errno(Errno::NOENT), Status::Wrong),
            (anyhow!("anything"), Status::Wrong),
        ] {
            assert_eq!(status_of(&error), status, "{error:?}");
        }
    }

    #[test]
    fn cli_error_decides_anywhere_in_chain() {
        let permission = || errno(rustix::io::Errno::PERM);
        let not_luks = || Error::not_luks(Path::new("x"), None);
        assert_eq!(status_of(&permission().context(not_luks())), Status::Wrong);
        assert_eq!(status_of(&permission().context(not_luks()).context("outer")), Status::Wrong);
        assert_eq!(status_of(&anyhow::Error::from(Error::no_key()).context("outer")), Status::Permission);
        assert!(hint_of(&permission().context(not_luks()).context("outer")).is_some());
    }

    #[test]
    fn name_with_full_stop_keeps_it_before_a_cause() {
        for (first, wanted) in [
            ("cannot read dir/a.", "cannot read dir/a.: cause"),
            ("cannot read ..", "cannot read ..: cause"),
            ("Failed to open key file a..", "Failed to open key file a.: cause"),
            ("Failed.", "Failed: cause"),
            ("Failed", "Failed: cause"),
        ] {
            assert_eq!(message_of(&anyhow!("cause").context(first)), wanted);
        }
    }

    #[test]
    fn missing_image_has_hint_with_truncate() {
        let source = io::Error::from(io::ErrorKind::NotFound);
        let error = cannot_open(Path::new("disk.img"), true)(source).into();
        assert_eq!(hint_of(&error).as_deref(), Some("create an image file first: truncate -s SIZE disk.img"));
    }
}
