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

    /// Compares in place with the pieces `to`, copied from `from` to `to`, and with one side contiguous, in both
    /// directions.
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
            let mut data = vec![0x77; input.len()];
            call(ScatterList::Gather { src: &cut(input, from), skip: 0, dst: &mut data });
            assert!(data == *expected, "{name}, gathered");
            let (mut src, mut data) = (input.clone(), vec![0x77; input.len()]);
            call(ScatterList::Scatter { src: &mut src, dst: &mut cut_mut(&mut data, to), skip: 0 });
            assert!(data == *expected, "{name}, scattered");
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

/// Of pieces that have more bytes than the data, those before and behind it are neither used nor written.
#[test]
fn data_within_longer_pieces_equals_contiguous_data() {
    for case in Case::all(512, 3) {
        let total = case.plain.len();
        for (skip, behind, cuts) in [(1, 0, vec![700]), (600, 5, vec![0, 200, 599]), (512, 512, vec![512, 600])] {
            let long = [vec![0x11; skip], case.plain.clone(), vec![0x22; behind]].concat();
            let lens = lens(&cuts, long.len());
            let mut sealed = vec![0; total];
            let list = ScatterList::Gather { src: &cut(&long, &lens), skip, dst: &mut sealed };
            case.cipher.encrypt_scattered(FIRST, list);
            assert!(sealed == case.sealed, "{}, {skip}", case.spec);
            let mut opened = [vec![0x11; skip], vec![0x77; total], vec![0x22; behind]].concat();
            let list = ScatterList::Scatter { src: &mut sealed, dst: &mut cut_mut(&mut opened, &lens), skip };
            case.cipher.decrypt_scattered(FIRST, list);
            assert!(opened == long, "{}, {skip}", case.spec);
        }
    }
}

/// Units that straddle a cut one after the other are one call, and so are short runs among them.
#[test]
fn consecutive_units_that_straddle_cuts_are_one_call() {
    let (unit, mut data, mut other) = (DataUnitSize::SECTOR, vec![0; 10 * 512], vec![0; 10 * 512]);
    // Units 0 and 1 straddle, 2 to 5 do not, 6 to 8 do, 9 does not.
    let lens = lens(&[100, 1000, 1024, 3072, 3100, 4000, 4500], 10 * 512);
    let all = [
        (0, vec![(0, 2, true), (2, 4, false), (6, 3, true), (9, 1, false)]),
        (512, vec![(0, 2, true), (2, 4, false), (6, 3, true), (9, 1, false)]),
        (513, vec![(0, 2, true), (2, 4, false), (6, 4, true)]),
        (2048, vec![(0, 2, true), (2, 4, false), (6, 4, true)]),
        (2049, vec![(0, 10, true)]),
    ];
    for (min_run, expected) in all {
        let mut runs = Vec::new();
        let mut note = |before, run: InOut<'_>| runs.push((before, run.len() / 512, matches!(run, InOut::InPlace(_))));
        let list = ScatterList::Gather { src: &cut(&data, &lens), skip: 0, dst: &mut other };
        list.for_each_run(unit, min_run, &mut note);
        let list = ScatterList::Scatter { src: &mut data, dst: &mut cut_mut(&mut other, &lens), skip: 0 };
        list.for_each_run(unit, min_run, note);
        assert_eq!(runs, [expected.clone(), expected].concat(), "{min_run}");
    }
}

/// Whole units of a piece are passed on where they are: only those that straddle a cut are copied.
#[test]
fn only_units_that_straddle_a_cut_are_copied() {
    let unit = DataUnitSize::SECTOR;
    let mut data = vec![0; 20 * 512];
    let start = data.as_ptr() as usize;
    let mut pieces = cut_mut(&mut data, &lens(&[512, 4 * 512, 9 * 512 + 1, 15 * 512], 20 * 512));
    let mut runs = Vec::new();
    ScatterList::InPlace(&mut pieces).for_each_run(unit, 0, |before, mut data| {
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
    let unit = cipher.unit();
    for (pieces, skip, len) in [(1000, 0, 1024), (1024, 1, 1024), (1024, 1025, 1024), (1024, 0, 0), (1024, 0, 511)] {
        let (mut memory, mut one_side) = (data, vec![0x33; len]);
        let available = pieces.min(1024usize.saturating_sub(skip)).min(len);
        let of_lengths = |len, destination| match len == destination {
            true => Err(CipherError::DataLength { len, unit }),
            false => Err(CipherError::DestinationLength { len, destination }),
        };
        let list = ScatterList::Gather { src: &cut(&data[..pieces], &[pieces]), skip, dst: &mut one_side };
        assert_eq!(cipher.try_encrypt_scattered(FIRST, list), of_lengths(available, len));
        let dst = &mut cut_mut(&mut memory[..pieces], &[pieces]);
        let list = ScatterList::Scatter { src: &mut one_side, dst, skip };
        assert_eq!(cipher.try_decrypt_scattered(FIRST, list), of_lengths(len, available));
        assert!(memory == data && one_side == vec![0x33; len]);
    }
}
