//! Interface of the engine to the kernel. Tests have a kernel of their own.

use crate::error::AfAlgError;
use inlock_engine::Direction;
use std::io;

/// A kernel's crypto API.
pub(crate) trait CryptoApi: Send + Sync {
    /// Gives a key to a new transform of this algorithm.
    fn open(&self, algorithm: &str, key: &[u8]) -> Result<Box<dyn Transform>, AfAlgError>;
}

/// An algorithm and its key, which the kernel forgets when this and all sessions are dropped.
pub(crate) trait Transform: Send + Sync {
    /// Opens a session, for one thread at a time.
    fn session(&self) -> io::Result<Box<dyn Session>>;
}

/// Operations of one thread under a key.
pub(crate) trait Session: Send {
    /// Encrypts or decrypts data units in place, each under its IV, in order. Returns the number of units that are
    /// done. The others are unchanged, and the session must not be used again.
    fn process(&mut self, direction: Direction, ivs: &[[u8; 16]], data: &mut [u8]) -> usize;
}
