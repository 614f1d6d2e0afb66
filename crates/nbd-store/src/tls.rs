//! TLS of the store: what a URI says about it, and the check of servers.

use super::error::OpenError;
use super::uri::TlsOptions;
use inlock_frontend::nbd::certificates::{Authorities, CertificateError, exists, join, read_key, read_pem};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme};
use std::path::Path;
use std::sync::Arc;

/// Configuration of connections over TLS, and the name of their server.
#[derive(Clone)]
pub(crate) struct Tls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Tls {
    /// Reads the certificates.
    pub(crate) fn load(options: &TlsOptions) -> Result<Self, OpenError> {
        let certificates = options.certificates.as_deref();
        let name = ServerName::try_from(options.hostname.clone())
            .map_err(|_| OpenError::Certificates(format!("'{}' is no name of a server", options.hostname)))?;
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            // Of 1.2 a connection ends for good after 2^24 records.
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| OpenError::Certificates(error.to_string()))?;
        let verifier: Arc<dyn ServerCertVerifier> = if options.verify_peer {
            let dir = certificates.ok_or_else(|| OpenError::Certificates("tls-certificates=DIR is missing".into()))?;
            verifier(dir, provider)?
        } else {
            Arc::new(AnyCertificate(provider))
        };
        let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
        let key_file = certificates.map(|dir| (dir, dir.join("client-key.pem")));
        let config = match key_file.filter(|(_, file)| exists(file)) {
            Some((dir, key_file)) => {
                let (key, file) = (read_key(&key_file)?, dir.join("client-cert.pem"));
                let chain: Vec<CertificateDer<'static>> = read_pem(&file)?;
                builder.with_client_cert_resolver(join((chain, &file), (key, &key_file))?)
            }
            None => builder.with_no_client_auth(),
        };
        Ok(Self { config: Arc::new(config), name })
    }

    /// Begins a connection. Nothing is sent yet.
    pub(crate) fn connect(&self) -> Result<ClientConnection, Error> {
        ClientConnection::new(Arc::clone(&self.config), self.name.clone())
    }
}

/// Returns the check of servers: a chain to `ca-cert.pem`, not revoked by `ca-crl.pem`, with the server's name.
fn verifier(dir: &Path, provider: Arc<CryptoProvider>) -> Result<Arc<dyn ServerCertVerifier>, OpenError> {
    let Authorities { roots, revoked, revoked_file, .. } = Authorities::read(dir)?;
    let mut builder = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
    if !revoked.is_empty() {
        // A list of one authority says nothing about the certificates of another.
        builder = builder.with_crls(revoked).allow_unknown_revocation_status();
    }
    Ok(builder.build().map_err(|error| CertificateError::new(&revoked_file, error))?)
}

/// Accepts every certificate, of which the server has the key: `tls-verify-peer=false`.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
