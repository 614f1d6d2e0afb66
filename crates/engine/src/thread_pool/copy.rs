//! Long transfers of a store that lives in memory: copy and cipher in one pass, on a thread of its own.
//!
//! Such a store never waits for a disk; a transfer is a copy, which some CPU has to make. The kernel's own threads
//! would make it as well, but of the whole range, and the cipher would then fetch all of it from a far cache again. The
//! copy thread goes chunk by chunk, so that every data unit is encrypted or decrypted while it is near. The worker
//! receives and sends meanwhile. Nothing is allocated for a request.

use super::{JobQueue, Threads};
use crate::buffer::Buffer;
use crate::crypt_mapping::CryptMapping;
use crate::errno::Errno;
use crate::events::{Event, ReplyTo};
use crate::mapping::MappedRange;
use crate::store::{self, BackingStore};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes between two cipher calls: half of a small second-level cache, and enough data units for every cipher kernel to
/// run at full speed.
pub(crate) const CHUNK: usize = 128 << 10;
/// Jobs that the thread has at a time.
const MAX_JOBS: usize = 64;

/// A transfer between a buffer and a store.
pub(crate) struct CopyJob {
    pub(crate) crypt: Arc<CryptMapping>,
    pub(crate) store: Arc<dyn BackingStore>,
    pub(crate) range: MappedRange,
    /// Room for the aligned range, and for a write its plaintext.
    pub(crate) buffer: Buffer,
    pub(crate) writes: bool,
    pub(crate) reply: ReplyTo,
}

/// A thread that copies, one job after the other.
pub(crate) struct CopyThread(Threads<Queue>);

struct Queue {
    jobs: VecDeque<CopyJob>,
    chunk: usize,
}

/// A job with what it has done.
struct Task {
    job: CopyJob,
    chunk: usize,
    result: Result<(), Errno>,
    calls: u32,
    cipher: Duration,
}

impl CopyThread {
    /// Starts the thread, which copies chunks of `chunk` bytes, or of one data unit where that is longer.
    pub(crate) fn start(chunk: usize) -> io::Result<Self> {
        let queue = Queue { jobs: VecDeque::with_capacity(MAX_JOBS), chunk };
        Threads::start(queue, std::iter::once("inlock-copy".to_owned())).map(Self)
    }

    /// Queues `job`, or returns it when there is no room.
    #[allow(clippy::result_large_err)] // It moves once either way.
    pub(crate) fn post(&self, job: CopyJob) -> Result<(), CopyJob> {
        self.0.post(job, |queue, job| {
            if queue.jobs.len() == MAX_JOBS {
                return Err(job);
            }
            queue.jobs.push_back(job);
            Ok(1)
        })
    }
}

impl JobQueue for Queue {
    type Task = Task;
    type Done = Task;

    fn next(&mut self) -> Option<Task> {
        let job = self.jobs.pop_front()?;
        // EIO is the result if the job panics.
        Some(Task { job, chunk: self.chunk, result: Err(Errno::IO), calls: 0, cipher: Duration::ZERO })
    }

    fn run(task: &mut Task) {
        task.result = task.copy();
    }

    fn take_back(&mut self, task: Task, _panicked: bool) -> Option<Task> {
        Some(task)
    }

    fn complete(task: Task) {
        let Task { job: CopyJob { crypt, buffer, reply, .. }, result, calls, cipher, .. } = task;
        drop(crypt);
        reply.post(Event::Copied { buffer, result, calls, cipher });
    }
}

impl Task {
    fn copy(&mut self) -> Result<(), Errno> {
        let CopyJob { crypt, store, range, buffer, writes, .. } = &mut self.job;
        let chunk_len = self.chunk.next_multiple_of(range.unit_len);
        let encrypted = range.unit_len > 1;
        for (number, chunk) in buffer.data_mut()[..range.aligned_len].chunks_mut(chunk_len).enumerate() {
            let at = number * chunk_len;
            let offset = range.store_offset + at as u64;
            if !*writes {
                store::read_all(&**store, chunk, offset)?;
            }
            let started = Instant::now();
            if *writes {
                crypt.encrypt_in_place(range, at, chunk);
            } else {
                crypt.decrypt_in_place(range, at, chunk);
            }
            if encrypted {
                self.calls += 1;
                self.cipher += started.elapsed();
            }
            if *writes {
                store::write_all(&**store, chunk, offset)?;
            }
        }
        Ok(())
    }
}
