//! Tests of the volume crate through its public face, in one program because linking is most of their cost.

// The lint spares test functions, but not what they share.
#![allow(clippy::unwrap_used)]

mod breakages;
mod costs;
mod crash_states;
mod cryptsetup;
mod keyslots;
mod support;
mod table;
mod vectors;
