//! How data units become ciphertext.
//!
//! This crate knows nothing of disks, headers or requests. It is given a cipher specification, a key, the number of the
//! first data unit's IV and a run of whole data units, and turns all of them into ciphertext, or back, in one call.

mod aes;
mod block_cipher;
mod error;
mod in_out;
mod isa;
mod iv;
mod key;
#[allow(unsafe_code)] // Maps, locks and wipes pages of its own.
mod locked;
mod modes;
mod scrub;
mod sector_cipher;
mod segment;
mod spec;
#[cfg(test)]
mod testing;
mod unit;

pub use aes::{AesKernel, Limit};
pub use error::CipherError;
pub use in_out::InOut;
pub use isa::{AesNi, CPU_LIMIT_VARIABLE, CpuLimit, Vaes256, Vaes512};
pub use key::VolumeKey;
pub use locked::memory_lock_failed;
pub use scrub::scrub_stack;
pub use sector_cipher::{SectorCipher, new_sector_cipher, new_sector_cipher_on};
pub use segment::Segment;
pub use spec::{ChainMode, Cipher, CipherSpec, EssivHash, InvalidCipherSpec, IvMode, KeyCount, KeyParts, known_specs};
pub use unit::{DataUnitSize, InvalidDataUnitSize, IvNumber, SECTOR_SIZE, Sector};
