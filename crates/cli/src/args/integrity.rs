//! Conversion of the options of dm-integrity volumes. Names, defaults and rules are integritysetup's.

use std::path::PathBuf;
use std::time::Duration;

use inlock_integrity::{Mode, TagAlgorithm};

use super::options::Options;
use super::source::config_of;
use crate::error::CliError;
use inlock_open::integrity_line::DEFAULT_COMMIT_TIME;
use inlock_open::integrity_options::{HashOptions, IntegrityKeyFile, IntegrityOptions, JournalCipherOptions};

/// Options that open a volume.
pub(crate) const INTEGRITY: &[&str] = &[
    "integrity",
    "integrity-key-file",
    "integrity-key-size",
    "tag-size",
    "data-device",
    "journal-watermark",
    "journal-commit-time",
    "journal-integrity",
    "journal-integrity-key-file",
    "journal-integrity-key-size",
    "journal-crypt",
    "journal-crypt-key-file",
    "journal-crypt-key-size",
    "integrity-bitmap-mode",
    "bitmap-sectors-per-bit",
    "bitmap-flush-time",
    "integrity-no-journal",
    "integrity-recovery-mode",
    "integrity-recalculate",
    "integrity-recalculate-reset",
    "integrity-legacy-padding",
    "integrity-legacy-hmac",
    "integrity-legacy-recalculate",
    "integrity-inline",
    "integrity-salvage-journal",
    "integrity-long-journal",
];

/// Converts the options that open a volume.
pub(crate) fn integrity_options(options: &Options) -> anyhow::Result<IntegrityOptions> {
    refuse_inline(options)?;
    let modes = [
        (options.integrity_bitmap_mode, Mode::Bitmap),
        // A bitmap is in the place of a journal: integritysetup takes both options.
        (options.integrity_no_journal && !options.integrity_bitmap_mode, Mode::Direct),
        (options.integrity_recovery_mode, Mode::Recovery),
    ];
    let mut chosen = modes.iter().filter(|(given, _)| *given).map(|(_, mode)| *mode);
    let mode = chosen.next().unwrap_or(Mode::Journal);
    if chosen.next().is_some() {
        return Err(CliError::usage(
            "--integrity-recovery-mode cannot be used with --integrity-bitmap-mode or --integrity-no-journal.",
        ));
    }
    let journal_options = [
        (options.journal_size.is_some(), "journal-size"),
        (options.journal_watermark.is_some(), "journal-watermark"),
        (options.journal_commit_time.is_some(), "journal-commit-time"),
        (options.journal_crypt.is_some(), "journal-crypt"),
    ];
    if let Some((_, option)) = journal_options.iter().find(|(given, _)| *given).filter(|_| mode == Mode::Direct) {
        return Err(CliError::usage(format!("Option --{option} is not allowed with --integrity-no-journal.")));
    }
    let bitmap = options.bitmap_sectors_per_bit.is_some() || options.bitmap_flush_time.is_some();
    if bitmap && mode != Mode::Bitmap {
        return Err(CliError::usage("Bitmap options can be used only in bitmap mode."));
    }
    let every = match mode {
        Mode::Bitmap => options.bitmap_flush_time,
        _ => options.journal_commit_time,
    };
    let journal_key =
        key_file(&options.journal_integrity_key_file, options.journal_integrity_key_size, "journal-integrity")?;
    let crypt_key = key_file(&options.journal_crypt_key_file, options.journal_crypt_key_size, "journal-crypt")?;
    let journal_mac =
        options.journal_integrity.as_deref().map(|name| hash(name, journal_key.clone(), "journal-integrity"));
    let journal_cipher = match (&options.journal_crypt, crypt_key) {
        (Some(name), Some(key)) => Some(JournalCipherOptions { name: name.clone(), key }),
        (Some(_), None) => return Err(CliError::usage("Option --journal-crypt needs --journal-crypt-key-file.")),
        (None, Some(_)) => return Err(CliError::usage("Option --journal-crypt-key-file needs --journal-crypt.")),
        (None, None) => None,
    };
    if journal_mac.is_none() && journal_key.is_some() {
        return Err(CliError::usage("Option --journal-integrity-key-file needs --journal-integrity."));
    }
    let key = key_file(&options.integrity_key_file, options.integrity_key_size, "integrity")?;
    Ok(IntegrityOptions {
        data_device: options.data_device.clone(),
        mode,
        hash: hash(options.integrity.as_deref().unwrap_or("crc32c"), key, "integrity")?,
        journal_mac: journal_mac.transpose()?,
        journal_cipher,
        every: every.map_or(DEFAULT_COMMIT_TIME, |ms| Duration::from_millis(ms.into())),
        tag_size: options.tag_size.map(|size| size as usize),
        sectors_per_bit: options.bitmap_sectors_per_bit,
        allow_discards: options.allow_discards,
        recalculate: options.integrity_recalculate || options.integrity_recalculate_reset,
        legacy_recalculate: options.integrity_legacy_recalculate,
        journal: config_of(options).journal(),
    })
}

/// Refuses `--integrity-inline`.
pub(crate) fn refuse_inline(options: &Options) -> anyhow::Result<()> {
    if !options.integrity_inline {
        return Ok(());
    }
    Err(CliError::refused(
        "Inline integrity is not supported: the tags are in the device's own metadata, which no store can access.",
        "format the volume without --integrity-inline, or open it with the kernel",
    ))
}

/// Converts the name and key of a hash.
fn hash(name: &str, key: Option<IntegrityKeyFile>, option: &str) -> anyhow::Result<HashOptions> {
    let algorithm: TagAlgorithm = name.parse().map_err(|_| {
        CliError::refused(
            format!("Option --{option} '{name}' is not supported."),
            "use crc32c, crc32, xxhash64, sha1, sha256, sha512, hmac-sha1, hmac-sha256 or hmac-sha512",
        )
    })?;
    match (algorithm.is_keyed(), &key) {
        (true, None) => Err(CliError::usage(format!("Algorithm {algorithm} needs --{option}-key-file."))),
        (false, Some(_)) => {
            Err(CliError::usage(format!("Option --{option}-key-file is not allowed with {algorithm}.")))
        }
        _ => Ok(HashOptions { algorithm, key }),
    }
}

/// Converts a key file and its length, which go together.
fn key_file(file: &Option<PathBuf>, len: Option<u64>, option: &str) -> anyhow::Result<Option<IntegrityKeyFile>> {
    const MAX: u64 = 4096;
    match (file, len) {
        (None, None) => Ok(None),
        (Some(path), Some(len)) if (1..=MAX).contains(&len) => {
            Ok(Some(IntegrityKeyFile { path: path.clone(), len: len as usize }))
        }
        (Some(_), Some(_)) => Err(CliError::usage(format!("Option --{option}-key-size takes 1 to {MAX} bytes."))),
        _ => Err(CliError::usage(format!("Both --{option}-key-file and --{option}-key-size must be specified."))),
    }
}
