//! Violations of a header's specification, with the path of the object that breaks it.

use crate::printable::Excerpt;
use std::fmt;

/// A violation with its path.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderFault {
    /// The header: `LUKS1 header`, `LUKS2 header` or `LUKS2 second header`.
    pub header: &'static str,
    /// Path of the object.
    pub path: HeaderPath,
    /// The violation.
    pub violation: Violation,
}

impl fmt::Display for HeaderFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.header)?;
        if !self.path.is_root() {
            write!(f, "{}: ", self.path)?;
        }
        write!(f, "{}", self.violation)
    }
}

impl std::error::Error for HeaderFault {}

/// A path in a header, such as `keyslots/3/area`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderPath {
    section: &'static str,
    object: Option<u32>,
    part: &'static str,
}

impl HeaderPath {
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

impl fmt::Display for HeaderPath {
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
pub enum Violation {
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
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// A number is not what another place says it must be.
    #[error("{field} is {value}, but must be {wanted}")]
    Mismatch {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The required value.
        wanted: u64,
    },
    /// A number is out of its range.
    #[error("{field} is {value}, but must be from {min} to {max}")]
    OutOfRange {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The least allowed.
        min: u64,
        /// The most allowed.
        max: u64,
    },
    /// A number is not a multiple.
    #[error("{field} {value} is not a multiple of {unit}")]
    Misaligned {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The required unit.
        unit: u64,
    },
    /// An area starts inside another.
    #[error("offset {offset} overlaps {with}")]
    Overlap {
        /// Where the area starts, in bytes.
        offset: u64,
        /// The object that it overlaps.
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
        /// The object that ends there.
        of: &'static str,
    },
    /// An area is too small for what it must hold.
    #[error("size {size} is less than the {needed} bytes that the key material takes")]
    AreaTooSmall {
        /// Length of the area, in bytes.
        size: u64,
        /// The required length, in bytes.
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
        /// The field.
        field: &'static str,
        /// The required type.
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
        /// The field.
        field: &'static str,
        /// Its value.
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

impl Violation {
    /// The violation with its path.
    pub(crate) fn at(self, header: &'static str, path: HeaderPath) -> HeaderFault {
        HeaderFault { header, path, violation: self }
    }
}
