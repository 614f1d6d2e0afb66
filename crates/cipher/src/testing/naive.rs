//! Reference implementations of the ciphers with kernels, block by block, in the words of the standards.
//!
//! They share with the kernels only the `aes` and `sha2` crates, of which they use one block at a time.

use crate::{ChainMode, Cipher, CipherSpec, Hash, IvMode, KeyCount};
use ::aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use ::aes::{Aes128, Aes192, Aes256};
use sha2::{Digest, Sha256};

type Block = [u8; 16];

/// A cipher under a key, for data units of `unit_len` bytes whose IV numbers grow by `step`.
pub(crate) struct Naive {
    spec: CipherSpec,
    unit_len: usize,
    step: u64,
    /// Encrypts the data; `None` for a null cipher.
    data: Option<Aes>,
    /// Encrypts the IV: XTS's second key, or ESSIV's.
    tweak: Option<Aes>,
    essiv: Option<Aes>,
}

impl Naive {
    /// Whether there is a reference for `spec`: AES-XTS and AES-CBC, with the IV modes of the kernels.
    pub(crate) fn knows(spec: &CipherSpec) -> bool {
        let iv = matches!(spec.iv, IvMode::Null | IvMode::Plain | IvMode::Plain64 | IvMode::Essiv(Hash::Sha256));
        let aes = spec.cipher == Cipher::Aes && matches!(spec.mode, ChainMode::Xts | ChainMode::Cbc);
        spec.keys == KeyCount::ONE && (spec.cipher == Cipher::Null || iv && aes)
    }

    pub(crate) fn new(spec: &CipherSpec, key: &[u8], unit_len: usize, step: u64) -> Self {
        let (data, tweak) = match (spec.cipher, spec.mode) {
            (Cipher::Null, _) => (None, None),
            (Cipher::Aes, ChainMode::Xts) => {
                let (data, tweak) = key.split_at(key.len() / 2);
                (Some(Aes::new(data)), Some(Aes::new(tweak)))
            }
            (Cipher::Aes, ChainMode::Cbc) => (Some(Aes::new(key)), None),
            _ => panic!("no such cipher"),
        };
        let essiv = (spec.iv == IvMode::Essiv(Hash::Sha256)).then(|| Aes::new(&Sha256::digest(key)));
        Self { spec: *spec, unit_len, step, data, tweak, essiv }
    }

    /// Encrypts or decrypts a run of units, the first of which has the IV number `first`.
    pub(crate) fn run(&self, first: u64, data: &mut [u8], encrypt: bool) {
        for (index, unit) in data.chunks_exact_mut(self.unit_len).enumerate() {
            let number = first.wrapping_add(self.step.wrapping_mul(index as u64));
            self.unit(self.iv(number), unit, encrypt);
        }
    }

    /// Encrypts or decrypts one data unit with an IV.
    pub(crate) fn unit(&self, iv: Block, unit: &mut [u8], encrypt: bool) {
        let Some(aes) = &self.data else { return };
        let blocks = unit.as_chunks_mut::<16>().0;
        match &self.tweak {
            Some(tweak) => xts(aes, tweak.encrypt(iv), blocks, encrypt),
            None if encrypt => cbc_encrypt(aes, iv, blocks),
            None => cbc_decrypt(aes, iv, blocks),
        }
    }

    fn iv(&self, number: u64) -> Block {
        let mut iv = [0; 16];
        match self.spec.iv {
            IvMode::Null => {}
            IvMode::Plain => iv[..4].copy_from_slice(&(number as u32).to_le_bytes()),
            IvMode::Plain64 | IvMode::Essiv(_) => iv[..8].copy_from_slice(&number.to_le_bytes()),
            _ => unreachable!("`knows` says no"),
        }
        match &self.essiv {
            Some(aes) => aes.encrypt(iv),
            None => iv,
        }
    }
}

/// Implements IEEE 1619, section 5.3.
fn xts(aes: &Aes, mut tweak: Block, blocks: &mut [Block], encrypt: bool) {
    for block in blocks {
        let whitened = xor(*block, tweak);
        *block = xor(if encrypt { aes.encrypt(whitened) } else { aes.decrypt(whitened) }, tweak);
        tweak = times_x(tweak);
    }
}

/// Multiplies by the primitive element, byte by byte (IEEE 1619, section 5.2).
fn times_x(tweak: Block) -> Block {
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

fn cbc_encrypt(aes: &Aes, iv: Block, blocks: &mut [Block]) {
    let mut before = iv;
    for block in blocks {
        *block = aes.encrypt(xor(*block, before));
        before = *block;
    }
}

fn cbc_decrypt(aes: &Aes, iv: Block, blocks: &mut [Block]) {
    let mut before = iv;
    for block in blocks {
        let ciphertext = *block;
        *block = xor(aes.decrypt(ciphertext), before);
        before = ciphertext;
    }
}

fn xor(mut block: Block, with: Block) -> Block {
    for (byte, with) in block.iter_mut().zip(with) {
        *byte ^= with;
    }
    block
}

/// AES, one block at a time.
enum Aes {
    Aes128(Aes128),
    Aes192(Aes192),
    Aes256(Aes256),
}

impl Aes {
    fn new(key: &[u8]) -> Self {
        match key.len() {
            16 => Self::Aes128(Aes128::new_from_slice(key).unwrap()),
            24 => Self::Aes192(Aes192::new_from_slice(key).unwrap()),
            _ => Self::Aes256(Aes256::new_from_slice(key).unwrap()),
        }
    }

    fn encrypt(&self, block: Block) -> Block {
        let mut block = block.into();
        match self {
            Self::Aes128(aes) => aes.encrypt_block(&mut block),
            Self::Aes192(aes) => aes.encrypt_block(&mut block),
            Self::Aes256(aes) => aes.encrypt_block(&mut block),
        }
        block.into()
    }

    fn decrypt(&self, block: Block) -> Block {
        let mut block = block.into();
        match self {
            Self::Aes128(aes) => aes.decrypt_block(&mut block),
            Self::Aes192(aes) => aes.decrypt_block(&mut block),
            Self::Aes256(aes) => aes.decrypt_block(&mut block),
        }
        block.into()
    }
}
