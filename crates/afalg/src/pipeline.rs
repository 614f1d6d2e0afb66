//! Operations on several sockets at a time, through io_uring: one system call for a group of data units.
//!
//! An operation is two entries of the ring, linked: a message with IV, direction and data, then a read of the result.
//! The read is asynchronous, so an accelerator processes the units of a group at the same time. A CPU processes them
//! one after the other, during the system call.

use crate::api::Session;
use inlock_engine::Direction;
use io_uring::squeue::Flags;
use io_uring::{IoUring, opcode, types};
use rustix::net::SocketFlags;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use zeroize::Zeroize;

/// Sockets of a session, and so data units in flight.
pub(crate) const LANES: usize = 16;
/// Length of a control message's header.
const HEADER: usize = size_of::<usize>() + 2 * size_of::<libc::c_int>();

/// Sockets with one operation each, and the ring.
pub(crate) struct Pipeline {
    // Not dropped while the kernel may write to the lanes.
    inner: ManuallyDrop<Inner>,
    /// Whether the kernel may have operations of which it has not reported the end.
    is_lost: bool,
}

struct Inner {
    ring: IoUring,
    lanes: Vec<Lane>,
    /// Memory of the messages, which the kernel reads.
    messages: Box<[Message; LANES]>,
}

struct Lane {
    socket: OwnedFd,
    /// Result of an operation: a failed one may have written a part of it.
    result: Vec<u8>,
}

/// A message of an operation.
struct Message {
    header: libc::msghdr,
    data: libc::iovec,
    control: Control,
}

/// Two control messages, aligned as the kernel's structure.
#[repr(align(8))]
struct Control {
    bytes: [u8; 64],
    len: usize,
}

impl Control {
    fn new(direction: Direction, iv: &[u8; 16]) -> Self {
        let operation = match direction {
            Direction::Encrypt => libc::ALG_OP_ENCRYPT,
            Direction::Decrypt => libc::ALG_OP_DECRYPT,
        };
        let mut control = Self { bytes: [0; 64], len: 0 };
        control.add(libc::ALG_SET_OP, &[&operation.to_ne_bytes()]);
        control.add(libc::ALG_SET_IV, &[&(iv.len() as u32).to_ne_bytes(), iv]);
        control
    }

    fn add(&mut self, kind: libc::c_int, parts: &[&[u8]]) {
        let len = HEADER + parts.iter().map(|part| part.len()).sum::<usize>();
        let header: [&[u8]; 3] = [&len.to_ne_bytes(), &libc::SOL_ALG.to_ne_bytes(), &kind.to_ne_bytes()];
        let mut at = self.len;
        for part in header.iter().chain(parts) {
            self.bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        self.len = at.next_multiple_of(size_of::<usize>());
    }
}

// SAFETY: the pointers of a message are set and used in one call of `Pipeline::submit`, on one thread.
unsafe impl Send for Message {}

impl Pipeline {
    /// Opens sockets for operations of `bound`.
    ///
    /// # Errors
    ///
    /// Fails without io_uring, and without memory or descriptors.
    pub(crate) fn new(bound: BorrowedFd<'_>) -> io::Result<Self> {
        let ring = IoUring::new(2 * LANES as u32)?;
        let lane = |_| {
            let socket = rustix::net::accept_with(bound, SocketFlags::CLOEXEC)?;
            Ok(Lane { socket, result: Vec::new() })
        };
        let lanes = (0..LANES).map(lane).collect::<io::Result<_>>()?;
        let empty = |_| Message {
            // SAFETY: a structure of numbers and pointers, for which zeroes are valid.
            header: unsafe { std::mem::zeroed() },
            data: libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 },
            control: Control { bytes: [0; 64], len: 0 },
        };
        let messages = Box::new(std::array::from_fn(empty));
        Ok(Self { inner: ManuallyDrop::new(Inner { ring, lanes, messages }), is_lost: false })
    }

    /// Processes a group of at most [`LANES`] units. Returns the number of units that are done.
    fn process_group(&mut self, direction: Direction, ivs: &[[u8; 16]], data: &mut [u8]) -> usize {
        let unit = data.len() / ivs.len();
        if !self.is_lost {
            self.inner.lanes[..ivs.len()].iter_mut().for_each(|lane| lane.result.resize(unit, 0));
        }
        let mut ends = [[None; 2]; LANES];
        // Unless all operations end, nothing of what the kernel may still use is freed or used again.
        if std::mem::replace(&mut self.is_lost, true)
            || self.submit(direction, ivs, data, unit).and_then(|()| self.reap(ivs.len(), &mut ends)).is_err()
        {
            return 0;
        }
        self.is_lost = false;
        let expected = [Some(unit as i32); 2];
        let done = ends[..ivs.len()].iter().take_while(|ends| **ends == expected).count();
        for (unit, lane) in data.chunks_exact_mut(unit).zip(&self.inner.lanes[..done]) {
            unit.copy_from_slice(&lane.result);
        }
        done
    }

    /// Puts the operations into the ring.
    fn submit(&mut self, direction: Direction, ivs: &[[u8; 16]], data: &[u8], unit: usize) -> io::Result<()> {
        let Inner { ring, lanes, messages } = &mut *self.inner;
        let mut queue = ring.submission();
        let operations = ivs.iter().zip(data.chunks_exact(unit)).zip(lanes.iter_mut().zip(messages.iter_mut()));
        for (number, ((iv, unit), (lane, message))) in operations.enumerate() {
            message.control = Control::new(direction, iv);
            message.data = libc::iovec { iov_base: unit.as_ptr().cast_mut().cast(), iov_len: unit.len() };
            message.header.msg_iov = &raw mut message.data;
            message.header.msg_iovlen = 1;
            message.header.msg_control = message.control.bytes.as_mut_ptr().cast();
            message.header.msg_controllen = message.control.len as _;
            let socket = types::Fd(lane.socket.as_raw_fd());
            let send = opcode::SendMsg::new(socket, &raw const message.header).build();
            let send = send.flags(Flags::IO_LINK).user_data(2 * number as u64);
            let read = opcode::Read::new(socket, lane.result.as_mut_ptr(), lane.result.len() as u32).build();
            let read = read.user_data(2 * number as u64 + 1);
            // SAFETY: the entries point to the message and the result, which `self.inner` owns, and to the data. The
            // kernel uses none of them after the completions, for which `process_group` waits; if they do not come,
            // `is_lost` keeps the memory. The kernel only reads the data.
            unsafe { queue.push_multiple(&[send, read]) }.map_err(|_| io::ErrorKind::OutOfMemory)?;
        }
        Ok(())
    }

    /// Submits what is in the ring, and waits for its ends.
    fn reap(&mut self, units: usize, ends: &mut [[Option<i32>; 2]; LANES]) -> io::Result<()> {
        let ring = &mut self.inner.ring;
        let mut left = 2 * units;
        while left > 0 {
            match ring.submit_and_wait(left) {
                Ok(_) => {}
                // Memory of the kernel is short for a moment.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {
                    std::thread::yield_now();
                }
                Err(error) => return Err(error),
            }
            for end in ring.completion() {
                let number = end.user_data() as usize;
                ends[number / 2][number % 2] = Some(end.result());
                left -= 1;
            }
        }
        Ok(())
    }
}

impl Session for Pipeline {
    fn process(&mut self, direction: Direction, ivs: &[[u8; 16]], data: &mut [u8]) -> usize {
        let unit = data.len() / ivs.len().max(1);
        let mut done = 0;
        for (ivs, data) in ivs.chunks(LANES).zip(data.chunks_mut(LANES * unit.max(1))) {
            let processed = self.process_group(direction, ivs, data);
            done += processed;
            if processed < ivs.len() {
                break;
            }
        }
        done
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        if self.is_lost {
            for lane in self.inner.lanes.drain(..) {
                // Closing the sockets, which have the key, frees no memory of this process.
                std::mem::forget(lane.result);
            }
            return;
        }
        for lane in &mut self.inner.lanes {
            // A decrypted unit.
            lane.result.zeroize();
        }
        // SAFETY: dropped once, here; every operation has ended.
        unsafe { ManuallyDrop::drop(&mut self.inner) };
    }
}
