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
    /// The whole header.
    pub const ROOT: Self = Self { section: "", object: None, part: "" };

    /// Returns a section or a field of the header.
    pub const fn section(section: &'static str) -> Self {
        Self { section, object: None, part: "" }
    }

    /// Returns an object of a section.
    pub const fn object(section: &'static str, object: u32) -> Self {
        Self { section, object: Some(object), part: "" }
    }

    /// Returns a part of this object.
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

/// A violated rule of a header's specification.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// The magic is missing.
    #[error("no magic bytes")]
    NoMagic,
    /// The version is wrong for this header.
    #[error("version {0} is not supported")]
    Version(u16),
    /// The checksum over the header does not match.
    #[error("checksum does not match")]
    Checksum,
    /// The bytes cannot be read, which is damage of this copy only.
    #[error("cannot be read: {0}")]
    Unreadable(Excerpt),
    /// A text does not end with a zero byte inside its field, or has invalid bytes.
    #[error("{0} is not a zero-terminated text")]
    NotText(&'static str),
    /// The device ends inside the header.
    #[error("ends at byte {needed}, but the device has only {len}")]
    Truncated {
        /// End of the header, in bytes.
        needed: u64,
        /// Length of the device.
        len: u64,
    },
    /// A number is not an allowed one.
    #[error("{field} is {value}, which is not allowed")]
    NotAllowed {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// A number differs from the required value.
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
        /// The minimum.
        min: u64,
        /// The maximum.
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
        /// Start of the area, in bytes.
        offset: u64,
        /// The object that it overlaps.
        with: &'static str,
    },
    /// Two objects' areas overlap.
    #[error("offset {offset} overlaps {with}/{object}")]
    OverlapObject {
        /// Start of the area, in bytes.
        offset: u64,
        /// Section of the other object.
        with: &'static str,
        /// Number of the other object.
        object: u32,
    },
    /// An area ends outside of its container.
    #[error("offset {offset} and size {size} exceed {limit}, the end of {of}")]
    PastEnd {
        /// Start of the area, in bytes.
        offset: u64,
        /// Its length in bytes.
        size: u64,
        /// Maximum end, in bytes.
        limit: u64,
        /// The object that ends there.
        of: &'static str,
    },
    /// An area is too small for its contents.
    #[error("size {size} is less than the {needed} bytes of the key material")]
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
    /// The JSON text is nested too deeply.
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
        /// Number of objects.
        count: u64,
        /// Maximum number of objects.
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
        /// Number of the keyslot.
        keyslot: u32,
        /// Number of the other digest.
        other: u32,
    },
    /// A keyslot is bound to no digest, so its key cannot be verified.
    #[error("is bound to no digest")]
    Unbound,
    /// Segments are not numbered consecutively from 0.
    #[error("segment numbers have a gap before this one")]
    SegmentGap,
    /// A segment without a length is not the last one.
    #[error("only the last segment may be dynamic")]
    DynamicNotLast,
}

impl Violation {
    /// Returns the violation with its path.
    pub(crate) fn at(self, header: &'static str, path: HeaderPath) -> HeaderFault {
        HeaderFault { header, path, violation: self }
    }
}
