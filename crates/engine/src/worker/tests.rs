//! Tests of the worker's own state: helper threads, and what its frontend is told.

use super::*;
use crate::buffer::{Buffer, BufferClass};
use crate::request::Operation;
use crate::ring::{self, Token};
use crate::store::file::{FileStore, IoMode};
use crate::store::memory::MemoryStore;
use crate::store::{BackingStore, Geometry, StoreProfile};
use crate::{Access, Errno, RequestError};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::time::Duration;

mod zone_lock;

/// Store with the descriptor of a pipe: a read ends when the test writes, and the flag for direct I/O can be set.
pub(super) struct Pipe {
    end: OwnedFd,
    is_block_device: bool,
    prefetched: Mutex<Vec<(u64, u64)>>,
}

impl Pipe {
    pub(super) fn new(end: OwnedFd, is_block_device: bool) -> Self {
        Self { end, is_block_device, prefetched: Mutex::default() }
    }
}

impl BackingStore for Pipe {
    fn geometry(&self) -> Geometry {
        Geometry::new_read_only(4096)
    }
    fn profile(&self) -> StoreProfile {
        StoreProfile { is_block_device: self.is_block_device, ..StoreProfile::default() }
    }
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.end.as_fd())
    }
    fn read_at(&self, _data: &mut [u8], _offset: u64) -> Result<usize, Errno> {
        Err(Errno::SPIPE)
    }
    fn write_at(&self, _data: &[u8], _offset: u64) -> Result<usize, Errno> {
        Err(Errno::SPIPE)
    }
    fn sync(&self) -> Result<(), Errno> {
        Err(Errno::SPIPE)
    }
    fn prefetch(&self, offset: u64, len: u64) {
        self.prefetched.lock().unwrap().push((offset, len));
    }
    fn discard(&self, _offset: u64, _len: u64) -> Result<(), Errno> {
        Err(Errno::SPIPE)
    }
}

/// A frontend that notes what it is told.
#[derive(Default)]
struct Noting {
    suspended: Vec<bool>,
    completed: Vec<(u64, Result<usize, Errno>)>,
    finished: Vec<(u64, Result<(), RequestError>)>,
}

impl Frontend for Noting {
    type Message = ();
    fn on_message(&mut self, _cx: &mut Context<'_>, (): ()) {}
    fn on_completion(&mut self, _cx: &mut Context<'_>, done: Completion) {
        self.completed.push((done.token.0, done.result));
    }
    fn on_finished(&mut self, _cx: &mut Context<'_>, done: Finished) {
        self.finished.push((done.id, done.result));
    }
    fn end_turn(&mut self, cx: &mut Context<'_>) -> (Flow, Wait) {
        self.suspended.push(cx.suspended);
        (Flow::Continue, Wait::No)
    }
}

fn worker(store: Arc<dyn BackingStore>) -> Worker<Noting> {
    let device = Arc::new(Device::raw(store, Access::default()));
    let pool = BufferPool::new(&[BufferClass { capacity: 4096, count: 2 }]);
    Worker::new(device, Ring::new(IoMode::Auto).unwrap(), pool, Noting::default())
}

fn file(mode: IoMode, directory: &std::path::Path) -> Arc<dyn BackingStore> {
    let file = tempfile::tempfile_in(directory).unwrap();
    file.set_len(1 << 20).unwrap();
    Arc::new(FileStore::new(file, mode).unwrap())
}

#[test]
fn only_a_worker_with_a_store_in_memory_has_a_copy_thread() {
    assert!(worker(Arc::new(MemoryStore::new(vec![0; 4096]))).helpers.copy.is_none(), "it is called inline");
    let on_disk = file(IoMode::Uring, &std::env::temp_dir());
    assert!(worker(on_disk).helpers.copy.is_none());
    let memory = std::path::Path::new("/dev/shm");
    if memory.is_dir() {
        let in_memory = file(IoMode::Auto, memory);
        assert!(in_memory.profile().in_memory);
        assert!(worker(in_memory).helpers.copy.is_some());
    }
}

#[test]
fn frontend_is_told_whether_the_device_is_suspended() {
    let mut worker = worker(Arc::new(MemoryStore::new(vec![0; 4096])));
    let device = Arc::clone(&worker.volume.device);
    worker.turn().unwrap();
    std::thread::scope(|scope| {
        let suspending = scope.spawn(|| device.suspend());
        while !suspending.is_finished() {
            worker.turn().unwrap();
        }
    });
    worker.turn().unwrap();
    assert_eq!((worker.front().suspended.first(), worker.front().suspended.last()), (Some(&false), Some(&true)));
    device.resume().unwrap();
    worker.turn().unwrap();
    assert_eq!(worker.front().suspended.last(), Some(&false));
}

#[test]
fn frontend_gets_the_completions_of_its_own_operations() {
    let mut worker = worker(Arc::new(MemoryStore::new(vec![0; 4096])));
    let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let socket = worker.ring.add_socket(theirs.into()).unwrap();
    let receive = ring::Operation::Receive { buffer: Buffer::new(8), range: 0..4, all: true };
    worker.ring.submit(socket, receive, Token(7));
    std::io::Write::write_all(&mut ours, b"abcd").unwrap();
    for _ in 0..10_000 {
        worker.turn().unwrap();
        if !worker.front().completed.is_empty() {
            break;
        }
    }
    assert_eq!(worker.front().completed, [(7, Ok(4))]);
}

fn flush(id: u64) -> Request {
    Request { id, operation: Operation::Flush, offset: 0, len: 0, data: None, spare: None }
}

#[test]
fn queue_has_room_for_all_requests_and_begins_at_the_front_when_it_was_empty() {
    let mut worker = worker(Arc::new(MemoryStore::new(vec![0; 4096])));
    let room = worker.requests.capacity();
    assert!((MAX_REQUESTS_WITHOUT_DATA + 2..2 * MAX_REQUESTS_WITHOUT_DATA).contains(&room), "{room}");
    let place = |worker: &mut Worker<Noting>| {
        worker.requests.push_back(flush(0));
        let place = worker.requests.as_slices().0.as_ptr();
        worker.requests.pop_back();
        place
    };
    let front = place(&mut worker);
    for _ in 0..3 {
        worker.requests.push_back(flush(0));
        worker.requests.pop_front();
    }
    assert_ne!(place(&mut worker), front);
    worker.rewind();
    assert_eq!(place(&mut worker), front);
}

/// The sync that a worker waits for when it ends is the answer to others that wait for it.
#[test]
fn worker_that_ends_takes_the_result_of_its_sync_from_the_ring() {
    let directory = tempfile::tempdir().unwrap();
    let mut worker = worker(file(IoMode::Uring, directory.path()));
    let device = Arc::clone(&worker.volume.device);
    worker.requests.push_back(flush(1));
    worker.run_queue();
    assert!(worker.finished.is_empty(), "the ring has it");
    drop(worker);
    assert!(!device.has_lost_writes());
    crate::BlockingDevice::new(device).flush().unwrap();
}

#[test]
fn suspend_waits_for_a_request_in_flight_and_its_keys_stay_until_then() {
    let (end, into) = rustix::pipe::pipe().unwrap();
    let mut worker = worker(Arc::new(Pipe::new(end, false)));
    let device = Arc::clone(&worker.volume.device);
    let data = Some((device.mapping().locate(0, 4096, 4096).unwrap(), Buffer::new(4096)));
    worker.requests.push_back(Request { id: 3, operation: Operation::Read, offset: 0, len: 4096, data, spare: None });
    worker.run_queue();
    std::thread::scope(|scope| {
        let suspending = scope.spawn(|| device.suspend().unwrap());
        while worker.volume.state == FreezeState::Running {
            worker.turn().unwrap();
        }
        for _ in 0..20 {
            worker.turn().unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(worker.volume.crypt.is_some() && !suspending.is_finished());
        rustix::io::write(&into, &[7; 4096]).unwrap();
        while !suspending.is_finished() {
            worker.turn().unwrap();
        }
    });
    assert!(worker.volume.crypt.is_none());
    assert_eq!(worker.front().finished, [(3, Ok(()))]);
}

#[test]
fn prefetch_is_passed_to_the_store() {
    let store = Arc::new(Pipe::new(rustix::pipe::pipe().unwrap().0, false));
    let mut worker = worker(Arc::clone(&store) as _);
    for (id, offset) in [(1, 512), (2, 4096)] {
        let operation = Operation::Prefetch;
        worker.requests.push_back(Request { id, operation, offset, len: 1024, data: None, spare: None });
    }
    worker.run_queue();
    assert_eq!(*store.prefetched.lock().unwrap(), [(512, 1024)]);
    assert_eq!(worker.front().finished, [(1, Ok(())), (2, Err(RequestError::OutOfRange))]);
}
