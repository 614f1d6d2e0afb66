//! The engine: threads that pass the data units of jobs to the kernel.

use crate::api::{CryptoApi, Session, Transform};
use crate::error::AfAlgError;
use crate::sockets::Sockets;
use inlock_cipher::{
    ChainMode, Cipher, CipherSpec, DataUnitSize, InOut, IvNumber, IvNumbering, SectorCipher, UnitIvs,
    new_sector_cipher, scrub_stack,
};
use inlock_engine::{CipherEngine, CipherJob, Direction, EngineKey, EngineKeySpec};
use std::panic::AssertUnwindSafe;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Length in bytes of the shortest request for the engine, unless the user measured another one: a shorter one waits
/// longer for the thread than a CPU with AES instructions needs to encrypt it.
pub const DEFAULT_MIN_LEN: usize = 128 << 10;
/// Environment variable that names the kernel's driver.
pub const DRIVER_VARIABLE: &str = "INLOCK_AFALG_DRIVER";
/// Maximum number of threads, each with a session for each key.
const MAX_THREADS: usize = 4;
/// Jobs that wait for each thread. Further ones are refused: the worker has nothing else to do.
const QUEUED_PER_THREAD: usize = 2;
/// Data units whose IVs are made at a time.
const BATCH: usize = 64;
/// Length of the stack that a cipher call in software may have used.
const CIPHER_STACK: usize = 8 << 10;

/// The kernel's crypto API as a cipher engine.
///
/// Its threads end after it and all its keys are dropped.
pub struct AfAlg {
    api: Box<dyn CryptoApi>,
    sender: SyncSender<Task>,
    threads: usize,
    /// Driver of the kernel, instead of the one that it prefers.
    driver: Option<String>,
}

/// A job for a thread. The key comes first: it is dropped before the job ends.
struct Task {
    key: Arc<Key>,
    job: CipherJob,
}

/// A key in the kernel and, for what the kernel fails, in software.
pub(crate) struct Key {
    /// One for each thread; `None` until its first job, and after a failure.
    sessions: Vec<Mutex<Option<Box<dyn Session>>>>,
    transform: Box<dyn Transform>,
    ivs: UnitIvs,
    software: Box<dyn SectorCipher>,
}

struct Handle {
    key: Arc<Key>,
    sender: SyncSender<Task>,
}

impl AfAlg {
    /// Starts an engine with a thread for each CPU, at most four. The environment variable [`DRIVER_VARIABLE`] names
    /// another driver of the kernel than the one that it prefers, as `/proc/crypto` has it.
    ///
    /// # Errors
    ///
    /// Fails if the kernel has no AF_ALG sockets, or a thread cannot be started.
    pub fn start() -> Result<Self, AfAlgError> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let mut engine = Self::over(Box::new(Sockets::new()?), cpus.min(MAX_THREADS))?;
        engine.driver = std::env::var(DRIVER_VARIABLE).ok().filter(|driver| !driver.is_empty());
        Ok(engine)
    }

    /// Starts an engine with this number of threads over a crypto API.
    pub(crate) fn over(api: Box<dyn CryptoApi>, threads: usize) -> Result<Self, AfAlgError> {
        let (sender, receiver) = sync_channel(threads * QUEUED_PER_THREAD);
        let receiver = Arc::new(Mutex::new(receiver));
        for number in 0..threads {
            let receiver = Arc::clone(&receiver);
            std::thread::Builder::new()
                .name(format!("inlock-afalg-{number}"))
                .spawn(move || work(number, &receiver))
                .map_err(|source| AfAlgError::System { action: "start a thread", source })?;
        }
        Ok(Self { api, sender, threads, driver: None })
    }

    /// Checks that the kernel takes the key, and encrypts and decrypts as Inlock does.
    ///
    /// # Errors
    ///
    /// Fails if it does not.
    pub fn check(
        &self,
        spec: &CipherSpec,
        key: &[u8],
        unit: DataUnitSize,
        numbering: IvNumbering,
    ) -> Result<(), AfAlgError> {
        self.open(spec, key, unit, numbering).map(drop)
    }

    pub(crate) fn open(
        &self,
        spec: &CipherSpec,
        key: &[u8],
        unit: DataUnitSize,
        numbering: IvNumbering,
    ) -> Result<Key, AfAlgError> {
        let unknown = || AfAlgError::Cipher(*spec);
        let algorithm = algorithm(spec).ok_or_else(unknown)?;
        let algorithm = self.driver.as_deref().unwrap_or(algorithm);
        let ivs = UnitIvs::new(spec, key, unit, numbering).ok_or_else(unknown)?;
        let software = new_sector_cipher(spec, key, unit, numbering).map_err(|_| unknown())?;
        let transform = self.api.open(algorithm, key)?;
        let sessions = (0..self.threads).map(|_| Mutex::default()).collect();
        let key = Key { sessions, transform, ivs, software };
        match key.agrees() {
            Some(true) => Ok(key),
            Some(false) => Err(AfAlgError::Wrong(algorithm.to_owned())),
            None => Err(AfAlgError::Fails(algorithm.to_owned())),
        }
    }
}

/// Returns the kernel's name of the algorithm. `None`: the engine does not have it.
fn algorithm(spec: &CipherSpec) -> Option<&'static str> {
    match (spec.cipher, spec.mode) {
        (Cipher::Aes, ChainMode::Xts) => Some("xts(aes)"),
        (Cipher::Aes, ChainMode::Cbc) => Some("cbc(aes)"),
        _ => None,
    }
}

impl CipherEngine for AfAlg {
    fn open_key(&self, spec: &EngineKeySpec<'_>) -> Option<Box<dyn EngineKey>> {
        let key = self.open(spec.cipher, spec.key.as_bytes(), spec.unit, spec.large_iv.into()).ok();
        scrub_stack::<CIPHER_STACK>();
        Some(Box::new(Handle { key: Arc::new(key?), sender: self.sender.clone() }))
    }
}

impl EngineKey for Handle {
    fn submit(&self, job: CipherJob) -> Result<(), CipherJob> {
        self.sender.try_send(Task { key: Arc::clone(&self.key), job }).map_err(|unsent| match unsent {
            TrySendError::Full(task) | TrySendError::Disconnected(task) => task.job,
        })
    }
}

impl Key {
    /// Returns whether the kernel processes two consecutive units as the software does, at both ends of IV numbers.
    /// `None`: an operation fails.
    fn agrees(&self) -> Option<bool> {
        let plain: Vec<u8> = (0..2 * self.software.unit().bytes()).map(|at| (at * 7 + 1) as u8).collect();
        let mut agrees = true;
        for first in [IvNumber(0), IvNumber(u64::MAX)] {
            let (mut expected, mut data) = (plain.clone(), plain.clone());
            self.software.encrypt(first, InOut::InPlace(&mut expected));
            self.process_all(Direction::Encrypt, first, &mut data)?;
            agrees &= data == expected;
            self.process_all(Direction::Decrypt, first, &mut data)?;
            agrees &= data == plain;
        }
        Some(agrees)
    }

    fn process_all(&self, direction: Direction, first: IvNumber, data: &mut [u8]) -> Option<()> {
        (self.process(0, direction, first, data) == data.len()).then_some(())
    }

    /// Processes whole data units in the kernel, as thread `thread`. Returns the number of bytes that are done; the
    /// others are unchanged.
    pub(crate) fn process(&self, thread: usize, direction: Direction, first: IvNumber, data: &mut [u8]) -> usize {
        let mut place = lock(&self.sessions[thread]);
        // A session that fails is closed: nothing is known of its state.
        let Some(mut session) = place.take().or_else(|| self.transform.session().ok()) else { return 0 };
        let unit = self.software.unit().bytes();
        let (mut ivs, mut units) = ([[0; 16]; BATCH], 0);
        for batch in data.chunks_mut(BATCH * unit) {
            let ivs = &mut ivs[..batch.len() / unit];
            self.ivs.fill(self.ivs.after(first, units), ivs);
            let done = session.process(direction, ivs, batch);
            units += done;
            if done != ivs.len() {
                return units * unit;
            }
        }
        *place = Some(session);
        data.len()
    }

    /// Processes in software the data units from byte `at` on.
    pub(crate) fn process_rest(&self, direction: Direction, first: IvNumber, at: usize, data: &mut [u8]) {
        let first = self.ivs.after(first, at / self.software.unit().bytes());
        match direction {
            Direction::Encrypt => self.software.encrypt(first, InOut::InPlace(&mut data[at..])),
            Direction::Decrypt => self.software.decrypt(first, InOut::InPlace(&mut data[at..])),
        }
        scrub_stack::<CIPHER_STACK>();
    }
}

/// Carries out jobs until the engine and its keys are dropped.
fn work(thread: usize, receiver: &Mutex<Receiver<Task>>) {
    loop {
        let next = lock(receiver).recv();
        let Ok(task) = next else { return };
        // A panic must not end the thread. The job is dropped, and so has failed.
        let _ = std::panic::catch_unwind(AssertUnwindSafe(|| run(thread, task)));
    }
}

fn run(thread: usize, mut task: Task) {
    let (first, direction) = (task.job.first(), task.job.direction());
    let data = task.job.data_mut();
    let len = data.len();
    let done = task.key.process(thread, direction, first, data);
    if done < len {
        task.key.process_rest(direction, first, done, data);
        task.job.note_fallback();
    }
    let Task { key, job } = task;
    drop(key);
    job.complete(Ok(len));
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
