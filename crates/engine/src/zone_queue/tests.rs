//! Tests of the queues without a worker: merging, memory, ranges.

use super::*;
use crate::buffer::Buffer;
use crate::events::ReplyTo;
use crate::ring::{MAX_WRITE_SEGMENTS, Ring, Wait, WriteSegment};
use crate::store::Geometry;
use crate::store::file::IoMode;
use crate::zoned::ZoneAction;
use crate::zoned_memory::{MemoryZones, Shape};
use std::collections::VecDeque;

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

/// A store that notes the commands that manage zones.
struct Noting {
    inner: MemoryZones,
    managed: Mutex<Vec<(ZoneAction, u64, u64)>>,
}

impl BackingStore for Noting {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
        self.inner.read_at(data, offset)
    }
    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        self.inner.write_at(data, offset)
    }
    fn sync(&self) -> Result<(), Errno> {
        self.inner.sync()
    }
    fn discard(&self, offset: u64, len: u64) -> Result<(), Errno> {
        self.inner.discard(offset, len)
    }
    fn zoned(&self) -> Option<&dyn ZonedStore> {
        Some(self)
    }
}

impl ZonedStore for Noting {
    fn limits(&self) -> ZoneLimits {
        self.inner.limits()
    }
    fn report(&self, offset: u64, zones: &mut [Zone]) -> Result<usize, Errno> {
        self.inner.report(offset, zones)
    }
    fn manage(&self, action: ZoneAction, offset: u64, len: u64) -> Result<(), Errno> {
        self.managed.lock().unwrap().push((action, offset, len));
        self.inner.manage(action, offset, len)
    }
}

#[test]
fn reset_of_all_zones_of_a_store_is_one_command() {
    let noting = Arc::new(Noting { inner: MemoryZones::new(SHAPE), managed: Mutex::default() });
    let store: Arc<dyn BackingStore> = Arc::clone(&noting) as _;
    let queues = ZoneWriteQueues::new(&store);
    for zone in [1, 2] {
        noting.write_at(&[1; BLOCK as usize], zone * ZONE).unwrap();
    }
    // In two ranges, as a device of two segments has it.
    let ranges = vec![0..2 * ZONE, 2 * ZONE..4 * ZONE];
    let (id, _) = queues.enqueue_mgmt(ZoneAction::ResetAll, ranges, Waiter::Thread);
    queues.carry_out(id).unwrap();
    assert_eq!(*noting.managed.lock().unwrap(), [(ZoneAction::ResetAll, 0, 4 * ZONE)]);
    noting.write_at(&[1; BLOCK as usize], ZONE).unwrap();
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

#[test]
fn write_beyond_the_capacity_of_its_zone_is_not_deferred() {
    let (zones, events) = (zones(), events());
    let enqueue = |position| zones.enqueue(position, BLOCK, WriteKind::Data, true, request(&events, 0)).unwrap();
    assert!(matches!(enqueue(CAPACITY - BLOCK), Enqueued::Deferred(_)));
    assert!(matches!(enqueue(CAPACITY), Enqueued::Placed(_, CAPACITY)), "it fails, and nothing can change that");
}

#[test]
fn write_that_lands_ahead_of_the_known_pointer_moves_the_end_of_the_queue() {
    let (zones, events) = (zones(), events());
    let place = |position, kind| match zones.enqueue(position, BLOCK, kind, false, request(&events, 0)).unwrap() {
        Enqueued::Placed(write, position) => (write, position),
        other => panic!("{other:?}"),
    };
    // Another user of the store has written the first block.
    let (write, _) = place(BLOCK, WriteKind::Data);
    assert!(zones.ready(write, BLOCK, data(BLOCK), false).is_some());
    zones.complete_write(write, true, None);
    assert_eq!(place(0, WriteKind::Append).1, 2 * BLOCK);
}

#[test]
fn merged_writes_that_land_ahead_of_the_known_pointer_move_the_end_of_the_queue() {
    let (zones, events) = (zones(), events());
    let place = |position, kind| match zones.enqueue(position, BLOCK, kind, false, request(&events, 0)).unwrap() {
        Enqueued::Placed(write, position) => (write, position),
        other => panic!("{other:?}"),
    };
    // Another user of the store has written the first block.
    let [first, second] = [BLOCK, 2 * BLOCK].map(|position| place(position, WriteKind::Data).0);
    let first_data = zones.ready(first, BLOCK, data(BLOCK), true).unwrap();
    assert!(zones.ready(second, 2 * BLOCK, data(BLOCK), true).is_none());
    let mut segments = Vec::new();
    assert!(zones.gather(first, first_data, 1 << 20, &mut segments, &events).is_none());
    zones.part_ended(segments.remove(0), Ok(()), &events, drop);
    assert_eq!(place(0, WriteKind::Append).1, 3 * BLOCK);
    zones.part_ended(segments.remove(0), Ok(()), &events, drop);
    assert_eq!(place(0, WriteKind::Append).1, 4 * BLOCK);
}

/// Enqueues three writes behind one that ends then, and merges them.
fn merged(zones: &ZoneWriteQueues, events: &Arc<EventQueue>) -> (Vec<WriteId>, Vec<WriteSegment>) {
    let place = |position| match zones.enqueue(position, BLOCK, WriteKind::Data, false, request(events, 0)).unwrap() {
        Enqueued::Placed(write, _) => write,
        other => panic!("{other:?}"),
    };
    let before = place(0);
    assert!(zones.ready(before, 0, data(BLOCK), false).is_some());
    let writes: Vec<WriteId> = (1..4).map(|number| place(number * BLOCK)).collect();
    for (number, write) in (1..).zip(&writes) {
        assert!(zones.ready(*write, number * BLOCK, data(BLOCK), true).is_none());
    }
    zones.complete_write(before, true, None);
    let mut segments = Vec::new();
    assert!(zones.gather(writes[0], zones.take_data(writes[0]), 1 << 20, &mut segments, events).is_none());
    assert_eq!(segments.len(), 3);
    (writes, segments)
}

#[test]
fn write_that_is_to_go_alone_is_not_merged_again_but_those_behind_it_are() {
    let (zones, events) = (zones(), events());
    let (writes, mut segments) = merged(&zones, &events);
    segments.drain(1..).for_each(|segment| zones.wait_again(segment));
    segments.drain(..).for_each(|segment| zones.go_alone(segment, &events, drop));
    let gather = |write, segments: &mut Vec<WriteSegment>| {
        zones.gather(write, zones.take_data(write), 1 << 20, segments, &events).is_some()
    };
    assert!(gather(writes[0], &mut segments), "alone");
    zones.complete_write(writes[0], true, None);
    assert!(!gather(writes[1], &mut segments));
    assert_eq!(segments.len(), 2);
}

#[test]
fn append_is_reassigned_eight_times_at_most() {
    let (zones, events) = (zones(), events());
    let Ok(Enqueued::Placed(write, mut position)) =
        zones.enqueue(0, BLOCK, WriteKind::Append, false, request(&events, 0))
    else {
        panic!("the zone is empty")
    };
    assert!(zones.ready(write, position, data(BLOCK), false).is_some());
    // Another user of the store writes behind the append each time.
    let fails = |position: u64| {
        zones.store.write_at(&[1; 2 * BLOCK as usize], position).unwrap();
        zones.complete_write(write, false, None)
    };
    for _ in 0..8 {
        assert_eq!(fails(position), WriteOutcome::Reassigned(position + 2 * BLOCK));
        position += 2 * BLOCK;
    }
    assert_eq!(fails(position), WriteOutcome::Left { next: None, landed: false });
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
fn workers_are_woken_until_each_has_had_two_turns_for_every_deferred_write() {
    let (zones, events) = (zones(), events());
    let mut rings = [(); 2].map(|()| Ring::new(IoMode::Sync).unwrap());
    let workers = rings.each_ref().map(|ring| zones.join(ring.waker()));
    let mut woken = || rings.each_mut().map(|ring| ring.turn(Wait::No, &mut VecDeque::new()).unwrap());
    let defer = |number: u64| {
        let place = zones.enqueue(number * BLOCK, BLOCK, WriteKind::Data, true, request(&events, number as u32));
        assert!(matches!(place, Ok(Enqueued::Deferred(_))));
    };
    defer(3);
    assert_eq!(woken(), [true; 2]);
    zones.turned(workers[0]);
    assert_eq!(woken(), [true; 2]);
    zones.turned(workers[0]);
    assert_eq!(woken(), [false, true]);
    defer(5);
    assert_eq!(woken(), [true; 2], "the other write waits for both");
    zones.turned(workers[0]);
    assert_eq!(woken(), [true; 2]);
    // More turns of a worker than two are as good.
    (0..2).for_each(|_| zones.turned(workers[1]));
    assert_eq!(released(&events), [3]);
    zones.turned(workers[0]);
    assert_eq!(released(&events), [5]);
    assert!(!zones.has_deferred());
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
