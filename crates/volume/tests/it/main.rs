//! Tests of the volume crate through its public face, in one program because linking is most of their cost.

mod breakages;
mod crash_states;
mod cryptsetup;
mod support;
mod vectors;
