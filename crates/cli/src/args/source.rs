//! Conversion of the options that actions share: volumes, keys, ciphers, key derivation.

use crate::host::CommandLine;
use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use inlock_cipher::{CipherSpec, DataUnitSize, Sector};
use inlock_volume::plain::{Plain, PlainHash};
use inlock_volume::table::CryptOptions;
use inlock_volume::{Hash, HeaderPolicy};

use super::integrity::journal_args;
use super::left_out;
use super::options::Options;
use crate::error::CliError;
use crate::ui::print::print_stderr;
use crate::values::AnyCipher;

use inlock_open::engine::EngineOptions;
use inlock_open::keyring::KeyLink;
use inlock_open::policy_file;
use inlock_open::remote::{self, RemoteKind};
use inlock_open::source::{
    FreshnessOptions, HeaderOptions, KeyOptions, KeySource, Luks, NoJournal, OpenOptions, TokenChoice,
    VolumeKeyOptions, VolumeKeyOrigin, VolumeType,
};
use inlock_open::table::TableSource;
use inlock_open::token::HELPERS;

/// Converts the options of an action on a LUKS header.
pub(crate) fn header_args(options: &Options, image: PathBuf) -> anyhow::Result<HeaderOptions> {
    let luks = match volume_type_of(options)? {
        VolumeType::Luks(luks) => luks,
        _ => return Err(CliError::usage("This action works on LUKS volumes only.")),
    };
    Ok(HeaderOptions { image, header: options.header.clone(), luks, policy: policy_of(options)? })
}

/// Returns a key file with this name: `-` is standard input.
pub(crate) fn key_file(path: PathBuf) -> KeySource {
    if path.as_os_str() == "-" { KeySource::Input } else { KeySource::File(path) }
}

/// Converts the options of a passphrase or key.
pub(crate) fn key_args(options: &Options) -> anyhow::Result<KeyOptions> {
    key_args_or(options, None)
}

/// Like [`key_args`], with a key file that is an argument of the action, unless `--key-file` names another one.
pub(crate) fn key_args_or(options: &Options, argument: Option<PathBuf>) -> anyhow::Result<KeyOptions> {
    if options.key_file.is_some() && argument.is_some() {
        print_stderr("Option --key-file takes precedence over specified key file argument.");
    }
    let file = options.key_file.clone().or(argument).map(key_file);
    if file.is_none() && options.keyfile_offset.is_some() {
        return Err(CliError::usage("Option --keyfile-offset needs --key-file."));
    }
    if options.tries == Some(0) {
        return Err(CliError::usage("Option --tries needs a number above zero."));
    }
    if options.keyfile_size == Some(0) {
        return Err(CliError::usage("Option --keyfile-size needs a number above zero."));
    }
    Ok(KeyOptions {
        source: file.unwrap_or(KeySource::Ask),
        offset: options.keyfile_offset.unwrap_or(0),
        size: options.keyfile_size,
        slot: options.key_slot,
        tries: options.tries.unwrap_or(3),
        timeout: options.timeout.filter(|secs| *secs > 0).map(Duration::from_secs),
        verify: options.verify_passphrase,
        volume_key: volume_key_args(options)?,
        tokens: token_args(options)?,
    })
}

/// Converts the options of tokens.
fn token_args(options: &Options) -> anyhow::Result<TokenChoice> {
    let dir = options.external_tokens_path.clone();
    if let Some(dir) = dir.as_ref().filter(|dir| !dir.is_absolute()) {
        let message = format!("Failed to set external tokens path {}.", dir.display());
        return Err(CliError::refused(message, "use an absolute path"));
    }
    let dir = dir.unwrap_or_else(|| PathBuf::from(HELPERS));
    Ok(TokenChoice {
        number: options.token_id,
        kind: options.token_type.clone(),
        only: options.token_only,
        helpers: (!options.disable_external_tokens).then_some(dir),
        timeout: Duration::from_secs(options.token_timeout.unwrap_or(30).into()),
    })
}

/// Converts `--volume-key-file` and `--volume-key-keyring`.
fn volume_key_args(options: &Options) -> anyhow::Result<Option<VolumeKeyOptions>> {
    let origin = match (&options.volume_key_file, &options.volume_key_keyring) {
        (None, None) => return Ok(None),
        (Some(path), None) => VolumeKeyOrigin::File(path.clone()),
        (None, Some(key)) => VolumeKeyOrigin::Keyring(key.clone()),
        (Some(_), Some(_)) => {
            return Err(CliError::usage("Only one of --volume-key-file and --volume-key-keyring is allowed."));
        }
    };
    Ok(Some(VolumeKeyOptions { origin, len: options.key_size.map(key_bytes).transpose()? }))
}

/// Converts the number of bits of a key to bytes; no key is as long as one that is too long for this machine.
pub(crate) fn key_bytes(bits: impl Into<u64>) -> anyhow::Result<usize> {
    let bits = bits.into();
    if !bits.is_multiple_of(8) {
        return Err(CliError::usage("Key size must be a multiple of 8 bits."));
    }
    Ok(usize::try_from(bits / 8).unwrap_or(usize::MAX))
}

/// Converts `--link-vk-to-keyring`.
pub(crate) fn links_of(options: &Options) -> anyhow::Result<Vec<KeyLink>> {
    if options.disable_keyring && !options.link_vk_to_keyring.is_empty() {
        return Err(CliError::usage("Option --link-vk-to-keyring is not allowed with --disable-keyring."));
    }
    options.link_vk_to_keyring.iter().map(|text| Ok(KeyLink::parse(text)?)).collect()
}

/// Converts `--type` and the options that go with it.
pub(crate) fn volume_type_of(options: &Options) -> anyhow::Result<VolumeType> {
    Ok(match options.volume_type.as_deref() {
        None | Some("luks") => VolumeType::Luks(Luks::Any),
        Some("luks1") => VolumeType::Luks(Luks::One),
        Some("luks2") => VolumeType::Luks(Luks::Two),
        Some("plain") => VolumeType::Plain(plain_args(options)?),
        Some("raw") => VolumeType::Raw,
        Some(other) => {
            let message = format!("Unrecognized metadata device type {other}.");
            return Err(match left_out::is_type(other) {
                true => CliError::refused(message, left_out::HINT),
                false => CliError::usage(message),
            });
        }
    })
}

/// Converts the options of a volume to open.
pub(crate) fn source_args(options: &Options, image: PathBuf) -> anyhow::Result<OpenOptions> {
    let (mut volume_type, mut image) = (volume_type_of(options)?, image);
    let mut name = format!("type {}", options.volume_type.as_deref().unwrap_or("luks"));
    if let Some(table) = &options.table {
        if options.volume_type.is_some() {
            return Err(CliError::usage("Option --type is not allowed with --table."));
        }
        let table = TableSource::parse(table)?;
        check_remote(options, &table.devices())?;
        (image, name, volume_type) = (table.image(), "--table".to_owned(), VolumeType::Table(table));
    }
    let not_allowed = |option: &str| Err(CliError::usage(format!("Option --{option} is not allowed with {name}.")));
    if !matches!(volume_type, VolumeType::Plain(_)) {
        let given = [
            (options.cipher.is_some(), "cipher"),
            (options.key_size.is_some() && options.volume_key_file.is_none(), "key-size"),
            (options.hash.is_some(), "hash"),
            (options.sector_size.is_some(), "sector-size"),
            (options.iv_large_sectors, "iv-large-sectors"),
            (options.spdk_tweak, "spdk-tweak"),
            (options.offset.is_some(), "offset"),
            (options.skip.is_some(), "skip"),
            (options.size.is_some(), "size"),
            (options.device_size.is_some(), "device-size"),
            (options.shared, "shared"),
        ];
        if let Some((_, option)) = given.iter().find(|(given, _)| *given) {
            return not_allowed(option);
        }
    }
    if !matches!(volume_type, VolumeType::Luks(_)) {
        check_without_header(options, matches!(volume_type, VolumeType::Plain(_)), &name)?;
    }
    if matches!(volume_type, VolumeType::Raw | VolumeType::Table(_)) && options.key_file.is_some() {
        return not_allowed("key-file");
    }
    let (header, key, links) = (options.header.clone(), key_args(options)?, links_of(options)?);
    let (flags, policy) = (flags_of(options), policy_of(options)?);
    let (shared, persistent, no_journal) =
        (options.shared, options.persistent, options.integrity_no_journal.then_some(NoJournal::Option));
    let freshness = freshness_args(options)?;
    let zero_holes = options.has_zero_holes();
    if zero_holes && matches!(volume_type, VolumeType::Raw) {
        return not_allowed("holes");
    }
    Ok(OpenOptions {
        image,
        header,
        volume_type,
        key,
        flags,
        persistent,
        policy,
        no_journal,
        journal: journal_args(options),
        freshness,
        links,
        shared,
        zero_holes,
    })
}

/// Refuses options for devices that are not on this host, unless one of these is such a device.
pub(crate) fn check_remote(options: &Options, devices: &[PathBuf]) -> anyhow::Result<()> {
    let kinds: Vec<_> = devices.iter().filter_map(|name| remote::kind_of(name)).collect();
    let (nbd, rbd) = (kinds.contains(&RemoteKind::Nbd), kinds.contains(&RemoteKind::Rbd));
    let (export, image) = ("an export of an NBD server", "an image of Ceph RBD");
    let either = format!("{export} or {image}");
    let given = [
        (options.connect_timeout.is_some() && !nbd && !rbd, "connect-timeout", either.as_str()),
        (options.store_timeout.is_some() && !nbd && !rbd, "store-timeout", &either),
        (options.reconnect_delay.is_some() && !nbd, "reconnect-delay", export),
        (options.replay.is_some() && !nbd, "replay", export),
        (options.steal_lock && !rbd, "steal-lock", image),
    ];
    match given.iter().find(|(given, ..)| *given) {
        Some((_, option, device)) => Err(CliError::usage(format!("Option --{option} needs {device}."))),
        None => Ok(()),
    }
}

/// Refuses options that need a LUKS header.
fn check_without_header(options: &Options, is_plain: bool, name: &str) -> anyhow::Result<()> {
    let not_allowed = |option: &str| Err(CliError::usage(format!("Option --{option} is not allowed with {name}.")));
    if options.volume_key_file.is_some() {
        return not_allowed("volume-key-file");
    }
    if options.volume_key_keyring.is_some() {
        return not_allowed("volume-key-keyring");
    }
    if options.header.is_some() {
        return not_allowed("header");
    }
    let given = [
        (options.key_slot.is_some(), "key-slot"),
        (options.token_id.is_some(), "token-id"),
        (options.token_type.is_some(), "token-type"),
        (options.token_only, "token-only"),
        (!options.link_vk_to_keyring.is_empty(), "link-vk-to-keyring"),
        (options.integrity_no_journal && !is_plain, "integrity-no-journal"),
        (options.freshness.is_some(), "freshness"),
    ];
    if let Some((_, option)) = given.iter().find(|(given, _)| *given) {
        return not_allowed(option);
    }
    if options.expect_uuid.is_some() {
        return not_allowed("expect-uuid");
    }
    if policy_of(options)?.needs_header() {
        return Err(CliError::usage(format!("A policy with uuid, header-digest or pbkdf is not allowed with {name}.")));
    }
    Ok(())
}

/// Converts `--freshness` and the options that go with it.
fn freshness_args(options: &Options) -> anyhow::Result<Option<FreshnessOptions>> {
    let Some(file) = &options.freshness else {
        let given = [(options.freshness_accept, "freshness-accept"), (options.freshness_tags, "freshness-tags")];
        return match given.iter().find(|(given, _)| *given) {
            Some((_, option)) => Err(CliError::usage(format!("Option --{option} needs --freshness."))),
            None => Ok(None),
        };
    };
    // A process in the background has another working directory.
    let file = std::path::absolute(file)?;
    Ok(Some(FreshnessOptions { file, accept: options.freshness_accept, tags: options.freshness_tags }))
}

/// Converts the header policy.
///
/// # Errors
///
/// Fails if the policy file cannot be used, or pins what an option pins too.
pub(crate) fn policy_of(options: &Options) -> anyhow::Result<HeaderPolicy> {
    let mut policy = options
        .policy
        .as_deref()
        .map_or_else(|| Ok(HeaderPolicy::default()), |path| policy_file::read(&CommandLine, path))?;
    let twice = |option: &str, key: &str| {
        Err(CliError::usage(format!("Option --{option} is not allowed with a policy that has {key}.")))
    };
    policy.allow_null_cipher |= options.allow_null_cipher;
    policy.allow_null_iv |= options.allow_null_iv;
    policy.allow_linear_segment |= options.allow_linear_segment;
    policy.allow_integrity_superblock |= options.allow_integrity_superblock;
    if policy.data_blocks.is_some() {
        return Err(CliError::usage("A policy with data-blocks is allowed with dm-verity devices only."));
    }
    match &options.require_cipher {
        Some(_) if !policy.required_ciphers.is_empty() || !policy.required_aeads.is_empty() => {
            return twice("require-cipher", "cipher");
        }
        Some(ciphers) => (policy.required_ciphers, policy.required_aeads) = AnyCipher::divide(&ciphers.0),
        None => {}
    }
    match &options.expect_uuid {
        Some(_) if policy.expected_uuid.is_some() => return twice("expect-uuid", "uuid"),
        Some(uuid) => policy.expected_uuid = Some(uuid.clone()),
        None => {}
    }
    Ok(policy)
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
    let unit = options.sector_size.map_or(Ok(DataUnitSize::SECTOR), DataUnitSize::new);
    let unit = unit.map_err(|error| CliError::usage(format!("Unsupported encryption sector size: {error}.")))?;
    if options.iv_large_sectors && unit == DataUnitSize::SECTOR {
        return Err(CliError::usage("Option --iv-large-sectors needs --sector-size above 512."));
    }
    let fits = |sectors: Option<u64>| sectors.is_none_or(|n| Sector(n).to_bytes().is_some());
    if !fits(options.offset) || !fits(options.size) {
        return Err(CliError::usage("The offset or the size exceeds 2^64 bytes."));
    }
    if options.size.is_some() && options.device_size.is_some() {
        return Err(CliError::usage("Options --device-size and --size cannot be combined."));
    }
    if options.device_size.is_some_and(|bytes| !bytes.is_multiple_of(512)) {
        return Err(CliError::usage("Device size must be multiple of 512 bytes sector."));
    }
    let size = options.size.or(options.device_size.map(|bytes| bytes / 512));
    if size == Some(0) {
        return Err(CliError::usage("The size of the volume is zero."));
    }
    let hash = options.hash.as_deref().unwrap_or("sha256");
    let mut plain = Plain::default();
    plain.cipher = cipher;
    plain.key_len = key_len_of(options, cipher, false)?;
    plain.hash = hash.parse::<PlainHash>().map_err(|_| CliError::hash(hash))?;
    plain.offset = Sector(options.offset.unwrap_or(0));
    plain.skip = Sector(options.skip.unwrap_or(0));
    plain.size = size;
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
    let len = key_bytes(bits)?;
    if cipher.can_use_key_len(len) {
        return Ok(len);
    }
    Err(takes_keys_of(cipher, bits, &cipher.key_lens()))
}

/// Returns the error of a key of `bits` for a cipher that takes keys of these lengths in bytes.
pub(crate) fn takes_keys_of(cipher: impl Display, bits: u32, lens: &[usize]) -> anyhow::Error {
    let takes: Vec<String> = lens.iter().map(|len| (len * 8).to_string()).collect();
    let takes = match takes.as_slice() {
        [one] => one.clone(),
        [few @ .., last] if few.len() < 6 => format!("{} or {last}", few.join(", ")),
        [first, .., last] => format!("{first} to {last}"),
        [] => "none".to_owned(),
    };
    CliError::usage(format!("Cipher {cipher} takes no key of {bits} bits; it takes {takes} bits."))
}

/// Checks `--threads`.
pub(crate) fn check_threads(options: &Options) -> anyhow::Result<()> {
    match options.threads {
        Some(0 | 1025..) => Err(CliError::usage("Option --threads takes 1 to 1024.")),
        _ => Ok(()),
    }
}

/// Converts `--engine` and `--engine-threshold`. `None`: software.
pub(crate) fn engine_of(options: &Options) -> anyhow::Result<Option<EngineOptions>> {
    if options.engine.as_deref() != Some("afalg") {
        return match options.engine_threshold {
            Some(_) => Err(CliError::usage("Option --engine-threshold needs --engine afalg.")),
            None => Ok(None),
        };
    }
    let threshold = options.engine_threshold.unwrap_or(inlock_afalg::DEFAULT_MIN_LEN as u64);
    if threshold == 0 {
        return Err(CliError::usage("Option --engine-threshold needs a number above zero."));
    }
    if options.has_zero_holes() {
        return Err(CliError::usage("Options --engine afalg and --holes zero cannot be combined."));
    }
    Ok(Some(EngineOptions { threshold: usize::try_from(threshold).unwrap_or(usize::MAX) }))
}
