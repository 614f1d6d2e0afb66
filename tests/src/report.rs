//! Counts and skips, printed one a line where the gate finds them.
//!
//! `./test.sh` adds the counts of one name together and compares the sum with the floor recorded for it, so that a suite
//! that silently does less fails; a skip that is not on the list of expected ones fails too.

use std::fmt::Display;

/// States how much of something a test has done.
pub fn count(name: &str, number: impl Display) {
    println!("COUNT {name} {number}");
}

/// States that something was left out, and why.
pub fn skipped(why: impl Display) {
    println!("SKIPPED: {why}");
}
