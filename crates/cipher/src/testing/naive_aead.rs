//! Reference implementations of authenticated encryption, unit by unit: libraries and the words of the specifications.
//!
//! They take additional data and messages of any length, so that published vectors check them
//! (`aead::tests::vectors`), and the ciphers are compared with them.

use super::naive::Naive;
use crate::{AeadAlgorithm, AeadIv, AeadSpec, ChainMode, CipherSpec, Hash, IvMode};
use ::aes::cipher::{Array, BlockCipherEncrypt, KeyInit};
use ::aes::{Aes128, Aes192, Aes256};
use aes_gcm::aead::AeadInOut;
use ccm::consts::{U8, U11, U12, U16};

/// Encrypts `message`, and returns the ciphertext and the whole tag. The tag of CCM has `tag_len` bytes.
pub(crate) fn seal(
    algorithm: AeadAlgorithm,
    key: &[u8],
    nonce: &[u8],
    aad: &[u8],
    message: &[u8],
    tag_len: usize,
) -> (Vec<u8>, Vec<u8>) {
    macro_rules! library {
        ($type:ty) => {{
            let cipher = <$type>::new_from_slice(key).unwrap();
            let mut sealed = message.to_vec();
            let nonce = nonce.try_into().unwrap();
            let tag = cipher.encrypt_inout_detached(nonce, aad, (&mut sealed[..]).into()).unwrap();
            (sealed, tag.to_vec())
        }};
    }
    macro_rules! ccm {
        ($aes:ty) => {
            match tag_len {
                8 => library!(ccm::Ccm<$aes, U8, U11>),
                12 => library!(ccm::Ccm<$aes, U12, U11>),
                _ => library!(ccm::Ccm<$aes, U16, U11>),
            }
        };
    }
    match (algorithm, key.len()) {
        (AeadAlgorithm::Gcm, 16) => library!(aes_gcm::AesGcm<Aes128, U12>),
        (AeadAlgorithm::Gcm, 24) => library!(aes_gcm::AesGcm<Aes192, U12>),
        (AeadAlgorithm::Gcm, _) => library!(aes_gcm::AesGcm<Aes256, U12>),
        (AeadAlgorithm::Ccm, 16) => ccm!(Aes128),
        (AeadAlgorithm::Ccm, 24) => ccm!(Aes192),
        (AeadAlgorithm::Ccm, _) => ccm!(Aes256),
        (AeadAlgorithm::ChaCha20Poly1305, _) => library!(chacha20poly1305::ChaCha20Poly1305),
        (AeadAlgorithm::Aegis128, _) => aegis128(key.try_into().unwrap(), nonce.try_into().unwrap(), aad, message),
        _ => panic!("no AEAD"),
    }
}

type Block = [u8; 16];

fn xor(a: Block, b: Block) -> Block {
    std::array::from_fn(|at| a[at] ^ b[at])
}

/// Implements the specification of AEGIS v1.1, section 3, with its names.
fn aegis128(key: Block, iv: Block, aad: &[u8], message: &[u8]) -> (Vec<u8>, Vec<u8>) {
    fn update(s: &mut [Block; 5], m: Block) {
        let round = |block: Block, key: Block| {
            let mut block = Array::from(block);
            ::aes::hazmat::cipher_round(&mut block, &Array::from(key));
            Block::from(block)
        };
        let old = *s;
        for i in 0..5 {
            s[i] = round(old[(i + 4) % 5], old[i]);
        }
        s[0] = xor(s[0], m);
    }
    let mut fibonacci: Vec<u8> = vec![0, 1];
    while fibonacci.len() < 32 {
        fibonacci.push(fibonacci[fibonacci.len() - 1].wrapping_add(fibonacci[fibonacci.len() - 2]));
    }
    let (c0, c1): (Block, Block) = (fibonacci[..16].try_into().unwrap(), fibonacci[16..].try_into().unwrap());
    let mut s = [xor(key, iv), c1, c0, xor(key, c0), xor(key, c1)];
    for i in 0..10 {
        update(&mut s, if i % 2 == 0 { key } else { xor(key, iv) });
    }
    let padded = |part: &[u8]| {
        let mut block = [0; 16];
        block[..part.len()].copy_from_slice(part);
        block
    };
    aad.chunks(16).for_each(|part| update(&mut s, padded(part)));
    let mut ciphertext = Vec::new();
    for part in message.chunks(16) {
        let and: Block = std::array::from_fn(|at| s[2][at] & s[3][at]);
        let stream = xor(xor(s[1], s[4]), and);
        ciphertext.extend_from_slice(&xor(padded(part), stream)[..part.len()]);
        update(&mut s, padded(part));
    }
    let mut lengths = [0; 16];
    lengths[..8].copy_from_slice(&(aad.len() as u64 * 8).to_le_bytes());
    lengths[8..].copy_from_slice(&(message.len() as u64 * 8).to_le_bytes());
    let last = xor(s[3], lengths);
    for _ in 0..7 {
        update(&mut s, last);
    }
    (ciphertext, s.into_iter().reduce(xor).unwrap().to_vec())
}

/// Computes HMAC (RFC 2104).
fn hmac(hash: Hash, key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    let mut padded = vec![0; hash.block_len()];
    match key.len() > hash.block_len() {
        true => padded[..hash.len()].copy_from_slice(&hash.digest(&[key])[..hash.len()]),
        false => padded[..key.len()].copy_from_slice(key),
    }
    let [inner, outer] = [0x36, 0x5c].map(|pad| padded.iter().map(|byte| byte ^ pad).collect::<Vec<u8>>());
    let digest = hash.digest(&[&[&inner[..]], parts].concat());
    hash.digest(&[&outer, &digest[..hash.len()]])[..hash.len()].to_vec()
}

/// Encrypts one unit as dm-crypt does. `sector` is the unit's in the target, `number` that of its IV, and `random` the
/// stored IV. Returns ciphertext and tuple.
pub(crate) fn seal_unit(
    spec: &AeadSpec,
    key: &[u8],
    (sector, number): (u64, u64),
    random: &[u8],
    unit: &[u8],
) -> (Vec<u8>, Vec<u8>) {
    let sector = sector.to_le_bytes();
    let mut stored = &random[..spec.stored_iv_len()];
    if let AeadAlgorithm::Ccm = spec.algorithm() {
        let (key, salt) = key.split_at(key.len() - 3);
        let (data, tag) = seal(spec.algorithm(), key, &[salt, stored].concat(), &sector, unit, spec.tag_len());
        return (data, [&tag, stored].concat());
    }
    let AeadAlgorithm::Authenc { mac, cipher, mode } = spec.algorithm() else {
        let (data, tag) = seal(spec.algorithm(), key, stored, &[&sector, stored].concat(), unit, 16);
        return (data, [&tag[..spec.tag_len()], stored].concat());
    };
    let (cipher_key, mac_key) = key.split_at(key.len() - spec.mac_key_len());
    let iv: Block = match spec.iv() {
        AeadIv::Random => stored.try_into().unwrap(),
        AeadIv::Numbered(iv) => iv_of(iv, key, number),
    };
    let mut data = unit.to_vec();
    match mode {
        ChainMode::Ctr => {
            for (at, block) in data.as_chunks_mut::<16>().0.iter_mut().enumerate() {
                let counter = u128::from_be_bytes(iv).wrapping_add(at as u128);
                *block = xor(*block, aes_block(cipher_key, counter.to_be_bytes()));
            }
        }
        _ => {
            let inner = CipherSpec { cipher, mode, iv: IvMode::Null, keys: crate::KeyCount::ONE };
            Naive::new(&inner, cipher_key, unit.len(), 1).unit(iv, &mut data, true);
        }
    }
    let tag = hmac(mac, mac_key, &[&sector, &iv, &data]);
    if spec.iv() != AeadIv::Random {
        stored = &[];
    }
    (data, [&tag[..spec.tag_len()], stored].concat())
}

fn iv_of(mode: IvMode, key: &[u8], number: u64) -> Block {
    let le = u128::from(number).to_le_bytes();
    match mode {
        IvMode::Null => [0; 16],
        IvMode::Plain => u128::from(number as u32).to_le_bytes(),
        IvMode::Plain64 => le,
        IvMode::Plain64Be => u128::from(number).to_be_bytes(),
        IvMode::Benbi => u128::from((number << 5).wrapping_add(1)).to_be_bytes(),
        IvMode::Essiv(hash) => aes_block(&hash.digest(&[key])[..hash.len()], le),
        _ => panic!("no such IV"),
    }
}

fn aes_block(key: &[u8], block: Block) -> Block {
    let mut block = Array::from(block);
    match key.len() {
        16 => Aes128::new_from_slice(key).unwrap().encrypt_block(&mut block),
        24 => Aes192::new_from_slice(key).unwrap().encrypt_block(&mut block),
        _ => Aes256::new_from_slice(key).unwrap().encrypt_block(&mut block),
    }
    block.into()
}
