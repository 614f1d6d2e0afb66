//! Tests of volumes in memory.

// The lint exempts test functions only.
#![allow(clippy::unwrap_used)]

mod bitmaps;
mod breakages;
mod crash;
mod damaged_journals;
mod device;
mod faults;
mod first_failures;
mod format;
mod freshness;
mod journal_writer;
mod journals;
mod key_memory;
mod locks;
mod marks;
mod metrics;
mod resize;
mod sealed;
mod separate;
mod support;
mod tampering;
mod unsigned_fields;
