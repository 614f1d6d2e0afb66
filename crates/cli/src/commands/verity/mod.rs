//! `verity`: dm-verity devices, with the commands and options of veritysetup.

mod dump;
mod format;
mod table;
mod verify;

use std::path::PathBuf;

use super::open::OpenArgs;
use super::{close, open, serve, status};
use crate::args::action::{ATTACH, Action, Arguments, Prepared, REMOTE, old_name, option_outside};
use crate::args::options::Options;
use crate::args::source::{check_remote, key_args};
use crate::args::verity::{ON_FAULT, VERITY, fec, hash_offset, verity_args};
use crate::error::CliError;
use inlock_open::integrity_options::JournalOptions;
use inlock_open::source::{OpenOptions, VolumeType};
use inlock_volume::HeaderPolicy;

pub(crate) const ACTION: Action = Action {
    name: "verity",
    aliases: &[],
    arguments: &["<command>", "<device>", "[<argument>...]"],
    options: &[
        VERITY,
        REMOTE,
        ON_FAULT,
        POLICY,
        ATTACH,
        serve::SERVE,
        &["json", "foreground", "deferred", "cancel-deferred", "uuid", "shared", "disable-blkid"],
    ],
    about: "create, verify, serve, open a dm-verity device",
    prepare,
};

fn prepare(options: Options, mut arguments: Arguments) -> anyhow::Result<Prepared> {
    let command = old_name(arguments.word()?, &mut arguments);
    let allowed = options_of(&command)?;
    if let Some(option) = option_outside(&options, allowed) {
        return Err(CliError::usage(format!("Option --{option} is not allowed with verity {command}.")));
    }
    // Number of arguments behind the command, as veritysetup has them.
    let (least, most, usage) = match command.as_str() {
        "format" => (2, 2, "<data_device> <hash_device>"),
        "verify" | "serve" | "table" => (2, 3, "<data_device> <hash_device> [<root_hash>]"),
        "open" => (3, 4, "<data_device> <name> <hash_device> [<root_hash>]"),
        "dump" => (1, 1, "<hash_device>"),
        _ => (1, 1, "<name>"),
    };
    if !(least..=most).contains(&arguments.count()) {
        let action = format!("verity {command}");
        return Err(CliError::usage(format!("{action}: requires {usage} as arguments.")));
    }
    // No name of a volume and no root hash reads as one.
    check_remote(&options, &[arguments.paths(), options.fec_device.iter().cloned().collect()].concat())?;
    match command.as_str() {
        "format" => {
            let args = format::FormatArgs::new(&options, arguments.path()?, arguments.path()?)?;
            Ok(Prepared::new(move || args.run()))
        }
        "verify" => {
            let (data, hash) = (arguments.path()?, arguments.path()?);
            let (args, threads) = (verity_args(&options, hash, &mut arguments)?, threads(&options));
            Ok(Prepared::new(move || verify::run(&data, &args, threads)))
        }
        "table" => {
            let (data, hash) = (arguments.path()?, arguments.path()?);
            let (args, json) = (verity_args(&options, hash, &mut arguments)?, options.json);
            Ok(Prepared::new(move || table::run(&data, &args, json)))
        }
        "open" => {
            let data = arguments.path()?;
            let name = arguments.name_or("verity open: requires <data_device> <name> <hash_device> as arguments.")?;
            let (options, source) = source(options, data, &mut arguments)?;
            let args = OpenArgs::of_source(&options, source, name)?;
            Ok(Prepared::with_status(move || open::run(&args)))
        }
        "serve" => {
            let data = arguments.path()?;
            let (options, source) = source(options, data, &mut arguments)?;
            let args = serve::serve_source(options, source)?;
            Ok(Prepared::with_status(move || serve::run(&args)))
        }
        "dump" => {
            let (path, offset, json) = (arguments.path()?, hash_offset(&options)?, options.json);
            let fec = fec(&options)?;
            Ok(Prepared::new(move || dump::run(&path, offset, fec.as_ref(), json)))
        }
        "status" => {
            let (name, json) = (arguments.name()?, options.json);
            Ok(Prepared::new(move || status::run(&name, None, json)))
        }
        _ => {
            let name = arguments.name()?;
            close::prepare(&options, name)
        }
    }
}

/// A policy, which pins the number of data blocks.
const POLICY: &[&str] = &["policy"];

/// Returns the options of a command. Fails if there is no such command.
fn options_of(command: &str) -> anyhow::Result<&'static [&'static [&'static str]]> {
    Ok(match command {
        "format" => &[VERITY, REMOTE, &["uuid", "threads", "disable-blkid"]],
        "verify" => &[VERITY, REMOTE, POLICY, &["threads"]],
        // Devices of a volume that is only read may be shared anyway.
        "open" => &[VERITY, REMOTE, ON_FAULT, POLICY, ATTACH, &["foreground", "shared"]],
        "serve" => &[VERITY, REMOTE, ON_FAULT, POLICY, serve::SERVE],
        "table" => &[VERITY, REMOTE, ON_FAULT, POLICY, &["json"]],
        "dump" => &[REMOTE, &["hash-offset", "fec-device", "fec-offset", "fec-roots", "json"]],
        "status" => &[&["json"]],
        "close" => &[&["deferred", "cancel-deferred"]],
        other => {
            return Err(CliError::usage(format!(
                "Command '{other}' is none of format, verify, open, serve, dump, table, status, close."
            )));
        }
    })
}

/// Returns the number of threads that hash.
fn threads(options: &Options) -> usize {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    options.threads.map_or(cpus, usize::from)
}

/// Converts the options of a device to open. It is read-only.
fn source(mut options: Options, image: PathBuf, arguments: &mut Arguments) -> anyhow::Result<(Options, OpenOptions)> {
    options.read_only = true;
    let hash_device = arguments.path()?;
    let source = OpenOptions {
        image,
        header: None,
        volume_type: VolumeType::Verity(verity_args(&options, hash_device, arguments)?),
        key: key_args(&options)?,
        flags: Default::default(),
        policy: HeaderPolicy::default(),
        no_journal: None,
        journal: JournalOptions::default(),
        freshness: None,
        links: Vec::new(),
        shared: false,
        zero_holes: false,
        persistent: false,
    };
    Ok((options, source))
}
