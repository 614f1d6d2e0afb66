//! TLS of the server: options of the command line and keys of a configuration file, which have the names of nbdkit.

use std::io;
use std::path::PathBuf;

use inlock_frontend::nbd::certificates::CertificateError;
use inlock_frontend::nbd::tls::{TlsMode, TlsOptions, TlsServer};

use crate::error::{Cause, Error, Result};
use inlock_open::{Context, private_key};

/// Values of `tls`.
pub const MODES: [&str; 3] = ["off", "on", "require"];

/// Returns the options of TLS, from `tls`, `tls-certificates` and `tls-verify-peer`. An error begins with the name of
/// the option that it is about. `dashes`: what precedes the name of an option.
pub fn options(
    dashes: &str,
    mode: Option<&str>,
    dir: Option<&PathBuf>,
    verify_peer: bool,
) -> std::result::Result<Option<TlsOptions>, String> {
    let mode = match mode {
        None | Some("off") => {
            let name = match (dir.is_some(), verify_peer) {
                (true, _) => "tls-certificates",
                (_, true) => "tls-verify-peer",
                (false, false) => return Ok(None),
            };
            return Err(format!("{dashes}{name} needs {dashes}tls with 'on' or 'require'"));
        }
        Some("on") => TlsMode::Offered,
        Some("require") => TlsMode::Required,
        Some(other) => return Err(format!("{dashes}tls takes 'off', 'on' or 'require', not '{other}'")),
    };
    let Some(dir) = dir else { return Err(format!("{dashes}tls needs {dashes}tls-certificates")) };
    if mode == TlsMode::Offered && verify_peer {
        return Err(format!("{dashes}tls-verify-peer needs {dashes}tls with 'require': others connect without TLS"));
    }
    // A background process leaves its directory.
    let certificates = std::path::absolute(dir).map_err(|error| format!("{dashes}tls-certificates: {error}"))?;
    Ok(Some(TlsOptions { mode, certificates, verify_peer }))
}

/// Reads the certificates.
pub fn load(context: &Context, options: &TlsOptions) -> Result<TlsServer> {
    let server = TlsServer::load(options).map_err(cannot_use)?;
    if let Some(warning) = private_key::warning(&options.certificates.join("server-key.pem")) {
        context.warn(warning);
    }
    Ok(server)
}

/// Explains why a file of certificates or keys cannot be used.
pub(crate) fn cannot_use(error: CertificateError) -> Error {
    let kind = error.source.as_ref().map(io::Error::kind);
    // Without the number of a system's error.
    let reason = inlock_open::error::message_of(&*Cause::from(error.reason));
    Error::Certificates { path: error.path, reason, kind }
}
