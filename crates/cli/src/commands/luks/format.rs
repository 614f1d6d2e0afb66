//! `luksFormat`: creates a LUKS volume.
//!
//! Nothing is written before the user has confirmed, the passphrase is known and the device is locked.

use std::path::PathBuf;

use anyhow::Context;
use inlock_integrity::Fill;

use super::integrity::{protection_of, resume_args};
use crate::args::action::{Action, IMAGE, KDF, KEY, KEYSLOT, Prepared};
use crate::args::keyslot::keyslot_args;
use crate::args::options::Options;
use crate::args::source::{cipher_of, key_args_or, key_len_of, policy_of, volume_type_of};
use crate::commands::wipe::{fill_of, watch};
use crate::error::CliError;
use crate::host::context;
use crate::ui::print::{print_stderr, warn};
use crate::ui::progress::Show;
use crate::ui::terminal;
use inlock_open::ErrorKind;
use inlock_open::backing;
use inlock_open::create::{CreateOptions, DataStart, NewVolume, is_label};
use inlock_open::device::{Device, OpenMode};
use inlock_open::header_backup as header_file;
use inlock_open::path_text;
use inlock_open::secret::{self, Ask};
use inlock_open::source::{KeyOptions, KeySource, Luks, VolumeType};

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
    create: CreateOptions,
    key: KeyOptions,
    /// Content of the blocks of a volume with integrity protection.
    fill: Fill,
    show: Show,
    /// File for a backup of the new header.
    backup: Option<PathBuf>,
    /// `--batch-mode`
    batch: bool,
}

fn format_args(options: Options, image: PathBuf, key_file: Option<PathBuf>) -> anyhow::Result<FormatArgs> {
    let defaults = match volume_type_of(&options)? {
        VolumeType::Luks(Luks::Any | Luks::Two) => CreateOptions::luks2(image),
        VolumeType::Luks(Luks::One) => CreateOptions::luks1(image),
        _ => return Err(CliError::usage("Action luksFormat creates LUKS volumes only.")),
    };
    check(&options, defaults.version)?;
    let key = key_args_or(&options, key_file)?;
    let protection = protection_of(&options, defaults.version)?;
    let (cipher, key_len) = match &protection {
        Some((_, key_len)) => (defaults.cipher, *key_len),
        None => {
            let cipher = cipher_of(&options)?;
            (cipher, key_len_of(&options, cipher, true)?)
        }
    };
    let keyslot = keyslot_args(&options)?;
    let hash = keyslot.hash.unwrap_or(defaults.hash);
    let policy = policy_of(&options)?;
    let show = Show::from_options(options.batch_mode, options.progress_json, options.progress_frequency);
    let (fill, batch, backup) = (fill_of(&options), options.batch_mode, options.header_backup_file);
    let create = CreateOptions {
        header: options.header,
        cipher,
        integrity: protection.map(|(protection, _)| protection),
        key_len,
        hash,
        kdf: keyslot.kdf.request(defaults.kdf.kind, hash),
        keyslot: key.slot.unwrap_or(defaults.keyslot),
        keyslot_cipher: keyslot.cipher,
        metadata_len: options.luks2_metadata_size,
        keyslots_len: options.luks2_keyslots_size,
        sector_size: options.sector_size,
        start: match (options.offset, options.align_payload) {
            (Some(sectors), _) => DataStart::At(sectors),
            (None, Some(sectors)) if sectors > 0 => DataStart::Aligned(sectors),
            _ => DataStart::Usual,
        },
        uuid: options.uuid,
        label: options.label,
        subsystem: options.subsystem,
        policy,
        ..defaults
    };
    create.check()?;
    Ok(FormatArgs { create, key, fill, show, backup, batch })
}

/// Refuses options that exclude each other, and those whose refusal names them.
fn check(options: &Options, version: u32) -> anyhow::Result<()> {
    if version == 1 && (options.label.is_some() || options.subsystem.is_some()) {
        return Err(CliError::usage("Options --label and --subsystem are supported only for LUKS2 volumes."));
    }
    if options.align_payload.is_some() && options.offset.is_some() {
        return Err(CliError::usage("Options --align-payload and --offset cannot be combined."));
    }
    if options.use_random && options.use_urandom {
        return Err(CliError::usage("Only one of --use-[u]random options is allowed."));
    }
    for (name, text) in [("label", &options.label), ("subsystem", &options.subsystem)] {
        if text.as_deref().is_some_and(|text| !is_label(text)) {
            return Err(CliError::usage(format!("Option --{name} takes at most 47 bytes.")));
        }
    }
    Ok(())
}

fn run(args: &FormatArgs) -> anyhow::Result<()> {
    if let Some(file) = &args.backup {
        header_file::check_new(file)?;
    }
    create(args)?;
    if let Some(file) = &args.backup {
        let image = &args.create.image;
        let device = Device::open(context(), args.create.header.as_deref().unwrap_or(image), OpenMode::Read)?;
        let message = || format!("{} was created, but its header was not backed up", image.display());
        header_file::create(&device, file).with_context(message)?;
    }
    Ok(())
}

fn create(args: &FormatArgs) -> anyhow::Result<()> {
    let volume = NewVolume::prepare(context(), &args.create).map_err(|error| match error.kind() {
        ErrorKind::SameHeaderDevice => CliError::usage("Option --header names the device itself."),
        _ => error.into(),
    })?;
    let path = volume.header_path();
    if !args.batch {
        for found in volume.overwritten()? {
            print_stderr(format_args!("WARNING: Device {} {found}.", path.display()));
        }
    }
    let interactive = terminal::stdin_is_terminal() && !args.batch;
    if interactive {
        let shown = backing::shown(path);
        let text = format!("This will overwrite data on {} irrevocably.", path_text::shown(&shown));
        terminal::confirm(&text, CliError::NotConfirmed)?;
    }
    let (image, verify) = (&args.create.image, interactive || args.key.verify);
    let given = secret::read(&args.key, Ask { device: image, prompt: None, verify, context: context() }, None)?;
    if given.secret.is_empty() && matches!(args.key.source, KeySource::File(_)) {
        warn("the key file is empty: the volume opens without a passphrase");
    }
    let key = args.key.volume_key.as_ref();
    let key = key.map(|source| secret::read_volume_key(source, Some(args.create.key_len))).transpose()?;
    let path = volume.path().to_owned();
    watch(&path, args.fill, args.show, |watch| volume.create(&given.secret, key, watch))
}
