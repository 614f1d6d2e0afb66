//! Published vectors: those of IEEE 1619, NIST and Wycheproof, on every kernel.
//!
//! A kernel takes whole units of 512 bytes or more, and whole blocks of a unit do not depend on later ones, so a
//! shorter vector is run as the start of a unit. Vectors that end inside a block cannot be run, and are counted.

use super::naive::Naive;
use super::unhex;
use crate::iv::IvGenerator;
use crate::*;

const SPEC: CipherSpec = CipherSpec::AES_XTS_PLAIN64;

/// Runs XTS on `data`, which is whole blocks, with any tweak block, on every kernel and the naive reference. All must
/// agree.
fn xts_everywhere(key: &[u8], iv: [u8; 16], data: &[u8], encrypt: bool) -> Vec<u8> {
    assert!(data.len().is_multiple_of(16));
    let mut expected = data.to_vec();
    Naive::new(&SPEC, key, data.len(), 1).unit(iv, &mut expected, encrypt);
    for kernel in AesKernel::available() {
        let unit = DataUnitSize::new(data.len().next_power_of_two().max(512) as u32).unwrap();
        let cipher = crate::sector_cipher::new_aes_xts(kernel, key, unit, IvGenerator::fixed(iv));
        let mut padded = data.to_vec();
        padded.resize(unit.bytes(), 0x99);
        let whole = InOut::InPlace(&mut padded);
        if encrypt {
            cipher.encrypt(IvNumber(0), whole)
        } else {
            cipher.decrypt(IvNumber(0), whole)
        }
        assert_eq!(padded[..data.len()], expected, "{kernel:?}");
    }
    expected
}

fn number_iv(number: u64) -> [u8; 16] {
    u128::from(number).to_le_bytes()
}

/// Checks both directions, and returns the ciphertext.
fn both_ways(key: &[u8], iv: [u8; 16], plain: &[u8]) -> Vec<u8> {
    let ciphertext = xts_everywhere(key, iv, plain, true);
    assert_eq!(xts_everywhere(key, iv, &ciphertext, false), plain);
    ciphertext
}

/// IEEE Std 1619-2007, annex B, vectors 1 to 3: keys of equal bytes, 32 bytes of data.
#[test]
fn ieee_1619_short_units() {
    let descending = 0xfffefdfcfbfaf9f8f7f6f5f4f3f2f1f0_u128.to_be_bytes();
    type Row = ([u8; 16], u8, u64, u8, [u128; 2]);
    let rows: [Row; 3] = [
        ([0; 16], 0, 0, 0, [0x917cf69ebd68b2ec9b9fe9a3eadda692, 0xcd43d2f59598ed858c02c2652fbf922e]),
        (
            [0x11; 16],
            0x22,
            0x3333333333,
            0x44,
            [0xc454185e6a16936e39334038acef838b, 0xfb186fff7480adc4289382ecd6d394f0],
        ),
        (
            descending,
            0x22,
            0x3333333333,
            0x44,
            [0xaf85336b597afc1a900b2eb21ec949d2, 0x92df4c047e0b21532186a5971a227a89],
        ),
    ];
    for (data_key, tweak_key, number, byte, ciphertext) in rows {
        let key = [data_key, [tweak_key; 16]].concat();
        let got = both_ways(&key, number_iv(number), &[byte; 32]);
        assert_eq!(got, ciphertext.map(u128::to_be_bytes).as_flattened());
    }
}

/// IEEE Std 1619-2007, annex B, vectors 4 to 9: a run of 256 units in which the plaintext of each one is the ciphertext
/// of the previous one. So comparing the first and the last block of a few covers every byte of all.
#[test]
fn ieee_1619_chain_of_units() {
    const ROWS: [(u64, u128, u128); 6] = [
        (0x00, 0x27a7479befa1d476489f308cd4cfa6e2, 0x0a282df920147beabe421ee5319d0568),
        (0x01, 0x264d3ca8512194fec312c8c9891f279f, 0xfd2a89ccb45e001a03a867b187f225dd),
        (0x02, 0xfa762a3680b76007928ed4a4f49a9456, 0x4bcf518138dc3a25c5e236171a2d01d6),
        (0xfd, 0xd55f684f81f4426e9fde92a5ff02df2a, 0x1d1c0a6783e011fc536d63d053260637),
        (0xfe, 0x72efc1ebfe1ee25975a6eb3aa8589dda, 0x883accdbe1104eef0cfdb54e12fb230a),
        (0xff, 0x3260ae8dad1f4a32c5cafe3ab0eb9554, 0xc8a8679ccb84c26555440ec7f10445cd),
    ];
    let key = [0x27182818284590452353602874713526_u128, 0x31415926535897932384626433832795].map(u128::to_be_bytes);
    let mut data: Vec<u8> = (0..512).map(|at| at as u8).collect();
    let mut rows = ROWS.into_iter();
    let mut next = rows.next();
    for number in 0..256 {
        data = both_ways(key.as_flattened(), number_iv(number), &data);
        if let Some((at, first, last)) = next.filter(|(at, ..)| *at == number) {
            assert_eq!(data[..16], first.to_be_bytes(), "unit {at}");
            assert_eq!(data[496..], last.to_be_bytes(), "unit {at}");
            next = rows.next();
        }
    }
    assert_eq!(next, None);
}

/// IEEE Std 1619-2007, annex B, vectors 10 to 14: AES-256, the plaintext 00 01 02 ... ff twice, and numbers of
/// increasing length. First and last block of each.
#[test]
fn ieee_1619_aes_256() {
    const ROWS: [(u64, u128, u128); 5] = [
        (0xff, 0x1c3b3a102f770386e4836c99e370cf9b, 0xc4f36ffda9fcea70b9c6e693e148c151),
        (0xffff, 0x77a31251618a15e6b92d1d66dffe7b50, 0xa4f9e27b42af8100cb9d59cef9645803),
        (0xffffff, 0xe387aaa58ba483afa7e8eb469778317e, 0x2263a1eef52dd6888c309f5a7d712826),
        (0xffffffff, 0xbf53d2dade78e822a4d949a9bc6766b0, 0x4c82f335abb152c4a93411373aaa8220),
        (0xffffffffff, 0x64497e5a831e4a932c09be3e5393376d, 0xd609d273ad5b0d59631c531f6a0a57b9),
    ];
    let key = [
        0x27182818284590452353602874713526_u128,
        0x62497757247093699959574966967627,
        0x31415926535897932384626433832795,
        0x02884197169399375105820974944592,
    ]
    .map(u128::to_be_bytes);
    let data: Vec<u8> = (0..512).map(|at| at as u8).collect();
    for (number, first, last) in ROWS {
        let got = both_ways(key.as_flattened(), number_iv(number), &data);
        assert_eq!(got[..16], first.to_be_bytes(), "unit {number:#x}");
        assert_eq!(got[496..], last.to_be_bytes(), "unit {number:#x}");
    }
}

/// Wycheproof's AES-XTS vectors, from the package that has them.
#[test]
fn wycheproof() {
    let set = wycheproof::cipher::TestSet::load(wycheproof::cipher::TestName::AesXts).unwrap();
    let (mut run, mut other) = (0, 0);
    for test in set.test_groups.iter().flat_map(|group| &group.tests) {
        let (key, iv, plain, ciphertext) = (&test.key[..], &test.nonce[..], &test.pt[..], &test.ct[..]);
        let usable =
            SPEC.key_lens().contains(&key.len()) && !plain.is_empty() && plain.len() % 16 == 0 && iv.len() <= 16;
        if !usable || test.result != wycheproof::TestResult::Valid {
            other += 1;
            continue;
        }
        let mut tweak = [0; 16];
        tweak[..iv.len()].copy_from_slice(iv);
        assert_eq!(both_ways(key, tweak, plain), ciphertext, "test {}", test.tc_id);
        run += 1;
    }
    println!("{run} vectors; {other} with key lengths or partial blocks that data units do not have");
    assert!(run >= 10, "only {run} of {} vectors are usable", run + other);
}

/// NIST's XTSVS vectors, as in the Python package `cryptography-vectors`: `INLOCK_NIST_XTS` names its directory
/// `cryptography_vectors/ciphers/AES/XTS`.
#[test]
fn nist() {
    let Some(directory) = std::env::var_os("INLOCK_NIST_XTS") else {
        println!("SKIPPED: INLOCK_NIST_XTS does not name the directory with NIST's XTS vectors");
        return;
    };
    let (mut run, mut partial) = (0, 0);
    for file in ["tweak-128hexstr", "tweak-dataunitseqno"] {
        for key in ["XTSGenAES128.rsp", "XTSGenAES256.rsp"] {
            let path = std::path::Path::new(&directory).join(file).join(key);
            let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            for case in text.split("COUNT = ").skip(1) {
                if nist_case(case) { run += 1 } else { partial += 1 }
            }
        }
    }
    println!("{run} vectors; {partial} with partial blocks, which data units do not have");
    assert!(run >= 1000, "only {run} vectors");
}

/// Runs a case of whole blocks. Returns whether it was one.
fn nist_case(case: &str) -> bool {
    let field = |name: &str| {
        let line = case.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "));
        line.map(str::trim)
    };
    let hex = |name: &str| unhex(field(name).unwrap());
    let bits: usize = field("DataUnitLen").unwrap().parse().unwrap();
    if !bits.is_multiple_of(128) {
        return false;
    }
    let iv = match field("DataUnitSeqNumber") {
        Some(number) => number_iv(number.parse().unwrap()),
        None => hex("i").try_into().unwrap(),
    };
    assert_eq!(both_ways(&hex("Key"), iv, &hex("PT")), hex("CT"), "{case}");
    true
}
