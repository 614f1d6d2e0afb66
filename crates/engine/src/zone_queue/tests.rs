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

fn request(events: &Arc<EventQueue>, index: u32) -> Waiter {
    Waiter::Request(ReplyTo::new(events, RequestId { index, generation: 0 }))
}

/// Enqueues a write of one block at the start of a zone.
fn write_to(zones: &ZoneWriteQueues, zone: u64, events: &Arc<EventQueue>) -> WriteId {
    match zones.enqueue(zone * ZONE, BLOCK, WriteKind::Data, false, request(events, zone as u32)).unwrap() {
        Enqueued::Placed(write, _) => write,
        other => panic!("{other:?}"),
    }
}

fn released(events: &EventQueue) -> Vec<u32> {
    let index = |(request, event): (RequestId, Event)| {
        assert!(matches!(event, Event::Released));
        request.index
    };
    std::iter::from_fn(|| events.next()).map(index).collect()
}

#[test]
fn zone_management_waits_for_all_its_zones_and_their_writes_wait_for_it() {
    let (zones, events) = (zones(), events());
    let writes = [1, 3].map(|zone| write_to(&zones, zone, &events));
    writes.iter().for_each(|write| assert!(zones.ready(*write, 0, data(BLOCK), false).is_some()));
    let range = ZONE..4 * ZONE;
    let (id, is_head) = zones.enqueue_mgmt(ZoneAction::Reset, vec![range], request(&events, 9));
    assert!(!is_head);
    let later = [2, 3].map(|zone| write_to(&zones, zone, &events));
    later.iter().for_each(|write| assert!(zones.ready(*write, 0, data(BLOCK), false).is_none()));
    let first = write_to(&zones, 0, &events);
    assert!(zones.ready(first, 0, data(BLOCK), false).is_some(), "the first zone is not concerned");
    zones.complete_write(writes[0], false, None);
    assert_eq!(released(&events), [0; 0], "it is not the head of the last zone");
    zones.complete_write(writes[1], false, None);
    assert_eq!(released(&events), [9]);
    zones.carry_out(id).unwrap();
    assert_eq!(released(&events), [2, 3]);
}

#[test]
fn thread_waits_until_its_zone_management_is_the_head() {
    let (zones, events) = (zones(), events());
    let write = write_to(&zones, 0, &events);
    assert!(zones.ready(write, 0, data(BLOCK), false).is_some());
    let ended = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let range = 0..ZONE;
            let id = zones.enqueue_mgmt_blocking(ZoneAction::Reset, vec![range]);
            assert!(ended.load(Ordering::SeqCst));
            zones.leave_mgmt(id);
        });
        while zones.table().actions.is_empty() && !thread.is_finished() {
            std::thread::yield_now();
        }
        std::thread::sleep(std::time::Duration::from_millis(30));
        ended.store(true, Ordering::SeqCst);
        zones.complete_write(write, false, None);
    });
}

#[test]
fn deferred_write_waits_for_two_turns_of_each_worker() {
    let (zones, events) = (zones(), events());
    let waker = Ring::new(IoMode::Sync).unwrap().waker();
    let workers: Vec<u64> = (0..WORKERS + 2).map(|_| zones.join(waker.clone())).collect();
    let last = 1 << (WORKERS - 1);
    assert!(workers[..WORKERS as usize].iter().eq(&(0..WORKERS).map(|bit| 1 << bit).collect::<Vec<u64>>()));
    assert_eq!(workers[WORKERS as usize..], [last; 2]);
    zones.leave_worker(last);
    zones.leave_worker(workers[5]);
    assert_eq!(zones.join(waker.clone()), workers[5]);
    let defer = |number: u64| {
        let place = zones.enqueue(number * BLOCK, BLOCK, WriteKind::Data, true, request(&events, number as u32));
        assert!(matches!(place, Ok(Enqueued::Deferred(_))));
    };
    defer(3);
    for worker in workers[..WORKERS as usize - 1].iter().flat_map(|worker| [*worker; 2]) {
        zones.turned(worker);
    }
    zones.turned(last);
    assert!(zones.has_deferred() && released(&events).is_empty(), "the last ones have had one turn");
    zones.turned(last);
    assert!(!zones.has_deferred());
    assert_eq!(released(&events), [3]);
    // A worker that has ended delays no write.
    workers.iter().skip(1).take(WORKERS as usize).for_each(|worker| zones.leave_worker(*worker));
    let other = zones.join(waker);
    defer(5);
    zones.turned(workers[0]);
    zones.turned(workers[0]);
    assert!(zones.has_deferred());
    zones.leave_worker(other);
    assert_eq!(released(&events), [5]);
}
