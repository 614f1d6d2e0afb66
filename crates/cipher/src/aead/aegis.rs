//! AEGIS-128, version 1.1 (Wu and Preneel; CAESAR's final portfolio), the Linux kernel's `aegis128`. Libraries have
//! AEGIS-128L and AEGIS-256 only.
//!
//! The state is five blocks, each step a round of AES on each. Data units do not depend on each other.

use super::{Sealer, Tag, Units};
use crate::InOut;
use crate::aes::{self, AegisJob, AesKernel, MAX_BATCH};
use crate::block_cipher::Block;
use crate::locked_box::LockedBox;
use ::aes::hazmat;

/// Returns the sealer of `key`, which has 16 bytes.
pub(super) fn new(kernel: AesKernel, key: &[u8]) -> Box<dyn Sealer> {
    let mut locked = LockedBox::new([0; 16]);
    locked.copy_from_slice(key);
    if kernel == AesKernel::Portable { Box::new(Portable(locked)) } else { Box::new(Aegis { kernel, key: locked }) }
}

/// AEGIS-128 on a kernel that takes jobs.
struct Aegis {
    kernel: AesKernel,
    key: LockedBox<Block>,
}

impl Aegis {
    fn run(&self, units: &Units<'_>, data: InOut<'_>, tags: &mut [Tag], encrypt: bool) {
        let (mut ad, mut blocks) = ([[[0; 16]; 2]; MAX_BATCH], [[0; 16]; MAX_BATCH]);
        for (at, ad) in ad[..units.ivs.len()].iter_mut().enumerate() {
            *ad = units.additional_blocks(at);
        }
        aes::aegis(
            self.kernel,
            &mut AegisJob::new(&self.key, units.unit, (units.ivs, &ad, &mut blocks), data),
            encrypt,
        );
        for (tag, block) in tags.iter_mut().zip(&blocks) {
            tag[..16].copy_from_slice(block);
        }
    }
}

impl Sealer for Aegis {
    fn seal(&self, units: &Units<'_>, data: InOut<'_>, tags: &mut [Tag]) {
        self.run(units, data, tags, true);
    }

    fn open(&self, units: &Units<'_>, data: InOut<'_>, tags: &mut [Tag]) {
        self.run(units, data, tags, false);
    }

    fn kernel(&self) -> &'static str {
        AesKernel::name(self.kernel)
    }
}

/// The Fibonacci sequence modulo 256, bytes 0 to 15 and 16 to 31.
const C0: u128 = 0x000101020305080d1522375990e97962;
const C1: u128 = 0xdb3d18556dc22ff12011314273b528dd;

/// Length of the additional data: a sector and an IV.
const AD_LEN: usize = 24;

/// AEGIS-128 on single AES rounds of a library, which uses AES instructions if there are any.
struct Portable(LockedBox<Block>);

/// The state, in blocks of native numbers whose bytes are those of memory.
struct State([u128; 5]);

impl State {
    fn new(key: u128, iv: u128) -> Self {
        let (c0, c1) = (u128::from_ne_bytes(C0.to_be_bytes()), u128::from_ne_bytes(C1.to_be_bytes()));
        let mut state = Self([key ^ iv, c1, c0, key ^ c0, key ^ c1]);
        for _ in 0..5 {
            state.update(key);
            state.update(key ^ iv);
        }
        state
    }

    fn update(&mut self, message: u128) {
        let Self([s0, s1, s2, s3, s4]) = *self;
        self.0 = [round(s4, s0 ^ message), round(s0, s1), round(s1, s2), round(s2, s3), round(s3, s4)];
    }

    /// Returns the key stream for the next block.
    fn stream(&self) -> u128 {
        let Self([_, s1, s2, s3, s4]) = *self;
        s1 ^ s4 ^ (s2 & s3)
    }

    fn tag(mut self, unit_len: usize) -> Block {
        let bits = (AD_LEN as u128 * 8) | ((unit_len as u128 * 8) << 64);
        let last = u128::from_ne_bytes(bits.to_le_bytes()) ^ self.0[3];
        for _ in 0..7 {
            self.update(last);
        }
        self.0.into_iter().fold(0, |all, block| all ^ block).to_ne_bytes()
    }
}

fn round(block: u128, key: u128) -> u128 {
    let mut block = block.to_ne_bytes();
    hazmat::cipher_round((&mut block).into(), &key.to_ne_bytes().into());
    u128::from_ne_bytes(block)
}

impl Portable {
    fn run(&self, units: &Units<'_>, data: InOut<'_>, tags: &mut [Tag], encrypt: bool) {
        let data = data.into_in_place();
        let key = u128::from_ne_bytes(*self.0);
        for (at, (unit, tag)) in data.chunks_exact_mut(units.unit.bytes()).zip(tags).enumerate() {
            let mut state = State::new(key, u128::from_ne_bytes(units.ivs[at]));
            let mut padded = [0; 32];
            padded[..AD_LEN].copy_from_slice(&units.additional_data(at));
            for block in padded.as_chunks::<16>().0 {
                state.update(u128::from_ne_bytes(*block));
            }
            for block in unit.as_chunks_mut::<16>().0 {
                let before = u128::from_ne_bytes(*block);
                let after = before ^ state.stream();
                state.update(if encrypt { before } else { after });
                *block = after.to_ne_bytes();
            }
            tag[..16].copy_from_slice(&state.tag(unit.len()));
        }
    }
}

impl Sealer for Portable {
    fn seal(&self, units: &Units<'_>, data: InOut<'_>, tags: &mut [Tag]) {
        self.run(units, data, tags, true);
    }

    fn open(&self, units: &Units<'_>, data: InOut<'_>, tags: &mut [Tag]) {
        self.run(units, data, tags, false);
    }

    fn kernel(&self) -> &'static str {
        AesKernel::Portable.name()
    }
}
