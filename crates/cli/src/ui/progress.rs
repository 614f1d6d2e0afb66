//! Progress of a long copy: a bar on a terminal, lines in cryptsetup's form, or lines of JSON.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::ui::print::{print, print_stderr};
use inlock_open::path_text;

/// Form of progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Show {
    /// A bar, if standard error is a terminal.
    Bar,
    /// A line of text at this interval, on standard error.
    Lines(Duration),
    /// A line of JSON at this interval, on standard output, or on standard error if the data go to standard output.
    Json(Duration),
    /// Nothing.
    Nothing,
}

impl Show {
    /// Converts the options. `--batch-mode` hides everything except JSON, which is requested explicitly.
    pub(crate) fn from_options(batch: bool, json: bool, frequency_secs: Option<u64>) -> Self {
        match (json, frequency_secs) {
            (true, secs) => Self::Json(secs.map_or(Duration::from_millis(500), Duration::from_secs)),
            _ if batch => Self::Nothing,
            (false, Some(secs)) => Self::Lines(Duration::from_secs(secs)),
            (false, None) => Self::Bar,
        }
    }
}

/// Progress of a copy.
pub(crate) struct Progress {
    show: Show,
    bar: Option<ProgressBar>,
    device: PathBuf,
    /// `None`: unknown before the end.
    total: Option<u64>,
    done: u64,
    started: Instant,
    shown: Instant,
    json_to_stderr: bool,
}

impl Progress {
    /// Starts. `total` is in bytes.
    pub(crate) fn start(show: Show, device: &Path, total: Option<u64>, json_to_stderr: bool) -> Self {
        let bar = (show == Show::Bar && std::io::stderr().is_terminal()).then(|| {
            let (bar, template) = match total {
                Some(total) => (
                    ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr()),
                    "{percent:>3}% [{bar:32}] {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta} left",
                ),
                None => (
                    ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()),
                    "{spinner} {binary_bytes}, {binary_bytes_per_sec}",
                ),
            };
            // With an invalid template the library's default style remains.
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("=> "));
            }
            bar
        });
        let now = Instant::now();
        Self { show, bar, device: device.to_owned(), total, done: 0, started: now, shown: now, json_to_stderr }
    }

    /// Adds completed bytes.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.done += bytes;
        if let Some(bar) = &self.bar {
            bar.set_position(self.done);
        }
        let every = match self.show {
            Show::Lines(every) | Show::Json(every) => every,
            _ => return,
        };
        if self.shown.elapsed() >= every {
            self.shown = Instant::now();
            self.line(false);
        }
    }

    /// Prints the last line.
    pub(crate) fn finish(mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
            print_stderr(text_line(self.done, self.total, self.started.elapsed(), true));
        }
        self.line(true);
    }

    fn line(&self, last: bool) {
        let elapsed = self.started.elapsed();
        match self.show {
            Show::Json(_) => {
                let line = json_line(&self.device, self.done, self.total.unwrap_or(self.done), elapsed);
                if self.json_to_stderr {
                    print_stderr(line);
                } else {
                    // The copy continues if the reader has closed the pipe.
                    let _ = print(format_args!("{line}\n"));
                }
            }
            Show::Lines(_) => print_stderr(text_line(self.done, self.total, elapsed, last)),
            Show::Bar | Show::Nothing => {}
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        // After an error the bar must not mix with the message.
        if let Some(bar) = self.bar.take() {
            bar.abandon();
        }
    }
}

fn speed(done: u64, elapsed: Duration) -> f64 {
    done as f64 / elapsed.as_secs_f64().max(0.000_001)
}

fn eta(done: u64, total: u64, elapsed: Duration) -> Duration {
    let left = total.saturating_sub(done) as f64 / speed(done, elapsed).max(1.0);
    Duration::try_from_secs_f64(left).unwrap_or(Duration::MAX)
}

/// Formats a line like cryptsetup, with strings as values.
fn json_line(device: &Path, done: u64, total: u64, elapsed: Duration) -> String {
    let eta_ms = eta(done, total, elapsed).as_millis();
    let line = serde_json::json!({
        "device": path_text::text_of(device),
        "device_bytes": done.to_string(),
        "device_size": total.to_string(),
        "speed": (speed(done, elapsed) as u64).to_string(),
        "eta_ms": eta_ms.to_string(),
        "time_ms": elapsed.as_millis().to_string(),
    });
    line.to_string()
}

fn text_line(done: u64, total: Option<u64>, elapsed: Duration, last: bool) -> String {
    let minutes = |time: Duration| format!("{:02}m{:02}s", time.as_secs() / 60, time.as_secs() % 60);
    let (amount, unit) = scaled(done as f64);
    let (rate, rate_unit) = scaled(speed(done, elapsed));
    let written = format!("{amount:4.0} {unit} written, speed {rate:5.1} {rate_unit}/s");
    match total {
        _ if last => format!("Finished, time {}, {written}", minutes(elapsed)),
        Some(total) => {
            let percent = if total == 0 { 100.0 } else { done as f64 * 100.0 / total as f64 };
            format!("Progress: {percent:5.1}%, ETA {}, {written}", minutes(eta(done, total, elapsed)))
        }
        None => format!("Progress: {written}"),
    }
}

fn scaled(mut value: f64) -> (f64, &'static str) {
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    (value, unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_line_has_keys_of_cryptsetup_and_strings() {
        let line = json_line(Path::new("/dev/x"), 1 << 20, 3 << 20, Duration::from_secs(1));
        assert_eq!(
            line,
            r#"{"device":"/dev/x","device_bytes":"1048576","device_size":"3145728","speed":"1048576","eta_ms":"2000","time_ms":"1000"}"#
        );
    }

    #[test]
    fn text_line_reads_like_cryptsetup() {
        let line = text_line(512 << 20, Some(2048 << 20), Duration::from_secs(4), false);
        assert_eq!(line, "Progress:  25.0%, ETA 00m12s,  512 MiB written, speed 128.0 MiB/s");
        let line = text_line(1 << 30, None, Duration::from_secs(68), true);
        assert_eq!(line, "Finished, time 01m08s,    1 GiB written, speed  15.1 MiB/s");
    }

    #[test]
    fn empty_copy_divides_by_no_zero() {
        assert!(json_line(Path::new("x"), 0, 0, Duration::ZERO).contains(r#""eta_ms":"0""#));
        assert!(text_line(0, Some(0), Duration::ZERO, false).contains("100.0%"));
    }

    #[test]
    fn options_select_form() {
        let half = Duration::from_millis(500);
        assert_eq!(Show::from_options(false, false, None), Show::Bar);
        assert_eq!(Show::from_options(true, false, Some(3)), Show::Nothing);
        assert_eq!(Show::from_options(true, true, None), Show::Json(half));
        assert_eq!(Show::from_options(false, true, Some(2)), Show::Json(Duration::from_secs(2)));
        assert_eq!(Show::from_options(false, false, Some(2)), Show::Lines(Duration::from_secs(2)));
    }
}
