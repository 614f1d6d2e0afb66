//! What `export` and `import` share: the range, and buffers of the size that suits both sides.

use crate::exit::Problem;
use crate::values::Range;

/// Bytes that are copied at once.
pub(crate) const CHUNK: usize = 1 << 20;

/// The granule in which zeroes are looked for, in bytes: the block of common file systems.
pub(crate) const ZERO_BLOCK: usize = 4096;

/// A range of the volume that lies within it: where it starts and how long it is.
pub(crate) fn within(range: Option<Range>, volume_len: u64) -> anyhow::Result<(u64, u64)> {
    let Some(range) = range else { return Ok((0, volume_len)) };
    let room = volume_len.checked_sub(range.offset);
    match (room, range.len) {
        (Some(room), None) => Ok((range.offset, room)),
        (Some(room), Some(len)) if len <= room => Ok((range.offset, len)),
        _ => Err(Problem::refused(
            format!("The range does not lie within the volume, which has {volume_len} bytes."),
            "--range takes OFFSET:LENGTH in bytes, or with units: 1M:512K",
        )),
    }
}

/// Whether all bytes are zero.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    // Whole blocks are compared by memcmp, which is as fast as memory is.
    const ZEROES: [u8; ZERO_BLOCK] = [0; ZERO_BLOCK];
    bytes.chunks(ZERO_BLOCK).all(|block| block == &ZEROES[..block.len()])
}

/// Splits `data` into the longest runs of blocks that are all zero or all not, with their offsets.
pub(crate) fn runs(data: &[u8]) -> impl Iterator<Item = (usize, &[u8], bool)> {
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
    fn ranges_lie_within_the_volume() {
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
    fn runs_cover_the_data_and_alternate() {
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
