//! Tests of what needs no worker: the check of commands, errors, block status.

use super::super::check::{Verdict, check};
use super::super::handshake::Negotiated;
use super::super::protocol::{Export, MAX_PAYLOAD, STATE_HOLE, STATE_ZERO};
use super::*;
use inlock_cipher::{CipherSpec, DataUnitSize, Segment, VolumeKey};
use inlock_engine::store::memory::MemoryStore;
use inlock_engine::store::{BlockStatus, Geometry};
use inlock_engine::{Access, BackingStore, CryptMapping, Device, buffer::BufferClass};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

const LEN: u64 = 1 << 40;
const READ_WRITE: Access = Access { read_only: false, allow_discards: false };
const READ_WRITE_DISCARD: Access = Access { read_only: false, allow_discards: true };
const READ_ONLY: Access = Access { read_only: true, allow_discards: false };
const READ_ONLY_DISCARD: Access = Access { read_only: true, allow_discards: true };

fn command(kind: u16, flags: u16, offset: u64, len: u64) -> Command {
    let header = [&[0x21, 0xe4, 0x1c, 0x71], &flags.to_be_bytes()[..], &kind.to_be_bytes(), &[0; 8]].concat();
    let header = [header, offset.to_be_bytes().to_vec(), len.to_be_bytes().to_vec()].concat();
    Command::parse(&header, ReplyStyle::Extended).unwrap().unwrap().0
}

/// Errors as the section "Error values" of the NBD protocol has them for each command.
#[test]
fn command_is_checked_against_export_and_access() {
    use command::*;
    use command_flag::{DF, FAST_ZERO, NO_HOLE};
    let max = u64::from(MAX_PAYLOAD);
    let mapping = Arc::clone(CryptMapping::raw(LEN).mapping());
    let refused = Verdict::Refused;
    let accepted = Verdict::Accepted;
    for access in [READ_WRITE, READ_WRITE_DISCARD, READ_ONLY, READ_ONLY_DISCARD] {
        let writes = |verdict| if access.read_only { refused(NbdError::Perm) } else { verdict };
        let trims = |verdict| if access.allow_discards { writes(verdict) } else { writes(refused(NbdError::Inval)) };
        let cases = [
            (command(DISC, 0xffff, LEN, 1), Verdict::Disconnect),
            (command(FLUSH, 0, 0, 0), accepted),
            (command(FLUSH, 0, LEN, 1), accepted),
            (command(FLUSH, DF, 0, 0), refused(NbdError::Inval)),
            (command(READ, 0, LEN - 1, 1), accepted),
            (command(READ, 0, LEN, 0), Verdict::Empty),
            (command(READ, 0, LEN, 1), refused(NbdError::Inval)),
            (command(READ, 0, u64::MAX, 1), refused(NbdError::Inval)),
            (command(READ, 0, 0, max), accepted),
            (command(READ, 0, 0, max + 1), refused(NbdError::Inval)),
            (command(READ, NO_HOLE, 0, 1), refused(NbdError::Inval)),
            (command(CACHE, 0, 0, max + 1), accepted),
            (command(CACHE, 0, 1, LEN), refused(NbdError::Inval)),
            (command(BLOCK_STATUS, 0, 0, LEN), accepted),
            (command(BLOCK_STATUS, 0, 0, 0), refused(NbdError::Inval)),
            (command(BLOCK_STATUS, 0, 1, LEN), refused(NbdError::Inval)),
            (command(WRITE, 0, LEN - 1, 1), writes(accepted)),
            (command(WRITE, 0, 0, 0), writes(Verdict::Empty)),
            (command(WRITE, 0, LEN, 1), writes(refused(NbdError::NoSpace))),
            (command(WRITE, 0, 0, max + 1), writes(refused(NbdError::Inval))),
            (command(WRITE_ZEROES, 0, 0, LEN), writes(accepted)),
            (command(WRITE_ZEROES, 0, 1, LEN), writes(refused(NbdError::NoSpace))),
            (command(WRITE_ZEROES, FAST_ZERO, 0, 1), writes(refused(NbdError::NotSup))),
            (command(WRITE_ZEROES, FAST_ZERO, 1, LEN), writes(refused(NbdError::NoSpace))),
            (command(TRIM, 0, 0, LEN), trims(accepted)),
            (command(TRIM, 0, 0, 0), trims(Verdict::Empty)),
            (command(TRIM, 0, 1, LEN), trims(refused(NbdError::Inval))),
            (command(8, 0, 0, 1), refused(NbdError::Inval)),
        ];
        let negotiated = Negotiated { style: ReplyStyle::Structured, allocation: true };
        for (command, verdict) in cases {
            assert_eq!(check(&command, negotiated, access, LEN, &mapping), verdict, "{command:?} {access:?}");
        }
        let negotiated = Negotiated { style: ReplyStyle::Structured, allocation: false };
        let unasked = check(&command(BLOCK_STATUS, 0, 0, 1), negotiated, access, LEN, &mapping);
        assert_eq!(unasked, refused(NbdError::Inval), "block status without a metadata context");
    }
}

#[test]
fn errors_of_requests_are_those_of_the_protocol() {
    let io = RequestError::Io;
    for (error, expected) in [
        (RequestError::OutOfRange, NbdError::Inval),
        (RequestError::ReadOnly, NbdError::Perm),
        (RequestError::Unsupported, NbdError::NotSup),
        (io(Errno::NOSPC), NbdError::NoSpace),
        (io(Errno::DQUOT), NbdError::NoSpace),
        (io(Errno::FBIG), NbdError::NoSpace),
        (io(Errno::IO), NbdError::Io),
        (io(Errno::INVAL), NbdError::Io),
    ] {
        assert_eq!(nbd_error(error), expected, "{error:?}");
    }
}

/// A store that reports its blocks one at a time.
struct Ranges {
    store: MemoryStore,
    block: u64,
    holes: Range<u64>,
}

impl BackingStore for Ranges {
    fn geometry(&self) -> Geometry {
        self.store.geometry()
    }

    fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
        self.store.read_at(data, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        self.store.write_at(data, offset)
    }

    fn sync(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    fn block_status(&self, offset: u64, len: u64) -> Result<BlockStatus, Errno> {
        let mut status = BlockStatus::allocated(offset, len.min(self.block - offset % self.block));
        status.hole = self.holes.contains(&offset);
        Ok(status)
    }
}

/// A hole of a store without encryption reads as zeroes.
#[test]
fn ranges_that_are_alike_are_one_extent() {
    // Data, two holes, data.
    let store = Ranges { store: MemoryStore::new(vec![0; 16 << 10]), block: 4096, holes: 4096..12 << 10 };
    let device = Device::raw(Arc::new(store), READ_ONLY);
    let mut pool = BufferPool::new(&[BufferClass { capacity: 8192, count: 1 }]);
    let mut buffer = pool.take(8192, 8192).unwrap();
    let export =
        Export { name: String::new(), description: String::new(), size: 16 << 10, flags: 0, preferred_block: 4096 };
    let (mapping, mut requests) = (device.mapping(), VecDeque::new());
    let turn = Turn {
        pool: &mut pool,
        device: &device,
        mapping: &mapping,
        requests: &mut requests,
        export: &export,
        number: 1,
        now: Instant::now(),
        is_draining: false,
        must_wait: false,
    };
    let mut extents = |flags, offset, len| {
        let asked = command(command::BLOCK_STATUS, flags, offset, len);
        let count =
            put_block_status(&mut buffer, &asked, ReplyStyle::Extended, turn.device, turn.mapping, Duration::MAX)
                .unwrap();
        let fields: Vec<u64> =
            buffer.data()[..16 * count].chunks(8).map(|field| u64::from_be_bytes(field.try_into().unwrap())).collect();
        fields.chunks(2).map(|extent| (extent[0], extent[1])).collect::<Vec<_>>()
    };
    let hole = u64::from(STATE_HOLE | STATE_ZERO);
    assert_eq!(hole, 3);
    assert_eq!(extents(0, 0, 16 << 10), [(4096, 0), (8192, hole), (4096, 0)]);
    assert_eq!(extents(0, 5000, 8000), [(12288 - 5000, hole), (712, 0)]);
    assert_eq!(extents(command_flag::REQ_ONE, 4096, 12 << 10), [(8192, hole)]);
}

#[test]
fn requests_that_got_no_buffer_count_for_their_turn() {
    let mut active = ActiveTable::new();
    active.min_blocked_len.add(true, 100);
    let is_behind =
        |active: &ActiveTable| [true, false].map(|holds_none| active.min_blocked_len.is_behind(holds_none, 100));
    assert_eq!(is_behind(&active), [true; 2]);
    active.begin_turn();
    assert_eq!(is_behind(&active), [false; 2]);
}

#[test]
fn only_a_read_in_one_chunk_competes_for_long_buffers() {
    for (command, len) in [
        (command(command::READ, command_flag::DF, 0, 8192), 8192),
        (command(command::READ, 0, 0, 8192), 0),
        (command(command::BLOCK_STATUS, command_flag::REQ_ONE, 0, 8192), 0),
    ] {
        let request = ActiveRequest::new(0, command);
        assert_eq!(request.min_competing_len(), len);
    }
}

#[test]
fn last_requests_are_for_sessions_that_have_none() {
    let mut active = ActiveTable::new();
    for (count, has_room) in [
        (0, [true, true]),
        (MAX_ACTIVE - RESERVED_ACTIVE - 1, [true, true]),
        (MAX_ACTIVE - RESERVED_ACTIVE, [true, false]),
        (MAX_ACTIVE - 1, [true, false]),
        (MAX_ACTIVE, [false, false]),
    ] {
        // Two more have ended.
        active.requests.resize_with(count + 2, || None);
        active.free = vec![0, 1];
        assert_eq!([0, 1].map(|unanswered| active.has_room(unanswered)), has_room, "{count}");
    }
}

#[test]
fn only_a_request_that_has_not_begun_waits_behind_others() {
    let device = Device::raw(Arc::new(MemoryStore::new(vec![0; 16 << 10])), READ_ONLY);
    let mut pool = BufferPool::new(&[BufferClass { capacity: 8192, count: 1 }]);
    let export = Export { name: String::new(), description: String::new(), size: 0, flags: 0, preferred_block: 4096 };
    let (mapping, mut requests) = (device.mapping(), VecDeque::new());
    let mut turn = Turn {
        pool: &mut pool,
        device: &device,
        mapping: &mapping,
        requests: &mut requests,
        export: &export,
        number: 1,
        now: Instant::now(),
        is_draining: false,
        must_wait: false,
    };
    let mut active = ActiveTable::new();
    let command = command(command::READ, 0, 0, 8192);
    active.requests.extend([0, 4096].map(|begun| Some(ActiveRequest { begun, ..ActiveRequest::new(0, command) })));
    active.min_blocked_len.add(true, 4096);
    let mut is_behind = |id| active.supply(id, &Output::new(), false, &mut turn).is_behind;
    assert_eq!([is_behind(0), is_behind(1)], [true, false]);
}

/// Of shorter ones a piece that begins within a data unit might have no whole one.
#[test]
fn piece_has_a_buffer_for_two_data_units_at_least() {
    let takes = |capacity| {
        let store = Arc::new(MemoryStore::new(vec![0; 1 << 20]));
        let segment = Segment::whole(Some(CipherSpec::AES_XTS_PLAIN64), DataUnitSize::LUKS_MAX);
        let key = VolumeKey::new(&(0..64).collect::<Vec<u8>>());
        let device = Device::new(&[segment], &key, store, READ_WRITE).unwrap();
        let mut pool = BufferPool::new(&[BufferClass { capacity, count: 4 }]);
        let mut memory = Memory::new(&pool);
        let mut supply = Supply { pool: &mut pool, may_use_reserve: true, is_behind: false, now: Instant::now() };
        take_buffers(&mut supply, &device.mapping(), &mut memory, (100, 100_000, u64::MAX), Purpose::Read).is_some()
    };
    assert_eq!([4096, 6144, 8192].map(takes), [false, false, true]);
}

/// The worker refuses it.
#[test]
fn piece_beyond_the_end_of_the_device_is_no_longer_than_others() {
    const LEN: u64 = 16 << 10;
    let device = Device::raw(Arc::new(MemoryStore::new(vec![0; LEN as usize])), READ_ONLY);
    let mut pool = BufferPool::new(&[BufferClass { capacity: 8192, count: 1 }]);
    let export = Export { name: String::new(), description: String::new(), size: 0, flags: 0, preferred_block: 4096 };
    let (mapping, mut requests) = (device.mapping(), VecDeque::new());
    let turn = Turn {
        pool: &mut pool,
        device: &device,
        mapping: &mapping,
        requests: &mut requests,
        export: &export,
        number: 1,
        now: Instant::now(),
        is_draining: false,
        must_wait: false,
    };
    let piece_len =
        |offset, len, max| ActiveRequest::new(0, command(command::CACHE, 0, offset, len)).piece_len(max, &turn);
    assert_eq!([piece_len(LEN, 6000, 4096), piece_len(LEN, 6000, 8192)], [4096, 6000]);
    assert_eq!([piece_len(0, LEN, 4096), piece_len(0, LEN, 2 * LEN)], [4096, LEN]);
}

#[test]
fn one_command_asks_the_store_so_often_and_no_more() {
    const ASKED: u64 = 4 * MAX_EXTENTS as u64;
    let store = Ranges { store: MemoryStore::new(vec![0; 2 * 512 * ASKED as usize]), block: 512, holes: 0..0 };
    let device = Device::raw(Arc::new(store), READ_ONLY);
    let mut buffer = Buffer::new(8192);
    for (sectors, covered) in [(ASKED - 1, ASKED - 1), (ASKED, ASKED), (2 * ASKED, ASKED)] {
        let asked = command(command::BLOCK_STATUS, 0, 0, 512 * sectors);
        let style = ReplyStyle::Extended;
        let count = put_block_status(&mut buffer, &asked, style, &device, &device.mapping(), Duration::MAX).unwrap();
        assert_eq!(count, 1);
        assert_eq!(buffer.data()[..8], (512 * covered).to_be_bytes(), "{sectors} sectors");
    }
}
