//! Cipher work on other threads: off unless asked for.
//!
//! A worker does the cipher work of its requests between two steps, which no hand-over can beat where the cipher is fast.
//! For slow ciphers, and for long requests on many processors, a small pool may do it: a request's data is split at unit
//! boundaries into as many parts as there are threads, and the worker gets a message when the last part is done. It never
//! waits for the pool: when the pool has no room the worker does the work itself. Nothing is allocated for a request.

mod loan;

use crate::buffer::Buffer;
use crate::crypt_mapping::{Ciphertext, CryptMapping, MappedRange};
use crate::device::Device;
use crate::freeze::SCRUB_CALL;
use crate::request::Operation;
use inlock_cipher::scrub_stack;
use loan::{Lender, Loan};
use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Which requests are given to the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OffloadPolicy {
    /// None: every worker does its own cipher work.
    #[default]
    None,
    /// Reads.
    Reads,
    /// Writes and write-zeroes.
    Writes,
    /// All that move data.
    Both,
    /// Those whose cipher work takes longer than [`AUTO_THRESHOLD`], when a thread of the pool has nothing to do.
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

/// With [`OffloadPolicy::Auto`], shorter cipher work than this stays where it is: the way to another thread and back
/// costs some tens of microseconds.
pub const AUTO_THRESHOLD: Duration = Duration::from_micros(250);

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

/// Whether there is a pool, and how large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffloadOptions {
    /// Which requests are given to it.
    pub policy: OffloadPolicy,
    /// How many threads it has, 1 to [`OffloadOptions::MAX_THREADS`].
    pub threads: usize,
}

impl OffloadOptions {
    /// The most threads that a pool may have.
    pub const MAX_THREADS: usize = 256;
}

impl Default for OffloadOptions {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(Self::MAX_THREADS);
        Self { policy: OffloadPolicy::None, threads }
    }
}

/// A pool that cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OffloadError {
    /// No threads, or too many.
    #[error("a cipher pool has 1 to {} threads, not {given}", OffloadOptions::MAX_THREADS)]
    Threads {
        /// How many were asked for.
        given: usize,
    },
    /// A thread could not be started.
    #[error("cannot start a thread of the cipher pool: {0}")]
    Spawn(#[source] std::io::Error),
}

/// Requests that the pool has at a time. Who comes when it is full does the work himself.
const MAX_JOBS: usize = 256;
/// No part is shorter than this, or waking a thread would take longer than its work.
const LEAST_PART: usize = 16 << 10;

/// A pool of threads for cipher work.
pub struct Offload {
    policy: OffloadPolicy,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// Who is told that the pool is done.
pub(crate) trait Ciphered: Send + Sync {
    /// The work that was given with `token` is done.
    fn ciphered(&self, token: u64, done: Done);
}

/// What the pool gives back.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) data: Data,
    /// How many cipher calls it was done in.
    pub(crate) calls: u32,
}

#[derive(Debug)]
pub(crate) enum Data {
    Decrypted(Buffer),
    Encrypted(Ciphertext),
    /// The cipher panicked, and what is in the buffer is neither the one nor the other.
    Poisoned(Buffer),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Encrypt,
    Decrypt,
}

struct Shared {
    state: Mutex<State>,
    /// There is work, or nothing will come any more.
    changed: Condvar,
    threads: usize,
}

struct State {
    jobs: Vec<Option<Job>>,
    free: Vec<usize>,
    /// Jobs of which parts are left to be handed out, first come, first served.
    queue: VecDeque<usize>,
    /// Threads that wait for work.
    idle: usize,
    stopping: bool,
}

struct Job {
    target: Arc<CryptMapping>,
    mapped: MappedRange,
    direction: Direction,
    lender: Lender,
    part_len: usize,
    calls: u32,
    poisoned: bool,
    to: Arc<dyn Ciphered>,
    token: u64,
}

/// A part of a job in the hands of a thread.
struct Task {
    job: usize,
    target: Arc<CryptMapping>,
    mapped: MappedRange,
    direction: Direction,
    loan: Loan,
}

impl Offload {
    /// Starts the pool that `options` ask for, which is none where the policy is `none`. `device` is the one that it
    /// will work for: `auto` measures its ciphers.
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
        let mut pool = Self::without_threads(options);
        for number in 0..options.threads {
            let shared = Arc::clone(&pool.shared);
            let thread = std::thread::Builder::new().name(format!("inlock-cipher-{number}"));
            // What was started so far ends when the pool is dropped.
            pool.threads.push(thread.spawn(move || shared.work()).map_err(OffloadError::Spawn)?);
        }
        Ok(Some(Arc::new(pool)))
    }

    fn without_threads(options: &OffloadOptions) -> Self {
        let state = State {
            jobs: std::iter::repeat_with(|| None).take(MAX_JOBS).collect(),
            free: (0..MAX_JOBS).collect(),
            queue: VecDeque::with_capacity(MAX_JOBS),
            idle: 0,
            stopping: false,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new(), threads: options.threads });
        Self { policy: options.policy, shared, threads: Vec::with_capacity(options.threads) }
    }

    /// Which requests it is given.
    pub fn policy(&self) -> OffloadPolicy {
        self.policy
    }

    /// How many threads it has.
    pub fn threads(&self) -> usize {
        self.shared.threads
    }

    /// Takes no more work. What it has is finished; whoever comes from now on does the work himself.
    pub fn close(&self) {
        self.shared.state().stopping = true;
        self.shared.changed.notify_all();
    }

    /// Whether the policy gives the cipher work of this piece of a request to the pool.
    pub(crate) fn wants(&self, operation: Operation, target: &CryptMapping, mapped: &MappedRange) -> bool {
        if mapped.unit_len == 1 {
            return false;
        }
        match self.policy {
            OffloadPolicy::None => false,
            OffloadPolicy::Reads => !operation.modifies(),
            OffloadPolicy::Writes => operation.modifies(),
            OffloadPolicy::Both => true,
            OffloadPolicy::Auto => target.cipher_time(mapped) > AUTO_THRESHOLD && self.has_idle_thread(),
        }
    }

    fn has_idle_thread(&self) -> bool {
        let state = self.shared.state();
        state.idle > 0 && state.queue.is_empty()
    }

    /// Gives the cipher work on the aligned range of `mapped` to the pool; `to` is told when it is done. The buffer comes back at
    /// once where there is no room.
    pub(crate) fn post(
        &self,
        target: &Arc<CryptMapping>,
        mapped: &MappedRange,
        direction: Direction,
        buffer: Buffer,
        to: &Arc<dyn Ciphered>,
        token: u64,
    ) -> Result<(), Buffer> {
        let mut state = self.shared.state();
        if state.stopping {
            return Err(buffer);
        }
        let Some(index) = state.free.pop() else { return Err(buffer) };
        let part_len = mapped.aligned_len.div_ceil(self.shared.threads).max(LEAST_PART);
        let job = Job {
            target: Arc::clone(target),
            mapped: *mapped,
            direction,
            lender: Lender::new(buffer, mapped.aligned_len),
            part_len: part_len.next_multiple_of(mapped.unit_len),
            calls: 0,
            poisoned: false,
            to: Arc::clone(to),
            token,
        };
        let many = mapped.aligned_len > job.part_len;
        state.jobs[index] = Some(job);
        state.queue.push_back(index);
        drop(state);
        if many {
            self.shared.changed.notify_all();
        } else {
            self.shared.changed.notify_one();
        }
        Ok(())
    }
}

impl Drop for Offload {
    fn drop(&mut self) {
        self.close();
        for thread in self.threads.drain(..) {
            // A thread catches what its work throws.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for Offload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Offload({}, {} threads)", self.policy, self.threads())
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a thread of the pool does, until there is nothing left and nothing comes any more.
    fn work(&self) {
        while let Some(mut task) = self.next() {
            let range = task.loan.range();
            let (target, bytes) = (&task.target, task.loan.bytes());
            // Whatever happens here, somebody waits for the buffer.
            let ended = std::panic::catch_unwind(AssertUnwindSafe(|| match task.direction {
                Direction::Encrypt => target.encrypt_in_place(&task.mapped, range.start, bytes),
                Direction::Decrypt => target.decrypt_in_place(&task.mapped, range.start, bytes),
            }));
            scrub_stack::<SCRUB_CALL>();
            self.returned(task, ended.is_err());
        }
    }

    fn next(&self) -> Option<Task> {
        let mut state = self.state();
        loop {
            if let Some(task) = state.hand_out() {
                return Some(task);
            }
            if state.stopping {
                return None;
            }
            state.idle += 1;
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }

    fn returned(&self, task: Task, poisoned: bool) {
        let Task { job, loan, target, .. } = task;
        // Whoever is told that a request is over may count on nobody having its target.
        drop(target);
        let Some(job) = self.state().take_back(job, loan, poisoned) else { return };
        drop(job.target);
        let buffer = job.lender.into_buffer().expect("a job is over when nothing of it is out");
        let data = match job.direction {
            _ if job.poisoned => Data::Poisoned(buffer),
            Direction::Encrypt => Data::Encrypted(Ciphertext::encrypted(buffer)),
            Direction::Decrypt => Data::Decrypted(buffer),
        };
        job.to.ciphered(job.token, Done { data, calls: job.calls });
    }
}

impl State {
    /// The next part of the oldest job.
    fn hand_out(&mut self) -> Option<Task> {
        let index = *self.queue.front()?;
        let job = self.jobs[index].as_mut().expect("a job in the queue is in the table");
        let loan = job.lender.lend(job.part_len).expect("a job in the queue has parts left");
        job.calls += 1;
        if job.lender.is_exhausted() {
            self.queue.pop_front();
        }
        let (target, mapped, direction) = (Arc::clone(&job.target), job.mapped, job.direction);
        Some(Task { job: index, target, mapped, direction, loan })
    }

    /// Takes a part back. `Some`: it was the last, and the job is over.
    fn take_back(&mut self, index: usize, loan: Loan, poisoned: bool) -> Option<Job> {
        let slot = &mut self.jobs[index];
        let job = slot.as_mut().expect("a job stays in the table until its last part is back");
        job.poisoned |= poisoned;
        if !job.lender.take_back(loan) || !job.lender.is_exhausted() {
            return None;
        }
        let job = slot.take();
        self.free.push(index);
        job
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Access;
    use crate::store::memory::MemoryStore;
    use inlock_cipher::{CipherSpec, DataUnitSize, Segment, VolumeKey};

    fn device() -> Arc<Device> {
        let segment = Segment::whole(Some(CipherSpec::AES_XTS_PLAIN64), DataUnitSize::SECTOR);
        let store = Arc::new(MemoryStore::new(vec![0; 1 << 20]));
        Arc::new(Device::new(&[segment], &VolumeKey::new(&[3; 64]), store, Access::default()).unwrap())
    }

    fn target_of(device: &Device) -> Arc<CryptMapping> {
        let worker_id = device.freeze().join(crate::ring::Ring::new(Default::default()).unwrap().waker());
        device.freeze().view(worker_id).target.unwrap()
    }

    #[derive(Default)]
    struct Told(Mutex<Vec<(u64, u32)>>);
    impl Ciphered for Told {
        fn ciphered(&self, token: u64, done: Done) {
            assert!(matches!(done.data, Data::Encrypted(_)));
            self.0.lock().unwrap().push((token, done.calls));
        }
    }

    #[test]
    fn what_has_no_room_comes_back_and_all_else_is_done_once() {
        let device = device();
        let pool = Offload::without_threads(&OffloadOptions { policy: OffloadPolicy::Both, threads: 4 });
        let told = Arc::new(Told::default());
        let to: Arc<dyn Ciphered> = Arc::clone(&told) as _;
        let mapped = device.mapping().locate(0, 40_960, 1 << 20).unwrap();
        let target = target_of(&device);
        let post = |token| pool.post(&target, &mapped, Direction::Encrypt, Buffer::new(40_960), &to, token);
        assert!((0..MAX_JOBS as u64).all(|token| post(token).is_ok()));
        assert_eq!(post(1000).unwrap_err().capacity(), 40_960, "a full pool gives the buffer back");
        pool.close();
        assert!(post(1001).is_err(), "a closed pool takes nothing");
        pool.shared.work();
        // 40 KiB in parts of at least 16.
        assert_eq!(*told.0.lock().unwrap(), (0..MAX_JOBS as u64).map(|t| (t, 3)).collect::<Vec<_>>());
        assert_eq!(pool.shared.state().free.len(), MAX_JOBS);
    }

    #[test]
    fn auto_moves_what_takes_long_while_somebody_is_idle() {
        let device = device();
        let target = &*target_of(&device);
        let mapped = target.locate(0, 1 << 20, 2 << 20).unwrap();
        assert_eq!(target.cipher_time(&mapped), Duration::ZERO, "not measured");
        target.measure();
        assert!(target.cipher_time(&mapped) > Duration::from_micros(10));
        let pool = Offload::without_threads(&OffloadOptions { policy: OffloadPolicy::Auto, threads: 1 });
        let short = target.locate(0, 512, 2 << 20).unwrap();
        let slow = |mapped: &MappedRange| target.cipher_time(mapped) > AUTO_THRESHOLD;
        assert!(!pool.wants(Operation::Read, target, &mapped), "nobody is idle");
        pool.shared.state().idle = 1;
        assert_eq!(pool.wants(Operation::Read, target, &mapped), slow(&mapped));
        assert!(!slow(&short) && !pool.wants(Operation::Read, target, &short));
    }
}
