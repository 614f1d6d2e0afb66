//! Copies of a volume's plaintext: to an [`Output`](crate::output::Output), and from an [`Input`].

mod export;
mod import;
mod input;
mod zone_writer;

use crate::error::{Error, ErrorKind, Result};
use crate::range::Range;

pub use export::Export;
pub use import::Import;
pub use input::Input;

/// Length of a chunk in bytes.
const CHUNK: usize = 1 << 20;

/// Length of the blocks that are compared with zero: the block of common file systems.
const ZERO_BLOCK: usize = 4096;

/// Returns start and length of a range, which must be within the volume.
fn within(range: Option<Range>, volume_len: u64) -> Result<(u64, u64)> {
    let Some(range) = range else { return Ok((0, volume_len)) };
    let room = volume_len.checked_sub(range.offset);
    match (room, range.len) {
        (Some(room), None) => Ok((range.offset, room)),
        (Some(room), Some(len)) if len <= room => Ok((range.offset, len)),
        _ => {
            let text = format!("The range exceeds the volume, which has {volume_len} bytes.");
            Err(Error::new(ErrorKind::OutsideVolume, text))
        }
    }
}

/// Whether all bytes are zero.
fn is_zero(bytes: &[u8]) -> bool {
    // memcmp compares whole blocks at the speed of memory.
    const ZEROES: [u8; ZERO_BLOCK] = [0; ZERO_BLOCK];
    bytes.chunks(ZERO_BLOCK).all(|block| block == &ZEROES[..block.len()])
}

/// Splits `data` into the longest runs of zero blocks and of other blocks, with their offsets.
fn runs(data: &[u8]) -> impl Iterator<Item = (usize, &[u8], bool)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = data.get(at..).filter(|rest| !rest.is_empty())?;
        let mut blocks = rest.chunks(ZERO_BLOCK);
        let first = blocks.next()?;
        let zero = is_zero(first);
        let len = first.len() + blocks.take_while(|block| is_zero(block) == zero).map(<[u8]>::len).sum::<usize>();
        let start = at;
        at += len;
        Some((start, &rest[..len], zero))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_beyond_volume_is_refused() {
        let range = |offset, len| Some(Range { offset, len });
        assert_eq!(within(None, 100).unwrap(), (0, 100));
        assert_eq!(within(range(10, None), 100).unwrap(), (10, 90));
        assert_eq!(within(range(10, Some(90)), 100).unwrap(), (10, 90));
        assert_eq!(within(range(100, None), 100).unwrap(), (100, 0));
        for (offset, len) in [(10, Some(91)), (101, None), (101, Some(0)), (u64::MAX, Some(0))] {
            assert!(within(range(offset, len), 100).is_err(), "{offset} {len:?}");
        }
    }

    #[test]
    fn runs_cover_data_and_alternate() {
        let mut data = vec![0_u8; 5 * ZERO_BLOCK + 100];
        data[ZERO_BLOCK] = 1;
        data[3 * ZERO_BLOCK - 1] = 1;
        data[5 * ZERO_BLOCK + 99] = 1;
        let found: Vec<_> = runs(&data).map(|(at, bytes, zero)| (at / ZERO_BLOCK, bytes.len(), zero)).collect();
        assert_eq!(
            found,
            [(0, ZERO_BLOCK, true), (1, 2 * ZERO_BLOCK, false), (3, 2 * ZERO_BLOCK, true), (5, 100, false)]
        );
        assert_eq!(runs(&[]).count(), 0);
    }
}
