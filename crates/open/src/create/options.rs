//! A LUKS volume to create, and what its options may be.

use std::path::PathBuf;

use inlock_cipher::{AeadSpec, CipherSpec};
use inlock_integrity::Fill;
use inlock_volume::{DataUnitSize, Hash, HeaderPolicy, KdfKind, KdfRequest};

use crate::error::{Error, ErrorKind, Result};

/// A LUKS volume to create.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// The device with the data, and with the header unless that is detached.
    pub image: PathBuf,
    /// A device or file for a detached header. A missing file is created.
    pub header: Option<PathBuf>,
    /// 1 or 2.
    pub version: u32,
    /// Cipher of the data, unless integrity protection has another one.
    pub cipher: CipherSpec,
    /// Integrity protection, with LUKS2.
    pub integrity: Option<IntegrityProtection>,
    /// Length of the volume key in bytes, with that of a MAC.
    pub key_len: usize,
    /// Hash of the anti-forensic splitter and of the digest of the volume key.
    pub hash: Hash,
    /// Costs of the keyslot.
    pub kdf: KdfRequest,
    /// Number of the keyslot.
    pub keyslot: u32,
    /// Cipher of the keyslot's area and length of its key in bytes, with LUKS2. `None`: that of the data.
    pub keyslot_cipher: Option<(CipherSpec, usize)>,
    /// Length of a copy of the metadata in bytes, with LUKS2.
    pub metadata_len: Option<u64>,
    /// Length of all keyslot areas in bytes, with LUKS2. They become shorter if they reach into the data.
    pub keyslots_len: Option<u64>,
    /// Length of a data unit in bytes. `None`: the largest that fits the length of the device.
    pub sector_size: Option<u32>,
    /// Start of the data.
    pub start: DataStart,
    /// `None`: a random one.
    pub uuid: Option<String>,
    /// At most 47 bytes, with LUKS2.
    pub label: Option<String>,
    /// At most 47 bytes, with LUKS2.
    pub subsystem: Option<String>,
    /// What the new header has to comply with.
    pub policy: HeaderPolicy,
}

/// Start of the data of a new volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataStart {
    /// Behind the header, or at 0 if that is detached; where zones and images of Ceph RBD want it.
    Usual,
    /// At this sector of 512 bytes, a multiple of 8.
    At(u64),
    /// At the first multiple of this number of sectors behind the header, or at this sector if that is detached.
    Aligned(u64),
}

/// Integrity protection of a new volume.
#[derive(Clone, Copy, Debug)]
pub struct IntegrityProtection {
    /// The authenticated cipher.
    pub spec: AeadSpec,
    /// Tags take no more space than they need, unlike with old kernels.
    pub fix_padding: bool,
    /// Content of the blocks. `None`: nothing is written, and blocks cannot be read before they are.
    pub fill: Option<Fill>,
}

impl CreateOptions {
    /// Returns the options of a LUKS2 volume with cryptsetup's defaults: `aes-xts-plain64`, 512 bits, Argon2id for 2
    /// seconds.
    pub fn luks2(image: impl Into<PathBuf>) -> Self {
        Self {
            image: image.into(),
            header: None,
            version: 2,
            cipher: CipherSpec::AES_XTS_PLAIN64,
            integrity: None,
            key_len: 64,
            hash: Hash::Sha256,
            kdf: KdfRequest::new(KdfKind::Argon2id),
            keyslot: 0,
            keyslot_cipher: None,
            metadata_len: None,
            keyslots_len: None,
            sector_size: None,
            start: DataStart::Usual,
            uuid: None,
            label: None,
            subsystem: None,
            policy: HeaderPolicy::default(),
        }
    }

    /// Returns the options of a LUKS1 volume with cryptsetup's defaults: as [`CreateOptions::luks2`], with PBKDF2.
    pub fn luks1(image: impl Into<PathBuf>) -> Self {
        Self { version: 1, kdf: KdfRequest::new(KdfKind::Pbkdf2), ..Self::luks2(image) }
    }

    /// Refuses what the version does not have, and values that no device could make right. Opens nothing.
    ///
    /// # Errors
    ///
    /// Fails with [`ErrorKind::InvalidOption`].
    pub fn check(&self) -> Result<()> {
        let keyslots = match self.version {
            1 => {
                self.check_luks1()?;
                8
            }
            2 => 32,
            other => return refuse(format!("A LUKS volume of version {other} cannot be created.")),
        };
        if matches!(self.start, DataStart::At(sectors) if !sectors.is_multiple_of(8)) {
            return refuse("Data offset is not multiple of 4096 bytes.");
        }
        if self.data_unit().is_none_or(|unit| unit.is_some_and(|unit| unit > DataUnitSize::LUKS_MAX)) {
            return refuse("Unsupported encryption sector size: LUKS2 has 512, 1024, 2048 or 4096 bytes.");
        }
        if self.keyslot >= keyslots {
            let text = format!("Keyslot is invalid: LUKS{} has keyslots 0 to {}.", self.version, keyslots - 1);
            return refuse(text);
        }
        if [&self.label, &self.subsystem].into_iter().flatten().any(|text| !is_label(text)) {
            return refuse("Label and subsystem have at most 47 bytes.");
        }
        let fits = match &self.integrity {
            Some(protection) => protection.spec.can_use_key_len(self.key_len),
            None => self.cipher.can_use_key_len(self.key_len),
        };
        if !fits {
            return refuse(format!("The cipher takes no key of {} bits.", self.key_len.saturating_mul(8)));
        }
        Ok(())
    }

    /// Refuses what LUKS1 does not have.
    fn check_luks1(&self) -> Result<()> {
        if self.label.is_some() || self.subsystem.is_some() {
            return refuse("Label and subsystem are supported only for LUKS2 volumes.");
        }
        if self.metadata_len.is_some() || self.keyslots_len.is_some() {
            return refuse("Unsupported LUKS2 metadata size options.");
        }
        if self.keyslot_cipher.is_some() {
            return refuse("Keyslot encryption parameters can be set only for LUKS2 device.");
        }
        if self.sector_size.is_some_and(|size| size != 512) {
            return refuse("Unsupported encryption sector size: LUKS1 has 512 bytes.");
        }
        if self.integrity.is_some() {
            return refuse("Integrity option can be used only for LUKS2 format.");
        }
        if self.kdf.kind != KdfKind::Pbkdf2 {
            return refuse("LUKS1 supports only the PBKDF pbkdf2.");
        }
        Ok(())
    }

    /// Returns the data unit that is asked for, `Some(None)` if none is. `None`: there is no such unit.
    pub(super) fn data_unit(&self) -> Option<Option<DataUnitSize>> {
        self.sector_size.map_or(Some(None), |size| DataUnitSize::new(size).ok().map(Some))
    }
}

/// Whether the text can be a label or the name of a subsystem.
pub fn is_label(text: &str) -> bool {
    // The header has 48 bytes, including a terminating zero.
    text.len() <= 47 && !text.contains('\0')
}

fn refuse<T>(text: impl Into<String>) -> Result<T> {
    Err(Error::new(ErrorKind::InvalidOption, text))
}
