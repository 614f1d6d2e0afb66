//! Known answers, and comparison with libraries.

use super::*;
use crate::Hash;
use crate::stopped::STEP;
use crate::testing::{noise, unhex};

/// RFC 7914, section 11.
#[test]
fn pbkdf2_of_the_rfc() {
    let rows: [(&[u8], &[u8], u32, &str); 2] = [
        (
            b"passwd",
            b"salt",
            1,
            "55ac046e56e3089fec1691c22544b605f94185216dde0465e68b9d57c20dacbc49ca9cccf179b645991664b39d77ef31
             7c71b845b1e30bd509112041d3a19783",
        ),
        (
            b"Password",
            b"NaCl",
            80_000,
            "4ddcd8f60b98be21830cee5ef22701f9641a4418d04c0414aeff08876b34ab56a1d425a1225833549adb841b51c9b317
             6a272bdebba1d078478f62b397f33c8d",
        ),
    ];
    for (passphrase, salt, iterations, expected) in rows {
        let expected = unhex(expected);
        // Whole and short last blocks, of one and of two chains.
        for len in [64, 63, 33, 32, 31, 1] {
            let mut key = vec![0; len];
            crate::Hash::Sha256.pbkdf2(passphrase, salt, iterations, &mut key);
            assert_eq!(key, expected[..len], "{iterations} iterations, {len} bytes");
        }
    }
}

/// Several chains at a time give what the library gives with one, for every number of chains and length of the
/// passphrase around that of a block.
#[test]
fn pbkdf2_of_several_chains_agrees_with_the_library() {
    let noise = noise(17, 1024);
    let mut compared = 0;
    for len in (1..=4 * 32 + 1).chain([160, 191, 192, 255, 256, 257, 511]) {
        for passphrase in [0, len % 7, 31, 32, 55, 56, 63, 64, 65, 100 + len % 101] {
            let (passphrase, salt) = (&noise[..passphrase], &noise[300..][..(len * 5) % 140]);
            for iterations in [1, 2, 3, 4 + len as u32 % 9, STEP, STEP + 1 + len as u32 % 3, 2 * STEP + 2] {
                if iterations >= STEP && passphrase.len() % 31 != 0 {
                    continue;
                }
                let (mut own, mut expected) = (vec![0xaa; len], vec![0x55; len]);
                pbkdf2_hmac(passphrase, salt, iterations, &mut expected);
                if pbkdf2(passphrase, salt, iterations, &mut own, &|| false).is_none() {
                    println!("SKIPPED: kernels that this CPU does not have: chains of SHA-256");
                    return;
                }
                assert_eq!(own, expected, "{len} bytes, passphrase of {}, {iterations}", passphrase.len());
                compared += 1;
            }
        }
    }
    println!("COUNT pbkdf2_of_several_chains {compared}");
}

fn pbkdf2_hmac(passphrase: &[u8], salt: &[u8], iterations: u32, key: &mut [u8]) {
    ::pbkdf2::pbkdf2::<::hmac::Hmac<sha2::Sha256>>(passphrase, salt, iterations, key).expect("a key of any length");
}

#[test]
fn numbered_blocks_become_their_digests_on_every_kernel() {
    let mut compared = 0;
    for kernel in HashKernel::available(Hash::Sha256) {
        // Memory of earlier and longer calls has no effect.
        let mut blocks = NumberedBlocks::new_on(kernel);
        for len in (0..=300).rev().chain([512, 77]) {
            let data = noise(len as u64, len);
            let mut replaced = data.clone();
            blocks.replace(&mut replaced);
            for (number, (block, replaced)) in (0u32..).zip(data.chunks(32).zip(replaced.chunks(32))) {
                let digest = Hash::Sha256.digest(&[&number.to_be_bytes(), block]);
                assert_eq!(replaced, &digest[..block.len()], "{}, block {number} of {len} bytes", kernel.name());
                compared += 1;
            }
        }
    }
    assert!(compared > 1000, "{compared}");
}
