//! Merged writes to a sequential zone.
//!
//! A drive has one write of a zone in flight at a time. Meanwhile others are encrypted and queue up; when the first of
//! them is dispatched, those behind it that are ready are merged with it into one vectored write. So the rate of small
//! appends to a zone is limited by the drive's bandwidth, not by its latency.

use super::action::Hold;
use super::path;
use super::stores::StoreAccess;
use super::{ENGINE, Frontend, Worker};
use crate::buffer::{Buffer, BufferPool};
use crate::ciphertext::Ciphertext;
use crate::device::Device;
use crate::errno::Errno;
use crate::events::{Event, EventQueue, RequestId};
use crate::ring::{self, Completion, MAX_WRITE_SEGMENTS, Returned, Ring, Token, WriteSegment};
use crate::store;
use crate::zone_queue::{Told, WriteId};
use std::collections::VecDeque;
use std::sync::Arc;

/// Maximum number of merged writes that a worker has in flight, in different zones. Further writes are not merged.
const MAX_MERGED: usize = 16;

/// Reserves memory for merged writes if the device has zones.
pub(super) fn room(device: &Device, ring: &mut Ring) -> Vec<Vec<WriteSegment>> {
    let count = if device.zones().is_some() { MAX_MERGED } else { 0 };
    ring.reserve_writev(count);
    (0..count).map(|_| Vec::with_capacity(MAX_WRITE_SEGMENTS)).collect()
}

impl<F: Frontend> Worker<F> {
    /// Writes the head of a zone's queue together with the writes behind it that are ready, this worker's or another's.
    pub(super) fn merge(&mut self, id: RequestId, data: Ciphertext) -> Option<Event> {
        let Hold::ZoneWrite(write) = self.table.transfer(id)?.hold else { return None };
        let zones = self.volume.device.zones()?;
        let Some(mut segments) = self.merges.pop() else { return Some(Event::NotMerged { data }) };
        let longest = (zones.limits().longest_write as usize).min(BufferPool::LARGEST_PIECE);
        if let Some(data) = zones.gather(write, data, longest, &mut segments, &self.events) {
            self.merges.push(segments);
            return Some(Event::NotMerged { data });
        }
        self.submit_merged(segments);
        None
    }

    /// Returns whether a merged write is in flight.
    pub(super) fn has_merged(&self) -> bool {
        self.volume.device.zones().is_some() && self.merges.len() < MAX_MERGED
    }

    /// Submits the unwritten bytes of the segments as one write.
    fn submit_merged(&mut self, segments: Vec<WriteSegment>) {
        let zones = self.volume.device.zones().expect("only zone writes are merged");
        let offset = zones.position(WriteId::of(segments[0].token)) + segments[0].range.start as u64;
        let len: usize = segments.iter().map(|segment| segment.range.len()).sum();
        let operation = ring::Operation::Writev { offset, segments };
        let store = &self.volume.device.stores()[ZONED];
        match self.volume.access[ZONED] {
            StoreAccess::Ring(file) if len > path::inline_max_len(&store.profile(), true) => {
                self.ring.submit(file, operation, NO_REQUEST);
            }
            _ => {
                let (result, returned) = operation.execute(&**store);
                // Complete later: a store that transfers less every time must not cause recursion.
                self.completions.push_back(Completion { token: NO_REQUEST, result, returned });
            }
        }
    }

    /// Handles the completion of a merged write.
    pub(super) fn merged_written(&mut self, mut segments: Vec<WriteSegment>, result: Result<usize, Errno>) {
        let (device, events) = (Arc::clone(&self.volume.device), Arc::clone(&self.events));
        let zones = device.zones().expect("only zone writes are merged");
        sort_out(&device, &events, &mut segments, result, |told| self.told(told));
        match (segments.is_empty(), result) {
            (true, _) => self.merges.push(segments),
            // The store accepts no more bytes.
            (false, Ok(0)) => {
                let segment = segments.pop().expect("one is left");
                zones.part_ended(segment, Err(Errno::IO), &events, |told| self.told(told));
                self.merges.push(segments);
            }
            (false, _) => self.submit_merged(segments),
        }
    }

    fn told(&mut self, told: Told) {
        self.ready.push_back(match told {
            Told::Turn(id) => (id, Event::Released),
            Told::Written(id, written) => (id, Event::Merged(written)),
        });
    }

    /// Reports the outcome of merged writes when the worker ends. Its own writes leave their queues afterwards.
    pub(super) fn give_merged_back(&mut self, ended: VecDeque<Completion>) {
        let Some(zones) = self.volume.device.zones() else { return };
        let unseen = self.completions.drain(..).chain(ended);
        for Completion { result, returned, .. } in unseen {
            if let Returned::Segments(mut segments) = returned {
                sort_out(&self.volume.device, &self.events, &mut segments, result, drop);
                for segment in segments {
                    zones.part_ended(segment, Err(Errno::IO), &self.events, drop);
                }
            }
        }
        zones.lender_ends(&self.events);
    }
}

/// Index of a zoned store, which is the device's only one.
const ZONED: usize = 0;
/// The completion of a merged write brings the segments, which name their entries.
const NO_REQUEST: Token = Token(ENGINE | u32::MAX as u64);

/// Decides the outcome of each segment. Segments that were written are complete. The first that was not continues
/// alone, so that it gets its own error, and the others are queued again. After a failed write, the content of every
/// segment that it may have touched is unknown, and these fail. A segment left in `segments` is written in part, and is
/// to be continued.
fn sort_out(
    device: &Device,
    me: &Arc<EventQueue>,
    segments: &mut Vec<WriteSegment>,
    result: Result<usize, Errno>,
    mut tell: impl FnMut(Told),
) {
    let zones = device.zones().expect("only writes in order go together");
    let is_begun = segments[0].range.start > 0;
    match result {
        Err(Errno::INTR | Errno::AGAIN) if is_begun => {}
        Err(error) => {
            let touched = if is_begun { 1 } else { touched(device, segments) };
            segments.drain(touched.max(1)..).for_each(|segment| zones.wait_again(segment));
            match segments.pop() {
                Some(first) if touched == 0 => zones.go_alone(first, me, tell),
                last => {
                    last.into_iter().for_each(|segment| zones.part_ended(segment, Err(error), me, &mut tell));
                    while let Some(segment) = segments.pop() {
                        zones.part_ended(segment, Err(error), me, &mut tell);
                    }
                }
            }
        }
        Ok(mut written) => {
            let mut whole = 0;
            while let Some(segment) = segments.get(whole).filter(|segment| segment.range.len() <= written) {
                (written, whole) = (written - segment.range.len(), whole + 1);
            }
            segments.drain((whole + 1).min(segments.len())..).for_each(|segment| zones.wait_again(segment));
            let rest = if segments.len() > whole { segments.pop() } else { None };
            segments.drain(..).for_each(|segment| zones.part_ended(segment, Ok(()), me, &mut tell));
            match rest {
                Some(segment) if segment.range.start + written > 0 => {
                    let range = segment.range.start + written..segment.range.end;
                    segments.push(WriteSegment { range, ..segment });
                }
                Some(segment) => zones.go_alone(segment, me, tell),
                None => {}
            }
        }
    }
}

/// Returns the number of segments of a failed write that the store may have in part. Blocks, which is acceptable
/// because it is rare.
fn touched(device: &Device, segments: &[WriteSegment]) -> usize {
    let zones = device.zones().expect("only writes in order go together");
    let first = &segments[0];
    let start = zones.position(WriteId::of(first.token));
    // If the store does not answer now, the first segment gets the error.
    let pointer = zones.ask_again(start).unwrap_or(start);
    let len = (pointer.saturating_sub(start) as usize).min(first.range.len());
    let mut stored = Buffer::new(first.range.len());
    let read = store::read_all(&*device.stores()[ZONED], &mut stored.data_mut()[..len], start);
    if read.is_ok() && stored.data()[..len] != first.data.bytes()[..len] {
        // The zone was written by another user.
        return 0;
    }
    let starts =
        segments.iter().scan(start, |end, segment| Some(std::mem::replace(end, *end + segment.range.len() as u64)));
    starts.take_while(|start| *start < pointer).count()
}

#[cfg(test)]
mod tests {
    use super::super::{Context, Finished, Flow, Request};
    use super::*;
    use crate::BlockingDevice;
    use crate::buffer::BufferClass;
    use crate::device::Access;
    use crate::events::ReplyTo;
    use crate::request::Operation;
    use crate::ring::{Token, Wait};
    use crate::store::file::IoMode;
    use crate::store::{BackingStore, Geometry, StoreProfile};
    use crate::zone_queue::{Enqueued, Waiter, WriteKind, WriteOutcome};
    use crate::zoned::{ZoneAction, ZonedStore};
    use crate::zoned_memory::{MemoryZones, Shape};
    use inlock_cipher::{CipherSpec, DataUnitSize, Segment, VolumeKey};
    use std::os::fd::{AsFd, BorrowedFd};

    struct NullFrontend;

    impl Frontend for NullFrontend {
        type Message = ();
        fn on_message(&mut self, _cx: &mut Context<'_>, (): ()) {}
        fn on_completion(&mut self, _cx: &mut Context<'_>, _done: Completion) {}
        fn on_finished(&mut self, _cx: &mut Context<'_>, _done: Finished) {}
        fn end_turn(&mut self, _cx: &mut Context<'_>) -> (Flow, Wait) {
            (Flow::Stop, Wait::No)
        }
    }

    const SHAPE: Shape = Shape {
        zone_len: 1 << 20,
        capacity: 1 << 20,
        zones: 4,
        conventional: 0,
        max_open: 0,
        max_active: 0,
        granularity: 512,
    };

    fn device() -> Arc<Device> {
        device_on(Arc::new(MemoryZones::new(SHAPE)))
    }

    fn device_on(store: Arc<dyn BackingStore>) -> Arc<Device> {
        let segment = Segment::whole(Some(CipherSpec::AES_XTS_PLAIN64), DataUnitSize::new(512).unwrap());
        let key = VolumeKey::new(&(0..64).collect::<Vec<u8>>());
        Arc::new(Device::new(&[segment], &key, store, Access::default()).unwrap())
    }

    fn worker(device: &Arc<Device>) -> Worker<NullFrontend> {
        let pool = BufferPool::new(&[BufferClass { capacity: 4096, count: 8 }]);
        Worker::new(Arc::clone(device), Ring::new(IoMode::Sync).unwrap(), pool, NullFrontend)
    }

    /// Returns a request of a worker that handles no events.
    fn waiter(index: u32) -> Waiter {
        let events = Arc::new(EventQueue::new(Ring::new(IoMode::Sync).unwrap().waker(), 0));
        Waiter::Request(ReplyTo::new(&events, RequestId { index, generation: 0 }))
    }

    fn request(device: &Device, id: u64) -> Request {
        let mapped = device.mapping().locate(0, 4096, 1 << 20).unwrap();
        let data = Some((mapped, Buffer::new(4096)));
        Request { id, operation: Operation::Append { durable: false }, offset: 0, len: 4096, data, spare: None }
    }

    /// Returns two workers with appends of theirs, alternating, which the first has merged and not written.
    fn gathered(device: &Arc<Device>, count: u64) -> (Worker<NullFrontend>, Worker<NullFrontend>, Vec<WriteSegment>) {
        let zones = device.zones().unwrap();
        // Another owner has the head of the queue, so that the appends wait.
        let waiter = || waiter(0);
        let Enqueued::Placed(before, position) = zones.enqueue(0, 4096, WriteKind::Append, false, waiter()).unwrap()
        else {
            panic!("an append is placed")
        };
        let data = zones.ready(before, position, Ciphertext::encrypted(Buffer::new(4096)), false);
        let (mut one, mut other) = (worker(device), worker(device));
        for n in 0..count {
            let to = if n % 2 == 0 { &mut one } else { &mut other };
            to.requests.push_back(request(device, n));
            to.run_queue();
        }
        device.stores()[0].write_at(data.unwrap().bytes(), 0).unwrap();
        assert_eq!(zones.complete_write(before, true, None), WriteOutcome::Left { next: None, landed: true });
        let Some((id, Event::Released)) = one.events.next() else { panic!("its write is the head of the queue") };
        let Hold::ZoneWrite(write) = one.table.transfer(id).unwrap().hold else { panic!("it is in a queue") };
        let mut segments = one.merges.pop().unwrap();
        let data = zones.take_data(write);
        assert!(zones.gather(write, data, 1 << 20, &mut segments, &one.events).is_none());
        assert_eq!(segments.len(), count as usize);
        (one, other, segments)
    }

    fn completion(segments: Vec<WriteSegment>, result: Result<usize, Errno>) -> VecDeque<Completion> {
        VecDeque::from([Completion { token: Token(0), result, returned: Returned::Segments(segments) }])
    }

    fn told(worker: &Worker<NullFrontend>) -> Option<Result<(), Errno>> {
        match worker.events.next()?.1 {
            Event::Merged(written) => Some(written.result),
            Event::Released => None,
            event => panic!("{event:?}"),
        }
    }

    fn lands(device: &Device, len: usize) {
        assert_eq!(device.stores()[0].write_at(&vec![0; len], 4096), Ok(len));
    }

    /// Returns the position of the zone's next append.
    fn next(device: &Arc<Device>) -> u64 {
        BlockingDevice::new(Arc::clone(device)).append(0, &[1; 4096]).unwrap()
    }

    #[test]
    fn worker_that_ends_tells_others_of_their_merged_writes() {
        let device = device();
        let (mut ending, mut other, segments) = gathered(&device, 6);
        // Two are written, and half of the third.
        lands(&device, 2 * 4096 + 2048);
        ending.give_merged_back(completion(segments, Ok(2 * 4096 + 2048)));
        drop(ending);
        assert_eq!(told(&other), Some(Ok(())));
        // The others are written in the end.
        other.read_messages();
        other.turn().unwrap();
        assert_eq!(other.table.len(), 1, "the first is not taken note of here");
        assert_eq!(next(&device), 4096 + 2 * 4096 + 2048 + 2 * 4096);
    }

    #[test]
    fn merged_write_that_is_lost_fails() {
        let device = device();
        let (one, other, segments) = gathered(&device, 4);
        drop(segments);
        drop(one);
        assert_eq!([told(&other), told(&other)], [Some(Err(Errno::IO)); 2]);
        assert_eq!(next(&device), 4096);
    }

    #[test]
    fn entry_that_has_left_is_not_another_writes() {
        let device = device();
        let zones = device.zones().unwrap();
        let (mut one, other, segments) = gathered(&device, 2);
        lands(&device, 8192);
        one.merged_written(segments, Ok(8192));
        // The other worker has not read its events. Another append may be given the same entry.
        let waiter = waiter(7);
        let Enqueued::Placed(write, position) = zones.enqueue(0, 4096, WriteKind::Append, false, waiter).unwrap()
        else {
            panic!("an append is placed")
        };
        drop(other);
        assert!(zones.ready(write, position, Ciphertext::encrypted(Buffer::new(4096)), true).is_some());
        assert!(zones.leave(write, None).is_none());
    }

    #[test]
    fn deferred_write_returns_to_the_queue_when_the_device_is_suspended() {
        let device = device();
        let mut worker = worker(&device);
        let mapped = device.mapping().locate(8192, 4096, 1 << 20).unwrap();
        let data = Some((mapped, Buffer::new(4096)));
        let operation = Operation::Write { durable: false };
        worker.requests.push_back(Request { id: 0, operation, offset: 8192, len: 4096, data, spare: None });
        worker.run_queue();
        assert!(device.zones().unwrap().has_deferred() && worker.table.len() == 1 && worker.requests.is_empty());
        worker.take_back_deferred();
        assert!(!device.zones().unwrap().has_deferred());
        assert_eq!((worker.table.len(), worker.requests.len()), (0, 1));
    }

    /// A segment written in part is continued until the store reports an error.
    #[test]
    fn half_written_segment_is_continued() {
        for (result, expected) in [(Ok(0), Some(Err(Errno::IO))), (Err(Errno::NOSPC), Some(Err(Errno::NOSPC)))] {
            let device = device();
            let (mut one, other, segments) = gathered(&device, 2);
            lands(&device, 4096 + 2048);
            one.merged_written(segments, Ok(4096 + 2048));
            let in_flight = |one: &mut Worker<NullFrontend>| match one.completions.pop_back().map(|done| done.returned)
            {
                Some(Returned::Segments(segments)) => segments,
                _ => panic!("the rest is written"),
            };
            let mut segments = in_flight(&mut one);
            assert_eq!((segments.len(), segments[0].range.clone()), (1, 2048..4096));
            let rest = device.zones().unwrap().ask_again(4096).unwrap();
            assert_eq!(rest, 4096 + 8192, "where the first half ends");
            assert!(one.has_merged(), "it is not at rest");
            for error in [Errno::INTR, Errno::AGAIN] {
                one.merged_written(segments, Err(error));
                assert!(told(&other).is_none());
                segments = in_flight(&mut one);
            }
            one.merged_written(segments, result);
            assert_eq!(told(&other), expected);
            assert!(!one.has_merged() && one.completions.is_empty());
        }
    }

    /// Zones in memory with a descriptor, so that a ring takes operations on them.
    struct WithDescriptor {
        zones: MemoryZones,
        file: std::fs::File,
        in_memory: bool,
    }

    impl BackingStore for WithDescriptor {
        fn geometry(&self) -> Geometry {
            self.zones.geometry()
        }
        fn profile(&self) -> StoreProfile {
            StoreProfile { in_memory: self.in_memory, ..StoreProfile::default() }
        }
        fn as_fd(&self) -> Option<BorrowedFd<'_>> {
            Some(self.file.as_fd())
        }
        fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
            self.zones.read_at(data, offset)
        }
        fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
            self.zones.write_at(data, offset)
        }
        fn sync(&self) -> Result<(), Errno> {
            self.zones.sync()
        }
        fn discard(&self, offset: u64, len: u64) -> Result<(), Errno> {
            self.zones.discard(offset, len)
        }
        fn zoned(&self) -> Option<&dyn ZonedStore> {
            self.zones.zoned()
        }
    }

    #[test]
    fn merged_write_goes_by_the_ring_unless_it_is_short_and_the_store_in_memory() {
        for (in_memory, count, is_inline) in [(false, 2, false), (true, 8, true), (true, 9, false)] {
            let (zones, file) = (MemoryZones::new(SHAPE), tempfile::tempfile().unwrap());
            let device = device_on(Arc::new(WithDescriptor { zones, file, in_memory }));
            let (mut one, _other, segments) = gathered(&device, count);
            one.submit_merged(segments);
            assert_eq!(one.completions.len(), usize::from(is_inline), "{count} blocks, in memory: {in_memory}");
            one.turn().unwrap();
            assert!(!one.has_merged());
            assert_eq!(device.zones().unwrap().ask_again(0), Ok((1 + count) * 4096));
        }
    }

    #[test]
    fn zone_management_that_waits_is_given_up_when_its_worker_ends() {
        let device = device();
        let zones = device.zones().unwrap();
        let Enqueued::Placed(before, position) = zones.enqueue(0, 4096, WriteKind::Append, false, waiter(0)).unwrap()
        else {
            panic!("an append is placed")
        };
        assert!(zones.ready(before, position, Ciphertext::encrypted(Buffer::new(4096)), false).is_some());
        let mut worker = worker(&device);
        let operation = Operation::Zones(ZoneAction::Reset);
        worker.requests.push_back(Request { id: 0, operation, offset: 0, len: 1 << 20, data: None, spare: None });
        worker.run_queue();
        assert_eq!(worker.table.len(), 1, "it waits for the append");
        drop(worker);
        zones.complete_write(before, false, None);
        assert_eq!(next(&device), 0, "nothing else is in the queue");
    }

    #[test]
    fn zone_management_that_its_thread_has_is_over_when_its_worker_ends() {
        let device = device();
        assert_eq!(next(&device), 0);
        let mut worker = worker(&device);
        let operation = Operation::Zones(ZoneAction::Reset);
        worker.requests.push_back(Request { id: 0, operation, offset: 0, len: 1 << 20, data: None, spare: None });
        worker.run_queue();
        assert_eq!(worker.table.len(), 1, "the worker has not read the event of its end");
        drop(worker);
        assert_eq!(next(&device), 0, "the zone is reset");
    }
}
