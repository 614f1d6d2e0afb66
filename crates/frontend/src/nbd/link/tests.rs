//! Ends whose socket takes nothing for a while, or no more.

use super::*;
use crate::nbd::tls::{TlsMode, TlsOptions, TlsServer};
use inlock_tests::certificates::Authority;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

/// Both ends of a connection that begins with TLS.
struct Ends {
    client: Link,
    server: Link,
}

impl Ends {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::with_server(&dir.path().join("c"), "server");
        let certificates = authority.dir().to_owned();
        let tls = TlsServer::load(&TlsOptions { mode: TlsMode::Required, certificates, verify_peer: false }).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(authority.dir().join("ca-cert.pem")).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_root_certificates(roots).with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        let client = ClientConnection::new(Arc::new(config), name).unwrap();
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let (one, other) = pair.unwrap();
        Self { client: Link::new(one, Some(client.into())), server: Link::new(other, tls.accept()) }
    }

    fn connected() -> Self {
        let mut ends = Self::new();
        assert_eq!(ends.client.continue_handshake(), Ok(false));
        assert_eq!(ends.server.continue_handshake(), Ok(false));
        assert_eq!(ends.client.continue_handshake(), Ok(true));
        assert_eq!(ends.server.continue_handshake(), Ok(true));
        ends
    }

    /// Returns ends of which the client cannot send the last message of its handshake, behind so many other bytes.
    fn with_blocked_client() -> (Self, usize) {
        let mut ends = Self::new();
        assert_eq!(ends.client.continue_handshake(), Ok(false));
        assert_eq!(ends.server.continue_handshake(), Ok(false));
        let mut len = 0;
        while let Some(sent) = send(ends.client.socket(), &[IoSlice::new(&[0; 4096])]).unwrap() {
            len += sent;
        }
        for _ in 0..2 {
            assert_eq!(ends.client.continue_handshake(), Ok(false));
            assert!(ends.client.has_unsent());
        }
        (ends, len)
    }
}

/// Receives what has arrived with one call, or returns `None`.
fn received(link: &mut Link) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 1 << 20];
    let len = link.receive(&mut [IoSliceMut::new(&mut bytes)], true).unwrap()?;
    bytes.truncate(len);
    Some(bytes)
}

#[test]
fn send_goes_on_when_the_peer_has_taken_bytes() {
    let Ends { mut client, mut server } = Ends::connected();
    let block: Vec<u8> = (0..64_u32 << 10).map(|at| at as u8).collect();
    let mut sent = Vec::new();
    while let Some(len) = client.send(&[IoSlice::new(&block)]).unwrap() {
        sent.extend_from_slice(&block[..len]);
    }
    assert!(client.has_unsent());
    let mut all = Vec::new();
    let mut receive_all = |all: &mut Vec<u8>| {
        while let Some(bytes) = received(&mut server) {
            all.extend(bytes);
        }
    };
    loop {
        let before = all.len();
        receive_all(&mut all);
        assert!(all.len() > before, "the peer has taken all, and nothing more was sent");
        if let Some(len) = client.send(&[IoSlice::new(b"last")]).unwrap() {
            sent.extend_from_slice(&b"last"[..len]);
            break;
        }
    }
    receive_all(&mut all);
    assert!(all == sent, "{} bytes of {}", all.len(), sent.len());
}

#[test]
fn handshake_goes_on_when_the_peer_has_taken_bytes() {
    let (Ends { mut client, mut server }, mut before) = Ends::with_blocked_client();
    while before > 0 {
        let mut bytes = vec![0; before];
        before -= receive(server.socket(), &mut [IoSliceMut::new(&mut bytes)]).unwrap().unwrap();
    }
    assert_eq!(client.continue_handshake(), Ok(true));
    assert_eq!(server.continue_handshake(), Ok(true));
}

#[test]
fn handshake_with_a_peer_that_takes_no_more_fails() {
    let Ends { mut client, mut server } = Ends::new();
    assert_eq!(client.continue_handshake(), Ok(false));
    rustix::net::shutdown(client.socket(), Shutdown::Read).unwrap();
    assert_eq!(server.continue_handshake(), Err(Errno::PIPE), "it sends its part");
    // Nothing is left of the handshake but to send.
    let (Ends { mut client, server }, _) = Ends::with_blocked_client();
    rustix::net::shutdown(server.socket(), Shutdown::Read).unwrap();
    assert_eq!(client.continue_handshake(), Err(Errno::PIPE));
}

#[test]
fn send_to_a_peer_that_takes_no_more_fails() {
    let Ends { mut client, server } = Ends::connected();
    while client.send(&[IoSlice::new(&[0; 4096])]).unwrap().is_some() {}
    rustix::net::shutdown(server.socket(), Shutdown::Read).unwrap();
    assert_eq!(client.send(&[IoSlice::new(b"x")]), Err(Errno::PIPE), "with bytes that were encrypted before");
    let Ends { mut client, server } = Ends::connected();
    rustix::net::shutdown(server.socket(), Shutdown::Read).unwrap();
    assert_eq!(client.send(&[IoSlice::new(b"x")]), Err(Errno::PIPE), "with the first ones");
}
