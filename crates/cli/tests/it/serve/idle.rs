//! Clients that are idle keep no other out, and none waiting that is at rest.

use super::many::{Many, volume};
use super::tls::{authority, require, size, start_many};
use super::{start, stop};
use crate::harness::{Dir, have, inlock};
use inlock_tests::nbd::{Connection, command, go_data, option, option_bytes};
use inlock_tests::report::count;
use inlock_tests::wait::eventually;
use rustix::process::Signal;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(300);
/// Idle clients, many more than a stage of the handshake has places.
const IDLE: usize = 300;

fn silent(socket: &Path, number: usize) -> Vec<Connection> {
    let client = |_| {
        let mut client = Connection::dial(socket, TIMEOUT).expect("it listens");
        client.greeting().expect("a greeting");
        client.set_patience(Duration::from_millis(1)).expect("a socket");
        client
    };
    (0..number).map(client).collect()
}

fn connected(clients: &mut [Connection]) -> usize {
    clients.iter_mut().filter_map(|client| client.discard().err()).count()
}

/// None of the idle ones has been dropped because of its own deadline when the last valid client is served.
#[test]
fn valid_clients_are_served_while_idle_ones_wait() {
    if !have("nbdinfo") {
        return;
    }
    for (has_many, has_tls) in [(false, false), (false, true), (true, false), (true, true)] {
        let dir = Dir::new();
        let (_authority, certificates) = authority(&dir);
        let (image, socket) = (dir.image("image", 1), dir.path("s"));
        let address = format!("unix:{}", socket.display());
        let (child, uri) = if has_many {
            let volume = format!("[volumes.a]\nimage = \"{image}\"\ntype = \"raw\"\n");
            let tls = format!("tls = \"require\"\ntls-certificates = \"{certificates}\"\n");
            let tls = if has_tls { &tls } else { "" };
            start_many(&dir, &format!("default = \"a\"\n{tls}{volume}"), &address)
        } else {
            let tls = require(&certificates);
            let tls = if has_tls { &tls[..] } else { &[] };
            start(&[&["--type", "raw", &image, "--nbd", &address][..], tls].concat())
        };
        let before = silent(&socket, IDLE);
        let mut valid = Connection::haggle(&socket, TIMEOUT).unwrap();
        // It has more places before it than behind it, when these come.
        let mut after = silent(&socket, 100);
        if has_tls {
            let reply = valid.ask(option::STARTTLS, b"").unwrap();
            assert_eq!(reply.kind, inlock_tests::nbd::option_reply::ACK, "many: {has_many}");
        } else {
            valid.go(b"").unwrap();
            valid.read(0, 512).unwrap();
        }
        let (code, text) = size(&uri);
        assert_eq!(code, 0, "many: {has_many}, TLS: {has_tls}: {text}");
        assert_eq!(connected(&mut after), 100, "many: {has_many}, TLS: {has_tls}");
        drop((before, valid));
        count("idle_clients_beside_valid_ones", IDLE);
        let (code, err) = stop(child, Signal::TERM);
        assert_eq!(code, Some(0), "{err}");
    }
}

/// All descriptors that clients may have are in use.
#[test]
fn client_at_rest_is_served_at_the_limit_of_descriptors() {
    if !have("prlimit") {
        return;
    }
    for io in ["uring", "sync"] {
        let dir = Dir::new();
        let images = ["rests", "full"].map(|name| (name, dir.image(name, 1)));
        let options = format!("type = \"raw\"\nio = \"{io}\"\nmax-clients = 1000");
        let config: String = images.iter().map(|(name, image)| volume(name, image, &options)).collect();
        let mut command = Command::new("prlimit");
        command.arg("--nofile=128:128").arg(inlock().get_program());
        let many = Many::start_by(command, dir, &config, &[]);
        let mut resting = many.client("rests").unwrap();
        resting.write(0, &[7; 512]).unwrap();
        eventually("its worker has ended", || many.workers(), |number| *number == 0);
        // In transmission, and for good.
        let start = [&3_u32.to_be_bytes()[..], &option_bytes(option::GO, &go_data(b"full", &[]))].concat();
        let mut refused = 0;
        let mut held = Vec::new();
        for _ in 0..200 {
            let mut client = Connection::dial(&many.nbd, Duration::from_secs(5)).unwrap();
            match client.greeting().and_then(|_| client.send(&start)).and_then(|()| client.option_replies()) {
                Ok(_) => held.push(client),
                // The server has taken it, and disconnects it at once.
                Err(_) => refused += 1,
            }
        }
        assert!(refused > 0 && held.len() > 20, "{io}: {} clients, {refused} refused", held.len());
        resting.request(0, command::READ, 0, 512).unwrap();
        let reply = resting.reply(512).unwrap();
        assert!(reply.error == 0 && reply.data == [7; 512], "{io}");
        assert_eq!(many.listed("rests")["clients"], 1);
        // Others find room when clients leave.
        drop(held);
        let is_served = || Connection::haggle(&many.nbd, TIMEOUT).and_then(|mut client| client.go(b"full")).is_ok();
        eventually("a client is served", is_served, |is_served| *is_served);
        many.stop();
    }
}
