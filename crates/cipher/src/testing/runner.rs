//! Compares every kernel with every naive reference, in all lengths, positions, unit sizes and around the wraps of IV
//! numbers.
//!
//! It has no list: a new entry of `AesKernel::available`, or of the naive implementation, is compared automatically.
//! Specifications without kernels are compared in `every_spec`.

use super::guarded::{Guarded, Place};
use super::naive::Naive;
use super::noise;
use crate::locked::tests::releases_of;
use crate::spec::known_specs;
use crate::*;

/// Returns all specifications with a naive reference.
fn all_specs() -> Vec<CipherSpec> {
    known_specs().into_iter().filter(Naive::knows).collect()
}

/// IV numbers from which a run of 131 units carries across 2^32 or 2^64, and some from which it does not.
const FIRST: [u64; 7] = [0, 1, (1 << 32) - 3, (1 << 32) - 100, u64::MAX - 3, u64::MAX - 1000, 0x0123_4567_89ab_cdef];

fn unit(log2: u32) -> DataUnitSize {
    DataUnitSize::new(1 << log2).unwrap()
}

/// One specification, key length and unit size on all kernels.
struct Case {
    spec: CipherSpec,
    key: Vec<u8>,
    unit: DataUnitSize,
    large_iv: bool,
    ciphers: Vec<Box<dyn SectorCipher>>,
    naive: Naive,
    src: Guarded,
    dst: Guarded,
}

impl Case {
    fn new(spec: CipherSpec, key_len: usize, unit: DataUnitSize, large_iv: bool, most: usize) -> Self {
        let key = noise(key_len as u64 + 5, key_len);
        let step = if large_iv { 1 } else { unit.sectors() };
        let ciphers = AesKernel::available()
            .into_iter()
            .map(|kernel| new_sector_cipher_on(kernel, &spec, &key, unit, large_iv.into()).unwrap())
            .collect();
        let naive = Naive::new(&spec, &key, unit.bytes(), step);
        let (src, dst) = (Guarded::new(most * unit.bytes()), Guarded::new(most * unit.bytes()));
        Self { spec, key, unit, large_iv, ciphers, naive, src, dst }
    }

    fn name(&self, cipher: usize) -> String {
        let Self { spec, unit, large_iv, .. } = self;
        format!("{spec} {} bits, {unit:?}, large {large_iv}, {}", self.key.len() * 8, self.ciphers[cipher].kernel())
    }

    /// Compares all kernels on runs of `counts` units from IV number `first`, in both directions, in changing
    /// positions.
    fn compare(&mut self, first: u64, counts: &[usize]) {
        let most = counts.iter().copied().max().unwrap_or(0);
        let input = noise(first, most * self.unit.bytes());
        for encrypt in [true, false] {
            let mut expected = input.clone();
            self.naive.run(first, &mut expected, encrypt);
            for cipher in 0..self.ciphers.len() {
                for (turn, &count) in counts.iter().enumerate() {
                    let len = count * self.unit.bytes();
                    let place = [Place::Back, Place::Front, Place::Offset((turn * 7 + cipher) % 64)][turn % 3];
                    let other = [Place::Offset((turn * 11) % 64), Place::Back, Place::Front][turn % 3];
                    self.in_place(cipher, first, place, &input[..len], &expected[..len], encrypt);
                    self.copied(cipher, first, (place, other), &input[..len], &expected[..len], encrypt);
                }
                self.one_by_one(cipher, first, &input, &expected, encrypt);
            }
        }
    }

    fn call(cipher: &dyn SectorCipher, first: u64, data: InOut<'_>, encrypt: bool) {
        if encrypt { cipher.encrypt(IvNumber(first), data) } else { cipher.decrypt(IvNumber(first), data) }
    }

    fn in_place(&mut self, cipher: usize, first: u64, place: Place, input: &[u8], expected: &[u8], encrypt: bool) {
        let data = self.dst.at(place, input.len());
        data.copy_from_slice(input);
        Self::call(&*self.ciphers[cipher], first, InOut::InPlace(data), encrypt);
        let same = data == expected;
        assert!(same, "{}: {} bytes in place at {place:?} from {first}, {encrypt}", self.name(cipher), input.len());
        self.dst.check(place, input.len());
    }

    fn copied(
        &mut self,
        cipher: usize,
        first: u64,
        (from, to): (Place, Place),
        input: &[u8],
        expected: &[u8],
        encrypt: bool,
    ) {
        let src = self.src.at(from, input.len());
        src.copy_from_slice(input);
        let dst = self.dst.at(to, input.len());
        Self::call(&*self.ciphers[cipher], first, InOut::copy(src, dst), encrypt);
        let same = dst == expected && src == input;
        assert!(same, "{}: {} bytes, {from:?} to {to:?} from {first}, {encrypt}", self.name(cipher), input.len());
        self.src.check(from, input.len());
        self.dst.check(to, input.len());
    }

    fn one_by_one(&mut self, cipher: usize, first: u64, input: &[u8], expected: &[u8], encrypt: bool) {
        let step = if self.large_iv { 1 } else { self.unit.sectors() };
        let mut data = input.to_vec();
        let mut number = first;
        for unit in data.chunks_exact_mut(self.unit.bytes()) {
            Self::call(&*self.ciphers[cipher], number, InOut::InPlace(unit), encrypt);
            number = number.wrapping_add(step);
        }
        assert!(data == expected, "{}: unit by unit from {first}, {encrypt}", self.name(cipher));
    }
}

fn compare_all(units: std::ops::RangeInclusive<u32>, first: &[u64], counts: &[usize]) {
    let most = counts.iter().copied().max().unwrap_or(0);
    for spec in all_specs() {
        for key_len in spec.key_lens() {
            for log2 in units.clone() {
                for large_iv in [true, false] {
                    let mut case = Case::new(spec, key_len, unit(log2), large_iv, most);
                    for &first in first {
                        case.compare(first, counts);
                    }
                }
            }
        }
    }
}

/// Every length from 1 to 131 units.
#[test]
fn every_kernel_agrees_in_every_length() {
    let counts: Vec<usize> = (1..=131).collect();
    compare_all(9..=9, &[FIRST[3]], &counts);
}

/// Every IV number around the wraps of 32 and 64 bits.
#[test]
fn every_kernel_agrees_from_every_iv_number() {
    compare_all(9..=10, &FIRST, &[1, 2, 3, 7, 8, 9, 131]);
}

/// Every unit size.
#[test]
fn every_kernel_agrees_in_every_unit_size() {
    compare_all(9..=13, &[FIRST[2]], &[1, 2, 3, 4, 5, 8, 9, 12, 65, 67]);
    compare_all(14..=16, &[FIRST[4]], &[1, 2, 8, 9]);
}

/// More units of the largest size than one batch of IVs holds.
#[test]
fn largest_units_run_over_batches_too() {
    let mut case = Case::new(CipherSpec::AES_XTS_PLAIN64, 64, DataUnitSize::MAX, false, 131);
    case.compare(FIRST[5], &[63, 64, 65, 131]);
}

#[test]
fn kernels_and_specifications_to_compare_exist() {
    let specs = all_specs();
    assert!(specs.contains(&CipherSpec::AES_XTS_PLAIN64));
    assert!(specs.contains(&"aes-cbc-essiv:sha256".parse().unwrap()));
    let names: Vec<_> = AesKernel::available().iter().map(|kernel| kernel.name()).collect();
    println!("kernels on this CPU: {names:?}");
    assert!(names.contains(&"portable"));
    if names.len() < 4 {
        println!("SKIPPED: kernels that this CPU does not have");
    }
}

/// Every allocation that a cipher makes for its key is wiped before it is unmapped.
#[test]
fn key_memory_is_wiped_when_a_cipher_is_dropped() {
    for spec in all_specs().into_iter().filter(|spec| spec.cipher != Cipher::Null) {
        for kernel in AesKernel::available() {
            let key = noise(1, spec.key_lens()[0]);
            let cipher =
                new_sector_cipher_on(kernel, &spec, &key, DataUnitSize::SECTOR, IvNumbering::DataUnits).unwrap();
            let releases = releases_of(|| drop(cipher));
            assert!(!releases.is_empty() && releases.iter().all(|wiped| *wiped), "{spec} {kernel:?}: {releases:?}");
        }
    }
}

#[test]
fn wrong_lengths_panic_before_a_byte_is_written() {
    for spec in all_specs() {
        for kernel in AesKernel::available() {
            let key = noise(1, spec.key_lens()[0]);
            let cipher = new_sector_cipher_on(kernel, &spec, &key, unit(12), IvNumbering::DataUnits).unwrap();
            for len in [0, 1, 16, 512, 4095, 4097, 8191] {
                assert!(crate::in_out::check_data_len(unit(12), len).is_err());
                let mut data = vec![0x11; len];
                let call = std::panic::AssertUnwindSafe(|| cipher.encrypt(IvNumber(0), InOut::InPlace(&mut data)));
                assert!(std::panic::catch_unwind(call).is_err(), "{spec} took {len} bytes");
                let wrong = Err(CipherError::DataLength { len, unit: unit(12) });
                assert_eq!(cipher.try_encrypt(IvNumber(0), InOut::InPlace(&mut data)), wrong);
                assert_eq!(cipher.try_decrypt(IvNumber(0), InOut::InPlace(&mut data)), wrong);
                assert!(data.iter().all(|byte| *byte == 0x11));
            }
        }
    }
    let cipher =
        new_sector_cipher(&CipherSpec::AES_XTS_PLAIN64, &noise(1, 64), unit(12), IvNumbering::DataUnits).unwrap();
    let mut data = vec![0x11; 8192];
    assert_eq!(cipher.try_encrypt(IvNumber(0), InOut::InPlace(&mut data)), Ok(()));
    assert!(data != [0x11; 8192]);
    assert_eq!(cipher.try_decrypt(IvNumber(0), InOut::InPlace(&mut data)), Ok(()));
    assert!(data == [0x11; 8192]);
}

#[test]
fn invalid_keys_and_specifications_are_refused() {
    let spec = CipherSpec::AES_XTS_PLAIN64;
    let made = new_sector_cipher(&spec, &[0; 40], DataUnitSize::SECTOR, IvNumbering::DataUnits);
    assert_eq!(made.err(), Some(CipherError::KeyLength { spec, len: 40 }));
    let wide = CipherSpec { mode: ChainMode::Adiantum, ..spec };
    let made = new_sector_cipher(&wide, &[0; 32], DataUnitSize::SECTOR, IvNumbering::DataUnits);
    assert_eq!(made.err(), Some(CipherError::Unsupported(wide)));
    let spec: CipherSpec = "aes-cbc-tcw".parse().unwrap();
    let made = new_sector_cipher(&spec, &[0; 64], unit(12), IvNumbering::DataUnits);
    assert_eq!(made.err(), Some(CipherError::Unit { spec, unit: unit(12) }));
}

#[test]
fn equal_halves_of_xts_key_are_detected() {
    let spec = CipherSpec::AES_XTS_PLAIN64;
    let mut key = [noise(3, 32), noise(3, 32)].concat();
    assert!(spec.has_equal_halves(&key));
    assert!(!"aes-cbc-plain64".parse::<CipherSpec>().unwrap().has_equal_halves(&key[..32]));
    let several: CipherSpec = "aes:2-xts-plain64".parse().unwrap();
    assert!(!several.has_equal_halves(&key), "the two keys are equal, no one's halves are");
    assert!(several.has_equal_halves(&[noise(4, 64), key.clone()].concat()));
    for at in 0..64 {
        key[at] ^= 1;
        assert!(!spec.has_equal_halves(&key), "byte {at}");
        key[at] ^= 1;
    }
}
