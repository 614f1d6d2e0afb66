//! How data units become ciphertext.
//!
//! This crate knows nothing of disks, headers or requests. It is given a cipher specification, a key, the number of the
//! first data unit's IV and a run of whole data units, and turns all of them into ciphertext, or back, in one call.

pub mod in_out;
pub mod key;
pub mod sector_cipher;
pub mod segment;
pub mod spec;
pub mod unit;

pub use in_out::InOut;
pub use key::VolumeKey;
pub use sector_cipher::{CipherError, SectorCipher, new_sector_cipher};
pub use segment::Segment;
pub use spec::{Cipher, CipherSpec, ChainMode, EssivHash, InvalidCipherSpec, IvMode};
pub use unit::{DataUnitSize, InvalidDataUnitSize, IvNumber, SECTOR_SIZE, Sector};
