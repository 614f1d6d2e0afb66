//! Checksums of the old data of a zone, and what they tell after a crash.

use inlock_cipher::HashBatch;
use inlock_volume::Hash;

use super::ciphers::Ciphers;
use crate::error::{Error, ErrorKind, Result, ResultExt as _};

/// Length of the shortest piece of a block that a disk writes whole.
const SECTOR: usize = 512;

/// Most blocks in a run of data that are searched in vain: a crash tears few.
const MAX_SEARCHES: usize = 64;

/// Most sectors of a block that is searched for old and new ones: the effort doubles with each.
const MAX_SECTORS: usize = 8;

/// A digest of each block.
pub(super) struct Checksums {
    hash: HashBatch,
    block: usize,
}

/// What checksums tell about a zone that was being written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Number of blocks that were known to be old or new, whole or in parts.
    pub(super) known: u64,
    /// Number of blocks that had old and new sectors.
    pub(super) torn: u64,
    /// Positions in the volume of blocks that are neither.
    pub(super) unknown: Vec<u64>,
}

impl Verdict {
    pub(super) fn add(&mut self, other: Self) {
        self.known += other.known;
        self.torn += other.torn;
        self.unknown.extend(other.unknown);
    }
}

impl Checksums {
    /// Fails for a hash that Inlock does not have.
    pub(super) fn new(name: &str, block: u32) -> Result<Self> {
        let hash: Hash = name.parse().map_err(|error: inlock_volume::UnknownHash| {
            Error::with_source(ErrorKind::Failed, format!("Hash {name} of the re-encryption is not supported."), error)
        })?;
        let hash = HashBatch::new(hash, &[], &[]).context("cannot hash")?;
        Ok(Self { hash, block: block as usize })
    }

    pub(super) fn block(&self) -> usize {
        self.block
    }

    /// Returns the number of bytes that the digests of `len` bytes take.
    pub(super) fn len_of(&self, len: u64) -> u64 {
        len.div_ceil(self.block as u64).saturating_mul(self.digest_len() as u64)
    }

    /// Returns the length of data whose digests take `room` bytes.
    pub(super) fn fitting(&self, room: u64) -> u64 {
        (room / self.digest_len() as u64).saturating_mul(self.block as u64)
    }

    fn digest_len(&self) -> usize {
        self.hash.hash().len()
    }

    /// Writes the digests of data that begin at a block. The last block may be shorter.
    pub(super) fn digest(&self, data: &[u8], digests: &mut [u8]) {
        let (whole, rest) = data.split_at(data.len() - data.len() % self.block);
        let (of_whole, of_rest) = digests.split_at_mut(whole.len() / self.block * self.digest_len());
        self.hash.digest_blocks(whole, self.block, of_whole, self.digest_len());
        if !rest.is_empty() {
            self.hash.digest_slices(&[rest], of_rest, self.digest_len());
        }
    }

    /// Turns data of a zone that was being written, at byte `at` of the volume, into new data. Blocks that are neither
    /// old nor new stay.
    pub(super) fn renew(&self, ciphers: &Ciphers, at: u64, data: &mut [u8], digests: &[u8]) -> Verdict {
        let mut verdict = Verdict::default();
        let mut position = at;
        for (block, digest) in data.chunks_mut(self.block).zip(digests.chunks(self.digest_len())) {
            let mut old = block.to_vec();
            if self.is(&old, digest) {
                verdict.known += 1;
                ciphers.renew(position, block);
            } else {
                ciphers.restore(position, &mut old);
                if self.is(&old, digest) {
                    verdict.known += 1;
                } else if verdict.unknown.len() < MAX_SEARCHES
                    && let Some(old) = self.untorn(ciphers, position, block, digest)
                {
                    verdict.known += 1;
                    verdict.torn += 1;
                    block.copy_from_slice(&old);
                    ciphers.renew(position, block);
                } else {
                    verdict.unknown.push(position);
                }
            }
            position += block.len() as u64;
        }
        verdict
    }

    fn is(&self, block: &[u8], digest: &[u8]) -> bool {
        let mut own = vec![0; self.digest_len()];
        self.hash.digest_slices(&[block], &mut own, self.digest_len());
        own == digest
    }

    /// Returns the old content of a block of which a crash has left some sectors old and others new. `None`: no choice
    /// of sectors has the digest.
    ///
    /// A sector that is new becomes old with all those before it. This needs a cipher under which a sector depends on
    /// no later one of its data unit: XTS and CBC are such, wide-block modes are not.
    fn untorn(&self, ciphers: &Ciphers, at: u64, block: &[u8], digest: &[u8]) -> Option<Vec<u8>> {
        let sectors = block.len() / SECTOR;
        if !(2..=MAX_SECTORS).contains(&sectors) || !block.len().is_multiple_of(SECTOR) {
            return None;
        }
        self.untorn_from(ciphers, at, block, digest, 0, vec![0; block.len()])
    }

    /// Searches on from a sector. `old` has the old content of those before it, and zeroes.
    fn untorn_from(
        &self,
        ciphers: &Ciphers,
        at: u64,
        block: &[u8],
        digest: &[u8],
        sector: usize,
        old: Vec<u8>,
    ) -> Option<Vec<u8>> {
        let here = sector * SECTOR..(sector + 1) * SECTOR;
        if here.end > block.len() {
            return self.is(&old, digest).then_some(old);
        }
        let mut if_new = old.clone();
        ciphers.renew(at, &mut if_new);
        if_new[here.clone()].copy_from_slice(&block[here.clone()]);
        ciphers.restore(at, &mut if_new);
        let sector_if_new = if_new[here.clone()].to_vec();
        [&block[here.clone()], &sector_if_new].into_iter().find_map(|content| {
            let mut old = old.clone();
            old[here.clone()].copy_from_slice(content);
            self.untorn_from(ciphers, at, block, digest, sector + 1, old)
        })
    }
}
