//! `verity format`: makes the tree of a data device, and prints the root hash.

use std::fs::OpenOptions as FileOptions;
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use inlock_engine::Errno;
use inlock_engine::store::file::IoMode;
use inlock_verity::{Fec, FecParameters, Layout, Stores, Superblock, create, random_salt};
use uuid::Uuid;

use super::dump::description;
use super::threads;
use crate::args::options::Options;
use crate::args::verity::{fec, given, hash_offset, refuse};
use crate::error::CliError;
use crate::host::context;
use crate::output::{self, Existing};
use crate::ui::print::print;
use crate::ui::terminal;
use inlock_open::device::{Device, OpenMode};
use inlock_open::error::cannot_open;
use inlock_open::output::Output;
use inlock_open::path_text;
use inlock_open::signatures;
use inlock_open::verity::{FecDevice, FecOptions, GivenParameters, VerityDevices, cannot_use, hex, store};

/// A device to create.
pub(super) struct FormatArgs {
    data: PathBuf,
    hash: PathBuf,
    given: GivenParameters,
    /// As the user spells it; it is stored in lower case.
    hash_name: String,
    hash_offset: u64,
    superblock: bool,
    uuid: Uuid,
    root_hash_file: Option<PathBuf>,
    fec: Option<FecOptions>,
    threads: usize,
    /// `--batch-mode`
    batch: bool,
}

impl FormatArgs {
    pub(super) fn new(options: &Options, data: PathBuf, hash: PathBuf) -> anyhow::Result<Self> {
        refuse(options)?;
        let uuid = match options.uuid.as_deref() {
            None => Uuid::new_v4(),
            Some(text) => Uuid::parse_str(text).ok().filter(|_| text.len() == 36).ok_or_else(|| {
                CliError::usage(format!("Wrong VERITY UUID format provided on device {}.", hash.display()))
            })?,
        };
        Ok(Self {
            data,
            hash,
            given: given(options)?,
            hash_name: options.hash.clone().unwrap_or_else(|| "sha256".to_owned()),
            hash_offset: hash_offset(options)?,
            superblock: !options.no_superblock,
            uuid,
            root_hash_file: options.root_hash_file.clone(),
            fec: fec(options)?,
            threads: threads(options),
            batch: options.batch_mode,
        })
    }

    /// Names what a hash device has, and asks on a terminal.
    fn confirm(&self, devices: &VerityDevices) -> anyhow::Result<()> {
        if let Some(hash) = devices.hash.as_ref().filter(|_| !self.batch)
            && signatures::warn_of(hash, "DM_verity_hash")?
            && terminal::stdin_is_terminal()
        {
            let text = format!("This will overwrite data on {} irrevocably.", path_text::shown(&hash.path));
            terminal::confirm(&text, CliError::NotConfirmed)?;
        }
        Ok(())
    }

    pub(super) fn run(&self) -> anyhow::Result<()> {
        let root_hash_file = self.root_hash_file.as_deref().map(|path| self.take(path)).transpose()?;
        make_file(&self.hash)?;
        if let Some(fec) = &self.fec {
            make_file(&fec.device)?;
        }
        let devices = VerityDevices::open(context(), &self.data, &self.hash, self.fec.as_ref(), OpenMode::Create)?;
        let path = &devices.hash().path;
        self.confirm(&devices)?;
        let mut parameters = self.given.parameters(&devices.data);
        if self.given.salt.is_none() {
            parameters.salt = random_salt().map_err(cannot_use(path))?;
        }
        let layout = parameters.layout().map_err(|error| cannot_use(path)(error.into()))?;
        if devices.hash.is_none() && layout.data_len() > self.hash_offset {
            return Err(CliError::refused(
                "Data area overlaps with hash area.",
                "set --data-blocks and --hash-offset, so that the tree is behind the data",
            ));
        }
        let tree_offset = if self.superblock {
            Superblock::tree_offset(self.hash_offset, parameters.hash_block_len)
                .map_err(|error| cannot_use(path)(error.into()))?
        } else if self.hash_offset.is_multiple_of(parameters.hash_block_len.into()) {
            self.hash_offset
        } else {
            return Err(CliError::usage("Unsupported VERITY hash offset."));
        };
        // Before the hash device grows.
        if layout.data_len() > devices.data.len {
            return Err(CliError::refused(
                format!("Device {} is too small for the data blocks.", devices.data.path.display()),
                "lower --data-blocks, or leave it out",
            ));
        }
        let end = tree_offset.checked_add(layout.tree_len()).context("Hash area overflow.")?;
        let fec = self.fec_parameters(&devices, &layout, tree_offset, end)?;
        let on_hash = fec.filter(|_| matches!(devices.fec, Some(FecDevice::Hash)));
        enlarge(devices.hash(), on_hash.map_or(end, |fec| fec.offset))?;
        let hash_store = store(devices.hash(), IoMode::Sync, false)?;
        let data_store = match &devices.hash {
            Some(_) => store(&devices.data, IoMode::Sync, true)?,
            None => hash_store.clone(),
        };
        let stores = Stores::new(data_store, hash_store.clone(), tree_offset);
        let root = create(&stores, &layout, self.threads).map_err(cannot_use(path))?;
        let fec = fec.map(|parameters| self.write_parity(parameters, &devices, &stores, &layout)).transpose()?;
        let fec = fec.map(|fec| (fec, on_hash.is_some()));
        // Last: a device whose creation was interrupted has none.
        let (uuid, hash_name) = (self.uuid.into_bytes(), self.hash_name.to_ascii_lowercase());
        let superblock = self.superblock.then_some(Superblock { uuid, hash_name, parameters });
        if let Some(superblock) = &superblock {
            hash_store.sync().map_err(cannot_sync(path))?;
            superblock.write(&*hash_store, self.hash_offset).map_err(cannot_use(path))?;
        }
        hash_store.sync().map_err(cannot_sync(path))?;
        let root = hex(&root);
        if let Some((path, output)) = root_hash_file {
            output.write_all(root.as_bytes()).with_context(cannot_create(path))?;
        }
        let text =
            description(&self.hash, superblock.as_ref(), &layout, fec.as_ref(), &self.hash_name, self.hash_offset)?;
        let at = text.find("Hash device size").unwrap_or(text.len());
        print(format_args!("{}Root hash:      \t{root}\n{}", &text[..at], &text[at..]))
    }

    /// Opens the file of the root hash, which is none of the devices.
    fn take<'a>(&self, path: &'a Path) -> anyhow::Result<(&'a Path, Output)> {
        let fec = self.fec.as_ref().map(|fec| &*fec.device);
        let devices: Vec<&Path> = [&*self.data, &*self.hash].into_iter().chain(fec).collect();
        let output = output::take(Some(path), &devices, Existing::Replaced { batch: self.batch });
        Ok((path, output.with_context(cannot_create(path))?))
    }

    /// Returns the parameters of error correction, for a tree that ends at byte `end`.
    fn fec_parameters(
        &self,
        devices: &VerityDevices,
        layout: &Layout,
        tree_offset: u64,
        end: u64,
    ) -> anyhow::Result<Option<FecParameters>> {
        let is_on_hash = matches!(devices.fec, Some(FecDevice::Hash));
        let hash_len = devices.hash().len.max(end);
        let fec = self.fec.as_ref().map(|fec| fec.parameters(layout, tree_offset, hash_len, is_on_hash));
        Ok(fec.transpose()?)
    }

    /// Writes the parity of a device whose tree is written, and syncs it.
    fn write_parity(
        &self,
        parameters: FecParameters,
        devices: &VerityDevices,
        stores: &Stores,
        layout: &Layout,
    ) -> anyhow::Result<Fec> {
        let device = devices.fec().context("no device for the parity")?;
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
fn enlarge(device: &Device, len: u64) -> anyhow::Result<()> {
    let Some(file) = device.file().filter(|_| !device.is_block()) else { return Ok(()) };
    let cannot_enlarge = || format!("cannot enlarge {}", device.path.display());
    if file.metadata().with_context(cannot_enlarge)?.len() < len {
        file.set_len(len).with_context(cannot_enlarge)?;
    }
    Ok(())
}

/// Creates the hash device as an empty file if there is none.
fn make_file(path: &Path) -> anyhow::Result<()> {
    match FileOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        // A name such as UUID=.
        Err(_) if path.to_string_lossy().contains('=') => Ok(()),
        Err(error) => Err(cannot_open(path, true)(error).into()),
    }
}

fn cannot_sync(path: &Path) -> impl FnOnce(Errno) -> anyhow::Error {
    let context = format!("cannot write to {}", path.display());
    move |error| anyhow::Error::from(std::io::Error::from(error)).context(context)
}

fn cannot_create(root_hash_file: &Path) -> impl FnOnce() -> String {
    move || format!("Cannot create root hash file {} for writing.", root_hash_file.display())
}
