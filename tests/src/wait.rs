//! Waiting for what another thread or process does, with an end.

use std::fmt::Debug;
use std::fs;
use std::path::Path;
use std::sync::mpsc;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// Time after which what is waited for is taken not to come. A busy machine needs a part of it.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Time for which other threads are let run without a pause: most waits are short, and a test may need to know soon.
const BRIEF: Duration = Duration::from_millis(5);
const MAX_PAUSE: Duration = Duration::from_millis(20);

/// Blocks until `is_met` holds for what `look` returns, and returns that.
///
/// # Panics
/// If it does not within two minutes: with `what` was waited for, and the last value.
#[track_caller]
pub fn eventually<T: Debug>(what: &str, look: impl FnMut() -> T, is_met: impl Fn(&T) -> bool) -> T {
    match within(TIMEOUT, look, is_met) {
        Ok(value) => value,
        Err(last) => panic!("{what}: not within {} s; it was last {last:?}", TIMEOUT.as_secs()),
    }
}

/// Starts a thread, and blocks until it has ended or waits for something: for a lock, if nothing else makes it wait.
///
/// # Panics
/// If it does neither within two minutes.
#[track_caller]
pub fn spawn_until_it_waits<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> ScopedJoinHandle<'scope, T> {
    let (thread, is_waiting) = spawn_watched(scope, work);
    eventually("a thread to wait", is_waiting, |is_waiting| *is_waiting || thread.is_finished());
    thread
}

/// Starts a thread, and returns it with a function that tells whether it waits for something.
///
/// # Panics
/// If the thread does not start.
pub fn spawn_watched<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> (ScopedJoinHandle<'scope, T>, impl Fn() -> bool) {
    let (tell, told) = mpsc::channel();
    let thread = scope.spawn(move || {
        // PID/task/TID
        let name = fs::read_link("/proc/thread-self").expect("a link");
        let _ = tell.send(Path::new("/proc").join(name).join("stat"));
        work()
    });
    let stat = told.recv().expect("the thread runs");
    let state = move || fs::read_to_string(&stat).ok().and_then(|text| text.rsplit_once(") ")?.1.chars().next());
    (thread, move || state() == Some('S'))
}

/// Blocks until `is_met` holds for what `look` returns, for at most `timeout`. Returns the last value as an error
/// otherwise.
fn within<T>(timeout: Duration, mut look: impl FnMut() -> T, is_met: impl Fn(&T) -> bool) -> Result<T, T> {
    let begun = Instant::now();
    loop {
        // A late look is better than none, so the clock is read first.
        let waited = begun.elapsed();
        let value = look();
        if is_met(&value) {
            return Ok(value);
        }
        if waited >= timeout {
            return Err(value);
        }
        match waited < BRIEF {
            true => std::thread::yield_now(),
            false => std::thread::sleep((waited / 16).min(MAX_PAUSE)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn thread_is_waited_for_until_it_waits_or_has_ended() {
        let lock = Mutex::new(1);
        std::thread::scope(|scope| {
            let mut held = lock.lock().expect("no panic");
            let waiting = spawn_until_it_waits(scope, || *lock.lock().expect("no panic"));
            assert!(!waiting.is_finished());
            *held = 2;
            drop(held);
            assert_eq!(waiting.join().expect("no panic"), 2);
            assert!(spawn_until_it_waits(scope, || ()).is_finished());
        });
    }

    #[test]
    fn wait_ends_with_the_value_or_with_the_time() {
        let mut number = 0;
        let mut next = || {
            number += 1;
            number
        };
        assert_eq!(within(TIMEOUT, &mut next, |seen| *seen == 3), Ok(3));
        assert_eq!(within(Duration::ZERO, &mut next, |seen| *seen == 3), Err(4));
        let begun = Instant::now();
        let timeout = 3 * BRIEF;
        assert!(within(timeout, &mut next, |seen| *seen == 3).is_err());
        assert!(begun.elapsed() >= timeout, "it gave up early");
    }
}
