//! dm-verity devices: their two underlying devices, parameters and root hash.

use crate::error::{Error, ErrorKind, Result, ResultExt as _};
use crate::host::Context;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use inlock_engine::BackingStore;
use inlock_engine::store::file::{FileStore, IoMode};
use inlock_engine::store::threaded::ThreadedStore;
use inlock_verity::{
    Area, Corruption, Fec, FecParameters, Layout, OpenOptions, Parameters, Stores, Superblock, VerityError, VerityStore,
};
use uuid::Uuid;

use super::device::{Device, OpenMode};
use super::lock::{self, DeviceLock};
use super::threads::limit_waits;

/// A dm-verity device as named on the command line.
#[derive(Clone, Debug)]
pub struct VerityOptions {
    /// Device of the hash tree.
    pub hash_device: PathBuf,
    /// First byte of the superblock, or of the tree without one.
    pub hash_offset: u64,
    /// The parameters of a device without superblock. Those of a superblock must be the same, as far as they are given.
    pub given: GivenParameters,
    /// There is no superblock.
    pub no_superblock: bool,
    /// The trusted root hash.
    pub root_hash: RootHash,
    /// Bad blocks are read with a warning.
    pub ignore_corruption: bool,
    /// Blocks whose hash is that of zeroes are not read.
    pub ignore_zero_blocks: bool,
    /// Forward error correction.
    pub fec: Option<FecOptions>,
}

/// Forward error correction on the command line.
#[derive(Clone, Debug)]
pub struct FecOptions {
    /// Device of the parity.
    pub device: PathBuf,
    /// Parity bytes of a codeword.
    pub roots: u32,
    /// First byte of the parity.
    pub offset: u64,
}

/// Parameters on the command line.
#[derive(Clone, Debug, Default)]
pub struct GivenParameters {
    /// Version of the format.
    pub hash_type: Option<inlock_verity::HashType>,
    /// The hash.
    pub hash: Option<inlock_cipher::Hash>,
    /// Length of a data block in bytes.
    pub data_block_len: Option<u32>,
    /// Length of a hash block in bytes.
    pub hash_block_len: Option<u32>,
    /// Number of data blocks.
    pub data_blocks: Option<u64>,
    /// The salt.
    pub salt: Option<Vec<u8>>,
}

/// Source of the root hash.
#[derive(Clone, Debug)]
pub enum RootHash {
    /// Hexadecimal digits.
    Digits(String),
    /// A file with the digits.
    File(PathBuf),
}

/// Longest file with a root hash.
const MAX_ROOT_HASH_FILE: u64 = 4096;

impl RootHash {
    /// Returns the bytes of the hash.
    pub fn read(&self) -> Result<Vec<u8>> {
        let text = match self {
            Self::Digits(digits) => digits.clone(),
            Self::File(path) => {
                let cannot_read = || format!("Cannot read root hash file {}.", path.display());
                let len = std::fs::metadata(path).with_context(cannot_read)?.len();
                if len > MAX_ROOT_HASH_FILE {
                    return Err(Error::new(ErrorKind::RootHash, "Invalid root hash string specified."));
                }
                std::fs::read_to_string(path).with_context(cannot_read)?
            }
        };
        unhex(text.trim()).ok_or_else(|| Error::new(ErrorKind::RootHash, "Invalid root hash string specified."))
    }
}

/// Decodes hexadecimal digits.
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text.chars().map(|digit| digit.to_digit(16).map(|value| value as u8)).collect();
    let (pairs, rest) = digits.as_ref()?.as_chunks::<2>();
    rest.is_empty()
        .then(|| pairs.iter().map(|[high, low]| high << 4 | low).collect())
        .filter(|b: &Vec<u8>| !b.is_empty())
}

/// Encodes bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The underlying devices, opened and locked.
pub struct VerityDevices {
    /// The data device.
    pub data: Device,
    /// The hash device, if it is another one.
    pub hash: Option<Device>,
    /// The device of the parity.
    pub fec: Option<FecDevice>,
    /// Locks on all.
    pub locks: Vec<DeviceLock>,
}

/// The device of the parity.
pub enum FecDevice {
    /// The hash device.
    Hash,
    /// Another one.
    Own(Box<Device>),
}

impl VerityDevices {
    /// Opens the devices. Those of the tree and of the parity are opened with `mode`; the data device for reading,
    /// unless it is the same.
    pub fn open(context: &Context, data: &Path, hash: &Path, fec: Option<&FecOptions>, mode: OpenMode) -> Result<Self> {
        let mut devices = Self::open_hashed(context, data, hash, mode)?;
        let Some(fec) = fec else { return Ok(devices) };
        let identity = Device::open(context, &fec.device, OpenMode::Read)?.identity();
        devices.fec = Some(if identity == devices.hash().identity() {
            FecDevice::Hash
        } else if identity == devices.data.identity() && mode != OpenMode::Read {
            return Err(Error::new(ErrorKind::SameDataDevice, "The FEC device names the data device."));
        } else {
            let device = Device::open(context, &fec.device, mode)?;
            devices.locks.push(lock::whole_device(&device, lock_mode(mode))?);
            FecDevice::Own(Box::new(device))
        });
        Ok(devices)
    }

    fn open_hashed(context: &Context, data: &Path, hash: &Path, mode: OpenMode) -> Result<Self> {
        let lock_mode = lock_mode(mode);
        let data = Device::open(context, data, OpenMode::Read)?;
        let hash = Device::open(context, hash, mode)?;
        if data.identity() == hash.identity() {
            let locks = vec![lock::whole_device(&hash, lock_mode)?];
            return Ok(Self { data: hash, hash: None, fec: None, locks });
        }
        let locks = vec![lock::whole_device(&data, lock::Mode::Shared)?, lock::whole_device(&hash, lock_mode)?];
        Ok(Self { data, hash: Some(hash), fec: None, locks })
    }

    /// Returns the hash device.
    pub fn hash(&self) -> &Device {
        self.hash.as_ref().unwrap_or(&self.data)
    }

    /// Returns the device of the parity.
    pub fn fec(&self) -> Option<&Device> {
        match self.fec.as_ref()? {
            FecDevice::Hash => Some(self.hash()),
            FecDevice::Own(device) => Some(device.as_ref()),
        }
    }
}

fn lock_mode(mode: OpenMode) -> lock::Mode {
    if mode == OpenMode::Read { lock::Mode::Shared } else { lock::Mode::Exclusive }
}

impl FecOptions {
    /// Returns the parameters for a device: the parity covers all of the hash device from the tree on, of `hash_len`
    /// bytes, or up to the parity if that is on it.
    pub fn parameters(
        &self,
        layout: &Layout,
        tree_offset: u64,
        hash_len: u64,
        is_on_hash: bool,
    ) -> Result<FecParameters> {
        let parameters = layout.parameters();
        if parameters.data_block_len != parameters.hash_block_len {
            return Err(Error::new(ErrorKind::VerityLayout, "Block sizes must match for FEC."));
        }
        let block_len = u64::from(parameters.hash_block_len);
        if !self.offset.is_multiple_of(block_len) {
            return Err(Error::new(ErrorKind::VerityLayout, "Unsupported VERITY FEC offset."));
        }
        if is_on_hash && self.offset < tree_offset.saturating_add(layout.tree_len()) {
            return Err(Error::new(ErrorKind::FecOverlaps, "FEC area overlaps with hash area."));
        }
        let end = if is_on_hash { self.offset } else { hash_len };
        let behind = (end / block_len).saturating_sub(tree_offset / block_len);
        let blocks = parameters.data_blocks + behind.max(layout.tree_blocks());
        Ok(FecParameters { roots: self.roots, blocks, offset: self.offset })
    }
}

/// Forward error correction of a device.
#[derive(Clone)]
pub struct OpenedFec {
    /// Parity and parameters.
    pub fec: Fec,
    /// Name of its device for messages.
    pub path: PathBuf,
}

/// Returns the store of a device.
pub fn store(device: &Device, io: IoMode, read_only: bool) -> Result<Arc<dyn BackingStore>> {
    if device.file().is_none() {
        return Err(Error::new(
            ErrorKind::NotOnThisHost,
            format!("Device {} is not on this host.", device.path.display()),
        ));
    }
    let file = device.share()?;
    let store = if read_only { FileStore::new_read_only(file, io) } else { FileStore::new(file, io) };
    Ok(Arc::new(store.with_context(|| format!("cannot use {}", device.path.display()))?))
}

/// Checked parameters of a device, and its root hash.
pub struct VerityOpening {
    /// Blocks and levels.
    pub layout: Layout,
    /// First byte of the tree on the hash device.
    pub tree_offset: u64,
    /// The trusted root hash.
    pub root: Vec<u8>,
    /// UUID of the superblock.
    pub uuid: Option<String>,
    /// Name of the hash, as the superblock has it.
    pub hash_name: String,
    /// Bad blocks are read with a warning.
    pub ignore_corruption: bool,
    /// Blocks whose hash is that of zeroes are not read.
    pub ignore_zero_blocks: bool,
    /// Forward error correction.
    pub fec: Option<OpenedFec>,
}

impl VerityOptions {
    /// Reads the superblock, if there is one, and the root hash, and checks them against each other and the devices.
    pub fn load(&self, devices: &VerityDevices) -> Result<VerityOpening> {
        let hash_path = &devices.hash().path;
        let (parameters, tree_offset, uuid, hash_name) = if self.no_superblock {
            let parameters = self.given.parameters(&devices.data);
            let name = parameters.hash.name().to_owned();
            if !self.hash_offset.is_multiple_of(parameters.hash_block_len.max(1).into()) {
                return Err(Error::new(ErrorKind::VerityLayout, "Unsupported VERITY hash offset."));
            }
            (parameters, self.hash_offset, None, name)
        } else {
            let store = store(devices.hash(), IoMode::Sync, true)?;
            let superblock = Superblock::read(&*store, self.hash_offset).map_err(cannot_use(hash_path))?;
            self.given.check(&superblock.parameters, hash_path)?;
            let start = Superblock::tree_offset(self.hash_offset, superblock.parameters.hash_block_len);
            let start = start.map_err(|error| cannot_use(hash_path)(error.into()))?;
            let uuid = Uuid::from_bytes(superblock.uuid).hyphenated().to_string();
            (superblock.parameters, start, Some(uuid), superblock.hash_name)
        };
        let layout = parameters.layout().map_err(|error| cannot_use(hash_path)(error.into()))?;
        let root = self.root_hash.read()?;
        if root.len() != parameters.hash.len() {
            return Err(Error::new(ErrorKind::RootHash, "Invalid root hash string specified."));
        }
        let (ignore_corruption, ignore_zero_blocks) = (self.ignore_corruption, self.ignore_zero_blocks);
        let fec = self.load_fec(devices, &layout, tree_offset)?;
        Ok(VerityOpening { layout, tree_offset, root, uuid, hash_name, ignore_corruption, ignore_zero_blocks, fec })
    }

    fn load_fec(&self, devices: &VerityDevices, layout: &Layout, tree_offset: u64) -> Result<Option<OpenedFec>> {
        let Some((args, device)) = self.fec.as_ref().zip(devices.fec()) else { return Ok(None) };
        let is_on_hash = matches!(devices.fec, Some(FecDevice::Hash));
        let parameters = args.parameters(layout, tree_offset, devices.hash().len, is_on_hash)?;
        let fec = Fec::new(store(device, IoMode::Sync, true)?, parameters, layout);
        let fec = fec.map_err(|error| cannot_use(&device.path)(error.into()))?;
        Ok(Some(OpenedFec { fec, path: device.path.clone() }))
    }
}

impl GivenParameters {
    /// Returns the parameters of a device, with the defaults of veritysetup.
    pub fn parameters(&self, data: &Device) -> Parameters {
        let default = Parameters::default();
        let data_block_len = self.data_block_len.unwrap_or(default.data_block_len);
        Parameters {
            hash_type: self.hash_type.unwrap_or_default(),
            hash: self.hash.unwrap_or(default.hash),
            data_block_len,
            hash_block_len: self.hash_block_len.unwrap_or(default.hash_block_len),
            data_blocks: self.data_blocks.unwrap_or_else(|| data.len / u64::from(data_block_len.max(1))),
            salt: self.salt.clone().unwrap_or_default(),
        }
    }

    /// Refuses a parameter that the superblock has otherwise.
    fn check(&self, stored: &Parameters, path: &Path) -> Result<()> {
        let differs = [
            (self.hash_type.is_some_and(|given| given != stored.hash_type), "format"),
            (self.hash.is_some_and(|given| given != stored.hash), "hash"),
            (self.data_block_len.is_some_and(|given| given != stored.data_block_len), "data-block-size"),
            (self.hash_block_len.is_some_and(|given| given != stored.hash_block_len), "hash-block-size"),
            (self.data_blocks.is_some_and(|given| given != stored.data_blocks), "data-blocks"),
            (self.salt.as_ref().is_some_and(|given| *given != stored.salt), "salt"),
        ];
        match differs.iter().find(|(differs, _)| *differs) {
            None => Ok(()),
            Some((_, option)) => Err(Error::new(
                ErrorKind::VerityParameter,
                format!("Option --{option} is not that of the superblock on {}.", path.display()),
            )),
        }
    }
}

impl VerityOpening {
    /// Returns the stores for the library.
    pub fn stores(&self, data: &Device, hash: Option<&Device>, io: IoMode) -> Result<Stores> {
        let data_store = store(data, io, true)?;
        let hash_store = hash.map_or_else(|| Ok(Arc::clone(&data_store)), |device| store(device, io, true))?;
        Ok(Stores::new(data_store, hash_store, self.tree_offset))
    }

    /// Verifies the root hash, and returns the verified data as a store of the engine.
    pub fn connect(&self, data: &Device, hash: Option<&Device>, io: IoMode) -> Result<Arc<VerityStore>> {
        let hash_path = hash.map_or(&data.path, |hash| &hash.path).clone();
        let fec = self.fec.clone().map(|opened| opened.fec);
        self.connect_stores(data.context(), &self.stores(data, hash, io)?, fec, [data.path.clone(), hash_path])
    }

    /// As [`Self::connect`], on these stores, which have these names in messages.
    pub(crate) fn connect_stores(
        &self,
        context: &Context,
        stores: &Stores,
        fec: Option<Fec>,
        [data_path, hash_path]: [PathBuf; 2],
    ) -> Result<Arc<VerityStore>> {
        let (named, context) = (hash_path.clone(), context.clone());
        let options = OpenOptions {
            ignore_corruption: self.ignore_corruption,
            ignore_zero_blocks: self.ignore_zero_blocks,
            fec,
            on_corruption: Some(Box::new(move |corruption, count| {
                let path = if corruption.area == Area::Data { &data_path } else { &hash_path };
                match count {
                    None => context.warn(format_args!("{}: {corruption}", path.display())),
                    Some(count) => {
                        let what = if corruption.is_repaired { "blocks that were rebuilt" } else { "bad blocks" };
                        let (path, total) = (path.display(), format_args!("{count} reads of {what} so far"));
                        context.warn(format_args!("{path}: {corruption}; {total}, which `inlock status` counts"));
                    }
                }
            })),
            ..OpenOptions::default()
        };
        let store = VerityStore::open(stores, &self.layout, &self.root, options);
        Ok(Arc::new(store.map_err(cannot_use(&named))?))
    }
}

/// Least number of threads that read and hash, unless both devices are in memory: each waits for a device.
const MIN_THREADS: usize = 8;

/// Returns the store of a device with threads for its calls: they hash while the worker receives and sends.
pub(crate) fn threaded(store: Arc<VerityStore>, devices: &[Device]) -> Result<Arc<dyn BackingStore>> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    // One more than there are CPUs, so that an operation is there when a thread has ended one.
    let threads = if store.profile().in_memory { cpus + 1 } else { (cpus + 1).max(MIN_THREADS) };
    let store = ThreadedStore::start(store, threads).context("cannot start a thread")?;
    Ok(Arc::new(limit_waits(store, devices)?))
}

/// Returns the error of a device.
pub fn cannot_use(path: &Path) -> impl FnOnce(VerityError) -> Error {
    let path = path.to_owned();
    move |error| match error {
        VerityError::NoSuperblock => {
            Error::new(ErrorKind::NotVerity, format!("Device {} is not a valid VERITY device.", path.display()))
        }
        VerityError::Corrupt(corruption) => corrupt(corruption),
        error => Error::unusable(ErrorKind::Failed, &path, error),
    }
}

/// Returns the error of a bad block, with the words and the status of veritysetup.
fn corrupt(corruption: Corruption) -> Error {
    let (kind, text) = match (corruption.is_root, corruption.area) {
        (true, _) => (ErrorKind::CorruptRoot, "Verification of root hash failed.".to_owned()),
        (false, Area::Data) => (ErrorKind::CorruptBlock, "Verification of data area failed.".to_owned()),
        (false, Area::Level(level)) => {
            (ErrorKind::CorruptBlock, format!("Verification of hash area level {level} failed."))
        }
    };
    Error::with_source(kind, text, corruption)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_hash_is_read_from_a_file_of_limited_length() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let read = |text: &str| {
            std::fs::write(file.path(), text).unwrap();
            RootHash::File(file.path().to_owned()).read()
        };
        assert_eq!(read("00fFa1\n").unwrap(), [0, 0xff, 0xa1]);
        let most = MAX_ROOT_HASH_FILE as usize;
        assert_eq!(read(&"a1".repeat(most / 2)).unwrap().len(), most / 2);
        for bad in ["", "\n", "0", "0g", &("a1".repeat(most / 2) + "\n")] {
            assert_eq!(read(bad).unwrap_err().kind(), ErrorKind::RootHash, "{} bytes", bad.len());
        }
    }
}
