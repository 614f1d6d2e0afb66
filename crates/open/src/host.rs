//! The program around the library: it is asked for passphrases, and told what a user should know.

use std::fmt::Display;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use inlock_engine::store::asynchronous::AsyncStore;
use inlock_rbd_store::{RbdName, RbdStore};
use zeroize::Zeroizing;

use crate::error::{Error, ErrorKind, Result};
use crate::settings::Settings;

/// Importance of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Level {
    /// The user should do something, or know of a danger.
    Warning,
    /// Something is left incomplete; the error that is the reason follows.
    Failure,
    /// An answer to the user: a wrong passphrase, the words of a helper.
    Notice,
    /// What a user who wants to know more sees.
    Detail,
    /// A step, for those who search for a fault. It has no secrets.
    Debug,
    /// The metadata of a LUKS2 header as JSON.
    Metadata,
}

/// A passphrase or key on the input of the program, which no person types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Input {
    /// The first line, or `size` bytes of it.
    Line {
        /// Bytes to read.
        size: Option<u64>,
        /// The user has asked to type the passphrase twice.
        verify: bool,
    },
    /// `size` bytes from `offset` on, or all to the end.
    All {
        /// Bytes to skip.
        offset: u64,
        /// Bytes to read.
        size: Option<u64>,
    },
    /// The line with a PIN of a token.
    Pin,
}

/// The program around the library. Each method has a default for a program without users.
pub trait Host: Send + Sync {
    /// Takes a message: one line, without control characters removed. Does not block for long.
    fn tell(&self, level: Level, text: &dyn Display) {
        let _ = (level, text);
    }

    /// Whether messages of a level are wanted, as far as they take work.
    fn is_wanted(&self, level: Level) -> bool {
        let _ = level;
        false
    }

    /// Whether a person can be asked, perhaps more than once.
    fn can_ask(&self) -> bool {
        false
    }

    /// Asks a person for a passphrase or a PIN. `prompt` ends with a colon and a space.
    fn ask(&self, prompt: &str, timeout: Option<Duration>) -> Result<Zeroizing<Vec<u8>>> {
        let _ = timeout;
        Err(Error::new(ErrorKind::NoInput, format!("Nobody can be asked: {}", prompt.trim_end_matches([':', ' ']))))
    }

    /// Reads the input of the program, if nobody can be asked.
    fn read(&self, input: Input) -> Result<Zeroizing<Vec<u8>>> {
        let _ = input;
        Err(Error::new(ErrorKind::NoInput, "There is no passphrase."))
    }

    /// Starts to catch what interrupts the program, while a helper runs. `None`: nothing is caught.
    fn interruptions(&self) -> Result<Option<Box<dyn Interruptions>>> {
        Ok(None)
    }

    /// Lets a signal that ends the program run `act` first, until what is returned is dropped. By then `act` has run to
    /// its end, or never runs.
    fn before_end(&self, act: Box<dyn FnOnce() + Send>) -> Result<Box<dyn Send>> {
        drop(act);
        Ok(Box::new(()))
    }
}

/// Signals, which are caught until it is dropped.
pub trait Interruptions {
    /// Returns a descriptor that is readable after a signal.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Returns the signal that is to end the program.
    fn take(&self) -> Option<i32>;
}

/// A program without users: it asks nobody and prints nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Host for Silent {}

/// The program, its settings, and the remote devices that were opened for it. Clones are the same context.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

struct Inner {
    host: Arc<dyn Host>,
    settings: Settings,
    opened: Mutex<Vec<Weak<dyn AsyncStore>>>,
    /// Those of `opened` that are images to write to.
    images: Mutex<Vec<Weak<RbdStore>>>,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("settings", &self.0.settings).finish_non_exhaustive()
    }
}

impl Context {
    /// Returns a context of a program.
    pub fn new(host: impl Host + 'static, settings: Settings) -> Self {
        Self(Arc::new(Inner { host: Arc::new(host), settings, opened: Mutex::default(), images: Mutex::default() }))
    }

    /// Returns a context of the same program and settings, whose devices [`Context::abort`] gives up alone.
    #[must_use]
    pub fn separate(&self) -> Self {
        let Inner { host, settings, .. } = &*self.0;
        Self(Arc::new(Inner {
            host: Arc::clone(host),
            settings: settings.clone(),
            opened: Mutex::default(),
            images: Mutex::default(),
        }))
    }

    /// Returns the program.
    pub fn host(&self) -> &dyn Host {
        &*self.0.host
    }

    /// Returns the settings.
    pub fn settings(&self) -> &Settings {
        &self.0.settings
    }

    /// Warns the user.
    pub fn warn(&self, text: impl Display) {
        self.host().tell(Level::Warning, &text);
    }

    /// Tells the user that something is left incomplete.
    pub(crate) fn failure(&self, text: impl Display) {
        self.host().tell(Level::Failure, &text);
    }

    /// Tells the user something.
    pub(crate) fn notice(&self, text: impl Display) {
        self.host().tell(Level::Notice, &text);
    }

    /// Tells a detail.
    pub(crate) fn detail(&self, text: impl Display) {
        self.host().tell(Level::Detail, &text);
    }

    /// Tells a step.
    pub(crate) fn debug(&self, text: impl Display) {
        self.host().tell(Level::Debug, &text);
    }

    /// Keeps a store for [`Context::abort`].
    pub(crate) fn remember(&self, store: Arc<dyn AsyncStore>) {
        let mut opened = self.0.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.retain(|known| known.strong_count() > 0);
        opened.push(Arc::downgrade(&store));
    }

    /// Returns an image to write to. It is opened unless it is open already: a program has its lock once.
    pub(crate) fn image(&self, name: &RbdName, open: impl FnOnce() -> Result<RbdStore>) -> Result<Arc<RbdStore>> {
        let mut images = self.0.images.lock().unwrap_or_else(PoisonError::into_inner);
        images.retain(|known| known.strong_count() > 0);
        let known = images.iter().filter_map(Weak::upgrade).find(|image| image.name().as_str() == name.as_str());
        let image = known.map_or_else(|| open().map(Arc::new), Ok)?;
        images.push(Arc::downgrade(&image));
        Ok(image)
    }

    /// Fails what waits for the exports and images of this context, and everything later. One may be behind another
    /// store.
    pub fn abort(&self) {
        let opened = self.0.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.iter().filter_map(Weak::upgrade).for_each(|store| store.abort());
    }
}

/// A program that keeps the warnings it is told.
#[cfg(test)]
#[derive(Clone, Default)]
pub(crate) struct Warned(Arc<Mutex<Vec<String>>>);

#[cfg(test)]
impl Host for Warned {
    fn tell(&self, level: Level, text: &dyn Display) {
        if level == Level::Warning {
            self.0.lock().unwrap().push(text.to_string());
        }
    }
}

#[cfg(test)]
impl Warned {
    pub(crate) fn context(&self) -> Context {
        Context::new(self.clone(), Settings::default())
    }

    /// Returns the warnings since the last call.
    pub(crate) fn heard(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}
