//! Shared code of the integration tests: the release build of `inlock` and how to run it, images made by other tools,
//! an independent decryptor, an NBD client that can also misbehave, and counts that `./test.sh` compares with floors.
//!
//! The suites are in `tests/tests`, one file for each guarantee. They run real programs (cryptsetup, qemu-img, nbdkit,
//! libnbd's tools, fio). A missing program is an error, never a silent pass.

pub mod certificates;
pub mod image;
pub mod lost_writes;
pub mod memory_search;
pub mod nbd;
pub mod oracle;
pub mod process;
pub mod random;
pub mod report;
pub mod server;
pub mod wait;

/// The program of the README, compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

/// The functions of the guide's chapter on the libraries, compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/guide/library.md")]
struct LibraryGuide;
