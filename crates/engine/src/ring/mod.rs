//! Submission of a worker's operations to the kernel, and their completions.
//!
//! There are two backends with the same interface: `uring` submits all operations of one turn with one system call, and
//! `sync` uses ordinary system calls where io_uring is not available. An operation owns its buffers until its
//! completion returns them, so that nothing can access or free memory that the kernel uses. A ring belongs to one
//! thread.

mod busy_poll;
mod sync;
mod trial;
mod uring;

use crate::buffer::Buffer;
use crate::ciphertext::Ciphertext;
use crate::errno::Errno;
use crate::store::file::IoMode;
use crate::store::{BackingStore, StoreOperation};
pub use busy_poll::BusyPoll;
use busy_poll::Polling;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendAncillaryBuffer, SendFlags};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Value that identifies an operation to its submitter; returned in its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token(pub u64);

/// Handle of a descriptor in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    index: u32,
    generation: u32,
}

/// Replies that are sent together: ranges of frames ([`Buffer::frame`]).
pub type Outgoing = Vec<(Buffer, Range<usize>)>;

/// Maximum number of ranges in one [`Operation::Send`].
pub const MAX_OUTGOING: usize = 64;

/// Returns the number of bytes of all ranges.
fn outgoing_len(outgoing: &Outgoing) -> usize {
    outgoing.iter().map(|(_, range)| range.len()).sum()
}

/// Sends as many bytes behind the first `sent` as the socket takes now, in one call.
fn send_available(socket: BorrowedFd<'_>, outgoing: &Outgoing, mut sent: usize) -> Result<usize, Errno> {
    let mut segments = [IoSlice::new(&[]); MAX_OUTGOING];
    for (slice, (buffer, range)) in segments.iter_mut().zip(outgoing) {
        let segment = &buffer.frame()[range.clone()];
        let passed = sent.min(segment.len());
        sent -= passed;
        *slice = IoSlice::new(&segment[passed..]);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &segments[..outgoing.len()], &mut SendAncillaryBuffer::default(), flags)
        .map_err(Errno::from_rustix)
}

/// Part of a vectored write, contiguous in the store with the one before.
#[derive(Debug)]
pub struct WriteSegment {
    /// Ciphertext to write from.
    pub data: Ciphertext,
    /// Range of `data` to write.
    pub range: Range<usize>,
    /// Identifies the write that the segment belongs to.
    pub token: Token,
    /// Time at which the segment was merged.
    pub since: Instant,
}

impl WriteSegment {
    fn bytes(&self) -> &[u8] {
        &self.data.bytes()[self.range.clone()]
    }
}

/// Maximum number of segments in one [`Operation::Writev`].
pub const MAX_WRITE_SEGMENTS: usize = 64;

/// Operation with the memory that it needs.
#[non_exhaustive]
#[derive(Debug)]
pub enum Operation {
    /// Operation of a store.
    Store(StoreOperation),
    /// Write the segments one after the other from byte `offset` of a store. May transfer less.
    Writev {
        /// Position in the store, in bytes.
        offset: u64,
        /// Segments in order.
        segments: Vec<WriteSegment>,
    },
    /// Receive into `buffer.data()[range]`: the available bytes (0: the peer has shut down), or the whole range with
    /// `all`.
    Receive {
        /// Buffer to receive into.
        buffer: Buffer,
        /// Range of the buffer's data.
        range: Range<usize>,
        /// Whether to continue until the range is full.
        all: bool,
    },
    /// Send all ranges. Never transfers less.
    Send(Outgoing),
    /// Wait for the next request of a ublk device.
    Ublk(UblkCommand),
}

/// Tag of a ublk device. The command completes when the tag has a request, whose I/O descriptor is then in the memory
/// shared with the driver. `NODEV`: no requests will follow.
#[derive(Debug)]
pub struct UblkCommand {
    /// Queue of the device.
    pub queue: u16,
    /// Tag in the queue.
    pub tag: u16,
    /// Result of the tag's last request: bytes, or a negative error number. `None` for the first command of the tag.
    pub answer: Option<i32>,
    /// Copy mode of the request's data.
    pub bytes: UblkBytes,
}

/// Copy mode of a ublk device.
#[non_exhaustive]
#[derive(Debug)]
pub enum UblkBytes {
    /// The driver copies: it puts a write's data into `data()` before the completion, and takes a read's data from
    /// there with the next command. The buffer is at least as long as the device's longest request.
    Copied(Buffer),
    /// The server copies, with reads and writes of the character device. The number is the position, in sectors of the
    /// device, at which the last request wrote if it was a zone append; otherwise 0.
    Fetched(u64),
}

/// Memory that a completion returns.
#[non_exhaustive]
#[derive(Debug)]
pub enum Returned {
    /// The operation had no memory.
    Nothing,
    /// The buffer of a read or a receive.
    Buffer(Buffer),
    /// The data of a write.
    Ciphertext(Ciphertext),
    /// The segments of a write.
    Segments(Vec<WriteSegment>),
    /// The ranges of a send.
    Outgoing(Outgoing),
}

impl From<StoreOperation> for Operation {
    fn from(operation: StoreOperation) -> Self {
        Self::Store(operation)
    }
}

impl From<StoreOperation> for Returned {
    /// Returns the memory of the operation.
    fn from(operation: StoreOperation) -> Self {
        match operation {
            StoreOperation::Read { buffer, .. } => Self::Buffer(buffer),
            StoreOperation::Write { data, .. } => Self::Ciphertext(data),
            StoreOperation::Sync | StoreOperation::Discard { .. } => Self::Nothing,
        }
    }
}

impl Operation {
    /// Executes a store operation on the calling thread. Blocks.
    pub(crate) fn execute(mut self, store: &dyn BackingStore) -> (Result<usize, Errno>, Returned) {
        let result = self.execute_step(store);
        (result, self.into_returned())
    }

    fn execute_step(&mut self, store: &dyn BackingStore) -> Result<usize, Errno> {
        match self {
            Self::Store(operation) => operation.execute(store),
            Self::Writev { offset, segments } => {
                let mut slices = [IoSlice::new(&[]); MAX_WRITE_SEGMENTS];
                slices.iter_mut().zip(&*segments).for_each(|(slice, segment)| *slice = IoSlice::new(segment.bytes()));
                store.write_vectored_at(&slices[..segments.len().min(MAX_WRITE_SEGMENTS)], *offset)
            }
            Self::Receive { .. } | Self::Send(_) | Self::Ublk(_) => Err(Errno::NOTSOCK),
        }
    }

    /// Returns the byte behind the last one that it writes to a store, and 0 for a sync.
    pub(crate) fn write_end(&self) -> Option<u64> {
        let (offset, len) = match self {
            Self::Store(StoreOperation::Write { offset, range, .. }) => (*offset, range.len()),
            Self::Writev { offset, segments } => (*offset, segments.iter().map(|segment| segment.bytes().len()).sum()),
            Self::Store(StoreOperation::Sync) => (0, 0),
            _ => return None,
        };
        Some(offset.saturating_add(len as u64))
    }

    /// Returns whether a store carries the operation out.
    fn is_on_store(&self) -> bool {
        match self {
            Self::Store(_) | Self::Writev { .. } => true,
            Self::Receive { .. } | Self::Send(_) | Self::Ublk(_) => false,
        }
    }

    fn into_returned(self) -> Returned {
        match self {
            Self::Store(operation) => operation.into(),
            Self::Writev { segments, .. } => Returned::Segments(segments),
            Self::Receive { buffer, .. } => Returned::Buffer(buffer),
            Self::Send(outgoing) => Returned::Outgoing(outgoing),
            Self::Ublk(UblkCommand { bytes: UblkBytes::Copied(buffer), .. }) => Returned::Buffer(buffer),
            Self::Ublk(UblkCommand { bytes: UblkBytes::Fetched(_), .. }) => Returned::Nothing,
        }
    }
}

/// Operation that has completed.
#[non_exhaustive]
#[derive(Debug)]
pub struct Completion {
    /// The caller's token.
    pub token: Token,
    /// Number of bytes transferred, or the error.
    pub result: Result<usize, Errno>,
    /// The operation's memory.
    pub returned: Returned,
}

/// How long a turn waits for the first completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Does not wait.
    No,
    /// Waits at most this long.
    Until(Duration),
    /// Waits until something completes.
    Forever,
}

impl Wait {
    /// Returns the longest time to wait.
    fn limit(self) -> Duration {
        match self {
            Self::No => Duration::ZERO,
            Self::Until(limit) => limit,
            Self::Forever => Duration::MAX,
        }
    }
}

/// Handle that wakes a ring's thread from any thread. It carries no data.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// Ends the current or the next wait.
    pub fn wake(&self) {
        // The counter would only overflow after 2^64 - 1 unread wakes, and is readable then.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }

    fn clear(&self) {
        let _ = rustix::io::read(&*self.0, &mut [0u8; 8]);
    }
}

/// Descriptor with the number of operations that use it.
struct Held {
    descriptor: Descriptor,
    in_flight: u32,
    closing: bool,
    /// Whether the descriptor is registered with the kernel, under its index.
    registered: bool,
    /// Whether to discard with the block device command; false once the kernel has refused it.
    discards: bool,
}

enum Descriptor {
    Socket(OwnedFd),
    Store(Arc<dyn BackingStore>),
    /// Character device of a ublk device, and the length in bytes of the longest request that its driver copies; `None`
    /// with user copy.
    Ublk(OwnedFd, Option<usize>),
}

impl Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Socket(fd) | Self::Ublk(fd, _) => fd.as_fd(),
            Self::Store(store) => store.as_fd().expect("Ring::add_store only takes stores with a descriptor"),
        }
    }
}

/// Descriptors of a ring. A closed one stays until its last operation has completed.
#[derive(Default)]
struct Files {
    slots: Vec<(u32, Option<Held>)>,
}

impl Files {
    fn add(&mut self, descriptor: Descriptor) -> FileId {
        let discards = matches!(&descriptor, Descriptor::Store(store) if store.profile().is_block_device);
        let held = Some(Held { descriptor, in_flight: 0, closing: false, registered: false, discards });
        let index = match self.slots.iter().position(|(_, h)| h.is_none()) {
            Some(free) => free,
            None => {
                self.slots.push((0, None));
                self.slots.len() - 1
            }
        };
        self.slots[index].1 = held;
        FileId { index: index as u32, generation: self.slots[index].0 }
    }

    fn get(&mut self, file: FileId) -> Option<&mut Held> {
        let (generation, held) = self.slots.get_mut(file.index as usize)?;
        if *generation == file.generation { held.as_mut() } else { None }
    }

    /// Counts one operation on `file` as completed. Returns the descriptor if the file is closed and this was the last
    /// one.
    fn release(&mut self, file: FileId) -> Option<Held> {
        if let Some(held) = self.get(file) {
            held.in_flight -= 1;
        }
        self.take_if_idle(file)
    }

    /// Marks `file` as closed and shuts a socket down, which ends its operations. Returns the descriptor if none uses
    /// it; otherwise [`Files::release`] of the last one does.
    fn close(&mut self, file: FileId) -> Option<Held> {
        let held = self.get(file)?;
        held.closing = true;
        if let Descriptor::Socket(fd) = &held.descriptor {
            // An error means that the peer has disconnected already.
            let _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Both);
        }
        self.take_if_idle(file)
    }

    fn take_if_idle(&mut self, file: FileId) -> Option<Held> {
        let held = self.get(file)?;
        if !held.closing || held.in_flight > 0 {
            return None;
        }
        self.take(file)
    }

    fn take(&mut self, file: FileId) -> Option<Held> {
        let slot = &mut self.slots[file.index as usize];
        slot.0 = slot.0.wrapping_add(1);
        slot.1.take()
    }
}

/// Ring with one of the two backends.
pub struct Ring {
    files: Files,
    backend: Backend,
    polling: Polling,
    waker: Waker,
    /// Maximum number of operations in flight on stores.
    operations: usize,
    /// Maximum number of operations in flight on stores and sockets.
    room: usize,
    /// Maximum number of [`Operation::Writev`] among those on stores.
    writev: usize,
}

enum Backend {
    Uring(Box<uring::Uring>),
    Sync(sync::SyncRing),
}

impl Ring {
    /// Creates a ring for the calling thread. `Auto` uses io_uring if the kernel permits it; `Uring` fails if not.
    ///
    /// # Errors
    ///
    /// The process has no descriptors or memory left, or the kernel does not permit io_uring with [`IoMode::Uring`].
    pub fn new(mode: IoMode) -> io::Result<Self> {
        let waker = Waker::new()?;
        let sync = || sync::SyncRing::new(&waker).map(Backend::Sync);
        let uring = || uring::Uring::new(&waker).map(|u| Backend::Uring(Box::new(u)));
        let backend = match mode {
            IoMode::Sync => sync()?,
            IoMode::Uring => uring()?,
            IoMode::Auto => uring().or_else(|_| sync())?,
        };
        let polling = Polling::new(BusyPoll::Never);
        Ok(Self { files: Files::default(), backend, polling, waker, operations: 0, room: 0, writev: 0 })
    }

    /// Returns the name of the backend, `io_uring` or `sync`.
    pub fn name(&self) -> &'static str {
        match self.backend {
            Backend::Uring(_) => "io_uring",
            Backend::Sync(_) => "sync",
        }
    }

    /// Returns a handle that wakes this ring.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Returns the ring with waits that first poll for completions, as `wanted` says. A wait polls if the transfers
    /// since the last one were short together and no operation on a store is in flight, and less often while polling
    /// finds nothing. Without this, waits do not poll.
    #[must_use]
    pub fn with_busy_poll(mut self, wanted: BusyPoll) -> Self {
        self.polling = Polling::new(wanted);
        self
    }

    /// Reserves memory for `operations` more operations in flight on stores. Adding a socket reserves memory for its
    /// two, one that receives and one that sends. So [`Ring::submit`] and [`Ring::turn`] do not
    /// allocate, if the queue for completions has room for [`Ring::room`] of them.
    pub fn reserve(&mut self, operations: usize) {
        self.operations += operations;
        self.make_room();
    }

    /// Reserves memory for [`Operation::Writev`], for `operations` more among those on stores.
    pub(crate) fn reserve_writev(&mut self, operations: usize) {
        self.writev += operations;
        self.make_room();
    }

    /// Limits the kernel's worker threads for operations that it cannot start at once, such as syncs and discards, to
    /// one: starting another takes memory. For stores whose reads and writes never need such a thread.
    pub(crate) fn set_iowq_max_workers(&mut self) -> io::Result<()> {
        match &mut self.backend {
            Backend::Uring(uring) => uring.set_iowq_max_workers(),
            Backend::Sync(_) => Ok(()),
        }
    }

    /// Returns the maximum number of operations in flight.
    pub fn room(&self) -> usize {
        self.room
    }

    fn make_room(&mut self) {
        self.room = self.operations + 2 * self.files.slots.iter().flat_map(|(_, held)| held).count();
        match &mut self.backend {
            Backend::Uring(uring) => uring.reserve(self.room, self.files.slots.len() + self.writev),
            Backend::Sync(sync) => sync.reserve(self.room),
        }
    }

    /// Adds a connected stream socket.
    ///
    /// # Errors
    ///
    /// The kernel does not accept the socket, or the process is out of memory.
    pub fn add_socket(&mut self, socket: OwnedFd) -> io::Result<FileId> {
        rustix::io::ioctl_fionbio(&socket, matches!(self.backend, Backend::Sync(_)))?;
        let file = self.files.add(Descriptor::Socket(socket));
        self.make_room();
        if let Err(error) = self.register_socket(file) {
            drop(self.files.close(file));
            return Err(error);
        }
        Ok(file)
    }

    /// Adds a store. Returns `None` if it has no descriptor.
    pub fn add_store(&mut self, store: &Arc<dyn BackingStore>) -> Option<FileId> {
        store.as_fd()?;
        // Stores are not registered: the kernel drops registered descriptors only some time after the process has
        // ended, and until then no other process gets the store's lock or exclusive access to the block device.
        Some(self.files.add(Descriptor::Store(Arc::clone(store))))
    }

    /// Registers a new socket with the kernel, once for all of its operations.
    fn register_socket(&mut self, file: FileId) -> io::Result<()> {
        let Some(held) = self.files.get(file) else { return Ok(()) };
        match &mut self.backend {
            Backend::Uring(uring) => held.registered = uring.register(file, held.descriptor.as_fd()),
            Backend::Sync(sync) => sync.watch(file, held.descriptor.as_fd())?,
        }
        Ok(())
    }

    /// Ends the operations in flight on `file`. They still complete; then the descriptor is closed.
    pub fn close(&mut self, file: FileId) {
        let idle = self.files.close(file);
        if let (Some(held), Backend::Uring(uring)) = (idle, &mut self.backend) {
            uring.deregister(file, &held);
        }
    }

    /// Cancels a receive in flight on a socket: it completes with `CANCELED`, unless it has received bytes already. No
    /// byte is lost.
    pub fn cancel_receive(&mut self, file: FileId) {
        match &mut self.backend {
            Backend::Uring(uring) => uring.cancel_receive(file),
            Backend::Sync(sync) => sync.cancel_receive(&mut self.files, file),
        }
    }

    /// Takes a socket out of the ring without closing it. Returns `None` if an operation uses it, or it was closed.
    pub fn take_socket(&mut self, file: FileId) -> Option<OwnedFd> {
        match self.files.get(file)? {
            Held { descriptor: Descriptor::Socket(_), in_flight: 0, closing: false, .. } => {}
            _ => return None,
        }
        let held = self.files.take(file)?;
        match &mut self.backend {
            Backend::Uring(uring) => uring.deregister(file, &held),
            Backend::Sync(sync) => sync.unwatch(held.descriptor.as_fd()),
        }
        match held.descriptor {
            Descriptor::Socket(socket) => Some(socket),
            Descriptor::Store(_) | Descriptor::Ublk(..) => None,
        }
    }

    /// Whether the peer of a socket has closed it, or the connection has failed: nothing can be sent. Does not block.
    pub fn has_peer_left(&mut self, file: FileId) -> bool {
        let Some(Held { descriptor: Descriptor::Socket(fd), .. }) = self.files.get(file) else { return false };
        let mut polled = [PollFd::new(fd, PollFlags::empty())];
        let is_reported = poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok();
        is_reported && polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }

    /// Stops receiving on a socket: a receive in flight completes with the bytes received so far.
    pub fn stop_receiving(&mut self, file: FileId) {
        if let Some(Held { descriptor: Descriptor::Socket(fd), .. }) = self.files.get(file) {
            let _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Read);
        }
    }

    /// Queues an operation for the next turn. On a closed file it completes with `BADF`.
    pub fn submit(&mut self, file: FileId, operation: impl Into<Operation>, token: Token) {
        let operation = operation.into();
        match &mut self.backend {
            Backend::Uring(uring) => uring.submit(&mut self.files, file, operation, token),
            Backend::Sync(sync) => sync.submit(&mut self.files, file, operation, token),
        }
    }

    /// Submits the queued operations now instead of in the next turn.
    pub fn submit_now(&mut self) {
        if let Backend::Uring(uring) = &mut self.backend {
            uring.submit_now(&mut self.files);
        }
    }

    /// Ends every operation on a socket, waits for those on stores, and returns the completions. Blocks.
    pub(crate) fn finish(&mut self) -> VecDeque<Completion> {
        match &mut self.backend {
            Backend::Uring(uring) => uring.finish(&mut self.files),
            Backend::Sync(sync) => sync.finish(),
        }
    }

    /// Submits the queued operations, waits as `wait` says, and appends the completions to `done`. Returns whether the
    /// ring was woken. A signal may end the wait early, with no completion.
    ///
    /// # Errors
    ///
    /// The wait fails other than by a signal. Operations in flight are not affected.
    pub fn turn(&mut self, wait: Wait, done: &mut VecDeque<Completion>) -> io::Result<bool> {
        let before = done.len();
        let (files, poll) = (&mut self.files, &mut self.polling);
        let woken = match &mut self.backend {
            Backend::Uring(uring) => uring.turn(files, wait, poll, done)?,
            Backend::Sync(sync) => sync.turn(files, wait, poll, done)?,
        };
        if self.polling.is_on() {
            done.iter().skip(before).flat_map(|done| done.result).for_each(|bytes| self.polling.add_moved(bytes));
        }
        if woken {
            self.waker.clear();
        }
        Ok(woken)
    }
}

/// Appends `completed` to `done`. The usual case, an empty `done`, moves nothing.
fn hand_over(completed: &mut VecDeque<Completion>, done: &mut VecDeque<Completion>) {
    if done.is_empty() {
        std::mem::swap(completed, done);
    } else {
        done.append(completed);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.finish();
    }
}

#[cfg(test)]
mod tests;
