//! `luksFormat`: creates a LUKS volume.
//!
//! Nothing is written before the user has confirmed, the passphrase is known and the device is locked.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use inlock_rbd_store::RbdStore;
use inlock_volume::{
    BoundedDevice, CipherSpec, DataUnitSize, FormatError, Hash, HeaderPolicy, KdfKind, Secret, Sector, Volume,
    VolumeKey, ZoneFault, Zones, luks1, luks2,
};

use super::integrity::{Protection, resume_args};
use crate::args::action::{Action, IMAGE, KDF, KEY, KEYSLOT, Prepared};
use crate::args::keyslot::{KeyslotArgs, keyslot_args};
use crate::args::options::Options;
use crate::args::source::{cipher_of, key_args_or, key_len_of, policy_of, volume_type_of};
use crate::error::{CliError, cannot_format};
use crate::host::context;
use crate::ui::print::{print_stderr, warn};
use crate::ui::terminal;
use inlock_open::backing;
use inlock_open::device::{Device, OpenMode};
use inlock_open::durable;
use inlock_open::error::ZoneHint;
use inlock_open::header::{ENCRYPTED_CLONE, is_encrypted_clone};
use inlock_open::header_backup as header_file;
use inlock_open::lock::{self, Mode};
use inlock_open::path_text;
use inlock_open::remote::{self, Remote};
use inlock_open::removed_integrity;
use inlock_open::secret::{self, Ask};
use inlock_open::signatures;
use inlock_open::source::{KeyOptions, KeySource, Luks, VolumeType};
use inlock_open::zones;

pub(crate) const ACTION: Action = Action {
    name: "luksFormat",
    aliases: &[],
    arguments: &[IMAGE, "[<key file>]"],
    options: &[KEY, FORMAT, KDF, KEYSLOT, &["volume-key-file", "allow-null-cipher", "allow-null-iv"]],
    about: "create a LUKS volume in an image file or on a device",
    prepare: |options, mut arguments| {
        if options.resume_wipe {
            let args = resume_args(&options, arguments.path()?, arguments.optional())?;
            return Ok(Prepared::new(move || args.run()));
        }
        let args = format_args(options, arguments.path()?, arguments.optional())?;
        Ok(Prepared::new(move || run(&args)))
    },
};

const FORMAT: &[&str] = &[
    "type",
    "header",
    "key-slot",
    "cipher",
    "key-size",
    "sector-size",
    "offset",
    "align-payload",
    "luks2-metadata-size",
    "luks2-keyslots-size",
    "use-random",
    "use-urandom",
    "disable-blkid",
    "disable-keyring",
    "disable-locks",
    "connect-timeout",
    "store-timeout",
    "steal-lock",
    "allow-copy",
    "uuid",
    "label",
    "subsystem",
    "header-backup-file",
    "integrity",
    "integrity-key-size",
    "integrity-no-wipe",
    "integrity-lazy",
    "integrity-no-journal",
    "integrity-legacy-padding",
    "integrity-inline",
    "resume-wipe",
    "progress-json",
    "progress-frequency",
];

/// A LUKS volume to create.
struct FormatArgs {
    image: PathBuf,
    header: Option<PathBuf>,
    /// 1 or 2.
    version: u8,
    key: KeyOptions,
    cipher: CipherSpec,
    /// Integrity protection, which has a cipher of its own.
    protection: Option<Protection>,
    key_len: usize,
    hash: Hash,
    keyslot: KeyslotArgs,
    /// In bytes, with LUKS2.
    metadata_len: Option<u64>,
    /// In bytes, with LUKS2.
    keyslots_len: Option<u64>,
    sector_size: Option<DataUnitSize>,
    /// Start of the data in sectors of 512 bytes.
    offset: Option<u64>,
    uuid: Option<String>,
    label: Option<String>,
    subsystem: Option<String>,
    /// Alignment of the data in sectors.
    align: Option<u64>,
    policy: HeaderPolicy,
    /// File for a backup of the new header.
    backup: Option<PathBuf>,
    /// `--batch-mode`
    batch: bool,
}

fn format_args(options: Options, image: PathBuf, key_file: Option<PathBuf>) -> anyhow::Result<FormatArgs> {
    let version = match volume_type_of(&options)? {
        VolumeType::Luks(Luks::Any | Luks::Two) => 2,
        VolumeType::Luks(Luks::One) => 1,
        _ => return Err(CliError::usage("Action luksFormat creates LUKS volumes only.")),
    };
    if version == 1 {
        check_luks1(&options)?;
    }
    check_layout(&options)?;
    let sector_size = match options.sector_size.map(DataUnitSize::new).transpose() {
        Ok(size) if size.is_none_or(|size| size <= DataUnitSize::LUKS_MAX) => size,
        _ => {
            return Err(CliError::usage(
                "Unsupported encryption sector size: LUKS2 has 512, 1024, 2048 or 4096 bytes.",
            ));
        }
    };
    let key = key_args_or(&options, key_file)?;
    let slots = if version == 1 { 8 } else { 32 };
    if key.slot.is_some_and(|slot| slot >= slots) {
        return Err(CliError::usage(format!("Keyslot is invalid: LUKS{version} has keyslots 0 to {}.", slots - 1)));
    }
    for (name, text) in [("label", &options.label), ("subsystem", &options.subsystem)] {
        // The header has 48 bytes, including a terminating zero.
        if text.as_ref().is_some_and(|text| text.len() > 47 || text.contains('\0')) {
            return Err(CliError::usage(format!("Option --{name} takes at most 47 bytes.")));
        }
    }
    let protection = Protection::from_options(&options, version)?;
    let (cipher, key_len) = match &protection {
        Some(protection) => (CipherSpec::AES_XTS_PLAIN64, protection.key_len),
        None => {
            let cipher = cipher_of(&options)?;
            (cipher, key_len_of(&options, cipher, true)?)
        }
    };
    let keyslot = keyslot_args(&options)?;
    if version == 1 && keyslot.kdf.kind.is_some_and(|kind| kind != KdfKind::Pbkdf2) {
        return Err(CliError::usage("LUKS1 supports only the PBKDF pbkdf2."));
    }
    Ok(FormatArgs {
        policy: policy_of(&options)?,
        batch: options.batch_mode,
        image,
        version,
        key,
        cipher,
        protection,
        key_len,
        sector_size,
        offset: options.offset,
        align: options.align_payload.filter(|sectors| *sectors > 0),
        hash: keyslot.hash.unwrap_or(Hash::Sha256),
        keyslot,
        metadata_len: options.luks2_metadata_size,
        keyslots_len: options.luks2_keyslots_size,
        header: options.header,
        backup: options.header_backup_file,
        uuid: options.uuid,
        label: options.label,
        subsystem: options.subsystem,
    })
}

/// Refuses what LUKS1 does not have.
fn check_luks1(options: &Options) -> anyhow::Result<()> {
    if options.label.is_some() || options.subsystem.is_some() {
        return Err(CliError::usage("Options --label and --subsystem are supported only for LUKS2 volumes."));
    }
    if options.luks2_metadata_size.is_some() || options.luks2_keyslots_size.is_some() {
        return Err(CliError::usage("Unsupported LUKS2 metadata size options."));
    }
    if options.keyslot_cipher.is_some() {
        return Err(CliError::usage("Keyslot encryption parameters can be set only for LUKS2 device."));
    }
    if options.sector_size.is_some_and(|size| size != 512) {
        return Err(CliError::usage("Unsupported encryption sector size: LUKS1 has 512 bytes."));
    }
    Ok(())
}

/// Refuses options of the layout and of random numbers that exclude each other.
fn check_layout(options: &Options) -> anyhow::Result<()> {
    if options.align_payload.is_some() && options.offset.is_some() {
        return Err(CliError::usage("Options --align-payload and --offset cannot be combined."));
    }
    if options.offset.is_some_and(|sectors| !sectors.is_multiple_of(8)) {
        return Err(CliError::usage("Data offset is not multiple of 4096 bytes."));
    }
    if options.use_random && options.use_urandom {
        return Err(CliError::usage("Only one of --use-[u]random options is allowed."));
    }
    Ok(())
}

fn run(args: &FormatArgs) -> anyhow::Result<()> {
    if let Some(file) = &args.backup {
        header_file::check_new(file)?;
    }
    create(args)?;
    if let Some(file) = &args.backup {
        let device = Device::open(context(), args.header.as_deref().unwrap_or(&args.image), OpenMode::Read)?;
        let message = || format!("{} was created, but its header was not backed up", args.image.display());
        header_file::create(&device, file).with_context(message)?;
    }
    Ok(())
}

fn create(args: &FormatArgs) -> anyhow::Result<()> {
    let Some(header) = &args.header else {
        let device = Device::open(context(), &args.image, OpenMode::Create)?.with_zones()?;
        return format(args, &device, None);
    };
    let data = Device::open(context(), &args.image, OpenMode::Create)?.with_zones()?;
    let created = create_header_file(header)?;
    let device = Device::open(context(), header, OpenMode::Write)?.with_zones()?;
    device.check_writable()?;
    if device.identity() == data.identity() || backing::overlap(&device.path, &data.path) {
        return Err(CliError::usage("Option --header names the device itself."));
    }
    let _data_lock = lock::whole_device(&data, Mode::Exclusive)?;
    let result = format(args, &device, Some(&data));
    let result = result.and_then(|()| match device.file() {
        Some(file) if created => Ok(durable::sync_name(file, header)?),
        _ => Ok(()),
    });
    if created && result.is_err() {
        // This call created the empty file.
        let _ = std::fs::remove_file(header);
    }
    result
}

fn format(args: &FormatArgs, device: &Device, data: Option<&Device>) -> anyhow::Result<()> {
    let _whole = lock::whole_device(device, Mode::Exclusive)?;
    let holder = data.unwrap_or(device);
    let placement = DataPlacement::find(args, device, holder)?;
    let (header_len, data_offset) = layout(args, placement);
    if let (Some(zones), Some(_)) = (&device.zones, data) {
        zones.check_header(header_len).map_err(zones::unfit(&device.path, ZoneHint::NewHeader))?;
    }
    let unit = placement.sector_size.map_or(512, |size| size.bytes() as u64);
    let needed = data_offset.saturating_add(unit);
    if holder.len < needed {
        return Err(CliError::TooSmall { path: holder.path.clone(), len: holder.len, needed }.into());
    }
    let placed = match &args.protection {
        None => None,
        Some(_) if holder.zones.is_some() => {
            return Err(CliError::refused(
                format!("Device {} is zoned: dm-integrity writes tags in place.", holder.path.display()),
                "leave --integrity out, or use another device",
            ));
        }
        Some(protection) => {
            let unit = luks2_options(args, placement).sector_size(Some(holder.len));
            Some(protection.place(holder, unit, Sector(data_offset / 512))?)
        }
    };
    if let (Some(asked), Some(len)) = (args.keyslots_len, luks2_options(args, placement).keyslots_len)
        && len < asked
    {
        warn(format_args!("the LUKS2 keyslots area is changed to {len} bytes, which end before the data"));
    }
    let interactive = terminal::stdin_is_terminal() && !args.batch;
    let replaced = header_to_replace(args, device)?;
    if interactive {
        terminal::confirm(
            &format!("This will overwrite data on {} irrevocably.", path_text::shown(&backing::shown(&device.path))),
            CliError::NotConfirmed,
        )?;
    }
    let ask = Ask { device: &args.image, prompt: None, verify: interactive || args.key.verify, context: context() };
    let given = secret::read(&args.key, ask, None)?;
    if given.secret.is_empty() && matches!(args.key.source, KeySource::File(_)) {
        warn("the key file is empty: the volume opens without a passphrase");
    }
    let key = args.key.volume_key.as_ref();
    let key = key.map(|source| secret::read_volume_key(source, Some(args.key_len))).transpose()?;
    let _header = lock::header(device, Mode::Exclusive)?;
    check_unchanged(device, replaced.as_ref())?;
    if data.is_some() && !device.is_block() && device.len < header_len {
        let enlarged = device.share().and_then(|file| file.set_len(header_len));
        enlarged.with_context(|| format!("cannot enlarge {}", device.path.display()))?;
    }
    let refused = |error| cannot_format(&device.path)(with_given_name(args, error));
    let Some(placed) = placed else {
        // The key of a volume that has lost its header may be that of data with integrity protection.
        let is_new = data.is_none() && key.is_none() && holder.zones.is_none();
        write(args, placement, device, data, &given.secret, key).map_err(refused)?;
        signatures::wipe(device, 0)?;
        return if is_new { Ok(removed_integrity::clear(holder, data_offset)?) } else { Ok(()) };
    };
    let mut options = luks2_options(args, placement);
    options.volume_key = key;
    let key = options.new_key().map_err(refused)?;
    write(args, placement, device, data, &given.secret, Some(VolumeKey::new(key.as_bytes()))).map_err(refused)?;
    signatures::wipe(device, 0)?;
    placed.format(&holder.path, &key)
}

/// Warns of a header that will be overwritten, in cryptsetup's words where it has them.
fn warn_of_header(device: &Device) -> anyhow::Result<()> {
    let (header, path) = (device.header()?, device.path.display());
    if context().settings().ignore_signatures {
        return Ok(());
    }
    if Volume::load(&header).is_ok() {
        print_stderr(format_args!("WARNING: Device {path} already contains a 'crypto_LUKS' superblock signature."));
    } else if is_encrypted_clone(&header) {
        print_stderr(format_args!("WARNING: Device {path} is {ENCRYPTED_CLONE}."));
    }
    signatures::warn_of(device, "")?;
    Ok(())
}

/// Returns the header that is on the device, and names it and what else is there.
fn header_to_replace(args: &FormatArgs, device: &Device) -> anyhow::Result<Option<Volume>> {
    let _header = lock::header(device, Mode::Shared)?;
    if !args.batch {
        warn_of_header(device)?;
    }
    Ok(Volume::load(&device.header()?).ok())
}

/// Fails if another program has changed the header that is to be replaced since the user was asked.
fn check_unchanged(device: &Device, replaced: Option<&Volume>) -> anyhow::Result<()> {
    let is_same = match (replaced, Volume::load(&device.header()?).ok()) {
        (None, None) => true,
        (Some(replaced), Some(present)) => present.is_same_header(replaced),
        _ => false,
    };
    if is_same {
        return Ok(());
    }
    Err(CliError::refused(
        format!("The header on device {} was changed by another program.", device.path.display()),
        "nothing was written; run `inlock luksDump` to see the header",
    ))
}

/// Offset and unit of the data.
#[derive(Clone, Copy)]
struct DataPlacement {
    /// In sectors. `None`: behind the header, or at 0 with a detached header.
    offset: Option<u64>,
    /// `None`: the largest that fits the length of the device.
    sector_size: Option<DataUnitSize>,
}

impl DataPlacement {
    /// Returns the values of the options; on a zoned device, those that fit the zones of `holder`, which has the data.
    fn find(args: &FormatArgs, device: &Device, holder: &Device) -> anyhow::Result<Self> {
        let asked = Self { offset: asked_offset(args), sector_size: args.sector_size };
        let attached = device.identity() == holder.identity();
        if let Some(image) = holder.remote().and_then(Remote::rbd) {
            return Self::on_image(args, image, holder, attached);
        }
        let Some(zones) = &holder.zones else { return Ok(asked) };
        Self::on_zones(args, zones, attached).map_err(|fault| {
            let hint = match fault {
                ZoneFault::Header { .. } => ZoneHint::Detached,
                ZoneFault::Unit { .. } => ZoneHint::Unit,
                _ => ZoneHint::Offset,
            };
            zones::unfit(&holder.path, hint)(fault).into()
        })
    }

    /// Returns the values of the options; otherwise, the data begin where librbd's own encryption finds them, too: at a
    /// multiple of the stripe period.
    fn on_image(args: &FormatArgs, image: &RbdStore, holder: &Device, attached: bool) -> anyhow::Result<Self> {
        let facts = image.facts();
        if facts.has_journal {
            return Err(CliError::refused(
                format!(
                    "Device {} has the feature journaling, which encrypted images cannot have.",
                    holder.path.display()
                ),
                "disable it: rbd feature disable POOL/IMAGE journaling",
            ));
        }
        if facts.is_clone {
            warn(format_args!(
                "{} is a clone: parts that are never written read as noise here, and in librbd as the parent's data; \
                 flatten it first: rbd flatten POOL/IMAGE",
                holder.path.display()
            ));
        }
        let asked = Self { offset: asked_offset(args), sector_size: args.sector_size };
        if asked.offset.is_some() || !attached {
            return Ok(asked);
        }
        let (_, usual) = layout(args, asked);
        let aligned = usual.checked_next_multiple_of(facts.stripe_period.max(512));
        Ok(Self { offset: aligned.map(|bytes| bytes / 512), ..asked })
    }

    fn on_zones(args: &FormatArgs, zones: &Zones, attached: bool) -> Result<Self, ZoneFault> {
        let asked = Self { offset: asked_offset(args), sector_size: args.sector_size };
        let offset = match asked.offset.map(|sectors| sectors.saturating_mul(512)) {
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
    placement: DataPlacement,
    device: &Device,
    data: Option<&Device>,
    secret: &Secret,
    key: Option<VolumeKey>,
) -> Result<(), FormatError> {
    let target = BoundedDevice::new(device.header()?, device.zones.map_or(u64::MAX, |zones| zones.conventional));
    if args.version == 1 {
        let mut options = luks1_options(args, placement);
        options.volume_key = key;
        luks1::format(&target, options, secret)?;
    } else {
        let mut options = luks2_options(args, placement);
        options.volume_key = key;
        // A zoned file is longer than its zones.
        options.data_len = data.or(device.zones.map(|_| device)).map(|data| data.len);
        luks2::format(&target, options, secret)?;
    }
    Ok(())
}

/// Names the option by which the user has set the start of the data.
fn with_given_name(args: &FormatArgs, error: FormatError) -> FormatError {
    match error {
        FormatError::InvalidOption { option: "offset", reason } if args.align.is_some() => {
            FormatError::InvalidOption { option: "align-payload", reason }
        }
        error => error,
    }
}

/// Returns the start of the data that the options ask for, in sectors.
fn asked_offset(args: &FormatArgs) -> Option<u64> {
    let Some(sectors) = args.align else { return args.offset };
    if args.header.is_some() {
        // The start of the data itself, in cryptsetup's manual an absolute alignment.
        return Some(sectors);
    }
    let (header_len, _) = layout(args, DataPlacement { offset: None, sector_size: None });
    header_len.div_ceil(512).checked_next_multiple_of(sectors)
}

/// Returns length of the header and start of the data, in bytes.
fn layout(args: &FormatArgs, placement: DataPlacement) -> (u64, u64) {
    if args.version == 1 {
        let options = luks1_options(args, placement);
        return (options.header_len(), options.data_offset());
    }
    let options = luks2_options(args, placement);
    let start = options.data_offset.unwrap_or(if options.detached { 0 } else { options.header_len() });
    (options.header_len(), start)
}

fn luks1_options(args: &FormatArgs, placement: DataPlacement) -> luks1::FormatOptions {
    let mut options = luks1::FormatOptions::default();
    options.cipher = args.cipher;
    options.key_len = args.key_len;
    options.hash = args.hash;
    options.kdf = args.keyslot.kdf.request(KdfKind::Pbkdf2, args.hash);
    options.uuid = args.uuid.clone();
    options.detached = args.header.is_some();
    options.payload_offset = placement.offset.filter(|sectors| *sectors > 0 || args.offset.is_some());
    options.keyslot = args.key.slot.unwrap_or(0);
    options.policy = args.policy.clone();
    options
}

fn luks2_options(args: &FormatArgs, placement: DataPlacement) -> luks2::FormatOptions {
    let mut options = luks2::FormatOptions::default();
    options.cipher = args.cipher;
    options.aead = args.protection.as_ref().map(|protection| protection.spec);
    options.key_len = args.key_len;
    options.hash = args.hash;
    options.kdf = args.keyslot.kdf.request(KdfKind::Argon2id, args.hash);
    options.keyslot_cipher = args.keyslot.cipher;
    if let Some(len) = args.metadata_len {
        options.metadata_len = len;
    }
    options.sector_size = placement.sector_size;
    options.uuid = args.uuid.clone();
    options.label = args.label.clone().unwrap_or_default();
    options.subsystem = args.subsystem.clone().unwrap_or_default();
    options.detached = args.header.is_some();
    options.data_offset = placement.offset.map(|sectors| sectors.saturating_mul(512));
    options.keyslots_len = match (args.keyslots_len, options.data_offset) {
        // The keyslot areas end before the data, unless these begin at 0 of another device.
        (Some(asked), Some(start)) if start > 0 || !options.detached => {
            Some(asked.min(start.saturating_sub(options.metadata_len.saturating_mul(2))))
        }
        (asked, _) => asked,
    };
    options.keyslot = args.key.slot.unwrap_or(0);
    options.policy = args.policy.clone();
    options
}

/// Creates the file, for its owner only, unless it exists. Returns whether it was created.
fn create_header_file(path: &Path) -> anyhow::Result<bool> {
    if remote::uri_of(path).is_some() {
        return Ok(false);
    }
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error).with_context(|| format!("cannot create header file {}", path.display())),
    }
}
