//! Conversion of the options of new keyslots: costs, ciphers, and their passphrases or keys.

use inlock_open::source::KeySource;
use std::path::PathBuf;

use anyhow::Context;
use inlock_cipher::CipherSpec;
use inlock_volume::{Hash, Kdf, KdfError, KdfKind, KdfRequest, NewKeyslot, Volume};

use super::options::Options;
use super::source::{hash_of, key_args_or, key_bytes};
use crate::error::CliError;
use inlock_open::config::key_source;
use inlock_open::source::{KeyOptions, NewKeyOptions};

/// Cost of a keyslot.
#[derive(Clone, Debug)]
pub(crate) struct KdfArgs {
    pub kind: Option<KdfKind>,
    pub iter_time_ms: Option<u32>,
    pub force_iterations: Option<u32>,
    pub memory_kib: Option<u32>,
    pub parallel: Option<u32>,
}

impl KdfArgs {
    /// Returns the request, with `default` if no algorithm is named.
    pub(crate) fn request(&self, default: KdfKind, hash: Hash) -> KdfRequest {
        let mut request = KdfRequest::new(self.kind.unwrap_or(default));
        request.hash = hash;
        request.iter_time_ms = self.iter_time_ms.unwrap_or(KdfRequest::DEFAULT_ITER_TIME_MS);
        request.forced_iterations = self.force_iterations;
        request.memory_kib = self.memory_kib;
        request.lanes = self.parallel;
        request
    }
}

/// A keyslot to create.
#[derive(Clone, Debug)]
pub(crate) struct KeyslotArgs {
    pub kdf: KdfArgs,
    pub hash: Option<Hash>,
    /// Cipher of its area, and length of that cipher's key in bytes.
    pub cipher: Option<(CipherSpec, usize)>,
}

impl KeyslotArgs {
    /// Whether an option says what a key derivation costs.
    pub(crate) fn has_costs(&self) -> bool {
        let KdfArgs { kind, iter_time_ms, force_iterations, memory_kib, parallel } = &self.kdf;
        let numbers = [iter_time_ms, force_iterations, memory_kib, parallel];
        kind.is_some() || self.hash.is_some() || numbers.iter().any(|number| number.is_some())
    }

    /// Returns the request for a keyslot of `volume`.
    pub(crate) fn request(&self, volume: &Volume) -> anyhow::Result<NewKeyslot> {
        let mut new = volume.new_keyslot();
        if let Volume::Luks1(luks1) = volume {
            self.check_luks1(luks1.hash())?;
        }
        new.kdf = self.kdf.request(new.kdf.kind, self.hash.unwrap_or(Hash::Sha256));
        new.hash = self.hash;
        new.cipher = self.cipher;
        if new.kdf.forced_iterations.is_some() {
            // Before a passphrase is asked for.
            measure(&mut new, 32)?;
        }
        Ok(new)
    }

    fn check_luks1(&self, hash_of_header: &str) -> anyhow::Result<()> {
        if self.kdf.kind.is_some_and(|kind| kind != KdfKind::Pbkdf2) {
            return Err(CliError::refused(
                "Requested PBKDF type is not supported for LUKS1.",
                "leave --pbkdf out: LUKS1 has pbkdf2 only",
            ));
        }
        if self.cipher.is_some() {
            return Err(CliError::refused(
                "Keyslot encryption parameters can be set only for LUKS2 device.",
                "leave --keyslot-cipher and --keyslot-key-size out: a LUKS1 keyslot has the cipher of the payload",
            ));
        }
        match self.hash {
            Some(hash) if hash_of_header != hash.name() => Err(CliError::refused(
                format!("Hash {} cannot be used: all keyslots of a LUKS1 header have its hash.", hash.name()),
                "leave --hash out",
            )),
            _ => Ok(()),
        }
    }
}

/// Measures the costs of a keyslot before its header is locked, for a key of `key_len` bytes.
pub(crate) fn measure(new: &mut NewKeyslot, key_len: usize) -> anyhow::Result<()> {
    let resolved = match new.kdf.resolve(key_len) {
        Err(error @ KdfError::Limit { .. }) => {
            let message = format!("Failed to set pbkdf parameters: {error}.");
            return Err(CliError::refused(message, "use a cost within the limits of the PBKDF"));
        }
        resolved => resolved.context("Failed to set pbkdf parameters.")?,
    };
    match resolved {
        Kdf::Pbkdf2 { iterations, .. } => new.kdf.forced_iterations = Some(iterations),
        Kdf::Argon2i(cost) | Kdf::Argon2id(cost) => {
            new.kdf.forced_iterations = Some(cost.time);
            new.kdf.memory_kib = Some(cost.memory_kib);
            new.kdf.lanes = Some(cost.lanes);
        }
        // Another one is measured under the lock.
        _ => {}
    }
    Ok(())
}

/// Converts the options of key derivation.
pub(crate) fn kdf_args(options: &Options) -> anyhow::Result<KdfArgs> {
    let kind = match options.pbkdf.as_deref() {
        None => None,
        Some(name) => match KdfKind::from_name(name) {
            None => return Err(CliError::usage(format!("Unknown PBKDF '{name}': use argon2id, argon2i or pbkdf2."))),
            kind => kind,
        },
    };
    if options.pbkdf_force_iterations.is_some() && options.iter_time.is_some() {
        return Err(CliError::usage("PBKDF forced iterations cannot be combined with iteration time option."));
    }
    let zero = [(options.pbkdf_force_iterations, "pbkdf-force-iterations"), (options.pbkdf_memory, "pbkdf-memory")];
    if let Some((_, option)) = zero.iter().find(|(value, _)| *value == Some(0)) {
        return Err(CliError::usage(format!("Option --{option} needs a number above zero.")));
    }
    Ok(KdfArgs {
        kind,
        // 0 is the default.
        iter_time_ms: options.iter_time.filter(|msecs| *msecs > 0),
        force_iterations: options.pbkdf_force_iterations,
        memory_kib: options.pbkdf_memory,
        parallel: options.pbkdf_parallel.filter(|lanes| *lanes > 0),
    })
}

/// Converts the options of a keyslot to create.
pub(crate) fn keyslot_args(options: &Options) -> anyhow::Result<KeyslotArgs> {
    Ok(KeyslotArgs { kdf: kdf_args(options)?, hash: hash_of(options)?, cipher: keyslot_cipher(options)? })
}

/// Converts `--keyslot-cipher` and `--keyslot-key-size`.
pub(crate) fn keyslot_cipher(options: &Options) -> anyhow::Result<Option<(CipherSpec, usize)>> {
    let (text, bits) = match (&options.keyslot_cipher, options.keyslot_key_size) {
        (None, None) => return Ok(None),
        (Some(text), Some(bits)) => (text, bits),
        _ => return Err(CliError::usage("Options --keyslot-cipher and --keyslot-key-size must be used together.")),
    };
    let len = key_bytes(bits)?;
    let cipher = text.parse().map_err(|error| {
        anyhow::Error::from(error).context(CliError::Refused {
            message: "Keyslot encryption parameters are not compatible with LUKS2 keyslot encryption.".to_owned(),
            hint: "write the cipher as CIPHER-MODE-IV, such as aes-xts-plain64",
        })
    })?;
    Ok(Some((cipher, len)))
}

/// Converts the options of the existing passphrase or key of a header to change, of which one attempt is made unless
/// `--tries` says more. `file`: the key file as an argument.
pub(crate) fn existing_key_args(options: &Options, file: Option<PathBuf>) -> anyhow::Result<KeyOptions> {
    let key = key_args_or(options, file)?;
    Ok(KeyOptions { tries: options.tries.unwrap_or(1), ..key })
}

/// Converts the options of a new passphrase or key. `file`: the key file as an argument.
pub(crate) fn new_key_args(options: &Options, file: Option<PathBuf>) -> anyhow::Result<NewKeyOptions> {
    if file.is_some() && options.new_keyfile.is_some() {
        return Err(CliError::usage("The new key file is given twice: by --new-keyfile and as an argument."));
    }
    let file = options.new_keyfile.clone().or(file).map(key_source);
    for (given, option) in [
        (options.new_keyfile_offset.is_some(), "new-keyfile-offset"),
        (options.new_keyfile_size.is_some(), "new-keyfile-size"),
    ] {
        if given && file.is_none() {
            return Err(CliError::usage(format!("Option --{option} needs a file with the new key.")));
        }
    }
    let key = KeyOptions {
        source: file.unwrap_or(KeySource::Ask),
        offset: options.new_keyfile_offset.unwrap_or(0),
        size: options.new_keyfile_size,
        slot: None,
        tries: 1,
        volume_key: None,
        ..key_args_or(options, None)?
    };
    Ok(NewKeyOptions { key, verify: options.verify_passphrase || !options.batch_mode })
}
