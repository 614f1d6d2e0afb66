//! `serve --config`: many volumes in one process.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use inlock_frontend::nbd::descriptors;
use inlock_frontend::nbd::listener::ExportListener;
use inlock_frontend::nbd::server::Limits;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

use super::{address_of, cannot_serve, captive_address, certificates_of, check_insecure};
use crate::args::action::{REMOTE, option_outside};
use crate::args::options::Options;
use crate::background;
use crate::error::{CliError, told};
use crate::host::{log, program};
use crate::system::signals::{self, Caught};
use crate::ui::print::{lines_of, print, warn};
use inlock_serve::control::listener::Listener;
use inlock_serve::control::servers::Registration;
use inlock_serve::listen::Listen;
use inlock_serve::many::volumes::Volumes;
use inlock_serve::many::{config, control};
use inlock_serve::trusted_config::Trust;
use inlock_serve::uri::uri;

/// Descriptors that the server would like to have: a few for each volume and each client.
const DESCRIPTORS: usize = 65_536;
/// Time for standard error to take the last messages.
const LAST_MESSAGES: Duration = Duration::from_secs(2);
/// Interval of looking for idle volumes.
const IDLE_CHECK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// A server of many volumes.
pub(super) struct ManyArgs {
    config: PathBuf,
    trust: Trust,
    listen: Listen,
    control: Option<PathBuf>,
    metrics: Option<Listen>,
    insecure: bool,
}

/// Options that a server of many volumes reads, and options of the whole process. All others are refused, so that none
/// is silently ignored.
const OPTIONS: &[&str] = &[
    "config",
    "allow-untrusted-config",
    "nbd",
    "control",
    "metrics",
    "insecure",
    "serialize-memory-hard-pbkdf",
    "disable-locks",
];

fn not_allowed(what: &str, has_key: bool) -> anyhow::Error {
    let place = if has_key { ", which has it for each volume" } else { "" };
    CliError::usage(format!("{what} is not allowed with --config{place}."))
}

impl ManyArgs {
    pub(super) fn new(options: &Options, source: PathBuf) -> anyhow::Result<Self> {
        let tls = options.tls.is_some() || options.tls_certificates.is_some() || options.tls_psk.is_some();
        if tls || options.tls_verify_peer {
            return Err(CliError::usage("Options of TLS are not allowed with --config: set tls in the file."));
        }
        if let Some(option) = option_outside(options, &[OPTIONS, REMOTE]) {
            return Err(not_allowed(&format!("Option --{option}"), config::has_key(option)));
        }
        if source.as_os_str() != "--config" {
            return Err(not_allowed("<source>", true));
        }
        check_insecure(options)?;
        let listen = options.nbd.clone();
        let listen = listen.ok_or_else(|| CliError::usage("Option --nbd is required with --config."))?;
        let config = options.config.clone().context("--config is missing")?;
        let (control, metrics) = (options.control.clone(), options.metrics.clone());
        let trust = if options.allow_untrusted_config { Trust::All } else { Trust::Checked };
        Ok(Self { config, trust, listen, control, metrics, insecure: options.insecure })
    }
}

/// Serves the volumes until a signal.
pub(super) fn run(args: &ManyArgs) -> anyhow::Result<u8> {
    let volumes = Volumes::load(program(), &args.config, args.trust)?;
    let listen = address_of(&args.listen, args.insecure, volumes.tls_options())?;
    let tls = volumes.tls().cloned();
    let volumes = Arc::new(volumes);
    descriptors::raise_limit(DESCRIPTORS);
    background::protect_io();
    let caught = signals::catch()?;
    caught.hear(Signal::HUP)?;
    let metrics = args.metrics.as_ref().map(|at| Listener::bind(at, args.insecure)).transpose()?;
    let mut commands = Vec::from_iter(args.control.as_deref().map(Listener::bind_unix).transpose()?);
    // Commands that name a volume find it there. Without a run directory those of --control are left.
    let registration = Registration::new().map_err(|error| warn(told(&error.into()).message)).ok();
    let registration = registration.map(|(registration, socket)| {
        commands.push(socket);
        registration
    });
    let control = control::start(program(), commands, metrics, Arc::clone(&volumes))?;
    let listener = ExportListener::start(&listen, volumes.clone(), Limits::default(), tls).map_err(cannot_serve)?;
    let (address, certificates) = (captive_address(listener.listen()), certificates_of(volumes.tls_options()));
    let (at, dir) = (address.clone(), certificates.map(Path::to_owned));
    volumes.set_uri(move |name| uri(&at, name, dir.as_deref()));
    let uri = uri(&address, "", certificates);
    let _ = print(format_args!("{uri}\n"));
    background::notify_ready(&format!("{} volumes at {uri}", volumes.count()));
    let ended = serve(&volumes, &caught);
    background::notify_stopping();
    // A client whose handshake waits for a volume delays no other volume. Volumes have reported what they failed of.
    let is_flushed = std::thread::scope(|scope| {
        let stopped = scope.spawn(|| volumes.has_stopped_without_loss());
        drop(listener);
        stopped.join().unwrap_or(false)
    });
    // Until then commands can give up a device that does not answer.
    drop((control, registration));
    log().finish(LAST_MESSAGES);
    ended?;
    Ok(if is_flushed { 0 } else { 1 })
}

/// Blocks until a signal that terminates programs. SIGHUP loads the file again.
fn serve(volumes: &Volumes, caught: &Caught) -> anyhow::Result<()> {
    loop {
        let woken = caught.fd();
        match poll(&mut [PollFd::new(&woken, PollFlags::IN)], Some(&IDLE_CHECK)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for signals"),
        }
        match caught.take() {
            Some(number) if number == Signal::TSTP.as_raw() => signals::default_action(number),
            Some(number) if number == Signal::HUP.as_raw() => match volumes.reload() {
                Ok(outcome) => log().line(format_args!("inlock: {outcome}")),
                Err(error) => lines_of(&error.into()).for_each(|line| log().line(line)),
            },
            Some(_) => return Ok(()),
            None => {}
        }
        volumes.close_idle();
    }
}
