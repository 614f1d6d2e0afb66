//! Tests of authenticated encryption: published vectors, references, changes of every byte.

mod tampering;
mod vectors;

use super::*;
use crate::locked::tests::releases_of;
use crate::testing::guarded::{Guarded, Place};
use crate::testing::naive_aead;
use crate::testing::noise;
use crate::{CipherError, Hash, known_aead_specs};

fn unit(log2: u32) -> DataUnitSize {
    DataUnitSize::new(1 << log2).unwrap()
}

fn spec(text: &str) -> AeadSpec {
    text.parse().unwrap()
}

fn aead(kernel: AesKernel, spec: &AeadSpec, unit: DataUnitSize) -> Aead {
    let key = noise(9, *spec.key_lens().last().unwrap());
    Aead::new_on(kernel, spec, &key, unit, IvNumbering::Sectors, Sector(0)).unwrap()
}

/// Returns the specifications to compare, with cut tags and other keys of MACs too.
fn all_specs() -> Vec<AeadSpec> {
    let mut specs = known_aead_specs();
    for (text, len) in [
        ("capi:gcm(aes)-random", 16),
        ("capi:rfc4309(ccm(aes))-random", 16),
        ("capi:rfc4309(ccm(aes))-random", 20),
        ("capi:aegis128-random", 24),
        ("capi:authenc(hmac(sha256),cbc(aes))-random", 32),
        ("capi:authenc(hmac(sha256),xts(aes))-plain64", 1),
    ] {
        specs.push(spec(text).with_metadata_len(len).unwrap());
    }
    let xts = spec("capi:authenc(hmac(sha256),xts(aes))-random");
    specs.extend([16, 200].map(|len| xts.with_mac_key_len(len).unwrap()));
    specs
}

/// One specification, key length and unit size on all kernels.
struct Case {
    spec: AeadSpec,
    key: Vec<u8>,
    unit: DataUnitSize,
    iv_offset: u64,
    numbering: IvNumbering,
    aeads: Vec<Aead>,
}

impl Case {
    fn new(spec: AeadSpec, key_len: usize, unit: DataUnitSize, numbering: IvNumbering, iv_offset: u64) -> Self {
        let key = noise(key_len as u64 + 3, key_len);
        let kernels = AesKernel::available().into_iter();
        let make = |kernel| Aead::new_on(kernel, &spec, &key, unit, numbering, Sector(iv_offset)).unwrap();
        let aeads = kernels.map(make).collect();
        Self { spec, key, unit, iv_offset, numbering, aeads }
    }

    /// Returns ciphertext and tuples by the reference.
    fn expected(&self, first: u64, plain: &[u8], ivs: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let (mut data, mut tuples) = (Vec::new(), Vec::new());
        for (at, unit) in plain.chunks_exact(self.unit.bytes()).enumerate() {
            let sector = first.wrapping_add(at as u64 * self.unit.sectors());
            let mut number = first.wrapping_add(self.iv_offset);
            if self.numbering == IvNumbering::DataUnits {
                number /= self.unit.sectors();
            }
            let number = number.wrapping_add(at as u64 * self.numbering.step(self.unit));
            let (sealed, tuple) = naive_aead::seal_unit(&self.spec, &self.key, (sector, number), &ivs[at * 16..], unit);
            data.extend(sealed);
            tuples.extend(tuple);
        }
        (data, tuples)
    }

    fn compare(&self, first: u64, units: usize) {
        let len = units * self.unit.bytes();
        let (plain, ivs) = (noise(first ^ 77, len), noise(first + 1, units * 16));
        let (data, tuples) = self.expected(first, &plain, &ivs);
        let name = format!("{} {:?} {} units from {first}", self.spec, self.unit, units);
        let (mut src, mut dst, mut meta) = (Guarded::new(len), Guarded::new(len), Guarded::new(tuples.len()));
        for (turn, aead) in self.aeads.iter().enumerate() {
            let place = [Place::Back, Place::Front, Place::Offset(1 + units % 63)][(turn + units) % 3];
            let name = format!("{name} on {}", aead.kernel());
            // The tags are overwritten; the IVs are there.
            let start = meta.at(place, tuples.len());
            start.copy_from_slice(&tuples);
            let (stride, tag_len) = (aead.tuple_len(), self.spec.tag_len());
            start.chunks_exact_mut(stride).for_each(|tuple| tuple[..tag_len].fill(0xee));
            let (from, to) = (src.at(place, len), dst.at(place, len));
            from.copy_from_slice(&plain);
            aead.seal_with_stored_ivs(Sector(first), InOut::copy(from, to), start).unwrap();
            assert!(to == data && from == plain && start == tuples, "{name}: sealed to another buffer");
            start.chunks_exact_mut(stride).for_each(|tuple| tuple[..tag_len].fill(0xee));
            aead.seal_with_stored_ivs(Sector(first), InOut::InPlace(from), start).unwrap();
            assert!(from == data && start == tuples, "{name}: sealed in place");
            let bad = aead.open(Sector(first), InOut::copy(from, to), start).unwrap();
            assert!(bad.is_empty() && to == plain && from == data && start == tuples, "{name}: opened: {bad:?}");
            let bad = aead.open(Sector(first), InOut::InPlace(from), start).unwrap();
            assert!(bad.is_empty() && from == plain, "{name}: opened in place: {bad:?}");
            src.check(place, len);
            dst.check(place, len);
            meta.check(place, tuples.len());
        }
    }
}

#[test]
fn every_kernel_agrees_with_the_reference() {
    for spec in all_specs() {
        for key_len in spec.key_lens() {
            for log2 in 9..=12 {
                let case = Case::new(spec, key_len, unit(log2), IvNumbering::Sectors, 0);
                for units in [1, 3] {
                    case.compare(0x1234_5678_9abc_de00 + u64::from(log2), units);
                }
            }
            let case = Case::new(spec, key_len, unit(9), IvNumbering::Sectors, 0);
            // Around a small batch, a vector and a large batch, over the wrap of sector numbers.
            for units in [2, 4, 5, 7, 8, 9, 63, 64, 65, 131] {
                case.compare(u64::MAX - 60, units);
            }
        }
    }
}

/// IVs count from the offset, in sectors or in units; the additional data has the sector without offset.
#[test]
fn numbered_ivs_agree_with_the_reference() {
    for spec in known_aead_specs().into_iter().filter(|spec| spec.iv() != AeadIv::Random) {
        let key_len = *spec.key_lens().last().unwrap();
        for numbering in [IvNumbering::Sectors, IvNumbering::DataUnits] {
            for log2 in [9, 12] {
                let case = Case::new(spec, key_len, unit(log2), numbering, 0xffff_ff00);
                case.compare(1 << 10, 70);
            }
        }
    }
}

#[test]
fn random_ivs_come_from_one_call_of_the_generator() {
    for spec in known_aead_specs() {
        let aead = aead(AesKernel::Portable, &spec, unit(9)).with_tuple_len(spec.metadata_len() + 5).unwrap();
        let (units, stored) = (100, spec.stored_iv_len());
        let (plain, mut data) = (noise(4, units * 512), noise(4, units * 512));
        let mut tuples = vec![0xaa; units * aead.tuple_len()];
        let random = noise(8, units * stored);
        let mut calls = 0;
        let fill = |ivs: &mut [u8]| {
            calls += 1;
            ivs.copy_from_slice(&random);
            Ok(())
        };
        aead.seal_with(Sector(5), InOut::InPlace(&mut data), &mut tuples, fill).unwrap();
        assert_eq!(calls, usize::from(stored > 0), "{spec}");
        for (at, tuple) in tuples.chunks_exact(aead.tuple_len()).enumerate() {
            assert_eq!(tuple[spec.tag_len()..][..stored], random[at * stored..][..stored], "{spec}: IV {at}");
            assert_eq!(tuple[spec.metadata_len()..], [0; 5], "{spec}: the rest of tuple {at} is zero");
        }
        // What follows the IV is not looked at.
        tuples.chunks_exact_mut(aead.tuple_len()).for_each(|tuple| tuple[spec.metadata_len()] = 1);
        assert!(aead.open(Sector(5), InOut::InPlace(&mut data), &tuples).unwrap().is_empty());
        assert!(data == plain);
    }
}

/// IVs of the system's generator differ, between units and between calls.
#[test]
fn ivs_of_the_system_differ() {
    let aead = aead(AesKernel::Portable, &spec("capi:gcm(aes)-random"), unit(9));
    let mut seen = std::collections::HashSet::new();
    for _ in 0..4 {
        let (mut data, mut tuples) = (vec![0; 64 * 512], vec![0; 64 * 28]);
        aead.seal(Sector(0), InOut::InPlace(&mut data), &mut tuples).unwrap();
        assert!(tuples.chunks_exact(28).all(|tuple| seen.insert(tuple[16..].to_vec())));
        let fresh = data.chunks_exact(512).all(|unit| seen.insert(unit.to_vec()));
        assert!(fresh, "equal units of a sector have different ciphertexts");
    }
}

#[test]
fn generator_without_bytes_leaves_the_data() {
    let aead = aead(AesKernel::Portable, &spec("capi:gcm(aes)-random"), unit(12));
    let (mut data, mut tuples) = (vec![7; 8192], vec![0; 56]);
    let failed = AeadError::Random(getrandom::Error::UNSUPPORTED);
    let result = aead.seal_with(Sector(0), InOut::InPlace(&mut data), &mut tuples, |_| Err(failed.clone()));
    assert_eq!(result, Err(failed.clone()));
    assert!(data.iter().all(|byte| *byte == 7));
    assert!(failed.to_string().starts_with("cannot read random bytes for IVs: "), "{failed}");
}

#[test]
fn wrong_lengths_are_errors_before_a_byte_is_written() {
    for spec in [spec("capi:gcm(aes)-random"), spec("capi:authenc(hmac(sha256),xts(aes))-plain64")] {
        let aead = aead(AesKernel::Portable, &spec, unit(12));
        let len = aead.tuple_len();
        for (data_len, tuples_len) in [
            (0, 0),
            (0, len),
            (512, len),
            (4097, len),
            (4096, len - 1),
            (4096, len + 1),
            (4096, 2 * len),
            (8192, len),
            (4096 * 2049, 2049 * len),
        ] {
            let (mut data, mut tuples) = (vec![0x11; data_len], vec![0x22; tuples_len]);
            let sealed = aead.seal(Sector(0), InOut::InPlace(&mut data), &mut tuples);
            let opened = aead.open(Sector(0), InOut::InPlace(&mut data), &tuples);
            assert_eq!(sealed.as_ref().err(), opened.as_ref().err(), "{data_len} {tuples_len}");
            assert!(matches!(sealed, Err(AeadError::DataLength { .. } | AeadError::TuplesLength { .. })), "{sealed:?}");
            assert!(data.iter().all(|byte| *byte == 0x11) && tuples.iter().all(|byte| *byte == 0x22));
        }
        let (src, mut dst, mut tuples) = ([1; 4096], [1; 8192], vec![1; len]);
        let uneven = InOut::Copy { src: &src, dst: &mut dst };
        assert!(matches!(aead.seal(Sector(0), uneven, &mut tuples), Err(AeadError::DataLength { .. })));
    }
}

#[test]
fn invalid_keys_units_and_tuples_are_refused() {
    let gcm = spec("capi:gcm(aes)-random");
    let make = |key: &[u8], unit| Aead::new(&gcm, key, unit, IvNumbering::Sectors, Sector(0)).map(|_| ());
    let error = make(&[0; 33], unit(9)).unwrap_err();
    assert_eq!(error, AeadError::KeyLength { spec: gcm, len: 33 });
    assert_eq!(error.to_string(), "capi:gcm(aes)-random does not take a key of 264 bits");
    let error = make(&[0; 32], unit(13)).unwrap_err();
    assert_eq!(error.to_string(), "authenticated modes take data units of 512 to 4096 bytes, not 8192");
    let error = aead(AesKernel::Portable, &gcm, unit(9)).with_tuple_len(27).unwrap_err();
    assert_eq!(error.to_string(), "capi:gcm(aes)-random needs 28 bytes of metadata for each data unit, not 27");
    let error: AeadError = CipherError::UnknownCpuLimit { value: "x".to_owned() }.into();
    assert!(error.to_string().starts_with("INLOCK_CPU is 'x'"));
}

/// Every allocation that a cipher makes for its key is wiped before it is unmapped.
#[test]
fn key_memory_is_wiped_when_a_cipher_is_dropped() {
    for spec in all_specs() {
        for kernel in AesKernel::available() {
            let cipher = aead(kernel, &spec, unit(9));
            assert!(!format!("{cipher:?}").is_empty());
            let releases = releases_of(|| drop(cipher));
            assert!(!releases.is_empty() && releases.iter().all(|wiped| *wiped), "{spec} {kernel:?}: {releases:?}");
        }
    }
}

#[test]
fn specifications_to_compare_have_every_algorithm() {
    let has = |test: fn(AeadAlgorithm) -> bool| all_specs().iter().any(|spec| test(spec.algorithm()));
    assert!(has(|one| one == AeadAlgorithm::Gcm) && has(|one| one == AeadAlgorithm::Ccm));
    assert!(has(|one| one == AeadAlgorithm::ChaCha20Poly1305) && has(|one| one == AeadAlgorithm::Aegis128));
    assert!(has(|one| matches!(one, AeadAlgorithm::Authenc { mac: Hash::Sha512, .. })));
}
