//! Workers that do what they are told, each on a thread of its own, and a way to ask the same of a blocking device.

use inlock_engine::buffer::{BufferClass, BufferPool};
use inlock_engine::request::Operation;
use inlock_engine::ring::{Completion, Ring, Wait};
use inlock_engine::rmw;
use inlock_engine::store::file::IoMode;
use inlock_engine::worker::{Context, Finished, Flow, Frontend, Mailbox, Request, Worker};
use inlock_engine::zoned::ZoneAction;
use inlock_engine::{BlockingDevice, Device, Offload, RequestError};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

#[derive(Clone)]
pub(crate) enum Ask {
    Read { offset: u64, len: u64 },
    Write { offset: u64, data: Vec<u8>, durable: bool },
    Again { offset: u64, data: Vec<u8>, durable: bool },
    Zeroes { offset: u64, len: u64 },
    Append { zone: u64, data: Vec<u8>, durable: bool },
    Zones { action: ZoneAction, offset: u64, len: u64 },
    Discard { offset: u64, len: u64 },
    Flush,
}

/// Data read, or position of the data written.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) offset: u64,
    pub(crate) bytes: Vec<u8>,
}

pub(crate) type Answer = Result<Done, RequestError>;

/// The longest request.
pub(crate) const MAX_LEN: usize = 64 << 10;
/// Maximum number of requests that a worker has in flight.
const MAX_DEPTH: usize = 64;

impl std::fmt::Debug for Ask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (offset, len) = self.range();
        write!(f, "{:?} of {len} bytes at {offset}", self.operation())
    }
}

impl std::fmt::Debug for Done {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "done at {}", self.offset)
    }
}

impl Ask {
    fn operation(&self) -> Operation {
        match *self {
            Self::Read { .. } => Operation::Read,
            Self::Write { durable, .. } => Operation::Write { durable },
            Self::Again { durable, .. } => Operation::WriteReissued { durable },
            Self::Zeroes { .. } => Operation::WriteZeroes { durable: false },
            Self::Append { durable, .. } => Operation::Append { durable },
            Self::Zones { action, .. } => Operation::Zones(action),
            Self::Discard { .. } => Operation::Discard { durable: false },
            Self::Flush => Operation::Flush,
        }
    }

    pub(crate) fn range(&self) -> (u64, u64) {
        match self {
            Self::Read { offset, len }
            | Self::Zeroes { offset, len }
            | Self::Zones { offset, len, .. }
            | Self::Discard { offset, len } => (*offset, *len),
            Self::Write { offset, data, .. }
            | Self::Again { offset, data, .. }
            | Self::Append { zone: offset, data, .. } => (*offset, data.len() as u64),
            Self::Flush => (0, 0),
        }
    }

    pub(crate) fn data(&self) -> Option<&[u8]> {
        match self {
            Self::Write { data, .. } | Self::Again { data, .. } | Self::Append { data, .. } => Some(data),
            _ => None,
        }
    }

    fn has_data(&self) -> bool {
        self.data().is_some() || matches!(self, Self::Read { .. } | Self::Zeroes { .. })
    }

    /// Makes the same request with a blocking call.
    pub(crate) fn call(&self, device: &BlockingDevice) -> Answer {
        let (offset, len) = self.range();
        let done = |()| Done { offset, bytes: Vec::new() };
        match self {
            Self::Read { .. } => {
                let mut bytes = vec![0; len as usize];
                device.read_at(&mut bytes, offset).map(|()| Done { offset, bytes })
            }
            Self::Write { data, .. } => {
                let (front, back) = data.split_at(data.len() / 3);
                device.write_vectored_at(&[front, &[], back].map(std::io::IoSlice::new), offset).map(done)
            }
            Self::Append { zone, data, .. } => {
                device.append(*zone, data).map(|offset| Done { offset, bytes: Vec::new() })
            }
            Self::Zeroes { .. } => device.write_zeroes(offset, len).map(done),
            Self::Zones { action, .. } => device.manage_zones(*action, offset, len).map(done),
            Self::Discard { .. } => device.discard(offset, len).map(done),
            Self::Flush => device.flush().map(done),
            Self::Again { .. } => unreachable!("only devices of a kernel ask again"),
        }
    }
}

enum Post {
    Ask(u64, Ask),
    /// All was answered.
    Stop,
    /// It does not matter what was.
    Abandon,
}

/// A frontend that asks for what is posted to it.
struct Desk {
    answers: mpsc::Sender<(u64, Answer)>,
    stopped: bool,
    abandoned: bool,
}

impl Desk {
    fn ask(&self, cx: &mut Context<'_>, id: u64, ask: &Ask) -> Result<(), RequestError> {
        let (operation, (offset, len)) = (ask.operation(), ask.range());
        let mut request = Request { id, operation, offset, len, data: None, spare: None };
        if ask.has_data() {
            let mapped = cx.mapping.locate(offset, len, usize::MAX / 2)?;
            assert_eq!(mapped.len as u64, len, "tests stay within one segment");
            let mut buffer = cx.pool.take(mapped.aligned_len, mapped.aligned_len).expect("the pool is large enough");
            // What was in a buffer before must never reach the store.
            buffer.data_mut().fill(0xdd);
            if let Some(data) = ask.data() {
                buffer.data_mut()[mapped.requested()].copy_from_slice(data);
            }
            let spare = if operation.modifies() { rmw::spare_len(&mapped) } else { 0 };
            request.spare = (spare > 0).then(|| cx.pool.take(spare, spare).expect("large enough"));
            request.data = Some((mapped, buffer));
        }
        cx.requests.push_back(request);
        Ok(())
    }
}

impl Frontend for Desk {
    type Message = Post;

    fn on_message(&mut self, cx: &mut Context<'_>, message: Self::Message) {
        match message {
            Post::Ask(id, ask) => {
                if let Err(error) = self.ask(cx, id, &ask) {
                    let _ = self.answers.send((id, Err(error)));
                }
            }
            Post::Stop => self.stopped = true,
            Post::Abandon => (self.stopped, self.abandoned) = (true, true),
        }
    }

    fn on_completion(&mut self, _cx: &mut Context<'_>, _done: Completion) {}

    fn on_finished(&mut self, cx: &mut Context<'_>, done: Finished) {
        let mut answer = Done::default();
        if let Some((mapped, buffer)) = done.data {
            answer.offset = mapped.offset;
            answer.bytes = buffer.data()[mapped.requested()].to_vec();
            cx.pool.give(buffer);
        }
        if let Some(spare) = done.spare {
            cx.pool.give(spare);
        }
        // An error means that the receiver has failed.
        let _ = self.answers.send((done.id, done.result.map(|()| answer)));
    }

    fn end_turn(&mut self, _cx: &mut Context<'_>) -> (Flow, Wait) {
        (if self.stopped { Flow::Stop } else { Flow::Continue }, Wait::Forever)
    }
}

/// Workers of one device.
pub(crate) struct Team {
    mailboxes: Vec<Arc<Mailbox<Post>>>,
    answers: mpsc::Receiver<(u64, Answer)>,
    threads: Vec<JoinHandle<()>>,
}

impl Team {
    pub(crate) fn start(device: &Arc<Device>, workers: usize, offload: Option<&Arc<Offload>>) -> Self {
        let (tell, answers) = mpsc::channel();
        let (mut mailboxes, mut threads) = (Vec::new(), Vec::new());
        for _ in 0..workers {
            let (device, offload, answers) = (Arc::clone(device), offload.cloned(), tell.clone());
            let (ready, mailbox) = mpsc::channel();
            threads.push(std::thread::spawn(move || {
                let capacity = MAX_LEN + 2 * device.unit_len();
                let pool = BufferPool::new(&[BufferClass { capacity, count: 2 * MAX_DEPTH }]);
                let ring = Ring::new(IoMode::Auto).expect("a ring");
                let desk = Desk { answers, stopped: false, abandoned: false };
                let mut worker = Worker::new(device, ring, pool, desk).with_offload(offload);
                ready.send(worker.mailbox()).expect("the team is waited for");
                worker.run().expect("a worker that runs");
                let left = worker.pool().outstanding();
                assert!(worker.front().abandoned || left == 0, "{left} buffers have not come back");
            }));
            mailboxes.push(mailbox.recv().expect("a worker"));
        }
        Self { mailboxes, answers, threads }
    }

    pub(crate) fn workers(&self) -> usize {
        self.mailboxes.len()
    }

    pub(crate) fn post(&self, worker: usize, id: u64, ask: Ask) {
        self.mailboxes[worker].post(Post::Ask(id, ask));
    }

    /// The next answer of any.
    pub(crate) fn next(&self) -> (u64, Answer) {
        loop {
            match self.answers.recv_timeout(Duration::from_millis(500)) {
                Ok(answer) => return answer,
                Err(_) => assert!(!self.threads.iter().any(JoinHandle::is_finished), "a worker has ended"),
            }
        }
    }

    /// Returns the answer to one request, with no other in flight.
    pub(crate) fn ask(&self, worker: usize, ask: Ask) -> Answer {
        self.post(worker, 0, ask);
        self.next().1
    }

    /// Posts all of these, by turns of the workers.
    pub(crate) fn post_all(&self, asks: &[Ask]) {
        let workers = self.mailboxes.len();
        for (id, ask) in asks.iter().enumerate() {
            self.post(id % workers, id as u64, ask.clone());
        }
    }

    /// The answers to what was posted, in the order of the asks.
    pub(crate) fn answers(&self, count: usize) -> Vec<Answer> {
        let mut answers: Vec<_> = (0..count).map(|_| self.next()).collect();
        answers.sort_unstable_by_key(|(id, _)| *id);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }
}

impl Team {
    /// Ends the workers with their requests in flight.
    pub(crate) fn abandon(self) {
        self.mailboxes.iter().for_each(|mailbox| mailbox.post(Post::Abandon));
        drop(self);
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.mailboxes.iter().for_each(|mailbox| mailbox.post(Post::Stop));
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(std::thread::panicking() || ended.is_ok(), "a worker has failed");
        }
    }
}
