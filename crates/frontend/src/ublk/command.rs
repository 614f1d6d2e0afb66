//! Commands to ublk's driver, one at a time, through a ring of their own.
//!
//! A command carries the address of memory that the kernel writes until it has completed the command, however long that
//! takes and even if the thread that waits has ended. So the memory is freed by the completion with the command's own
//! tag and by nothing else. If the ring fails, the outcome of the command is unknown: its memory is leaked, and the
//! ring is closed, so that a command which is still queued is not submitted together with a later one.
#![allow(unsafe_code)]

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

#[cfg(test)]
mod tests;

/// Room for the longest structure that a command carries.
pub(super) const MEMORY: usize = 128;

/// Bytes of a command in the ring.
const PAYLOAD: usize = 80;

pub(super) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// A command, except for its memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Command {
    /// The driver's number for it.
    pub number: u32,
    /// The device.
    pub id: u32,
    /// Length in bytes of the structure in the command's memory; 0: the command has none.
    pub len: u16,
    /// The command's argument.
    pub data: u64,
}

/// A ring that takes commands.
pub(super) trait CommandRing {
    /// Queues a command of the device `file`; `tag` comes back with its completion.
    ///
    /// # Safety
    /// Memory whose address is in `payload` stays valid until the completion with this `tag` has been seen.
    unsafe fn push(&mut self, file: &File, number: u32, payload: [u8; PAYLOAD], tag: u64) -> io::Result<()>;

    /// Submits the queued commands and blocks until there is a completion.
    fn submit_and_wait(&mut self) -> io::Result<()>;

    /// Takes the next completion: its tag and result.
    fn next_completion(&mut self) -> Option<(u64, i32)>;
}

impl CommandRing for IoUring<squeue::Entry128, cqueue::Entry> {
    unsafe fn push(&mut self, file: &File, number: u32, payload: [u8; PAYLOAD], tag: u64) -> io::Result<()> {
        let entry = opcode::UringCmd80::new(types::Fd(file.as_raw_fd()), number).cmd(payload).build().user_data(tag);
        // SAFETY: the caller's promise; the kernel copies the rest of the entry when it is submitted.
        unsafe { self.submission().push(&entry) }.map_err(io::Error::other)
    }

    fn submit_and_wait(&mut self) -> io::Result<()> {
        IoUring::submit_and_wait(self, 1).map(drop)
    }

    fn next_completion(&mut self) -> Option<(u64, i32)> {
        self.completion().next().map(|done| (done.user_data(), done.result()))
    }
}

/// Makes a ring for [`Commands`].
pub(super) fn new_ring() -> io::Result<Box<dyn CommandRing>> {
    Ok(Box::new(IoUring::<squeue::Entry128, cqueue::Entry>::builder().build(4)?))
}

/// Carries out commands one after the other.
pub(super) struct Commands {
    file: File,
    new_ring: fn() -> io::Result<Box<dyn CommandRing>>,
    /// `None` after the ring has failed: the next command makes another.
    ring: Option<Box<dyn CommandRing>>,
    /// Tag of the last command. No other command of this value has it.
    last_tag: u64,
}

impl Commands {
    /// Commands to the control device `file`, through rings from `new_ring`.
    pub(super) fn new(file: File, new_ring: fn() -> io::Result<Box<dyn CommandRing>>) -> io::Result<Self> {
        Ok(Self { file, new_ring, ring: Some(new_ring()?), last_tag: 0 })
    }

    /// Carries out `command` and blocks until it has completed. Copies `memory` to the kernel and back; returns the
    /// command's result.
    ///
    /// # Errors
    /// The driver's own error leaves the command done. An error of the ring leaves its outcome unknown.
    pub(super) fn run(&mut self, command: &Command, memory: &mut [u8; MEMORY]) -> io::Result<i32> {
        let mut ring = match self.ring.take() {
            Some(ring) => ring,
            None => (self.new_ring)()?,
        };
        self.last_tag += 1;
        let tag = self.last_tag;
        let shared = Shared::new(memory);
        let payload = command.payload(&shared);
        // SAFETY: the memory is freed below, after the completion with this tag, or never.
        unsafe { ring.push(&self.file, command.number, payload, tag) }?;
        let result = wait_for(&mut *ring, tag)?;
        // It is kept only now: if the ring has failed it is closed.
        self.ring = Some(ring);
        // SAFETY: the command has completed.
        *memory = unsafe { shared.into_bytes() };
        if result < 0 { Err(Errno::from_raw_os_error(-result).into()) } else { Ok(result) }
    }
}

/// Blocks until the command with `tag` has completed; its result. Other completions belong to no command of this ring.
fn wait_for(ring: &mut dyn CommandRing, tag: u64) -> io::Result<i32> {
    loop {
        match ring.submit_and_wait() {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        while let Some((completed, result)) = ring.next_completion() {
            if completed == tag {
                return Ok(result);
            }
        }
    }
}

impl Command {
    /// The command as the driver reads it: `struct ublksrv_ctrl_cmd`.
    fn payload(&self, shared: &Shared) -> [u8; PAYLOAD] {
        let address = if self.len > 0 { shared.address() } else { 0 };
        let mut payload = [0; PAYLOAD];
        put(&mut payload, 0, &self.id.to_ne_bytes());
        // No queue is meant.
        put(&mut payload, 4, &u16::MAX.to_ne_bytes());
        put(&mut payload, 6, &self.len.to_ne_bytes());
        put(&mut payload, 8, &address.to_ne_bytes());
        put(&mut payload, 16, &self.data.to_ne_bytes());
        payload
    }
}

/// Memory of a command, shared with the kernel. Leaked when it is dropped: only [`Shared::into_bytes`] frees it.
struct Shared(NonNull<Aligned>);

#[repr(align(8))]
struct Aligned([u8; MEMORY]);

impl Shared {
    fn new(bytes: &[u8; MEMORY]) -> Self {
        // A raw pointer from here on: moving a box would claim its bytes for this side.
        Self(NonNull::from(Box::leak(Box::new(Aligned(*bytes)))))
    }

    fn address(&self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }

    /// Frees the memory and returns what was in it.
    ///
    /// # Safety
    /// The kernel has completed the command.
    unsafe fn into_bytes(self) -> [u8; MEMORY] {
        #[cfg(test)]
        tests::freed(self.address());
        // SAFETY: `new` leaked this box, which is taken back once, as `self` is consumed; the kernel no longer uses it.
        unsafe { Box::from_raw(self.0.as_ptr()) }.0
    }
}
