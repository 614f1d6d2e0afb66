//! Services of the operating system that know nothing of volumes.

pub(crate) mod harden;
pub(crate) mod pipe;
pub(crate) mod run_dir;
pub(crate) mod signals;
pub(crate) mod socket;
pub(crate) mod trusted_config;
