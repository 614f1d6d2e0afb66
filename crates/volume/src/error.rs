//! Every way in which loading, unlocking, creating or rewriting a volume fails.
//!
//! Errors carry their place in the header in the words of the format's specification, for example
//! `LUKS2 header: keyslots/3/area: offset 4096 overlaps the header`. Texts taken from a header are cut and escaped before
//! they get here ([`Excerpt`]), so that printing an error is always safe. No error holds a secret.

use crate::header_policy::PolicyError;
use crate::pbkdf::KdfError;
use crate::printable::Printable;
use inlock_cipher::CipherError;
use std::fmt;
use std::io;

/// A volume cannot be loaded. The device is unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// There is no LUKS header, whole or damaged.
    #[error("not a LUKS volume")]
    NotLuks,
    /// The header is of a version that does not exist, or not yet.
    #[error("LUKS header: version {0} is not supported")]
    UnsupportedVersion(u16),
    /// The device ends before the header does.
    #[error("{what} ends at byte {needed}, but the device has only {len}")]
    Truncated {
        /// What does not fit.
        what: &'static str,
        /// Where it ends, in bytes.
        needed: u64,
        /// Length of the device, in bytes.
        len: u64,
    },
    /// The header breaks a rule of its specification and no other copy of it is whole.
    #[error(transparent)]
    Damaged(#[from] Fault),
    /// The device could not be read.
    #[error("cannot read the header")]
    Io(#[from] io::Error),
}

/// A volume was loaded, but something about its header is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoadWarning {
    /// The first header copy is damaged; the second was used.
    PrimaryDamaged(Fault),
    /// The second header copy is damaged; the first was used.
    SecondaryDamaged(Fault),
    /// The copies have different sequence numbers; the newer was used.
    CopiesDiffer {
        /// Sequence number of the first copy.
        primary: u64,
        /// Sequence number of the second copy.
        secondary: u64,
    },
    /// The copies have the same sequence number but not the same content; the first was used.
    SameSequenceDifferentContent {
        /// Their sequence number.
        seqid: u64,
    },
}

impl fmt::Display for LoadWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PrimaryDamaged(fault) => write!(f, "first header copy is damaged, using the second: {fault}"),
            Self::SecondaryDamaged(fault) => write!(f, "second header copy is damaged, using the first: {fault}"),
            Self::CopiesDiffer { primary, secondary } => {
                write!(f, "header copies have sequence numbers {primary} and {secondary}, using the newer")
            }
            Self::SameSequenceDifferentContent { seqid } => {
                write!(f, "header copies with sequence number {seqid} have different content, using the first")
            }
        }
    }
}

/// A volume cannot be unlocked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnlockError {
    /// No keyslot that was tried opens with this passphrase.
    #[error("no key available with this passphrase")]
    WrongPassphrase,
    /// There is no active keyslot that may be tried.
    #[error("no usable keyslot is available")]
    NoUsableKeyslot,
    /// The keyslot that was asked for is not active.
    #[error("keyslot {0} is not active")]
    KeyslotInactive(u32),
    /// The keyslot that was asked for holds a key that is not this volume's (LUKS2 "unbound").
    #[error("keyslot {0} holds no key of a segment")]
    KeyslotUnbound(u32),
    /// The header demands something that Inlock does not have; it can be looked at, but not activated.
    #[error("LUKS2 header: config/requirements: '{0}' is not supported")]
    Requirement(Excerpt),
    /// The volume's segments cannot be served.
    #[error("LUKS2 header: segments/{segment}: {reason}")]
    Segment {
        /// Which segment.
        segment: u32,
        /// Why.
        reason: &'static str,
    },
    /// A cipher that Inlock does not have.
    #[error("{place}: cipher '{name}' is not supported (its {part})")]
    UnsupportedCipher {
        /// Where it is named: `LUKS1 header`, `LUKS2 segment` or `LUKS2 keyslot`.
        place: &'static str,
        /// What is named.
        name: Excerpt,
        /// Which part of it is not supported: `cipher`, `key count`, `mode`, `IV mode`, `ESSIV hash` or `notation`.
        part: &'static str,
    },
    /// A hash that Inlock does not have.
    #[error("{place}: hash '{name}' is not supported")]
    UnsupportedHash {
        /// Where it is named.
        place: &'static str,
        /// What is named.
        name: Excerpt,
    },
    /// A type of object that Inlock does not have.
    #[error("{place}: type '{name}' is not supported")]
    UnsupportedType {
        /// Where it is named.
        place: &'static str,
        /// What is named.
        name: Excerpt,
    },
    /// A cipher that must not protect key material: no encryption at all.
    #[error("keyslot {keyslot}: its cipher does not encrypt")]
    NullCipherKeyslot {
        /// Which keyslot.
        keyslot: u32,
    },
    /// The volume is not what [`UnlockOptions::policy`](crate::UnlockOptions::policy) allows, or requires.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// No keyslot that was tried opens with this passphrase, and these were not tried.
    #[error(
        "{} cannot be tried: all together cost more than the limit, and no other opens with this passphrase",
        Keyslots(.0)
    )]
    TooCostlyTogether(Vec<u32>),
    /// The cipher does not take the key.
    #[error("cipher key")]
    Cipher(#[from] CipherError),
    /// The key derivation was refused or failed.
    #[error("key derivation")]
    Kdf(#[from] KdfError),
    /// The digest cannot be computed, so no key can be verified.
    #[error("digest {digest} cannot be computed: {reason}")]
    DigestNotComputable {
        /// Which digest (0 for LUKS1).
        digest: u32,
        /// Why.
        reason: &'static str,
    },
    /// Key material could not be read.
    #[error("cannot read the keyslot area")]
    Io(#[from] io::Error),
}

/// A device does not hold the payload that the header describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DataDeviceError {
    /// The header says that it is detached, but its own device was given for the payload.
    #[error("the header is detached: the payload is on another device")]
    Detached,
    /// The payload reaches past the end of the device.
    #[error("the payload reaches to byte {needed}, but the data device has only {len}")]
    TooSmall {
        /// Where the payload ends at the earliest, in bytes.
        needed: u64,
        /// Length of the device, in bytes.
        len: u64,
    },
}

/// A volume cannot be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The device is too small.
    #[error("the header takes {needed} bytes, but the device has only {len}")]
    DeviceTooSmall {
        /// Bytes that the header takes.
        needed: u64,
        /// Length of the device, in bytes.
        len: u64,
    },
    /// An option has a value that the format or Inlock does not allow.
    #[error("{option}: {reason}")]
    InvalidOption {
        /// cryptsetup's name of the option, without dashes.
        option: &'static str,
        /// Why.
        reason: &'static str,
    },
    /// The volume would not be what its policy allows.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// Both halves of an XTS key given by the caller are the same.
    #[error("both halves of the XTS volume key are the same")]
    EqualXtsKeyHalves,
    /// The cipher does not take a key of this length.
    #[error("volume key")]
    Cipher(#[from] CipherError),
    /// The key derivation was refused or failed.
    #[error("key derivation")]
    Kdf(#[from] KdfError),
    /// The system gave no random bytes.
    #[error("no random bytes from the system")]
    Random(#[from] getrandom::Error),
    /// The header that was made does not fit its area.
    #[error("the metadata takes {needed} bytes, but its area has only {area}")]
    MetadataTooLarge {
        /// Bytes of JSON.
        needed: u64,
        /// Bytes of its area.
        area: u64,
    },
    /// The device could not be written.
    #[error("cannot write the header")]
    Io(#[from] io::Error),
    /// The header that was written does not read back.
    #[error("cannot load the new header")]
    Verify(#[source] Box<LoadError>),
}

/// A header cannot be rewritten.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// The changed metadata breaks a rule of the format; nothing was written.
    #[error("the changed metadata is not valid")]
    Invalid(#[from] Fault),
    /// The metadata does not fit its area; nothing was written.
    #[error("the metadata takes {needed} bytes, but its area has only {area}")]
    MetadataTooLarge {
        /// Bytes of JSON.
        needed: u64,
        /// Bytes of its area.
        area: u64,
    },
    /// The sequence number cannot grow any more.
    #[error("the header's sequence number is at its maximum")]
    SequenceExhausted,
    /// The system gave no random bytes.
    #[error("no random bytes from the system")]
    Random(#[from] getrandom::Error),
    /// The device could not be written; one copy of the header is still whole.
    #[error("cannot write the header")]
    Io(#[from] io::Error),
}

/// One broken rule of a header's specification, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which header: `LUKS1 header`, `LUKS2 header` or `LUKS2 second header`.
    pub header: &'static str,
    /// Where in it.
    pub place: Place,
    /// Which rule.
    pub problem: Problem,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.header)?;
        if !self.place.is_root() {
            write!(f, "{}: ", self.place)?;
        }
        write!(f, "{}", self.problem)
    }
}

impl std::error::Error for Fault {}

/// A place in a header, such as `keyslots/3/area`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    section: &'static str,
    object: Option<u32>,
    part: &'static str,
}

impl Place {
    /// The header as a whole.
    pub const ROOT: Self = Self { section: "", object: None, part: "" };

    /// A section or a field of the header.
    pub const fn section(section: &'static str) -> Self {
        Self { section, object: None, part: "" }
    }

    /// An object of a section.
    pub const fn object(section: &'static str, object: u32) -> Self {
        Self { section, object: Some(object), part: "" }
    }

    /// A part of this object.
    pub const fn part(&self, part: &'static str) -> Self {
        Self { section: self.section, object: self.object, part }
    }

    fn is_root(&self) -> bool {
        *self == Self::ROOT
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.section)?;
        if let Some(object) = self.object {
            write!(f, "/{object}")?;
        }
        if !self.part.is_empty() {
            write!(f, "/{}", self.part)?;
        }
        Ok(())
    }
}

/// A rule of a header's specification that is broken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The magic bytes are not there.
    #[error("no magic bytes")]
    NoMagic,
    /// The version is not this header's.
    #[error("version {0} is not supported")]
    Version(u16),
    /// The checksum over the header does not match.
    #[error("checksum does not match")]
    Checksum,
    /// A text does not end with a zero byte inside its field, or has bytes that a text must not have.
    #[error("{0} is not a zero-terminated text")]
    NotText(&'static str),
    /// The device ends inside the header.
    #[error("ends at byte {needed}, but the device has only {len}")]
    Truncated {
        /// Where it ends.
        needed: u64,
        /// Length of the device.
        len: u64,
    },
    /// A number is not one of those allowed.
    #[error("{field} is {value}, which is not allowed")]
    NotAllowed {
        /// Which field.
        field: &'static str,
        /// What it says.
        value: u64,
    },
    /// A number is not what another place says it must be.
    #[error("{field} is {value}, but must be {wanted}")]
    Mismatch {
        /// Which field.
        field: &'static str,
        /// What it says.
        value: u64,
        /// What it must say.
        wanted: u64,
    },
    /// A number is out of its range.
    #[error("{field} is {value}, but must be from {min} to {max}")]
    OutOfRange {
        /// Which field.
        field: &'static str,
        /// What it says.
        value: u64,
        /// The least allowed.
        min: u64,
        /// The most allowed.
        max: u64,
    },
    /// A number is not a multiple.
    #[error("{field} {value} is not a multiple of {unit}")]
    Misaligned {
        /// Which field.
        field: &'static str,
        /// What it says.
        value: u64,
        /// What it must be a multiple of.
        unit: u64,
    },
    /// An area starts inside another.
    #[error("offset {offset} overlaps {with}")]
    Overlap {
        /// Where the area starts, in bytes.
        offset: u64,
        /// What it overlaps.
        with: &'static str,
    },
    /// Two objects' areas overlap.
    #[error("offset {offset} overlaps {with}/{object}")]
    OverlapObject {
        /// Where the area starts, in bytes.
        offset: u64,
        /// The other's section.
        with: &'static str,
        /// The other's number.
        object: u32,
    },
    /// An area ends outside of what holds it.
    #[error("offset {offset} and size {size} reach past {limit}, the end of {of}")]
    PastEnd {
        /// Where the area starts, in bytes.
        offset: u64,
        /// Its length in bytes.
        size: u64,
        /// Where it must end at the latest.
        limit: u64,
        /// What ends there.
        of: &'static str,
    },
    /// An area is too small for what it must hold.
    #[error("size {size} is less than the {needed} bytes that the key material takes")]
    AreaTooSmall {
        /// Length of the area, in bytes.
        size: u64,
        /// What it must hold, in bytes.
        needed: u64,
    },
    /// The JSON text does not begin with `{` and end with `}` and a zero byte.
    #[error("JSON is not a zero-terminated object")]
    JsonFrame,
    /// There are bytes other than zero after the JSON text.
    #[error("bytes after the end of the JSON text are not zero")]
    JsonTail,
    /// The JSON text cannot be parsed.
    #[error("JSON is not valid at line {line}, column {column}")]
    JsonSyntax {
        /// Line of the text, from 1.
        line: u64,
        /// Column of the line, from 1.
        column: u64,
    },
    /// An object of the JSON text has the same key twice.
    #[error("JSON has the key '{0}' twice in one object")]
    JsonDuplicateKey(Excerpt),
    /// The JSON text is nested too deep.
    #[error("JSON is nested deeper than {0} levels")]
    JsonDepth(usize),
    /// The JSON text has too many values.
    #[error("JSON has more than {0} values")]
    JsonValues(usize),
    /// A field is missing.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A field is of another type.
    #[error("{field} is not {wanted}")]
    WrongType {
        /// Which field.
        field: &'static str,
        /// What it should be.
        wanted: &'static str,
    },
    /// An object's name is not a decimal number.
    #[error("object name '{0}' is not a decimal number in range")]
    ObjectName(Excerpt),
    /// There are more objects than allowed.
    #[error("{count} objects, but at most {max} are allowed")]
    TooMany {
        /// How many there are.
        count: u64,
        /// How many there may be.
        max: u64,
    },
    /// A type is not known where only known ones are allowed.
    #[error("{field} '{value}' is not supported")]
    Unknown {
        /// Which field.
        field: &'static str,
        /// What it says.
        value: Excerpt,
    },
    /// A reference to an object that does not exist.
    #[error("refers to {section}/{object}, which does not exist")]
    Dangling {
        /// Section of the missing object.
        section: &'static str,
        /// Its name.
        object: Excerpt,
    },
    /// A keyslot belongs to more than one digest.
    #[error("keyslots/{keyslot} is already bound to digests/{other}")]
    BoundTwice {
        /// Which keyslot.
        keyslot: u32,
        /// The other digest.
        other: u32,
    },
    /// A keyslot that belongs to no digest: its key could not be verified.
    #[error("is bound to no digest")]
    Unbound,
    /// Segments are not numbered one after the other from 0.
    #[error("segment numbers have a gap before this one")]
    SegmentGap,
    /// A segment without a length is not the last one.
    #[error("only the last segment may be dynamic")]
    DynamicNotLast,
}

impl Problem {
    /// The problem at its place.
    pub(crate) fn at(self, header: &'static str, place: Place) -> Fault {
        Fault { header, place, problem: self }
    }
}

/// `keyslot 3`, `keyslots 3 and 4`.
struct Keyslots<'a>(&'a [u32]);

impl fmt::Display for Keyslots<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.len() == 1 { "keyslot" } else { "keyslots" })?;
        for (at, number) in self.0.iter().enumerate() {
            let before = match at {
                0 => " ",
                at if at + 1 == self.0.len() => " and ",
                _ => ", ",
            };
            write!(f, "{before}{number}")?;
        }
        Ok(())
    }
}

/// A short, printable excerpt of a text from a header: at most 48 characters, escaped as by [`Printable`].
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Excerpt(Box<str>);

impl Excerpt {
    const MAX_CHARS: usize = 48;

    /// Cuts and escapes `text`.
    pub fn new(text: &str) -> Self {
        let end = text.char_indices().nth(Self::MAX_CHARS).map_or(text.len(), |(end, _)| end);
        let mut short = Printable::new(&text[..end]).to_string();
        if end < text.len() {
            short.push_str("...");
        }
        Self(short.into())
    }

    /// The excerpt.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}
