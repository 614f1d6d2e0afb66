//! Tests of the volume crate through its public API, in one program because linking takes most of their time.

// The lint exempts test functions only.
#![allow(clippy::unwrap_used)]

mod algorithms;
mod breakages;
mod changed_headers;
mod conversions;
mod costs;
mod crash_states;
mod cryptsetup;
mod edit_edges;
mod edit_states;
mod edit_steps;
mod edits;
mod header_backups;
mod header_verdicts;
mod integrity_table;
mod keyslots;
mod keyslots_together;
mod odd_texts;
mod policies;
mod power_cut;
mod reencryption;
mod repair_states;
mod sequences;
mod signatures;

mod support;
mod table;
mod tokens;
mod unreadable;
mod vectors;
mod verity_table;
