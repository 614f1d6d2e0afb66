//! Writing the first data and tags of a dm-integrity volume, or marks in their place, with progress. An interrupted
//! wipe is continued.

use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use inlock_integrity::{Fill, IntegrityDevice, IntegrityStore, OpenOptions, Sealing, Stores};

use crate::args::options::Options;
use crate::error::CliError;
use crate::system::signals;
use crate::ui::print::{print, print_stderr};
use crate::ui::progress::{Progress, Show};
use inlock_open::integrity::cannot_use;
use inlock_open::unlocked::LockedStores;

/// Most threads that write.
const THREADS: usize = 4;

/// Writes zeroes with their tags to all blocks from sector `from`, or marks these as never written. `options` open the
/// volume directly. `sealing`: `None` with internal tags.
pub(super) fn wipe(
    image: &Path,
    stores: Stores,
    options: OpenOptions,
    from: u64,
    (fill, sealing): (Fill, Option<&Sealing>),
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
    let reached = match (fill, sealing) {
        (Fill::Marks, _) => device.mark_never_written(from, threads(), sealing.and_then(Sealing::marks), report),
        (Fill::Zeroes, Some(sealing)) => {
            device.wipe(from, threads(), |sector, data, tags| sealing.seal(sector, data, tags), report)
        }
        (Fill::Zeroes, None) => device.wipe(from, threads(), |_, _, _| Ok(()), report),
    };
    let reached = reached.map_err(std::io::Error::from);
    let reached = reached.with_context(|| format!("cannot wipe device {}", image.display()))?;
    if reached < total {
        drop(progress);
        return Err(interrupted(fill, signal));
    }
    progress.finish();
    device.close().map_err(std::io::Error::from).with_context(|| format!("cannot close {}", image.display()))
}

/// Continues an interrupted wipe of the volume under `stores`: fills the blocks that cannot be read.
pub(super) fn resume(image: &Path, stores: &LockedStores, fill: Fill, show: Show) -> anyhow::Result<()> {
    let store = match (stores.layer.sealed(), stores.layer.integrity()) {
        (Some((store, _)), _) => Arc::clone(store),
        (None, Some(device)) => Arc::new(IntegrityStore::new(Arc::clone(device)).map_err(io::Error::from)?),
        (None, None) => {
            return Err(CliError::usage("Option --resume-wipe needs a volume with integrity protection."));
        }
    };
    let total = store.device().layout().provided_data_sectors;
    let caught = signals::catch()?;
    let mut progress = Progress::start(show, image, Some(total * 512), false);
    let (mut at, mut signal) = (0, None);
    let filled = store.fill_unreadable(fill, threads(), |sector| {
        progress.add((sector - at) * 512);
        at = sector;
        signal = caught.take();
        if signal.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let filled = filled.map_err(io::Error::from).with_context(|| format!("cannot wipe device {}", image.display()))?;
    if filled.reached < total {
        drop(progress);
        return Err(interrupted(fill, signal));
    }
    progress.finish();
    let now = if fill == Fill::Marks { "marked as never written" } else { "filled with zeroes" };
    print(format_args!("{} blocks could not be read, and are {now}.\n", filled.blocks))
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(THREADS)
}

/// Returns what the options say.
pub(super) fn fill_of(options: &Options) -> Fill {
    if options.integrity_lazy { Fill::Marks } else { Fill::Zeroes }
}

fn interrupted(fill: Fill, signal: Option<i32>) -> anyhow::Error {
    let options = if fill == Fill::Marks { "--resume-wipe --integrity-lazy" } else { "--resume-wipe" };
    print_stderr(format_args!("Wipe interrupted: later blocks cannot be read. Continue it with {options}."));
    CliError::Interrupted(signal.unwrap_or_default()).into()
}
