//! Costs in a header: of one keyslot, of all of them, and of the digest.

use crate::support::with;
use crate::support::{PASSPHRASE, chain, luks1_options, luks2_options, secret};
use inlock_volume::luks2::Luks2;
use inlock_volume::{
    Argon2Cost, Hash, HeaderDevice, HeaderPolicy, Kdf, KdfError, KdfLimits, KdfRequest, MemoryDevice, PolicyError,
    UnlockError, UnlockOptions, Volume, VolumeKey, luks1, luks2,
};
use serde_json::json;

/// Unlocks within these limits.
fn open(
    device: &dyn HeaderDevice,
    passphrase: &[u8],
    limits: KdfLimits,
    slot: Option<u32>,
) -> Result<u32, UnlockError> {
    let options = with!(UnlockOptions::default(); limits: limits, keyslot: slot);
    let volume = Volume::load(device).unwrap();
    volume
        .unlock(device, &secret(passphrase), &options)
        .map(|unlocked| unlocked.keyslot.expect("a passphrase opened it"))
}

fn pbkdf2_limits(one: u64, total: u64) -> KdfLimits {
    with!(KdfLimits::default(); pbkdf2_iterations: one, pbkdf2_total_iterations: total)
}

fn pbkdf2_request() -> KdfRequest {
    crate::support::cheap(inlock_volume::KdfKind::Pbkdf2)
}

/// Returns a LUKS1 volume with these keyslots, which all have the same key; the last opens with the passphrase. 1000
/// iterations for each and for the digest.
fn luks1_volume(key_len: usize, hash: Hash, active: std::ops::Range<u32>) -> MemoryDevice {
    let device = MemoryDevice::zeroed((4 << 20) + 4096);
    let options = with!(luks1_options(); key_len: key_len, hash: hash, keyslot: active.end - 1);
    luks1::format(&device, options, &secret(PASSPHRASE)).unwrap();
    for slot in active.start..active.end - 1 {
        let at = 208 + 48 * u64::from(slot);
        device.write_all_at(&[0x00ac_71f3_u32.to_be_bytes(), 1000_u32.to_be_bytes()].concat(), at).unwrap();
    }
    device
}

/// Returns a LUKS2 volume whose first keyslot opens with the passphrase.
fn luks2_volume(kdf: KdfRequest, hash: Hash, slots: u32) -> MemoryDevice {
    let device = MemoryDevice::zeroed((16 << 20) + 8192);
    let options = with!(luks2_options(); kdf: kdf, hash: hash, keyslots_len: None);
    luks2::format(&device, options, &secret(PASSPHRASE)).unwrap();
    let mut luks2 = Luks2::load(&device).unwrap();
    let mut map = crate::support::map_of(&luks2);
    for slot in 1..slots {
        let mut other = map["keyslots"]["0"].clone();
        other["area"]["offset"] = json!((32768 + 258_048 * u64::from(slot)).to_string());
        other["kdf"]["salt"] = json!("AAAAAAAAAAAAAAAAAAAAAA==");
        map["keyslots"][slot.to_string()] = other;
    }
    map["digests"]["0"]["keyslots"] = (0..slots).map(|slot| slot.to_string()).collect();
    luks2.commit(&device, &crate::support::text_of(map)).unwrap();
    device
}

#[test]
fn pbkdf2_cost_is_iterations_times_blocks_of_output() {
    let limits = pbkdf2_limits(4000, u64::MAX);
    for (hash, key_len, blocks) in [
        (Hash::Sha256, 32, 1),
        (Hash::Sha256, 33, 2),
        (Hash::Sha1, 64, 4),
        (Hash::Sha512, 64, 1),
        (Hash::Sha1, 512, 26),
        (Hash::Ripemd160, 0, 1),
    ] {
        let kdf = |iterations| Kdf::Pbkdf2 { hash, iterations };
        let most = 4000 / blocks;
        assert_eq!(kdf(most).check(key_len, &limits), Ok(()), "{hash} {key_len}");
        let derived = kdf(most + 1).derive(b"passphrase", b"salt", &mut vec![0; key_len], &limits);
        assert!(
            matches!(derived, Err(KdfError::Limit { limit: 4000, asked: 4001.., .. })),
            "{hash} {key_len}: {derived:?}"
        );
    }
    // Through headers: 1000 iterations of 4 blocks.
    let device = luks1_volume(64, Hash::Sha1, 0..1);
    assert_eq!(open(&device, PASSPHRASE, limits, None).unwrap(), 0);
    let refused = open(&device, PASSPHRASE, pbkdf2_limits(3999, u64::MAX), None).unwrap_err();
    assert!(
        chain(&refused).contains("iterations times blocks of output 4000 exceeds the limit of 3999"),
        "{refused:?}"
    );
    let device = luks2_volume(pbkdf2_request(), Hash::Sha1, 1);
    assert_eq!(open(&device, PASSPHRASE, limits, None).unwrap(), 0);
    let refused = open(&device, PASSPHRASE, pbkdf2_limits(3999, u64::MAX), None).unwrap_err();
    assert!(
        chain(&refused).contains("iterations times blocks of output 4000 exceeds the limit of 3999"),
        "{refused:?}"
    );
}

#[test]
fn keyslots_over_the_limit_of_all_are_named_and_open_alone() {
    // One block a key and one for the digest: 2000 for a keyslot.
    let one = luks1_volume(32, Hash::Sha256, 0..8);
    let two = luks2_volume(pbkdf2_request(), Hash::Sha512, 8);
    for (device, opens) in [(&one, 7), (&two, 0)] {
        let enough = pbkdf2_limits(1000, 16_000);
        assert_eq!(open(device, PASSPHRASE, enough, None).unwrap(), opens);
        assert!(matches!(open(device, b"wrong", enough, None), Err(UnlockError::WrongPassphrase)));
        let short = pbkdf2_limits(1000, 15_999);
        let refused = open(device, b"wrong", short, None).unwrap_err();
        assert!(matches!(&refused, UnlockError::TooCostlyTogether(slots) if *slots == [7]), "{refused:?}");
        let refused = open(device, b"wrong", pbkdf2_limits(1000, 11_000), None).unwrap_err();
        assert!(refused.to_string().starts_with("keyslots 5, 6 and 7 cannot be tried"), "{refused}");
        assert_eq!(open(device, PASSPHRASE, pbkdf2_limits(1000, 2000), Some(opens)).unwrap(), opens, "by its number");
    }
    assert!(matches!(
        open(&one, PASSPHRASE, pbkdf2_limits(1000, 15_999), None),
        Err(UnlockError::TooCostlyTogether(_))
    ));
    assert_eq!(open(&two, PASSPHRASE, pbkdf2_limits(1000, 2000), None).unwrap(), 0, "the first was tried");
}

#[test]
fn argon2_keyslots_over_the_limit_of_all_are_named() {
    // 4 passes over 32 KiB.
    let device = luks2_volume(luks2_options().kdf, Hash::Sha256, 4);
    let limits = |total| with!(KdfLimits::default(); argon2_total_work_kib: total);
    assert!(matches!(open(&device, b"wrong", limits(512), None), Err(UnlockError::WrongPassphrase)));
    let refused = open(&device, b"wrong", limits(511), None).unwrap_err();
    assert!(matches!(&refused, UnlockError::TooCostlyTogether(slots) if *slots == [3]), "{refused:?}");
}

/// No key is derived if the digest is refused or too costly; and a refused keyslot does not prevent trying others.
#[test]
fn refused_costs_are_not_paid_and_hide_nothing() {
    let device = luks1_volume(32, Hash::Sha256, 0..2);
    device.write_all_at(&u32::MAX.to_be_bytes(), 212).unwrap();
    assert_eq!(open(&device, PASSPHRASE, pbkdf2_limits(1000, 2000), None).unwrap(), 1);
    device.write_all_at(&u32::MAX.to_be_bytes(), 164).unwrap();
    // The second keyslot's derivation would take minutes.
    device.write_all_at(&900_000_000_u32.to_be_bytes(), 260).unwrap();
    let refused = open(&device, PASSPHRASE, KdfLimits::default(), None).unwrap_err();
    assert!(chain(&refused).contains("pbkdf2 iterations 4294967295 exceeds the limit"), "{refused:?}");
}

/// The keyslots of cryptsetup on a machine that computes 10 million hashes per second, with 20 seconds for each.
#[test]
fn costs_of_a_fast_machine_are_within_the_limits() {
    let limits = KdfLimits::default();
    for hash in Hash::ALL {
        let blocks = 64_usize.div_ceil(hash.len()) as u32;
        let kdf = Kdf::Pbkdf2 { hash, iterations: 200_000_000 / blocks };
        assert_eq!(kdf.check(64, &limits), Ok(()), "{hash}");
    }
    assert!(8 * 200_000_000 < limits.pbkdf2_total_iterations, "all of LUKS1");
    assert!(32 * 100_000_000 < limits.pbkdf2_total_iterations, "all of LUKS2, at 10 seconds");
    let argon2 = Kdf::Argon2id(Argon2Cost { time: 60, memory_kib: 1 << 20, lanes: 4 });
    assert_eq!(argon2.check(64, &limits), Ok(()));
}

/// The policy is checked before any key derivation.
#[test]
fn policy_is_checked_before_a_key_is_derived_and_for_a_given_key() {
    let device = luks1_volume(32, Hash::Sha256, 0..1);
    device.write_all_at(&900_000_000_u32.to_be_bytes(), 212).unwrap();
    let mut policy = HeaderPolicy::default();
    policy.expected_uuid = Some("other".into());
    let volume = Volume::load(&device).unwrap();
    assert!(matches!(volume.check_policy(&policy), Err(UnlockError::Policy(PolicyError::OtherUuid { .. }))));
    let options = with!(UnlockOptions::default(); policy: policy);
    let refused = volume.unlock(&device, &secret(PASSPHRASE), &options).unwrap_err();
    assert!(matches!(refused, UnlockError::Policy(PolicyError::OtherUuid { .. })), "{refused:?}");
    for volume in [volume, Volume::load(&luks2_volume(luks2_options().kdf, Hash::Sha256, 1)).unwrap()] {
        let refused = volume.unlock_with_volume_key(VolumeKey::new(&[7; 64]), &options).unwrap_err();
        assert!(matches!(refused, UnlockError::Policy(_)), "{refused:?}");
    }
    let mut policy = HeaderPolicy::default();
    policy.required_ciphers = vec!["aes-cbc-essiv:sha256".parse().unwrap()];
    let device = luks2_volume(luks2_options().kdf, Hash::Sha256, 1);
    let options = with!(UnlockOptions::default(); policy: policy);
    let refused = Volume::load(&device).unwrap().unlock(&device, &secret(PASSPHRASE), &options).unwrap_err();
    assert_eq!(refused.to_string(), "segment 0 has cipher 'aes-xts-plain64', but aes-cbc-essiv:sha256 is required");
}

/// The bound is that of the keyslots that may be tried: Argon2's memory, or the key material.
#[test]
fn memory_bound_is_that_of_the_keyslots_to_try() {
    const MATERIAL: u64 = 64 * 4000;
    let request = with!(crate::support::cheap(inlock_volume::KdfKind::Argon2id); memory_kib: Some(3 << 10));
    let device = luks2_volume(request, Hash::Sha256, 2);
    let mut luks2 = Luks2::load(&device).unwrap();
    let mut map = crate::support::map_of(&luks2);
    map["keyslots"]["1"]["kdf"]["memory"] = json!(1 << 20);
    luks2.commit(&device, &crate::support::text_of(map)).unwrap();
    let volume = Volume::load(&device).unwrap();
    let bound =
        |keyslot, limits| volume.memory_bound(&with!(UnlockOptions::default(); keyslot: keyslot, limits: limits));
    let all = KdfLimits::default();
    // Up to one huge page more, for alignment; 3 MiB are two of them.
    let (gib, huge_page) = (1u64 << 30, 2u64 << 20);
    assert!((gib..=gib + huge_page).contains(&bound(None, all)), "{}", bound(None, all));
    assert_eq!(bound(Some(1), all), bound(None, all));
    assert!((2 * huge_page..=3 * huge_page).contains(&bound(Some(0), all)), "{}", bound(Some(0), all));
    let low = with!(all; memory_kib: 4 << 10);
    assert_eq!(bound(None, low), bound(Some(0), all), "a keyslot over the limit takes nothing");
    assert_eq!(bound(Some(1), low), 0);
    let mut map = crate::support::map_of(&luks2);
    map["keyslots"]["1"]["priority"] = json!(0);
    luks2.commit(&device, &crate::support::text_of(map)).unwrap();
    let ignored = Volume::load(&device).unwrap().memory_bound(&UnlockOptions::default());
    assert_eq!(ignored, bound(Some(0), all), "a keyslot that is tried only by number");
    let pbkdf2 = Volume::load(&luks2_volume(pbkdf2_request(), Hash::Sha256, 1)).unwrap();
    assert_eq!(pbkdf2.memory_bound(&UnlockOptions::default()), MATERIAL);
    let luks1 = Volume::load(&luks1_volume(64, Hash::Sha256, 0..2)).unwrap();
    assert_eq!(luks1.memory_bound(&UnlockOptions::default()), MATERIAL);
    let of_keyslot = |number| luks1.memory_bound(&with!(UnlockOptions::default(); keyslot: Some(number)));
    assert_eq!((of_keyslot(1), of_keyslot(7)), (MATERIAL, 0), "the last keyslot is not in use");
}
