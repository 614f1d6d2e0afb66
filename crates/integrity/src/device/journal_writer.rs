//! The thread that empties the journal, so that those who write need not.

use super::IntegrityDevice;
use inlock_engine::Errno;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Orders to the thread. Without one, writers empty the journal themselves.
#[derive(Default)]
pub(super) struct Orders {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// A thread follows the orders.
    is_followed: bool,
    /// The journal is to be emptied.
    is_asked: bool,
    /// The thread is to end.
    is_ended: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    EmptyJournal,
    End,
}

impl Orders {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the thread, if there is one, to empty the journal.
    pub(super) fn request(&self) {
        let mut state = self.state();
        if state.is_followed && !std::mem::replace(&mut state.is_asked, true) {
            self.changed.notify_one();
        }
    }

    /// Makes the journal count on a thread that there is not.
    #[cfg(test)]
    pub(super) fn pretend_followed(&self) {
        self.state().is_followed = true;
    }

    /// Whether a thread follows the orders.
    pub(super) fn is_followed(&self) -> bool {
        self.state().is_followed
    }

    /// Blocks until there is an order, and takes it.
    fn take(&self) -> Order {
        let state = self.state();
        let waiting = |state: &mut State| !state.is_asked && !state.is_ended;
        let mut state = self.changed.wait_while(state, waiting).unwrap_or_else(PoisonError::into_inner);
        state.is_asked = false;
        if state.is_ended { Order::End } else { Order::EmptyJournal }
    }
}

/// A thread that writes sections of the journal and copies them to their places while other threads write to the
/// device, which else do it themselves whenever half of the journal is full. A device has one at most.
///
/// Dropping it ends the thread; what is in the journal stays there.
pub struct JournalWriter {
    device: Arc<IntegrityDevice>,
    thread: Option<JoinHandle<()>>,
}

impl JournalWriter {
    /// Starts the thread. `None`: the device has no journal that it writes, or has a thread already.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub fn start(device: Arc<IntegrityDevice>) -> io::Result<Option<Self>> {
        let Some(journal) = &device.journal else { return Ok(None) };
        if std::mem::replace(&mut journal.orders.state().is_followed, true) {
            return Ok(None);
        }
        // Dropped if the thread cannot be started.
        let mut this = Self { device: Arc::clone(&device), thread: None };
        let thread = std::thread::Builder::new().name("inlock-journal".to_owned());
        this.thread = Some(thread.spawn(move || device.follow_orders())?);
        Ok(Some(this))
    }
}

impl Drop for JournalWriter {
    fn drop(&mut self) {
        let Some(journal) = &self.device.journal else { return };
        let mut state = journal.orders.state();
        (state.is_followed, state.is_ended) = (false, true);
        drop(state);
        journal.orders.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic poisons no state of the journal that is read without a check of the device.
            let _ = thread.join();
        }
        *journal.orders.state() = State::default();
    }
}

impl IntegrityDevice {
    fn follow_orders(&self) {
        let Some(journal) = &self.journal else { return };
        while journal.orders.take() == Order::EmptyJournal {
            // A failure is that of the next flush, and of all later writes.
            let _: Result<(), Errno> = self.core.note(journal.follow_order(&self.core));
        }
    }
}
