//! Workers that end while their clients are at rest, and start again with a request.

use crate::client::{READ, WRITE};
use crate::support::*;
use inlock_engine::store::file::IoMode;
use inlock_engine::{BackingStore, Device};
use inlock_frontend::nbd::exports::{Catalog, ExportServer, Lease, Unavailable};
use inlock_frontend::nbd::listener::ExportListener;
use inlock_frontend::nbd::park::Parking;
use inlock_frontend::nbd::server::{Limits, Listen, ServerOptions};
use inlock_frontend::nbd::throttle::ExportLimits;
use inlock_tests::nbd::{Connection, Mode, go_data, option_bytes};
use inlock_tests::random::Random;
use inlock_tests::report::count;
use inlock_tests::wait::eventually;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const LEN: u64 = 4 * MIB;
const PATIENCE: Duration = Duration::from_secs(600);

struct One(Mutex<Option<Arc<ExportServer>>>);

impl Catalog for One {
    fn names(&self) -> Vec<String> {
        vec![NAME.to_owned()]
    }

    fn open(&self, _name: &str) -> Result<Lease, Unavailable> {
        let server = self.0.lock().expect("a result");
        server.as_ref().and_then(|server| server.lease()).ok_or(Unavailable::Refused)
    }
}

/// An export whose workers end as soon as their clients are at rest.
struct Exported {
    server: Arc<ExportServer>,
    device: Arc<Device>,
    catalog: Arc<One>,
    socket: PathBuf,
    _listener: ExportListener,
    _parking: Parking,
    _dir: tempfile::TempDir,
}

impl Exported {
    fn new(store: Arc<dyn BackingStore>, io: IoMode, threads: usize) -> Self {
        let dir = tempfile::tempdir().expect("a directory for the socket");
        let socket = dir.path().join("socket");
        let device = device(store, 4096, READ_WRITE_DISCARD);
        let mut options = ServerOptions::default();
        options.export_name = NAME.into();
        (options.threads, options.io, options.park_after) = (threads, io, Duration::ZERO);
        let parking = Parking::start().expect("a thread");
        let server = ExportServer::start(Arc::clone(&device), &options, ExportLimits::default(), &parking);
        let server = Arc::new(server.expect("the workers start"));
        let listen = Listen::Unix(socket.clone());
        let catalog = Arc::new(One(Mutex::new(Some(Arc::clone(&server)))));
        let listener = ExportListener::start(&listen, catalog.clone(), Limits::default(), None);
        let listener = listener.expect("it listens");
        Self { server, device, catalog, socket, _listener: listener, _parking: parking, _dir: dir }
    }

    fn client(&self) -> Connection {
        let mut client = Connection::haggle(&self.socket, PATIENCE).expect("a server");
        client.go(NAME.as_bytes()).expect("an export");
        client
    }

    /// Blocks until no worker runs.
    fn rest(&self) {
        eventually("all workers have ended", || self.server.running_workers(), |number| *number == 0);
    }

    fn wait_for_clients(&self, number: usize) {
        eventually("clients are counted", || self.server.clients(), |clients| *clients == number);
    }
}

/// Spins for a random time, around that which a worker needs to end.
fn dawdle(random: &mut Random) {
    (0..random.below(20_000)).for_each(|_| std::hint::spin_loop());
}

/// Sends bytes in two parts, with a pause between them.
fn send(client: &mut Connection, bytes: &[u8], random: &mut Random) {
    let (first, second) = bytes.split_at(random.below(bytes.len() as u64 + 1) as usize);
    client.send(first).expect("a connection");
    dawdle(random);
    client.send(second).expect("a connection");
}

/// Writes and reads `turns` times in a range of the device, with pauses of any length, and compares with a model.
/// Returns how often it found all workers at rest.
fn exercise(exported: &Exported, base: u64, turns: usize, random: &mut Random) -> u64 {
    let len = LEN / 4;
    let mut client = exported.client();
    let (mut model, mut rests) = (client.read(base, len as usize).expect("a reply"), 0);
    let noise = pattern(base + 1, len);
    for _ in 0..turns {
        match random.below(3) {
            0 => {
                exported.rest();
                rests += 1;
            }
            1 => dawdle(random),
            _ => {}
        }
        let offset = random.below(len - 1);
        let longest = if random.below(30) == 0 { 200_000 } else { 9000 };
        let size = (1 + random.below(longest)).min(len - offset);
        let range = offset as usize..(offset + size) as usize;
        if random.below(2) == 0 {
            let (_, mut bytes) = client.header(0, WRITE, base + offset, size);
            let start = random.below(len - size) as usize;
            let data = &noise[start..start + size as usize];
            bytes.extend_from_slice(data);
            send(&mut client, &bytes, random);
            model[range].copy_from_slice(data);
            assert_eq!(client.reply(0).expect("a reply").error, 0);
        } else {
            let (_, bytes) = client.header(0, READ, base + offset, size);
            send(&mut client, &bytes, random);
            let reply = client.reply(size as usize).expect("a reply");
            assert!(reply.data == model[range], "{size} bytes at {offset}");
        }
    }
    assert!(client.read(base, len as usize).expect("a reply") == model);
    rests
}

#[test]
fn requests_around_thousands_of_rests_are_those_of_the_model() {
    let mut rests = 0;
    for io in rings() {
        for threads in [1, 2] {
            let exported = Exported::new(memory(LEN), io, threads);
            let exported = &exported;
            rests += exercise(exported, 0, 1200, &mut Random::new(threads as u64));
            std::thread::scope(|scope| {
                let run = |number| move || exercise(exported, number * LEN / 4, 150, &mut Random::new(10 + number));
                let clients: Vec<_> = (1..4).map(|number| scope.spawn(run(number))).collect();
                rests += clients.into_iter().map(|client| client.join().expect("the model")).sum::<u64>();
            });
            exported.server.stop().expect("no write is lost");
        }
    }
    count("rests of workers", rests as usize);
}

#[test]
fn clients_that_leave_at_rest_are_noticed_without_a_worker() {
    for io in rings() {
        let exported = Exported::new(memory(LEN), io, 1);
        let mut clients: Vec<_> = (0..9).map(|_| exported.client()).collect();
        clients.iter_mut().for_each(|client| drop(client.read(0, 512).expect("a reply")));
        exported.rest();
        assert_eq!(exported.server.clients(), 9);
        drop(clients.split_off(6));
        exported.wait_for_clients(6);
        for client in &mut clients[4..] {
            client.finish_sending().expect("a connection");
            client.expect_closed().expect("the end");
        }
        exported.wait_for_clients(4);
        // Bytes that are no request end their client only.
        clients[3].send(&[0; 28]).expect("a connection");
        clients[3].expect_closed().expect("the end");
        let last = clients.remove(2);
        last.disconnect().expect("a connection");
        exported.wait_for_clients(2);
        clients.truncate(2);
        for client in &mut clients {
            client.read(0, 512).expect("a reply");
        }
        exported.rest();
        exported.server.stop().expect("nothing was written");
        clients.iter_mut().for_each(|client| assert_eq!(client.expect_closed().expect("the end"), 0));
        exported.wait_for_clients(0);
    }
}

#[test]
fn stop_at_any_time_around_a_rest_loses_no_write_that_was_answered() {
    let mut answered = 0;
    for io in rings() {
        for round in 0..200 {
            let random = &mut Random::new(round);
            let store = FaultyStore::new(LEN);
            let exported = Exported::new(Arc::<FaultyStore>::clone(&store), io, 1);
            let mut client = exported.client();
            client.write(0, &[1; 4096]).expect("a reply");
            let before = client.read(8192, 8192).expect("a reply");
            exported.rest();
            let data = pattern(round, 8192);
            let (_, mut bytes) = client.header(0, WRITE, 8192, 8192);
            bytes.extend_from_slice(&data);
            client.send(&bytes).expect("a connection");
            dawdle(random);
            exported.server.stop().expect("no write is lost");
            assert_eq!(exported.server.running_workers(), 0);
            let is_answered = client.reply(0).is_ok_and(|reply| reply.error == 0);
            answered += usize::from(is_answered);
            let read = |offset, len| {
                let mut bytes = vec![0; len];
                let device = inlock_engine::BlockingDevice::new(Arc::clone(&exported.device));
                device.read_at(&mut bytes, offset).expect("memory does not fail");
                bytes
            };
            let found = read(8192, 8192);
            assert!(found == data || !is_answered && found == before, "round {round}");
            assert!(read(0, 4096) == [1; 4096]);
            let writes = store.writes.load(std::sync::atomic::Ordering::SeqCst);
            assert_eq!(store.synced_writes.load(std::sync::atomic::Ordering::SeqCst), writes, "round {round}");
        }
    }
    println!("{answered} writes were answered");
}

#[test]
fn request_to_a_device_that_was_suspended_at_rest_waits_for_its_key() {
    for io in rings() {
        let exported = Exported::new(memory(LEN), io, 2);
        let (mut first, mut second) = (exported.client(), exported.client());
        first.write(0, &[7; 4096]).expect("a reply");
        exported.rest();
        exported.device.suspend().expect("it suspends");
        let (_, bytes) = second.header(0, READ, 0, 4096);
        second.send(&bytes).expect("a connection");
        eventually("a worker runs", || exported.server.running_workers(), |number| *number > 0);
        exported.device.resume().expect("it has its key");
        assert!(second.reply(4096).expect("a reply").data == [7; 4096]);
        exported.rest();
        assert!(first.read(0, 4096).expect("a reply") == [7; 4096]);
    }
}

#[test]
fn request_to_a_suspended_device_does_not_keep_a_server_that_stops() {
    let exported = Exported::new(memory(LEN), IoMode::Sync, 1);
    let mut client = exported.client();
    client.write(0, &[7; 4096]).expect("a reply");
    exported.device.suspend().expect("it suspends");
    client.request(0, READ, 0, 4096).expect("a connection");
    // The reply to a request that is refused shows that the one before it waits.
    client.request(0, READ, LEN, 4096).expect("a connection");
    assert_ne!(client.reply(0).expect("a reply").error, 0);
    exported.server.stop().expect("no write is lost");
    assert_ne!(client.reply(0).expect("a reply").error, 0);
}

#[test]
fn clients_keep_what_they_negotiated() {
    for io in rings() {
        let exported = Exported::new(memory(LEN), io, 1);
        for mode in [Mode::Simple, Mode::Structured, Mode::Extended] {
            let mut client = Connection::open(&exported.socket, PATIENCE, mode).expect("an export");
            for round in 0..20 {
                client.write(512, &[mode as u8 + round; 512]).expect("a reply");
                exported.rest();
                assert!(client.read(512, 512).expect("a reply") == [mode as u8 + round; 512], "{mode:?}");
                exported.rest();
            }
        }
    }
}

/// Threads of workers that end, the thread that watches clients, and clients in their handshake.
#[test]
fn export_has_so_many_clients_and_no_more() {
    let mut options = ServerOptions::default();
    (options.export_name, options.max_connections, options.io) = (NAME.into(), 2, IoMode::Sync);
    let parking = Parking::start().expect("a thread");
    let device = device(memory(LEN), 4096, READ_WRITE_DISCARD);
    let server = ExportServer::start(device, &options, ExportLimits::default(), &parking);
    let server = Arc::new(server.expect("the workers start"));
    for _ in 0..3 {
        let leases = [(); 3].map(|()| server.lease());
        assert_eq!(leases.each_ref().map(Option::is_some), [true, true, false]);
    }
}

#[test]
fn clients_of_an_export_are_spread_over_its_workers() {
    let store = FaultyStore::new(LEN);
    let exported = Exported::new(store.clone(), IoMode::Sync, 3);
    store.set(Faults { hold_writes: true, ..Faults::default() });
    let held = Release(Arc::clone(&store));
    let mut clients = [(); 3].map(|()| exported.client());
    for (client, offset) in clients.iter_mut().zip([0, 4096, 8192]) {
        client.request(0, WRITE, offset, 4096).expect("it is sent");
        client.send(&[1; 4096]).expect("it is sent");
    }
    let waiting = || store.waiting.load(Ordering::SeqCst);
    eventually("each worker writes for one client", waiting, |number| *number == 3);
    drop(held);
    exported.server.stop().expect("it stops");
}

#[test]
fn device_is_free_when_a_server_has_stopped() {
    /// NBD_OPT_INFO
    const INFO: u32 = 6;
    let mut random = Random::new(5);
    let rounds = 300;
    for round in 0..rounds {
        let exported = Exported::new(memory(LEN), IoMode::Auto, 2);
        let mut asking = Connection::haggle(&exported.socket, PATIENCE).expect("a server");
        asking.send(&option_bytes(INFO, &go_data(NAME.as_bytes(), &[]))).expect("a connection");
        asking.option_replies().expect("replies");
        let mut clients = [(); 2].map(|()| exported.client());
        for client in &mut clients {
            assert!(client.read(0, 512).is_ok());
            dawdle(&mut random);
        }
        let [first, mut second] = clients;
        // Workers start and end around this.
        let _ = if round % 2 == 0 { first.disconnect() } else { second.request(0, READ, 0, 512).map(drop) };
        dawdle(&mut random);
        let Exported { server, device, catalog, .. } = exported;
        catalog.0.lock().unwrap().take();
        server.stop().expect("no write is lost");
        drop(server);
        assert_eq!(Arc::strong_count(&device), 1, "round {round}: the device is in use");
        assert!(asking.go(NAME.as_bytes()).is_err(), "a client has a device that is gone");
    }
    count("servers that stopped with clients in their handshake", rounds);
}
