//! Known answers of every hash and of PBKDF2 with it, and the names.

use super::*;
use crate::stopped::STEP;
use crate::testing::{noise, unhex};
use std::cell::Cell;

/// (hash, message, digest), from the specifications or, for those without this message there, from two libraries that
/// agree (OpenSSL 3 and Python's hashlib).
const DIGESTS: &[(Hash, &str, &str)] = &[
    // RFC 1321, appendix A.5.
    (Hash::Md5, "abc", "900150983cd24fb0d6963f7d28e17f72"),
    // NIST's examples of FIPS 180-4 and FIPS 202.
    (Hash::Sha1, "abc", "a9993e364706816aba3e25717850c26c9cd0d89d"),
    (Hash::Sha224, "abc", "23097d223405d8228642a477bda255b32aadbce4bda0b3f7e36c9da7"),
    (Hash::Sha256, "abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
    (
        Hash::Sha384,
        "abc",
        "cb00753f45a35e8bb5a03d699ac65007272c32ab0eded1631a8b605a43ff5bed8086072ba1e7cc2358baeca134c825a7",
    ),
    (
        Hash::Sha512,
        "abc",
        "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a
         2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
    ),
    (Hash::Sha512_224, "abc", "4634270f707b6a54daae7530460842e20e37ed265ceee9a43e8924aa"),
    (Hash::Sha512_256, "abc", "53048e2681941ef99b2e29b76b4c7dabe4c2d0c634fc6d46e0e2f13107e7af23"),
    (Hash::Sha3_224, "abc", "e642824c3f8cf24ad09234ee7d3c766fc9a3a5168d0c94ad73b46fdf"),
    (Hash::Sha3_256, "abc", "3a985da74fe225b2045c172d6bd390bd855f086e3e9d525b46bfe24511431532"),
    (
        Hash::Sha3_384,
        "abc",
        "ec01498288516fc926459f58e2c6ad8df9b473cb0fc08c2596da7cf0e49be4b298d88cea927ac7f539f1edf228376d25",
    ),
    (
        Hash::Sha3_512,
        "abc",
        "b751850b1a57168a5693cd924b6b096e08f621827444f70d884f5d0240d2712e
         10e116e9192af3c91a7ec57647e3934057340b4cf408d5a56592f8274eec53f0",
    ),
    // The vectors of Keccak's authors before FIPS 202.
    (Hash::Keccak224, "abc", "c30411768506ebe1c2871b1ee2e87d38df342317300a9b97a95ec6a8"),
    (Hash::Keccak256, "abc", "4e03657aea45a94fc7d47ba826c8d667c0d1e6e33a64a036ec44f58fa12d6c45"),
    (
        Hash::Keccak384,
        "abc",
        "f7df1165f033337be098e7d288ad6a2f74409d7a60b49c36642218de161b1f99f8c681e4afaf31a34db29fb763e3c28e",
    ),
    (
        Hash::Keccak512,
        "abc",
        "18587dc2ea106b9a1563e32b3312421ca164c7f1f07bc922a9c83d77cea3a1e5
         d0c69910739025372dc14ac9642629379540c17e2a65b19d77aa511a9d00bb96",
    ),
    // Dobbertin, Bosselaers, Preneel: "RIPEMD-160: A Strengthened Version of RIPEMD", appendix B.
    (Hash::Ripemd160, "abc", "8eb208f7e05d987a9b044a8e98c6b087f15a0bfc"),
    // ISO/IEC 10118-3, example 4 of dedicated hash function 7.
    (
        Hash::Whirlpool,
        "abc",
        "4e2448a4c6f486bb16b6562c73b4020bf3043e3a731bce721ae1b303d97e6d4c
         7181eebdb6c57e277d0e34957114cbd6c797fc9d95d8b582d225292076d4eef5",
    ),
    // 64 bytes of BLAKE2b and 32 bytes of BLAKE2s: RFC 7693, appendices A and B.
    (Hash::Blake2b160, "abc", "384264f676f39536840523f284921cdc68b6846b"),
    (Hash::Blake2b256, "abc", "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319"),
    (
        Hash::Blake2b384,
        "abc",
        "6f56a82c8e7ef526dfe182eb5212f7db9df1317e57815dbda46083fc30f54ee6c66ba83be64b302d7cba6ce15bb556f4",
    ),
    (
        Hash::Blake2b512,
        "abc",
        "ba80a53f981c4d0d6a2797b69f12f6e94c212f14685ac4b74b12bb6fdbffa2d1
         7d87c5392aab792dc252d5de4533cc9518d38aa8dbf1925ab92386edd4009923",
    ),
    (Hash::Blake2s128, "abc", "aa4938119b1dc7b87cbad0ffd200d0ae"),
    (Hash::Blake2s160, "abc", "5ae3b99be29b01834c3b508521ede60438f8de17"),
    (Hash::Blake2s224, "abc", "0b033fc226df7abde29f67a05d3dc62cf271ef3dfea4d387407fbd55"),
    (Hash::Blake2s256, "abc", "508c5e8c327c14e2e1a72ba34eeb452f37458b209ed63a294d999b4c86675982"),
    // GB/T 32905-2016, example 1.
    (Hash::Sm3, "abc", "66c7f0f462eeedd9d1f2d46bdc10e4e24167c4875cf2f7a2297da02b8f4ba8e0"),
    // RFC 6986, section 10.1, bytes in the order of the message.
    (
        Hash::Streebog256,
        "012345678901234567890123456789012345678901234567890123456789012",
        "9d151eefd8590b89daa6ba6cb74af9275dd051026bb149a452fd84e5e57b5500",
    ),
    (
        Hash::Streebog512,
        "012345678901234567890123456789012345678901234567890123456789012",
        "1b54d01a4af5b9d5cc3d86d68d285462b19abc2475222f35c085122be4ba1ffa
         00ad30f8767b3a82384c6574f024c311e2a481332b08ef7f41797891c1646f48",
    ),
];

/// (hash, iterations, key) of the passphrase `password` and the salt `salt`.
const PBKDF2: &[(Hash, u32, &str)] = &[
    // RFC 6070.
    (Hash::Sha1, 2, "ea6c014dc72d6f8ccd1ed92ace1d41f0d8de8957"),
    // RFC 9337, appendix B.
    (
        Hash::Streebog512,
        1,
        "64770af7f748c3b1c9ac831dbcfd85c26111b30a8a657ddc3056b80ca73e040d
         2854fd36811f6d825cc4ab66ec0a68a490a9e5cf5156b3a2b7eecddbf9a16b47",
    ),
    // Python's hashlib, with four bytes of a second block.
    (Hash::Md5, 3, "f6acd4bda3e4d3d831a5f61da9ca9d5c3877566e"),
    (Hash::Sha512_224, 3, "635aed8aaa4449ea97f7119b559de27ab73a3f614d617a62e700ea72e3f18c9b"),
    (Hash::Sha512_256, 3, "9fa42ea03f8f8ac08be344def79d9c031e8f773f20a1061f5f38b37f01d32943ddc662e9"),
    (Hash::Sha3_224, 3, "78f53c723000c6648b2685ceb66277b3bbc3830063b32ac0983a42f1c289f097"),
    (Hash::Sha3_256, 3, "6677065466c97fdef1c15ae8d95020ca948334f53eceeafc6115ddf405f6d6a4f75ba13a"),
    (
        Hash::Sha3_384,
        3,
        "3c7efe23b2a10f89837270324712c2e0bd8559d6c8ed070268239a2c2abb777b9adc611d71d2b5336ec5101128c285a38933b94d",
    ),
    (
        Hash::Sha3_512,
        3,
        "cf022071b51477a7783157cbf39fe43377494e295da4d9bb8905117d0a4e998c
         6c930d02e1291e83dee21ffc71163fed3dc6fce250fd476214815e7ccdaccf86f91fe5d8",
    ),
    (Hash::Sm3, 3, "f2a075c888a5188892c4860f9b33ad24a7fd5c5685b6f7a6bc12f76e2cd732e26b042438"),
    // HMAC written out over Python's hashlib.blake2b and blake2s, which pads keys to their blocks of 128 and 64 bytes.
    (Hash::Blake2b160, 3, "7149de59d65c6fce5f102d60048a77621584178141c7ac54"),
    (Hash::Blake2b256, 3, "90738e3f1bb90394fc6b7b77a1d7845cd30537b0c2276d0df2436f5db2449cda4ec7f3ec"),
    (
        Hash::Blake2b384,
        3,
        "6231b4d08c6977d03c06527a1ea8716f498409028e248be94ac66fe9fd86ee2cea89badb26e19c3a1fa93ea038ad0c316c6e9920",
    ),
    (
        Hash::Blake2b512,
        3,
        "0543fd2a48f0d9ecdec59863cf9234bfbb1d35cc76df3ae571a069591f95f29c
         1c4e14d8c194c951678478d714c55544bc5c9db6a9bc19388404c00b9d77a1ce910511ec",
    ),
    (Hash::Blake2s128, 3, "ef8a24295c5fc27e838f0f144f7bd70f8b562c03"),
    (Hash::Blake2s160, 3, "374c9a9ae79422ecc2c7ca1a4ac54dfea3adecc276a2d337"),
    (Hash::Blake2s224, 3, "f54148d3caead79b6b4bcf47928531373260d89e132677f22fe5e61f6c4589b2"),
    (Hash::Blake2s256, 3, "9f84af2eacd0690a30558c9d31363c6828015792b820bd4fa8e4e7c4f179110d57ccc245"),
];

#[test]
fn every_hash_gives_its_specifications_answer() {
    for &(hash, message, expected) in DIGESTS {
        let (message, expected) = (message.as_bytes(), unhex(expected));
        assert_eq!(hash.len(), expected.len(), "{hash}");
        let (first, second) = message.split_at(2);
        let digest = hash.digest(&[first, &[], second]);
        assert_eq!(digest[..hash.len()], expected, "{hash}");
        assert!(digest[hash.len()..].iter().all(|byte| *byte == 0), "{hash}");
    }
    for hash in Hash::ALL {
        assert!(DIGESTS.iter().any(|(known, ..)| *known == hash), "{hash} has no known answer");
    }
}

#[test]
fn pbkdf2_pads_keys_to_blocks_of_the_hash() {
    for &(hash, iterations, expected) in PBKDF2 {
        let mut key = vec![0; unhex(expected).len()];
        hash.pbkdf2(b"password", b"salt", iterations, &mut key);
        assert_eq!(key, unhex(expected), "{hash}");
    }
    // A key as long as a block is used as it is, a longer one is hashed first.
    for hash in Hash::ALL {
        let of = |passphrase: &[u8]| {
            let mut key = [0; 16];
            hash.pbkdf2(passphrase, b"salt", 1, &mut key);
            key
        };
        let long = vec![0x61; hash.block_len() + 1];
        assert_eq!(of(&long), of(&hash.digest(&[&long])[..hash.len()]), "{hash}");
        let whole = &long[1..];
        assert_ne!(of(whole), of(&hash.digest(&[whole])[..hash.len()]), "{hash}");
    }
}

/// Whole and short last blocks, and iterations around a step.
#[test]
fn pbkdf2_agrees_with_the_library() {
    fn compare<M: KeyInit + Update + FixedOutput + Clone>(hash: Hash) {
        let noise = noise(68, 512);
        for len in [1, hash.len() - 1, hash.len(), hash.len() + 1, 3 * hash.len() + 5] {
            for iterations in [1, 2, 3, STEP, STEP + 1, STEP + 2, 2 * STEP + 7] {
                let (passphrase, salt) = (&noise[..len + 3], &noise[300..][..len % 40]);
                let (mut own, mut expected) = (vec![0xaa; len], vec![0x55; len]);
                hash.pbkdf2(passphrase, salt, iterations, &mut own);
                pbkdf2::pbkdf2::<M>(passphrase, salt, iterations, &mut expected).unwrap();
                assert_eq!(own, expected, "{hash}: {len} bytes, {iterations} iterations");
            }
        }
    }
    compare::<hmac::Hmac<sha1::Sha1>>(Hash::Sha1);
    compare::<hmac::Hmac<sha2::Sha256>>(Hash::Sha256);
    compare::<hmac::Hmac<sha2::Sha512>>(Hash::Sha512);
    compare::<hmac::Hmac<whirlpool::Whirlpool>>(Hash::Whirlpool);
    compare::<hmac::SimpleHmac<sha3::Sha3_256>>(Hash::Sha3_256);
    compare::<hmac::SimpleHmac<blake2::Blake2b<digest::consts::U64>>>(Hash::Blake2b512);
}

/// Every block of the key is stopped, with every kernel: a question comes before each step.
#[test]
fn pbkdf2_stops_when_asked() {
    for hash in Hash::ALL {
        // Four blocks of SHA-256 are computed together.
        let together = if hash == Hash::Sha256 { &[1, 4][..] } else { &[1][..] };
        let (mut key, asked) = (vec![0; 4 * hash.len()], Cell::new(0));
        let mut derive = |last: u32| {
            asked.set(0);
            let is_stopped = || asked.replace(asked.get() + 1) == last;
            hash.pbkdf2_until(&is_stopped, b"password", b"salt", 2 * STEP + 2, &mut key)
        };
        assert_eq!(derive(u32::MAX), Ok(()), "{hash}");
        let all = asked.get();
        assert!(together.iter().any(|blocks| all == 3 * 4 / blocks), "{hash}: {all} questions");
        for last in 0..all {
            assert_eq!(derive(last), Err(Stopped), "{hash}: question {last}");
            assert_eq!(asked.get(), last + 1, "{hash}: it went on");
        }
    }
}

#[test]
fn hash_is_found_by_every_name_in_any_case() {
    for (name, hash) in [
        ("sha256", Hash::Sha256),
        ("SHA256", Hash::Sha256),
        ("sha2-256", Hash::Sha256),
        ("rmd160", Hash::Ripemd160),
        ("RIPEMD-160", Hash::Ripemd160),
        ("blake2b512", Hash::Blake2b512),
        ("BLAKE2s-256", Hash::Blake2s256),
        ("wp512", Hash::Whirlpool),
        ("streebog256", Hash::Streebog256),
        ("stribog512", Hash::Streebog512),
        ("sha-512/256", Hash::Sha512_256),
    ] {
        assert_eq!(name.parse(), Ok(hash), "{name}");
    }
    for name in ["", "sha", "sha3", "blake2b", "md4", "sha256 ", "none"] {
        assert_eq!(name.parse::<Hash>(), Err(UnknownHash), "{name}");
    }
    assert_eq!(Hash::from_kernel_name("rmd160"), Some(Hash::Ripemd160));
    assert!(["ripemd160", "SHA256", "stribog256", "keccak-256"].iter().all(|n| Hash::from_kernel_name(n).is_none()));
}

#[test]
fn names_of_hashes_are_unique() {
    let mut names: Vec<_> = Hash::ALL.into_iter().map(Hash::name).collect();
    names.extend(Hash::ALL.into_iter().flat_map(Hash::aliases));
    names.extend(Hash::ALL.into_iter().filter_map(|hash| hash.kernel_name().filter(|name| *name != hash.name())));
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}
