//! Backend with io_uring.
//!
//! An operation that the kernel works on is in `in_flight` at the index that is its `user_data`. Its buffers are heap
//! memory that does not move when the table does, and only its completion removes the entry, so pointers passed to the
//! kernel stay valid for as long as it may use them. [`Uring::finish`] waits for all before anything is freed.
#![allow(unsafe_code)]

use super::busy_poll::{BusyPoll, Polling};
use super::{Completion, FileId, Files, Held, Operation, Token, UblkBytes, UblkCommand, Wait, Waker};
use crate::errno::Errno;
#[cfg(feature = "fault-injection")]
use crate::fault_injection::{Call, Fault, decide};
use crate::store::StoreOperation;
use crate::store::block_device::RING_DISCARD;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

const SUBMISSIONS: u32 = 256;
const COMPLETIONS: u32 = 4096;
const WAKER: u64 = u64::MAX;
/// Of the entry that cancels another one.
const CANCEL: u64 = u64::MAX - 1;
/// Numbers of descriptors to try to register. Later descriptors are not registered. The kernel accepts no more than the
/// process may open files, so smaller numbers are tried as well.
const REGISTERED: [u32; 3] = [2048, 1024, 128];

/// The driver's commands: `_IOWR('u', number, 16 bytes)`. Source: `include/uapi/linux/ublk_cmd.h`.
const UBLK_FETCH: u32 = ublk_command(0x20);
const UBLK_COMMIT_AND_FETCH: u32 = ublk_command(0x21);

const fn ublk_command(number: u32) -> u32 {
    3 << 30 | 16 << 16 | (b'u' as u32) << 8 | number
}

/// Backend with io_uring.
pub(super) struct Uring {
    ring: IoUring,
    in_flight: Vec<Option<Entry>>,
    free: Vec<u32>,
    // Boxed: the kernel gets the address of a header, so it must not move with the list.
    #[allow(clippy::vec_box)]
    vectors: Vec<Box<Vectors>>,
    done: VecDeque<Completion>,
    /// Entries that did not fit the submission queue; they are submitted after completions.
    backlog: VecDeque<squeue::Entry>,
    /// Operations on stores in flight.
    store_operations: u32,
    sends: Sends,
    /// Whether the last turn returned without entering the ring.
    was_short: bool,
    waker: Waker,
    waker_armed: bool,
    vectors_made: usize,
    /// Completions held back, with the number of turns left.
    #[cfg(feature = "fault-injection")]
    late: Vec<(u32, u32, i32)>,
}

/// Sends of a turn.
enum Sends {
    None,
    /// Without an entry so far: the only one of a turn needs none.
    One(u32),
    /// All have entries.
    Several,
}

struct Entry {
    file: FileId,
    operation: Operation,
    token: Token,
    progress: usize,
    vectors: Option<Box<Vectors>>,
    /// Whether it was submitted as a block device command.
    as_command: bool,
    #[cfg(feature = "fault-injection")]
    fault: Option<Fault>,
}

/// Arguments that `sendmsg` and `writev` point to.
struct Vectors {
    segments: Vec<libc::iovec>,
    message: libc::msghdr,
}

impl Uring {
    pub(super) fn new(waker: &Waker) -> io::Result<Self> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .setup_cqsize(COMPLETIONS)
            .build(SUBMISSIONS)
            // Kernels before 6.1 have neither flag.
            .or_else(|_| IoUring::builder().setup_cqsize(COMPLETIONS).build(SUBMISSIONS))?;
        if !ring.params().is_feature_ext_arg() || !ring.params().is_feature_nodrop() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "this kernel's io_uring is too old"));
        }
        let registers = |count: &u32| ring.submitter().register_files_sparse(*count).is_ok();
        // If the kernel accepts none, it refuses to register each socket.
        let _ = REGISTERED.iter().find(|count| registers(count));
        Ok(Self {
            ring,
            in_flight: Vec::with_capacity(1024),
            free: Vec::with_capacity(1024),
            vectors: Vec::new(),
            done: VecDeque::new(),
            backlog: VecDeque::new(),
            store_operations: 0,
            sends: Sends::None,
            was_short: false,
            waker: waker.clone(),
            waker_armed: false,
            vectors_made: 0,
            #[cfg(feature = "fault-injection")]
            late: Vec::with_capacity(1024),
        })
    }

    /// Registers the descriptor of `file`. Returns false if operations on it have to use the descriptor itself.
    pub(super) fn register(&mut self, file: FileId, descriptor: BorrowedFd<'_>) -> bool {
        self.ring.submitter().register_files_update(file.index, &[descriptor.as_raw_fd()]).is_ok()
    }

    /// Has the ring forget a descriptor that no operation uses.
    pub(super) fn deregister(&mut self, file: FileId, held: &Held) {
        if held.registered {
            // If this fails, the slot is overwritten by the next descriptor, or dropped with the ring.
            let _ = self.ring.submitter().register_files_update(file.index, &[-1]);
        }
    }

    /// Reserves memory for `room` operations at a time, `scattered` of them on several ranges of memory.
    pub(super) fn reserve(&mut self, room: usize, scattered: usize) {
        self.in_flight.reserve(room.saturating_sub(self.in_flight.len()));
        self.free.reserve(room.saturating_sub(self.free.len()));
        self.done.reserve(room.saturating_sub(self.done.len()));
        // One more for the waker.
        self.backlog.reserve((room + 1).saturating_sub(self.backlog.len()));
        self.vectors.reserve(scattered.saturating_sub(self.vectors.len()));
        while self.vectors_made < scattered {
            self.vectors.push(Vectors::new());
            self.vectors_made += 1;
        }
    }

    /// See [`super::Ring::set_iowq_max_workers`].
    pub(super) fn set_iowq_max_workers(&self) -> io::Result<()> {
        // The limits for bounded work, such as on files and block devices, and for unbounded work, such as on sockets.
        self.ring.submitter().register_iowq_max_workers(&mut [1, 1])
    }

    pub(super) fn submit(&mut self, files: &mut Files, file: FileId, operation: Operation, token: Token) {
        let Some(held) = files.get(file) else {
            let returned = operation.into_returned();
            return self.done.push_back(Completion { token, result: Err(Errno::BADF), returned });
        };
        if let Operation::Ublk(command) = &operation {
            // The driver may copy up to the longest request into the buffer.
            let fits = match (&held.descriptor, &command.bytes) {
                (super::Descriptor::Ublk(_, Some(longest)), UblkBytes::Copied(buffer)) => *longest <= buffer.capacity(),
                (super::Descriptor::Ublk(_, None), UblkBytes::Fetched(_)) => true,
                _ => false,
            };
            assert!(fits, "a place of a ublk queue has a buffer for the longest request, where the driver copies");
        }
        held.in_flight += 1;
        self.store_operations += u32::from(operation.is_on_store());
        let is_send = matches!(operation, Operation::Send(_));
        let scattered = is_send || matches!(operation, Operation::Writev { .. });
        let vectors = scattered.then(|| self.vectors.pop().unwrap_or_else(Vectors::new));
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.in_flight.push(None);
                (self.in_flight.len() - 1) as u32
            }
        };
        self.in_flight[index as usize] = Some(Entry {
            file,
            operation,
            token,
            progress: 0,
            vectors,
            as_command: false,
            #[cfg(feature = "fault-injection")]
            fault: None,
        });
        if !is_send {
            return self.push(files, index);
        }
        if let Sends::None = self.sends {
            self.sends = Sends::One(index);
        } else {
            self.push_send(files);
            self.push(files, index);
        }
    }

    /// Gives the only send of this turn an entry, since it is no longer the only one or cannot wait.
    fn push_send(&mut self, files: &mut Files) {
        if let Sends::One(index) = self.sends {
            self.sends = Sends::Several;
            self.push(files, index);
        }
    }

    /// Sends with a system call; the ring sends what the socket does not take now. An entry for the only reply of a
    /// turn would end the wait for the next request at once, and the worker would enter the kernel once more.
    fn send_now(&mut self, files: &mut Files, index: u32) {
        let entry = self.in_flight[index as usize].as_ref().expect("a send is in the table until it completes");
        let held = files.get(entry.file).expect("a file stays while operations use it");
        let Operation::Send(outgoing) = &entry.operation else { return self.push(files, index) };
        let result = match super::send_available(held.descriptor.as_fd(), outgoing, entry.progress) {
            Ok(sent) => sent as i32,
            Err(error) => -error.raw_os_error(),
        };
        self.complete(files, index, result);
    }

    /// Submits the entry at `index`, continuing from its progress.
    fn push(&mut self, files: &mut Files, index: u32) {
        let entry = self.in_flight[index as usize].as_mut().expect("an entry is pushed while it is in the table");
        let held = files.get(entry.file).expect("a file stays while operations use it");
        // With the flag, the number is the index of the registered descriptor.
        let (fd, flags) = match held.registered {
            true => (entry.file.index as RawFd, squeue::Flags::FIXED_FILE),
            false => (held.descriptor.as_fd().as_raw_fd(), squeue::Flags::empty()),
        };
        entry.as_command = held.discards && matches!(entry.operation, Operation::Store(StoreOperation::Discard { .. }));
        #[cfg(feature = "fault-injection")]
        entry.inject(held);
        let sqe = entry.describe(types::Fd(fd)).flags(flags).user_data(u64::from(index));
        #[cfg(feature = "fault-injection")]
        let sqe = match entry.fault {
            Some(Fault::Errno(_) | Fault::Nothing) => opcode::Nop::new().build().user_data(u64::from(index)),
            _ => sqe,
        };
        self.push_entry(sqe);
    }

    /// The order of entries is irrelevant: each is an operation of its own.
    fn push_entry(&mut self, sqe: squeue::Entry) {
        if self.try_push(&sqe) {
            return;
        }
        // The queue is full: submit it and continue. The kernel may accept nothing until completions are reaped, which
        // `turn` does; it also reports errors.
        let _ = self.ring.submit();
        if !self.try_push(&sqe) {
            self.backlog.push_back(sqe);
        }
    }

    fn try_push(&mut self, sqe: &squeue::Entry) -> bool {
        // SAFETY: the entry's pointers refer to buffers that `in_flight` owns until the completion is seen (module
        // head), or to no memory at all (the waker's poll, and cancels).
        unsafe { self.ring.submission().push(sqe) }.is_ok()
    }

    /// Returns the number of entries that the kernel does not have yet.
    #[cfg(test)]
    pub(super) fn queued(&mut self) -> usize {
        self.ring.submission().len()
    }

    /// Moves entries from the backlog into the queue while there is room. Returns whether the backlog is empty.
    fn push_backlog(&mut self) -> bool {
        while let Some(sqe) = self.backlog.pop_front() {
            if !self.try_push(&sqe) {
                self.backlog.push_front(sqe);
                return false;
            }
        }
        true
    }

    /// See [`super::Ring::cancel_receive`].
    pub(super) fn cancel_receive(&mut self, file: FileId) {
        let is_receive = |entry: &Entry| entry.file == file && matches!(entry.operation, Operation::Receive { .. });
        let Some(index) = self.in_flight.iter().position(|entry| entry.as_ref().is_some_and(is_receive)) else {
            return;
        };
        let sqe = opcode::AsyncCancel::new(index as u64).build().user_data(CANCEL);
        // Submitted at once, while the index is that of the receive. If the queue is full, the receive goes on.
        let _ = self.ring.submit();
        if self.try_push(&sqe) {
            let _ = self.ring.submit();
        }
    }

    pub(super) fn submit_now(&mut self, files: &mut Files) {
        self.push_send(files);
        // An error recurs, and is reported, in `turn`.
        let _ = self.ring.submit();
    }

    pub(super) fn turn(
        &mut self,
        files: &mut Files,
        wait: Wait,
        polling: &mut Polling,
        done: &mut VecDeque<Completion>,
    ) -> io::Result<bool> {
        if let Sends::One(index) = std::mem::replace(&mut self.sends, Sends::None) {
            self.send_now(files, index);
        }
        // Entries that are queued wait for one short turn at most.
        if !self.was_short && !self.done.is_empty() {
            self.was_short = true;
            super::hand_over(&mut self.done, done);
            return Ok(false);
        }
        self.was_short = false;
        if !self.waker_armed {
            let poll =
                opcode::PollAdd::new(types::Fd(self.waker.0.as_raw_fd()), libc::POLLIN as u32).build().user_data(WAKER);
            self.push_entry(poll);
            self.waker_armed = true;
        }
        // The wait may be for the completion of an entry in the backlog.
        let waiting = self.push_backlog() && self.done.is_empty();
        #[cfg(feature = "fault-injection")]
        let waiting = waiting && self.late.is_empty();
        if waiting && !wait.limit().is_zero() && self.store_operations == 0 && polling.begin() {
            self.poll(polling, wait);
        }
        let entered = match wait {
            Wait::Forever if waiting => self.ring.submit_and_wait(1).map(|_| ()),
            Wait::Until(limit) if waiting => {
                let limit = types::Timespec::from(limit);
                self.ring.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(&limit)).map(|_| ())
            }
            // Without waiting, completions that are ready still have to be fetched from the kernel.
            _ => self.ring.submitter().submit_and_wait(0).map(|_| ()),
        };
        match entered {
            Ok(()) => {}
            Err(error) => match error.raw_os_error() {
                Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => {}
                _ => return Err(error),
            },
        }
        let mut woken = false;
        while let Some(completed) = self.next_completion() {
            match completed.user_data() {
                WAKER => {
                    self.waker_armed = false;
                    woken = true;
                }
                // The operation that it cancelled, if it came in time, has a completion of its own.
                CANCEL => {}
                index => self.complete(files, index as u32, completed.result()),
            }
        }
        #[cfg(feature = "fault-injection")]
        self.complete_late(files);
        super::hand_over(&mut self.done, done);
        Ok(woken)
    }

    /// Polls for completions. The kernel sets a flag when it has some that this thread has to fetch.
    fn poll(&mut self, polling: &mut Polling, wait: Wait) {
        if !self.ring.submission().is_empty() {
            // An error recurs, and is reported, in `turn`.
            let _ = self.ring.submit();
        }
        polling.poll(wait.limit(), || self.ring.submission().taskrun() || !self.ring.completion().is_empty());
    }

    fn next_completion(&mut self) -> Option<cqueue::Entry> {
        self.ring.completion().next()
    }

    fn complete(&mut self, files: &mut Files, index: u32, result: i32) {
        let entry = self.in_flight[index as usize].as_mut().expect("a completion belongs to an entry in the table");
        #[cfg(feature = "fault-injection")]
        let result = match entry.fault.take() {
            Some(Fault::Delay(turns)) => return self.late.push((turns, index, result)),
            Some(Fault::Errno(errno) | Fault::LateErrno(errno)) => -errno.raw_os_error(),
            Some(Fault::Nothing) => 0,
            Some(Fault::Short) | None => result,
        };
        let result = match result {
            0.. => Ok(result as usize),
            _ => Err(Errno::from_raw_os_error(-result)),
        };
        let again = match (&result, &entry.operation) {
            // A ublk result must not be committed twice, and the error of a sync may be the only report of a lost
            // write.
            (_, Operation::Ublk(_) | Operation::Store(StoreOperation::Sync)) => false,
            (Err(Errno::INTR | Errno::AGAIN), _) => true,
            (Err(Errno::OPNOTSUPP), Operation::Store(StoreOperation::Discard { .. })) if entry.as_command => {
                // The device does not support discards, or the kernel does not know the command. The older way to
                // discard fails too in the first case, except on a device that zeroes what it deallocates.
                if let Some(held) = files.get(entry.file) {
                    held.discards = false;
                }
                true
            }
            (Ok(0), _) => false,
            (Ok(n), Operation::Send(outgoing)) => {
                entry.progress += n;
                entry.progress < super::outgoing_len(outgoing)
            }
            (Ok(n), Operation::Receive { range, all: true, .. }) => {
                entry.progress += n;
                entry.progress < range.len()
            }
            _ => false,
        };
        if again {
            return self.push(files, index);
        }
        let entry = self.in_flight[index as usize].take().expect("checked above");
        self.free.push(index);
        self.vectors.extend(entry.vectors);
        let result = result.map(|n| if entry.progress > 0 { entry.progress } else { n });
        self.store_operations -= u32::from(entry.operation.is_on_store());
        let returned = entry.operation.into_returned();
        self.done.push_back(Completion { token: entry.token, result, returned });
        if let Some(held) = files.release(entry.file) {
            self.deregister(entry.file, &held);
        }
    }

    /// Ends every socket operation and waits until the kernel uses no buffer. Blocks.
    pub(super) fn finish(&mut self, files: &mut Files) -> VecDeque<Completion> {
        for entry in self.in_flight.iter().flatten() {
            if let Some(Held { descriptor: super::Descriptor::Socket(fd), .. }) = files.get(entry.file) {
                let _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Both);
            }
        }
        let mut done = VecDeque::new();
        let is_ublk = |entry: &Entry| matches!(entry.operation, Operation::Ublk(_));
        while self.in_flight.iter().flatten().any(|entry| !is_ublk(entry)) {
            match self.turn(files, Wait::Forever, &mut Polling::new(BusyPoll::Never), &mut done) {
                // Clear the waker, or the next wait ends at once.
                Ok(true) => self.waker.clear(),
                Ok(false) => {}
                Err(_) => {
                    // The kernel may still write to these buffers; leaking them is the only safe answer.
                    std::mem::forget(std::mem::take(&mut self.in_flight));
                    return done;
                }
            }
        }
        // Unregister now; otherwise the kernel does it some time after the process has ended.
        let _ = self.ring.submitter().unregister_files();
        if self.in_flight.iter().any(Option::is_some) {
            // A ublk command ends only with its device; the kernel drops it with the ring, which is later than this.
            std::mem::forget(std::mem::take(&mut self.in_flight));
        }
        done
    }
}

impl super::Ring {
    /// Adds a ublk device's `/dev/ublkcN`, for [`Operation::Ublk`] on this thread. Requires io_uring.
    ///
    /// # Errors
    ///
    /// `Unsupported` without io_uring; otherwise the error of a system call on the device.
    ///
    /// # Safety
    ///
    /// The driver copies as many bytes as it was told when the device was added. With `copied`, the device must have
    /// been added with a longest request of at most so many bytes, and without the features that copy nothing or
    /// elsewhere (user copy, zero copy, registered buffers, batches, shared memory); without it, with user copy and
    /// none of the others.
    pub unsafe fn add_ublk(&mut self, device: OwnedFd, copied: Option<usize>) -> io::Result<FileId> {
        match self.backend {
            super::Backend::Uring(_) => Ok(self.files.add(super::Descriptor::Ublk(device, copied))),
            super::Backend::Sync(_) => Err(io::Error::new(io::ErrorKind::Unsupported, "ublk needs io_uring")),
        }
    }
}

#[cfg(feature = "fault-injection")]
impl Uring {
    /// Completes operations that were held back for long enough.
    fn complete_late(&mut self, files: &mut Files) {
        self.late.iter_mut().for_each(|(turns, ..)| *turns = turns.saturating_sub(1));
        while let Some(due) = self.late.iter().position(|(turns, ..)| *turns == 0) {
            let (_, index, result) = self.late.remove(due);
            self.complete(files, index, result);
        }
    }
}

#[cfg(feature = "fault-injection")]
impl Entry {
    /// Applies the injector's decision to an operation on a store; may shorten the operation.
    fn inject(&mut self, held: &Held) {
        let call = match &self.operation {
            Operation::Store(StoreOperation::Read { .. }) => Call::Read,
            Operation::Store(StoreOperation::Write { durable, .. }) => Call::Write { durable: *durable },
            Operation::Writev { .. } => Call::Write { durable: false },
            Operation::Store(StoreOperation::Sync) => Call::Sync,
            Operation::Store(StoreOperation::Discard { .. }) => Call::Discard,
            _ => return,
        };
        self.fault = decide(held.descriptor.as_fd().as_raw_fd(), call);
        if self.fault == Some(Fault::Short)
            && let Operation::Store(StoreOperation::Read { range, .. } | StoreOperation::Write { range, .. }) =
                &mut self.operation
        {
            range.end = range.start + range.len().div_ceil(2);
        }
    }
}

impl Entry {
    fn describe(&mut self, fd: types::Fd) -> squeue::Entry {
        match &mut self.operation {
            Operation::Store(operation) => describe_store(operation, fd, self.as_command),
            Operation::Writev { offset, segments } => {
                let vectors = self.vectors.as_mut().expect("a write of several segments is made with its vectors");
                vectors.point_to(segments.iter().map(|segment| segment.bytes()), 0);
                #[cfg(feature = "fault-injection")]
                if self.fault == Some(Fault::Short) {
                    vectors.segments.truncate(vectors.segments.len().div_ceil(2));
                }
                opcode::Writev::new(fd, vectors.segments.as_ptr(), vectors.segments.len() as u32)
                    .offset(*offset)
                    .build()
            }
            Operation::Receive { buffer, range, all } => {
                let into = &mut buffer.data_mut()[range.start + self.progress..range.end];
                let flags = if *all { libc::MSG_WAITALL } else { 0 };
                opcode::Recv::new(fd, into.as_mut_ptr(), into.len() as u32).flags(flags).build()
            }
            Operation::Ublk(UblkCommand { queue, tag, answer, bytes }) => {
                let address = match bytes {
                    UblkBytes::Copied(buffer) => buffer.data_mut().as_mut_ptr().expose_provenance() as u64,
                    UblkBytes::Fetched(position) => *position,
                };
                let command = if answer.is_some() { UBLK_COMMIT_AND_FETCH } else { UBLK_FETCH };
                let mut payload = [0; 16];
                payload[..2].copy_from_slice(&queue.to_ne_bytes());
                payload[2..4].copy_from_slice(&tag.to_ne_bytes());
                payload[4..8].copy_from_slice(&answer.unwrap_or(-1).to_ne_bytes());
                payload[8..].copy_from_slice(&address.to_ne_bytes());
                opcode::UringCmd16::new(fd, command).cmd(payload).build()
            }
            Operation::Send(outgoing) => {
                let vectors = self.vectors.as_mut().expect("a send is made with its vectors");
                vectors.point_to(outgoing.iter().map(|(buffer, range)| &buffer.frame()[range.clone()]), self.progress);
                opcode::SendMsg::new(fd, &raw const vectors.message)
                    .flags((libc::MSG_WAITALL | libc::MSG_NOSIGNAL) as u32)
                    .build()
            }
        }
    }
}

/// Describes an operation of a store; `as_command`: a discard is a block device command.
fn describe_store(operation: &mut StoreOperation, fd: types::Fd, as_command: bool) -> squeue::Entry {
    match operation {
        StoreOperation::Read { offset, buffer, range } => {
            let into = &mut buffer.data_mut()[range.clone()];
            opcode::Read::new(fd, into.as_mut_ptr(), into.len() as u32).offset(*offset).build()
        }
        StoreOperation::Write { offset, data, range, durable } => {
            let from = &data.bytes()[range.clone()];
            let flags = if *durable { libc::RWF_DSYNC } else { 0 };
            opcode::Write::new(fd, from.as_ptr(), from.len() as u32).offset(*offset).rw_flags(flags).build()
        }
        StoreOperation::Sync => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
        StoreOperation::Discard { offset, len } if as_command => {
            let mut payload = [0; 16];
            payload[..8].copy_from_slice(&len.to_ne_bytes());
            opcode::UringCmd16::new(fd, RING_DISCARD).addr(Some(*offset)).cmd(payload).build()
        }
        StoreOperation::Discard { offset, len } => {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            opcode::Fallocate::new(fd, *len).offset(*offset).mode(mode).build()
        }
    }
}

impl Vectors {
    fn new() -> Box<Self> {
        // SAFETY: all fields of `msghdr` are integers and pointers, for which zero is a value.
        let message = unsafe { std::mem::zeroed() };
        Box::new(Self { segments: Vec::with_capacity(super::MAX_OUTGOING.max(super::MAX_WRITE_SEGMENTS)), message })
    }

    fn point_to<'a>(&mut self, parts: impl Iterator<Item = &'a [u8]>, mut skip: usize) {
        self.segments.clear();
        for segment in parts {
            let passed = skip.min(segment.len());
            skip -= passed;
            let segment = &segment[passed..];
            if !segment.is_empty() {
                // Neither `sendmsg` nor `writev` writes through the pointer.
                self.segments
                    .push(libc::iovec { iov_base: segment.as_ptr().cast_mut().cast(), iov_len: segment.len() });
            }
        }
        self.message.msg_iov = self.segments.as_mut_ptr();
        self.message.msg_iovlen = self.segments.len() as _;
    }
}

#[cfg(test)]
mod tests;
