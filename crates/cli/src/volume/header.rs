//! LUKS headers: loading one under its lock, checking it against the policy, unlocking its volume key.

use std::path::Path;

use inlock_volume::{FileDevice, HeaderPolicy, UnlockOptions, Unlocked, Volume, VolumeKey};

use super::device::{Device, OpenMode};
use super::lock::{self, Mode};
use super::secret::{self, Ask};
use super::source::{HeaderArgs, KeyArgs, Luks, SourceArgs};
use crate::error::{CliError, cannot_load, cannot_unlock};
use crate::ui::print::{print_stderr, warn};

/// A loaded header and the device it is on.
pub(crate) struct Header {
    pub device: Device,
    pub volume: Volume,
}

impl Header {
    /// Loads the header at `args`, and prints its warnings to standard error unless `quiet`.
    pub(crate) fn load(args: &HeaderArgs, quiet: bool) -> anyhow::Result<Self> {
        let device = Device::open(args.header.as_deref().unwrap_or(&args.image), OpenMode::Read)?;
        Self::load_from(device, args.luks, quiet)
    }

    /// Loads the header on `device`.
    pub(super) fn load_from(device: Device, luks: Luks, quiet: bool) -> anyhow::Result<Self> {
        let volume = {
            let _lock = lock::header(&device, Mode::Shared)?;
            Volume::load(&FileDevice::new(device.share()?)).map_err(cannot_load(&device.path))?
        };
        let wanted = match luks {
            Luks::Any => volume.version(),
            Luks::One => 1,
            Luks::Two => 2,
        };
        if volume.version() != wanted {
            let found = Some(volume.version());
            return Err(CliError::NotLuks { path: device.path.clone(), found }.into());
        }
        if !quiet {
            for warning in volume.warnings() {
                warn(format_args!("{}: {warning}", device.path.display()));
            }
        }
        Ok(Self { device, volume })
    }

    /// Checks the volume against the policy. Called before a passphrase is asked for.
    pub(crate) fn check(&self, policy: &HeaderPolicy) -> anyhow::Result<()> {
        self.volume.check_policy(policy).map_err(cannot_unlock(&self.device.path))
    }

    /// Asks for passphrases until one unlocks the volume, as often as the options allow.
    pub(crate) fn unlock(&self, key: &KeyArgs, policy: &HeaderPolicy, ask: Ask<'_>) -> anyhow::Result<Unlocked> {
        let device = FileDevice::new(self.device.share()?);
        let mut options = UnlockOptions::default();
        options.keyslot = key.slot;
        options.policy = policy.clone();
        let tries = if secret::prompts(key, ask) { key.tries } else { 1 };
        for left in (0..tries).rev() {
            let given = secret::read(key, ask, None)?;
            let unlocked = {
                let _lock = lock::header(&self.device, Mode::Shared)?;
                self.volume.unlock(&device, &given.secret, &options).map_err(cannot_unlock(&self.device.path))
            };
            match unlocked {
                Err(error) if left > 0 && matches!(error.downcast_ref(), Some(CliError::NoKey)) => {
                    print_stderr(CliError::NoKey);
                }
                Err(error) => return Err(error),
                Ok(unlocked) => {
                    for warning in &unlocked.warnings {
                        warn(format_args!("{}: {warning}", ask.device.display()));
                    }
                    return Ok(unlocked);
                }
            }
        }
        Err(CliError::NoKey.into())
    }

    /// Unlocks the volume with a volume key that another process derived, which is verified again.
    pub(super) fn verify(&self, key: VolumeKey, policy: &HeaderPolicy) -> anyhow::Result<Unlocked> {
        let _lock = lock::header(&self.device, Mode::Shared)?;
        let mut options = UnlockOptions::default();
        options.policy = policy.clone();
        self.volume.unlock_with_volume_key(key, &options).map_err(cannot_unlock(&self.device.path))
    }

    /// Returns the path of its device.
    pub(super) fn path(&self) -> &Path {
        &self.device.path
    }
}

/// Opens the device with the header of a volume on `data`.
pub(super) fn header_device(args: &SourceArgs, data: &Device) -> anyhow::Result<Device> {
    match &args.header {
        Some(header) => Device::open(header, OpenMode::Read),
        None => {
            let (path, metadata) = (data.path.clone(), data.metadata.clone());
            Ok(Device { path, file: data.share()?, len: data.len, metadata, zones: data.zones })
        }
    }
}
