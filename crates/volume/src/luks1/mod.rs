//! LUKS version 1: "LUKS On-Disk Format Specification", version 1.2.3.
//!
//! One binary header without checksum or second copy, and eight keyslots. Damage that passes the checks here makes a
//! passphrase fail, but never yields a wrong key: a key is accepted only if the header's digest confirms it.

mod binary_header;
pub(crate) mod dump;
mod edit;
mod format;
pub(crate) mod layout;
pub mod reencryption;
mod repair;
mod unlock;
mod validate;

pub(crate) use binary_header::{KEYSLOT_DISABLED, KEYSLOT_ENABLED, RawHeader, RawKeyslot};
pub(crate) use edit::disable;
pub use format::{FormatOptions, format};
pub(crate) use repair::Luks1Repair;

use crate::checked_device::CheckedDevice;
use crate::error::{CommitError, LoadError, LoadWarning};
use crate::header_device::HeaderDevice;
use crate::header_policy::HeaderDigest;
use crate::key_material::STRIPES;
use crate::violation::{HeaderFault, Violation};
use binary_header::{HEADER_LEN, KEYSLOTS};
use zerocopy::FromBytes;

pub(crate) const HEADER: &str = "LUKS1 header";

/// A checked LUKS1 header.
#[derive(Clone, Debug)]
pub struct Luks1 {
    cipher_name: String,
    cipher_mode: String,
    hash_spec: String,
    uuid: String,
    payload_offset: u32,
    key_len: u32,
    digest: [u8; 20],
    digest_salt: [u8; 32],
    digest_iterations: u32,
    keyslots: [Keyslot; KEYSLOTS],
    /// Digest of the header's bytes.
    header_digest: HeaderDigest,
    warnings: Vec<LoadWarning>,
}

/// One of the eight keyslots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Keyslot {
    active: bool,
    /// Whether damage keeps it from being used.
    is_invalid: bool,
    iterations: u32,
    salt: [u8; 32],
    /// Start of its key material, in sectors.
    offset: u32,
    stripes: u32,
}

/// Whether `device` starts with the magic and the version of LUKS1. What cannot be read is none: it may be the first
/// copy of a LUKS2 header, which has another one.
///
/// # Errors
///
/// Fails if the length of the device cannot be determined.
pub fn probe(device: &dyn HeaderDevice) -> Result<bool, LoadError> {
    let mut start = [0; 8];
    if device.len()? < start.len() as u64 {
        return Ok(false);
    }
    Ok(device.read_exact_at(&mut start, 0).is_ok() && start == *b"LUKS\xba\xbe\x00\x01")
}

/// Returns the digest of the header's bytes, which need not be valid.
pub(crate) fn digest_of(device: &dyn HeaderDevice) -> std::io::Result<HeaderDigest> {
    let mut bytes = [0; HEADER_LEN];
    device.read_exact_at(&mut bytes, 0)?;
    Ok(HeaderDigest::of(&bytes))
}

impl Luks1 {
    /// Reads and checks the header.
    ///
    /// # Errors
    ///
    /// Fails if the device has no LUKS1 header, or one that violates the specification.
    pub fn load(device: &dyn HeaderDevice) -> Result<Self, LoadError> {
        if !probe(device)? {
            return Err(LoadError::NotLuks);
        }
        let len = device.len()?;
        if len < HEADER_LEN as u64 {
            return Err(LoadError::Truncated { what: HEADER, needed: HEADER_LEN as u64, len });
        }
        let mut bytes = [0; HEADER_LEN];
        device.read_exact_at(&mut bytes, 0)?;
        let raw = RawHeader::ref_from_bytes(&bytes).expect("the array has the length of the header");
        let luks1 = validate::decode(raw)?;
        validate::check(&luks1)?;
        validate::check_inside(&luks1, len)?;
        Ok(luks1)
    }

    /// Returns the UUID.
    pub fn uuid(&self) -> &str {
        &self.uuid
    }

    /// Whether all bytes of another header are the same.
    pub(crate) fn is_same_header(&self, other: &Self) -> bool {
        self.header_digest == other.header_digest
    }

    /// Returns `device` to change its header, which must be this one.
    pub(crate) fn checked<'a>(&self, device: &'a dyn HeaderDevice) -> Result<CheckedDevice<'a>, CommitError> {
        CheckedDevice::new(device, Self::load(device).map(|present| present.is_same_header(self)))
    }

    /// Whether a keyslot of another header holds the same key under the same passphrase.
    pub(crate) fn has_same_keyslot(&self, other: &Self, number: u32) -> bool {
        let record = |luks1: &Self| luks1.keyslots.get(number as usize).filter(|slot| slot.active).copied();
        record(self).is_some() && record(self) == record(other) && self.digest() == other.digest()
    }

    /// Returns the start of the payload, in sectors.
    pub fn payload_offset(&self) -> u32 {
        self.payload_offset
    }

    /// Numbers of the keyslots that damage keeps from being used.
    pub(crate) fn damaged_keyslots(&self) -> Vec<u32> {
        (0..).zip(&self.keyslots).filter(|(_, slot)| slot.is_invalid).map(|(number, _)| number).collect()
    }

    /// Returns the damage of a keyslot.
    fn damage_of(&self, number: u32) -> Option<HeaderFault> {
        self.warnings.iter().find_map(|warning| match warning {
            LoadWarning::KeyslotDamaged { keyslot, fault, .. } if *keyslot == number => Some(fault.clone()),
            _ => None,
        })
    }

    /// Returns iterations and salt of a keyslot.
    pub(crate) fn derivation(&self, number: u32) -> (u32, &[u8; 32]) {
        let slot = &self.keyslots[number as usize];
        (slot.iterations, &slot.salt)
    }

    /// Returns iterations, salt and value of the digest.
    pub(crate) fn digest(&self) -> (u32, &[u8; 32], &[u8; 20]) {
        (self.digest_iterations, &self.digest_salt, &self.digest)
    }

    /// Returns start and end of all keyslot areas together, in bytes.
    pub(crate) fn areas(&self) -> (u64, u64) {
        let starts = self.keyslots.iter().map(Keyslot::start);
        let ends = self.keyslots.iter().map(|slot| slot.end(self.key_len));
        (starts.min().unwrap_or(0), ends.max().unwrap_or(0))
    }

    /// Returns the length of the volume key in bytes.
    pub fn key_len(&self) -> usize {
        self.key_len as usize
    }

    /// Returns the cipher as the header names it, such as `aes-xts-plain64`.
    pub fn cipher(&self) -> String {
        format!("{}-{}", self.cipher_name, self.cipher_mode)
    }

    /// Returns the hash as the header names it.
    pub fn hash(&self) -> &str {
        &self.hash_spec
    }

    /// Irregularities that did not prevent loading the header.
    pub fn warnings(&self) -> &[LoadWarning] {
        &self.warnings
    }

    /// Numbers of the keyslots that hold a key.
    pub fn active_keyslots(&self) -> Vec<u32> {
        (0..)
            .zip(&self.keyslots)
            .filter(|(_, slot)| slot.active && !slot.is_invalid)
            .map(|(number, _)| number)
            .collect()
    }
}

/// Checks a header that is to be written.
pub(crate) fn check_header(raw: &RawHeader) -> Result<Luks1, HeaderFault> {
    let luks1 = validate::decode(raw)?;
    validate::check(&luks1)?;
    Ok(luks1)
}

impl Keyslot {
    /// Returns the start of its area, in bytes.
    fn start(&self) -> u64 {
        u64::from(self.offset) * 512
    }

    /// Returns the end of its area, in bytes.
    fn end(&self, key_len: u32) -> u64 {
        let len = crate::key_material::material_len(key_len.into(), self.stripes.into());
        // Both factors have 32 bits, so neither the product nor the sum overflows.
        self.start() + len.unwrap_or(u64::MAX >> 8)
    }
}

/// Returns the content of a text field up to its zero byte, if it has one and is printable ASCII.
fn text(field: &'static str, bytes: &[u8]) -> Result<String, Violation> {
    let end = bytes.iter().position(|&byte| byte == 0).ok_or(Violation::NotText(field))?;
    let text = &bytes[..end];
    if !text.iter().all(|byte| (0x20..0x7f).contains(byte)) {
        return Err(Violation::NotText(field));
    }
    Ok(text.iter().map(|&byte| char::from(byte)).collect())
}
