//! The progress bar of a run.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

use crate::options::Options;

/// A line that names the current measurement, if standard error is a terminal.
pub(crate) struct Progress(Option<ProgressBar>);

impl Progress {
    pub(crate) fn new(options: &Options, steps: u64) -> Self {
        let bar = (options.progress && std::io::stderr().is_terminal()).then(|| {
            let style = ProgressStyle::with_template("{percent:>3}% {msg}, {eta} left").ok();
            let bar = ProgressBar::new(steps);
            style.map_or_else(|| bar.clone(), |style| bar.clone().with_style(style))
        });
        Self(bar)
    }

    /// Shows the next step.
    pub(crate) fn step(&self, what: &str) {
        if let Some(bar) = &self.0 {
            bar.set_message(what.to_owned());
            bar.inc(1);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
