//! Messages of threads that must not wait for standard error: a pipe whose reader does not read blocks who writes.

use std::collections::VecDeque;
use std::fmt::Display;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::print::print_stderr;

/// Messages that wait to be printed. Further ones are counted only.
const MAX_WAITING: usize = 256;

static LOG: Log = Log { queue: Mutex::new(Queue::new()), changed: Condvar::new() };

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
