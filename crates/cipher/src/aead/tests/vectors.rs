//! Published vectors: Wycheproof's, which include those of the specifications, for the references that the ciphers are
//! compared with.

use crate::AeadAlgorithm;
use crate::testing::naive_aead;
use wycheproof::aead::{TestName, TestSet};

/// Returns the number of vectors that `usable` selects by the bits of key, nonce and tag. Each has to give its
/// ciphertext and tag, unless its tag is wrong on purpose.
fn run(name: TestName, algorithm: AeadAlgorithm, usable: fn(usize, usize, usize) -> bool) -> usize {
    let set = TestSet::load(name).unwrap();
    let mut count = 0;
    for group in set.test_groups.iter().filter(|group| usable(group.key_size, group.nonce_size, group.tag_size)) {
        for test in &group.tests {
            let tag_len = group.tag_size / 8;
            let (data, tag) = naive_aead::seal(algorithm, &test.key, &test.nonce, &test.aad, &test.pt, tag_len);
            let same = data == test.ct[..] && tag[..tag_len] == test.tag[..];
            assert_eq!(same, test.result != wycheproof::TestResult::Invalid, "{name:?} {}", test.tc_id);
            count += 1;
        }
    }
    println!("{count} vectors for {algorithm:?}");
    count
}

#[test]
fn wycheproof_gcm() {
    assert!(run(TestName::AesGcm, AeadAlgorithm::Gcm, |_, nonce, _| nonce == 96) >= 190);
}

/// RFC 4309 has nonces of 88 bits.
#[test]
fn wycheproof_ccm() {
    let usable = |_, nonce, tag| nonce == 88 && matches!(tag, 64 | 96 | 128);
    assert!(run(TestName::AesCcm, AeadAlgorithm::Ccm, usable) >= 10);
}

#[test]
fn wycheproof_chacha20_poly1305() {
    assert!(run(TestName::ChaCha20Poly1305, AeadAlgorithm::ChaCha20Poly1305, |_, nonce, _| nonce == 96) >= 300);
}

#[test]
fn wycheproof_aegis128() {
    assert!(run(TestName::Aegis128, AeadAlgorithm::Aegis128, |_, nonce, _| nonce == 128) >= 400);
}
