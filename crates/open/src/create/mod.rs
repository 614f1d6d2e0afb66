//! Creating a LUKS volume, in steps between which a program warns, asks, and reads a passphrase.

mod format;
mod integrity;
mod new_file;
mod options;
mod placement;

use std::fmt;
use std::ops::ControlFlow;
use std::path::Path;

use inlock_volume::{BoundedDevice, FormatError, Secret, Signature, Volume, VolumeKey, find_signatures};

pub(crate) use self::format::{Format, Placement};
use self::integrity::PlacedIntegrity;
use self::new_file::NewFile;
pub use self::options::{CreateOptions, DataStart, IntegrityProtection, is_label};
use crate::backing;
use crate::device::{Device, OpenMode};
use crate::error::{Error, ErrorKind, Result, ResultExt as _, ZoneHint};
use crate::header::{ENCRYPTED_CLONE, is_encrypted_clone};
use crate::host::Context;
use crate::lock::{self, DeviceLock, Mode};
use crate::removed_integrity;
use crate::signatures;
use crate::wipe::Wiped;
use crate::zones;

/// A volume that can be created: its devices are open and locked, and have room for it.
///
/// ```
/// use inlock_engine::{Access, BlockingDevice, store::file::IoMode};
/// use inlock_open::create::{CreateOptions, NewVolume};
/// use inlock_open::{Context, KeySource, OpenOptions, Settings, host::Silent, open};
/// use inlock_volume::{KdfKind, KdfRequest, Secret};
/// use std::ops::ControlFlow;
///
/// # let directory = tempfile::tempdir()?;
/// # let image = directory.path().join("disk.img");
/// std::fs::File::create_new(&image)?.set_len(32 << 20)?;
/// let context = Context::new(Silent, Settings::default());
/// let mut options = CreateOptions::luks2(&image);
/// // Cheap: for a key of high entropy. The default makes guessing a passphrase expensive.
/// options.kdf = KdfRequest::new(KdfKind::Pbkdf2);
/// options.kdf.forced_iterations = Some(1000);
/// let volume = NewVolume::prepare(&context, &options)?;
/// volume.create(&Secret::new(b"passphrase".to_vec()), None, |_| ControlFlow::Continue(()))?;
///
/// let options = OpenOptions::luks(&image, KeySource::bytes("passphrase"));
/// let volume = open(&context, &options, true, None)?.into_device(IoMode::Auto, Access::default())?;
/// let device = BlockingDevice::new(volume.device.clone());
/// device.write_at(&[1; 512], 0)?;
/// device.flush()?;
/// let mut sector = [0; 512];
/// device.read_at(&mut sector, 0)?;
/// assert_eq!(sector, [1; 512]);
/// volume.check_writes(Ok::<(), inlock_open::Error>(()))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct NewVolume {
    // Before the locks, under which an unused file is removed.
    new_file: NewFile,
    /// The device with the header.
    device: Device,
    /// The device with the data, if it is another one.
    data: Option<Device>,
    format: Format,
    integrity: Option<PlacedIntegrity>,
    /// The header that will be overwritten.
    replaced: Option<Volume>,
    /// The start of the data was asked for as an alignment.
    is_aligned: bool,
    _locks: Vec<DeviceLock>,
}

/// Something that a new volume overwrites. Its text follows the name of the device.
#[derive(Clone, Debug)]
pub enum Overwritten {
    /// A LUKS header.
    Header,
    /// The header of a clone that librbd has encrypted by itself.
    EncryptedClone,
    /// The signature of another format.
    Signature(Signature),
}

impl fmt::Display for Overwritten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header => f.write_str("already contains a 'crypto_LUKS' superblock signature"),
            Self::EncryptedClone => write!(f, "is {ENCRYPTED_CLONE}"),
            Self::Signature(found) => write!(f, "already contains a {found}"),
        }
    }
}

impl NewVolume {
    /// Opens and locks the devices, finds the place of header and data, and checks that there is room. A missing file
    /// for a detached header is created, and removed unless the volume is created; nothing else is written.
    ///
    /// # Errors
    ///
    /// Fails with the kinds of [`CreateOptions::check`] and of opening devices; with [`ErrorKind::TooSmall`],
    /// [`ErrorKind::ZoneMisfit`], [`ErrorKind::IntegrityOnZones`], [`ErrorKind::JournaledImage`] or
    /// [`ErrorKind::SameHeaderDevice`].
    pub fn prepare(context: &Context, options: &CreateOptions) -> Result<Self> {
        options.check()?;
        let image = Device::open(context, &options.image, OpenMode::Create)?.with_zones()?;
        let mut locks = Vec::new();
        let (new_file, device, data) = match &options.header {
            None => (NewFile::default(), image, None),
            Some(path) => {
                let new_file = NewFile::create(path)?;
                let device = header_device(context, path, &image)?;
                locks.push(lock::whole_device(&image, Mode::Exclusive)?);
                (new_file, device, Some(image))
            }
        };
        locks.push(lock::whole_device(&device, Mode::Exclusive)?);
        let holder = data.as_ref().unwrap_or(&device);
        let format = Format::new(options, placement::find(options, &device, holder)?);
        if let (Some(zones), Some(_)) = (&device.zones, &data) {
            zones.check_header(format.header_len()).map_err(zones::unfit(&device.path, ZoneHint::NewHeader))?;
        }
        if holder.len < format.least_len() {
            return Err(Error::too_small(&holder.path, holder.len, format.least_len()));
        }
        let integrity = options
            .integrity
            .map(|protection| PlacedIntegrity::find(protection, holder, format.unit(holder.len), format.data_offset()));
        let integrity = integrity.transpose()?;
        if let Some(len) = format.shorter_keyslots(options.keyslots_len) {
            let text = format_args!("the LUKS2 keyslots area is changed to {len} bytes, which end before the data");
            context.warn(text);
        }
        let replaced = {
            let _header = lock::header(&device, Mode::Shared)?;
            Volume::load(&device.header()?).ok()
        };
        let is_aligned = matches!(options.start, DataStart::Aligned(_));
        Ok(Self { new_file, device, data, format, integrity, replaced, is_aligned, _locks: locks })
    }

    /// Returns the name of the device that gets the data.
    pub fn path(&self) -> &Path {
        &self.data.as_ref().unwrap_or(&self.device).path
    }

    /// Returns the name of the device that gets the header.
    pub fn header_path(&self) -> &Path {
        &self.device.path
    }

    /// Returns what will be overwritten on the device that gets the header, for a warning or a question. Nothing, if
    /// the settings ignore signatures.
    ///
    /// # Errors
    ///
    /// Fails if the device cannot be read.
    pub fn overwritten(&self) -> Result<Vec<Overwritten>> {
        if self.device.context().settings().ignore_signatures {
            return Ok(Vec::new());
        }
        let header = self.device.header()?;
        let first = match &self.replaced {
            Some(_) => Some(Overwritten::Header),
            None => is_encrypted_clone(&header).then_some(Overwritten::EncryptedClone),
        };
        let others = find_signatures(&header)?.into_iter().map(Overwritten::Signature);
        Ok(first.into_iter().chain(others).collect())
    }

    /// Creates the volume: writes the header with a keyslot that `secret` opens, wipes signatures of other formats, and
    /// fills a volume with integrity protection. `key`: the volume key; `None`: a random one. `watch` is called while
    /// the volume is filled, and can stop that: what is not filled cannot be read then.
    ///
    /// # Errors
    ///
    /// Fails before it writes if another program has changed the header since the volume was prepared
    /// ([`ErrorKind::ReplacedHeaderChanged`]), or the header cannot be made ([`ErrorKind::InvalidOption`],
    /// [`ErrorKind::InvalidUuid`], [`ErrorKind::NewAgainstPolicy`], [`ErrorKind::TooSmall`]).
    pub fn create(
        self,
        secret: &Secret,
        key: Option<VolumeKey>,
        mut watch: impl FnMut(Wiped) -> ControlFlow<()>,
    ) -> Result<()> {
        let _header = lock::header(&self.device, Mode::Exclusive)?;
        self.check_unchanged()?;
        self.enlarge()?;
        let Self { new_file, device, data, mut format, integrity, is_aligned, .. } = self;
        let refused = |error| cannot_create(&device.path, is_aligned, error);
        let (start, holder) = (format.data_offset(), data.as_ref().unwrap_or(&device));
        // The key of a volume that has lost its header may be that of data with integrity protection.
        let has_new_data = data.is_none() && key.is_none() && holder.zones.is_none();
        if let Some(key) = key {
            format.set_key(key);
        }
        let key = if integrity.is_some() { format.make_key().map_err(refused)? } else { None };
        // A zoned file is longer than its zones.
        let data_len = data.as_ref().or(device.zones.map(|_| &device)).map(|data| data.len);
        let target = BoundedDevice::new(device.header()?, device.zones.map_or(u64::MAX, |zones| zones.conventional));
        format.write(&target, data_len, secret).map_err(refused)?;
        signatures::wipe(&device, 0)?;
        // Also if it is not filled to the end, which can be done later.
        new_file.keep()?;
        match integrity.zip(key) {
            Some((integrity, key)) => integrity.format(&holder.path, &key, &mut watch),
            None if has_new_data => removed_integrity::clear(holder, start),
            None => Ok(()),
        }
    }

    /// Fails if another program has changed the header that is to be replaced since it was found.
    fn check_unchanged(&self) -> Result<()> {
        let is_same = match (&self.replaced, Volume::load(&self.device.header()?).ok()) {
            (None, None) => true,
            (Some(replaced), Some(present)) => present.is_same_header(replaced),
            _ => false,
        };
        if is_same {
            return Ok(());
        }
        let path = &self.device.path;
        let text = format!("The header on device {} was changed by another program.", path.display());
        Err(Error::new(ErrorKind::ReplacedHeaderChanged, text).about(path))
    }

    /// Makes room for the header in its own file.
    fn enlarge(&self) -> Result<()> {
        let (device, len) = (&self.device, self.format.header_len());
        if self.data.is_none() || device.is_block() || device.len >= len {
            return Ok(());
        }
        let enlarged = device.share().and_then(|file| file.set_len(len));
        enlarged.with_context(|| format!("cannot enlarge {}", device.path.display()))
    }
}

/// Opens the device of a detached header for the data on `image`.
fn header_device(context: &Context, path: &Path, image: &Device) -> Result<Device> {
    let device = Device::open(context, path, OpenMode::Write)?.with_zones()?;
    device.check_writable()?;
    if device.identity() == image.identity() || backing::overlap(&device.path, &image.path) {
        let text = format!("The detached header would be on device {} itself.", image.path.display());
        return Err(Error::new(ErrorKind::SameHeaderDevice, text).about(path));
    }
    Ok(device)
}

/// Explains why a volume cannot be created. `is_aligned`: the start of the data was asked for as an alignment.
pub(crate) fn cannot_create(path: &Path, is_aligned: bool, error: FormatError) -> Error {
    match error {
        FormatError::DeviceTooSmall { needed, len } => Error::too_small(path, len, needed),
        FormatError::Policy(error) => {
            let text = format!("The new volume is refused: {error}.");
            Error::telling(ErrorKind::NewAgainstPolicy, text, error)
        }
        FormatError::InvalidOption { option: "uuid", .. } => {
            Error::new(ErrorKind::InvalidUuid, "Wrong LUKS UUID format provided.")
        }
        FormatError::InvalidOption { option, reason } => {
            let option = if is_aligned && option == "offset" { "align-payload" } else { option };
            Error::new(ErrorKind::InvalidOption, format!("Option --{option}: {reason}."))
        }
        error => {
            let text = format!("cannot create a volume on {}", path.display());
            Error::with_source(ErrorKind::Failed, text, error).about(path)
        }
    }
}
