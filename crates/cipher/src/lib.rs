//! How data units become ciphertext.
//!
//! This crate knows nothing of disks, headers or requests. It is given a cipher specification, a key, the number of the
//! first data unit's IV and a run of whole data units, and turns all of them into ciphertext, or back, in one call.

mod adiantum;
mod aes;
pub mod bench;
mod block_cipher;
mod cbc;
pub mod in_out;
pub mod isa;
mod iv;
pub mod key;
mod layers;
#[allow(unsafe_code)] // Maps, locks and wipes pages of its own.
mod locked;
mod modes;
mod null;
pub mod scatter;
mod scrub;
pub mod sector_cipher;
pub mod segment;
pub mod spec;
#[cfg(test)]
mod testing;
pub mod unit;
pub mod xts;

pub use in_out::InOut;
pub use key::VolumeKey;
pub use locked::memory_lock_failed;
pub use scrub::scrub_stack;
pub use sector_cipher::{CipherError, SectorCipher, check_data_len, new_sector_cipher, new_sector_cipher_on};
pub use segment::Segment;
pub use spec::{ChainMode, Cipher, CipherSpec, EssivHash, InvalidCipherSpec, IvMode, KeyCount};
pub use unit::{DataUnitSize, InvalidDataUnitSize, IvNumber, SECTOR_SIZE, Sector};
pub use xts::XtsKernel;
