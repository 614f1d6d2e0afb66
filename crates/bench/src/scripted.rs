//! A frontend without a client: submits the requests of a job at a fixed depth, and counts completions.
//!
//! It drives the same worker, ring and device as the servers do. It submits at the end of a turn, like a frontend whose
//! clients' commands arrive through the ring, so one turn serves as many requests as the queue is deep.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use inlock_engine::buffer::{BufferClass, BufferPool};
use inlock_engine::request::Operation;
use inlock_engine::ring::{Completion, Ring, Wait};
use inlock_engine::store::file::IoMode;
use inlock_engine::worker::{Context, Finished, Flow, Frontend, Mailbox, Request, Worker};
use inlock_engine::{Device, Offload, RequestError};

/// End of a job.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    /// After this number of requests.
    Count(u64),
    /// After this time.
    Time(Duration),
}

/// A load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    /// Write, or read.
    pub write: bool,
    /// Bytes of a request; offsets are multiples of it.
    pub block: usize,
    /// Requests in flight.
    pub depth: usize,
    pub end: End,
    /// Whether to record the latency of each request.
    pub watch: bool,
}

/// Results of a job.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub requests: u64,
    pub elapsed: Duration,
    /// Nanoseconds of each request, if recorded.
    pub latencies: Vec<u64>,
}

impl Outcome {
    /// Returns the mean time of a request in nanoseconds, of all requests in flight together.
    pub(crate) fn nanos_each(&self) -> f64 {
        self.elapsed.as_nanos() as f64 / self.requests as f64
    }
}

/// A worker with a scripted frontend, on the calling thread.
pub(crate) struct Driver {
    worker: Worker<Scripted>,
    mailbox: Arc<Mailbox<Job>>,
}

impl Driver {
    /// Makes a driver of `device` for jobs of these block sizes and at most this depth.
    pub(crate) fn new(
        device: &Arc<Device>,
        pool: Option<Arc<Offload>>,
        blocks: &[usize],
        depth: usize,
    ) -> io::Result<Self> {
        let classes: Vec<BufferClass> =
            blocks.iter().map(|block| BufferClass { capacity: *block, count: depth }).collect();
        let (ring, buffers) = (Ring::new(IoMode::Auto)?, BufferPool::new(&classes));
        let worker = Worker::new(Arc::clone(device), ring, buffers, Scripted::default()).with_offload(pool);
        let mailbox = worker.mailbox();
        Ok(Self { worker, mailbox })
    }

    /// Runs a job to its end.
    pub(crate) fn run(&mut self, job: Job) -> anyhow::Result<Outcome> {
        self.mailbox.post(job);
        self.worker.run()?;
        let outcome = self.worker.front().outcome.take();
        Ok(outcome.unwrap_or(Err(RequestError::Io(inlock_engine::Errno::CANCELED)))?)
    }

    /// Returns the number of requests that take about `time`.
    pub(crate) fn count_for(&mut self, job: Job, time: Duration) -> anyhow::Result<u64> {
        let outcome = self.run(Job { end: End::Time(time / 4), ..job })?;
        Ok(((time.as_nanos() as f64 / outcome.nanos_each()) as u64).max(1))
    }
}

/// Measures every driver once a round, with requests for about `slice`, and calls `after_round`. Returns nanoseconds
/// per request of each driver in each round.
pub(crate) fn in_turns(
    drivers: &mut [Driver],
    job: Job,
    rounds: usize,
    slice: Duration,
    mut after_round: impl FnMut(),
) -> anyhow::Result<Vec<Vec<f64>>> {
    let counts = drivers.iter_mut().map(|driver| driver.count_for(job, slice)).collect::<anyhow::Result<Vec<u64>>>()?;
    let mut nanos = vec![Vec::new(); drivers.len()];
    for round in 0..rounds {
        for turn in 0..drivers.len() {
            let at = case_at(round, turn, drivers.len());
            nanos[at].push(drivers[at].run(Job { end: End::Count(counts[at]), ..job })?.nanos_each());
        }
        after_round();
    }
    Ok(nanos)
}

/// Returns the index of the case to measure. Each round starts with another case, and every second round runs
/// backwards, so that no case always follows the same one and inherits its caches.
fn case_at(round: usize, turn: usize, cases: usize) -> usize {
    let step = (turn + round / 2) % cases;
    if round.is_multiple_of(2) { step } else { cases - 1 - step }
}

#[derive(Default)]
struct Scripted {
    job: Option<Running>,
    outcome: std::cell::Cell<Option<Result<Outcome, RequestError>>>,
}

struct Running {
    job: Job,
    began: Instant,
    random: u64,
    in_flight: usize,
    issued: u64,
    /// Submission time of the request of each id below the depth.
    submitted: Vec<Instant>,
    /// Ids of no request.
    free: Vec<u64>,
    over: bool,
    failed: Option<RequestError>,
    outcome: Outcome,
}

impl Running {
    fn new(job: Job) -> Self {
        let now = Instant::now();
        let latencies = Vec::with_capacity(if job.watch { 1 << 16 } else { 0 });
        Self {
            job,
            began: now,
            random: 0x9e37_79b9_7f4a_7c15,
            in_flight: 0,
            issued: 0,
            submitted: vec![now; job.depth],
            free: (0..job.depth as u64).collect(),
            over: false,
            failed: None,
            outcome: Outcome { latencies, ..Outcome::default() },
        }
    }

    fn offset(&mut self, blocks: u64) -> u64 {
        // xorshift64 is good enough to choose blocks.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % blocks * self.job.block as u64
    }

    fn submit(&mut self, cx: &mut Context<'_>) -> Result<(), RequestError> {
        let operation = if self.job.write { Operation::Write { durable: false } } else { Operation::Read };
        let (block, now) = (self.job.block, if self.job.watch { Instant::now() } else { self.began });
        while !self.over && !self.free.is_empty() {
            let offset = self.offset(cx.device.len() / block as u64);
            let mapped = cx.mapping.locate(offset, block as u64, 64 << 20)?;
            let Some(buffer) = cx.pool.take(block, block) else { break };
            let Some(id) = self.free.pop() else { break };
            self.submitted[id as usize] = now;
            cx.requests.push_back(Request {
                id,
                operation,
                offset,
                len: block as u64,
                data: Some((mapped, buffer)),
                spare: None,
            });
            self.in_flight += 1;
            self.issued += 1;
            self.over = matches!(self.job.end, End::Count(count) if self.issued >= count);
        }
        Ok(())
    }
}

impl Frontend for Scripted {
    type Message = Job;

    fn on_message(&mut self, _cx: &mut Context<'_>, job: Job) {
        self.job = Some(Running::new(job));
    }

    fn on_completion(&mut self, _cx: &mut Context<'_>, _done: Completion) {}

    fn on_finished(&mut self, cx: &mut Context<'_>, done: Finished) {
        if let Some((_, buffer)) = done.data {
            cx.pool.give(buffer);
        }
        let Some(running) = &mut self.job else { return };
        if running.job.watch {
            running.outcome.latencies.push(running.submitted[done.id as usize].elapsed().as_nanos() as u64);
        }
        running.free.push(done.id);
        running.in_flight -= 1;
        running.outcome.requests += 1;
        if let Err(error) = done.result {
            running.failed = Some(error);
            running.over = true;
        }
    }

    fn end_turn(&mut self, cx: &mut Context<'_>) -> (Flow, Wait) {
        // Between two jobs, only the message with the next one can arrive.
        let Some(running) = &mut self.job else { return (Flow::Continue, Wait::Forever) };
        if let End::Time(time) = running.job.end {
            running.over |= running.began.elapsed() >= time;
        }
        if let Err(error) = running.submit(cx) {
            running.failed = Some(error);
            running.over = true;
        }
        if !running.over || running.in_flight > 0 {
            return (Flow::Continue, Wait::Forever);
        }
        let Some(mut running) = self.job.take() else { return (Flow::Stop, Wait::No) };
        running.outcome.elapsed = running.began.elapsed();
        self.outcome.set(Some(running.failed.map_or(Ok(running.outcome), Err)));
        (Flow::Stop, Wait::Forever)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inlock_engine::Access;
    use inlock_engine::store::memory::MemoryStore;

    #[test]
    fn rounds_measure_every_case_in_changing_order() {
        let order = |round| (0..6).map(move |turn| case_at(round, turn, 6)).collect::<Vec<usize>>();
        for round in 0..20 {
            let mut cases = order(round);
            cases.sort_unstable();
            assert_eq!(cases, [0, 1, 2, 3, 4, 5]);
        }
        assert_eq!(
            (order(0), order(1), order(2)),
            (vec![0, 1, 2, 3, 4, 5], vec![5, 4, 3, 2, 1, 0], vec![1, 2, 3, 4, 5, 0])
        );
    }

    #[test]
    fn job_of_a_count_makes_that_many_requests() {
        let device = Arc::new(Device::raw(Arc::new(MemoryStore::new(vec![0; 1 << 20])), Access::default()));
        let mut driver = Driver::new(&device, None, &[4096, 65536], 8).unwrap();
        let job = Job { write: true, block: 4096, depth: 8, end: End::Count(1000), watch: true };
        let outcome = driver.run(job).unwrap();
        assert_eq!((outcome.requests, outcome.latencies.len()), (1000, 1000));
        let outcome = driver.run(Job { write: false, block: 65536, depth: 1, watch: false, ..job }).unwrap();
        assert_eq!((outcome.requests, outcome.latencies.len()), (1000, 0));
        let time = Duration::from_millis(2);
        let outcome = driver.run(Job { end: End::Time(time), ..job }).unwrap();
        assert!(outcome.requests > 0 && outcome.elapsed >= time);
    }

    #[test]
    fn job_with_a_failing_write_ends_with_its_error() {
        let read_only = Access { read_only: true, allow_discards: false };
        let device = Arc::new(Device::raw(Arc::new(MemoryStore::new(vec![0; 1 << 20])), read_only));
        let mut driver = Driver::new(&device, None, &[4096], 4).unwrap();
        let job = Job { write: true, block: 4096, depth: 4, end: End::Count(10), watch: false };
        let error = driver.run(job).unwrap_err();
        assert_eq!(error.downcast_ref(), Some(&RequestError::ReadOnly));
    }
}
