//! Tests of the command as a user runs it, by subject. `harness` runs it, and makes images, devices and peers.

#![allow(clippy::unwrap_used, reason = "a test that unwraps an error fails")]

mod harness;

mod arguments;
mod background;
mod bad_input;
mod bench;
mod benchmark;
mod control;
mod copy;
mod derivation;
mod descriptors;
mod dropin;
mod edit_races;
mod edit_served;
mod format;
mod freshness;
mod guide;
mod header_places;
mod header_policy;
mod hung;
mod integrity;
mod key_memory;
mod key_prompts;
mod locks;
mod lost_writes;
mod luks_integrity;
mod metrics;
mod odd_bytes;
mod old_ciphers;
mod one_volume;
mod outputs;
mod passphrases;
mod prompt;
mod read_only;
mod recovery;
mod reencrypt;
mod reencrypt_luks1;
mod reencrypt_online;
mod reencrypt_turns;
mod refresh;
mod remote;
mod serve;
mod signatures;
mod state_files;
mod suspend;
mod table;
mod tokens;
mod trusted;
mod untrusted_text;
mod verity;
mod volume_key_keyring;
mod zoned;
mod zoned_volumes;
