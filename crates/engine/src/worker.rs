//! The worker: carries requests between a frontend and the stores of a volume, on one thread, over one ring.
//!
//! 1. `start.rs` checks a request and decides its path once (`path.rs`): locks, cipher work, store, durability.
//! 2. `Transfer::step` (`transfer.rs`) takes an event and returns the next action; discards, zone management and
//!    remapped requests have a step of their own.
//! 3. `perform.rs` does what the step asks for: locks, ring, zone write queues, helper threads.
//! 4. A completion of the ring or a message of another thread is the next event (`events.rs`).
//! 5. A request that has ended goes back to the frontend (`frontend.rs`), which replies.
//!
//! One failing request never holds up or fails its neighbours.

use crate::buffer::BufferPool;
use crate::crypt_mapping::{CryptMapping, TURN_STACK};
use crate::device::Device;
use crate::events::{Event, EventQueue, RequestId};
use crate::freeze::{FreezeState, View};
use crate::mapping::Mapping;
use crate::ring::{Completion, Ring, Wait, WriteSegment};
use crate::stats::OwnShard;
use crate::store::BackingStore;
use crate::thread_pool::copy::{CHUNK, CopyThread};
use crate::thread_pool::crypt::Offload;
use crate::thread_pool::zone_mgmt::ZoneMgmtThread;
use inlock_cipher::scrub_stack;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

mod account;
mod action;
mod discard;
mod freeze;
mod frontend;
mod merge;
mod path;
mod perform;
mod remap;
mod start;
mod state;
mod stores;
mod sync;
mod transfer;
mod warm_up;
mod zone_mgmt;
mod zone_writes;

use action::Hold;
pub use frontend::{Context, Finished, Flow, Frontend, Mailbox, Request};
use path::COPY_MIN_LEN;
use state::{Origin, Table};
use stores::{AsyncOperations, StoreAccess};
use sync::Syncs;

/// Maximum number of requests without a buffer (flushes, discards and the like) that a frontend may have in flight.
/// Requests with a buffer are limited by the buffers, so a worker's tables never grow.
pub const MAX_REQUESTS_WITHOUT_DATA: usize = 4096;

/// The tokens of the engine have the top bit set; the others are the frontend's.
const ENGINE: u64 = 1 << 63;

/// Event loop of one thread, which carries out the requests of its frontend.
pub struct Worker<F: Frontend> {
    front: F,
    volume: Volume,
    ring: Ring,
    pool: BufferPool,
    /// Requests that have not begun.
    requests: VecDeque<Request>,
    /// Requests in flight.
    table: Table,
    /// Events of this thread's own.
    ready: VecDeque<(RequestId, Event)>,
    finished: VecDeque<Finished>,
    completions: VecDeque<Completion>,
    /// Events from other threads.
    events: Arc<EventQueue>,
    /// Operations at asynchronous stores.
    asynchronous: AsyncOperations,
    /// Messages from other threads to the frontend.
    mailbox: Arc<Mailbox<F::Message>>,
    helpers: Helpers,
    /// Spare segment lists for merged zone writes.
    merges: Vec<Vec<WriteSegment>>,
    syncs: Syncs,
    wait: Wait,
    shard: OwnShard,
}

/// A volume as its worker sees it.
struct Volume {
    device: Arc<Device>,
    mapping: Arc<Mapping>,
    /// The mapping with its keys. `None`: the device is frozen, and nothing is in flight.
    crypt: Option<Arc<CryptMapping>>,
    state: FreezeState,
    /// Epoch of the freeze state that the worker last saw.
    epoch: u64,
    worker_id: u64,
    /// Number of this worker in the device's zone write queues.
    zone_worker: u64,
    /// Access to each store.
    access: Vec<StoreAccess>,
    /// Number of locks for which the device's table reserves memory.
    lock_room: usize,
}

/// Transfers that a worker's copy thread makes, which encrypts and copies in one pass.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyOptions {
    /// Length in bytes of the shortest transfer for the thread. The worker makes shorter ones itself.
    pub min_len: usize,
    /// Bytes between two cipher calls; one data unit if that is longer.
    pub chunk_len: usize,
}

impl Default for CopyOptions {
    /// Returns the lengths for stores in memory: 128 KiB both.
    fn default() -> Self {
        Self { min_len: COPY_MIN_LEN, chunk_len: CHUNK }
    }
}

/// Helper threads of a worker.
#[derive(Default)]
struct Helpers {
    /// Cipher threads, shared by the workers of a volume.
    crypt: Option<Arc<Offload>>,
    /// The thread that copies long transfers of stores in memory.
    copy: Option<CopyThread>,
    /// Length in bytes of the shortest copied transfer, if set; otherwise the store decides.
    copy_min_len: Option<usize>,
    /// The thread that manages zones, from the first such request on.
    zone_mgmt: Option<ZoneMgmtThread>,
}

impl<F: Frontend> Worker<F> {
    /// Returns a worker for `device` on the calling thread.
    pub fn new(device: Arc<Device>, mut ring: Ring, pool: BufferPool, front: F) -> Self {
        let capacity = pool.len() + MAX_REQUESTS_WITHOUT_DATA;
        ring.reserve(capacity);
        device.locks().reserve(pool.len());
        let zone_worker = device.zones().map_or(0, |zones| zones.join(ring.waker()));
        device.zones().inspect(|zones| zones.reserve(pool.len()));
        let merges = merge::room(&device, &mut ring);
        let (access, asynchronous) = stores::connect(&device, &mut ring, capacity);
        let worker_id = device.freeze().join(ring.waker());
        let View { epoch, freeze_state, mapping, target } = device.freeze().view(worker_id);
        let copies = |store: &Arc<dyn BackingStore>| store.profile().in_memory && store.asynchronous().is_none();
        let copies = device.stores().iter().any(copies);
        // Works without a copy thread if that cannot be started.
        let copy = if copies { CopyThread::start(CHUNK).ok() } else { None };
        Self {
            front,
            requests: VecDeque::with_capacity(capacity),
            table: Table::new(capacity),
            ready: VecDeque::with_capacity(capacity),
            finished: VecDeque::with_capacity(capacity),
            completions: VecDeque::with_capacity(capacity),
            events: Arc::new(EventQueue::new(ring.waker(), capacity)),
            asynchronous,
            mailbox: Arc::new(Mailbox::new(ring.waker())),
            helpers: Helpers { copy, ..Helpers::default() },
            merges,
            syncs: Syncs::new(device.syncs().join(ring.waker()), capacity),
            wait: Wait::No,
            shard: OwnShard::new(device.shared_stats()),
            volume: Volume {
                mapping,
                crypt: target,
                state: freeze_state,
                epoch,
                worker_id,
                zone_worker,
                access,
                lock_room: pool.len(),
                device,
            },
            ring,
            pool,
        }
    }

    /// Returns the worker with `pool` for the cipher work that its policy selects.
    #[must_use]
    pub fn with_offload(mut self, pool: Option<Arc<Offload>>) -> Self {
        self.helpers.crypt = pool;
        self
    }

    /// Returns the worker with a copy thread for stores of any kind. Without this call only a worker with a store in
    /// memory ([`crate::StoreProfile::in_memory`]) has one.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub fn with_copy_thread(mut self, options: &CopyOptions) -> io::Result<Self> {
        self.helpers.copy = Some(CopyThread::start(options.chunk_len)?);
        self.helpers.copy_min_len = Some(options.min_len);
        Ok(self)
    }

    /// Returns the mailbox of this worker's frontend.
    pub fn mailbox(&self) -> Arc<Mailbox<F::Message>> {
        Arc::clone(&self.mailbox)
    }

    /// Returns the frontend.
    pub fn front(&self) -> &F {
        &self.front
    }

    /// Returns the frontend for changes, after the worker has stopped.
    pub fn front_mut(&mut self) -> &mut F {
        &mut self.front
    }

    /// Returns the pool of the worker's buffers.
    pub fn pool(&self) -> &BufferPool {
        &self.pool
    }

    /// Runs turns until the frontend stops. Blocks.
    ///
    /// # Errors
    ///
    /// As [`Worker::turn`].
    pub fn run(&mut self) -> io::Result<()> {
        while self.turn()? == Flow::Continue {}
        Ok(())
    }

    /// Runs one turn: waits for completions and advances each affected request.
    ///
    /// # Errors
    ///
    /// The ring fails. Requests in flight have not completed; drop the worker.
    pub fn turn(&mut self) -> io::Result<Flow> {
        let woken = self.ring.turn(self.wait, &mut self.completions);
        if self.volume.device.freeze().epoch() != self.volume.epoch {
            self.update_freeze();
        }
        if *woken.as_ref().unwrap_or(&false) {
            self.read_messages();
            self.check_syncs();
            self.run_queue();
        }
        while let Some(done) = self.completions.pop_front() {
            if done.token.0 & ENGINE != 0 {
                self.store_completed(done);
            } else {
                let (front, mut cx) = self.split();
                front.on_completion(&mut cx, done);
            }
            self.run_queue();
        }
        // The empty queue starts again at the front of its memory, which is cached; so do the others at the end of a
        // turn.
        self.completions.clear();
        woken?;
        let (front, mut cx) = self.split();
        let (flow, mut wait) = front.end_turn(&mut cx);
        // Requests that the frontend queued at the turn's end may have completed already, and it has yet to handle
        // that.
        if self.run_queue() || !self.completions.is_empty() {
            wait = Wait::No;
        }
        self.wait = wait;
        // Writes that other workers wait for may be among the requests that wait here.
        if self.volume.state == FreezeState::Running
            && let Some(zones) = self.volume.device.zones().filter(|zones| zones.has_deferred())
        {
            zones.turned(self.volume.zone_worker);
        }
        self.rewind();
        if self.volume.state != FreezeState::Running {
            self.drop_keys_if_idle();
        }
        Ok(flow)
    }

    /// Lets empty queues begin at the front of their memory again. It is large enough for the worst case, and they
    /// would touch all of it over time.
    fn rewind(&mut self) {
        fn from_the_front<T>(queue: &mut VecDeque<T>) {
            if queue.is_empty() {
                queue.clear();
            }
        }
        from_the_front(&mut self.requests);
        from_the_front(&mut self.finished);
        from_the_front(&mut self.ready);
        from_the_front(&mut self.syncs.waiting);
        // Memory for the completions of a newly connected client.
        self.completions.reserve(self.ring.room().saturating_sub(self.completions.len()));
    }

    fn split(&mut self) -> (&mut F, Context<'_>) {
        let Self { front, ring, pool, volume: Volume { device, mapping, state, .. }, requests, .. } = self;
        let suspended = *state == FreezeState::Frozen;
        (front, Context { ring, pool, device, mapping, suspended, requests })
    }

    fn read_messages(&mut self) {
        while let Some((id, event)) = self.events.next() {
            self.advance(id, event);
            self.run_queue();
        }
        while let Some(done) = self.asynchronous.next() {
            self.store_completed(done);
            self.run_queue();
        }
        while let Some(message) = self.mailbox.next() {
            let (front, mut cx) = self.split();
            front.on_message(&mut cx, message);
            self.run_queue();
        }
    }

    /// Starts queued requests, reports completed ones to the frontend, and lets it process input, until nothing is
    /// left. Returns whether there was anything to do.
    fn run_queue(&mut self) -> bool {
        let mut worked = false;
        loop {
            if let Some(done) = self.finished.pop_front() {
                let (front, mut cx) = self.split();
                front.on_finished(&mut cx, done);
            } else if let Some((id, event)) = self.ready.pop_front() {
                self.advance(id, event);
            } else if self.volume.state != FreezeState::Frozen
                && let Some(mut request) = self.requests.pop_front()
            {
                let origin = Origin::Frontend(request.id);
                self.start(&mut request, origin);
            } else {
                let (front, mut cx) = self.split();
                if !front.process(&mut cx) {
                    return worked;
                }
            }
            worked = true;
        }
    }
}

impl<F: Frontend> Drop for Worker<F> {
    fn drop(&mut self) {
        // The copy thread may have the keys as well until it has ended.
        self.helpers.copy = None;
        // After this nothing reaches a store, and no other worker waits for locks held here.
        let mut ended = self.ring.finish();
        self.asynchronous.finish(&mut ended);
        self.leave_syncs(&ended);
        self.give_merged_back(ended);
        self.leave_zones();
        for (_, request) in self.table.iter_mut() {
            let hold = match &request.body {
                state::Body::Transfer(transfer) => transfer.hold,
                state::Body::Discard(discard) => discard.hold,
                _ => Hold::None,
            };
            if let Hold::Units(lock) = hold {
                self.volume.device.locks().unlock(lock);
            }
        }
        self.volume.crypt = None;
        // The memory of this stack may be that of another thread's stack next.
        scrub_stack::<TURN_STACK>();
        self.volume.device.locks().unreserve(self.volume.lock_room);
        self.volume.device.freeze().leave(self.volume.worker_id);
    }
}

#[cfg(test)]
mod tests;
