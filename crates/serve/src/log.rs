//! Messages of threads that must not wait for standard error: a pipe whose reader does not read blocks who writes.

use std::collections::{HashMap, VecDeque};
use std::fmt::Display;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Messages that wait to be printed. Further ones are counted only.
const MAX_WAITING: usize = 256;

/// Lines about one subject in [`PERIOD`]. Further ones are counted only.
const MAX_OF_SUBJECT: u32 = 10;
const PERIOD: Duration = Duration::from_secs(60);

/// A log. Clones are the same one.
#[derive(Clone)]
pub struct Log(Arc<Inner>);

struct Inner {
    /// Start of lines of the log itself, such as the name of the program and a colon.
    prefix: &'static str,
    print: Box<dyn Fn(&str) + Send + Sync>,
    queue: Mutex<Queue>,
    changed: Condvar,
    subjects: Mutex<Subjects>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<String>,
    /// Messages that found no room.
    dropped: u64,
    is_printing: bool,
    has_thread: bool,
}

impl Log {
    /// Returns a log whose lines `print` prints, on a thread of its own while there are some. It may block.
    pub fn new(prefix: &'static str, print: impl Fn(&str) + Send + Sync + 'static) -> Self {
        let (queue, subjects) = (Mutex::default(), Mutex::default());
        Self(Arc::new(Inner { prefix, print: Box::new(print), queue, changed: Condvar::new(), subjects }))
    }

    /// Prints a line. Does not block. If nothing is printed for long, some hundred lines wait, and of the others the
    /// number is printed later.
    pub fn line(&self, line: impl Display) {
        let mut queue = self.0.queue();
        if !queue.has_thread {
            let (thread, inner) = (std::thread::Builder::new().name("inlock-log".to_owned()), Arc::clone(&self.0));
            queue.has_thread = thread.spawn(move || inner.run()).is_ok();
        }
        // Without a thread, the next call starts one.
        queue.push(line.to_string());
    }

    /// Prints a line about a volume or an export as [`Log::line`] does, but few a minute: what goes wrong may go wrong
    /// again with each client. The number of those that are left out follows with the next line.
    pub fn about(&self, subject: impl Display, text: impl Display) {
        let (subject, prefix) = (subject.to_string(), self.0.prefix);
        let mut subjects = self.0.subjects.lock().unwrap_or_else(PoisonError::into_inner);
        let left_out = subjects.admit(&subject, Instant::now());
        drop(subjects);
        let Some(left_out) = left_out else { return };
        if left_out > 0 {
            self.line(format_args!("{prefix}{subject}: {left_out} messages were left out"));
        }
        self.line(format_args!("{prefix}{subject}: {text}"));
    }

    /// Blocks until all lines are printed, for at most `limit`.
    pub fn finish(&self, limit: Duration) {
        let is_busy = |queue: &mut Queue| queue.is_printing || queue.has_next();
        drop(self.0.changed.wait_timeout_while(self.0.queue(), limit, is_busy));
    }
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

impl Queue {
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
    fn next(&mut self, prefix: &str) -> Option<String> {
        let dropped = || match std::mem::take(&mut self.dropped) {
            0 => None,
            number => Some(format!("{prefix}{number} messages were dropped: standard error was not read")),
        };
        self.waiting.pop_front().or_else(dropped)
    }
}

impl Inner {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Prints all lines that wait. The next line starts a thread again.
    fn run(&self) {
        let mut queue = self.queue();
        while let Some(line) = queue.next(self.prefix) {
            queue.is_printing = true;
            drop(queue);
            (self.print)(&line);
            queue = self.queue();
            queue.is_printing = false;
            self.changed.notify_all();
        }
        queue.has_thread = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

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
    fn lines_wait_for_a_printer_that_blocks_and_no_caller_does() {
        let (printed, prints) = mpsc::channel();
        let (release, blocks) = mpsc::channel::<()>();
        let blocks = Mutex::new(blocks);
        let log = Log::new("program: ", move |line| {
            let _ = blocks.lock().unwrap().recv();
            printed.send(line.to_owned()).unwrap();
        });
        log.line("first");
        (0..MAX_OF_SUBJECT + 2).for_each(|number| log.about("a", number));
        drop(release);
        log.finish(Duration::from_secs(600));
        let lines: Vec<String> = prints.try_iter().collect();
        assert_eq!(lines.len(), 1 + MAX_OF_SUBJECT as usize);
        assert_eq!((&*lines[0], &*lines[1]), ("first", "program: a: 0"));
        log.line("with another thread");
        log.finish(Duration::from_secs(600));
        assert_eq!(prints.try_iter().collect::<Vec<_>>(), ["with another thread"]);
    }

    #[test]
    fn line_that_is_being_printed_is_waited_for() {
        let (begin, begun) = mpsc::channel();
        let (release, blocks) = mpsc::channel::<()>();
        let blocks = Mutex::new(blocks);
        let log = Log::new("", move |_| {
            begin.send(()).unwrap();
            let _ = blocks.lock().unwrap().recv();
        });
        log.line("only");
        begun.recv().unwrap();
        assert!(log.0.queue().is_printing);
        drop(release);
        log.finish(Duration::from_secs(600));
        assert!(!log.0.queue().is_printing);
    }

    #[test]
    fn messages_that_find_no_room_are_counted() {
        let mut queue = Queue::default();
        (0..MAX_WAITING + 3).for_each(|number| queue.push(number.to_string()));
        assert_eq!(queue.next("").as_deref(), Some("0"));
        queue.push("last".to_owned());
        let lines: Vec<_> = std::iter::from_fn(|| queue.next("")).collect();
        assert_eq!(lines.len(), MAX_WAITING + 1);
        assert_eq!(lines[MAX_WAITING - 1], "last");
        assert!(lines[MAX_WAITING].starts_with("3 messages were dropped"), "{lines:?}");
        assert!(!queue.has_next());
    }
}
