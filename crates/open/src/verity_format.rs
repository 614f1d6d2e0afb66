//! Creating dm-verity devices.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use inlock_engine::Errno;
use inlock_engine::store::file::IoMode;
use inlock_verity::{Fec, FecParameters, Layout, Parameters, Stores, Superblock, create, hash_named, random_salt};
use uuid::Uuid;

use crate::device::{Device, OpenMode};
use crate::durable;
use crate::error::{Error, ErrorKind, Result, ResultExt as _, cannot_open};
use crate::host::Context;
use crate::verity::{FecDevice, FecOptions, GivenParameters, VerityDevices, cannot_use, store};

/// A device to create.
#[derive(Clone, Debug)]
pub struct VerityFormat {
    /// Parameters; those that are missing have veritysetup's defaults, or fit the data device.
    pub given: GivenParameters,
    /// As the user spells it; it is stored in lower case.
    pub hash_name: String,
    /// First byte of the superblock, or of the tree without one.
    pub hash_offset: u64,
    /// Whether the device gets a superblock.
    pub superblock: bool,
    /// UUID of the superblock.
    pub uuid: Uuid,
    /// Forward error correction.
    pub fec: Option<FecOptions>,
    /// Number of threads that hash.
    pub threads: usize,
}

/// A device that was created.
#[derive(Debug)]
#[non_exhaustive]
pub struct VerityFormatted {
    /// The root hash.
    pub root: Vec<u8>,
    /// Places of blocks and tree.
    pub layout: Layout,
    /// The superblock, if it has one.
    pub superblock: Option<Superblock>,
    /// The parity, and whether it is on the hash device.
    pub fec: Option<(Fec, bool)>,
}

impl VerityFormat {
    /// Opens and locks the devices. Files for tree and parity are created if they are missing.
    pub fn open(&self, context: &Context, data: &Path, hash: &Path) -> Result<VerityDevices> {
        make_file(hash)?;
        if let Some(fec) = &self.fec {
            make_file(&fec.device)?;
        }
        VerityDevices::open(context, data, hash, self.fec.as_ref(), OpenMode::Create)
    }

    /// Writes tree, parity and superblock, and makes them durable. What the hash device has is overwritten.
    pub fn create(&self, devices: &VerityDevices) -> Result<VerityFormatted> {
        let path = &devices.hash().path;
        let mut parameters = self.given.parameters(&devices.data);
        if self.given.salt.is_none() {
            parameters.salt = random_salt().map_err(cannot_use(path))?;
        }
        if hash_named(&self.hash_name.to_ascii_lowercase()) != Some(parameters.hash) {
            let text = format!("Hash {} of the superblock is not that of the tree.", self.hash_name);
            return Err(Error::new(ErrorKind::VerityLayout, text));
        }
        let layout = parameters.layout().map_err(|error| cannot_use(path)(error.into()))?;
        if devices.hash.is_none() && layout.data_len() > self.hash_offset {
            return Err(Error::new(ErrorKind::VerityOverlap, "Data area overlaps with hash area."));
        }
        let tree_offset = self.tree_offset(&parameters, path)?;
        // Before the hash device grows.
        if layout.data_len() > devices.data.len {
            let text = format!("Device {} is too small for the data blocks.", devices.data.path.display());
            return Err(Error::new(ErrorKind::VerityDataBlocks, text));
        }
        let end = tree_offset.checked_add(layout.tree_len());
        let end = end.ok_or_else(|| Error::new(ErrorKind::Failed, "Hash area overflow."))?;
        let fec = self.fec_parameters(devices, &layout, tree_offset, end)?;
        let on_hash = fec.filter(|_| matches!(devices.fec, Some(FecDevice::Hash)));
        enlarge(devices.hash(), on_hash.map_or(end, |fec| fec.offset))?;
        let hash_store = store(devices.hash(), IoMode::Sync, false)?;
        let data_store = match &devices.hash {
            Some(_) => store(&devices.data, IoMode::Sync, true)?,
            None => hash_store.clone(),
        };
        let stores = Stores::new(data_store, hash_store.clone(), tree_offset);
        let root = create(&stores, &layout, self.threads).map_err(cannot_use(path))?;
        let fec = fec.map(|parameters| self.write_parity(parameters, devices, &stores, &layout)).transpose()?;
        let fec = fec.map(|fec| (fec, on_hash.is_some()));
        // Last: a device whose creation was interrupted has none.
        let (uuid, hash_name) = (self.uuid.into_bytes(), self.hash_name.to_ascii_lowercase());
        let superblock = self.superblock.then_some(Superblock { uuid, hash_name, parameters });
        if let Some(superblock) = &superblock {
            hash_store.sync().map_err(cannot_sync(path))?;
            superblock.write(&*hash_store, self.hash_offset).map_err(cannot_use(path))?;
        }
        hash_store.sync().map_err(cannot_sync(path))?;
        for device in [Some(devices.hash()), devices.fec()].into_iter().flatten().filter(|device| !device.is_block()) {
            device.file().map_or(Ok(()), |file| durable::sync_name(file, &device.path))?;
        }
        Ok(VerityFormatted { root, layout, superblock, fec })
    }

    /// Returns the start of the tree on the device at `path`.
    fn tree_offset(&self, parameters: &Parameters, path: &Path) -> Result<u64> {
        let block_len = parameters.hash_block_len;
        if self.superblock {
            Superblock::tree_offset(self.hash_offset, block_len).map_err(|error| cannot_use(path)(error.into()))
        } else if self.hash_offset.is_multiple_of(block_len.into()) {
            Ok(self.hash_offset)
        } else {
            Err(Error::new(ErrorKind::VerityLayout, "Unsupported VERITY hash offset."))
        }
    }

    /// Returns the parameters of error correction, for a tree that ends at byte `end`.
    fn fec_parameters(
        &self,
        devices: &VerityDevices,
        layout: &Layout,
        tree_offset: u64,
        end: u64,
    ) -> Result<Option<FecParameters>> {
        let is_on_hash = matches!(devices.fec, Some(FecDevice::Hash));
        let hash_len = devices.hash().len.max(end);
        let fec = self.fec.as_ref().map(|fec| fec.parameters(layout, tree_offset, hash_len, is_on_hash));
        fec.transpose()
    }

    /// Writes the parity of a device whose tree is written, and syncs it.
    fn write_parity(
        &self,
        parameters: FecParameters,
        devices: &VerityDevices,
        stores: &Stores,
        layout: &Layout,
    ) -> Result<Fec> {
        let device = devices.fec().ok_or_else(|| Error::new(ErrorKind::Failed, "no device for the parity"))?;
        let path = &device.path;
        let fec = |store| Fec::new(store, parameters, layout).map_err(|error| cannot_use(path)(error.into()));
        // The store has the length that it is opened with.
        let len = fec(stores.hash.clone())?.parity_len();
        enlarge(device, parameters.offset + len)?;
        let store = store(device, IoMode::Sync, false)?;
        let fec = fec(store.clone())?;
        fec.create(stores, self.threads).map_err(cannot_use(path))?;
        store.sync().map_err(cannot_sync(path))?;
        Ok(fec)
    }
}

/// Lets a file have at least `len` bytes.
fn enlarge(device: &Device, len: u64) -> Result<()> {
    let Some(file) = device.file().filter(|_| !device.is_block()) else { return Ok(()) };
    let cannot_enlarge = || format!("cannot enlarge {}", device.path.display());
    if file.metadata().with_context(cannot_enlarge)?.len() < len {
        file.set_len(len).with_context(cannot_enlarge)?;
    }
    Ok(())
}

/// Creates the hash device as an empty file if there is none.
fn make_file(path: &Path) -> Result<()> {
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        // A name such as UUID=.
        Err(_) if path.to_string_lossy().contains('=') => Ok(()),
        Err(error) => Err(cannot_open(path, true)(error)),
    }
}

fn cannot_sync(path: &Path) -> impl FnOnce(Errno) -> Error {
    let text = format!("cannot write to {}", path.display());
    move |error| Error::with_source(ErrorKind::Failed, text, io::Error::from(error))
}
