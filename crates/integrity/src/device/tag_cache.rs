//! Cache of tag blocks, written back when the device is flushed.

use crate::layout::Layout;
use crate::stores::Stores;
use inlock_engine::Errno;
use inlock_engine::store::{read_all, write_all};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of a cached piece. Tag areas are multiples of it.
const PIECE: usize = 4096;
/// Pieces side by side that share a lock.
const GROUP: u64 = 16;
const SHARDS: usize = 64;
/// Pieces of a shard: 64 shards have 16 MiB at most.
const CAPACITY: usize = 64;

#[derive(Default)]
struct Shard {
    /// Pieces by number. The memory of one that is removed is the next one's.
    pieces: Vec<Piece>,
    clock: u64,
}

struct Piece {
    number: u64,
    bytes: Box<[u8]>,
    dirty: bool,
    used: u64,
}

/// Cached tags of a volume.
pub(super) struct TagCache {
    shards: Vec<Mutex<Shard>>,
    /// Pieces of one write of a flush.
    run: Mutex<Vec<u8>>,
    /// Whether pieces were changed since [`TagCache::has_new_changes`].
    is_dirty: AtomicBool,
}

impl Default for TagCache {
    fn default() -> Self {
        let run = Mutex::new(Vec::with_capacity(GROUP as usize * PIECE));
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), run, is_dirty: AtomicBool::new(false) }
    }
}

impl TagCache {
    /// Reads the tags of `block` and the blocks after it. Returns the number of bytes that were written to make room.
    pub(super) fn read(&self, stores: &Stores, layout: &Layout, block: u64, tags: &mut [u8]) -> Result<u64, Errno> {
        self.each_run(layout, block, tags.len(), |at, range| {
            self.access(stores, layout, at, range.len(), |piece, done, len, _| {
                tags[range.start + done..][..len].copy_from_slice(piece);
            })
        })
    }

    /// Changes the tags of `block` and the blocks after it; they are written when the cache is flushed. Returns the
    /// number of bytes that were written to make room.
    pub(super) fn write(&self, stores: &Stores, layout: &Layout, block: u64, tags: &[u8]) -> Result<u64, Errno> {
        let written = self.each_run(layout, block, tags.len(), |at, range| {
            self.access(stores, layout, at, range.len(), |piece, done, len, dirty| {
                piece.copy_from_slice(&tags[range.start + done..][..len]);
                *dirty = true;
            })
        });
        // After the change: a flush in between has written it, or the next one does.
        if !self.is_dirty.load(Ordering::Relaxed) {
            self.is_dirty.store(true, Ordering::Release);
        }
        written
    }

    /// Whether tags were changed since the last call.
    pub(super) fn has_new_changes(&self) -> bool {
        self.is_dirty.load(Ordering::Relaxed) && self.is_dirty.swap(false, Ordering::Acquire)
    }

    /// Writes all changed pieces, those side by side in one write, and returns the number of bytes. The caller syncs
    /// the store.
    pub(super) fn flush(&self, stores: &Stores, layout: &Layout) -> Result<u64, Errno> {
        let (mut bytes, mut written) = (self.run.lock().unwrap_or_else(PoisonError::into_inner), 0);
        for shard in &self.shards {
            let mut shard = lock(shard);
            let is_run = |a: &Piece, b: &Piece| a.dirty && b.dirty && a.number + 1 == b.number;
            for run in shard.pieces.chunk_by_mut(is_run).filter(|run| run[0].dirty) {
                bytes.clear();
                run.iter().for_each(|piece| bytes.extend_from_slice(&piece.bytes));
                write_all(stores.metadata(), &bytes, layout.tags_at() + run[0].number * PIECE as u64)?;
                run.iter_mut().for_each(|piece| piece.dirty = false);
                written += bytes.len() as u64;
            }
        }
        Ok(written)
    }

    /// Calls `f` for each run of tags that follow each other on the store, and returns the sum of its results.
    fn each_run(
        &self,
        layout: &Layout,
        mut block: u64,
        len: usize,
        mut f: impl FnMut(u64, std::ops::Range<usize>) -> Result<u64, Errno>,
    ) -> Result<u64, Errno> {
        let (mut done, mut written, tag_size) = (0, 0, layout.journal.tag_size);
        while done < len {
            let (at, run) = layout.tag_position(block);
            let count = run.min(((len - done) / tag_size) as u64);
            let end = done + count as usize * tag_size;
            written += f(at, done..end)?;
            (block, done) = (block + count, end);
        }
        Ok(written)
    }

    fn access(
        &self,
        stores: &Stores,
        layout: &Layout,
        at: u64,
        len: usize,
        mut f: impl FnMut(&mut [u8], usize, usize, &mut bool),
    ) -> Result<u64, Errno> {
        let (base, mut done, mut written) = (layout.tags_at(), 0, 0);
        while done < len {
            let offset = at - base + done as u64;
            let (number, inside) = (offset / PIECE as u64, (offset % PIECE as u64) as usize);
            let take = (PIECE - inside).min(len - done);
            let mut shard = lock(&self.shards[(number / GROUP % SHARDS as u64) as usize]);
            shard.clock += 1;
            let clock = shard.clock;
            let place = shard.pieces.binary_search_by_key(&number, |piece| piece.number);
            let place = match place {
                Ok(place) => place,
                Err(_) => {
                    let (bytes, evicted) = shard.take_memory(stores, base)?;
                    written += evicted;
                    shard.load(stores, base, number, bytes)?
                }
            };
            let piece = &mut shard.pieces[place];
            piece.used = clock;
            f(&mut piece.bytes[inside..inside + take], done, take, &mut piece.dirty);
            done += take;
        }
        Ok(written)
    }
}

impl Shard {
    /// Returns memory for a piece, and the number of bytes written. If the shard is full it is that of the piece that
    /// was not used for longest, which is written if it was changed.
    fn take_memory(&mut self, stores: &Stores, base: u64) -> Result<(Box<[u8]>, u64), Errno> {
        let oldest = self.pieces.iter().enumerate().min_by_key(|(_, piece)| (piece.dirty, piece.used));
        let Some((place, piece)) = oldest.filter(|_| self.pieces.len() >= CAPACITY) else {
            return Ok((vec![0; PIECE].into_boxed_slice(), 0));
        };
        let written = if piece.dirty { PIECE as u64 } else { 0 };
        if piece.dirty {
            write_all(stores.metadata(), &piece.bytes, base + piece.number * PIECE as u64)?;
        }
        Ok((self.pieces.remove(place).bytes, written))
    }

    /// Reads a piece to `bytes`, and returns its place in the shard.
    fn load(&mut self, stores: &Stores, base: u64, number: u64, mut bytes: Box<[u8]>) -> Result<usize, Errno> {
        read_all(stores.metadata(), &mut bytes, base + number * PIECE as u64)?;
        let place = self.pieces.partition_point(|piece| piece.number < number);
        self.pieces.reserve_exact(CAPACITY - self.pieces.len());
        self.pieces.insert(place, Piece { number, bytes, dirty: false, used: 0 });
        Ok(place)
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}
