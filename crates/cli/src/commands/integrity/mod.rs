//! `integrity`: volumes of dm-integrity, with the commands and options of integritysetup.

mod dump;
mod format;
mod resize;

use std::path::PathBuf;

use super::open::OpenArgs;
use super::{close, open, serve, status, wipe};
use crate::args::action::{ATTACH, Action, Arguments, Prepared};
use crate::args::integrity::{INTEGRITY, integrity_args};
use crate::args::options::Options;
use crate::args::source::key_args;
use crate::error::CliError;
use crate::ui::progress::Show;
use crate::volume::source::{SourceArgs, VolumeType};
use inlock_integrity::Mode;
use inlock_volume::HeaderPolicy;

pub(crate) const ACTION: Action = Action {
    name: "integrity",
    aliases: &[],
    arguments: &["<command>", "<device>", "[<name>]"],
    options: &[
        INTEGRITY,
        FORMAT,
        ATTACH,
        serve::SERVE,
        &["json", "foreground", "deferred", "progress-json", "integrity-lazy", "wipe", "size", "device-size"],
    ],
    about: "create, open, serve, dump a dm-integrity volume",
    prepare,
};

/// Options of `format`.
const FORMAT: &[&str] =
    &["tag-size", "sector-size", "interleave-sectors", "journal-size", "no-wipe", "resume-wipe", "progress-frequency"];

fn prepare(options: Options, mut arguments: Arguments) -> anyhow::Result<Prepared> {
    let command = arguments.word()?;
    if command != "format" {
        let given = [
            (options.tag_size.is_some(), "tag-size"),
            (options.sector_size.is_some(), "sector-size"),
            (options.interleave_sectors.is_some(), "interleave-sectors"),
            (options.journal_size.is_some(), "journal-size"),
            (options.no_wipe, "no-wipe"),
            (options.resume_wipe, "resume-wipe"),
        ];
        if let Some((_, option)) = given.iter().find(|(given, _)| *given) {
            return Err(not_allowed(option, &command));
        }
    }
    if command != "resize" {
        let given =
            [(options.wipe, "wipe"), (options.size.is_some(), "size"), (options.device_size.is_some(), "device-size")];
        if let Some((_, option)) = given.iter().find(|(given, _)| *given) {
            return Err(not_allowed(option, &command));
        }
    }
    if options.integrity_lazy && !matches!(command.as_str(), "format" | "resize") {
        return Err(not_allowed("integrity-lazy", &command));
    }
    if options.json && !matches!(command.as_str(), "dump" | "status") {
        return Err(not_allowed("json", &command));
    }
    if command != "open" && arguments.count() > 1 {
        return Err(CliError::usage(format!("Command integrity {command} takes one argument.")));
    }
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
        "close" => {
            let (name, deferred) = (arguments.name()?, options.deferred);
            Ok(Prepared::new(move || close::run(&name, deferred)))
        }
        other => Err(CliError::usage(format!(
            "Command '{other}' is none of format, open, serve, dump, status, resize, close."
        ))),
    }
}

fn prepare_resume(options: &Options, image: PathBuf) -> anyhow::Result<Prepared> {
    let show = Show::from_options(options.batch_mode, options.progress_json, options.progress_frequency);
    let mut integrity = integrity_args(options)?;
    integrity.mode = Mode::Direct;
    let source = SourceArgs { volume_type: VolumeType::Integrity(integrity), ..source(options, image)? };
    let fill = wipe::fill_of(options);
    Ok(Prepared::new(move || format::resume_wipe(&source, fill, show)))
}

fn not_allowed(option: &str, command: &str) -> anyhow::Error {
    CliError::usage(format!("Option --{option} is not allowed with integrity {command}."))
}

fn source(options: &Options, image: PathBuf) -> anyhow::Result<SourceArgs> {
    Ok(SourceArgs {
        image,
        header: None,
        volume_type: VolumeType::Integrity(integrity_args(options)?),
        key: key_args(options)?,
        flags: Default::default(),
        policy: HeaderPolicy::default(),
        no_journal: false,
        freshness: None,
        links: Vec::new(),
        shared: false,
        zero_holes: false,
        persistent: false,
    })
}
