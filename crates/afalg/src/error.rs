//! Reasons why the kernel cannot be used as an engine.

use inlock_cipher::CipherSpec;
use std::io;

/// The kernel lacks what an engine needs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AfAlgError {
    /// The kernel has no sockets of this family: the module `af_alg` is missing.
    #[error("the kernel has no AF_ALG sockets")]
    NoSockets,
    /// A cipher that this engine does not pass to the kernel.
    #[error("the engine has no cipher {0}")]
    Cipher(CipherSpec),
    /// The module `algif_skcipher` or the algorithm is missing.
    #[error("the kernel has no skcipher {0}")]
    Algorithm(String),
    /// The kernel's algorithm refuses keys of this length, or this one.
    #[error("the kernel's {algorithm} does not take a key of {bits} bits")]
    Key {
        /// The kernel's name of the algorithm.
        algorithm: String,
        /// Length of the key in bits.
        bits: usize,
    },
    /// The kernel encrypts or decrypts a data unit to other bytes than Inlock does.
    #[error("the kernel's {0} gives wrong results")]
    Wrong(String),
    /// Operations of the kernel's algorithm fail.
    #[error("the kernel's {0} fails")]
    Fails(String),
    /// Another error of a system call.
    #[error("cannot {action}: {source}")]
    System {
        /// The action that failed.
        action: &'static str,
        /// The error.
        source: io::Error,
    },
}
