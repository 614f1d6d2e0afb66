//! Writing the first data and tags of a dm-integrity volume, with progress.

use std::ops::ControlFlow;
use std::path::Path;

use anyhow::Context;
use inlock_engine::Errno;
use inlock_integrity::{IntegrityDevice, OpenOptions, Stores};

use crate::error::CliError;
use crate::system::signals;
use crate::ui::print::print_stderr;
use crate::ui::progress::{Progress, Show};
use crate::volume::integrity::cannot_use;

/// Most threads that write.
const THREADS: usize = 4;

/// Leaves the zeroes that are there, for a volume with internal tags.
pub(super) fn zeroes(_sector: u64, _data: &mut [u8], _tags: &mut [u8]) -> Result<(), Errno> {
    Ok(())
}

/// Writes zeroes and their tags to all blocks from sector `from`. `options` open the volume directly; `fill` makes data
/// and tags, as in [`IntegrityDevice::wipe`].
pub(super) fn wipe(
    image: &Path,
    stores: Stores,
    options: OpenOptions,
    from: u64,
    fill: impl Fn(u64, &mut [u8], &mut [u8]) -> Result<(), Errno> + Sync,
    show: Show,
) -> anyhow::Result<()> {
    let device = IntegrityDevice::open(stores, options).map_err(cannot_use(image))?;
    let total = device.layout().provided_data_sectors;
    let caught = signals::catch()?;
    let mut progress = Progress::start(show, image, Some((total - from) * 512), false);
    let (mut at, mut signal) = (from, None);
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS);
    let report = |sector| {
        progress.add((sector - at) * 512);
        at = sector;
        signal = caught.take();
        if signal.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let reached = device.wipe(from, threads, fill, report);
    let reached = reached.map_err(std::io::Error::from);
    let reached = reached.with_context(|| format!("cannot wipe device {}", image.display()))?;
    if reached < total {
        drop(progress);
        print_stderr("Wipe interrupted: the blocks after it cannot be read.");
        return Err(CliError::Interrupted(signal.unwrap_or_default()).into());
    }
    progress.finish();
    device.close().map_err(std::io::Error::from).with_context(|| format!("cannot close {}", image.display()))
}
