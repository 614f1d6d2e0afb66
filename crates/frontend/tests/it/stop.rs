//! End of a server: the final flush.

use crate::client::{TIMEOUT, WRITE};
use crate::support::*;
use inlock_engine::Errno;
use inlock_engine::store::file::IoMode;
use inlock_frontend::nbd::server::ServerError;
use inlock_tests::nbd::Connection;
use inlock_tests::wait::eventually;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const READ_ONLY: inlock_engine::Access = inlock_engine::Access { read_only: true, allow_discards: false };

#[test]
fn server_that_stops_flushes_unless_nothing_can_have_been_written() {
    for (access, suspends, syncs) in
        [(READ_WRITE_DISCARD, false, 1), (READ_WRITE_DISCARD, true, 1), (READ_ONLY, false, 0)]
    {
        let store = FaultyStore::new(MIB);
        let mut served = Served::new(device(store.clone(), 4096, access), IoMode::Sync, 1);
        if suspends {
            // This is the flush.
            served.device.suspend().unwrap();
        }
        served.stop().unwrap();
        assert_eq!(store.syncs.load(Ordering::SeqCst), syncs, "{access:?}, suspended: {suspends}");
    }
}

#[test]
fn failure_of_the_final_flush_is_reported() {
    let store = FaultyStore::new(MIB);
    let mut served = Served::new(device(store.clone(), 4096, READ_WRITE_DISCARD), IoMode::Sync, 1);
    store.set(Faults { bad_sync: Some(Errno::IO), ..Faults::default() });
    assert!(matches!(served.stop(), Err(ServerError::Flush(_))));
}

#[test]
fn server_that_stops_takes_no_clients_while_a_request_lasts() {
    let store = FaultyStore::new(MIB);
    let mut served = Served::new(device(store.clone(), 4096, READ_WRITE_DISCARD), IoMode::Sync, 1);
    let path = served.path().to_owned();
    let mut client = Connection::haggle(&path, TIMEOUT).unwrap();
    client.go(NAME.as_bytes()).unwrap();
    store.set(Faults { hold_writes: true, ..Faults::default() });
    client.request(0, WRITE, 0, 4096).unwrap();
    client.send(&[1; 4096]).unwrap();
    eventually("the write is held", || store.waiting.load(Ordering::SeqCst), |waiting| *waiting == 1);
    std::thread::scope(|scope| {
        let held = Release(Arc::clone(&store));
        let stopping = scope.spawn(|| served.stop());
        eventually("clients are refused", || UnixStream::connect(&path).is_err(), |is_refused| *is_refused);
        assert!(!stopping.is_finished());
        drop(held);
        stopping.join().unwrap().unwrap();
    });
    assert_eq!(client.reply(0).unwrap().error, 0);
}
