//! Slot for an asynchronous cipher engine, such as an accelerator; empty by default.
//!
//! An engine takes the cipher work of whole requests and completes them in any order, on any thread. What it refuses,
//! the worker does inline. A job owns its buffer until it ends, and shares the keys. A job that is dropped has failed:
//! the request gets an I/O error and its buffer back.

use crate::buffer::Buffer;
use crate::ciphertext::Ciphertext;
use crate::errno::Errno;
use crate::events::{Crypted, Event, ReplyTo};
use crate::mapping::{MappedRange, Mapping};
use inlock_cipher::{CipherSpec, DataUnitSize, IvNumber, VolumeKey};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// An asynchronous cipher engine.
///
/// Nothing checks what it returns: an engine that encrypts wrongly destroys the data that it is given.
pub trait CipherEngine: Send + Sync {
    /// Takes over a key. Returns `None` if the engine lacks the cipher or has no room: its work is then done in
    /// software.
    fn open_key(&self, spec: &EngineKeySpec<'_>) -> Option<Box<dyn EngineKey>>;
}

/// A key in an engine. Dropping it wipes the key; no job is in flight then.
pub trait EngineKey: Send + Sync {
    /// Begins a job, without blocking and without a panic.
    ///
    /// # Errors
    ///
    /// Gives the job back, unchanged, if the engine refuses it.
    fn submit(&self, job: CipherJob) -> Result<(), CipherJob>;
}

/// A key and its cipher.
#[non_exhaustive]
#[derive(Debug)]
pub struct EngineKeySpec<'a> {
    /// Cipher, chaining mode and IV mode.
    pub cipher: &'a CipherSpec,
    /// Data unit size.
    pub unit: DataUnitSize,
    /// Whether IV numbers count data units, not sectors of 512 bytes.
    pub large_iv: bool,
    /// The key.
    pub key: &'a VolumeKey,
}

/// Direction of cipher work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Plaintext becomes ciphertext.
    Encrypt,
    /// Ciphertext becomes plaintext.
    Decrypt,
}

/// Cipher work of one request: whole data units, in place.
pub struct CipherJob {
    direction: Direction,
    first: IvNumber,
    len: usize,
    /// `None` once it has ended.
    rest: Option<Rest>,
}

struct Rest {
    buffer: Buffer,
    reply: ReplyTo,
    counters: Arc<Counters>,
    /// The crypt mapping, whose keys stay until the job has ended.
    keys: Arc<dyn Any + Send + Sync>,
}

/// Counters of an engine.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Jobs that it accepted.
    pub accepted: u64,
    /// Jobs that it refused; the worker did the work.
    pub refused: u64,
    /// Accepted jobs that failed; the request got an I/O error.
    pub failed: u64,
    /// Accepted jobs that the engine finished in software, after a failure that changed no data.
    pub fell_back: u64,
    /// Keys that it has now: one for each target of the table, none while they are wiped.
    pub keys: u64,
}

#[derive(Default)]
struct Counters {
    accepted: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    fell_back: AtomicU64,
    keys: AtomicU64,
}

/// An engine, and the requests that it is for.
#[derive(Clone)]
pub(crate) struct EngineSlot {
    engine: Arc<dyn CipherEngine>,
    /// Length in bytes of the shortest request for it.
    min_len: usize,
    counters: Arc<Counters>,
}

/// The keys of one crypt mapping in an engine.
pub(crate) struct EngineKeys {
    /// Of each target; `None` if the engine did not take it.
    keys: Vec<Option<Box<dyn EngineKey>>>,
    min_len: usize,
    counters: Arc<Counters>,
}

impl EngineSlot {
    pub(crate) fn new(engine: Arc<dyn CipherEngine>, min_len: usize) -> Self {
        Self { engine, min_len, counters: Arc::default() }
    }

    pub(crate) fn stats(&self) -> EngineStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counters { accepted, refused, failed, fell_back, keys } = &*self.counters;
        EngineStats {
            accepted: get(accepted),
            refused: get(refused),
            failed: get(failed),
            fell_back: get(fell_back),
            keys: get(keys),
        }
    }

    /// Passes the keys of a table to the engine. There are as many as the table uses.
    pub(crate) fn open_keys(&self, mapping: &Mapping, keys: &[&VolumeKey]) -> EngineKeys {
        let open = |target: &crate::mapping::MappedTarget| {
            let crypt = target.crypt.as_ref()?;
            let (unit, large_iv, key) = (target.unit, target.large_iv, keys[crypt.key]);
            self.engine.open_key(&EngineKeySpec { cipher: &crypt.spec, unit, large_iv, key })
        };
        let keys = EngineKeys {
            keys: mapping.targets.iter().map(open).collect(),
            min_len: self.min_len,
            counters: Arc::clone(&self.counters),
        };
        self.counters.keys.fetch_add(keys.count(), Ordering::Relaxed);
        keys
    }
}

impl Drop for EngineKeys {
    fn drop(&mut self) {
        let count = self.count();
        // The counter is zero only when the engine has no key.
        self.keys.clear();
        self.counters.keys.fetch_sub(count, Ordering::Relaxed);
    }
}

impl EngineKeys {
    fn count(&self) -> u64 {
        self.keys.iter().flatten().count() as u64
    }

    /// Returns whether the cipher work of this range is for the engine.
    pub(crate) fn is_for(&self, range: &MappedRange) -> bool {
        range.aligned_len >= self.min_len && self.keys[range.target as usize].is_some()
    }

    /// Begins the cipher work on the aligned range; the request gets an [`Event::Crypted`]. Returns the buffer if the
    /// engine refuses. `keys` is the crypt mapping that has these keys.
    pub(crate) fn submit(
        &self,
        keys: Arc<dyn Any + Send + Sync>,
        range: &MappedRange,
        direction: Direction,
        buffer: Buffer,
        reply: ReplyTo,
    ) -> Result<(), Buffer> {
        let Some(key) = &self.keys[range.target as usize] else { return Err(buffer) };
        let rest = Rest { buffer, reply, counters: Arc::clone(&self.counters), keys };
        let job = CipherJob { direction, first: range.first, len: range.aligned_len, rest: Some(rest) };
        match key.submit(job).map_err(|mut job| job.rest.take()) {
            Ok(()) | Err(None) => {
                self.counters.accepted.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Err(Some(rest)) => {
                self.counters.refused.fetch_add(1, Ordering::Relaxed);
                Err(rest.buffer)
            }
        }
    }
}

impl CipherJob {
    /// Returns the direction.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// Returns the IV number of the first data unit.
    pub fn first(&self) -> IvNumber {
        self.first
    }

    /// Returns the data units, which the engine encrypts or decrypts in place.
    pub fn data_mut(&mut self) -> &mut [u8] {
        match &mut self.rest {
            Some(rest) => &mut rest.buffer.data_mut()[..self.len],
            None => &mut [],
        }
    }

    /// Counts the job as one that the engine finishes in software. Call it at most once, before the job ends.
    pub fn note_fallback(&self) {
        if let Some(rest) = &self.rest {
            rest.counters.fell_back.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Ends the job with the number of bytes processed, or an error. Any other number than all bytes is an error.
    pub fn complete(mut self, result: Result<usize, Errno>) {
        self.end(result == Ok(self.len));
    }

    fn end(&mut self, succeeded: bool) {
        let Some(Rest { buffer, reply, counters, keys }) = self.rest.take() else { return };
        // The request's event comes last: a worker without requests in flight gives up its keys.
        drop(keys);
        let data = match self.direction {
            _ if !succeeded => {
                counters.failed.fetch_add(1, Ordering::Relaxed);
                Crypted::Poisoned(buffer)
            }
            Direction::Encrypt => Crypted::Encrypted(Ciphertext::encrypted(buffer)),
            Direction::Decrypt => Crypted::Decrypted(buffer),
        };
        reply.post(Event::Crypted { data, calls: 1 });
    }
}

impl Drop for CipherJob {
    fn drop(&mut self) {
        self.end(false);
    }
}

impl std::fmt::Debug for CipherJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CipherJob({:?}, {} bytes from {:?})", self.direction, self.len, self.first)
    }
}
