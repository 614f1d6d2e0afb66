//! `serve`: serves the decrypted volume over NBD until a signal comes, or until the command of `--run` ends.
//!
//! Either way the server drains: every request that was received is answered, and everything written is durable before
//! this program ends.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Child;
use std::sync::Arc;

use anyhow::Context;
use inlock_engine as engine;
use inlock_engine::store::file::IoMode;
use inlock_frontend::nbd::descriptors;
use inlock_frontend::nbd::server::{self, Server, ServerError, ServerOptions};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal};
use serde_json::Value;
use tempfile::TempDir;

use crate::args::{Io, Kind, Place, ServeArgs};
use crate::captive::{self, Address};
use crate::control::running::HandedOut;
use crate::control::{Claim, Control, Facts, Running, metrics};
use crate::daemon::{self, Launcher};
use crate::exit::{self, Problem};
use crate::signals::{self, Caught};
use crate::source::{self, Keys};
use crate::values::{Listen, resolve};

pub(crate) fn run(args: &ServeArgs) -> anyhow::Result<u8> {
    let launcher = match args.place {
        Place::Here => None,
        Place::Background => return daemon::launch(&args.source),
        Place::Launched => Some(Launcher::on_stdin()?),
    };
    refuse_zones(args)?;
    // A bad address is no reason to type a passphrase first.
    let (listen, _private) = listen(args)?;
    let metrics = args.metrics.as_ref().map(|at| metrics::Listener::bind(at, args.insecure)).transpose()?;
    let claim = args.name.as_ref().map(Claim::take).transpose()?;
    let keys = launcher.as_ref().map_or(Keys::Asked { stdin_taken: false }, Keys::Launcher);
    let opened = source::open(&args.source, !args.read_only, keys)?;
    let options = options(args);
    descriptors::raise_limit(options.max_connections);
    let about = opened.about.clone();
    let access = engine::Access { read_only: args.read_only, allow_discards: opened.flags.allow_discards };
    let attached = opened.attach(options.io, access)?;
    // From here on a signal means "drain and end"; before, it just ends.
    let caught = signals::catch()?;
    let server = Server::start(attached.device.clone(), &listen, &options).map_err(cannot_serve)?;
    let address = match server.listen() {
        server::Listen::Unix(path) => Address::Unix(path.clone()),
        server::Listen::Tcp(address) => Address::Tcp(*address),
    };
    let uri = captive::uri(&address, &args.export_name);
    let facts = |claim: &Claim| Facts {
        via: "nbd".to_owned(),
        address: Some(uri.clone()),
        offload: options.offload.policy.to_string(),
        ring: server.ring_name().to_owned(),
        threads: options.threads,
        ..Facts::new(claim.name(), about, &attached.device)
    };
    let control = match claim {
        None => None,
        Some(claim) => {
            let running =
                Running::new(facts(&claim), Arc::clone(&attached.device), claim.files().clone(), EndsBySignal);
            Some(Control::start(claim, running, metrics)?)
        }
    };
    let ended = match &args.run {
        Some(command) => run_captive(command, &address, &args.export_name, &caught),
        None => {
            // Nobody may be reading; clients find the server all the same.
            let _ = exit::print(format_args!("{uri}\n"));
            if let (Some(launcher), Some(control)) = (launcher, &control) {
                launcher.ready(&control.log())?;
            }
            daemon::notify_ready(&uri);
            wait_for_signal(&caught, &server).map(|()| 0)
        }
    };
    daemon::notify_stopping();
    let stopped = attached.check_writes(server.stop().map_err(cannot_serve));
    // Whoever asked to close may open the volume again at once.
    drop(attached);
    if let Some(control) = control {
        control.finish(&stopped);
    }
    stopped?;
    ended
}

/// Zones that are written in order are for those who know of them.
fn refuse_zones(args: &ServeArgs) -> anyhow::Result<()> {
    if !args.read_only && source::has_zones(&args.source) {
        return Err(Problem::refused(
            format!(
                "The zones of {} are written in order, and clients of NBD know no zones.",
                args.source.image.display()
            ),
            "--read-only serves it; `inlock open --via ublk` makes it a block device with zones",
        ));
    }
    Ok(())
}

fn options(args: &ServeArgs) -> ServerOptions {
    let mut options = ServerOptions::default();
    options.export_name = args.export_name.clone();
    options.description = description(args);
    options.threads = args.threads.map_or(options.threads, usize::from);
    options.offload = args.offload;
    options.io = match args.io {
        Io::Auto => IoMode::Auto,
        Io::Uring => IoMode::Uring,
        Io::Sync => IoMode::Sync,
    };
    options
}

/// What runs until a signal comes ends as if one had come.
struct EndsBySignal;

impl HandedOut for EndsBySignal {
    fn close(&self, _request: &Value) -> anyhow::Result<()> {
        signals::ask_to_end();
        Ok(())
    }
}

/// The address, and for a captive command without one a private directory for a socket.
fn listen(args: &ServeArgs) -> anyhow::Result<(server::Listen, Option<TempDir>)> {
    match &args.listen {
        // A process in the background leaves its directory.
        Some(Listen::Unix(path)) => Ok((server::Listen::Unix(std::path::absolute(path)?), None)),
        Some(Listen::Tcp { host, port }) => {
            let address = resolve(host, *port)?;
            check_tcp(address, args.insecure)?;
            Ok((server::Listen::Tcp(address), None))
        }
        None => {
            let dir =
                tempfile::Builder::new().prefix("inlock-").tempdir().context("cannot make a private directory")?;
            Ok((server::Listen::Unix(dir.path().join("nbd.sock")), Some(dir)))
        }
    }
}

/// NBD without TLS asks clients for nothing: a TCP address gives the plaintext to everybody who can connect to it, and
/// that is every account of this machine at least.
fn check_tcp(address: SocketAddr, insecure: bool) -> anyhow::Result<()> {
    if insecure {
        return Ok(());
    }
    let who = if address.ip().is_loopback() { "Every user of this machine" } else { "Everybody on the network" };
    Err(Problem::refused(
        format!("{who} could read and write the volume at {address}, since NBD is served without TLS."),
        "listen on unix:PATH, which only its owner can connect to, or give --insecure",
    ))
}

fn description(args: &ServeArgs) -> String {
    let kind = match args.source.kind {
        Kind::Luks(_) => "LUKS volume",
        Kind::Plain(_) => "plain dm-crypt volume",
        Kind::Table(_) => "device-mapper table",
        Kind::Raw => "raw image",
    };
    format!("{kind}, served by Inlock")
}

fn cannot_serve(error: ServerError) -> anyhow::Error {
    let address = |listen: &server::Listen| match listen {
        server::Listen::Unix(path) => path.display().to_string(),
        server::Listen::Tcp(address) => address.to_string(),
    };
    match error {
        ServerError::InUse(listen) => Problem::AddressInUse { address: address(&listen) }.into(),
        ServerError::NotASocket(path) => Problem::AddressInUse { address: path.display().to_string() }.into(),
        ServerError::Listen { listen, source } => {
            anyhow::Error::from(source).context(format!("cannot listen on {}", address(&listen)))
        }
        error @ ServerError::Worker(_) => anyhow::Error::from(error).context(Problem::Refused {
            message: "the server cannot run".to_owned(),
            hint: "--io sync does without io_uring, which some systems forbid",
        }),
        error => error.into(),
    }
}

/// Until a signal that ends programs comes, or the server cannot go on; stopping it says why.
fn wait_for_signal(caught: &Caught, server: &Server) -> anyhow::Result<()> {
    let every = Timespec { tv_sec: 1, tv_nsec: 0 };
    while server.is_healthy() {
        let woken = caught.fd();
        match poll(&mut [PollFd::new(&woken, PollFlags::IN)], Some(&every)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for a signal"),
        }
        match caught.take() {
            Some(number) if number == Signal::TSTP.as_raw() => signals::default_action(number),
            Some(_) => return Ok(()),
            None => {}
        }
    }
    Ok(())
}

/// Runs the command to its end and gives its exit status. Signals are passed on to it.
fn run_captive(command: &OsStr, address: &Address, export: &str, caught: &Caught) -> anyhow::Result<u8> {
    let mut child = captive::start(command, address, export).context("cannot run /bin/sh")?;
    let result = wait_for_child(&mut child, caught);
    if result.is_err() {
        let _ = child.kill();
        let _ = child.wait();
    }
    result
}

fn wait_for_child(child: &mut Child, caught: &Caught) -> anyhow::Result<u8> {
    let pid = Pid::from_child(child);
    // Where the kernel has no descriptors for processes, the child is looked for every so often.
    let handle: Option<OwnedFd> = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok();
    let every = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for the command")? {
            return Ok(captive::code_of(status));
        }
        let woken = caught.fd();
        let mut fds = vec![PollFd::new(&woken, PollFlags::IN)];
        if let Some(handle) = &handle {
            fds.push(PollFd::from_borrowed_fd(handle.as_fd(), PollFlags::IN));
        }
        match poll(&mut fds, handle.is_none().then_some(&every)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for the command"),
        }
        match caught.take() {
            Some(number) if number == Signal::TSTP.as_raw() => signals::default_action(number),
            Some(number) => {
                // Not waited for yet, so the number is still the child's.
                if let Some(signal) = Signal::from_named_raw(number) {
                    let _ = rustix::process::kill_process(pid, signal);
                }
            }
            None => {}
        }
    }
}
