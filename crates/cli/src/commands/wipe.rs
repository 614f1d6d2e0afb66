//! Writing the first data and tags of a dm-integrity volume, with progress; an interrupted wipe is continued.

use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use inlock_engine::Errno;
use inlock_integrity::{IntegrityDevice, IntegrityStore, OpenOptions, Stores};

use crate::error::CliError;
use crate::system::signals;
use crate::ui::print::{print, print_stderr};
use crate::ui::progress::{Progress, Show};
use crate::volume::integrity::cannot_use;
use crate::volume::unlocked::LockedStores;

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
    let report = |sector| {
        progress.add((sector - at) * 512);
        at = sector;
        signal = caught.take();
        if signal.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let reached = device.wipe(from, threads(), fill, report);
    let reached = reached.map_err(std::io::Error::from);
    let reached = reached.with_context(|| format!("cannot wipe device {}", image.display()))?;
    if reached < total {
        drop(progress);
        return Err(interrupted(signal));
    }
    progress.finish();
    device.close().map_err(std::io::Error::from).with_context(|| format!("cannot close {}", image.display()))
}

/// Continues an interrupted wipe of the volume under `stores`: writes zeroes to the blocks that cannot be read.
pub(super) fn resume(image: &Path, stores: &LockedStores, show: Show) -> anyhow::Result<()> {
    let Some(integrity) = stores.integrity() else {
        return Err(CliError::usage("Option --resume-wipe needs a volume with integrity protection."));
    };
    let store = match integrity.sealed {
        Some(sealed) => sealed.store,
        None => Arc::new(IntegrityStore::new(integrity.device).map_err(io::Error::from)?),
    };
    let total = store.device().layout().provided_data_sectors;
    let caught = signals::catch()?;
    let mut progress = Progress::start(show, image, Some(total * 512), false);
    let (mut at, mut signal) = (0, None);
    let filled = store.fill_unreadable(threads(), |sector| {
        progress.add((sector - at) * 512);
        at = sector;
        signal = caught.take();
        if signal.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let filled = filled.map_err(io::Error::from).with_context(|| format!("cannot wipe device {}", image.display()))?;
    if filled.reached < total {
        drop(progress);
        return Err(interrupted(signal));
    }
    progress.finish();
    print(format_args!("{} blocks could not be read, and are filled with zeroes.\n", filled.blocks))
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(THREADS)
}

fn interrupted(signal: Option<i32>) -> anyhow::Error {
    print_stderr("Wipe interrupted: later blocks cannot be read. Continue it with --resume-wipe.");
    CliError::Interrupted(signal.unwrap_or_default()).into()
}
