//! How a worker talks to the kernel: operations go in, completions come out.
//!
//! Two twins behind one face: `uring` submits everything that one turn collected with one system call, `plain` does
//! the same with ordinary calls where io_uring is forbidden. An operation owns its buffers until its completion hands
//! them back, so that nothing can touch or free memory that the kernel is using. A ring belongs to one thread.

mod sync;
mod uring;

use crate::buffer::Buffer;
use crate::crypt_mapping::Ciphertext;
use crate::store::BackingStore;
use crate::store::file::{IoMode, is_direct};
use rustix::event::EventfdFlags;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What the caller of an operation wants to be reminded of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token(pub u64);

/// A descriptor that a ring holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    index: u32,
    generation: u32,
}

/// Replies that leave together: stretches of frames ([`Buffer::frame`]).
pub type Outgoing = Vec<(Buffer, Range<usize>)>;

/// The most stretches that one [`Operation::Send`] carries.
pub const MAX_OUTGOING: usize = 64;

/// A write among several that are one behind the other in the store.
#[derive(Debug)]
pub struct WriteSegment {
    /// What is written.
    pub data: Ciphertext,
    /// Which segment of it.
    pub range: Range<usize>,
    /// Whose it is.
    pub token: Token,
    /// When it was gathered.
    pub since: Instant,
}

impl WriteSegment {
    fn bytes(&self) -> &[u8] {
        &self.data.bytes()[self.range.clone()]
    }
}

/// The most segments that one [`Operation::Writev`] carries.
pub const MAX_WRITE_SEGMENTS: usize = 64;

/// An operation and the memory it needs.
#[derive(Debug)]
pub enum Operation {
    /// Read into `buffer.data()[range]` from byte `offset` of a store. May come back short.
    Read {
        /// Position in the store.
        offset: u64,
        /// Where the bytes go.
        buffer: Buffer,
        /// Which segment of the data.
        range: Range<usize>,
    },
    /// Write `range` of the ciphertext at byte `offset` of a store. May come back short.
    Write {
        /// Position in the store.
        offset: u64,
        /// What is written.
        data: Ciphertext,
        /// Which segment of it.
        range: Range<usize>,
        /// Force unit access.
        durable: bool,
    },
    /// Write these one behind the other from byte `offset` of a store. May come back short.
    Writev {
        /// Position in the store.
        offset: u64,
        /// What is written.
        segments: Vec<WriteSegment>,
    },
    /// Put what was written on stable storage.
    Sync,
    /// Give storage back.
    Discard {
        /// First byte.
        offset: u64,
        /// How many bytes.
        len: u64,
    },
    /// Receive into `buffer.data()[range]`: what is there (0: the peer has finished), or the whole range where `all`.
    Receive {
        /// Where the bytes go.
        buffer: Buffer,
        /// Which segment of the data.
        range: Range<usize>,
        /// Whether to go on until the range is full.
        all: bool,
    },
    /// Send all of these. Never comes back short.
    Send(Outgoing),
    /// Wait for a block device's next request.
    Ublk(UblkCommand),
}

/// A place for one request of a ublk device. It completes when there is a request, whose description is then in the memory
/// that the driver shares; `NODEV`: there will be none any more.
#[derive(Debug)]
pub struct UblkCommand {
    /// The device's queue.
    pub queue: u16,
    /// The place in the queue.
    pub tag: u16,
    /// How the last request in this place ended: bytes, or a negative error number. `None`: there was none before.
    pub answer: Option<i32>,
    /// Who copies the request's bytes.
    pub bytes: UblkBytes,
}

/// How the bytes of a ublk device's requests come and go.
#[derive(Debug)]
pub enum UblkBytes {
    /// The driver copies: a write's are in `data()` when the request comes, a read's are taken from there with the answer.
    /// At least as long as the device's longest request.
    Copied(Buffer),
    /// The device's process copies, by reading and writing the device's control side. The number is where the last request,
    /// if it was a zone append, has put its bytes, in sectors of the device; with other requests it is 0.
    Fetched(u64),
}

/// What an operation gives back.
#[derive(Debug)]
pub enum Returned {
    /// It had no memory.
    Nothing,
    /// The buffer of a read or a receive.
    Buffer(Buffer),
    /// The data of a write.
    Ciphertext(Ciphertext),
    /// The segments of a write.
    Segments(Vec<WriteSegment>),
    /// The stretches of a send.
    Outgoing(Outgoing),
}

impl Operation {
    /// Bytes that the operation moves to or from a store.
    pub(crate) fn transfer_len(&self) -> Option<usize> {
        match self {
            Self::Read { range, .. } | Self::Write { range, .. } => Some(range.len()),
            Self::Writev { segments, .. } => Some(segments.iter().map(|segment| segment.range.len()).sum()),
            _ => None,
        }
    }

    /// Carries a store operation out on the calling thread.
    pub(crate) fn execute(mut self, store: &dyn BackingStore) -> (Result<usize, Errno>, Returned) {
        let result = self.execute_step(store);
        (result, self.into_returned())
    }

    fn execute_step(&mut self, store: &dyn BackingStore) -> Result<usize, Errno> {
        match self {
            Self::Read { offset, buffer, range } => store.read_at(&mut buffer.data_mut()[range.clone()], *offset),
            Self::Write { offset, data, range, durable } => {
                store.write_at(&data.bytes()[range.clone()], *offset, *durable)
            }
            Self::Writev { offset, segments } => {
                let mut slices = [IoSlice::new(&[]); MAX_WRITE_SEGMENTS];
                slices.iter_mut().zip(&*segments).for_each(|(slice, segment)| *slice = IoSlice::new(segment.bytes()));
                store.write_vectored_at(&slices[..segments.len().min(MAX_WRITE_SEGMENTS)], *offset)
            }
            Self::Sync => store.sync().map(|()| 0),
            Self::Discard { offset, len } => store.discard(*offset, *len).map(|()| 0),
            Self::Receive { .. } | Self::Send(_) | Self::Ublk(_) => Err(Errno::NOTSOCK),
        }
    }

    fn into_returned(self) -> Returned {
        match self {
            Self::Read { buffer, .. } | Self::Receive { buffer, .. } => Returned::Buffer(buffer),
            Self::Write { data, .. } => Returned::Ciphertext(data),
            Self::Writev { segments, .. } => Returned::Segments(segments),
            Self::Sync | Self::Discard { .. } => Returned::Nothing,
            Self::Send(outgoing) => Returned::Outgoing(outgoing),
            Self::Ublk(UblkCommand { bytes: UblkBytes::Copied(buffer), .. }) => Returned::Buffer(buffer),
            Self::Ublk(UblkCommand { bytes: UblkBytes::Fetched(_), .. }) => Returned::Nothing,
        }
    }
}

/// An operation that has ended.
#[derive(Debug)]
pub struct Completion {
    /// The caller's token.
    pub token: Token,
    /// Bytes transferred, or why not.
    pub result: Result<usize, Errno>,
    /// The operation's memory.
    pub returned: Returned,
}

/// How long a turn waits for the first completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// At most this long.
    Until(Duration),
    /// As long as it takes.
    Forever,
}

/// Wakes a ring's thread from any thread. What it is woken for is said elsewhere.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// Ends the current or the next wait.
    pub fn wake(&self) {
        // The counter can only overflow after 2^64 - 1 wakes that nobody read; it is then readable anyway.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }

    fn clear(&self) {
        let _ = rustix::io::read(&*self.0, &mut [0u8; 8]);
    }
}

/// A descriptor and how many operations use it.
struct Held {
    descriptor: Descriptor,
    in_flight: u32,
    closing: bool,
    /// Whether the kernel knows it by its index.
    registered: bool,
    /// Whether a discard is a block device's own command, which the kernel is not yet known to lack.
    discards: bool,
    /// A store that is read and written past the kernel's cache, straight from and to the pages of a buffer.
    direct: bool,
}

enum Descriptor {
    Socket(OwnedFd),
    Store(Arc<dyn BackingStore>),
    /// A ublk device's control side, and the longest request in bytes that its driver copies; `None`: it copies none.
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

/// The descriptors of a ring. One that is closed stays until its last operation has come back.
#[derive(Default)]
struct Files {
    slots: Vec<(u32, Option<Held>)>,
}

impl Files {
    fn add(&mut self, descriptor: Descriptor) -> FileId {
        let discards = matches!(&descriptor, Descriptor::Store(store) if store.profile().is_block_device);
        let direct =
            matches!(descriptor, Descriptor::Store(_)) && is_direct(descriptor.as_fd()).is_ok_and(|direct| direct);
        let held = Some(Held { descriptor, in_flight: 0, closing: false, registered: false, discards, direct });
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

    /// One operation less uses `file`. Gives back the descriptor if it was to be closed and this was the last.
    fn release(&mut self, file: FileId) -> Option<Held> {
        if let Some(held) = self.get(file) {
            held.in_flight -= 1;
        }
        self.take_if_idle(file)
    }

    /// Ends what is under way on a socket. Gives back the descriptor if nothing uses it; else its last operation does.
    fn close(&mut self, file: FileId) -> Option<Held> {
        let held = self.get(file)?;
        held.closing = true;
        if let Descriptor::Socket(fd) = &held.descriptor {
            // A peer that has gone already is what closing wants.
            let _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Both);
        }
        self.take_if_idle(file)
    }

    fn take_if_idle(&mut self, file: FileId) -> Option<Held> {
        let held = self.get(file)?;
        if !held.closing || held.in_flight > 0 {
            return None;
        }
        let slot = &mut self.slots[file.index as usize];
        slot.0 = slot.0.wrapping_add(1);
        slot.1.take()
    }
}

/// The face of both twins.
pub struct Ring {
    files: Files,
    backend: Backend,
    waker: Waker,
    /// On stores, at a time.
    operations: usize,
    /// The same with what sockets may do.
    room: usize,
    /// Of those on stores, how many of several segments.
    writev: usize,
}

enum Backend {
    Uring(Box<uring::Uring>),
    Sync(sync::SyncRing),
}

impl Ring {
    /// A ring for the calling thread. `Auto` takes io_uring if the kernel allows it, `Uring` insists.
    pub fn new(mode: IoMode) -> io::Result<Self> {
        let waker = Waker::new()?;
        let plain = || sync::SyncRing::new(&waker).map(Backend::Sync);
        let uring = || uring::Uring::new(&waker).map(|u| Backend::Uring(Box::new(u)));
        let backend = match mode {
            IoMode::Sync => plain()?,
            IoMode::Uring => uring()?,
            IoMode::Auto => uring().or_else(|_| plain())?,
        };
        Ok(Self { files: Files::default(), backend, waker, operations: 0, room: 0, writev: 0 })
    }

    /// `io_uring` or `plain`.
    pub fn name(&self) -> &'static str {
        match self.backend {
            Backend::Uring(_) => "io_uring",
            Backend::Sync(_) => "plain",
        }
    }

    /// What wakes this ring.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Makes room for `operations` on stores at a time. Room for those of a socket, one that receives and one that sends,
    /// is made when it is added; so [`Ring::submit`] and [`Ring::turn`] allocate nothing.
    pub fn reserve(&mut self, operations: usize) {
        self.operations += operations;
        self.make_room();
    }

    /// Makes room for so many [`Operation::Writev`] at a time among the others.
    pub(crate) fn reserve_writev(&mut self, operations: usize) {
        self.writev += operations;
        self.make_room();
    }

    /// Has the kernel carry out what it cannot begin at once (putting on stable storage, giving back) on one thread of its
    /// own, one after the other, and not start more: starting one takes memory. For stores whose reads and writes never
    /// go there.
    pub(crate) fn set_iowq_max_workers(&mut self) -> io::Result<()> {
        match &mut self.backend {
            Backend::Uring(uring) => uring.set_iowq_max_workers(),
            Backend::Sync(_) => Ok(()),
        }
    }

    /// How many operations there is room for at a time.
    pub fn room(&self) -> usize {
        self.room
    }

    fn make_room(&mut self) {
        self.room = self.operations + 2 * self.files.slots.iter().flat_map(|(_, held)| held).count();
        match &mut self.backend {
            Backend::Uring(uring) => uring.reserve(self.room, self.files.slots.len() + self.writev),
            Backend::Sync(plain) => plain.reserve(self.room),
        }
    }

    /// Takes a connected stream socket.
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

    /// Takes a store that has a descriptor; `None` where it has none.
    pub fn add_store(&mut self, store: &Arc<dyn BackingStore>) -> Option<FileId> {
        store.as_fd()?;
        // Not introduced: the kernel lets go of what a ring holds some time after the process has ended, and until then
        // nobody else gets the store's lock, or the block device for himself.
        Some(self.files.add(Descriptor::Store(Arc::clone(store))))
    }

    /// Has the kernel look up the pages of these buffers now, instead of for each transfer to or from a store past its cache. Once
    /// for a ring, when it has its stores. Without such a store nothing happens, and where the kernel does not do it, as for want of
    /// memory that may be locked, everything goes on as before.
    pub fn register_buffers<'a>(&mut self, buffers: impl IntoIterator<Item = &'a mut Buffer>) {
        let direct = self.files.slots.iter().flat_map(|(_, held)| held).any(|held| held.direct);
        if let (Backend::Uring(uring), true) = (&mut self.backend, direct) {
            uring.register_buffers(buffers.into_iter().collect());
        }
    }

    /// Makes a new socket known to the kernel, once for all of its operations.
    fn register_socket(&mut self, file: FileId) -> io::Result<()> {
        let Some(held) = self.files.get(file) else { return Ok(()) };
        match &mut self.backend {
            Backend::Uring(uring) => held.registered = uring.register(file, held.descriptor.as_fd()),
            Backend::Sync(plain) => plain.watch(file, held.descriptor.as_fd())?,
        }
        Ok(())
    }

    /// Ends what is under way on `file`; its operations still complete, then the descriptor is closed.
    pub fn close(&mut self, file: FileId) {
        if let Backend::Sync(plain) = &mut self.backend {
            plain.deregister(file);
        }
        let idle = self.files.close(file);
        if let (Some(held), Backend::Uring(uring)) = (idle, &mut self.backend) {
            uring.deregister(file, held);
        }
    }

    /// Stops receiving on a socket: a receive that is under way comes back with what there is.
    pub fn stop_receiving(&mut self, file: FileId) {
        if let Some(Held { descriptor: Descriptor::Socket(fd), .. }) = self.files.get(file) {
            let _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Read);
        }
    }

    /// Starts an operation. On a file that was closed it completes with `BADF`.
    pub fn submit(&mut self, file: FileId, operation: Operation, token: Token) {
        match &mut self.backend {
            Backend::Uring(uring) => uring.submit(&mut self.files, file, operation, token),
            Backend::Sync(plain) => plain.submit(&mut self.files, file, operation, token),
        }
    }

    /// Starts what was collected now instead of at the next turn.
    pub fn submit_now(&mut self) {
        if let Backend::Uring(uring) = &mut self.backend {
            uring.submit_now();
        }
    }

    /// Ends every operation on a socket and waits for those on stores; what has completed.
    pub(crate) fn finish(&mut self) -> VecDeque<Completion> {
        match &mut self.backend {
            Backend::Uring(uring) => uring.finish(&mut self.files),
            Backend::Sync(plain) => plain.finish(),
        }
    }

    /// Submits what was collected, waits as `wait` says, and appends what has completed to `done`.
    /// True: the ring was woken.
    pub fn turn(&mut self, wait: Wait, done: &mut VecDeque<Completion>) -> io::Result<bool> {
        let woken = match &mut self.backend {
            Backend::Uring(uring) => uring.turn(&mut self.files, wait, done)?,
            Backend::Sync(plain) => plain.turn(&mut self.files, wait, done)?,
        };
        if woken {
            self.waker.clear();
        }
        Ok(woken)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.finish();
    }
}

#[cfg(test)]
mod tests;
