//! Adiantum (Crowley and Biggers, FSE 2018) as in the Linux kernel: XChaCha with 12 or 20 rounds, AES-256, and a hash
//! of NH and Poly1305.
//!
//! A data unit is one block: a change of one bit changes all of it. Its last 16 bytes are the narrow side, the rest is
//! the wide side. Constant time on targets on which the `aes` and `chacha20` crates are. NH and XChaCha have kernels;
//! elsewhere XChaCha is the `chacha20` crate's.

#[cfg(target_arch = "x86_64")]
mod chacha;
mod nh;
mod poly1305;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)] // Vector instructions, behind proof tokens.
mod x86_64;

use super::Chain;
use crate::Cipher;
use crate::block_cipher::{Block, BlockCipher, new_block_cipher};
use crate::isa::{AesKernel, WideKernel};
use crate::locked_box::LockedBox;
use chacha20::cipher::StreamCipher;
use chacha20::{KeyIvInit, XChaCha12, XChaCha20};
use zeroize::Zeroizing;

/// Adiantum under a key.
pub(crate) struct Adiantum {
    keys: LockedBox<Keys>,
    /// AES-256.
    block: Box<dyn BlockCipher>,
    rounds: u8,
    kernel: Option<WideKernel>,
}

/// An expanded key.
struct Keys {
    /// Key of XChaCha.
    stream: [u8; 32],
    /// Hashes length and tweak.
    tweak: poly1305::Key,
    /// Hashes the output of NH for the wide side.
    message: poly1305::Key,
    nh: nh::Key,
}

impl Keys {
    /// To be filled in place.
    const EMPTY: Self =
        Self { stream: [0; 32], tweak: poly1305::Key::EMPTY, message: poly1305::Key::EMPTY, nh: nh::Key::EMPTY };
}

/// Number of units that go through each step together. AES takes little more time for several blocks than for one.
const GROUP: usize = 8;
/// Maximum number of their bytes, which stay in the first-level cache between the steps.
const GROUP_BYTES: usize = 16 << 10;

impl Adiantum {
    /// Expands `key`, which has 32 bytes. XChaCha has 12 or 20 `rounds`.
    pub(crate) fn new(kernel: Option<WideKernel>, key: &[u8; 32], rounds: u8) -> Self {
        let mut material = Zeroizing::new([0; 32 + 16 + 16 + nh::KEY_LEN]);
        xchacha(key, &[], rounds, &mut *material);
        let (block, hashes) = material.split_at(32);
        let (tweak, hashes) = hashes.split_at(16);
        let (message, nh) = hashes.split_at(16);
        let mut keys = LockedBox::new(Keys::EMPTY);
        keys.stream = *key;
        keys.tweak.set(tweak);
        keys.message.set(message);
        keys.nh.set(nh);
        let block = new_block_cipher(AesKernel::Portable, Cipher::Aes, block).expect("32 bytes are an AES key");
        Self { keys, block, rounds, kernel }
    }

    /// Processes one unit for each of `ivs`, which `tweak_of` turns into tweaks.
    fn run(
        &self,
        ivs: &mut [Block],
        tweak_of: impl Fn(Block) -> [Block; 2],
        data: &mut [u8],
        unit_len: usize,
        encrypt: bool,
    ) {
        let group = (GROUP_BYTES / unit_len).clamp(1, GROUP);
        for (middles, units) in ivs.chunks_mut(group).zip(data.chunks_mut(group * unit_len)) {
            let mut tweaks = [0; GROUP];
            for ((middle, tweak), unit) in middles.iter_mut().zip(&mut tweaks).zip(units.chunks_exact(unit_len)) {
                let (wide, narrow) = unit.split_at(unit_len - 16);
                *tweak = self.hash_of_tweak(tweak_of(*middle), wide.len());
                *middle = add(narrow, tweak.wrapping_add(self.hash(wide)));
            }
            if encrypt {
                self.block.encrypt_blocks(middles.as_flattened_mut());
            }
            self.add_streams(middles, units, unit_len);
            if !encrypt {
                self.block.decrypt_blocks(middles.as_flattened_mut());
            }
            for ((middle, tweak), unit) in middles.iter().zip(tweaks).zip(units.chunks_exact_mut(unit_len)) {
                let (wide, narrow) = unit.split_at_mut(unit_len - 16);
                narrow.copy_from_slice(&add(middle, tweak.wrapping_add(self.hash(wide)).wrapping_neg()));
            }
        }
    }

    /// Adds the stream of each of `middles` to the wide side of its unit.
    fn add_streams(&self, middles: &[Block], units: &mut [u8], unit_len: usize) {
        let Self { keys, rounds, kernel, .. } = self;
        match *kernel {
            #[cfg(target_arch = "x86_64")]
            Some(WideKernel::Avx2(proof)) => {
                x86_64::Avx2Kernel::streams(proof, &keys.stream, middles, *rounds, units, unit_len);
            }
            #[cfg(target_arch = "x86_64")]
            Some(WideKernel::Avx512(proof)) => {
                x86_64::Avx512Kernel::streams(proof, &keys.stream, middles, *rounds, units, unit_len);
            }
            _ => {
                for (unit, middle) in units.chunks_exact_mut(unit_len).zip(middles) {
                    xchacha(&keys.stream, middle, *rounds, &mut unit[..unit_len - 16]);
                }
            }
        }
    }

    /// Computes the contribution of the tweak to the hash of a wide side of `len` bytes.
    fn hash_of_tweak(&self, [first, second]: [Block; 2], len: usize) -> u128 {
        let bits = (len as u128 * 8).to_le_bytes();
        self.keys.tweak.hash([bits, first, second].into_iter())
    }

    fn nh_sums(&self, blocks: &[Block]) -> [[u64; 2]; 4] {
        let nh = &self.keys.nh;
        match self.kernel {
            #[cfg(target_arch = "x86_64")]
            Some(WideKernel::Avx2(proof)) => x86_64::Avx2Kernel::nh(proof, nh, blocks),
            #[cfg(target_arch = "x86_64")]
            Some(WideKernel::Avx512(proof)) => x86_64::Avx512Kernel::nh(proof, nh, blocks),
            _ => nh.sums(blocks),
        }
    }

    fn hash(&self, wide: &[u8]) -> u128 {
        let pieces = wide.as_chunks::<16>().0.chunks(nh::MOST_BLOCKS);
        self.keys.message.hash(pieces.flat_map(|piece| nh::hash(self.nh_sums(piece))))
    }
}

impl Chain for Adiantum {
    fn encrypt(&self, ivs: &mut [Block], data: &mut [u8], unit_len: usize) {
        self.run(ivs, padded, data, unit_len, true);
    }

    fn decrypt(&self, ivs: &mut [Block], data: &mut [u8], unit_len: usize) {
        self.run(ivs, padded, data, unit_len, false);
    }
}

/// Returns the tweak that dm-crypt makes of an IV.
fn padded(iv: Block) -> [Block; 2] {
    [iv, [0; 16]]
}

/// XORs the stream of `nonce`, which a one and zeroes extend to 24 bytes.
fn xchacha(key: &[u8; 32], nonce: &[u8], rounds: u8, data: &mut [u8]) {
    let mut padded = [0; 24];
    padded[..nonce.len()].copy_from_slice(nonce);
    padded[nonce.len()] = 1;
    match rounds {
        12 => XChaCha12::new(key.into(), (&padded).into()).apply_keystream(data),
        _ => XChaCha20::new(key.into(), (&padded).into()).apply_keystream(data),
    }
}

/// Adds a number to a block, little-endian, modulo 2^128.
fn add(block: &[u8], number: u128) -> Block {
    let block = block.first_chunk().copied().unwrap_or_default();
    u128::from_le_bytes(block).wrapping_add(number).to_le_bytes()
}
