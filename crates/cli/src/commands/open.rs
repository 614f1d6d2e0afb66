//! `open`: makes a volume a block device or a file, and stays as long as it is one.
//!
//! The device is taken away when somebody closes it or a signal comes, never from under its users: a signal that finds it in use
//! waits for them, as `close --deferred` does. A name whose process died is taken over: a ublk device that waits gets its
//! process back, and nobody sees an error.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use inlock_engine as engine;
use inlock_engine::store::file::IoMode;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use serde_json::Value;

use crate::args::{OpenArgs, Place};
use crate::control::running::{self, HandedOut};
use crate::control::{Claim, Control, Facts, Running, metrics};
use crate::daemon::{self, Launcher};
use crate::exit::{self, Problem, Status, say};
use crate::signals::{self, Caught};
use crate::source::{self, Keys};
use crate::way::{self, Link, Via, Wanted, Way};

/// How often it is looked whether the device is still there, or free at last.
const OFTEN: Timespec = Timespec { tv_sec: 0, tv_nsec: 300_000_000 };

pub(crate) fn run(args: &OpenArgs) -> anyhow::Result<u8> {
    let launcher = match args.place {
        Place::Here => None,
        Place::Background => return daemon::launch(&args.source),
        Place::Launched => Some(Launcher::on_stdin()?),
    };
    let metrics = args.metrics.as_ref().map(|at| metrics::Listener::bind(at, false)).transpose()?;
    let mut claim = Claim::take_over(&args.name)?;
    let (file, socket, zones) = (claim.files().volume(), claim.files().nbd_socket(), claim.files().zones());
    let waiting = claim.left().and_then(way::waiting);
    let ordered = !args.read_only && source::has_zones(&args.source);
    let via = way::choose(waiting.map_or(args.via, |(via, _)| Some(via)), ordered)?;
    if args.source.flags.allow_discards && matches!(via, Via::Loop | Via::Fuse) {
        say(&format!("inlock: warning: discards have no way through --via {}", via.name()));
    }
    let keys = launcher.as_ref().map_or(Keys::Asked { stdin_taken: false }, Keys::Launcher);
    let mut opened = source::open(&args.source, !args.read_only, keys)?;
    daemon::protect();
    let about = opened.about.clone();
    let access = engine::Access { read_only: args.read_only, allow_discards: opened.flags.allow_discards };
    if matches!(via, Via::Ublk | Via::Nbd) {
        opened.past_the_cache();
    }
    let attached = opened.attach(IoMode::Auto, access)?;
    let device = Arc::clone(&attached.device);

    // From here on a signal means "take it away"; before, it just ends.
    let caught = signals::catch()?;
    let wanted = Wanted {
        name: args.name.as_str(),
        file: &file,
        socket: &socket,
        zones: &zones,
        threads: threads(args),
        waiting: waiting.map(|(_, number)| number),
        mark: claim.left().and_then(|left| left.mark).map_or_else(way::new_mark, Ok)?,
    };
    let mut facts = Facts {
        via: via.name().to_owned(),
        ring: if matches!(via, Via::Ublk | Via::Nbd) { "io_uring" } else { "plain" }.to_owned(),
        threads: wanted.threads,
        mark: Some(wanted.mark).filter(|_| matches!(via, Via::Ublk | Via::Nbd)),
        ..Facts::new(claim.name(), about, &device)
    };
    if let Some(left) = claim.left() {
        left.check_is_same_volume(&facts)?;
    }
    let way = Way::make(via, &device, &wanted)?;
    // From here on it is taken away again, whatever fails, or its facts stay as long as it does.
    let state = State { way, deferred: false, ended: None, gone: false };
    let open = Arc::new(Open { discards: access.allow_discards, via, state: Mutex::new(state) });
    let left = Arc::clone(&open);
    claim.leave_if(move || left.state().take_away().is_err());
    let node = open.state().way.node().to_owned();
    facts.node = Some(node.clone());
    let link = Link::make(args.name.as_str(), &node);
    let running = Running::new(facts, device, claim.files().clone(), Arc::clone(&open));
    let control = Control::start(claim, running, metrics)?;
    let _ = exit::print(format_args!("{}\n", node.display()));
    if let Some(launcher) = launcher {
        launcher.ready(&control.log())?;
    }
    daemon::notify_ready(&format!("{} is {}", args.name, node.display()));
    let ended = attached.check_writes(open.wait(&caught));
    daemon::notify_stopping();
    drop((link, attached));
    control.finish(&ended);
    ended.map(|()| 0)
}

fn given_up(way: &Way) -> anyhow::Error {
    let message =
        format!("What answers the requests of {} has failed; they wait for another process.", way.node().display());
    let hint = "`inlock open` with the same name and options lets them go on".to_owned();
    Problem::Told(message, Some(hint), Status::Wrong).into()
}

fn threads(args: &OpenArgs) -> usize {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    args.threads.map_or(cpus.min(4), usize::from)
}

/// An open volume.
struct Open {
    /// Whether the device was made with them.
    discards: bool,
    via: Via,
    state: Mutex<State>,
}

struct State {
    way: Way,
    /// It is to be taken away as soon as nobody uses it.
    deferred: bool,
    /// It was taken away, and how that went.
    ended: Option<anyhow::Result<()>>,
    gone: bool,
}

impl Drop for State {
    fn drop(&mut self) {
        if !self.gone {
            // Who would be told has been told of something else already.
            let _ = self.way.take_away(false);
        }
    }
}

impl Open {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until it was taken away, by whomever.
    fn wait(&self, caught: &Caught) -> anyhow::Result<()> {
        loop {
            let mut state = self.state();
            if state.ended.is_none() && (state.deferred || !state.way.is_there()) {
                let held = state.take_away();
                // Others may take better care of it; otherwise, still in use is no news.
                if held.is_err() && state.way.waits_for_another() {
                    return Err(given_up(&state.way));
                }
            }
            if let Some(ended) = state.ended.take() {
                return ended;
            }
            drop(state);
            let woken = caught.fd();
            match poll(&mut [PollFd::new(&woken, PollFlags::IN)], Some(&OFTEN)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("cannot wait for a signal"),
            }
            match caught.take() {
                Some(number) if number == Signal::TSTP.as_raw() => signals::default_action(number),
                Some(_) => self.end_by_signal(),
                None => {}
            }
        }
    }

    fn end_by_signal(&self) {
        let mut state = self.state();
        if state.ended.is_none()
            && let Err(held) = state.take_away()
        {
            let _ = exit::report(&held);
            say("inlock: it will be closed when that ends");
            state.deferred = true;
        }
    }
}

impl State {
    /// Takes it away; an error only where it is held. How else that went is remembered for whoever waits for the end.
    fn take_away(&mut self) -> anyhow::Result<()> {
        if self.gone {
            return Ok(());
        }
        match self.way.take_away(self.deferred) {
            Err(error) if matches!(error.downcast_ref(), Some(Problem::Held { .. })) => Err(error),
            outcome => {
                self.ended = Some(outcome);
                self.gone = true;
                Ok(())
            }
        }
    }
}

impl HandedOut for Arc<Open> {
    fn close(&self, request: &Value) -> anyhow::Result<()> {
        let mut state = self.state();
        if state.ended.is_some() {
            return Ok(());
        }
        let deferred = running::is_deferred(request);
        state.deferred |= deferred;
        match state.take_away() {
            Ok(()) => {
                signals::ask_to_end();
                Ok(())
            }
            Err(_) if deferred => Ok(()),
            held => held,
        }
    }

    fn check_discards(&self) -> anyhow::Result<()> {
        match self.via {
            Via::Loop | Via::Fuse => Err(Problem::refused(
                format!("Discards have no way through --via {}.", self.via.name()),
                "--via ublk and --via nbd have one",
            )),
            Via::Ublk | Via::Nbd if !self.discards => Err(Problem::refused(
                format!(
                    "{} was made without discards, and is told of them but once.",
                    self.state().way.node().display()
                ),
                "close the volume and open it with --allow-discards",
            )),
            Via::Ublk | Via::Nbd => Ok(()),
        }
    }

    fn resized(&self, len: u64) -> anyhow::Result<()> {
        self.state().way.update_len(len)
    }
}
