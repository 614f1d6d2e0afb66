//! LUKS headers: loading one under its lock, checking it against the policy, unlocking its volume key.

use crate::error::{Error, ErrorKind, Result, TokenHint, cannot_load, cannot_unlock};
use crate::host::{Context, Level};
use std::path::Path;

use inlock_volume::{
    DataDeviceError, HeaderDevice, HeaderLocation, HeaderPolicy, LoadError, UnlockError, UnlockOptions, Unlocked,
    Volume, VolumeKey,
};

use super::backing;
use super::device::{Device, OpenMode};
use super::lock::{self, Mode};
use super::remote::DeviceHeader;
use super::secret::{self, Ask};
use super::source::{HeaderOptions, KeyOptions, Luks, OpenOptions};
use super::token::{self, ByToken};

/// Name of an image that is an encrypted clone.
pub const ENCRYPTED_CLONE: &str = "a clone that librbd has encrypted by itself";

/// Loads the header on a device. The caller holds its lock.
pub fn load_volume(context: &Context, header: &DeviceHeader) -> Result<Volume, LoadError> {
    if context.settings().ignore_signatures { Volume::load_despite_signatures(header) } else { Volume::load(header) }
}

/// A loaded header and the device it is on.
pub struct Header {
    /// The device with the header.
    pub device: Device,
    /// The header.
    pub volume: Volume,
    /// The policy for keys with which it was found to comply.
    pub(crate) policy: HeaderPolicy,
}

impl Header {
    /// Loads the header at `args`, checks it against the policy for keys, and prints its warnings to standard error
    /// unless `quiet`.
    pub fn load(context: &Context, args: &HeaderOptions, quiet: bool) -> Result<Self> {
        let device = Device::open(context, args.header.as_deref().unwrap_or(&args.image), OpenMode::Read)?;
        Self::load_from(device, args.luks, quiet)?.complying(args)
    }

    /// Returns the header if it complies with the policy for keys.
    pub(crate) fn complying(self, args: &HeaderOptions) -> Result<Self> {
        self.volume.check_policy_for_keys(&args.policy).map_err(cannot_unlock(&self.device.path))?;
        Ok(Self { policy: args.policy.clone(), ..self })
    }

    /// Prints with `--verbose` how much memory unlocking takes, before it does.
    pub(crate) fn report_memory(&self, options: &UnlockOptions) {
        if self.device.context().host().is_wanted(Level::Detail) {
            let kib = self.volume.memory_bound(options).div_ceil(1024);
            self.device.context().notice(format_args!("Unlocking takes at most {kib} KiB of memory."));
        }
    }

    /// Loads the header on `device`.
    pub(crate) fn load_from(device: Device, luks: Luks, quiet: bool) -> Result<Self> {
        let volume = {
            let _lock = lock::header(&device, Mode::Shared)?;
            read(&device, luks)?
        };
        device.context().debug(format_args!(
            "LUKS{} header on {} loaded, UUID {}, {} active keyslots.",
            volume.version(),
            device.path.display(),
            volume.uuid(),
            volume.active_keyslots().len()
        ));
        if let Some(json) = volume.metadata_json() {
            device.context().host().tell(Level::Metadata, &json);
        }
        if !quiet {
            for warning in volume.warnings() {
                device.context().warn(format_args!("{}: {warning}", device.path.display()));
            }
        }
        Ok(Self { device, volume, policy: HeaderPolicy::default() })
    }

    /// Reads the header on `device` under its lock, without its warnings.
    pub(crate) fn load_again(device: &Device, luks: Luks) -> Result<Volume> {
        let _lock = lock::header(device, Mode::Shared)?;
        read(device, luks)
    }

    /// Reads the header again. The caller holds its lock.
    pub(crate) fn read_again(&self, luks: Luks) -> Result<Volume> {
        read(&self.device, luks)
    }

    /// Checks the volume against the policy. Called before a passphrase is asked for.
    pub fn check(&self, policy: &HeaderPolicy) -> Result<()> {
        self.volume.check_policy(policy).map_err(cannot_unlock(&self.device.path))
    }

    /// Asks for passphrases until one unlocks the volume, as often as the options allow.
    pub fn unlock(&self, key: &KeyOptions, policy: &HeaderPolicy, ask: Ask<'_>) -> Result<Unlocked> {
        let device = self.device.header()?;
        let options = unlock_options(key.slot, policy.clone());
        if let Some(source) = &key.volume_key {
            let given = secret::read_volume_key(source, self.volume.volume_key_len())?;
            return match self.volume.unlock_with_volume_key(given, &options) {
                Err(UnlockError::WrongPassphrase) => Err(Error::wrong_volume_key()),
                unlocked => unlocked.map(|unlocked| warned(unlocked, ask)).map_err(cannot_unlock(&self.device.path)),
            };
        }
        if let Some(by_token) = self.unlock_with_token(key, &options, ask)? {
            return Ok(warned(by_token.unlocked, ask));
        }
        self.report_memory(&options);
        let tries = if secret::prompts(key, ask) { key.tries } else { 1 };
        for left in (0..tries).rev() {
            let given = secret::read(key, ask, None)?;
            let unlocked = {
                let _serial = lock::memory_hard_pbkdf(self.device.context())?;
                let _lock = lock::header(&self.device, Mode::Shared)?;
                self.volume.unlock(&device, &given.secret, &options).map_err(cannot_unlock(&self.device.path))
            };
            match unlocked {
                Err(error) if left > 0 && error.kind() == ErrorKind::NoKey => {
                    ask.context.notice(error);
                }
                Err(error) => return Err(error),
                Ok(unlocked) => return Ok(warned(unlocked, ask)),
            }
        }
        Err(Error::no_key())
    }

    /// Unlocks the volume with a token. `None`: no token does, and a passphrase may. Fails if none does and only
    /// tokens may be tried.
    pub fn try_tokens(&self, key: &KeyOptions, policy: &HeaderPolicy, ask: Ask<'_>) -> Result<Option<Unlocked>> {
        let unlocked = self.unlock_with_token(key, &unlock_options(key.slot, policy.clone()), ask)?;
        Ok(unlocked.map(|by_token| warned(by_token.unlocked, ask)))
    }

    /// Tries the tokens of the header. `None`: no token unlocks the volume, but a passphrase may.
    pub(crate) fn unlock_with_token(
        &self,
        key: &KeyOptions,
        options: &UnlockOptions,
        ask: Ask<'_>,
    ) -> Result<Option<ByToken>> {
        match &self.volume {
            Volume::Luks2(luks2) => token::unlock(luks2, &self.device, key, options, ask),
            _ if key.tokens.only => Err(key.tokens.none_usable(TokenHint::None)),
            _ => Ok(None),
        }
    }

    /// Unlocks the volume with a volume key that another process derived, which is verified again.
    pub(crate) fn verify(&self, key: VolumeKey, policy: &HeaderPolicy) -> Result<Unlocked> {
        let options = unlock_options(None, policy.clone());
        self.volume.unlock_with_volume_key(key, &options).map_err(cannot_unlock(&self.device.path))
    }

    /// Returns `LUKS1` or `LUKS2`.
    pub fn kind(&self) -> String {
        format!("LUKS{}", self.volume.version())
    }

    /// Returns the path of its device.
    pub fn path(&self) -> &Path {
        &self.device.path
    }
}

/// Returns the options for unlocking with this keyslot, or with any.
pub(crate) fn unlock_options(keyslot: Option<u32>, policy: HeaderPolicy) -> UnlockOptions {
    let mut options = UnlockOptions::default();
    (options.keyslot, options.policy) = (keyslot, policy);
    options
}

/// Prints the keyslot with `--verbose`, and the warnings of an unlocked volume.
fn warned(unlocked: Unlocked, ask: Ask<'_>) -> Unlocked {
    if let Some(number) = unlocked.keyslot {
        ask.context.detail(format_args!("Key slot {number} unlocked."));
    }
    for warning in &unlocked.warnings {
        ask.context.warn(format_args!("{}: {warning}", ask.device.display()));
    }
    unlocked
}

/// Whether the device is a clone of Ceph RBD with a header of its own. Its holes have the parent's data, encrypted with
/// the parent's key, so that the clone cannot be opened as an image.
pub fn is_encrypted_clone(device: &DeviceHeader) -> bool {
    let mut magic = [0; 6];
    device.read_exact_at(&mut magic, 0).is_ok() && magic == *b"RBDL\xba\xbe"
}

/// Explains why no header of a volume is in `header`, which is that of the device at `path`.
pub fn cannot_load_from(path: &Path, header: &DeviceHeader) -> impl FnOnce(LoadError) -> Error {
    move |error| match error {
        LoadError::NotLuks if is_encrypted_clone(header) => {
            Error::new(ErrorKind::EncryptedClone, format!("Device {} is {ENCRYPTED_CLONE}.", path.display()))
        }
        error => cannot_load(path)(error),
    }
}

/// Reads a header of an accepted version. The caller holds its lock.
fn read(device: &Device, luks: Luks) -> Result<Volume> {
    let header = device.header()?;
    let volume = load_volume(device.context(), &header).map_err(cannot_load_from(&device.path, &header))?;
    let wanted = match luks {
        Luks::Any => volume.version(),
        Luks::One => 1,
        Luks::Two => 2,
    };
    if volume.version() != wanted {
        let found = Some(volume.version());
        return Err(Error::not_luks(&device.path, found));
    }
    Ok(volume)
}

/// Opens the device with the detached header of a volume on `data`. `None`: the header is on `data`, also if the option
/// has another name for it, or a loop device over it.
pub(crate) fn detached_header(args: &OpenOptions, data: &Device) -> Result<Option<Device>> {
    let Some(header) = &args.header else { return Ok(None) };
    let device = Device::open(data.context(), header, OpenMode::Read)?;
    let is_data = device.identity() == data.identity() || backing::distance(&device.path, &data.path) == Some(0);
    Ok((!is_data).then_some(device))
}

/// Checks that the payload fits the data device, and that the header is not in it.
pub(crate) fn check_place(header: &Header, location: HeaderLocation, data: &Device) -> Result<()> {
    let (volume, path) = (&header.volume, header.path());
    let is_detached = location == HeaderLocation::Detached;
    if is_detached && backing::has_header_in_payload(&data.path, volume.data_offset(), path, volume.header_len()) {
        return Err(Error::new(
            ErrorKind::HeaderInPayload,
            format!("The header on {} lies in the payload of device {}.", path.display(), data.path.display()),
        ));
    }
    volume.check_data_device(location, data.len).map_err(|error| unfit(error, &data.path))
}

fn unfit(error: DataDeviceError, path: &Path) -> Error {
    let kind = match error {
        DataDeviceError::Detached => ErrorKind::NoPayload,
        _ => ErrorKind::PayloadMisfit,
    };
    Error::unusable(kind, path, error)
}
