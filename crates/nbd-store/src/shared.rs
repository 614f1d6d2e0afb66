//! State that the store, its thread, and the thread that connects have in common.

use crate::dial::{Dialed, dial};
use crate::error::OpenError;
use crate::job::Job;
use crate::options::StoreOptions;
use crate::tls::Tls;
use crate::uri::NbdUri;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// State that the store shares with its thread, and with the one that connects.
pub(crate) struct Shared {
    pub(crate) uri: NbdUri,
    pub(crate) options: StoreOptions,
    pub(crate) tls: Option<Tls>,
    inbox: Mutex<Inbox>,
    waker: OwnedFd,
    /// Whether the server can be asked for extents, and answers.
    has_extents: AtomicBool,
}

/// Messages to the store's thread.
#[derive(Default)]
pub(crate) struct Inbox {
    pub(crate) jobs: VecDeque<Job>,
    pub(crate) dialed: Option<Result<Vec<Dialed>, OpenError>>,
    pub(crate) aborted: bool,
    pub(crate) closed: bool,
}

impl Shared {
    pub(crate) fn new(uri: NbdUri, options: StoreOptions, tls: Option<Tls>, waker: OwnedFd) -> Self {
        Self { uri, options, tls, inbox: Mutex::default(), waker, has_extents: AtomicBool::new(false) }
    }

    pub(crate) fn has_extents(&self) -> bool {
        self.has_extents.load(Ordering::Relaxed)
    }

    pub(crate) fn set_extents(&self, has_extents: bool) {
        self.has_extents.store(has_extents, Ordering::Relaxed);
    }

    /// Makes every request fail.
    pub(crate) fn abort(&self) {
        self.inbox().aborted = true;
        self.wake();
    }

    /// Ends the thread.
    pub(crate) fn close(&self) {
        self.inbox().closed = true;
        self.wake();
    }

    pub(crate) fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the current or the next wait of the thread.
    fn wake(&self) {
        // The counter would only overflow after 2^64 - 1 unread wakes, and is readable then.
        let _ = rustix::io::write(&self.waker, &1u64.to_ne_bytes());
    }

    /// Returns the descriptor that is readable when the thread is to wake up.
    pub(crate) fn waker(&self) -> &OwnedFd {
        &self.waker
    }

    pub(crate) fn clear_waker(&self) {
        let _ = rustix::io::read(&self.waker, &mut [0u8; 8]);
    }

    /// Starts a thread that connects. The result comes into the inbox.
    pub(crate) fn connect(self: &Arc<Self>) {
        let shared = Arc::clone(self);
        let connect = move || {
            let dialed = dial(&shared.uri, &shared.options, shared.tls.as_ref());
            shared.inbox().dialed = Some(dialed);
            shared.wake();
        };
        if let Err(source) = std::thread::Builder::new().name("inlock-dial".to_owned()).spawn(connect) {
            let error = OpenError::Unreachable { address: self.uri.address.to_string(), source };
            self.inbox().dialed = Some(Err(error));
            self.wake();
        }
    }

    /// Reports an event to a person.
    pub(crate) fn notify(&self, event: &str) {
        if let Some(notify) = self.options.notify {
            notify(self.uri.as_str(), event);
        }
    }

    /// Passes a job to the thread.
    pub(crate) fn push(&self, job: Job) {
        let mut inbox = self.inbox();
        if inbox.closed {
            // The thread has ended: a dropped job has failed.
            return;
        }
        let is_first = inbox.jobs.is_empty();
        inbox.jobs.push_back(job);
        drop(inbox);
        if is_first {
            self.wake();
        }
    }
}
