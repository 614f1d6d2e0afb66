//! Reasons why an export cannot be opened.

use inlock_frontend::nbd::certificates::CertificateError;
use inlock_frontend::nbd::client::BadReply;
use std::io;

/// Reason why an export cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Nothing listens, or the host is unknown or cannot be reached.
    #[error("cannot connect to {address}")]
    Unreachable {
        /// Address of the server.
        address: String,
        /// Error of the system.
        source: io::Error,
    },
    /// The server did not answer in time.
    #[error("no answer from {address} within {seconds} s")]
    TimedOut {
        /// Address of the server.
        address: String,
        /// The limit.
        seconds: u64,
    },
    /// The server closed the connection during the handshake.
    #[error("{address} closed the connection during the handshake")]
    Closed {
        /// Address of the server.
        address: String,
    },
    /// The server has no such export.
    #[error("the server has no export '{0}'")]
    UnknownExport(String),
    /// The server insists on TLS.
    #[error("the server requires TLS")]
    TlsRequired,
    /// The server does not do TLS.
    #[error("the server does not support TLS")]
    NoTls,
    /// Certificates of this side cannot be used.
    #[error("{0}")]
    Certificates(String),
    /// The handshake of TLS failed: with the server's certificate, for one.
    #[error("no TLS with {address}: {reason}")]
    TlsFailed {
        /// Address of the server.
        address: String,
        /// Error of TLS.
        reason: String,
    },
    /// The server refuses, with its text if it gives one.
    #[error("the server refuses the export{0}")]
    Refused(String),
    /// No NBD server, or one of an unknown dialect.
    #[error("{0}")]
    Dialect(&'static str),
    /// The server violates the protocol.
    #[error("the server violates the protocol: {0}")]
    Protocol(BadReply),
    /// Connections to the server state different facts, or another export than before.
    #[error("{0}")]
    Changed(&'static str),
}

impl From<CertificateError> for OpenError {
    fn from(error: CertificateError) -> Self {
        Self::Certificates(error.to_string())
    }
}
