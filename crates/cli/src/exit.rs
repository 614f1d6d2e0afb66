//! What can go wrong, and the one place that maps it to an exit status and a hint.
//!
//! The statuses are cryptsetup's: 0 ok, 1 wrong parameters and all else, 2 no permission or bad passphrase, 3 out of memory,
//! 4 wrong device, 5 busy or exists. Errors go to standard error as `inlock: ` and the chain of causes, then a hint line.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use inlock_volume::{FormatError, KdfError, LoadError, PolicyError, Printable, UnlockError};

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
    /// The status with this number.
    pub(crate) fn from_number(number: u64) -> Self {
        let all = [Self::Ok, Self::Wrong, Self::Permission, Self::Memory, Self::Device, Self::Busy];
        all.into_iter().find(|status| *status as u64 == number).unwrap_or(Self::Wrong)
    }

    /// cryptsetup's words for the status, shown with `--verbose`.
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

/// What the command line itself finds wrong; the other crates' errors stand in the chain beside it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Problem {
    #[error("{0}")]
    Usage(String),
    #[error("{message}")]
    Refused { message: String, hint: &'static str },
    #[error("Device {} does not exist or access denied.", .path.display())]
    NoDevice { path: PathBuf, creating: bool, source: io::Error },
    #[error("Device {} is neither a regular file nor a block device.", .path.display())]
    NotADevice { path: PathBuf },
    #[error("Device {} is not a valid LUKS device.", .path.display())]
    NotLuks { path: PathBuf, found: Option<u32> },
    #[error("{what} is refused: {error}.")]
    AgainstPolicy { what: String, error: PolicyError },
    #[error("No key available with this passphrase.")]
    NoKey,
    #[error("Device {} is in use (locked by another process).", .path.display())]
    HeaderLocked { path: PathBuf },
    #[error("Device {} is in use (locked by another process).", .path.display())]
    InUse { path: PathBuf, hint: &'static str },
    #[error("Device {} is too small.", .path.display())]
    TooSmall { path: PathBuf, len: u64, needed: u64 },
    #[error("Address {address} is in use.")]
    AddressInUse { address: String },
    #[error("Device {name} already exists.")]
    NameInUse { name: String, pid: Option<u32> },
    #[error("Device {} is in use: {by}.", .node.display())]
    Held { node: PathBuf, by: String },
    #[error("Device {name} is not active.")]
    Inactive { name: String },
    #[error("The process of {name} is gone.")]
    Gone { name: String },
    #[error("The process of {name} does not answer.")]
    Unreachable { name: String, pid: u32 },
    #[error("The key is not the one that {name} was opened with.")]
    OtherKey { name: String },
    #[error("Writes to {} may be lost: a flush failed.", .path.display())]
    WritesLost { path: PathBuf },
    /// What another process of Inlock said.
    #[error("{0}")]
    Told(String, Option<String>, Status),
    #[error("Operation aborted.")]
    NotConfirmed,
    #[error("Timeout while waiting for a passphrase.")]
    PromptTimeout,
    #[error("interrupted by signal {0}")]
    Interrupted(i32),
    #[error("standard output was closed")]
    OutputClosed,
    /// A silent no, as `isLuks` gives it.
    #[error("")]
    No,
    /// All was said.
    #[error("")]
    Silent(Status),
}

impl Problem {
    /// A mistake on the command line.
    pub(crate) fn usage(text: impl Into<String>) -> anyhow::Error {
        Self::Usage(text.into()).into()
    }

    /// Something that is refused, and what to do instead.
    pub(crate) fn refused(message: impl Into<String>, hint: &'static str) -> anyhow::Error {
        Self::Refused { message: message.into(), hint }.into()
    }

    /// A hash nobody here knows.
    pub(crate) fn hash(name: &str) -> Self {
        Self::Refused {
            message: format!("Hash '{name}' is not available."),
            hint: "hashes of this version: sha1, sha224, sha256, sha384, sha512, ripemd160",
        }
    }

    fn status(&self) -> Status {
        match self {
            Self::NoKey | Self::OtherKey { .. } => Status::Permission,
            Self::NoDevice { .. } | Self::NotADevice { .. } => Status::Device,
            Self::Inactive { .. } | Self::Gone { .. } => Status::Device,
            Self::AgainstPolicy { error: PolicyError::OtherUuid { .. }, .. } => Status::Device,
            Self::HeaderLocked { .. } | Self::InUse { .. } | Self::AddressInUse { .. } => Status::Busy,
            Self::NameInUse { .. } | Self::Held { .. } | Self::Unreachable { .. } => Status::Busy,
            Self::Told(_, _, status) | Self::Silent(status) => *status,
            Self::PromptTimeout => Status::Permission,
            _ => Status::Wrong,
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Usage(_) => "`inlock --help` lists actions and options".to_owned(),
            Self::Refused { hint, .. } | Self::InUse { hint, .. } => (*hint).to_owned(),
            Self::NoDevice { path, creating: true, source } if source.kind() == io::ErrorKind::NotFound => {
                format!("make an image file first: truncate -s SIZE {}", path.display())
            }
            Self::NotLuks { found: Some(version), .. } => {
                format!("its header is LUKS{version}; --type luks takes every version")
            }
            Self::NotLuks { found: None, .. } => {
                "a volume without a header is opened with --type plain, a detached header is named with --header"
                    .to_owned()
            }
            Self::HeaderLocked { .. } => {
                "another program holds the lock of the header; try again when it is done".to_owned()
            }
            Self::TooSmall { path, len, needed } => {
                format!("it has {len} bytes, at least {needed} are needed: truncate -s SIZE {}", path.display())
            }
            Self::NameInUse { pid: Some(pid), .. } => format!("process {pid} serves it; `inlock list` shows all"),
            Self::AgainstPolicy { error, .. } => return hint_of_policy(error).map(ToOwned::to_owned),
            Self::Held { .. } => "end that first; `inlock close --deferred` closes it when that has ended".to_owned(),
            Self::Inactive { .. } => "`inlock list` shows what is".to_owned(),
            Self::Gone { name } => format!("`inlock close {name}` cleans up what it left behind"),
            Self::Unreachable { pid: 0, .. } => "it is starting, and may be asking for a passphrase".to_owned(),
            Self::Unreachable { pid, .. } => format!("it is process {pid}; it may be stopped, or wait for a disk"),
            Self::OtherKey { .. } => {
                "the header was replaced, or the passphrase is wrong; the volume stays suspended".to_owned()
            }
            Self::WritesLost { .. } => {
                "check the device, and restore what was written since the last flush that succeeded".to_owned()
            }
            Self::Told(_, hint, _) => return hint.clone(),
            Self::AddressInUse { .. } => "another server listens there, or the path is not a socket".to_owned(),
            _ => return None,
        })
    }
}

/// The exit status of an error: that of the problem it is, or of the first cause in the chain that has one of its own.
pub(crate) fn status_of(error: &anyhow::Error) -> Status {
    // A problem may be the context of another error, where only this finds it.
    if let Some(problem) = error.downcast_ref::<Problem>() {
        return problem.status();
    }
    for cause in error.chain() {
        if matches!(cause.downcast_ref(), Some(KdfError::OutOfMemory { .. } | KdfError::MemoryNotAvailable { .. })) {
            return Status::Memory;
        }
        if let Some(status) = cause.downcast_ref::<io::Error>().and_then(status_of_io) {
            return status;
        }
    }
    Status::Wrong
}

/// As cryptsetup translates error numbers.
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

/// What the user can do about it.
pub(crate) fn hint_of(error: &anyhow::Error) -> Option<String> {
    let own = error.downcast_ref::<Problem>().and_then(Problem::hint);
    own.or_else(|| error.chain().find_map(hint_of_volume).map(ToOwned::to_owned))
}

/// What the user can do about an error of the header.
fn hint_of_volume(cause: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    if let Some(error) = cause.downcast_ref::<LoadError>() {
        return match error {
            LoadError::Truncated { .. } => Some("the image was cut off; compare its length with the original's"),
            LoadError::Damaged(_) => Some("restore the header from a backup (cryptsetup luksHeaderRestore)"),
            LoadError::UnsupportedVersion(_) => Some("a newer version of Inlock may know it"),
            _ => None,
        };
    }
    if let Some(error) = cause.downcast_ref::<UnlockError>() {
        return match error {
            UnlockError::Requirement(_) => Some("finish or undo with cryptsetup what the header says is under way"),
            UnlockError::TooCostlyTogether(_) => Some("--key-slot tries one key slot alone"),
            UnlockError::UnsupportedCipher { .. }
            | UnlockError::UnsupportedHash { .. }
            | UnlockError::UnsupportedType { .. } => Some("cryptsetup or a newer version of Inlock may know it"),
            _ => None,
        };
    }
    match cause.downcast_ref::<KdfError>() {
        Some(KdfError::Limit { .. }) => Some("the key slot was made for a larger machine, or by an attacker"),
        Some(KdfError::OutOfMemory { .. } | KdfError::MemoryNotAvailable { .. }) => {
            Some("free some memory or raise the cgroup's limit, or make a key slot with less --pbkdf-memory")
        }
        _ => None,
    }
}

fn hint_of_policy(error: &PolicyError) -> Option<&'static str> {
    match error {
        PolicyError::NullCipher { .. } => Some("--allow-null-cipher takes it; what is written then is not encrypted"),
        PolicyError::NullIv { .. } => Some("--allow-null-iv takes it"),
        PolicyError::LinearSegment { .. } => {
            Some("--allow-linear-segment takes it; what is written there then is not encrypted")
        }
        PolicyError::OtherCipher { .. } => {
            Some("--require-cipher names the cipher; its header was changed, or it is another volume")
        }
        PolicyError::OtherUuid { .. } => {
            Some("--expect-uuid names the UUID; its header was changed, or it is another volume")
        }
        _ => None,
    }
}

/// A volume that is not what the user allows or requires; `what` begins the sentence.
pub(crate) fn against_policy(what: String) -> impl FnOnce(PolicyError) -> anyhow::Error {
    move |error| Problem::AgainstPolicy { what, error }.into()
}

/// What cryptsetup says where a header cannot be loaded; `path` is where it was looked for.
pub(crate) fn cannot_load(path: &Path) -> impl FnOnce(LoadError) -> anyhow::Error {
    let path = path.to_owned();
    move |error| match error {
        LoadError::NotLuks => Problem::NotLuks { path, found: None }.into(),
        error => anyhow::Error::from(error).context(format!("cannot load the LUKS header of {}", path.display())),
    }
}

/// What cryptsetup says where a volume cannot be unlocked.
pub(crate) fn cannot_unlock(path: &Path) -> impl FnOnce(UnlockError) -> anyhow::Error {
    let path = path.to_owned();
    move |error| match error {
        UnlockError::WrongPassphrase => Problem::NoKey.into(),
        UnlockError::NoUsableKeyslot => Problem::refused(
            "No usable keyslot is available.",
            "all key slots were erased; only a backup of the header can open the volume",
        ),
        UnlockError::Policy(error) => against_policy(format!("Device {}", path.display()))(error),
        UnlockError::KeyslotInactive(slot) => {
            Problem::refused(format!("Keyslot {slot} is not active."), "`inlock luksDump` lists the key slots")
        }
        error => anyhow::Error::from(error).context(format!("cannot unlock {}", path.display())),
    }
}

/// What a volume that cannot be created means.
pub(crate) fn cannot_format(path: &Path) -> impl FnOnce(FormatError) -> anyhow::Error {
    let path = path.to_owned();
    move |error| match error {
        FormatError::DeviceTooSmall { needed, len } => Problem::TooSmall { path, len, needed }.into(),
        FormatError::Policy(error) => against_policy("The new volume".to_owned())(error),
        FormatError::InvalidOption { option, reason } => Problem::usage(format!("Option --{option}: {reason}.")),
        error => anyhow::Error::from(error).context(format!("cannot create a volume on {}", path.display())),
    }
}

/// Tells the user, unless there is nothing to say, and gives the status to exit with.
pub(crate) fn report(error: &anyhow::Error) -> Status {
    let status = status_of(error);
    let silent = matches!(error.downcast_ref(), Some(Problem::No | Problem::Silent(_) | Problem::OutputClosed));
    if !silent {
        say(&format!("inlock: {}", message_of(error)));
        if let Some(hint) = hint_of(error) {
            say(&format!("hint: {hint}"));
        }
    }
    status
}

/// An error with its causes in one line.
pub(crate) fn message_of(error: &anyhow::Error) -> String {
    // The messages end in a full stop where scripts look for cryptsetup's words; a cause follows without it.
    let mut chain = String::new();
    for cause in error.chain().map(|cause| without_number(&cause.to_string()).to_owned()) {
        // Some errors tell their cause themselves.
        if chain.is_empty() {
            chain = cause;
        } else if !chain.ends_with(&cause) {
            chain.truncate(chain.trim_end_matches('.').len());
            chain = format!("{chain}: {cause}");
        }
    }
    chain
}

/// The system's words for an error without ` (os error 2)` behind them.
fn without_number(text: &str) -> &str {
    match text.rsplit_once(" (os error ") {
        Some((words, number)) if number.trim_end_matches(')').bytes().all(|byte| byte.is_ascii_digit()) => words,
        _ => text,
    }
}

/// One line on standard error, without anything that steers a terminal; where that is closed there is nobody to tell.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", Printable::with_layout(line));
}

/// A result on standard output.
pub(crate) fn print(text: impl Display) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match write!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Problem::OutputClosed.into()),
        other => Ok(other?),
    }
}

/// What an image or device that cannot be opened means.
pub(crate) fn cannot_open(path: &Path, creating: bool) -> impl FnOnce(io::Error) -> anyhow::Error {
    let path = path.to_owned();
    move |source| {
        let busy = rustix::io::Errno::from_io_error(&source) == Some(rustix::io::Errno::BUSY);
        if busy {
            Problem::InUse { path, hint: "it is mounted, or part of something that is in use" }.into()
        } else {
            Problem::NoDevice { path, creating, source }.into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    fn errno(number: rustix::io::Errno) -> anyhow::Error {
        anyhow::Error::from(io::Error::from_raw_os_error(number.raw_os_error())).context("outer")
    }

    #[test]
    fn every_error_has_the_status_cryptsetup_gives_it() {
        use rustix::io::Errno;
        let path = PathBuf::from("x");
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        for (error, status) in [
            (Problem::usage("x"), Status::Wrong),
            (Problem::refused("x", "y"), Status::Wrong),
            (Problem::NoKey.into(), Status::Permission),
            (Problem::NoDevice { path: path.clone(), creating: true, source: missing() }.into(), Status::Device),
            (Problem::NotADevice { path: path.clone() }.into(), Status::Device),
            (Problem::NotLuks { path: path.clone(), found: None }.into(), Status::Wrong),
            (Problem::HeaderLocked { path: path.clone() }.into(), Status::Busy),
            (Problem::InUse { path: path.clone(), hint: "" }.into(), Status::Busy),
            (Problem::TooSmall { path, len: 1, needed: 2 }.into(), Status::Wrong),
            (Problem::NameInUse { name: "x".to_owned(), pid: None }.into(), Status::Busy),
            (Problem::Inactive { name: "x".to_owned() }.into(), Status::Device),
            (Problem::Gone { name: "x".to_owned() }.into(), Status::Device),
            (Problem::Unreachable { name: "x".to_owned(), pid: 1 }.into(), Status::Busy),
            (Problem::OtherKey { name: "x".to_owned() }.into(), Status::Permission),
            (Problem::Told("x".to_owned(), None, Status::from_number(3)).into(), Status::Memory),
            (Problem::Silent(Status::Device).into(), Status::Device),
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
    fn a_problem_decides_wherever_it_stands_in_the_chain() {
        let permission = || errno(rustix::io::Errno::PERM);
        let not_luks = || Problem::NotLuks { path: "x".into(), found: None };
        assert_eq!(status_of(&permission().context(not_luks())), Status::Wrong);
        assert_eq!(status_of(&permission().context(not_luks()).context("outer")), Status::Wrong);
        assert_eq!(status_of(&anyhow::Error::from(Problem::NoKey).context("outer")), Status::Permission);
        assert!(hint_of(&permission().context(not_luks()).context("outer")).is_some());
    }

    #[test]
    fn the_number_of_a_system_error_is_left_out() {
        assert_eq!(without_number("No such file or directory (os error 2)"), "No such file or directory");
        assert_eq!(without_number("odd (os error x)"), "odd (os error x)");
        assert_eq!(without_number("plain"), "plain");
    }

    #[test]
    fn a_missing_image_is_made_with_truncate() {
        let source = io::Error::from(io::ErrorKind::NotFound);
        let problem = Problem::NoDevice { path: "disk.img".into(), creating: true, source };
        assert_eq!(problem.hint().as_deref(), Some("make an image file first: truncate -s SIZE disk.img"));
    }
}
