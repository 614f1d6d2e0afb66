//! Acknowledged writes that the kernel loses later: no flush and no FUA write may succeed from then on.
//!
//! The kernel reports an error of write-back once for each open file description, to the sync or the `RWF_DSYNC` write
//! that asks first. `WriteBack` does the same; the writes themselves succeed, as they do when they only reach the page
//! cache.

use crate::scripted::{self, Answer, Ask};
use crate::support::{DATA_OFFSET, device, file_in_memory};
use inlock_engine::Errno;
use inlock_engine::fault_injection::{Call, Fault, Injection, Injector, around, inject};
use inlock_engine::store::file::{FileStore, IoMode};
use inlock_engine::store::{BackingStore, Geometry};
use inlock_engine::{BlockingDevice, ControlError, Device, RequestError};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

const LEN: u64 = 64 << 10;

/// Errors that file systems and block devices report for a lost write: XFS, ext4, quotas, NFS, multipath, thin storage,
/// integrity, and two that elsewhere mean "again".
const ERRORS: [Errno; 14] = [
    Errno::IO,
    Errno::NOSPC,
    Errno::DQUOT,
    Errno::NODATA,
    Errno::TIMEDOUT,
    Errno::NOLINK,
    Errno::REMOTEIO,
    Errno::STALE,
    Errno::NOMEM,
    Errno::ROFS,
    Errno::FBIG,
    Errno::ILSEQ,
    Errno::AGAIN,
    Errno::INTR,
];

/// Write-back error that was not reported yet.
#[derive(Default)]
struct WriteBack {
    unreported: Mutex<Option<Errno>>,
    /// Duration of a sync.
    takes: Duration,
}

impl Injector for WriteBack {
    fn decide(&self, call: Call) -> Option<Fault> {
        if !matches!(call, Call::Sync | Call::Write { durable: true }) {
            return None;
        }
        let error = self.unreported.lock().unwrap().take();
        std::thread::sleep(self.takes);
        error.map(Fault::LateErrno)
    }
}

/// How requests reach the file.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Through {
    Uring,
    Sync,
    /// As FUSE does.
    Blocking,
}

const WAYS: [Through; 3] = [Through::Uring, Through::Sync, Through::Blocking];

struct LossyStore {
    /// First: fields are dropped in this order.
    _injection: Injection,
    file: FileStore,
    write_back: Arc<WriteBack>,
}

impl LossyStore {
    fn new(through: Through, takes: Duration) -> Self {
        let named = file_in_memory();
        named.as_file().set_len(DATA_OFFSET as u64 + LEN).unwrap();
        let file = File::options().read(true).write(true).open(named.path()).unwrap();
        let mode = if through == Through::Uring { IoMode::Uring } else { IoMode::Sync };
        let file = FileStore::new(file, mode).unwrap();
        let write_back = Arc::new(WriteBack { takes, ..WriteBack::default() });
        let injection = inject(file.file().as_fd(), Arc::clone(&write_back) as _);
        Self { _injection: injection, file, write_back }
    }

    fn lose(&self, error: Errno) {
        *self.write_back.unreported.lock().unwrap() = Some(error);
    }
}

impl BackingStore for LossyStore {
    fn geometry(&self) -> Geometry {
        self.file.geometry()
    }
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_fd()
    }
    fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
        self.file.read_at(data, offset)
    }
    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        let write = |len: usize| self.file.write_at(&data[..len], offset);
        around(&*self.write_back, Call::Write { durable: false }, data.len(), write)
    }
    fn sync(&self) -> Result<(), Errno> {
        around(&*self.write_back, Call::Sync, 0, |_| self.file.sync().map(|()| 0)).map(|_| ())
    }
    fn discard(&self, offset: u64, len: u64) -> Result<(), Errno> {
        self.file.discard(offset, len)
    }
}

fn run(device: &Arc<Device>, through: Through, script: Vec<Ask>) -> Vec<Answer> {
    match through {
        Through::Uring => scripted::run(device, IoMode::Uring, 1, script),
        Through::Sync => scripted::run(device, IoMode::Sync, 1, script),
        Through::Blocking => crate::faults::run_blocking(&BlockingDevice::new(Arc::clone(device)), &script),
    }
}

fn write(offset: u64, durable: bool) -> Ask {
    Ask::Write { offset, data: vec![7; 4096], durable }
}

/// First request after the loss.
#[derive(Clone, Copy, Debug, PartialEq)]
enum First {
    Flush,
    Fua,
    DurableTrim,
}

/// Requests that promise stable storage, each twice.
fn promises(through: Through, first: First, client: u64) -> Vec<Ask> {
    if through == Through::Blocking {
        // It has no FUA writes.
        return vec![Ask::Flush; 3];
    }
    let fua = write(client * 4096, true);
    let first = match first {
        First::Flush => Ask::Flush,
        First::Fua => fua.clone(),
        First::DurableTrim => Ask::DurableDiscard { offset: client * 4096, len: 4096 },
    };
    vec![first.clone(), Ask::Flush, fua, first, Ask::Flush]
}

fn lose_writes(through: Through, clients: u64, first: First, error: Errno) {
    let place = format!("{through:?}, {clients} clients, {first:?} first, {error}");
    let takes = if clients > 1 { Duration::from_millis(1) } else { Duration::ZERO };
    let store = Arc::new(LossyStore::new(through, takes));
    let device = device(Arc::clone(&store) as _, 512);
    for client in 0..clients {
        let before = run(&device, through, vec![write(client * 4096, false), Ask::Flush, write(client * 4096, false)]);
        assert!(before.iter().all(Result::is_ok), "{place}: nothing is lost yet: {before:?}");
    }
    store.lose(error);
    let together = Barrier::new(clients as usize);
    std::thread::scope(|scope| {
        for client in 0..clients {
            let (device, place, together) = (&device, &place, &together);
            scope.spawn(move || {
                together.wait();
                let answers = run(device, through, promises(through, first, client));
                let kept: Vec<bool> = answers.iter().map(Result::is_ok).collect();
                assert!(!kept.contains(&true), "{place}: client {client} was promised lost writes: {kept:?}");
            });
        }
    });
    assert!(device.has_lost_writes(), "{place}");
    if through != Through::Blocking {
        // A write that cannot be made durable is not made at all.
        let read = Ask::Read { offset: 0, len: 512 };
        let durable = Ask::Write { offset: 0, data: vec![8; 512], durable: true };
        let answers = run(&device, through, vec![write(0, false), durable, read]);
        assert_eq!(answers[1..], [Err(RequestError::Io(Errno::IO)), Ok(vec![7; 512])], "{place}");
    }
    // All else goes on.
    let rest = run(&device, through, vec![write(0, false), Ask::Read { offset: 0, len: 4096 }]);
    assert!(rest.iter().all(Result::is_ok), "{place}: {rest:?}");
}

#[test]
fn flushes_and_fua_writes_fail_after_lost_writes() {
    let mut cases = 0;
    for through in WAYS {
        for clients in [1, 3] {
            for error in ERRORS {
                for first in [First::Flush, First::Fua, First::DurableTrim] {
                    if through == Through::Blocking && first != First::Flush {
                        continue;
                    }
                    lose_writes(through, clients, first, error);
                    cases += 1;
                }
            }
        }
    }
    println!("COUNT lost_writes_told {cases}");
}

#[test]
fn flushes_at_once_all_fail_after_lost_writes() {
    for through in WAYS {
        for _ in 0..30 {
            lose_writes(through, 4, First::Flush, Errno::IO);
        }
    }
}

#[test]
fn suspend_during_flushes_reports_lost_writes() {
    for through in WAYS {
        for _ in 0..10 {
            let store = Arc::new(LossyStore::new(through, Duration::from_millis(1)));
            let device = device(Arc::clone(&store) as _, 512);
            run(&device, through, vec![write(0, false)]);
            store.lose(Errno::IO);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let answer = run(&device, through, vec![Ask::Flush]).remove(0);
                    assert_eq!(answer, Err(RequestError::Io(Errno::IO)), "{through:?}: the flush");
                });
                let suspended = device.suspend();
                assert!(matches!(suspended, Err(ControlError::Flush(_))), "{through:?}: {suspended:?}");
                device.resume().unwrap();
            });
            assert!(device.has_lost_writes());
            // Told again, and not only the first time.
            assert!(matches!(device.suspend(), Err(ControlError::Flush(_))), "{through:?}");
            assert!(matches!(device.suspend(), Err(ControlError::Flush(_))), "{through:?}: suspended already");
        }
    }
}

/// The negative control: a sync that nothing was lost before succeeds, and so does what follows.
#[test]
fn nothing_fails_where_nothing_was_lost() {
    for through in WAYS {
        let store = Arc::new(LossyStore::new(through, Duration::ZERO));
        let device = device(Arc::clone(&store) as _, 512);
        let answers = run(&device, through, promises(through, First::Fua, 0));
        assert!(answers.iter().all(Result::is_ok), "{through:?}: {answers:?}");
        assert!(!device.has_lost_writes());
    }
}
