//! `integrity`: volumes of dm-integrity, with the commands and options of integritysetup.

mod dump;
mod format;
mod resize;

use std::path::PathBuf;

use super::open::OpenArgs;
use super::{close, open, serve, status, wipe};
use crate::args::action::{ATTACH, Action, Arguments, Prepared, REMOTE, old_name, option_outside};
use crate::args::integrity::{INTEGRITY, integrity_options};
use crate::args::options::Options;
use crate::args::source::{check_remote, key_args};
use crate::error::CliError;
use crate::ui::progress::Show;
use inlock_integrity::Mode;
use inlock_open::integrity_options::JournalOptions;
use inlock_open::source::{OpenOptions, VolumeType};
use inlock_volume::HeaderPolicy;

pub(crate) const ACTION: Action = Action {
    name: "integrity",
    aliases: &[],
    arguments: &["<command>", "<device>", "[<name>]"],
    options: &[
        INTEGRITY,
        REMOTE,
        FORMAT,
        FILL,
        RESIZE,
        ATTACH,
        serve::SERVE,
        &["json", "foreground", "deferred", "cancel-deferred"],
    ],
    about: "create, open, serve, dump a dm-integrity volume",
    prepare,
};

/// Options of `format`.
const FORMAT: &[&str] =
    &["sector-size", "interleave-sectors", "journal-size", "no-wipe", "resume-wipe", "disable-blkid"];
/// Options of commands that fill a volume.
const FILL: &[&str] = &["integrity-lazy", "progress-json", "progress-frequency"];
/// Options of `resize`.
const RESIZE: &[&str] = &["wipe", "size", "device-size"];

/// Returns the options of a command. Fails if there is no such command.
fn options_of(command: &str) -> anyhow::Result<&'static [&'static [&'static str]]> {
    Ok(match command {
        "format" => &[INTEGRITY, REMOTE, FORMAT, FILL],
        "open" => &[INTEGRITY, REMOTE, ATTACH, &["foreground"]],
        "serve" => &[INTEGRITY, REMOTE, serve::SERVE],
        "resize" => &[INTEGRITY, REMOTE, RESIZE, FILL],
        "dump" => &[REMOTE, &["json"]],
        "status" => &[&["json"]],
        "close" => &[&["deferred", "cancel-deferred"]],
        other => {
            return Err(CliError::usage(format!(
                "Command '{other}' is none of format, open, serve, dump, status, resize, close."
            )));
        }
    })
}

fn prepare(options: Options, mut arguments: Arguments) -> anyhow::Result<Prepared> {
    let command = old_name(arguments.word()?, &mut arguments);
    let allowed = options_of(&command)?;
    if let Some(option) = option_outside(&options, allowed) {
        return Err(CliError::usage(format!("Option --{option} is not allowed with integrity {command}.")));
    }
    if command != "open" && arguments.count() > 1 {
        return Err(CliError::usage(format!("Command integrity {command} takes one argument.")));
    }
    let devices: Vec<_> = arguments.paths().into_iter().take(1).chain(options.data_device.clone()).collect();
    check_remote(&options, &devices)?;
    match command.as_str() {
        "format" if options.resume_wipe => prepare_resume(&options, arguments.path()?),
        "format" => {
            let args = format::FormatArgs::new(&options, arguments.path()?)?;
            Ok(Prepared::new(move || args.run()))
        }
        "open" => {
            let image = arguments.path()?;
            let name = arguments.name_or("integrity open: requires <device> <name> as arguments.")?;
            let args = OpenArgs::of_source(&options, source(&options, image)?, name)?;
            Ok(Prepared::with_status(move || open::run(&args)))
        }
        "serve" => {
            let source = source(&options, arguments.path()?)?;
            let args = serve::serve_source(options, source)?;
            Ok(Prepared::with_status(move || serve::run(&args)))
        }
        "dump" => {
            let (path, json) = (arguments.path()?, options.json);
            Ok(Prepared::new(move || dump::run(&path, json)))
        }
        "resize" => {
            let args = resize::ResizeArgs::new(&options, arguments.path()?)?;
            Ok(Prepared::new(move || args.run()))
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

fn prepare_resume(options: &Options, image: PathBuf) -> anyhow::Result<Prepared> {
    let show = Show::from_options(options.batch_mode, options.progress_json, options.progress_frequency);
    let mut integrity = integrity_options(options)?;
    integrity.mode = Mode::Direct;
    let source = OpenOptions { volume_type: VolumeType::Integrity(integrity), ..source(options, image)? };
    let fill = wipe::fill_of(options);
    Ok(Prepared::new(move || format::resume_wipe(&source, fill, show)))
}

fn source(options: &Options, image: PathBuf) -> anyhow::Result<OpenOptions> {
    Ok(OpenOptions {
        image,
        header: None,
        volume_type: VolumeType::Integrity(integrity_options(options)?),
        key: key_args(options)?,
        flags: Default::default(),
        policy: HeaderPolicy::default(),
        no_journal: None,
        journal: JournalOptions::default(),
        freshness: None,
        links: Vec::new(),
        shared: false,
        zero_holes: false,
        persistent: false,
    })
}
