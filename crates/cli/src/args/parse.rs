//! Parsing the command line against the declarations of the actions.
//!
//! Everything that can be refused without a device is refused here: options against the action, values against the type
//! of volume, the number of arguments.

use std::ffi::{OsStr, OsString};
use std::num::{IntErrorKind, ParseIntError};
use std::path::PathBuf;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, CommandFactory, FromArgMatches};

use super::action::{Action, Arguments, Prepared, UNLOCK};
use super::left_out;
use super::options::Options;
use super::source::check_remote;
use super::suggest::nearest;
use crate::error::{CliError, in_action};
use crate::host::log;
use crate::ui::print::{Debug, print_stderr};
use inlock_open::settings::RemoteOptions;
use inlock_open::settings::Settings;

/// A checked command line.
pub(crate) struct Invocation {
    pub request: Request,
    /// Name of the action.
    pub action: Option<&'static str>,
    /// `--verbose`
    pub verbose: bool,
    /// `--debug`
    pub debug: Option<Debug>,
    /// Settings that all openings share.
    pub settings: Settings,
}

/// The request of a command line.
pub(crate) enum Request {
    Help(Option<&'static Action>),
    /// `--usage`
    Usage(Option<&'static Action>),
    Version,
    /// `--test-args`
    TestArgs,
    Run(Prepared),
}

/// Converts the options that all openings of this process share.
fn settings(options: &Options) -> anyhow::Result<Settings> {
    let mut settings = Settings::default();
    settings.no_header_locks = options.disable_locks;
    settings.allow_copies = options.allow_copy;
    settings.serialize_derivations = options.serialize_memory_hard_pbkdf;
    settings.ignore_signatures = options.disable_blkid;
    settings.remote = remote_options(options)?;
    Ok(settings)
}

/// Prints an event of an export. Does not block: the store's thread keeps time.
fn report(uri: &str, event: &str) {
    log().about(format_args!("warning: {uri}"), event);
}

/// Converts the options for exports and images.
fn remote_options(options: &Options) -> anyhow::Result<RemoteOptions> {
    let RemoteOptions { nbd: mut store, mut rbd } = RemoteOptions::default();
    store.notify = Some(report);
    if let Some(seconds) = options.connect_timeout {
        store.connect_timeout = Duration::from_secs(seconds);
    }
    if let Some(seconds) = options.reconnect_delay {
        store.reconnect_delay = Duration::from_secs(seconds);
    }
    if let Some(seconds) = options.store_timeout {
        store.store_timeout = Duration::from_secs(seconds);
    }
    if store.connect_timeout.is_zero() || store.store_timeout.is_zero() {
        return Err(CliError::usage("Options --connect-timeout and --store-timeout take 1 second or more."));
    }
    store.replay = options.replay;
    if store.replay.is_some_and(|bytes| bytes < inlock_nbd_store::StoreOptions::MIN_REPLAY) {
        return Err(CliError::usage("Option --replay takes 4M or more."));
    }
    rbd.notify = store.notify;
    (rbd.connect_timeout, rbd.store_timeout) = (store.connect_timeout, store.store_timeout);
    rbd.steal_lock = options.steal_lock;
    Ok(RemoteOptions { nbd: store, rbd })
}

/// Parses the arguments of the program for one of `actions`.
pub(crate) fn parse(
    actions: &[&'static Action],
    words: impl IntoIterator<Item = OsString>,
) -> anyhow::Result<Invocation> {
    let words: Vec<OsString> = words.into_iter().collect();
    // Also of a command line that cannot be parsed; for its hint alone.
    let named = |word: &OsString| actions.iter().find(|action| action.is_named(&word.to_string_lossy()));
    let name = words.iter().find_map(named).map(|action| action.name);
    parse_words(actions, words).map_err(|error| in_action(error, name))
}

fn parse_words(actions: &[&'static Action], words: Vec<OsString>) -> anyhow::Result<Invocation> {
    let mut command = Options::command();
    let words = std::iter::once(OsString::from("inlock")).chain(words);
    let matches = command.try_get_matches_from_mut(words).map_err(|error| explain(&error))?;
    let mut options = Options::from_arg_matches(&matches).map_err(|error| explain(&error))?;
    let mut words = std::mem::take(&mut options.words);
    if words.first().is_some_and(|word| word == "help") {
        words.remove(0);
        options.help = true;
    }
    let word = if words.is_empty() { None } else { Some(words.remove(0)) };
    let action = word.as_ref().map(|word| find(actions, word, &mut options, &mut words));
    options.take_first();
    options.given = given(&command, &matches);
    let debug = debug_of(&options);
    let (verbose, settings) = (options.verbose || debug.is_some(), settings(&options)?);
    let name = action.as_ref().and_then(|found| found.as_ref().ok()).map(|found| found.name);
    let done = |request| Ok(Invocation { request, action: name, verbose, debug, settings });
    if options.version {
        return done(Request::Version);
    }
    if options.help {
        return done(Request::Help(action.transpose()?));
    }
    if options.usage {
        return done(Request::Usage(action.transpose()?));
    }
    let mut action = action.ok_or_else(|| CliError::usage("Argument <action> missing."))??;
    if options.refresh && action.name == "open" {
        // `open --refresh` is another name of it.
        action = actions.iter().find(|action| action.name == "refresh").copied().unwrap_or(action);
    }
    if let Some(long) = options.given.iter().find(|long| !action.has_option(long)) {
        return Err(CliError::usage(format!("Option --{long} is not allowed with {} action.", action.name)));
    }
    // The devices of a running volume, of a table and of a file are found later.
    if action.source_position().is_some() && options.table.is_none() && options.config.is_none() {
        let devices: Vec<_> = words.iter().map(PathBuf::from).chain(options.header.clone()).collect();
        check_remote(&options, &devices)?;
    }
    note_unused_hash(&options);
    if let Some(position) = action.source_position().filter(|_| options.table.is_some()) {
        // The table replaces the source; messages about it name the option.
        words.insert(position.min(words.len()), "--table".into());
    }
    if let Some(name) = options.active_name.as_ref().filter(|_| words.is_empty()) {
        // The open volume replaces the source.
        words.push(name.into());
    }
    if options.config.is_some() && words.is_empty() {
        // The file replaces the source.
        words.push("--config".into());
    }
    check_arguments(action, &word.unwrap_or_default(), &mut words)?;
    if options.key_files.len() > 1 {
        return Err(CliError::usage("Only one --key-file argument is allowed."));
    }
    // A volume that is opened in re-encryption has two.
    let most = if action.options.contains(&UNLOCK) { 2 } else { 1 };
    if options.volume_key_files.len().max(options.volume_key_keyrings.len()) > most {
        let text = format!("{}: only {most} of each option for a volume key is allowed.", action.name);
        return Err(CliError::usage(text));
    }
    let test_args = options.test_args;
    let prepared = (action.prepare)(options, Arguments(words.into_iter()))?;
    done(if test_args { Request::TestArgs } else { Request::Run(prepared) })
}

fn debug_of(options: &Options) -> Option<Debug> {
    match (options.debug_json, options.debug) {
        (true, _) => Some(Debug::WithJson),
        (false, true) => Some(Debug::Plain),
        (false, false) => None,
    }
}

/// Finds the action with this name, and applies what an alias implies.
fn find(
    actions: &[&'static Action],
    word: &OsStr,
    options: &mut Options,
    words: &mut [OsString],
) -> anyhow::Result<&'static Action> {
    let name = word.to_string_lossy();
    let Some(action) = actions.iter().find(|action| action.is_named(&name)) else {
        if left_out::is_action(&name) {
            let message = format!("Action {name} is not available in this version.");
            return Err(CliError::refused(message, left_out::HINT));
        }
        let names = actions
            .iter()
            .flat_map(|action| std::iter::once(action.name).chain(action.aliases.iter().map(|alias| alias.name)));
        return Err(CliError::usage(match nearest(&name, names) {
            Some(meant) => format!("Unknown action '{name}'; is {meant} meant?"),
            None => format!("Unknown action '{name}'."),
        }));
    };
    if let Some(alias) = action.aliases.iter().find(|alias| alias.name == name) {
        if let (true, [first, second]) = (alias.is_swapped, &mut *words) {
            std::mem::swap(first, second);
        }
        if let Some(volume_type) = alias.volume_type {
            options.volume_type.get_or_insert_with(|| volume_type.to_owned());
        }
    }
    Ok(action)
}

/// Returns the long names of the options that the command line has.
fn given(command: &clap::Command, matches: &ArgMatches) -> Vec<String> {
    let is_given = |arg: &&Arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    command.get_arguments().filter(is_given).filter_map(Arg::get_long).map(str::to_owned).collect()
}

/// Prints a note, as cryptsetup does, that the key file of a plain volume is the key itself.
fn note_unused_hash(options: &Options) {
    let is_plain = options.volume_type.as_deref() == Some("plain");
    let has_file = options.key_file.as_ref().is_some_and(|file| file.as_os_str() != "-");
    // The process that launched this one has printed it.
    if is_plain && has_file && options.hash.is_some() && !options.batch_mode && !options.launched {
        print_stderr("WARNING: The --hash parameter is being ignored in plain mode with keyfile specified.");
    }
}

/// Checks the number of arguments. `word`: the name of the action as given.
fn check_arguments(action: &Action, word: &OsStr, words: &mut Vec<OsString>) -> anyhow::Result<()> {
    let (least, most) = action.argument_count();
    // cryptsetup takes any surplus argument; one that repeats another is no mistake.
    while words.len() > most && words[..most].contains(&words[words.len() - 1]) {
        words.pop();
    }
    let name = action.name;
    if let Some(alias) = action.aliases.iter().find(|alias| alias.is_swapped && alias.name == word)
        && words.len() < 2
    {
        let [second, first] = [0, 1].map(|position| action.arguments[position].trim_matches(['[', ']']));
        return Err(CliError::usage(format!("{}: requires {first} {second} as arguments.", alias.name)));
    }
    if words.len() < least {
        return Err(CliError::usage(format!("{name}: requires {} as arguments.", action.synopsis())));
    }
    if let Some(extra) = words.get(most) {
        return Err(CliError::usage(format!("{name}: unexpected argument '{}'.", extra.display())));
    }
    if let Some(position) = words.iter().position(|word| word.is_empty()) {
        return Err(CliError::usage(format!("{name}: argument {} is empty.", position + 1)));
    }
    Ok(())
}

/// Returns the option whose long name is near to one that does not exist.
fn nearest_option(name: &str) -> Option<String> {
    let command = Options::command();
    let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
    nearest(name.strip_prefix("--")?, shown.filter_map(Arg::get_long)).map(str::to_owned)
}

/// Returns why a value is invalid: std and clap describe numbers in words of their own.
fn reason(error: &(dyn std::error::Error + 'static)) -> String {
    if let Some(error) = error.downcast_ref::<ParseIntError>() {
        return match error.kind() {
            IntErrorKind::PosOverflow => "the number is too large".to_owned(),
            _ => "not a number".to_owned(),
        };
    }
    let text = error.to_string();
    match text.split_once(" is not in ").and_then(|(_, range)| range.split_once("..=")) {
        Some((least, most)) => format!("not a number from {least} to {most}"),
        None => text,
    }
}

/// Explains an error of clap, in cryptsetup's words if it has them.
pub(crate) fn explain(error: &clap::Error) -> anyhow::Error {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(texts)) => texts.join(", "),
        _ => String::new(),
    };
    let option = context(ContextKind::InvalidArg);
    let name = option.split(' ').next().unwrap_or_default();
    CliError::usage(match error.kind() {
        ErrorKind::UnknownArgument if left_out::reason(name).is_some() => {
            let reason = left_out::reason(name).unwrap_or_default();
            return CliError::refused(
                format!("Option {name} of cryptsetup is not available: {reason}."),
                "leave it out, or use cryptsetup on the same image; the format is the same",
            );
        }
        ErrorKind::InvalidValue if name == "--hash" && context(ContextKind::InvalidValue).is_empty() => {
            format!("{name}: missing argument (-h is --hash; help is -? or --help).")
        }
        ErrorKind::UnknownArgument => match nearest_option(name) {
            Some(meant) => format!("{name}: unknown option; is --{meant} meant?"),
            None => format!("{name}: unknown option."),
        },
        ErrorKind::InvalidValue if context(ContextKind::InvalidValue).is_empty() => {
            format!("{name}: missing argument.")
        }
        ErrorKind::InvalidValue => {
            let valid = context(ContextKind::ValidValue);
            format!("{name}: invalid value '{}': one of {valid}.", context(ContextKind::InvalidValue))
        }
        ErrorKind::ValueValidation => {
            let why = std::error::Error::source(error).map(reason).unwrap_or_default();
            format!("{name}: invalid value '{}': {why}.", context(ContextKind::InvalidValue))
        }
        ErrorKind::InvalidUtf8 => "An argument is not UTF-8.".to_owned(),
        _ => {
            let text = error.to_string();
            text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
        }
    })
}
