//! Volumes as real disks on this kernel: opening, using, closing, killed processes, users without root, refusals.
//!
//! Block devices need root, FUSE and loop devices. Without these, the tests are skipped.

mod flags;
mod full;
mod killed;
mod life;
mod lost_writes;
mod refusals;
mod support;
mod thin;
mod unprivileged;
