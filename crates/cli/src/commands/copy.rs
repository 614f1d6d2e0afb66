//! Options of `export` and `import`.

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
