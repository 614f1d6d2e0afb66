//! Conversion of the options of dm-verity devices. Names, defaults and rules are veritysetup's.

use crate::host::CommandLine;
use std::path::{Path, PathBuf};

use inlock_verity::{HashType, MAX_SALT_LEN, hash_named};
use inlock_volume::HeaderPolicy;

use super::action::Arguments;
use super::options::Options;
use crate::error::CliError;
use inlock_open::policy_file;
use inlock_open::verity::{FecOptions, GivenParameters, RootHash, VerityOptions, unhex};

/// Options of reading corrupted blocks and zeroes.
pub(crate) const ON_FAULT: &[&str] = &["ignore-corruption", "ignore-zero-blocks"];
/// Options that describe a device.
pub(crate) const VERITY: &[&str] = &[
    "hash",
    "format",
    "data-block-size",
    "hash-block-size",
    "data-blocks",
    "hash-offset",
    "salt",
    "no-superblock",
    "root-hash-file",
    "root-hash-signature",
    "restart-on-corruption",
    "panic-on-corruption",
    "check-at-most-once",
    "use-tasklets",
    "fec-device",
    "fec-offset",
    "fec-roots",
];

/// Converts the options of a device that exists, with the hash device and the root hash as further arguments.
pub(crate) fn verity_args(
    options: &Options,
    hash_device: PathBuf,
    arguments: &mut Arguments,
) -> anyhow::Result<VerityOptions> {
    refuse(options)?;
    let mut given = given(options)?;
    if let Some(path) = &options.policy {
        given.data_blocks = data_blocks_of(path, given.data_blocks)?;
    }
    let root_hash = match (arguments.optional(), &options.root_hash_file) {
        (Some(digits), None) => RootHash::Digits(digits.to_string_lossy().into_owned()),
        (None, Some(path)) => RootHash::File(path.clone()),
        (Some(_), Some(_)) => {
            return Err(CliError::usage("Command requires either <root_hash> or --root-hash-file, not both."));
        }
        (None, None) => {
            return Err(CliError::usage("Command requires <root_hash> or --root-hash-file option as argument."));
        }
    };
    Ok(VerityOptions {
        hash_device,
        hash_offset: hash_offset(options)?,
        given,
        no_superblock: options.no_superblock,
        root_hash,
        ignore_corruption: options.ignore_corruption,
        ignore_zero_blocks: options.ignore_zero_blocks,
        fec: fec(options)?,
    })
}

/// Returns the number of data blocks that a policy pins. Its other keys are for encrypted volumes.
fn data_blocks_of(path: &Path, given: Option<u64>) -> anyhow::Result<Option<u64>> {
    let policy = policy_file::read(&CommandLine, path)?;
    let mut only = HeaderPolicy::default();
    only.data_blocks = policy.data_blocks;
    if policy != only {
        return Err(CliError::usage("A policy of a dm-verity device has the key data-blocks and no other."));
    }
    if given.is_some() && policy.data_blocks.is_some() {
        return Err(CliError::usage("Option --data-blocks is not allowed with a policy that has data-blocks."));
    }
    Ok(policy.data_blocks.or(given))
}

/// Converts the offset of the superblock or tree.
pub(crate) fn hash_offset(options: &Options) -> anyhow::Result<u64> {
    let offset = options.hash_offset.unwrap_or(0);
    if offset.is_multiple_of(512) { Ok(offset) } else { Err(CliError::usage("Unsupported VERITY hash offset.")) }
}

/// Converts the options of error correction. Without its device the others have no effect.
pub(crate) fn fec(options: &Options) -> anyhow::Result<Option<FecOptions>> {
    let Some(device) = options.fec_device.clone() else { return Ok(None) };
    let (roots, offset) = (options.fec_roots.unwrap_or(2), options.fec_offset.unwrap_or(0));
    if !(2..=24).contains(&roots) {
        return Err(CliError::usage("Invalid number of parity bytes."));
    }
    if !offset.is_multiple_of(512) {
        return Err(CliError::usage("Unsupported VERITY FEC offset."));
    }
    Ok(Some(FecOptions { device, roots, offset }))
}

/// Converts the parameters of a tree.
pub(crate) fn given(options: &Options) -> anyhow::Result<GivenParameters> {
    let block_len = |len: u64| match u32::try_from(len) {
        Ok(len) if len.is_power_of_two() && (512..=512 << 10).contains(&len) => Ok(len),
        _ => Err(CliError::usage("Unsupported VERITY block size.")),
    };
    let hash_type = |number: u32| {
        HashType::from_number(number).ok_or_else(|| CliError::usage(format!("Unsupported VERITY hash type {number}.")))
    };
    let hash = |name: &String| {
        hash_named(name).ok_or_else(|| CliError::usage(format!("Hash algorithm {name} not supported.")))
    };
    let salt = |text: &String| match text.as_str() {
        "-" => Ok(Vec::new()),
        text => unhex(text)
            .filter(|salt| salt.len() <= MAX_SALT_LEN)
            .ok_or_else(|| CliError::usage("Invalid salt string specified.")),
    };
    Ok(GivenParameters {
        hash_type: options.format.map(hash_type).transpose()?,
        hash: options.hash.as_ref().map(hash).transpose()?,
        data_block_len: options.data_block_size.map(block_len).transpose()?,
        hash_block_len: options.hash_block_size.map(block_len).transpose()?,
        data_blocks: options.data_blocks,
        salt: options.salt.as_ref().map(salt).transpose()?,
    })
}

/// Refuses what only the kernel can do.
pub(crate) fn refuse(options: &Options) -> anyhow::Result<()> {
    let refused = [
        (
            options.root_hash_signature.is_some(),
            "root-hash-signature",
            "the kernel verifies signatures with the keys of its own keyring; verify the signature of the root hash \
             before, for example with `openssl smime -verify`",
        ),
        (
            options.restart_on_corruption,
            "restart-on-corruption",
            "a server in user space restarts no machine; without it reads of corrupted blocks fail",
        ),
        (
            options.panic_on_corruption,
            "panic-on-corruption",
            "a server in user space cannot stop the kernel; without it reads of corrupted blocks fail",
        ),
        (options.check_at_most_once, "check-at-most-once", "every read is verified; leave the option out"),
    ];
    match refused.iter().find(|(given, ..)| *given) {
        None => Ok(()),
        Some((_, option, hint)) => Err(CliError::refused(format!("Option --{option} is not supported."), hint)),
    }
}
