//! `serve --config`: many volumes in one process.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use inlock_frontend::nbd::descriptors;
use inlock_frontend::nbd::listener::ExportListener;
use inlock_frontend::nbd::server::Limits;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

use super::captive::uri;
use super::{address_of, cannot_serve, captive_address, certificates_of};
use crate::args::options::Options;
use crate::control::background;
use crate::control::listener::Listener;
use crate::error::CliError;
use crate::many::control;
use crate::many::volumes::Volumes;
use crate::system::signals::{self, Caught};
use crate::ui::print::{print, print_stderr, report};
use crate::values::Listen;

/// Descriptors that the server would like to have: a few for each volume and each client.
const DESCRIPTORS: usize = 65_536;
/// Interval of looking for idle volumes.
const IDLE_CHECK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// A server of many volumes.
pub(super) struct ManyArgs {
    config: PathBuf,
    listen: Listen,
    control: Option<PathBuf>,
    metrics: Option<Listen>,
    insecure: bool,
}

impl ManyArgs {
    pub(super) fn new(options: &Options, source: PathBuf) -> anyhow::Result<Self> {
        let given = [
            (source.as_os_str() != "--config", "<source>"),
            (options.key_file.is_some(), "--key-file"),
            (options.volume_type.is_some(), "--type"),
            (options.table.is_some(), "--table"),
            (options.header.is_some(), "--header"),
            (options.read_only, "--read-only"),
            (options.allow_discards, "--allow-discards"),
            (options.export_name.is_some(), "--export-name"),
            (options.name.is_some(), "--name"),
            (options.background, "--background"),
            (options.run.is_some(), "--run"),
            (options.threads.is_some(), "--threads"),
            (options.io.is_some(), "--io"),
            (options.offload.is_some(), "--offload"),
            (options.engine.is_some(), "--engine"),
            (options.cipher.is_some(), "--cipher"),
        ];
        if let Some((_, what)) = given.iter().find(|(given, _)| *given) {
            return Err(CliError::usage(format!("{what} is not allowed with --config, which has it for each volume.")));
        }
        let tls = options.tls.is_some() || options.tls_certificates.is_some() || options.tls_psk.is_some();
        if tls || options.tls_verify_peer {
            return Err(CliError::usage("Options of TLS are not allowed with --config: set tls in the file."));
        }
        let listen = options.nbd.clone();
        let listen = listen.ok_or_else(|| CliError::usage("Option --nbd is required with --config."))?;
        let config = options.config.clone().context("--config is missing")?;
        let (control, metrics) = (options.control.clone(), options.metrics.clone());
        Ok(Self { config, listen, control, metrics, insecure: options.insecure })
    }
}

/// Serves the volumes until a signal.
pub(super) fn run(args: &ManyArgs) -> anyhow::Result<u8> {
    let volumes = Volumes::load(&args.config)?;
    let listen = address_of(&args.listen, args.insecure, volumes.tls_options())?;
    let tls = volumes.tls().cloned();
    let volumes = Arc::new(volumes);
    descriptors::raise_limit(DESCRIPTORS);
    background::protect_io();
    let caught = signals::catch()?;
    let metrics = args.metrics.as_ref().map(|at| Listener::bind(at, args.insecure)).transpose()?;
    let control = control::start(args.control.as_deref(), metrics, Arc::clone(&volumes))?;
    let listener = ExportListener::start(&listen, volumes.clone(), Limits::default(), tls).map_err(cannot_serve)?;
    let uri = uri(&captive_address(listener.listen()), "", certificates_of(volumes.tls_options()));
    let _ = print(format_args!("{uri}\n"));
    background::notify_ready(&format!("{} volumes at {uri}", volumes.count()));
    let ended = serve(&volumes, &caught);
    background::notify_stopping();
    drop((listener, control));
    // Volumes have reported what they failed of.
    let is_flushed = volumes.has_stopped_without_loss();
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
                Ok(outcome) => print_stderr(format_args!("inlock: {outcome}")),
                Err(error) => {
                    let _ = report(&error);
                }
            },
            Some(_) => return Ok(()),
            None => {}
        }
        volumes.close_idle();
    }
}
