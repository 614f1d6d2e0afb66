//! One call over a list of buffers: the bytes are those of one flat buffer, wherever the boundaries fall.
//!
//! Whole units inside a buffer are worked on where they are. A unit that a boundary cuts, also inside a cipher block, goes
//! through a buffer on the stack.

use crate::{DataUnitSize, InOut, IvNumber, SectorCipher, check_data_len};
use zeroize::Zeroize;

/// Encrypts, in place, the units that `buffers` make one after the other. Their total length is whole units; else this
/// panics before any byte is written. `step` is how much the IV number grows from unit to unit.
pub fn encrypt_list(cipher: &dyn SectorCipher, first: IvNumber, step: u64, buffers: &mut [&mut [u8]]) {
    run(cipher.unit(), first, step, buffers, |number, data| cipher.encrypt(number, InOut::InPlace(data)));
}

/// As [`encrypt_list`], the other way.
pub fn decrypt_list(cipher: &dyn SectorCipher, first: IvNumber, step: u64, buffers: &mut [&mut [u8]]) {
    run(cipher.unit(), first, step, buffers, |number, data| cipher.decrypt(number, InOut::InPlace(data)));
}

fn run(
    unit: DataUnitSize,
    first: IvNumber,
    step: u64,
    buffers: &mut [&mut [u8]],
    mut call: impl FnMut(IvNumber, &mut [u8]),
) {
    let total = buffers.iter().map(|buffer| buffer.len()).sum();
    assert!(check_data_len(unit, total).is_ok(), "the data of a cipher call is not whole data units");
    let (mut number, mut index, mut at) = (first.0, 0, 0);
    while index < buffers.len() {
        let rest = &mut buffers[index][at..];
        let whole = rest.len() - rest.len() % unit.bytes();
        if whole > 0 {
            call(IvNumber(number), &mut rest[..whole]);
            number = number.wrapping_add(step.wrapping_mul((whole / unit.bytes()) as u64));
            at += whole;
        }
        if at == buffers[index].len() {
            (index, at) = (index + 1, 0);
        } else {
            (index, at) = cut_unit(unit, IvNumber(number), (index, at), buffers, &mut call);
            number = number.wrapping_add(step);
        }
    }
}

/// The unit that starts at the position `start` and goes on in a later buffer. Gives back the position behind it.
fn cut_unit(
    unit: DataUnitSize,
    number: IvNumber,
    start: (usize, usize),
    buffers: &mut [&mut [u8]],
    call: &mut impl FnMut(IvNumber, &mut [u8]),
) -> (usize, usize) {
    let mut gathered = [0; 1 << 16];
    let gathered = &mut gathered[..unit.bytes()];
    walk(start, buffers, gathered.len(), |done, piece| gathered[done..done + piece.len()].copy_from_slice(piece));
    call(number, gathered);
    let end =
        walk(start, buffers, gathered.len(), |done, piece| piece.copy_from_slice(&gathered[done..done + piece.len()]));
    gathered.zeroize();
    end
}

/// Calls `each` with the pieces of `len` bytes from position `start`, and how many bytes came before each.
fn walk(
    (mut index, mut at): (usize, usize),
    buffers: &mut [&mut [u8]],
    len: usize,
    mut each: impl FnMut(usize, &mut [u8]),
) -> (usize, usize) {
    let mut done = 0;
    while done < len {
        let piece = &mut buffers[index][at..];
        let take = piece.len().min(len - done);
        each(done, &mut piece[..take]);
        done += take;
        at += take;
        if at == buffers[index].len() {
            (index, at) = (index + 1, 0);
        }
    }
    (index, at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::noise;
    use crate::{CipherSpec, new_sector_cipher};

    /// Cuts 12 units of 1024 bytes in a thousand ways, empty buffers among them.
    #[test]
    fn boundaries_anywhere_give_the_same_bytes() {
        let unit = DataUnitSize::new(1024).unwrap();
        let spec: CipherSpec = "aes-cbc-essiv:sha256".parse().unwrap();
        for spec in [CipherSpec::AES_XTS_PLAIN64, spec] {
            let cipher = new_sector_cipher(&spec, &noise(9, 32), unit, false).unwrap();
            let plain = noise(4, 12 * 1024);
            let mut flat = plain.clone();
            cipher.encrypt(IvNumber(u64::MAX - 7), InOut::InPlace(&mut flat));
            let lengths = noise(77, 8 * 1000 * 4);
            let mut lengths = lengths.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes) as usize);
            for turn in 0..1000 {
                let mut data = plain.clone();
                let mut pieces: Vec<&mut [u8]> = Vec::new();
                let mut rest = &mut data[..];
                let most = [1, 16, 17, 500, 1025, 5000][turn % 6];
                while !rest.is_empty() && pieces.len() < 7 {
                    let take = (lengths.next().unwrap() % (most + 1)).min(rest.len());
                    let (piece, behind) = rest.split_at_mut(take);
                    pieces.push(piece);
                    rest = behind;
                }
                pieces.push(rest);
                encrypt_list(&*cipher, IvNumber(u64::MAX - 7), unit.sectors(), &mut pieces);
                assert!(pieces.concat() == flat, "{spec}, turn {turn}");
                decrypt_list(&*cipher, IvNumber(u64::MAX - 7), unit.sectors(), &mut pieces);
                assert!(data == plain, "{spec}, turn {turn}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "not whole data units")]
    fn a_list_that_is_not_whole_units_is_refused() {
        let cipher = new_sector_cipher(&CipherSpec::AES_XTS_PLAIN64, &[1; 32], DataUnitSize::SECTOR, true).unwrap();
        encrypt_list(&*cipher, IvNumber(0), 1, &mut [&mut [0; 500], &mut [0; 13]]);
    }
}
