//! `luksFormat --integrity`: the dm-integrity volume below a LUKS2 volume, and its first tags.

use std::path::{Path, PathBuf};

use anyhow::Context;
use inlock_engine::Access;
use inlock_engine::store::file::IoMode;
use inlock_integrity::{
    Fill, FormatOptions, IntegrityError, Mode, OpenOptions as IntegrityOpenOptions, Sealing, Stores, format,
};
use inlock_volume::{AeadSpec, AuthenticatedSegment, DataUnitSize, Sector, VolumeKey};

use crate::args::integrity::refuse_inline;
use crate::args::options::Options;
use crate::args::source::{key_args_or, key_bytes, source_args, takes_keys_of};
use crate::commands::wipe::{fill_of, resume, watch};
use crate::error::CliError;
use crate::host::context;
use crate::ui::progress::Show;
use crate::values::integrity_in_header;
use inlock_open::device::Device;
use inlock_open::integrity::cannot_use;
use inlock_open::open;
use inlock_open::source::{NoJournal, OpenOptions};
use inlock_open::wipe::wipe;

/// A volume whose wipe was interrupted.
pub(super) struct ResumeArgs {
    source: OpenOptions,
    fill: Fill,
    show: Show,
}

/// Converts the options of `--resume-wipe`: those that open the volume.
pub(super) fn resume_args(options: &Options, image: PathBuf, key_file: Option<PathBuf>) -> anyhow::Result<ResumeArgs> {
    if options.integrity.is_some() || options.integrity_no_wipe {
        let option = if options.integrity_no_wipe { "integrity-no-wipe" } else { "integrity" };
        return Err(CliError::usage(format!("Option --{option} is not allowed with --resume-wipe.")));
    }
    let show = Show::from_options(options.batch_mode, options.progress_json, options.progress_frequency);
    let key = key_args_or(options, key_file)?;
    Ok(ResumeArgs {
        source: OpenOptions { key, no_journal: Some(NoJournal::ResumeWipe), ..source_args(options, image)? },
        fill: fill_of(options),
        show,
    })
}

impl ResumeArgs {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let unlocked = open(context(), &self.source, true, None)?;
        let stores = unlocked.into_device(IoMode::Sync, Access::default())?;
        stores.check_writes(resume(&self.source.image, &stores, self.fill, self.show))
    }
}

/// Integrity protection of a volume to create.
pub(super) struct Protection {
    pub spec: AeadSpec,
    /// Length of the volume key in bytes, with that of the MAC.
    pub key_len: usize,
    fix_padding: bool,
    /// Content of the blocks. `None`: nothing is written.
    fill: Option<Fill>,
    show: Show,
}

impl Protection {
    /// Converts the options; `None` without `--integrity`.
    pub(super) fn from_options(options: &Options, version: u8) -> anyhow::Result<Option<Self>> {
        let name = options.integrity.as_deref();
        if version == 1 && name.is_some() {
            return Err(CliError::usage("Integrity option can be used only for LUKS2 format."));
        }
        refuse_inline(options)?;
        let Some(name) = name.filter(|name| *name != "none") else {
            let given = [
                (options.integrity_no_wipe, "integrity-no-wipe"),
                (options.integrity_lazy, "integrity-lazy"),
                (options.integrity_key_size.is_some(), "integrity-key-size"),
            ];
            return match given.iter().find(|(given, _)| *given) {
                Some((_, option)) => Err(CliError::usage(format!("Option --{option} needs --integrity."))),
                None => Ok(None),
            };
        };
        if options.integrity_no_wipe && options.integrity_lazy {
            return Err(CliError::usage("Option --integrity-no-wipe is not allowed with --integrity-lazy."));
        }
        let spec = spec(options, name)?;
        Ok(Some(Self {
            spec,
            key_len: key_len(options, &spec)?,
            fix_padding: !options.integrity_legacy_padding,
            fill: (!options.integrity_no_wipe).then(|| fill_of(options)),
            show: Show::from_options(options.batch_mode, options.progress_json, options.progress_frequency),
        }))
    }

    /// Returns the dm-integrity volume on `device` behind `start`, if there is space for it.
    pub(super) fn place(&self, device: &Device, unit: DataUnitSize, start: Sector) -> anyhow::Result<Placed<'_>> {
        let store = device.store(IoMode::Sync, false, false);
        let store = store.with_context(|| format!("cannot use {}", device.path.display()))?;
        let mut stores = Stores::interleaved(store);
        stores.start = start.0;
        let options = FormatOptions {
            tag_size: Some(self.spec.metadata_len()),
            block_len: unit.bytes(),
            fix_padding: self.fix_padding,
            overwrite: true,
            ..FormatOptions::default()
        };
        let placed = Placed { protection: self, stores, options };
        match placed.options.superblock(&placed.stores.sizes()) {
            Ok(_) => Ok(placed),
            Err(IntegrityError::Option { option: "device", .. }) => {
                let needed = start.0.saturating_mul(512).saturating_add(MIN_LEN);
                Err(CliError::TooSmall { path: device.path.clone(), len: device.len, needed }.into())
            }
            Err(error) => Err(cannot_use(&device.path)(error).into()),
        }
    }
}

/// Least bytes of a dm-integrity volume that an error names: superblock, journal, tags and some data.
const MIN_LEN: u64 = 1 << 20;

/// A dm-integrity volume to create.
pub(super) struct Placed<'a> {
    protection: &'a Protection,
    stores: Stores,
    options: FormatOptions,
}

impl Placed<'_> {
    /// Writes superblock and journal, then zeroes with their tags under `key`, or marks, unless that is left out.
    pub(super) fn format(self, image: &Path, key: &VolumeKey) -> anyhow::Result<()> {
        format(&self.stores, &self.options).map_err(cannot_use(image))?;
        let Some(fill) = self.protection.fill else { return Ok(()) };
        let segment = AuthenticatedSegment::new(
            self.protection.spec,
            DataUnitSize::new(self.options.block_len as u32)?,
            Sector(self.stores.start),
        );
        let sealing = Sealing::new(segment.aead(key)?, key.as_bytes(), self.protection.spec.metadata_len())?;
        let show = self.protection.show;
        let options = IntegrityOpenOptions::new(Mode::Direct);
        watch(image, fill, show, |watch| wipe(image, self.stores, options, 0, (fill, Some(&sealing)), watch))
    }
}

/// Converts the names of cipher and integrity.
fn spec(options: &Options, name: &str) -> anyhow::Result<AeadSpec> {
    let kind = match name {
        "aead" | "poly1305" | "hmac-sha1" | "hmac-sha256" | "hmac-sha512" => integrity_in_header(name),
        _ => {
            return Err(CliError::refused(
                "No known integrity specification pattern detected.",
                "use hmac-sha256, hmac-sha512 or hmac-sha1 with a cipher such as aes-xts-random, aead with \
                 aes-gcm-random, aes-ccm-random or aegis128-random, or poly1305 with chacha20-random",
            ));
        }
    };
    let cipher = options.cipher.as_deref().unwrap_or("aes-xts-plain64");
    let spec = AeadSpec::from_luks2(cipher, &kind).map_err(|error| {
        anyhow::Error::from(error).context(CliError::Refused {
            message: format!("Cipher {cipher} with --integrity {name} is not available"),
            hint: "aead goes with --cipher aes-gcm-random, aes-ccm-random or aegis128-random, poly1305 with \
                   chacha20-random, hmac-* with aes-xts-random and others",
        })
    })?;
    let Some(bits) = options.integrity_key_size else { return Ok(spec) };
    let len = key_bytes(bits)?;
    if spec.mac_key_len() == 0 {
        return Err(CliError::usage(
            "Option --integrity-key-size needs --integrity hmac-sha1, hmac-sha256 or hmac-sha512.",
        ));
    }
    spec.with_mac_key_len(len).map_err(|error| CliError::usage(format!("Option --integrity-key-size: {error}.")))
}

/// Returns the length of the volume key: `--key-size` is that of the cipher alone, as in cryptsetup.
fn key_len(options: &Options, spec: &AeadSpec) -> anyhow::Result<usize> {
    let doubled = spec.inner().is_some_and(|inner| inner.mode == inlock_cipher::ChainMode::Xts);
    let bits = options.key_size.unwrap_or(if doubled { 512 } else { 256 });
    let len = key_bytes(bits)? + spec.mac_key_len();
    if spec.can_use_key_len(len) {
        return Ok(len);
    }
    let lens: Vec<usize> = spec.key_lens().iter().map(|len| len - spec.mac_key_len()).collect();
    Err(takes_keys_of(spec, bits, &lens))
}
