//! Tests of every state with its events, without a ring.

use super::*;
use crate::request::Operation;
use crate::stats::Work;
use crate::worker::path::{Facts, Order, Via};
use crate::zone_queue::WriteId;
use inlock_cipher::{CipherSpec, DataUnitSize, Segment, TargetType, VolumeKey};
use std::ops::Range;
use std::time::{Duration, Instant};

const DISK: Facts = Facts {
    inline_max_len: Some(0),
    copy_min_len: None,
    has_native_fua: false,
    in_zone: false,
    pool_wanted: false,
    needs_lock: true,
};
const MARK: u8 = 0x5a;

/// Transfer of a device with data units of 512 bytes, advanced by hand.
struct Script {
    crypt: CryptMapping,
    account: Account,
    transfer: Transfer,
    has_lost_writes: bool,
}

fn mapping() -> CryptMapping {
    let segment = Segment::whole(Some(CipherSpec::AES_XTS_PLAIN64), DataUnitSize::SECTOR);
    CryptMapping::new(&[segment], &VolumeKey::new(&[3; 64]), 1 << 20).unwrap()
}

fn script(kind: Kind, fua: bool, (offset, len): (u64, u64), facts: &Facts) -> Script {
    let crypt = mapping();
    let range = crypt.locate(offset, len, 1 << 20).unwrap();
    assert_eq!(range.kind, TargetType::Crypt);
    let path = Path::of(kind != Kind::Read, fua, &range, facts);
    let mut data = Buffer::new(range.aligned_len);
    data.data_mut()[range.requested()].fill(MARK);
    let hold = if facts.in_zone { Hold::ZoneWrite(WriteId::of(crate::ring::Token(0))) } else { Hold::None };
    let spare = Some(Buffer::new(rmw::spare_len(&range)));
    let state = if facts.in_zone { State::Deferred { data } } else { State::Locking { data } };
    let account = Account { operation: Operation::Read, timing: None, work: Work::default() };
    let transfer = Transfer { kind, range, path, hold, spare, state };
    Script { crypt, account, transfer, has_lost_writes: false }
}

impl Script {
    fn step(&mut self, event: Event) -> Action {
        let cx = StepContext { crypt: &self.crypt, has_lost_writes: self.has_lost_writes };
        self.transfer.step(event, &mut self.account, &cx)
    }

    /// Decrypts the bytes that the store holds after a write.
    fn plaintext(&self, data: Ciphertext) -> Buffer {
        self.crypt.decrypt(&self.transfer.range, data)
    }

    fn work(&self) -> (u32, u32) {
        (self.account.work.cipher_calls, self.account.work.cipher_units)
    }
}

#[track_caller]
fn reads(action: Action) -> (Via, u64, Buffer, Range<usize>) {
    let Action::Read { via, offset, buffer, span } = action else { panic!("{action:?}") };
    (via, offset, buffer, span)
}

#[track_caller]
fn writes(action: Action) -> (u64, Ciphertext, Range<usize>, bool) {
    let Action::Write { via, offset, data, span, fua } = action else { panic!("{action:?}") };
    assert_eq!(via, Via::Operation);
    (offset, data, span, fua)
}

#[track_caller]
fn ends(action: Action) -> (Result<(), RequestError>, bool) {
    let Action::Finish(Ending { result, data, lost_writes }) = action else { panic!("{action:?}") };
    assert!(data.is_some(), "a transfer gives its buffer back");
    (result, lost_writes)
}

const EIO: Result<(), RequestError> = Err(RequestError::Io(Errno::IO));

#[test]
fn read_is_resumed_until_whole_and_decrypted_in_one_call() {
    let mut read = script(Kind::Read, false, (0, 1024), &DISK);
    assert_eq!(read.transfer.path.order, Order::Shared);
    let (via, offset, buffer, span) = reads(read.step(Event::Locked));
    assert_eq!((via, offset, span), (Via::Operation, 0, 0..1024));
    let mut buffer = read.crypt.encrypt(&read.transfer.range, buffer).into_buffer();
    for (result, rest) in [(Ok(100), 100), (Err(Errno::INTR), 100), (Err(Errno::AGAIN), 100), (Ok(924 - 1), 1023)] {
        let (_, offset, again, span) = reads(read.step(Event::Read { buffer, result }));
        assert_eq!((offset, span), (rest as u64, rest..1024));
        buffer = again;
    }
    let Action::Finish(ending) = read.step(Event::Read { buffer, result: Ok(1) }) else { panic!("it is whole") };
    assert_eq!((ending.result, ending.lost_writes), (Ok(()), false));
    assert_eq!(ending.data.unwrap().data()[..1024], [MARK; 1024]);
    assert_eq!(read.work(), (1, 2));
}

#[test]
fn units_of_unencrypted_data_do_not_count() {
    let raw = CryptMapping::raw(1 << 20);
    let range = raw.locate(0, 1024, 1 << 20).unwrap();
    let transfer = |crypt: CryptMapping| {
        let base = script(Kind::Read, false, (0, 1024), &DISK);
        Script { crypt, transfer: Transfer { range, ..base.transfer }, ..base }
    };
    let mut read = transfer(raw);
    let (_, _, buffer, _) = reads(read.step(Event::Locked));
    assert_eq!(ends(read.step(Event::Read { buffer, result: Ok(1024) })).0, Ok(()));
    assert_eq!(read.work(), (0, 0));
}

#[test]
fn read_that_ends_early_or_fails_is_an_error_and_not_decrypted() {
    for (result, error) in [(Ok(0), Errno::IO), (Err(Errno::NODATA), Errno::NODATA)] {
        let mut read = script(Kind::Read, false, (0, 512), &DISK);
        let (_, _, buffer, _) = reads(read.step(Event::Locked));
        assert_eq!(ends(read.step(Event::Read { buffer, result })), (Err(error.into()), false));
        assert_eq!(read.work(), (0, 0));
    }
}

#[test]
fn read_by_cipher_threads_is_decrypted_there_inline_if_refused_and_eio_if_poisoned() {
    let facts = Facts { pool_wanted: true, ..DISK };
    let decrypting = || {
        let mut read = script(Kind::Read, false, (0, 512), &facts);
        let (_, _, buffer, _) = reads(read.step(Event::Locked));
        let buffer = read.crypt.encrypt(&read.transfer.range, buffer).into_buffer();
        let action = read.step(Event::Read { buffer, result: Ok(512) });
        let Action::Crypt { direction: Direction::Decrypt, buffer } = action else { panic!("{action:?}") };
        (read, buffer)
    };
    let (mut read, buffer) = decrypting();
    let action = read.step(Event::Crypted { data: Crypted::Decrypted(buffer), calls: 3 });
    assert_eq!((ends(action).0, read.work(), read.account.work.offloaded), (Ok(()), (3, 1), true));
    let (mut read, buffer) = decrypting();
    let Action::Finish(ending) = read.step(Event::Refused(buffer)) else { panic!("it is decrypted inline") };
    assert_eq!(ending.data.unwrap().data()[..512], [MARK; 512]);
    assert_eq!((read.work(), read.account.work.offloaded), ((1, 1), false));
    let (mut read, buffer) = decrypting();
    assert_eq!(ends(read.step(Event::Crypted { data: Crypted::Poisoned(buffer), calls: 1 })).0, EIO);
}

#[test]
fn write_of_whole_units_is_encrypted_once_and_resumed() {
    let mut write = script(Kind::Write, false, (512, 1024), &DISK);
    assert_eq!(write.transfer.path.order, Order::Shared);
    let (offset, data, span, fua) = writes(write.step(Event::Locked));
    assert_eq!((offset, span, fua), (512, 0..1024, false));
    let (offset, data, span, _) = writes(write.step(Event::Written { data, result: Ok(512) }));
    assert_eq!((offset, span), (1024, 512..1024));
    let (_, data, span, _) = writes(write.step(Event::Written { data, result: Err(Errno::INTR) }));
    assert_eq!(span, 512..1024);
    assert_eq!(ends(write.step(Event::Written { data, result: Ok(512) })), (Ok(()), false));
    assert_eq!(write.work(), (1, 2));
}

#[test]
fn write_that_fails_or_moves_nothing_is_an_error() {
    for (result, error) in [(Ok(0), Errno::IO), (Err(Errno::NOSPC), Errno::NOSPC)] {
        let mut write = script(Kind::Write, false, (0, 512), &DISK);
        let (_, data, ..) = writes(write.step(Event::Locked));
        assert_eq!(ends(write.step(Event::Written { data, result })), (Err(error.into()), false));
    }
}

/// Reads the edges of a write from a store that holds `old` everywhere, and returns the write.
fn merged(range: (u64, u64), expected_edges: &[(u64, Range<usize>)]) -> Buffer {
    let mut write = script(Kind::Write, false, range, &DISK);
    assert_eq!(write.transfer.path.order, Order::Exclusive);
    let mut action = write.step(Event::Locked);
    for (expected_offset, expected_span) in expected_edges {
        let (via, offset, mut spare, span) = reads(action);
        assert_eq!((via, offset, &span), (Via::Operation, *expected_offset, expected_span));
        // Half of the unit, then the rest.
        let unit = write.crypt.locate(offset, 512, 1 << 20).unwrap();
        let mut old = Buffer::new(512);
        old.data_mut()[..512].fill(0x11);
        let old = write.crypt.encrypt(&unit, old).into_buffer();
        spare.data_mut()[span.clone()].copy_from_slice(&old.data()[..512]);
        let (_, offset, spare, rest) = reads(write.step(Event::Read { buffer: spare, result: Ok(200) }));
        assert_eq!((offset, rest), (expected_offset + 200, span.start + 200..span.end));
        action = write.step(Event::Read { buffer: spare, result: Ok(312) });
    }
    let edges = expected_edges.len() as u32;
    let (_, data, ..) = writes(action);
    assert_eq!(write.work(), (1 + edges, write.transfer.range.aligned_len as u32 / 512 + edges));
    assert!(write.transfer.spare.is_some(), "the spare buffer comes back with the request");
    write.plaintext(data)
}

#[test]
fn write_of_partial_units_reads_its_edges_and_keeps_what_surrounds_it() {
    let head = merged((100, 412), &[(0, 0..512)]);
    assert_eq!((head.data()[..100].to_vec(), head.data()[100..512].to_vec()), (vec![0x11; 100], vec![MARK; 412]));
    let tail = merged((512, 600), &[(1024, 512..1024)]);
    assert_eq!((&tail.data()[..600], &tail.data()[600..1024]), (&[MARK; 600][..], &[0x11; 424][..]));
    let both = merged((511, 514), &[(0, 0..512), (1024, 512..1024)]);
    assert_eq!(both.data()[..1536].iter().filter(|byte| **byte == MARK).count(), 514);
}

#[test]
fn failed_edge_fails_the_write_and_writes_nothing() {
    let mut write = script(Kind::Write, false, (1, 10), &DISK);
    let (_, _, buffer, _) = reads(write.step(Event::Locked));
    assert_eq!(ends(write.step(Event::Read { buffer, result: Err(Errno::IO) })).0, EIO);
    assert!(write.transfer.spare.is_some(), "the spare buffer comes back");
    let mut write = script(Kind::Write, false, (1, 10), &DISK);
    write.transfer.spare = None;
    let invalid = ends(write.step(Event::Locked)).0;
    assert_eq!(invalid, Err(RequestError::Io(Errno::INVAL)), "no buffer for the edges");
}

#[test]
fn fua_write_without_native_fua_ends_with_a_sync() {
    let written = |result| {
        let mut write = script(Kind::Write, true, (0, 512), &DISK);
        let (_, data, _, fua) = writes(write.step(Event::Locked));
        assert!(!fua, "the store does not have it");
        let action = write.step(Event::Written { data, result });
        (write, action)
    };
    for synced in [Ok(()), EIO] {
        let (mut write, action) = written(Ok(512));
        assert!(matches!(action, Action::Sync));
        assert_eq!(ends(write.step(Event::Synced(synced))), (synced, false));
    }
    assert_eq!(ends(written(Err(Errno::NOSPC)).1), (Err(RequestError::Io(Errno::NOSPC)), false));
}

#[test]
fn native_fua_write_asks_for_a_sync_only_if_there_may_be_no_room() {
    let facts = Facts { has_native_fua: true, ..DISK };
    let written = |result, has_lost_writes| {
        let mut write = script(Kind::Write, true, (0, 512), &facts);
        write.has_lost_writes = has_lost_writes;
        let (_, data, _, fua) = writes(write.step(Event::Locked));
        assert!(fua);
        let action = write.step(Event::Written { data, result });
        (write, action)
    };
    assert_eq!(ends(written(Ok(512), false).1), (Ok(()), false));
    assert_eq!(ends(written(Ok(512), true).1), (EIO, false), "an earlier flush failed");
    for error in [Errno::NOSPC, Errno::DQUOT, Errno::FBIG] {
        let (mut write, action) = written(Err(error), false);
        assert!(matches!(action, Action::Sync));
        // The write's own error, regardless of the sync.
        assert_eq!(ends(write.step(Event::Synced(Ok(())))), (Err(error.into()), false));
    }
    assert_eq!(ends(written(Err(Errno::IO), false).1), (EIO, true), "the disk may have lost its cache");
}

#[test]
fn write_by_cipher_threads_is_encrypted_there_or_inline_if_refused() {
    let facts = Facts { pool_wanted: true, ..DISK };
    let encrypting = || {
        let mut write = script(Kind::Write, false, (0, 512), &facts);
        let action = write.step(Event::Locked);
        let Action::Crypt { direction: Direction::Encrypt, buffer } = action else { panic!("{action:?}") };
        (write, buffer)
    };
    let (mut write, buffer) = encrypting();
    let (_, data, ..) = writes(write.step(Event::Refused(buffer)));
    assert_eq!(write.plaintext(data).data()[..512], [MARK; 512]);
    let (mut write, buffer) = encrypting();
    let data = write.crypt.encrypt(&write.transfer.range, buffer);
    writes(write.step(Event::Crypted { data: Crypted::Encrypted(data), calls: 1 }));
    assert_eq!((write.work(), write.account.work.offloaded), ((1, 1), true));
    let (mut write, buffer) = encrypting();
    assert_eq!(ends(write.step(Event::Crypted { data: Crypted::Poisoned(buffer), calls: 1 })).0, EIO);
}

#[test]
fn copied_transfer_ends_with_its_result_and_goes_by_the_ring_if_refused() {
    let facts = Facts { copy_min_len: Some(512), ..DISK };
    let copying = |kind| {
        let mut transfer = script(kind, false, (0, 1024), &facts);
        let action = transfer.step(Event::Locked);
        let Action::Copy { writes, buffer } = action else { panic!("{action:?}") };
        assert_eq!(writes, kind == Kind::Write);
        (transfer, buffer)
    };
    for kind in [Kind::Read, Kind::Write] {
        for result in [Ok(()), Err(Errno::NXIO)] {
            let (mut transfer, buffer) = copying(kind);
            let action = transfer.step(Event::Copied { buffer, result, calls: 2, cipher: Duration::ZERO });
            assert_eq!((ends(action).0, transfer.work()), (result.map_err(RequestError::Io), (2, 2)));
        }
    }
    let (mut read, buffer) = copying(Kind::Read);
    assert_eq!(reads(read.step(Event::Refused(buffer))).3, 0..1024);
    let (mut write, buffer) = copying(Kind::Write);
    let (_, data, ..) = writes(write.step(Event::Refused(buffer)));
    assert_eq!(write.plaintext(data).data()[..1024], [MARK; 1024]);
}

/// A zone write that is encrypted and in its queue.
fn queued(kind: Kind, fua: bool) -> (Script, Ciphertext, bool) {
    let mut write = script(kind, fua, (1024, 512), &Facts { in_zone: true, ..DISK });
    assert_eq!(write.transfer.path.order, Order::ZoneQueue);
    let action = write.step(Event::Released);
    let Action::Queue { data, can_merge } = action else { panic!("{action:?}") };
    (write, data, can_merge)
}

#[test]
fn zone_write_is_dispatched_then_written_and_leaves_its_queue() {
    let (mut write, data, can_merge) = queued(Kind::Write, false);
    assert!(can_merge && matches!(write.step(Event::Released), Action::Dispatch));
    let action = write.step(Event::Dispatched { data, position: 1024 });
    let Action::Merge { data } = action else { panic!("{action:?}") };
    let (offset, data, span, _) = writes(write.step(Event::NotMerged { data }));
    assert_eq!((offset, span), (1024, 0..512));
    let action = write.step(Event::Written { data, result: Ok(512) });
    let Action::Leave { data, succeeded: true } = action else { panic!("{action:?}") };
    assert_eq!(ends(write.step(Event::Left { data, landed: true })), (Ok(()), false));
    assert_eq!(write.transfer.hold, Hold::None);
}

#[test]
fn zone_write_at_another_position_is_encrypted_for_it() {
    let (mut write, data, _) = queued(Kind::Write, false);
    let action = write.step(Event::Dispatched { data, position: 4096 });
    let Action::Merge { data } = action else { panic!("{action:?}") };
    assert_eq!((write.transfer.range.store_offset, write.work()), (4096, (3, 3)));
    let (_, data, ..) = writes(write.step(Event::NotMerged { data }));
    let action = write.step(Event::Written { data, result: Err(Errno::IO) });
    let Action::Leave { data, succeeded: false } = action else { panic!("{action:?}") };
    let (offset, data, ..) = writes(write.step(Event::Reassigned { data, position: 8192 }));
    assert_eq!(offset, 8192);
    let plain = write.plaintext(data);
    assert_eq!(plain.data()[..512], [MARK; 512]);
    // Beyond the device there is no position.
    let (mut write, data, _) = queued(Kind::Write, false);
    let gone = ends(write.step(Event::Dispatched { data, position: 1 << 20 })).0;
    assert_eq!(gone, Err(RequestError::OutOfRange));
}

#[test]
fn units_that_are_encrypted_again_are_decrypted_first() {
    let mut write = script(Kind::Write, false, (1024, 1536), &Facts { in_zone: true, ..DISK });
    let action = write.step(Event::Released);
    let Action::Queue { data, .. } = action else { panic!("{action:?}") };
    assert_eq!(write.work(), (1, 3));
    assert!(matches!(write.step(Event::Dispatched { data, position: 4096 }), Action::Merge { .. }));
    assert_eq!(write.work(), (3, 9));
}

#[test]
fn failed_fua_zone_write_asks_for_a_sync_unless_it_landed() {
    let left = |landed| {
        let (mut write, data, can_merge) = queued(Kind::Write, true);
        assert!(!can_merge, "a FUA write goes alone");
        let action = write.step(Event::Dispatched { data, position: 1024 });
        let Action::Merge { data } = action else { panic!("{action:?}") };
        let (_, data, ..) = writes(write.step(Event::NotMerged { data }));
        let action = write.step(Event::Written { data, result: Err(Errno::NXIO) });
        let Action::Leave { data, .. } = action else { panic!("{action:?}") };
        let action = write.step(Event::Left { data, landed });
        (write, action)
    };
    let (mut write, action) = left(false);
    assert!(matches!(action, Action::Sync));
    assert_eq!(ends(write.step(Event::Synced(EIO))).0, Err(RequestError::Io(Errno::NXIO)));
    assert_eq!(ends(left(true).1).0, Err(RequestError::Io(Errno::NXIO)));
}

#[test]
fn merged_zone_write_ends_with_the_write_it_was_merged_with() {
    for result in [Ok(()), Err(Errno::NOSPC)] {
        for is_lost in [false, true] {
            let (mut write, data, _) = queued(Kind::Write, false);
            let data = if is_lost { None } else { Some(data) };
            let merged = MergedWrite { data, result, since: Instant::now() };
            let action = write.step(Event::Merged(merged));
            assert_eq!(ends(action).0, result.map_err(RequestError::Io));
            assert_eq!(write.transfer.hold, Hold::None, "it has left its queue");
        }
    }
}

#[test]
fn reissued_write_writes_what_is_missing() {
    let compared = |fua, present| {
        let (mut write, data, can_merge) = queued(Kind::Reissued, fua);
        assert!(!can_merge);
        let action = write.step(Event::Dispatched { data, position: 1024 });
        let Action::Compare { data } = action else { panic!("{action:?}") };
        let action = write.step(Event::Compared { data, present });
        (write, action)
    };
    let (_, action) = compared(false, Ok(100));
    let (offset, _, span, _) = writes(action);
    assert_eq!((offset, span), (1124, 100..512));
    assert_eq!(ends(compared(false, Ok(512)).1), (Ok(()), false));
    assert!(matches!(compared(true, Ok(512)).1, Action::Sync));
    assert_eq!(ends(compared(true, Err(Errno::IO)).1).0, EIO);
}

#[test]
#[should_panic(expected = "Locked in Reading")]
fn event_of_another_state_panics() {
    let mut read = script(Kind::Read, false, (0, 512), &DISK);
    let _ = reads(read.step(Event::Locked));
    read.step(Event::Locked);
}
