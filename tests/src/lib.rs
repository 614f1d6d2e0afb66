//! What the tests of the whole share: the release build of `inlock` and how to run it, images made by other people's tools,
//! an independent decryptor, an NBD client that can also misbehave, and counts that the gate compares with floors.
//!
//! The suites stand in `tests/tests`, one file for each promise. They drive real programs (cryptsetup, qemu-img, nbdkit,
//! libnbd's tools, fio); a program that is missing is an error, never a silent pass.

pub mod image;
pub mod lost_writes;
pub mod nbd;
pub mod oracle;
pub mod process;
pub mod random;
pub mod report;
pub mod server;

/// The README's program, so that it is compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
