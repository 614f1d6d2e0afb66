//! Backend with ordinary system calls: epoll for sockets, pread and pwrite for stores.
//!
//! An operation is tried when it is submitted. An operation on a socket that is not ready waits until epoll reports the
//! socket.

use super::busy_poll::Polling;
use super::{Completion, Descriptor, FileId, Files, Operation, Returned, Token, Wait, Waker};
use crate::errno::Errno;
use rustix::event::{Timespec, epoll};
use rustix::net::RecvFlags;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Backend without io_uring.
pub(super) struct SyncRing {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
    done: VecDeque<Completion>,
    waiting: Vec<Waiting>,
}

/// Socket operation that would block.
struct Waiting {
    file: FileId,
    operation: Operation,
    token: Token,
    /// Bytes already transferred.
    progress: usize,
}

const WAKER: u64 = u64::MAX;
const NO_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// Maximum number of sockets reported by one call.
const EVENTS: usize = 64;

impl SyncRing {
    pub(super) fn new(waker: &Waker) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &*waker.0, epoll::EventData::new_u64(WAKER), epoll::EventFlags::IN)?;
        let events = Vec::with_capacity(EVENTS);
        Ok(Self { epoll, events, done: VecDeque::new(), waiting: Vec::new() })
    }

    /// Reserves memory for `room` operations at a time.
    pub(super) fn reserve(&mut self, room: usize) {
        self.done.reserve(room.saturating_sub(self.done.len()));
        self.waiting.reserve(room.saturating_sub(self.waiting.len()));
        self.events.reserve((room + EVENTS).saturating_sub(self.events.len()));
    }

    pub(super) fn watch(&mut self, file: FileId, fd: BorrowedFd<'_>) -> io::Result<()> {
        // A socket becomes ready when either side shuts it down, so no other flags are needed.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        Ok(epoll::add(&self.epoll, fd, epoll::EventData::new_u64(pack(file)), flags)?)
    }

    /// Reports a socket no longer.
    pub(super) fn unwatch(&mut self, fd: BorrowedFd<'_>) {
        // It was added, so this cannot fail.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// See [`super::Ring::cancel_receive`].
    pub(super) fn cancel_receive(&mut self, files: &mut Files, file: FileId) {
        let is_receive = |w: &Waiting| w.file == file && matches!(w.operation, Operation::Receive { .. });
        let Some(index) = self.waiting.iter().position(is_receive) else { return };
        let Waiting { operation, token, progress, .. } = self.waiting.remove(index);
        let result = if progress > 0 { Ok(progress) } else { Err(Errno::CANCELED) };
        self.done.push_back(Completion { token, result, returned: operation.into_returned() });
        files.release(file);
    }

    pub(super) fn submit(&mut self, files: &mut Files, file: FileId, operation: Operation, token: Token) {
        match files.get(file) {
            Some(held) => held.in_flight += 1,
            None => {
                let returned = operation.into_returned();
                return self.done.push_back(Completion { token, result: Err(Errno::BADF), returned });
            }
        }
        self.attempt(files, Waiting { file, operation, token, progress: 0 });
    }

    pub(super) fn turn(
        &mut self,
        files: &mut Files,
        wait: Wait,
        polling: &mut Polling,
        done: &mut VecDeque<Completion>,
    ) -> io::Result<bool> {
        let timeout = match wait {
            _ if !self.done.is_empty() => Some(NO_TIME),
            Wait::No => Some(NO_TIME),
            Wait::Until(limit) => limit.try_into().ok(),
            Wait::Forever => None,
        };
        let mut outcome = Ok(false);
        if timeout != Some(NO_TIME) && polling.begin() {
            // An event is no completion yet: a client that takes its reply makes the socket writable.
            polling.poll(wait.limit(), || {
                outcome = self.look(files, Some(&NO_TIME));
                !self.done.is_empty() || !matches!(outcome, Ok(false))
            });
        }
        if self.done.is_empty() && matches!(outcome, Ok(false)) || timeout == Some(NO_TIME) {
            outcome = self.look(files, timeout.as_ref());
        }
        super::hand_over(&mut self.done, done);
        outcome
    }

    /// Waits for sockets, and retries their operations. Returns whether the ring was woken.
    fn look(&mut self, files: &mut Files, timeout: Option<&Timespec>) -> io::Result<bool> {
        let mut ready = std::mem::take(&mut self.events);
        // The kernel refuses an empty list.
        ready.reserve(EVENTS);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut ready), timeout) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut woken = false;
        for event in ready.drain(..) {
            let data = event.data.u64();
            if data == WAKER {
                woken = true;
            } else {
                self.retry(files, unpack(data));
            }
        }
        self.events = ready;
        Ok(woken)
    }

    /// Returns the completions.
    pub(super) fn finish(&mut self) -> VecDeque<Completion> {
        std::mem::take(&mut self.done)
    }

    fn retry(&mut self, files: &mut Files, file: FileId) {
        let mut index = 0;
        for _ in 0..self.waiting.len() {
            if self.waiting[index].file == file {
                let waiting = self.waiting.remove(index);
                self.attempt(files, waiting);
            } else {
                index += 1;
            }
        }
    }

    fn attempt(&mut self, files: &mut Files, mut waiting: Waiting) {
        let Some(held) = files.get(waiting.file) else { return };
        let result = match &held.descriptor {
            Descriptor::Socket(fd) => on_socket(fd, &mut waiting),
            Descriptor::Store(store) => waiting.operation.execute_step(&**store),
            Descriptor::Ublk(..) => Err(Errno::OPNOTSUPP),
        };
        if result == Err(Errno::AGAIN) && matches!(held.descriptor, Descriptor::Socket(_)) && !held.closing {
            return self.waiting.push(waiting);
        }
        let file = waiting.file;
        let returned: Returned = waiting.operation.into_returned();
        self.done.push_back(Completion { token: waiting.token, result, returned });
        files.release(file);
    }
}

/// Continues a socket operation until it is complete or would block.
fn on_socket(fd: &OwnedFd, waiting: &mut Waiting) -> Result<usize, Errno> {
    loop {
        let step = match &mut waiting.operation {
            Operation::Receive { buffer, range, all } => {
                let into = &mut buffer.data_mut()[range.start + waiting.progress..range.end];
                let whole = into.len();
                match rustix::net::recv(fd, into, RecvFlags::DONTWAIT) {
                    Ok((got, _)) => {
                        waiting.progress += got;
                        if got == 0 || got == whole || !*all {
                            return Ok(waiting.progress);
                        }
                        Ok(())
                    }
                    Err(error) => Err(Errno::from_rustix(error)),
                }
            }
            Operation::Send(outgoing) => {
                if waiting.progress == super::outgoing_len(outgoing) {
                    return Ok(waiting.progress);
                }
                super::send_available(fd.as_fd(), outgoing, waiting.progress).map(|sent| waiting.progress += sent)
            }
            _ => return Err(Errno::INVAL),
        };
        match step {
            Ok(()) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

fn pack(file: FileId) -> u64 {
    u64::from(file.generation) << 32 | u64::from(file.index)
}

fn unpack(data: u64) -> FileId {
    FileId { index: data as u32, generation: (data >> 32) as u32 }
}
