//! Errors of tables: line, word, and the expected text.

use crate::printable::Excerpt;
use inlock_cipher::{CipherError, InvalidCipherSpec};
use std::fmt;

/// A table that cannot be used. Nothing was opened yet.
#[derive(Debug)]
pub struct TableError {
    position: Option<Position>,
    fault: TableFault,
}

#[derive(Debug)]
struct Position {
    line: usize,
    word: usize,
    name: &'static str,
    /// The word; `None` if it is missing, or a key.
    text: Option<Excerpt>,
}

/// A fault of a table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TableFault {
    /// There is no line.
    #[error("the table has no line")]
    Empty,
    /// The table is too long.
    #[error("the table is longer than 1 MiB, 1024 lines or 2048 keys")]
    TooLong,
    /// The line ends too early.
    #[error("missing; expected: start length crypt cipher key iv_offset device offset [count options]")]
    Missing,
    /// The line goes on behind its last word.
    #[error("expected the end of the line")]
    TooMany,
    /// Not a number.
    #[error("expected a whole number of 512-byte sectors")]
    Number,
    /// Lines leave a gap, or overlap.
    #[error("expected {expected}, where the line before ends")]
    Gap {
        /// Where the line should start.
        expected: u64,
    },
    /// A line without sectors.
    #[error("expected a number above zero")]
    ZeroLength,
    /// More sectors than any device has.
    #[error("expected less: start and length reach past 2^63 bytes")]
    PastEnd,
    /// A target that Inlock does not have.
    #[error("expected crypt, linear, zero or error")]
    UnknownTarget,
    /// The cipher is not known, or its words do not go together.
    #[error("expected a cipher that is known: {0}")]
    Cipher(#[source] InvalidCipherSpec),
    /// The cipher does not go with this key, or with this sector size.
    #[error("{0}")]
    Unfit(#[source] CipherError),
    /// The key is in the kernel's keyring, which only the kernel reads.
    #[error("expected the key in hexadecimal: keys in the kernel's keyring stay there")]
    Keyring,
    /// The form `:size:type:description` is broken.
    #[error("expected :size:type:description, of type logon, user, encrypted or trusted")]
    KeyringForm,
    /// The key is not hexadecimal.
    #[error("expected the key in hexadecimal, or - for none")]
    KeyHex,
    /// The key has half a byte.
    #[error("expected two hexadecimal digits for each byte of the key")]
    KeyOdd,
    /// The key is longer than any cipher's.
    #[error("expected a key of at most 2080 bytes")]
    KeyTooLong,
    /// A key for a cipher that takes none.
    #[error("expected -, since cipher_null takes no key")]
    NullKey,
    /// The offset is not whole data units.
    #[error("expected a multiple of {sectors}, the sectors of sector_size")]
    Misaligned {
        /// How many sectors a data unit has.
        sectors: u64,
    },
    /// The number of options is not one, or more than there can be.
    #[error("expected the number of options that follow, 0 to 9")]
    OptionCount,
    /// There are more or fewer options than the number says.
    #[error("expected {found}, the number of options that follow")]
    OptionCountDiffers {
        /// How many options follow.
        found: usize,
    },
    /// An option that dm-crypt does not have.
    #[error(
        "expected one of allow_discards same_cpu_crypt high_priority submit_from_crypt_cpus no_read_workqueue \
         no_write_workqueue sector_size:N iv_large_sectors"
    )]
    UnknownOption,
    /// An option of volumes with integrity.
    #[error("expected no option of integrity, which this version does not have")]
    Integrity,
    /// Not a size of a data unit.
    #[error("expected sector_size: and a power of two from 512 to 65536")]
    SectorSize,
}

impl TableError {
    pub(super) fn new(line: usize, word: usize, name: &'static str, text: Option<Excerpt>, fault: TableFault) -> Self {
        Self { position: Some(Position { line, word, name, text }), fault }
    }

    pub(super) fn of_table(fault: TableFault) -> Self {
        Self { position: None, fault }
    }

    /// The fault.
    pub fn fault(&self) -> &TableFault {
        &self.fault
    }

    /// Line and word, each counted from 1.
    pub fn position(&self) -> Option<(usize, usize)> {
        self.position.as_ref().map(|position| (position.line, position.word))
    }
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Position { line, word, name, text }) = &self.position {
            write!(f, "table line {line}, word {word} ({name})")?;
            if let Some(text) = text {
                write!(f, " '{text}'")?;
            }
            f.write_str(": ")?;
        }
        write!(f, "{}", self.fault)
    }
}

impl std::error::Error for TableError {}
