//! loop-AES's IV (`lmk`), which depends on the plaintext after the first block, in units of 512 bytes.
//!
//! In CBC the IV is XORed to the first block. So it is XORed to the plaintext here, around a CBC with IV zero. After
//! decryption it is computed from the decrypted plaintext, and removed.

use super::Layer;
use crate::locked_box::LockedBox;
use md5::block_api::compress;

/// The IV of loop-AES's second version, or of the third with its seed.
pub(crate) struct Lmk {
    /// The MD5 state before the bytes of a unit: with a seed, after the seed.
    start: LockedBox<[u32; 4]>,
    iv_len: usize,
}

/// MD5's initial state (RFC 1321, section 3.3).
const MD5_START: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];

impl Lmk {
    /// Makes the layer with the first 16 bytes of `seed`, or without if it is empty, for a cipher with blocks of
    /// `iv_len` bytes.
    pub(crate) fn new(seed: &[u8], iv_len: usize) -> Self {
        let mut start = LockedBox::new(MD5_START);
        if !seed.is_empty() {
            let mut block = LockedBox::new([0; 64]);
            block[..16].copy_from_slice(&seed[..16]);
            compress(&mut start, std::slice::from_ref(&*block));
        }
        Self { start, iv_len }
    }
}

impl Layer for Lmk {
    const AROUND_PLAINTEXT: bool = true;

    fn apply(&self, number: u64, unit: &mut [u8]) {
        let (first, rest) = unit.split_at_mut(16);
        let (blocks, tail) = rest.as_chunks::<64>();
        let mut state = *self.start;
        compress(&mut state, blocks);
        // 48 bytes of plaintext remain, then 56 bits of the number and loop-AES's own padding.
        let mut last = [0; 64];
        last[..48].copy_from_slice(tail);
        last[48..52].copy_from_slice(&(number as u32).to_le_bytes());
        last[52..56].copy_from_slice(&((number >> 32) as u32 & 0x00ff_ffff | 0x8000_0000).to_le_bytes());
        last[56..60].copy_from_slice(&4024u32.to_le_bytes());
        compress(&mut state, &[last]);
        let iv = state.map(u32::to_le_bytes);
        for (byte, with) in first.iter_mut().zip(&iv.as_flattened()[..self.iv_len]) {
            *byte ^= with;
        }
    }

    fn undo(&self, number: u64, unit: &mut [u8]) {
        self.apply(number, unit);
    }
}
