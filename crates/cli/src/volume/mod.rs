//! From what the user names to an unlocked volume: devices, locks, headers, tables, zones, keys.

pub(crate) mod backing;
pub(crate) mod device;
pub(crate) mod edit;
pub(crate) mod engine;
pub(crate) mod freshness;
pub(crate) mod header;
pub(crate) mod header_access;
pub(crate) mod header_file;
pub(crate) mod info;
pub(crate) mod integrity;
pub(crate) mod integrity_args;
pub(crate) mod integrity_table;
pub(crate) mod key_check;
pub(crate) mod keyring;
pub(crate) mod lock;
pub(crate) mod open;
pub(crate) mod policy_file;
pub(crate) mod reload;
pub(crate) mod remote;
pub(crate) mod secret;
pub(crate) mod source;
pub(crate) mod table;
pub(crate) mod token;
pub(crate) mod unlocked;
pub(crate) mod verity;
pub(crate) mod zones;
