//! Another length of a volume.

use crate::device::IntegrityDevice;
use crate::error::IntegrityError;
use crate::layout::fitting_len;
use crate::load::load;
use crate::options::{Mode, OpenOptions};
use crate::stores::Stores;
use crate::superblock::{Flags, Superblock, write_bytes};

/// Gives a closed volume a length of `sectors`, or as many as fit its devices. Replays the journal first. The tags of
/// new blocks are not written: the blocks cannot be read before they are written, or [wiped](IntegrityDevice::wipe).
/// Returns the number of sectors before, and the new superblock.
///
/// A power cut leaves the old or the new length.
///
/// # Errors
///
/// Fails as [`load`] does, if tags are still to be computed, or if the length does not fit, before anything is written;
/// later if a store fails.
pub fn resize(
    stores: &Stores,
    options: &OpenOptions,
    sectors: Option<u64>,
) -> Result<(u64, Superblock), IntegrityError> {
    let options = OpenOptions { mode: Mode::Direct, ..options.clone() };
    let (superblock, _) = load(stores, &options)?;
    if superblock.is_recalculating() || superblock.flags.has(Flags::DIRTY_BITMAP) || options.recalculate {
        let reason = "tags are still to be computed: open the volume, and close it when they are";
        return Err(IntegrityError::option("integrity-recalculate", reason));
    }
    let wanted = fitting_len(&superblock, &stores.sizes(), sectors)?;
    let failed = || IntegrityError::io("resize the volume");
    let device = IntegrityDevice::open(stores.clone(), options)?;
    device.close().map_err(failed())?;
    let (before, mac) = (superblock.provided_data_sectors, device.options().journal_mac.as_deref());
    let mut resized = device.superblock();
    resized.provided_data_sectors = wanted;
    let bytes = resized.encode(mac, false);
    write_bytes(stores, &bytes).and_then(|()| stores.metadata().sync()).map_err(failed())?;
    Ok((before, Superblock::decode(&bytes[..])?))
}
