//! Catching signals: at the passphrase prompt and while serving.
//!
//! Handlers are installed once, since removing one would race, and run a signal's default action unless it is caught. A
//! signal that the parent set to be ignored stays ignored, except where it is a request ([`Caught::hear`]). A caught
//! signal is stored and wakes the thread that polls.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::thread::{self, JoinHandle};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Signal;
use signal_hook::{flag, low_level};

/// Signals that terminate or, at a terminal, stop a program.
const SIGNALS: [Signal; 5] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::TSTP];

struct Handlers {
    /// Whether signals have their default effect.
    pass: Arc<AtomicBool>,
    last: Arc<AtomicUsize>,
    wake: UnixStream,
    sender: UnixStream,
    /// Held by the only catcher.
    catcher: Mutex<()>,
}

static HANDLERS: OnceLock<Handlers> = OnceLock::new();

/// Lets a write over the limit of file sizes fail with EFBIG; by default SIGXFSZ terminates the process. A handler,
/// unlike an ignored signal, is reset in child processes.
pub(crate) fn survive_size_limit() {
    // If this fails, the default remains.
    let _ = flag::register(Signal::XFSZ.as_raw(), Arc::default());
}

/// Catches signals until dropped.
pub(crate) struct Caught {
    handlers: &'static Handlers,
    _catcher: MutexGuard<'static, ()>,
}

/// Starts to catch signals.
pub(crate) fn catch() -> io::Result<Caught> {
    if HANDLERS.get().is_none() {
        // Two threads may install handlers here. Those of the loser stay inert, since its flag stays false.
        let made = install()?;
        let _ = HANDLERS.set(made);
    }
    let handlers = HANDLERS.get().ok_or_else(|| io::Error::other("signal handlers are missing"))?;
    let catcher = handlers.catcher.lock().unwrap_or_else(PoisonError::into_inner);
    handlers.last.store(0, Ordering::SeqCst);
    handlers.pass.store(false, Ordering::SeqCst);
    Ok(Caught { handlers, _catcher: catcher })
}

fn install() -> io::Result<Handlers> {
    let pass = Arc::new(AtomicBool::new(false));
    let last = Arc::new(AtomicUsize::new(0));
    let (wake, sender) = UnixStream::pair()?;
    wake.set_nonblocking(true)?;
    sender.set_nonblocking(true)?;
    let ignored = ignored();
    let handlers = Handlers { pass, last, wake, sender, catcher: Mutex::new(()) };
    for number in SIGNALS.map(Signal::as_raw).into_iter().filter(|number| !ignores(ignored, *number)) {
        // Handlers run in the order of registration.
        flag::register_conditional_default(number, Arc::clone(&handlers.pass))?;
        handlers.register(number)?;
    }
    Ok(handlers)
}

impl Handlers {
    /// Stores the signal, and wakes the thread that polls.
    fn register(&self, number: i32) -> io::Result<()> {
        flag::register_usize(number, Arc::clone(&self.last), number as usize)?;
        low_level::pipe::register(number, self.sender.try_clone()?).map(drop)
    }
}

/// Returns the signals that the parent set to be ignored, as `nohup` does: signal 1 is bit 0.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

fn ignores(mask: u64, number: i32) -> bool {
    u32::try_from(number - 1).is_ok_and(|bit| mask.checked_shr(bit).is_some_and(|rest| rest & 1 == 1))
}

impl Caught {
    /// Catches a signal even if the parent set it to be ignored, as `nohup` does: it asks for something here, and does
    /// not terminate.
    pub(crate) fn hear(&self, signal: Signal) -> io::Result<()> {
        let number = signal.as_raw();
        // A signal with a handler is not ignored.
        if ignores(ignored(), number) { self.handlers.register(number) } else { Ok(()) }
    }

    /// Returns the last signal since the last call.
    pub(crate) fn take(&self) -> Option<i32> {
        let mut drain = [0; 64];
        while matches!((&self.handlers.wake).read(&mut drain), Ok(n) if n > 0) {}
        i32::try_from(self.handlers.last.swap(0, Ordering::SeqCst)).ok().filter(|number| *number != 0)
    }

    /// Returns a descriptor that is readable after a signal.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.handlers.wake.as_fd()
    }
}

impl Drop for Caught {
    fn drop(&mut self) {
        self.handlers.pass.store(true, Ordering::SeqCst);
    }
}

/// Makes the thread that catches signals shut down, as SIGTERM does, even if that is ignored.
pub(crate) fn request_shutdown() {
    if let Some(handlers) = HANDLERS.get() {
        handlers.last.store(Signal::TERM.as_raw() as usize, Ordering::SeqCst);
        let _ = (&handlers.sender).write(&[0]);
    }
}

/// Runs the default action of a signal, which for most terminates the process.
pub(crate) fn default_action(number: i32) {
    let _ = low_level::emulate_default_handler(number);
}

/// Runs a function before a signal terminates the process, until dropped.
pub(crate) struct Cleanup {
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

/// Runs `act` before a signal terminates the process, on a thread of its own: the others may wait for a device. Until
/// it is dropped, no one else can catch signals.
pub(crate) fn clean_up_before(act: impl FnOnce() + Send + 'static) -> io::Result<Cleanup> {
    let (stop, stopped) = UnixStream::pair()?;
    let (started, wait) = mpsc::channel::<io::Result<()>>();
    let watch = move || {
        let caught = catch();
        let result = caught.as_ref().map_or_else(|error| Err(error.kind().into()), |_| Ok(()));
        let _ = started.send(result);
        if let Ok(number) = caught.and_then(|caught| caught.wait_until(&stopped)) {
            act();
            default_action(number);
        }
    };
    let thread = thread::Builder::new().name("inlock-signals".to_owned()).spawn(watch)?;
    let cleanup = Cleanup { stop: Some(stop), thread: Some(thread) };
    wait.recv().map_err(io::Error::other)??;
    Ok(cleanup)
}

impl Caught {
    /// Returns the signal that is to terminate the process. Fails when `stopped` is closed first.
    fn wait_until(&self, stopped: &UnixStream) -> io::Result<i32> {
        loop {
            let woken = self.fd();
            match poll(&mut [PollFd::new(&woken, PollFlags::IN), PollFd::new(stopped, PollFlags::IN)], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            match self.take() {
                Some(number) if number == Signal::TSTP.as_raw() => default_action(number),
                Some(number) => return Ok(number),
                None => {}
            }
            let mut end = [PollFd::new(stopped, PollFlags::IN)];
            if poll(&mut end, Some(&Timespec::default())).is_ok_and(|count| count > 0) {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
        }
    }
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signal_1_is_lowest_bit_of_mask() {
        assert!(ignores(1, 1) && !ignores(1, 2));
        assert!(ignores(0x4001, 15) && !ignores(0x4001, 14));
        assert!(!ignores(u64::MAX, 0) && !ignores(u64::MAX, -1) && !ignores(u64::MAX, 65));
    }
}
