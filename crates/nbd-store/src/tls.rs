//! TLS: what a URI says about it, certificates, and the link that encrypts.

use crate::error::OpenError;
use crate::uri::TlsOptions;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

/// Bytes of requests that are encrypted before the socket has taken them: one record more may follow.
const UNSENT: usize = 256 << 10;
/// Bytes received with one call.
const RECEIVED: usize = 64 << 10;
/// Longest file of certificates or keys in bytes.
const MAX_FILE: u64 = 1 << 20;

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
        let keys: Option<Vec<PrivateKeyDer<'static>>> = match certificates {
            Some(dir) => read_optional(&dir.join("client-key.pem"))?,
            None => None,
        };
        let config = match (certificates, keys) {
            (Some(dir), Some(mut keys)) => {
                let file = dir.join("client-cert.pem");
                let chain: Vec<CertificateDer<'static>> = read_pem(&file)?;
                builder.with_client_auth_cert(chain, keys.swap_remove(0)).map_err(|error| in_file(&file, &error))?
            }
            _ => builder.with_no_client_auth(),
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
    let file = dir.join("ca-cert.pem");
    let mut roots = RootCertStore::empty();
    for certificate in read_pem::<CertificateDer<'static>>(&file)? {
        roots.add(certificate).map_err(|error| in_file(&file, &error))?;
    }
    let mut builder = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
    let revoked = dir.join("ca-crl.pem");
    let lists: Option<Vec<CertificateRevocationListDer<'static>>> = read_optional(&revoked)?;
    if let Some(lists) = lists {
        // A list of one authority says nothing about the certificates of another.
        builder = builder.with_crls(lists).allow_unknown_revocation_status();
    }
    Ok(builder.build().map_err(|error| in_file(&revoked, &error))?)
}

/// Reads a file as [`read_pem`] if there is one. A link without its file is one that cannot be read.
fn read_optional<T: PemObject>(path: &Path) -> Result<Option<Vec<T>>, OpenError> {
    match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        _ => read_pem(path).map(Some),
    }
}

/// Reads the objects of one kind from a file. There is at least one.
fn read_pem<T: PemObject>(path: &Path) -> Result<Vec<T>, OpenError> {
    let mut text = Vec::new();
    let file = std::fs::File::open(path).map_err(|error| in_file(path, &error))?;
    file.take(MAX_FILE).read_to_end(&mut text).map_err(|error| in_file(path, &error))?;
    let found: Result<Vec<T>, PemError> = T::pem_slice_iter(&text).collect();
    let found = found.map_err(|error| in_file(path, &error))?;
    if found.is_empty() { Err(in_file(path, &"nothing of its kind in PEM format")) } else { Ok(found) }
}

fn in_file(path: &Path, error: &dyn std::fmt::Display) -> OpenError {
    OpenError::Certificates(format!("{}: {error}", path.display()))
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

/// A connected socket, with TLS or without. No call waits.
pub(crate) struct Link {
    socket: OwnedFd,
    session: Option<Box<Session>>,
}

/// State of TLS, with bounded buffers: rustls takes no more than a few records.
struct Session {
    connection: ClientConnection,
    received: Box<[u8]>,
    /// Ciphertext in `received` that rustls has not taken.
    rest: std::ops::Range<usize>,
    /// Plaintext that rustls has.
    plaintext: usize,
}

impl Link {
    pub(crate) fn new(socket: OwnedFd, connection: Option<ClientConnection>) -> Self {
        let session = connection.map(|mut connection| {
            connection.set_buffer_limit(Some(UNSENT));
            // Behind the handshake, more may have arrived. An error comes back with the first reply.
            let plaintext = connection.process_new_packets().map_or(0, |state| state.plaintext_bytes_to_read());
            Box::new(Session { connection, received: vec![0; RECEIVED].into(), rest: 0..0, plaintext })
        });
        Self { socket, session }
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Returns whether encrypted bytes wait for the socket.
    pub(crate) fn has_unsent(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.connection.wants_write())
    }

    /// Sends what was encrypted, as far as the socket takes it now.
    pub(crate) fn flush(&mut self) -> Result<(), Errno> {
        let Some(session) = &mut self.session else { return Ok(()) };
        while session.connection.wants_write() {
            match session.connection.write_tls(&mut Raw(&self.socket)) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
            }
        }
        Ok(())
    }

    /// Sends from `parts`. With TLS, bytes count once they are encrypted. `None`: nothing can be sent now.
    pub(crate) fn send(&mut self, parts: &[IoSlice<'_>]) -> Result<Option<usize>, Errno> {
        self.flush()?;
        let Some(session) = &mut self.session else { return send(&self.socket, parts) };
        if session.connection.wants_write() {
            return Ok(None);
        }
        let sent = session.connection.writer().write_vectored(parts).map_err(|_| Errno::IO)?;
        self.flush()?;
        Ok(Some(sent))
    }

    /// Receives into `parts`, from the socket only if `from_socket`, and once. `None`: nothing has arrived that is for
    /// `parts`. No bytes: the end of the connection. `EPROTO`: what is no TLS.
    pub(crate) fn receive(&mut self, parts: &mut [IoSliceMut<'_>], from_socket: bool) -> Result<Option<usize>, Errno> {
        match &mut self.session {
            Some(session) => session.receive(&self.socket, parts, from_socket),
            None if from_socket => receive(&self.socket, parts),
            None => Ok(None),
        }
    }
}

impl Session {
    fn receive(
        &mut self,
        socket: &OwnedFd,
        parts: &mut [IoSliceMut<'_>],
        from_socket: bool,
    ) -> Result<Option<usize>, Errno> {
        let mut may_receive = from_socket;
        while self.plaintext == 0 {
            if self.rest.is_empty() {
                // Records without content would never end.
                if !std::mem::take(&mut may_receive) {
                    return Ok(None);
                }
                match receive(socket, &mut [IoSliceMut::new(&mut self.received)])? {
                    None => return Ok(None),
                    // Without a close_notify before, it is the end all the same: replies have lengths.
                    Some(0) => return Ok(Some(0)),
                    Some(len) => self.rest = 0..len,
                }
            }
            let Ok(taken) = self.connection.read_tls(&mut &self.received[self.rest.clone()]) else {
                return Err(Errno::PROTO);
            };
            self.rest.start += taken;
            let Ok(state) = self.connection.process_new_packets() else {
                // The alert says why.
                let _ = self.connection.write_tls(&mut Raw(socket));
                return Err(Errno::PROTO);
            };
            self.plaintext = state.plaintext_bytes_to_read();
            if taken == 0 || state.peer_has_closed() && self.plaintext == 0 {
                return Ok(Some(0));
            }
        }
        let mut total = 0;
        for part in parts {
            let mut part = &mut part[..];
            while !part.is_empty() && self.plaintext > 0 {
                let Ok(len @ 1..) = self.connection.reader().read(part) else { return Err(Errno::PROTO) };
                self.plaintext = self.plaintext.saturating_sub(len);
                total += len;
                part = &mut part[len..];
            }
        }
        Ok(Some(total))
    }
}

fn send(socket: &OwnedFd, parts: &[IoSlice<'_>]) -> Result<Option<usize>, Errno> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match rustix::net::sendmsg(socket, parts, &mut SendAncillaryBuffer::default(), flags) {
        Ok(sent) => Ok(Some(sent)),
        Err(Errno::AGAIN) => Ok(None),
        Err(Errno::INTR) => Ok(Some(0)),
        Err(error) => Err(error),
    }
}

/// Receives into `parts`. `None`: nothing has arrived.
pub(crate) fn receive(socket: &OwnedFd, parts: &mut [IoSliceMut<'_>]) -> Result<Option<usize>, Errno> {
    loop {
        match rustix::net::recvmsg(socket, parts, &mut RecvAncillaryBuffer::default(), RecvFlags::DONTWAIT) {
            Ok(received) => return Ok(Some(received.bytes)),
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// The socket as rustls writes to it.
struct Raw<'a>(&'a OwnedFd);

impl Write for Raw<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        send(self.0, parts)?.ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
