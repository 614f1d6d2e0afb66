//! Reasons why an image cannot be opened.

use inlock_engine::Errno;

/// Reason why an image cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Ceph's libraries are not installed, or are too old.
    #[error("cannot load {name}: {reason}")]
    NoLibrary {
        /// File name of the library.
        name: String,
        /// Error of the loader.
        reason: String,
    },
    /// The configuration cannot be read.
    #[error("cannot read the Ceph configuration {path}: {source}")]
    Config {
        /// Name of the file.
        path: String,
        /// Error of librados.
        source: Errno,
    },
    /// Ceph does not know an option of the name, or refuses its value.
    #[error("option {option} is refused by Ceph: {source}")]
    Option {
        /// Name of the option.
        option: String,
        /// Error of librados.
        source: Errno,
    },
    /// The configuration names no monitors.
    #[error("the Ceph configuration names no monitors")]
    NoMonitors,
    /// There is no key for the client.
    #[error("no keyring with a key for client.{0}")]
    NoKeyring(String),
    /// librados cannot read the client's key.
    #[error("librados cannot read the key of client.{id}: {source}")]
    UnreadableKey {
        /// Name of the client.
        id: String,
        /// Error of librados.
        source: Errno,
    },
    /// The cluster refuses the client's key.
    #[error("the cluster refuses the key of client.{id}: {source}")]
    AuthRefused {
        /// Name of the client.
        id: String,
        /// Error of librados.
        source: Errno,
    },
    /// The cluster did not answer in time.
    #[error("no answer from the cluster within {0} s")]
    TimedOut(u64),
    /// The cluster has no such pool.
    #[error("the cluster has no pool '{0}'")]
    UnknownPool(String),
    /// The pool has no such namespace.
    #[error("the pool has no namespace '{0}'")]
    UnknownNamespace(String),
    /// The pool has no such image.
    #[error("the pool has no image '{0}'")]
    UnknownImage(String),
    /// The image has no such snapshot.
    #[error("the image has no snapshot '{0}'")]
    UnknownSnapshot(String),
    /// The client's capabilities do not include the image.
    #[error("client.{id} may not {what}")]
    NotAllowed {
        /// Name of the client.
        id: String,
        /// Action that the cluster refuses.
        what: &'static str,
    },
    /// Another client has the image's lock.
    #[error("the image is locked by the client at {0}")]
    Locked(String),
    /// The image has a lock that no client of librbd keeps, such as one of `rbd lock add`.
    #[error("the image has a lock that was set by hand")]
    LockedByHand,
    /// Another error of Ceph.
    #[error("cannot {what}: {source}")]
    Ceph {
        /// Action that failed.
        what: &'static str,
        /// Error of the library.
        source: Errno,
    },
    /// An error of this system.
    #[error("cannot {what}: {source}")]
    System {
        /// Action that failed.
        what: &'static str,
        /// Error of the system.
        source: std::io::Error,
    },
}
