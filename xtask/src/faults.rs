//! `xtask faults`: tests of lost writes, run in the guest. The storage under a volume fails after it acknowledged
//! writes; from then on, no request that promises them may succeed.
//!
//! `cargo xtask vm` copies this program to the guest as `xtask`. The storage is device-mapper's: it begins to fail when
//! another table is loaded, or has less room than it promises. The result of each case is printed as the guest's
//! reports are (tests/vm/lib.sh).

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

/// Storage below the volume, in MiB: an XFS needs most of this.
const LEN: u64 = 304;
/// Length of the image, or of the encrypted part of the device.
const IMAGE: u64 = 4;
/// How many bytes are written and acknowledged.
const WRITTEN: usize = MIB;
/// The room of thin storage: for a file system, and not for what is written to it.
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

/// How the storage fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    /// All that it is asked for fails.
    Error,
    /// Writes fail, and reads do not.
    WriteErrors,
    /// There is no room for what was written.
    Thin,
    /// Writes succeed and change nothing, which no program can know: the control.
    Dropped,
}

/// Content of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Store {
    Ext4,
    Xfs,
    /// The volume itself, through the kernel's cache.
    Device,
}

/// How clients reach the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Front {
    /// NBD clients in user space, with this way of I/O below.
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

/// One way to lose writes.
#[derive(Clone, Copy)]
struct Way {
    loss: Loss,
    store: Store,
    front: Front,
    first: First,
    clients: usize,
    /// The byte that is written.
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

/// Runs what the words say.
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

/// Chosen so that over NBD thin storage is what a durable write meets first: it alone says `ENOSPC`.
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
        for first in [First::FlushesAtOnce, First::DurableWriteBesideFlush, First::WriteBackThenFlushesAtOnce] {
            for front in [Front::Nbd("uring"), Front::Via("ublk"), Front::Via("fuse")] {
                ways.push(Way { loss, store, front, first, clients: 4, fill: 0 });
            }
        }
    }
    ways
}

/// Runs a program of the guest to its end.
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

/// Sectors of so many MiB.
fn sectors(mib: u64) -> u64 {
    mib << 11
}

/// The disk, and what lies where on it.
struct Ground {
    disk: String,
}

impl Ground {
    /// Makes the file systems, each with an image in it.
    fn new(disk: &str) -> Result<Self> {
        let this = Self { disk: disk.to_owned() };
        fs::write(KEY, [5; 32])?;
        let key = "05".repeat(32);
        let len = sectors(IMAGE);
        // The line without a cipher keeps the volume in the kernel's cache.
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

    /// Where the storage of one kind begins, in MiB.
    fn start(store: Store) -> u64 {
        match store {
            Store::Ext4 => 0,
            Store::Xfs => LEN,
            Store::Device => 2 * LEN,
        }
    }

    /// Where thin storage has its room, and 4 MiB before it what it knows of that.
    fn thin_start() -> u64 {
        2 * LEN + 64
    }

    /// The table of storage that does what it is asked for.
    fn sound(&self, store: Store) -> String {
        let len = if store == Store::Device { 2 * IMAGE } else { LEN };
        format!("0 {} linear {} {}", sectors(len), self.disk, sectors(Self::start(store)))
    }

    /// The table of storage that has begun to fail.
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

    /// Puts storage in place, so that the volume can be served.
    fn prepare(&self, way: Way) -> Result<()> {
        if way.loss != Loss::Thin {
            create("low", &self.sound(way.store))?;
            return if way.store == Store::Device { Ok(()) } else { mount(way.store) };
        }
        let start = sectors(Self::thin_start());
        create("meta", &format!("0 {} linear {} {start}", sectors(4), self.disk))?;
        create("room", &format!("0 {} linear {} {}", sectors(ROOM), self.disk, start + sectors(4)))?;
        // The first block is all that says that something is there.
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
            // Blocks that belong to the file, and that nothing was written to.
            let image = File::create(IMAGE_PATH)?;
            rustix::fs::fallocate(&image, rustix::fs::FallocateFlags::empty(), 0, IMAGE << 20)?;
            image.sync_all()?;
            rustix::fs::syncfs(&image)?;
        }
        // Another one takes what room is left.
        create("eater", &format!("0 {} thin /dev/mapper/pool 1", sectors(2 * ROOM)))?;
        let eaten = call("dd", &["if=/dev/zero", "of=/dev/mapper/eater", "bs=64k", "oflag=direct"]);
        ensure!(eaten.is_err(), "thin storage has room for all");
        remove("eater")
    }

    /// Has the storage begin to fail.
    fn fail(&self, way: Way) -> Result<()> {
        if way.loss == Loss::Thin { Ok(()) } else { reload(&self.failing(way.loss, way.store)) }
    }

    /// Takes the storage out of the kernel's memory; where it failed it is sound again afterwards.
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

    /// Loses writes in one way; what succeeded over them.
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

/// Leaves nothing of a way that could not be gone to its end, so that the next one can.
fn clear_away() {
    // What is not there needs no clearing.
    let _ = call("umount", &["-l", MOUNTED]);
    let _ = call("dmsetup", &["remove_all", "--force"]);
}

/// Loads another table. Nothing is written back before.
fn reload(table: &str) -> Result<()> {
    call("dmsetup", &["reload", "low", "--table", table])?;
    call("dmsetup", &["suspend", "--nolockfs", "--noflush", "low"])?;
    call("dmsetup", &["resume", "low"])
}

impl Way {
    /// The written bytes as stored: from the page cache until that is dropped.
    fn stored(&self) -> Result<Vec<u8>> {
        let mut stored = vec![0; WRITTEN];
        let path = if self.store == Store::Device { LOW } else { IMAGE_PATH };
        File::open(path)?.read_exact_at(&mut stored, 0)?;
        Ok(stored)
    }

    /// Adds the words that name the volume to a command.
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
    /// The device or the file.
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

    /// Ends it; whether it says that all went well.
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
        // After an error.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
