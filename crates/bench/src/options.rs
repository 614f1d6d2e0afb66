//! Options of a run: subject, duration, directory.

use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

/// Subject of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Cipher kernels.
    Cipher,
    /// A cipher engine against the software, by request size.
    Engine,
    /// I/O path of one worker, without a client.
    Path,
    /// Completion latency, with idle and with busy CPUs.
    Latency,
    /// Inlock's NBD server and others.
    Compare,
    /// Path, latency and compare.
    All,
}

impl Subject {
    /// All subjects, in the order of the documentation.
    pub const ALL: [Self; 6] = [Self::Cipher, Self::Engine, Self::Path, Self::Latency, Self::Compare, Self::All];

    /// Returns the name of the subject on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cipher => "cipher",
            Self::Engine => "engine",
            Self::Path => "path",
            Self::Latency => "latency",
            Self::Compare => "compare",
            Self::All => "all",
        }
    }
}

/// Writes a piece of the results to where the caller wants it.
pub type Print<'a> = dyn FnMut(&dyn Display) -> anyhow::Result<()> + 'a;

/// Options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Subject of the run.
    pub subject: Subject,
    /// Results as JSON instead of tables.
    pub json: bool,
    /// Seconds instead of minutes.
    pub quick: bool,
    /// A progress bar on standard error, if that is a terminal.
    pub progress: bool,
    /// Slices for each case; `None`: the default of the subject.
    pub rounds: Option<usize>,
    /// Length of a slice; `None`: the default of the subject.
    pub slice: Option<Duration>,
    /// Directory for images.
    pub dir: PathBuf,
}

impl Options {
    /// Returns a full run of `subject`, printed as tables, with images in [`default_dir`].
    pub fn new(subject: Subject) -> Self {
        Self { subject, json: false, quick: false, progress: true, rounds: None, slice: None, dir: default_dir() }
    }

    /// Rounds and slice length, from defaults in milliseconds: those of a full run and of a quick one.
    pub(crate) fn rounds_and_slice(&self, full: (usize, u64), quick: (usize, u64)) -> (usize, Duration) {
        let (rounds, millis) = if self.quick { quick } else { full };
        (self.rounds.unwrap_or(rounds), self.slice.unwrap_or(Duration::from_millis(millis)))
    }
}

/// Returns `/dev/shm` if it exists, so that results show the software and not a disk; otherwise the directory for
/// temporary files.
pub fn default_dir() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    if memory.is_dir() { memory } else { std::env::temp_dir() }
}
