//! `reencrypt NAME --start`, and `--pause`, `--resume`, `--rate`, `--status`: re-encryption of an open volume.
//!
//! This process asks for passphrases and begins the re-encryption in a copy of the header. The process of the volume,
//! which has the device, writes the header, gets both volume keys, and does the rest.

use std::os::fd::OwnedFd;

use anyhow::Context as _;
use inlock_open::ErrorKind;
use inlock_open::open::ask_key;
use inlock_open::reencryption::Offline;
use inlock_open::reencryption::online::{OnlineState, OnlineStatus};
use inlock_serve::control::client::Client;
use inlock_serve::control::name::Name;
use inlock_serve::pipe;
use inlock_volume::VolumeKey;
use serde_json::{Value, json};

use super::{ReencryptArgs, already, not_begun};
use crate::args::options::Options;
use crate::commands::running_key::RunningKey;
use crate::error::CliError;
use crate::host::context;
use crate::ui::print::print;

/// Command for the re-encryption of an open volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Start,
    Pause,
    Resume,
    Rate,
    Status,
}

/// A re-encryption of an open volume.
pub(super) struct OnlineArgs {
    name: Name,
    verb: Verb,
    /// Bytes a second; 0: no limit.
    rate: Option<u64>,
    options: Options,
    json: bool,
}

impl OnlineArgs {
    /// Whether the options are for an open volume.
    pub(super) fn is_asked(options: &Options) -> bool {
        options.start || options.pause || options.resume || options.status || options.rate.is_some()
    }

    /// Returns what the options ask of the open volume `name`.
    pub(super) fn new(options: Options, name: Name) -> anyhow::Result<Self> {
        let verbs = [
            (options.start, Verb::Start),
            (options.pause, Verb::Pause),
            (options.resume, Verb::Resume),
            (options.status, Verb::Status),
        ];
        let asked: Vec<Verb> = verbs.into_iter().filter(|(is_asked, _)| *is_asked).map(|(_, verb)| verb).collect();
        let verb = match (&asked[..], options.rate) {
            ([], Some(_)) => Verb::Rate,
            ([verb], None) | ([verb @ (Verb::Start | Verb::Resume)], Some(_)) => *verb,
            _ => {
                return Err(CliError::usage(
                    "Options --start, --pause, --resume and --status cannot be combined; --rate goes with --start and \
                     --resume.",
                ));
            }
        };
        let is_other = options.encrypt || options.decrypt || options.init_only || options.resume_only;
        if is_other || options.reduce_device_size.is_some() || options.device_size.is_some() {
            return Err(CliError::usage("An open volume is only re-encrypted, as a whole."));
        }
        Ok(Self { name, verb, rate: options.rate, json: options.json, options })
    }

    pub(super) fn run(&self) -> anyhow::Result<()> {
        let mut client = Client::of(context(), &self.name)?;
        let found = client.status()?.reencryption;
        match self.verb {
            Verb::Status => self.print(found.as_ref()),
            Verb::Pause => self.tell("pause", None),
            Verb::Rate => self.tell("rate", None),
            Verb::Resume if found.as_ref().is_some_and(|found| found.state == OnlineState::Paused) => {
                if self.rate.is_some() {
                    self.tell("rate", None)?;
                }
                self.tell("resume", None)
            }
            Verb::Resume if found.as_ref().is_some_and(|found| found.state == OnlineState::Running) => {
                let text = format!("Volume {} is being re-encrypted already.", self.name);
                Err(inlock_open::Error::new(ErrorKind::AlreadyReencrypted, text).into())
            }
            Verb::Resume => {
                let source = RunningKey::new(&self.options)?.source(&client.status()?.info)?;
                let joined = ask_key(context(), &source)?;
                self.tell("resume", Some(&joined))
            }
            Verb::Start => {
                match found.as_ref().map(|found| found.state) {
                    None | Some(OnlineState::Finished) => {}
                    Some(_) => return Err(already().into()),
                }
                let offline = self.begin(&mut client)?;
                if let Some(staged) = offline.staged() {
                    let pipe = pipe::streamed(serde_json::to_vec(&staged)?).context("cannot pass the header")?;
                    self.send(json!({"command": "reencrypt", "action": "begin"}), Some(&pipe))?;
                }
                let joined = offline.joined_key()?;
                // The process of the volume takes the lock.
                drop(offline);
                self.tell("start", Some(&joined))
            }
        }
    }

    /// Begins in a copy of the header.
    fn begin(&self, client: &mut Client) -> anyhow::Result<Offline> {
        let status = client.status()?;
        if status.suspended {
            let text = format!("Volume {} cannot be re-encrypted: it is suspended.", self.name);
            return Err(inlock_open::Error::new(ErrorKind::CannotReencrypt, text).into());
        }
        let info = status.info;
        if info.kind != "LUKS2" || info.read_only {
            let text = format!("Volume {} cannot be re-encrypted: it is no LUKS2 volume, or is read-only.", self.name);
            return Err(inlock_open::Error::new(ErrorKind::CannotReencrypt, text).into());
        }
        let mut args = ReencryptArgs::new(&self.options, info.device, None)?;
        args.at.header = args.at.header.or(info.header);
        let offline = Offline::open_header(context(), &args.at)?;
        let whole = offline.data().len.saturating_sub(offline.header().volume.data_offset());
        // A part of a data unit at the end does not count.
        if (whole / 512).abs_diff(status.sectors) >= 8 {
            let text = format!("Volume {} cannot be re-encrypted: it does not have its whole length.", self.name);
            return Err(inlock_open::Error::new(ErrorKind::CannotReencrypt, text).into());
        }
        let has_begun = offline.has_begun()?;
        if has_begun { args.unlock(offline) } else { args.begin_open(offline) }
    }

    /// Sends a command to the process of the volume.
    fn tell(&self, action: &str, joined: Option<&VolumeKey>) -> anyhow::Result<()> {
        let rate = self.rate.filter(|rate| *rate > 0);
        let (zone, holes) = (self.options.hotzone_size, self.options.keep_holes);
        let request =
            json!({"command": "reencrypt", "action": action, "rate": rate, "zone": zone, "keep_holes": holes});
        let pipe = joined.map(|key| pipe::filled(key.as_bytes())).transpose().context("cannot pass the keys")?;
        self.send(request, pipe.as_ref())
    }

    fn send(&self, request: Value, pipe: Option<&OwnedFd>) -> anyhow::Result<()> {
        // The first connection may have been dropped while the user was asked.
        Client::of(context(), &self.name)?.command(&request, pipe)?;
        Ok(())
    }

    fn print(&self, found: Option<&OnlineStatus>) -> anyhow::Result<()> {
        let Some(found) = found else { return Err(not_begun().into()) };
        if self.json {
            return print(format_args!("{:#}\n", serde_json::to_value(found)?));
        }
        let OnlineStatus { state, done_bytes, total_bytes, rate, error } = found;
        let percent = 100.0 * *done_bytes as f64 / (*total_bytes).max(1) as f64;
        print(format_args!("{}: {state}, {percent:.1} %, {done_bytes} of {total_bytes} bytes\n", self.name))?;
        rate.iter().try_for_each(|rate| print(format_args!("at most {rate} bytes a second\n")))?;
        error.iter().try_for_each(|error| print(format_args!("{error}\n")))
    }
}
