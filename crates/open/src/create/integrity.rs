//! The dm-integrity volume below a new LUKS2 volume, and its first tags.

use std::ops::ControlFlow;
use std::path::Path;

use inlock_cipher::VolumeKey;
use inlock_engine::store::file::IoMode;
use inlock_integrity::{FormatOptions, IntegrityError, Mode, OpenOptions, Sealing, Stores, format};
use inlock_volume::{AuthenticatedSegment, DataUnitSize, Sector};

use crate::device::Device;
use crate::error::{Error, ErrorKind, Result, ResultExt as _};
use crate::integrity::cannot_use;
use crate::wipe::{Wiped, wipe};

use super::options::IntegrityProtection;

/// Least bytes of a dm-integrity volume that an error names: superblock, journal, tags and some data.
const MIN_LEN: u64 = 1 << 20;

/// A dm-integrity volume to create.
pub(super) struct PlacedIntegrity {
    protection: IntegrityProtection,
    unit: DataUnitSize,
    stores: Stores,
    options: FormatOptions,
}

impl PlacedIntegrity {
    /// Returns the volume on `device` from byte `start` on, if there is space for it.
    pub(super) fn find(
        protection: IntegrityProtection,
        device: &Device,
        unit: DataUnitSize,
        start: u64,
    ) -> Result<Self> {
        if device.zones.is_some() {
            let text = format!("Device {} is zoned: dm-integrity writes tags in place.", device.path.display());
            return Err(Error::new(ErrorKind::IntegrityOnZones { is_new: true }, text).about(&device.path));
        }
        let store = device.store(IoMode::Sync, false, false);
        let store = store.with_context(|| format!("cannot use {}", device.path.display()))?;
        let mut stores = Stores::interleaved(store);
        stores.start = start / 512;
        let options = FormatOptions {
            tag_size: Some(protection.spec.metadata_len()),
            block_len: unit.bytes(),
            fix_padding: protection.fix_padding,
            overwrite: true,
            ..FormatOptions::default()
        };
        match options.superblock(&stores.sizes()) {
            Ok(_) => Ok(Self { protection, unit, stores, options }),
            Err(IntegrityError::Option { option: "device", .. }) => {
                Err(Error::too_small(&device.path, device.len, start.saturating_add(MIN_LEN)))
            }
            Err(error) => Err(cannot_use(&device.path)(error)),
        }
    }

    /// Writes superblock and journal, then zeroes with their tags under `key`, or marks, unless that is left out.
    pub(super) fn format(
        self,
        image: &Path,
        key: &VolumeKey,
        watch: &mut dyn FnMut(Wiped) -> ControlFlow<()>,
    ) -> Result<()> {
        format(&self.stores, &self.options).map_err(cannot_use(image))?;
        let Some(fill) = self.protection.fill else { return Ok(()) };
        let spec = self.protection.spec;
        let segment = AuthenticatedSegment::new(spec, self.unit, Sector(self.stores.start));
        let sealing = Sealing::new(segment.aead(key)?, key.as_bytes(), spec.metadata_len())?;
        wipe(image, self.stores, OpenOptions::new(Mode::Direct), 0, (fill, Some(&sealing)), watch)
    }
}
