//! The LUKS2 binary header (specification, section 2). All numbers are big-endian.

use crate::byte_text::{bytes_of_text, text_of_bytes};
pub use crate::header_copy::Copy;
use crate::pbkdf::Hash;
use crate::violation::Violation;
use zerocopy::byteorder::big_endian::{U16, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the binary header; the JSON area follows.
pub const BLOCK_LEN: usize = 4096;
/// First bytes of the first copy, and of a LUKS1 header.
pub const LUKS_MAGIC: [u8; 6] = *b"LUKS\xba\xbe";
/// First bytes of the second copy.
pub const SECOND_MAGIC: [u8; 6] = *b"SKUL\xba\xbe";
/// Possible offsets of the second copy: the allowed lengths of a binary header with its JSON area.
pub const SECOND_OFFSETS: [u64; 9] =
    [16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20];
/// Offset of the checksum in the block.
const CHECKSUM_OFFSET: usize = 448;
const CHECKSUM_LEN: usize = 64;
/// Length of the fields of label and subsystem, with a zero byte.
const LABEL_LEN: usize = 48;

/// The header as stored.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: [u8; 6],
    version: U16,
    hdr_size: U64,
    seqid: U64,
    label: [u8; LABEL_LEN],
    csum_alg: [u8; 32],
    salt: [u8; 64],
    uuid: [u8; 40],
    subsystem: [u8; LABEL_LEN],
    hdr_offset: U64,
    padding: [u8; 184],
    csum: [u8; CHECKSUM_LEN],
    padding4096: [u8; 7 * 512],
}

const _: () = assert!(size_of::<RawHeader>() == BLOCK_LEN && std::mem::offset_of!(RawHeader, csum) == CHECKSUM_OFFSET);

/// The fields of a header that a rewrite keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BinaryHeader {
    /// Length of the binary header with its JSON area, which is the offset of the second copy.
    pub hdr_size: u64,
    /// Grows with each rewrite.
    pub seqid: u64,
    /// The label.
    pub label: String,
    /// The subsystem label.
    pub subsystem: String,
    /// Hash of the checksum.
    pub csum_alg: Hash,
    /// The UUID.
    pub uuid: String,
}

impl BinaryHeader {
    /// Returns the length of the JSON area in bytes.
    pub fn json_len(&self) -> usize {
        self.hdr_size as usize - BLOCK_LEN
    }

    /// Parses the fields of the block at `offset`, and checks all except the checksum.
    ///
    /// # Errors
    ///
    /// Fails with the rule that the block violates.
    pub fn decode(block: &[u8; BLOCK_LEN], copy: Copy, offset: u64) -> Result<Self, Violation> {
        let raw = RawHeader::ref_from_bytes(block).expect("the array has the length of the header");
        if raw.magic != copy.magic() {
            return Err(Violation::NoMagic);
        }
        if raw.version.get() != 2 {
            return Err(Violation::Version(raw.version.get()));
        }
        let hdr_size = raw.hdr_size.get();
        if !SECOND_OFFSETS.contains(&hdr_size) {
            return Err(Violation::NotAllowed { field: "header size", value: hdr_size });
        }
        if raw.hdr_offset.get() != offset {
            return Err(Violation::Mismatch { field: "header offset", value: raw.hdr_offset.get(), wanted: offset });
        }
        if copy == Copy::Secondary && hdr_size != offset {
            return Err(Violation::Mismatch { field: "header size", value: hdr_size, wanted: offset });
        }
        let csum_alg = text("checksum algorithm", &raw.csum_alg)?;
        let known = csum_alg.parse();
        let unknown =
            |_| Violation::Unknown { field: "checksum algorithm", value: crate::printable::Excerpt::new(&csum_alg) };
        Ok(Self {
            hdr_size,
            seqid: raw.seqid.get(),
            label: label(&raw.label),
            subsystem: label(&raw.subsystem),
            csum_alg: known.map_err(unknown)?,
            uuid: text("uuid", &raw.uuid)?,
        })
    }

    /// Encodes the block for `copy`, with the checksum of it and `json_area`, and with `salt`.
    pub fn encode(&self, copy: Copy, salt: &[u8; 64], json_area: &[u8]) -> [u8; BLOCK_LEN] {
        let mut raw = RawHeader::new_zeroed();
        raw.magic = copy.magic();
        raw.version = 2.into();
        raw.hdr_size = self.hdr_size.into();
        raw.seqid = self.seqid.into();
        raw.salt = *salt;
        raw.hdr_offset = self.offset(copy).into();
        put(&mut raw.label, &self.label);
        put(&mut raw.csum_alg, self.csum_alg.name());
        put(&mut raw.uuid, &self.uuid);
        put(&mut raw.subsystem, &self.subsystem);
        let mut block = [0; BLOCK_LEN];
        block.copy_from_slice(raw.as_bytes());
        write_checksum(&mut block, json_area, self.csum_alg);
        block
    }

    /// Returns the offset of `copy` on the device.
    pub fn offset(&self, copy: Copy) -> u64 {
        match copy {
            Copy::Primary => 0,
            Copy::Secondary => self.hdr_size,
        }
    }
}

impl Copy {
    /// Returns the other one.
    pub fn other(self) -> Self {
        match self {
            Self::Primary => Self::Secondary,
            Self::Secondary => Self::Primary,
        }
    }

    pub(crate) fn magic(self) -> [u8; 6] {
        match self {
            Self::Primary => LUKS_MAGIC,
            Self::Secondary => SECOND_MAGIC,
        }
    }
}

/// Whether the checksum of the block is right: it covers block, with a zero checksum, and JSON area.
pub fn checksum_matches(block: &[u8; BLOCK_LEN], json_area: &[u8], hash: Hash) -> bool {
    block[CHECKSUM_OFFSET..CHECKSUM_OFFSET + CHECKSUM_LEN] == checksum(block, json_area, hash)
}

/// Stores the checksum of block and JSON area in the block.
pub fn write_checksum(block: &mut [u8; BLOCK_LEN], json_area: &[u8], hash: Hash) {
    let checksum = checksum(block, json_area, hash);
    block[CHECKSUM_OFFSET..CHECKSUM_OFFSET + CHECKSUM_LEN].copy_from_slice(&checksum);
}

fn checksum(block: &[u8; BLOCK_LEN], json_area: &[u8], hash: Hash) -> [u8; CHECKSUM_LEN] {
    let behind = CHECKSUM_OFFSET + CHECKSUM_LEN;
    *hash.digest(&[&block[..CHECKSUM_OFFSET], &[0; CHECKSUM_LEN], &block[behind..], json_area])
}

/// Whether `text` fits the field of a label or a subsystem.
pub(super) fn is_label(text: &str) -> bool {
    text.len() < LABEL_LEN && !text.chars().any(char::is_control)
}

fn put(field: &mut [u8], text: &str) {
    let bytes = bytes_of_text(text);
    field[..bytes.len()].copy_from_slice(&bytes);
}

/// Returns a label up to its zero byte, which it may lack. It decides nothing, so any bytes are taken.
fn label(bytes: &[u8; LABEL_LEN]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(LABEL_LEN - 1);
    text_of_bytes(&bytes[..end]).into_owned()
}

/// Returns the content of a text field up to its zero byte, if it has one and is UTF-8 without control characters.
fn text(field: &'static str, bytes: &[u8]) -> Result<String, Violation> {
    let end = bytes.iter().position(|&byte| byte == 0).ok_or(Violation::NotText(field))?;
    let text = std::str::from_utf8(&bytes[..end]).map_err(|_| Violation::NotText(field))?;
    if text.chars().any(char::is_control) {
        return Err(Violation::NotText(field));
    }
    Ok(text.to_owned())
}
