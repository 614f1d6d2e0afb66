//! An NBD server allocates nothing for the requests of clients that are connected, and works if it cannot allocate.

#![allow(missing_docs, clippy::unwrap_used)]
// Other tests use more of the client than this one.
#![allow(dead_code, unused_imports)]

#[path = "../../engine/tests/no_alloc/allocator.rs"]
mod allocator;
#[path = "it/client.rs"]
mod client;
#[path = "it/support.rs"]
mod support;

use allocator::Mode as OnAllocation;
use client::*;
use inlock_engine::store::file::{FileStore, IoMode};
use inlock_engine::{OffloadOptions, OffloadPolicy};
use inlock_frontend::nbd::server::{Listen, Server, ServerOptions};
use std::sync::Arc;
use support::{MIB, READ_WRITE_DISCARD, device, pattern, rings, store_len};

const CLIENTS: u64 = 9;
/// Bytes of each client; borders lie within data units.
const SHARE: u64 = 4 * MIB + 1000;
const WORKERS: usize = 2;

/// Sends requests of every kind, many at a time, long and short, aligned and not, and compares what is read.
fn busy_client(client: &mut Client, number: u64, rounds: u64) -> u64 {
    let start = number * SHARE;
    let mut asked = 0;
    for round in 0..rounds {
        let seed = round * CLIENTS + number;
        // As many at a time as a client may have, and some more.
        let written: Vec<u64> = (0..300)
            .map(|n| {
                client.send_write(
                    if n % 90 == 0 { FUA } else { 0 },
                    start + n * 9000 + n,
                    &pattern(seed + n, 1 + n * 7),
                )
            })
            .collect();
        let flush = client.send(FLUSH, 0, 0, 0);
        for cookie in written.into_iter().chain([flush]) {
            assert_eq!(client.wait(cookie).error, 0);
        }
        let read: Vec<u64> = (0..300).map(|n| client.send(READ, 0, start + n * 9000 + n, 1 + n * 7)).collect();
        for (n, cookie) in (0..).zip(read) {
            assert_eq!(
                client.wait(cookie).data,
                pattern(seed + n, 1 + n * 7),
                "client {number}, round {round}, write {n}"
            );
        }
        // In pieces.
        let long = pattern(seed, 3 * MIB + 77);
        assert_eq!(client.write(0, start + 5, &long), 0);
        assert_eq!(client.read(start + 5, long.len() as u64), long);
        let zeroes = client.send(WRITE_ZEROES, 0, start + 4096 - start % 4096, MIB);
        let cache = client.send(CACHE, 0, start, SHARE);
        assert_eq!((client.wait(zeroes).error, client.wait(cache).error), (0, 0));
        assert!(client.read(start + 4096, MIB - 8192).iter().all(|b| *b == 0));
        assert_eq!(client.call(TRIM, 0, CLIENTS * SHARE, MIB).error, 0);
        assert_ne!(client.call(READ, 0, client.size(), 1).error, 0, "beyond the end");
        assert_ne!(client.call(WRITE_ZEROES, FAST_ZERO, 0, 1).error, 0, "not supported");
        asked += 300 + 1 + 300 + 2 + 3 + 3;
        if MODES[number as usize % 3] != Mode::Simple {
            let status = client.call(BLOCK_STATUS, 0, start, SHARE);
            assert!(status.error == 0 && !status.extents.is_empty());
            asked += 1;
        }
    }
    asked
}

fn serve(io: IoMode, policy: OffloadPolicy, rounds: u64, on_allocation: OnAllocation) {
    let len = (CLIENTS * SHARE + 2 * MIB).next_multiple_of(4096);
    let file = tempfile::tempfile().unwrap();
    file.set_len(store_len(len)).unwrap();
    let device = device(Arc::new(FileStore::new(file, io).unwrap()), 4096, READ_WRITE_DISCARD);
    let dir = tempfile::tempdir().unwrap();
    let listen = Listen::Unix(dir.path().join("socket"));
    let mut offload = OffloadOptions::default();
    (offload.policy, offload.threads) = (policy, 2);
    let mut options = ServerOptions::default();
    (options.threads, options.io, options.offload) = (WORKERS, io, offload);
    let server = Server::start(Arc::clone(&device), &listen, &options).unwrap();
    let mut clients: Vec<Client> =
        (0..CLIENTS).map(|n| Client::open(&dir.path().join("socket"), MODES[n as usize % 3])).collect();
    // The client has the reply to its last option, but the server may not have noticed that it was sent.
    clients.iter_mut().for_each(|client| drop(client.read(0, 1)));
    let threads = WORKERS + if policy == OffloadPolicy::None { 0 } else { 2 };
    allocator::watch(on_allocation, threads);
    let requests: u64 = std::thread::scope(|scope| {
        let busy = |(number, mut client): (u64, Client)| {
            move || {
                let asked = busy_client(&mut client, number, rounds);
                match number % 3 {
                    0 => client.disconnect(),
                    // Disconnects with requests in flight.
                    1 => {
                        for n in 0..200 {
                            client.send(READ, 0, n * 100, 100_000);
                        }
                    }
                    // And in the middle of a write.
                    _ => {
                        client.send(WRITE, 0, number * SHARE, 2 * MIB);
                    }
                }
                asked
            }
        };
        let clients: Vec<_> = (0..).zip(clients).map(|one| scope.spawn(busy(one))).collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    server.stop().unwrap();
    let allocations = allocator::unwatch();
    println!("{io:?}, {policy}: {requests} requests, {allocations} allocations");
    assert_eq!(allocations, 0, "{io:?}, {policy}");
}

/// One test, since all would watch the same allocator.
#[test]
fn requests_of_clients_allocate_nothing() {
    for io in rings() {
        for policy in [OffloadPolicy::None, OffloadPolicy::Both] {
            serve(io, policy, 3, OnAllocation::Count);
            serve(io, policy, 1, OnAllocation::Refuse);
        }
    }
}
