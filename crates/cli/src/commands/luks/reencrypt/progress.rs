//! Progress of a re-encryption, and signals that stop it.

use std::ops::ControlFlow;
use std::path::Path;

use crate::system::signals::Caught;
use crate::ui::progress::{Progress, Show};

/// Takes the number of bytes that are done, and that of all, after each zone.
pub(super) type Watch<'a> = dyn FnMut(u64, u64) -> ControlFlow<()> + 'a;

/// Shows the progress of a run on an image, and stops it at a signal. Returns whether it has reached the end.
pub(super) fn has_reached_end(
    show: Show,
    image: &Path,
    caught: &Caught,
    run: impl FnOnce(&mut Watch<'_>) -> inlock_open::Result<bool>,
) -> anyhow::Result<bool> {
    let (mut progress, mut last) = (None, 0);
    let has_ended = run(&mut |done, total| {
        let shown = progress.get_or_insert_with(|| {
            last = done;
            Progress::start(show, image, Some(total - done), false)
        });
        shown.add(done - last);
        last = done;
        if caught.take().is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    if let Some(progress) = progress.filter(|_| has_ended) {
        progress.finish();
    }
    Ok(has_ended)
}
