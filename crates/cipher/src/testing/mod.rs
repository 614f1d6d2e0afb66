//! What tests of every cipher share: the naive implementations, guarded buffers, and the runner that compares them all.

pub(crate) mod naive;
mod runner;
