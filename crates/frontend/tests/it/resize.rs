//! Devices that become shorter while requests beyond their new end are carried out in pieces.

use crate::client::*;
use crate::support::*;
use inlock_cipher::{CipherSpec, DataUnitSize, Sector, Segment, VolumeKey};
use inlock_engine::Device;
use inlock_engine::store::memory::MemoryStore;
use inlock_engine::store::threaded::ThreadedStore;
use inlock_testing::{Call, Gate, ScriptedStore, Verdict};
use inlock_tests::wait::eventually;
use std::io::Write;
use std::ops::Range;
use std::sync::Arc;

const LEN: u64 = 8 * MIB;

/// Memory whose operations on a range wait.
struct HeldStore {
    store: Arc<ScriptedStore>,
    gate: Arc<Gate>,
}

impl HeldStore {
    /// A store whose operations that touch `held` wait.
    fn new(held: Range<u64>) -> Self {
        let gate = Arc::new(Gate::closed());
        let touching = Arc::clone(&gate);
        let script = move |call: Call<'_>| {
            if call.range().is_some_and(|range| range.start < held.end && range.end > held.start) {
                touching.pass();
            }
            Verdict::Pass
        };
        let memory = Arc::new(MemoryStore::new(pattern(5, LEN)));
        Self { store: Arc::new(ScriptedStore::new(memory, script)), gate }
    }
}

fn encrypted(segments: &[Segment], store: &HeldStore) -> Arc<Device> {
    // With threads, so that the worker does not wait, and sees that the device is suspended.
    let store = Arc::new(ThreadedStore::start(Arc::clone(&store.store) as _, 2).expect("threads start"));
    Arc::new(Device::new(segments, &VolumeKey::new(&[9; 64]), store, READ_WRITE_DISCARD).expect("the segments fit"))
}

fn segment() -> Segment {
    Segment::whole(Some(CipherSpec::AES_XTS_PLAIN64), DataUnitSize::new(4096).expect("a valid unit"))
}

/// Shortens the device while an operation waits in the store, and lets it go on.
fn shrink_while_held(served: &Served, store: &HeldStore, len: u64) {
    eventually("the store holds an operation", || store.gate.waiting(), |held| *held > 0);
    std::thread::scope(|scope| {
        let resized = scope.spawn(|| served.device.set_len(len));
        // From here on nothing more starts on the longer device.
        eventually("the device is suspended", || served.device.is_suspended(), |suspended| *suspended);
        store.gate.open();
        assert_eq!(resized.join().expect("no panic").expect("the length is one of whole units"), len);
    });
}

/// A client of the same worker is served as if nothing had happened.
fn assert_served(served: &Served, mut other: Client) {
    let expected = &served.plaintext()[4096..8192];
    assert!(other.read(4096, 4096) == expected);
    assert!(other.call(READ, DF, 4096, 4096).data == expected);
    other.disconnect();
}

#[test]
fn long_read_of_a_device_that_becomes_shorter_fails_alone() {
    for (io, mode) in rings().into_iter().flat_map(|io| MODES.map(|mode| (io, mode))) {
        let store = HeldStore::new(MIB..MIB + 1);
        let served = Served::new(encrypted(&[segment()], &store), io, 1);
        let other = Client::open(served.path(), Mode::Extended);
        let mut client = Client::open(served.path(), mode);
        let long = client.send(READ, 0, 0, LEN);
        shrink_while_held(&served, &store, LEN / 2);
        if mode == Mode::Simple {
            // An error cannot be told behind the first data.
            let mut rest = Vec::new();
            std::io::Read::read_to_end(&mut client.connection.stream, &mut rest).expect("the server disconnects");
            assert!((rest.len() as u64) < LEN, "{io:?}");
        } else {
            assert_eq!(client.wait(long).error, errno::INVAL, "{io:?} {mode:?}");
            client.read(0, 4096);
            client.disconnect();
        }
        assert_served(&served, other);
    }
}

#[test]
fn long_writes_and_zeroes_of_a_device_that_becomes_shorter_fail_alone() {
    for (io, kind) in rings().into_iter().flat_map(|io| [WRITE, WRITE_ZEROES].map(|kind| (io, kind))) {
        let store = HeldStore::new(MIB..MIB + 1);
        let served = Served::new(encrypted(&[segment()], &store), io, 1);
        let other = Client::open(served.path(), Mode::Extended);
        let mut client = Client::open(served.path(), Mode::Extended);
        let long = client.send(kind, 0, 0, LEN);
        let data = if kind == WRITE { pattern(6, LEN) } else { Vec::new() };
        // The rest comes when the device is shorter: a piece that is begun before is written.
        let (begin, rest) = data.split_at(data.len() / 2);
        let mut stream = client.connection.stream.try_clone().expect("a descriptor");
        std::thread::scope(|scope| {
            // The server may not read while its store waits.
            let sent = scope.spawn(|| stream.write_all(begin).expect("the server reads"));
            shrink_while_held(&served, &store, LEN / 2);
            sent.join().expect("no panic");
        });
        stream.write_all(rest).expect("the server reads");
        let error = client.wait(long).error;
        assert!(matches!(error, errno::NOSPC | errno::INVAL), "{io:?} {kind}: {error}");
        // The payload was taken for no command.
        client.read(0, 4096);
        client.disconnect();
        assert_served(&served, other);
    }
}

/// A read in one chunk over three segments, of which one was read when the last became shorter.
#[test]
fn gathered_read_of_a_device_that_becomes_shorter_fails_alone() {
    for io in rings() {
        let len = MIB;
        let store = HeldStore::new(0..1);
        let segments = [(0, Some(512)), (512, Some(512)), (1024, None)].map(
            |(start, sectors)| with!(segment(); start: Sector(start), sectors: sectors, data_offset: Sector(start)),
        );
        let served = Served::new(encrypted(&segments, &store), io, 1);
        let other = Client::open(served.path(), Mode::Extended);
        let mut client = Client::open(served.path(), Mode::Structured);
        let gathered = client.send(READ, DF, 0, len);
        shrink_while_held(&served, &store, len - 4096);
        assert_eq!(client.wait(gathered).error, errno::INVAL, "{io:?}");
        assert_eq!(client.call(READ, DF, 0, len - 4096).error, 0);
        client.disconnect();
        assert_served(&served, other);
    }
}
