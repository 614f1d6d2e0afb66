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
    #[error("expected crypt, linear, zero, error, integrity or verity")]
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
    /// An option of volumes with integrity, on a device without it.
    #[error("expected no option of integrity: it needs a line of the target integrity before this one")]
    Integrity,
    /// The first line of a table with integrity protection has another target.
    #[error("expected integrity: the device with the tags comes first")]
    NotIntegrity,
    /// A line behind that of the target `integrity` is not the one of `crypt` on it.
    #[error("expected one line of the target crypt behind that of integrity")]
    NotSealed,
    /// The two devices have different lengths.
    #[error("expected {expected}, the length of the integrity device")]
    OtherLength {
        /// The required length in sectors.
        expected: u64,
    },
    /// Not the length of a tag.
    #[error("expected the bytes of a tag, 1 to 255, or - for those of internal_hash")]
    TagSize,
    /// Not a mode.
    #[error("expected a mode: J, B, D, R or I")]
    Mode,
    /// The number of options of `integrity` is not a number, or too large.
    #[error("expected the number of options that follow, 0 to 18")]
    IntegrityOptionCount,
    /// An option that dm-integrity does not have.
    #[error(
        "expected one of journal_sectors interleave_sectors buffer_sectors journal_watermark commit_time \
         internal_hash journal_crypt journal_mac meta_device block_size sectors_per_bit bitmap_flush_interval \
         recalculate reset_recalculate allow_discards fix_padding fix_hmac legacy_recalculate"
    )]
    UnknownIntegrityOption,
    /// Not a number of 32 bits.
    #[error("expected a whole number below 2^32 behind the colon")]
    IntegrityNumber,
    /// Not the length of a block.
    #[error("expected block_size:BYTES, a power of two from 512 to 4096")]
    BlockSize,
    /// The device of a line with tags is not the one of the line before.
    #[error("expected /dev/mapper/NAME, with the name of the integrity device")]
    NotBelow,
    /// The device with the plaintext does not start where the one with the tags starts.
    #[error("expected 0")]
    SealedOffset,
    /// A line on an integrity device has no tags.
    #[error("expected the option integrity:BYTES:aead")]
    NoTags,
    /// Not the form of that option.
    #[error("expected integrity:BYTES:aead")]
    Tags,
    /// Not the length of a MAC's key.
    #[error("expected integrity_key_size:BYTES")]
    MacKeyLen,
    /// The authenticated cipher does not accept a key of this length.
    #[error("expected a key of another length: that of the cipher, and that of the MAC behind it")]
    SealedKey,
    /// IVs that count data units, with tags.
    #[error("expected no iv_large_sectors with integrity")]
    SealedLargeIv,
    /// More than one device with a hash tree.
    #[error("expected one line of the target verity")]
    SecondVerity,
    /// A device before that of `verity` which it does not name.
    #[error("expected NAME: before the line, of a device that the line of verity names as /dev/mapper/NAME")]
    NotNamed,
    /// A second device behind that of `verity`.
    #[error("expected one device on that of verity")]
    SecondAbove,
    /// A device behind that of `verity` is on another one.
    #[error("expected /dev/mapper/NAME, with the name of the verity device")]
    NotOnVerity,
    /// Not a version of hash trees.
    #[error("expected 0 or 1, the version of the hash tree")]
    VerityVersion,
    /// Not the length of a block of a hash tree.
    #[error("expected the bytes of a block, a power of two from 512 to 524288")]
    VerityBlockSize,
    /// The data do not reach to the end of the line.
    #[error("expected a number of data blocks that reaches the length of the line, and stays below 2^63 bytes")]
    VerityBlocks,
    /// The tree begins too late.
    #[error("expected the first block of the tree, below 2^63 bytes")]
    VerityHashStart,
    /// Not a hash.
    #[error("expected a supported hash, in the kernel's spelling, such as sha256")]
    VerityHash,
    /// A block has no room for two digests.
    #[error("expected the bytes of a block with room for two digests")]
    VerityHashBlock,
    /// Not a digest of the hash.
    #[error("expected the root hash, {digits} hexadecimal digits")]
    VerityRoot {
        /// Length of a digest.
        digits: usize,
    },
    /// Not a salt.
    #[error("expected a salt of at most 256 bytes in hexadecimal, or - for none")]
    VeritySalt,
    /// The number of words of options of `verity` is not a number, or too large.
    #[error("expected the number of words that follow, 0 to 15")]
    VerityOptionCount,
    /// An option that dm-verity does not have.
    #[error(
        "expected one of ignore_corruption restart_on_corruption panic_on_corruption restart_on_error panic_on_error \
         ignore_zero_blocks check_at_most_once try_verify_in_tasklet use_fec_from_device fec_roots fec_blocks \
         fec_start root_hash_sig_key_desc"
    )]
    UnknownVerityOption,
    /// Several options that exclude each other.
    #[error("expected at most one option about corruption, and one about errors")]
    VerityConflict,
    /// Not a number of bytes of parity.
    #[error("expected 2 to 24, the bytes of parity in a code word")]
    FecRoots,
    /// Not a number.
    #[error("expected a whole number of blocks")]
    FecNumber,
    /// Some options of error correction are missing.
    #[error("expected use_fec_from_device, fec_roots and fec_blocks together")]
    FecIncomplete,
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
