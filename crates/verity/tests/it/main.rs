//! Tests of devices in memory and in files.

// The lint exempts test functions only.
#![allow(clippy::unwrap_used)]

mod breakages;
mod faults;
mod fec;
mod fsverity;
mod oracle;
mod store;
mod support;
mod tampering;
mod tree;
