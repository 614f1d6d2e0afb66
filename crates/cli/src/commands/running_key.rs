//! The key of a running volume: to resume it, or to prove that the user has it.

use std::path::{Path, PathBuf};

use anyhow::Context;
use inlock_volume::HeaderPolicy;
use inlock_volume::plain::Plain;
use inlock_volume::table::CryptOptions;

use crate::args::options::Options;
use crate::args::source::{key_args, policy_of};
use crate::error::CliError;
use crate::host::context;
use inlock_open::edit::scrubbed;
use inlock_open::header::Header;
use inlock_open::integrity_options::JournalOptions;
use inlock_open::open::ask_key;
use inlock_open::source::{HeaderOptions, KeyOptions, Luks, OpenOptions, VolumeType};
use inlock_serve::control::info::RuntimeInfo;

/// Options of a key that an action on a running volume takes.
pub(super) struct RunningKey {
    pub(super) key: KeyOptions,
    /// A header other than the one that the volume was opened with.
    pub(super) header: Option<PathBuf>,
    pub(super) policy: HeaderPolicy,
    /// Whether an option of a passphrase, key or token is given.
    is_given: bool,
}

impl RunningKey {
    pub(super) fn new(options: &Options) -> anyhow::Result<Self> {
        let is_given = options.key_file.is_some()
            || options.keyfile_offset.is_some()
            || options.keyfile_size.is_some()
            || options.key_slot.is_some()
            || options.tries.is_some()
            || options.timeout.is_some()
            || options.verify_passphrase
            || options.volume_key_file.is_some()
            || options.volume_key_keyring.is_some()
            || options.token_id.is_some()
            || options.token_type.is_some()
            || options.token_only;
        Ok(Self { key: key_args(options)?, header: options.header.clone(), policy: policy_of(options)?, is_given })
    }

    /// Checks the key, if an option of it is given: the action itself needs none. Checks the header, too.
    pub(super) fn check(&self, info: &RuntimeInfo) -> anyhow::Result<()> {
        check_header(info, self.header.as_deref())?;
        if !self.is_given {
            return Ok(());
        }
        if !matches!(&*info.kind, "LUKS1" | "LUKS2") {
            let message = format!("The key of {} cannot be checked: it is no LUKS volume.", info.name);
            return Err(CliError::refused(message, "leave the options of the key out"));
        }
        let source = self.source(info)?;
        scrubbed(|| ask_key(context(), &source))?;
        Ok(())
    }

    /// Returns the source that the volume was opened from, as far as the key depends on it.
    pub(super) fn source(&self, info: &RuntimeInfo) -> anyhow::Result<OpenOptions> {
        let volume_type = match &*info.kind {
            "LUKS1" => VolumeType::Luks(Luks::One),
            "LUKS2" => VolumeType::Luks(Luks::Two),
            "PLAIN" => VolumeType::Plain(plain(info).context("The process sent an invalid status.")?),
            _ => {
                return Err(CliError::refused(
                    format!("The key of {} came with its table.", info.name),
                    "run `inlock reload NAME --table` with a table that has the key, then `inlock resume`",
                ));
            }
        };
        if self.header.is_some() && !matches!(volume_type, VolumeType::Luks(_)) {
            return Err(CliError::usage("Option --header is allowed only for LUKS volumes."));
        }
        let header = self.header.clone().or_else(|| info.header.clone());
        let flags = CryptOptions::default();
        // Only the key comes from the header, which may have changed. The mapping stays as opened.
        let mut policy = self.policy.clone();
        (policy.allow_null_cipher, policy.allow_null_iv, policy.allow_linear_segment) = (true, true, true);
        Ok(OpenOptions {
            image: info.device.clone(),
            header,
            volume_type,
            key: self.key.clone(),
            flags,
            persistent: false,
            policy,
            no_journal: None,
            journal: JournalOptions::default(),
            freshness: None,
            links: Vec::new(),
            shared: false,
            zero_holes: false,
        })
    }
}

/// Fails unless the running volume has the type that `--type` names.
pub(super) fn check_type(info: &RuntimeInfo, volume_type: Option<&str>) -> anyhow::Result<()> {
    let kind = info.kind.to_lowercase();
    match volume_type {
        None => Ok(()),
        Some("luks") if kind.starts_with("luks") => Ok(()),
        Some(name) if name == kind => Ok(()),
        Some(name) => Err(CliError::refused(
            format!("Volume {} has type {kind}, not {name}.", info.name),
            "run `inlock status NAME` to see its type",
        )),
    }
}

/// Fails unless the header on `path`, if there is one, belongs to the running volume.
pub(super) fn check_header(info: &RuntimeInfo, path: Option<&Path>) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    if !matches!(&*info.kind, "LUKS1" | "LUKS2") {
        return Err(CliError::usage("Option --header is allowed only for LUKS volumes."));
    }
    let at = HeaderOptions { image: path.to_owned(), header: None, luks: Luks::Any, policy: HeaderPolicy::default() };
    if Header::load(context(), &at, true)?.volume.uuid() == info.uuid.as_deref().unwrap_or_default() {
        return Ok(());
    }
    Err(CliError::refused(
        format!("Device {} does not have the header of {}.", path.display(), info.name),
        "run `inlock status NAME` to see its header",
    ))
}

fn plain(info: &RuntimeInfo) -> Option<Plain> {
    let segment = info.segments.first()?;
    let mut plain = Plain::default();
    plain.cipher = segment.cipher.as_deref()?.parse().ok()?;
    plain.key_len = segment.key_bits / 8;
    plain.hash = info.hash.as_deref()?.parse().ok()?;
    Some(plain)
}
