//! Conversion of the options that actions share: volumes, keys, ciphers, key derivation.

use std::path::PathBuf;

use inlock_cipher::{CipherSpec, DataUnitSize, Sector};
use inlock_volume::plain::{Plain, PlainHash};
use inlock_volume::table::CryptOptions;
use inlock_volume::{Hash, HeaderPolicy, KdfKind};

use super::options::Options;
use crate::error::CliError;
use crate::volume::source::{HeaderArgs, KeyArgs, KeyFile, Luks, SourceArgs, VolumeType};
use crate::volume::table::TableArg;

/// Cost of a keyslot.
#[derive(Clone, Debug)]
pub(crate) struct KdfArgs {
    pub kind: Option<KdfKind>,
    pub iter_time_ms: Option<u32>,
    pub force_iterations: Option<u32>,
    pub memory_kib: Option<u32>,
    pub parallel: Option<u32>,
}

/// Converts the options of an action on a LUKS header.
pub(crate) fn header_args(options: Options, image: PathBuf) -> anyhow::Result<HeaderArgs> {
    let luks = match volume_type_of(&options)? {
        VolumeType::Luks(luks) => luks,
        _ => return Err(CliError::usage("This action works on LUKS volumes only.")),
    };
    Ok(HeaderArgs { image, header: options.header, luks })
}

/// Converts the options of a passphrase or key.
pub(crate) fn key_args(options: &Options) -> anyhow::Result<KeyArgs> {
    let file = options.key_file.as_ref().map(|path| match path.to_str() {
        Some("-") => KeyFile::Stdin,
        _ => KeyFile::Path(path.clone()),
    });
    if file.is_none() && options.keyfile_offset.is_some() {
        return Err(CliError::usage("Option --keyfile-offset needs --key-file."));
    }
    if options.tries == Some(0) {
        return Err(CliError::usage("Option --tries needs a number above zero."));
    }
    if options.keyfile_size == Some(0) {
        return Err(CliError::usage("Option --keyfile-size needs a number above zero."));
    }
    Ok(KeyArgs {
        file,
        offset: options.keyfile_offset.unwrap_or(0),
        size: options.keyfile_size,
        slot: options.key_slot,
        tries: options.tries.unwrap_or(3),
        timeout_secs: options.timeout.filter(|secs| *secs > 0),
        verify: options.verify_passphrase,
    })
}

/// Converts `--type` and the options that go with it.
pub(crate) fn volume_type_of(options: &Options) -> anyhow::Result<VolumeType> {
    Ok(match options.volume_type.as_deref() {
        None | Some("luks") => VolumeType::Luks(Luks::Any),
        Some("luks1") => VolumeType::Luks(Luks::One),
        Some("luks2") => VolumeType::Luks(Luks::Two),
        Some("plain") => VolumeType::Plain(plain_args(options)?),
        Some("raw") => VolumeType::Raw,
        Some(other) => return Err(CliError::usage(format!("Unrecognized metadata device type {other}."))),
    })
}

/// Converts the options of a volume to open.
pub(crate) fn source_args(options: &Options, image: PathBuf) -> anyhow::Result<SourceArgs> {
    let (mut volume_type, mut image) = (volume_type_of(options)?, image);
    let mut name = format!("type {}", options.volume_type.as_deref().unwrap_or("luks"));
    if let Some(table) = &options.table {
        if options.volume_type.is_some() {
            return Err(CliError::usage("Option --type is not allowed with --table."));
        }
        let table = TableArg::parse(table)?;
        (image, name, volume_type) = (table.image(), "--table".to_owned(), VolumeType::Table(table));
    }
    let not_allowed = |option: &str| Err(CliError::usage(format!("Option --{option} is not allowed with {name}.")));
    if !matches!(volume_type, VolumeType::Plain(_)) {
        let given = [
            (options.cipher.is_some(), "cipher"),
            (options.key_size.is_some(), "key-size"),
            (options.hash.is_some(), "hash"),
            (options.sector_size.is_some(), "sector-size"),
            (options.iv_large_sectors, "iv-large-sectors"),
            (options.spdk_tweak, "spdk-tweak"),
            (options.offset.is_some(), "offset"),
            (options.skip.is_some(), "skip"),
            (options.size.is_some(), "size"),
        ];
        if let Some((_, option)) = given.iter().find(|(given, _)| *given) {
            return not_allowed(option);
        }
    }
    if !matches!(volume_type, VolumeType::Luks(_)) {
        if options.header.is_some() {
            return not_allowed("header");
        }
        if options.key_slot.is_some() {
            return not_allowed("key-slot");
        }
        if options.expect_uuid.is_some() {
            return not_allowed("expect-uuid");
        }
    }
    if matches!(volume_type, VolumeType::Raw | VolumeType::Table(_)) && options.key_file.is_some() {
        return not_allowed("key-file");
    }
    let (header, key) = (options.header.clone(), key_args(options)?);
    Ok(SourceArgs { image, header, volume_type, key, flags: flags_of(options), policy: policy_of(options) })
}

/// Converts the header policy.
pub(crate) fn policy_of(options: &Options) -> HeaderPolicy {
    let mut policy = HeaderPolicy::default();
    policy.allow_null_cipher = options.allow_null_cipher;
    policy.allow_null_iv = options.allow_null_iv;
    policy.allow_linear_segment = options.allow_linear_segment;
    policy.required_ciphers = options.require_cipher.clone().map_or_else(Vec::new, |ciphers| ciphers.0);
    policy.expected_uuid.clone_from(&options.expect_uuid);
    policy
}

/// Converts the flags: discards, and dm-crypt's threads.
pub(crate) fn flags_of(options: &Options) -> CryptOptions {
    let mut flags = CryptOptions::default();
    flags.allow_discards = options.allow_discards;
    flags.same_cpu_crypt = options.same_cpu_crypt;
    flags.high_priority = options.high_priority;
    flags.submit_from_crypt_cpus = options.submit_from_crypt_cpus;
    flags.no_read_workqueue = options.no_read_workqueue;
    flags.no_write_workqueue = options.no_write_workqueue;
    flags
}

fn plain_args(options: &Options) -> anyhow::Result<Plain> {
    let mut cipher = cipher_of(options)?;
    if options.spdk_tweak {
        if cipher != CipherSpec::AES_XTS_PLAIN64 {
            return Err(CliError::usage("Option --spdk-tweak needs the cipher aes-xts-plain64."));
        }
        cipher.iv = inlock_cipher::IvMode::SpdkUpper;
    }
    let unit = options.sector_size.map_or(Ok(DataUnitSize::SECTOR), DataUnitSize::new)?;
    if options.iv_large_sectors && unit == DataUnitSize::SECTOR {
        return Err(CliError::usage("Option --iv-large-sectors needs --sector-size above 512."));
    }
    let fits = |sectors: Option<u64>| sectors.is_none_or(|n| Sector(n).to_bytes().is_some());
    if !fits(options.offset) || !fits(options.size) {
        return Err(CliError::usage("The offset or the size exceeds 2^64 bytes."));
    }
    if options.size == Some(0) {
        return Err(CliError::usage("The size of the volume is zero."));
    }
    let hash = options.hash.as_deref().unwrap_or("sha256");
    let mut plain = Plain::default();
    plain.cipher = cipher;
    plain.key_len = key_len_of(options, cipher, false)?;
    plain.hash = hash.parse::<PlainHash>().map_err(|_| CliError::hash(hash))?;
    plain.offset = Sector(options.offset.unwrap_or(0));
    plain.skip = Sector(options.skip.unwrap_or(0));
    plain.size = options.size;
    plain.unit = unit;
    plain.large_iv = options.iv_large_sectors;
    Ok(plain)
}

/// Converts `--hash` of a LUKS header.
pub(crate) fn hash_of(options: &Options) -> anyhow::Result<Option<Hash>> {
    let parse = |name: &str| name.parse().map_err(|_| CliError::hash(name).into());
    options.hash.as_deref().map(parse).transpose()
}

/// Converts `--cipher`.
pub(crate) fn cipher_of(options: &Options) -> anyhow::Result<CipherSpec> {
    match options.cipher.as_deref() {
        None => Ok(CipherSpec::AES_XTS_PLAIN64),
        Some(text) => text.parse().map_err(|error| {
            anyhow::Error::from(error).context(CliError::Refused {
                message: format!("No known cipher specification pattern detected in '{text}'."),
                hint: "write a cipher as CIPHER-MODE-IV, such as aes-xts-plain64 or serpent-cbc-essiv:sha256",
            })
        }),
    }
}

/// Returns the length of the volume key in bytes. The default of 256 bits is doubled for XTS in LUKS, as in cryptsetup.
pub(crate) fn key_len_of(options: &Options, cipher: CipherSpec, double_for_xts: bool) -> anyhow::Result<usize> {
    let bits = match options.key_size {
        Some(bits) => bits,
        None if double_for_xts && cipher.mode == inlock_cipher::ChainMode::Xts => 512,
        None => 256,
    };
    if bits % 8 != 0 {
        return Err(CliError::usage("Key size must be a multiple of 8 bits."));
    }
    let len = bits as usize / 8;
    if cipher.can_use_key_len(len) {
        return Ok(len);
    }
    let takes: Vec<String> = cipher.key_lens().iter().map(|len| (len * 8).to_string()).collect();
    let takes = match takes.as_slice() {
        [one] => one.clone(),
        [few @ .., last] if few.len() < 6 => format!("{} or {last}", few.join(", ")),
        [first, .., last] => format!("{first} to {last}"),
        [] => "none".to_owned(),
    };
    Err(CliError::usage(format!("Cipher {cipher} takes no key of {bits} bits; it takes {takes} bits.")))
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
    let zero = [
        (options.pbkdf_force_iterations, "pbkdf-force-iterations"),
        (options.iter_time, "iter-time"),
        (options.pbkdf_memory, "pbkdf-memory"),
        (options.pbkdf_parallel, "pbkdf-parallel"),
    ];
    if let Some((_, option)) = zero.iter().find(|(value, _)| *value == Some(0)) {
        return Err(CliError::usage(format!("Option --{option} needs a number above zero.")));
    }
    Ok(KdfArgs {
        kind,
        iter_time_ms: options.iter_time,
        force_iterations: options.pbkdf_force_iterations,
        memory_kib: options.pbkdf_memory,
        parallel: options.pbkdf_parallel,
    })
}

/// Checks `--threads`.
pub(crate) fn check_threads(options: &Options) -> anyhow::Result<()> {
    match options.threads {
        Some(0 | 1025..) => Err(CliError::usage("Option --threads takes 1 to 1024.")),
        _ => Ok(()),
    }
}
