//! Errors: what has happened ([`ErrorKind`]), a sentence about it, and its cause.
//!
//! An error has neither an exit status nor a hint: what a user can do next depends on the program. A program decides by
//! the kind, and by the errors of other libraries in the chain of sources.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

pub use crate::error_kind::{ErrorKind, TokenHint, ZoneHint};
use inlock_nbd_store::OpenError as ExportError;
use inlock_rbd_store::OpenError as ImageError;
use inlock_volume::{EditError, LoadError, PolicyError, UnlockError};

/// The result of an operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error that is a cause of another.
pub type Cause = Box<dyn StdError + Send + Sync>;

/// An error.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    /// `None`: the text of the source.
    text: Option<String>,
    /// The text includes that of the source, which is not in the chain then.
    tells_source: bool,
    path: Option<PathBuf>,
    source: Option<Cause>,
}

impl Error {
    /// Returns an error with a sentence about it.
    pub fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self(Box::new(Inner { kind, text: Some(text.into()), tells_source: false, path: None, source: None }))
    }

    /// Returns an error with a cause.
    pub fn with_source(kind: ErrorKind, text: impl Into<String>, source: impl Into<Cause>) -> Self {
        let (text, source) = (Some(text.into()), Some(source.into()));
        Self(Box::new(Inner { kind, text, tells_source: false, path: None, source }))
    }

    /// Returns an error whose sentence includes that of its cause.
    pub(crate) fn telling(kind: ErrorKind, text: impl Into<String>, source: impl Into<Cause>) -> Self {
        let mut error = Self::with_source(kind, text, source);
        error.0.tells_source = true;
        error
    }

    /// Returns an error that is no more than its cause.
    pub fn from_source(kind: ErrorKind, source: impl Into<Cause>) -> Self {
        Self(Box::new(Inner { kind, text: None, tells_source: true, path: None, source: Some(source.into()) }))
    }

    /// Adds the path of what the error is about.
    #[must_use]
    pub fn about(mut self, path: &Path) -> Self {
        self.0.path = Some(path.to_owned());
        self
    }

    /// Returns what has happened.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Sets what has happened.
    #[must_use]
    pub fn of_kind(mut self, kind: ErrorKind) -> Self {
        self.0.kind = kind;
        self
    }

    /// Returns the path of the device or file that it is about.
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_deref()
    }

    /// Returns the cause, also one that the text includes, and that is not in the chain of sources therefore.
    pub fn cause(&self) -> Option<&(dyn StdError + Send + Sync + 'static)> {
        let source = self.0.source.as_deref()?;
        match source.downcast_ref::<Self>() {
            // It is the same event, in a wider sentence.
            Some(inner) if inner.kind() == self.kind() => inner.cause(),
            _ => Some(source),
        }
    }

    /// The device cannot be written.
    pub fn read_only(path: &Path) -> Self {
        let text = format!("Cannot write to device {}, permission denied.", path.display());
        Self::new(ErrorKind::ReadOnly, text).about(path)
    }

    /// The device has `len` bytes, and needs more.
    pub fn too_small(path: &Path, len: u64, needed: u64) -> Self {
        let text = format!("Device {} is too small.", path.display());
        Self::new(ErrorKind::TooSmall { len, needed }, text).about(path)
    }

    /// The name is that of another kind of file.
    pub(crate) fn not_a_device(path: &Path) -> Self {
        let text = format!("Device {} is neither a regular file nor a block device.", path.display());
        Self::new(ErrorKind::NotADevice, text).about(path)
    }

    /// The device has no header of an accepted version.
    pub fn not_luks(path: &Path, found: Option<u32>) -> Self {
        let text = format!("Device {} is not a valid LUKS device.", path.display());
        Self::new(ErrorKind::NotLuks { found, may_be_plain: false }, text).about(path)
    }

    /// The header is not LUKS2.
    pub fn not_luks2(path: &Path) -> Self {
        Self::new(ErrorKind::NotLuks2, format!("Device {} is not a valid LUKS2 device.", path.display())).about(path)
    }

    /// No keyslot opens.
    pub fn no_key() -> Self {
        Self::new(ErrorKind::NoKey, "No key available with this passphrase.")
    }

    /// The volume key is that of another volume.
    pub fn wrong_volume_key() -> Self {
        Self::new(ErrorKind::WrongVolumeKey, "Volume key does not match the volume.")
    }

    /// The key is not that of the volume before it was suspended.
    pub fn other_key() -> Self {
        Self::new(ErrorKind::OtherKey, "Volume key does not match the volume.")
    }

    /// There is nothing on the input.
    pub fn nothing_to_read() -> Self {
        Self::new(ErrorKind::NothingToRead, "Nothing to read on input.")
    }

    /// Another process uses the device.
    pub(crate) fn in_use(kind: ErrorKind, path: &Path) -> Self {
        Self::new(kind, format!("Device {} is in use (locked by another process).", path.display())).about(path)
    }

    /// A flush has failed.
    pub fn writes_lost(path: &Path, source: Option<Cause>) -> Self {
        let mut error =
            Self::new(ErrorKind::WritesLost, format!("Writes to {} may be lost: a flush failed.", path.display()));
        error.0.source = source;
        error.about(path)
    }

    /// Returns an error that a volume cannot be used on its device.
    pub(crate) fn unusable(kind: ErrorKind, path: &Path, source: impl Into<Cause>) -> Self {
        Self::with_source(kind, format!("Device {} cannot be used", path.display()), source).about(path)
    }

    /// Lets an error about a missing header tell that the volume may be a plain one.
    pub(crate) fn may_be_plain(self) -> Self {
        match self.kind() {
            ErrorKind::NotLuks { found, .. } => self.of_kind(ErrorKind::NotLuks { found, may_be_plain: true }),
            _ => self,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.0.text, &self.0.source) {
            (Some(text), _) => f.write_str(text),
            (None, Some(source)) => source.fmt(f),
            (None, None) => write!(f, "{:?}", self.0.kind),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("text", &self.0.text)
            .field("source", &self.0.source)
            .finish_non_exhaustive()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        let source: Option<&(dyn StdError + 'static)> = self.0.source.as_deref().map(|source| source as _);
        if self.0.tells_source { source.and_then(StdError::source) } else { source }
    }
}

macro_rules! from_source {
    ($($source:ty),+ $(,)?) => {
        $(impl From<$source> for Error {
            fn from(source: $source) -> Self {
                Self::from_source(ErrorKind::Failed, source)
            }
        })+
    };
}

from_source!(
    io::Error,
    rustix::io::Errno,
    nix::errno::Errno,
    inlock_cipher::CipherError,
    inlock_cipher::AeadError,
    inlock_engine::ControlError,
    inlock_engine::TargetError,
    inlock_engine::RequestError,
    inlock_integrity::IntegrityError,
    inlock_verity::InvalidField,
    inlock_volume::KdfError,
    inlock_volume::plain::PlainError,
    toml::ser::Error,
);

/// Adds a sentence to an error. One of this library keeps its kind.
pub(crate) trait ResultExt<T> {
    /// The sentence says what has failed.
    fn context(self, text: &str) -> Result<T>;
    /// Like [`ResultExt::context`].
    fn with_context<S: Into<String>>(self, text: impl FnOnce() -> S) -> Result<T>;
}

impl<T, E: Into<Cause>> ResultExt<T> for std::result::Result<T, E> {
    fn context(self, text: &str) -> Result<T> {
        self.with_context(|| text)
    }

    fn with_context<S: Into<String>>(self, text: impl FnOnce() -> S) -> Result<T> {
        self.map_err(|source| {
            let source = source.into();
            let inner = source.downcast_ref::<Error>();
            let kind = inner.map_or(ErrorKind::Failed, Error::kind);
            let path = inner.and_then(Error::path).map(Path::to_owned);
            let mut error = Error::with_source(kind, text(), source);
            error.0.path = path;
            error
        })
    }
}

/// Explains a violation of the policy. `what`: subject of the sentence.
pub(crate) fn against_policy(what: String) -> impl FnOnce(PolicyError) -> Error {
    move |error| {
        let text = format!("{what} is refused: {error}.");
        Error::telling(ErrorKind::AgainstPolicy, text, error)
    }
}

/// Explains, in cryptsetup's words, why the header at `path` cannot be loaded.
pub fn cannot_load(path: &Path) -> impl FnOnce(LoadError) -> Error {
    let path = path.to_owned();
    move |error| match error {
        LoadError::NotLuks => Error::not_luks(&path, None),
        LoadError::Luks1Reencrypted { ref uuid } => {
            let path_text = path.display();
            let text = format!("Device {path_text} is in LUKS1 re-encryption, whose log is LUKS-{uuid}.log.");
            Error::telling(ErrorKind::Luks1Reencrypted, text, error).about(&path)
        }
        error @ LoadError::Ambiguous(_) => {
            let text = format!("Device {} contains ambiguous signatures", path.display());
            Error::with_source(ErrorKind::Ambiguous, text, error).about(&path)
        }
        error => {
            let text = format!("cannot load the LUKS header of {}", path.display());
            Error::with_source(ErrorKind::Failed, text, error).about(&path)
        }
    }
}

/// Explains, in cryptsetup's words, why a volume cannot be unlocked.
pub fn cannot_unlock(path: &Path) -> impl FnOnce(UnlockError) -> Error {
    let path = path.to_owned();
    move |error| match error {
        UnlockError::WrongPassphrase => Error::no_key(),
        UnlockError::NoUsableKeyslot => Error::new(ErrorKind::NoUsableKeyslot, "No usable keyslot is available."),
        UnlockError::Policy(error) => against_policy(format!("Device {}", path.display()))(error),
        UnlockError::KeyslotInactive(slot) => inactive(slot),
        error => Error::with_source(ErrorKind::Failed, format!("cannot unlock {}", path.display()), error).about(&path),
    }
}

fn inactive(slot: u32) -> Error {
    Error::new(ErrorKind::KeyslotInactive, format!("Keyslot {slot} is not active."))
}

/// Explains, in cryptsetup's words, why a header cannot be changed.
pub fn cannot_edit(path: &Path) -> impl FnOnce(EditError) -> Error {
    let path = path.to_owned();
    move |error| {
        let (kind, text) = match error {
            EditError::NeedsLuks2(_) => return Error::not_luks2(&path),
            EditError::WrongKey => return Error::wrong_volume_key(),
            EditError::KeyslotInactive(number) => return inactive(number),
            EditError::KeyslotInvalid { number, max } => {
                (ErrorKind::KeyslotInvalid, format!("Key slot {number} is invalid, please select between 0 and {max}."))
            }
            EditError::KeyslotInUse(number) => {
                (ErrorKind::KeyslotInUse, format!("Key slot {number} is full, please select another one."))
            }
            EditError::NoFreeKeyslot => (ErrorKind::NoFreeKeyslot, "All key slots full.".to_owned()),
            EditError::NoFreeArea { .. } => (ErrorKind::NoFreeArea, "No space for new keyslot.".to_owned()),
            EditError::InvalidOption { option: "uuid", .. } => {
                (ErrorKind::InvalidUuid, "Wrong LUKS UUID format provided.".to_owned())
            }
            EditError::InvalidOption { option, reason } => {
                (ErrorKind::InvalidOption, format!("Option --{option}: {reason}."))
            }
            error => {
                let text = format!("cannot change {}", path.display());
                return Error::with_source(ErrorKind::Failed, text, error).about(&path);
            }
        };
        Error::new(kind, text)
    }
}

/// Explains why an image or device cannot be opened.
pub fn cannot_open(path: &Path, to_create: bool) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| {
        if rustix::io::Errno::from_io_error(&source) == Some(rustix::io::Errno::BUSY) {
            return Error::in_use(ErrorKind::Mounted, &path);
        }
        let text = format!("Device {} does not exist or access denied.", path.display());
        Error::with_source(ErrorKind::NoDevice { to_create }, text, source).about(&path)
    }
}

/// Explains why an export cannot be opened.
pub(crate) fn no_export(uri: &str, source: ExportError) -> Error {
    Error::with_source(ErrorKind::NoExport, format!("Device {uri} cannot be opened."), source)
}

/// Explains why an image cannot be opened.
pub(crate) fn no_image(name: &str, source: ImageError) -> Error {
    Error::with_source(ErrorKind::NoImage, format!("Device {name} cannot be opened."), source)
}

/// A signal has ended a prompt or the wait for a helper.
pub fn interrupted(signal: i32) -> Error {
    Error::new(ErrorKind::Interrupted(signal), format!("Interrupted by signal {signal}."))
}

/// Returns an error and its causes as one line.
pub fn message_of(error: &(dyn StdError + 'static)) -> String {
    let mut chain = String::new();
    let mut is_sentence = false;
    let mut next = Some(error);
    while let Some(cause) = next {
        next = cause.source();
        let text = cause.to_string();
        let text = without_number(&text);
        // The text of some errors includes their cause.
        if !chain.is_empty() && chain.ends_with(text) {
            continue;
        }
        if !chain.is_empty() {
            // A sentence ends in a full stop, unless a cause follows. Other text may end in a name with one.
            let end = chain.strip_suffix('.').filter(|_| is_sentence).map_or(chain.len(), str::len);
            chain.truncate(end);
            chain.push_str(": ");
        }
        chain.push_str(text);
        is_sentence = text.starts_with(char::is_uppercase);
    }
    chain
}

/// Removes ` (os error 2)` from the system's description of an error.
fn without_number(text: &str) -> &str {
    match text.rsplit_once(" (os error ") {
        Some((words, number)) if number.trim_end_matches(')').bytes().all(|byte| byte.is_ascii_digit()) => words,
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_system_error_is_removed() {
        assert_eq!(without_number("No such file or directory (os error 2)"), "No such file or directory");
        assert_eq!(without_number("odd (os error x)"), "odd (os error x)");
        assert_eq!(without_number("plain"), "plain");
    }
}
