//! Services of the operating system that know nothing of volumes.

pub(crate) mod harden;
pub(crate) mod signals;
