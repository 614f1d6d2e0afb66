//! `xtask faults`: tests of lost writes, run in the guest. The storage under a volume fails after it has acknowledged
//! writes; afterwards, no request that guarantees their durability may succeed.
//!
//! `cargo xtask vm` copies this program to the guest as `xtask`. Device-mapper provides the storage: it starts to fail
//! when another table is loaded, or is overcommitted. Results are printed in the format of the guest's reports
//! (tests/vm/lib.sh).

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use inlock_tests::lost_writes::{Blocks, Client, First, MIB, ask, write};
use rustix::process::{Pid, Signal};

const USAGE: &str = "usage: xtask faults WHAT DISK
  some    each way to reach a volume with each that sees the error first, on storage in turns
  all     each of those on each storage, with one client and with four
  race    what several ask at a time, again and again";

/// Length of the storage under the volume, in MiB: XFS needs most of it.
const LEN: u64 = 304;
/// Length of the image, or of the encrypted part of the device, in MiB.
const IMAGE: u64 = 4;
/// Number of written and acknowledged bytes.
const WRITTEN: usize = MIB;
/// Length of the storage of a thin pool, in MiB: enough for a file system, but not for the written data.
const ROOM: u64 = 24;
const BLOCKS: Blocks = Blocks { lost: 2 << 20, kept: 3 << 20 };
const RACES: u32 = 30;
const PATIENCE: Duration = Duration::from_secs(120);

const LOW: &str = "/dev/mapper/low";
const MOUNTED: &str = "/mnt";
const IMAGE_PATH: &str = "/mnt/image";
const KEY: &str = "/tmp/faults.key";
const TABLE: &str = "/tmp/faults.table";
const SOCKET: &str = "/tmp/faults.nbd";
const LOG: &str = "/tmp/faults.log";

/// Failure of the storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    /// All requests fail.
    Error,
    /// Writes fail, reads succeed.
    WriteErrors,
    /// There is no space for the written data.
    Thin,
    /// Writes succeed without effect, which no program can detect: the control.
    Dropped,
}

/// Content of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Store {
    Ext4,
    Xfs,
    /// The volume itself, through the page cache.
    Device,
}

/// How clients access the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Front {
    /// NBD clients in user space, with this I/O engine for the underlying device.
    Nbd(&'static str),
    /// A block device or a file.
    Via(&'static str),
}

const STORAGE: [(Loss, Store); 8] = [
    (Loss::Error, Store::Ext4),
    (Loss::WriteErrors, Store::Xfs),
    (Loss::Thin, Store::Device),
    (Loss::WriteErrors, Store::Ext4),
    (Loss::Error, Store::Device),
    (Loss::Thin, Store::Ext4),
    (Loss::Error, Store::Xfs),
    (Loss::WriteErrors, Store::Device),
];
const FRONTS: [Front; 5] =
    [Front::Nbd("uring"), Front::Nbd("sync"), Front::Via("ublk"), Front::Via("nbd"), Front::Via("fuse")];

/// A way to lose writes.
#[derive(Clone, Copy)]
struct Way {
    loss: Loss,
    store: Store,
    front: Front,
    first: First,
    clients: usize,
    /// The byte to write.
    fill: u8,
}

impl Way {
    fn name(&self) -> String {
        let front = match self.front {
            Front::Nbd(io) => format!("nbd-{io}"),
            Front::Via(via) => via.to_owned(),
        };
        let Self { loss, store, first, clients, .. } = self;
        format!("{front}-{loss:?}-{store:?}-{first:?}-{clients}")
    }
}

/// Runs the command line.
pub(crate) fn run(words: &[String]) -> Result<ExitCode> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let [what, disk] = words[..] else { bail!("{USAGE}") };
    let ways = match what {
        "some" => some(),
        "all" => all(),
        "race" => races(),
        _ => bail!("{USAGE}"),
    };
    let ground = Ground::new(disk)?;
    let control = Way {
        loss: Loss::Dropped,
        store: Store::Device,
        front: Front::Nbd("uring"),
        first: First::Flush,
        clients: 1,
        fill: 1,
    };
    match ground.lose(control) {
        Ok(wrong) if wrong.is_empty() => println!("fail control lost writes are not noticed"),
        Ok(_) => println!("ok control"),
        Err(error) => {
            println!("fail control {error:#}");
            clear_away();
        }
    }
    let mut lost = 0;
    for (number, way) in ways.into_iter().enumerate() {
        let way = Way { fill: (number % 250) as u8 + 2, ..way };
        match ground.lose(way) {
            Ok(wrong) if wrong.is_empty() => println!("ok {}", way.name()),
            Ok(wrong) => println!("fail {} over lost writes succeeded: {}", way.name(), wrong.join(", ")),
            Err(error) => {
                println!("fail {} {}", way.name(), format!("{error:#}").replace('\n', " "));
                clear_away();
            }
        }
        lost += 1;
    }
    println!("count ways_to_lose_writes {lost}");
    Ok(ExitCode::SUCCESS)
}

/// Returns a selection. Over NBD, thin storage fails the durable write first: it alone returns `ENOSPC`.
fn some() -> Vec<Way> {
    let mut ways = Vec::new();
    for (of_front, front) in FRONTS.into_iter().enumerate() {
        for (of_first, first) in First::ALL.into_iter().enumerate() {
            let (loss, store) = STORAGE[(5 * of_front + of_first + 7) % STORAGE.len()];
            let clients = if (of_front + of_first).is_multiple_of(2) { 4 } else { 1 };
            ways.push(Way { loss, store, front, first, clients, fill: 0 });
        }
    }
    ways
}

fn all() -> Vec<Way> {
    let mut ways = Vec::new();
    for front in FRONTS {
        for first in First::ALL {
            for (loss, store) in STORAGE {
                ways.extend([1, 4].map(|clients| Way { loss, store, front, first, clients, fill: 0 }));
            }
        }
    }
    ways
}

fn races() -> Vec<Way> {
    let (loss, store) = (Loss::WriteErrors, Store::Ext4);
    let mut ways = Vec::new();
    for _ in 0..RACES {
        for first in [First::ConcurrentFlushes, First::DurableWriteDuringFlush, First::WriteBackThenConcurrentFlushes] {
            for front in [Front::Nbd("uring"), Front::Via("ublk"), Front::Via("fuse")] {
                ways.push(Way { loss, store, front, first, clients: 4, fill: 0 });
            }
        }
    }
    ways
}

/// Runs a program of the guest.
fn call(program: &str, words: &[&str]) -> Result<()> {
    let ended = Command::new(program).args(words).output().with_context(|| format!("cannot run {program}"))?;
    let said = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.success(), "{program} {}: {}, {said}", words.join(" "), ended.status);
    Ok(())
}

fn create(name: &str, table: &str) -> Result<()> {
    call("dmsetup", &["create", name, "--table", table])
}

fn remove(name: &str) -> Result<()> {
    call("dmsetup", &["remove", "--retry", name])
}

/// Converts MiB to sectors.
fn sectors(mib: u64) -> u64 {
    mib << 11
}

/// The disk, and the positions on it.
struct Ground {
    disk: String,
}

impl Ground {
    /// Creates the file systems, each with an image in it.
    fn new(disk: &str) -> Result<Self> {
        let this = Self { disk: disk.to_owned() };
        fs::write(KEY, [5; 32])?;
        let key = "05".repeat(32);
        let len = sectors(IMAGE);
        // The line without a cipher makes requests to the volume go through the page cache.
        let table = format!("0 {len} crypt aes-xts-plain64 {key} 0 {LOW} 0\n{len} 8 linear {LOW} {len}\n");
        fs::write(TABLE, table)?;
        for store in [Store::Ext4, Store::Xfs] {
            create("low", &this.sound(store))?;
            make_file_system(store)?;
            mount(store)?;
            fs::write(IMAGE_PATH, vec![1; (IMAGE << 20) as usize])?;
            call("umount", &[MOUNTED])?;
            remove("low")?;
        }
        Ok(this)
    }

    /// Returns the start of the storage of this kind, in MiB.
    fn start(store: Store) -> u64 {
        match store {
            Store::Ext4 => 0,
            Store::Xfs => LEN,
            Store::Device => 2 * LEN,
        }
    }

    /// Returns the start of thin storage; its metadata are 4 MiB before it.
    fn thin_start() -> u64 {
        2 * LEN + 64
    }

    /// Returns the table of working storage.
    fn sound(&self, store: Store) -> String {
        let len = if store == Store::Device { 2 * IMAGE } else { LEN };
        format!("0 {} linear {} {}", sectors(len), self.disk, sectors(Self::start(store)))
    }

    /// Returns the table of failing storage.
    fn failing(&self, loss: Loss, store: Store) -> String {
        let sound = self.sound(store);
        let words: Vec<&str> = sound.split(' ').collect();
        let (len, place) = (words[1], words[3..].join(" "));
        match loss {
            Loss::Error => format!("0 {len} error"),
            Loss::WriteErrors => format!("0 {len} flakey {place} 0 3600 1 error_writes"),
            Loss::Dropped => format!("0 {len} flakey {place} 0 3600 1 drop_writes"),
            Loss::Thin => sound,
        }
    }

    /// Sets up storage for the volume.
    fn prepare(&self, way: Way) -> Result<()> {
        if way.loss != Loss::Thin {
            create("low", &self.sound(way.store))?;
            return if way.store == Store::Device { Ok(()) } else { mount(way.store) };
        }
        let start = sectors(Self::thin_start());
        create("meta", &format!("0 {} linear {} {start}", sectors(4), self.disk))?;
        create("room", &format!("0 {} linear {} {}", sectors(ROOM), self.disk, start + sectors(4)))?;
        // The first block is enough to identify the metadata.
        let meta = File::options().write(true).open("/dev/mapper/meta")?;
        meta.write_all_at(&[0; 4096], 0)?;
        meta.sync_all()?;
        drop(meta);
        let pool = format!("0 {} thin-pool /dev/mapper/meta /dev/mapper/room 128 0 1 error_if_no_space", sectors(ROOM));
        create("pool", &pool)?;
        for number in ["0", "1"] {
            call("dmsetup", &["message", "pool", "0", &format!("create_thin {number}")])?;
        }
        create("low", &format!("0 {} thin /dev/mapper/pool 0", sectors(2 * ROOM)))?;
        if way.store == Store::Ext4 {
            make_file_system(way.store)?;
            mount(way.store)?;
            // Blocks that belong to the file, but were never written.
            let image = File::create(IMAGE_PATH)?;
            rustix::fs::fallocate(&image, rustix::fs::FallocateFlags::empty(), 0, IMAGE << 20)?;
            image.sync_all()?;
            rustix::fs::syncfs(&image)?;
        }
        // A second thin device uses up the rest of the space.
        create("eater", &format!("0 {} thin /dev/mapper/pool 1", sectors(2 * ROOM)))?;
        let eaten = call("dd", &["if=/dev/zero", "of=/dev/mapper/eater", "bs=64k", "oflag=direct"]);
        ensure!(eaten.is_err(), "thin storage has room for all");
        remove("eater")
    }

    /// Makes the storage fail.
    fn fail(&self, way: Way) -> Result<()> {
        if way.loss == Loss::Thin { Ok(()) } else { reload(&self.failing(way.loss, way.store)) }
    }

    /// Drops the storage's data from the page cache. Failing storage is repaired afterwards.
    fn mend(&self, way: Way) -> Result<()> {
        if way.store != Store::Device {
            call("umount", &[MOUNTED])?;
        }
        if way.loss != Loss::Thin {
            reload(&self.sound(way.store))?;
        }
        if way.store == Store::Device { Ok(()) } else { mount(way.store) }
    }

    fn remove(way: Way) -> Result<()> {
        if way.store != Store::Device {
            call("umount", &[MOUNTED])?;
        }
        remove("low")?;
        let below: &[&str] = if way.loss == Loss::Thin { &["pool", "room", "meta"] } else { &[] };
        below.iter().try_for_each(|name| remove(name))
    }

    /// Loses writes in one way, and returns the requests that succeeded nevertheless.
    fn lose(&self, way: Way) -> Result<Vec<&'static str>> {
        self.prepare(way).context("cannot prepare")?;
        let mut served = Served::start(way)?;
        let mut clients: Vec<_> = (0..way.clients).map(|_| served.client()).collect::<Result<_>>()?;
        write(&mut clients, WRITTEN, way.fill)?;
        let written = way.stored()?;
        self.fail(way)?;
        let write_back = || {
            rustix::fs::sync();
            Ok(())
        };
        let mut wrong = ask(&mut clients, way.first, BLOCKS, write_back)?;
        drop(clients);
        if served.end()? {
            wrong.push("the end of the process");
        }
        self.mend(way).context("cannot mend")?;
        let found = way.stored()?;
        Self::remove(way).context("cannot remove")?;
        ensure!(found != written, "nothing is lost");
        Ok(wrong)
    }
}

fn make_file_system(store: Store) -> Result<()> {
    match store {
        Store::Xfs => call("mkfs.xfs", &["-q", "-f", LOW]),
        _ => call("mkfs.ext4", &["-q", "-F", "-b", "4096", LOW]),
    }
}

fn mount(store: Store) -> Result<()> {
    call("mount", &["-t", if store == Store::Xfs { "xfs" } else { "ext4" }, LOW, MOUNTED])
}

/// Removes the remains of an aborted case, so that the next one can run.
fn clear_away() {
    // A missing object needs no removal.
    let _ = call("umount", &["-l", MOUNTED]);
    let _ = call("dmsetup", &["remove_all", "--force"]);
}

/// Loads another table, without writeback before.
fn reload(table: &str) -> Result<()> {
    call("dmsetup", &["reload", "low", "--table", table])?;
    call("dmsetup", &["suspend", "--nolockfs", "--noflush", "low"])?;
    call("dmsetup", &["resume", "low"])
}

impl Way {
    /// Reads the data as stored, or from the page cache until that is dropped.
    fn stored(&self) -> Result<Vec<u8>> {
        let mut stored = vec![0; WRITTEN];
        let path = if self.store == Store::Device { LOW } else { IMAGE_PATH };
        File::open(path)?.read_exact_at(&mut stored, 0)?;
        Ok(stored)
    }

    /// Adds the arguments that name the volume to a command.
    fn name_volume(&self, command: &mut Command) {
        if self.store == Store::Device {
            command.args(["--table", TABLE]);
        } else {
            command.args([IMAGE_PATH, "--type", "plain", "--key-file", KEY]);
        }
    }
}

/// The process that serves the volume.
struct Served {
    child: Child,
    front: Front,
    /// Path of the device or the file.
    path: String,
}

impl Served {
    fn start(way: Way) -> Result<Self> {
        let mut command = Command::new("inlock");
        match way.front {
            Front::Nbd(io) => {
                command.arg("serve").args(["--nbd", &format!("unix:{SOCKET}"), "--io", io, "--threads", "2"]);
            }
            Front::Via(via) => {
                command.args(["open", "--foreground", "--via", via]);
            }
        }
        way.name_volume(&mut command);
        if let Front::Via(_) = way.front {
            command.arg("faults");
        }
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(LOG)?).spawn()?;
        let mut path = String::new();
        BufReader::new(child.stdout.take().context("no output")?).read_line(&mut path)?;
        ensure!(!path.is_empty(), "cannot serve: {}", fs::read_to_string(LOG)?);
        Ok(Self { child, front: way.front, path: path.trim_end().to_owned() })
    }

    fn client(&self) -> Result<Client> {
        match self.front {
            Front::Nbd(_) => Client::of_socket(Path::new(SOCKET)),
            Front::Via(via) => Client::of_file(Path::new(&self.path), via != "fuse"),
        }
    }

    /// Stops it, and returns whether it reports success.
    fn end(&mut self) -> Result<bool> {
        let pid = Pid::from_raw(self.child.id().cast_signed()).context("no process")?;
        rustix::process::kill_process(pid, Signal::TERM)?;
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status.success());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        bail!("the process does not end: {}", fs::read_to_string(LOG)?)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Only after an error.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
