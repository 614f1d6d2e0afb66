//! Counts and skips, printed one a line for `./test.sh`.
//!
//! `./test.sh` sums the counts of each name and compares the sum with its floor in `tests/floors.txt`, so that a suite
//! that silently does less fails. A skip that is not listed in `tests/expected-skips.txt` fails, too.

use std::fmt::Display;

/// Prints a count of what a test has done.
pub fn count(name: &str, number: impl Display) {
    println!("COUNT {name} {number}");
}

/// Prints that a part was skipped, with the reason.
pub fn skipped(why: impl Display) {
    println!("SKIPPED: {why}");
}
