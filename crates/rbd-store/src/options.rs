//! Options of a store, and the facts of its image.

use std::path::PathBuf;
use std::time::Duration;

/// How long to wait for a cluster, and how to treat another client's lock.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Longest time for connecting, opening the image and taking its lock.
    pub connect_timeout: Duration,
    /// Longest time for an operation.
    pub store_timeout: Duration,
    /// Takes the image's lock from another client, which then cannot use the image any longer.
    pub steal_lock: bool,
    /// Directory of librados and librbd; `None`: where the system's loader looks.
    pub library_dir: Option<PathBuf>,
    /// Is called with every event that a person should know of.
    pub notify: Option<fn(name: &str, event: &str)>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            store_timeout: Duration::from_secs(120),
            steal_lock: false,
            library_dir: None,
            notify: None,
        }
    }
}

/// Facts of an image when it is opened.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageFacts {
    /// Length in bytes.
    pub size: u64,
    /// Bytes after which striping begins again with other objects; data of librbd's encryption begin at a multiple.
    pub stripe_period: u64,
    /// Length of an object in bytes.
    pub object_size: u64,
    /// Number of objects that a stripe spans; 1: the image is not striped.
    pub stripe_count: u64,
    /// Whether the image has a journal, with which librbd's own encryption does not work.
    pub has_journal: bool,
    /// Whether the image is a clone, which has its parent's bytes where nothing was written.
    pub is_clone: bool,
    /// Whether the image is locked for this process.
    pub is_locked: bool,
    /// Identity of the image under all of its names: cluster, pool, namespace, image and snapshot.
    pub identity: String,
}
