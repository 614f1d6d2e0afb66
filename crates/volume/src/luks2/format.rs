//! Creating a LUKS2 volume.

use crate::error::FormatError;
use crate::header_device::HeaderDevice;
use crate::pbkdf::{Hash, KdfKind, KdfRequest};
use crate::secret::Secret;
use crate::volume::Volume;
use inlock_cipher::{CipherSpec, DataUnitSize, VolumeKey};

/// Bytes of a binary header with its JSON area, unless chosen otherwise.
pub const DEFAULT_METADATA_LEN: u64 = 16 << 10;
/// Bytes of all keyslot areas, unless chosen otherwise: with two headers, 16 MiB.
pub const DEFAULT_KEYSLOTS_LEN: u64 = (16 << 20) - 2 * DEFAULT_METADATA_LEN;

/// What a new LUKS2 volume is to be.
#[derive(Debug)]
pub struct FormatOptions {
    /// Cipher of the payload (`--cipher`).
    pub cipher: CipherSpec,
    /// Length of the volume key in bytes (`--key-size` / 8).
    pub key_len: usize,
    /// Hash of the anti-forensic splitter, of the digest, and of PBKDF2 where that is chosen (`--hash`).
    pub hash: Hash,
    /// Costs of the keyslot; [`FormatOptions::hash`] is PBKDF2's hash.
    pub kdf: KdfRequest,
    /// Cipher of the keyslot's area and its key's length in bytes (`--keyslot-cipher`, `--keyslot-key-size`); `None`:
    /// as the payload.
    pub keyslot_cipher: Option<(CipherSpec, usize)>,
    /// Bytes of a data unit, to 4096 (`--sector-size`); `None`: 4096 where the data device's length is a multiple.
    pub sector_size: Option<DataUnitSize>,
    /// The UUID (`--uuid`); `None`: a random one.
    pub uuid: Option<String>,
    /// The label (`--label`), to 47 bytes.
    pub label: String,
    /// The subsystem label (`--subsystem`), to 47 bytes.
    pub subsystem: String,
    /// Whether the payload is on another device (`--header`); it starts there at 0 unless an offset is given.
    pub detached: bool,
    /// Length of the data device in bytes; `None`: the header device's.
    pub data_len: Option<u64>,
    /// Where the payload starts, in bytes (`--offset` * 512).
    pub data_offset: Option<u64>,
    /// Bytes of a binary header with its JSON area (`--luks2-metadata-size`).
    pub metadata_len: u64,
    /// Bytes of all keyslot areas (`--luks2-keyslots-size`); `None`: [`DEFAULT_KEYSLOTS_LEN`], or what fits before the
    /// payload.
    pub keyslots_len: Option<u64>,
    /// Which keyslot gets the key (`--key-slot`).
    pub keyslot: u32,
    /// The volume key (`--volume-key-file`); `None`: a random one.
    pub volume_key: Option<VolumeKey>,
}

impl Default for FormatOptions {
    /// cryptsetup's defaults: `aes-xts-plain64`, 512 bits, `sha256`, Argon2id, 2 seconds, a header of 16 MiB.
    fn default() -> Self {
        Self {
            cipher: CipherSpec::AES_XTS_PLAIN64,
            key_len: 64,
            hash: Hash::Sha256,
            kdf: KdfRequest::new(KdfKind::Argon2id),
            keyslot_cipher: None,
            sector_size: None,
            uuid: None,
            label: String::new(),
            subsystem: String::new(),
            detached: false,
            data_len: None,
            data_offset: None,
            metadata_len: DEFAULT_METADATA_LEN,
            keyslots_len: None,
            keyslot: 0,
            volume_key: None,
        }
    }
}

impl FormatOptions {
    /// Bytes that headers and keyslot areas take on the header device.
    pub fn header_len(&self) -> u64 {
        2 * self.metadata_len + self.keyslots_len.unwrap_or(DEFAULT_KEYSLOTS_LEN)
    }
}

/// Writes a new LUKS2 header with one keyslot, which `passphrase` opens. Whatever the device held is lost.
pub fn format(device: &dyn HeaderDevice, options: FormatOptions, passphrase: &Secret) -> Result<Volume, FormatError> {
    let _ = (device, options, passphrase);
    Err(FormatError::InvalidOption { option: "type", reason: "not yet" })
}
