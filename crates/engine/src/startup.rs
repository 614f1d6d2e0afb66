//! State with which a process was started, recorded before the runtime changes it: the runtime opens /dev/null in
//! place of a standard output that is closed, and what is written there is lost without an error.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};

static STDOUT_WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Whether standard output was closed when the process was started. Always false where programs are not of ELF.
pub fn stdout_was_closed() -> bool {
    STDOUT_WAS_CLOSED.load(Ordering::Relaxed)
}

extern "C" fn look() {
    // SAFETY: the call takes numbers only, and changes nothing.
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    STDOUT_WAS_CLOSED.store(flags < 0, Ordering::Relaxed);
}

// SAFETY: the section is a list of functions, which the C library calls once each before `main`, with arguments that
// `look` does not take.
#[used]
#[cfg(target_os = "linux")]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = look;
