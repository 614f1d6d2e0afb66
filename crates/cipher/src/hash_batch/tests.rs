//! Known answers on every kernel, and comparison with libraries in every length and number of messages.

use super::*;
use crate::testing::guarded::{Guarded, Place};
use crate::testing::{noise, unhex};

const HASHES: [Hash; 7] =
    [Hash::Sha256, Hash::Sha384, Hash::Sha512, Hash::Blake2b160, Hash::Blake2b256, Hash::Blake2b384, Hash::Blake2b512];

/// Every kernel that there is; those that this CPU has not are named.
fn kernels(hash: Hash) -> Vec<HashKernel> {
    let kernels = HashKernel::available(hash);
    let names = if hash == Hash::Sha256 { &["sha2x", "sha4x", "avx2", "avx512"][..] } else { &["avx2", "avx512"] };
    for name in names {
        if kernels.iter().all(|kernel| kernel.name() != *name) {
            println!("SKIPPED: kernels that this CPU does not have: {name} of {hash}");
        }
    }
    kernels
}

/// Digests by the hash's library, each in the first of `stride` bytes.
fn expected<'a>(hash: Hash, prefix: &[u8], messages: &[&'a [u8]], suffix: &[u8], stride: usize) -> Vec<u8> {
    let digest = |message: &&'a [u8]| {
        let mut bytes = vec![0x5a; stride];
        bytes[..hash.len()].copy_from_slice(&hash.digest(&[prefix, message, suffix])[..hash.len()]);
        bytes
    };
    messages.iter().flat_map(digest).collect()
}

fn assert_known_answers(hash: Hash, rows: &[(&[u8], &str)]) {
    for (message, digest) in rows {
        for kernel in kernels(hash) {
            for count in [1, 2, 3, 4, 7, 16, 17] {
                let mut digests = vec![0; count * hash.len()];
                let batch = HashBatch::new_on(kernel, hash, b"", b"");
                batch.digest_slices(&vec![*message; count], &mut digests, hash.len());
                let is_known = |own: &[u8]| own == unhex(digest);
                assert!(digests.chunks(hash.len()).all(is_known), "{hash} with {} of {count}", kernel.name());
            }
        }
    }
}

const LONG: &[u8] = b"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmno\
                      ijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu";

/// NIST's examples of FIPS 180-4 and of the Cryptographic Algorithm Validation Program (SHA256ShortMsg).
#[test]
fn sha256_of_nist() {
    let million = vec![b'a'; 1_000_000];
    let rows: [(&[u8], &str); 7] = [
        (&million, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"),
        (b"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        (b"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        (
            b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
        ),
        (LONG, "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"),
        (b"\xd3", "28969cdfa74a12c82f3bad960b0b000aca2ac329deea5c2328ebc6f2ba9802c1"),
        (b"\x11\xaf", "5ca7133fa735326081558ac312c620eeca9970d1e70a4b95533d956f072d1f98"),
    ];
    assert_known_answers(Hash::Sha256, &rows);
}

/// NIST's examples of FIPS 180-4.
#[test]
fn sha512_and_sha384_of_nist() {
    let million = vec![b'a'; 1_000_000];
    let rows: [(&[u8], &str); 4] = [
        (
            b"",
            "cf83e1357eefb8bdf1542850d66d8007d620e4050b5715dc83f4a921d36ce9ce
             47d0d13c5d85f2b0ff8318d2877eec2f63b931bd47417a81a538327af927da3e",
        ),
        (
            b"abc",
            "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a
             2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
        ),
        (
            LONG,
            "8e959b75dae313da8cf4f72814fc143f8f7779c6eb9f7fa17299aeadb6889018
             501d289e4900f7e4331b99dec4b5433ac7d329eeb6dd26545e96e55b874be909",
        ),
        (
            &million,
            "e718483d0ce769644e2e42c7bc15b4638e1f98b13b2044285632a803afa973eb
             de0ff244877ea60a4cb0432ce577c31beb009c5c2c49aa2e4eadb217ad8cc09b",
        ),
    ];
    assert_known_answers(Hash::Sha512, &rows);
    let rows: [(&[u8], &str); 2] = [
        (
            b"abc",
            "cb00753f45a35e8bb5a03d699ac65007272c32ab0eded1631a8b605a43ff5bed
             8086072ba1e7cc2358baeca134c825a7",
        ),
        (
            LONG,
            "09330c33f71147e83d192fc782cd1b4753111b173b3b05d22fa08086e3b0f712
             fcc7c71a557e2db966c3e9fa91746039",
        ),
    ];
    assert_known_answers(Hash::Sha384, &rows);
}

/// RFC 7693, appendix A.
#[test]
fn blake2b_of_the_rfc() {
    let digest = "ba80a53f981c4d0d6a2797b69f12f6e94c212f14685ac4b74b12bb6fdbffa2d1
                  7d87c5392aab792dc252d5de4533cc9518d38aa8dbf1925ab92386edd4009923";
    assert_known_answers(Hash::Blake2b512, &[(b"abc", digest)]);
}

/// Compares digests of `count` messages between guard pages with the library's, and returns how many.
fn compare(hash: Hash, buffer: &mut Guarded, noise: &[u8], len: usize, count: usize) -> usize {
    let place = if (len + count).is_multiple_of(2) { Place::Front } else { Place::Back };
    let data = buffer.at(place, len * count);
    data.iter_mut().zip(noise.iter().cycle()).zip((0u8..=250).cycle()).for_each(|((to, from), at)| *to = from ^ at);
    let messages: Vec<&[u8]> = (0..count).map(|at| &data[at * len..][..len]).collect();
    let block = hash.block_len();
    let mut compared = 0;
    for (prefix, suffix) in
        [(0, 0), (len % 130, 0), (32, 0), (block, 0), (0, 256 - len % 257), (len % 67, count * 4), (block + 9, 1)]
    {
        let (prefix, suffix) = (&noise[..prefix], &noise[500..500 + suffix]);
        let expected = expected(hash, prefix, &messages, suffix, 65);
        for kernel in HashKernel::available(hash) {
            let mut digests = vec![0x5a; count * 65];
            HashBatch::new_on(kernel, hash, prefix, suffix).digest_blocks(data, len, &mut digests, 65);
            let name = kernel.name();
            assert!(
                digests == expected,
                "{hash} with {name}: {} bytes, {count} messages of {len}, {} bytes",
                prefix.len(),
                suffix.len()
            );
            compared += count;
        }
    }
    compared
}

/// Messages begin behind a guard page, or end before one.
#[test]
fn every_hash_kernel_agrees_in_every_length() {
    let noise = noise(1, 1024);
    let mut buffer = Guarded::new(1 << 17);
    let mut compared = 0;
    for len in (0..=321).chain([511, 512, 513, 1000, 1024, 4096]) {
        for count in [1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 15] {
            compared += compare(Hash::Sha256, &mut buffer, &noise, len, count);
        }
        for count in [1, 2, 4, 6, 9, 13] {
            compared += compare(Hash::Sha512, &mut buffer, &noise, len, count);
            compared += compare(Hash::Blake2b512, &mut buffer, &noise, len, count);
        }
        for hash in [Hash::Sha384, Hash::Blake2b160, Hash::Blake2b256, Hash::Blake2b384] {
            compared += compare(hash, &mut buffer, &noise, len, 6);
        }
    }
    println!("COUNT digests_of_batches {compared}");
}

/// Numbers of messages from none to twice the lanes and three, of lengths around the edges of blocks.
#[test]
fn every_hash_kernel_agrees_in_every_number_of_messages() {
    let noise = noise(2, 1024);
    let mut buffer = Guarded::new(1 << 18);
    for hash in HASHES {
        kernels(hash);
        let most = if hash == Hash::Sha256 { 35 } else { 19 };
        for count in 0..=most {
            for len in [0, 1, 55, 56, 63, 64, 65, 111, 112, 127, 128, 129, 255, 256, 257, 1024, 4096] {
                compare(hash, &mut buffer, &noise, len, count);
            }
        }
    }
}

/// Each message has a digest of its own, independent of those in the other lanes.
#[test]
fn different_messages_in_all_lanes_have_their_own_digests() {
    for hash in HASHES {
        for count in 1..=40 {
            for len in [0, 55, 56, 64, 512, 4096] {
                let data = noise(count as u64, count * len + 1);
                let messages: Vec<&[u8]> = (0..count).map(|at| &data[(count - 1 - at) * len..][..len]).collect();
                let expected = expected(hash, b"salt", &messages, b"end", hash.len());
                for kernel in kernels(hash) {
                    let mut digests = vec![0; expected.len()];
                    let batch = HashBatch::new_on(kernel, hash, b"salt", b"end");
                    batch.digest_slices(&messages, &mut digests, hash.len());
                    assert_eq!(digests, expected, "{hash} with {}: {count} of {len}", kernel.name());
                }
            }
        }
    }
}

#[test]
fn limit_of_the_cpu_allows_no_other_kernels() {
    for hash in HASHES {
        assert_eq!(HashKernel::available_within(hash, CpuLimit::Portable), [HashKernel::Portable]);
        let narrow = HashKernel::available_within(hash, CpuLimit::AesNi);
        assert!(narrow.iter().all(|kernel| !matches!(kernel, HashKernel::Avx512(_))));
        assert!(HashKernel::available(hash).contains(&fastest(hash, &HashKernel::available(hash))));
    }
}

#[test]
fn hash_without_kernels_is_computed_by_its_library() {
    assert_eq!(HashKernel::best(Hash::Sha1).unwrap(), HashKernel::Portable);
    assert_eq!(HashKernel::available(Hash::Sha1), [HashKernel::Portable]);
    let mut digests = [0x5a; 64];
    HashBatch::new(Hash::Sha1, b"salt", b"end").unwrap().digest_blocks(b"onetwo", 3, &mut digests, 32);
    assert_eq!(digests[..], expected(Hash::Sha1, b"salt", &[b"one", b"two"], b"end", 32));
}

#[test]
#[should_panic(expected = "messages have the same length")]
fn messages_of_different_lengths_are_refused() {
    HashBatch::new_on(HashKernel::Portable, Hash::Sha256, b"", b"").digest_slices(&[b"a", b"bc"], &mut [0; 64], 32);
}

#[test]
#[should_panic(expected = "there is a message for each digest")]
fn data_of_another_length_than_the_messages_are_refused() {
    HashBatch::new_on(HashKernel::Portable, Hash::Sha256, b"", b"").digest_blocks(&[0; 63], 32, &mut [0; 64], 32);
}

#[test]
#[should_panic(expected = "there is room for each digest")]
fn stride_that_is_shorter_than_a_digest_is_refused() {
    HashBatch::new_on(HashKernel::Portable, Hash::Sha512, b"", b"").digest_blocks(&[0; 64], 32, &mut [0; 126], 63);
}
