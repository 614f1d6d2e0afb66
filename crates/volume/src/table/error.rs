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
    /// The line has words after its last one.
    #[error("expected the end of the line")]
    TooMany,
    /// Not a number.
    #[error("expected a whole number of 512-byte sectors")]
    Number,
    /// Lines have a gap, or overlap.
    #[error("expected {expected}, the end of the previous line")]
    Gap {
        /// The required start of the line.
        expected: u64,
    },
    /// A line with 0 sectors.
    #[error("expected a number above zero")]
    ZeroLength,
    /// More sectors than any device has.
    #[error("expected a smaller number: start and length exceed 2^63 bytes")]
    PastEnd,
    /// The target is not supported.
    #[error("expected crypt, linear, zero or error")]
    UnknownTarget,
    /// The cipher is unknown, or its parts do not fit together.
    #[error("expected a supported cipher: {0}")]
    Cipher(#[source] InvalidCipherSpec),
    /// The cipher does not accept this key, or this sector size.
    #[error("{0}")]
    Unfit(#[source] CipherError),
    /// The key is in the kernel's keyring, which only the kernel can read.
    #[error("expected the key in hexadecimal, not in the kernel's keyring")]
    Keyring,
    /// The form `:size:type:description` is invalid.
    #[error("expected :size:type:description, of type logon, user, encrypted or trusted")]
    KeyringForm,
    /// The key is not hexadecimal.
    #[error("expected the key in hexadecimal, or - for none")]
    KeyHex,
    /// The key ends with half a byte.
    #[error("expected two hexadecimal digits for each byte of the key")]
    KeyOdd,
    /// The key is longer than any cipher's.
    #[error("expected a key of at most 2080 bytes")]
    KeyTooLong,
    /// A key for a cipher without one.
    #[error("expected -, since cipher_null takes no key")]
    NullKey,
    /// The offset is not a multiple of the data unit.
    #[error("expected a multiple of {sectors}, the sectors of sector_size")]
    Misaligned {
        /// Number of sectors in a data unit.
        sectors: u64,
    },
    /// The number of options is not a number, or too large.
    #[error("expected the number of options that follow, 0 to 9")]
    OptionCount,
    /// The number of options is wrong.
    #[error("expected {found}, the number of options that follow")]
    OptionCountDiffers {
        /// Actual number of options.
        found: usize,
    },
    /// An option that dm-crypt does not have.
    #[error(
        "expected one of allow_discards same_cpu_crypt high_priority submit_from_crypt_cpus no_read_workqueue \
         no_write_workqueue sector_size:N iv_large_sectors"
    )]
    UnknownOption,
    /// An option of volumes with integrity.
    #[error("expected no option of integrity, which is not supported")]
    Integrity,
    /// Not the size of a data unit.
    #[error("expected sector_size:BYTES, a power of two from 512 to 65536")]
    SectorSize,
}

impl TableError {
    pub(super) fn new(line: usize, word: usize, name: &'static str, text: Option<Excerpt>, fault: TableFault) -> Self {
        Self { position: Some(Position { line, word, name, text }), fault }
    }

    pub(super) fn of_table(fault: TableFault) -> Self {
        Self { position: None, fault }
    }

    /// Returns the fault.
    pub fn fault(&self) -> &TableFault {
        &self.fault
    }

    /// Returns line and word, each counted from 1.
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
