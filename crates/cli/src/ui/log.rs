//! Messages of threads that must not wait for standard error: a pipe whose reader does not read blocks who writes.

use std::collections::{HashMap, VecDeque};
use std::fmt::Display;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::print::print_stderr;

/// Messages that wait to be printed. Further ones are counted only.
const MAX_WAITING: usize = 256;

/// Lines about one subject in [`PERIOD`]. Further ones are counted only.
const MAX_OF_SUBJECT: u32 = 10;
const PERIOD: Duration = Duration::from_secs(60);

static LOG: Log = Log { queue: Mutex::new(Queue::new()), changed: Condvar::new() };
static SUBJECTS: Mutex<Option<Subjects>> = Mutex::new(None);

struct Log {
    queue: Mutex<Queue>,
    changed: Condvar,
}

struct Queue {
    waiting: VecDeque<String>,
    /// Messages that found no room.
    dropped: u64,
    is_printing: bool,
    has_thread: bool,
}

/// Prints a line about a volume or an export as [`log`] does, but few a minute: what goes wrong may go wrong again with
/// each client. The number of those that are left out follows with the next line.
pub(crate) fn log_about(subject: impl Display, text: impl Display) {
    let subject = subject.to_string();
    let mut subjects = SUBJECTS.lock().unwrap_or_else(PoisonError::into_inner);
    let left_out = subjects.get_or_insert_default().admit(&subject, Instant::now());
    drop(subjects);
    let Some(left_out) = left_out else { return };
    if left_out > 0 {
        log(format_args!("inlock: {subject}: {left_out} messages were left out"));
    }
    log(format_args!("inlock: {subject}: {text}"));
}

/// Lines that were printed lately, by what they are about.
#[derive(Default)]
struct Subjects(HashMap<String, Printed>);

struct Printed {
    since: Instant,
    lines: u32,
    left_out: u64,
}

impl Subjects {
    /// Returns the number of lines about a subject that were left out before one that is to be printed. `None`: this
    /// one is left out, too.
    fn admit(&mut self, subject: &str, now: Instant) -> Option<u64> {
        let is_over = |printed: &Printed| now.saturating_duration_since(printed.since) >= PERIOD;
        if !self.0.contains_key(subject) {
            self.0.retain(|_, printed| !is_over(printed) || printed.left_out > 0);
        }
        let printed = self.0.entry(subject.to_owned()).or_insert(Printed { since: now, lines: 0, left_out: 0 });
        if is_over(printed) {
            (printed.since, printed.lines) = (now, 0);
        }
        if printed.lines == MAX_OF_SUBJECT {
            printed.left_out += 1;
            return None;
        }
        printed.lines += 1;
        Some(std::mem::take(&mut printed.left_out))
    }
}

/// Prints a line to standard error, on a thread of its own. Does not block. If standard error takes nothing, some
/// hundred lines wait, and of the others the number is printed later.
pub(crate) fn log(line: impl Display) {
    LOG.add(line.to_string());
}

/// Blocks until all lines of [`log`] are printed, for at most `limit`.
pub(crate) fn finish(limit: Duration) {
    let is_busy = |queue: &mut Queue| queue.is_printing || queue.has_next();
    drop(LOG.changed.wait_timeout_while(LOG.queue(), limit, is_busy));
}

impl Queue {
    const fn new() -> Self {
        Self { waiting: VecDeque::new(), dropped: 0, is_printing: false, has_thread: false }
    }

    /// Takes a line, unless too many wait.
    fn push(&mut self, line: String) {
        if self.waiting.len() < MAX_WAITING {
            self.waiting.push_back(line);
        } else {
            self.dropped += 1;
        }
    }

    fn has_next(&self) -> bool {
        !self.waiting.is_empty() || self.dropped > 0
    }

    /// Returns the next line to print. The number of those that were dropped follows the ones that were not.
    fn next(&mut self) -> Option<String> {
        let dropped = || match std::mem::take(&mut self.dropped) {
            0 => None,
            number => Some(format!("inlock: {number} messages were dropped: standard error was not read")),
        };
        self.waiting.pop_front().or_else(dropped)
    }
}

impl Log {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&'static self, line: String) {
        let mut queue = self.queue();
        if !queue.has_thread {
            let thread = std::thread::Builder::new().name("inlock-log".to_owned());
            queue.has_thread = thread.spawn(|| self.run()).is_ok();
        }
        // Without a thread, the next call starts one.
        queue.push(line);
        drop(queue);
        self.changed.notify_all();
    }

    fn run(&self) {
        let mut queue = self.queue();
        loop {
            let Some(line) = queue.next() else {
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            queue.is_printing = true;
            drop(queue);
            print_stderr(line);
            queue = self.queue();
            queue.is_printing = false;
            self.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_about_a_subject_are_limited_and_those_left_out_are_counted() {
        let (mut subjects, begin) = (Subjects::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        for number in 0..u64::from(MAX_OF_SUBJECT) {
            assert_eq!(subjects.admit("a", at(number)), Some(0));
        }
        assert_eq!((subjects.admit("a", at(30)), subjects.admit("a", at(59))), (None, None));
        assert_eq!(subjects.admit("b", at(59)), Some(0), "it is limited by another");
        assert_eq!((subjects.admit("a", at(60)), subjects.admit("a", at(61))), (Some(2), Some(0)));
        // Those that say nothing for long are forgotten, unless a number is still to be told.
        let printed = (0..MAX_OF_SUBJECT).filter_map(|_| subjects.admit("a", at(61))).count();
        assert_eq!(printed, MAX_OF_SUBJECT as usize - 2);
        assert_eq!(subjects.admit("c", at(1000)), Some(0));
        assert_eq!(subjects.0.len(), 2, "b is kept");
        assert_eq!(subjects.admit("a", at(2000)), Some(2));
    }

    #[test]
    fn messages_that_find_no_room_are_counted() {
        let mut queue = Queue::new();
        (0..MAX_WAITING + 3).for_each(|number| queue.push(number.to_string()));
        assert_eq!(queue.next().as_deref(), Some("0"));
        queue.push("last".to_owned());
        let lines: Vec<_> = std::iter::from_fn(|| queue.next()).collect();
        assert_eq!(lines.len(), MAX_WAITING + 1);
        assert_eq!(lines[MAX_WAITING - 1], "last");
        assert!(lines[MAX_WAITING].contains(" 3 messages were dropped"), "{lines:?}");
        assert!(!queue.has_next());
    }
}
