//! Acknowledged writes that the kernel loses when it writes them back: no flush, no durable write and no end of the server says
//! that they are there.
//!
//! The storage is exhausted, so the loss is the kernel's own, and so are its errors: which call is told of them, and how often.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::{Child, Stdio};
use std::sync::Barrier;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use inlock_tests::image::key_file;
use inlock_tests::nbd::{Connection, Mode, command, flag};
use inlock_tests::process::{bare, inlock, inlock_path, output, program, text};
use inlock_tests::report::count;
use inlock_tests::server::Server;

use crate::support::can_make_disks;
use crate::thin::ThinDisk;

const PATIENCE: Duration = Duration::from_secs(120);
const MIB: usize = 1 << 20;
/// How many MiB are written, and acknowledged, before the kernel is asked for them.
const WRITTEN: usize = 8;
/// Where durable writes go: to lost storage, and to storage that is there.
const DOOMED_BLOCK: u64 = 9 << 20;
const KEPT_BLOCK: u64 = ThinDisk::KEPT + (1 << 20);
const O_DSYNC: i32 = 0o10000;

/// How clients reach the volume.
#[derive(Clone, Copy, Debug)]
enum Front {
    /// Over NBD, with this way of I/O below.
    Nbd(&'static str),
    Fuse,
}

/// What sees the error of the write-back first.
#[derive(Clone, Copy, Debug)]
enum First {
    Flush,
    /// Two flushes of each client at a time.
    FlushesAtOnce,
    /// A durable write whose own bytes are lost.
    DurableWrite,
    /// A durable write whose own bytes are safe, and a flush, of each client at a time.
    DurableWriteBesideFlush,
    /// The kernel, long before a flush.
    WriteBack,
    /// The kernel, and then two flushes of each client at a time.
    WriteBackThenFlushesAtOnce,
    /// The kernel, and then a durable write whose own bytes are safe.
    WriteBackThenDurableWrite,
}

const FIRST: [First; 7] = [
    First::Flush,
    First::FlushesAtOnce,
    First::DurableWrite,
    First::DurableWriteBesideFlush,
    First::WriteBack,
    First::WriteBackThenFlushesAtOnce,
    First::WriteBackThenDurableWrite,
];

enum Client {
    Nbd(Box<Connection>),
    Fuse { file: File, durable: File },
}

impl Client {
    /// Writes; whether that succeeded.
    fn write(&mut self, offset: u64, data: &[u8]) -> Result<bool> {
        match self {
            Self::Nbd(connection) => {
                Ok(connection.call(0, command::WRITE, offset, data.len() as u64, data)?.error == 0)
            }
            Self::Fuse { file, .. } => Ok(file.write_all_at(data, offset).is_ok()),
        }
    }

    /// Writes a block durably; whether that succeeded.
    fn write_durably(&mut self, offset: u64) -> Result<bool> {
        match self {
            Self::Nbd(connection) => {
                Ok(connection.call(flag::FUA, command::WRITE, offset, 4096, &[7; 4096])?.error == 0)
            }
            Self::Fuse { durable, .. } => Ok(durable.write_all_at(&[7; 4096], offset).is_ok()),
        }
    }

    /// Flushes; whether that succeeded.
    fn flush(&mut self) -> Result<bool> {
        match self {
            Self::Nbd(connection) => Ok(connection.call(0, command::FLUSH, 0, 0, &[])?.error == 0),
            Self::Fuse { file, .. } => Ok(file.sync_data().is_ok()),
        }
    }

    /// Flushes, and at the same time flushes once more or writes durably; whether a flush succeeded.
    fn flush_beside(&mut self, other: u16) -> Result<bool> {
        match self {
            Self::Nbd(connection) => {
                let flush = connection.request(0, command::FLUSH, 0, 0)?;
                if other == command::FLUSH {
                    connection.request(0, command::FLUSH, 0, 0)?;
                } else {
                    connection.request(flag::FUA, command::WRITE, KEPT_BLOCK, 4096)?;
                    connection.send(&[7; 4096])?;
                }
                let replies = [connection.reply(0)?, connection.reply(0)?];
                Ok(replies.iter().any(|r| r.error == 0 && (r.cookie == flush || other == command::FLUSH)))
            }
            Self::Fuse { file, durable } => {
                let (file, durable) = (&*file, &*durable);
                Ok(std::thread::scope(|scope| {
                    let flush = scope.spawn(|| file.sync_data().is_ok());
                    let succeeded = if other == command::FLUSH {
                        file.sync_data().is_ok()
                    } else {
                        // That it succeeds says nothing of other writes.
                        let _ = durable.write_all_at(&[7; 4096], KEPT_BLOCK);
                        false
                    };
                    flush.join().expect("a flush does not panic") || succeeded
                }))
            }
        }
    }
}

/// The process that serves the volume.
enum Process {
    Nbd(Server),
    Fuse { child: Child, path: String },
}

impl Process {
    fn start(thin: &ThinDisk, front: Front) -> Result<Self> {
        let (image, key) = (thin.image(), thin.beside("key"));
        match front {
            Front::Nbd(io) => {
                let words = ["--type", "plain", "--threads", "2", "--io", io];
                Ok(Self::Nbd(Server::inlock(thin.dir(), "thin", &image, Some(&key), &words)?))
            }
            Front::Fuse => {
                let mut command = bare(inlock_path()?);
                command.arg("open").arg(&image).args(["thin", "--type", "plain", "--via", "fuse", "--foreground"]);
                command.arg("--key-file").arg(&key).env("INLOCK_RUN_DIR", thin.beside("run"));
                let log = File::create(thin.beside("fuse.log"))?;
                let mut child = command.stdout(Stdio::piped()).stderr(log).spawn()?;
                let mut path = String::new();
                BufReader::new(child.stdout.take().context("no output")?).read_line(&mut path)?;
                ensure!(!path.is_empty(), "{}", fs::read_to_string(thin.beside("fuse.log"))?);
                Ok(Self::Fuse { child, path: path.trim_end().to_owned() })
            }
        }
    }

    fn client(&self) -> Result<Client> {
        match self {
            Self::Nbd(server) => Ok(Client::Nbd(Box::new(Connection::open(server.socket(), PATIENCE, Mode::Simple)?))),
            Self::Fuse { path, .. } => Ok(Client::Fuse {
                file: File::options().read(true).write(true).open(path)?,
                durable: File::options().write(true).custom_flags(O_DSYNC).open(path)?,
            }),
        }
    }

    /// Ends it; whether it says that all went well.
    fn end(self) -> Result<bool> {
        match self {
            Self::Nbd(mut server) => Ok(server.terminate()?.success()),
            Self::Fuse { mut child, .. } => {
                text(program("kill").arg(child.id().to_string()))?;
                Ok(child.wait()?.success())
            }
        }
    }
}

/// All clients do it at the same moment; whether a flush of one succeeded.
fn at_once(clients: &mut [Client], other: u16) -> Result<bool> {
    let barrier = Barrier::new(clients.len());
    std::thread::scope(|scope| {
        let barrier = &barrier;
        let begin = move |client: &mut Client| {
            barrier.wait();
            client.flush_beside(other)
        };
        let threads: Vec<_> = clients.iter_mut().map(|client| scope.spawn(move || begin(client))).collect();
        threads.into_iter().try_fold(false, |any, thread| Ok(thread.join().expect("a client does not panic")? | any))
    })
}

/// What sees the error first; what succeeded that must not.
fn meet(thin: &ThinDisk, clients: &mut [Client], first: First) -> Result<Vec<&'static str>> {
    let mut wrong = Vec::new();
    let mut refused = |what, succeeded: bool| {
        if succeeded {
            wrong.push(what);
        }
    };
    if matches!(first, First::WriteBack | First::WriteBackThenFlushesAtOnce | First::WriteBackThenDurableWrite) {
        thin.write_back()?;
    }
    match first {
        First::Flush | First::WriteBack => {}
        First::FlushesAtOnce | First::WriteBackThenFlushesAtOnce => {
            refused("one of the flushes at once", at_once(clients, command::FLUSH)?);
        }
        First::DurableWrite => refused("a durable write of lost bytes", clients[0].write_durably(DOOMED_BLOCK)?),
        First::DurableWriteBesideFlush => {
            refused("a flush beside a durable write", at_once(clients, command::WRITE)?);
        }
        // That it succeeds says nothing of other writes.
        First::WriteBackThenDurableWrite => drop(clients[0].write_durably(KEPT_BLOCK)?),
    }
    for client in clients.iter_mut() {
        refused("a flush", client.flush()?);
    }
    for client in clients.iter_mut() {
        refused("a durable write after a failed flush", client.write_durably(KEPT_BLOCK)?);
        refused("a flush after a failed flush", client.flush()?);
    }
    Ok(wrong)
}

/// One way to lose writes: what succeeded over them.
fn lose(thin: &ThinDisk, front: Front, first: First, connections: usize) -> Result<Vec<&'static str>> {
    thin.exhaust()?;
    let process = Process::start(thin, front)?;
    let mut clients: Vec<_> = (0..connections).map(|_| process.client()).collect::<Result<_>>()?;
    for number in 0..WRITTEN {
        let written = clients[number % connections].write((number * MIB) as u64, &[number as u8; MIB])?;
        ensure!(written, "MiB {number} is refused already");
    }
    let mut wrong = meet(thin, &mut clients, first)?;
    drop(clients);
    if process.end()? {
        wrong.push("the end of the process");
    }
    thin.forget()?;
    let range = format!("0:{}", WRITTEN * MIB);
    let mut export = inlock()?;
    export.arg("export").arg(thin.image()).args(["-", "--type", "plain", "--range", &range, "--key-file"]);
    let found = output(export.arg(thin.beside("key")))?.stdout;
    ensure!(found.len() == WRITTEN * MIB, "{} bytes are exported", found.len());
    let is_lost = |(number, found): (usize, &[u8])| found.iter().any(|byte| *byte != number as u8);
    ensure!(found.chunks(MIB).enumerate().any(is_lost), "nothing is lost");
    Ok(wrong)
}

/// All ways to lose writes on one file system.
fn lose_in_every_way(mkfs: &[&str], mib: u64) -> Result<()> {
    if !can_make_disks() {
        return Ok(());
    }
    let thin = ThinDisk::new(mkfs, mib)?;
    key_file(thin.dir(), "key", &[3; 32])?;
    let (mut ways, mut wrong) = (0, Vec::new());
    for front in [Front::Nbd("uring"), Front::Nbd("sync"), Front::Fuse] {
        for first in FIRST {
            for connections in [1, 4] {
                let way = format!("{front:?}, {connections} at a time, first seen by {first:?}");
                let succeeded = lose(&thin, front, first, connections).with_context(|| way.clone())?;
                if !succeeded.is_empty() {
                    wrong.push(format!("{way}: {}", succeeded.join(", ")));
                }
                ways += 1;
            }
        }
    }
    count("ways_to_lose_writes", ways);
    ensure!(
        wrong.is_empty(),
        "in {} of {ways} ways something succeeded over lost writes:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    Ok(())
}

#[test]
fn flush_after_lost_writes_on_ext4_fails() -> Result<()> {
    lose_in_every_way(&["mkfs.ext4", "-q", "-F", "-b", "4096"], 64)
}

#[test]
fn flush_after_lost_writes_on_xfs_fails() -> Result<()> {
    lose_in_every_way(&["mkfs.xfs", "-q"], 304)
}
