//! `reencrypt NAME --start`, and `--pause`, `--resume`, `--rate`, `--status`: re-encryption of an open volume. With
//! `--active-name`, as in cryptsetup, it goes to the end.
//!
//! This process asks for passphrases and begins the re-encryption in a copy of the header. The process of the volume,
//! which has the device, writes the header, gets both volume keys, and does the rest.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use inlock_open::ErrorKind;
use inlock_open::open::ask_key;
use inlock_open::reencryption::Offline;
use inlock_open::reencryption::online::{OnlineState, OnlineStatus};
use inlock_serve::Error;
use inlock_serve::control::client::Client;
use inlock_serve::control::files::Files;
use inlock_serve::control::info::{RuntimeInfo, VolumeStatus};
use inlock_serve::control::name::Name;
use inlock_serve::control::state_file::StateFile;
use inlock_serve::pipe;
use inlock_volume::VolumeKey;
use inlock_volume::luks2::reencryption::ReencryptionMode;
use serde_json::{Value, json};

use super::ReencryptArgs;
use super::errors::{already, interrupted, not_begun};
use super::progress::has_reached_end;
use crate::args::options::Options;
use crate::commands::running_key::RunningKey;
use crate::error::CliError;
use crate::host::context;
use crate::system::signals::{self, Caught};
use crate::ui::print::print;
use crate::ui::progress::Show;

/// Interval at which the end of a re-encryption is looked for.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Returns the name of the open LUKS2 volume on an image or a device.
pub(super) fn volume_on(image: &Path) -> anyhow::Result<Option<Name>> {
    let Ok(image) = image.canonicalize() else { return Ok(None) };
    let is_on = |files: &Files| {
        let state = files.is_alive().then(|| files.state());
        matches!(state, Some(StateFile::Whole(info)) if info.kind == "LUKS2" && info.device == image)
    };
    Ok(Files::all()?.into_iter().find(is_on).map(|files| files.name().clone()))
}

/// Command for the re-encryption of an open volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    /// Starts or goes on, and waits for the end.
    Run,
    Start,
    Pause,
    Resume,
    Rate,
    Status,
}

/// A re-encryption of an open volume.
pub(super) struct OnlineArgs {
    name: Name,
    image: Option<PathBuf>,
    verb: Verb,
    /// Bytes a second; 0: no limit.
    rate: Option<u64>,
    options: Options,
    json: bool,
}

impl OnlineArgs {
    /// Whether the options are for an open volume.
    pub(super) fn is_asked(options: &Options) -> bool {
        let is_verb = options.start || options.pause || options.resume || options.status;
        is_verb || options.rate.is_some() || options.active_name.is_some()
    }

    /// Returns what the options ask of the open volume `name`, which is that on `image` if there is one.
    pub(super) fn new(options: Options, name: Name, image: Option<PathBuf>) -> anyhow::Result<Self> {
        let verbs = [
            (options.start, Verb::Start),
            (options.pause, Verb::Pause),
            (options.resume, Verb::Resume),
            (options.status, Verb::Status),
        ];
        let asked: Vec<Verb> = verbs.into_iter().filter(|(is_asked, _)| *is_asked).map(|(_, verb)| verb).collect();
        let verb = match (&asked[..], options.rate) {
            ([], Some(_)) if options.active_name.is_none() => Verb::Rate,
            ([], _) => Verb::Run,
            ([verb], None) | ([verb @ (Verb::Start | Verb::Resume)], Some(_)) => *verb,
            _ => {
                return Err(CliError::usage(
                    "Options --start, --pause, --resume and --status cannot be combined; --rate goes with --start and \
                     --resume.",
                ));
            }
        };
        let is_cryptsetup = options.decrypt || options.init_only || options.resume_only;
        let is_other = options.encrypt && !options.resume_only || is_cryptsetup && verb != Verb::Run;
        if is_other || options.reduce_device_size.is_some() || options.device_size.is_some() {
            return Err(CliError::usage(
                "An open volume is only re-encrypted or decrypted, as a whole; --decrypt, --init-only and --resume-only \
                 go with --active-name.",
            ));
        }
        Ok(Self { name, image, verb, rate: options.rate, json: options.json, options })
    }

    pub(super) fn run(&self) -> anyhow::Result<()> {
        let mut client = Client::of(context(), &self.name)?;
        let VolumeStatus { info, reencryption: found, .. } = client.status()?;
        if let Some(image) = &self.image {
            let path = image.canonicalize().unwrap_or_else(|_| image.clone());
            if path != info.device && Some(&path) != info.header.as_ref() {
                let text = format!("Volume {} is not on {}.", self.name, image.display());
                return Err(CliError::usage(text));
            }
        }
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
                Err(self.is_running())
            }
            Verb::Run => self.run_to_the_end(&mut client, found.map(|found| found.state), info),
            Verb::Resume => {
                let joined = self.ask(&mut client)?;
                self.tell("resume", Some(&joined))
            }
            Verb::Start => {
                match found.as_ref().map(|found| found.state) {
                    None | Some(OnlineState::Finished) => {}
                    Some(_) => return Err(already().into()),
                }
                let offline = self.begin(&mut client)?;
                self.start(offline)
            }
        }
    }

    fn run_to_the_end(&self, client: &mut Client, state: Option<OnlineState>, info: RuntimeInfo) -> anyhow::Result<()> {
        let is_new = matches!(state, None | Some(OnlineState::Finished));
        let caught = match state {
            _ if is_new && self.options.resume_only => return Err(not_begun().into()),
            _ if is_new => {
                let offline = self.begin(client)?;
                // From here on a signal pauses it.
                let caught = signals::catch()?;
                self.start(offline)?;
                caught
            }
            _ if self.options.init_only => return Err(already().into()),
            Some(OnlineState::Paused) => {
                let caught = signals::catch()?;
                self.tell("resume", None)?;
                caught
            }
            Some(OnlineState::Running) => return Err(self.is_running()),
            _ => {
                let joined = self.ask(client)?;
                let caught = signals::catch()?;
                self.tell("resume", Some(&joined))?;
                caught
            }
        };
        if self.options.init_only { Ok(()) } else { self.wait(info, &caught) }
    }

    /// Returns how far it is, also if the process of the volume takes long to reply. `None`: it has closed the volume.
    fn found(&self) -> Option<OnlineStatus> {
        loop {
            match Client::of(context(), &self.name).and_then(|mut client| client.status()) {
                Ok(status) => return status.reencryption,
                Err(Error::Unreachable { .. }) => {}
                Err(_) => return None,
            }
        }
    }

    /// Waits for the end, and shows how far it is. A signal pauses it.
    fn wait(&self, info: RuntimeInfo, caught: &Caught) -> anyhow::Result<()> {
        let Options { batch_mode, progress_json, progress_frequency, .. } = self.options;
        let show = Show::from_options(batch_mode, progress_json, progress_frequency);
        let (mut failure, mut last) = (None, None);
        let has_ended = has_reached_end(show, &info.device, caught, |watch| {
            while let Some(found) = self.found() {
                if watch(found.done_bytes, found.total_bytes).is_break() {
                    failure = self.tell("pause", None).err();
                    // It may have reached the end by now.
                    last = self.found();
                    break;
                }
                match found.state {
                    OnlineState::Running => std::thread::sleep(POLL_INTERVAL),
                    _ => {
                        last = Some(found);
                        break;
                    }
                }
            }
            Ok(last.as_ref().is_some_and(|found| found.state == OnlineState::Finished))
        })?;
        match last {
            _ if has_ended => Ok(()),
            Some(OnlineStatus { state: OnlineState::Running, .. }) if failure.is_some() => failure.map_or(Ok(()), Err),
            Some(OnlineStatus { error: Some(error), .. }) => {
                let text = format!("Volume {}: {error}.", self.name);
                Err(inlock_open::Error::new(ErrorKind::CannotReencrypt, text).into())
            }
            Some(_) => Err(interrupted(format!("it is paused; go on with `inlock reencrypt {} --resume`", self.name))),
            None => {
                let header = info.header.map_or(String::new(), |file| format!(" --header {}", file.display()));
                let (device, name) = (info.device.display(), &self.name);
                Err(interrupted(format!(
                    "volume {name} was closed; go on with `inlock reencrypt --resume-only {device}{header}`"
                )))
            }
        }
    }

    fn is_running(&self) -> anyhow::Error {
        let text = format!("Volume {} is being re-encrypted already.", self.name);
        inlock_open::Error::new(ErrorKind::AlreadyReencrypted, text).into()
    }

    /// Asks for both keys of what was interrupted before the volume was opened.
    fn ask(&self, client: &mut Client) -> anyhow::Result<VolumeKey> {
        let source = RunningKey::new(&self.options)?.source(&client.status()?.info)?;
        Ok(ask_key(context(), &source)?)
    }

    /// Lets the process of the volume carry out what has begun in a copy of the header.
    fn start(&self, offline: Offline) -> anyhow::Result<()> {
        if let Some(old) = offline.old_key() {
            self.tell("check", Some(old))?;
        }
        if let Some(staged) = offline.staged() {
            let pipe = pipe::streamed(serde_json::to_vec(&staged)?).context("cannot pass the header")?;
            self.send(json!({"command": "reencrypt", "action": "begin"}), Some(&pipe))?;
        }
        let joined = offline.joined_key()?;
        // The process of the volume takes the lock.
        drop(offline);
        self.tell("start", Some(&joined))
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
        let cannot_move = || {
            let text = format!("Volume {} cannot be decrypted: its data would move.", self.name);
            CliError::refused(text, "close it first")
        };
        if self.options.decrypt && info.header.is_none() {
            return Err(cannot_move());
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
        match args.mode {
            _ if has_begun => args.unlock(offline),
            ReencryptionMode::Decrypt if offline.header().volume.data_offset() > 0 => Err(cannot_move()),
            ReencryptionMode::Decrypt => args.begin_decryption(offline),
            _ => args.begin_open(offline),
        }
    }

    /// Sends a command to the process of the volume.
    fn tell(&self, action: &str, joined: Option<&VolumeKey>) -> anyhow::Result<()> {
        let rate = self.rate.filter(|rate| *rate > 0);
        let (zone, holes) = (self.options.hotzone_size, self.options.keep_holes);
        let request = json!({
            "command": "reencrypt", "action": action, "rate": rate, "zone": zone, "keep_holes": holes,
            "paused": self.options.init_only,
        });
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
