//! Published test vectors of the key derivations, and their use of memory.

use crate::support::with;
use inlock_volume::{Argon2Cost, Hash, Kdf, KdfError, KdfLimits};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn pbkdf2_agrees(hash: Hash, passphrase: &[u8], salt: &[u8], iterations: u32, expected: &str) {
    let mut key = vec![0; expected.len() / 2];
    let kdf = Kdf::Pbkdf2 { hash, iterations };
    kdf.derive(passphrase, salt, &mut key, &KdfLimits::default()).unwrap();
    assert_eq!(hex(&key), expected, "{hash} {iterations}");
}

/// RFC 6070, section 2, without the row of 16 777 216 iterations.
#[test]
fn pbkdf2_sha1_of_rfc_6070() {
    let (long, long_salt) = (b"passwordPASSWORDpassword", b"saltSALTsaltSALTsaltSALTsaltSALTsalt");
    let rows: &[(&[u8], &[u8], u32, &str)] = &[
        (b"password", b"salt", 1, "0c60c80f961f0e71f3a9b524af6012062fe037a6"),
        (b"password", b"salt", 2, "ea6c014dc72d6f8ccd1ed92ace1d41f0d8de8957"),
        (b"password", b"salt", 4096, "4b007901b765489abead49d926f721d065a429c1"),
        (long, long_salt, 4096, "3d2eec4fe41c849b80c8d83662c0e44a8b291a964cf2f07038"),
        (b"pass\0word", b"sa\0lt", 4096, "56fa6aa75548099dcc37d7f03425e0c3"),
    ];
    for (passphrase, salt, iterations, expected) in rows {
        pbkdf2_agrees(Hash::Sha1, passphrase, salt, *iterations, expected);
    }
}

/// RFC 7914, section 11; then rows computed with Python's `hashlib.pbkdf2_hmac` for the hashes that no RFC has.
#[test]
fn pbkdf2_of_other_hashes() {
    type Row = (Hash, &'static [u8], &'static [u8], u32, &'static str);
    let rows: &[Row] = &[
        (
            Hash::Sha256,
            b"passwd",
            b"salt",
            1,
            "55ac046e56e3089fec1691c22544b605f94185216dde0465e68b9d57c20dacbc\
             49ca9cccf179b645991664b39d77ef317c71b845b1e30bd509112041d3a19783",
        ),
        (
            Hash::Sha256,
            b"Password",
            b"NaCl",
            80000,
            "4ddcd8f60b98be21830cee5ef22701f9641a4418d04c0414aeff08876b34ab56\
             a1d425a1225833549adb841b51c9b3176a272bdebba1d078478f62b397f33c8d",
        ),
        (
            Hash::Sha224,
            b"password",
            b"salt",
            2,
            "93200ffa96c5776d38fa10abdf8f5bfc0054b9718513df472d2331d2d1e66a3f97b510224f700ce7",
        ),
        (
            Hash::Sha384,
            b"password",
            b"salt",
            2,
            "54f775c6d790f21930459162fc535dbf04a939185127016a04176a0730c6f1f4fb48832ad1261baa",
        ),
        (
            Hash::Sha512,
            b"password",
            b"salt",
            2,
            "e1d9c16aa681708a45f5c7c4e215ceb66e011a2e9f0040713f18aefdb866d53cf76cab2868a39b9f",
        ),
        (
            Hash::Ripemd160,
            b"password",
            b"salt",
            2,
            "768dcc27b7bfdef794a1ff9d935090fcf598555e66913180b9ce363c615e9ed953b95fd07169be53",
        ),
    ];
    for (hash, passphrase, salt, iterations, expected) in rows {
        pbkdf2_agrees(*hash, passphrase, salt, *iterations, expected);
    }
}

/// Returns a field of `/proc/self/status` in KiB.
fn status_kib(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim_start_matches(':').trim().trim_end_matches("kB").trim().parse().unwrap()
}

#[test]
fn argon2_memory_is_released() {
    // Far more than other tests of this process use at the same time.
    const MEMORY_KIB: u32 = 1 << 20;
    let kdf = Kdf::Argon2id(Argon2Cost { time: 1, memory_kib: MEMORY_KIB, lanes: 1 });
    kdf.derive(b"passphrase", b"salt salt", &mut [0; 32], &KdfLimits::default()).unwrap();
    assert!(status_kib("VmHWM") > u64::from(MEMORY_KIB), "the memory was really used");
    let now = status_kib("VmRSS");
    assert!(now < u64::from(MEMORY_KIB) / 2, "{now} KiB are still resident");
    // Memory below the size of glibc's own mappings is released as well: repeated runs do not grow.
    for _ in 0..8 {
        let kdf = Kdf::Argon2i(Argon2Cost { time: 1, memory_kib: 31 << 10, lanes: 2 });
        kdf.derive(b"passphrase", b"salt salt", &mut [0; 32], &KdfLimits::default()).unwrap();
    }
    assert!(status_kib("VmRSS") < u64::from(MEMORY_KIB) / 2);
}

#[test]
fn costs_over_a_limit_are_refused_by_name() {
    let limits = with!(KdfLimits::default(); memory_kib: 1000);
    let cost = Argon2Cost { time: 4, memory_kib: 1000, lanes: 1 };
    let derive = |kdf: Kdf| kdf.derive(b"passphrase", b"salt salt", &mut [0; 32], &limits);
    let over = |kdf| match derive(kdf) {
        Err(KdfError::Limit { what, .. }) => what,
        other => panic!("{kdf:?}: {other:?}"),
    };
    assert_eq!(derive(Kdf::Argon2id(cost)), Ok(()));
    for memory_kib in [1001, 16 << 20, u32::MAX] {
        assert_eq!(over(Kdf::Argon2id(Argon2Cost { memory_kib, ..cost })), "argon2 memory in KiB");
    }
    assert_eq!(over(Kdf::Argon2i(Argon2Cost { time: u32::MAX, ..cost })), "argon2 time cost");
    assert_eq!(over(Kdf::Argon2i(Argon2Cost { lanes: 1 << 24, ..cost })), "argon2 lanes");
    assert_eq!(over(Kdf::Pbkdf2 { hash: Hash::Sha1, iterations: 1 << 31 }), "pbkdf2 iterations");
    let work = with!(limits; argon2_work_kib: 3999);
    let refused = Kdf::Argon2id(cost).derive(b"", b"salt salt", &mut [0; 32], &work);
    assert!(matches!(refused, Err(KdfError::Limit { asked: 4000, limit: 3999, .. })));
    assert!(matches!(derive(Kdf::Argon2id(Argon2Cost { lanes: 0, ..cost })), Err(KdfError::TooSmall { .. })));
    assert!(matches!(derive(Kdf::Argon2id(Argon2Cost { memory_kib: 7, ..cost })), Err(KdfError::TooSmall { .. })));
    let short_salt = Kdf::Argon2id(cost).derive(b"", b"salt", &mut [0; 32], &limits);
    assert!(matches!(short_salt, Err(KdfError::TooSmall { what: "argon2 salt length", .. })));
}
