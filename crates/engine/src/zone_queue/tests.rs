//! Tests of the queues without a worker: merging, memory, ranges.

use super::*;
use crate::buffer::Buffer;
use crate::events::ReplyTo;
use crate::ring::{MAX_WRITE_SEGMENTS, Ring};
use crate::store::file::IoMode;
use crate::zoned::ZoneAction;
use crate::zoned_memory::{MemoryZones, Shape};

const ZONE: u64 = 1 << 20;
const CAPACITY: u64 = 256 << 10;
const BLOCK: u64 = 512;

const SHAPE: Shape = Shape {
    zone_len: ZONE,
    capacity: CAPACITY,
    zones: 4,
    conventional: 1,
    max_open: 0,
    max_active: 0,
    granularity: 512,
};

fn queues(shape: Shape) -> ZoneWriteQueues {
    let store: Arc<dyn BackingStore> = Arc::new(MemoryZones::new(shape));
    ZoneWriteQueues::new(&store)
}

fn zones() -> ZoneWriteQueues {
    queues(Shape { conventional: 0, ..SHAPE })
}

fn events() -> Arc<EventQueue> {
    Arc::new(EventQueue::new(Ring::new(IoMode::Sync).unwrap().waker(), 0))
}

fn data(len: u64) -> Ciphertext {
    Ciphertext::encrypted(Buffer::new(len as usize))
}

/// Enqueues writes of `BLOCK` bytes in the first zone, from `start` on, all of them ready and able to be merged, behind
/// one that ends then, and merges what can be merged into one of at most `longest` bytes. Returns its segments, and
/// whether the first was alone.
fn gathered(start: u64, count: u64, longest: u64) -> (usize, bool) {
    let (zones, events) = (zones(), events());
    let waiter = || Waiter::Request(ReplyTo::new(&events, RequestId { index: 0, generation: 0 }));
    let place = |position, len| match zones.enqueue(position, len, WriteKind::Data, false, waiter()).unwrap() {
        Enqueued::Placed(write, _) => write,
        other => panic!("{other:?}"),
    };
    let before = place(0, start);
    assert!(zones.ready(before, 0, data(start), false).is_some());
    let writes: Vec<WriteId> = (0..count)
        .map(|number| {
            let position = start + number * BLOCK;
            let write = place(position, BLOCK);
            assert!(zones.ready(write, position, data(BLOCK), true).is_none(), "another write is the head");
            write
        })
        .collect();
    zones.complete_write(before, true, None);
    let mut segments = Vec::new();
    let first = zones.take_data(writes[0]);
    let alone = zones.gather(writes[0], first, longest as usize, &mut segments, &events).is_some();
    (segments.len(), alone)
}

#[test]
fn merged_writes_have_a_limited_number_of_segments() {
    let most = MAX_WRITE_SEGMENTS as u64;
    assert_eq!(gathered(BLOCK, most, 1 << 20), (MAX_WRITE_SEGMENTS, false));
    assert_eq!(gathered(BLOCK, most + 2, 1 << 20), (MAX_WRITE_SEGMENTS, false));
}

#[test]
fn merged_writes_have_a_limited_length() {
    for (longest, segments) in [(3 * BLOCK, 3), (4 * BLOCK - 1, 3), (4 * BLOCK, 4), (2 * BLOCK, 2)] {
        assert_eq!(gathered(BLOCK, 6, longest), (segments, false), "{longest}");
    }
    assert_eq!(gathered(BLOCK, 6, 2 * BLOCK - 1), (0, true));
}

#[test]
fn merged_writes_end_with_the_capacity_of_their_zone() {
    assert_eq!(gathered(CAPACITY - 3 * BLOCK, 5, 1 << 20), (3, false));
    assert_eq!(gathered(CAPACITY - BLOCK, 3, 1 << 20), (0, true));
}

#[test]
fn released_memory_is_no_longer_reserved() {
    let zones = zones();
    zones.reserve(8);
    zones.reserve(4);
    zones.unreserve(8);
    assert_eq!(zones.table().room, 4);
    assert!(zones.table().entries.capacity() >= 12);
}

#[test]
fn range_lies_in_the_zones_that_the_store_has() {
    let zones = zones();
    assert_eq!(zones.zones_of(0, 1), 0..1);
    assert_eq!(zones.zones_of(0, 0), 0..1);
    assert_eq!(zones.zones_of(ZONE - 1, 1), 0..1);
    assert_eq!(zones.zones_of(ZONE - 1, 2), 0..2);
    assert_eq!(zones.zones_of(3 * ZONE, 8 * ZONE), 3..4);
}

#[test]
fn range_in_several_zones_crosses_unless_all_are_conventional() {
    let queues = queues(Shape { zones: 5, conventional: 2, capacity: ZONE, ..SHAPE });
    for (position, len, crosses) in [
        (0, ZONE, false),
        (ZONE - 512, 1024, false),
        (2 * ZONE - 512, 1024, true),
        (3 * ZONE - 512, 512, false),
        (3 * ZONE - 512, 513, true),
        (0, 3 * ZONE, true),
    ] {
        assert_eq!(queues.crosses(position, len), Ok(crosses), "{position} {len}");
    }
}

/// More zones than one report has.
#[test]
fn reset_of_all_zones_resets_those_of_the_device_only() {
    const LEN: u64 = 4096;
    let queues = queues(Shape { zone_len: LEN, capacity: LEN, zones: 140, conventional: 0, ..SHAPE });
    for zone in 0..140 {
        queues.store.write_at(&[1; 512], zone * LEN).unwrap();
    }
    let (id, is_head) =
        queues.enqueue_mgmt(ZoneAction::ResetAll, vec![LEN..70 * LEN, 71 * LEN..139 * LEN], Waiter::Thread);
    assert!(is_head);
    queues.carry_out(id).unwrap();
    let mut zones = [Zone::UNKNOWN; 140];
    assert_eq!(queues.zoned().report(0, &mut zones), Ok(140));
    let kept: Vec<usize> = (0..140).filter(|zone| zones[*zone].write_pointer != Some(zones[*zone].start)).collect();
    assert_eq!(kept, [0, 70, 139]);
}
