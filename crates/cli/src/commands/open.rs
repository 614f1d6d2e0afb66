//! `open`: attaches a volume as a block device or a file, and serves it until it is detached.
//!
//! `close` or a signal detaches it, never while it is in use: a signal then waits for its users, as `close --deferred`
//! does. A name whose process died is taken over: a device that awaits recovery gets its process back, and its users
//! see no error.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use inlock_engine as engine;
use inlock_engine::store::file::IoMode;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use serde_json::Value;

use super::{persistent, test_passphrase};
use crate::args::action::{
    ATTACH, Action, Alias, Arguments, HOLES, KEY, PLAIN, POLICY, Prepared, REMOTE, SEALED, SOURCE, THREAD_FLAGS,
    TOKENS, UNLOCK,
};
use crate::args::options::Options;
use crate::args::source::{check_threads, engine_of, source_args};
use crate::attach::attachment::{self, AttachOptions, Attachment};
use crate::attach::link::Link;
use crate::attach::method::{self, AttachMethod};
use crate::attach::stale;
use crate::control::background::{self, Launcher, RunMode};
use crate::control::claim::{Claim, Purpose};
use crate::control::engine::EngineInfo;
use crate::control::info::RuntimeInfo;
use crate::control::listener::Listener;
use crate::control::name::Name;
use crate::control::served::{self, ControlHooks, ServedVolume};
use crate::control::server::Control;
use crate::error::{CliError, Status};
use crate::host::context;
use crate::system::signals::{self, Caught};
use crate::ui::log_file::{self, LogFile};
use crate::ui::print::{print, print_stderr, report, warn};
use crate::values::Listen;
use inlock_open::engine::EngineOptions;
use inlock_open::open::{has_zones, open};
use inlock_open::source::OpenOptions;

pub(crate) const ACTION: Action = Action {
    name: "open",
    aliases: &[
        Alias::new("luksOpen"),
        Alias { volume_type: Some("plain"), ..Alias::new("plainOpen") },
        Alias { volume_type: Some("plain"), is_swapped: true, ..Alias::new("create") },
    ],
    arguments: &[SOURCE, "[<name>]"],
    options: &[KEY, UNLOCK, REMOTE, TOKENS, PLAIN, POLICY, SEALED, HOLES, ATTACH, THREAD_FLAGS, OPEN],
    about: "open a volume as a block device or a file",
    prepare,
};

const OPEN: &[&str] = &[
    "link-vk-to-keyring",
    "table",
    "test-passphrase",
    "unbound",
    "foreground",
    "persistent",
    "refresh",
    "shared",
    "serialize-memory-hard-pbkdf",
];

fn prepare(options: Options, mut arguments: Arguments) -> anyhow::Result<Prepared> {
    let image = arguments.path()?;
    if options.test_passphrase {
        if options.persistent {
            return Err(CliError::usage("Option --persistent is not allowed with --test-passphrase."));
        }
        let source = source_args(&options, image)?;
        let luks = test_passphrase::check_type(&source)?;
        return Ok(Prepared::new(move || test_passphrase::run(&source, luks, options.unbound)));
    }
    if options.unbound {
        return Err(CliError::usage("Option --unbound cannot be used without --test-passphrase."));
    }
    persistent::check_options(&options)?;
    let name = arguments.name_or("open: requires <source> <name> as arguments.")?;
    let args = OpenArgs::new(&options, image, name)?;
    Ok(Prepared::with_status(move || run(&args)))
}

/// A volume to attach.
pub(super) struct OpenArgs {
    source: OpenOptions,
    pub name: Name,
    /// `None`: the preferred method that works.
    method: Option<AttachMethod>,
    pub run_mode: RunMode,
    pub read_only: bool,
    threads: Option<u16>,
    engine: Option<EngineOptions>,
    /// Address for scrapers.
    metrics: Option<Listen>,
    /// `--persistent`
    persistent: bool,
    /// Length of the log in bytes.
    log_limit: u64,
}

impl OpenArgs {
    /// Converts the options of an action that attaches a volume.
    pub(super) fn new(options: &Options, image: PathBuf, name: Name) -> anyhow::Result<Self> {
        Self::of_source(options, source_args(options, image)?, name)
    }

    /// Converts the options of an action that attaches a volume whose source is converted already.
    pub(super) fn of_source(options: &Options, source: OpenOptions, name: Name) -> anyhow::Result<Self> {
        check_threads(options)?;
        let method = options.via.as_deref().and_then(AttachMethod::from_name);
        let engine = engine_of(options)?;
        if let Some(method) = method {
            check_engine(engine, method)?;
        }
        Ok(Self {
            source,
            name,
            method,
            log_limit: options.log_limit.unwrap_or(log_file::DEFAULT_LIMIT),
            run_mode: match (options.launched, options.foreground) {
                (true, _) => RunMode::BackgroundChild,
                (false, true) => RunMode::Foreground,
                (false, false) => RunMode::Background,
            },
            read_only: options.read_only,
            threads: options.threads,
            engine,
            metrics: options.metrics.clone(),
            persistent: options.persistent,
        })
    }
}

/// Interval of checks whether the device is still attached, or no longer in use.
const POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 300_000_000 };

/// Attaches the volume, and returns when it is detached; in the background, when it is attached.
pub(super) fn run(args: &OpenArgs) -> anyhow::Result<u8> {
    if args.persistent && args.run_mode != RunMode::BackgroundChild {
        persistent::check_header(&args.source.image, args.source.header.as_deref())?;
    }
    let launcher = match args.run_mode {
        RunMode::Foreground => None,
        RunMode::Background => {
            let status = background::launch(&args.source)?;
            if status == 0 && args.persistent {
                persistent::store(&args.name)?;
            }
            return Ok(status);
        }
        RunMode::BackgroundChild => Some(Launcher::on_stdin()?),
    };
    // The store of an export has a thread, which inherits this.
    background::protect_io();
    attach(args, launcher)
}

/// Attaches the volume in this process, and returns when it is detached. `launcher`: the process that has the user's
/// terminal.
fn attach(args: &OpenArgs, launcher: Option<Launcher>) -> anyhow::Result<u8> {
    let metrics = args.metrics.as_ref().map(|at| Listener::bind(at, false)).transpose()?;
    let mut claim = Claim::take(&args.name, Purpose::Attach)?;
    let recover = claim.stale().and_then(|info| stale::awaiting_recovery(info.stale_device()));
    let method = choose_method(args, recover.map(|(method, _)| method))?;
    let keys = launcher.as_ref().map(|parent| parent as _);
    let engine = args.engine.map(EngineOptions::start).transpose()?;
    let mut unlocked = open(context(), &args.source, !args.read_only, keys)?;
    unlocked.use_engine(engine);
    // In the background the launcher's process does it.
    let links = if launcher.is_none() { &*args.source.links } else { &[] };
    let linked = unlocked.link_key(links)?;
    background::protect();
    let info = unlocked.info.clone();
    let access = engine::Access { read_only: args.read_only, allow_discards: info.flags.allow_discards };
    if method.has_workers() {
        unlocked.use_direct_io();
    }
    let stores = unlocked.into_device(IoMode::Auto, access)?;
    let device = Arc::clone(&stores.device);

    // From here on a signal detaches the volume; before, it terminates the process.
    let caught = signals::catch()?;
    let options = AttachOptions {
        name: args.name.as_str(),
        file: &claim.files().volume(),
        socket: &claim.files().nbd_socket(),
        completion_log: &claim.files().completion_log(),
        threads: threads(args),
        recover: recover.map(|(_, number)| number),
        cookie: claim.stale().and_then(|info| info.device_cookie).map_or_else(attachment::new_cookie, Ok)?,
    };
    let mut info = RuntimeInfo {
        via: method.name().to_owned(),
        ring: if method.has_workers() { "io_uring" } else { "sync" }.to_owned(),
        threads: options.threads,
        engine: EngineInfo::of(args.engine),
        device_cookie: Some(options.cookie).filter(|_| method.has_workers()),
        ..RuntimeInfo::new(claim.name(), info, &device)
    };
    announce(&mut claim, &info)?;
    let attachment = method.attach(&device, &options)?;
    // From here on every failure detaches it, or keeps its state file as long as it is attached.
    let open = Arc::new(OpenVolume::new(attachment, method, access.allow_discards));
    let last = Arc::clone(&open);
    claim.keep_if(move || last.state().detach(last.is_deferred()).is_err());
    let node = open.state().attachment.node().to_owned();
    info.node = Some(node.clone());
    let link = Link::make(args.name.as_str(), &node);
    let volume = ServedVolume::new(info, stores.running(), claim.files().clone(), Arc::clone(&open));
    let control = Control::start(claim, volume, metrics)?;
    linked.keep();
    let _ = print(format_args!("{}\n", node.display()));
    if let Some(launcher) = launcher {
        launcher.ready(LogFile::new(control.log(), args.log_limit))?;
    }
    if args.persistent && args.run_mode == RunMode::Foreground {
        persistent::store(&args.name)?;
    }
    background::notify_ready(&format!("{} is {}", args.name, node.display()));
    let outcome = stores.check_writes(open.wait(&caught));
    background::notify_stopping();
    drop((link, stores));
    control.finish(&outcome);
    outcome.map(|()| 0)
}

/// Publishes what is going to be attached, by which it is found if this process is killed before it is done. A device
/// to recover is in the state file already, and must be that of the same volume.
fn announce(claim: &mut Claim, info: &RuntimeInfo) -> anyhow::Result<()> {
    match claim.stale() {
        Some(stale) => stale.check_same_volume(info),
        // Without a node it is not recovered, so it needs no fingerprint of the key.
        None => claim.publish(&RuntimeInfo { check: None, ..info.clone() }),
    }
}

/// Chooses the method of attachment: that of a device to recover, or the given one, or the best one here.
fn choose_method(args: &OpenArgs, recover: Option<AttachMethod>) -> anyhow::Result<AttachMethod> {
    let is_zoned = !args.read_only && has_zones(context(), &args.source);
    let method = method::choose(recover.or(args.method), is_zoned)?;
    check_engine(args.engine, method)?;
    if args.source.flags.allow_discards && !method.has_discards() {
        warn(format_args!("--via {} does not support discards", method.name()));
    }
    Ok(method)
}

/// Refuses a method whose requests do not pass workers.
fn check_engine(engine: Option<EngineOptions>, method: AttachMethod) -> anyhow::Result<()> {
    if engine.is_none() || method.has_workers() {
        return Ok(());
    }
    Err(CliError::refused(
        format!("--via {} does not support --engine.", method.name()),
        "use --via ublk or --via nbd, or --engine software",
    ))
}

fn worker_failed(attachment: &dyn Attachment) -> anyhow::Error {
    let node = attachment.node().display();
    let message = format!("A worker of {node} failed; I/O waits until the volume is reopened.");
    let hint = "run `inlock open` with the same name and options".to_owned();
    CliError::Remote(message, Some(hint), Status::Wrong).into()
}

fn threads(args: &OpenArgs) -> usize {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    args.threads.map_or(cpus.min(4), usize::from)
}

/// An open volume.
struct OpenVolume {
    /// Whether the device was created with discard support.
    discards: bool,
    method: AttachMethod,
    /// Detach as soon as it is no longer in use. Changes under the lock of `state`, and is read without it, since
    /// detaching may take long.
    deferred: AtomicBool,
    state: Mutex<State>,
}

struct State {
    attachment: Box<dyn Attachment>,
    /// Outcome of detaching.
    outcome: Option<anyhow::Result<()>>,
    is_detached: bool,
}

impl Drop for State {
    fn drop(&mut self) {
        if !self.is_detached {
            // Another error is reported already.
            let _ = self.attachment.detach(false);
        }
    }
}

impl OpenVolume {
    fn new(attachment: Box<dyn Attachment>, method: AttachMethod, discards: bool) -> Self {
        let state = Mutex::new(State { attachment, outcome: None, is_detached: false });
        Self { discards, method, deferred: AtomicBool::new(false), state }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_deferred(&self) -> bool {
        self.deferred.load(Ordering::Acquire)
    }

    /// Blocks until it is detached, by this or another process.
    fn wait(&self, caught: &Caught) -> anyhow::Result<()> {
        loop {
            let mut state = self.state();
            if state.outcome.is_none() && (self.is_deferred() || !state.attachment.is_attached()) {
                let held = state.detach(self.is_deferred());
                // Another process can recover it. If it is just in use, the loop continues.
                if held.is_err() && state.attachment.needs_recovery() {
                    return Err(worker_failed(&*state.attachment));
                }
            }
            if let Some(outcome) = state.outcome.take() {
                return outcome;
            }
            drop(state);
            let woken = caught.fd();
            match poll(&mut [PollFd::new(&woken, PollFlags::IN)], Some(&POLL_INTERVAL)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("cannot wait for signals"),
            }
            match caught.take() {
                Some(number) if number == Signal::TSTP.as_raw() => signals::default_action(number),
                Some(_) => self.shut_down_on_signal(),
                None => {}
            }
        }
    }

    fn shut_down_on_signal(&self) {
        let mut state = self.state();
        if state.outcome.is_none()
            && let Err(held) = state.detach(self.is_deferred())
        {
            let _ = report(&held);
            print_stderr("inlock: The volume will be closed when it is no longer in use.");
            self.deferred.store(true, Ordering::Release);
        }
    }
}

impl State {
    /// Detaches it. Fails only if it is in use; any other outcome is stored for [`OpenVolume::wait`].
    fn detach(&mut self, deferred: bool) -> anyhow::Result<()> {
        if self.is_detached {
            return Ok(());
        }
        match self.attachment.detach(deferred) {
            Err(error) if matches!(error.downcast_ref(), Some(CliError::Held { .. })) => Err(error),
            outcome => {
                self.outcome = Some(outcome);
                self.is_detached = true;
                Ok(())
            }
        }
    }
}

impl ControlHooks for Arc<OpenVolume> {
    fn close(&self, request: &Value) -> anyhow::Result<()> {
        let mut state = self.state();
        if state.outcome.is_some() {
            return Ok(());
        }
        let deferred = served::is_deferred(request);
        if deferred {
            self.deferred.store(true, Ordering::Release);
        }
        match state.detach(self.is_deferred()) {
            Ok(()) => {
                signals::request_shutdown();
                Ok(())
            }
            Err(_) if deferred => Ok(()),
            held => held,
        }
    }

    fn cancel_deferred(&self) -> anyhow::Result<()> {
        let state = self.state();
        if self.method == AttachMethod::Loop && self.is_deferred() {
            return Err(CliError::refused(
                format!("{} detaches when its last user closes it.", state.attachment.node().display()),
                "close the volume, and open it with --via nbd or --via ublk",
            ));
        }
        self.deferred.store(false, Ordering::Release);
        Ok(())
    }

    fn is_close_deferred(&self) -> bool {
        self.is_deferred()
    }

    fn check_discards(&self) -> anyhow::Result<()> {
        if !self.method.has_discards() {
            let message = format!("--via {} does not support discards.", self.method.name());
            return Err(CliError::refused(message, "use --via ublk or --via nbd"));
        }
        if !self.discards {
            let message = format!("{} was created without discard support.", self.state().attachment.node().display());
            return Err(CliError::refused(message, "close the volume and open it with --allow-discards"));
        }
        Ok(())
    }

    fn resized(&self, len: u64) -> anyhow::Result<()> {
        self.state().attachment.update_len(len)
    }
}
