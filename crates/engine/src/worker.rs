//! The worker: carries requests between a frontend and a store, on one thread, over one ring.
//!
//! A turn submits what the last one collected, waits for completions, and moves every request they belong to one step
//! on. A read is: lock the aligned range, store read, decrypt the aligned range in one call, done. A write is: lock the aligned range, read the
//! edges of partial units, encrypt the aligned range in one call, store write, done. One failing request never holds up or fails
//! its neighbours.

use crate::buffer::BufferPool;
use crate::carrier::{Carried, Carrier};
use crate::crypt_mapping::{Ciphertext, CryptMapping, MappedRange};
use crate::device::Device;
use crate::freeze::{FreezeState, View};
use crate::locks::{Granted, LockId, Purpose};
use crate::mapping::{Kind, Mapping};
use crate::offload::{Ciphered, Direction, Offload};
use crate::request::{Operation, RequestError};
use crate::ring::{self, Completion, FileId, Returned, Ring, Wait};
use crate::rmw;
use crate::stats::{OwnShard, Phase, Work};
use crate::zoned::mgmt_thread::{Managed, ZoneMgmtThread};
use crate::zoned::queue::Queued;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

mod carried;
mod frontend;
mod in_flight;
mod mailbox;
mod merge;
mod offloaded;
mod remap;
mod store_steps;
mod suspend;
mod sync;
mod warm_up;
pub(crate) mod zoned;

use frontend::Message;
pub use frontend::{Context, Finished, Flow, Frontend, Mailbox, Request};
use in_flight::{InFlight, Step};
use sync::Syncs;

/// Requests without a buffer (flushes, discards and the like) that a frontend may have under way at a time. Those with one
/// are as many as there are buffers, so the tables of a worker never grow.
pub const MAX_REQUESTS_WITHOUT_DATA: usize = 4096;

/// The worker's own tokens have the top bit set; the rest is the index in the in-flight table.
const OWN: u64 = 1 << 63;

/// One thread's loop, a turn at a time.
pub struct Worker<F: Frontend> {
    front: F,
    device: Arc<Device>,
    mapping: Arc<Mapping>,
    /// `None`: the device is suspended, and nothing is in flight.
    target: Option<Arc<CryptMapping>>,
    freeze_state: FreezeState,
    /// Of the freeze when it was last looked at.
    epoch: u64,
    worker_id: u64,
    ring: Ring,
    /// Those of the device, as the ring knows them; `None` where a store has no descriptor.
    stores: Vec<Option<FileId>>,
    pool: BufferPool,
    /// Locks that the device's table keeps room for.
    lock_room: usize,
    requests: VecDeque<Request>,
    in_flight: Vec<Option<InFlight>>,
    free: Vec<u32>,
    completions: VecDeque<Completion>,
    finished: VecDeque<Finished>,
    /// Parts that have ended, with what they are parts of.
    parts: VecDeque<(u32, Finished)>,
    /// Store operations that were carried out on this thread. Queued: a store that is short every time must not recurse.
    executed: VecDeque<Completion>,
    /// Writes to sequential zones whose turn it is.
    turns: VecDeque<u32>,
    /// Lists of such that go to the store together.
    gathers: Vec<Vec<ring::WriteSegment>>,
    mailbox: Arc<Mailbox<F::Message>>,
    granted: Arc<dyn Granted>,
    queued: Arc<dyn Queued>,
    ciphered: Arc<dyn Ciphered>,
    /// Who may do the cipher work instead.
    offload: Option<Arc<Offload>>,
    carried: Arc<dyn Carried>,
    /// Who carries long transfers of stores in memory.
    carrier: Option<Carrier>,
    /// How long they are, where not the store says so.
    carried_from: Option<usize>,
    managed: Arc<dyn Managed>,
    /// Who gives orders to zones, from the first on.
    mgmt_thread: Option<ZoneMgmtThread>,
    /// Among those who wait for each other's writes.
    zone_worker: u64,
    syncs: Syncs,
    wait: Wait,
    shard: OwnShard,
}

impl<F: Frontend> Worker<F>
where
    F::Message: 'static,
{
    /// A worker for `device` on the calling thread.
    pub fn new(device: Arc<Device>, mut ring: Ring, mut pool: BufferPool, mut front: F) -> Self {
        let most = pool.len() + MAX_REQUESTS_WITHOUT_DATA;
        ring.reserve(most);
        device.locks().reserve(pool.len());
        let zone_worker = device.zones().map_or(0, |zones| zones.join(ring.waker()));
        device.zones().inspect(|zones| zones.reserve(pool.len()));
        let gathers = merge::room(&device, &mut ring);
        let mailbox = Arc::new(Mailbox::new(ring.waker(), most));
        let stores = device.stores().iter().map(|store| ring.add_store(store)).collect();
        ring.register_buffers(pool.buffers_mut().chain(front.buffers()));
        let worker_id = device.freeze().join(ring.waker());
        let View { epoch, freeze_state, mapping, target } = device.freeze().view(worker_id);
        let shard = OwnShard::new(device.shared_stats());
        let syncs = Syncs::new(device.syncs().join(ring.waker()), most);
        let carrier = carried::carrier_for(&device);
        Self {
            front,
            device,
            mapping,
            target,
            freeze_state,
            epoch,
            worker_id,
            ring,
            stores,
            lock_room: pool.len(),
            pool,
            requests: VecDeque::with_capacity(most),
            in_flight: Vec::with_capacity(most),
            free: Vec::with_capacity(most),
            completions: VecDeque::with_capacity(most),
            finished: VecDeque::with_capacity(most),
            parts: VecDeque::new(),
            executed: VecDeque::with_capacity(most),
            turns: VecDeque::with_capacity(most),
            gathers,
            granted: Arc::clone(&mailbox) as Arc<dyn Granted>,
            queued: Arc::clone(&mailbox) as Arc<dyn Queued>,
            ciphered: Arc::clone(&mailbox) as Arc<dyn Ciphered>,
            offload: None,
            carried: Arc::clone(&mailbox) as Arc<dyn Carried>,
            carrier,
            carried_from: None,
            managed: Arc::clone(&mailbox) as Arc<dyn Managed>,
            mgmt_thread: None,
            zone_worker,
            mailbox,
            syncs,
            wait: Wait::No,
            shard,
        }
    }

    /// Where messages for this worker are posted.
    pub fn mailbox(&self) -> Arc<Mailbox<F::Message>> {
        Arc::clone(&self.mailbox)
    }

    /// The frontend.
    pub fn front(&self) -> &F {
        &self.front
    }

    /// How many buffers are in use.
    pub fn buffers_outstanding(&self) -> usize {
        self.pool.outstanding()
    }

    /// Turns until the frontend says that nothing is left to do.
    pub fn run(&mut self) -> io::Result<()> {
        while self.turn()? == Flow::Continue {}
        Ok(())
    }

    /// Waits for completions and moves everything they belong to one step on.
    pub fn turn(&mut self) -> io::Result<Flow> {
        let woken = self.ring.turn(self.wait, &mut self.completions);
        if self.device.freeze().epoch() != self.epoch {
            self.look();
        }
        if *woken.as_ref().unwrap_or(&false) {
            self.read_mail();
            self.look_at_syncs();
            self.drain();
        }
        while let Some(done) = self.completions.pop_front() {
            if done.token.0 & OWN != 0 {
                self.store_completed(done);
            } else {
                let (front, mut cx) = self.split();
                front.on_completion(&mut cx, done);
            }
            self.drain();
        }
        // Starts over from the front of its memory, which is in the cache; so do the others at the end of a turn.
        self.completions.clear();
        woken?;
        let (front, mut cx) = self.split();
        let (flow, mut wait) = front.end_turn(&mut cx);
        // What the frontend asked for at the turn's end may have ended already, and it has not yet seen to that.
        if self.drain() {
            wait = Wait::No;
        }
        self.wait = wait;
        // While requests wait here, those that others wait for may be among them.
        if self.freeze_state == FreezeState::Running
            && let Some(zones) = self.device.zones().filter(|zones| zones.has_deferred())
        {
            zones.turned(self.zone_worker);
        }
        self.rewind();
        if self.freeze_state != FreezeState::Running {
            self.rest();
        }
        Ok(flow)
    }

    /// Lets queues that are empty begin at the front of their memory again: they are as long as ever may be needed, and
    /// would in time touch all of it.
    fn rewind(&mut self) {
        fn from_the_front<T>(queue: &mut VecDeque<T>) {
            if queue.is_empty() {
                queue.clear();
            }
        }
        from_the_front(&mut self.requests);
        from_the_front(&mut self.finished);
        from_the_front(&mut self.executed);
        from_the_front(&mut self.turns);
        from_the_front(&mut self.syncs.waiting);
        // Room for what a client that has just come may add.
        self.completions.reserve(self.ring.room());
    }

    fn target(&self) -> &CryptMapping {
        self.target.as_deref().expect("the target is here while anything is in flight")
    }

    fn split(&mut self) -> (&mut F, Context<'_>) {
        let suspended = self.freeze_state == FreezeState::Frozen;
        let Self { front, ring, pool, device, mapping, requests, .. } = self;
        (front, Context { ring, pool, device, mapping, suspended, requests })
    }

    fn read_mail(&mut self) {
        loop {
            let message = self.mailbox.next();
            match message {
                None => return,
                Some(Message::Granted(token)) => self.granted(token as u32),
                Some(Message::Written(token, written)) => self.part_written(token as u32, written),
                Some(Message::Ciphered(token, done)) => self.ciphered(token as u32, done),
                Some(Message::Carried(token, delivery)) => self.delivered(token as u32, delivery),
                Some(Message::Managed(token, result)) => self.zones_managed(token as u32, result),
                Some(Message::Front(message)) => {
                    let (front, mut cx) = self.split();
                    front.on_message(&mut cx, message);
                }
            }
            self.drain();
        }
    }

    /// Starts what the frontend has asked for and tells it what has ended, then lets it process input, until nothing is left.
    /// False: there was nothing to do.
    fn drain(&mut self) -> bool {
        let mut worked = false;
        loop {
            if let Some(done) = self.finished.pop_front() {
                let (front, mut cx) = self.split();
                front.on_finished(&mut cx, done);
            } else if let Some(done) = self.executed.pop_front() {
                self.store_completed(done);
            } else if let Some(index) = self.turns.pop_front() {
                self.its_turn(index);
            } else if let Some((parent, part)) = self.parts.pop_front() {
                self.part_finished(parent, part);
            } else if self.freeze_state != FreezeState::Frozen
                && let Some(request) = self.requests.pop_front()
            {
                self.start(request);
            } else {
                let (front, mut cx) = self.split();
                if !front.process(&mut cx) {
                    return worked;
                }
            }
            worked = true;
        }
    }

    fn start(&mut self, request: Request) {
        if self.freeze_state == FreezeState::Ended {
            let Request { id, data, spare, .. } = request;
            let result = Err(RequestError::Io(Errno::SHUTDOWN));
            return self.finished.push_back(Finished { id, result, data, spare });
        }
        self.start_part(request, None);
    }

    fn start_part(&mut self, request: Request, parent: Option<u32>) {
        let Request { id, operation, offset, len, data, spare } = request;
        let (mapped, buffer) = data.map_or((None, None), |(e, b)| (Some(e), Some(b)));
        let (step, lock, failed, progress) = (Step::Start, None, None, 0);
        let work = Work { len: mapped.map_or(len, |e: MappedRange| e.len as u64), ..Work::default() };
        // A part is counted with what it is a part of.
        let timing = if parent.is_none() { self.shard.recorder().accept(operation, work.len) } else { None };
        let flight = InFlight {
            id,
            operation,
            offset,
            len,
            step,
            mapped,
            buffer,
            spare,
            lock,
            progress,
            write: None,
            action: None,
            failed,
            parent,
            timing,
            work,
        };
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.in_flight.push(None);
                (self.in_flight.len() - 1) as u32
            }
        };
        self.in_flight[index as usize] = Some(flight);
        if let Err(error) = self.begin(index) {
            self.finish(index, Err(error));
        }
    }

    fn flight(&mut self, index: u32) -> &mut InFlight {
        self.in_flight[index as usize].as_mut().expect("a request stays in the table until it is finished")
    }

    fn begin(&mut self, index: u32) -> Result<(), RequestError> {
        let access = self.device.access();
        let flight = self.flight(index);
        let (operation, mapped) = (flight.operation, flight.mapped);
        let (offset, len) = (flight.offset, flight.len);
        if operation.modifies() && access.read_only {
            return Err(RequestError::ReadOnly);
        }
        match operation {
            Operation::Zones(action) => self.begin_order(index, action)?,
            Operation::Read
            | Operation::Write { .. }
            | Operation::WriteReissued { .. }
            | Operation::Append { .. }
            | Operation::WriteZeroes { .. } => {
                let mapped = mapped.expect("a request that moves data comes with a buffer");
                self.begin_transfer(index, operation, &mapped)?;
            }
            Operation::Flush => {
                self.device.check_flush()?;
                self.await_sync(index);
            }
            Operation::Discard { durable } => {
                if !access.allow_discards {
                    return Err(RequestError::Unsupported);
                }
                if durable {
                    self.device.check_flush()?;
                }
                let place = self.mapping.place(offset, len)?;
                if self.device.is_sequential(&place)? {
                    return Err(RequestError::Unsupported);
                }
                self.store_step(index, Step::Discard);
            }
            Operation::Prefetch => {
                let place = self.mapping.place(offset, len)?;
                if matches!(place.kind, Kind::Crypt | Kind::Linear) {
                    self.device.stores()[place.store as usize].prefetch(place.store_offset, place.len);
                }
                self.finish(index, Ok(()));
            }
        }
        Ok(())
    }

    fn begin_transfer(&mut self, index: u32, operation: Operation, mapped: &MappedRange) -> Result<(), RequestError> {
        if operation.durable() {
            self.device.check_flush()?;
        }
        if mapped.generation != self.mapping.generation {
            return self.relocate(index, mapped);
        }
        if operation.modifies() && self.begin_in_zone(index, mapped)? {
            return Ok(());
        }
        match mapped.kind {
            Kind::Crypt => {}
            Kind::Linear => {
                self.locked(index);
                return Ok(());
            }
            Kind::Zero => {
                self.read_zeroes(index);
                return Ok(());
            }
            Kind::Error => return Err(RequestError::Io(Errno::IO)),
        }
        if let Some(lock) = self.try_lock_all_shared(operation, mapped) {
            self.flight(index).lock = Some(lock);
            self.locked(index);
            return Ok(());
        }
        self.flight(index).step = Step::Lock;
        let purpose = if operation == Operation::Read { Purpose::Read } else { Purpose::Write };
        let (lock, held) = self.device.locks().lock(mapped, purpose, &self.granted, u64::from(index));
        self.flight(index).lock = Some(lock);
        if held {
            self.locked(index);
        }
        Ok(())
    }

    /// The lock for a request that ends on this thread before anything is waited for.
    fn try_lock_all_shared(&self, operation: Operation, mapped: &MappedRange) -> Option<LockId> {
        let here = self.is_inline(mapped.store, mapped.aligned_len) && self.offload.is_none();
        let whole = operation == Operation::Read || !mapped.is_partial();
        if here && whole { self.device.locks().try_lock_all_shared() } else { None }
    }

    /// Whether a transfer of `len` bytes is a call of this thread.
    fn is_inline(&self, store: u32, len: usize) -> bool {
        self.stores[store as usize].is_none() || len <= self.device.stores()[store as usize].inline_up_to()
    }

    /// Ends a request to a segment that reads as zeroes.
    fn read_zeroes(&mut self, index: u32) {
        let flight = self.flight(index);
        if let (Operation::Read, Some(mapped), Some(buffer)) = (flight.operation, flight.mapped, &mut flight.buffer) {
            buffer.data_mut()[mapped.requested()].fill(0);
        }
        self.finish(index, Ok(()));
    }

    /// A request has what it waited for.
    fn granted(&mut self, index: u32) {
        match self.in_flight[index as usize].as_ref().map(|flight| flight.step) {
            Some(Step::Lock) => self.locked(index),
            Some(Step::Held) => self.in_its_zone(index),
            Some(Step::Turn) => self.its_turn(index),
            _ => {}
        }
    }

    fn locked(&mut self, index: u32) {
        let flight = self.flight(index);
        let mapped = flight.mapped.expect("only requests that move data lock");
        flight.lap(Phase::Queue);
        if flight.operation == Operation::Read {
            let buffer = flight.buffer.take().expect("a read has a buffer");
            if let Some(buffer) = self.carry(index, &mapped, buffer) {
                self.flight(index).buffer = Some(buffer);
                self.store_step(index, Step::Read);
            }
            return;
        }
        match rmw::edges(&mapped) {
            [Some(_), _] => self.store_step(index, Step::Edge(0)),
            [None, Some(_)] => self.store_step(index, Step::Edge(1)),
            [None, None] => self.encrypt_and_write(index),
        }
    }

    fn edge_read(&mut self, index: u32, edge: usize) {
        let flight = self.flight(index);
        let mapped = flight.mapped.expect("only writes have edges");
        if edge == 0 && rmw::edges(&mapped)[1].is_some() {
            return self.store_step(index, Step::Edge(1));
        }
        let buffers = flight.spare.take().zip(flight.buffer.take());
        let (mut spare, mut buffer) = buffers.expect("a partial write comes with both buffers");
        rmw::merge_edges(self.target(), &mapped, spare.data_mut(), buffer.data_mut());
        let flight = self.flight(index);
        (flight.spare, flight.buffer) = (Some(spare), Some(buffer));
        let edges = rmw::edges(&mapped).iter().flatten().count();
        flight.ciphered(edges as u32, edges * mapped.unit_len);
        self.encrypt_and_write(index);
    }

    fn encrypt_and_write(&mut self, index: u32) {
        let flight = self.flight(index);
        let mapped = flight.mapped.expect("a write has an mapped");
        let mut buffer = flight.buffer.take().expect("a write has a buffer");
        if matches!(flight.operation, Operation::WriteZeroes { .. }) {
            buffer.data_mut()[mapped.requested()].fill(0);
        }
        let in_order = self.flight(index).write.is_some();
        let buffer = if in_order { Some(buffer) } else { self.carry(index, &mapped, buffer) };
        let Some(buffer) = buffer else { return };
        let Some(buffer) = self.keep(index, &mapped, Direction::Encrypt, buffer) else { return };
        let ciphertext = self.target().encrypt(&mapped, buffer);
        self.flight(index).ciphered(1, mapped.aligned_len);
        self.write_whole(index, ciphertext);
    }

    fn write_whole(&mut self, index: u32, data: Ciphertext) {
        let flight = self.flight(index);
        if flight.write.is_some() {
            return self.await_turn(index, data);
        }
        flight.step = Step::Write;
        flight.progress = 0;
        self.store_write(index, data);
    }

    /// Moves a request on after its store operation.
    fn store_completed(&mut self, done: Completion) {
        if let Returned::Segments(parts) = done.returned {
            return self.gathered_written(parts, done.result);
        }
        if done.token == sync::TOKEN {
            return self.store_synced(done.result);
        }
        let index = done.token.0 as u32;
        let flight = self.flight(index);
        flight.lap(Phase::Store);
        let step = flight.step;
        let wanted = match (step, flight.mapped) {
            (Step::Edge(_), Some(mapped)) => mapped.unit_len,
            (Step::Read | Step::Write, Some(mapped)) => mapped.aligned_len,
            _ => 0,
        };
        let outcome = match done.result {
            Err(Errno::INTR | Errno::AGAIN) => Ok(false),
            Err(error) => Err(error),
            // The store ended early, or takes no more: never made up for with zeroes.
            Ok(0) if wanted > 0 => Err(Errno::IO),
            Ok(n) => {
                flight.progress += n;
                Ok(flight.progress >= wanted)
            }
        };
        let mut ciphertext = None;
        match (done.returned, step) {
            (Returned::Buffer(buffer), Step::Edge(_)) => flight.spare = Some(buffer),
            (Returned::Buffer(buffer), _) => flight.buffer = Some(buffer),
            (Returned::Ciphertext(data), _) => ciphertext = Some(data),
            (Returned::Nothing | Returned::Outgoing(_) | Returned::Segments(_), _) => {}
        }
        match (outcome, step) {
            (Ok(false), Step::Write) => {
                let data = ciphertext.expect("a write gives its data back");
                return self.store_write(index, data);
            }
            (Ok(false), Step::Edge(_) | Step::Read) => return self.store_read(index),
            // Once more from the start, which gives nothing back twice.
            (Ok(false), _) => return self.store_step(index, step),
            (Ok(true), Step::Edge(edge)) => return self.edge_read(index, edge),
            (Ok(true), Step::Discard) => return self.discard(index),
            _ => {}
        }
        match step {
            Step::Write => self.written(index, outcome, ciphertext),
            _ => self.last_step(index, step, outcome.map(|_| ())),
        }
    }

    /// A write has ended.
    fn written(&mut self, index: u32, outcome: Result<bool, Errno>, mut data: Option<Ciphertext>) {
        if self.complete_write(index, outcome, &mut data) {
            self.flight(index).buffer = data.map(Ciphertext::into_buffer);
            self.last_step(index, Step::Write, outcome.map(|_| ()));
        }
    }

    fn last_step(&mut self, index: u32, step: Step, outcome: Result<(), Errno>) {
        let flight = self.flight(index);
        let result = match step {
            Step::Write if flight.operation.durable() => return self.make_durable(index, outcome),
            Step::Discard if flight.operation.durable() && outcome.is_ok() => return self.await_sync(index),
            Step::Discard => match outcome {
                Err(Errno::OPNOTSUPP) => Err(RequestError::Unsupported),
                other => other.map_err(RequestError::Io),
            },
            _ => outcome.map_err(RequestError::Io),
        };
        if step == Step::Read
            && result.is_ok()
            && let (Some(mapped), Some(buffer)) = (flight.mapped, flight.buffer.take())
        {
            let Some(buffer) = self.keep(index, &mapped, Direction::Decrypt, buffer) else { return };
            let buffer = self.target().decrypt(&mapped, Ciphertext::from_store(buffer));
            let flight = self.flight(index);
            flight.buffer = Some(buffer);
            flight.ciphered(1, mapped.aligned_len);
        }
        self.finish(index, result);
    }

    fn finish(&mut self, index: u32, result: Result<(), RequestError>) {
        let flight = self.in_flight[index as usize].take().expect("a request is finished once");
        self.free.push(index);
        if let Some(lock) = flight.lock {
            self.device.locks().unlock(lock);
        }
        if let (Some(write), Some(zones)) = (flight.write, self.device.zones()) {
            self.turns.extend(zones.leave(write, Some(&self.queued)).map(|token| token as u32));
        }
        if flight.parent.is_none() {
            self.shard.recorder().finish(flight.operation, &result, &flight.work, flight.timing.as_ref());
        }
        let data = flight.mapped.zip(flight.buffer);
        let finished = Finished { id: flight.id, result, data, spare: flight.spare };
        match flight.parent {
            None => self.finished.push_back(finished),
            Some(parent) => self.parts.push_back((parent, finished)),
        }
    }
}

impl<F: Frontend> Drop for Worker<F> {
    fn drop(&mut self) {
        // It may have the target as well, until it has ended.
        self.carrier = None;
        // Nothing reaches a store any more once the worker_id is given up, and nobody waits for ever for what it had locked.
        let ended = self.ring.finish();
        self.leave_syncs(&ended);
        self.give_parts_back(ended);
        self.leave_zones();
        self.in_flight
            .iter()
            .flatten()
            .filter_map(|flight| flight.lock)
            .for_each(|lock| self.device.locks().unlock(lock));
        self.target = None;
        self.device.locks().unreserve(self.lock_room);
        self.device.freeze().leave(self.worker_id);
    }
}
