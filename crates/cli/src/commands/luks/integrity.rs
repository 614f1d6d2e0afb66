//! `luksFormat --integrity`: the options of integrity protection, and continuing to fill a volume.

use std::path::PathBuf;

use inlock_engine::Access;
use inlock_engine::store::file::IoMode;
use inlock_integrity::Fill;
use inlock_volume::AeadSpec;

use crate::args::integrity::refuse_inline;
use crate::args::options::Options;
use crate::args::source::{key_args_or, key_bytes, source_args, takes_keys_of};
use crate::commands::wipe::{fill_of, resume};
use crate::error::CliError;
use crate::host::context;
use crate::ui::progress::Show;
use crate::values::integrity_in_header;
use inlock_open::create::IntegrityProtection;
use inlock_open::open;
use inlock_open::source::{NoJournal, OpenOptions};

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

/// Converts the options of integrity protection to it and the length of the volume key in bytes, with that of the MAC;
/// `None` without `--integrity`.
pub(super) fn protection_of(options: &Options, version: u32) -> anyhow::Result<Option<(IntegrityProtection, usize)>> {
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
    let fix_padding = !options.integrity_legacy_padding;
    let fill = (!options.integrity_no_wipe).then(|| fill_of(options));
    Ok(Some((IntegrityProtection { spec, fix_padding, fill }, key_len(options, &spec)?)))
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
