//! Tests of the volume crate through its public API, in one program because linking takes most of their time.

// The lint exempts test functions only.
#![allow(clippy::unwrap_used)]

mod breakages;
mod costs;
mod crash_states;
mod cryptsetup;
mod keyslots;
mod support;
mod table;
mod vectors;
