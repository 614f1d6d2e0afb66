//! Questions before an output overwrites data.

use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use crate::error::CliError;
use crate::host::context;
use crate::ui::terminal;
use inlock_open::output::Output;
use inlock_open::path_text;

/// Maximum length of a result that replaces a former one without a question, in bytes.
const RESULT_MAX: u64 = 1 << 20;

/// Treatment of a file or block device that holds data.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Existing {
    /// The user confirms that it is overwritten, on a terminal or with `-q` (`batch`).
    Asked { batch: bool },
    /// Asked about if it cannot be a former result, and otherwise replaced.
    Replaced { batch: bool },
}

/// Opens and locks an output, and asks before data are overwritten. `inputs`: what the command reads.
pub(crate) fn take(path: Option<&Path>, inputs: &[&Path], existing: Existing) -> anyhow::Result<Output> {
    let output = Output::take(context(), path, inputs)?;
    if let Some(path) = path {
        confirm(path, &output, existing)?;
    }
    Ok(output)
}

/// Asks before data are overwritten. Without a terminal it takes `-q`, except for a block device: its name says that it
/// is overwritten.
fn confirm(path: &Path, output: &Output, existing: Existing) -> anyhow::Result<()> {
    let Some(found) = output.existing() else { return Ok(()) };
    let is_block = found.file_type().is_block_device();
    let (batch, harmless) = match existing {
        Existing::Asked { batch } => (batch, 0),
        Existing::Replaced { batch } => (batch, RESULT_MAX),
    };
    if batch || !is_block && found.len() <= harmless {
        return Ok(());
    }
    if terminal::stdin_is_terminal() {
        let warning = format!("This will overwrite data on {} irrevocably.", path_text::shown(path));
        return terminal::confirm(&warning, CliError::NotConfirmed);
    }
    if is_block {
        return Ok(());
    }
    Err(CliError::refused(
        format!("Output file {} already exists.", path.display()),
        "name a new file, or add -q (--batch-mode) to overwrite it",
    ))
}

/// Writes a result to `path`, for its owner only.
pub(crate) fn write(path: &Path, inputs: &[&Path], existing: Existing, bytes: &[u8]) -> anyhow::Result<()> {
    Ok(take(Some(path), inputs, existing)?.write_all(bytes)?)
}
