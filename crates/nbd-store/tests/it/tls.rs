//! TLS: real servers that require it, and servers and certificates that are refused.

use crate::fake::quick;
use crate::real::{Process, compare, nbdkit};
use inlock_engine::{BackingStore, Errno};
use inlock_nbd_store::{NbdStore, NbdUri, OpenError, StoreOptions};
use inlock_tests::certificates::Authority;
use inlock_tests::report::count;
use inlock_tests::wait::eventually;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn uri(socket: &Path, dir: &Path, more: &str) -> NbdUri {
    let text = format!("nbds+unix:///?socket={}&tls-certificates={}{more}", socket.display(), dir.display());
    NbdUri::parse(&text).unwrap()
}

fn require(socket: &Path, dir: &Path, more: &[&str]) -> Process {
    let mut command = nbdkit(socket, &[], &[]);
    command.args(["--tls=require", &format!("--tls-certificates={}", dir.display())]).args(more);
    Process::start(command.args(["memory", "8M"]), socket)
}

fn refused(uri: &NbdUri, options: &StoreOptions) -> OpenError {
    NbdStore::open(uri, options, false).map(drop).unwrap_err()
}

#[test]
fn servers_that_require_tls_hold_the_ciphertext_of_the_model() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::with_server(&dir.path().join("certificates"), "server");
    let certs = authority.dir();
    let socket = dir.path().join("nbdkit");
    let mut server = require(&socket, certs, &[]);
    compare("nbdkit with TLS", NbdStore::open(&uri(&socket, certs, ""), &quick(), false).unwrap(), 200);
    let plain = NbdUri::parse(&format!("nbd+unix:///?socket={}", socket.display())).unwrap();
    assert!(matches!(refused(&plain, &quick()), OpenError::TlsRequired));
    // It ends without a word of TLS, and the store connects again.
    let store = NbdStore::open(&uri(&socket, certs, ""), &quick(), false).unwrap();
    assert_eq!(store.write_at(&[7; 4096], 0), Ok(4096));
    store.sync().unwrap();
    server.kill();
    let _server = require(&socket, certs, &[]);
    let mut data = [1; 4096];
    assert_eq!(store.read_at(&mut data, 0), Ok(4096));
    assert!(data == [0; 4096], "the new server's memory");
    drop(store);

    let (image, socket) = (dir.path().join("image"), dir.path().join("qemu"));
    fs::File::create(&image).unwrap().set_len(8 << 20).unwrap();
    let mut command = Command::new("qemu-nbd");
    command.args(["-f", "raw", "--persistent", "--shared=8", "--object"]);
    command.arg(format!("tls-creds-x509,id=t,dir={},endpoint=server,verify-peer=no", certs.display()));
    command.args(["--tls-creds=t", "-k"]).arg(&socket).arg(&image);
    let _server = Process::start(&mut command, &socket);
    compare("qemu-nbd with TLS", NbdStore::open(&uri(&socket, certs, ""), &quick(), false).unwrap(), 200);
}

#[test]
fn certificate_that_is_not_trusted_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::with_server(&dir.path().join("one"), "server");
    let other = Authority::with_server(&dir.path().join("other"), "other");
    let (certs, others) = (authority.dir(), other.dir());
    let socket = dir.path().join("s");
    let server = require(&socket, certs, &[]);
    let mut checks = 0;
    let mut fails = |uri: &NbdUri, words: &str| {
        let error = refused(uri, &quick());
        let is_of_tls = matches!(error, OpenError::TlsFailed { .. } | OpenError::Certificates(_));
        assert!(is_of_tls && error.to_string().contains(words), "{error:?} {words}");
        checks += 1;
    };
    let works = |uri: &NbdUri| drop(NbdStore::open(uri, &quick(), false).unwrap());
    works(&uri(&socket, certs, "&tls-hostname=127.0.0.1"));
    fails(&uri(&socket, others, ""), "invalid peer certificate");
    fails(&uri(&socket, certs, "&tls-hostname=other.example"), "not valid for name");
    fails(&uri(&socket, certs, "&tls-hostname=%20"), "no name of a server");
    works(&uri(&socket, others, "&tls-verify-peer=false&tls-hostname=other.example"));
    let nothing = dir.path().join("nothing");
    fs::create_dir(&nothing).unwrap();
    fails(&uri(&socket, &nothing, ""), "ca-cert.pem: ");
    fs::write(nothing.join("ca-cert.pem"), "no certificate").unwrap();
    fails(&uri(&socket, &nothing, ""), "PEM");
    let none = NbdUri::parse(&format!("nbds+unix:///?socket={}", socket.display())).unwrap();
    fails(&none, "tls-certificates=DIR is missing");

    // Revoked: serial number 17.
    authority.revoke(17);
    fails(&uri(&socket, certs, ""), "Revoked");
    fs::remove_file(certs.join("ca-crl.pem")).unwrap();
    // A list that cannot be read is not an absent one.
    std::os::unix::fs::symlink("nowhere", certs.join("ca-crl.pem")).unwrap();
    fails(&uri(&socket, certs, ""), "ca-crl.pem");
    fs::remove_file(certs.join("ca-crl.pem")).unwrap();
    works(&uri(&socket, certs, ""));
    std::os::unix::fs::symlink("nowhere", certs.join("client-key.pem")).unwrap();
    fails(&uri(&socket, certs, ""), "client-key.pem");
    fs::remove_file(certs.join("client-key.pem")).unwrap();
    drop(server);

    // A server that checks its clients.
    let socket = dir.path().join("checks");
    let _server = require(&socket, certs, &["--tls-verify-peer"]);
    let error = refused(&uri(&socket, certs, ""), &quick());
    assert!(matches!(error, OpenError::TlsFailed { .. } | OpenError::Closed { .. }), "{error:?}");
    authority.issue("client", "client", 18);
    works(&uri(&socket, certs, ""));
    fs::write(certs.join("client-cert.pem"), "").unwrap();
    let error = refused(&uri(&socket, certs, ""), &quick());
    assert!(matches!(error, OpenError::Certificates(_)) && error.to_string().contains("client-cert.pem"), "{error:?}");
    count("nbd_store_tls_refusals", checks);
}

/// Receives flags and STARTTLS, and sends `reply`. Then it waits for the client to go.
fn serve(mut client: UnixStream, reply: &[u8]) {
    let greeting = [&b"NBDMAGICIHAVEOPT"[..], &[0, 1]].concat();
    let _ = client.write_all(&greeting);
    let mut received = [0; 20];
    if client.read_exact(&mut received).is_ok() {
        assert_eq!(received[12..16], [0, 0, 0, 5], "STARTTLS comes first");
        let _ = client.write_all(reply);
        // What a server answers that did not do TLS, and believes that the client does not either.
        let _ = client.read_to_end(&mut Vec::new());
    }
}

#[test]
fn server_that_does_no_tls_gets_nothing_and_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::with_server(&dir.path().join("certificates"), "server");
    let certs = authority.dir();
    let reply = |kind: u32| {
        let magic = 0x0003_e889_0455_65a9u64.to_be_bytes();
        [&magic[..], &5u32.to_be_bytes(), &kind.to_be_bytes(), &0u32.to_be_bytes()].concat()
    };
    let ack = reply(1);
    let injected = [&ack[..], &reply(1), &[0; 64]].concat();
    let garbage = [&ack[..], &[0xff; 300]].concat();
    let half = [&ack[..], &[22, 3, 3, 0x20]].concat();
    let alert = [&ack[..], &[21, 3, 3, 0, 2, 2, 40]].concat();
    let cases = [
        ("unknown option", reply(1 << 31 | 1), "does not support TLS"),
        ("policy", reply(1 << 31 | 2), "does not support TLS"),
        ("invalid", reply(1 << 31 | 3), "refuses"),
        ("another reply", reply(3), "violates the protocol"),
        ("replies before the handshake", injected, "no TLS with"),
        ("garbage", garbage, "no TLS with"),
        ("alert", alert, "no TLS with"),
        ("half a record", half, "no answer"),
        ("nothing", ack, "no answer"),
    ];
    for (number, (name, reply, words)) in cases.iter().enumerate() {
        let socket = dir.path().join(number.to_string());
        let listener = UnixListener::bind(&socket).unwrap();
        let mut options = quick();
        options.connect_timeout = Duration::from_millis(if *words == "no answer" { 300 } else { 60_000 });
        std::thread::scope(|scope| {
            scope.spawn(|| serve(listener.accept().unwrap().0, reply));
            let error = refused(&uri(&socket, certs, ""), &options).to_string();
            assert!(error.contains(words), "{name}: {error}");
        });
    }
    count("nbd_store_tls_impostors", cases.len() as u64);
}

/// Passes on what comes from one side until the other has gone. Once `is_cut`, sends garbage instead, and keeps both
/// connections.
fn relay(mut from: UnixStream, mut to: UnixStream, is_cut: &AtomicBool) {
    let mut data = [0; 1 << 16];
    while let Ok(len @ 1..) = from.read(&mut data) {
        if is_cut.load(Ordering::SeqCst) {
            let _ = to.write_all(&[0xff; 8192]);
            while from.read(&mut data).is_ok_and(|len| len > 0) {}
        } else if to.write_all(&data[..len]).is_err() {
            return;
        }
    }
}

/// The server has the write, and a relay puts garbage in the place of its reply. The server may carry it out at any
/// time, so it must not be made again over another connection and acknowledged.
#[test]
fn write_whose_connection_gets_garbage_is_not_acknowledged_early() {
    static IS_CUT: AtomicBool = AtomicBool::new(false);
    static NONE: AtomicBool = AtomicBool::new(false);
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::with_server(&dir.path().join("certificates"), "server");
    let certs = authority.dir();
    let (behind, before) = (dir.path().join("server"), dir.path().join("between"));
    let _server = require(&behind, certs, &[]);
    let listener = UnixListener::bind(&before).unwrap();
    std::thread::spawn(move || {
        let mut connections = Vec::new();
        while let Ok((client, _)) = listener.accept() {
            let server = UnixStream::connect(&behind).unwrap();
            let is_cut: &'static AtomicBool = if connections.is_empty() { &IS_CUT } else { &NONE };
            let sides = [&client, &server].map(|side| (side.try_clone().unwrap(), side.try_clone().unwrap()));
            let [(from_client, to_client), (from_server, to_server)] = sides;
            std::thread::spawn(move || relay(from_client, to_server, &NONE));
            std::thread::spawn(move || relay(from_server, to_client, is_cut));
            // The server does not learn that the client has ended its side.
            connections.push((client, server));
        }
    });
    let mut options = quick();
    options.connections = 1;
    let store = NbdStore::open(&uri(&before, certs, ""), &options, false).unwrap();
    assert_eq!(store.write_at(&[1; 4096], 0), Ok(4096));
    store.sync().unwrap();
    IS_CUT.store(true, Ordering::SeqCst);
    assert_eq!(store.write_at(&[2; 4096], 0), Err(Errno::IO), "the reply was lost");
    assert_eq!(store.sync(), Err(Errno::IO));
    let mut data = [0; 4096];
    assert_eq!(store.read_at(&mut data, 0), Ok(4096), "over another connection");
    assert!(data == [2; 4096], "the server carried it out");
    assert_eq!(store.sync(), Err(Errno::IO), "for ever");
}

/// Passes on what comes from one side. While `is_held` it stops with what it has, and counts the sides that stopped.
fn hold(mut from: UnixStream, mut to: UnixStream, number: usize, is_held: &AtomicBool, stopped: &AtomicUsize) {
    let mut data = [0; 4096];
    while let Ok(len @ 1..) = from.read(&mut data) {
        if is_held.load(Ordering::SeqCst) {
            stopped.fetch_or(1 << number, Ordering::SeqCst);
            eventually("what is held goes on", || is_held.load(Ordering::SeqCst), |is_held| !is_held);
        }
        if to.write_all(&data[..len]).is_err() {
            return;
        }
    }
}

/// A write is encrypted and the socket has taken a part of it when the other connection is lost. The rest is sent all
/// the same: the server has to be done with the write before it is made again.
#[test]
fn rest_of_a_write_is_sent_on_a_connection_that_is_given_up() {
    static IS_HELD: AtomicBool = AtomicBool::new(false);
    static STOPPED: AtomicUsize = AtomicUsize::new(0);
    static IS_LOST: AtomicBool = AtomicBool::new(false);
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::with_server(&dir.path().join("certificates"), "server");
    let certs = authority.dir();
    let (behind, before) = (dir.path().join("server"), dir.path().join("between"));
    let _server = require(&behind, certs, &[]);
    let listener = UnixListener::bind(&before).unwrap();
    let connections = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&connections);
    std::thread::spawn(move || {
        while let Ok((client, _)) = listener.accept() {
            let server = UnixStream::connect(&behind).unwrap();
            let [from, to] = [&client, &server].map(|side| (side.try_clone().unwrap(), side.try_clone().unwrap()));
            let number = kept.lock().unwrap().len();
            std::thread::spawn(move || hold(from.0, to.1, number, &IS_HELD, &STOPPED));
            std::thread::spawn(move || relay(to.0, from.1, &AtomicBool::new(false)));
            kept.lock().unwrap().push(client);
        }
    });
    let mut options = quick();
    let long = Duration::from_secs(200);
    (options.connect_timeout, options.reconnect_delay, options.store_timeout) = (long, long, long);
    options.notify = Some(|_, event| {
        IS_LOST.fetch_or(event.contains("connecting again"), Ordering::SeqCst);
    });
    let store = NbdStore::open(&uri(&before, certs, ""), &options, false).unwrap();
    assert_eq!(connections.lock().unwrap().len(), 2);
    IS_HELD.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        // More than the sockets take, and not more than is encrypted before they have taken it.
        let write = scope.spawn(|| store.write_at(&[1; 250 << 10], 0));
        let stopped = eventually("the write is held", || STOPPED.load(Ordering::SeqCst), |stopped| *stopped != 0);
        let other = usize::from(stopped == 1);
        connections.lock().unwrap()[other].shutdown(std::net::Shutdown::Both).unwrap();
        eventually("the connection is lost", || IS_LOST.load(Ordering::SeqCst), |is_lost| *is_lost);
        IS_HELD.store(false, Ordering::SeqCst);
        eventually("the write is made again", || write.is_finished(), |is_finished| *is_finished);
        assert_eq!(write.join().unwrap(), Ok(250 << 10));
    });
    assert_eq!(store.sync(), Ok(()));
}
