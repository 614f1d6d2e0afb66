//! The stores of a volume.

use inlock_engine::BackingStore;
use std::sync::Arc;

/// Stores of a volume: one for data and metadata, or two.
#[derive(Clone)]
pub struct Stores {
    /// Store of the data, and of the metadata too unless they have a device of their own.
    pub data: Arc<dyn BackingStore>,
    /// Metadata device: superblock, journal and tags.
    pub meta: Option<Arc<dyn BackingStore>>,
    /// First sector of the volume on the store that has the superblock.
    pub start: u64,
}

/// Lengths of a volume's devices in sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSizes {
    /// Device of the data.
    pub data: u64,
    /// Metadata device, if the volume has one.
    pub meta: Option<u64>,
    /// First sector of the volume on the device that has the superblock.
    pub start: u64,
}

impl DeviceSizes {
    /// Returns the length of the device that has the superblock.
    pub(crate) fn superblock_device(&self) -> u64 {
        self.meta.unwrap_or(self.data)
    }
}

impl Stores {
    /// Describes a volume on one store, from its first sector.
    pub fn interleaved(store: Arc<dyn BackingStore>) -> Self {
        Self { data: store, meta: None, start: 0 }
    }

    /// Describes a volume with a metadata device.
    pub fn separate(data: Arc<dyn BackingStore>, meta: Arc<dyn BackingStore>) -> Self {
        Self { data, meta: Some(meta), start: 0 }
    }

    /// Returns the lengths.
    pub fn sizes(&self) -> DeviceSizes {
        let sectors = |store: &Arc<dyn BackingStore>| store.geometry().len / 512;
        DeviceSizes { data: sectors(&self.data), meta: self.meta.as_ref().map(sectors), start: self.start }
    }

    /// Returns the store of superblock, journal and tags.
    pub fn metadata(&self) -> &dyn BackingStore {
        self.meta.as_deref().unwrap_or(&*self.data)
    }

    /// Returns the byte at which the superblock starts; `None` if there is no such byte.
    pub(crate) fn superblock_at(&self) -> Option<u64> {
        self.start.checked_mul(512)
    }
}
