//! Writing the first data and tags of a dm-integrity volume: its progress, and its end by a signal.

use std::ops::ControlFlow;
use std::path::Path;

use inlock_integrity::Fill;

use crate::args::options::Options;
use crate::error::CliError;
use crate::system::signals;
use crate::ui::print::{print, print_stderr};
use crate::ui::progress::{Progress, Show};
use inlock_open::ErrorKind;
use inlock_open::unlocked::LockedStores;
use inlock_open::wipe::{self, Wiped};

/// Runs what wipes, if it comes to that: shows its progress, and stops it at a signal.
pub(super) fn watch<T>(
    image: &Path,
    fill: Fill,
    show: Show,
    run: impl FnOnce(&mut dyn FnMut(Wiped) -> ControlFlow<()>) -> inlock_open::Result<T>,
) -> anyhow::Result<T> {
    let (mut running, mut done) = (None, 0);
    let (mut signal, mut failed) = (None, None);
    let result = run(&mut |now: Wiped| {
        let Some((caught, progress)) = &mut running else {
            match signals::catch() {
                Ok(caught) => running = Some((caught, Progress::start(show, image, Some(now.total), false))),
                Err(error) => failed = Some(error),
            }
            return if failed.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        };
        progress.add(now.done - done);
        done = now.done;
        signal = caught.take();
        if signal.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    match (result, failed) {
        (_, Some(error)) => Err(error.into()),
        (Err(error), None) if error.kind() == ErrorKind::WipeStopped => {
            // Another signal does not come before the hint.
            let caught = running.map(|(caught, _progress)| caught);
            let options = if fill == Fill::Marks { "--resume-wipe --integrity-lazy" } else { "--resume-wipe" };
            print_stderr(format_args!("{error} Continue it with {options}."));
            drop(caught);
            Err(CliError::Interrupted(signal.unwrap_or_default()).into())
        }
        (result, None) => {
            let result = result?;
            if let Some((_caught, progress)) = running {
                progress.finish();
            }
            Ok(result)
        }
    }
}

/// Continues an interrupted wipe of the volume under `stores`: fills the blocks that cannot be read.
pub(super) fn resume(image: &Path, stores: &LockedStores, fill: Fill, show: Show) -> anyhow::Result<()> {
    let store = stores.integrity_store()?;
    let blocks = watch(image, fill, show, |watch| wipe::resume(image, &store, fill, watch))?;
    let now = if fill == Fill::Marks { "marked as never written" } else { "filled with zeroes" };
    print(format_args!("{blocks} blocks could not be read, and are {now}.\n"))
}

/// Returns what the options say.
pub(super) fn fill_of(options: &Options) -> Fill {
    if options.integrity_lazy { Fill::Marks } else { Fill::Zeroes }
}
