//! A volume as a real disk on this kernel: open, use, close, the daemon killed, users without root, refusals.
//!
//! Block devices need root, FUSE and loop devices; where those are missing, the tests say that they are skipped.

mod full;
mod killed;
mod life;
mod lost_writes;
mod refusals;
mod support;
mod thin;
mod unprivileged;
