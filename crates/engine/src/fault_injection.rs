//! Faults for tests: an operation on a store's file descriptor that goes through io_uring fails, is cut short or is
//! late. A test's own store puts the same faults around plain calls with [`around`].
//!
//! Only with the feature `fault-injection`, which no shipped program has.

use crate::errno::Errno;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, PoisonError, RwLock};

/// Operation on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Read.
    Read,
    /// Write; durable: with `RWF_DSYNC`.
    Write {
        /// Force unit access.
        durable: bool,
    },
    /// `fdatasync`.
    Sync,
    /// Punch a hole, or discard.
    Discard,
}

/// Fault of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails, and nothing was done.
    Errno(Errno),
    /// It is carried out, and reported as failed.
    LateErrno(Errno),
    /// The first half is transferred. A call that transfers nothing is carried out.
    Short,
    /// Nothing is transferred, as at the end of a file.
    Nothing,
    /// It is carried out, and its completion is held back for so many turns of the ring. A plain call is carried out.
    Delay(u32),
}

/// Decides what becomes of each call on a file.
pub trait Injector: Send + Sync {
    /// `None`: the call is carried out.
    fn decide(&self, call: Call) -> Option<Fault>;
}

impl<F: Fn(Call) -> Option<Fault> + Send + Sync> Injector for F {
    fn decide(&self, call: Call) -> Option<Fault> {
        self(call)
    }
}

static INJECTORS: RwLock<Vec<(RawFd, Arc<dyn Injector>)>> = RwLock::new(Vec::new());

/// Keeps an injector at work on a file descriptor. Drop it before the file: another thread may get the descriptor's
/// number as soon as the file is closed.
pub struct Injection {
    fd: RawFd,
    injector: Arc<dyn Injector>,
}

impl std::fmt::Debug for Injection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Injection").field("fd", &self.fd).finish_non_exhaustive()
    }
}

/// Has `injector` decide about each operation on `file`, in the rings of all threads, until the result is dropped.
pub fn inject(file: BorrowedFd<'_>, injector: Arc<dyn Injector>) -> Injection {
    let fd = file.as_raw_fd();
    INJECTORS.write().unwrap_or_else(PoisonError::into_inner).push((fd, Arc::clone(&injector)));
    Injection { fd, injector }
}

impl Drop for Injection {
    fn drop(&mut self) {
        let ours =
            |(fd, injector): &(RawFd, Arc<dyn Injector>)| *fd == self.fd && Arc::ptr_eq(injector, &self.injector);
        INJECTORS.write().unwrap_or_else(PoisonError::into_inner).retain(|entry| !ours(entry));
    }
}

/// Returns the fault of a call on `fd`, if any.
pub(crate) fn decide(fd: RawFd, call: Call) -> Option<Fault> {
    let injectors = INJECTORS.read().unwrap_or_else(PoisonError::into_inner);
    let (_, injector) = injectors.iter().find(|(other, _)| *other == fd)?;
    let injector = Arc::clone(injector);
    // It may block, as a slow disk does, while other files go on.
    drop(injectors);
    injector.decide(call)
}

/// Carries out a plain call of `len` bytes, unless `injector` decides otherwise. `carry_out` is given the number of
/// bytes.
///
/// # Errors
///
/// The errors of `carry_out`, and the injected ones.
pub fn around(
    injector: &dyn Injector,
    call: Call,
    len: usize,
    carry_out: impl FnOnce(usize) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    match injector.decide(call) {
        None | Some(Fault::Delay(_)) => carry_out(len),
        Some(Fault::Errno(errno)) => Err(errno),
        Some(Fault::LateErrno(errno)) => carry_out(len).and(Err(errno)),
        Some(Fault::Short) => carry_out(len.div_ceil(2)),
        Some(Fault::Nothing) => Ok(0),
    }
}

#[cfg(test)]
mod tests {
    use super::{Call, Fault, decide, inject};
    use std::fs::File;
    use std::os::fd::{AsFd, AsRawFd};
    use std::sync::Arc;

    /// As after a close, when another file has got the number.
    #[test]
    fn dropped_injection_leaves_another_on_the_same_number() {
        let file = File::open("/dev/zero").expect("the device");
        let fd = file.as_raw_fd();
        let old = inject(file.as_fd(), Arc::new(|_| Some(Fault::Short)));
        let new = inject(file.as_fd(), Arc::new(|_| Some(Fault::Nothing)));
        drop(old);
        assert_eq!(decide(fd, Call::Read), Some(Fault::Nothing));
        drop(new);
        assert_eq!(decide(fd, Call::Read), None);
    }
}
