//! AES-GCM (NIST SP 800-38D) with IVs of 96 bits.
//!
//! The `aes-gcm` library verifies only tags of a length that is known at compile time; this file computes tags, of
//! which a table may store a part. GHASH is the `ghash` library's.

use super::{Sealer, Tag, Units};
use crate::aes::{self, AesKernel, GcmJob, GcmKeys, MAX_BATCH};
use crate::block_cipher::{Block, BlockCipher, new_block_cipher};
use crate::locked_box::LockedBox;
use crate::modes::{Chain, new_chain};
use crate::{ChainMode, Cipher, DataUnitSize, InOut};
use ghash::GHash;
use ghash::universal_hash::UniversalHash;

/// Returns the sealer of `key`, whose length has been checked.
pub(super) fn new(kernel: AesKernel, key: &[u8], unit: DataUnitSize) -> Box<dyn Sealer> {
    if kernel == AesKernel::Portable {
        return Box::new(Portable::new(key));
    }
    let mut keys = LockedBox::new(GcmKeys::EMPTY);
    keys.schedule.expand(key);
    aes::gcm_powers(kernel, &mut keys, &lengths(unit.bytes()));
    Box::new(Gcm { kernel, keys })
}

/// GCM on a kernel that takes jobs.
struct Gcm {
    kernel: AesKernel,
    keys: LockedBox<GcmKeys>,
}

impl Gcm {
    #[inline(always)]
    fn run(&self, units: &Units<'_>, data: InOut<'_>, tags: &mut [Tag], encrypt: bool) {
        const SMALL: usize = 8;
        if tags.len() <= SMALL {
            self.run_batch::<SMALL>(units, data, tags, encrypt);
        } else {
            self.run_batch::<MAX_BATCH>(units, data, tags, encrypt);
        }
    }

    #[inline(always)]
    fn run_batch<const N: usize>(&self, units: &Units<'_>, data: InOut<'_>, tags: &mut [Tag], encrypt: bool) {
        let (mut counters, mut ad) = ([[0; 16]; N], [[[0; 16]; 2]; N]);
        for (at, iv) in units.ivs.iter().enumerate() {
            counters[at] = first_counter(iv, 1);
            ad[at] = units.additional_blocks(at);
        }
        let mut masks = counters;
        let mut job = GcmJob::new(&self.keys, units.unit, (&counters, &ad, &mut masks), data);
        aes::gcm(self.kernel, &mut job, encrypt);
        for (tag, block) in tags.iter_mut().zip(&masks) {
            tag[..16].copy_from_slice(block);
        }
    }
}

impl Sealer for Gcm {
    fn seal(&self, units: &Units<'_>, data: InOut<'_>, tags: &mut [Tag]) {
        self.run(units, data, tags, true);
    }

    fn open(&self, units: &Units<'_>, data: InOut<'_>, tags: &mut [Tag]) {
        self.run(units, data, tags, false);
    }

    fn kernel(&self) -> &'static str {
        self.kernel.name()
    }
}

/// Length of the additional data: a sector and an IV.
const AD_LEN: usize = 20;

/// GCM on the portable cipher.
struct Portable {
    block: Box<dyn BlockCipher>,
    counter: Box<dyn Chain>,
    hash: LockedBox<GHash>,
}

impl Portable {
    fn new(key: &[u8]) -> Self {
        const LEN: &str = "the key's length was checked";
        let block = new_block_cipher(AesKernel::Portable, Cipher::Aes, key).expect(LEN);
        let mut subkey = zeroize::Zeroizing::new([0; 16]);
        block.encrypt_blocks(&mut *subkey);
        let hash = LockedBox::new(GHash::new((&*subkey).into()));
        Self { block, counter: new_chain(AesKernel::Portable, Cipher::Aes, ChainMode::Ctr, key).expect(LEN), hash }
    }

    fn tags(&self, units: &Units<'_>, ciphertext: &[u8], tags: &mut [Tag]) {
        for (at, (unit, tag)) in ciphertext.chunks_exact(units.unit.bytes()).zip(tags).enumerate() {
            let mut hash = (*self.hash).clone();
            hash.update_padded(&units.additional_data(at)[..AD_LEN]);
            hash.update_padded(unit);
            hash.update(&[lengths(unit.len()).into()]);
            let mut mask = first_counter(&units.ivs[at], 1);
            self.block.encrypt_blocks(&mut mask);
            for (to, (hash, mask)) in tag.iter_mut().zip(hash.finalize().iter().zip(mask)) {
                *to = hash ^ mask;
            }
        }
    }

    fn run(&self, units: &Units<'_>, data: &mut [u8]) {
        for (unit, iv) in data.chunks_exact_mut(units.unit.bytes()).zip(units.ivs) {
            self.counter.encrypt(&mut [first_counter(iv, 2)], unit, units.unit.bytes());
        }
    }
}

impl Sealer for Portable {
    fn seal(&self, units: &Units<'_>, data: InOut<'_>, tags: &mut [Tag]) {
        let data = data.into_in_place();
        self.run(units, data);
        self.tags(units, data, tags);
    }

    fn open(&self, units: &Units<'_>, data: InOut<'_>, tags: &mut [Tag]) {
        let data = data.into_in_place();
        self.tags(units, data, tags);
        self.run(units, data);
    }

    fn kernel(&self) -> &'static str {
        AesKernel::Portable.name()
    }
}

/// Returns the counter block of an IV. A unit has far fewer than 2^32 blocks, so its counter never wraps.
fn first_counter(iv: &Block, count: u32) -> Block {
    let mut block = *iv;
    block[12..].copy_from_slice(&count.to_be_bytes());
    block
}

/// Returns the last block of GHASH: the lengths in bits of additional data and ciphertext.
fn lengths(unit_len: usize) -> Block {
    (((AD_LEN as u128 * 8) << 64) | (unit_len as u128 * 8)).to_be_bytes()
}
