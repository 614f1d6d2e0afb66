//! Data in pieces: the same bytes as in one piece, for every cut.

use super::noise;
use crate::*;
use std::io::{IoSlice, IoSliceMut};

/// Ciphers of every kind of implementation.
const SPECS: [&str; 9] = [
    "aes-xts-plain64",
    "aes-cbc-essiv:sha256",
    "aes-lrw-benbi",
    "aes-ctr-plain64",
    "aes:4-cbc-plain64",
    "aes-cbc-lmk",
    "serpent-xts-plain64",
    "xchacha12,aes-adiantum-plain64",
    "cipher_null-ecb",
];

fn ciphers(unit: u32) -> Vec<(CipherSpec, Box<dyn SectorCipher>)> {
    let unit = DataUnitSize::new(unit).unwrap();
    let specs = SPECS.iter().map(|name| name.parse::<CipherSpec>().unwrap()).filter(|spec| spec.can_use_unit(unit));
    specs
        .map(|spec| {
            let key = noise(3, *spec.key_lens().iter().max().unwrap());
            (spec, new_sector_cipher(&spec, &key, unit, IvNumbering::Sectors).unwrap())
        })
        .collect()
}

/// Returns the lengths of pieces with ascending `cuts`.
fn lens(cuts: &[usize], total: usize) -> Vec<usize> {
    let mut before = 0;
    let ends = cuts.iter().copied().chain([total]);
    ends.map(|end| end - std::mem::replace(&mut before, end)).collect()
}

fn cut_mut<'a>(mut data: &'a mut [u8], lens: &[usize]) -> Vec<IoSliceMut<'a>> {
    let mut pieces = Vec::new();
    for len in lens {
        let (piece, rest) = data.split_at_mut(*len);
        pieces.push(IoSliceMut::new(piece));
        data = rest;
    }
    pieces
}

fn cut<'a>(mut data: &'a [u8], lens: &[usize]) -> Vec<IoSlice<'a>> {
    let mut pieces = Vec::new();
    for len in lens {
        let (piece, rest) = data.split_at(*len);
        pieces.push(IoSlice::new(piece));
        data = rest;
    }
    pieces
}

/// One cipher with the bytes of contiguous calls.
struct Case {
    cipher: Box<dyn SectorCipher>,
    spec: CipherSpec,
    plain: Vec<u8>,
    sealed: Vec<u8>,
}

/// The IV numbers wrap.
const FIRST: IvNumber = IvNumber(u64::MAX - 1);

impl Case {
    fn all(unit: u32, units: usize) -> Vec<Self> {
        let plain = noise(9, units * unit as usize);
        let cases = ciphers(unit).into_iter().map(|(spec, cipher)| {
            let mut sealed = plain.clone();
            cipher.encrypt(FIRST, InOut::InPlace(&mut sealed));
            Self { cipher, spec, plain: plain.clone(), sealed }
        });
        cases.collect()
    }

    /// Compares in place with the pieces `to`, and copied from `from` to `to`, in both directions.
    fn compare(&self, from: &[usize], to: &[usize]) {
        for encrypt in [true, false] {
            let (input, expected) = if encrypt { (&self.plain, &self.sealed) } else { (&self.sealed, &self.plain) };
            let call = |list: ScatterList<'_, '_>| match encrypt {
                true => self.cipher.encrypt_scattered(FIRST, list),
                false => self.cipher.decrypt_scattered(FIRST, list),
            };
            let name = format!("{}, {from:?} to {to:?}, {encrypt}", self.spec);
            let mut data = input.clone();
            call(ScatterList::InPlace(&mut cut_mut(&mut data, to)));
            assert!(data == *expected, "{name}, in place");
            let mut data = vec![0x77; input.len()];
            call(ScatterList::Copy { src: &cut(input, from), dst: &mut cut_mut(&mut data, to) });
            assert!(data == *expected, "{name}, copied");
        }
    }
}

#[test]
fn data_in_pieces_equals_contiguous_data_for_every_cut() {
    let mut cuts = 0;
    for case in Case::all(512, 3) {
        let total = case.plain.len();
        for at in 0..=total {
            case.compare(&lens(&[total - at], total), &lens(&[at], total));
            cuts += 1;
        }
    }
    println!("COUNT cuts_of_scatter_lists {cuts}");
}

/// Pairs of cuts around the borders of units, tiny and empty pieces, and random ones, in all sizes of units.
#[test]
fn data_in_many_pieces_equals_contiguous_data() {
    let mut compared = 0;
    for (unit, units) in [(512, 5), (4096, 3), (65536, 2)] {
        for case in Case::all(unit, units) {
            let (total, unit) = (case.plain.len(), unit as usize);
            let near: Vec<usize> =
                [0, 1, 15, 16, 511].into_iter().flat_map(|less| [unit - less, unit + less]).collect();
            for first in &near {
                for second in near.iter().filter(|second| *second >= first) {
                    case.compare(&lens(&[*first, *first, *second], total), &lens(&[*first, *second], total));
                    compared += 1;
                }
            }
            for seed in 0..20 {
                let random = |seed: u64| {
                    let bytes = noise(seed, 4 * (1 + seed as usize % 40));
                    let words = bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word) as usize);
                    let mut cuts: Vec<usize> = words.map(|word| word % (total + 1)).collect();
                    cuts.sort_unstable();
                    lens(&cuts, total)
                };
                case.compare(&random(2 * seed), &random(2 * seed + 1));
                compared += 1;
            }
        }
    }
    println!("COUNT cuts_of_scatter_lists {compared}");
}

/// Whole units of a piece are passed on where they are: only those that straddle a cut are copied.
#[test]
fn only_units_that_straddle_a_cut_are_copied() {
    let unit = DataUnitSize::SECTOR;
    let mut data = vec![0; 20 * 512];
    let start = data.as_ptr() as usize;
    let mut pieces = cut_mut(&mut data, &lens(&[512, 4 * 512, 9 * 512 + 1, 15 * 512], 20 * 512));
    let mut runs = Vec::new();
    ScatterList::InPlace(&mut pieces).for_each_run(unit, |before, mut data| {
        let at = (data.destination().as_ptr() as usize).wrapping_sub(start);
        runs.push((before, data.len() / 512, at == before * 512));
    });
    let expected = [(0, 1, true), (1, 3, true), (4, 5, true), (9, 1, false), (10, 5, true), (15, 5, true)];
    // Behind the cut inside unit 9, units are in place although at no multiple of their size from its start.
    assert_eq!(runs, expected);
}

#[test]
fn pieces_of_wrong_lengths_are_refused_before_a_byte_is_written() {
    let (_, cipher) = ciphers(512).remove(0);
    let input = [0x11; 1024];
    for (from, to) in [(vec![], vec![]), (vec![511], vec![511]), (vec![512, 1], vec![513]), (vec![512], vec![1024])] {
        let (mut data, src) = ([0x11; 1024], cut(&input, &from));
        let len: usize = from.iter().sum();
        let wrong = match len == to.iter().sum::<usize>() {
            true => CipherError::DataLength { len, unit: cipher.unit() },
            false => CipherError::DestinationLength { len, destination: to.iter().sum() },
        };
        for encrypt in [true, false] {
            let mut dst = cut_mut(&mut data, &to);
            let list = ScatterList::Copy { src: &src, dst: &mut dst };
            let result = match encrypt {
                true => cipher.try_encrypt_scattered(FIRST, list),
                false => cipher.try_decrypt_scattered(FIRST, list),
            };
            assert_eq!(result, Err(wrong.clone()));
            let call = std::panic::AssertUnwindSafe(|| {
                cipher.encrypt_scattered(FIRST, ScatterList::Copy { src: &src, dst: &mut dst });
            });
            assert!(std::panic::catch_unwind(call).is_err());
        }
        assert_eq!(data, input);
    }
    let mut data = [0x11; 1024];
    let list = ScatterList::InPlace(&mut cut_mut(&mut data, &[1000, 24]));
    assert_eq!((list.len(), list.is_empty()), (1024, false));
    assert_eq!(cipher.try_encrypt_scattered(FIRST, list), Ok(()));
    let list = ScatterList::InPlace(&mut cut_mut(&mut data, &[24, 1000]));
    assert_eq!(cipher.try_decrypt_scattered(FIRST, list), Ok(()));
    assert_eq!(data, input);
}
