//! Zone management on a thread of its own: a drive may take long over it.

use super::{JobQueue, Threads};
use crate::device::Device;
use crate::errno::Errno;
use crate::events::{Event, ReplyTo};
use crate::zone_queue::ZoneMgmtId;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// A zone management operation that is the head of the queues of all its zones.
pub(crate) struct ZoneMgmtJob {
    pub(crate) device: Arc<Device>,
    pub(crate) id: ZoneMgmtId,
    pub(crate) reply: ReplyTo,
}

/// A thread that carries out zone management operations, one after the other.
pub(crate) struct ZoneMgmtThread(Threads<Queue>);

#[derive(Default)]
struct Queue(VecDeque<ZoneMgmtJob>);

struct Task {
    job: ZoneMgmtJob,
    result: Result<(), Errno>,
}

impl ZoneMgmtThread {
    /// Starts the thread.
    pub(crate) fn start() -> io::Result<Self> {
        Threads::start(Queue::default(), std::iter::once("inlock-zones".to_owned())).map(Self)
    }

    /// Queues `job`. The requests of a worker bound how many there are.
    pub(crate) fn post(&self, job: ZoneMgmtJob) {
        let posted = self.0.post(job, |Queue(jobs), job| {
            jobs.push_back(job);
            Ok(1)
        });
        debug_assert!(posted.is_ok(), "the queue is open until it is dropped");
    }
}

impl JobQueue for Queue {
    type Task = Task;
    type Done = Task;

    fn next(&mut self) -> Option<Task> {
        // EIO is the result if the job panics.
        self.0.pop_front().map(|job| Task { job, result: Err(Errno::IO) })
    }

    fn run(task: &mut Task) {
        let zones = task.job.device.zones().expect("zone management is for devices with zones");
        task.result = zones.carry_out(task.job.id);
    }

    fn take_back(&mut self, task: Task, _panicked: bool) -> Option<Task> {
        Some(task)
    }

    fn complete(task: Task) {
        let Task { job: ZoneMgmtJob { device, reply, .. }, result } = task;
        drop(device);
        reply.post(Event::ZonesManaged(result));
    }
}
