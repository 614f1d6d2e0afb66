//! One file a verb.

pub(crate) mod benchmark;
pub(crate) mod close;
pub(crate) mod export;
pub(crate) mod import;
pub(crate) mod is_luks;
pub(crate) mod list;
pub(crate) mod luks_dump;
pub(crate) mod luks_format;
pub(crate) mod luks_uuid;
pub(crate) mod mount;
pub(crate) mod open;
pub(crate) mod refresh;
pub(crate) mod reload;
pub(crate) mod resize;
pub(crate) mod resume;
pub(crate) mod serve;
pub(crate) mod status;
pub(crate) mod suspend;
pub(crate) mod table;
pub(crate) mod test_passphrase;
pub(crate) mod top;
pub(crate) mod umount;
pub(crate) mod zoned;
