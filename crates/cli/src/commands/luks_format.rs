//! `luksFormat`: creates a LUKS volume.
//!
//! Nothing is written before the user agreed, the passphrase is known and the device is ours alone.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::Context;
use inlock_volume::{
    BoundedDevice, DataUnitSize, FileDevice, KdfKind, KdfRequest, Secret, Volume, ZoneFault, Zones, luks1, luks2,
};

use crate::args::{FormatArgs, KeyFile};
use crate::device::{Access, Device};
use crate::durable;
use crate::exit::{Problem, cannot_format, say};
use crate::lock::{self, Mode};
use crate::secret::{self, Ask};
use crate::terminal;
use crate::zones;

pub(crate) fn run(args: &FormatArgs, batch: bool) -> anyhow::Result<()> {
    let Some(header) = &args.header else {
        let device = Device::open(&args.image, Access::Create)?.with_zones()?;
        return format(args, batch, &device, None);
    };
    let data = Device::open(&args.image, Access::Create)?.with_zones()?;
    let created = create_header_file(header)?;
    let device = Device::open(header, Access::Write)?.with_zones()?;
    if device.identity() == data.identity() {
        return Err(Problem::usage("Option --header names the device itself."));
    }
    let _data_lock = lock::whole_device(&data, Mode::Exclusive)?;
    let result = format(args, batch, &device, Some(&data));
    let result = result.and_then(|()| if created { durable::sync_name(&device.file, header) } else { Ok(()) });
    if created && result.is_err() {
        // An empty file that was not there before is of no use to anybody.
        let _ = std::fs::remove_file(header);
    }
    result
}

fn format(args: &FormatArgs, batch: bool, device: &Device, data: Option<&Device>) -> anyhow::Result<()> {
    let _whole = lock::whole_device(device, Mode::Exclusive)?;
    let holder = data.unwrap_or(device);
    let place = Place::find(args, device, holder)?;
    let (header_len, data_offset) = layout(args, place);
    if let (Some(zones), Some(_)) = (&device.zones, data) {
        zones
            .check_header(header_len)
            .map_err(zones::unfit(&device.path, "another file or device takes the header"))?;
    }
    let unit = place.sector_size.map_or(512, |size| size.bytes() as u64);
    let needed = data_offset.saturating_add(unit);
    if holder.len < needed {
        return Err(Problem::TooSmall { path: holder.path.clone(), len: holder.len, needed }.into());
    }
    let interactive = terminal::stdin_is_terminal() && !batch;
    if interactive {
        if Volume::load(&FileDevice::new(device.share()?)).is_ok() {
            let path = device.path.display();
            say(&format!("WARNING: Device {path} already contains a 'crypto_LUKS' superblock signature."));
        }
        terminal::confirm(&format!("This will overwrite data on {} irrevocably.", device.path.display()))?;
    }
    let ask = Ask { device: &args.image, verify: interactive || args.key.verify, stdin_taken: false };
    let given = secret::read(&args.key, ask, None)?;
    if given.secret.is_empty() && matches!(args.key.file, Some(KeyFile::Path(_))) {
        say("inlock: warning: the key file is empty, so that anybody can open the volume");
    }
    let _header = lock::header(device, Mode::Exclusive)?;
    if data.is_some() && !device.is_block() && device.len < header_len {
        device.file.set_len(header_len).with_context(|| format!("cannot enlarge {}", device.path.display()))?;
    }
    write(args, place, device, data, &given.secret).map_err(cannot_format(&device.path))
}

/// Where the data are to be, and in which units.
#[derive(Clone, Copy)]
struct Place {
    /// In sectors; `None`: behind the header, or at 0 where that is elsewhere.
    offset: Option<u64>,
    /// `None`: what goes with the length of the device.
    sector_size: Option<DataUnitSize>,
}

impl Place {
    /// What was asked for; on zoned storage, what fits the zones of `holder`, which has the data.
    fn find(args: &FormatArgs, device: &Device, holder: &Device) -> anyhow::Result<Self> {
        let asked = Self { offset: args.offset, sector_size: args.sector_size };
        let Some(zones) = &holder.zones else { return Ok(asked) };
        let attached = device.identity() == holder.identity();
        Self::on_zones(args, zones, attached).map_err(|fault| {
            let hint = match fault {
                ZoneFault::Header { .. } => "keep the header elsewhere: inlock luksFormat --header FILE DEVICE",
                ZoneFault::Unit { .. } => "--sector-size takes it",
                _ => "--offset takes it",
            };
            zones::unfit(&holder.path, hint)(fault)
        })
    }

    fn on_zones(args: &FormatArgs, zones: &Zones, attached: bool) -> Result<Self, ZoneFault> {
        let asked = Self { offset: args.offset, sector_size: args.sector_size };
        let offset = match args.offset.map(|sectors| sectors.saturating_mul(512)) {
            Some(bytes) => {
                zones.check_offset(bytes)?;
                if attached {
                    zones.check_header(bytes)?;
                }
                bytes
            }
            None if attached => {
                let (usual, _) = layout(args, asked);
                let least = if args.version == 1 { usual } else { luks2_options(args, asked).least_header_len() };
                zones.place_behind_header(usual, least)?
            }
            None => 0,
        };
        let most = if args.version == 1 { DataUnitSize::SECTOR } else { DataUnitSize::LUKS_MAX };
        let sector_size = match args.sector_size {
            None if zones.len.is_multiple_of(most.bytes() as u64) => zones.largest_unit(most),
            given => given.unwrap_or(DataUnitSize::SECTOR),
        };
        zones.check_unit(sector_size)?;
        Ok(Self { offset: Some(offset / 512), sector_size: Some(sector_size) })
    }
}

fn write(
    args: &FormatArgs,
    place: Place,
    device: &Device,
    data: Option<&Device>,
    secret: &Secret,
) -> Result<(), inlock_volume::FormatError> {
    let target =
        BoundedDevice::new(FileDevice::new(device.share()?), device.zones.map_or(u64::MAX, |zones| zones.conventional));
    if args.version == 1 {
        luks1::format(&target, luks1_options(args, place), secret)?;
    } else {
        let mut options = luks2_options(args, place);
        // A zoned file has more in it than its zones.
        options.data_len = data.or(device.zones.map(|_| device)).map(|data| data.len);
        luks2::format(&target, options, secret)?;
    }
    Ok(())
}

/// Bytes of the header, and where the data will start.
fn layout(args: &FormatArgs, place: Place) -> (u64, u64) {
    if args.version == 1 {
        let options = luks1_options(args, place);
        return (options.header_len(), options.data_offset());
    }
    let options = luks2_options(args, place);
    let start = options.data_offset.unwrap_or(if options.detached { 0 } else { options.header_len() });
    (options.header_len(), start)
}

fn luks1_options(args: &FormatArgs, place: Place) -> luks1::FormatOptions {
    luks1::FormatOptions {
        cipher: args.cipher,
        key_len: args.key_len,
        hash: args.hash,
        kdf: kdf_request(args, KdfKind::Pbkdf2),
        uuid: args.uuid.clone(),
        detached: args.header.is_some(),
        payload_offset: place.offset.filter(|sectors| *sectors > 0 || args.offset.is_some()),
        keyslot: args.key.slot.unwrap_or(0),
        volume_key: None,
        policy: args.policy.clone(),
    }
}

fn luks2_options(args: &FormatArgs, place: Place) -> luks2::FormatOptions {
    luks2::FormatOptions {
        cipher: args.cipher,
        key_len: args.key_len,
        hash: args.hash,
        kdf: kdf_request(args, KdfKind::Argon2id),
        sector_size: place.sector_size,
        uuid: args.uuid.clone(),
        label: args.label.clone().unwrap_or_default(),
        subsystem: args.subsystem.clone().unwrap_or_default(),
        detached: args.header.is_some(),
        data_offset: place.offset.map(|sectors| sectors.saturating_mul(512)),
        keyslot: args.key.slot.unwrap_or(0),
        policy: args.policy.clone(),
        ..luks2::FormatOptions::default()
    }
}

fn kdf_request(args: &FormatArgs, default: KdfKind) -> KdfRequest {
    let kdf = &args.kdf;
    KdfRequest {
        hash: args.hash,
        iter_time_ms: kdf.iter_time_ms.unwrap_or(KdfRequest::DEFAULT_ITER_TIME_MS),
        forced_iterations: kdf.force_iterations,
        memory_kib: kdf.memory_kib,
        lanes: kdf.parallel,
        ..KdfRequest::new(kdf.kind.unwrap_or(default))
    }
}

/// Whether the file was missing and is there now, for its owner only.
fn create_header_file(path: &Path) -> anyhow::Result<bool> {
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error).with_context(|| format!("cannot create header file {}", path.display())),
    }
}
