//! Clients of a volume whose acknowledged writes the kernel has lost or is about to lose. They request durability in
//! several ways; no such request may succeed.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Barrier;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::nbd::{Connection, Mode, command, flag};

const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes in a MiB.
pub const MIB: usize = 1 << 20;
const BLOCK: usize = 4096;
/// Number of pieces in which the clients write.
const PIECES: usize = 8;
const O_DSYNC: i32 = 0o10000;
const O_DIRECT: i32 = 0o40000;

/// The operation that meets the writeback error first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// A flush.
    Flush,
    /// Two concurrent flushes of each client.
    ConcurrentFlushes,
    /// A durable write whose own bytes are lost.
    DurableWrite,
    /// A durable write whose own bytes may be safe, concurrent with a flush, of each client.
    DurableWriteDuringFlush,
    /// Writeback by the kernel, long before a flush.
    WriteBack,
    /// Writeback by the kernel, then two concurrent flushes of each client.
    WriteBackThenConcurrentFlushes,
    /// Writeback by the kernel, then a durable write whose own bytes may be safe.
    WriteBackThenDurableWrite,
}

impl First {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Flush,
        Self::ConcurrentFlushes,
        Self::DurableWrite,
        Self::DurableWriteDuringFlush,
        Self::WriteBack,
        Self::WriteBackThenConcurrentFlushes,
        Self::WriteBackThenDurableWrite,
    ];

    /// Whether the kernel writes back before a client requests durability.
    fn begins_with_write_back(self) -> bool {
        matches!(self, Self::WriteBack | Self::WriteBackThenConcurrentFlushes | Self::WriteBackThenDurableWrite)
    }
}

/// The request of a client that is concurrent with its flush.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Concurrent {
    Flush,
    DurableWrite,
}

/// Positions of durable writes outside of the written data.
#[derive(Clone, Copy, Debug)]
pub struct Blocks {
    /// On storage that loses the writes.
    pub lost: u64,
    /// On storage that keeps the writes, if there is any.
    pub kept: u64,
}

/// A program that has the volume open.
#[derive(Debug)]
pub enum Client {
    /// Over NBD.
    Nbd(Box<Connection>),
    /// As a file or a block device.
    File {
        /// For writes and flushes.
        file: File,
        /// For durable writes.
        durable: File,
    },
}

/// Page-aligned bytes.
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
}

impl Aligned {
    fn new(len: usize, fill: u8) -> Self {
        let bytes = vec![fill; len + BLOCK];
        let start = bytes.as_ptr().align_offset(BLOCK);
        Self { bytes, start }
    }

    fn get(&self) -> &[u8] {
        &self.bytes[self.start..][..self.bytes.len() - BLOCK]
    }
}

impl Client {
    /// Connects to an NBD server.
    pub fn of_socket(socket: &Path) -> Result<Self> {
        Ok(Self::Nbd(Box::new(Connection::open(socket, PATIENCE, Mode::Simple)?)))
    }

    /// Opens a file, or a block device with direct I/O.
    pub fn of_file(path: &Path, is_direct: bool) -> Result<Self> {
        let direct = if is_direct { O_DIRECT } else { 0 };
        let open = |flags| File::options().read(true).write(true).custom_flags(flags).open(path);
        Ok(Self::File { file: open(direct)?, durable: open(direct | O_DSYNC)? })
    }

    /// Writes, and returns whether that succeeded.
    fn write(&mut self, offset: u64, len: usize, fill: u8) -> Result<bool> {
        let data = Aligned::new(len, fill);
        match self {
            Self::Nbd(connection) => Ok(connection.call(0, command::WRITE, offset, len as u64, data.get())?.error == 0),
            Self::File { file, .. } => Ok(file.write_all_at(data.get(), offset).is_ok()),
        }
    }

    /// Writes a block durably, and returns whether that succeeded.
    fn write_durably(&mut self, offset: u64) -> Result<bool> {
        let data = Aligned::new(BLOCK, 7);
        match self {
            Self::Nbd(connection) => {
                Ok(connection.call(flag::FUA, command::WRITE, offset, BLOCK as u64, data.get())?.error == 0)
            }
            Self::File { durable, .. } => Ok(durable.write_all_at(data.get(), offset).is_ok()),
        }
    }

    /// Flushes, and returns whether that succeeded.
    fn flush(&mut self) -> Result<bool> {
        match self {
            Self::Nbd(connection) => Ok(connection.call(0, command::FLUSH, 0, 0, &[])?.error == 0),
            Self::File { file, .. } => Ok(file.sync_data().is_ok()),
        }
    }

    /// Flushes while another request is in flight, and returns whether a flush succeeded.
    fn flush_with(&mut self, other: Concurrent, kept: u64) -> Result<bool> {
        let data = Aligned::new(BLOCK, 7);
        match self {
            Self::Nbd(connection) => {
                let flush = connection.request(0, command::FLUSH, 0, 0)?;
                if other == Concurrent::Flush {
                    connection.request(0, command::FLUSH, 0, 0)?;
                } else {
                    connection.request(flag::FUA, command::WRITE, kept, BLOCK as u64)?;
                    connection.send(data.get())?;
                }
                let replies = [connection.reply(0)?, connection.reply(0)?];
                Ok(replies.iter().any(|r| r.error == 0 && (r.cookie == flush || other == Concurrent::Flush)))
            }
            Self::File { file, durable } => Ok(std::thread::scope(|scope| {
                let flush = scope.spawn(|| file.sync_data().is_ok());
                let succeeded = if other == Concurrent::Flush {
                    file.sync_data().is_ok()
                } else {
                    // Its success says nothing about other writes.
                    let _ = durable.write_all_at(data.get(), kept);
                    false
                };
                flush.join().expect("a flush does not panic") || succeeded
            })),
        }
    }
}

/// Writes `len` bytes of `fill` at the start of the volume, a part from each client. All must be acknowledged.
pub fn write(clients: &mut [Client], len: usize, fill: u8) -> Result<()> {
    let (count, piece) = (clients.len(), len / PIECES);
    for number in 0..PIECES {
        let written = clients[number % count].write((number * piece) as u64, piece, fill)?;
        ensure!(written, "piece {number} is refused already");
    }
    Ok(())
}

/// Makes all clients flush at the same time, each with another request in flight. Returns whether a flush succeeded.
fn flush_together(clients: &mut [Client], other: Concurrent, kept: u64) -> Result<bool> {
    let barrier = &Barrier::new(clients.len());
    std::thread::scope(|scope| {
        let begin = move |client: &mut Client| {
            barrier.wait();
            client.flush_with(other, kept)
        };
        let threads: Vec<_> = clients.iter_mut().map(|client| scope.spawn(move || begin(client))).collect();
        threads.into_iter().try_fold(false, |any, thread| Ok(thread.join().expect("a client does not panic")? | any))
    })
}

/// Requests durability of the written data, and returns the requests that succeeded although data were lost.
/// `write_back` makes the kernel write back.
pub fn ask(
    clients: &mut [Client],
    first: First,
    blocks: Blocks,
    write_back: impl FnOnce() -> Result<()>,
) -> Result<Vec<&'static str>> {
    let mut wrong = Vec::new();
    let mut refused = |what, succeeded: bool| {
        if succeeded && !wrong.contains(&what) {
            wrong.push(what);
        }
    };
    if first.begins_with_write_back() {
        write_back()?;
    }
    match first {
        First::Flush | First::WriteBack => {}
        First::ConcurrentFlushes | First::WriteBackThenConcurrentFlushes => {
            refused("one of the concurrent flushes", flush_together(clients, Concurrent::Flush, blocks.kept)?);
        }
        First::DurableWrite => refused("a durable write of lost bytes", clients[0].write_durably(blocks.lost)?),
        First::DurableWriteDuringFlush => {
            refused(
                "a flush concurrent with a durable write",
                flush_together(clients, Concurrent::DurableWrite, blocks.kept)?,
            );
        }
        // Its success says nothing about other writes.
        First::WriteBackThenDurableWrite => drop(clients[0].write_durably(blocks.kept)?),
    }
    for client in clients.iter_mut() {
        refused("a flush", client.flush()?);
    }
    for client in clients.iter_mut() {
        refused("a durable write after a flush", client.write_durably(blocks.kept)?);
        refused("a flush after a flush", client.flush()?);
    }
    Ok(wrong)
}

/// Whether written data are missing from `found`.
pub fn is_lost(found: &[u8], len: usize, fill: u8) -> Result<bool> {
    ensure!(found.len() == len, "{} bytes are found", found.len());
    Ok(found.iter().any(|byte| *byte != fill))
}
