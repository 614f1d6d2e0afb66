//! Actions on LUKS headers: one file each.

pub(super) mod add_key;
pub(super) mod change_key;
pub(super) mod config;
pub(super) mod convert;
pub(super) mod convert_key;
pub(super) mod dump;
mod dump_key;
pub(super) mod erase;
pub(super) mod format;
pub(super) mod header_backup;
pub(super) mod header_restore;
mod integrity;
pub(super) mod is_luks;
pub(super) mod kill_slot;
pub(super) mod policy;
pub(super) mod reencrypt;
pub(super) mod remove_key;
pub(super) mod repair;
pub(super) mod token;
pub(super) mod uuid;

const LAST_KEYSLOT: &str = "This is the last keyslot. Device will become unusable after purging this key.";
const NOT_WIPED: &str = "Operation aborted, the keyslot was NOT wiped.";
