//! Creating a LUKS2 volume.
//!
//! Order of writes: wipe old headers; key material and both JSON areas; first sector of the first copy; first sector of
//! the second copy; each is made durable before the next. A sector is written whole or not at all: a power cut leaves
//! the new volume, the old one, or none.

use super::areas::{KEYSLOTS_ALIGN, MAX_KEYSLOTS_LEN};
use super::binary_header::{BLOCK_LEN, BinaryHeader, SECOND_OFFSETS, is_label};
use super::copies::{Copies, json_area};
use super::new_digest::new_digest;
use super::new_keyslot::{self, KeyslotPlan};
use super::validate::{self, MAX_OBJECTS};
use super::wipe::{fill_random, wipe_old_headers};
use super::{HEADER, Luks2};
use crate::error::FormatError;
use crate::header_device::HeaderDevice;
use crate::header_policy::HeaderPolicy;
use crate::pbkdf::{Hash, KdfKind, KdfRequest};
use crate::secret::Secret;
use crate::unlock::{new_aead_key, new_volume_key};
use crate::{luks_cipher, luks_uuid};
use inlock_cipher::{AeadSpec, Cipher, CipherSpec, DataUnitSize, VolumeKey};
use serde_json::{Map, Value, json};

/// Default length of a binary header with its JSON area, in bytes.
pub const DEFAULT_METADATA_LEN: u64 = 16 << 10;
/// Default length of all keyslot areas, in bytes: with two headers, 16 MiB.
pub const DEFAULT_KEYSLOTS_LEN: u64 = (16 << 20) - 2 * DEFAULT_METADATA_LEN;

/// Options of a new LUKS2 volume.
#[non_exhaustive]
#[derive(Debug)]
pub struct FormatOptions {
    /// Cipher of the payload (`--cipher`).
    pub cipher: CipherSpec,
    /// Authenticated cipher of the payload instead of [`FormatOptions::cipher`] (`--cipher` with `--integrity`): the
    /// payload is a dm-integrity volume, which the caller formats.
    pub aead: Option<AeadSpec>,
    /// Length of the volume key in bytes (`--key-size` / 8), with the key of a MAC.
    pub key_len: usize,
    /// Hash of the anti-forensic splitter, of the digest, and of PBKDF2 if that is chosen (`--hash`).
    pub hash: Hash,
    /// Costs of the keyslot; [`FormatOptions::hash`] is PBKDF2's hash.
    pub kdf: KdfRequest,
    /// Cipher of the keyslot's area, and length of its key in bytes (`--keyslot-cipher`, `--keyslot-key-size`); `None`:
    /// like the payload, or cryptsetup's default if that does not encrypt.
    pub keyslot_cipher: Option<(CipherSpec, usize)>,
    /// Size of a data unit, up to 4096 bytes (`--sector-size`); `None`: 4096 if length and start of the data are
    /// multiples.
    pub sector_size: Option<DataUnitSize>,
    /// The UUID (`--uuid`); `None`: a random one.
    pub uuid: Option<String>,
    /// The label (`--label`), at most 47 bytes.
    pub label: String,
    /// The subsystem label (`--subsystem`), at most 47 bytes.
    pub subsystem: String,
    /// Whether the payload is on another device (`--header`), where it starts at 0 unless an offset is given.
    pub detached: bool,
    /// Length of the data device in bytes; `None`: that of the header device.
    pub data_len: Option<u64>,
    /// Start of the payload, in bytes (`--offset` * 512).
    pub data_offset: Option<u64>,
    /// Length of a binary header with its JSON area, in bytes (`--luks2-metadata-size`).
    pub metadata_len: u64,
    /// Length of all keyslot areas, in bytes (`--luks2-keyslots-size`); `None`: [`DEFAULT_KEYSLOTS_LEN`], or the space
    /// before the payload.
    pub keyslots_len: Option<u64>,
    /// Number of the keyslot that gets the key (`--key-slot`).
    pub keyslot: u32,
    /// The volume key (`--volume-key-file`); `None`: a random one.
    pub volume_key: Option<VolumeKey>,
    /// The policy that the new volume must comply with.
    pub policy: HeaderPolicy,
}

impl Default for FormatOptions {
    /// cryptsetup's defaults: `aes-xts-plain64`, 512 bits, `sha256`, Argon2id, 2 seconds, a header of 16 MiB.
    fn default() -> Self {
        Self {
            cipher: CipherSpec::AES_XTS_PLAIN64,
            aead: None,
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
            policy: HeaderPolicy::default(),
        }
    }
}

impl FormatOptions {
    /// Returns the number of bytes that headers and keyslot areas take on the header device.
    pub fn header_len(&self) -> u64 {
        self.metadata_len.saturating_mul(2).saturating_add(self.keyslots_len())
    }

    /// Returns the minimum of [`FormatOptions::header_len`]: with the area of one keyslot.
    pub fn least_header_len(&self) -> u64 {
        self.metadata_len.saturating_mul(2).saturating_add(self.keyslots_len.unwrap_or(self.area_len()))
    }

    /// Returns the start of the payload on its device, in bytes.
    pub fn data_offset(&self) -> u64 {
        match (self.data_offset, self.detached) {
            (Some(offset), _) => offset,
            (None, true) => 0,
            (None, false) => self.header_len().next_multiple_of(DATA_ALIGN),
        }
    }

    fn keyslots_len(&self) -> u64 {
        let headers = self.metadata_len.saturating_mul(2);
        // The areas end before the data, also if these are on another device. There they may begin at 0.
        let fits = match self.data_offset {
            Some(offset) if offset > 0 || !self.detached => {
                offset.saturating_sub(headers) / KEYSLOTS_ALIGN * KEYSLOTS_ALIGN
            }
            _ => u64::MAX,
        };
        let default = (DEFAULT_KEYSLOTS_LEN + 2 * DEFAULT_METADATA_LEN).saturating_sub(headers);
        self.keyslots_len.unwrap_or(default.min(fits))
    }

    fn keyslot_cipher(&self) -> (CipherSpec, usize) {
        let of_payload = match self.cipher.cipher {
            _ if self.aead.is_some() => (CipherSpec::AES_XTS_PLAIN64, 64),
            Cipher::Null => (CipherSpec::AES_XTS_PLAIN64, 64),
            _ => (self.cipher, self.key_len),
        };
        self.keyslot_cipher.unwrap_or(of_payload)
    }

    /// Returns the length of the keyslot's area in bytes.
    fn area_len(&self) -> u64 {
        new_keyslot::area_len(self.key_len)
    }

    /// Returns the size of a data unit on a data device of this length.
    pub fn sector_size(&self, data_len: Option<u64>) -> DataUnitSize {
        let fits = |len: u64| len.is_multiple_of(DataUnitSize::LUKS_MAX.bytes() as u64);
        let all_fit = data_len.is_none_or(fits) && fits(self.data_offset());
        let best = if all_fit { DataUnitSize::LUKS_MAX } else { DataUnitSize::SECTOR };
        self.sector_size.unwrap_or(best)
    }

    /// Returns the volume key of the options, or a new random one: for a caller that writes the payload too.
    ///
    /// # Errors
    ///
    /// Fails if the cipher does not accept the key, or if the system returns no random bytes.
    pub fn new_key(&self) -> Result<VolumeKey, FormatError> {
        match &self.aead {
            Some(spec) => new_aead_key(spec, self.key_len, self.volume_key.as_ref()),
            None => new_volume_key(&self.cipher, self.key_len, self.volume_key.as_ref()),
        }
    }

    fn check(&self, device_len: u64, data_len: Option<u64>) -> Result<(), FormatError> {
        let invalid = |option, reason| Err(FormatError::InvalidOption { option, reason });
        if !SECOND_OFFSETS.contains(&self.metadata_len) {
            return invalid("luks2-metadata-size", "not a power of two from 16 KiB to 4 MiB");
        }
        if !self.keyslots_len().is_multiple_of(KEYSLOTS_ALIGN) || self.keyslots_len() > MAX_KEYSLOTS_LEN {
            return invalid("luks2-keyslots-size", "not a multiple of 4096 up to 128 MiB");
        }
        if self.keyslots_len() < self.area_len() {
            let option = if self.keyslots_len.is_none() { "offset" } else { "luks2-keyslots-size" };
            return invalid(option, "there is no space for one keyslot");
        }
        if self.keyslot >= MAX_OBJECTS {
            return invalid("key-slot", "LUKS2 has keyslots 0 to 31");
        }
        for (option, label) in [("label", &self.label), ("subsystem", &self.subsystem)] {
            if !is_label(label) {
                return invalid(option, "not a text of at most 47 bytes");
            }
        }
        if !self.detached && self.data_offset() < self.header_len() {
            return invalid("offset", "the payload overlaps the header");
        }
        let needed = if self.detached { self.header_len() } else { self.data_offset() };
        if device_len < needed {
            return Err(FormatError::DeviceTooSmall { needed, len: device_len });
        }
        let sector_size = self.sector_size(data_len);
        if sector_size > DataUnitSize::LUKS_MAX {
            return invalid("sector-size", "LUKS2 allows at most 4096");
        }
        if !self.data_offset().is_multiple_of(sector_size.bytes() as u64) {
            return invalid("offset", "the data do not begin at a multiple of the data unit");
        }
        // A dm-integrity volume uses whole blocks of its own.
        if self.aead.is_none() && data_len.is_some_and(|len| !len.is_multiple_of(sector_size.bytes() as u64)) {
            return invalid("sector-size", "the device is not a whole number of such sectors");
        }
        match &self.aead {
            Some(spec) => {
                self.policy.check_aead(spec, self.key_len, sector_size)?;
                luks_cipher::check_new_aead(spec, self.key_len)?;
            }
            None => {
                self.policy.check_new(self.cipher, self.key_len, sector_size)?;
                luks_cipher::check_new("cipher", &self.cipher, self.key_len, sector_size)?;
            }
        }
        let (cipher, key_len) = self.keyslot_cipher();
        luks_cipher::check_new_keyslot("keyslot-cipher", &cipher)?;
        luks_cipher::check_new("keyslot-cipher", &cipher, key_len, DataUnitSize::SECTOR)
    }
}

const DATA_ALIGN: u64 = 1 << 20;

/// Writes a new LUKS2 header with one keyslot, which `passphrase` opens. The contents of the device are lost.
///
/// # Errors
///
/// Fails before it writes if the options are invalid or the device is too small; later, only if the device cannot be
/// written.
pub fn format(device: &dyn HeaderDevice, options: FormatOptions, passphrase: &Secret) -> Result<Luks2, FormatError> {
    let device_len = device.len()?;
    let data_len = if options.detached { options.data_len } else { Some(options.data_len.unwrap_or(device_len)) };
    options.check(device_len, data_len)?;
    let key = options.new_key()?;
    let kdf = KdfRequest { hash: options.hash, ..options.kdf }.resolve(options.keyslot_cipher().1)?;
    let area_offset = 2 * options.metadata_len;
    let (cipher, area_key_len) = options.keyslot_cipher();
    let plan = KeyslotPlan { cipher, area_key_len, hash: options.hash, kdf };
    let (keyslot, material) = plan.seal(&key, passphrase, area_offset)?;
    let map = metadata(&options, &key, keyslot, options.sector_size(data_len))?;
    let header = BinaryHeader {
        hdr_size: options.metadata_len,
        seqid: 1,
        label: options.label.clone(),
        subsystem: options.subsystem.clone(),
        csum_alg: Hash::Sha256,
        uuid: luks_uuid::new(options.uuid.as_deref())?,
    };
    // Metadata that cannot be loaded are not written.
    validate::check(HEADER, &header, &map).map_err(|fault| FormatError::Verify(Box::new(fault.into())))?;
    let area = json_area(&header, &map).map_err(|(needed, area)| FormatError::MetadataTooLarge { needed, area })?;

    wipe_old_headers(device, u64::MAX)?;
    fill_random(device, area_offset..options.header_len())?;
    device.write_all_at(&material, area_offset)?;
    Copies::encode(&header, &area)?.create(device)?;
    Luks2::load(device).map_err(|error| FormatError::Verify(Box::new(error)))
}

fn metadata(
    options: &FormatOptions,
    key: &VolumeKey,
    keyslot: Value,
    sector_size: DataUnitSize,
) -> Result<Map<String, Value>, FormatError> {
    let number = options.keyslot.to_string();
    let mut keyslots = Map::new();
    keyslots.insert(number.clone(), keyslot);
    let names = options.aead.map(|spec| spec.luks2_names());
    let encryption = names.as_ref().map_or_else(|| options.cipher.to_string(), |(encryption, _)| encryption.clone());
    let mut segment = json!({
        "type": "crypt",
        "offset": options.data_offset().to_string(),
        "size": "dynamic",
        "iv_tweak": "0",
        "encryption": encryption,
        "sector_size": sector_size.bytes(),
    });
    if let (Some(spec), Some((_, kind))) = (&options.aead, names) {
        let mut integrity = json!({"type": kind, "journal_encryption": "none", "journal_integrity": "none"});
        if spec.has_own_mac_key_len() {
            integrity["key_size"] = spec.mac_key_len().into();
        }
        segment["integrity"] = integrity;
    }
    let config = json!({
        "json_size": (options.metadata_len - BLOCK_LEN as u64).to_string(),
        "keyslots_size": options.keyslots_len().to_string(),
    });
    let mut map = Map::new();
    map.insert("keyslots".into(), keyslots.into());
    map.insert("tokens".into(), Map::new().into());
    map.insert("segments".into(), json!({"0": segment}));
    let digest = new_digest(key, options.hash, &options.kdf, &[&number], &["0"])?;
    map.insert("digests".into(), json!({"0": digest}));
    map.insert("config".into(), config);
    Ok(map)
}
