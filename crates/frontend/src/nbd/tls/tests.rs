//! Certificates of servers and clients, in handshakes without sockets.

use super::*;
use inlock_tests::certificates::Authority;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection};
use std::io::Write;

fn options(authority: &Authority, verify_peer: bool) -> TlsOptions {
    TlsOptions { mode: TlsMode::Required, certificates: authority.dir().to_owned(), verify_peer }
}

/// Whether a client that trusts `authority`, with the certificate of `own`, and the server accept each other.
fn meet(server: &TlsServer, authority: &Authority, own: Option<&Authority>) -> bool {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority.dir().join("ca-cert.pem")).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
    let config = match own {
        None => config.with_no_client_auth(),
        Some(own) => {
            let certificate = CertificateDer::from_pem_file(own.dir().join("client-cert.pem")).unwrap();
            let key = PrivateKeyDer::from_pem_file(own.dir().join("client-key.pem")).unwrap();
            config.with_client_auth_cert(vec![certificate], key).unwrap()
        }
    };
    let name = ServerName::try_from("localhost").unwrap();
    let client = Connection::Client(ClientConnection::new(Arc::new(config), name).unwrap());
    let mut ends = [client, server.accept().unwrap()];
    while ends.iter().any(|end| end.is_handshaking()) {
        for _ in 0..2 {
            let mut bytes = Vec::new();
            while ends[0].wants_write() {
                ends[0].write_tls(&mut bytes).unwrap();
            }
            ends.swap(0, 1);
            let mut bytes = &bytes[..];
            while !bytes.is_empty() {
                ends[0].read_tls(&mut bytes).unwrap();
                if ends[0].process_new_packets().is_err() {
                    return false;
                }
            }
        }
    }
    true
}

#[test]
fn new_clients_see_the_certificate_that_was_read_last() {
    let dir = tempfile::tempdir().unwrap();
    let [one, other] = ["a", "b"].map(|name| Authority::with_server(&dir.path().join(name), "server"));
    let server = TlsServer::load(&options(&one, false)).unwrap();
    assert!(meet(&server, &one, None) && !meet(&server, &other, None));
    server.reload(&options(&other, false)).unwrap();
    assert!(meet(&server, &other, None) && !meet(&server, &one, None));
    std::fs::remove_file(one.dir().join("server-key.pem")).unwrap();
    server.reload(&options(&one, false)).unwrap_err();
    assert!(meet(&server, &other, None), "it stays as it was");
}

#[test]
fn client_needs_a_certificate_of_the_authority_if_it_is_checked() {
    let dir = tempfile::tempdir().unwrap();
    let [one, other] = ["a", "b"].map(|name| Authority::with_server_and_client(&dir.path().join(name)));
    let server = TlsServer::load(&options(&one, true)).unwrap();
    assert!(meet(&server, &one, Some(&one)));
    assert!(!meet(&server, &one, Some(&other)) && !meet(&server, &one, None));
    assert!(meet(&TlsServer::load(&options(&one, false)).unwrap(), &one, None));
    // An authority that cannot be read is no reason to trust the others alone.
    let authorities = one.dir().join("ca-cert.pem");
    let mut file = std::fs::File::options().append(true).open(&authorities).unwrap();
    file.write_all(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
    let refused = TlsServer::load(&options(&one, true)).unwrap_err().to_string();
    assert!(refused.contains(&*authorities.to_string_lossy()), "{refused}");
}

#[test]
fn certificate_that_no_client_would_accept_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |authority: &Authority| TlsServer::load(&options(authority, false)).unwrap_err().to_string();
    let authority = Authority::with_server(&dir.path().join("a"), "client");
    assert!(refused(&authority).contains("the certificate is not one of a server"), "{}", refused(&authority));
    authority.issue_expired("server", "server");
    assert!(refused(&authority).contains("the certificate has expired"), "{}", refused(&authority));
}
