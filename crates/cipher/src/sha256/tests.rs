//! Known answers on every kernel, and comparison with the `sha2` crate in every length and number of messages.

use super::*;
use crate::stopped::STEP;
use crate::testing::guarded::{Guarded, Place};
use crate::testing::{noise, unhex};
use sha2::{Digest, Sha256};

/// Every kernel that there is; those that this CPU has not are named.
fn kernels() -> Vec<Sha256Kernel> {
    let kernels = Sha256Kernel::available();
    for name in ["sha2x", "sha4x", "avx2x8", "avx512x16"] {
        if kernels.iter().all(|kernel| kernel.name() != name) {
            println!("SKIPPED: kernels that this CPU does not have: {name} of SHA-256");
        }
    }
    kernels
}

fn expected(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    parts.iter().for_each(|part| hash.update(part));
    hash.finalize().into()
}

/// NIST's examples of FIPS 180-4 and of the Cryptographic Algorithm Validation Program (SHA256ShortMsg).
#[test]
fn sha256_of_nist() {
    let long = "abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu";
    let rows: [(&[u8], &str); 6] = [
        (b"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        (b"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        (
            b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
        ),
        (long.as_bytes(), "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"),
        (b"\xd3", "28969cdfa74a12c82f3bad960b0b000aca2ac329deea5c2328ebc6f2ba9802c1"),
        (b"\x11\xaf", "5ca7133fa735326081558ac312c620eeca9970d1e70a4b95533d956f072d1f98"),
    ];
    let million = vec![b'a'; 1_000_000];
    let rows = rows
        .into_iter()
        .chain([(million.as_slice(), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0")]);
    for (message, digest) in rows {
        for kernel in kernels() {
            for count in [1, 2, 3, 4, 7, 16, 17] {
                let mut digests = vec![[0; 32]; count];
                Sha256Batch::new_on(kernel, b"", b"").digest_slices(&vec![message; count], &mut digests);
                assert!(digests.iter().all(|own| own[..] == unhex(digest)), "{} of {count}", kernel.name());
            }
        }
    }
}

/// Messages begin behind a guard page, or end before one.
#[test]
fn every_sha256_kernel_agrees_in_every_length() {
    let noise = noise(1, 1024);
    let mut buffer = Guarded::new(1 << 16);
    let mut compared = 0;
    for len in (0..=321).chain([511, 512, 513, 1000, 1024, 4096]) {
        for count in [1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 15] {
            let place = if (len + count) % 2 == 0 { Place::Front } else { Place::Back };
            let data = buffer.at(place, len * count);
            data.iter_mut().zip(noise.iter().cycle()).zip(0u8..=250).for_each(|((to, from), at)| *to = from ^ at);
            for (prefix, suffix) in [(0, 0), (len % 130, 0), (32, 0), (0, 256 - len % 257), (len % 67, count * 4)] {
                let (prefix, suffix) = (&noise[..prefix], &noise[500..500 + suffix]);
                let expected: Vec<_> =
                    (0..count).map(|at| expected(&[prefix, &data[at * len..][..len], suffix])).collect();
                for &kernel in &kernels() {
                    let mut digests = vec![[0; 32]; count];
                    Sha256Batch::new_on(kernel, prefix, suffix).digest_blocks(data, len, &mut digests);
                    assert_eq!(digests, expected, "{}: {count} messages of {len} bytes", kernel.name());
                    compared += count;
                }
            }
        }
    }
    println!("COUNT sha256_digests_of_batches {compared}");
}

/// Each message has a digest of its own, independent of those in the other lanes.
#[test]
fn different_messages_in_all_lanes_have_their_own_digests() {
    for count in 1..=40 {
        for len in [0, 55, 56, 64, 512, 4096] {
            let data = noise(count as u64, count * len + 1);
            let messages: Vec<&[u8]> = (0..count).map(|at| &data[(count - 1 - at) * len..][..len]).collect();
            let expected: Vec<_> = messages.iter().map(|message| expected(&[b"salt", message, b"end"])).collect();
            for kernel in kernels() {
                let mut digests = vec![[0; 32]; count];
                Sha256Batch::new_on(kernel, b"salt", b"end").digest_slices(&messages, &mut digests);
                assert_eq!(digests, expected, "{}: {count} of {len}", kernel.name());
            }
        }
    }
}

#[test]
fn limit_of_the_cpu_allows_no_other_kernels() {
    assert_eq!(Sha256Kernel::available_within(CpuLimit::Portable), [Sha256Kernel::Portable]);
    let narrow = Sha256Kernel::available_within(CpuLimit::AesNi);
    assert!(narrow.iter().all(|kernel| !matches!(kernel, Sha256Kernel::Avx512x16(_))));
    assert!(Sha256Kernel::available().contains(&fastest(&Sha256Kernel::available())));
}

#[test]
#[should_panic(expected = "messages have the same length")]
fn messages_of_different_lengths_are_refused() {
    Sha256Batch::new_on(Sha256Kernel::Portable, b"", b"").digest_slices(&[b"a", b"bc"], &mut [[0; 32]; 2]);
}

#[test]
#[should_panic(expected = "there is a message for each digest")]
fn data_of_another_length_than_the_messages_are_refused() {
    Sha256Batch::new_on(Sha256Kernel::Portable, b"", b"").digest_blocks(&[0; 63], 32, &mut [[0; 32]; 2]);
}

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
    ::pbkdf2::pbkdf2::<::hmac::Hmac<Sha256>>(passphrase, salt, iterations, key).expect("a key of any length");
}

/// RFC 4231, sections 4.2 to 4.4, 4.7 and 4.8.
#[test]
fn hmac_sha256_of_rfc_4231() {
    let long_data = "This is a test using a larger than block-size key and a larger than block-size data. The key needs \
                     to be hashed before being used by the HMAC algorithm.";
    let rows: [(&[u8], &[u8], &str); 5] = [
        (&[0x0b; 20], b"Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"),
        (b"Jefe", b"what do ya want for nothing?", "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"),
        (&[0xaa; 20], &[0xdd; 50], "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"),
        (
            &[0xaa; 131],
            b"Test Using Larger Than Block-Size Key - Hash Key First",
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
        ),
        (&[0xaa; 131], long_data.as_bytes(), "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2"),
    ];
    for (key, message, mac) in rows {
        for kernel in kernels() {
            let hmac = HmacSha256::new_on(kernel, key);
            for count in [1, 2, 5, 8, 16, 17] {
                let mut tags = vec![[0; 32]; count];
                hmac.tags(|_| [], &message.repeat(count), message.len(), &mut tags);
                assert!(tags.iter().all(|tag| tag[..] == unhex(mac)), "{} of {count}", kernel.name());
            }
        }
    }
}

/// Heads and messages differ, so that no lane can have the result of another one.
#[test]
fn every_kernel_computes_the_hmac_of_the_crate() {
    use ::hmac::{Hmac, KeyInit, Mac};
    let noise = noise(5, 1 << 17);
    let mut compared = 0;
    for (key_len, len) in [(0, 1), (32, 39), (32, 40), (32, 41), (64, 512), (65, 511), (200, 4096)] {
        let key = &noise[..key_len];
        let head = |at: usize| -> [u8; 24] { noise[at * 7..][..24].try_into().unwrap() };
        for count in [1, 2, 3, 4, 7, 8, 9, 16, 23] {
            let data = &noise[1000..][..len * count];
            for kernel in kernels() {
                let mut tags = vec![[0x5a; 64]; count];
                HmacSha256::new_on(kernel, key).tags(head, data, len, &mut tags);
                for (at, (message, tag)) in data.chunks(len).zip(&tags).enumerate() {
                    let mut expected = Hmac::<Sha256>::new_from_slice(key).unwrap();
                    Mac::update(&mut expected, &head(at));
                    Mac::update(&mut expected, message);
                    let name = kernel.name();
                    assert_eq!(tag[..32], expected.finalize().into_bytes()[..], "{name}: {at} of {count}, {len}");
                    assert_eq!(tag[32..], [0x5a; 32], "{name}: bytes behind the MAC");
                    compared += 1;
                }
            }
        }
    }
    println!("COUNT hmac_sha256_tags {compared}");
}

#[test]
fn numbered_blocks_become_their_digests_on_every_kernel() {
    let mut compared = 0;
    for kernel in kernels() {
        // Memory of earlier and longer calls has no effect.
        let mut blocks = NumberedBlocks::new_on(kernel);
        for len in (0..=300).rev().chain([512, 77]) {
            let data = noise(len as u64, len);
            let mut replaced = data.clone();
            blocks.replace(&mut replaced);
            for (number, (block, replaced)) in (0u32..).zip(data.chunks(32).zip(replaced.chunks(32))) {
                let digest = expected(&[&number.to_be_bytes(), block]);
                assert_eq!(replaced, &digest[..block.len()], "{}, block {number} of {len} bytes", kernel.name());
                compared += 1;
            }
        }
    }
    assert!(compared > 1000, "{compared}");
}
