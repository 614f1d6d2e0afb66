//! Policies: exceptions, pins, and key derivations.

use super::*;
use crate::pbkdf::{Argon2Cost, Hash, KdfKind};
use inlock_cipher::Sector;
use inlock_cipher::known_specs;

/// A header of a 512-bit key with two keyslots.
fn facts(segments: &[Segment]) -> HeaderFacts<'_> {
    let cost = |memory_kib| Argon2Cost { time: 4, memory_kib, lanes: 2 };
    HeaderFacts {
        uuid: "f0e1",
        segments,
        authenticated: None,
        key_lens: vec![64, 64],
        kdfs: vec![(0, Kdf::Argon2id(cost(1000))), (3, Kdf::Argon2id(cost(2000)))],
        digest: HeaderDigest::of(b"header"),
    }
}

fn segment(cipher: &str) -> Segment {
    Segment::whole(Some(cipher.parse().unwrap()), DataUnitSize::SECTOR)
}

#[test]
fn every_cipher_without_encryption_or_iv_is_refused_by_its_own_flag() {
    let (mut null, mut no_iv, mut others) = (0, 0, 0);
    for cipher in known_specs() {
        let segments = [Segment::whole(Some(cipher), DataUnitSize::SECTOR)];
        let check = |change: fn(&mut HeaderPolicy)| {
            let mut policy = HeaderPolicy::default();
            change(&mut policy);
            policy.check_header(&facts(&segments))
        };
        let names = cipher.to_string();
        if names.starts_with("cipher_null") {
            assert_eq!(check(|_| {}), Err(PolicyError::NullCipher { segment: 0, cipher }));
            assert!(check(|p| (p.allow_null_iv, p.allow_linear_segment) = (true, true)).is_err());
            assert_eq!(check(|p| p.allow_null_cipher = true), Ok(()));
            null += 1;
        } else if names.ends_with("-ecb") || names.ends_with("-null") {
            assert_eq!(check(|_| {}), Err(PolicyError::NullIv { segment: 0, cipher }));
            assert!(check(|p| (p.allow_null_cipher, p.allow_linear_segment) = (true, true)).is_err());
            assert_eq!(check(|p| p.allow_null_iv = true), Ok(()));
            no_iv += 1;
        } else {
            assert_eq!(check(|_| {}), Ok(()), "{cipher}");
            others += 1;
        }
    }
    assert!(null == 1 && no_iv >= 30 && others >= 200, "{null} {no_iv} {others}");
}

#[test]
fn plain_iv_repeats_behind_2_to_the_32_numbers() {
    const TIB2: u64 = 1 << 41;
    let plain = segment("aes-cbc-plain");
    let of = |segments: &[Segment], len| plain_iv_repeats(segments, len).is_some();
    assert!(!of(&[plain], TIB2) && of(&[plain], TIB2 + 512));
    assert!(!of(&[segment("aes-cbc-plain64")], u64::MAX) && !of(&[], u64::MAX));
    let at = |iv_offset, sectors| {
        let mut segment = plain;
        (segment.iv_offset, segment.sectors) = (Sector(iv_offset), Some(sectors));
        segment
    };
    let cut = at(0, 1 << 32);
    assert!(!of(&[cut], u64::MAX), "its own length counts");
    assert!(!of(&[at(1 << 40, 1 << 32)], u64::MAX), "numbers that wrap but do not repeat");
    assert!(of(&[cut, at(1 << 32, 8)], u64::MAX), "the second has the numbers of the first");
    let mut large = plain;
    (large.unit, large.large_iv) = (DataUnitSize::LUKS_MAX, true);
    assert!(!of(&[large], 8 * TIB2) && of(&[large], 8 * TIB2 + 4096));
}

#[test]
fn values_that_are_not_allowed_are_refused_by_name() {
    let segments = [segment("aes-xts-plain64")];
    let check = |change: fn(&mut HeaderPolicy)| {
        let mut policy = HeaderPolicy::default();
        change(&mut policy);
        policy.check_header(&facts(&segments)).map_err(|error| error.to_string())
    };
    let any = || KdfRule::any(KdfKind::Argon2id);
    assert_eq!(check(|p| p.key_lens = vec![32, 64]), Ok(()));
    assert_eq!(check(|p| p.units = vec![DataUnitSize::LUKS_MAX, DataUnitSize::SECTOR]), Ok(()));
    assert_eq!(check(|p| p.kdfs = vec![KdfRule::any(KdfKind::Pbkdf2), KdfRule::any(KdfKind::Argon2id)]), Ok(()));
    assert_eq!(check(|p| p.expected_digest = Some(HeaderDigest::of(b"header"))), Ok(()));
    type Row = (fn(&mut HeaderPolicy), &'static str);
    let rows: [Row; 9] = [
        (|p| p.key_lens = vec![16, 32], "its volume key has 512 bits, but 128,256 are required"),
        (|p| p.units = vec![DataUnitSize::LUKS_MAX], "segment 0 has sectors of 512 bytes, but 4096 are required"),
        (
            |p| p.kdfs = vec![KdfRule::any(KdfKind::Pbkdf2), KdfRule::any(KdfKind::Argon2i)],
            "keyslot 0 has the PBKDF argon2id, but pbkdf2,argon2i is required",
        ),
        (|p| p.expected_uuid = Some("x".to_owned()), "its UUID is 'f0e1', but 'x' is expected"),
        (
            |p| p.required_ciphers = vec!["aes-cbc-plain".parse().unwrap()],
            "segment 0 has cipher 'aes-xts-plain64', but aes-cbc-plain is required",
        ),
        (
            |p| p.kdfs = vec![KdfRule { memory_kib: 1001..=3000, ..KdfRule::any(KdfKind::Argon2id) }],
            "keyslot 0: argon2 memory in KiB 1000 is less than the required 1001",
        ),
        (
            |p| p.kdfs = vec![KdfRule { memory_kib: 0..=1999, ..KdfRule::any(KdfKind::Argon2id) }],
            "keyslot 3: argon2 memory in KiB 2000 is more than the allowed 1999",
        ),
        (
            |p| p.kdfs = vec![KdfRule { lanes: 1..=1, ..KdfRule::any(KdfKind::Argon2id) }],
            "keyslot 0: argon2 lanes 2 is more than the allowed 1",
        ),
        (
            |p| p.kdfs = vec![KdfRule { iterations: 5..=9, ..KdfRule::any(KdfKind::Argon2id) }],
            "keyslot 0: argon2 time cost 4 is less than the required 5",
        ),
    ];
    for (change, expected) in rows {
        assert_eq!(check(change).unwrap_err(), expected);
    }
    let mut policy = HeaderPolicy { expected_digest: Some(HeaderDigest::of(b"other")), ..HeaderPolicy::default() };
    let error = policy.check_header(&facts(&segments)).unwrap_err().to_string();
    assert!(error.starts_with("its header has the digest sha256:") && error.ends_with(" is expected"), "{error}");
    policy.expected_digest = None;
    policy.kdfs = vec![KdfRule { hashes: vec![Hash::Sha512], ..KdfRule::any(KdfKind::Pbkdf2) }, any()];
    policy.kdfs[0].iterations = 1000..=u32::MAX;
    let pbkdf2 = |hash, iterations| policy.check_kdf(1, &Kdf::Pbkdf2 { hash, iterations }).map_err(|e| e.to_string());
    assert_eq!(pbkdf2(Hash::Sha512, 1000), Ok(()));
    assert_eq!(pbkdf2(Hash::Sha1, 1000).unwrap_err(), "keyslot 1 has PBKDF2 with sha1, but sha512 is required");
    assert_eq!(
        pbkdf2(Hash::Sha512, 999).unwrap_err(),
        "keyslot 1: pbkdf2 iterations 999 is less than the required 1000"
    );
}

#[test]
fn policy_of_present_header_refuses_every_other() {
    let segments = [segment("aes-xts-plain64")];
    let policy = facts(&segments).policy();
    assert_eq!(policy.check_header(&facts(&segments)), Ok(()));
    let others = [segment("aes-xts-plain"), Segment::whole(segments[0].cipher, DataUnitSize::LUKS_MAX)];
    type Change<'a> = &'a dyn Fn(&mut HeaderFacts<'_>);
    let changes: [Change<'_>; 7] = [
        &|facts| facts.uuid = "f0e2",
        &|facts| facts.segments = Box::leak(Box::new([others[0]])),
        &|facts| facts.segments = Box::leak(Box::new([others[1]])),
        &|facts| facts.key_lens[1] = 32,
        &|facts| facts.kdfs[1].1 = Kdf::Argon2id(Argon2Cost { time: 4, memory_kib: 2001, lanes: 2 }),
        &|facts| facts.kdfs.push((4, Kdf::Pbkdf2 { hash: Hash::Sha256, iterations: 1000 })),
        &|facts| facts.digest = HeaderDigest::of(b"other"),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut other = facts(&segments);
        change(&mut other);
        assert!(policy.check_header(&other).is_err(), "change {number}");
    }
}

#[test]
fn digest_reads_back_as_displayed() {
    let digest = HeaderDigest::of(b"abc");
    let text = digest.to_string();
    assert_eq!(text, "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_eq!(text.parse(), Ok(digest));
    assert_eq!(text.replace('b', "B").parse(), Ok(digest));
    for bad in ["", "sha256:", &text[7..], &text[..70], &format!("{text}0"), &text.replace('5', "x"), "sha256:é"] {
        assert_eq!(bad.parse::<HeaderDigest>(), Err(InvalidHeaderDigest), "{bad}");
    }
}
