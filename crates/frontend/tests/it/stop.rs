//! End of a server: the final flush.

use crate::support::*;
use inlock_engine::Errno;
use inlock_engine::store::file::IoMode;
use inlock_frontend::nbd::server::ServerError;
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
