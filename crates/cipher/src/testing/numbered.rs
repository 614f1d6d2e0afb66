//! LRW and CTR on every kernel, against one block after the other, from numbers whose carries go far.

use super::block::NaiveBlocks;
use super::noise;
use crate::iv::IvGenerator;
use crate::*;

/// Multiplies in the field of LRW, bit by bit.
fn product(mut a: u128, b: u128) -> u128 {
    let mut sum = 0;
    for bit in 0..128 {
        if b >> bit & 1 == 1 {
            sum ^= a;
        }
        a = (a << 1) ^ ((a >> 127) * 0x87);
    }
    sum
}

fn lrw(key: &[u8], first: u128, unit: &mut [u8]) {
    let (data, tweak) = key.split_at(key.len() - 16);
    let (cipher, tweak) = (NaiveBlocks::new(Cipher::Aes, data), u128::from_be_bytes(tweak.try_into().unwrap()));
    for (at, block) in unit.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let mask = product(tweak, first.wrapping_add(at as u128)).to_be_bytes();
        block.iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
        cipher.encrypt(block);
        block.iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
    }
}

fn ctr(key: &[u8], first: u128, unit: &mut [u8]) {
    let cipher = NaiveBlocks::new(Cipher::Aes, key);
    for (at, block) in unit.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let mut stream = first.wrapping_add(at as u128).to_be_bytes();
        cipher.encrypt(&mut stream);
        block.iter_mut().zip(stream).for_each(|(byte, stream)| *byte ^= stream);
    }
}

/// First numbers: every position in a row of every kernel, and carries into and out of each half.
fn numbers() -> Vec<u128> {
    let mut numbers: Vec<u128> = (0..=65).collect();
    for power in [31, 32, 36, 63, 64, 65, 100, 127] {
        numbers.extend((0..=40).map(|less| (1u128 << power) - less));
    }
    numbers.extend((1..=40).map(|less| 0u128.wrapping_sub(less)));
    numbers.extend((0..20).map(|seed| u128::from_le_bytes(noise(seed + 1, 16).try_into().unwrap())));
    numbers
}

type New = fn(AesKernel, &[u8], DataUnitSize, IvGenerator) -> Box<dyn SectorCipher>;

/// Compares two units with the same number, in place and copied, in both directions. A key has `extra` bytes
/// behind that of AES.
fn compare(new: New, naive: fn(&[u8], u128, &mut [u8]), extra: usize) {
    let mut compared = 0;
    for key_len in [16, 24, 32].map(|len| len + extra) {
        let key = noise(key_len as u64, key_len);
        for (index, number) in numbers().into_iter().enumerate() {
            let unit = DataUnitSize::new([512, 1024, 4096][index % 3]).unwrap();
            let plain = noise(index as u64, 2 * unit.bytes());
            let mut expected = plain.clone();
            expected.chunks_exact_mut(unit.bytes()).for_each(|unit| naive(&key, number, unit));
            for kernel in AesKernel::available() {
                let cipher = new(kernel, &key, unit, IvGenerator::fixed(number.to_be_bytes()));
                let name = format!("{key_len} bytes, {unit:?} from {number:#x} on {}", cipher.kernel());
                let mut data = plain.clone();
                cipher.encrypt(IvNumber(0), InOut::InPlace(&mut data));
                assert!(data == expected, "{name}");
                cipher.decrypt(IvNumber(0), InOut::InPlace(&mut data));
                assert!(data == plain, "{name}, back");
                cipher.encrypt(IvNumber(0), InOut::copy(&plain, &mut data));
                assert!(data == expected, "{name}, copied");
            }
            compared += 1;
        }
    }
    println!("COUNT numbered_block_modes {compared}");
}

#[test]
fn lrw_agrees_with_single_blocks_from_every_number() {
    compare(crate::sector_cipher::new_aes_lrw, lrw, 16);
}

#[test]
fn ctr_agrees_with_single_blocks_from_every_number() {
    compare(crate::sector_cipher::new_aes_ctr, ctr, 0);
}
