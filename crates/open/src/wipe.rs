//! Writing the first data and tags of a dm-integrity volume, or marks in their place. An interrupted wipe is continued.

use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use inlock_integrity::{Fill, IntegrityDevice, IntegrityStore, OpenOptions, Sealing, Stores};

use crate::error::{Error, ErrorKind, Result, ResultExt as _};

use super::integrity::cannot_use;

/// Most threads that write.
const THREADS: usize = 4;

/// Progress of a wipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wiped {
    /// Bytes of the volume that are done.
    pub done: u64,
    /// Bytes of the volume that there are to do.
    pub total: u64,
}

/// Writes zeroes with their tags to all blocks from sector `from`, or marks these as never written. `options` open the
/// volume directly. `sealing`: `None` with internal tags. `watch` is called before the first write, and after each; it
/// can stop the wipe.
pub(crate) fn wipe(
    image: &Path,
    stores: Stores,
    options: OpenOptions,
    from: u64,
    (fill, sealing): (Fill, Option<&Sealing>),
    watch: &mut dyn FnMut(Wiped) -> ControlFlow<()>,
) -> Result<()> {
    let device = IntegrityDevice::open(stores, options).map_err(cannot_use(image))?;
    let end = device.layout().provided_data_sectors;
    let mut report = |sector| watch(Wiped { done: (sector - from) * 512, total: (end - from) * 512 });
    if report(from).is_break() {
        return Err(stopped());
    }
    let reached = match (fill, sealing) {
        (Fill::Marks, _) => device.mark_never_written(from, threads(), sealing.and_then(Sealing::marks), report),
        (Fill::Zeroes, Some(sealing)) => {
            device.wipe(from, threads(), |sector, data, tags| sealing.seal(sector, data, tags), report)
        }
        (Fill::Zeroes, None) => device.wipe(from, threads(), |_, _, _| Ok(()), report),
    };
    if reached.map_err(cannot_wipe(image))? < end {
        return Err(stopped());
    }
    device.close().map_err(io::Error::from).with_context(|| format!("cannot close {}", image.display()))
}

/// Continues an interrupted wipe of an open volume: fills the blocks that cannot be read. Returns their number. `watch`
/// is called before the first block is read, and after some; it can stop the wipe.
pub fn resume(
    image: &Path,
    store: &Arc<IntegrityStore>,
    fill: Fill,
    watch: &mut dyn FnMut(Wiped) -> ControlFlow<()>,
) -> Result<u64> {
    let end = store.device().layout().provided_data_sectors;
    let mut report = |sector| watch(Wiped { done: sector * 512, total: end * 512 });
    if report(0).is_break() {
        return Err(stopped());
    }
    let filled = store.fill_unreadable(fill, threads(), report).map_err(cannot_wipe(image))?;
    if filled.reached < end { Err(stopped()) } else { Ok(filled.blocks) }
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(THREADS)
}

fn cannot_wipe(image: &Path) -> impl FnOnce(inlock_engine::Errno) -> Error {
    let text = format!("cannot wipe device {}", image.display());
    move |errno| Error::with_source(ErrorKind::Failed, text, io::Error::from(errno))
}

fn stopped() -> Error {
    Error::new(ErrorKind::WipeStopped, "Wipe interrupted: later blocks cannot be read.")
}
