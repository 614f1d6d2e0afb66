//! Long transfers of a store that lives in memory: copy and cipher in one pass, on a thread beside the worker.
//!
//! Such a store never waits for a disk; a transfer is a copy, which some processor has to make. The kernel's own threads
//! would make it as well, but of the whole piece, and the cipher would then fetch all of it from a far cache again. The
//! carrier goes strip by strip, so that every data unit is encrypted or decrypted while it is near. The worker receives
//! and sends meanwhile. Nothing is allocated for a request; when the carrier has enough, the worker goes by the ring.

use crate::buffer::Buffer;
use crate::crypt_mapping::{CryptMapping, MappedRange};
use crate::freeze::SCRUB_CALL;
use crate::store::{self, BackingStore};
use inlock_cipher::scrub_stack;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes between two cipher calls: half of a second-level cache that is small by today's standards, and enough units for
/// every kernel to run at its full speed.
pub(crate) const STRIP: usize = 128 << 10;
/// Pieces that a carrier has at a time.
const MAX_LOADS: usize = 64;

/// A piece of a request, with the whole data units that it moves.
pub(crate) struct Load {
    pub(crate) target: Arc<CryptMapping>,
    pub(crate) store: Arc<dyn BackingStore>,
    pub(crate) mapped: MappedRange,
    /// Room for the aligned range, and for a write its plaintext.
    pub(crate) buffer: Buffer,
    pub(crate) writes: bool,
    /// Who is told when it is done, and the name of the piece there.
    pub(crate) to: Arc<dyn Carried>,
    pub(crate) token: u64,
}

/// Who is told that a load is done.
pub(crate) trait Carried: Send + Sync {
    /// The load with `token` is done.
    fn carried(&self, token: u64, delivery: Delivery);
}

/// What a carrier gives back.
#[derive(Debug)]
pub(crate) struct Delivery {
    /// After a read the plaintext of the aligned range, unless it failed.
    pub(crate) buffer: Buffer,
    pub(crate) result: Result<(), Errno>,
    /// Cipher calls, and the time that they took.
    pub(crate) calls: u32,
    pub(crate) cipher: Duration,
}

/// A thread that carries loads, one after the other.
pub(crate) struct Carrier {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// There is a load, or nothing will come any more.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    loads: VecDeque<Load>,
    waiting: bool,
    stopping: bool,
}

impl Carrier {
    /// Starts the thread, which goes by strips of `strip` bytes, or of one data unit where that is longer.
    pub(crate) fn start(strip: usize) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        shared.state().loads.reserve(MAX_LOADS);
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("inlock-carrier".into()).spawn(move || of_thread.work(strip))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Takes `load`, or gives it back when there is no room.
    #[allow(clippy::result_large_err)] // It moves once either way.
    pub(crate) fn post(&self, load: Load) -> Result<(), Load> {
        let mut state = self.shared.state();
        if state.loads.len() == MAX_LOADS {
            return Err(load);
        }
        state.loads.push_back(load);
        if state.waiting {
            self.shared.changed.notify_one();
        }
        Ok(())
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        let abandoned = {
            let mut state = self.shared.state();
            state.stopping = true;
            std::mem::take(&mut state.loads)
        };
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // It catches what a load panics with, so it has nothing to say.
            let _ = thread.join();
        }
        drop(abandoned);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, strip: usize) {
        while let Some(mut load) = self.next() {
            let (mut calls, mut cipher) = (0, Duration::ZERO);
            let carry = AssertUnwindSafe(|| load.carry(strip, &mut calls, &mut cipher));
            // A bug that ends this thread would leave every later request unanswered; one that fails is seen.
            let result = std::panic::catch_unwind(carry).unwrap_or(Err(Errno::IO));
            scrub_stack::<SCRUB_CALL>();
            let Load { buffer, to, token, target, .. } = load;
            // Before the worker hears of it: it may then say that nobody has the target any more.
            drop(target);
            to.carried(token, Delivery { buffer, result, calls, cipher });
        }
    }

    fn next(&self) -> Option<Load> {
        let mut state = self.state();
        loop {
            if state.stopping {
                return None;
            }
            if let Some(load) = state.loads.pop_front() {
                return Some(load);
            }
            state.waiting = true;
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.waiting = false;
        }
    }
}

impl Load {
    fn carry(&mut self, strip: usize, calls: &mut u32, cipher: &mut Duration) -> Result<(), Errno> {
        let Self { target, store, mapped, buffer, writes, .. } = self;
        let strip_len = strip.next_multiple_of(mapped.unit_len);
        let encrypted = mapped.unit_len > 1;
        for (number, strip) in buffer.data_mut()[..mapped.aligned_len].chunks_mut(strip_len).enumerate() {
            let at = number * strip_len;
            let offset = mapped.store_offset + at as u64;
            if !*writes {
                store::read_all(&**store, strip, offset)?;
            }
            let started = Instant::now();
            if *writes {
                target.encrypt_in_place(mapped, at, strip);
            } else {
                target.decrypt_in_place(mapped, at, strip);
            }
            if encrypted {
                *calls += 1;
                *cipher += started.elapsed();
            }
            if *writes {
                store::write_all(&**store, strip, offset)?;
            }
        }
        Ok(())
    }
}
