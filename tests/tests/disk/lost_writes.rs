//! Acknowledged writes that the kernel loses at writeback: no flush, no durable write and no exit of the server may
//! report them as durable.
//!
//! The storage is exhausted, so the kernel itself loses the writes and reports the errors: it decides which call gets
//! an error, and how often.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

use anyhow::{Context, Result, ensure};
use inlock_tests::image::key_file;
use inlock_tests::lost_writes::{Blocks, Client, First, MIB, ask, is_lost, write};
use inlock_tests::process::{bare, inlock, inlock_path, output, program, text};
use inlock_tests::report::count;
use inlock_tests::server::Server;

use crate::support::can_make_disks;
use crate::thin::ThinDisk;

const BLOCKS: Blocks = Blocks { lost: 9 << 20, kept: ThinDisk::KEPT + (1 << 20) };
const FILL: u8 = 0x3c;
const WRITTEN: usize = 8 * MIB;
/// The kernel may free storage behind the test, and lose nothing.
const TRIES: usize = 4;

/// How clients access the volume.
#[derive(Clone, Copy, Debug)]
enum Front {
    /// Over NBD, with this I/O engine for the underlying device.
    Nbd(&'static str),
    Fuse,
}

/// The process that serves the volume.
enum Process {
    Nbd(Server),
    Fuse { child: Child, path: String },
}

impl Process {
    fn start(thin: &ThinDisk, front: Front) -> Result<Self> {
        let (image, key) = (thin.image(), thin.outside("key"));
        match front {
            Front::Nbd(io) => {
                let words = ["--type", "plain", "--threads", "2", "--io", io];
                Ok(Self::Nbd(Server::inlock(thin.dir(), "thin", &image, Some(&key), &words)?))
            }
            Front::Fuse => {
                let mut command = bare(inlock_path()?);
                command.arg("open").arg(&image).args(["thin", "--type", "plain", "--via", "fuse", "--foreground"]);
                command.arg("--key-file").arg(&key).env("INLOCK_RUN_DIR", thin.outside("run"));
                let log = File::create(thin.outside("fuse.log"))?;
                let mut child = command.stdout(Stdio::piped()).stderr(log).spawn()?;
                let mut path = String::new();
                BufReader::new(child.stdout.take().context("no output")?).read_line(&mut path)?;
                ensure!(!path.is_empty(), "{}", fs::read_to_string(thin.outside("fuse.log"))?);
                Ok(Self::Fuse { child, path: path.trim_end().to_owned() })
            }
        }
    }

    fn client(&self) -> Result<Client> {
        match self {
            Self::Nbd(server) => Client::of_socket(server.socket()),
            Self::Fuse { path, .. } => Client::of_file(Path::new(path), false),
        }
    }

    /// Stops it, and returns whether it reports success.
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

/// Loses writes in one way, and returns the requests that succeeded nevertheless. `None`: the kernel found storage for
/// all of them.
fn lose(thin: &ThinDisk, front: Front, first: First, connections: usize) -> Result<Option<Vec<&'static str>>> {
    thin.exhaust()?;
    let process = Process::start(thin, front)?;
    let mut clients: Vec<_> = (0..connections).map(|_| process.client()).collect::<Result<_>>()?;
    write(&mut clients, WRITTEN, FILL)?;
    let mut wrong = ask(&mut clients, first, BLOCKS, || thin.write_back())?;
    drop(clients);
    if process.end()? {
        wrong.push("the end of the process");
    }
    thin.forget()?;
    let range = format!("0:{WRITTEN}");
    let mut export = inlock()?;
    export.arg("export").arg(thin.image()).args(["-", "--type", "plain", "--range", &range, "--key-file"]);
    let found = output(export.arg(thin.outside("key")))?.stdout;
    Ok(is_lost(&found, WRITTEN, FILL)?.then_some(wrong))
}

/// A way to lose writes: access to the volume, the operation that meets the error first, number of clients.
type Way = (Front, First, usize);

/// Loses writes in these ways on one file system.
fn lose_in(ways: &[Way], mkfs: &[&str], mib: u64) -> Result<()> {
    if !can_make_disks() {
        return Ok(());
    }
    let thin = ThinDisk::new(mkfs, mib)?;
    key_file(thin.dir(), "key", &[3; 32])?;
    let mut wrong = Vec::new();
    for (front, first, clients) in ways {
        let way = format!("{front:?}, clients: {clients}, first seen by {first:?}");
        let mut tries = (0..TRIES).map(|_| lose(&thin, *front, *first, *clients)).filter_map(Result::transpose);
        let succeeded = tries.next().context("nothing is lost").flatten().with_context(|| way.clone())?;
        if !succeeded.is_empty() {
            wrong.push(format!("{way}: {}", succeeded.join(", ")));
        }
    }
    count("ways_to_lose_writes", ways.len());
    let sums = format!("in {} of {} ways something succeeded over lost writes", wrong.len(), ways.len());
    ensure!(wrong.is_empty(), "{sums}:\n{}", wrong.join("\n"));
    Ok(())
}

fn every_way() -> Vec<Way> {
    let mut ways = Vec::new();
    for front in [Front::Nbd("uring"), Front::Nbd("sync"), Front::Fuse] {
        for first in First::ALL {
            ways.extend([1, 4].map(|clients| (front, first, clients)));
        }
    }
    ways
}

/// Without initialization in the background, which frees the storage of what it zeroes.
const EXT4: [&str; 7] = ["mkfs.ext4", "-q", "-F", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0"];

#[test]
fn flush_after_lost_writes_on_ext4_fails() -> Result<()> {
    lose_in(&every_way(), &EXT4, 64)
}

#[test]
fn flush_after_lost_writes_on_xfs_fails() -> Result<()> {
    lose_in(&every_way(), &["mkfs.xfs", "-q"], 304)
}

/// The kernel reports an error to an arbitrary one of several concurrent callers.
#[test]
fn concurrent_flushes_after_lost_writes_all_fail() -> Result<()> {
    let firsts = [First::ConcurrentFlushes, First::DurableWriteDuringFlush];
    let round = firsts.iter().flat_map(|first| [(Front::Nbd("uring"), *first, 4), (Front::Fuse, *first, 4)]);
    lose_in(&round.cycle().take(24).collect::<Vec<_>>(), &EXT4, 64)
}
