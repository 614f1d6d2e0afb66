//! Clients of a volume whose acknowledged writes the kernel has lost, or is about to: they ask for them in many ways, and say what
//! succeeds that must not.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Barrier;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::nbd::{Connection, Mode, command, flag};

const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes of a MiB.
pub const MIB: usize = 1 << 20;
const BLOCK: usize = 4096;
/// In how many pieces the clients write.
const PIECES: usize = 8;
const O_DSYNC: i32 = 0o10000;
const O_DIRECT: i32 = 0o40000;

/// What sees the error of the write-back first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// A flush.
    Flush,
    /// Two flushes of each client at a time.
    FlushesAtOnce,
    /// A durable write whose own bytes are lost.
    DurableWrite,
    /// A durable write whose own bytes may be safe, and a flush, of each client at a time.
    DurableWriteBesideFlush,
    /// The kernel, long before a flush.
    WriteBack,
    /// The kernel, and then two flushes of each client at a time.
    WriteBackThenFlushesAtOnce,
    /// The kernel, and then a durable write whose own bytes may be safe.
    WriteBackThenDurableWrite,
}

impl First {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Flush,
        Self::FlushesAtOnce,
        Self::DurableWrite,
        Self::DurableWriteBesideFlush,
        Self::WriteBack,
        Self::WriteBackThenFlushesAtOnce,
        Self::WriteBackThenDurableWrite,
    ];

    /// Whether the kernel writes back before a client asks.
    fn begins_with_write_back(self) -> bool {
        matches!(self, Self::WriteBack | Self::WriteBackThenFlushesAtOnce | Self::WriteBackThenDurableWrite)
    }
}

/// What a client asks for while it asks for a flush.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    Flush,
    DurableWrite,
}

/// Where durable writes go that are not among what was written.
#[derive(Clone, Copy, Debug)]
pub struct Blocks {
    /// To storage that loses them.
    pub lost: u64,
    /// To storage that keeps them, where there is some.
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

/// Bytes that begin on a page.
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

    /// Opens a file, or a block device past the kernel's cache of it.
    pub fn of_file(path: &Path, is_direct: bool) -> Result<Self> {
        let direct = if is_direct { O_DIRECT } else { 0 };
        let open = |flags| File::options().read(true).write(true).custom_flags(flags).open(path);
        Ok(Self::File { file: open(direct)?, durable: open(direct | O_DSYNC)? })
    }

    /// Writes; whether that succeeded.
    fn write(&mut self, offset: u64, len: usize, fill: u8) -> Result<bool> {
        let data = Aligned::new(len, fill);
        match self {
            Self::Nbd(connection) => Ok(connection.call(0, command::WRITE, offset, len as u64, data.get())?.error == 0),
            Self::File { file, .. } => Ok(file.write_all_at(data.get(), offset).is_ok()),
        }
    }

    /// Writes a block durably; whether that succeeded.
    fn write_durably(&mut self, offset: u64) -> Result<bool> {
        let data = Aligned::new(BLOCK, 7);
        match self {
            Self::Nbd(connection) => {
                Ok(connection.call(flag::FUA, command::WRITE, offset, BLOCK as u64, data.get())?.error == 0)
            }
            Self::File { durable, .. } => Ok(durable.write_all_at(data.get(), offset).is_ok()),
        }
    }

    /// Flushes; whether that succeeded.
    fn flush(&mut self) -> Result<bool> {
        match self {
            Self::Nbd(connection) => Ok(connection.call(0, command::FLUSH, 0, 0, &[])?.error == 0),
            Self::File { file, .. } => Ok(file.sync_data().is_ok()),
        }
    }

    /// Flushes, and asks for something else at the same time; whether a flush succeeded.
    fn flush_beside(&mut self, other: Beside, kept: u64) -> Result<bool> {
        let data = Aligned::new(BLOCK, 7);
        match self {
            Self::Nbd(connection) => {
                let flush = connection.request(0, command::FLUSH, 0, 0)?;
                if other == Beside::Flush {
                    connection.request(0, command::FLUSH, 0, 0)?;
                } else {
                    connection.request(flag::FUA, command::WRITE, kept, BLOCK as u64)?;
                    connection.send(data.get())?;
                }
                let replies = [connection.reply(0)?, connection.reply(0)?];
                Ok(replies.iter().any(|r| r.error == 0 && (r.cookie == flush || other == Beside::Flush)))
            }
            Self::File { file, durable } => Ok(std::thread::scope(|scope| {
                let flush = scope.spawn(|| file.sync_data().is_ok());
                let succeeded = if other == Beside::Flush {
                    file.sync_data().is_ok()
                } else {
                    // That it succeeds says nothing of other writes.
                    let _ = durable.write_all_at(data.get(), kept);
                    false
                };
                flush.join().expect("a flush does not panic") || succeeded
            })),
        }
    }
}

/// Writes so many bytes of `fill` at the volume's start, each client some of them; all have to be acknowledged.
pub fn write(clients: &mut [Client], len: usize, fill: u8) -> Result<()> {
    let (count, piece) = (clients.len(), len / PIECES);
    for number in 0..PIECES {
        let written = clients[number % count].write((number * piece) as u64, piece, fill)?;
        ensure!(written, "piece {number} is refused already");
    }
    Ok(())
}

/// All clients flush at the same moment, and ask for something else; whether a flush of one succeeded.
fn at_once(clients: &mut [Client], other: Beside, kept: u64) -> Result<bool> {
    let barrier = &Barrier::new(clients.len());
    std::thread::scope(|scope| {
        let begin = move |client: &mut Client| {
            barrier.wait();
            client.flush_beside(other, kept)
        };
        let threads: Vec<_> = clients.iter_mut().map(|client| scope.spawn(move || begin(client))).collect();
        threads.into_iter().try_fold(false, |any, thread| Ok(thread.join().expect("a client does not panic")? | any))
    })
}

/// Asks for what was written; what succeeded that must not where some of it is lost. `write_back` has the kernel write back.
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
        First::FlushesAtOnce | First::WriteBackThenFlushesAtOnce => {
            refused("one of the flushes at once", at_once(clients, Beside::Flush, blocks.kept)?);
        }
        First::DurableWrite => refused("a durable write of lost bytes", clients[0].write_durably(blocks.lost)?),
        First::DurableWriteBesideFlush => {
            refused("a flush beside a durable write", at_once(clients, Beside::DurableWrite, blocks.kept)?);
        }
        // That it succeeds says nothing of other writes.
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

/// Whether some of what was written is missing from what is found.
pub fn is_lost(found: &[u8], len: usize, fill: u8) -> Result<bool> {
    ensure!(found.len() == len, "{} bytes are found", found.len());
    Ok(found.iter().any(|byte| *byte != fill))
}
