//! Forward error correction: parity over the data and the tree, and blocks rebuilt from it.
//!
//! Data, tree, and what is behind the tree on its device are blocks of one length, one after the other. They are
//! divided into as many columns as a code word has symbols without its parity; a *round* is one block of each column. A
//! code word has the byte at one position of all blocks of a round. So a run of bad blocks, shorter than a column, is
//! one block of each of many rounds. Missing blocks at the end are zeroes.

use crate::error::{Area, InvalidField, VerityError, check};
use crate::layout::{Layout, MAX_POSITION};
use crate::reed_solomon::{Code, MAX_ROOTS, SYMBOLS};
use crate::tree::{PIECE_LEN, Stores, on_threads};
use inlock_engine::store::{read_all, write_all};
use inlock_engine::{BackingStore, Errno};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of each block that are rebuilt at a time.
const STRIP_LEN: usize = 4096;

/// Parameters of error correction, which are not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FecParameters {
    /// Bytes of parity in a code word of 255 bytes: 2 to 24. Half as many wrong bytes of a code word are corrected, or
    /// as many if their places are known.
    pub roots: u32,
    /// Number of blocks that are covered: the data, the tree, and what is behind it on its device.
    pub blocks: u64,
    /// First byte of the parity on its device.
    pub offset: u64,
}

/// Error correction of a device.
#[derive(Clone)]
pub struct Fec {
    parity: Arc<dyn BackingStore>,
    parameters: FecParameters,
    code: Code,
    block_len: usize,
    data_blocks: u64,
    rounds: u64,
}

impl Fec {
    /// Checks the parameters, for a device with this layout and its parity in `parity`.
    ///
    /// # Errors
    ///
    /// Names the first parameter that is not possible.
    pub fn new(
        parity: Arc<dyn BackingStore>,
        parameters: FecParameters,
        layout: &Layout,
    ) -> Result<Self, InvalidField> {
        let FecParameters { roots, blocks, offset } = parameters;
        let block_len = layout.data_block_len();
        let same = block_len == layout.hash_block_len();
        let reason = "error correction needs blocks of data and tree of the same length";
        check(same, "hash_block_size", layout.hash_block_len() as u64, reason)?;
        let good = (2..=MAX_ROOTS as u32).contains(&roots);
        check(good, "fec_roots", roots.into(), "a code word has 2 to 24 bytes of parity")?;
        let data_blocks = layout.parameters().data_blocks;
        let least = data_blocks + layout.tree_blocks();
        check(blocks >= least, "fec_blocks", blocks, "the data and the tree have more blocks")?;
        let len = blocks.checked_mul(block_len as u64).filter(|len| *len <= MAX_POSITION);
        check(len.is_some(), "fec_blocks", blocks, "they are longer than a file can be")?;
        let reason = "it is no multiple of the length of a block";
        check(offset.is_multiple_of(block_len as u64), "fec_offset", offset, reason)?;
        let code = Code::new(roots as usize);
        let rounds = blocks.div_ceil(code.message_len() as u64);
        let this = Self { parity, parameters, code, block_len, data_blocks, rounds };
        let end = offset.checked_add(this.parity_len()).filter(|end| *end <= MAX_POSITION);
        check(end.is_some(), "fec_offset", offset, "no device is as long")?;
        Ok(this)
    }

    /// Returns the parameters.
    pub fn parameters(&self) -> &FecParameters {
        &self.parameters
    }

    /// Returns the length of the parity in bytes.
    pub fn parity_len(&self) -> u64 {
        self.rounds * self.block_len as u64 * self.code.roots() as u64
    }

    /// Checks that the devices have everything that is covered, and the parity.
    pub(crate) fn check(&self, stores: &Stores) -> Result<(), InvalidField> {
        let blocks = self.parameters.blocks;
        let covered = (blocks - self.data_blocks) * self.block_len as u64;
        let end = stores.tree_offset.checked_add(covered);
        let fits = covered == 0 || end.is_some_and(|end| end <= stores.hash.geometry().len);
        check(fits, "fec_blocks", blocks, "the hash device ends before the covered blocks do")?;
        let fits = self.parameters.offset + self.parity_len() <= self.parity.geometry().len;
        check(fits, "fec_offset", self.parameters.offset, "the device ends before the parity does")
    }

    /// Returns the number of a block among all that are covered.
    pub(crate) fn number(&self, layout: &Layout, area: Area, block: u64) -> u64 {
        match area {
            Area::Data => block,
            Area::Level(level) => self.data_blocks + layout.levels()[level as usize].start_block + block,
        }
    }

    /// Returns the part of the device that a covered block belongs to, with its number there. `None`: it is behind the
    /// tree.
    pub(crate) fn area_of(&self, layout: &Layout, number: u64) -> Option<(Area, u64)> {
        let Some(at) = number.checked_sub(self.data_blocks) else { return Some((Area::Data, number)) };
        let mut levels = (0..).zip(layout.levels());
        let (level, found) =
            levels.find(|(_, level)| (level.start_block..level.start_block + level.blocks).contains(&at))?;
        Some((Area::Level(level), at - found.start_block))
    }

    /// Returns the covered blocks in the round of a block; their index is that of their symbol in code words.
    pub(crate) fn round_of(&self, number: u64) -> impl Iterator<Item = u64> {
        let (round, rounds, blocks) = (number % self.rounds, self.rounds, self.parameters.blocks);
        (0..self.code.message_len() as u64)
            .map(move |column| column * rounds + round)
            .take_while(move |at| *at < blocks)
    }

    /// Returns the number of bytes of parity in a code word.
    pub(crate) fn roots(&self) -> usize {
        self.code.roots()
    }

    /// Reads from byte `at` of covered block `number` on, over the end of the data; behind the last block are zeroes.
    pub(crate) fn read(&self, stores: &Stores, number: u64, at: usize, mut into: &mut [u8]) -> Result<(), Errno> {
        let len = self.block_len as u64;
        let mut position = number * len + at as u64;
        let (data_end, end) = (self.data_blocks * len, self.parameters.blocks * len);
        while !into.is_empty() {
            let (store, offset, limit) = match position {
                _ if position < data_end => (&stores.data, position, data_end),
                _ if position < end => (&stores.hash, stores.tree_offset + (position - data_end), end),
                _ => {
                    into.fill(0);
                    return Ok(());
                }
            };
            let count = usize::try_from(limit - position).unwrap_or(usize::MAX).min(into.len());
            let (now, rest) = into.split_at_mut(count);
            read_all(&**store, now, offset)?;
            position += count as u64;
            into = rest;
        }
        Ok(())
    }

    /// Computes the parity of a device with its tree, on `threads` threads, and writes it. The caller syncs the store.
    ///
    /// # Errors
    ///
    /// Devices that are too short; the stores' errors.
    pub fn create(&self, stores: &Stores, threads: usize) -> Result<(), VerityError> {
        self.check(stores)?;
        self.create_in_pieces(stores, threads, PIECE_LEN)
    }

    /// Reads up to `piece_len` bytes of each column at a time, at least a block.
    fn create_in_pieces(&self, stores: &Stores, threads: usize, piece_len: usize) -> Result<(), VerityError> {
        let at_a_time = (piece_len / self.block_len).max(1) as u64;
        let next = AtomicU64::new(0);
        let roots = self.code.roots();
        on_threads(threads, self.rounds.div_ceil(at_a_time), |end| {
            let most = at_a_time.min(self.rounds) as usize * self.block_len;
            let (mut piece, mut parity) = (vec![0; most], vec![0; most * roots]);
            loop {
                let round = next.fetch_add(at_a_time, Ordering::Relaxed);
                if round >= self.rounds || end.load(Ordering::Relaxed) {
                    return Ok(());
                }
                let len = at_a_time.min(self.rounds - round) as usize * self.block_len;
                let (piece, parity) = (&mut piece[..len], &mut parity[..len * roots]);
                parity.fill(0);
                for column in 0..self.code.message_len() as u64 {
                    self.read(stores, column * self.rounds + round, 0, piece)
                        .map_err(VerityError::io("read what the parity covers"))?;
                    for (symbol, parity) in piece.iter().zip(parity.chunks_exact_mut(roots)) {
                        self.code.add(parity, *symbol);
                    }
                }
                write_all(&*self.parity, parity, self.parity_at(round, 0))
                    .map_err(VerityError::io("write the parity"))?;
            }
        })
    }

    /// Returns the first byte of the parity of byte `at` of a round.
    fn parity_at(&self, round: u64, at: usize) -> u64 {
        self.parameters.offset + (round * self.block_len as u64 + at as u64) * self.code.roots() as u64
    }

    /// Rebuilds a covered block from the others of its round and the parity; `erased` are symbols that are known to be
    /// wrong. Blocks that cannot be read are erased, too. `None`: there are too many errors. The caller compares the
    /// digest.
    pub(crate) fn rebuild(&self, stores: &Stores, number: u64, erased: &[usize]) -> Option<Vec<u8>> {
        let (round, target) = (number % self.rounds, (number / self.rounds) as usize);
        let strip_len = STRIP_LEN.min(self.block_len);
        let roots = self.code.roots();
        // Those without a block stay zero. Of those that cannot be read the content does not matter.
        let mut strips = vec![0; self.code.message_len() * strip_len];
        let mut parity = vec![0; roots * strip_len];
        let mut rebuilt = Vec::with_capacity(self.block_len);
        for at in (0..self.block_len).step_by(strip_len) {
            let mut erased = erased.to_vec();
            if erased.len() > roots {
                return None;
            }
            let blocks = self.round_of(number).zip(strips.chunks_exact_mut(strip_len));
            for (symbol, (block, strip)) in blocks.enumerate() {
                if self.read(stores, block, at, strip).is_err() && !erased.contains(&symbol) {
                    erased.push(symbol);
                    // Each of a dead device's reads may take its time.
                    if erased.len() > roots {
                        return None;
                    }
                }
            }
            read_all(&*self.parity, &mut parity, self.parity_at(round, at)).ok()?;
            let mut word = [0; SYMBOLS];
            for (byte, parity) in parity.chunks_exact(roots).enumerate() {
                let (message, end) = word.split_at_mut(SYMBOLS - roots);
                for (symbol, strip) in message.iter_mut().zip(strips.chunks_exact(strip_len)) {
                    *symbol = strip[byte];
                }
                end.copy_from_slice(parity);
                self.code.correct(&mut word, &erased)?;
                rebuilt.push(word[target]);
            }
        }
        Some(rebuilt)
    }
}

impl std::fmt::Debug for Fec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fec").field("parameters", &self.parameters).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Parameters;
    use inlock_engine::store::memory::MemoryStore;

    /// More rounds than are computed at a time, the last time fewer: most are blocks behind the tree.
    #[test]
    fn blocks_of_every_round_are_rebuilt() {
        const LEN: usize = 512;
        let parameters = Parameters {
            data_blocks: 2,
            data_block_len: LEN as u32,
            hash_block_len: LEN as u32,
            ..Parameters::default()
        };
        let layout = parameters.layout().unwrap();
        let (rounds, at_a_time) = (7, 3);
        // With a last column that has some blocks, and all.
        for blocks in [253 * (rounds - 1) + 100, 253 * rounds] {
            rebuild_some(&layout, blocks, rounds, at_a_time);
        }
    }

    fn rebuild_some(layout: &Layout, blocks: u64, rounds: u64, at_a_time: usize) {
        const LEN: usize = 512;
        let bytes = |number: u64| (0..LEN as u64).map(|at| ((number * 31 + at * 7) >> 2) as u8).collect::<Vec<u8>>();
        let data = Arc::new(MemoryStore::new([bytes(0), bytes(1)].concat()));
        let hash = Arc::new(MemoryStore::new((2..blocks).flat_map(bytes).collect()));
        let stores = Stores::new(data, hash, 0);
        let parameters = FecParameters { roots: 2, blocks, offset: LEN as u64 };
        let len = LEN as u64 + rounds * 2 * LEN as u64;
        let parity = Arc::new(MemoryStore::new(vec![0x77; len as usize]));
        let fec = Fec::new(parity.clone(), parameters, layout).unwrap();
        assert_eq!(fec.parity_len() + parameters.offset, len);
        fec.create_in_pieces(&stores, 2, at_a_time * LEN).unwrap();
        assert!(parity.contents()[..LEN].iter().all(|byte| *byte == 0x77), "bytes before the parity");
        for number in [2, rounds - 1, rounds, 2 * rounds - 2, 5 * rounds + at_a_time as u64, blocks - 1] {
            stores.hash.write_at(&[0x3c; LEN], (number - 2) * LEN as u64).unwrap();
            assert!(fec.rebuild(&stores, number, &[]) == Some(bytes(number)), "block {number}");
            stores.hash.write_at(&bytes(number), (number - 2) * LEN as u64).unwrap();
        }
    }

    #[test]
    fn covered_blocks_have_their_place_in_data_or_tree() {
        let parameters =
            Parameters { data_blocks: 300, data_block_len: 512, hash_block_len: 512, ..Parameters::default() };
        let layout = parameters.layout().unwrap();
        let blocks = 300 + layout.tree_blocks();
        let parameters = FecParameters { roots: 2, blocks: blocks + 2, offset: 0 };
        let fec = Fec::new(Arc::new(MemoryStore::new(Vec::new())), parameters, &layout).unwrap();
        let mut counts = vec![0; layout.levels().len() + 1];
        for number in 0..blocks {
            let (area, block) = fec.area_of(&layout, number).unwrap();
            assert!(block < area.blocks(&layout) && fec.number(&layout, area, block) == number, "{number}");
            counts[area.level_above() as usize] += 1;
        }
        let expected: Vec<u64> = [300].into_iter().chain(layout.levels().iter().map(|level| level.blocks)).collect();
        assert_eq!(counts, expected);
        assert_eq!([blocks, blocks + 1].map(|number| fec.area_of(&layout, number)), [None, None]);
    }

    /// Memory of which some blocks of 4096 bytes cannot be read.
    struct Unreadable(MemoryStore, Vec<u64>);

    impl BackingStore for Unreadable {
        fn geometry(&self) -> inlock_engine::Geometry {
            self.0.geometry()
        }
        fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
            if self.1.contains(&(offset / 4096)) { Err(Errno::IO) } else { self.0.read_at(data, offset) }
        }
        fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
            self.0.write_at(data, offset)
        }
        fn sync(&self) -> Result<(), Errno> {
            Ok(())
        }
        fn discard(&self, _offset: u64, _len: u64) -> Result<(), Errno> {
            Err(Errno::OPNOTSUPP)
        }
    }

    /// As many blocks of a round as there are roots, at once: their places are known.
    #[test]
    fn unreadable_blocks_are_rebuilt_up_to_the_roots() {
        let layout = Parameters { data_blocks: 100, ..Parameters::default() }.layout().unwrap();
        let data: Vec<u8> = (0..100 * 4096u32).map(|at| (at >> 5 ^ at) as u8).collect();
        let hash = Arc::new(MemoryStore::new(vec![0x5a; layout.tree_len() as usize]));
        let parameters = FecParameters { roots: 3, blocks: 100 + layout.tree_blocks(), offset: 0 };
        let parity = Arc::new(MemoryStore::new(vec![0; 3 * 4096]));
        let fec = Fec::new(parity, parameters, &layout).unwrap();
        let stores = |bad: &[u64]| {
            let store = Unreadable(MemoryStore::new(data.clone()), bad.to_vec());
            Stores::new(Arc::new(store), hash.clone(), 0)
        };
        fec.create(&stores(&[]), 1).unwrap();
        // A block at a time, though it is longer than the piece.
        let parity = fec.parity.clone();
        let all = |at: u64| {
            let mut bytes = vec![0; 3 * 4096];
            read_all(&*parity, &mut bytes, at).unwrap();
            bytes
        };
        let before = all(0);
        fec.create_in_pieces(&stores(&[]), 1, 1).unwrap();
        assert!(all(0) == before);
        let failed = fec.create(&stores(&[42]), 1);
        assert!(matches!(failed, Err(VerityError::Io { source: Errno::IO, .. })), "{failed:?}");
        fec.create(&stores(&[]), 1).unwrap();
        for bad in 0..=4 {
            let bad: Vec<u64> = (0..bad).map(|at| 7 + 13 * at).collect();
            let rebuilt = fec.rebuild(&stores(&bad), 7, &[]);
            let expected = (bad.len() <= 3).then(|| data[7 * 4096..8 * 4096].to_vec());
            assert!(rebuilt == expected, "{bad:?}");
        }
    }
}
