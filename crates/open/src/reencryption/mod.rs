//! Re-encryption of LUKS2 volumes: their data change cipher or key, or become encrypted or plain, where they are.
//!
//! The header has the state at each instant ([`inlock_volume::luks2::reencryption`]), and it is always one from which
//! cryptsetup can go on. [`Driver`] reads, changes and writes data.

mod checksums;
mod ciphers;
mod driver;
mod file_system;
pub(crate) mod interrupted;
pub mod luks1;
mod offline;
pub mod online;
mod parallel;
mod shift;
#[cfg(test)]
mod tests;

pub use driver::{Devices, Driver, Recovered};
pub use interrupted::{confirm, is_begun, is_hot, is_unconfirmed, try_passphrase};
pub use offline::{NewParameters, Offline, ZoneProtection};
pub use shift::NewEncryption;
