//! TLS of the server: certificates, the check of clients, and what is refused before the first client connects.

use super::certificates::{Authorities, CertificateError, join, read_key, read_pem};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{CertificateError as Fault, Connection, Error, RootCertStore, ServerConfig, ServerConnection};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

/// Whether clients have to use TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TlsMode {
    /// Clients may use it (SELECTIVETLS of the protocol).
    Offered,
    /// Clients get nothing without it (FORCEDTLS).
    Required,
}

/// Options of a server with TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsOptions {
    /// Whether clients have to use TLS.
    pub mode: TlsMode,
    /// Directory of `server-cert.pem` and `server-key.pem`. To check clients, it has `ca-cert.pem`, and may have
    /// `ca-crl.pem`.
    pub certificates: PathBuf,
    /// Whether clients need a certificate of an authority in `ca-cert.pem`.
    pub verify_peer: bool,
}

/// TLS of a server, with the certificates that new clients see.
#[derive(Debug)]
pub struct TlsServer {
    mode: TlsMode,
    config: RwLock<Arc<ServerConfig>>,
}

impl TlsServer {
    /// Reads the certificates.
    ///
    /// # Errors
    /// A file cannot be read, the key does not belong to the certificate, or clients would not accept the certificate
    /// at this time.
    pub fn load(options: &TlsOptions) -> Result<Self, CertificateError> {
        Ok(Self { mode: options.mode, config: RwLock::new(load(options)?) })
    }

    /// Returns whether clients have to use TLS.
    pub fn mode(&self) -> TlsMode {
        self.mode
    }

    /// Reads the certificates again, for new clients. The mode stays. If this fails, nothing changes.
    ///
    /// # Errors
    /// As [`TlsServer::load`].
    pub fn reload(&self, options: &TlsOptions) -> Result<(), CertificateError> {
        let config = load(options)?;
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    /// Begins a connection. Nothing is sent yet.
    pub(super) fn accept(&self) -> Option<Connection> {
        let config = Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner));
        ServerConnection::new(config).ok().map(Connection::Server)
    }
}

fn load(options: &TlsOptions) -> Result<Arc<ServerConfig>, CertificateError> {
    let dir = &options.certificates;
    let certificate_file = dir.join("server-cert.pem");
    let key_file = dir.join("server-key.pem");
    let chain: Vec<CertificateDer<'static>> = read_pem(&certificate_file)?;
    let key = read_key(&key_file)?;
    check_own(&certificate_file, &chain)?;
    let identity = join((chain, &certificate_file), (key, &key_file))?;
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        // Of 1.2 a connection ends for good after 2^24 records.
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| CertificateError::new(dir, error))?;
    let builder = match options.verify_peer {
        true => builder.with_client_cert_verifier(client_verifier(dir)?),
        false => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(identity);
    // A resumed session would not be checked again, also after its certificate was revoked.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// Returns the check of clients: a chain to `ca-cert.pem`, not revoked by `ca-crl.pem`.
fn client_verifier(dir: &Path) -> Result<Arc<dyn ClientCertVerifier>, CertificateError> {
    let Authorities { roots, revoked, revoked_file, .. } = Authorities::read(dir)?;
    let mut builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::new(ring::default_provider()));
    if !revoked.is_empty() {
        // A list of one authority says nothing about the certificates of another.
        builder = builder.with_crls(revoked).allow_unknown_revocation_status();
    }
    builder.build().map_err(|error| CertificateError::new(&revoked_file, error))
}

/// Checks the parts of the server's certificate that do not depend on the authorities of clients: its form, its time,
/// and that it is one of a server.
fn check_own(file: &Path, chain: &[CertificateDer<'static>]) -> Result<(), CertificateError> {
    let failed = |error: &dyn std::fmt::Display| CertificateError::new(file, error);
    let Some((own, intermediates)) = chain.split_first() else { return Ok(()) };
    let mut roots = RootCertStore::empty();
    roots.add(own.clone()).map_err(|error| failed(&error))?;
    let builder = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::new(ring::default_provider()));
    let verifier = builder.build().map_err(|error| failed(&error))?;
    let name = ServerName::try_from("localhost").map_err(|error| failed(&error))?;
    match verifier.verify_server_cert(own, intermediates, &name, &[], UnixTime::now()) {
        Err(Error::InvalidCertificate(fault)) => match fault {
            Fault::Expired | Fault::ExpiredContext { .. } => Err(failed(&"the certificate has expired")),
            Fault::NotValidYet | Fault::NotValidYetContext { .. } => Err(failed(&"the certificate is not valid yet")),
            Fault::InvalidPurpose | Fault::InvalidPurposeContext { .. } => {
                Err(failed(&"the certificate is not one of a server"))
            }
            Fault::BadEncoding => Err(failed(&"the certificate is malformed")),
            // The issuer is unknown here.
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
