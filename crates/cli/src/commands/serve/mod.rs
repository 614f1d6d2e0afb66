//! `serve`: serves the decrypted volume over NBD until a signal, or until the command of `--run` exits.
//!
//! Either way the server drains: it replies to all requests that it has received, and all writes are durable before
//! this program exits.

mod captive;
mod many;

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use inlock_engine::ring::BusyPoll;
use inlock_engine::store::file::IoMode;
use inlock_engine::{self as engine, OffloadOptions};
use inlock_frontend::nbd::descriptors;
use inlock_frontend::nbd::server::{self, Server, ServerError, ServerOptions};
use inlock_frontend::nbd::tls::{TlsMode, TlsOptions, TlsServer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal};
use tempfile::TempDir;

use crate::args::action::{
    Action, HOLES, KEY, PLAIN, POLICY, Prepared, REMOTE, SEALED, SOURCE, THREAD_FLAGS, TOKENS, UNLOCK,
};
use crate::args::options::Options;
use crate::args::source::{check_threads, engine_of, source_args};
use crate::background::{self, Launcher, RunMode};
use crate::error::{CliError, told};
use crate::host::{context, program};
use crate::system::signals::{self, Caught};
use crate::ui::log_file::{self, LogFile};
use crate::ui::print::print;
use inlock_open::engine::EngineOptions;
use inlock_open::open::{has_zones, open};
use inlock_open::source::{OpenOptions, VolumeType};
use inlock_serve::control::claim::{Claim, Purpose};
use inlock_serve::control::engine::EngineInfo;
use inlock_serve::control::info::RuntimeInfo;
use inlock_serve::control::listener::Listener;
use inlock_serve::control::name::Name;
use inlock_serve::control::served::{ControlHooks, ServedVolume};
use inlock_serve::control::server::Control;
use inlock_serve::listen::{Listen, resolve};
use inlock_serve::tls;
use inlock_serve::uri::{self, Address};

pub(crate) const ACTION: Action = Action {
    name: "serve",
    aliases: &[],
    arguments: &[SOURCE],
    options: &[KEY, UNLOCK, REMOTE, TOKENS, PLAIN, POLICY, SERVE, THREAD_FLAGS, SEALED, HOLES, &["table"], MANY],
    about: "serve the decrypted volume over NBD",
    prepare: |options, mut arguments| {
        if options.config.is_some() {
            let args = many::ManyArgs::new(&options, arguments.path()?)?;
            return Ok(Prepared::with_status(move || many::run(&args)));
        }
        if options.control.is_some() || options.allow_untrusted_config {
            let option = if options.control.is_some() { "control" } else { "allow-untrusted-config" };
            return Err(CliError::usage(format!("Option --{option} needs --config.")));
        }
        let args = serve_args(options, arguments.path()?)?;
        Ok(Prepared::with_status(move || run(&args)))
    },
};

/// Descriptors for a client with TLS: its socket, and a pair to its worker.
const DESCRIPTORS_WITH_TLS: usize = 3;

/// Options of a server of many volumes.
const MANY: &[&str] = &["config", "allow-untrusted-config", "control", "serialize-memory-hard-pbkdf"];

pub(super) const SERVE: &[&str] = &[
    "nbd",
    "export-name",
    "name",
    "metrics",
    "log-limit",
    "background",
    "launched",
    "run",
    "read-only",
    "allow-discards",
    "io",
    "threads",
    "offload",
    "offload-threads",
    "engine",
    "engine-threshold",
    "busy-poll",
    "insecure",
    "tls",
    "tls-certificates",
    "tls-verify-peer",
    "tls-psk",
];

/// A volume to serve.
pub(super) struct ServeArgs {
    source: OpenOptions,
    listen: Option<Listen>,
    export_name: String,
    /// Name for control commands.
    name: Option<Name>,
    /// Address for scrapers.
    metrics: Option<Listen>,
    run_mode: RunMode,
    command: Option<OsString>,
    read_only: bool,
    io: IoMode,
    threads: Option<u16>,
    offload: OffloadOptions,
    engine: Option<EngineOptions>,
    busy_poll: BusyPoll,
    insecure: bool,
    tls: Option<TlsOptions>,
    /// Length of the log in bytes.
    log_limit: u64,
}

fn serve_args(options: Options, image: PathBuf) -> anyhow::Result<ServeArgs> {
    let source = source_args(&options, image)?;
    serve_source(options, source)
}

/// Converts the options of an action that serves a volume whose source is converted already.
pub(super) fn serve_source(options: Options, source: OpenOptions) -> anyhow::Result<ServeArgs> {
    check_threads(&options)?;
    if options.nbd.is_none() && options.run.is_none() {
        return Err(CliError::usage("Option --nbd or --run is required for serve action."));
    }
    let (run_mode, engine) = (run_mode(&options)?, engine_of(&options)?);
    let tls = tls_options(&options)?;
    check_insecure(&options)?;
    if options.metrics.is_some() && options.name.is_none() {
        return Err(CliError::refused("Option --metrics needs --name.", "add --name, which labels the metrics"));
    }
    let export_name = options.export_name.unwrap_or_default();
    if export_name.len() > 4096 {
        return Err(CliError::usage("The name of an export has at most 4096 bytes."));
    }
    let offload = offload_options(options.offload.as_deref(), options.offload_threads)?;
    Ok(ServeArgs {
        source,
        listen: options.nbd,
        export_name,
        run_mode,
        log_limit: options.log_limit.unwrap_or(log_file::DEFAULT_LIMIT),
        name: options.name,
        metrics: options.metrics,
        command: options.run,
        read_only: options.read_only,
        io: options.io.unwrap_or_default(),
        threads: options.threads,
        offload,
        engine,
        busy_poll: busy_poll(options.busy_poll.as_deref())?,
        insecure: options.insecure,
        tls,
    })
}

/// Refuses `--insecure` without an address that it could allow.
fn check_insecure(options: &Options) -> anyhow::Result<()> {
    let has_tcp = [&options.nbd, &options.metrics].into_iter().flatten().any(|at| matches!(at, Listen::Tcp { .. }));
    match options.insecure && !has_tcp {
        true => Err(CliError::usage("Option --insecure needs a TCP address.")),
        false => Ok(()),
    }
}

fn tls_options(options: &Options) -> anyhow::Result<Option<TlsOptions>> {
    if options.tls_psk.is_some() {
        return Err(CliError::refused(
            "Option --tls-psk is not supported: the TLS library has no pre-shared keys.",
            "use certificates: --tls=require --tls-certificates=DIR --tls-verify-peer",
        ));
    }
    tls::options("--", options.tls.as_deref(), options.tls_certificates.as_ref(), options.tls_verify_peer)
        .map_err(|text| CliError::usage(format!("Option {text}.")))
}

fn run_mode(options: &Options) -> anyhow::Result<RunMode> {
    match (options.launched, options.background) {
        (true, _) => Ok(RunMode::BackgroundChild),
        (false, false) => Ok(RunMode::Foreground),
        (false, true) if options.name.is_none() => {
            Err(CliError::refused("Option --background needs --name.", "add --name, with which `inlock close` ends it"))
        }
        (false, true) if options.run.is_some() => {
            Err(CliError::usage("Option --background is not allowed with --run."))
        }
        (false, true) => Ok(RunMode::Background),
    }
}

fn busy_poll(wanted: Option<&str>) -> anyhow::Result<BusyPoll> {
    const MAX: u64 = 10_000;
    match wanted {
        None | Some("auto") => Ok(BusyPoll::Adaptive),
        Some("0") => Ok(BusyPoll::Never),
        Some(micros) => match micros.parse() {
            Ok(micros) if micros <= MAX => Ok(BusyPoll::UpTo(Duration::from_micros(micros))),
            _ => Err(CliError::usage(format!("Option --busy-poll takes 'auto', or 0 to {MAX} microseconds."))),
        },
    }
}

fn offload_options(policy: Option<&str>, threads: Option<u16>) -> anyhow::Result<OffloadOptions> {
    let mut offload = OffloadOptions::default();
    if let Some(threads) = threads.map(usize::from) {
        if !(1..=OffloadOptions::MAX_THREADS).contains(&threads) {
            let most = OffloadOptions::MAX_THREADS;
            return Err(CliError::refused(
                format!("Option --offload-threads takes 1 to {most}."),
                "use --offload none to encrypt without a pool",
            ));
        }
        if matches!(policy, None | Some("none")) {
            return Err(CliError::usage("Option --offload-threads needs --offload."));
        }
        offload.threads = threads;
    }
    if let Some(policy) = policy {
        offload.policy = policy.parse().map_err(|e| CliError::usage(format!("Option --offload '{policy}' is {e}.")))?;
    }
    Ok(offload)
}

/// Serves the volume, and returns when it is closed; in the background, when it is served.
pub(super) fn run(args: &ServeArgs) -> anyhow::Result<u8> {
    let launcher = match args.run_mode {
        RunMode::Foreground => None,
        RunMode::Background => return background::launch(&args.source),
        RunMode::BackgroundChild => Some(Launcher::on_stdin()?),
    };
    refuse_zones(args)?;
    // Checked before a passphrase is asked for.
    let (listen, _private) = listen(args)?;
    let tls = args.tls.as_ref().map(|options| tls::load(context(), options)).transpose()?;
    let metrics = args.metrics.as_ref().map(|at| Listener::bind(at, args.insecure)).transpose()?;
    let claim = args.name.as_ref().map(|name| Claim::take(context(), name, Purpose::Serve)).transpose()?;
    let keys = launcher.as_ref().map(|parent| parent as _);
    let engine = args.engine.map(EngineOptions::start).transpose()?;
    let mut unlocked = open(context(), &args.source, !args.read_only, keys)?;
    unlocked.use_engine(engine);
    let options = options(args);
    descriptors::raise_limit(options.max_connections * if tls.is_some() { DESCRIPTORS_WITH_TLS } else { 1 });
    let info = unlocked.info.clone();
    let access = engine::Access { read_only: args.read_only, allow_discards: info.flags.allow_discards };
    let stores = unlocked.into_device(options.io, access)?;
    // From here on a signal drains the server; before, it terminates the process.
    let caught = signals::catch()?;
    let server = start_server(stores.device.clone(), &listen, &options, tls).map_err(cannot_serve)?;
    let address = captive_address(server.listen());
    let certificates = certificates_of(args.tls.as_ref());
    let uri = uri::uri(&address, &args.export_name, certificates);
    let info = |claim: &Claim| RuntimeInfo {
        via: "nbd".to_owned(),
        address: Some(uri.clone()),
        offload: options.offload.policy.to_string(),
        engine: EngineInfo::of(args.engine),
        ring: server.ring_name().to_owned(),
        threads: options.threads,
        ..RuntimeInfo::new(claim.name(), info, &stores.device)
    };
    let control = match claim {
        None => None,
        Some(claim) => {
            let (info, files) = (info(&claim), Some(claim.files().clone()));
            let volume = ServedVolume::new(context().clone(), info, stores.running(), files, ShutDownOnClose);
            Some(Control::start(program(), claim, volume, metrics)?)
        }
    };
    let ended = match &args.command {
        Some(command) => run_captive(captive::start(command, &address, &args.export_name, certificates), &caught),
        None => {
            // Clients can connect even if standard output is closed.
            let _ = print(format_args!("{uri}\n"));
            if let (Some(launcher), Some(control)) = (launcher, &control) {
                launcher.ready(LogFile::new(control.log(), args.log_limit))?;
            }
            background::notify_ready(&uri);
            wait_for_signal(&caught, &server).map(|()| 0)
        }
    };
    background::notify_stopping();
    let stopped = stores.check_writes(server.stop().map_err(cannot_serve));
    // Before the reply: the client may open the volume again at once.
    drop(stores);
    if let Some(control) = control {
        control.finish(stopped.as_ref().copied().map_err(told));
    }
    stopped?;
    ended
}

fn start_server(
    device: Arc<engine::Device>,
    listen: &server::Listen,
    options: &ServerOptions,
    tls: Option<TlsServer>,
) -> Result<Server, ServerError> {
    match tls {
        None => Server::start(device, listen, options),
        Some(tls) => Server::start_with_tls(device, listen, options, tls),
    }
}

/// Returns the address for clients.
fn captive_address(listen: &server::Listen) -> Address {
    match listen {
        server::Listen::Unix(path) => Address::Unix(path.clone()),
        server::Listen::Tcp(address) => Address::Tcp(*address),
    }
}

/// Refuses writable zoned volumes: NBD clients cannot write zones in order.
fn refuse_zones(args: &ServeArgs) -> anyhow::Result<()> {
    if !args.read_only && has_zones(context(), &args.source) {
        return Err(CliError::refused(
            format!("{} is zoned; NBD clients can only read it.", args.source.image.display()),
            "use --read-only, or `inlock open --via ublk` for a zoned block device",
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
    options.io = args.io;
    options.busy_poll = args.busy_poll;
    options
}

/// Closes a volume that is served until a signal.
struct ShutDownOnClose;

impl ControlHooks for ShutDownOnClose {
    fn close(&self, _deferred: bool) -> inlock_serve::Result<()> {
        signals::request_shutdown();
        Ok(())
    }
}

/// Returns the address, and for a captive command without one a private directory for a socket.
fn listen(args: &ServeArgs) -> anyhow::Result<(server::Listen, Option<TempDir>)> {
    match &args.listen {
        Some(address) => Ok((address_of(address, args.insecure, args.tls.as_ref())?, None)),
        None => {
            let dir =
                tempfile::Builder::new().prefix("inlock-").tempdir().context("cannot create a private directory")?;
            Ok((server::Listen::Unix(dir.path().join("nbd.sock")), Some(dir)))
        }
    }
}

/// Returns an address to listen on.
fn address_of(listen: &Listen, insecure: bool, tls: Option<&TlsOptions>) -> anyhow::Result<server::Listen> {
    match listen {
        // A background process leaves its directory.
        Listen::Unix(path) => Ok(server::Listen::Unix(std::path::absolute(path)?)),
        Listen::Tcp { host, port } => {
            let address = resolve(host, *port)?;
            check_tcp(address, insecure, tls)?;
            Ok(server::Listen::Tcp(address))
        }
    }
}

/// Returns the directory that a client finds in the URI, if clients need TLS.
fn certificates_of(tls: Option<&TlsOptions>) -> Option<&Path> {
    tls.filter(|tls| tls.mode == TlsMode::Required).map(|tls| tls.certificates.as_path())
}

/// Refuses TCP, unless `insecure` or with TLS that asks clients for a certificate: otherwise every client that can
/// connect gets the plaintext, which includes all users of this machine.
fn check_tcp(address: SocketAddr, insecure: bool, tls: Option<&TlsOptions>) -> anyhow::Result<()> {
    let required = tls.filter(|tls| tls.mode == TlsMode::Required);
    if insecure || required.is_some_and(|tls| tls.verify_peer) {
        return Ok(());
    }
    let place = match address.ip().is_loopback() {
        true => "is open to all users of this machine",
        false => "is not loopback",
    };
    let (why, hint) = match required {
        Some(_) => ("clients need no certificate", "add --tls-verify-peer, or allow it with --insecure"),
        None => (
            "NBD is unencrypted",
            "use unix:PATH, which only its owner can connect to, or --tls=require with --tls-verify-peer, or allow it \
             with --insecure",
        ),
    };
    Err(CliError::refused(format!("Address {address} {place}, and {why}."), hint))
}

fn description(args: &ServeArgs) -> String {
    let kind = match args.source.volume_type {
        VolumeType::Luks(_) => "LUKS volume",
        VolumeType::Plain(_) => "plain dm-crypt volume",
        VolumeType::Table(_) => "device-mapper table",
        VolumeType::Integrity(_) => "dm-integrity volume",
        VolumeType::Verity(_) => "dm-verity device",
        VolumeType::Raw => "raw image",
    };
    format!("{kind}, served by Inlock")
}

fn cannot_serve(error: ServerError) -> anyhow::Error {
    let address = |listen: &server::Listen| match listen {
        server::Listen::Unix(path) => path.display().to_string(),
        server::Listen::Tcp(address) => address.to_string(),
    };
    match error {
        ServerError::InUse(listen) => inlock_serve::Error::AddressInUse { address: address(&listen) }.into(),
        ServerError::NotASocket(path) => {
            inlock_serve::Error::AddressInUse { address: path.display().to_string() }.into()
        }
        ServerError::Listen { listen, source } => {
            anyhow::Error::from(source).context(format!("cannot listen on {}", address(&listen)))
        }
        error @ ServerError::Worker(_) => anyhow::Error::from(error).context(CliError::Refused {
            message: "cannot run the server".to_owned(),
            hint: "use --io sync, which works without io_uring",
        }),
        error => error.into(),
    }
}

/// Blocks until a signal that terminates programs, or until the server fails; stopping it returns the error.
fn wait_for_signal(caught: &Caught, server: &Server) -> anyhow::Result<()> {
    let every = Timespec { tv_sec: 1, tv_nsec: 0 };
    while server.is_healthy() {
        let woken = caught.fd();
        match poll(&mut [PollFd::new(&woken, PollFlags::IN)], Some(&every)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for signals"),
        }
        match caught.take() {
            Some(number) if number == Signal::TSTP.as_raw() => signals::default_action(number),
            Some(_) => return Ok(()),
            None => {}
        }
    }
    Ok(())
}

/// Waits for the command, passes signals on to it, and returns its exit status.
fn run_captive(child: io::Result<Child>, caught: &Caught) -> anyhow::Result<u8> {
    let mut child = child.context("cannot run /bin/sh")?;
    let result = wait_for_child(&mut child, caught);
    if result.is_err() {
        let _ = child.kill();
        let _ = child.wait();
    }
    result
}

fn wait_for_child(child: &mut Child, caught: &Caught) -> anyhow::Result<u8> {
    let pid = Pid::from_child(child);
    // Without descriptors of processes in the kernel, the child is polled.
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
                // The child was not reaped yet, so the id is still its own.
                if let Some(signal) = Signal::from_named_raw(number) {
                    let _ = rustix::process::kill_process(pid, signal);
                }
            }
            None => {}
        }
    }
}
