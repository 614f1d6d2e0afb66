//! Every cipher, mode and IV mode once more, written for reading: block by block, in the words of the standards.
//!
//! It shares nothing with the kernels but the `aes` and `sha2` crates' single blocks.

use crate::{ChainMode, Cipher, CipherSpec, EssivHash, IvMode};
use ::aes::cipher::{Block, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use ::aes::{Aes128, Aes192, Aes256};
use sha2::{Digest, Sha256};

/// A whole run of units, encrypted or decrypted. `step` is how much the IV number grows from unit to unit.
pub(crate) fn run(
    spec: &CipherSpec,
    key: &[u8],
    unit_len: usize,
    step: u64,
    first: u64,
    data: &mut [u8],
    encrypt: bool,
) {
    for (index, unit) in data.chunks_exact_mut(unit_len).enumerate() {
        let number = first.wrapping_add(step.wrapping_mul(index as u64));
        let iv = iv(spec.iv, number, key);
        match (spec.cipher, spec.mode) {
            (Cipher::Null, _) => {}
            (Cipher::Aes, ChainMode::Xts) => xts_unit(key, iv, unit, encrypt),
            (Cipher::Aes, ChainMode::Cbc) if encrypt => cbc_encrypt_unit(key, iv, unit),
            (Cipher::Aes, ChainMode::Cbc) => cbc_decrypt_unit(key, iv, unit),
            (Cipher::Aes, ChainMode::Ecb) => panic!("no such cipher"),
        }
    }
}

/// One data unit of XTS (IEEE 1619, section 5.3) under a tweak block.
pub(crate) fn xts_unit(key: &[u8], tweak_block: [u8; 16], unit: &mut [u8], encrypt: bool) {
    let (data_key, tweak_key) = key.split_at(key.len() / 2);
    let mut tweak = aes(tweak_key, tweak_block, true);
    for block in unit.as_chunks_mut::<16>().0 {
        *block = xor(aes(data_key, xor(*block, tweak), encrypt), tweak);
        tweak = times_x(tweak);
    }
}

/// Multiplication by the primitive element, byte by byte (IEEE 1619, section 5.2).
fn times_x(tweak: [u8; 16]) -> [u8; 16] {
    let mut product = [0; 16];
    let mut carry = 0;
    for (to, from) in product.iter_mut().zip(tweak) {
        *to = (from << 1) | carry;
        carry = from >> 7;
    }
    if carry == 1 {
        product[0] ^= 0x87;
    }
    product
}

fn cbc_encrypt_unit(key: &[u8], iv: [u8; 16], unit: &mut [u8]) {
    let mut before = iv;
    for block in unit.as_chunks_mut::<16>().0 {
        *block = aes(key, xor(*block, before), true);
        before = *block;
    }
}

fn cbc_decrypt_unit(key: &[u8], iv: [u8; 16], unit: &mut [u8]) {
    let mut before = iv;
    for block in unit.as_chunks_mut::<16>().0 {
        let ciphertext = *block;
        *block = xor(aes(key, ciphertext, false), before);
        before = ciphertext;
    }
}

fn iv(mode: IvMode, number: u64, key: &[u8]) -> [u8; 16] {
    let mut iv = [0; 16];
    match mode {
        IvMode::Null => {}
        IvMode::Plain => iv[..4].copy_from_slice(&(number as u32).to_le_bytes()),
        IvMode::Plain64 => iv[..8].copy_from_slice(&number.to_le_bytes()),
        IvMode::Essiv(EssivHash::Sha256) => {
            iv[..8].copy_from_slice(&number.to_le_bytes());
            iv = aes(&Sha256::digest(key), iv, true);
        }
    }
    iv
}

fn xor(mut block: [u8; 16], with: [u8; 16]) -> [u8; 16] {
    block.iter_mut().zip(with).for_each(|(byte, with)| *byte ^= with);
    block
}

fn aes(key: &[u8], block: [u8; 16], encrypt: bool) -> [u8; 16] {
    fn one<C: KeyInit + BlockCipherEncrypt + BlockCipherDecrypt>(key: &[u8], block: [u8; 16], encrypt: bool) -> Block<C>
    where
        Block<C>: From<[u8; 16]>,
    {
        let cipher = C::new_from_slice(key).unwrap();
        let mut block = Block::<C>::from(block);
        if encrypt {
            cipher.encrypt_block(&mut block)
        } else {
            cipher.decrypt_block(&mut block)
        }
        block
    }
    match key.len() {
        16 => one::<Aes128>(key, block, encrypt).into(),
        24 => one::<Aes192>(key, block, encrypt).into(),
        _ => one::<Aes256>(key, block, encrypt).into(),
    }
}
