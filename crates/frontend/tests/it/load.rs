//! Many requests at once, long ones, failing ones, clients that stall, and a server that stops.

use crate::client::*;
use crate::support::*;
use inlock_engine::Errno;
use inlock_engine::store::file::{FileStore, IoMode};
use inlock_tests::wait::eventually;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn many_requests_in_flight_are_all_answered() {
    const SLOT: u64 = 24 << 10;
    for io in rings() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(store_len(16 * MIB)).expect("a sparse file");
        let store = FileStore::new(file, io).expect("a regular file");
        let served = Served::new(device(Arc::new(store), 4096, READ_WRITE_DISCARD), io, 2);
        for mode in MODES {
            let mut client = Client::open(served.path(), mode);
            let slots = 0..400;
            let written: Vec<u64> =
                slots.clone().map(|n| client.send_write(0, n * SLOT + n, &pattern(n, 1 + n * 50))).collect();
            let long = client.send(READ, 0, 12 * MIB, 4 * MIB);
            let asked: Vec<u64> = slots.clone().map(|n| client.send(CACHE, 0, n * SLOT, 5)).collect();
            for cookie in written.into_iter().chain(asked).chain([long]) {
                assert_eq!(client.wait(cookie).error, 0);
            }
            let read: Vec<u64> = slots.clone().map(|n| client.send(READ, 0, n * SLOT + n, 1 + n * 50)).collect();
            for (n, cookie) in slots.zip(read) {
                assert_eq!(client.wait(cookie).data, pattern(n, 1 + n * 50), "{io:?}, {mode:?}, slot {n}");
            }
            client.disconnect();
        }
    }
}

/// A suspended device starts no request, so that all are in flight at once: 5000, and a worker carries 4096.
#[test]
fn more_requests_than_worker_carries_are_all_answered() {
    for io in rings() {
        let served = Served::new(device(memory(MIB), 4096, READ_WRITE_DISCARD), io, 1);
        let mut clients: Vec<Client> = (0..20).map(|n| Client::open(served.path(), MODES[n % 3])).collect();
        served.device.suspend().expect("nothing is in flight");
        let mut asked = Vec::new();
        for client in &mut clients {
            asked.push((0..250).map(|n| client.send(CACHE, 0, n * 4096, 4096)).collect::<Vec<_>>());
        }
        let writes: Vec<u64> = clients.iter_mut().map(|client| client.send_write(0, 5, &[7; 600])).collect();
        served.device.resume().expect("the key is there");
        for ((client, cookies), write) in clients.iter_mut().zip(asked).zip(writes) {
            assert!(cookies.into_iter().chain([write]).all(|cookie| client.wait(cookie).error == 0));
        }
        assert_eq!(clients.swap_remove(0).read(5, 600), [7; 600]);
    }
}

#[test]
fn short_request_behind_long_one_is_answered_first() {
    for io in rings() {
        let served = Served::new(device(memory(32 * MIB), 4096, READ_WRITE_DISCARD), io, 1);
        for mode in [Mode::Structured, Mode::Extended] {
            let mut client = Client::open(served.path(), mode);
            let long = client.send(READ, 0, 0, 32 * MIB);
            let short = client.send(FLUSH, 0, 0, 0);
            client.wait(long);
            assert_eq!(client.order, [short, long]);
        }
    }
}

#[test]
fn longest_request_in_every_mode_is_carried_out() {
    for io in rings() {
        let mut served = Served::new(device(memory(40 * MIB), 4096, READ_WRITE_DISCARD), io, 1);
        for (seed, mode) in MODES.into_iter().enumerate() {
            let bytes = pattern(seed as u64, 32 * MIB);
            let mut client = Client::open(served.path(), mode);
            assert_eq!(client.write(FUA, 4099, &bytes), 0);
            assert!(client.read(4099, 32 * MIB) == bytes, "{io:?}, {mode:?}");
            assert_eq!(client.call(READ, 0, 0, 32 * MIB + 1).error, errno::INVAL);
            client.disconnect();
        }
        served.stop().expect("an idle server stops");
    }
}

#[test]
fn two_longest_reads_at_once_return_their_data() {
    for io in rings() {
        let served = Served::new(device(memory(40 * MIB), 4096, READ_WRITE_DISCARD), io, 1);
        let bytes = pattern(5, 40 * MIB);
        let mut client = Client::open(served.path(), Mode::Structured);
        let writes = [(0, 20 * MIB), (20 * MIB, 20 * MIB)]
            .map(|(offset, len)| client.send_write(0, offset, &bytes[offset as usize..(offset + len) as usize]));
        for cookie in writes {
            assert_eq!(client.wait(cookie).error, 0);
        }
        for mode in [Mode::Structured, Mode::Extended] {
            let mut client = Client::open(served.path(), mode);
            let reads = [1, 8 * MIB].map(|offset| (offset, client.send(READ, 0, offset, 32 * MIB)));
            for (offset, cookie) in reads {
                let range = offset as usize..(offset + 32 * MIB) as usize;
                assert!(client.wait(cookie).data == bytes[range], "{io:?}, {mode:?}, from {offset}");
            }
            client.disconnect();
        }
    }
}

#[test]
fn store_error_is_reported_and_leaves_stream_in_step() {
    for io in rings() {
        for (mode, (errno, told)) in
            MODES.into_iter().flat_map(|s| [(Errno::IO, errno::IO), (Errno::NOSPC, errno::NOSPC)].map(|e| (s, e)))
        {
            let store = FaultyStore::new(8 * MIB);
            let served = Served::new(device(Arc::clone(&store) as _, 4096, READ_WRITE_DISCARD), io, 1);
            let mut client = Client::open(served.path(), mode);
            let good = pattern(1, 4 * MIB);
            assert_eq!(client.write(0, 0, &good), 0);
            store.set(Faults { bad_reads: Some((8192..8193, errno)), ..Faults::default() });
            assert_eq!(client.call(READ, 0, 8192, 4096).error, told);
            assert_eq!(client.call(READ, 0, 0, 65_536).error, told);
            assert_eq!(client.write(0, 8193, &[1; 5]), told, "what surrounds the bytes cannot be read");
            assert_eq!(client.write(0, 8192, &good[8192..12288]), 0, "a whole unit needs no read");
            // The second of three pieces fails while the third is in flight.
            store.set(Faults { bad_writes: Some((MIB + 4096..MIB + 4097, errno)), ..Faults::default() });
            assert_eq!(client.write(0, 0, &good[..3 * MIB as usize]), told);
            assert_eq!(client.call(WRITE_ZEROES, 0, MIB, 2 * MIB).error, told);
            store.set(Faults::default());
            assert_eq!(client.write(0, 0, &good), 0);
            assert!(client.read(0, 4 * MIB) == good, "{io:?}, {mode:?}");
            client.disconnect();
        }
    }
}

#[test]
fn flush_after_failed_flush_fails() {
    for (io, mode) in rings().into_iter().flat_map(|io| MODES.map(|mode| (io, mode))) {
        let store = FaultyStore::new(MIB);
        let mut served = Served::new(device(Arc::clone(&store) as _, 4096, READ_WRITE_DISCARD), io, 2);
        let (mut client, mut other) = (Client::open(served.path(), mode), Client::open(served.path(), mode));
        assert_eq!(client.write(0, 0, &[1; 4096]), 0);
        store.set(Faults { bad_sync: Some(Errno::NOSPC), ..Faults::default() });
        assert_ne!(client.call(FLUSH, 0, 0, 0).error, 0);
        for client in [&mut client, &mut other] {
            assert_eq!(client.call(FLUSH, 0, 0, 0).error, errno::IO);
            assert_eq!(client.write(FUA, 0, &[2; 4096]), errno::IO);
            assert_eq!(client.write(0, 0, &[3; 4096]), 0);
            assert_eq!(client.read(0, 4096), [3; 4096]);
        }
        assert!(served.stop().is_err(), "the end says so too");
    }
}

#[test]
fn flush_covers_writes_answered_on_other_connections() {
    for io in rings() {
        let store = FaultyStore::new(MIB);
        let served = Served::new(device(Arc::clone(&store) as _, 4096, READ_WRITE_DISCARD), io, 2);
        let mut writers: Vec<Client> = MODES.map(|mode| Client::open(served.path(), mode)).into();
        let mut flusher = Client::open(served.path(), Mode::Simple);
        assert_ne!(flusher.flags() & 1 << 8, 0, "many connections are announced");
        for round in 1..20u64 {
            for (n, writer) in writers.iter_mut().enumerate() {
                assert_eq!(writer.write(0, n as u64 * 8192, &pattern(round, 4096)), 0);
            }
            assert_eq!(flusher.call(FLUSH, 0, 0, 0).error, 0);
            assert_eq!(store.synced_writes.load(Ordering::SeqCst), round * 3);
            for n in 0..3 {
                assert_eq!(flusher.read(n * 8192, 4096), pattern(round, 4096), "one sees what the others wrote");
            }
        }
        assert_eq!(store.syncs.load(Ordering::SeqCst), 19);
        assert_eq!(flusher.write(FUA, 1, &[1]), 0);
        assert_eq!(flusher.call(WRITE_ZEROES, FUA, 0, 4096).error, 0);
        assert_eq!(store.durable_writes.load(Ordering::SeqCst), 0, "each was written");
        assert_eq!(store.syncs.load(Ordering::SeqCst), 21, "and then synced");
        assert_eq!(store.synced_writes.load(Ordering::SeqCst), store.writes.load(Ordering::SeqCst));
        store.native_fua.store(true, Ordering::SeqCst);
        assert_eq!(flusher.write(FUA, 1, &[1]), 0);
        assert_eq!(flusher.call(WRITE_ZEROES, FUA, 0, 4096).error, 0);
        assert_eq!(store.durable_writes.load(Ordering::SeqCst), 2);
        assert_eq!(store.syncs.load(Ordering::SeqCst), 21);
    }
}

/// Writes and reads while other clients work, and compares all data.
fn good_work(served: &Served, mode: Mode) {
    let mut client = Client::open(served.path(), mode);
    for round in 0..20 {
        let bytes = pattern(round, 300_000 + round);
        assert_eq!(client.write(0, 30 * MIB + round, &bytes), 0);
        assert!(client.read(30 * MIB + round, bytes.len() as u64) == bytes);
        assert_eq!(client.call(FLUSH, 0, 0, 0).error, 0);
    }
    client.disconnect();
}

#[test]
fn slow_readers_and_stalled_writers_harm_only_themselves() {
    for io in rings() {
        let served = Served::new(device(memory(40 * MIB), 4096, READ_WRITE_DISCARD), io, 1);
        let mut idle = Vec::new();
        for mode in MODES {
            let mut slow = Client::open(served.path(), mode);
            slow.send(READ, 0, 0, 16 * MIB);
            let mut stalled = Client::open(served.path(), mode);
            let (header, _) = stalled.header(WRITE, 0, 0, 20 * MIB);
            stalled.connection.stream.write_all(&[header, vec![1; 100_000]].concat()).expect("the server reads");
            let half = Client::open(served.path(), mode);
            (&half.connection.stream).write_all(&[0x25, 0x60]).expect("the server reads");
            idle.push((slow, stalled, half));
            if mode == Mode::Structured {
                // All four together would fill the buffers; how that ends is a matter of time.
                break;
            }
        }
        for mode in MODES {
            good_work(&served, mode);
        }
        let (mut slow, mut stalled, _) = idle.remove(0);
        while slow.in_flight() > 0 {
            slow.receive();
        }
        stalled.connection.stream.write_all(&vec![1; 20 * MIB as usize - 100_000]).expect("the server reads on");
        while stalled.in_flight() > 0 {
            stalled.receive();
        }
        assert!(stalled.read(0, 20 * MIB) == vec![1; 20 * MIB as usize]);
    }
}

#[test]
fn client_that_disconnects_at_any_time_leaves_server_whole() {
    for io in rings() {
        let mut served = Served::new(device(memory(40 * MIB), 4096, READ_WRITE_DISCARD), io, 2);
        for (n, mode) in (0..60).flat_map(|n| MODES.map(|mode| (n, mode))) {
            let mut client = Client::open(served.path(), mode);
            client.send(READ, 0, 0, n * 500_000);
            let (header, _) = client.header(WRITE, 0, 0, 2 * MIB);
            let bytes = [header, vec![1; 3 * MIB as usize]].concat();
            // The server may stop reading first.
            let _ = client
                .connection
                .stream
                .set_nonblocking(true)
                .and_then(|()| client.connection.stream.write(&bytes[..n as usize * 7000 + 1]));
        }
        good_work(&served, Mode::Extended);
        served.stop().expect("nothing is left");
    }
}

#[test]
fn client_that_closes_one_side_is_answered() {
    for (io, mode) in rings().into_iter().flat_map(|io| MODES.map(|mode| (io, mode))) {
        let served = Served::new(device(memory(4 * MIB), 4096, READ_WRITE_DISCARD), io, 1);
        let mut client = Client::open(served.path(), mode);
        for n in 0..300 {
            client.send(READ, 0, n * 4096, 65_536);
        }
        client.connection.stream.shutdown(std::net::Shutdown::Write).expect("the socket is open");
        while client.in_flight() > 0 {
            client.receive();
        }
        assert_eq!(client.connection.stream.read(&mut [0]).expect("the server disconnects"), 0);
    }
}

/// Writes numbered blocks until the server disconnects, and returns those that were acknowledged.
fn write_until_gone(client: &mut Client, gone: &AtomicBool) -> Vec<u64> {
    let mut acknowledged = Vec::new();
    let mut numbers = std::collections::BTreeMap::new();
    for n in 0..2000u64 {
        let (header, cookie) = client.header(WRITE, 0, n * 8192, 8192);
        if client.connection.stream.write_all(&[header, pattern(n, 8192)].concat()).is_err() {
            break;
        }
        numbers.insert(cookie, n);
    }
    let mut reply = [0; 16];
    while client.connection.stream.read_exact(&mut reply).is_ok() {
        assert_eq!(reply[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0]);
        let cookie = u64::from_be_bytes(reply[8..].try_into().expect("eight bytes"));
        acknowledged.push(numbers[&cookie]);
    }
    gone.store(true, Ordering::SeqCst);
    acknowledged
}

#[test]
fn write_acknowledged_before_stop_is_durable() {
    for io in rings() {
        let store = FaultyStore::new(16 * MIB);
        let mut served = Served::new(device(Arc::clone(&store) as _, 4096, READ_WRITE_DISCARD), io, 1);
        let mut client = Client::open(served.path(), Mode::Simple);
        let mut other = Client::open(served.path(), Mode::Simple);
        store.set(Faults { hold_writes: true, ..Faults::default() });
        let held = other.send_write(0, 15 * MIB + MIB / 2 + 3, &[9; 100]);
        eventually("a write waits", || store.waiting.load(Ordering::SeqCst), |waiting| *waiting > 0);
        let gone = AtomicBool::new(false);
        let acknowledged = std::thread::scope(|scope| {
            let writer = scope.spawn(|| write_until_gone(&mut client, &gone));
            let stopping = scope.spawn(|| served.stop());
            std::thread::yield_now();
            store.set(Faults::default());
            assert_eq!(other.wait(held).error, 0, "a write in flight is finished and answered");
            stopping.join().expect("no panic").expect("a good end");
            writer.join().expect("no panic")
        });
        let plain = served.plaintext();
        assert_eq!(plain[(15 * MIB + MIB / 2 + 3) as usize..][..100], [9; 100]);
        for n in acknowledged {
            assert_eq!(plain[n as usize * 8192..][..8192], pattern(n, 8192), "{io:?}, block {n}");
        }
        assert_eq!(
            store.synced_writes.load(Ordering::SeqCst),
            store.writes.load(Ordering::SeqCst),
            "and it is durable"
        );
    }
}

#[test]
fn server_with_idle_clients_at_every_stage_stops() {
    for io in [IoMode::Sync, IoMode::Auto] {
        let mut served = Served::new(device(memory(MIB), 4096, READ_WRITE_DISCARD), io, 2);
        let path = served.path().to_owned();
        let silent = connect(&path);
        let greeted = greet(&path, 3);
        let mut half = Client::open(&path, Mode::Extended);
        let (header, _) = half.header(WRITE, 0, 0, 4096);
        half.connection.stream.write_all(&header[..20]).expect("the server reads");
        let mut open = Client::open(&path, Mode::Simple);
        open.read(0, 1);
        served.stop().expect("idle clients hold nothing up");
        for mut stream in [silent.stream, greeted.stream, half.connection.stream, open.connection.stream] {
            // What was greeted may still have its greeting to read.
            let mut rest = Vec::new();
            let end = stream.read_to_end(&mut rest);
            assert!(end.is_ok() || end.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset));
        }
        assert!(!path.exists(), "the socket is gone");
    }
}

/// Many connections on two workers write parts of the same data units; none may lose another's bytes.
#[test]
fn writers_of_one_data_unit_keep_each_others_bytes() {
    const WRITERS: u64 = 6;
    for io in rings() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(store_len(MIB)).expect("a sparse file");
        let store = FileStore::new(file, io).expect("a regular file");
        let served = Served::new(device(Arc::new(store), 4096, READ_WRITE_DISCARD), io, 2);
        std::thread::scope(|scope| {
            for n in 0..WRITERS {
                let mut client = Client::open(served.path(), MODES[n as usize % 3]);
                scope.spawn(move || {
                    for round in 0..8u64 {
                        // Each writer has 100 bytes of its own in every 600, so units hold bytes of several writers.
                        let sent: Vec<u64> = (0..40)
                            .map(|k| client.send_write(0, k * 600 + n * 100, &pattern(n * 100 + k + round, 100)))
                            .collect();
                        for cookie in sent {
                            assert_eq!(client.wait(cookie).error, 0);
                        }
                        for k in 0..40 {
                            assert_eq!(client.read(k * 600 + n * 100, 100), pattern(n * 100 + k + round, 100));
                        }
                    }
                });
            }
        });
        let mut client = Client::open(served.path(), Mode::Simple);
        for (n, k) in (0..WRITERS).flat_map(|n| (0..40).map(move |k| (n, k))) {
            assert_eq!(client.read(k * 600 + n * 100, 100), pattern(n * 100 + k + 7, 100), "{io:?}, writer {n}");
        }
    }
}

#[test]
fn long_read_that_fails_at_once_leaves_stream_in_step() {
    for (io, mode) in rings().into_iter().flat_map(|io| MODES.map(|mode| (io, mode))) {
        let store = FaultyStore::new(8 * MIB);
        let served = Served::new(device(Arc::clone(&store) as _, 4096, READ_WRITE_DISCARD), io, 1);
        let mut client = Client::open(served.path(), mode);
        store.set(Faults { bad_reads: Some((0..1, Errno::IO)), ..Faults::default() });
        let failing = client.send(READ, 0, 0, 8 * MIB);
        let behind = client.send(READ, 0, MIB, 3 * MIB);
        assert_eq!(client.wait(failing).error, errno::IO);
        assert_eq!(client.wait(behind).error, 0);
        assert_eq!(client.call(READ, 0, 4096, 5 * MIB).error, 0);
        client.disconnect();
    }
}
