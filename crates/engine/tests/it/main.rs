//! The engine against a model, against failing stores, and across power cuts.

// Helpers outside test functions may fail a test as well as the functions themselves.
#![allow(missing_docs, clippy::unwrap_used)]

mod asynchronous;
mod cipher_engine;
mod crash;
mod cursor;
mod direct;
mod durability;
mod faults;
mod grow;
mod holes;
mod model;
mod offload;
mod reencryption;
mod scripted;
mod stacked;
mod stats;
mod support;
mod suspend;
mod threaded;
mod vectored;
mod zoned;
