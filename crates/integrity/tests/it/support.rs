//! Volumes in memory.

use inlock_engine::store::memory::MemoryStore;
use inlock_integrity::{FormatOptions, Mode, OpenOptions, Stores, TagHash};
use std::sync::Arc;

pub(crate) fn hash(name: &str) -> Arc<TagHash> {
    let algorithm: inlock_integrity::TagAlgorithm = name.parse().unwrap();
    let key: &[u8] = if algorithm.is_keyed() { &[0x42; 32] } else { &[] };
    Arc::new(TagHash::new(algorithm, key).unwrap())
}

pub(crate) fn memory(bytes: Vec<u8>) -> Arc<MemoryStore> {
    Arc::new(MemoryStore::new(bytes))
}

/// Returns options that open what `format` made.
pub(crate) fn open_options(mode: Mode, format: &FormatOptions) -> OpenOptions {
    let mut options = OpenOptions::new(mode);
    options.tag_size = format.tag_size;
    options.internal_hash = format.internal_hash.clone();
    options.journal_mac = format.journal_mac.clone();
    options.journal_cipher = format.journal_cipher.clone();
    options.sectors_per_bit = Some(format.sectors_per_bit);
    options
}

/// Formats devices of these lengths and returns their bytes.
pub(crate) fn formatted(options: &FormatOptions, len: usize, meta: Option<usize>) -> (Vec<u8>, Option<Vec<u8>>) {
    let data = memory(vec![0; len]);
    let meta = meta.map(|len| memory(vec![0; len]));
    let stores = Stores { data: data.clone(), meta: meta.clone().map(|meta| meta as _), start: 0 };
    inlock_integrity::format(&stores, options).unwrap();
    (data.contents(), meta.map(|meta| meta.contents()))
}

/// Pseudo-random numbers (xorshift64).
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end.max(1)
    }
}

/// Returns the content of a block that has `value`: every sector is alike.
pub(crate) fn fill(block: u64, value: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| value ^ (block as u8).wrapping_mul(31) ^ (at % 512) as u8).collect()
}

/// Returns a tag of the caller's.
pub(crate) fn tuple(data: &[u8], len: usize) -> Vec<u8> {
    let sum = hash("sha512").digest(&[data]);
    (0..len).map(|at| sum[at % 64]).collect()
}
