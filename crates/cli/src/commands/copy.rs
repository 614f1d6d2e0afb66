//! Shared parts of `export` and `import`: options, the range, and chunks.

use std::path::PathBuf;

use crate::args::options::Options;
use crate::args::source::source_args;
use crate::error::CliError;
use crate::ui::progress::Show;
use crate::values::Range;
use inlock_open::source::OpenOptions;

/// A copy out of a volume or into one.
pub(super) struct CopyArgs {
    pub source: OpenOptions,
    /// `None`: standard output or input.
    pub other: Option<PathBuf>,
    pub range: Option<Range>,
    pub show: Show,
    /// `--batch-mode`
    pub batch: bool,
}

/// Converts the options of a copy.
pub(super) fn copy_args(options: &Options, image: PathBuf, other: PathBuf) -> anyhow::Result<CopyArgs> {
    if image.as_os_str() == "-" {
        return Err(CliError::usage("The image cannot be standard input or output."));
    }
    let frequency = options.progress_frequency.filter(|secs| *secs > 0);
    Ok(CopyArgs {
        source: source_args(options, image)?,
        other: Some(other).filter(|path| path.as_os_str() != "-"),
        range: options.range,
        show: Show::from_options(options.batch_mode, options.progress_json, frequency),
        batch: options.batch_mode,
    })
}

/// Length of a chunk in bytes.
pub(super) const CHUNK: usize = 1 << 20;

/// Length of the blocks that are compared with zero: the block of common file systems.
pub(super) const ZERO_BLOCK: usize = 4096;

/// Returns start and length of a range, which must be within the volume.
pub(super) fn within(range: Option<Range>, volume_len: u64) -> anyhow::Result<(u64, u64)> {
    let Some(range) = range else { return Ok((0, volume_len)) };
    let room = volume_len.checked_sub(range.offset);
    match (room, range.len) {
        (Some(room), None) => Ok((range.offset, room)),
        (Some(room), Some(len)) if len <= room => Ok((range.offset, len)),
        _ => Err(CliError::refused(
            format!("The range exceeds the volume, which has {volume_len} bytes."),
            "use --range OFFSET:LENGTH, in bytes or with units: 1M:512K",
        )),
    }
}

/// Whether all bytes are zero.
pub(super) fn is_zero(bytes: &[u8]) -> bool {
    // memcmp compares whole blocks at the speed of memory.
    const ZEROES: [u8; ZERO_BLOCK] = [0; ZERO_BLOCK];
    bytes.chunks(ZERO_BLOCK).all(|block| block == &ZEROES[..block.len()])
}

/// Splits `data` into the longest runs of zero blocks and of other blocks, with their offsets.
pub(super) fn runs(data: &[u8]) -> impl Iterator<Item = (usize, &[u8], bool)> {
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
