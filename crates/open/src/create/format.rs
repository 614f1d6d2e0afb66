//! The header to write: lengths, places, and writing it.

use inlock_cipher::VolumeKey;
use inlock_volume::{DataUnitSize, FormatError, HeaderDevice, Secret, luks1, luks2};

use super::options::{CreateOptions, DataStart};

/// Offset and unit of the data.
#[derive(Clone, Copy)]
pub(crate) struct Placement {
    /// In sectors. `None`: behind the header, or at 0 with a detached header.
    pub offset: Option<u64>,
    /// `None`: the largest that fits the length of the device.
    pub unit: Option<DataUnitSize>,
}

/// A header to write.
pub(crate) enum Format {
    /// A LUKS1 header.
    Luks1(luks1::FormatOptions),
    /// A LUKS2 header.
    Luks2(luks2::FormatOptions),
}

impl Format {
    /// Returns the header with data in this place.
    pub(crate) fn new(options: &CreateOptions, placement: Placement) -> Self {
        match options.version {
            1 => Self::Luks1(luks1_options(options, placement)),
            _ => Self::Luks2(luks2_options(options, placement)),
        }
    }

    /// Returns the number of bytes that it takes on its device.
    pub(super) fn header_len(&self) -> u64 {
        match self {
            Self::Luks1(options) => options.header_len(),
            Self::Luks2(options) => options.header_len(),
        }
    }

    /// Returns the minimum of [`Format::header_len`].
    pub(crate) fn least_header_len(&self) -> u64 {
        match self {
            Self::Luks1(options) => options.header_len(),
            Self::Luks2(options) => options.least_header_len(),
        }
    }

    /// Returns the start of the data on its device, in bytes.
    pub(super) fn data_offset(&self) -> u64 {
        match self {
            Self::Luks1(options) => options.data_offset(),
            Self::Luks2(options) => options.data_offset(),
        }
    }

    /// Returns the data unit on a device of this length.
    pub(super) fn unit(&self, data_len: u64) -> DataUnitSize {
        match self {
            Self::Luks1(_) => DataUnitSize::SECTOR,
            Self::Luks2(options) => options.sector_size(Some(data_len)),
        }
    }

    /// Returns the number of bytes that a device has to have for the data.
    pub(super) fn least_len(&self) -> u64 {
        let unit = match self {
            Self::Luks1(_) => None,
            Self::Luks2(options) => options.sector_size,
        };
        self.data_offset().saturating_add(unit.unwrap_or(DataUnitSize::SECTOR).bytes() as u64)
    }

    /// Returns the length of the keyslot areas if it is less than `asked`.
    pub(super) fn shorter_keyslots(&self, asked: Option<u64>) -> Option<u64> {
        match self {
            Self::Luks1(_) => None,
            Self::Luks2(options) => options.keyslots_len.filter(|len| asked.is_some_and(|asked| *len < asked)),
        }
    }

    /// Sets the volume key.
    pub(crate) fn set_key(&mut self, key: VolumeKey) {
        match self {
            Self::Luks1(options) => options.volume_key = Some(key),
            Self::Luks2(options) => options.volume_key = Some(key),
        }
    }

    /// Makes the volume key of a LUKS2 header, unless it is set, and returns another copy: the caller writes the data.
    /// `None`: a LUKS1 header.
    pub(crate) fn make_key(&mut self) -> Result<Option<VolumeKey>, FormatError> {
        let Self::Luks2(options) = self else { return Ok(None) };
        let key = options.new_key()?;
        options.volume_key = Some(VolumeKey::new(key.as_bytes()));
        Ok(Some(key))
    }

    /// Writes it. `data_len`: `None`, if the length of the data is that of the device of the header.
    pub(crate) fn write(
        self,
        device: &dyn HeaderDevice,
        data_len: Option<u64>,
        secret: &Secret,
    ) -> Result<(), FormatError> {
        match self {
            Self::Luks1(options) => luks1::format(device, options, secret).map(|_| ()),
            Self::Luks2(mut options) => {
                options.data_len = data_len;
                luks2::format(device, options, secret).map(|_| ())
            }
        }
    }
}

fn luks1_options(options: &CreateOptions, placement: Placement) -> luks1::FormatOptions {
    let mut format = luks1::FormatOptions::default();
    format.cipher = options.cipher;
    format.key_len = options.key_len;
    format.hash = options.hash;
    format.kdf = options.kdf;
    format.uuid.clone_from(&options.uuid);
    format.detached = options.header.is_some();
    let is_asked_for = matches!(options.start, DataStart::At(_));
    format.payload_offset = placement.offset.filter(|sectors| *sectors > 0 || is_asked_for);
    format.keyslot = options.keyslot;
    format.policy = options.policy.clone();
    format
}

fn luks2_options(options: &CreateOptions, placement: Placement) -> luks2::FormatOptions {
    let mut format = luks2::FormatOptions::default();
    format.cipher = options.cipher;
    format.aead = options.integrity.map(|protection| protection.spec);
    format.key_len = options.key_len;
    format.hash = options.hash;
    format.kdf = options.kdf;
    format.keyslot_cipher = options.keyslot_cipher;
    format.metadata_len = options.metadata_len.unwrap_or(format.metadata_len);
    format.sector_size = placement.unit;
    format.uuid.clone_from(&options.uuid);
    format.label = options.label.clone().unwrap_or_default();
    format.subsystem = options.subsystem.clone().unwrap_or_default();
    format.detached = options.header.is_some();
    format.data_offset = placement.offset.map(|sectors| sectors.saturating_mul(512));
    format.keyslots_len = match (options.keyslots_len, format.data_offset) {
        // The keyslot areas end before the data, unless these begin at 0 of another device.
        (Some(asked), Some(start)) if start > 0 || !format.detached => {
            Some(asked.min(start.saturating_sub(format.metadata_len.saturating_mul(2))))
        }
        (asked, _) => asked,
    };
    format.keyslot = options.keyslot;
    format.policy = options.policy.clone();
    format
}
