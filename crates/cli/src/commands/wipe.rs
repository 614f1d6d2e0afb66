//! Wiping a volume with integrity protection, with progress. A signal interrupts it, and it can be continued.

use std::ops::ControlFlow;
use std::path::Path;

use inlock_integrity::{Fill, OpenOptions, Sealing, Stores};

use crate::args::options::Options;
use crate::error::CliError;
use crate::system::signals::{self, Caught};
use crate::ui::print::{print, print_stderr};
use crate::ui::progress::{Progress, Show};
use inlock_open::unlocked::LockedStores;
use inlock_open::wipe::{UnfinishedWipe, Wipe};

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
    run_wipe(image, Wipe::new(image, stores, options, from, fill)?, sealing, show)
}

/// Wipes the volume on `image`. `sealing`: `None` with internal tags.
pub(super) fn run_wipe(image: &Path, wipe: Wipe, sealing: Option<&Sealing>, show: Show) -> anyhow::Result<()> {
    let caught = signals::catch()?;
    let mut progress = Progress::start(show, image, Some(wipe.total()), false);
    let mut signal = None;
    if !wipe.run(sealing, |bytes| step(&mut progress, bytes, &caught, &mut signal))? {
        drop(progress);
        return Err(interrupted(wipe.fill(), signal));
    }
    progress.finish();
    Ok(wipe.close()?)
}

/// Continues an interrupted wipe of the volume under `stores`: fills the blocks that cannot be read.
pub(super) fn resume(image: &Path, stores: &LockedStores, fill: Fill, show: Show) -> anyhow::Result<()> {
    let wipe = UnfinishedWipe::new(image, stores, fill)?;
    let caught = signals::catch()?;
    let mut progress = Progress::start(show, image, Some(wipe.total()), false);
    let mut signal = None;
    let Some(blocks) = wipe.run(|bytes| step(&mut progress, bytes, &caught, &mut signal))? else {
        drop(progress);
        return Err(interrupted(fill, signal));
    };
    progress.finish();
    let now = if fill == Fill::Marks { "marked as never written" } else { "filled with zeroes" };
    print(format_args!("{blocks} blocks could not be read, and are {now}.\n"))
}

/// Shows progress, and ends the wipe after a signal.
fn step(progress: &mut Progress, bytes: u64, caught: &Caught, signal: &mut Option<i32>) -> ControlFlow<()> {
    progress.add(bytes);
    *signal = caught.take();
    if signal.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
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
