//! Pool of cipher threads; off by default.
//!
//! A worker does the cipher work of its requests inline, which is faster than any hand-over if the cipher is fast. For
//! slow ciphers, and for long requests on many CPUs, a small pool can do it: a request's data is split at unit
//! boundaries into as many parts as there are threads, and the worker gets an event when the last part is done. The
//! worker never waits for the pool: if the pool has no room, it does the work itself. A request does not allocate.

use super::loan::{Lender, Loan};
use super::{JobQueue, Threads};
use crate::buffer::Buffer;
use crate::cipher_engine::Direction;
use crate::ciphertext::Ciphertext;
use crate::crypt_mapping::{CryptMapping, MappedRange};
use crate::device::Device;
use crate::events::{Crypted, Event, ReplyTo};
use crate::request::Operation;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Kinds of requests whose cipher work the pool does.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OffloadPolicy {
    /// None: every worker does its own cipher work.
    #[default]
    None,
    /// Reads.
    Reads,
    /// Writes and write-zeroes.
    Writes,
    /// All requests that move data.
    Both,
    /// Requests whose cipher work takes longer than 250 µs, if a thread of the pool is idle.
    Auto,
}

/// The policies with their names.
const POLICIES: [(OffloadPolicy, &str); 5] = [
    (OffloadPolicy::None, "none"),
    (OffloadPolicy::Reads, "reads"),
    (OffloadPolicy::Writes, "writes"),
    (OffloadPolicy::Both, "both"),
    (OffloadPolicy::Auto, "auto"),
];

/// Shortest cipher work for the pool with [`OffloadPolicy::Auto`]: the hand-over to another thread and back takes some
/// tens of microseconds.
const AUTO_THRESHOLD: Duration = Duration::from_micros(250);

/// A policy of another name than `none`, `reads`, `writes`, `both` or `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not one of none, reads, writes, both, auto")]
pub struct UnknownPolicy;

impl std::str::FromStr for OffloadPolicy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        POLICIES.iter().find(|(_, n)| *n == name).map(|(policy, _)| *policy).ok_or(UnknownPolicy)
    }
}

impl std::fmt::Display for OffloadPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let named = POLICIES.iter().find(|(policy, _)| policy == self);
        f.write_str(named.map_or("none", |(_, name)| name))
    }
}

/// Options of the cipher pool.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffloadOptions {
    /// Requests for the pool.
    pub policy: OffloadPolicy,
    /// Number of threads, 1 to [`OffloadOptions::MAX_THREADS`].
    pub threads: usize,
}

impl OffloadOptions {
    /// Maximum number of threads of a pool.
    pub const MAX_THREADS: usize = 256;
}

impl Default for OffloadOptions {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(Self::MAX_THREADS);
        Self { policy: OffloadPolicy::None, threads }
    }
}

/// Reason why a pool could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OffloadError {
    /// The number of threads is 0 or too large.
    #[error("a cipher pool has 1 to {} threads, not {given}", OffloadOptions::MAX_THREADS)]
    Threads {
        /// Number of threads requested.
        given: usize,
    },
    /// A thread could not be started.
    #[error("cannot start a thread of the cipher pool: {0}")]
    Spawn(#[source] std::io::Error),
}

/// Maximum number of jobs that the pool has at a time.
const MAX_JOBS: usize = 256;
/// Length of the shortest part in bytes; for a shorter one, waking a thread takes longer than its work.
const MIN_PART_LEN: usize = 16 << 10;

/// A pool of threads for cipher work.
pub struct Offload {
    policy: OffloadPolicy,
    count: usize,
    threads: Threads<Jobs>,
}

/// Jobs of a pool, in a table, so that a job does not allocate.
struct Jobs {
    table: Vec<Option<Job>>,
    free: Vec<usize>,
    /// Jobs with parts that no thread has, in first-come, first-served order.
    queue: VecDeque<usize>,
}

struct Job {
    crypt: Arc<CryptMapping>,
    range: MappedRange,
    direction: Direction,
    lender: Lender,
    part_len: usize,
    calls: u32,
    poisoned: bool,
    reply: ReplyTo,
}

/// Part of a job that a thread has.
struct Part {
    job: usize,
    crypt: Arc<CryptMapping>,
    range: MappedRange,
    direction: Direction,
    loan: Loan,
}

impl Offload {
    /// Starts the pool for `options`; returns `None` if the policy is `none`. With `auto`, measures the ciphers of
    /// `device`.
    ///
    /// # Errors
    ///
    /// The number of threads is not valid, or a thread cannot be started.
    pub fn start(device: &Device, options: &OffloadOptions) -> Result<Option<Arc<Self>>, OffloadError> {
        if !(1..=OffloadOptions::MAX_THREADS).contains(&options.threads) {
            return Err(OffloadError::Threads { given: options.threads });
        }
        if options.policy == OffloadPolicy::None {
            return Ok(None);
        }
        if options.policy == OffloadPolicy::Auto {
            device.measure_ciphers();
        }
        let names = (0..options.threads).map(|number| format!("inlock-crypt-{number}"));
        let threads = Threads::start(Jobs::new(), names).map_err(OffloadError::Spawn)?;
        Ok(Some(Arc::new(Self { policy: options.policy, count: options.threads, threads })))
    }

    /// Returns the policy.
    pub fn policy(&self) -> OffloadPolicy {
        self.policy
    }

    /// Returns the number of threads.
    pub fn threads(&self) -> usize {
        self.count
    }

    /// Refuses further work and finishes queued jobs; workers do later work inline.
    pub fn close(&self) {
        self.threads.close();
    }

    /// Returns whether the policy gives the cipher work of this range to the pool.
    pub(crate) fn is_for(&self, operation: Operation, crypt: &CryptMapping, range: &MappedRange) -> bool {
        if range.unit_len == 1 {
            return false;
        }
        match self.policy {
            OffloadPolicy::None => false,
            OffloadPolicy::Reads => !operation.modifies(),
            OffloadPolicy::Writes => operation.modifies(),
            OffloadPolicy::Both => true,
            OffloadPolicy::Auto => crypt.cipher_time(range) > AUTO_THRESHOLD && self.threads.has_idle(),
        }
    }

    /// Queues the cipher work on the aligned range; the request gets an [`Event::Crypted`]. Returns the buffer if there
    /// is no room.
    pub(crate) fn post(
        &self,
        crypt: &Arc<CryptMapping>,
        range: &MappedRange,
        direction: Direction,
        buffer: Buffer,
        reply: ReplyTo,
    ) -> Result<(), Buffer> {
        let part_len = range.aligned_len.div_ceil(self.count).max(MIN_PART_LEN).next_multiple_of(range.unit_len);
        self.threads.post(buffer, |jobs, buffer| {
            let Some(index) = jobs.free.pop() else { return Err(buffer) };
            jobs.table[index] = Some(Job {
                crypt: Arc::clone(crypt),
                range: *range,
                direction,
                lender: Lender::new(buffer, range.aligned_len),
                part_len,
                calls: 0,
                poisoned: false,
                reply,
            });
            jobs.queue.push_back(index);
            Ok(range.aligned_len.div_ceil(part_len))
        })
    }
}

impl std::fmt::Debug for Offload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Offload({}, {} threads)", self.policy, self.threads())
    }
}

impl Jobs {
    fn new() -> Self {
        Self {
            table: std::iter::repeat_with(|| None).take(MAX_JOBS).collect(),
            free: (0..MAX_JOBS).collect(),
            queue: VecDeque::with_capacity(MAX_JOBS),
        }
    }
}

impl JobQueue for Jobs {
    type Task = Part;
    type Done = Job;

    /// Returns the next part of the oldest job.
    fn next(&mut self) -> Option<Part> {
        let index = *self.queue.front()?;
        let job = self.table[index].as_mut().expect("a job in the queue is in the table");
        let loan = job.lender.lend(job.part_len).expect("a job in the queue has parts left");
        job.calls += 1;
        if job.lender.is_exhausted() {
            self.queue.pop_front();
        }
        let (crypt, range, direction) = (Arc::clone(&job.crypt), job.range, job.direction);
        Some(Part { job: index, crypt, range, direction, loan })
    }

    fn run(part: &mut Part) {
        let at = part.loan.range().start;
        match part.direction {
            Direction::Encrypt => part.crypt.encrypt_in_place(&part.range, at, part.loan.bytes()),
            Direction::Decrypt => part.crypt.decrypt_in_place(&part.range, at, part.loan.bytes()),
        }
    }

    fn take_back(&mut self, part: Part, panicked: bool) -> Option<Job> {
        let Part { job: index, loan, crypt, .. } = part;
        drop(crypt);
        let slot = &mut self.table[index];
        let job = slot.as_mut().expect("a job stays in the table until its last part is back");
        job.poisoned |= panicked;
        if !job.lender.take_back(loan) || !job.lender.is_exhausted() {
            return None;
        }
        let job = slot.take();
        self.free.push(index);
        job
    }

    fn complete(job: Job) {
        let Job { crypt, direction, lender, calls, poisoned, reply, .. } = job;
        drop(crypt);
        let buffer = lender.into_buffer().expect("a job is done when no part of it is out");
        let data = match direction {
            _ if poisoned => Crypted::Poisoned(buffer),
            Direction::Encrypt => Crypted::Encrypted(Ciphertext::encrypted(buffer)),
            Direction::Decrypt => Crypted::Decrypted(buffer),
        };
        reply.post(Event::Crypted { data, calls });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Access;
    use crate::events::{EventQueue, RequestId};
    use crate::store::memory::MemoryStore;
    use inlock_cipher::{CipherSpec, DataUnitSize, Segment, VolumeKey};

    fn device() -> Arc<Device> {
        let segment = Segment::whole(Some(CipherSpec::AES_XTS_PLAIN64), DataUnitSize::SECTOR);
        let store = Arc::new(MemoryStore::new(vec![0; 1 << 20]));
        Arc::new(Device::new(&[segment], &VolumeKey::new(&[3; 64]), store, Access::default()).unwrap())
    }

    fn without_threads(policy: OffloadPolicy, count: usize) -> Offload {
        Offload { policy, count, threads: Threads::without_threads(Jobs::new()) }
    }

    fn target_of(device: &Device) -> Arc<CryptMapping> {
        let worker_id = device.freeze().join(crate::ring::Ring::new(Default::default()).unwrap().waker());
        device.freeze().view(worker_id).target.unwrap()
    }

    fn next(events: &EventQueue) -> Option<(u32, u32)> {
        let (request, event) = events.next()?;
        let Event::Crypted { data: Crypted::Encrypted(_), calls } = event else { panic!("it was to be encrypted") };
        Some((request.index, calls))
    }

    #[test]
    fn job_without_room_is_refused_and_others_are_done_once() {
        let device = device();
        let pool = without_threads(OffloadPolicy::Both, 4);
        let events = Arc::new(EventQueue::new(crate::ring::Ring::new(Default::default()).unwrap().waker(), 0));
        let mapped = device.mapping().locate(0, 40_960, 1 << 20).unwrap();
        let target = target_of(&device);
        let post = |index| {
            let reply = ReplyTo::new(&events, RequestId { index, generation: 0 });
            pool.post(&target, &mapped, Direction::Encrypt, Buffer::new(40_960), reply)
        };
        assert!((0..MAX_JOBS as u32).all(|token| post(token).is_ok()));
        assert_eq!(post(1000).unwrap_err().capacity(), 40_960, "a full pool gives the buffer back");
        pool.close();
        assert!(post(1001).is_err(), "a closed pool takes nothing");
        pool.threads.shared.work();
        // 40 KiB in parts of at least 16 KiB.
        let told: Vec<_> = std::iter::from_fn(|| next(&events)).collect();
        assert_eq!(told, (0..MAX_JOBS as u32).map(|index| (index, 3)).collect::<Vec<_>>());
        assert_eq!(pool.threads.shared.state().queue.free.len(), MAX_JOBS);
    }

    #[test]
    fn auto_wants_long_work_while_a_thread_is_idle() {
        let device = device();
        let target = &*target_of(&device);
        let mapped = target.locate(0, 1 << 20, 2 << 20).unwrap();
        assert_eq!(target.cipher_time(&mapped), Duration::ZERO, "not measured");
        target.measure();
        assert!(target.cipher_time(&mapped) > Duration::from_micros(10));
        let pool = without_threads(OffloadPolicy::Auto, 1);
        let short = target.locate(0, 512, 2 << 20).unwrap();
        let slow = |mapped: &MappedRange| target.cipher_time(mapped) > AUTO_THRESHOLD;
        assert!(!pool.is_for(Operation::Read, target, &mapped), "no thread is idle");
        pool.threads.shared.state().idle = 1;
        assert_eq!(pool.is_for(Operation::Read, target, &mapped), slow(&mapped));
        assert!(!slow(&short) && !pool.is_for(Operation::Read, target, &short));
    }
}
