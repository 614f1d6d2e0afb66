//! Published vectors, and a reference implementation.

use super::*;
use crate::testing::{noise, unhex};
use ::aes::Aes256;
use ::aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use ::poly1305::Poly1305;
use sha2::{Digest, Sha256};

/// A published vector.
struct Vector {
    rounds: u8,
    key: [u8; 32],
    tweak: [Block; 2],
    plain: Vec<u8>,
    sha256: Vec<u8>,
}

fn vectors() -> Vec<Vector> {
    let text: String =
        include_str!("vectors.txt").split_inclusive('\n').filter(|line| !line.starts_with('#')).collect();
    let records = text.trim().split("\n\n");
    records
        .map(|record| {
            let field = |name: &str| -> String {
                record.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).collect()
            };
            let tweak = unhex(&field("tweak"));
            Vector {
                rounds: field("rounds").parse().unwrap(),
                key: unhex(&field("key")).try_into().unwrap(),
                tweak: [tweak[..16].try_into().unwrap(), tweak[16..].try_into().unwrap()],
                plain: unhex(&field("plain")),
                sha256: unhex(&field("sha256")),
            }
        })
        .collect()
}

#[test]
fn adiantum_gives_the_published_answers() {
    let vectors = vectors();
    assert_eq!(vectors.len(), 14);
    for Vector { rounds, key, tweak, plain, sha256 } in vectors {
        let name = format!("{rounds} rounds, {} bytes", plain.len());
        for kernel in AesKernel::available().into_iter().map(WideKernel::at_level) {
            let cipher = Adiantum::new(kernel, &key, rounds);
            let mut data = plain.clone();
            let run = |data: &mut [u8], encrypt| cipher.run(&mut [[0; 16]], |_| tweak, data, plain.len(), encrypt);
            run(&mut data, true);
            assert_eq!(Sha256::digest(&data)[..], sha256, "{name}, {kernel:?}");
            assert_eq!(Twin::new(&key, rounds).unit(tweak.as_flattened(), &plain, true), data, "{name}");
            run(&mut data, false);
            assert_eq!(data, plain, "{name}, {kernel:?}");
        }
    }
}

/// Runs of units, in full groups, partial groups and alone.
#[test]
fn runs_of_units_agree_with_the_reference() {
    for rounds in [12, 20] {
        let key: [u8; 32] = noise(1, 32).try_into().unwrap();
        let twin = Twin::new(&key, rounds);
        let ciphers = AesKernel::available().into_iter().map(WideKernel::at_level);
        let ciphers: Vec<_> = ciphers.map(|kernel| Adiantum::new(kernel, &key, rounds)).collect();
        for (unit_len, most) in [(512, 19), (1024, 9), (2048, 9), (4096, 6), (65536, 2)] {
            for count in [1, 2, most] {
                let ivs: Vec<Block> = noise(count as u64, count * 16).as_chunks().0.to_vec();
                let plain = noise(unit_len as u64, count * unit_len);
                let units = plain.chunks_exact(unit_len).zip(&ivs);
                let expected: Vec<u8> =
                    units.flat_map(|(unit, iv)| twin.unit(&[*iv, [0; 16]].concat(), unit, true)).collect();
                for cipher in &ciphers {
                    let mut data = plain.clone();
                    let name = format!("{rounds} rounds, {count} units of {unit_len}, {:?}", cipher.kernel);
                    cipher.encrypt(&mut ivs.clone(), &mut data, unit_len);
                    assert!(data == expected, "{name}");
                    cipher.decrypt(&mut ivs.clone(), &mut data, unit_len);
                    assert!(data == plain, "{name}, back");
                }
            }
        }
    }
}

/// Against the crate, also at word boundaries: blocks of ones, and sums just below and above 2^130 - 5.
#[test]
fn poly1305_agrees_with_the_crate() {
    let keys = [vec![0xff; 16], vec![0; 16], [vec![1], vec![0; 15]].concat(), noise(1, 16), noise(2, 16)];
    for key in &keys {
        let mut long_key = [0; 32];
        long_key[..16].copy_from_slice(key);
        for len in (0..=40).map(|blocks| blocks * 16) {
            for message in [
                vec![0xff; len],
                vec![0; len],
                noise(3, len),
                [vec![0xfb; len.min(1)], vec![0xff; len.max(1) - 1]].concat(),
            ] {
                let expected = Poly1305::new(&long_key.into()).compute_unpadded(&message);
                let mut own = poly1305::Key::EMPTY;
                own.set(key);
                let got = own.hash(message.as_chunks().0.iter().copied());
                assert_eq!(got.to_le_bytes(), expected[..], "{key:x?}, {message:x?}");
            }
        }
    }
}

/// A reference of Adiantum in the words of the paper, sharing only AES and Poly1305.
struct Twin {
    rounds: u8,
    stream: [u8; 32],
    block: Aes256,
    tweak: Vec<u8>,
    message: Vec<u8>,
    nh: Vec<u32>,
}

impl Twin {
    fn new(key: &[u8; 32], rounds: u8) -> Self {
        let mut nonce = [0; 24];
        nonce[0] = 1;
        let material = stream(key, &nonce, rounds, 32 + 16 + 16 + 1072);
        let nh = material[64..].as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        Self {
            rounds,
            stream: *key,
            block: Aes256::new_from_slice(&material[..32]).unwrap(),
            tweak: material[32..48].to_vec(),
            message: material[48..64].to_vec(),
            nh,
        }
    }

    fn unit(&self, tweak: &[u8], unit: &[u8], encrypt: bool) -> Vec<u8> {
        let (wide, narrow) = unit.split_at(unit.len() - 16);
        let number = |block: &[u8]| u128::from_le_bytes(block.try_into().unwrap());
        let middle = number(narrow).wrapping_add(self.hash(tweak, wide)).to_le_bytes();
        let mut block = middle.into();
        if encrypt {
            self.block.encrypt_block(&mut block)
        } else {
            self.block.decrypt_block(&mut block)
        }
        let mut nonce = [0; 24];
        nonce[..16].copy_from_slice(if encrypt { &block } else { &middle });
        nonce[16] = 1;
        let stream = stream(&self.stream, &nonce, self.rounds, wide.len());
        let mut out: Vec<u8> = wide.iter().zip(stream).map(|(byte, with)| byte ^ with).collect();
        let narrow = number(&block).wrapping_sub(self.hash(tweak, &out));
        out.extend(narrow.to_le_bytes());
        out
    }

    fn hash(&self, tweak: &[u8], wide: &[u8]) -> u128 {
        let head = [&(wide.len() as u128 * 8).to_le_bytes(), tweak].concat();
        let hashed: Vec<u8> = wide.chunks(1024).flat_map(|piece| self.nh(piece)).collect();
        let poly = |key: &[u8], message: &[u8]| {
            let key: [u8; 32] = [key, &[0; 16]].concat().try_into().unwrap();
            u128::from_le_bytes(Poly1305::new(&key.into()).compute_unpadded(message).into())
        };
        poly(&self.tweak, &head).wrapping_add(poly(&self.message, &hashed))
    }

    fn nh(&self, piece: &[u8]) -> Vec<u8> {
        let words: Vec<u32> = piece.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let pass = |key: &[u32]| {
            let sum = |at: usize| u64::from(words[at].wrapping_add(key[at]));
            let pairs = (0..words.len()).filter(|at| at % 4 < 2).map(|at| sum(at).wrapping_mul(sum(at + 2)));
            pairs.fold(0, u64::wrapping_add).to_le_bytes()
        };
        (0..4).flat_map(|number| pass(&self.nh[4 * number..])).collect()
    }
}

/// Returns the first `len` bytes of XChaCha's stream.
fn stream(key: &[u8; 32], nonce: &[u8; 24], rounds: u8, len: usize) -> Vec<u8> {
    let words =
        |bytes: &[u8]| -> Vec<u32> { bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect() };
    let state = |key: &[u32], rest: &[u32]| -> [u32; 16] {
        [&words(b"expand 32-byte k"), key, rest].concat().try_into().unwrap()
    };
    let inner = permute(state(&words(key), &words(&nonce[..16])), rounds);
    let key = [&inner[..4], &inner[12..]].concat();
    let blocks = (0..len.div_ceil(64) as u32).flat_map(|number| {
        let before = state(&key, &[&[number, 0][..], &words(&nonce[16..])].concat());
        let after = permute(before, rounds);
        before.into_iter().zip(after).flat_map(|(a, b)| a.wrapping_add(b).to_le_bytes())
    });
    blocks.take(len).collect()
}

/// Runs ChaCha's rounds.
fn permute(mut state: [u32; 16], rounds: u8) -> [u32; 16] {
    for round in 0..rounds {
        for column in 0..4 {
            // Every second round works on the diagonals.
            let at = |row: usize| 4 * row + (column + if round % 2 == 0 { 0 } else { row }) % 4;
            for (to, from, with, by) in [(0, 1, 3, 16), (2, 3, 1, 12), (0, 1, 3, 8), (2, 3, 1, 7)] {
                state[at(to)] = state[at(to)].wrapping_add(state[at(from)]);
                state[at(with)] = (state[at(with)] ^ state[at(to)]).rotate_left(by);
            }
        }
    }
    state
}
