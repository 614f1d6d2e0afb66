//! A frontend that asks what a script says, many requests at a time, and keeps the answers.

use inlock_engine::buffer::{BufferClass, BufferPool};
use inlock_engine::request::Operation;
use inlock_engine::ring::{Completion, Ring, Wait};
use inlock_engine::rmw;
use inlock_engine::store::file::IoMode;
use inlock_engine::worker::{Context, CopyOptions, Finished, Flow, Frontend, Request, Worker};
use inlock_engine::{Device, Offload, OffloadOptions, OffloadPolicy, RequestError};
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

#[derive(Clone, Debug)]
pub(crate) enum Ask {
    Read { offset: u64, len: u64 },
    Write { offset: u64, data: Vec<u8>, durable: bool },
    Zeroes { offset: u64, len: u64 },
    Flush,
    Discard { offset: u64, len: u64 },
    DurableDiscard { offset: u64, len: u64 },
}

/// How one request ended; a read with its bytes.
pub(crate) type Answer = Result<Vec<u8>, RequestError>;

/// Requests are small enough for one piece.
pub(crate) const MAX_LEN: u64 = 256 << 10;

pub(crate) struct Scripted {
    script: VecDeque<(u64, Ask)>,
    depth: usize,
    in_flight: usize,
    pub(crate) answers: Vec<Option<Answer>>,
    /// Called with the number of each request that has ended well, when it ends.
    acknowledged: Box<dyn FnMut(u64)>,
}

impl Scripted {
    fn ask(&mut self, cx: &mut Context<'_>) {
        while self.in_flight < self.depth {
            let Some((id, ask)) = self.script.pop_front() else { return };
            self.in_flight += 1;
            let (operation, offset, len) = match &ask {
                Ask::Read { offset, len } => (Operation::Read, *offset, *len),
                Ask::Write { offset, data, durable } => {
                    (Operation::Write { durable: *durable }, *offset, data.len() as u64)
                }
                Ask::Zeroes { offset, len } => (Operation::WriteZeroes { durable: false }, *offset, *len),
                Ask::Flush => (Operation::Flush, 0, 0),
                Ask::Discard { offset, len } => (Operation::Discard { durable: false }, *offset, *len),
                Ask::DurableDiscard { offset, len } => (Operation::Discard { durable: true }, *offset, *len),
            };
            let mut request = Request { id, operation, offset, len, data: None, spare: None };
            if matches!(ask, Ask::Read { .. } | Ask::Write { .. } | Ask::Zeroes { .. }) {
                let mapped = match cx.mapping.locate(offset, len, usize::MAX / 2) {
                    Ok(mapped) => mapped,
                    Err(error) => {
                        self.in_flight -= 1;
                        self.answers[id as usize] = Some(Err(error));
                        continue;
                    }
                };
                assert_eq!(mapped.len as u64, len, "the script stays within one segment");
                let mut buffer =
                    cx.pool.take(mapped.aligned_len, mapped.aligned_len).expect("the pool is large enough");
                // What was in a buffer before must never reach the store.
                buffer.data_mut().fill(0xdd);
                if let Ask::Write { data, .. } = &ask {
                    buffer.data_mut()[mapped.requested()].copy_from_slice(data);
                }
                let spare_len = if operation.modifies() { rmw::spare_len(&mapped) } else { 0 };
                request.spare = (spare_len > 0).then(|| cx.pool.take(spare_len, spare_len).expect("large enough"));
                request.data = Some((mapped, buffer));
            }
            cx.requests.push_back(request);
        }
    }
}

impl Frontend for Scripted {
    type Message = ();

    fn on_message(&mut self, _cx: &mut Context<'_>, (): ()) {}
    fn on_completion(&mut self, _cx: &mut Context<'_>, _done: Completion) {}

    fn on_finished(&mut self, cx: &mut Context<'_>, done: Finished) {
        self.in_flight -= 1;
        let mut bytes = Vec::new();
        if let Some((mapped, buffer)) = done.data {
            bytes = buffer.data()[mapped.requested()].to_vec();
            cx.pool.give(buffer);
        }
        if let Some(spare) = done.spare {
            cx.pool.give(spare);
        }
        if done.result.is_ok() {
            (self.acknowledged)(done.id);
        }
        let slot = &mut self.answers[done.id as usize];
        assert!(slot.is_none(), "a request is answered once");
        *slot = Some(done.result.map(|()| bytes));
    }

    fn end_turn(&mut self, cx: &mut Context<'_>) -> (Flow, Wait) {
        self.ask(cx);
        let over = self.in_flight == 0 && self.script.is_empty();
        (if over { Flow::Stop } else { Flow::Continue }, Wait::Forever)
    }
}

thread_local! {
    static OFFLOADS: Cell<bool> = const { Cell::new(false) };
    /// How long the strips are, where transfers are carried.
    static CARRIES: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Calls a test whose workers give all their cipher work to a pool.
pub(crate) fn offloaded(test: impl FnOnce()) {
    OFFLOADS.set(true);
    test();
    OFFLOADS.set(false);
}

/// Calls a test whose workers have every transfer carried that can be, in strips of `strip` bytes.
pub(crate) fn carried(strip: usize, test: impl FnOnce()) {
    CARRIES.set(Some(strip));
    test();
    CARRIES.set(None);
}

/// Returns options for a pool of `threads` threads.
pub(crate) fn offload_options(policy: OffloadPolicy, threads: usize) -> OffloadOptions {
    let mut options = OffloadOptions::default();
    (options.policy, options.threads) = (policy, threads);
    options
}

/// Three threads for all tests of this program.
fn pool(device: &Device) -> Option<Arc<Offload>> {
    static POOL: OnceLock<Option<Arc<Offload>>> = OnceLock::new();
    let options = offload_options(OffloadPolicy::Both, 3);
    let pool = || POOL.get_or_init(|| Offload::start(device, &options).expect("threads"));
    if OFFLOADS.get() { pool().clone() } else { None }
}

/// Runs `script`, `depth` requests at a time, and gives back the answers in the script's order.
pub(crate) fn run(device: &Arc<Device>, mode: IoMode, depth: usize, script: Vec<Ask>) -> Vec<Answer> {
    run_watched(device, mode, depth, script, Box::new(|_| {}))
}

/// Starts the script, and ends the worker while its first requests are in flight.
pub(crate) fn run_and_drop_early(device: &Arc<Device>, script: Vec<Ask>) {
    let capacity = MAX_LEN as usize + 2 * device.unit_len();
    let pool = BufferPool::new(&[BufferClass { capacity, count: 2 * script.len() }]);
    let (depth, answers) = (script.len(), script.iter().map(|_| None).collect());
    let script = script.into_iter().enumerate().map(|(i, a)| (i as u64, a)).collect();
    let front = Scripted { script, depth, in_flight: 0, answers, acknowledged: Box::new(|_| {}) };
    let mut worker = Worker::new(Arc::clone(device), Ring::new(IoMode::Auto).expect("a ring"), pool, front);
    assert_eq!(worker.turn().expect("a turn"), Flow::Continue);
    assert!(worker.front().in_flight > 0);
}

/// As [`run`], with this pool.
pub(crate) fn run_with(
    device: &Arc<Device>,
    mode: IoMode,
    depth: usize,
    script: Vec<Ask>,
    pool: Option<Arc<Offload>>,
) -> Vec<Answer> {
    carry_out(device, mode, depth, script, Box::new(|_| {}), pool)
}

/// As [`run`]; `acknowledged` sees each request at the moment it has ended well.
pub(crate) fn run_watched(
    device: &Arc<Device>,
    mode: IoMode,
    depth: usize,
    script: Vec<Ask>,
    acknowledged: Box<dyn FnMut(u64)>,
) -> Vec<Answer> {
    let before = device.stats().snapshot();
    let answers = carry_out(device, mode, depth, script, acknowledged, pool(device));
    let done = device.stats().snapshot().since(&before);
    // Others may use the device at the same time, so nothing is said of how many there were.
    let elsewhere = if OFFLOADS.get() { done.inline } else { done.offloaded };
    assert_eq!(elsewhere, 0, "the cipher work is where it was put");
    answers
}

fn carry_out(
    device: &Arc<Device>,
    mode: IoMode,
    depth: usize,
    script: Vec<Ask>,
    acknowledged: Box<dyn FnMut(u64)>,
    offload: Option<Arc<Offload>>,
) -> Vec<Answer> {
    let capacity = MAX_LEN as usize + 2 * device.unit_len();
    let pool = BufferPool::new(&[BufferClass { capacity, count: 2 * depth }]);
    let answers = script.iter().map(|_| None).collect();
    let script = script.into_iter().enumerate().map(|(i, a)| (i as u64, a)).collect();
    let front = Scripted { script, depth, in_flight: 0, answers, acknowledged };
    let ring = Ring::new(mode).expect("a ring");
    let mut worker = Worker::new(Arc::clone(device), ring, pool, front).with_offload(offload);
    if let Some(strip) = CARRIES.get() {
        let mut options = CopyOptions::default();
        (options.min_len, options.chunk_len) = (1, strip);
        worker = worker.with_copy_thread(&options).expect("a thread");
    }
    worker.run().expect("a worker that runs");
    assert_eq!(worker.pool().outstanding(), 0, "every buffer comes back");
    let answers = worker.front().answers.clone();
    answers.into_iter().map(|a| a.expect("every request is answered")).collect()
}
