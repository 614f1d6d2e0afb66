//! Known answers, and comparisons with other libraries.

use super::*;
use crate::testing::block::NaiveBlocks;
use crate::testing::{noise, unhex};

/// (cipher, key, plaintext, ciphertext), each from its specification.
const KNOWN: &[(Cipher, &str, &str, &str)] = &[
    // FIPS 197, appendix C.
    (
        Cipher::Aes,
        "000102030405060708090a0b0c0d0e0f",
        "00112233445566778899aabbccddeeff",
        "69c4e0d86a7b0430d8cdb78070b4c55a",
    ),
    (
        Cipher::Aes,
        "000102030405060708090a0b0c0d0e0f1011121314151617",
        "00112233445566778899aabbccddeeff",
        "dda97ca4864cdfe06eaf70a0ec0d7191",
    ),
    (
        Cipher::Aes,
        "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
        "00112233445566778899aabbccddeeff",
        "8ea2b7ca516745bfeafc49904b496089",
    ),
    // The verified vectors of Serpent's authors, set 1, vector 0 of each key length.
    (
        Cipher::Serpent,
        "80000000000000000000000000000000",
        "00000000000000000000000000000000",
        "264e5481eff42a4606abda06c0bfda3d",
    ),
    (
        Cipher::Serpent,
        "800000000000000000000000000000000000000000000000",
        "00000000000000000000000000000000",
        "9e274ead9b737bb21efcfca548602689",
    ),
    (
        Cipher::Serpent,
        "8000000000000000000000000000000000000000000000000000000000000000",
        "00000000000000000000000000000000",
        "a223aa1288463c0e2be38ebd825616c0",
    ),
    // The Twofish paper, appendix B.
    (
        Cipher::Twofish,
        "00000000000000000000000000000000",
        "00000000000000000000000000000000",
        "9f589f5cf6122c32b6bfec2f2ae8c35a",
    ),
    (
        Cipher::Twofish,
        "0123456789abcdeffedcba98765432100011223344556677",
        "00000000000000000000000000000000",
        "cfd1d2e5a9be9cdf501f13b892bd2248",
    ),
    (
        Cipher::Twofish,
        "0123456789abcdeffedcba987654321000112233445566778899aabbccddeeff",
        "00000000000000000000000000000000",
        "37527be0052334b89f0cfccae87cfa20",
    ),
    // RFC 3713, appendix A.
    (
        Cipher::Camellia,
        "0123456789abcdeffedcba9876543210",
        "0123456789abcdeffedcba9876543210",
        "67673138549669730857065648eabe43",
    ),
    (
        Cipher::Camellia,
        "0123456789abcdeffedcba98765432100011223344556677",
        "0123456789abcdeffedcba9876543210",
        "b4993401b3e996f84ee5cee7d79b09b9",
    ),
    (
        Cipher::Camellia,
        "0123456789abcdeffedcba987654321000112233445566778899aabbccddeeff",
        "0123456789abcdeffedcba9876543210",
        "9acc237dff16d76c20ef7c919e3a7509",
    ),
    // RFC 5794, appendix A.
    (
        Cipher::Aria,
        "000102030405060708090a0b0c0d0e0f",
        "00112233445566778899aabbccddeeff",
        "d718fbd6ab644c739da95f3be6451778",
    ),
    (
        Cipher::Aria,
        "000102030405060708090a0b0c0d0e0f1011121314151617",
        "00112233445566778899aabbccddeeff",
        "26449c1805dbe7aa25a468ce263a9e79",
    ),
    (
        Cipher::Aria,
        "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
        "00112233445566778899aabbccddeeff",
        "f92bd7c79fb72e2f2b8f80c1972d24fc",
    ),
    // GB/T 32907-2016, example 1.
    (
        Cipher::Sm4,
        "0123456789abcdeffedcba9876543210",
        "0123456789abcdeffedcba9876543210",
        "681edf34d206965e86b3e94f536e4246",
    ),
    // NIST SP 800-67, appendix B.1: three blocks.
    (
        Cipher::Des3,
        "0123456789abcdef23456789abcdef01456789abcdef0123",
        "5468652071756663 6b2062726f776e20 666f78206a756d70",
        "a826fd8ce53b855f cce21c8112256fe6 68d5c05dd9b6b900",
    ),
    // The vectors of Blowfish's author.
    (Cipher::Blowfish, "0000000000000000", "0000000000000000", "4ef997456198dd78"),
    (Cipher::Blowfish, "fedcba9876543210", "0123456789abcdef", "0aceab0fc6a0a28d"),
    (Cipher::Blowfish, "f0e1d2c3b4a5968778695a4b3c2d1e0f0011223344556677", "fedcba9876543210", "05044b62fa52d080"),
    // RFC 2144, appendix B.1.
    (Cipher::Cast5, "0123456712345678234567893456789a", "0123456789abcdef", "238b4fe5847e44b2"),
    (Cipher::Cast5, "01234567123456782345", "0123456789abcdef", "eb6a711a2c02271b"),
    (Cipher::Cast5, "0123456712", "0123456789abcdef", "7ac816d16e9b302e"),
    // RFC 2612, appendix A.
    (
        Cipher::Cast6,
        "2342bb9efa38542c0af75647f29f615d",
        "00000000000000000000000000000000",
        "c842a08972b43d20836c91d1b7530f6b",
    ),
    (
        Cipher::Cast6,
        "2342bb9efa38542cbed0ac83940ac298bac77a7717942863",
        "00000000000000000000000000000000",
        "1b386c0210dcadcbdd0e41aa08a7a7e8",
    ),
    (
        Cipher::Cast6,
        "2342bb9efa38542cbed0ac83940ac2988d7c47ce264908461cc1b5137ae6b604",
        "00000000000000000000000000000000",
        "4f6a2038286897b9c9870136553317fa",
    ),
];

fn block_ciphers() -> impl Iterator<Item = Cipher> {
    Cipher::ALL.iter().copied().filter(|cipher| !matches!(cipher, Cipher::Adiantum { .. } | Cipher::Null))
}

#[test]
fn every_cipher_gives_its_specifications_answers() {
    for &(cipher, key, plain, ciphertext) in KNOWN {
        for kernel in AesKernel::available() {
            let made = new_block_cipher(kernel, cipher, &unhex(key)).unwrap();
            let mut data = unhex(plain);
            made.encrypt_blocks(&mut data);
            assert_eq!(data, unhex(ciphertext), "{cipher:?}, {key}, {kernel:?}");
            made.decrypt_blocks(&mut data);
            assert_eq!(data, unhex(plain), "{cipher:?}, {key}, {kernel:?}");
        }
    }
    for cipher in block_ciphers() {
        assert!(KNOWN.iter().any(|(known, ..)| *known == cipher), "{cipher:?} has no known answer");
    }
}

/// In every key length and in runs of every number of blocks, against a library that runs one block at a time.
#[test]
fn runs_of_blocks_agree_with_single_ones() {
    for cipher in block_ciphers() {
        for &key_len in cipher.key_lens() {
            let key = noise(key_len as u64, key_len);
            let made = AesKernel::available().into_iter().map(|kernel| new_block_cipher(kernel, cipher, &key).unwrap());
            let (made, naive) = (made.collect::<Vec<_>>(), NaiveBlocks::new(cipher, &key));
            assert!(made.iter().all(|made| made.block_len() == naive.block_len()));
            // More than two groups of the widest kernel.
            let most = if cipher == Cipher::Serpent { 70 } else { 19 };
            for blocks in 0..=most {
                let input = noise(blocks as u64, blocks * naive.block_len());
                for encrypt in [true, false] {
                    let mut expected = input.clone();
                    for block in expected.chunks_exact_mut(naive.block_len()) {
                        if encrypt { naive.encrypt(block) } else { naive.decrypt(block) }
                    }
                    for (at, made) in made.iter().enumerate() {
                        let mut data = input.clone();
                        if encrypt {
                            made.encrypt_blocks(&mut data)
                        } else {
                            made.decrypt_blocks(&mut data)
                        }
                        assert_eq!(data, expected, "{cipher:?}, {key_len} bytes, {blocks} blocks, {encrypt}, {at}");
                    }
                }
            }
        }
    }
}

#[test]
fn block_cipher_of_a_wrong_key_length_is_none() {
    for cipher in Cipher::ALL {
        for len in 0..=64 {
            let takes = cipher.key_lens().contains(&len) && block_ciphers().any(|block| block == *cipher);
            for kernel in AesKernel::available() {
                let made = new_block_cipher(kernel, *cipher, &vec![1; len]);
                assert_eq!(made.is_some(), takes, "{cipher:?}, {len} bytes");
            }
        }
    }
}

/// A short key is padded to 256 bits with a one and zeroes.
#[test]
fn short_serpent_keys_are_padded() {
    let short = noise(1, 11);
    let mut long = short.clone();
    long.push(1);
    long.resize(32, 0);
    for kernel in AesKernel::available() {
        let (mut a, mut b) = ([7; 32], [7; 32]);
        new_block_cipher(kernel, Cipher::Serpent, &short).unwrap().encrypt_blocks(&mut a);
        NaiveBlocks::new(Cipher::Serpent, &long).encrypt(&mut b[..16]);
        assert_eq!(a[..16], b[..16]);
    }
}
