//! A volume with a header, of any format.

mod edit;

use crate::authenticated::AuthenticatedSegment;
use crate::error::{DataDeviceError, LoadError, LoadWarning, UnlockError};
use crate::header_device::HeaderDevice;
use crate::header_policy::{HeaderDigest, HeaderPolicy};
use crate::luks1::{self, Luks1};
use crate::luks2::{self, Luks2};
use crate::secret::Secret;
use crate::unlock::{UnlockOptions, Unlocked};
use inlock_cipher::{SECTOR_SIZE, Segment, VolumeKey};
use std::fmt;

/// Location of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderLocation {
    /// On the device of the payload.
    DataDevice,
    /// On a device or in a file of its own.
    Detached,
}

/// A loaded header. Loading unlocks nothing and writes nothing.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Volume {
    /// LUKS version 1.
    Luks1(Box<Luks1>),
    /// LUKS version 2.
    Luks2(Box<Luks2>),
}

impl From<Luks1> for Volume {
    fn from(luks1: Luks1) -> Self {
        Self::Luks1(Box::new(luks1))
    }
}

impl From<Luks2> for Volume {
    fn from(luks2: Luks2) -> Self {
        Self::Luks2(Box::new(luks2))
    }
}

impl Volume {
    /// Reads and checks the header on `device`.
    ///
    /// If the first copy of a LUKS2 header is damaged, the second one is used, with an entry in [`Volume::warnings`],
    /// unless the device has a signature of another format.
    ///
    /// # Errors
    ///
    /// Fails if the device has no LUKS header, or one that violates its specification.
    pub fn load(device: &dyn HeaderDevice) -> Result<Self, LoadError> {
        check_unmarked(device)?;
        match luks1::probe(device)? {
            true => Luks1::load(device).map(Self::from),
            false => Luks2::load(device).map(Self::from),
        }
    }

    /// Like [`Volume::load`], as [`Luks2::load_despite_signatures`] does.
    ///
    /// # Errors
    ///
    /// As [`Volume::load`].
    pub fn load_despite_signatures(device: &dyn HeaderDevice) -> Result<Self, LoadError> {
        check_unmarked(device)?;
        match luks1::probe(device)? {
            true => Luks1::load(device).map(Self::from),
            false => Luks2::load_despite_signatures(device).map(Self::from),
        }
    }

    /// Checks the volume against `policy`, as unlocking does before it derives a key: for a check before the user is
    /// asked for a passphrase.
    ///
    /// # Errors
    ///
    /// Fails if the policy refuses the volume, or if it cannot be unlocked at all.
    pub fn check_policy(&self, policy: &HeaderPolicy) -> Result<(), UnlockError> {
        match self {
            Self::Luks1(luks1) => luks1.check_policy(policy),
            Self::Luks2(luks2) => luks2.check_policy(policy),
        }
    }

    /// Checks the header against `policy` for access to keys without data, as [`Volume::unlock_key`] does: its
    /// exceptions matter only if it names ciphers or data units.
    ///
    /// # Errors
    ///
    /// Fails if the policy refuses the volume.
    pub fn check_policy_for_keys(&self, policy: &HeaderPolicy) -> Result<(), UnlockError> {
        match self {
            Self::Luks1(luks1) => luks1.check_policy_for_keys(policy),
            Self::Luks2(luks2) => luks2.check_policy_for_keys(policy),
        }
    }

    /// Returns the policy with which the present header complies, and no other header: it pins digest, UUID, ciphers,
    /// keys, data units and the costs of the keyslots. It allows no exception that the default does not.
    ///
    /// # Errors
    ///
    /// Fails if the volume cannot be unlocked at all.
    pub fn present_policy(&self) -> Result<HeaderPolicy, UnlockError> {
        match self {
            Self::Luks1(luks1) => luks1.present_policy(),
            Self::Luks2(luks2) => luks2.present_policy(),
        }
    }

    /// Whether `other` is this header, unchanged: in all bytes of LUKS1; in sequence number, fields and metadata of
    /// LUKS2, in the same copy.
    pub fn is_same_header(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Luks1(one), Self::Luks1(other)) => one.is_same_header(other),
            (Self::Luks2(one), Self::Luks2(other)) => one.is_same_header(other),
            _ => false,
        }
    }

    /// Whether a keyslot holds a key, and `other` has the same keyslot under this number: a passphrase that opens one
    /// opens both, since every program gives a new key a new salt.
    pub fn has_same_keyslot(&self, other: &Self, number: u32) -> bool {
        match (self, other) {
            (Self::Luks1(one), Self::Luks1(other)) => one.has_same_keyslot(other, number),
            (Self::Luks2(one), Self::Luks2(other)) => one.has_same_keyslot(other, number),
            _ => false,
        }
    }

    /// Returns the digest by which a policy pins the header (`HeaderPolicy::expected_digest`).
    pub fn header_digest(&self) -> HeaderDigest {
        match self {
            Self::Luks1(luks1) => luks1.header_digest(),
            Self::Luks2(luks2) => luks2.header_digest(),
        }
    }

    /// Returns the maximum number of bytes that [`Volume::unlock`] with these options takes in addition to the header:
    /// the memory and the key material of one keyslot, since keyslots take turns with them. Nothing is allocated yet.
    ///
    /// Unlockings in other threads of the process take turns if they do not fit into the available memory together, so
    /// this many bytes are enough for all of them.
    pub fn memory_bound(&self, options: &UnlockOptions) -> u64 {
        match self {
            Self::Luks1(luks1) => luks1.memory_bound(options),
            Self::Luks2(luks2) => luks2.memory_bound(options),
        }
    }

    /// Opens a keyslot with `passphrase` and verifies its key. Takes seconds, and up to gigabytes of memory, within the
    /// limits of the options.
    ///
    /// # Errors
    ///
    /// Fails if no keyslot opens, if the policy of the options refuses the volume, or if its keyslots cost too much.
    pub fn unlock(
        &self,
        device: &dyn HeaderDevice,
        passphrase: &Secret,
        options: &UnlockOptions,
    ) -> Result<Unlocked, UnlockError> {
        match self {
            Self::Luks1(luks1) => luks1.unlock(device, passphrase, options),
            Self::Luks2(luks2) => luks2.unlock(device, passphrase, options),
        }
    }

    /// Opens a keyslot with `passphrase`, and returns its number and the verified key in it: for a change of the
    /// header. Tries unbound keyslots of LUKS2, too, and works for volumes whose payload Inlock cannot open.
    ///
    /// # Errors
    ///
    /// Fails if no keyslot opens, if the UUID is not that of the policy, or if the keyslots cost too much.
    pub fn unlock_key(
        &self,
        device: &dyn HeaderDevice,
        passphrase: &Secret,
        options: &UnlockOptions,
    ) -> Result<(u32, VolumeKey), UnlockError> {
        match self {
            Self::Luks1(luks1) => {
                let unlocked = luks1.unlock(device, passphrase, options)?;
                let keyslot = unlocked.keyslot.ok_or(UnlockError::WrongPassphrase)?;
                Ok((keyslot, unlocked.key))
            }
            Self::Luks2(luks2) => luks2.unlock_key(device, passphrase, options),
        }
    }

    /// Returns the length of the volume key in bytes. `None`: no keyslot is left that says it.
    pub fn volume_key_len(&self) -> Option<usize> {
        match self {
            Self::Luks1(luks1) => Some(luks1.key_len()),
            Self::Luks2(luks2) => luks2.volume_key_len(),
        }
    }

    /// Unlocks with the caller's volume key, after verifying it.
    ///
    /// # Errors
    ///
    /// Fails if the header's digest does not confirm the key, or as [`Volume::unlock`].
    pub fn unlock_with_volume_key(&self, key: VolumeKey, options: &UnlockOptions) -> Result<Unlocked, UnlockError> {
        match self {
            Self::Luks1(luks1) => luks1.unlock_with_volume_key(key, options),
            Self::Luks2(luks2) => luks2.unlock_with_volume_key(key, options),
        }
    }

    /// Returns the version of the format: 1 or 2.
    pub fn version(&self) -> u32 {
        match self {
            Self::Luks1(_) => 1,
            Self::Luks2(_) => 2,
        }
    }

    /// Returns the UUID as the header has it.
    pub fn uuid(&self) -> &str {
        match self {
            Self::Luks1(luks1) => luks1.uuid(),
            Self::Luks2(luks2) => luks2.uuid(),
        }
    }

    /// Returns the salt of the digest of the volume key: random bytes that only copies of the volume share. `None`: the
    /// key has no digest of a known type.
    pub fn key_salt(&self) -> Option<&[u8]> {
        match self {
            Self::Luks1(luks1) => Some(luks1.digest().1),
            Self::Luks2(luks2) => luks2.key_salt(),
        }
    }

    /// Returns the label; LUKS1 has none.
    pub fn label(&self) -> Option<&str> {
        match self {
            Self::Luks1(_) => None,
            Self::Luks2(luks2) => luks2.label(),
        }
    }

    /// Returns the subsystem label; LUKS1 has none.
    pub fn subsystem(&self) -> Option<&str> {
        match self {
            Self::Luks1(_) => None,
            Self::Luks2(luks2) => luks2.subsystem(),
        }
    }

    /// Irregularities that did not prevent loading the header.
    pub fn warnings(&self) -> &[LoadWarning] {
        match self {
            Self::Luks1(luks1) => luks1.warnings(),
            Self::Luks2(luks2) => luks2.warnings(),
        }
    }

    /// Returns the start of the first segment on the data device, in bytes.
    pub fn data_offset(&self) -> u64 {
        match self {
            Self::Luks1(luks1) => u64::from(luks1.payload_offset()) * SECTOR_SIZE,
            Self::Luks2(luks2) => luks2.data_offset(),
        }
    }

    /// Returns the end of the keyslot areas on the header device, in bytes.
    pub fn header_len(&self) -> u64 {
        match self {
            Self::Luks1(luks1) => luks1.areas().1,
            Self::Luks2(luks2) => luks2::header_end(luks2.header(), luks2.metadata()),
        }
    }

    /// Returns the segments in order and without gaps, as in [`Unlocked::segments`].
    ///
    /// # Errors
    ///
    /// Fails if a segment cannot be used, for example because its cipher is not supported.
    pub fn segments(&self) -> Result<Vec<Segment>, UnlockError> {
        match self {
            Self::Luks1(luks1) => luks1.segments(),
            Self::Luks2(luks2) => luks2.segments(),
        }
    }

    /// Returns the only segment of a volume with integrity protection, as in [`Unlocked::authenticated`].
    ///
    /// # Errors
    ///
    /// As [`Volume::segments`].
    pub fn authenticated(&self) -> Result<Option<AuthenticatedSegment>, UnlockError> {
        match self {
            Self::Luks1(_) => Ok(None),
            Self::Luks2(luks2) => luks2.authenticated(),
        }
    }

    /// Returns the names of the ciphers of [`Volume::segments`] as the header has them, in either of dm-crypt's
    /// notations; `None` for an unencrypted segment, and for a name that is no word of a table.
    pub fn cipher_names(&self) -> Vec<Option<String>> {
        let names = match self {
            Self::Luks1(luks1) => vec![Some(luks1.cipher())],
            Self::Luks2(luks2) => luks2.cipher_names(),
        };
        let is_word = |name: &String| name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
        names.into_iter().map(|name| name.filter(is_word)).collect()
    }

    /// Checks that a data device of `len` bytes can have the payload. Call it before using the payload.
    ///
    /// # Errors
    ///
    /// Fails if the device is too short, or if the header is on it although it was created as a detached one: the
    /// payload then starts at byte 0, and a write would destroy the header.
    pub fn check_data_device(&self, header: HeaderLocation, len: u64) -> Result<(), DataDeviceError> {
        if header == HeaderLocation::DataDevice && self.data_offset() == 0 {
            return Err(DataDeviceError::Detached);
        }
        // A segment without a length has at least one sector.
        let needed = match self {
            Self::Luks1(_) => self.data_offset() + SECTOR_SIZE,
            Self::Luks2(luks2) => luks2.data_end(),
        };
        if needed > len { Err(DataDeviceError::TooSmall { needed, len }) } else { Ok(()) }
    }

    /// Numbers of the keyslots that hold a key, in the order in which they are tried.
    pub fn active_keyslots(&self) -> Vec<u32> {
        match self {
            Self::Luks1(luks1) => luks1.active_keyslots(),
            Self::Luks2(luks2) => luks2.active_keyslots(),
        }
    }

    /// Returns the LUKS2 metadata as stored; LUKS1 has none.
    pub fn metadata_json(&self) -> Option<&str> {
        match self {
            Self::Luks1(_) => None,
            Self::Luks2(luks2) => Some(luks2.metadata_json()),
        }
    }

    /// Displays the header like `cryptsetup luksDump`. `device` is the path in LUKS1's first line.
    pub fn dump<'a>(&'a self, device: &'a str) -> impl fmt::Display + 'a {
        Dump { volume: self, device }
    }
}

struct Dump<'a> {
    volume: &'a Volume,
    device: &'a str,
}

impl fmt::Display for Dump<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.volume {
            Volume::Luks1(luks1) => luks1::dump::write(luks1, self.device, f),
            Volume::Luks2(luks2) => luks2::dump::write(luks2, f),
        }
    }
}

/// Fails if a re-encryption of LUKS1 has marked the header.
fn check_unmarked(device: &dyn HeaderDevice) -> Result<(), LoadError> {
    match luks1::reencryption::marked_uuid(device)? {
        Some(uuid) => Err(LoadError::Luks1Reencrypted { uuid }),
        None => Ok(()),
    }
}
