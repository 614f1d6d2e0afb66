//! Conversion of the options that actions share: volumes, keys, ciphers, key derivation.
//!
//! Options of a volume are those of an [`OpenConfig`], which the library checks.

use std::fmt::Display;
use std::path::PathBuf;

use inlock_cipher::CipherSpec;
use inlock_volume::table::CryptOptions;
use inlock_volume::{Hash, HeaderPolicy};

use super::left_out;
use super::options::Options;
use crate::error::CliError;
use crate::host::CommandLine;
use crate::ui::print::print_stderr;

use inlock_open::config::{self, ConfigError, Fault, MoreOptions, OpenConfig};
use inlock_open::engine::EngineOptions;
use inlock_open::keyring::KeyLink;
use inlock_open::remote::{self, RemoteKind};
use inlock_open::source::{HeaderOptions, KeyOptions, OpenOptions, VolumeKeyOrigin, VolumeType};

/// Returns a struct with these fields of the options.
macro_rules! fields {
    ($type:ident of $options:ident: $($field:ident)+; $($other:ident: $value:expr),+) => {
        $type { $($field: $options.$field.clone(),)+ $($other: $value),+ }
    };
}

/// Returns the options of a volume.
pub(crate) fn config_of(options: &Options) -> OpenConfig {
    let mut thread_flags = CryptOptions::default();
    thread_flags.same_cpu_crypt = options.same_cpu_crypt;
    thread_flags.high_priority = options.high_priority;
    thread_flags.submit_from_crypt_cpus = options.submit_from_crypt_cpus;
    thread_flags.no_read_workqueue = options.no_read_workqueue;
    thread_flags.no_write_workqueue = options.no_write_workqueue;
    let more = fields!(
        MoreOptions of options:
        tries timeout verify_passphrase volume_key_keyring link_vk_to_keyring disable_keyring token_id token_type
        token_only disable_external_tokens external_tokens_path token_timeout persistent shared;
        second_volume_key: second_volume_key(options), thread_flags: thread_flags
    );
    fields!(
        OpenConfig of options:
        volume_type header key_file keyfile_offset keyfile_size key_slot volume_key_file read_only allow_discards
        io threads engine engine_threshold cipher key_size hash sector_size iv_large_sectors spdk_tweak offset skip size
        device_size allow_null_cipher allow_null_iv allow_linear_segment allow_integrity_superblock require_cipher
        expect_uuid policy integrity_no_journal integrity_salvage_journal integrity_long_journal freshness
        freshness_accept freshness_tags holes;
        table: options.table.clone().map(Into::into), more: more
    )
}

/// Returns the second volume key of a volume in re-encryption.
fn second_volume_key(options: &Options) -> Option<VolumeKeyOrigin> {
    let of_file = options.volume_key_files.get(1).cloned().map(VolumeKeyOrigin::File);
    of_file.or_else(|| options.volume_key_keyrings.get(1).cloned().map(VolumeKeyOrigin::Keyring))
}

/// Returns the error of an option as the command line has it, with its hint.
fn refused(error: ConfigError) -> anyhow::Error {
    let sentence = error.sentence("--");
    match error.fault {
        Fault::Open(error) => error.into(),
        Fault::UnknownType(name) if left_out::is_type(&name) => CliError::refused(sentence, left_out::HINT),
        Fault::UnknownHash(name) => CliError::hash(&name).into(),
        Fault::UnknownCipher(_, error) => anyhow::Error::from(error).context(CliError::Refused {
            message: sentence,
            hint: "write a cipher as CIPHER-MODE-IV, such as aes-xts-plain64 or serpent-cbc-essiv:sha256",
        }),
        Fault::RelativePath(_) => CliError::refused(sentence, "use an absolute path"),
        _ => CliError::usage(sentence),
    }
}

/// Converts the options of an action on a LUKS header.
pub(crate) fn header_args(options: &Options, image: PathBuf) -> anyhow::Result<HeaderOptions> {
    let luks = match volume_type_of(options)? {
        VolumeType::Luks(luks) => luks,
        _ => return Err(CliError::usage("This action works on LUKS volumes only.")),
    };
    Ok(HeaderOptions { image, header: options.header.clone(), luks, policy: policy_of(options)? })
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
    let config = config_of(options);
    OpenConfig { key_file: config.key_file.clone().or(argument), ..config }.key().map_err(refused)
}

/// Converts the number of bits of a key to bytes.
pub(crate) fn key_bytes(bits: impl Into<u64>) -> anyhow::Result<usize> {
    config::key_bytes(bits).map_err(refused)
}

/// Converts `--link-vk-to-keyring`.
pub(crate) fn links_of(options: &Options) -> anyhow::Result<Vec<KeyLink>> {
    config_of(options).links().map_err(refused)
}

/// Converts `--type` and the options that go with it.
pub(crate) fn volume_type_of(options: &Options) -> anyhow::Result<VolumeType> {
    config_of(options).volume_type().map_err(refused)
}

/// Converts the options of a volume to open.
pub(crate) fn source_args(options: &Options, image: PathBuf) -> anyhow::Result<OpenOptions> {
    let source = config_of(options).open_options(&CommandLine, image).map_err(refused)?;
    if let VolumeType::Table(table) = &source.volume_type {
        check_remote(options, &table.devices())?;
    }
    Ok(source)
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

/// Converts the header policy.
pub(crate) fn policy_of(options: &Options) -> anyhow::Result<HeaderPolicy> {
    config_of(options).policy(&CommandLine).map_err(refused)
}

/// Converts the flags: discards, and dm-crypt's threads.
pub(crate) fn flags_of(options: &Options) -> CryptOptions {
    config_of(options).flags()
}

/// Converts `--hash` of a LUKS header.
pub(crate) fn hash_of(options: &Options) -> anyhow::Result<Option<Hash>> {
    let parse = |name: &str| name.parse().map_err(|_| CliError::hash(name).into());
    options.hash.as_deref().map(parse).transpose()
}

/// Converts `--cipher`.
pub(crate) fn cipher_of(options: &Options) -> anyhow::Result<CipherSpec> {
    config::cipher(options.cipher.as_deref()).map_err(refused)
}

/// Returns the length of the volume key in bytes.
pub(crate) fn key_len_of(options: &Options, cipher: CipherSpec, double_for_xts: bool) -> anyhow::Result<usize> {
    config::key_len(options.key_size, cipher, double_for_xts).map_err(refused)
}

/// Returns the error of a key of `bits` for a cipher that takes keys of these lengths in bytes.
pub(crate) fn takes_keys_of(cipher: impl Display, bits: u32, lens: &[usize]) -> anyhow::Error {
    refused(ConfigError::key_len(cipher, bits, lens.to_vec()))
}

/// Checks `--threads`.
pub(crate) fn check_threads(options: &Options) -> anyhow::Result<()> {
    config_of(options).threads().map(|_| ()).map_err(refused)
}

/// Converts `--engine` and `--engine-threshold`. `None`: software.
pub(crate) fn engine_of(options: &Options) -> anyhow::Result<Option<EngineOptions>> {
    config_of(options).engine().map_err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::action::{HOLES, PLAIN, POLICY, SEALED};
    use crate::args::parse::explain;
    use clap::{CommandFactory, Parser};

    fn of_words(words: &[&str]) -> Result<OpenConfig, clap::Error> {
        let mut options = Options::try_parse_from([&["inlock"], words].concat())?;
        options.take_first();
        Ok(config_of(&options))
    }

    fn of_file(line: &str) -> Result<OpenConfig, String> {
        toml::from_str(line).map_err(|error| error.message().to_owned())
    }

    /// Values that an option takes, and some that it refuses.
    fn values(name: &str) -> (&[&str], &[&str]) {
        match name {
            "type" | "hash" => (&["plain", "5", "", "é"], &[]),
            "cipher" => (&["aes-xts-plain64", "x"], &[]),
            "table" => (&["0 8 zero", "/a b", "7"], &[]),
            "expect-uuid" => (&["7f4a7a7e-1f6c-4b5a-9d0e-000000000000", "5"], &[]),
            "header" | "key-file" | "volume-key-file" | "policy" | "freshness" => (&["/a b", "rel", "5", "-"], &[]),
            "keyfile-offset" | "keyfile-size" | "offset" | "skip" => {
                (&["0", "4096", "0x1F", "18446744073709551615"], &["-1", "x", "1K", "18446744073709551616"])
            }
            "engine-threshold" | "device-size" => {
                (&["0", "512", "64K", "1GiB", "3S"], &["-1", "x", "0x10", "1X", "1 K"])
            }
            "size" => (&["8", "0x10", "1M", "7S"], &["x", "1KB", "-1", "20000000T"]),
            "key-slot" | "key-size" | "sector-size" => {
                (&["0", "7", "4294967295"], &["-1", "4294967296", "x", "9223372036854775808", "0x1"])
            }
            "threads" => (&["0", "1", "65535"], &["-1", "65536", "x", "1.5"]),
            "io" => (&["auto", "uring", "sync"], &["x", "Auto", "5"]),
            "engine" => (&["software", "afalg"], &["x"]),
            "holes" => (&["noise", "zero"], &["x"]),
            "require-cipher" => {
                (&["aes-xts-plain64", "xchacha12,aes-adiantum-plain64,aes-xts-plain64"], &["x", "aes-xts-plain64,"])
            }
            _ => panic!("{name} has no values"),
        }
    }

    #[test]
    fn value_of_a_file_is_that_of_the_command_line() {
        let command = Options::command();
        let names = OpenConfig::names();
        for name in [PLAIN, POLICY, SEALED, HOLES].concat() {
            assert!(names.contains(&name), "{name}");
        }
        for name in names {
            let arg = command.get_arguments().find(|arg| arg.get_long() == Some(name)).expect(name);
            if !arg.get_action().takes_values() {
                let flag = of_words(&[&format!("--{name}")]).unwrap();
                assert_ne!(flag, OpenConfig::default(), "{name}");
                assert_eq!(of_file(&format!("{name} = true")).as_ref(), Ok(&flag), "{name}");
                assert_eq!(of_file(&format!("{name} = false")), Ok(OpenConfig::default()), "{name}");
                assert_eq!(of_file(&format!("{name} = 1")), Err("expected true or false".to_owned()), "{name}");
                continue;
            }
            let (taken, refused) = values(name);
            for text in taken {
                let line = format!("{name} = {}", toml::Value::String((*text).to_owned()));
                let config = of_words(&[&format!("--{name}={text}")]).unwrap();
                assert_ne!(config, OpenConfig::default(), "{line}");
                assert_eq!(of_file(&line).as_ref(), Ok(&config), "{line}");
                if text.parse::<i64>().is_ok() {
                    assert_eq!(of_file(&format!("{name} = {text}")), Ok(config), "{name} = {text}");
                }
            }
            for text in refused {
                let line = format!("{name} = {}", toml::Value::String((*text).to_owned()));
                let error = explain(&of_words(&[&format!("--{name}={text}")]).unwrap_err()).to_string();
                assert_eq!(format!("--{name}: {}.", of_file(&line).unwrap_err()), error);
            }
        }
    }
}
