//! Creating a LUKS1 volume.
//!
//! Order of writes: wipe old headers, key material, second sector of the header, first sector; each is made durable
//! before the next. Only the first sector makes the device a LUKS volume, and a sector is written whole or not at all:
//! a power cut leaves the new volume, the old one, or none.

use super::binary_header::{HEADER_LEN, KEYSLOT_DISABLED, KEYSLOT_ENABLED, KEYSLOTS, RawHeader, RawKeyslot};
use super::layout::{self, KEYSLOT_ALIGN};
use super::{Luks1, STRIPES, validate};
use crate::error::FormatError;
use crate::header_device::HeaderDevice;
use crate::header_policy::HeaderPolicy;
use crate::key_material::KeyMaterial;
use crate::luks2::wipe::{fill_random, wipe_old_headers};
use crate::pbkdf::{Hash, Kdf, KdfKind, KdfLimits, KdfRequest, random_bytes};
use crate::secret::Secret;
use crate::unlock::new_volume_key;
use crate::{luks_cipher, luks_uuid};
use inlock_cipher::{CipherSpec, DataUnitSize, VolumeKey};
use std::time::Duration;
use zerocopy::{FromZeros, IntoBytes};
use zeroize::Zeroizing;

/// Options of a new LUKS1 volume.
#[non_exhaustive]
#[derive(Debug)]
pub struct FormatOptions {
    /// Cipher of payload and keyslots (`--cipher`).
    pub cipher: CipherSpec,
    /// Length of the volume key in bytes (`--key-size` / 8).
    pub key_len: usize,
    /// Hash of PBKDF2, digest and anti-forensic splitter (`--hash`).
    pub hash: Hash,
    /// Costs of the keyslot; only PBKDF2 is possible, and [`FormatOptions::hash`] is its hash.
    pub kdf: KdfRequest,
    /// The UUID (`--uuid`); `None`: a random one.
    pub uuid: Option<String>,
    /// Whether the payload is on another device (`--header`), where it starts at 0 unless an offset is given.
    pub detached: bool,
    /// Start of the payload, in sectors (`--offset`).
    pub payload_offset: Option<u64>,
    /// Number of the keyslot that gets the key (`--key-slot`).
    pub keyslot: u32,
    /// The volume key (`--volume-key-file`); `None`: a random one.
    pub volume_key: Option<VolumeKey>,
    /// The policy that the new volume must comply with. A null cipher is always refused, since the keyslots have it,
    /// too.
    pub policy: HeaderPolicy,
}

impl Default for FormatOptions {
    /// cryptsetup's defaults: `aes-xts-plain64`, 512 bits, `sha256`, 2 seconds.
    fn default() -> Self {
        Self {
            cipher: CipherSpec::AES_XTS_PLAIN64,
            key_len: 64,
            hash: Hash::Sha256,
            kdf: KdfRequest::new(KdfKind::Pbkdf2),
            uuid: None,
            detached: false,
            payload_offset: None,
            keyslot: 0,
            volume_key: None,
            policy: HeaderPolicy::default(),
        }
    }
}

/// Bytes to which the payload is aligned.
const PAYLOAD_ALIGN: u64 = 1 << 20;
const DIGEST_TIME: Duration = Duration::from_millis(125);
/// Length of the digest of the volume key.
const DIGEST_LEN: usize = 20;
const MIN_DIGEST_ITERATIONS: u32 = 1000;

impl FormatOptions {
    /// Returns the number of bytes that header and keyslots take on the header device.
    pub fn header_len(&self) -> u64 {
        layout::areas_end(self.key_len as u64)
    }

    /// Returns the start of the payload on its device, in bytes.
    pub fn data_offset(&self) -> u64 {
        match (self.payload_offset, self.detached) {
            (Some(sectors), _) => sectors.saturating_mul(512),
            (None, true) => 0,
            (None, false) => self.header_len().next_multiple_of(PAYLOAD_ALIGN),
        }
    }

    fn check(&self, device_len: u64) -> Result<(), FormatError> {
        let invalid = |option, reason| Err(FormatError::InvalidOption { option, reason });
        if self.keyslot >= KEYSLOTS as u32 {
            return invalid("key-slot", "LUKS1 has keyslots 0 to 7");
        }
        if self.kdf.kind != KdfKind::Pbkdf2 {
            return invalid("pbkdf", "LUKS1 supports only pbkdf2");
        }
        if self.hash.len() < DIGEST_LEN {
            return invalid("hash", "LUKS1 takes no hash of less than 20 bytes");
        }
        if u32::try_from(self.data_offset() / 512).is_err() {
            return invalid("offset", "a LUKS1 payload starts below 2 TiB");
        }
        let needed = self.header_len().max(if self.detached { 0 } else { self.data_offset() });
        // The format requires that a payload offset other than 0 leaves space for the keyslots, even on another device.
        if self.data_offset() != 0 && self.data_offset() < self.header_len() {
            return invalid("offset", "the payload overlaps the keyslots");
        }
        if device_len < needed {
            return Err(FormatError::DeviceTooSmall { needed, len: device_len });
        }
        Ok(())
    }
}

/// Writes a new LUKS1 header with one keyslot, which `passphrase` opens. The contents of the device are lost.
///
/// # Errors
///
/// Fails before it writes if the options are invalid or the device is too small; later, only if the device cannot be
/// written.
pub fn format(device: &dyn HeaderDevice, options: FormatOptions, passphrase: &Secret) -> Result<Luks1, FormatError> {
    options.check(device.len()?)?;
    luks_cipher::check_new_keyslot("cipher", &options.cipher)?;
    options.policy.check_new(options.cipher, options.key_len, DataUnitSize::SECTOR)?;
    luks_cipher::check_new("cipher", &options.cipher, options.key_len, DataUnitSize::SECTOR)?;
    let key = new_volume_key(&options.cipher, options.key_len, options.volume_key.as_ref())?;
    let kdf = KdfRequest { hash: options.hash, ..options.kdf }.resolve(options.key_len)?;
    let mut header = new_header(&options, &key)?;
    let material = seal_keyslot(&mut header, &options, &kdf, &key, passphrase)?;
    // The header is written after it has passed the checks of loading.
    let luks1 = validate::decode(&header).and_then(|luks1| validate::check(&luks1).map(|()| luks1));
    luks1.map_err(|fault| FormatError::Verify(Box::new(fault.into())))?;

    wipe_old_headers(device, u64::MAX)?;
    // What was there before must not look like another program's metadata.
    device.write_all_at(&[0; KEYSLOT_ALIGN as usize - 512], 512)?;
    fill_random(device, KEYSLOT_ALIGN..options.header_len())?;
    if !options.detached {
        let end = options.data_offset().min(options.header_len().next_multiple_of(PAYLOAD_ALIGN));
        device.write_all_at(&vec![0; end.saturating_sub(options.header_len()) as usize], options.header_len())?;
    }
    device.write_all_at(&material, u64::from(header.keyslots[options.keyslot as usize].offset.get()) * 512)?;
    let mut bytes = [0; 1024];
    bytes[..HEADER_LEN].copy_from_slice(header.as_bytes());
    device.write_all_at(&bytes[512..], 512)?;
    device.sync()?;
    device.write_all_at(&bytes[..512], 0)?;
    device.sync()?;
    Luks1::load(device).map_err(|error| FormatError::Verify(Box::new(error)))
}

fn new_header(options: &FormatOptions, key: &VolumeKey) -> Result<RawHeader, FormatError> {
    let (cipher, mode) = options.cipher.luks1_names();
    let mut header = base_header((&cipher, &mode), options.hash, options.key_len);
    header.uuid[..36].copy_from_slice(luks_uuid::new(options.uuid.as_deref())?.as_bytes());
    header.payload_offset = u32::try_from(options.data_offset() / 512).unwrap_or(u32::MAX).into();
    let iterations = match options.kdf.forced_iterations {
        Some(_) => MIN_DIGEST_ITERATIONS,
        None => crate::pbkdf::pbkdf2_iterations(options.hash, 20, DIGEST_TIME)?,
    };
    digest_key(&mut header, key, options.hash, iterations)?;
    Ok(header)
}

/// Returns a header without UUID, digest and active keyslots, whose payload begins at 0. `names`: of cipher and mode.
pub(super) fn base_header(names: (&str, &str), hash: Hash, key_len: usize) -> RawHeader {
    let mut header = RawHeader::new_zeroed();
    header.magic = *b"LUKS\xba\xbe";
    header.version = 1.into();
    let (cipher, mode) = names;
    header.cipher_name[..cipher.len()].copy_from_slice(cipher.as_bytes());
    header.cipher_mode[..mode.len()].copy_from_slice(mode.as_bytes());
    header.hash_spec[..hash.name().len()].copy_from_slice(hash.name().as_bytes());
    header.key_bytes = u32::try_from(key_len).unwrap_or(u32::MAX).into();
    for (number, slot) in (0..).zip(&mut header.keyslots) {
        let offset = layout::area_offset(key_len as u64, number) / 512;
        *slot = RawKeyslot::new_zeroed();
        slot.active = KEYSLOT_DISABLED.into();
        slot.offset = u32::try_from(offset).unwrap_or(u32::MAX).into();
        slot.stripes = STRIPES.into();
    }
    header
}

/// Gives a header the digest of its key.
pub(super) fn digest_key(
    header: &mut RawHeader,
    key: &VolumeKey,
    hash: Hash,
    iterations: u32,
) -> Result<(), FormatError> {
    header.digest_salt.copy_from_slice(&random_bytes(32)?);
    header.digest_iterations = iterations.into();
    let kdf = Kdf::Pbkdf2 { hash, iterations };
    Ok(kdf.derive(key.as_bytes(), &header.digest_salt, &mut header.digest, &KdfLimits::default())?)
}

/// Fills in the keyslot that gets the key, and returns its material.
fn seal_keyslot(
    header: &mut RawHeader,
    options: &FormatOptions,
    kdf: &Kdf,
    key: &VolumeKey,
    passphrase: &Secret,
) -> Result<Zeroizing<Vec<u8>>, FormatError> {
    let slot = &mut header.keyslots[options.keyslot as usize];
    let Kdf::Pbkdf2 { hash, iterations } = *kdf else {
        return Err(FormatError::InvalidOption { option: "pbkdf", reason: "LUKS1 supports only pbkdf2" });
    };
    slot.active = KEYSLOT_ENABLED.into();
    slot.iterations = iterations.into();
    slot.salt.copy_from_slice(&random_bytes(32)?);
    let mut area_key = Zeroizing::new(vec![0; options.key_len]);
    kdf.derive(passphrase.as_bytes(), &slot.salt, &mut area_key, &KdfLimits::default())?;
    let offset = u64::from(slot.offset.get()) * 512;
    let place = KeyMaterial { offset, key_len: options.key_len, stripes: STRIPES, hash, cipher: options.cipher };
    Ok(place.seal(key, &area_key)?)
}
