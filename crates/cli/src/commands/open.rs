//! `open`: attaches a volume as a block device or a file, and serves it until it is detached.
//!
//! `close` or a signal detaches it, never while it is in use: a signal then waits for its users, as `close --deferred`
//! does. A name whose process died is taken over: a device that awaits recovery gets its process back, and its users
//! see no error.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use inlock_engine as engine;
use inlock_engine::store::file::IoMode;
use inlock_serve::AttachMethod;
use inlock_serve::Error;
use inlock_serve::attached::{Attaching, Serving, Shutdown};
use inlock_serve::control::listener::Listener;
use inlock_serve::control::name::Name;
use inlock_serve::listen::Listen;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

use super::{persistent, test_passphrase};
use crate::args::action::{
    ATTACH, Action, Alias, Arguments, HOLES, KEY, PLAIN, POLICY, Prepared, REMOTE, SEALED, SOURCE, THREAD_FLAGS,
    TOKENS, UNLOCK,
};
use crate::args::options::Options;
use crate::args::source::{check_threads, engine_of, source_args};
use crate::background::{self, Launcher, RunMode};
use crate::error::{CliError, told};
use crate::host::{context, program};
use crate::system::signals::{self, Caught};
use crate::ui::log_file::{self, LogFile};
use crate::ui::print::{print, print_stderr, report, warn};
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
    let is_zoned = || !args.read_only && has_zones(context(), &args.source);
    let attaching = Attaching::begin(program(), &args.name, args.method, is_zoned)?;
    let method = attaching.method();
    check_engine(args.engine, method)?;
    if args.source.flags.allow_discards && !method.has_discards() {
        warn(format_args!("--via {} does not support discards", method.name()));
    }
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
    // From here on a signal detaches the volume; before, it terminates the process.
    let caught = signals::catch()?;
    let serving = Serving { threads: threads(args), engine: args.engine, metrics };
    let mut attached = attaching.attach(info, &stores, serving, signals::request_shutdown)?;
    linked.keep();
    let node = attached.node().display().to_string();
    let _ = print(format_args!("{node}\n"));
    if let Some(launcher) = launcher {
        launcher.ready(LogFile::new(attached.log(), args.log_limit))?;
    }
    if args.persistent && args.run_mode == RunMode::Foreground {
        persistent::store(&args.name)?;
    }
    background::notify_ready(&format!("{} is {node}", args.name));
    let outcome = stores.check_writes(attached.wait(&caught).map_err(anyhow::Error::from));
    background::notify_stopping();
    attached.remove_link();
    drop(stores);
    attached.finish(outcome.as_ref().copied().map_err(told));
    outcome.map(|()| 0)
}

impl Shutdown for Caught {
    fn wait(&self, limit: Duration) -> inlock_serve::Result<bool> {
        let limit = Timespec { tv_sec: limit.as_secs().cast_signed(), tv_nsec: limit.subsec_nanos().into() };
        let woken = self.fd();
        match poll(&mut [PollFd::new(&woken, PollFlags::IN)], Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(io::Error::other(format!("cannot wait for signals: {error}")).into()),
        }
        match self.take() {
            Some(number) if number == Signal::TSTP.as_raw() => signals::default_action(number),
            Some(_) => return Ok(true),
            None => {}
        }
        Ok(false)
    }

    fn postponed(&self, held: Error) {
        let _ = report(&held.into());
        print_stderr("inlock: The volume will be closed when it is no longer in use.");
    }
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

fn threads(args: &OpenArgs) -> usize {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    args.threads.map_or(cpus.min(4), usize::from)
}
