//! Writing the first data and tags of a dm-integrity volume, or marks in their place. An interrupted wipe can be
//! continued.

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use inlock_integrity::{Fill, IntegrityDevice, IntegrityStore, OpenOptions, Sealing, Stores};

use crate::error::{Error, ErrorKind, Result, ResultExt as _};
use crate::integrity::cannot_use;
use crate::unlocked::LockedStores;

/// Most threads that write.
const THREADS: usize = 4;

/// The blocks of a volume from a sector on, which get zeroes with their tags, or marks that they were never written.
pub struct Wipe {
    device: IntegrityDevice,
    image: PathBuf,
    from: u64,
    fill: Fill,
}

/// A volume whose wipe was interrupted.
pub struct UnfinishedWipe {
    store: Arc<IntegrityStore>,
    image: PathBuf,
    fill: Fill,
}

impl Wipe {
    /// Opens the volume under `stores` directly, as `options` say. `image`: its device.
    pub fn new(image: &Path, stores: Stores, options: OpenOptions, from: u64, fill: Fill) -> Result<Self> {
        let device = IntegrityDevice::open(stores, options).map_err(cannot_use(image))?;
        Ok(Self { device, image: image.to_owned(), from, fill })
    }

    /// Returns what the blocks get.
    pub fn fill(&self) -> Fill {
        self.fill
    }

    /// Returns the number of bytes to fill.
    pub fn total(&self) -> u64 {
        (self.sectors() - self.from) * 512
    }

    fn sectors(&self) -> u64 {
        self.device.layout().provided_data_sectors
    }

    /// Fills the blocks, and returns whether all are. `sealing`: `None` with internal tags. `progress` takes the number
    /// of bytes that were filled since its last call, and can interrupt the wipe: later blocks can then not be read.
    pub fn run(&self, sealing: Option<&Sealing>, progress: impl FnMut(u64) -> ControlFlow<()>) -> Result<bool> {
        let Self { device, image, from, fill } = self;
        let report = by_sector(*from, progress);
        let reached = match (fill, sealing) {
            (Fill::Marks, _) => device.mark_never_written(*from, threads(), sealing.and_then(Sealing::marks), report),
            (Fill::Zeroes, Some(sealing)) => {
                device.wipe(*from, threads(), |sector, data, tags| sealing.seal(sector, data, tags), report)
            }
            (Fill::Zeroes, None) => device.wipe(*from, threads(), |_, _, _| Ok(()), report),
        };
        let reached = reached.map_err(io::Error::from);
        Ok(reached.with_context(|| format!("cannot wipe device {}", image.display()))? >= self.sectors())
    }

    /// Makes the volume durable.
    pub fn close(self) -> Result<()> {
        let closed = self.device.close().map_err(io::Error::from);
        closed.with_context(|| format!("cannot close {}", self.image.display()))
    }
}

impl UnfinishedWipe {
    /// Fails for a volume without integrity protection. `image`: its device.
    pub fn new(image: &Path, stores: &LockedStores, fill: Fill) -> Result<Self> {
        let store = match (stores.layer.sealed(), stores.layer.integrity()) {
            (Some((store, _)), _) => Arc::clone(store),
            (None, Some(device)) => Arc::new(IntegrityStore::new(Arc::clone(device)).map_err(io::Error::from)?),
            (None, None) => {
                let text = "Option --resume-wipe needs a volume with integrity protection.";
                return Err(Error::new(ErrorKind::NeedsIntegrity, text));
            }
        };
        Ok(Self { store, image: image.to_owned(), fill })
    }

    /// Returns the number of bytes to examine.
    pub fn total(&self) -> u64 {
        self.sectors() * 512
    }

    fn sectors(&self) -> u64 {
        self.store.device().layout().provided_data_sectors
    }

    /// Fills the blocks that cannot be read, and returns their number. `None`: `progress` has interrupted it, which
    /// takes the number of bytes that were examined since its last call.
    pub fn run(&self, progress: impl FnMut(u64) -> ControlFlow<()>) -> Result<Option<u64>> {
        let filled = self.store.fill_unreadable(self.fill, threads(), by_sector(0, progress)).map_err(io::Error::from);
        let filled = filled.with_context(|| format!("cannot wipe device {}", self.image.display()))?;
        Ok((filled.reached >= self.sectors()).then_some(filled.blocks))
    }
}

/// Returns a callback for sectors from `at` on.
fn by_sector(mut at: u64, mut progress: impl FnMut(u64) -> ControlFlow<()>) -> impl FnMut(u64) -> ControlFlow<()> {
    move |sector| {
        let bytes = (sector - at) * 512;
        at = sector;
        progress(bytes)
    }
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(THREADS)
}
