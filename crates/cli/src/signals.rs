//! Catching signals for a while: at the passphrase prompt and while serving.
//!
//! A handler cannot be taken away again without a race, so handlers are installed once and pass a signal on to its default
//! action as long as nobody catches. What the parent had this program ignore stays ignored. A caught signal is remembered and wakes whoever polls.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::process::Signal;
use signal_hook::{flag, low_level};

/// The signals that end a program or, at a terminal, stop it.
const SIGNALS: [Signal; 5] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::TSTP];

struct Handlers {
    /// Whether signals have their default effect.
    pass: Arc<AtomicBool>,
    last: Arc<AtomicUsize>,
    wake: UnixStream,
    sender: UnixStream,
    /// One catcher at a time.
    turn: Mutex<()>,
}

static HANDLERS: OnceLock<Handlers> = OnceLock::new();

/// Has a write over the limit of file sizes fail with EFBIG, which is told as an error of that write; by default the
/// signal for it ends the process. Programs that are started from here find the default again, as they would not if it
/// were ignored.
pub(crate) fn survive_size_limit() {
    // Where this fails the default stays.
    let _ = flag::register(Signal::XFSZ.as_raw(), Arc::default());
}

/// Signals are caught until this is dropped.
pub(crate) struct Caught {
    handlers: &'static Handlers,
    _turn: MutexGuard<'static, ()>,
}

/// Begins to catch.
pub(crate) fn catch() -> io::Result<Caught> {
    if HANDLERS.get().is_none() {
        // Two threads that race here install twice, which only makes the loser's handlers inert: its flag stays false.
        let made = install()?;
        let _ = HANDLERS.set(made);
    }
    let handlers = HANDLERS.get().ok_or_else(|| io::Error::other("signal handlers are missing"))?;
    let turn = handlers.turn.lock().unwrap_or_else(PoisonError::into_inner);
    handlers.last.store(0, Ordering::SeqCst);
    handlers.pass.store(false, Ordering::SeqCst);
    Ok(Caught { handlers, _turn: turn })
}

fn install() -> io::Result<Handlers> {
    let pass = Arc::new(AtomicBool::new(false));
    let last = Arc::new(AtomicUsize::new(0));
    let (wake, sender) = UnixStream::pair()?;
    wake.set_nonblocking(true)?;
    sender.set_nonblocking(true)?;
    let ignored = ignored();
    for number in SIGNALS.map(Signal::as_raw).into_iter().filter(|number| !ignores(ignored, *number)) {
        // Actions run in the order of registration.
        flag::register_conditional_default(number, Arc::clone(&pass))?;
        flag::register_usize(number, Arc::clone(&last), number as usize)?;
        low_level::pipe::register(number, sender.try_clone()?)?;
    }
    Ok(Handlers { pass, last, wake, sender, turn: Mutex::new(()) })
}

/// The signals that this program was told to ignore by whoever started it, as `nohup` does: a set of bits from bit 0.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

fn ignores(mask: u64, number: i32) -> bool {
    u32::try_from(number - 1).is_ok_and(|bit| mask.checked_shr(bit).is_some_and(|rest| rest & 1 == 1))
}

impl Caught {
    /// The signal that came since the last call.
    pub(crate) fn take(&self) -> Option<i32> {
        let mut drain = [0; 64];
        while matches!((&self.handlers.wake).read(&mut drain), Ok(n) if n > 0) {}
        i32::try_from(self.handlers.last.swap(0, Ordering::SeqCst)).ok().filter(|number| *number != 0)
    }

    /// Becomes readable when a signal comes.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.handlers.wake.as_fd()
    }
}

impl Drop for Caught {
    fn drop(&mut self) {
        self.handlers.pass.store(true, Ordering::SeqCst);
    }
}

/// Has whoever catches signals end, as SIGTERM does, also where the parent had this program ignore that.
pub(crate) fn ask_to_end() {
    if let Some(handlers) = HANDLERS.get() {
        handlers.last.store(Signal::TERM.as_raw() as usize, Ordering::SeqCst);
        let _ = (&handlers.sender).write(&[0]);
    }
}

/// Lets a signal do what it does to a program that does not catch it: for most, end it.
pub(crate) fn default_action(number: i32) {
    let _ = low_level::emulate_default_handler(number);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_has_signal_1_at_its_lowest_bit() {
        assert!(ignores(1, 1) && !ignores(1, 2));
        assert!(ignores(0x4001, 15) && !ignores(0x4001, 14));
        assert!(!ignores(u64::MAX, 0) && !ignores(u64::MAX, -1) && !ignores(u64::MAX, 65));
    }
}
