//! AES-CCM (NIST SP 800-38C) as in RFC 4309: nonces of 11 bytes, the first 3 of which are the end of the key.
//!
//! The Linux kernel's `rfc4309` authenticates only what is before the IV in the additional data: the sector. The IV is
//! in the nonce. The MACs of all units of a batch are computed side by side, as each is a chain.

use super::{Sealer, Tag, Units};
use crate::InOut;
use crate::aes::{AesKernel, AesKey, MAX_BATCH};
use crate::block_cipher::Block;
use crate::locked_box::LockedBox;

/// Bytes of the key after AES's.
const SALT_LEN: usize = 3;

/// CCM under a key.
pub(super) struct Ccm {
    key: AesKey,
    salt: LockedBox<[u8; SALT_LEN]>,
    tag_len: usize,
    kernel: AesKernel,
}

impl Ccm {
    /// Expands `key`, whose length has been checked. The length of the tag is part of what is authenticated.
    pub(super) fn new(kernel: AesKernel, key: &[u8], tag_len: usize) -> Self {
        let (key, salt) = key.split_at(key.len() - SALT_LEN);
        let mut locked = LockedBox::new([0; SALT_LEN]);
        locked.copy_from_slice(salt);
        Self { key: AesKey::new(kernel, key), salt: locked, tag_len, kernel }
    }

    /// Returns a block of flags, nonce and a number of 4 bytes.
    fn block(&self, flags: u8, iv: &Block, number: u32) -> Block {
        let mut block = [0; 16];
        // The length field has 4 bytes, which the flags give as 3.
        block[0] = flags | 3;
        block[1..4].copy_from_slice(&*self.salt);
        block[4..12].copy_from_slice(&iv[..8]);
        block[12..].copy_from_slice(&number.to_be_bytes());
        block
    }

    /// Writes the MAC of every unit of `plaintext`, encrypted.
    fn tags(&self, units: &Units<'_>, plaintext: &[u8], tags: &mut [Tag]) {
        const HAS_ADDITIONAL_DATA: u8 = 0x40;
        let unit_len = units.unit.bytes();
        let flags = HAS_ADDITIONAL_DATA | (((self.tag_len as u8 - 2) / 2) << 3);
        let mut room = [[0; 16]; MAX_BATCH];
        let chains = &mut room[..units.ivs.len()];
        for (chain, iv) in chains.iter_mut().zip(units.ivs) {
            *chain = self.block(flags, iv, unit_len as u32);
        }
        self.key.encrypt_blocks(chains);
        for (at, chain) in chains.iter_mut().enumerate() {
            // Two bytes of length, 8 of data, padded with zeroes.
            chain[1] ^= 8;
            xor(&mut chain[2..], &units.additional_data(at)[..8]);
        }
        self.key.encrypt_blocks(chains);
        for start in (0..unit_len).step_by(16) {
            for (chain, unit) in chains.iter_mut().zip(plaintext.chunks_exact(unit_len)) {
                xor(chain, &unit[start..start + 16]);
            }
            self.key.encrypt_blocks(chains);
        }
        let mut masks = [[0; 16]; MAX_BATCH];
        let masks = &mut masks[..units.ivs.len()];
        for (mask, iv) in masks.iter_mut().zip(units.ivs) {
            *mask = self.block(0, iv, 0);
        }
        self.key.encrypt_blocks(masks);
        for ((tag, chain), mask) in tags.iter_mut().zip(&*chains).zip(&*masks) {
            tag[..16].copy_from_slice(chain);
            xor(tag, mask);
        }
    }

    /// XORs the key stream to every unit.
    fn run(&self, units: &Units<'_>, data: &mut [u8]) {
        const RUN: usize = 32;
        for (unit, iv) in data.chunks_exact_mut(units.unit.bytes()).zip(units.ivs) {
            let mut stream = [[0; 16]; RUN];
            for (at, run) in unit.chunks_exact_mut(RUN * 16).enumerate() {
                for (number, block) in stream.iter_mut().enumerate() {
                    *block = self.block(0, iv, (at * RUN + number + 1) as u32);
                }
                self.key.encrypt_blocks(&mut stream);
                xor(run, stream.as_flattened());
            }
        }
    }
}

impl Sealer for Ccm {
    fn seal(&self, units: &Units<'_>, data: InOut<'_>, tags: &mut [Tag]) {
        let data = data.into_in_place();
        self.tags(units, data, tags);
        self.run(units, data);
    }

    /// Decrypts first: the MAC is that of the plaintext.
    fn open(&self, units: &Units<'_>, data: InOut<'_>, tags: &mut [Tag]) {
        let data = data.into_in_place();
        self.run(units, data);
        self.tags(units, data, tags);
    }

    fn kernel(&self) -> &'static str {
        self.kernel.name()
    }
}

fn xor(data: &mut [u8], with: &[u8]) {
    for (byte, with) in data.iter_mut().zip(with) {
        *byte ^= with;
    }
}
