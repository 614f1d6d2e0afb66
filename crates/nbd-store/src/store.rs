//! The store as the engine uses it, and the queue to its thread.

use crate::dial::dial;
use crate::driver::Driver;
use crate::error::OpenError;
use crate::job::{Job, Kind, Owner};
use crate::options::{ExportFacts, StoreOptions};
use crate::shared::Shared;
use crate::tls::Tls;
use crate::uri::{NbdUri, encode};
use inlock_engine::store::asynchronous::{self, AsyncStore, Pending};
use inlock_engine::store::gathered;
use inlock_engine::{BackingStore, BlockStatus, Errno, Geometry, StoreProfile};
use inlock_frontend::connect::report_after;
use inlock_frontend::nbd::protocol::{STATE_HOLE, STATE_ZERO, transmission_flag};
use rustix::event::EventfdFlags;
use std::io::IoSlice;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest wait for extents, which a worker may ask for. Without an answer the range counts as allocated.
const EXTENTS_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest time that counts: a year.
const MAX_TIME: Duration = Duration::from_secs(365 * 86_400);
/// Longest read or write of a caller that blocks, in bytes: a multiple of every block size.
const MAX_CALL: u32 = 1 << 20;
/// Longest range of one query of extents, in bytes: a multiple of every block size.
const MAX_QUERY: u64 = 1 << 30;
/// Flags of an extent that is a hole here. A hole without the second may read as anything, and the engine takes every
/// hole of a store without encryption for zeroes.
const ZERO_HOLE: u64 = (STATE_HOLE | STATE_ZERO) as u64;

/// An export of an NBD server.
///
/// Clones of its `Arc` share the connections. Dropping the last one disconnects.
pub struct NbdStore {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    facts: ExportFacts,
    read_only: bool,
    server: Vec<String>,
    /// Serializes writes of parts of a server's blocks.
    edges: Mutex<()>,
}

impl NbdStore {
    /// Connects to the server, and starts the store's thread. Blocks, at most as long as the options allow.
    ///
    /// # Errors
    ///
    /// The server cannot be reached, refuses, does not have the export, or speaks another protocol.
    pub fn open(uri: &NbdUri, options: &StoreOptions, read_only: bool) -> Result<Self, OpenError> {
        let mut options = options.clone();
        for time in [&mut options.connect_timeout, &mut options.reconnect_delay, &mut options.store_timeout] {
            // Points in time are computed from it.
            *time = (*time).min(MAX_TIME);
        }
        // Once: a process that has restricted itself may no longer read them.
        let tls = uri.tls.as_ref().map(Tls::load).transpose()?;
        let dialed_tls = tls.clone();
        let (sender, receiver) = channel();
        let (dialed_uri, dialed_options) = (uri.clone(), options.clone());
        let unreachable = |source| OpenError::Unreachable { address: uri.address.to_string(), source };
        // A name service may block for longer.
        std::thread::Builder::new()
            .name("inlock-dial".to_owned())
            .spawn(move || sender.send(dial(&dialed_uri, &dialed_options, dialed_tls.as_ref())))
            .map_err(unreachable)?;
        let timed_out =
            || OpenError::TimedOut { address: uri.address.to_string(), seconds: options.connect_timeout.as_secs() };
        let first = report_after(options.connect_timeout);
        let dialed = receiver.recv_timeout(first).or_else(|_| {
            if let Some(notify) = options.notify {
                notify(uri.as_str(), &format!("no answer yet; waiting for {} s", options.connect_timeout.as_secs()));
            }
            // `dial` keeps the same limit, and says more.
            receiver.recv_timeout(options.connect_timeout.saturating_sub(first) + Duration::from_millis(200))
        });
        let dialed = dialed.map_err(|_| timed_out())??;
        let facts = dialed[0].facts;
        let server = dialed[0].server.clone();
        let waker = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let waker = waker.map_err(|error| unreachable(error.into()))?;
        let shared = Arc::new(Shared::new(uri.clone(), options.clone(), tls, waker));
        shared.set_extents(dialed.iter().all(|dialed| dialed.has_extents));
        let driver = Driver::new(Arc::clone(&shared), facts, dialed);
        let thread = std::thread::Builder::new().name("inlock-nbd".to_owned()).spawn(move || driver.run());
        let thread = Some(thread.map_err(unreachable)?);
        let read_only = read_only || facts.is_read_only();
        Ok(Self { shared, thread, facts, read_only, server, edges: Mutex::default() })
    }

    /// Returns the facts of the export.
    pub fn facts(&self) -> &ExportFacts {
        &self.facts
    }

    /// Returns the URI of the export.
    pub fn uri(&self) -> &NbdUri {
        &self.shared.uri
    }

    /// Returns texts that identify the export under all names of its server, when it was opened: stores of one export
    /// have one in common. Those of two exports differ, unless their server ignores the name.
    pub fn aliases(&self) -> Vec<String> {
        let export = encode(&self.uri().export);
        let texts = self.server.iter().map(|server| format!("{server}/{export}"));
        std::iter::once(self.uri().canonical()).chain(texts).collect()
    }

    /// Returns whether the server can put writes on stable storage.
    pub fn can_flush(&self) -> bool {
        self.facts.has_flag(transmission_flag::SEND_FLUSH)
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.shared.options.store_timeout
    }

    /// Returns the whole blocks of the server around a range within the export; `None` if it is made of such.
    fn blocks_around(&self, offset: u64, len: usize) -> Option<(u64, usize)> {
        let block = u64::from(self.facts.min_block);
        let end = offset.saturating_add(len as u64);
        if offset.is_multiple_of(block) && end.is_multiple_of(block) {
            return None;
        }
        let start = offset / block * block;
        let end = end.checked_next_multiple_of(block)?.min(self.facts.size);
        Some((start, usize::try_from(end.saturating_sub(start)).ok()?))
    }
}

impl AsyncStore for NbdStore {
    fn start(&self, pending: Pending) {
        // An unknown operation is dropped, and so has failed.
        if let Some(job) = Job::of(pending, self.deadline()) {
            self.shared.push(job);
        }
    }

    fn abort(&self) {
        self.shared.abort();
    }
}

impl BackingStore for NbdStore {
    fn geometry(&self) -> Geometry {
        let geometry = if self.read_only { Geometry::new_read_only } else { Geometry::new };
        geometry(self.facts.size)
    }

    fn asynchronous(&self) -> Option<&dyn AsyncStore> {
        Some(self)
    }

    fn profile(&self) -> StoreProfile {
        let mut profile = StoreProfile::default();
        // The protocol makes a FUA write's reply one about that write.
        profile.has_native_fua = self.facts.has_flag(transmission_flag::SEND_FUA);
        profile
    }

    fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
        // A call is one request, whose memory is no longer than what it moves.
        let most = self.facts.size.saturating_sub(offset).min(MAX_CALL.min(self.facts.max_payload).into());
        let len = data.len().min(most as usize);
        let Some((start, whole)) = self.blocks_around(offset, len) else {
            return asynchronous::read_at(self, &mut data[..len], offset);
        };
        let mut blocks = vec![0; whole.min(self.facts.max_payload as usize)];
        let read = asynchronous::read_at(self, &mut blocks, start)?;
        let skip = (offset - start) as usize;
        let len = len.min(read.saturating_sub(skip));
        data[..len].copy_from_slice(&blocks[skip..skip + len]);
        Ok(len)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        if self.read_only {
            return Err(Errno::ROFS);
        }
        let data = &data[..data.len().min(MAX_CALL.min(self.facts.max_payload) as usize)];
        let Some((start, whole)) = self.blocks_around(offset, data.len()) else {
            return asynchronous::write_at(self, data, offset, false);
        };
        // A part of a block: read it, change it, write it.
        let _edges = self.edges.lock().unwrap_or_else(PoisonError::into_inner);
        let mut blocks = vec![0; whole.min(self.facts.max_payload as usize)];
        inlock_engine::store::read_all(self, &mut blocks, start)?;
        let skip = (offset - start) as usize;
        let len = data.len().min(blocks.len().saturating_sub(skip));
        blocks[skip..skip + len].copy_from_slice(&data[..len]);
        let mut written = 0;
        while written < blocks.len() {
            match asynchronous::write_at(self, &blocks[written..], start + written as u64, false)? {
                0 => return Err(Errno::IO),
                more => written += more,
            }
        }
        Ok(len)
    }

    fn write_vectored_at(&self, parts: &[IoSlice<'_>], offset: u64) -> Result<usize, Errno> {
        self.write_at(&gathered(parts, MAX_CALL as usize), offset)
    }

    fn write_fua_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        if self.read_only {
            return Err(Errno::ROFS);
        }
        asynchronous::write_at(self, data, offset, true)
    }

    fn sync(&self) -> Result<(), Errno> {
        asynchronous::sync(self)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), Errno> {
        if self.read_only {
            return Err(Errno::ROFS);
        }
        asynchronous::discard(self, offset, len)
    }

    fn block_status(&self, offset: u64, len: u64) -> Result<BlockStatus, Errno> {
        let unknown = Ok(BlockStatus::allocated(offset, len));
        // Whole blocks of the server: a hole of them is one of each of their bytes.
        let asked = len.min(MAX_QUERY) as usize;
        let (start, whole) = self.blocks_around(offset, asked).unwrap_or((offset, asked));
        let head = offset - start;
        if !self.shared.has_extents() || whole as u64 <= head {
            return unknown;
        }
        let (sender, receiver) = channel();
        let deadline = self.deadline().min(Instant::now() + EXTENTS_TIMEOUT);
        self.shared.push(Job::new(Kind::Extents, Owner::Query(sender), start, whole as u64, deadline));
        match receiver.recv_timeout(EXTENTS_TIMEOUT) {
            Ok((found, flags)) if found > head => {
                let is_hole = flags & ZERO_HOLE == ZERO_HOLE;
                let status = if is_hole { BlockStatus::hole } else { BlockStatus::allocated };
                Ok(status(offset, (found - head).min(asked as u64)))
            }
            Err(RecvTimeoutError::Timeout) => {
                // It is not asked again over these connections.
                self.shared.set_extents(false);
                unknown
            }
            // An extent of a part of a block says nothing about the rest.
            Ok(_) | Err(RecvTimeoutError::Disconnected) => unknown,
        }
    }
}

impl Drop for NbdStore {
    fn drop(&mut self) {
        self.shared.close();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has failed its requests.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for NbdStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NbdStore({}, {} bytes)", self.shared.uri, self.facts.size)
    }
}
