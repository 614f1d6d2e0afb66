//! An unlocked volume, and the engine's device made of it.

use crate::error::{Cause, Error, ErrorKind, Result};
use crate::host::Context;
use std::path::PathBuf;
use std::sync::Arc;

use inlock_cipher::scrub_stack;
use inlock_engine as engine;
use inlock_engine::store::file::IoMode;
use inlock_integrity::IntegrityStore;
use inlock_volume::table::AnyTable;

use super::contents::{Connection, Contents, cannot_use};
use super::device::Device;
use super::engine::VolumeEngine;
use super::holes;
use super::info::VolumeInfo;
use super::keyring::{KeyLink, LinkedKeys};
use super::layer::Layer;
use super::lock::DeviceLock;
use super::secret::SCRUB;

/// A volume that is unlocked, and whose devices are locked.
pub struct UnlockedVolume {
    context: Context,
    /// One device, except for a table, which may have several or none.
    data: Vec<Device>,
    /// What is known of it.
    pub info: VolumeInfo,
    contents: Box<dyn Contents>,
    locks: Vec<DeviceLock>,
    engine: Option<VolumeEngine>,
    /// Holes of the devices read as zeroes.
    zero_holes: bool,
    /// A device is read-only.
    read_only: bool,
}

/// The engine's device, and the locks on what is below.
///
/// Keep it until the last use of the device, and of its clones: dropping it releases the locks, and ends the threads
/// that commit a journal. Another process may then write. Call [`LockedStores::check_writes`] before, after the last
/// write: a volume with integrity protection that is dropped without it loses what was not flushed.
pub struct LockedStores {
    /// The device of the engine.
    pub device: Arc<engine::Device>,
    /// The devices as first opened. The exclusive claim on a block device belongs to this descriptor, not to the one
    /// for direct I/O.
    data: Vec<Device>,
    /// What is under the engine's device.
    pub layer: Arc<dyn Layer>,
    _locks: Vec<DeviceLock>,
}

impl Drop for LockedStores {
    fn drop(&mut self) {
        // Before the locks: nothing is written without them.
        self.layer.end();
    }
}

impl LockedStores {
    /// Returns what runs: the engine's device, and what is under it.
    pub fn running(&self) -> (Arc<engine::Device>, Arc<dyn Layer>) {
        (Arc::clone(&self.device), Arc::clone(&self.layer))
    }

    /// Returns the store of a volume with integrity protection, whose wipe may go on.
    pub fn integrity_store(&self) -> Result<Arc<IntegrityStore>> {
        match (self.layer.sealed(), self.layer.integrity()) {
            (Some((store, _)), _) => Ok(Arc::clone(store)),
            (None, Some(device)) => {
                Ok(Arc::new(IntegrityStore::new(Arc::clone(device)).map_err(std::io::Error::from)?))
            }
            (None, None) => {
                let text = "Option --resume-wipe needs a volume with integrity protection.";
                Err(Error::new(ErrorKind::NeedsIntegrity, text))
            }
        }
    }

    /// Returns how the use of the volume ended: `ended`, or an error if writes may be lost.
    ///
    /// Closes the layer first.
    pub fn check_writes<E: From<Error> + Into<Cause>>(&self, ended: Result<(), E>) -> Result<(), E> {
        let ended = self.layer.close().map_err(E::from).and(ended);
        if !self.device.has_lost_writes() {
            return ended;
        }
        let path = self.data.first().map_or_else(PathBuf::new, |data| data.path.clone());
        Err(Error::writes_lost(&path, ended.err().map(Into::into)).into())
    }
}

impl UnlockedVolume {
    pub(crate) fn new(
        context: &Context,
        data: Vec<Device>,
        info: VolumeInfo,
        contents: Box<dyn Contents>,
        locks: Vec<DeviceLock>,
    ) -> Self {
        let context = context.clone();
        Self { context, data, info, contents, locks, engine: None, zero_holes: false, read_only: false }
    }

    /// Uses direct I/O if the volume is on a block device and aligned with its blocks: the layers above have caches of
    /// their own, and must not wait for memory of this one. Only for frontends with workers, whose buffers are aligned.
    /// A volume with integrity protection has buffers of its own.
    pub fn use_direct_io(&mut self) {
        self.contents.use_direct_io(&self.data);
    }

    /// Makes holes of the devices read as zeroes.
    ///
    /// # Errors
    ///
    /// Fails for a device whose holes need not be zeroes, and for a volume of another kind.
    pub(crate) fn read_zero_holes(&mut self) -> Result<()> {
        if !self.contents.is_mapped() {
            return Err(holes::no_holes(&self.info.device));
        }
        self.data.iter().try_for_each(holes::check)?;
        self.zero_holes = true;
        Ok(())
    }

    /// Uses a cipher engine.
    pub fn use_engine(&mut self, engine: Option<VolumeEngine>) {
        self.engine = engine;
    }

    /// Adds the volume key, if there is one, to keyrings of the kernel.
    pub fn link_key(&self, links: &[KeyLink]) -> Result<LinkedKeys> {
        self.contents.key().map_or_else(|| Ok(LinkedKeys::default()), |key| LinkedKeys::link(links, key))
    }

    /// Opens it read-only, also if it is to be written.
    pub(crate) fn set_read_only(&mut self) {
        self.read_only = true;
    }

    /// Makes the engine's device, read-only for a legacy cipher or a read-only device. Wipes the volume key before it
    /// returns; the cipher keeps its own key schedule.
    pub fn into_device(self, mode: IoMode, access: engine::Access) -> Result<LockedStores> {
        let stores = self.connect(mode, access);
        scrub_stack::<SCRUB>();
        stores
    }

    #[inline(never)]
    fn connect(self, mode: IoMode, access: engine::Access) -> Result<LockedStores> {
        let Self { context, data, info, contents, locks, engine, zero_holes, read_only } = self;
        let access = engine::Access { read_only: access.read_only || read_only, ..access };
        let path = &info.device;
        if engine.is_some() && !contents.is_mapped() {
            return Err(VolumeEngine::nothing_to_do(path));
        }
        let connection = Connection { context: &context, data: &data, info: &info, mode, access, engine };
        let (device, layer) = contents.connect(connection)?;
        let device =
            if zero_holes { device.with_zero_holes().map_err(|error| cannot_use(error, path))? } else { device };
        if inlock_cipher::memory_lock_failed() {
            context.warn("cannot lock the memory of keys, which may be written to swap (see ulimit -l)");
        }
        Ok(LockedStores { device: Arc::new(device), data, layer, _locks: locks })
    }

    /// Returns the names of its devices that are files.
    pub fn files(&self) -> Vec<String> {
        self.data.iter().filter(|data| !data.is_block()).map(|data| data.path.display().to_string()).collect()
    }

    /// Returns the device-mapper table of the volume, whose device gets the name `name`.
    ///
    /// # Errors
    ///
    /// Fails for a volume that Inlock has no table for.
    pub fn table(self, name: &str) -> Result<AnyTable> {
        self.contents.table(&self.data, &self.info, name)
    }
}
