//! The worker: carries requests between a front end and a store, on one thread, over one ring.
//!
//! A turn submits what the last one collected, waits for completions, and moves every request they belong to one step
//! on. A read is: lock the cover, store read, decrypt the cover in one call, done. A write is: lock the cover, read the
//! edges of partial units, encrypt the cover in one call, store write, done. One failing request never holds up or fails
//! its neighbours.

use crate::buffer::{Buffer, BufferPool};
use crate::device::Device;
use crate::request::{Operation, RequestError};
use crate::ring::{self, Completion, FileId, Returned, Ring, Token, Wait, Waker};
use crate::stats::{OwnShard, Phase, Timing, Work};
use crate::target::{Ciphertext, Extent};
use crate::unaligned::{self, Granted, LockId, Purpose};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// A request and the memory it needs; the front end made both.
#[derive(Debug)]
pub struct Request {
    /// The front end's name for it.
    pub id: u64,
    /// What is asked.
    pub operation: Operation,
    /// Where; any range for a flush.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
    /// For operations that move data: where that lies ([`crate::CryptTarget::locate`]), and a buffer that holds the cover,
    /// with a write's bytes at [`Extent::requested`].
    pub data: Option<(Extent, Buffer)>,
    /// For writes with partial units: room for [`unaligned::spare_len`] bytes.
    pub spare: Option<Buffer>,
}

/// A request that has ended, with its memory. A read's bytes are at [`Extent::requested`].
#[derive(Debug)]
pub struct Finished {
    /// The front end's name for it.
    pub id: u64,
    /// How it ended.
    pub result: Result<(), RequestError>,
    /// What [`Request::data`] was.
    pub data: Option<(Extent, Buffer)>,
    /// What [`Request::spare`] was.
    pub spare: Option<Buffer>,
}

/// Whether a worker goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// There may be more.
    Continue,
    /// The front end is finished.
    Stop,
}

/// What a front end may use while it is called.
pub struct Context<'a> {
    /// Where its own operations go. Tokens with the top bit set are the worker's.
    pub ring: &'a mut Ring,
    /// The worker's buffers.
    pub pool: &'a mut BufferPool,
    /// The device that is served.
    pub device: &'a Device,
    /// Requests that the worker is to carry out.
    pub requests: &'a mut VecDeque<Request>,
}

/// Who asks. One front end, one thread, one ring.
pub trait FrontEnd {
    /// What other threads send it through [`Mailbox::post`].
    type Message: Send;

    /// Something was posted.
    fn on_message(&mut self, cx: &mut Context<'_>, message: Self::Message);
    /// One of its own operations has ended.
    fn on_completion(&mut self, cx: &mut Context<'_>, done: Completion);
    /// One of its requests has ended.
    fn on_finished(&mut self, cx: &mut Context<'_>, done: Finished);
    /// Everything that this turn brought was handled: the moment to send what was collected. Says how long the next
    /// turn may wait, or that nothing is left to do.
    fn end_turn(&mut self, cx: &mut Context<'_>) -> (Flow, Wait);
}

/// How other threads reach a worker.
pub struct Mailbox<M> {
    messages: Mutex<VecDeque<Message<M>>>,
    waker: Waker,
}

enum Message<M> {
    Front(M),
    Granted(u64),
}

impl<M> Mailbox<M> {
    /// Sends the front end a message and wakes the worker.
    pub fn post(&self, message: M) {
        self.push(Message::Front(message));
    }

    fn push(&self, message: Message<M>) {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).push_back(message);
        self.waker.wake();
    }
}

impl<M: Send> Granted for Mailbox<M> {
    fn granted(&self, token: u64) {
        self.push(Message::Granted(token));
    }
}

/// The worker's own tokens have the top bit set; the rest is the index in the in-flight table.
const OWN: u64 = 1 << 63;

/// A request on its way.
struct InFlight {
    id: u64,
    operation: Operation,
    offset: u64,
    len: u64,
    step: Step,
    extent: Option<Extent>,
    buffer: Option<Buffer>,
    spare: Option<Buffer>,
    lock: Option<LockId>,
    /// Bytes of the current store operation that are done.
    progress: usize,
    /// Why it fails, while the store is asked whether earlier writes are lost as well.
    failed: Option<Errno>,
    timing: Option<Timing>,
    work: Work,
}

impl InFlight {
    fn lap(&mut self, phase: Phase) {
        if let Some(timing) = &mut self.timing {
            timing.lap(phase);
        }
    }

    /// Takes note of cipher calls over `bytes` of its data units, and of the time they took.
    fn ciphered(&mut self, calls: u32, bytes: usize) {
        let Some(extent) = self.extent.filter(|e| e.granule > 1) else { return };
        self.work.cipher_calls += calls;
        self.work.cipher_units += (bytes / extent.granule) as u32;
        self.lap(Phase::Cipher);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Start,
    Lock,
    /// Reading edge 0 or 1 of a partial write.
    Edge(usize),
    Read,
    Write,
    Sync,
    Discard,
}

/// One thread's loop, a turn at a time.
pub struct Worker<F: FrontEnd> {
    front: F,
    device: Arc<Device>,
    ring: Ring,
    store: Option<FileId>,
    pool: BufferPool,
    requests: VecDeque<Request>,
    in_flight: Vec<Option<InFlight>>,
    free: Vec<u32>,
    completions: VecDeque<Completion>,
    finished: VecDeque<Finished>,
    /// Store operations that were carried out on this thread. Queued: a store that is short every time must not recurse.
    executed: VecDeque<Completion>,
    mailbox: Arc<Mailbox<F::Message>>,
    granted: Arc<dyn Granted>,
    wait: Wait,
    shard: OwnShard,
}

impl<F: FrontEnd> Worker<F>
where
    F::Message: 'static,
{
    /// A worker for `device` on the calling thread.
    pub fn new(device: Arc<Device>, mut ring: Ring, pool: BufferPool, front: F) -> Self {
        let mailbox = Arc::new(Mailbox { messages: Mutex::default(), waker: ring.waker() });
        let store = ring.add_store(device.store());
        let shard = OwnShard::new(device.shared_stats());
        Self {
            front,
            device,
            ring,
            store,
            pool,
            requests: VecDeque::with_capacity(256),
            in_flight: Vec::with_capacity(256),
            free: Vec::with_capacity(256),
            completions: VecDeque::with_capacity(256),
            finished: VecDeque::with_capacity(256),
            executed: VecDeque::with_capacity(256),
            granted: Arc::clone(&mailbox) as Arc<dyn Granted>,
            mailbox,
            wait: Wait::No,
            shard,
        }
    }

    /// Where messages for this worker are posted.
    pub fn mailbox(&self) -> Arc<Mailbox<F::Message>> {
        Arc::clone(&self.mailbox)
    }

    /// The front end.
    pub fn front(&self) -> &F {
        &self.front
    }

    /// How many buffers are in use.
    pub fn buffers_outstanding(&self) -> usize {
        self.pool.outstanding()
    }

    /// Turns until the front end says that nothing is left to do.
    pub fn run(&mut self) -> io::Result<()> {
        while self.turn()? == Flow::Continue {}
        Ok(())
    }

    /// Waits for completions and moves everything they belong to one step on.
    pub fn turn(&mut self) -> io::Result<Flow> {
        let mut completions = std::mem::take(&mut self.completions);
        let woken = self.ring.turn(self.wait, &mut completions);
        if *woken.as_ref().unwrap_or(&false) {
            self.read_mail();
        }
        while let Some(done) = completions.pop_front() {
            if done.token.0 & OWN != 0 {
                self.store_completed(done);
            } else {
                let (front, mut cx) = self.split();
                front.on_completion(&mut cx, done);
            }
            self.drain();
        }
        self.completions = completions;
        woken?;
        let (front, mut cx) = self.split();
        let (flow, mut wait) = front.end_turn(&mut cx);
        // What the front end asked for at the turn's end may have ended already, and it has not yet seen to that.
        if self.drain() {
            wait = Wait::No;
        }
        self.wait = wait;
        Ok(flow)
    }

    fn split(&mut self) -> (&mut F, Context<'_>) {
        let Self { front, ring, pool, device, requests, .. } = self;
        (front, Context { ring, pool, device, requests })
    }

    fn read_mail(&mut self) {
        loop {
            let message = self.mailbox.messages.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            match message {
                None => return,
                Some(Message::Granted(token)) => self.lock_granted(token as u32),
                Some(Message::Front(message)) => {
                    let (front, mut cx) = self.split();
                    front.on_message(&mut cx, message);
                }
            }
            self.drain();
        }
    }

    /// Starts what the front end has asked for and tells it what has ended, until neither is left. False: there was
    /// nothing to do.
    fn drain(&mut self) -> bool {
        let mut worked = false;
        loop {
            if let Some(done) = self.finished.pop_front() {
                let (front, mut cx) = self.split();
                front.on_finished(&mut cx, done);
            } else if let Some(done) = self.executed.pop_front() {
                self.store_completed(done);
            } else if let Some(request) = self.requests.pop_front() {
                self.start(request);
            } else {
                return worked;
            }
            worked = true;
        }
    }

    fn start(&mut self, request: Request) {
        let Request { id, operation, offset, len, data, spare } = request;
        let (extent, buffer) = data.map_or((None, None), |(e, b)| (Some(e), Some(b)));
        let (step, lock, failed, progress) = (Step::Start, None, None, 0);
        let work = Work { len: extent.map_or(len, |e: Extent| e.len as u64), ..Work::default() };
        let timing = self.shard.recorder().accept(operation, work.len);
        let flight =
            InFlight { id, operation, offset, len, step, extent, buffer, spare, lock, progress, failed, timing, work };
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
        let (operation, extent) = (flight.operation, flight.extent);
        let (offset, len) = (flight.offset, flight.len);
        if operation.modifies() && access.read_only {
            return Err(RequestError::ReadOnly);
        }
        match operation {
            Operation::Read | Operation::Write { .. } | Operation::WriteZeroes { .. } => {
                let extent = extent.expect("a request that moves data comes with a buffer");
                if operation.durable() {
                    self.device.check_flush()?;
                }
                if extent.granule == 1 {
                    self.locked(index);
                    return Ok(());
                }
                self.flight(index).step = Step::Lock;
                let purpose = if operation == Operation::Read { Purpose::Read } else { Purpose::Write };
                let (lock, held) = self.device.locks().lock(&extent, purpose, &self.granted, u64::from(index));
                self.flight(index).lock = Some(lock);
                if held {
                    self.locked(index);
                }
            }
            Operation::Flush => {
                self.device.check_flush()?;
                self.store_step(index, Step::Sync);
            }
            Operation::Discard { durable } => {
                if !access.allow_discards {
                    return Err(RequestError::Unsupported);
                }
                if durable {
                    self.device.check_flush()?;
                }
                self.device.target().place(offset, len)?;
                self.store_step(index, Step::Discard);
            }
            Operation::Prefetch => {
                let place = self.device.target().place(offset, len)?;
                self.device.store().prefetch(place.store_offset, place.len);
                self.finish(index, Ok(()));
            }
        }
        Ok(())
    }

    fn lock_granted(&mut self, index: u32) {
        if matches!(&self.in_flight[index as usize], Some(f) if f.step == Step::Lock) {
            self.locked(index);
        }
    }

    fn locked(&mut self, index: u32) {
        let flight = self.flight(index);
        let extent = flight.extent.expect("only requests that move data lock");
        flight.lap(Phase::Queue);
        if flight.operation == Operation::Read {
            return self.store_step(index, Step::Read);
        }
        match unaligned::edges(&extent) {
            [Some(_), _] => self.store_step(index, Step::Edge(0)),
            [None, Some(_)] => self.store_step(index, Step::Edge(1)),
            [None, None] => self.encrypt_and_write(index),
        }
    }

    fn edge_read(&mut self, index: u32, edge: usize) {
        let device = Arc::clone(&self.device);
        let flight = self.flight(index);
        let extent = flight.extent.expect("only writes have edges");
        if edge == 0 && unaligned::edges(&extent)[1].is_some() {
            return self.store_step(index, Step::Edge(1));
        }
        let (spare, buffer) = (flight.spare.as_mut(), flight.buffer.as_mut());
        let (spare, buffer) = spare.zip(buffer).expect("a partial write comes with both buffers");
        unaligned::keep_surroundings(device.target(), &extent, spare.data_mut(), buffer.data_mut());
        let edges = unaligned::edges(&extent).iter().flatten().count();
        flight.ciphered(edges as u32, edges * extent.granule);
        self.encrypt_and_write(index);
    }

    fn encrypt_and_write(&mut self, index: u32) {
        let device = Arc::clone(&self.device);
        let flight = self.flight(index);
        let extent = flight.extent.expect("a write has an extent");
        let mut buffer = flight.buffer.take().expect("a write has a buffer");
        if matches!(flight.operation, Operation::WriteZeroes { .. }) {
            buffer.data_mut()[extent.requested()].fill(0);
        }
        let ciphertext = device.target().encrypt(&extent, buffer);
        flight.ciphered(1, extent.cover_len);
        flight.step = Step::Write;
        flight.progress = 0;
        self.store_write(index, ciphertext);
    }

    /// Starts a store operation that needs no ciphertext.
    fn store_step(&mut self, index: u32, step: Step) {
        let flight = self.flight(index);
        flight.step = step;
        flight.progress = 0;
        match step {
            Step::Sync => self.submit(index, ring::Operation::Sync),
            Step::Discard => {
                let (offset, len) = (flight.offset, flight.len);
                let located = self.device.target().discardable(offset, len);
                let (range, _) = located.expect("checked when the request began");
                if range.is_empty() {
                    return self.finish(index, Ok(()));
                }
                self.submit(index, ring::Operation::Discard { offset: range.start, len: range.end - range.start });
            }
            _ => self.store_read(index),
        }
    }

    /// Reads what the current step still needs.
    fn store_read(&mut self, index: u32) {
        let flight = self.flight(index);
        let extent = flight.extent.expect("a read has an extent");
        let (offset, range, buffer) = match flight.step {
            Step::Edge(edge) => {
                let edge = unaligned::edges(&extent)[edge].expect("only edges that exist are read");
                (edge.store_offset, edge.spare_offset..edge.spare_offset + edge.len, flight.spare.take())
            }
            _ => (extent.store_offset, 0..extent.cover_len, flight.buffer.take()),
        };
        let progress = flight.progress;
        let buffer = buffer.expect("the buffer is here between store operations");
        let range = range.start + progress..range.end;
        self.submit(index, ring::Operation::Read { offset: offset + progress as u64, buffer, range });
    }

    fn store_write(&mut self, index: u32, data: Ciphertext) {
        let flight = self.flight(index);
        let extent = flight.extent.expect("a write has an extent");
        let (progress, durable) = (flight.progress, flight.operation.durable());
        let offset = extent.store_offset + progress as u64;
        let range = progress..extent.cover_len;
        self.submit(index, ring::Operation::Write { offset, data, range, durable });
    }

    fn submit(&mut self, index: u32, operation: ring::Operation) {
        let short = operation.transfer_len().is_some_and(|len| len <= self.device.store().inline_up_to());
        match self.store.filter(|_| !short) {
            Some(store) => self.ring.submit(store, operation, Token(OWN | u64::from(index))),
            None => {
                let (result, returned) = operation.execute(&**self.device.store());
                self.executed.push_back(Completion { token: Token(OWN | u64::from(index)), result, returned });
            }
        }
    }

    /// Moves a request on after its store operation.
    fn store_completed(&mut self, done: Completion) {
        let index = done.token.0 as u32;
        let flight = self.flight(index);
        flight.lap(Phase::Store);
        let step = flight.step;
        let wanted = match (step, flight.extent) {
            (Step::Edge(_), Some(extent)) => extent.granule,
            (Step::Read | Step::Write, Some(extent)) => extent.cover_len,
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
            (Returned::Nothing | Returned::Outgoing(_), _) => {}
        }
        match (outcome, step) {
            (Ok(false), Step::Write) => {
                let data = ciphertext.expect("a write gives its data back");
                return self.store_write(index, data);
            }
            (Ok(false), Step::Edge(_) | Step::Read) => return self.store_read(index),
            (Ok(false), _) => return self.store_step(index, step),
            (Ok(true), Step::Edge(edge)) => return self.edge_read(index, edge),
            _ => {}
        }
        if let Some(data) = ciphertext {
            self.flight(index).buffer = Some(data.into_buffer());
        }
        self.last_step(index, step, outcome.map(|_| ()));
    }

    fn last_step(&mut self, index: u32, step: Step, outcome: Result<(), Errno>) {
        let device = Arc::clone(&self.device);
        let flight = self.flight(index);
        let result = match step {
            Step::Sync => {
                let synced = device.flushed(outcome);
                flight.failed.map_or(synced, |error| Err(RequestError::Io(error)))
            }
            // The error of an earlier write's way to the disk shows here once, and would be missing from the next flush.
            Step::Write if flight.operation.durable() && outcome == Err(Errno::IO) => device.flushed(outcome),
            // No room: for these bytes, or for earlier ones, whose error would be missing from the next flush just so. Only
            // the store knows.
            Step::Write if flight.operation.durable() && matches!(outcome, Err(Errno::NOSPC | Errno::DQUOT)) => {
                flight.failed = outcome.err();
                return self.store_step(index, Step::Sync);
            }
            Step::Discard if flight.operation.durable() && outcome.is_ok() => {
                return self.store_step(index, Step::Sync);
            }
            Step::Discard => match outcome {
                Err(Errno::OPNOTSUPP) => Err(RequestError::Unsupported),
                other => other.map_err(RequestError::Io),
            },
            _ => outcome.map_err(RequestError::Io),
        };
        if step == Step::Read
            && result.is_ok()
            && let (Some(extent), Some(buffer)) = (flight.extent, flight.buffer.take())
        {
            flight.buffer = Some(device.target().decrypt(&extent, Ciphertext::from_store(buffer)));
            flight.ciphered(1, extent.cover_len);
        }
        self.finish(index, result);
    }

    fn finish(&mut self, index: u32, result: Result<(), RequestError>) {
        let flight = self.in_flight[index as usize].take().expect("a request is finished once");
        self.free.push(index);
        if let Some(lock) = flight.lock {
            self.device.locks().unlock(lock);
        }
        self.shard.recorder().finish(flight.operation, &result, &flight.work, flight.timing.as_ref());
        let data = flight.extent.zip(flight.buffer);
        self.finished.push_back(Finished { id: flight.id, result, data, spare: flight.spare });
    }
}
