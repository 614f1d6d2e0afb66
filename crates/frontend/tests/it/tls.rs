//! TLS: what a client gets before it, what an attacker can slip in, and data, ends and stalls through it.

use crate::client::{READ, TIMEOUT, WRITE, greet};
use crate::support::*;
use inlock_engine::{BackingStore, Device};
use inlock_frontend::nbd::server::{Limits, Listen, Server, ServerOptions};
use inlock_frontend::nbd::tls::{TlsMode, TlsOptions, TlsServer};
use inlock_tests::certificates::Authority;
use inlock_tests::nbd::option_reply::{ACK, ERR_INVALID, ERR_POLICY, ERR_UNKNOWN, INFO, META_CONTEXT, SERVER};
use inlock_tests::nbd::{Connection, Mode, be32, be64, go_data, magic, meta_data, option, option_bytes, request_bytes};
use inlock_tests::random::Random;
use inlock_tests::report::count;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const ERR_TLS_REQD: u32 = 1 << 31 | 5;
/// "There is TLS now", and nothing else.
const STARTTLS: u32 = option::STARTTLS;
/// Data of the device.
const LEN: u64 = 4 * MIB;

struct Secured {
    server: Option<Server>,
    device: Arc<Device>,
    socket: PathBuf,
    config: Arc<ClientConfig>,
    _dir: tempfile::TempDir,
}

impl Secured {
    fn new(mode: TlsMode, limits: Limits) -> Self {
        Self::over(memory(LEN), mode, limits)
    }

    fn over(store: Arc<dyn BackingStore>, mode: TlsMode, limits: Limits) -> Self {
        let dir = tempfile::tempdir().expect("a server that follows the protocol");
        let authority = Authority::with_server(&dir.path().join("c"), "server");
        let options = TlsOptions { mode, certificates: authority.dir().to_owned(), verify_peer: false };
        let tls = TlsServer::load(&options).expect("a server that follows the protocol");
        let device = device(store, 4096, READ_WRITE_DISCARD);
        let socket = dir.path().join("s");
        let mut options = ServerOptions::default();
        options.export_name = NAME.into();
        (options.threads, options.limits, options.io) = (2, limits, rings()[0]);
        let server = Server::start_with_tls(Arc::clone(&device), &Listen::Unix(socket.clone()), &options, tls)
            .expect("a server that follows the protocol");
        let mut roots = RootCertStore::empty();
        roots
            .add(
                CertificateDer::from_pem_file(authority.dir().join("ca-cert.pem"))
                    .expect("a server that follows the protocol"),
            )
            .expect("a server that follows the protocol");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("a server that follows the protocol");
        let config = Arc::new(config.with_root_certificates(roots).with_no_client_auth());
        Self { server: Some(server), device, socket, config, _dir: dir }
    }

    /// A connection that has had its greeting.
    fn greet(&self) -> Connection {
        greet(&self.socket, 3)
    }

    /// A connection with TLS, on which nothing was negotiated.
    fn secure(&self) -> Secure {
        let mut plain = self.greet();
        assert_eq!(plain.ask(STARTTLS, b"").expect("a server that follows the protocol").kind, ACK);
        Secure::new(plain, &self.config)
    }

    /// A connection with TLS in transmission.
    fn client(&self) -> Secure {
        let mut client = self.secure();
        assert_eq!(client.kinds(option::GO, &go_data(b"", &[])), [INFO, ACK]);
        client
    }

    fn contents(&self) -> Vec<u8> {
        let mut bytes = vec![0; LEN as usize];
        inlock_engine::BlockingDevice::new(Arc::clone(&self.device))
            .read_at(&mut bytes, 0)
            .expect("a server that follows the protocol");
        bytes
    }

    fn stop(&mut self) {
        self.server
            .take()
            .expect("a server that follows the protocol")
            .stop()
            .expect("a server that follows the protocol");
    }
}

/// A client over TLS.
struct Secure {
    stream: StreamOwned<ClientConnection, UnixStream>,
    cookie: u64,
}

impl Secure {
    fn new(plain: Connection, config: &Arc<ClientConfig>) -> Self {
        let connection = ClientConnection::new(
            Arc::clone(config),
            ServerName::try_from("localhost").expect("a server that follows the protocol"),
        );
        Self {
            stream: StreamOwned::new(connection.expect("a server that follows the protocol"), plain.stream),
            cookie: 0,
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("a server that follows the protocol");
    }

    fn receive(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Sends an option, and returns the kinds of its replies.
    fn kinds(&mut self, number: u32, data: &[u8]) -> Vec<u32> {
        self.send(&option_bytes(number, data));
        let mut kinds = Vec::new();
        loop {
            let head = self.receive(20).expect("a server that follows the protocol");
            assert_eq!((be64(&head), be32(&head[8..])), (magic::OPTION_REPLY, number));
            self.receive(be32(&head[16..]) as usize).expect("a server that follows the protocol");
            let kind = be32(&head[12..]);
            kinds.push(kind);
            if kind == ACK || kind >> 31 == 1 {
                return kinds;
            }
        }
    }

    fn request(&mut self, kind: u16, offset: u64, len: u64, payload: &[u8]) {
        self.cookie += 1;
        let header = request_bytes(Mode::Simple, 0, kind, self.cookie, offset, len);
        self.send(&[&header[..], payload].concat());
    }

    /// Receives a simple reply with this length of data.
    fn reply(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let head = self.receive(16)?;
        assert_eq!((be32(&head), be32(&head[4..])), (magic::SIMPLE_REPLY, 0), "success");
        self.receive(len)
    }

    fn read(&mut self, offset: u64, len: usize) -> Vec<u8> {
        self.request(READ, offset, len as u64, b"");
        self.reply(len).expect("a server that follows the protocol")
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        self.request(WRITE, offset, data.len() as u64, data);
        self.reply(0).expect("a server that follows the protocol");
    }

    /// Checks that nothing more comes but the end.
    fn expect_end(mut self) {
        let mut rest = Vec::new();
        let ended = self.stream.read_to_end(&mut rest);
        assert!(rest.is_empty(), "{} bytes", rest.len());
        assert!(!ended.is_err_and(|error| is_late(error.kind())), "the connection stays open");
    }
}

/// Whether a client has waited for longer than it may have to.
fn is_late(error: ErrorKind) -> bool {
    matches!(error, ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

fn quick() -> Limits {
    limits(Duration::from_millis(300), TIMEOUT, TIMEOUT)
}

#[test]
fn options_before_tls_get_the_replies_of_the_mode() {
    let name = go_data(NAME.as_bytes(), &[]);
    let cases: [(u32, &[u8], u32); 9] = [
        (option::LIST, b"", SERVER),
        (option::INFO, &name, INFO),
        (option::INFO, &go_data(b"other", &[]), ERR_UNKNOWN),
        (option::GO, b"malformed", ERR_INVALID),
        (option::STRUCTURED_REPLY, b"", ACK),
        (option::SET_META_CONTEXT, &meta_data(b"", &[b"base:allocation"]), META_CONTEXT),
        (option::EXTENDED_HEADERS, b"", ACK),
        (4711, b"", 1 << 31 | 1),
        (4711, &[0; 20 << 10], 1 << 31 | 9),
    ];
    for (mode, required) in [(TlsMode::Offered, false), (TlsMode::Required, true)] {
        let served = Secured::new(mode, Limits::default());
        let mut plain = served.greet();
        for (number, data, without) in cases {
            plain.send(&option_bytes(number, data)).unwrap();
            let kind =
                if required { plain.option_reply() } else { plain.option_replies().map(|mut all| all.remove(0)) };
            assert_eq!(kind.unwrap().kind, if required { ERR_TLS_REQD } else { without }, "{mode:?}, option {number}");
        }
        assert_eq!(plain.ask(STARTTLS, b"x").unwrap().kind, ERR_INVALID, "data");
        assert_eq!(plain.ask(STARTTLS, b"").unwrap().kind, ACK);
        let mut secure = Secure::new(plain, &served.config);
        // Nothing counts that was negotiated before.
        let contexts = meta_data(b"", &[b"base:allocation"]);
        assert_eq!(
            secure.kinds(option::SET_META_CONTEXT, &contexts),
            [ERR_INVALID],
            "structured replies are forgotten"
        );
        assert_eq!(secure.kinds(STARTTLS, b""), [ERR_INVALID], "a second time");
        assert_eq!(secure.kinds(option::LIST, b""), [SERVER, ACK]);
        assert_eq!(secure.kinds(option::GO, &go_data(b"other", &[])), [ERR_UNKNOWN]);
        assert_eq!(secure.kinds(option::GO, &name), [INFO, ACK]);
        secure.write(5, b"over TLS");
        assert_eq!(secure.read(5, 8), b"over TLS");

        let mut plain = served.greet();
        plain.send(&option_bytes(option::EXPORT_NAME, b"")).unwrap();
        if required {
            assert_eq!(plain.expect_closed().unwrap(), 0, "EXPORT_NAME has no error reply");
        } else {
            assert_eq!(plain.receive(10).unwrap()[..8], LEN.to_be_bytes());
            assert_eq!(plain.read(5, 8).unwrap(), b"over TLS");
        }
        let mut plain = served.greet();
        assert_eq!(plain.ask(option::ABORT, b"").unwrap().kind, ACK);
        assert_eq!(plain.expect_closed().unwrap(), 0);
        let mut secure = served.secure();
        secure.send(&option_bytes(option::EXPORT_NAME, NAME.as_bytes()));
        assert_eq!(secure.receive(10).unwrap()[..8], LEN.to_be_bytes());
        assert_eq!(secure.read(5, 8), b"over TLS");
    }
    let off = Served::new(device(memory(LEN), 4096, READ_WRITE_DISCARD), rings()[0], 1);
    let mut plain = greet(off.path(), 3);
    assert_eq!(plain.ask(STARTTLS, b"").unwrap().kind, ERR_POLICY);
    plain.go(b"").unwrap();
}

/// Bytes that a client has not sent are not taken for zeroes.
#[test]
fn option_of_a_client_that_ends_within_it_gets_no_reply() {
    let served = Secured::new(TlsMode::Required, Limits::default());
    for option in [option_bytes(option::LIST, &[0; 6]), option_bytes(option::GO, &go_data(b"", &[]))] {
        for len in [option.len() - 1, option.len() - 6, 3] {
            let mut plain = served.greet();
            plain.send(&option[..len]).unwrap();
            plain.stream.shutdown(Shutdown::Write).unwrap();
            assert_eq!(plain.expect_closed().unwrap(), 0, "{len} bytes");
        }
    }
}

/// The attacker is between client and server, and sends plaintext in the client's name.
#[test]
fn plaintext_behind_starttls_is_never_an_option_or_a_request() {
    // No limit of time ends a handshake that has failed.
    let served = Secured::new(TlsMode::Required, limits(10 * TIMEOUT, TIMEOUT, TIMEOUT));
    let before = served.contents();
    let go = option_bytes(option::GO, &go_data(b"", &[]));
    let write = [&request_bytes(Mode::Simple, 0, WRITE, 1, 0, 512)[..], &[7; 512]].concat();
    let cases: [(&str, Vec<u8>); 6] = [
        ("an option", option_bytes(option::STRUCTURED_REPLY, b"")),
        ("transmission", go.clone()),
        ("a write", [&go[..], &write].concat()),
        ("the beginning of an option", go[..10].to_vec()),
        ("a second STARTTLS", option_bytes(STARTTLS, b"")),
        ("one byte", vec![0]),
    ];
    for (what, injected) in &cases {
        for waits in [false, true] {
            let mut plain = served.greet();
            let start = option_bytes(STARTTLS, b"");
            match waits {
                false => plain.send(&[&start[..], injected].concat()).unwrap(),
                true => {
                    plain.send(&start).unwrap();
                    plain.send(injected).unwrap();
                }
            }
            assert_eq!(plain.option_reply().unwrap().kind, ACK);
            // The client knows nothing of it.
            let mut secure = Secure::new(plain, &served.config);
            let mut replies = [0; 20];
            let asked = secure.stream.write_all(&option_bytes(option::LIST, b""));
            let replied = asked.and_then(|()| secure.stream.read_exact(&mut replies));
            let error = replied.expect_err(what).kind();
            assert!(!is_late(error), "{what}: nothing is said");
            let ended = secure.stream.sock.read_to_end(&mut Vec::new());
            assert!(!ended.is_err_and(|error| is_late(error.kind())), "{what}: the connection stays open");
        }
    }
    assert!(served.contents() == before, "a write was made");
    // One that says nothing afterwards is not waited for.
    let mut plain = served.greet();
    plain.send(&[&option_bytes(STARTTLS, b"")[..], &[0xff; 64]].concat()).unwrap();
    assert_eq!(plain.option_reply().unwrap().kind, ACK);
    plain.expect_closed().unwrap();
    // What is sent early and is TLS is no attack.
    let mut plain = served.greet();
    let mut connection =
        ClientConnection::new(Arc::clone(&served.config), ServerName::try_from("localhost").unwrap()).unwrap();
    let mut early = option_bytes(STARTTLS, b"");
    connection.write_tls(&mut early).unwrap();
    plain.send(&early).unwrap();
    assert_eq!(plain.option_reply().unwrap().kind, ACK);
    let mut secure = Secure { stream: StreamOwned::new(connection, plain.stream), cookie: 0 };
    assert_eq!(secure.kinds(option::LIST, b""), [SERVER, ACK]);
    count("nbd_tls_injections", 2 * cases.len());
}

#[test]
fn data_over_tls_is_that_of_the_model() {
    let mut served = Secured::new(TlsMode::Required, Limits::default());
    let mut clients = [served.client(), served.client()];
    let (mut model, mut random) = (served.contents(), Random::new(59));
    for step in 0..300 {
        let client = &mut clients[step % 2];
        let offset = random.below(LEN);
        let len = 1 + random.below((LEN - offset).min(if step % 8 == 0 { 2 << 20 } else { 40_000 })) as usize;
        let range = offset as usize..offset as usize + len;
        if random.below(2) == 0 {
            let data = random.bytes(len);
            client.write(offset, &data);
            model[range].copy_from_slice(&data);
        } else {
            assert!(client.read(offset, len) == model[range], "{len} bytes at {offset}");
        }
    }
    // Many requests at a time, of which the replies wait for the client.
    let [client, _] = &mut clients;
    for offset in 0..64 {
        client.request(READ, offset * 4096, 65536, b"");
    }
    let mut bytes = 0;
    for _ in 0..64 {
        bytes += client.reply(65536).unwrap().len();
    }
    assert_eq!(bytes, 64 * 65536);
    assert!(served.contents() == model);
    drop(clients);
    served.stop();
}

#[test]
fn requests_wait_for_a_worker_that_is_busy() {
    let store = FaultyStore::new(LEN);
    let served = Secured::over(Arc::clone(&store) as _, TlsMode::Required, Limits::default());
    let mut client = served.client();
    store.set(Faults { hold_writes: true, ..Faults::default() });
    let data = pattern(3, LEN);
    // More than all buffers and sockets between client and worker hold.
    let is_held = std::thread::scope(|scope| {
        let release = scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            let is_held = store.waiting.load(Ordering::SeqCst) > 0;
            store.set(Faults::default());
            is_held
        });
        for (number, block) in data.chunks(16 << 10).enumerate() {
            client.request(WRITE, number as u64 * (16 << 10), 16 << 10, block);
        }
        release.join().unwrap()
    });
    assert!(is_held, "no write was held");
    for _ in data.chunks(16 << 10) {
        client.reply(0).unwrap();
    }
    assert!(served.contents() == data);
}

#[test]
fn client_that_only_stops_sending_gets_its_replies() {
    let served = Secured::new(TlsMode::Required, Limits::default());
    for announces in [true, false] {
        let mut client = served.client();
        client.request(READ, 0, 2 * MIB, b"");
        client.request(WRITE, 100, 3, b"end");
        if announces {
            client.stream.conn.send_close_notify();
        }
        client.stream.flush().unwrap();
        client.stream.sock.shutdown(Shutdown::Write).unwrap();
        let (mut data, mut ends) = (0, 0);
        for _ in 0..2 {
            let cookie = u64::from_be_bytes(client.receive(16).unwrap()[8..].try_into().unwrap());
            if cookie == 1 {
                data += client.receive(2 << 20).unwrap().len();
            } else {
                ends += 1;
            }
        }
        assert_eq!((data, ends), (2 << 20, 1), "announces: {announces}");
        client.expect_end();
    }
    assert_eq!(served.contents()[100..103], *b"end");
}

#[test]
fn client_that_says_its_end_with_its_last_request_is_disconnected() {
    let served = Secured::new(TlsMode::Required, Limits::default());
    let mut client = served.client();
    let request = request_bytes(Mode::Simple, 0, READ, 1, 0, 4096);
    client.stream.conn.writer().write_all(&request).unwrap();
    client.stream.conn.send_close_notify();
    // In one piece, so that the server decrypts both at once. The socket stays open in both directions.
    let mut records = Vec::new();
    while client.stream.conn.wants_write() {
        client.stream.conn.write_tls(&mut records).unwrap();
    }
    client.stream.sock.write_all(&records).unwrap();
    assert_eq!(client.reply(4096).unwrap(), served.contents()[..4096]);
    client.expect_end();
}

#[test]
fn write_of_a_connection_that_breaks_is_not_made() {
    let mut served = Secured::new(TlsMode::Required, Limits::default());
    let before = served.contents();
    let data = vec![9; 512 << 10];
    let header = |client: &mut Secure| {
        client.cookie += 1;
        request_bytes(Mode::Simple, 0, WRITE, client.cookie, 0, data.len() as u64)
    };
    // Killed in the middle.
    let mut client = served.client();
    let header_bytes = header(&mut client);
    client.send(&[&header_bytes[..], &data[..300_000]].concat());
    client.stream.sock.shutdown(Shutdown::Both).unwrap();
    drop(client);
    // A byte of the last record changes on the way.
    let mut client = served.client();
    let header_bytes = header(&mut client);
    client.send(&header_bytes);
    let last = data.len() - 1000;
    client.send(&data[..last]);
    client.stream.conn.writer().write_all(&data[last..]).unwrap();
    let mut record = Vec::new();
    client.stream.conn.write_tls(&mut record).unwrap();
    let middle = record.len() / 2;
    record[middle] ^= 1;
    client.stream.sock.write_all(&record).unwrap();
    client.expect_end();
    // A record that is no record.
    let mut client = served.client();
    client.stream.sock.write_all(&header_bytes).unwrap();
    client.expect_end();
    // Others are served.
    assert!(served.client().read(0, LEN as usize) == before, "a part of a write was made");
    served.stop();
    assert!(served.contents() == before);
}

#[test]
fn handshake_of_tls_that_stalls_or_is_none_ends_in_time() {
    let served = Secured::new(TlsMode::Required, quick());
    let mut hello = Vec::new();
    let mut connection =
        ClientConnection::new(Arc::clone(&served.config), ServerName::try_from("localhost").unwrap()).unwrap();
    connection.write_tls(&mut hello).unwrap();
    let half = hello.len() / 2;
    let tls12 =
        [&[22, 3, 1, 0, 47, 1, 0, 0, 43, 3, 3][..], &[5; 32], &[0, 0, 4, 0x13, 0x01, 0xc0, 0x2b, 1, 0]].concat();
    let garbage: Vec<u8> = (0..40_000u32).map(|i| i.wrapping_mul(2_654_435_761) as u8).collect();
    let cases: [(&str, &[u8]); 8] = [
        ("nothing", b""),
        ("one byte", &[22]),
        ("half a ClientHello", &hello[..half]),
        ("a ClientHello, and no answer to the server", &hello),
        ("text", b"GET / HTTP/1.1\r\n\r\n"),
        ("garbage", &garbage),
        ("a record that is too long", &[22, 3, 3, 0xff, 0xff, 1]),
        ("TLS 1.2", &tls12),
    ];
    for (what, sent) in cases {
        let mut plain = served.greet();
        assert_eq!(plain.ask(STARTTLS, b"").unwrap().kind, ACK);
        // The server may have closed the connection before it has read all of it.
        let _ = plain.stream.write_all(sent);
        plain.expect_closed().unwrap_or_else(|error| panic!("{what}: {error:#}"));
    }
    // Through TLS the limit is the same.
    let secure = served.secure();
    let mut secure = secure;
    assert_eq!(secure.kinds(option::LIST, b""), [SERVER, ACK]);
    secure.expect_end();
    // In transmission there is none.
    let mut client = served.client();
    std::thread::sleep(Duration::from_millis(700));
    client.write(0, b"late");
    count("nbd_tls_handshakes_that_fail", cases.len() + 1);
}

#[test]
fn server_that_stops_sends_its_last_replies_over_tls() {
    let mut served = Secured::new(TlsMode::Required, Limits::default());
    let mut client = served.client();
    client.write(0, &pattern(1, MIB));
    for _ in 0..6 {
        client.request(READ, 0, MIB, b"");
    }
    // The first reply shows that the server is reading requests; the others may or may not be read yet.
    assert!(client.reply(MIB as usize).unwrap() == pattern(1, MIB));
    let waiting = served.secure();
    let server = served.server.take().unwrap();
    let stopping = std::thread::spawn(move || server.stop());
    let mut replies = 1;
    while let Ok(data) = client.reply(MIB as usize) {
        assert!(data == pattern(1, MIB));
        replies += 1;
    }
    assert!(replies <= 6);
    stopping.join().unwrap().unwrap();
    // A client in its handshake does not delay it.
    waiting.expect_end();
}

#[test]
fn server_that_stops_waits_for_replies_that_are_not_sent_yet() {
    let mut served = Secured::new(TlsMode::Required, Limits::default());
    let mut client = served.client();
    client.request(READ, 0, LEN, b"");
    client.receive(16).unwrap();
    let server = served.server.take().unwrap();
    let stopped = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stopped);
    let stopping = std::thread::spawn(move || {
        let outcome = server.stop();
        flag.store(true, Ordering::SeqCst);
        outcome
    });
    // More than the socket holds, and less than it holds together with the pair of the worker, which has ended.
    let most = std::fs::read_to_string("/proc/sys/net/core/wmem_max").unwrap().trim().parse::<usize>().unwrap();
    let unsent = 2 * most.min(1 << 20) + (300 << 10);
    client.receive(LEN as usize - unsent).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert!(!stopped.load(Ordering::SeqCst), "the process would end before its last replies are sent");
    client.receive(unsent).unwrap();
    client.expect_end();
    stopping.join().unwrap().unwrap();
}

#[test]
fn client_that_takes_no_replies_does_not_keep_a_server_that_stops() {
    let mut served = Secured::new(TlsMode::Required, limits(TIMEOUT, TIMEOUT, Duration::from_millis(200)));
    let mut client = served.client();
    for _ in 0..32 {
        client.request(READ, 0, LEN, b"");
    }
    let mut other = served.client();
    other.write(0, b"x");
    served.stop();
    // The connection stays open here until the server has ended.
    drop(client);
}

/// No limit of time ends it.
#[test]
fn client_in_its_handshake_does_not_keep_a_server_that_stops() {
    let mut served = Secured::new(TlsMode::Required, limits(Duration::from_secs(3600), TIMEOUT, TIMEOUT));
    let clients = [served.secure(), served.secure()];
    served.stop();
    clients.into_iter().for_each(Secure::expect_end);
}
